//! Operators: each is checked once and turned into a [`Kind`] with all that its kernel asks for, then run any number of times.
//!
//! One file a family, with `prepare` (what a file may say) above and the kernel below. A kernel trusts what was prepared; it allocates
//! nothing and reads numbers wherever they lie.

mod binary;
mod conv;
mod convert;
mod dense;
mod depthwise;
mod element;
#[cfg(target_arch = "x86_64")]
mod fast;
#[cfg(not(target_arch = "x86_64"))]
#[path = "plain.rs"]
mod fast;
mod gather;
mod join;
mod layer;
mod matmul;
mod moves;
mod pad;
mod pool;
mod products;
mod reduce;
mod resize;
mod softmax;
mod store;
mod transpose_conv;
mod window;

pub use pad::border;
pub use store::Store;

use crate::error::{Error, Result};
use crate::flat::Table;
use crate::model::{Model, Node, Operand};
use crate::quant::Affine;
use crate::schema::{Code, Info, Type};
use crate::tensor::{Border, Tensor};
use products::Operands;

/// An operator, ready to run.
#[derive(Debug)]
pub enum Kind {
    /// The result is the operand's bytes under another shape.
    Same,
    /// The same, if the shape that was computed is that of the result.
    SameIfShapeIs,
    /// A function of each float.
    Unary(element::Unary),
    /// A function of each byte, as a table in the store.
    Table(usize),
    Prelu(element::Prelu),
    Binary(binary::Binary),
    Conv(conv::Conv),
    Depthwise(conv::Conv),
    TransposeConv(transpose_conv::Transposed),
    Dense(dense::Dense),
    Matmul(matmul::Matmul),
    Pool(pool::Pool),
    Reduce(reduce::Reduce),
    ArgMax(reduce::ArgMax),
    Softmax(softmax::Softmax),
    /// Elements that change their places, from one operand to one result.
    Move(moves::Move),
    /// Operands one after the other along an axis.
    Join(join::Join),
    /// Results one after the other along an axis.
    Cut(join::Cut),
    MirrorPad(pad::Mirror),
    Gather(gather::Gather),
    Resize(resize::Resize),
    Quantize(Affine, Type),
    Dequantize(Option<Affine>),
    Cast,
    Shape,
}

impl Kind {
    /// How many of the first operands may lie where the result will.
    pub fn may_overwrite(&self) -> usize {
        match self {
            Self::Unary(_) | Self::Table(_) | Self::Softmax(_) | Self::Prelu(_) => 1,
            Self::Binary(_) => 2,
            _ => 0,
        }
    }
}

/// An operator of the file with its tensors.
pub struct Call<'m, 'a> {
    pub info: &'static Info,
    pub index: usize,
    pub tensors: &'m [Tensor<'a>],
    pub inputs: &'m [i32],
    pub outputs: &'m [i32],
    pub options: Option<Table<'a>>,
    /// Tensors around which there is a border of zeros that is in no memory.
    pub borders: &'m [(usize, Border)],
}

impl<'m, 'a> Call<'m, 'a> {
    /// A refusal of this operator.
    pub fn refuse<T>(&self, why: &'static str) -> Result<T> {
        Err(Error::Refused { op: self.info.name, index: self.index, why })
    }

    /// Refuses what does not hold.
    pub fn ensure(&self, holds: bool, why: &'static str) -> Result<()> {
        if holds { Ok(()) } else { self.refuse(why) }
    }

    /// Takes what is there.
    pub fn some<T>(&self, value: Option<T>, why: &'static str) -> Result<T> {
        match value {
            Some(value) => Ok(value),
            None => self.refuse(why),
        }
    }

    /// How many inputs and outputs the operator must have.
    fn counts(&self, inputs: core::ops::RangeInclusive<usize>, outputs: usize) -> Result<()> {
        self.ensure(inputs.contains(&self.inputs.len()), "it has another number of inputs than it must")?;
        self.ensure(self.outputs.len() == outputs, "it has another number of outputs than it must")
    }

    /// An input that may be left out.
    pub fn optional(&self, position: usize) -> Option<&'m Tensor<'a>> {
        let tensor = usize::try_from(*self.inputs.get(position)?).ok()?;
        self.tensors.get(tensor)
    }

    /// An input.
    pub fn input(&self, position: usize) -> Result<&'m Tensor<'a>> {
        self.some(self.optional(position), "an input is missing")
    }

    /// The border around an input that is in no memory.
    pub fn border(&self, position: usize) -> Border {
        let tensor = self.inputs.get(position).map(|tensor| *tensor as usize);
        let found = self.borders.iter().find(|(around, _)| Some(*around) == tensor);
        found.map_or([[0; 2]; 2], |(_, border)| *border)
    }

    /// An output.
    pub fn output(&self, position: usize) -> Result<&'m Tensor<'a>> {
        let tensor = self.outputs.get(position).and_then(|tensor| self.tensors.get(*tensor as usize));
        self.some(tensor, "an output is missing")
    }

    /// The one scale and zero point of a quantized tensor.
    pub fn affine(&self, tensor: &Tensor<'_>) -> Result<Affine> {
        self.some(tensor.affine(), "a quantized tensor must have one scale")
    }

    /// Refuses types that differ.
    pub fn same_type(&self, one: &Tensor<'_>, other: &Tensor<'_>) -> Result<()> {
        self.ensure(one.kind == other.kind, "its tensors are not of one type")
    }

    /// Refuses quantized tensors that do not mean the same numbers by the same bytes.
    pub fn same_quantization(&self, one: &Tensor<'_>, other: &Tensor<'_>) -> Result<()> {
        if one.kind != Type::I8 && one.kind != Type::U8 || one.scales.is_empty() && other.scales.is_empty() {
            return Ok(());
        }
        self.ensure(
            one.affine().is_some() && one.affine() == other.affine(),
            "its tensors differ in scale or zero point",
        )
    }

    /// The operand and the result of an operator that moves elements and leaves each as it is: of one type and one quantization.
    pub fn moved(&self) -> Result<(&'m Tensor<'a>, &'m Tensor<'a>)> {
        let (x, out) = (self.input(0)?, self.output(0)?);
        self.same_elements(x, out)?;
        Ok((x, out))
    }

    /// Refuses tensors whose elements are not the same numbers by the same bytes.
    pub fn same_elements(&self, one: &Tensor<'_>, other: &Tensor<'_>) -> Result<()> {
        self.same_type(one, other)?;
        self.same_quantization(one, other)
    }

    /// The shapes of tensors that must have four dimensions.
    pub fn fours<const N: usize>(&self, tensors: [&Tensor<'_>; N]) -> Result<[[usize; 4]; N]> {
        let mut shapes = [[0; 4]; N];
        for (shape, tensor) in shapes.iter_mut().zip(tensors) {
            *shape = self.some(tensor.shape.four(), "its tensors do not have four dimensions")?;
        }
        Ok(shapes)
    }

    /// The whole numbers of a constant input, at most `N`, and how many there are.
    pub fn numbers<const N: usize>(&self, position: usize) -> Result<([i64; N], usize)> {
        let numbers = self.some(
            self.input(position)?.numbers(),
            "an input that says how to compute must be whole numbers in the file",
        )?;
        let count = numbers.len();
        self.ensure(count <= N, "an input that says how to compute is too long")?;
        let mut all = [0; N];
        all.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
        Ok((all, count))
    }

    /// A whole number of the options.
    pub fn option(&self, field: usize, default: i32) -> Result<i32> {
        self.options.map_or(Ok(default), |table| table.i32(field, default, "an operator's options"))
    }

    /// A byte of the options.
    pub fn option_byte(&self, field: usize) -> Result<u8> {
        self.options.map_or(Ok(0), |table| table.u8(field, 0, "an operator's options"))
    }

    /// A float of the options.
    pub fn option_float(&self, field: usize) -> Result<f32> {
        self.options.map_or(Ok(0.0), |table| table.f32(field, "an operator's options"))
    }

    /// The least and the most that a fused activation lets through.
    pub fn activation(&self, field: usize) -> Result<(f32, f32)> {
        match self.option_byte(field)? {
            0 => Ok((f32::NEG_INFINITY, f32::INFINITY)),
            1 => Ok((0.0, f32::INFINITY)),
            2 => Ok((-1.0, 1.0)),
            3 => Ok((0.0, 6.0)),
            _ => self.refuse("its fused activation is none of relu, relu6 and relu_n1_to_1"),
        }
    }
}

/// A range of floats as a range of bytes of a tensor.
pub fn byte_range(range: (f32, f32), affine: Affine) -> (i32, i32) {
    let bound =
        |value: f32, open: i32| if value.is_finite() { affine.quantize(value, -128, 127) } else { open };
    (bound(range.0, -128), bound(range.1, 127))
}

/// Checks an operator of the file and makes it ready to run.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Kind> {
    let (inputs, outputs) = match call.info.code {
        Code::Add | Code::Sub | Code::Mul | Code::Div | Code::Maximum | Code::Minimum => (2..=2, 1),
        Code::Conv | Code::Depthwise | Code::FullyConnected => (2..=3, 1),
        Code::TransposeConv => (3..=4, 1),
        Code::Reshape => (1..=2, 1),
        Code::BatchMatmul | Code::Prelu | Code::Mean | Code::Sum | Code::ReduceMax | Code::ArgMax => {
            (2..=2, 1)
        }
        Code::ExpandDims | Code::Transpose | Code::Pad | Code::MirrorPad | Code::Gather => (2..=2, 1),
        Code::ResizeBilinear | Code::ResizeNearest => (2..=2, 1),
        Code::PadV2 | Code::Slice => (3..=3, 1),
        Code::StridedSlice => (4..=4, 1),
        Code::Concatenation | Code::Pack => (1..=usize::MAX, 1),
        Code::Split => (2..=2, call.outputs.len()),
        Code::Unpack => (1..=1, call.outputs.len()),
        _ => (1..=1, 1),
    };
    call.counts(inputs, outputs)?;
    // Only lists that say how to compute may be empty, so that no kernel divides by a length of zero.
    let lists = matches!(
        call.info.code,
        Code::Reshape
            | Code::Transpose
            | Code::Slice
            | Code::StridedSlice
            | Code::Pad
            | Code::PadV2
            | Code::Mean
            | Code::Sum
    );
    for position in 0..call.inputs.len() {
        let empty = call.optional(position).is_some_and(|tensor| tensor.shape.count() == 0);
        call.ensure(!empty || lists && position > 0, "an operand has no elements")?;
    }
    match call.info.code {
        Code::Add | Code::Sub | Code::Mul | Code::Div | Code::Maximum | Code::Minimum => {
            binary::prepare(call).map(Kind::Binary)
        }
        Code::Conv => conv::prepare(call, store).map(Kind::Conv),
        Code::Depthwise => depthwise::prepare(call, store).map(Kind::Depthwise),
        Code::TransposeConv => transpose_conv::prepare(call, store).map(Kind::TransposeConv),
        Code::FullyConnected => dense::prepare(call, store).map(Kind::Dense),
        Code::BatchMatmul => matmul::prepare(call).map(Kind::Matmul),
        Code::Prelu => element::prepare_prelu(call).map(Kind::Prelu),
        Code::Softmax | Code::LogSoftmax => softmax::prepare(call, store).map(Kind::Softmax),
        Code::AveragePool | Code::MaxPool => pool::prepare(call).map(Kind::Pool),
        Code::Mean | Code::Sum | Code::ReduceMax => reduce::prepare(call).map(Kind::Reduce),
        Code::ArgMax => reduce::prepare_arg_max(call).map(Kind::ArgMax),
        Code::Reshape | Code::Squeeze | Code::ExpandDims => moves::prepare_same(call),
        Code::Transpose | Code::Slice | Code::StridedSlice | Code::SpaceToDepth | Code::DepthToSpace => {
            moves::prepare(call).map(Kind::Move)
        }
        Code::Pad | Code::PadV2 => pad::prepare_pad(call).map(Kind::Move),
        Code::MirrorPad => pad::prepare_mirror(call).map(Kind::MirrorPad),
        Code::Concatenation | Code::Pack => join::prepare_join(call).map(Kind::Join),
        Code::Split | Code::Unpack => join::prepare_cut(call).map(Kind::Cut),
        Code::Gather => gather::prepare(call).map(Kind::Gather),
        Code::ResizeBilinear | Code::ResizeNearest => resize::prepare(call).map(Kind::Resize),
        Code::Quantize => convert::prepare_quantize(call, store),
        Code::Dequantize => convert::prepare_dequantize(call),
        Code::Cast => convert::prepare_cast(call),
        Code::Shape => convert::prepare_shape(call),
        _ => element::prepare(call, store),
    }
}

/// The result of an operator and its first `N` operands.
fn views<'r, const N: usize>(
    model: &'r Model<'_>,
    node: &Node,
    arena: &'r mut [u8],
) -> Result<(&'r mut [u8], [Operand<'r>; N])> {
    let inputs = core::array::from_fn(|position| model.operand(node, position));
    model.views(arena, model.result(node, 0)?, inputs)
}

/// Runs an operator.
pub fn run(model: &Model<'_>, node: &Node, arena: &mut [u8]) -> Result<()> {
    let store = &model.store;
    match &node.kind {
        Kind::Same => Ok(()),
        Kind::SameIfShapeIs => moves::check_shape(model, node, arena),
        Kind::Join(join) => join::run_join(join, model, node, arena),
        Kind::Cut(cut) => join::run_cut(cut, model, node, arena),
        kind => {
            let (out, operands) = views::<4>(model, node, arena)?;
            let [x, y, z, bias] = operands;
            match kind {
                Kind::Table(table) => element::run_table(&store.tables[*table], out, x),
                Kind::Prelu(prelu) => element::run_prelu(prelu, out, x, y.bytes()?),
                Kind::Conv(conv) => conv::run(conv, Operands::new(store, x, y, z)?, out),
                Kind::Depthwise(conv) => depthwise::run(conv, Operands::new(store, x, y, z)?, out),
                Kind::TransposeConv(conv) => {
                    transpose_conv::run(conv, Operands::new(store, z, y, bias)?, out)
                }
                Kind::Dense(dense) => dense::run(dense, Operands::new(store, x, y, z)?, out),
                Kind::Matmul(matmul) => matmul::run(matmul, out, x.bytes()?, y.bytes()?),
                Kind::ArgMax(arg_max) => reduce::run_arg_max(arg_max, out, x.bytes()?),
                Kind::Move(moved) => moves::run(moved, out, x.bytes()?),
                Kind::MirrorPad(mirror) => pad::run_mirror(mirror, out, x.bytes()?),
                Kind::Gather(gather) => gather::run(gather, node, out, x.bytes()?, y.bytes()?),
                Kind::Cast => convert::run_cast(model, node, out, x.bytes()?),
                Kind::Shape => convert::run_shape(model, node, out),
                kind => fast::widest(Simple { kind, store, out, x, y }),
            }
        }
    }
}

/// An operator whose loops the compiler turns into vector instructions by itself.
struct Simple<'r> {
    kind: &'r Kind,
    store: &'r Store,
    out: &'r mut [u8],
    x: Operand<'r>,
    y: Operand<'r>,
}

impl layer::Work for Simple<'_> {
    type Result = Result<()>;

    #[inline(always)]
    fn run(self) -> Result<()> {
        let Self { kind, store, out, x, y } = self;
        match kind {
            Kind::Unary(unary) => element::run(unary, out, x),
            Kind::Binary(binary) => binary::run(binary, out, x, y),
            Kind::Pool(pool) => pool::run(pool, out, x.bytes()?),
            Kind::Resize(resize) => resize::run(resize, out, x.bytes()?),
            Kind::Reduce(reduce) => reduce::run(reduce, out, x.bytes()?),
            Kind::Softmax(softmax) => softmax::run(softmax, store, out, x),
            Kind::Quantize(affine, kind) => convert::run_quantize(*affine, *kind, out, x.bytes()?),
            Kind::Dequantize(affine) => convert::run_dequantize(*affine, out, x.bytes()?),
            _ => Err(Error::Bug("an operator came to the wrong place")),
        }
    }
}
