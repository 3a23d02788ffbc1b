//! Images read at places of a grid: a pixel of the result is a sum of up to four rows of channels.
//!
//! The gradient of the images is added by one task a sample and block of channels, in the order of the grid; that of the grid is a
//! sum over channels, pixel by pixel.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::Type;
use plimsoll_graph::ops::{GridSample, GridSampleGrad, ResizeMode};

use super::Kernel;
use super::lanes::{Place, Stored, Wide, for_float, rows_per_task, store, sums_bytes};
use crate::Cpu;

/// Elements a task.
const TASK: usize = 8192;
/// Channels that a task of the gradient adds.
const CHANNELS: usize = 32;

/// A pixel of the image that a place is made of: where it is, its share, and the share's change across and down.
#[derive(Clone, Copy)]
struct Tap<A> {
    pixel: usize,
    share: A,
    across: A,
    down: A,
}

/// One axis at a place: the numbers of two neighbours as floats, their shares and how those change. A neighbour that is outside has -1.
#[derive(Clone, Copy)]
struct Line<A> {
    pixels: [isize; 2],
    shares: [A; 2],
    changes: [A; 2],
}

/// A type that places are computed in.
trait Coordinate: Wide {
    fn floor(self) -> Self;
    fn round(self) -> Self;
    fn whole(self) -> isize;
}

macro_rules! coordinates {
    ($($t:ty),+) => { $(
        impl Coordinate for $t {
            fn floor(self) -> $t {
                self.floor()
            }
            fn round(self) -> $t {
                self.round_ties_even()
            }
            fn whole(self) -> isize {
                self as isize
            }
        }
    )+ };
}
coordinates!(f32, f64);

fn line<A: Coordinate>(op: &GridSample, place: A, length: usize) -> Line<A> {
    let (n, one, half) = (A::of(length as f64), A::ONE, A::of(0.5));
    let (mut at, mut slope) = if op.align {
        ((place + one) * half * (n - one), (n - one) * half)
    } else {
        (((place + one) * n - one) * half, n * half)
    };
    if op.border && at <= A::ZERO {
        (at, slope) = (A::ZERO, A::ZERO);
    } else if op.border && at >= n - one {
        (at, slope) = (n - one, A::ZERO);
    }
    let number = |pixel: A| if pixel >= A::ZERO && pixel < n { pixel.whole() } else { -1 };
    match op.mode {
        ResizeMode::Nearest => {
            Line { pixels: [number(at.round()), -1], shares: [one, A::ZERO], changes: [A::ZERO; 2] }
        }
        ResizeMode::Bilinear => {
            let low = at.floor();
            Line {
                pixels: [number(low), number(low + one)],
                shares: [one - (at - low), at - low],
                changes: [A::ZERO - slope, slope],
            }
        }
    }
}

/// Calls `f` with every pixel that makes up the place of the `p`-th pixel of the grid; false where the place is not a number.
///
/// # Safety
/// The grid must have more than `p` pixels.
#[inline(always)]
unsafe fn taps<A: Coordinate>(
    op: &GridSample,
    grid: Place<A>,
    p: usize,
    [height, width]: [usize; 2],
    mut f: impl FnMut(Tap<A>),
) -> bool {
    // SAFETY: the caller's promise.
    let (x, y) = unsafe { (grid.at(2 * p).read(), grid.at(2 * p + 1).read()) };
    let is_number = |v: A| v.partial_cmp(&v).is_some();
    if !(is_number(x) && is_number(y)) {
        return false;
    }
    let (across, down) = (line(op, x, width), line(op, y, height));
    for i in 0..2 {
        for j in 0..2 {
            if down.pixels[i] >= 0 && across.pixels[j] >= 0 {
                f(Tap {
                    pixel: down.pixels[i] as usize * width + across.pixels[j] as usize,
                    share: across.shares[j] * down.shares[i],
                    across: across.changes[j] * down.shares[i],
                    down: across.shares[j] * down.changes[i],
                });
            }
        }
    }
    true
}

/// Samples, pixels of an image, pixels of a grid, channels.
fn sizes(x: &Type, grid: &Type) -> ([usize; 2], [usize; 4]) {
    let (image, places) = ([x.shape[1], x.shape[2]], grid.shape[1] * grid.shape[2]);
    (image, [x.shape[0], image[0] * image[1], places, x.shape[3]])
}

impl Kernel for GridSample {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (image, [samples, pixels, places, channels]) = sizes(call.inputs[0].ty, call.inputs[1].ty);
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type A = <T as Stored>::Wide;
            let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
            let grid = Place::<A>::new(call.inputs[1].ptr);
            let step = rows_per_task(4 * channels, TASK);
            cpu.pool().run((samples * places).div_ceil(step), |task| {
                for p in task * step..(task * step + step).min(samples * places) {
                    let first = p / places * pixels * channels;
                    for c in (0..channels).step_by(CHANNELS) {
                        let width = CHANNELS.min(channels - c);
                        let mut sums = [<A as Wide>::ZERO; CHANNELS];
                        // SAFETY: pixels are inside of the sample's image; the result's pixel is this task's.
                        unsafe {
                            let is_place = taps(self, grid, p, image, |tap| {
                                let from = x.at(first + tap.pixel * channels + c);
                                for (l, sum) in sums.iter_mut().enumerate().take(width) {
                                    *sum += tap.share * Stored::widen(from.add(l).read());
                                }
                            });
                            if !is_place {
                                sums = [<A as Wide>::of(f64::NAN); CHANNELS];
                            }
                            store(y.at(p * channels + c), width, sums);
                        }
                    }
                }
            });
            Ok(())
        })
    }
}

impl Kernel for GridSampleGrad {
    fn scratch(&self, _: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        sums_bytes(inputs[0].dtype, inputs[0].elements())
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let op = &self.0;
        let (image, [samples, pixels, places, channels]) = sizes(call.inputs[0].ty, call.inputs[1].ty);
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type A = <T as Stored>::Wide;
            let (x, dy) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.inputs[2].ptr));
            let (dx, dgrid) = (Place::<T>::new(call.outputs[0].ptr), Place::<A>::new(call.outputs[1].ptr));
            let grid = Place::<A>::new(call.inputs[1].ptr);
            let exact = <T as Stored>::EXACT;
            let sums = Place::<A>::new(if exact { call.outputs[0].ptr } else { call.scratch });
            let blocks = channels.div_ceil(CHANNELS);
            cpu.pool().run(samples * blocks, |task| {
                let (n, c) = (task / blocks, task % blocks * CHANNELS);
                let (first, width) = (n * pixels * channels, CHANNELS.min(channels - c));
                // SAFETY: pixels are inside of the sample's image; its channels c.. are this task's.
                unsafe {
                    for pixel in 0..pixels {
                        sums.at(first + pixel * channels + c).write_bytes(0, width);
                    }
                    for p in n * places..(n + 1) * places {
                        taps(op, grid, p, image, |tap| {
                            let (from, to) = (dy.at(p * channels + c), sums.at(first + tap.pixel * channels + c));
                            for l in 0..width {
                                *to.add(l) += tap.share * Stored::widen(from.add(l).read());
                            }
                        });
                    }
                    for pixel in 0..if exact { 0 } else { pixels } {
                        let at = first + pixel * channels + c;
                        for i in at..at + width {
                            dx.at(i).write(<T as Stored>::narrow(sums.at(i).read()));
                        }
                    }
                }
            });
            let step = rows_per_task(4 * channels, TASK);
            cpu.pool().run((samples * places).div_ceil(step), |task| {
                for p in task * step..(task * step + step).min(samples * places) {
                    let first = p / places * pixels * channels;
                    let (mut across, mut down) = (<A as Wide>::ZERO, <A as Wide>::ZERO);
                    // SAFETY: as above; the grid's pixel is this task's.
                    unsafe {
                        let is_place = taps(op, grid, p, image, |tap| {
                            let (from, value) = (dy.at(p * channels), x.at(first + tap.pixel * channels));
                            let mut sum = <A as Wide>::ZERO;
                            for c in 0..channels {
                                sum += Stored::widen(from.add(c).read()) * Stored::widen(value.add(c).read());
                            }
                            across += tap.across * sum;
                            down += tap.down * sum;
                        });
                        if !is_place {
                            (across, down) = (<A as Wide>::of(f64::NAN), <A as Wide>::of(f64::NAN));
                        }
                        dgrid.at(2 * p).write(across);
                        dgrid.at(2 * p + 1).write(down);
                    }
                }
            });
            Ok(())
        })
    }
}
