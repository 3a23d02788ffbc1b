//! Max and mean pooling: rows of the output on all threads, channels in vector registers.
//!
//! Gradients are computed by gathering: each element looks at the windows it is in. So every element is written
//! once, by one thread, in an order that the shapes fix.

use std::ops::Range;

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{AvgPool, AvgPoolGrad, MaxPool, MaxPoolGather, MaxPoolGrad, WindowAxis};
use plimsoll_graph::{Rule, Shape};

use super::Kernel;
use super::image::{CHUNK, add_weighted, for_each_row, for_each_row_of_two, store};
use super::lanes::{Stored, Wide, for_float};
use crate::Cpu;
use crate::simd::multiversion;

/// Where the image of an output row starts, and which row of its image it is.
fn image_of(row: usize, rows: usize, image: &Shape) -> (Range<usize>, usize) {
    let elements = image[1] * image[2] * image[3];
    let n = row / rows;
    (n * elements..(n + 1) * elements, row % rows)
}

/// The element on which place 0 of window `o` lies; negative inside of the padding, hence wrapping.
#[inline(always)]
fn start(axis: &WindowAxis, o: usize) -> usize {
    (o * axis.stride).wrapping_sub(axis.pad.0)
}

/// Moves a range of covering windows on to element `i`, which is not before the last one asked for. The same as
/// [`WindowAxis::covering`] without its divisions.
#[inline(always)]
fn advance(range: &mut Range<usize>, axis: &WindowAxis, i: usize, outputs: usize) {
    let place = i + axis.pad.0;
    while range.end < outputs && range.end * axis.stride <= place {
        range.end += 1;
    }
    while range.start < range.end && range.start * axis.stride + axis.window <= place {
        range.start += 1;
    }
}

impl Kernel for MaxPool {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        let (in_shape, out_shape) = (&x.ty.shape, &y.ty.shape);
        let (axes, row_len) = (self.axes([in_shape[1], in_shape[2]]), out_shape[2] * out_shape[3]);
        for_float!(x.ty.dtype, self, T => {
            // SAFETY: the caller's operands have the types they name and do not overlap.
            let (x, y, index) = unsafe { (x.slice::<T>(), y.slice_mut::<T>(), call.outputs[1].slice_mut::<u8>()) };
            for_each_row_of_two(cpu, y, index, row_len, |row, y, index| {
                let (image, oy) = image_of(row, out_shape[1], in_shape);
                max_row(cpu.isa(), &x[image], &axes, oy, in_shape[3], y, index);
            });
            Ok(())
        })
    }
}

multiversion! {
    /// One row of pooled pixels with their indices.
    fn max_row<L; T: Stored>(x: &[T], axes: &[WindowAxis; 2], oy: usize, c: usize, y: &mut [T], index: &mut [u8]) {
        let ([vertical, horizontal], line) = (axes, axes[1].len * c);
        let rows = vertical.taps(oy);
        for (ox, (y, index)) in y.chunks_exact_mut(c).zip(index.chunks_exact_mut(c)).enumerate() {
            let columns = horizontal.taps(ox);
            let pixel = |ky: usize, kx: usize| {
                let (iy, ix) = (start(vertical, oy).wrapping_add(ky), start(horizontal, ox).wrapping_add(kx));
                &x[iy * line + ix * c..][..c]
            };
            if vertical.window == 2 && horizontal.window == 2 && rows.len() == 2 && columns.len() == 2 {
                max_of_four([pixel(0, 0), pixel(0, 1), pixel(1, 0), pixel(1, 1)], y, index);
                continue;
            }
            // To meet the first element twice changes nothing.
            y.copy_from_slice(pixel(rows.start, columns.start));
            index.fill((rows.start * horizontal.window + columns.start) as u8);
            for ky in rows.clone() {
                let mut kx = columns.start;
                while kx < columns.end {
                    // Three at a time: a third of the passes over y. The last ones may stand for several.
                    let ks = [kx, (kx + 1).min(columns.end - 1), (kx + 2).min(columns.end - 1)];
                    let pixels = ks.map(|kx| pixel(ky, kx));
                    keep_larger(pixels, ks.map(|kx| (ky * horizontal.window + kx) as u8), y, index);
                    kx += 3;
                }
            }
        }
    }

    /// One row of the gradient of max pooling.
    fn max_grad_row<L; T: Stored>(
        index: &[u8], dy: &[T], axes: &[WindowAxis; 2], iy: usize, out_width: usize, dx: &mut [T],
    ) {
        let c = dx.len() / axes[1].len;
        let ([vertical, horizontal], rows) = (axes, axes[0].covering(iy));
        if vertical.stride >= vertical.window && horizontal.stride >= horizontal.window {
            max_grad_disjoint(index, dy, axes, iy, out_width, dx);
            return;
        }
        let mut buffer = [T::Wide::ZERO; CHUNK];
        let mut columns = 0..0;
        for (ix, dx) in dx.chunks_exact_mut(c).enumerate() {
            advance(&mut columns, horizontal, ix, out_width);
            for (block, dx) in dx.chunks_mut(CHUNK).enumerate() {
                let sums = &mut buffer[..dx.len()];
                sums.fill(T::Wide::ZERO);
                for oy in rows.clone() {
                    for ox in columns.clone() {
                        let ky = iy.wrapping_sub(start(vertical, oy));
                        let kx = ix.wrapping_sub(start(horizontal, ox));
                        let at = (oy * out_width + ox) * c + block * CHUNK;
                        let (index, dy) = (&index[at..at + dx.len()], &dy[at..at + dx.len()]);
                        add_chosen(sums, index, dy, (ky * horizontal.window + kx) as u8);
                    }
                }
                store(sums, dx);
            }
        }
    }

    /// One row of the pixels that indices name.
    fn gather_row<L; T: Stored>(
        index: &[u8], x: &[T], axes: &[WindowAxis; 2], oy: usize, c: usize, y: &mut [T],
    ) {
        let ([vertical, horizontal], line) = (axes, axes[1].len * c);
        for (ox, (y, index)) in y.chunks_exact_mut(c).zip(index.chunks_exact(c)).enumerate() {
            y.fill(T::narrow(T::Wide::ZERO));
            for ky in vertical.taps(oy) {
                for kx in horizontal.taps(ox) {
                    let iy = start(vertical, oy).wrapping_add(ky);
                    let ix = start(horizontal, ox).wrapping_add(kx);
                    let (pixel, k) = (&x[iy * line + ix * c..][..c], (ky * horizontal.window + kx) as u8);
                    for ((y, &x), &index) in y.iter_mut().zip(pixel).zip(index) {
                        *y = if index == k { x } else { *y };
                    }
                }
            }
        }
    }

    /// One row of means.
    fn mean_row<L; T: Stored>(op: &AvgPool, x: &[T], axes: &[WindowAxis; 2], oy: usize, c: usize, y: &mut [T]) {
        let ([vertical, horizontal], line) = (axes, axes[1].len * c);
        let mut buffer = [T::Wide::ZERO; CHUNK];
        for (ox, y) in y.chunks_exact_mut(c).enumerate() {
            let weight = T::Wide::of(1.0 / op.count(axes, oy, ox) as f64);
            let columns = horizontal.taps(ox);
            for (block, y) in y.chunks_mut(CHUNK).enumerate() {
                let sums = &mut buffer[..y.len()];
                sums.fill(T::Wide::ZERO);
                for ky in vertical.taps(oy) {
                    let iy = start(vertical, oy).wrapping_add(ky);
                    for kx in columns.clone() {
                        let ix = start(horizontal, ox).wrapping_add(kx);
                        let at = iy * line + ix * c + block * CHUNK;
                        add_weighted(sums, &x[at..at + y.len()], weight);
                    }
                }
                store(sums, y);
            }
        }
    }

    /// One row of the gradient of means.
    fn mean_grad_row<L; T: Stored>(
        op: &AvgPool, dy: &[T], axes: &[WindowAxis; 2], iy: usize, out_width: usize, dx: &mut [T],
    ) {
        let c = dx.len() / axes[1].len;
        let (rows, mut columns) = (axes[0].covering(iy), 0..0);
        // Nearly all windows have one size: divide only where it changes.
        let (mut count, mut weight) = (1, T::Wide::ONE);
        let mut buffer = [T::Wide::ZERO; CHUNK];
        for (ix, dx) in dx.chunks_exact_mut(c).enumerate() {
            advance(&mut columns, &axes[1], ix, out_width);
            for (block, dx) in dx.chunks_mut(CHUNK).enumerate() {
                let sums = &mut buffer[..dx.len()];
                sums.fill(T::Wide::ZERO);
                for oy in rows.clone() {
                    for ox in columns.clone() {
                        let here = op.count(axes, oy, ox);
                        if here != count {
                            (count, weight) = (here, T::Wide::of(1.0 / here as f64));
                        }
                        let at = (oy * out_width + ox) * c + block * CHUNK;
                        add_weighted(sums, &dy[at..at + dx.len()], weight);
                    }
                }
                store(sums, dx);
            }
        }
    }
}

/// The usual 2 by 2 window in one pass: every element is loaded once and nothing is stored twice.
#[inline(always)]
fn max_of_four<T: Stored>(pixels: [&[T]; 4], y: &mut [T], index: &mut [u8]) {
    let [p0, p1, p2, p3] = pixels.map(|p| &p[..y.len()]);
    let index = &mut index[..y.len()];
    for i in 0..y.len() {
        let (top, k_top) = later(p0[i], 0, p1[i], 1);
        let (bottom, k_bottom) = later(p2[i], 2, p3[i], 3);
        (y[i], index[i]) = later(top, k_top, bottom, k_bottom);
    }
}

/// Takes those elements of three pixels that are larger than the largest so far.
#[inline(always)]
fn keep_larger<T: Stored>(pixels: [&[T]; 3], k: [u8; 3], y: &mut [T], index: &mut [u8]) {
    let [p0, p1, p2] = pixels.map(|p| &p[..y.len()]);
    let index = &mut index[..y.len()];
    for i in 0..y.len() {
        let (best, chosen) = later(y[i], index[i], p0[i], k[0]);
        let (best, chosen) = later(best, chosen, p1[i], k[1]);
        (y[i], index[i]) = later(best, chosen, p2[i], k[2]);
    }
}

/// The second of two elements where it is larger or not a number, else the first.
#[inline(always)]
#[allow(clippy::eq_op)]
fn later<T: Stored>(a: T, k_a: u8, b: T, k_b: u8) -> (T, u8) {
    let (old, new) = (a.widen(), b.widen());
    // Both sides of the `or` are computed: a branch would keep the loop from being vectorised.
    let takes = (new > old) | (new != new);
    (if takes { b } else { a }, if takes { k_b } else { k_a })
}

/// Adds those elements of dy whose index is `k`.
#[inline(always)]
fn add_chosen<T: Stored>(sums: &mut [T::Wide], index: &[u8], dy: &[T], k: u8) {
    let (index, dy) = (&index[..sums.len()], &dy[..sums.len()]);
    for i in 0..sums.len() {
        sums[i] += if index[i] == k { dy[i].widen() } else { T::Wide::ZERO };
    }
}

/// A row of the gradient where no two windows overlap: every element belongs to one window or to none.
#[inline(always)]
fn max_grad_disjoint<T: Stored>(
    index: &[u8],
    dy: &[T],
    [vertical, horizontal]: &[WindowAxis; 2],
    iy: usize,
    out_width: usize,
    dx: &mut [T],
) {
    let c = dx.len() / horizontal.len;
    let Some(oy) = vertical.covering(iy).next() else {
        dx.fill(T::narrow(T::Wide::ZERO));
        return;
    };
    let ky = iy.wrapping_sub(start(vertical, oy));
    let mut done = 0;
    for ox in 0..out_width {
        let at = (oy * out_width + ox) * c;
        let (index, dy) = (&index[at..at + c], &dy[at..at + c]);
        for kx in horizontal.taps(ox) {
            let ix = start(horizontal, ox).wrapping_add(kx);
            dx[done * c..ix * c].fill(T::narrow(T::Wide::ZERO));
            let k = (ky * horizontal.window + kx) as u8;
            for ((dx, &index), &dy) in dx[ix * c..(ix + 1) * c].iter_mut().zip(index).zip(dy) {
                *dx = if index == k { dy } else { T::narrow(T::Wide::ZERO) };
            }
            done = ix + 1;
        }
    }
    dx[done * c..].fill(T::narrow(T::Wide::ZERO));
}

impl Kernel for MaxPoolGrad {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (dy, dx) = (&call.inputs[1], &call.outputs[0]);
        let (out_shape, in_shape) = (&dy.ty.shape, &dx.ty.shape);
        let (axes, c) = (self.forward.axes(self.input), in_shape[3]);
        for_float!(dy.ty.dtype, self, T => {
            // SAFETY: the caller's operands have the types they name and do not overlap.
            let (index, dy, dx) = unsafe { (call.inputs[0].slice::<u8>(), dy.slice::<T>(), dx.slice_mut::<T>()) };
            for_each_row(cpu, dx, in_shape[2] * c, |row, dx| {
                let (image, iy) = image_of(row, in_shape[1], out_shape);
                max_grad_row(cpu.isa(), &index[image.clone()], &dy[image], &axes, iy, out_shape[2], dx);
            });
            Ok(())
        })
    }
}

impl Kernel for MaxPoolGather {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, y) = (&call.inputs[1], &call.outputs[0]);
        let (in_shape, out_shape) = (&x.ty.shape, &y.ty.shape);
        let (axes, row_len) = (self.0.axes([in_shape[1], in_shape[2]]), out_shape[2] * out_shape[3]);
        for_float!(x.ty.dtype, self, T => {
            // SAFETY: the caller's operands have the types they name and do not overlap.
            let (index, x, y) = unsafe { (call.inputs[0].slice::<u8>(), x.slice::<T>(), y.slice_mut::<T>()) };
            for_each_row(cpu, y, row_len, |row, y| {
                let (image, oy) = image_of(row, out_shape[1], in_shape);
                let index = &index[row * row_len..(row + 1) * row_len];
                gather_row(cpu.isa(), index, &x[image], &axes, oy, in_shape[3], y);
            });
            Ok(())
        })
    }
}

impl Kernel for AvgPool {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        let (in_shape, out_shape) = (&x.ty.shape, &y.ty.shape);
        let axes = self.axes([in_shape[1], in_shape[2]]);
        for_float!(x.ty.dtype, self, T => {
            // SAFETY: the caller's operands have the types they name and do not overlap.
            let (x, y) = unsafe { (x.slice::<T>(), y.slice_mut::<T>()) };
            for_each_row(cpu, y, out_shape[2] * out_shape[3], |row, y| {
                let (image, oy) = image_of(row, out_shape[1], in_shape);
                mean_row(cpu.isa(), self, &x[image], &axes, oy, in_shape[3], y);
            });
            Ok(())
        })
    }
}

impl Kernel for AvgPoolGrad {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (dy, dx) = (&call.inputs[0], &call.outputs[0]);
        let (out_shape, in_shape) = (&dy.ty.shape, &dx.ty.shape);
        let (axes, c) = (self.forward.axes(self.input), in_shape[3]);
        for_float!(dy.ty.dtype, self, T => {
            // SAFETY: the caller's operands have the types they name and do not overlap.
            let (dy, dx) = unsafe { (dy.slice::<T>(), dx.slice_mut::<T>()) };
            for_each_row(cpu, dx, in_shape[2] * c, |row, dx| {
                let (image, iy) = image_of(row, in_shape[1], out_shape);
                mean_grad_row(cpu.isa(), &self.forward, &dy[image], &axes, iy, out_shape[2], dx);
            });
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_device::backend::Operand;
    use plimsoll_graph::{DType, Op, Type};

    use super::*;

    /// Max pooling of f32 images: the largest elements and their bytes.
    fn pooled(kernel: MaxPool, shape: [usize; 4], x: &mut [f32]) -> (Vec<f32>, Vec<u8>) {
        let x_type = Type::new(DType::F32, shape);
        let types = kernel.infer(&[&x_type]).unwrap();
        let (mut y, mut index) = (vec![0.0f32; types[0].elements()], vec![0u8; types[1].elements()]);
        let inputs = [Operand { ty: &x_type, ptr: x.as_mut_ptr().cast() }];
        let outputs = [
            Operand { ty: &types[0], ptr: y.as_mut_ptr().cast() },
            Operand { ty: &types[1], ptr: index.as_mut_ptr() },
        ];
        let (scratch, op) = (std::ptr::dangling_mut(), Op::from(kernel));
        let call = Call { op: &op, inputs: &inputs, outputs: &outputs, scratch, scratch_bytes: 0 };
        // SAFETY: all memory is live and sized by its type; this kernel needs no more alignment than its elements.
        unsafe { kernel.run(&Cpu::new(1), &call) }.unwrap();
        (y, index)
    }

    const HALVING: MaxPool = MaxPool { window: [2, 2], stride: [2, 2], pad: [(0, 0); 2] };

    #[test]
    fn the_first_of_equal_elements_wins() {
        for op in [HALVING, MaxPool { pad: [(1, 0), (0, 1)], ..HALVING }] {
            let (y, index) = pooled(op, [1, 2, 2, 1], &mut [5.0; 4]);
            assert!(y.iter().all(|&y| y == 5.0));
            assert_eq!(index[0], if op == HALVING { 0 } else { 2 });
        }
    }

    #[test]
    fn a_not_a_number_wins_wherever_it_stands() {
        for place in 0..4 {
            let mut x = [1.0, 9.0, 2.0, 3.0];
            x[place] = f32::NAN;
            let (y, index) = pooled(HALVING, [1, 2, 2, 1], &mut x);
            assert!(y[0].is_nan() && usize::from(index[0]) == place);
            let whole = MaxPool { window: [1, 4], stride: [1, 1], pad: [(0, 0); 2] };
            let (y, index) = pooled(whole, [1, 1, 4, 1], &mut x);
            assert!(y[0].is_nan() && usize::from(index[0]) == place);
        }
    }

    #[test]
    fn a_batch_of_no_images_is_pooled_to_none() {
        assert_eq!(pooled(HALVING, [0, 4, 4, 3], &mut []), (vec![], vec![]));
        assert_eq!(pooled(HALVING, [2, 4, 4, 0], &mut []), (vec![], vec![]));
    }
}
