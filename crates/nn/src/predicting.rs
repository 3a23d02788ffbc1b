//! Turns a model into the graph of its predictions, for those that write models down op by op.
//!
//! [`crate::Description`] is a model as it trains, with its layers; this is a model as it predicts, with ops alone. Whoever writes one down
//! also reads it back and compares: [`crate::blocks::read_back`].

use plimsoll_graph::{DType, Graph, Shape, Type, ValueId};
use plimsoll_run::{Result, Sketch, Tensor};

use crate::error::refuse;
use crate::{Model, Net, Param, Precision};

/// A model as it predicts.
///
/// ```
/// use plimsoll_nn::{Net, Predicting, Sequential};
/// let model = Sequential::new([4]).dense(3).dropout(0.5);
/// let params = Net::discover(&[model.input(1)], &model)?;
/// let found = Predicting::new(&model, &[model.input(1)], &params)?;
/// assert_eq!(found.graph.nodes().len(), 1);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone)]
pub struct Predicting {
    /// All ops; its outputs are the model's. Its inputs are the model's, parameters and constants.
    pub graph: Graph,
    /// The model's inputs.
    pub inputs: Vec<ValueId>,
    /// The values that stand for the parameters, in their order.
    pub params: Vec<ValueId>,
    /// Constants that the model reached for, each with the value that stands for it.
    pub captured: Vec<(ValueId, Tensor)>,
}

impl Predicting {
    /// Traces a model for inputs of these types. Nothing is computed.
    pub fn new(model: &(impl Model + ?Sized), inputs: &[Type], params: &[Param]) -> Result<Predicting> {
        let sketch = Sketch::new();
        let given: Vec<Tensor> = inputs.iter().map(|ty| sketch.tensor("input", ty.clone())).collect();
        let values: Vec<Tensor> =
            params.iter().map(|param| sketch.tensor(&param.name, param.ty.clone())).collect();
        let outputs = Predicting::forward(model, &given, params, &values)?;
        let graph = sketch.graph(&outputs.iter().collect::<Vec<_>>())?;
        let id = |tensor: &Tensor| {
            sketch.value(tensor).ok_or_else(|| refuse("gives a tensor that was not made from its inputs"))
        };
        Ok(Predicting {
            graph,
            inputs: given.iter().map(id).collect::<Result<_>>()?,
            params: values.iter().map(id).collect::<Result<_>>()?,
            captured: sketch.captured(),
        })
    }

    /// What a model predicts, in the precision of its parameters.
    pub fn forward(
        model: &(impl Model + ?Sized),
        inputs: &[Tensor],
        params: &[Param],
        values: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let is_double = params.iter().any(|param| param.ty.dtype == DType::F64);
        let precision = if is_double { Precision::F64 } else { Precision::F32 };
        let mut net = Net::bound(params, values, false).precision(precision).predicting();
        Ok(model.forward(&mut net, inputs)?.iter().cloned().collect())
    }

    /// What a file stores of the model, with its name and where the trace reads it: parameters with these values, and captured constants.
    pub fn stored<'a>(
        &'a self,
        params: &'a [Param],
        values: &'a [Tensor],
    ) -> impl Iterator<Item = (String, &'a Tensor, ValueId)> {
        let params = params.iter().zip(values).zip(&self.params);
        let params = params.map(|((param, value), &id)| (param.name.clone(), value, id));
        let constants = self.captured.iter().enumerate();
        params.chain(constants.map(|(i, (id, value))| (format!("constant_{i}"), value, *id)))
    }

    /// A type with another number of samples along its first axis.
    pub fn of_batch(ty: &Type, n: usize) -> Type {
        ty.with_shape(std::iter::once(n).chain(ty.shape.iter().skip(1).copied()).collect::<Shape>())
    }
}
