//! Turns a model into a description: the graph of its ops, and which of its layers made what.
//!
//! A graph alone does not say that a matrix product and a sum were a dense layer; calls of layers alone do not say what happens
//! between them. Together they are enough to write a model down for another system, however it was built.

use plimsoll_graph::{Graph, Type, ValueId};
use plimsoll_run::{Result, Sketch, Tensor};

use crate::error::refuse;
use crate::{Activation, Conv1d, Conv2d, Model, MultiHead, Net, Param, Recurrent};

/// A layer's kind and settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LayerKind {
    /// [`Net::dense`]
    Dense {
        /// Output channels.
        units: usize,
        /// Whether a bias is added.
        bias: bool,
    },
    /// [`Net::embedding`]
    Embedding {
        /// Rows of the table.
        rows: usize,
        /// Their width.
        width: usize,
    },
    /// [`Net::conv1d`]
    Conv1d(Conv1d),
    /// [`Net::conv2d`], also depthwise.
    Conv2d(Conv2d),
    /// [`Net::conv_transpose2d`]
    ConvTranspose2d(Conv2d),
    /// [`Net::batch_norm`]
    BatchNorm {
        /// The share of the new batch in the running statistics.
        momentum: f64,
        /// Added to the variance.
        eps: f64,
    },
    /// [`Net::layer_norm`]
    LayerNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// [`Net::group_norm`]
    GroupNorm {
        /// Groups of channels.
        groups: usize,
        /// Added to the variance.
        eps: f64,
    },
    /// [`Net::rms_norm`]
    RmsNorm {
        /// Added to the mean of squares.
        eps: f64,
    },
    /// [`Net::dropout`]
    Dropout {
        /// The share that is dropped.
        rate: f64,
    },
    /// [`Net::spatial_dropout`]
    SpatialDropout {
        /// The share that is dropped.
        rate: f64,
    },
    /// [`Net::lstm`]
    Lstm(Recurrent),
    /// [`Net::gru`]
    Gru(Recurrent),
    /// [`Net::self_attention`]
    SelfAttention(MultiHead),
    /// [`Net::cross_attention`]: of the first input to the second.
    CrossAttention(MultiHead),
    /// [`Net::activation`]
    Activation(Activation),
}

/// A layer that a model called.
#[derive(Clone, Debug)]
pub struct LayerCall {
    /// Its path, under which its parameters are.
    pub path: String,
    /// What it is.
    pub kind: LayerKind,
    /// What it read.
    pub inputs: Vec<ValueId>,
    /// What it gave.
    pub output: ValueId,
}

/// A model written down, as it is in training.
///
/// ```
/// use plimsoll_nn::{Description, LayerKind, Sequential};
/// let model = Sequential::new([8, 8, 1]).conv2d(4, 3).relu().flatten().dense(3);
/// let found = Description::new(&[model.input(2)], &model)?;
/// assert_eq!(found.calls.last().map(|call| call.kind), Some(LayerKind::Dense { units: 3, bias: true }));
/// assert_eq!(found.graph.outputs(), [found.calls[2].output]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Description {
    /// All ops; its outputs are the model's. Its inputs are the model's, a random key, parameters and constants.
    pub graph: Graph,
    /// The model's inputs.
    pub inputs: Vec<ValueId>,
    /// The parameters, in the order of [`Net::discover`], with the values that stand for them.
    pub params: Vec<(Param, ValueId)>,
    /// The layers, in the order in which they were done: a layer inside of another comes before it.
    pub calls: Vec<LayerCall>,
}

/// A call before its tensors are turned into ids.
pub(crate) struct Noted {
    pub path: String,
    pub kind: LayerKind,
    pub inputs: Vec<Tensor>,
    pub output: Tensor,
}

impl Description {
    /// Describes a model for inputs of these types. Nothing is computed.
    pub fn new(inputs: &[Type], model: &(impl Model + ?Sized)) -> Result<Description> {
        let sketch = Sketch::new();
        let inputs: Vec<Tensor> = inputs.iter().map(|ty| sketch.tensor("input", ty.clone())).collect();
        let (outputs, params, noted) = Net::described(&sketch, &inputs, model)?;
        let id = |tensor: &Tensor| {
            let foreign = || refuse("gives a tensor that was not made from its inputs");
            sketch.value(tensor).ok_or_else(foreign)
        };
        let ids = |tensors: &[Tensor]| tensors.iter().map(id).collect::<Result<Vec<ValueId>>>();
        let call = |noted: Noted| {
            let (inputs, output) = (ids(&noted.inputs)?, id(&noted.output)?);
            Ok(LayerCall { path: noted.path, kind: noted.kind, inputs, output })
        };
        Ok(Description {
            graph: sketch.graph(&outputs.iter().collect::<Vec<_>>())?,
            inputs: ids(&inputs)?,
            params: params.into_iter().map(|(p, t)| Ok((p, id(&t)?))).collect::<Result<_>>()?,
            calls: noted.into_iter().map(call).collect::<Result<_>>()?,
        })
    }
}
