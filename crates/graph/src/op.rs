//! The closed set of ops: one enum, one rule each, one table of all of them.
//!
//! An op's file under `ops/` holds, top to bottom, its formula, shape rule, in-place rule, cost, gradient, reference
//! meaning and tests. This file only ties them together; to add an op is to write its file and add its line here.

use std::fmt;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::example::{Dice, Example};
use crate::gradient::Backward;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{Type, ops};

/// The types of an op's outputs.
pub type Types = SmallVec<[Type; 2]>;

/// What an op costs, before any device is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written at least once.
    pub bytes: f64,
}

/// What an op's gradient rule reads of its operands, as bit sets: bit i for input i or output i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// The inputs whose values the gradient needs.
    pub inputs: u32,
    /// The outputs whose values the gradient needs.
    pub outputs: u32,
}

impl Keep {
    /// Nothing: the gradient needs types only.
    pub const NOTHING: Keep = Keep { inputs: 0, outputs: 0 };

    /// These inputs.
    pub const fn inputs(bits: u32) -> Keep {
        Keep { inputs: bits, outputs: 0 }
    }

    /// These outputs.
    pub const fn outputs(bits: u32) -> Keep {
        Keep { inputs: 0, outputs: bits }
    }

    /// These inputs and outputs.
    pub const fn both(inputs: u32, outputs: u32) -> Keep {
        Keep { inputs, outputs }
    }
}

/// A question to an op: whether an axis of an operand passes through it place by place.
#[derive(Clone, Copy, Debug)]
pub struct Along<'a> {
    /// The operand.
    pub operand: usize,
    /// Its axis.
    pub axis: usize,
    /// The axis of output 0 at whose places it is to arrive.
    pub to: usize,
    /// The types of all inputs.
    pub inputs: &'a [&'a Type],
}

impl<'a> Along<'a> {
    /// The operand's type.
    pub fn input(&self) -> &'a Type {
        self.inputs[self.operand]
    }

    /// The axis counted from the end: 1 is the last.
    pub fn from_end(&self) -> usize {
        self.input().shape.rank() - self.axis
    }
}

/// What every op must say of itself.
pub trait Rule {
    /// The name people see; of a family whose members have names of their own, the family's.
    const NAME: &'static str;

    /// Pairs (output, input): the output may be written over the input, element for element.
    const IN_PLACE: &'static [(usize, usize)] = &[];

    /// What the gradient rule keeps of the forward pass.
    const KEEP: Keep = Keep::NOTHING;

    /// The name, where it depends on attributes.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Output types from input types, or what does not fit.
    fn infer(&self, inputs: &[&Type]) -> Result<Types, String>;

    /// Whether every place along an axis of an operand is kept apart from the others: what an output says of it is made from it
    /// alone, whichever place it is. A batch is split into micro-batches only where every op keeps its samples apart. When in doubt, `false`, as by default.
    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        false
    }

    /// The in-place pairs, where they depend on attributes.
    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        Self::IN_PLACE.into()
    }

    /// Whether output 0 is the bytes of input 0 under another shape: no kernel runs.
    fn is_view(&self) -> bool {
        false
    }

    /// Work and traffic; by default one operation an output element, and every operand passed once.
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: outputs.first().map_or(0, |t| t.elements()) as f64, bytes: traffic(inputs, outputs) }
    }

    /// What the gradient rule keeps, where it depends on attributes.
    fn keep(&self) -> Keep {
        Self::KEEP
    }

    /// The gradients of the inputs from those of the outputs: one entry an input, `None` where none flows.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("no rule is defined for it"))
    }

    /// The op's meaning, in f64.
    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array>;

    /// Ways to call it, for tests: every attribute and dtype that matters appears in one of them.
    fn examples(dice: &mut Dice) -> Vec<Example>
    where
        Self: Sized;
}

/// Bytes of all operands, each counted once.
pub fn traffic(inputs: &[&Type], outputs: &[&Type]) -> f64 {
    inputs.iter().chain(outputs).map(|t| t.bytes() as f64).sum()
}

/// A row of the table of all ops.
pub struct OpDef {
    /// The variant's name in [`Op`].
    pub name: &'static str,
    /// The section of the table it stands in.
    pub section: &'static str,
    /// What it computes, one line.
    pub formula: &'static str,
    /// Ways to call it.
    pub examples: fn(&mut Dice) -> Vec<Example>,
}

macro_rules! op_table {
    ($( $section:literal { $( $(#[doc = $doc:literal])+ $name:ident, )+ } )+) => {
        /// An op with its attributes.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op {
            $( $( $(#[doc = $doc])+ $name(ops::$name), )+ )+
        }

        /// All ops, in sections.
        pub const OPS: &[OpDef] = &[
            $( $( OpDef {
                name: stringify!($name),
                section: $section,
                formula: concat!($($doc),+),
                examples: <ops::$name as Rule>::examples,
            }, )+ )+
        ];

        impl Op {
            fn rule(&self) -> &dyn DynRule {
                match self { $( $( Op::$name(rule) => rule, )+ )+ }
            }

            /// The name of the variant, as in [`OPS`].
            pub fn variant(&self) -> &'static str {
                match self { $( $( Op::$name(_) => stringify!($name), )+ )+ }
            }
        }

        $( $( impl From<ops::$name> for Op {
            fn from(rule: ops::$name) -> Op { Op::$name(rule) }
        } )+ )+
    };
}

/// Hands the table of all ops, sections of documented names, to a macro: the list that the enum [`Op`] and every backend's kernels
/// are made from, so that an op without a kernel does not compile.
///
/// ```
/// macro_rules! count {
///     ($( $section:literal { $( $(#[doc = $doc:literal])+ $name:ident, )+ } )+) => {
///         [$( $( stringify!($name), )+ )+].len()
///     };
/// }
/// let ops = plimsoll_graph::with_ops!(count);
/// assert_eq!(ops, plimsoll_graph::OPS.len());
/// ```
#[macro_export]
macro_rules! with_ops {
    ($table:ident) => {
        $table! {
            "elementwise" {
                /// y = f(x), element by element: arithmetic with a scalar, exp, tanh, relu, gelu and so on.
                Unary,
                /// y = a ∘ b, element by element, with broadcasting: add, sub, mul, div, pow, max, min, and, or.
                Binary,
                /// y = a ? b, element by element, as a truth value: eq, ne, lt, le, gt, ge.
                Compare,
                /// y = c ? a : b, element by element, with broadcasting.
                Select,
                /// y = x in another element type.
                Cast,
                /// dx = dy where y > 0, else slope · dy: the gradient of relu and leaky relu.
                ReluGrad,
                /// y = max(x, 0) and one bit an element that says where x > 0.
                ReluMask,
                /// dx = dy where the bit is set, else 0.
                ReluMaskGrad,
                /// Several elementwise ops in one pass over memory.
                Fused,
            }
            "shape" {
                /// y = value everywhere.
                Full,
                /// `y[i]` = i along one axis.
                Iota,
                /// y = x repeated along axes of length 1.
                Broadcast,
                /// The same elements under another shape; no copy.
                Reshape,
                /// y = x with its axes in another order.
                Transpose,
                /// y = x[start..stop step s] along each axis.
                Slice,
                /// y = x with a value added before, after and between the elements of each axis.
                Pad,
                /// y = the inputs one after the other along one axis.
                Concat,
                /// The pieces of x along one axis.
                Split,
                /// y = x with the elements of one axis flipped or rolled.
                Reorder,
            }
            "gradient" {
                /// y = x, and no gradient flows back to x; no copy.
                StopGradient,
                /// y = x, whose gradient goes to other inputs by a rule that a user wrote; no copy.
                OwnGradient,
            }
            "reduce" {
                /// y = sum, mean, max, min or product of x over axes.
                Reduce,
                /// `dx[i]` = dy · product of all other elements: the gradient of a product, exact at zeros.
                ProdGrad,
                /// y = the index of the largest element along one axis, the first of equals.
                ArgMax,
            }
            "along an axis" {
                /// `y[k]` = the sum or product of x[0..=k] along one axis, forwards or backwards.
                Cumulative,
                /// dx of a running product, exact at zeros.
                CumProdGrad,
                /// y = the places of the elements of x along one axis, in the order of the elements: all, or the first few.
                ArgSort,
            }
            "matmul" {
                /// y = act(op(a) · op(b) + bias), batched, operands transposed at will.
                MatMul,
                /// y = s · op(a) · op(b) + c, rounded once.
                MatMulAdd,
                /// y = x Wᵀ or x W of a weight that is kept in a byte or half a byte a number.
                QuantMatMul,
            }
            "spatial" {
                /// y = act(x ∗ w + bias) over images, channels last: strided, padded, dilated, grouped.
                Conv,
                /// dx of y = x ∗ w: the transposed convolution.
                ConvGradInput,
                /// dw of y = x ∗ w.
                ConvGradFilter,
                /// y = the largest element of every window, and a byte that says which.
                MaxPool,
                /// dx = dy at the places that the bytes name.
                MaxPoolGrad,
                /// y = x at the places that the bytes name.
                MaxPoolGather,
                /// y = the mean of every window.
                AvgPool,
                /// dx = the shares of dy of all windows an element is in.
                AvgPoolGrad,
                /// y = images at another size, by the nearest pixel or bilinear.
                Resize,
                /// dx of a resize.
                ResizeGrad,
                /// y = images at the places that a grid names, by the nearest pixel or bilinear.
                GridSample,
                /// dx and dgrid of a grid sample.
                GridSampleGrad,
            }
            "softmax and loss" {
                /// y = exp(x) / Σ exp(x) along one axis.
                Softmax,
                /// dx = y (dy - Σ y dy) along one axis.
                SoftmaxGrad,
                /// y = x - log Σ exp(x) along one axis.
                LogSoftmax,
                /// dx = dy - exp(y) Σ dy along one axis.
                LogSoftmaxGrad,
                /// loss = log Σ exp(x) - `x[label]` a sample, and log Σ exp(x).
                CrossEntropy,
                /// dx = dloss (softmax(x) - one-hot label).
                CrossEntropyGrad,
                /// loss = Σ t (log Σ exp(x) - x) a sample, and log Σ exp(x).
                DenseCrossEntropy,
                /// dx = dloss (softmax(x) Σ t - t).
                DenseCrossEntropyGrad,
                /// loss = log Σ exp(l) - `l[label]` a sample where l = x wᵀ, and log Σ exp(l); never all of l at once.
                LinearCrossEntropy,
                /// dx and dw of a linear layer with cross-entropy.
                LinearCrossEntropyGrad,
                /// The losses of a linear layer with cross-entropy, dx and dw, for given gradients of the losses; what a pass makes of the two above.
                JointCrossEntropy,
                /// The loss of a linear layer that is not trained, and beside it dx.
                FrozenCrossEntropy,
            }
            "norm" {
                /// y = γ (x - mean) / √(var + ε) + β over the last axes, and mean, rstd.
                LayerNorm,
                /// dx, dγ, dβ of layer norm.
                LayerNormGrad,
                /// dx + what goes past the norm, dγ, dβ, and the sum rounded.
                LayerNormGradAdd,
                /// y = γ x / √(mean of x² + ε) over the last axis, and rstd.
                RmsNorm,
                /// dx, dγ of RMS norm.
                RmsNormGrad,
                /// y = γ (x - mean) / √(var + ε) + β over positions and groups of channels, and mean, rstd.
                GroupNorm,
                /// dx, dγ, dβ of group norm.
                GroupNormGrad,
                /// y = γ (x - mean) / √(var + ε) + β over the batch, and mean, var, rstd.
                BatchNorm,
                /// dx, dγ, dβ of batch norm.
                BatchNormGrad,
            }
            "gather" {
                /// y = the slices of x along one axis that indices name.
                Gather,
                /// y = the sum of the slices of x that have the same index.
                ScatterAdd,
                /// y = c + such sums, where an index names a slice.
                ScatterAddTo,
                /// y = 1 at the place an index names, 0 elsewhere.
                OneHot,
                /// y = the elements of x that indices name along one axis.
                TakeAlong,
                /// y = the sum of the elements of x that have the same index along one axis.
                PutAlongAdd,
                /// y = x with values at the places along one axis that indices name, the last of several.
                IndexPut,
            }
            "sequence" {
                /// o = softmax(cap(scale · q kᵀ) + mask) v, with documents and windows, and the log of each softmax's sum.
                Attention,
                /// dq, dk, dv of attention, from o and the log-sums.
                AttentionGrad,
                /// y = x with pairs of features turned by the angles of their positions.
                Rotary,
                /// A long short-term memory over a sequence, with its gates and cells for the gradient.
                Lstm,
                /// dx, dw, du, dbias, dh₀, dc₀ of a long short-term memory.
                LstmGrad,
                /// A gated recurrent unit over a sequence, with its gates for the gradient.
                Gru,
                /// dx, dw, du, dbias, dbias_u, dh₀ of a gated recurrent unit.
                GruGrad,
            }
            "random" {
                /// y evenly spread over [low, high), from a counter-based generator.
                Uniform,
                /// y normally distributed, from a counter-based generator.
                Normal,
                /// y normally distributed around zero, within two standard deviations.
                TruncatedNormal,
                /// y = x / (1 - rate) where a random draw keeps it, else 0.
                Dropout,
            }
            "optimizer" {
                /// A step of Adam, momentum or Lion over state of one byte a number, with a scale a block of 256.
                EightBitUpdate,
                /// A step of Adam, momentum or Lion over state in bf16, rounded stochastically by a counter-based generator.
                Bf16Update,
            }
            "ranks" {
                /// y = values that all ranks exchange: their sum or the largest, for all or a shard for each; the shards of all; or one rank's.
                Exchange,
            }
            "custom" {
                /// What a user's own kernel computes.
                Custom,
            }
        }
    };
}

with_ops!(op_table);

/// The object-safe part of [`Rule`].
trait DynRule {
    fn name(&self) -> &'static str;
    fn infer(&self, inputs: &[&Type]) -> Result<Types, String>;
    fn keeps_apart(&self, along: &Along<'_>) -> bool;
    fn in_place(&self) -> SmallVec<[(usize, usize); 2]>;
    fn is_view(&self) -> bool;
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost;
    fn keep(&self) -> Keep;
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>>;
    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array>;
}

impl<R: Rule> DynRule for R {
    fn name(&self) -> &'static str {
        Rule::name(self)
    }
    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        Rule::infer(self, inputs)
    }
    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        Rule::keeps_apart(self, along)
    }
    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        Rule::in_place(self)
    }
    fn is_view(&self) -> bool {
        Rule::is_view(self)
    }
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Rule::cost(self, inputs, outputs)
    }
    fn keep(&self) -> Keep {
        Rule::keep(self)
    }
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Rule::gradient(self, at)
    }
    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        Rule::reference(self, inputs, outputs)
    }
}

impl Op {
    /// The name people see: `conv`, `exp`.
    pub fn name(&self) -> &'static str {
        self.rule().name()
    }

    /// Output types from input types, or what does not fit.
    pub fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        self.rule().infer(inputs)
    }

    /// Whether every place along an axis of an operand is kept apart from the others.
    pub fn keeps_apart(&self, along: &Along<'_>) -> bool {
        self.rule().keeps_apart(along)
    }

    /// Pairs (output, input): the output may be written over the input.
    pub fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        self.rule().in_place()
    }

    /// Whether output 0 is input 0 under another shape.
    pub fn is_view(&self) -> bool {
        self.rule().is_view()
    }

    /// Whether it exchanges values with other ranks: it runs once where it stands, in the same order on all of them, and is never
    /// run again to have its result a second time.
    pub fn is_exchange(&self) -> bool {
        matches!(self, Op::Exchange(_))
    }

    /// Work and traffic for given operands.
    pub fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        self.rule().cost(inputs, outputs)
    }

    /// What the gradient rule reads.
    pub fn keep(&self) -> Keep {
        self.rule().keep()
    }

    /// The gradients of the inputs from those of the outputs.
    pub fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        self.rule().gradient(at)
    }

    /// The op's meaning, in f64.
    pub fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        self.rule().reference(inputs, outputs)
    }

    /// The error for inputs this op does not take.
    pub fn mismatch(&self, inputs: &[&Type], why: String, site: crate::Site) -> Error {
        Error::Shape {
            op: self.name(),
            layer: String::new(),
            site,
            inputs: inputs.iter().map(|&t| t.clone()).collect(),
            why,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
