//! Convolutions in f64: plain loops, for checks and small models, where exactness counts more than speed.

use super::ConvShape;
use super::route::check_bias;
use super::shape::Taps;
use crate::gemm::Shared;
use crate::pool::Pool;

fn place(taps: &Taps, q: usize, tap: usize, len: usize) -> Option<usize> {
    let place = (q * taps.stride + tap * taps.step) as isize + taps.offset;
    (place >= 0 && place < len as isize).then_some(place as usize)
}

/// Calls with every pixel of images (image, y, x) and its channels, which are zeros unless they are added to; then adds the bias.
fn each_pixel(
    pool: &Pool,
    images: &mut [f64],
    [batch, height, width, channels]: [usize; 4],
    accumulate: bool,
    bias: Option<&[f64]>,
    sum: impl Fn([usize; 3], &mut [f64]) + Sync,
) {
    check_bias(bias, channels);
    let len = width * channels;
    assert!(images.len() >= batch * height * len, "the images are shorter than their shape");
    let images = Shared(images.as_mut_ptr());
    pool.run(batch * height, |task| {
        // SAFETY: the images have all lines, and every task has its own.
        let line = unsafe { std::slice::from_raw_parts_mut(images.get().wrapping_add(task * len), len) };
        for (x, pixel) in line.chunks_exact_mut(channels.max(1)).enumerate() {
            if !accumulate {
                pixel.fill(0.0);
            }
            sum([task / height, task % height, x], pixel);
            if let Some(bias) = bias {
                pixel.iter_mut().zip(bias).for_each(|(sum, b)| *sum += b);
            }
        }
    });
}

/// [`forward`](super::forward()) in f64, `+ bias`, added to the output where `accumulate` says so. No scratch.
///
/// # Panics
/// When a slice is shorter than the shape says, or the shape makes no sense.
pub fn forward_f64(
    pool: &Pool,
    shape: &ConvShape,
    input: &[f64],
    filter: &[f64],
    output: &mut [f64],
    accumulate: bool,
    bias: Option<&[f64]>,
) {
    shape.check(input.len(), filter.len(), output.len());
    let (in_h, in_w) = (shape.in_h, shape.in_w);
    let (group_in, group_out, out_c) = (shape.group_in(), shape.group_out(), shape.out_c);
    let (taps_y, taps_x) = (shape.axis_h().forward(), shape.axis_w().forward());
    let size = [shape.batch, shape.out_h(), shape.out_w(), out_c];
    each_pixel(pool, output, size, accumulate, bias, |[image, y, x], pixel| {
        for t_y in 0..taps_y.count {
            let Some(s_y) = place(&taps_y, y, t_y, in_h) else { continue };
            for t_x in 0..taps_x.count {
                let Some(s_x) = place(&taps_x, x, t_x, in_w) else { continue };
                let values = &input[((image * in_h + s_y) * in_w + s_x) * shape.in_c..][..shape.in_c];
                for (c, &value) in values.iter().enumerate() {
                    let (group, c) = (c / group_in, c % group_in);
                    let row = ((t_y * taps_x.count + t_x) * group_in + c) * out_c + group * group_out;
                    let sums = &mut pixel[group * group_out..][..group_out];
                    sums.iter_mut().zip(&filter[row..]).for_each(|(sum, w)| *sum += value * w);
                }
            }
        }
    });
}

/// [`data_grad`](super::data_grad()) in f64, `+ bias` (of `in_c` values). No scratch.
///
/// # Panics
/// When a slice is shorter than the shape says, or the shape makes no sense.
pub fn data_grad_f64(
    pool: &Pool,
    shape: &ConvShape,
    grad_output: &[f64],
    filter: &[f64],
    grad_input: &mut [f64],
    accumulate: bool,
    bias: Option<&[f64]>,
) {
    shape.check(grad_input.len(), filter.len(), grad_output.len());
    let (out_h, out_w) = (shape.out_h(), shape.out_w());
    let (group_in, group_out, out_c) = (shape.group_in(), shape.group_out(), shape.out_c);
    let (axis_h, axis_w) = (shape.axis_h(), shape.axis_w());
    let size = [shape.batch, shape.in_h, shape.in_w, shape.in_c];
    each_pixel(pool, grad_input, size, accumulate, bias, |[image, y, x], pixel| {
        let (taps_y, taps_x) = (axis_h.backward(y % axis_h.stride), axis_w.backward(x % axis_w.stride));
        for t_y in 0..taps_y.count {
            let Some(s_y) = place(&taps_y, y / axis_h.stride, t_y, out_h) else { continue };
            for t_x in 0..taps_x.count {
                let Some(s_x) = place(&taps_x, x / axis_w.stride, t_x, out_w) else { continue };
                let grads = &grad_output[((image * out_h + s_y) * out_w + s_x) * out_c..][..out_c];
                let tap = taps_y.kernel(t_y) * shape.kernel_w + taps_x.kernel(t_x);
                for (c, sum) in pixel.iter_mut().enumerate() {
                    let (group, c) = (c / group_in, c % group_in);
                    let weights = &filter[(tap * group_in + c) * out_c + group * group_out..][..group_out];
                    let grads = &grads[group * group_out..][..group_out];
                    *sum += weights.iter().zip(grads).map(|(w, g)| w * g).sum::<f64>();
                }
            }
        }
    });
}

/// [`filter_grad`](super::filter_grad()) in f64. No scratch.
///
/// # Panics
/// When a slice is shorter than the shape says, or the shape makes no sense.
pub fn filter_grad_f64(
    pool: &Pool,
    shape: &ConvShape,
    input: &[f64],
    grad_output: &[f64],
    grad_filter: &mut [f64],
    accumulate: bool,
) {
    shape.check(input.len(), grad_filter.len(), grad_output.len());
    let (out_h, out_w, in_h, in_w, in_c) = (shape.out_h(), shape.out_w(), shape.in_h, shape.in_w, shape.in_c);
    let (group_in, group_out, out_c) = (shape.group_in(), shape.group_out(), shape.out_c);
    let (taps_y, taps_x) = (shape.axis_h().forward(), shape.axis_w().forward());
    let grad_filter = Shared(grad_filter.as_mut_ptr());
    pool.run(taps_y.count * taps_x.count * group_in, |task| {
        let (t_y, t_x, c) = (task / group_in / taps_x.count, task / group_in % taps_x.count, task % group_in);
        // SAFETY: `check` saw that the gradient has all rows, and every task has its own.
        let row =
            unsafe { std::slice::from_raw_parts_mut(grad_filter.get().wrapping_add(task * out_c), out_c) };
        if !accumulate {
            row.fill(0.0);
        }
        for pixel in 0..shape.out_pixels() {
            let (image, y, x) = (pixel / out_w / out_h, pixel / out_w % out_h, pixel % out_w);
            let (Some(s_y), Some(s_x)) = (place(&taps_y, y, t_y, in_h), place(&taps_x, x, t_x, in_w)) else {
                continue;
            };
            let values = &input[((image * in_h + s_y) * in_w + s_x) * in_c..][..in_c];
            let grads = &grad_output[pixel * out_c..][..out_c];
            for (j, (sum, grad)) in row.iter_mut().zip(grads).enumerate() {
                *sum += values[j / group_out * group_in + c] * grad;
            }
        }
    });
}
