//! What an op is told beside its tensors: the options of the schema, and in which slot of their table each field stands.

use crate::error::Result;
use crate::lite_model::ElementType;
use crate::ops::OpCode;
use crate::table::Table;

/// How windows at the edge of an image are filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// As much as gives ⌈length / stride⌉ windows; an odd element goes to the end.
    Same,
    /// Not at all: windows lie inside.
    Valid,
}

/// An activation that an op applies to its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fused {
    /// None.
    #[default]
    None,
    /// max(x, 0)
    Relu,
    /// x held between -1 and 1
    ReluN1To1,
    /// x held between 0 and 6
    Relu6,
}

impl Fused {
    /// The op that does the same by itself.
    pub fn of(op: OpCode) -> Option<Fused> {
        Some(match op {
            OpCode::Relu => Fused::Relu,
            OpCode::ReluN1To1 => Fused::ReluN1To1,
            OpCode::Relu6 => Fused::Relu6,
            _ => return None,
        })
    }

    /// The least and the most that comes out.
    pub fn bounds(self) -> (f32, f32) {
        match self {
            Fused::None => (f32::NEG_INFINITY, f32::INFINITY),
            Fused::Relu => (0.0, f32::INFINITY),
            Fused::ReluN1To1 => (-1.0, 1.0),
            Fused::Relu6 => (0.0, 6.0),
        }
    }
}

/// The options of an op. Heights stand before widths.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Options {
    /// The op has none, or all are as by default.
    None,
    Conv {
        padding: Padding,
        stride: [usize; 2],
        dilation: [usize; 2],
        fused: Fused,
    },
    Depthwise {
        padding: Padding,
        stride: [usize; 2],
        dilation: [usize; 2],
        multiplier: usize,
        fused: Fused,
    },
    TransposeConv {
        padding: Padding,
        stride: [usize; 2],
    },
    Pool {
        padding: Padding,
        stride: [usize; 2],
        window: [usize; 2],
        fused: Fused,
    },
    FullyConnected {
        fused: Fused,
        keeps_axes: bool,
        asymmetric: bool,
    },
    BatchMatMul {
        turn_a: bool,
        turn_b: bool,
    },
    /// Of sums, differences, products and quotients.
    Arithmetic {
        fused: Fused,
    },
    Softmax {
        beta: f32,
    },
    Concatenation {
        axis: i32,
    },
    Reshape {
        shape: Vec<i32>,
    },
    Reduce {
        keeps_axes: bool,
    },
    Gather {
        axis: i32,
        batch_axes: i32,
    },
    Cast {
        from: ElementType,
        to: ElementType,
    },
    Split {
        pieces: usize,
    },
    StridedSlice,
    LeakyRelu {
        slope: f32,
    },
    ArgMax {
        output: ElementType,
    },
    OneHot {
        axis: i32,
    },
    Gelu {
        approximate: bool,
    },
    CumSum {
        exclusive: bool,
        reverse: bool,
    },
    Bilinear {
        align_corners: bool,
        half_pixel: bool,
    },
    Nearest {
        align_corners: bool,
        half_pixel: bool,
    },
}

/// A field of a table.
pub(crate) enum Field {
    Byte(i8),
    Int(i32),
    Float(f32),
    Flag(bool),
    Ints(Vec<i32>),
}

use Field::{Byte, Flag, Float, Int, Ints};

fn int(n: usize) -> Field {
    Int(i32::try_from(n).unwrap_or(i32::MAX))
}

fn act(fused: Fused) -> Field {
    Byte(match fused {
        Fused::None => 0,
        Fused::Relu => 1,
        Fused::ReluN1To1 => 2,
        Fused::Relu6 => 3,
    })
}

fn pad(padding: Padding) -> Field {
    Byte(if padding == Padding::Same { 0 } else { 1 })
}

impl Options {
    /// The fields with their slots, widths before heights as the schema has them.
    pub(crate) fn fields(&self) -> Vec<(u16, Field)> {
        match self {
            Options::None => vec![],
            Options::Conv { padding, stride: [h, w], dilation: [dh, dw], fused } => {
                vec![
                    (0, pad(*padding)),
                    (1, int(*w)),
                    (2, int(*h)),
                    (3, act(*fused)),
                    (4, int(*dw)),
                    (5, int(*dh)),
                ]
            }
            Options::Depthwise { padding, stride: [h, w], dilation: [dh, dw], multiplier, fused } => vec![
                (0, pad(*padding)),
                (1, int(*w)),
                (2, int(*h)),
                (3, int(*multiplier)),
                (4, act(*fused)),
                (5, int(*dw)),
                (6, int(*dh)),
            ],
            Options::TransposeConv { padding, stride: [h, w] } => {
                vec![(0, pad(*padding)), (1, int(*w)), (2, int(*h))]
            }
            Options::Pool { padding, stride: [h, w], window: [kh, kw], fused } => vec![
                (0, pad(*padding)),
                (1, int(*w)),
                (2, int(*h)),
                (3, int(*kw)),
                (4, int(*kh)),
                (5, act(*fused)),
            ],
            Options::FullyConnected { fused, keeps_axes, asymmetric } => {
                vec![(0, act(*fused)), (2, Flag(*keeps_axes)), (3, Flag(*asymmetric))]
            }
            Options::BatchMatMul { turn_a, turn_b } => vec![(0, Flag(*turn_a)), (1, Flag(*turn_b))],
            Options::Arithmetic { fused } => vec![(0, act(*fused))],
            Options::Softmax { beta } => vec![(0, Float(*beta))],
            Options::Concatenation { axis } => vec![(0, Int(*axis))],
            Options::Reshape { shape } => vec![(0, Ints(shape.clone()))],
            Options::Reduce { keeps_axes } => vec![(0, Flag(*keeps_axes))],
            Options::Gather { axis, batch_axes } => vec![(0, Int(*axis)), (1, Int(*batch_axes))],
            Options::Cast { from, to } => vec![(0, Byte(from.number())), (1, Byte(to.number()))],
            Options::Split { pieces } => vec![(0, int(*pieces))],
            Options::StridedSlice => vec![(0, Int(0))],
            Options::LeakyRelu { slope } => vec![(0, Float(*slope))],
            Options::ArgMax { output } => vec![(0, Byte(output.number()))],
            Options::OneHot { axis } => vec![(0, Int(*axis))],
            Options::Gelu { approximate } => vec![(0, Flag(*approximate))],
            Options::CumSum { exclusive, reverse } => vec![(0, Flag(*exclusive)), (1, Flag(*reverse))],
            Options::Bilinear { align_corners, half_pixel } => {
                vec![(2, Flag(*align_corners)), (3, Flag(*half_pixel))]
            }
            Options::Nearest { align_corners, half_pixel } => {
                vec![(0, Flag(*align_corners)), (1, Flag(*half_pixel))]
            }
        }
    }

    /// The options of an op from their table, where there is one.
    pub(crate) fn read(op: OpCode, table: Option<Table<'_>>) -> Result<Options> {
        let table = table.unwrap_or_else(Table::empty);
        let size = |slot: u16, default: i32| -> Result<usize> {
            let n = table.i32(slot, default)?;
            usize::try_from(n).map_err(|_| table.wrong(format!("a size is {n}")))
        };
        let two = |w: u16, h: u16, default: i32| -> Result<[usize; 2]> {
            Ok([size(h, default)?.max(1), size(w, default)?.max(1)])
        };
        let padding = |slot: u16| match table.i8(slot, 0)? {
            0 => Ok(Padding::Same),
            1 => Ok(Padding::Valid),
            other => Err(table.wrong(format!("there is no padding of number {other}"))),
        };
        let fused = |slot: u16| match table.i8(slot, 0)? {
            0 => Ok(Fused::None),
            1 => Ok(Fused::Relu),
            2 => Ok(Fused::ReluN1To1),
            3 => Ok(Fused::Relu6),
            other => Err(table.wrong(format!("an activation of number {other} is not known here"))),
        };
        let ty =
            |slot: u16| ElementType::of(table.i8(slot, 0)?).ok_or_else(|| table.wrong("an unknown type"));
        use OpCode as C;
        Ok(match op {
            C::Conv2d => Options::Conv {
                padding: padding(0)?,
                stride: two(1, 2, 0)?,
                dilation: two(4, 5, 1)?,
                fused: fused(3)?,
            },
            C::DepthwiseConv2d => Options::Depthwise {
                padding: padding(0)?,
                stride: two(1, 2, 0)?,
                dilation: two(5, 6, 1)?,
                multiplier: size(3, 0)?,
                fused: fused(4)?,
            },
            C::TransposeConv => Options::TransposeConv { padding: padding(0)?, stride: two(1, 2, 0)? },
            C::AveragePool2d | C::MaxPool2d => Options::Pool {
                padding: padding(0)?,
                stride: two(1, 2, 0)?,
                window: two(3, 4, 0)?,
                fused: fused(5)?,
            },
            C::FullyConnected => Options::FullyConnected {
                fused: fused(0)?,
                keeps_axes: table.flag(2)?,
                asymmetric: table.flag(3)?,
            },
            C::BatchMatMul => Options::BatchMatMul { turn_a: table.flag(0)?, turn_b: table.flag(1)? },
            C::Add | C::Sub | C::Mul | C::Div => Options::Arithmetic { fused: fused(0)? },
            C::Softmax => Options::Softmax { beta: table.f32(0, 0.0)? },
            C::Concatenation => match fused(1)? {
                Fused::None => Options::Concatenation { axis: table.i32(0, 0)? },
                _ => return Err(table.wrong("an activation behind a concatenation is not known here")),
            },
            C::Reshape => Options::Reshape { shape: table.ints(0)? },
            C::Sum | C::Mean | C::ReduceMax | C::ReduceMin | C::ReduceProd => {
                Options::Reduce { keeps_axes: table.flag(0)? }
            }
            C::Gather => Options::Gather { axis: table.i32(0, 0)?, batch_axes: table.i32(1, 0)? },
            C::Cast => Options::Cast { from: ty(0)?, to: ty(1)? },
            C::Split | C::SplitV => Options::Split { pieces: size(0, 0)? },
            C::StridedSlice => {
                for mask in 0..5 {
                    if table.i32(mask, 0)? != 0 {
                        return Err(table.wrong("masks of a strided slice are not known here"));
                    }
                }
                Options::StridedSlice
            }
            C::LeakyRelu => Options::LeakyRelu { slope: table.f32(0, 0.0)? },
            C::ArgMax => Options::ArgMax { output: ty(0)? },
            C::OneHot => Options::OneHot { axis: table.i32(0, 0)? },
            C::Gelu => Options::Gelu { approximate: table.flag(0)? },
            C::CumSum => Options::CumSum { exclusive: table.flag(0)?, reverse: table.flag(1)? },
            C::ResizeBilinear => {
                Options::Bilinear { align_corners: table.flag(2)?, half_pixel: table.flag(3)? }
            }
            C::ResizeNearestNeighbor => {
                Options::Nearest { align_corners: table.flag(0)?, half_pixel: table.flag(1)? }
            }
            _ => Options::None,
        })
    }

    /// The activation that is applied to the result, where the op can have one.
    pub fn fused(&self) -> Option<Fused> {
        match self {
            Options::Conv { fused, .. }
            | Options::Depthwise { fused, .. }
            | Options::Pool { fused, .. }
            | Options::FullyConnected { fused, .. }
            | Options::Arithmetic { fused } => Some(*fused),
            _ => None,
        }
    }

    pub(crate) fn set_fused(&mut self, to: Fused) {
        match self {
            Options::Conv { fused, .. }
            | Options::Depthwise { fused, .. }
            | Options::Pool { fused, .. }
            | Options::FullyConnected { fused, .. }
            | Options::Arithmetic { fused } => *fused = to,
            _ => {}
        }
    }
}
