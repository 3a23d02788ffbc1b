//! An exported program as a model of ours: kept tensors are state by name, nodes are ops over tensors, one after the other.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use plimsoll_graph::{DType, GradientOps, TensorOps, Type};
use plimsoll_nn::blocks::{Laid, reordered};
use plimsoll_nn::{Init, Loss, Model, Net, Outputs, Param, Training};
use plimsoll_run::{Result as RunResult, Tensor};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result, refuse};
use crate::known::Known;
use crate::ops;
use crate::orders::{inverse, stored_orders, stored_type};
use crate::program::{Held, Kind, Length, Level, Program};
use crate::shares::CountedLoss;
use crate::value::Value;
use crate::walk::{Env, Run, laid_of};

/// A model from an exported program.
///
/// Parameters and buffers have the names that they have in the module. Weights of convolutions are kept in the order of axes in which
/// they are read at every step; [`TorchModel::bytes`] and [`TorchModel::in_order`] give and take them as PyTorch has them.
///
/// ```
/// use plimsoll_nn::{Model, Net};
/// use plimsoll_run::{Tensor, TensorOps};
/// use plimsoll_torch::TorchModel;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mlp.pt2");
/// let model = TorchModel::open(path)?;
/// let inputs = model.input_types(3)?;
/// let inputs: Vec<Tensor> = inputs.into_iter().map(Tensor::zeros).collect::<Result<_, _>>()?;
/// let mut net = Net::bound(model.params(), &model.values()?, false);
/// assert_eq!(model.forward(&mut net, &inputs)?.len(), model.program().outputs().len());
/// # Ok::<(), plimsoll_torch::Error>(())
/// ```
#[derive(Clone)]
pub struct TorchModel {
    program: Arc<Program>,
    /// One for each kept tensor, in their order, but for those without elements.
    params: Vec<Param>,
    /// Of each kept tensor, the order in which the axes of what is stored here are read.
    pub(crate) orders: Arc<Vec<Vec<usize>>>,
    /// Losses that are means over labels that count.
    pub(crate) counted: Arc<Vec<CountedLoss>>,
    /// Whether only the loss is given.
    gives_loss: bool,
    /// What is run in the place of this where the model is not trained: the module as it is in eval mode. All clones share them.
    others: Arc<OtherModes>,
    /// Whether this stands in for another, which keeps the state.
    is_other_mode: bool,
}

#[derive(Default)]
struct OtherModes {
    evaluated: OnceLock<TorchModel>,
    predicted: OnceLock<TorchModel>,
}

impl TorchModel {
    /// Opens a `.pt2` file.
    ///
    /// # Errors
    /// The file is damaged, of another version, or has an op that is not known here (named with the line of the user's source).
    pub fn open(path: impl AsRef<Path>) -> Result<TorchModel> {
        TorchModel::new(Program::open(path)?)
    }

    /// A program as a model.
    ///
    /// # Errors
    /// It has an op that is not known here.
    pub fn new(program: Program) -> Result<TorchModel> {
        if program.level() == Level::Training {
            let why = "it is at the level of torch.export.export, where ops write over their inputs; make it functional with .run_decompositions({}) before torch.export.save, or export it with plimsoll.torch.export";
            return Err(program.wrong(why));
        }
        ops::check(&program)?;
        let orders = stored_orders(&program);
        let param = |(held, order): (&Held, &Vec<usize>)| Param {
            name: held.name.clone(),
            ty: stored_type(held, order),
            init: Init::Constant(0.0),
            trained: held.kind == Kind::Trained,
        };
        let kept = program.held().iter().zip(&orders).filter(|(held, _)| held.ty.elements() > 0);
        let params = kept.map(param).collect();
        let counted = CountedLoss::of(&program);
        Ok(TorchModel {
            program: Arc::new(program),
            params,
            orders: Arc::new(orders),
            counted: Arc::new(counted),
            gives_loss: false,
            others: Arc::default(),
            is_other_mode: false,
        })
    }

    /// Gives this model and its clones another program for where its loss is only measured, one with a loss: the module as it is in eval
    /// mode. It is given once.
    ///
    /// # Errors
    /// That program has an op that is not known here, or keeps something that this one does not.
    pub fn set_evaluation(&self, program: Program) -> Result<()> {
        let model = self.other_mode(program)?.on_loss()?;
        self.others
            .evaluated
            .set(model)
            .map_err(|model| model.program.wrong("there is an evaluation already"))
    }

    /// Gives this model and its clones another program for predictions, whose outputs are what is predicted. It is given once.
    ///
    /// # Errors
    /// As for [`TorchModel::set_evaluation`].
    pub fn set_prediction(&self, program: Program) -> Result<()> {
        let model = self.other_mode(program)?;
        self.others.predicted.set(model).map_err(|model| model.program.wrong("there is a prediction already"))
    }

    /// What predicts in the place of this model, where that was given.
    pub fn prediction(&self) -> Option<&TorchModel> {
        self.others.predicted.get()
    }

    /// A program over this one's state.
    fn other_mode(&self, program: Program) -> Result<TorchModel> {
        let mut model = TorchModel::new(program)?;
        let mut orders = stored_orders(&model.program);
        for (held, order) in model.program.held().iter().zip(&mut orders) {
            if held.kind == Kind::Constant || held.ty.elements() == 0 {
                continue;
            }
            let (own, stored) = self.stored(&held.name)?;
            if own.ty != held.ty {
                let why = format!("{} is {} in one mode and {} in another", held.name, own.ty, held.ty);
                return Err(model.program.wrong(why));
            }
            order.clone_from(stored);
        }
        // What is only measured is not run in parts.
        model.counted = Arc::default();
        (model.orders, model.is_other_mode) = (Arc::new(orders), true);
        Ok(model)
    }

    /// Gives a training of this model the values of its parameters and buffers.
    ///
    /// # Errors
    /// The training is of another model, or values cannot be read.
    pub fn restore(&self, training: &mut Training) -> Result<()> {
        for param in &self.params {
            training.restore_whole(&param.name, &self.bytes(&param.name)?)?;
        }
        Ok(())
    }

    /// What [`TorchModel::restore`] takes at most while it runs: the largest tensor, read and put in order.
    pub fn restoring_bytes(&self) -> usize {
        2 * self.program.held().iter().map(|held| held.ty.bytes()).max().unwrap_or(0)
    }

    /// The program itself.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The same model with its loss as its only output: for training, see [`ProgramLoss`].
    ///
    /// # Errors
    /// No output is a single number, or gradients of the program would not be those of the module.
    pub fn on_loss(mut self) -> Result<TorchModel> {
        self.check_gradients()?;
        if self.program.loss().is_none() {
            let why = "none of its outputs is a single number, so that it has no loss of its own; name one";
            return Err(self.program.wrong(why));
        }
        self.gives_loss = true;
        Ok(self)
    }

    /// That gradients through the program are those of the module it was exported from.
    ///
    /// # Errors
    /// It was decomposed into core ATen, where `detach` is lost.
    pub fn check_gradients(&self) -> Result<()> {
        match self.program.level() {
            Level::Core => {
                let why = "it is decomposed into core ATen, where detach() is lost and gradients are silently wrong; use .run_decompositions({}) in the place of .run_decompositions()";
                Err(self.program.wrong(why))
            }
            _ => Ok(()),
        }
    }

    /// The parameters and buffers, in the order of [`TorchModel::values`].
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The types of the inputs for a batch: lengths that are open take the batch where they are those of the first axis of the first
    /// input, and what they were in the export elsewhere.
    ///
    /// # Errors
    /// The program was exported for another batch, and for that alone.
    pub fn input_types(&self, batch: usize) -> Result<Vec<Type>> {
        let first = self.program.inputs().first().and_then(|input| input.shape.first());
        if let Some(Length::Fixed(fixed)) = first
            && *fixed != batch
        {
            let why = format!(
                "it was exported for batches of {fixed}, not {batch}; export it with dynamic_shapes, so that the batch is open"
            );
            return Err(self.program.wrong(why));
        }
        let length = |length: &Length| match length {
            Length::Fixed(n) => *n,
            open @ Length::Open(..) if Some(open) == first => batch,
            Length::Open(_, n) => *n,
        };
        let ty = |input: &crate::Input| {
            Type::new(input.dtype, input.shape.iter().map(length).collect::<Vec<usize>>())
        };
        Ok(self.program.inputs().iter().map(ty).collect())
    }

    /// The values of parameters and buffers as they are stored here.
    pub fn values(&self) -> Result<Vec<Tensor>> {
        let value = |param: &Param| {
            let mut tensor = Tensor::zeros(param.ty.clone())?;
            tensor.set_bytes(&self.bytes(&param.name)?)?;
            Ok(tensor)
        };
        self.params.iter().map(value).collect()
    }

    /// The elements of one parameter or buffer, in the order in which they are stored here.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let (held, order) = self.stored(name)?;
        let bytes = self.program.value(held)?;
        // Axis i of what is stored is axis `order`⁻¹[i] of what PyTorch has.
        Ok(reordered(bytes, held.ty.dtype.bytes(), &held.ty.shape, &inverse(order)).into_owned())
    }

    /// Elements of one parameter or buffer (or of an optimizer's state of its shape) as PyTorch has them, from those stored here.
    pub fn in_order(&self, name: &str, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let (held, order) = self.stored(name)?;
        let unit = bytes.len() / held.ty.elements().max(1);
        Ok(reordered(bytes, unit, &stored_type(held, order).shape, order).into_owned())
    }

    /// Elements as they are stored here, from those that PyTorch has.
    pub fn as_stored(&self, name: &str, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let (held, order) = self.stored(name)?;
        let unit = bytes.len() / held.ty.elements().max(1);
        Ok(reordered(bytes, unit, &held.ty.shape, &inverse(order)).into_owned())
    }

    fn stored(&self, name: &str) -> Result<(&Held, &Vec<usize>)> {
        let at = self.program.held().iter().position(|held| held.name == name);
        let at = at.ok_or_else(|| self.program.wrong(format!("it has no tensor {name}")))?;
        Ok((&self.program.held()[at], &self.orders[at]))
    }

    fn run(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        let program = &*self.program;
        let (given, wanted) = (inputs.len(), program.inputs().len());
        // What labels count for comes after the batch, where it comes.
        let is_known = |&more: &usize| more == 0 || more == self.counted.len() || self.is_other_mode;
        if given.checked_sub(wanted).filter(is_known).is_none() {
            return Err(refuse(format!("gives {given} inputs to {}, which takes {wanted}", program.file())));
        }
        let (inputs, shares) = inputs.split_at(wanted);
        let mut env: Env<'_> = FxHashMap::default();
        for (input, given) in program.inputs().iter().zip(inputs) {
            check_input(input, given)?;
            let given = if given.dtype() == input.dtype { given.clone() } else { given.cast(input.dtype)? };
            env.insert(&input.name, Value::Tensor(given.into(), false));
        }
        let mut kept = Vec::with_capacity(program.held().len());
        for (held, order) in program.held().iter().zip(self.orders.iter()) {
            let is_trained = held.kind == Kind::Trained;
            kept.push(match held.ty.elements() {
                0 => None,
                _ => {
                    let ty = stored_type(held, order);
                    // Constants of two modes are other ones, be their names the same.
                    let tensor = match self.is_other_mode && held.kind == Kind::Constant {
                        true => {
                            let mut tensor = Tensor::zeros(ty)?;
                            tensor.set_bytes(&self.bytes(&held.name)?)?;
                            tensor
                        }
                        false => net.given(&held.name, ty, Init::Constant(0.0), is_trained)?,
                    };
                    Some(Laid::ordered(tensor, order))
                }
            });
        }
        let anchor =
            inputs.first().cloned().or_else(|| kept.iter().flatten().next().map(|laid| laid.lying().clone()));
        let Some(anchor) = anchor else { return Err(refuse("runs a program without inputs and parameters")) };
        for (name, &at) in &program.bound {
            let held = &program.held()[at];
            let laid = match &kept[at] {
                Some(laid) => laid.clone(),
                None => anchor.full_like(held.ty.clone(), 0.0)?.into(),
            };
            let is_learned = held.kind == Kind::Trained;
            let value = match held.is_complex {
                true => ops::complex::of_pairs(&laid, is_learned)?,
                false => Value::Tensor(laid, is_learned),
            };
            env.insert(name, value);
        }
        let results = self.counted.iter().map(|loss| loss.result.clone());
        let mut run = Run::new(
            net,
            &anchor,
            &program.graph,
            Known::of(program)?,
            results.zip(shares.iter().cloned()).collect(),
        );
        run.graph(&program.graph, &mut env)?;
        let is_training = run.net.is_training();
        for (name, at) in program.changes.iter().filter(|_| is_training) {
            let held = &program.held()[*at];
            if held.ty.elements() == 0 {
                continue;
            }
            if held.kind == Kind::Trained {
                return Err(refuse(format!(
                    "writes to {}, which is trained: a planned step changes a trained parameter once, by its optimizer; compute with a new tensor that is made of it, or change it between steps",
                    held.name
                )));
            }
            let value = laid_of(&env, name)?.in_order(&inverse(&self.orders[*at]))?;
            let value = value.cast(held.ty.dtype)?.stop_gradient()?;
            run.net.update(&held.name, value)?;
        }
        let wanted = |i: &usize| !self.gives_loss || Some(*i) == program.loss();
        let outputs = (0..program.outputs().len())
            .filter(wanted)
            .map(|i| laid_of(&env, &program.outputs()[i].name)?.plain())
            .collect::<RunResult<Vec<Tensor>>>()?;
        Ok(outputs.into())
    }
}

impl Model for TorchModel {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        let other = match (net.is_predicting(), net.is_training()) {
            (true, _) => self.others.predicted.get(),
            (_, false) => self.others.evaluated.get(),
            _ => None,
        };
        other.unwrap_or(self).run(net, inputs)
    }
}

impl std::fmt::Debug for TorchModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TorchModel({}: {} parameters and buffers)", self.program.file(), self.params.len())
    }
}

/// The loss of a program that returns it: its only output ([`TorchModel::on_loss`]). Parameters that it does not depend on stay as they are.
#[derive(Clone, Copy, Debug)]
pub struct ProgramLoss;

impl Loss for ProgramLoss {
    fn loss(&self, outputs: &[Tensor], _: &[Tensor]) -> RunResult<Tensor> {
        match outputs {
            [loss] => loss.cast(if loss.dtype() == DType::F64 { DType::F64 } else { DType::F32 }),
            _ => Err(refuse(format!("has {} outputs and not a loss alone", outputs.len()))),
        }
    }

    fn leaves_out(&self) -> bool {
        true
    }
}

fn check_input(input: &crate::Input, given: &Tensor) -> RunResult<()> {
    let fits = |(length, n): (&Length, &usize)| match length {
        Length::Fixed(fixed) => fixed == n,
        Length::Open(..) => true,
    };
    let shape = given.shape();
    if shape.rank() == input.shape.len() && input.shape.iter().zip(shape.iter()).all(fits) {
        return Ok(());
    }
    let length = |length: &Length| match length {
        Length::Fixed(n) => n.to_string(),
        Length::Open(..) => "any".into(),
    };
    let wanted: Vec<String> = input.shape.iter().map(length).collect();
    Err(refuse(format!(
        "gives {shape} for the input {}, which was exported as [{}]; export the program for such inputs, with dynamic_shapes for axes that change",
        input.name,
        wanted.join(", ")
    )))
}

impl From<Error> for plimsoll_run::Error {
    fn from(error: Error) -> plimsoll_run::Error {
        match error {
            Error::Run(error) => error,
            other => refuse(format!("reads a program, and {other}")),
        }
    }
}
