//! Resized images and their gradient: rows of the output on all threads, channels in vector registers.
//!
//! Where each row and column of the result comes from is worked out once a call, into scratch.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{Resize, ResizeAxis, ResizeGrad, ResizeMode};
use plimsoll_graph::{Rule, Type};

use super::Kernel;
use super::image::{CHUNK, add_weighted, for_each_row, store};
use super::lanes::{Stored, Wide, for_float};
use crate::Cpu;
use crate::simd::multiversion;

/// What one row or column of the result reads: two places and the weight of the second.
#[derive(Clone, Copy)]
struct Source {
    first: usize,
    second: usize,
    weight: f64,
}

impl Source {
    /// The weight of place `j`.
    #[inline(always)]
    fn weight_of(&self, j: usize) -> f64 {
        let first = if self.first == j { 1.0 - self.weight } else { 0.0 };
        first + if self.second == j { self.weight } else { 0.0 }
    }
}

/// The bytes of scratch for the sources of images of a shape.
fn scratch_bytes(resized: &Type) -> usize {
    (resized.shape[1] + resized.shape[2]) * size_of::<Source>()
}

/// The sources of all rows and of all columns, written into the scratch.
///
/// # Safety
/// The scratch must be that of [`scratch_bytes`] for the two axes, live for `'s` and reached by nothing else.
unsafe fn sources<'s>(call: &Call<'_>, axes: &[ResizeAxis; 2]) -> [&'s [Source]; 2] {
    let table: *mut Source = call.scratch.cast();
    let mut done = 0;
    axes.map(|axis| {
        for i in 0..axis.new {
            let (first, second, weight) = axis.source(i);
            // SAFETY: the scratch has room for all rows and columns, and its alignment is more than enough.
            unsafe { table.add(done + i).write(Source { first, second, weight }) };
        }
        // SAFETY: these were written above, and nothing writes them again.
        let sources = unsafe { std::slice::from_raw_parts(table.add(done).cast_const(), axis.new) };
        done += axis.new;
        sources
    })
}

impl Kernel for Resize {
    fn scratch(&self, _: &Cpu, _: &[&Type], outputs: &[&Type]) -> usize {
        scratch_bytes(outputs[0])
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        let (shape, c) = (&x.ty.shape, x.ty.shape[3]);
        let (line, image) = (shape[2] * c, shape[1] * shape[2] * c);
        // SAFETY: the scratch is what was declared.
        let [rows, columns] = unsafe { sources(call, &self.axes([shape[1], shape[2]])) };
        for_float!(x.ty.dtype, self, T => {
            // SAFETY: the caller's operands have the types they name and do not overlap.
            let (x, y) = unsafe { (x.slice::<T>(), y.slice_mut::<T>()) };
            for_each_row(cpu, y, self.out[1] * c, |row, y| {
                let (x, source) = (&x[row / self.out[0] * image..][..image], rows[row % self.out[0]]);
                let (upper, lower) = (&x[source.first * line..][..line], &x[source.second * line..][..line]);
                match self.mode {
                    ResizeMode::Nearest => nearest_row(upper, columns, y),
                    ResizeMode::Bilinear => bilinear_row(cpu.isa(), upper, lower, source.weight, columns, y),
                }
            });
            Ok(())
        })
    }
}

impl Kernel for ResizeGrad {
    fn scratch(&self, _: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        scratch_bytes(inputs[0])
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (dy, dx) = (&call.inputs[0], &call.outputs[0]);
        let (shape, c) = (&dy.ty.shape, dy.ty.shape[3]);
        let image = shape[1] * shape[2] * c;
        // SAFETY: the scratch is what was declared.
        let [rows, columns] = unsafe { sources(call, &self.forward(shape).axes(self.input)) };
        for_float!(dy.ty.dtype, self, T => {
            // SAFETY: the caller's operands have the types they name and do not overlap.
            let (dy, dx) = unsafe { (dy.slice::<T>(), dx.slice_mut::<T>()) };
            for_each_row(cpu, dx, self.input[1] * c, |row, dx| {
                let (n, iy) = (row / self.input[0], row % self.input[0]);
                grad_row(cpu.isa(), &dy[n * image..][..image], rows, columns, iy, c, dx);
            });
            Ok(())
        })
    }
}

fn nearest_row<T: Stored>(x: &[T], columns: &[Source], y: &mut [T]) {
    let c = y.len() / columns.len();
    for (y, source) in y.chunks_exact_mut(c).zip(columns) {
        y.copy_from_slice(&x[source.first * c..][..c]);
    }
}

multiversion! {
    /// A row of the result from two rows of the image, of which the lower has the weight `down`.
    fn bilinear_row<L; T: Stored>(upper: &[T], lower: &[T], down: f64, columns: &[Source], y: &mut [T]) {
        let c = y.len() / columns.len();
        for (y, source) in y.chunks_exact_mut(c).zip(columns) {
            let (left, right, across) = (source.first * c, source.second * c, source.weight);
            let weights = [(1.0 - down) * (1.0 - across), (1.0 - down) * across, down * (1.0 - across), down * across];
            let w = weights.map(T::Wide::of);
            let (p0, p1) = (&upper[left..][..c], &upper[right..][..c]);
            let (p2, p3) = (&lower[left..][..c], &lower[right..][..c]);
            let y = &mut y[..c];
            for i in 0..c {
                let top = w[0] * p0[i].widen() + w[1] * p1[i].widen();
                y[i] = T::narrow(top + (w[2] * p2[i].widen() + w[3] * p3[i].widen()));
            }
        }
    }

    /// A row of the gradient: every element gathers from the pixels that read it.
    fn grad_row<L; T: Stored>(
        dy: &[T], rows: &[Source], columns: &[Source], iy: usize, c: usize, dx: &mut [T],
    ) {
        // Sources ascend, so the readers of one place are neighbours.
        let oys = rows.partition_point(|s| s.second < iy)..rows.partition_point(|s| s.first <= iy);
        let mut buffer = [T::Wide::ZERO; CHUNK];
        let mut oxs = 0..0;
        for (ix, dx) in dx.chunks_exact_mut(c).enumerate() {
            while oxs.end < columns.len() && columns[oxs.end].first <= ix {
                oxs.end += 1;
            }
            while oxs.start < oxs.end && columns[oxs.start].second < ix {
                oxs.start += 1;
            }
            for (block, dx) in dx.chunks_mut(CHUNK).enumerate() {
                let sums = &mut buffer[..dx.len()];
                sums.fill(T::Wide::ZERO);
                for oy in oys.clone() {
                    let down = rows[oy].weight_of(iy);
                    for ox in oxs.clone() {
                        let at = (oy * columns.len() + ox) * c + block * CHUNK;
                        let weight = T::Wide::of(down * columns[ox].weight_of(ix));
                        add_weighted(sums, &dy[at..at + dx.len()], weight);
                    }
                }
                store(sums, dx);
            }
        }
    }
}
