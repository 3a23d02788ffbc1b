//! What a layer is once its configuration is understood: the weights it has and the function it computes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use plimsoll_graph::{DType, GradientOps, Shape, TensorOps, Type};
use plimsoll_nn::{Init, Net, Precision, View};
use plimsoll_run::{Result, Tensor};
use serde_json::Value;

use crate::constraint::Constraint;
use crate::error::refuse;
use crate::layers::Activation;

/// A weight of a layer, in the order in which Keras has them.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    /// The object below the layer that holds it in the file: "" for the layer itself, `cell`, `query_dense`.
    pub holder: String,
    /// Its name below the layer's: `kernel`, `lstm_cell/kernel`.
    pub name: String,
    pub kind: WeightKind,
    pub penalty: Option<Penalty>,
    /// What holds it after every update.
    pub constraint: Option<Constraint>,
    /// Whether the layer inside a wrapper that has it is trainable; none where it is the layer's own.
    pub trainable: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightKind {
    /// Moved by the optimizer unless its layer is frozen.
    Trained,
    /// The same, of a weight that some versions of Keras do not store.
    Optional,
    /// Kept by the layer itself.
    Statistic,
    /// Of no use to the computation; goes back into a written file as it came.
    Idle,
}

/// What a regularizer adds to the loss: l1 Σ |w| + l2 Σ w², and for how far rows or columns are from being orthogonal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Penalty {
    pub l1: f64,
    pub l2: f64,
    /// The weight of the mean |cosine| between two rows of a matrix, or columns.
    pub orthogonal: Option<(f64, Side)>,
}

/// The rows or the columns of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Rows,
    Columns,
}

pub(crate) type Body = Box<dyn Fn(&mut Cx<'_>, &Args) -> Result<Vec<Tensor>> + Send + Sync>;

/// What becomes of a mask that comes with a layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Masks {
    /// Keras takes it off here, and so do we.
    Drop,
    /// It goes with the output.
    Pass,
    /// The layer reads it, and sets the mask of its output itself.
    Read,
    /// Keras would use it in a way that is not built here.
    Refuse,
}

/// A layer whose configuration was understood.
pub(crate) struct Made {
    pub weights: Vec<Weight>,
    pub masks: Masks,
    /// Arguments by name that the layer reads, beside `training` and `mask`.
    pub kwargs: &'static [&'static str],
    /// The softmax or sigmoid that it ends in, which can be left out.
    pub probabilities: Option<View>,
    /// What its outputs add to the loss.
    pub activity: Option<Penalty>,
    pub body: Body,
}

impl Made {
    /// A function of one tensor.
    pub(crate) fn plain(f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Made {
        Made::with(Vec::new(), move |_, args| Ok(vec![f(args.one()?)?]))
    }

    /// A function of one tensor that applies an activation or draws random numbers.
    pub(crate) fn unary(f: impl Fn(&mut Cx<'_>, &Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Made {
        Made::with(Vec::new(), move |cx, args| Ok(vec![f(cx, args.one()?)?]))
    }

    /// A function of one tensor with weights.
    pub(crate) fn weighted(
        weights: Vec<Weight>,
        f: impl Fn(&mut Cx<'_>, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Made {
        Made::with(weights, move |cx, args| Ok(vec![f(cx, args.one()?)?]))
    }

    /// A function of anything.
    pub(crate) fn with(
        weights: Vec<Weight>,
        f: impl Fn(&mut Cx<'_>, &Args) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Made {
        Made {
            weights,
            masks: Masks::Drop,
            kwargs: &[],
            probabilities: None,
            activity: None,
            body: Box::new(f),
        }
    }

    pub(crate) fn masks(mut self, masks: Masks) -> Made {
        self.masks = masks;
        self
    }

    /// Says by which activation it ends.
    pub(crate) fn ends(mut self, activation: &Activation) -> Made {
        self.probabilities = activation.probability();
        self
    }

    pub(crate) fn kwargs(mut self, kwargs: &'static [&'static str]) -> Made {
        self.kwargs = kwargs;
        self
    }
}

/// What a layer is called on, with values in place of references.
#[derive(Clone, Debug, Default)]
pub(crate) struct Args {
    pub args: Vec<Arg>,
    pub kwargs: Vec<(String, Arg)>,
}

/// A value that a layer is called on. Tensors are the usual case, so they are not behind another pointer.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant)]
pub(crate) enum Arg {
    /// A tensor, and the mask that came with it.
    Tensor(Tensor, Option<Tensor>),
    List(Vec<Arg>),
    Value(Value),
}

impl Arg {
    pub(crate) fn tensors<'a>(&'a self, found: &mut Vec<&'a Tensor>) {
        match self {
            Arg::Tensor(x, _) => found.push(x),
            Arg::List(list) => list.iter().for_each(|arg| arg.tensors(found)),
            Arg::Value(_) => {}
        }
    }

    fn masks<'a>(&'a self, found: &mut Vec<&'a Tensor>) {
        match self {
            Arg::Tensor(_, mask) => found.extend(mask),
            Arg::List(list) => list.iter().for_each(|arg| arg.masks(found)),
            Arg::Value(_) => {}
        }
    }

    /// The same with every tensor changed.
    pub(crate) fn map(&self, f: &impl Fn(&Tensor) -> Result<Tensor>) -> Result<Arg> {
        Ok(match self {
            Arg::Tensor(x, mask) => Arg::Tensor(f(x)?, mask.clone()),
            Arg::List(list) => Arg::List(list.iter().map(|arg| arg.map(f)).collect::<Result<_>>()?),
            Arg::Value(value) => Arg::Value(value.clone()),
        })
    }
}

impl Args {
    pub(crate) fn of(x: Tensor, mask: Option<Tensor>) -> Args {
        Args { args: vec![Arg::Tensor(x, mask)], kwargs: Vec::new() }
    }

    /// The only tensor.
    pub(crate) fn one(&self) -> Result<&Tensor> {
        let mut found = Vec::new();
        if let Some(first) = self.args.first() {
            first.tensors(&mut found);
        }
        match found[..] {
            [x] if self.args.len() == 1 => Ok(x),
            _ => Err(refuse("gives several tensors, or none, to a layer that takes one")),
        }
    }

    /// The mask of the first tensor.
    pub(crate) fn mask(&self) -> Option<&Tensor> {
        let mut found = Vec::new();
        self.args.first()?.masks(&mut found);
        found.first().copied()
    }

    pub(crate) fn has_mask(&self) -> bool {
        let mut found = Vec::new();
        self.args.iter().chain(self.kwargs.iter().map(|(_, arg)| arg)).for_each(|arg| arg.masks(&mut found));
        !found.is_empty()
    }

    /// The masks of all tensors among the arguments by place.
    pub(crate) fn masks(&self) -> Vec<Option<&Tensor>> {
        fn collect<'a>(arg: &'a Arg, found: &mut Vec<Option<&'a Tensor>>) {
            match arg {
                Arg::Tensor(_, mask) => found.push(mask.as_ref()),
                Arg::List(list) => list.iter().for_each(|arg| collect(arg, found)),
                Arg::Value(_) => {}
            }
        }
        let mut found = Vec::new();
        self.args.iter().for_each(|arg| collect(arg, &mut found));
        found
    }

    /// A mask given by name becomes that of the first tensor.
    pub(crate) fn take_mask(&mut self) {
        let Some(place) = self.kwargs.iter().position(|(key, _)| key == "mask") else { return };
        if let (Arg::Tensor(given, _), Some(Arg::Tensor(_, mask))) =
            (&self.kwargs[place].1, self.args.first_mut())
        {
            *mask = Some(given.clone());
            self.kwargs.remove(place);
        }
    }

    /// All tensors among the arguments, by place and then by name.
    pub(crate) fn all(&self) -> Vec<&Tensor> {
        let mut found = Vec::new();
        self.args.iter().chain(self.kwargs.iter().map(|(_, a)| a)).for_each(|a| a.tensors(&mut found));
        found
    }

    /// An argument by place or by name; null is the same as not there.
    pub(crate) fn get(&self, place: usize, name: &str) -> Option<&Arg> {
        let named = || self.kwargs.iter().find(|(key, _)| key == name).map(|(_, arg)| arg);
        self.args.get(place).or_else(named).filter(|arg| !matches!(arg, Arg::Value(Value::Null)))
    }

    pub(crate) fn tensor(&self, place: usize, name: &str) -> Result<Option<&Tensor>> {
        match self.get(place, name) {
            None => Ok(None),
            Some(Arg::Tensor(x, _)) => Ok(Some(x)),
            Some(_) => Err(refuse(format!("gives something else than a tensor as {name}"))),
        }
    }

    pub(crate) fn flag(&self, place: usize, name: &str) -> Result<bool> {
        match self.get(place, name) {
            None => Ok(false),
            Some(Arg::Value(Value::Bool(flag))) => Ok(*flag),
            Some(_) => Err(refuse(format!("gives something else than true or false as {name}"))),
        }
    }

    pub(crate) fn value(&self, place: usize, name: &str) -> Value {
        fn plain(arg: &Arg) -> Value {
            match arg {
                Arg::Value(value) => value.clone(),
                Arg::List(list) => Value::Array(list.iter().map(plain).collect()),
                Arg::Tensor(..) => Value::Null,
            }
        }
        self.get(place, name).map_or(Value::Null, plain)
    }

    pub(crate) fn map(&self, f: &impl Fn(&Tensor) -> Result<Tensor>) -> Result<Args> {
        Ok(Args {
            args: self.args.iter().map(|arg| arg.map(f)).collect::<Result<_>>()?,
            kwargs: self
                .kwargs
                .iter()
                .map(|(key, arg)| Ok((key.clone(), arg.map(f)?)))
                .collect::<Result<_>>()?,
        })
    }
}

/// What is known of one forward pass beside the net.
#[derive(Default)]
pub(crate) struct Pass {
    /// Where we are, as the net's path.
    path: Vec<String>,
    /// Whether anything is trained: the outermost model is trainable.
    pub trains: bool,
    /// Whether the weights of the layer at hand are moved by the optimizer. Of models and wrappers around it only the outermost
    /// model's flag counts, as in Keras: others hand theirs down when they are set, and can be contradicted later.
    pub trainable: bool,
    /// Whether the layer at hand itself is trainable: batch norm asks.
    pub own_trainable: bool,
    /// Whether the layer at hand should leave out a softmax or sigmoid at its end.
    pub wants_logits: bool,
    /// Statistics as they stand within this pass: a shared layer updates them at each of its calls.
    states: HashMap<String, Tensor>,
    /// The precision of all layers, in place of their own.
    pub precision: Option<Precision>,
    /// The precisions of some layers by place, before that of all.
    pub layer_precisions: Arc<HashMap<String, Precision>>,
    /// The names of all weights that are stored.
    pub bound: Arc<HashSet<String>>,
    /// Regularizers by parameter.
    pub penalties: Arc<HashMap<String, Penalty>>,
    counted: HashSet<String>,
    /// Whether what outputs add to the loss is wanted.
    pub counts_activity: bool,
    /// The sum of penalties so far.
    pub penalty: Option<Tensor>,
    /// What each layer gave at its first call, where that is asked for.
    pub seen: Option<HashMap<String, Vec<Type>>>,
    /// The mask that a layer which reads masks sets on its output.
    pub mask: Option<Tensor>,
    /// Whether a layer has failed, and was named.
    pub has_failed: bool,
    /// The weight that is divided by its largest singular value, and in how many iterations that is found.
    pub spectral: Option<(String, usize)>,
}

impl Pass {
    pub(crate) fn new(
        trains: bool,
        precision: Option<Precision>,
        penalties: Arc<HashMap<String, Penalty>>,
    ) -> Pass {
        Pass { trains, trainable: trains, own_trainable: true, precision, penalties, ..Pass::default() }
    }

    /// Goes on to a layer that is trainable or not.
    pub(crate) fn enter(&mut self, trainable: bool) {
        (self.trainable, self.own_trainable) = (self.trains && trainable, trainable);
    }
}

/// The context in which a layer's function runs.
pub(crate) struct Cx<'a> {
    pub net: &'a mut Net,
    pub pass: &'a mut Pass,
}

impl Cx<'_> {
    pub(crate) fn is_training(&self) -> bool {
        self.net.is_training()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.net.dtype()
    }

    /// The type of weights and statistics.
    pub(crate) fn master_dtype(&self) -> DType {
        self.net.master_dtype()
    }

    fn full(&self, name: &str) -> String {
        let mut path = self.pass.path.join("/");
        if !path.is_empty() {
            path.push('/');
        }
        path + name
    }

    /// Whether a weight that may be missing is stored.
    pub(crate) fn is_bound(&self, name: &str) -> bool {
        self.pass.bound.contains(&self.full(name))
    }

    /// Runs `body` below a name.
    pub(crate) fn scope<T>(&mut self, name: &str, body: impl FnOnce(&mut Cx<'_>) -> Result<T>) -> Result<T> {
        self.pass.path.push(name.to_string());
        let pass = &mut *self.pass;
        let result = self.net.scope(name, |net| body(&mut Cx { net, pass }));
        self.pass.path.pop();
        result
    }

    /// A weight, in the type in which it is kept.
    #[track_caller]
    pub(crate) fn master(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        let shape = shape.into();
        let normed = self.pass.spectral.clone().filter(|(own, _)| own == name);
        if !self.pass.trainable {
            let w = self.net.state(name, shape, init)?;
            return match normed {
                Some((_, iterations)) => self.divided(name, &w, iterations),
                None => Ok(w),
            };
        }
        let mut w = self.net.master(name, shape, init)?;
        if let Some((_, iterations)) = normed {
            // The optimizer moves what was divided, by the gradient at that: so it is passed on as it is.
            w = w.add(&self.divided(name, &w, iterations)?.sub(&w)?.stop_gradient()?)?;
        }
        let full = self.full(name);
        if let Some(penalty) = self.pass.penalties.get(&full).copied()
            && self.pass.counted.insert(full)
        {
            self.penalize(penalty, &w)?;
        }
        Ok(w)
    }

    /// A weight divided by its largest singular value, which is what it is from now on, found by iterations that go on from
    /// the last step's.
    fn divided(&mut self, name: &str, w: &Tensor, iterations: usize) -> Result<Tensor> {
        let w = self.pass.states.get(&self.full(name)).cloned().unwrap_or_else(|| w.clone());
        let last = w.shape().last().copied().unwrap_or(1);
        if !self.is_training() {
            // It stays as it is, and so does what the iterations go on from.
            self.state("vector_u", [1, last], Init::Constant(0.0))?;
            return Ok(w);
        }
        let rows = w.ty().elements() / last.max(1);
        let matrix = w.reshape([rows, last])?.stop_gradient()?;
        let old = self.state("vector_u", [1, last], Init::Constant(0.0))?;
        let unit = |x: &Tensor| -> Result<Tensor> {
            let length = x.square()?.sum(&[], true)?.sqrt()?.reshape([1, 1])?;
            let is_none = length.equal(&length.full_like(length.ty().clone(), 0.0)?)?;
            x.div(&is_none.select(&length.full_like(length.ty().clone(), 1.0)?, &length)?)
        };
        let (mut u, mut v) = (old.clone(), None);
        for _ in 0..iterations {
            let left = unit(&u.matmul_with(&matrix, None, false, true)?)?;
            u = unit(&left.matmul(&matrix)?)?;
            v = Some(left);
        }
        let Some(v) = v else { return Err(refuse("divides a weight in no iterations")) };
        let size = v.matmul(&matrix)?.matmul_with(&u, None, false, true)?.reshape([])?;
        // A kernel of zeros stays one.
        let most = matrix.abs()?.max(&[], false)?;
        let is_zero = most.equal(&most.full_like(most.ty().clone(), 0.0)?)?;
        let size = is_zero.select(&size.full_like(size.ty().clone(), 1.0)?, &size)?;
        let u = is_zero.broadcast(u.shape().clone())?.select(&old, &u)?;
        let divided = w.div(&size)?;
        self.update("vector_u", u)?;
        self.update(name, divided.clone())?;
        Ok(divided)
    }

    /// Adds what a regularizer makes of a tensor to the loss.
    pub(crate) fn penalize(&mut self, penalty: Penalty, w: &Tensor) -> Result<()> {
        self.penalize_by(penalty, w, |each| each.sum(&[], false))
    }

    /// The same of a layer's output: the mean over samples.
    pub(crate) fn penalize_samples(&mut self, penalty: Penalty, y: &Tensor) -> Result<()> {
        self.penalize_by(penalty, y, |each| match each.shape().rank() {
            0 | 1 => each.mean(&[], false),
            _ => each.flatten(1)?.sum(&[1], false)?.mean(&[], false),
        })
    }

    /// Adds a number to the loss.
    pub(crate) fn add_loss(&mut self, part: Tensor) -> Result<()> {
        self.pass.penalty = Some(match self.pass.penalty.take() {
            Some(sum) => add_wide(&sum, &part)?,
            None => part,
        });
        Ok(())
    }

    fn penalize_by(
        &mut self,
        penalty: Penalty,
        x: &Tensor,
        sum: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let mut add = |part: Tensor| self.add_loss(part);
        if penalty.l1 != 0.0 {
            add(sum(&x.abs()?)?.mul_scalar(penalty.l1)?)?;
        }
        if penalty.l2 != 0.0 {
            add(sum(&x.square()?)?.mul_scalar(penalty.l2)?)?;
        }
        if let Some((factor, side)) = penalty.orthogonal {
            add(overlap(x, side)?.mul_scalar(factor)?)?;
        }
        Ok(())
    }

    /// A weight in the type the layer computes in.
    #[track_caller]
    pub(crate) fn param(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        let dtype = self.dtype();
        self.master(name, shape, init)?.cast(dtype)
    }

    /// A weight that is there only if the layer says so.
    #[track_caller]
    pub(crate) fn optional(
        &mut self,
        wanted: bool,
        name: &str,
        shape: impl Into<Shape>,
        init: Init,
    ) -> Result<Option<Tensor>> {
        if wanted { self.param(name, shape, init).map(Some) } else { Ok(None) }
    }

    /// A statistic as it stands at this point of the pass.
    #[track_caller]
    pub(crate) fn state(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        let value = self.net.state(name, shape, init)?;
        Ok(self.pass.states.get(&self.full(name)).cloned().unwrap_or(value))
    }

    #[track_caller]
    pub(crate) fn update(&mut self, name: &str, value: Tensor) -> Result<()> {
        self.pass.states.insert(self.full(name), value.clone());
        self.net.update(name, value)
    }

    /// The same of what is kept from batch to batch, also where nothing is trained.
    #[track_caller]
    pub(crate) fn carry(&mut self, name: &str, value: Tensor) -> Result<()> {
        self.pass.states.insert(self.full(name), value.clone());
        self.net.carry(name, value)
    }

    /// An activation at the end of a layer; left out where the loss wants what goes into it.
    #[track_caller]
    pub(crate) fn finish(&mut self, activation: &Activation, x: &Tensor) -> Result<Tensor> {
        if self.pass.wants_logits && activation.probability().is_some() {
            return Ok(x.clone());
        }
        activation.apply(x)
    }
}

/// The mean |cosine| between two rows of a matrix, or two columns.
fn overlap(x: &Tensor, side: Side) -> Result<Tensor> {
    let axis = if side == Side::Rows { 1 } else { 0 };
    let Some(&size) = x.shape().get(1 - axis).filter(|_| x.shape().rank() == 2) else {
        return Err(refuse(format!("has an orthogonal regularizer of {}, which is no matrix", x.ty())));
    };
    let squares = x.square()?.sum(&[axis], true)?;
    // A row of zeros stays one.
    let x = x.mul(&squares.clamp(1e-12, f64::INFINITY)?.rsqrt()?)?;
    let all = x.matmul_with(&x, None, side == Side::Columns, side == Side::Rows)?;
    let ty = Type::new(x.dtype(), [size, size]);
    let is_other = all.iota_like(ty.clone(), 0)?.not_equal(&all.iota_like(ty.clone(), 1)?)?;
    let others = is_other.select(&all, &all.full_like(ty, 0.0)?)?;
    let pairs = size as f64 * (size as f64 - 1.0) / 2.0;
    others.abs()?.sum(&[], false)?.mul_scalar(0.5 / pairs)
}

/// The sum of two numbers, in the wider of their types.
pub(crate) fn add_wide(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.dtype(), b.dtype()) {
        (DType::F64, _) => a.add(&b.cast(DType::F64)?),
        (_, DType::F64) => a.cast(DType::F64)?.add(b),
        _ => a.add(b),
    }
}
