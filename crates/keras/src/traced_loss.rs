//! A loss of the user's own: the operations of Keras that it calls on labels and outputs, as a model of two inputs.
//!
//! `python/plimsoll/_own_losses.py` writes it. No file of Keras's has such a loss: there a function is stored by its name alone.

use std::sync::Arc;

use plimsoll_formats::keras::Layer;
use plimsoll_graph::{DType, Shape, TensorOps};
use plimsoll_nn::{Net, Precision};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use crate::block::{Block, Body};
use crate::error::{Error, Result, refuse};
use crate::layer::{Cx, Pass};

const PLACE: &str = "the loss";

/// A loss that was followed into operations: what each sample, or each element of it, adds.
#[derive(Clone)]
pub struct TracedLoss {
    name: String,
    /// The lengths of the labels' axes behind the batch, as the function was given them.
    labels: Vec<usize>,
    /// Whether labels are numbers of classes.
    pub(crate) takes_classes: bool,
    /// Two inputs: labels and outputs.
    block: Arc<Block>,
}

impl std::fmt::Debug for TracedLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TracedLoss").field("name", &self.name).field("labels", &self.labels).finish()
    }
}

impl PartialEq for TracedLoss {
    fn eq(&self, other: &TracedLoss) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }
}

impl TracedLoss {
    /// Whether a stored loss is one.
    pub(crate) fn is_stored(value: &Value) -> bool {
        value.get("class_name").is_some_and(|class| class == "PlimsollLoss")
            && value.get("module").is_some_and(|module| module == "plimsoll")
    }

    /// Reads `graph`, `labels` and `classes` of its settings.
    pub(crate) fn read(value: &Value) -> Result<TracedLoss> {
        let wrong = |why: &str| Error::config(PLACE, why.to_string());
        let config = value.get("config").ok_or_else(|| wrong("it has no settings"))?;
        let get = |key: &str| config.get(key).unwrap_or(&Value::Null);
        let name = get("name").as_str().unwrap_or("loss").to_string();
        let layer = Layer::from_json(get("graph")).map_err(|e| Error::config(PLACE, e.to_string()))?;
        let model = layer.model.as_ref().ok_or_else(|| wrong("its graph is no model"))?;
        let block = Block::build(model, PLACE, 0)?;
        if (block.n_inputs(), block.n_outputs()) != (2, 1) {
            return Err(wrong("its graph does not make one tensor of labels and outputs"));
        }
        let has_weights = |body: &Body| matches!(body, Body::Layer(made) if !made.weights.is_empty());
        if block.all().iter().any(|node| has_weights(&node.body)) {
            return Err(wrong("it has weights; put them into a layer of the model"));
        }
        let sizes = get("labels").as_array().ok_or_else(|| wrong("it does not say what labels are"))?;
        let size = |n: &Value| {
            n.as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .ok_or_else(|| wrong("a length of its labels is no number"))
        };
        Ok(TracedLoss {
            name,
            labels: sizes.iter().map(size).collect::<Result<_>>()?,
            takes_classes: get("classes").as_bool().unwrap_or(false),
            block: Arc::new(block),
        })
    }

    /// What samples, or their elements, add to the loss. `x` is in f32 or f64.
    pub(crate) fn each(&self, x: &Tensor, labels: &Tensor) -> RunResult<Tensor> {
        let Some(&rows) = x.shape().first() else {
            return Err(refuse(format!("gives {} to a loss", x.ty())));
        };
        let shape: Shape = [rows].into_iter().chain(self.labels.iter().copied()).collect();
        let labels = labels.cast(x.dtype())?;
        if labels.shape().elements() != shape.elements() {
            return Err(refuse(format!(
                "gives labels of {} to {}, which was followed for {:?} a sample",
                labels.ty(),
                self.name,
                self.labels
            )));
        }
        let labels = labels.reshape(shape)?;
        let precision = if x.dtype() == DType::F64 { Precision::F64 } else { Precision::default() };
        let mut net = Net::bound(&[], &[], false).precision(precision);
        let mut pass = Pass::new(false, Some(precision), Arc::default());
        let mut cx = Cx { net: &mut net, pass: &mut pass };
        let mut outputs = self.block.run(&mut cx, &[(labels, None), (x.clone(), None)], &[false])?;
        let (each, _) = outputs.pop().ok_or_else(|| refuse("has no loss"))?;
        each.cast(x.dtype())
    }
}
