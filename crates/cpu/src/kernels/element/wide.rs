//! Chains in 64-bit registers: f64 and integers, exact and wrapping, and all conversions between types.
//!
//! A register holds the bits of an f64 for float types and an i64 for the others. This is the path of checks and of
//! index arithmetic, so its loops are plain; sums and products of integers wrap as the element type does.

use half::{bf16, f16};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{Binary, ElementOp, Unary};

use super::plan::{Lane, Source, Work};
use crate::isa::Isa;

/// Eight bytes that are an f64 or an i64, as the element type says.
#[derive(Clone, Copy)]
pub(super) struct Word(u64);

impl Word {
    fn float(x: f64) -> Word {
        Word(x.to_bits())
    }
    fn int(x: i64) -> Word {
        Word(x as u64)
    }
    fn as_float(self) -> f64 {
        f64::from_bits(self.0)
    }
    fn as_int(self) -> i64 {
        self.0 as i64
    }
    fn is_true(self, dtype: DType) -> bool {
        if dtype.is_float() { self.as_float() != 0.0 } else { self.as_int() != 0 }
    }
}

impl Lane for Word {
    const DIRECT: Option<DType> = None;

    fn constant(value: f64, dtype: DType) -> Word {
        cast(Word::float(value), DType::F64, dtype)
    }

    unsafe fn load(_: Isa, dtype: DType, from: *const u8, to: *mut Word, n: usize) {
        macro_rules! each {
            ($ty:ty, $word:expr) => {
                for i in 0..n {
                    // SAFETY: the caller says that `n` elements can be read and written.
                    unsafe { *to.add(i) = $word(*from.cast::<$ty>().add(i)) };
                }
            };
        }
        match dtype {
            DType::F32 => each!(f32, |x| Word::float(f64::from(x))),
            DType::F64 => each!(f64, Word::float),
            DType::BF16 => each!(bf16, |x: bf16| Word::float(x.to_f64())),
            DType::F16 => each!(f16, |x: f16| Word::float(x.to_f64())),
            DType::I64 => each!(i64, Word::int),
            DType::I32 => each!(i32, |x| Word::int(i64::from(x))),
            DType::I16 => each!(i16, |x| Word::int(i64::from(x))),
            DType::I8 => each!(i8, |x| Word::int(i64::from(x))),
            DType::U32 => each!(u32, |x| Word::int(i64::from(x))),
            DType::U16 => each!(u16, |x| Word::int(i64::from(x))),
            DType::U8 | DType::Bool => each!(u8, |x| Word::int(i64::from(x))),
        }
    }

    unsafe fn compute(_: Isa, work: &Work, n: usize, to: *mut Word, [a, b, c]: [Source<Word>; 3]) {
        macro_rules! each {
            ([$($x:ident = $source:expr),+] $value:expr) => {
                for i in 0..n {
                    // SAFETY: the caller says that the tile's elements can be read and written.
                    unsafe {
                        $( let $x = *$source.at.add(i * $source.step); )+
                        *to.add(i) = $value;
                    }
                }
            };
        }
        let (from, result) = (work.from, work.to);
        let settle = |x: f64| cast(Word::float(x), DType::F64, result);
        let wrap = |x: i64| Word::int(if result == DType::I32 { i64::from(x as i32) } else { x });
        match work.op {
            ElementOp::Unary(Unary::Not) => each!([x = a] Word::int(i64::from(!x.is_true(from)))),
            ElementOp::Unary(Unary::IsFinite) => {
                each!([x = a] Word::int(i64::from(x.as_float().is_finite())))
            }
            ElementOp::Unary(f) if from.is_float() => each!([x = a] settle(f.eval(x.as_float()))),
            ElementOp::Unary(f) => each!([x = a] wrap(integer(f, x.as_int()))),
            ElementOp::Binary(Binary::And) => {
                each!([x = a, y = b] Word::int(i64::from(x.is_true(from) && y.is_true(from))))
            }
            ElementOp::Binary(Binary::Or) => {
                each!([x = a, y = b] Word::int(i64::from(x.is_true(from) || y.is_true(from))))
            }
            ElementOp::Binary(f) if from.is_float() => {
                each!([x = a, y = b] settle(float_pair(f, x.as_float(), y.as_float())))
            }
            ElementOp::Binary(f) => each!([x = a, y = b] wrap(integer_pair(f, x.as_int(), y.as_int()))),
            ElementOp::Compare(f) if from.is_float() => {
                each!([x = a, y = b] Word::int(i64::from(f.eval(x.as_float(), y.as_float()))))
            }
            ElementOp::Compare(f) => {
                each!([x = a, y = b] Word::int(i64::from(f.eval(x.as_int(), y.as_int()))))
            }
            // A false condition is all zero bits in either form.
            ElementOp::Select => each!([x = a, y = b, z = c] if x.0 << 1 != 0 { y } else { z }),
            ElementOp::Cast => each!([x = a] cast(x, from, result)),
            ElementOp::ReluGrad(slope) => {
                each!([x = a, y = b] {
                    let y = y.as_float();
                    let off = if slope.0 == 0.0 { 0.0 } else { slope.0 * y };
                    settle(if x.as_float() > 0.0 { y } else { off })
                })
            }
        }
    }

    unsafe fn store(_: Isa, dtype: DType, from: *const Word, to: *mut u8, n: usize) {
        macro_rules! each {
            ($ty:ty, $value:expr) => {
                for i in 0..n {
                    // SAFETY: the caller says that `n` elements can be read and written.
                    unsafe { *to.cast::<$ty>().add(i) = $value(*from.add(i)) };
                }
            };
        }
        match dtype {
            DType::F32 => each!(f32, |w: Word| w.as_float() as f32),
            DType::F64 => each!(f64, Word::as_float),
            DType::BF16 => each!(bf16, |w: Word| bf16::from_f64(w.as_float())),
            DType::F16 => each!(f16, |w: Word| f16::from_f64(w.as_float())),
            DType::I64 => each!(i64, Word::as_int),
            DType::I32 => each!(i32, |w: Word| w.as_int() as i32),
            DType::I16 => each!(i16, |w: Word| w.as_int() as i16),
            DType::I8 => each!(i8, |w: Word| w.as_int() as i8),
            DType::U32 => each!(u32, |w: Word| w.as_int() as u32),
            DType::U16 => each!(u16, |w: Word| w.as_int() as u16),
            DType::U8 | DType::Bool => each!(u8, |w: Word| w.as_int() as u8),
        }
    }
}

/// A value in another type: floats round to nearest even, numbers that do not fit an integer type saturate.
fn cast(x: Word, from: DType, to: DType) -> Word {
    if to == DType::Bool {
        return Word::int(i64::from(x.is_true(from)));
    }
    let is_float = from.is_float();
    match to {
        DType::F64 if is_float => x,
        DType::F64 => Word::float(x.as_int() as f64),
        DType::F32 if is_float => Word::float(f64::from(x.as_float() as f32)),
        // Directly, so that it is rounded once.
        DType::F32 => Word::float(f64::from(x.as_int() as f32)),
        DType::BF16 => Word::float(bf16::from_f64(float_of(x, is_float)).to_f64()),
        DType::F16 => Word::float(f16::from_f64(float_of(x, is_float)).to_f64()),
        DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U32 | DType::U16 | DType::U8 => {
            let whole = if is_float { x.as_float() as i64 } else { x.as_int() };
            Word::int(to.range().map_or(whole, |(low, high)| whole.clamp(low, high)))
        }
        DType::Bool => x,
    }
}

fn float_of(x: Word, is_float: bool) -> f64 {
    if is_float { x.as_float() } else { x.as_int() as f64 }
}

fn integer(f: Unary, x: i64) -> i64 {
    match f {
        Unary::Neg => x.wrapping_neg(),
        Unary::Abs => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Square => x.wrapping_mul(x),
        Unary::Relu => x.max(0),
        Unary::AddScalar(s) => x.wrapping_add(s.0 as i64),
        Unary::MulScalar(s) => x.wrapping_mul(s.0 as i64),
        Unary::RsubScalar(s) => (s.0 as i64).wrapping_sub(x),
        Unary::Clamp(low, high) => x.max(low.0.ceil() as i64).min(high.0.floor() as i64),
        // The shape rule lets no other function of integers pass.
        other => other.eval(x as f64) as i64,
    }
}

fn integer_pair(f: Binary, a: i64, b: i64) -> i64 {
    match f {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        other => other.eval(a as f64, b as f64) as i64,
    }
}

fn float_pair(f: Binary, a: f64, b: f64) -> f64 {
    match f {
        // A NaN on either side stays one, as in f32.
        Binary::Max | Binary::Min if a.is_nan() || b.is_nan() => f64::NAN,
        _ => f.eval(a, b),
    }
}
