//! Chains in f32 registers: f32, bf16, f16, bytes and truth values.
//!
//! Each step is one loop over blocks, compiled for every instruction set. A block is read whole before it is
//! written, which is what lets a result take its operand's place without a second version of every loop.

use half::{bf16, f16};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{Binary, Compare, ElementOp, Unary};

use super::plan::{BLOCK, Lane, Source, Work};
use crate::isa::Isa;
use crate::math;
use crate::simd::{Float32, Level, end_block, multiversion};

/// A loop over the blocks of a tile: the value of an expression for every element of its operands.
macro_rules! map {
    ($n:expr, $to:expr, [$($x:ident = $source:expr),+], $value:expr) => {{
        let mut i = 0;
        while i < $n {
            $( let $x = $source.block(i); )+
            let mut result = [0.0f32; BLOCK];
            for j in 0..BLOCK {
                $( let $x = $x[j]; )+
                result[j] = $value;
            }
            put($to, i, result);
            end_block();
            i += BLOCK;
        }
    }};
}
/// Like `map!` for sine and cosine, which ask the standard library about huge angles.
macro_rules! map_angle {
    ($n:expr, $to:expr, $source:expr, $near:path, $far:path) => {{
        let mut i = 0;
        while i < $n {
            let x = $source.block(i);
            let mut result = [0.0f32; BLOCK];
            let mut huge = false;
            for j in 0..BLOCK {
                result[j] = $near(x[j]);
                huge |= math::is_huge_angle(x[j]);
            }
            if huge {
                for j in 0..BLOCK {
                    if math::is_huge_angle(x[j]) {
                        result[j] = $far(f64::from(x[j])) as f32;
                    }
                }
            }
            put($to, i, result);
            end_block();
            i += BLOCK;
        }
    }};
}

impl Lane for f32 {
    const DIRECT: Option<DType> = Some(DType::F32);

    fn constant(value: f64, dtype: DType) -> f32 {
        let value = value as f32;
        match dtype {
            DType::BF16 => <bf16 as Float32>::narrow(value).widen(),
            DType::F16 => <f16 as Float32>::narrow(value).widen(),
            _ => value,
        }
    }

    unsafe fn load(isa: Isa, dtype: DType, from: *const u8, to: *mut f32, n: usize) {
        // SAFETY: the caller says that `n` elements can be read and written; registers share no memory with operands.
        unsafe {
            match dtype {
                DType::BF16 => load_all(isa, from.cast::<bf16>(), to, n),
                DType::F16 => load_all(isa, from.cast::<f16>(), to, n),
                DType::U8 | DType::Bool => load_bytes(isa, from, to, n),
                _ => std::ptr::copy_nonoverlapping(from.cast::<f32>(), to, n),
            }
        }
    }

    unsafe fn compute(isa: Isa, work: &Work, n: usize, to: *mut f32, args: [Source<f32>; 3]) {
        let whole = n / BLOCK * BLOCK;
        if whole > 0 {
            whole_blocks(isa, work, whole, to, args);
        }
        if whole < n {
            // The rest goes through blocks of its own, so that nothing is read or written past the end.
            let mut rests = [[0.0; BLOCK]; 3];
            let mut result = [0.0; BLOCK];
            let mut sources = args;
            for (rest, source) in rests.iter_mut().zip(&mut sources).take(work.op.arity()) {
                if source.step != 0 {
                    // SAFETY: the caller says that `n` elements can be read.
                    unsafe {
                        std::ptr::copy_nonoverlapping(source.at.add(whole), rest.as_mut_ptr(), n - whole)
                    };
                    source.at = rest.as_ptr();
                }
            }
            whole_blocks(isa, work, BLOCK, result.as_mut_ptr(), sources);
            // SAFETY: the caller says that `n` elements can be written.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), to.add(whole), n - whole) };
        }
    }

    unsafe fn store(isa: Isa, dtype: DType, from: *const f32, to: *mut u8, n: usize) {
        // SAFETY: as for `load`.
        unsafe {
            match dtype {
                DType::BF16 => store_all(isa, from, to.cast::<bf16>(), n),
                DType::F16 => store_all(isa, from, to.cast::<f16>(), n),
                DType::U8 | DType::Bool => store_bytes(isa, from, to, n),
                _ => std::ptr::copy_nonoverlapping(from, to.cast::<f32>(), n),
            }
        }
    }
}

/// One step, rounded where somebody will read it.
fn whole_blocks(isa: Isa, work: &Work, n: usize, to: *mut f32, args: [Source<f32>; 3]) {
    debug_assert!(!super::plan::is_wide(work.from) && !super::plan::is_wide(work.to));
    step(isa, work.op, n, to, args);
    if !work.is_stored_only || to_byte(work) {
        round(isa, work.to, n, to);
    }
}

/// Applies a function to every value: the tail of a matrix product has the bits of the op by itself.
pub(crate) fn apply(isa: Isa, f: Unary, values: &mut [f32]) {
    let work = Work { op: ElementOp::Unary(f), from: DType::F32, to: DType::F32, is_stored_only: true };
    let source = Source { at: values.as_ptr(), step: 1 };
    // SAFETY: the slice can be read and written, and a step reads a block before it writes it.
    unsafe { f32::compute(isa, &work, values.len(), values.as_mut_ptr(), [source; 3]) };
}

/// Whether a step turns numbers into bytes or truth values, which the store does not do.
fn to_byte(work: &Work) -> bool {
    work.op == ElementOp::Cast && matches!(work.to, DType::U8 | DType::Bool)
}

multiversion! {
    fn load_all<L; T: Float32>(from: *const T, to: *mut f32, n: usize) {
        for i in 0..n {
            // SAFETY: as the callers say.
            unsafe { *to.add(i) = (*from.add(i)).widen() };
        }
    }

    fn load_bytes<L>(from: *const u8, to: *mut f32, n: usize) {
        for i in 0..n {
            // SAFETY: as the callers say.
            unsafe { *to.add(i) = f32::from(*from.add(i)) };
        }
    }

    fn store_all<L; T: Float32>(from: *const f32, to: *mut T, n: usize) {
        for i in 0..n {
            // SAFETY: as the callers say.
            unsafe { *to.add(i) = T::narrow(*from.add(i)) };
        }
    }

    fn store_bytes<L>(from: *const f32, to: *mut u8, n: usize) {
        for i in 0..n {
            // SAFETY: as the callers say; the steps leave whole numbers from 0 to 255.
            unsafe { *to.add(i) = (*from.add(i)).to_int_unchecked::<i32>() as u8 };
        }
    }

    /// Rounds whole blocks of a register to a narrower type.
    fn round<L>(dtype: DType, n: usize, at: *mut f32) {
        let a = Source { at: at.cast_const(), step: 1 };
        match dtype {
            DType::BF16 => map!(n, at, [x = a], <bf16 as Float32>::narrow(x).widen()),
            DType::F16 => map!(n, at, [x = a], <f16 as Float32>::narrow(x).widen()),
            DType::U8 => map!(n, at, [x = a], byte(x)),
            DType::Bool => map!(n, at, [x = a], truth(x != 0.0)),
            _ => {}
        }
    }

    /// One step over whole blocks.
    fn step<L>(op: ElementOp, n: usize, at: *mut f32, args: [Source<f32>; 3]) {
        let [a, b, c] = args;
        match op {
            ElementOp::Unary(f) => unary::<L>(f, n, at, a),
            ElementOp::Binary(f) => binary::<L>(f, n, at, a, b),
            ElementOp::Compare(f) => compare(f, n, at, a, b),
            ElementOp::Select => map!(n, at, [x = a, y = b, z = c], if x != 0.0 { y } else { z }),
            // Zero even where the gradient is not finite, as with a mask of bits.
            ElementOp::ReluGrad(slope) if slope.0 == 0.0 => {
                map!(n, at, [x = a, y = b], if x > 0.0 { y } else { 0.0 })
            }
            ElementOp::ReluGrad(slope) => {
                let slope = slope.0 as f32;
                map!(n, at, [x = a, y = b], if x > 0.0 { y } else { slope * y });
            }
            ElementOp::Cast => map!(n, at, [x = a], x),
        }
    }
}

/// A truncated and saturated byte; not-a-number is 0.
#[inline(always)]
fn byte(x: f32) -> f32 {
    let x = if x > 0.0 { x } else { 0.0 };
    let x = if x < 255.0 { x } else { 255.0 };
    x.trunc()
}

#[inline(always)]
fn truth(is: bool) -> f32 {
    if is { 1.0 } else { 0.0 }
}

impl Source<f32> {
    /// The block that starts at element `i` of a tile.
    #[inline(always)]
    fn block(self, i: usize) -> [f32; BLOCK] {
        // SAFETY: the callers step through whole blocks of what can be read.
        unsafe { self.at.wrapping_add(i * self.step).cast::<[f32; BLOCK]>().read_unaligned() }
    }
}

#[inline(always)]
fn put(to: *mut f32, i: usize, block: [f32; BLOCK]) {
    // SAFETY: the callers step through whole blocks of what can be written.
    unsafe { to.wrapping_add(i).cast::<[f32; BLOCK]>().write_unaligned(block) };
}

#[inline(always)]
fn unary<L: Level>(f: Unary, n: usize, at: *mut f32, a: Source<f32>) {
    match f {
        Unary::Neg => map!(n, at, [x = a], -x),
        Unary::Abs => map!(n, at, [x = a], x.abs()),
        Unary::Sign => map!(n, at, [x = a], truth(x > 0.0) - truth(x < 0.0)),
        Unary::Floor => map!(n, at, [x = a], x.floor()),
        Unary::Exp => map!(n, at, [x = a], math::exp::<L>(x)),
        Unary::Log => map!(n, at, [x = a], math::log::<L>(x)),
        Unary::Sqrt => map!(n, at, [x = a], x.sqrt()),
        Unary::Rsqrt => map!(n, at, [x = a], 1.0 / x.sqrt()),
        Unary::Square => map!(n, at, [x = a], x * x),
        Unary::Reciprocal => map!(n, at, [x = a], 1.0 / x),
        Unary::Sin => map_angle!(n, at, a, math::sin::<L>, f64::sin),
        Unary::Cos => map_angle!(n, at, a, math::cos::<L>, f64::cos),
        Unary::Tanh => map!(n, at, [x = a], math::tanh::<L>(x)),
        Unary::Sigmoid => map!(n, at, [x = a], math::sigmoid::<L>(x)),
        Unary::Erf => map!(n, at, [x = a], math::erf::<L>(x)),
        Unary::Relu => map!(n, at, [x = a], math::relu(x)),
        Unary::LeakyRelu(slope) => {
            let slope = slope.0 as f32;
            map!(n, at, [x = a], if x > 0.0 { x } else { slope * x });
        }
        Unary::Gelu => map!(n, at, [x = a], math::gelu::<L>(x)),
        Unary::GeluTanh => map!(n, at, [x = a], math::gelu_tanh::<L>(x)),
        Unary::Silu => map!(n, at, [x = a], math::silu::<L>(x)),
        Unary::Softplus => map!(n, at, [x = a], math::softplus::<L>(x)),
        Unary::Clamp(low, high) => {
            let (low, high) = (low.0 as f32, high.0 as f32);
            map!(n, at, [x = a], {
                let x = if x < low { low } else { x };
                if x > high { high } else { x }
            });
        }
        Unary::AddScalar(s) => {
            let s = s.0 as f32;
            map!(n, at, [x = a], x + s);
        }
        Unary::MulScalar(s) => {
            let s = s.0 as f32;
            map!(n, at, [x = a], x * s);
        }
        Unary::RsubScalar(s) => {
            let s = s.0 as f32;
            map!(n, at, [x = a], s - x);
        }
        Unary::RdivScalar(s) => {
            let s = s.0 as f32;
            map!(n, at, [x = a], s / x);
        }
        // The commonest powers need no logarithm.
        Unary::PowScalar(s) if s.0 == 2.0 => map!(n, at, [x = a], x * x),
        Unary::PowScalar(s) if s.0 == 3.0 => map!(n, at, [x = a], x * x * x),
        Unary::PowScalar(s) if s.0 == 1.0 => map!(n, at, [x = a], x),
        Unary::PowScalar(s) if s.0 == 0.5 => map!(n, at, [x = a], x.sqrt()),
        Unary::PowScalar(s) if s.0 == -0.5 => map!(n, at, [x = a], 1.0 / x.sqrt()),
        Unary::PowScalar(s) if s.0 == -1.0 => map!(n, at, [x = a], 1.0 / x),
        Unary::PowScalar(s) => {
            let s = s.0 as f32;
            map!(n, at, [x = a], math::pow::<L>(x, s));
        }
        Unary::Not => map!(n, at, [x = a], truth(x == 0.0)),
        Unary::IsFinite => map!(n, at, [x = a], truth(x.abs() < f32::INFINITY)),
    }
}

#[inline(always)]
fn binary<L: Level>(f: Binary, n: usize, at: *mut f32, a: Source<f32>, b: Source<f32>) {
    match f {
        Binary::Add => map!(n, at, [x = a, y = b], x + y),
        Binary::Sub => map!(n, at, [x = a, y = b], x - y),
        Binary::Mul => map!(n, at, [x = a, y = b], x * y),
        Binary::Div => map!(n, at, [x = a, y = b], x / y),
        Binary::Pow => map!(n, at, [x = a, y = b], math::pow::<L>(x, y)),
        // A NaN on either side stays one.
        Binary::Max => map!(n, at, [x = a, y = b], if x > y || x.is_nan() { x } else { y }),
        Binary::Min => map!(n, at, [x = a, y = b], if x < y || x.is_nan() { x } else { y }),
        Binary::And => map!(n, at, [x = a, y = b], truth(x != 0.0) * truth(y != 0.0)),
        Binary::Or => map!(n, at, [x = a, y = b], truth(x != 0.0 || y != 0.0)),
    }
}

#[inline(always)]
fn compare(f: Compare, n: usize, at: *mut f32, a: Source<f32>, b: Source<f32>) {
    match f {
        Compare::Eq => map!(n, at, [x = a, y = b], truth(x == y)),
        Compare::Ne => map!(n, at, [x = a, y = b], truth(x != y)),
        Compare::Lt => map!(n, at, [x = a, y = b], truth(x < y)),
        Compare::Le => map!(n, at, [x = a, y = b], truth(x <= y)),
        Compare::Gt => map!(n, at, [x = a, y = b], truth(x > y)),
        Compare::Ge => map!(n, at, [x = a, y = b], truth(x >= y)),
    }
}
