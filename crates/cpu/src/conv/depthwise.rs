//! Convolutions of every channel by itself: direct loops over channels, because a matrix product of one column
//! would waste nearly all of every vector.

use super::ConvShape;
use super::route::{Data, On};
use super::shape::{Axis, Taps};
use crate::gemm::{Activation, Epilogue, Scalar, Shared, aligned};
use crate::isa::Isa;

/// Channels whose sums are kept in registers at a time.
const CHANNELS: usize = 64;

/// Parts that the filter gradient's sums are cut into at most.
const PARTS: usize = 32;

/// Calls `body` where the compiler may use the instruction set. The body must be inlined to profit.
fn with_isa(isa: Isa, body: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn avx512(body: impl FnOnce()) {
            body()
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2(body: impl FnOnce()) {
            body()
        }
        match isa {
            // SAFETY: the public functions check that the processor has the instruction set.
            Isa::Avx512 => return unsafe { avx512(body) },
            // SAFETY: as above.
            Isa::Avx2Fma => return unsafe { avx2(body) },
            Isa::Portable => {}
        }
    }
    let _ = isa;
    body()
}

/// One side of a pass: lines and pixels of an image.
type Size = [usize; 2];

pub(super) fn forward<T: Scalar, O: Scalar>(on: &On<'_>, data: Data<'_, T, O>, epilogue: &Epilogue<'_>) {
    let (from, to) = ([on.shape.in_h, on.shape.in_w], [on.shape.out_h(), on.shape.out_w()]);
    gather(on, data, epilogue, [from, to], |axis, place| (place, axis.forward()));
}

pub(super) fn data_grad<T: Scalar, O: Scalar>(on: &On<'_>, data: Data<'_, T, O>, epilogue: &Epilogue<'_>) {
    let (from, to) = ([on.shape.out_h(), on.shape.out_w()], [on.shape.in_h, on.shape.in_w]);
    let taps = |axis: &Axis, place: usize| (place / axis.stride, axis.backward(place % axis.stride));
    gather(on, data, epilogue, [from, to], taps);
}

/// `dst[pixel, c] = sum over taps of src[tap's pixel, c] * filter[tap, c]`, one task a line.
fn gather<T: Scalar, O: Scalar>(
    on: &On<'_>,
    (src, filter, dst): Data<'_, T, O>,
    epilogue: &Epilogue<'_>,
    [from, to]: [Size; 2],
    taps: impl Fn(&Axis, usize) -> (usize, Taps) + Sync,
) {
    let On { pool, isa, shape } = *on;
    let (channels, axis_h, axis_w) = (shape.in_c, shape.axis_h(), shape.axis_w());
    let len = to[1] * channels;
    let dst = Shared(dst.as_mut_ptr());
    pool.run(shape.batch * to[0], |task| {
        let (image, y) = (task / to[0], task % to[0]);
        // SAFETY: `check` saw that the destination has all lines, and every task has its own.
        let line = unsafe { std::slice::from_raw_parts_mut(dst.get().wrapping_add(task * len), len) };
        let src = &src[image * from[0] * from[1] * channels..][..from[0] * from[1] * channels];
        let (q_y, taps_y) = taps(&axis_h, y);
        with_isa(isa, || {
            for x in 0..to[1] {
                let (q_x, taps_x) = taps(&axis_w, x);
                for c in (0..channels).step_by(CHANNELS) {
                    let n = (channels - c).min(CHANNELS);
                    let mut sums = [0f32; CHANNELS];
                    let sums = &mut sums[..n];
                    for t_y in 0..taps_y.count {
                        let Some(s_y) = place(&taps_y, q_y, t_y, from[0]) else { continue };
                        for t_x in 0..taps_x.count {
                            let Some(s_x) = place(&taps_x, q_x, t_x, from[1]) else { continue };
                            let tap = taps_y.kernel(t_y) * shape.kernel_w + taps_x.kernel(t_x);
                            let values = &src[(s_y * from[1] + s_x) * channels + c..][..n];
                            let weights = &filter[tap * channels + c..][..n];
                            for ((sum, value), weight) in sums.iter_mut().zip(values).zip(weights) {
                                *sum += value.to_f32() * weight.to_f32();
                            }
                        }
                    }
                    let out = &mut line[x * channels + c..][..n];
                    finish(epilogue, task * to[1] + x, c, sums, out);
                }
            }
        });
    });
}

/// Where a tap reads, if that exists.
#[inline(always)]
fn place(taps: &Taps, q: usize, tap: usize, len: usize) -> Option<usize> {
    let place = (q * taps.stride + tap * taps.step) as isize + taps.offset;
    (place >= 0 && place < len as isize).then_some(place as usize)
}

#[inline(always)]
fn finish<O: Scalar>(epilogue: &Epilogue<'_>, row: usize, col: usize, sums: &mut [f32], out: &mut [O]) {
    if epilogue.accumulate {
        sums.iter_mut().zip(out.iter()).for_each(|(sum, old)| *sum += old.to_f32());
    }
    if let Some(bias) = epilogue.bias {
        sums.iter_mut().zip(&bias[col..]).for_each(|(sum, b)| *sum += b);
    }
    if epilogue.activation == Activation::Relu {
        sums.iter_mut().for_each(|sum| *sum = if *sum < 0.0 { 0.0 } else { *sum });
    }
    if let Some(hook) = epilogue.hook {
        hook.apply(row, col, sums);
    }
    out.iter_mut().zip(sums.iter()).for_each(|(out, &sum)| *out = O::from_f32(sum));
}

fn parts(shape: &ConvShape) -> usize {
    (shape.batch * shape.out_h()).clamp(1, PARTS)
}

pub(super) fn filter_grad_scratch_bytes(shape: &ConvShape) -> usize {
    64 + 4 * parts(shape) * shape.filter_len()
}

pub(super) fn filter_grad<T: Scalar, O: Scalar>(
    on: &On<'_>,
    (input, grad_output, grad_filter): Data<'_, T, O>,
    accumulate: bool,
    scratch: &mut [u8],
) {
    let On { pool, isa, shape } = *on;
    let (channels, parts, len) = (shape.in_c, parts(shape), shape.filter_len());
    let (in_h, in_w, out_h, out_w) = (shape.in_h, shape.in_w, shape.out_h(), shape.out_w());
    let (taps_y, taps_x) = (shape.axis_h().forward(), shape.axis_w().forward());
    let lines = shape.batch * out_h;
    let partial = Shared(aligned(scratch, filter_grad_scratch_bytes(shape)).cast::<f32>());
    pool.run(parts, |part| {
        // SAFETY: the scratch holds all parts, and every task has its own.
        let sums = unsafe { std::slice::from_raw_parts_mut(partial.get().wrapping_add(part * len), len) };
        sums.fill(0.0);
        with_isa(isa, || {
            for line in lines * part / parts..lines * (part + 1) / parts {
                let (image, y) = (line / out_h, line % out_h);
                for t_y in 0..taps_y.count {
                    let Some(s_y) = place(&taps_y, y, t_y, in_h) else { continue };
                    for t_x in 0..taps_x.count {
                        let sums = &mut sums[(t_y * taps_x.count + t_x) * channels..][..channels];
                        for x in 0..out_w {
                            let Some(s_x) = place(&taps_x, x, t_x, in_w) else { continue };
                            let values = &input[((image * in_h + s_y) * in_w + s_x) * channels..][..channels];
                            let grads = &grad_output[(line * out_w + x) * channels..][..channels];
                            for ((sum, value), grad) in sums.iter_mut().zip(values).zip(grads) {
                                *sum += value.to_f32() * grad.to_f32();
                            }
                        }
                    }
                }
            }
        });
    });
    for (i, out) in grad_filter.iter_mut().take(len).enumerate() {
        let mut sum = 0.0;
        for part in 0..parts {
            // SAFETY: every part has `len` finished sums.
            sum += unsafe { *partial.get().add(part * len + i) };
        }
        *out = O::from_f32(sum + if accumulate { out.to_f32() } else { 0.0 });
    }
}
