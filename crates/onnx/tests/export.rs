//! Models of the zoo as ONNX files: every one is read back and compared before it is written. Where `PLIMSOLL_ONNX_EXPORTS` names a folder,
//! the files stay there with inputs and outputs for `check_exports.py`, which holds them against onnx's checker and onnxruntime.

use std::fmt::Write;
use std::path::PathBuf;

use plimsoll_graph::{RandomOps, TensorOps, Type};
use plimsoll_nn::{Model, Net, model, zoo};
use plimsoll_onnx::{OnnxModel, write_model};
use plimsoll_run::Tensor;
use plimsoll_testing::Scratch;

/// A line of a name, its shape and its elements, as the fixtures have them.
fn line(kind: &str, name: &str, x: &Tensor) -> String {
    let shape: Vec<String> = x.shape().iter().map(usize::to_string).collect();
    let mut text = format!("{kind} {name} {}", shape.join(","));
    x.to_f64().unwrap().iter().for_each(|x| write!(text, " {x:e}").unwrap());
    text + "\n"
}

fn export(scratch: &Scratch, name: &str, model: &impl Model, input: &Type) {
    let kept = std::env::var_os("PLIMSOLL_ONNX_EXPORTS").map(PathBuf::from);
    let folder = kept.clone().unwrap_or_else(|| scratch.folder().to_path_buf());
    let path = folder.join(format!("{name}.onnx"));
    let params = Net::discover(std::slice::from_ref(input), model).unwrap();
    let values: Vec<Tensor> = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 3).unwrap()).collect();
    write_model(&path, name, model, &[("input".into(), input.clone())], &params, &values)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    // The batch is open, and weights are weights again.
    let back = OnnxModel::open(&path).unwrap();
    assert_eq!(back.inputs(6).unwrap()[0].shape[0], 6);
    let trained = |params: &[plimsoll_nn::Param]| {
        params.iter().filter(|p| p.trained).map(|p| p.ty.elements()).sum::<usize>()
    };
    assert_eq!(trained(back.params()), trained(&params), "{name}");
    if kept.is_none() {
        return;
    }
    let ty = input.with_shape(
        std::iter::once(4).chain(input.shape.iter().skip(1).copied()).collect::<plimsoll_graph::Shape>(),
    );
    let key = Tensor::from_slice(&[9i64, 0, 0], [3]).unwrap();
    let x = match ty.dtype.is_float() {
        true => key.random_normal(ty, 1, 0.0, 1.0).unwrap(),
        false => {
            Tensor::from_f64(&(0..ty.elements()).map(|i| (i % 7) as f64).collect::<Vec<_>>(), ty).unwrap()
        }
    };
    let mut net = Net::bound(&params, &values, false).predicting();
    let y = model.forward(&mut net, std::slice::from_ref(&x)).unwrap();
    let mut text = line("in", "input", &x);
    y.iter().enumerate().for_each(|(i, y)| text += &line("out", &format!("output_{i}"), y));
    std::fs::write(folder.join(format!("{name}.txt")), text).unwrap();
}

#[test]
fn every_model_of_the_zoo_is_written_and_reads_back_the_same() {
    let scratch = Scratch::new("onnx-zoo");
    for entry in zoo::ALL {
        let most =
            zoo::Size { width: 16, depth: 2, heads: 2, image: 32, patch: 16, sequence: 12, classes: 20 };
        let small = entry.within(most);
        export(&scratch, entry.name, &small, &small.input(1));
    }
}

#[test]
fn recurrent_layers_are_written_with_their_gates_in_order() {
    use plimsoll_nn::Recurrent;
    let scratch = Scratch::new("onnx-recurrent");
    let input = Type::new(plimsoll_graph::DType::F32, [1, 5, 3]);
    let gru = model(|net, x: &[Tensor]| net.gru("gru", &x[0], Recurrent::all(4)));
    export(&scratch, "gru", &gru, &input);
    let lstm = model(|net, x: &[Tensor]| net.lstm("lstm", &x[0], Recurrent::all(4)));
    export(&scratch, "lstm_layer", &lstm, &input);
}

#[test]
fn an_op_that_has_no_counterpart_is_named() {
    let scratch = Scratch::new("onnx-refused");
    let input = Type::new(plimsoll_graph::DType::F32, [1, 4]);
    let odd = model(|_, x: &[Tensor]| plimsoll_graph::CumulativeOps::cumprod(&x[0], 1));
    let path = scratch.folder().join("odd.onnx");
    let error = write_model(&path, "odd", &odd, &[("x".into(), input)], &[], &[]).unwrap_err().to_string();
    assert!(error.contains("cumprod"), "{error}");
    assert!(!path.exists());
}
