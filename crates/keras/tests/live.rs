//! A model that is in somebody's memory is read as its file is, and given back what was trained.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use plimsoll_formats::keras::{KerasFile, Values, Variable};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_keras::{KerasLoss, KerasModel, OutputLoss};
use plimsoll_nn::Loss;
use plimsoll_run::Tensor;

/// Variables in memory.
#[derive(Default)]
struct Memory(Mutex<HashMap<String, Vec<u8>>>);

impl Values for Memory {
    fn read_into(&self, path: &str, buffer: &mut [u8]) -> std::io::Result<()> {
        let held = self.0.lock().unwrap();
        buffer.copy_from_slice(held.get(path).ok_or(std::io::ErrorKind::NotFound)?);
        Ok(())
    }
}

/// The file's configuration and variables, held in memory.
fn held(path: &Path) -> (KerasFile, Arc<Memory>, Vec<Variable>) {
    let file = KerasFile::open(path).unwrap();
    let memory = Memory::default();
    for variable in file.variables() {
        let mut bytes = vec![0; variable.bytes];
        file.read_into(&variable.path, &mut bytes).unwrap();
        memory.0.lock().unwrap().insert(variable.path.clone(), bytes);
    }
    let variables = file.variables().to_vec();
    (file, Arc::new(memory), variables)
}

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The losses of so many steps from where a model stands; then what was trained is in memory, as variables of the same list.
fn losses(model: &KerasModel, memory: Option<(&Memory, &mut Vec<Variable>)>, steps: usize) -> Vec<f64> {
    let labels = Tensor::zeros(Type::new(DType::I64, [4])).unwrap();
    let x = Tensor::full(model.inputs(4).unwrap()[0].clone(), 0.5).unwrap();
    let mut training = model.compiled().unwrap().training(4, vec![labels.ty().clone()]).unwrap();
    let losses = (0..steps).map(|_| training.step(&[&x], &labels).unwrap()).collect();
    if let Some((memory, variables)) = memory {
        let with_state = model.each_variable(&training, |variable, bytes| {
            let before = memory.0.lock().unwrap().insert(variable.path.clone(), bytes.to_vec());
            // An optimizer that was never used has no state yet.
            variables.extend(before.is_none().then(|| variable.clone()));
            Ok(())
        });
        assert!(with_state.unwrap());
    }
    losses
}

#[test]
fn a_model_in_memory_trains_as_its_file_does_and_goes_on_from_what_it_is_given_back() {
    let path = fixture("mlp.keras");
    let (file, memory, mut variables) = held(&path);
    let open = |variables: &[Variable]| {
        let values: Arc<dyn Values> = memory.clone();
        KerasModel::live("mlp", file.config_json(), file.keras_version(), variables.to_vec(), values, None)
            .unwrap()
    };
    let all = losses(&KerasModel::open(&path).unwrap(), None, 6);
    let first = losses(&open(&variables), Some((&memory, &mut variables)), 3);
    let rest = losses(&open(&variables), Some((&memory, &mut variables)), 3);
    assert_eq!([first, rest].concat(), all);
}

#[test]
fn a_variable_that_is_missing_is_named() {
    let (file, memory, mut variables) = held(&fixture("mlp.keras"));
    let at = variables.iter().position(|v| v.path.starts_with("layers/")).unwrap();
    let gone = variables.remove(at).path;
    let opened = KerasModel::live("mlp", file.config_json(), "3.15.0", variables, memory, None);
    let why = opened.unwrap_err().to_string();
    assert!(why.contains(gone.rsplit_once('/').unwrap().0), "{gone}: {why}");
}

#[test]
fn weights_of_samples_multiply_their_losses_and_the_mean_is_over_samples() {
    let outputs = Tensor::from_slice(&[0.2f32, 0.8, 0.5, 0.5, 0.9, 0.1], [3, 2]).unwrap();
    let labels = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0, 0.3, 0.7], [3, 2]).unwrap();
    let ones = Tensor::from_slice(&[1f32, 1.0, 1.0], [3]).unwrap();
    let first = Tensor::from_slice(&[3f32, 0.0, 0.0], [3]).unwrap();
    let row = |t: &Tensor| t.split(0, &[1, 2]).unwrap().remove(0);
    for loss in [
        OutputLoss::Mse,
        OutputLoss::Mae,
        OutputLoss::Mape,
        OutputLoss::Msle,
        OutputLoss::Huber(0.3),
        OutputLoss::LogCosh,
        OutputLoss::KlDivergence,
        OutputLoss::Poisson,
        OutputLoss::CosineSimilarity,
        OutputLoss::Categorical { from_logits: false, smoothing: 0.1 },
        OutputLoss::Binary { from_logits: true, smoothing: 0.0 },
    ] {
        let close = |a: Tensor, b: Tensor| {
            let (a, b) = (a.item().unwrap(), b.item().unwrap());
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{loss:?}: {a} and {b}");
        };
        close(loss.weighted_mean(&outputs, &labels, &ones).unwrap(), loss.mean(&outputs, &labels).unwrap());
        // Three times the first of three samples is the first.
        close(
            loss.weighted_mean(&outputs, &labels, &first).unwrap(),
            loss.mean(&row(&outputs), &row(&labels)).unwrap(),
        );
    }
    let mut whole = KerasLoss::of_first(OutputLoss::Mse, 1);
    whole.is_weighted = true;
    let weighted =
        whole.loss(std::slice::from_ref(&outputs), &[labels.clone(), first]).unwrap().item().unwrap();
    let alone = OutputLoss::Mse.mean(&row(&outputs), &row(&labels)).unwrap().item().unwrap();
    assert!((weighted - alone).abs() < 1e-6);
    let short = Tensor::from_slice(&[1f32, 1.0], [2]).unwrap();
    let why = whole.loss(&[outputs], &[labels, short]).unwrap_err().to_string();
    assert!(why.contains("by weights of"), "{why}");
}
