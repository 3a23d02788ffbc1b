//! Hands a model its parameters by name: finds out which there are, then binds them to values.

use plimsoll_graph::{DType, Shape, Type};
use plimsoll_run::{Error, Result, Sketch, Tensor, named};
use rustc_hash::FxHashMap;

use crate::Init;

/// A parameter that a model asked for.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its path: `block1/conv/weight`.
    pub name: String,
    /// Element type and shape.
    pub ty: Type,
    /// How it starts.
    pub init: Init,
    /// Whether the optimizer moves it; statistics that a layer keeps itself are not.
    pub trained: bool,
}

/// The context in which a model's function runs.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Type};
/// use plimsoll_nn::{Init, Net};
/// let found = Net::discover(&[Type::new(DType::F32, [8, 4])], |net, x| {
///     let w = net.param("w", [4, 2], Init::fan_in(4))?;
///     x[0].matmul(&w)
/// })?;
/// assert_eq!(found[0].name, "w");
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub struct Net {
    params: Vec<Param>,
    index: FxHashMap<String, usize>,
    values: Vec<Tensor>,
    updates: Vec<Option<Tensor>>,
    /// Where parameters come from while they are being discovered.
    sketch: Option<Sketch>,
    path: Vec<String>,
    training: bool,
}

impl Net {
    /// The parameters that a model asks for on inputs of these types. Nothing is computed.
    pub fn discover(
        inputs: &[Type],
        model: impl FnOnce(&mut Net, &[Tensor]) -> Result<Tensor>,
    ) -> Result<Vec<Param>> {
        let sketch = Sketch::new();
        let inputs: Vec<Tensor> = inputs.iter().map(|ty| sketch.tensor("input", ty.clone())).collect();
        let mut net = Net::over(Vec::new(), Vec::new(), true);
        net.sketch = Some(sketch);
        model(&mut net, &inputs)?;
        Ok(net.params)
    }

    /// A net whose parameters have these values, in the order of `params`.
    pub fn bound(params: &[Param], values: &[Tensor], training: bool) -> Net {
        Net::over(params.to_vec(), values.to_vec(), training)
    }

    fn over(params: Vec<Param>, values: Vec<Tensor>, training: bool) -> Net {
        let index = params.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        let updates = vec![None; params.len()];
        Net { params, index, values, updates, sketch: None, path: Vec::new(), training }
    }

    /// Whether the model is being trained: batch norm uses the batch's statistics, dropout drops.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// An f32 parameter that the optimizer moves.
    #[track_caller]
    pub fn param(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        self.get(name, Type::new(DType::F32, shape), init, true)
    }

    /// An f32 value that a layer keeps from step to step by itself ([`Net::update`]).
    #[track_caller]
    pub fn state(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        self.get(name, Type::new(DType::F32, shape), init, false)
    }

    /// Sets what [`Net::state`] of that name will give in the next step.
    #[track_caller]
    pub fn update(&mut self, name: &str, value: Tensor) -> Result<()> {
        let path = self.path_of(name);
        let index = *self.index.get(&path).ok_or_else(|| self.unknown(&path))?;
        self.updates[index] = Some(value);
        Ok(())
    }

    /// Runs `body` with a name added to the path of all parameters asked for in it.
    pub fn scope<T>(&mut self, name: &str, body: impl FnOnce(&mut Net) -> Result<T>) -> Result<T> {
        self.path.push(name.into());
        let result = named(name, || body(self));
        self.path.pop();
        result
    }

    /// The values of the next step: updated ones where a layer set them.
    pub(crate) fn updates(self) -> Vec<Option<Tensor>> {
        self.updates
    }

    #[track_caller]
    fn get(&mut self, name: &str, ty: Type, init: Init, trained: bool) -> Result<Tensor> {
        let path = self.path_of(name);
        if let Some(&i) = self.index.get(&path) {
            if self.params[i].ty != ty {
                let why =
                    format!("asks for parameter {path} as {ty}, which is {} elsewhere", self.params[i].ty);
                return Err(Error::Signature { site: plimsoll_graph::Site::here(), why });
            }
            return Ok(self.values[i].clone());
        }
        let Some(sketch) = &self.sketch else { return Err(self.unknown(&path)) };
        let value = sketch.tensor(&path, ty.clone());
        self.index.insert(path.clone(), self.params.len());
        self.params.push(Param { name: path, ty, init, trained });
        self.values.push(value.clone());
        self.updates.push(None);
        Ok(value)
    }

    fn path_of(&self, name: &str) -> String {
        let mut path = self.path.join("/");
        if !path.is_empty() {
            path.push('/');
        }
        path + name
    }

    #[track_caller]
    fn unknown(&self, path: &str) -> Error {
        let why = format!("asks for parameter {path}, which the model did not have when it was first traced");
        Error::Signature { site: plimsoll_graph::Site::here(), why }
    }
}
