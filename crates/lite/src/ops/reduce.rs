//! MEAN, SUM and REDUCE_MAX over any axes, and ARG_MAX over one.

use super::Call;
use super::moves::Places;
use crate::bytes::{b, chunks, chunks_mut, f, i, s};
use crate::error::Result;
use crate::quant::Scale;
use crate::quick;
use crate::schema::{Code, Type};
use crate::tensor::{MAX_RANK, strides};

/// A reduction: a walk over the axes that stay, and for each of its places one over those that go.
#[derive(Debug)]
pub struct Reduce {
    kept: [usize; MAX_RANK],
    gone: [usize; MAX_RANK],
    strides: [isize; MAX_RANK],
    count: usize,
    /// How many neighbours of the result are neighbours of the operand too; the axes that stay are those before them.
    run: usize,
    /// Whether all elements of one place lie side by side, one place after the other.
    solid: bool,
    code: Code,
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    Floats,
    Whole,
    Bytes { in_zero: i32, out_zero: i32, scale: Scale },
}

/// Checks a reduction.
pub fn prepare(call: &Call<'_, '_>) -> Result<Reduce> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.same_type(x, out)?;
    let code = call.info.code;
    let (axes, count) = call.numbers::<MAX_RANK>(1)?;
    let dims = x.shape.padded();
    let front = MAX_RANK - x.shape.dims().len();
    let (mut kept, mut gone) = (dims, [1; MAX_RANK]);
    for axis in &axes[..count] {
        let axis = call.some(x.shape.axis(*axis), "an axis is not there")?;
        (kept[front + axis], gone[front + axis]) = (1, dims[front + axis]);
    }
    let count = gone.iter().product::<usize>();
    call.ensure(out.shape.count() == kept.iter().product::<usize>(), "its result has another shape")?;
    let numbers = match x.kind {
        Type::F32 => Numbers::Floats,
        Type::I32 if code != Code::Mean => Numbers::Whole,
        Type::I8 => {
            let (from, to) = (call.affine(x)?, call.affine(out)?);
            if code == Code::ReduceMax {
                call.same_quantization(x, out)?;
            }
            let by = if code == Code::Mean { count as f64 } else { 1.0 };
            let scale = Scale::new(f64::from(from.scale) / f64::from(to.scale) / by);
            let scale = call.some(scale, "its scales are too far apart")?;
            Numbers::Bytes { in_zero: from.zero, out_zero: to.zero, scale }
        }
        _ => return call.refuse("its type is not supported here"),
    };
    let mut run = 1;
    for axis in (0..MAX_RANK).rev().take_while(|axis| gone[*axis] == 1) {
        run *= core::mem::replace(&mut kept[axis], 1);
    }
    let first = gone.iter().position(|dim| *dim > 1).unwrap_or(MAX_RANK);
    let solid = run == 1 && kept[first..].iter().all(|dim| *dim == 1);
    Ok(Reduce { kept, gone, strides: strides(&dims), count, run, solid, code, numbers })
}

/// Computes a reduction.
#[inline(always)]
pub fn run(reduce: &Reduce, out: &mut [u8], x: &[u8]) -> Result<()> {
    let largest = reduce.code == Code::ReduceMax;
    match &reduce.numbers {
        Numbers::Floats => {
            let by = if reduce.code == Code::Mean { reduce.count as f32 } else { 1.0 };
            let (x, out) = (chunks::<4>(x), chunks_mut::<4>(out));
            let finish = |value: f32| (value / by).to_le_bytes();
            match largest {
                _ if reduce.solid => {
                    for (out, x) in out.iter_mut().zip(x.chunks_exact(reduce.count)) {
                        *out = finish(if largest { quick::largest(x) } else { quick::sum(x) });
                    }
                }
                true => {
                    each(reduce, out, x, &Fold(f32::NEG_INFINITY, |value: f32, x| f(x).max(value), finish))
                }
                false => each(reduce, out, x, &Fold(0.0, |value: f32, x| value + f(x), finish)),
            }
        }
        Numbers::Whole => {
            let (x, out) = (chunks::<4>(x), chunks_mut::<4>(out));
            let finish = i32::to_le_bytes;
            match largest {
                true => each(reduce, out, x, &Fold(i32::MIN, |value: i32, x| i(x).max(value), finish)),
                false => each(reduce, out, x, &Fold(0, |value: i32, x| value.wrapping_add(i(x)), finish)),
            }
        }
        Numbers::Bytes { in_zero, out_zero, scale } => {
            let finish = |value| b(scale.apply(value).saturating_add(*out_zero).clamp(-128, 127));
            match largest {
                false if reduce.solid => {
                    for (out, x) in out.iter_mut().zip(x.chunks_exact(reduce.count)) {
                        *out = finish(x.iter().fold(0i32, |sum, x| sum.wrapping_add(s(*x) - in_zero)));
                    }
                }
                true => each(reduce, out, x, &Fold(-128, |value: i32, x| s(x).max(value), b)),
                false => {
                    each(reduce, out, x, &Fold(0, |value: i32, x| value.wrapping_add(s(x) - in_zero), finish))
                }
            }
        }
    }
    Ok(())
}

/// What a reduction begins with, how an element is added, and what is made of it in the end.
#[derive(Clone, Copy)]
pub struct Fold<T, A, F>(pub T, pub A, pub F);

/// Reduces for every place of the result, some neighbours of one run at once.
#[inline(always)]
fn each<T: Copy, X: Copy, Out, A, F>(reduce: &Reduce, out: &mut [Out], x: &[X], fold: &Fold<T, A, F>)
where
    A: Fn(T, X) -> T,
    F: Fn(T) -> Out,
{
    let mut kept = Places::new(&reduce.kept, [&reduce.strides]);
    for out in out.chunks_exact_mut(reduce.run) {
        let [base] = kept.next();
        // Every block walks what goes from its beginning on.
        let mut walk = Places::new(&reduce.gone, [&reduce.strides]);
        let place = |tap: usize| {
            if tap == 0 {
                walk = Places::new(&reduce.gone, [&reduce.strides]);
            }
            base + walk.next()[0]
        };
        blocks(out, x, reduce.count, place, fold);
    }
}

/// Reduces `count` rows that begin at their places, element by element, in blocks of lengths that are known when this is compiled.
#[inline(always)]
pub fn blocks<T: Copy, X: Copy, Out, A, F>(
    out: &mut [Out],
    x: &[X],
    count: usize,
    mut place: impl FnMut(usize) -> usize,
    fold: &Fold<T, A, F>,
) where
    A: Fn(T, X) -> T,
    F: Fn(T) -> Out,
{
    let mut done = 0;
    for length in [64, 16, 1] {
        while out.len() - done >= length {
            let (out, place) = (&mut out[done..done + length], |tap: usize| place(tap) + done);
            match length {
                64 => block::<64, _, _, _, _, _>(out, x, count, place, fold),
                16 => block::<16, _, _, _, _, _>(out, x, count, place, fold),
                _ => block::<1, _, _, _, _, _>(out, x, count, place, fold),
            }
            done += length;
        }
    }
}

#[inline(always)]
fn block<const LENGTH: usize, T: Copy, X: Copy, Out, A: Fn(T, X) -> T, F: Fn(T) -> Out>(
    out: &mut [Out],
    x: &[X],
    count: usize,
    mut place: impl FnMut(usize) -> usize,
    Fold(start, add, finish): &Fold<T, A, F>,
) {
    let mut values = [*start; LENGTH];
    for tap in 0..count {
        let from = place(tap);
        for (value, x) in values.iter_mut().zip(&x[from..from + LENGTH]) {
            *value = add(*value, *x);
        }
    }
    for (out, value) in out.iter_mut().zip(values) {
        *out = finish(value);
    }
}

/// The place of the largest element along an axis; of equal ones, the first.
#[derive(Debug)]
pub struct ArgMax {
    length: usize,
    inner: usize,
    kind: Type,
    wide: bool,
}

/// Checks an ARG_MAX.
pub fn prepare_arg_max(call: &Call<'_, '_>) -> Result<ArgMax> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    let (axis, count) = call.numbers::<1>(1)?;
    call.ensure(count == 1, "its axis is not one number")?;
    let axis = call.some(x.shape.axis(axis[0]), "its axis is not there")?;
    call.ensure(matches!(x.kind, Type::F32 | Type::I8), "its type is neither float32 nor int8")?;
    call.ensure(matches!(out.kind, Type::I32 | Type::I64), "its result is neither int32 nor int64")?;
    let dims = x.shape.dims();
    call.ensure(out.shape.count() * dims[axis] == x.shape.count(), "its result has another shape")?;
    let inner = dims[axis + 1..].iter().product();
    Ok(ArgMax { length: dims[axis], inner, kind: x.kind, wide: out.kind == Type::I64 })
}

/// Computes an ARG_MAX.
pub fn run_arg_max(arg_max: &ArgMax, out: &mut [u8], x: &[u8]) -> Result<()> {
    let value = |at: usize| match arg_max.kind {
        Type::F32 => f(chunks::<4>(x)[at]),
        _ => s(x[at]) as f32,
    };
    let width = if arg_max.wide { 8 } else { 4 };
    for (number, out) in out.chunks_exact_mut(width).enumerate() {
        let base = number / arg_max.inner * arg_max.inner * arg_max.length + number % arg_max.inner;
        let mut best = 0;
        for at in 1..arg_max.length {
            if value(base + at * arg_max.inner) > value(base + best * arg_max.inner) {
                best = at;
            }
        }
        out.copy_from_slice(&(best as i64).to_le_bytes()[..width]);
    }
    Ok(())
}
