//! The loops of batch norm and group norm over rows of channels, and where their partial sums lie.

use plimsoll_graph::Shape;

use crate::kernels::lanes::{Place, Stored, Wide, groups, load, one_at_a_time, rows_per_task, store};
use crate::simd::{Level, multiversion};

/// Elements of a part of the rows, at least.
const PART: usize = 32768;
/// The most parts a sample.
const MOST_PARTS: usize = 32;
/// Elements of a piece of a part: 16 KiB of f32.
const PIECE: usize = 4096;
/// Channels of a group of lanes: the wide one while it fits.
const WIDE: usize = 32;
const SLIM: usize = 16;
/// Rows that share one load of the channels' numbers.
const TOGETHER: usize = 4;

/// The sizes of a problem: x is `[samples, rows, channels]`, statistics are `[samples, groups]`.
#[derive(Clone, Copy)]
pub(super) struct Dims {
    pub samples: usize,
    pub rows: usize,
    pub channels: usize,
    pub groups: usize,
}

impl Dims {
    pub(super) fn batch(x: &Shape) -> Dims {
        let channels = x.last().copied().unwrap_or(1);
        Dims { samples: 1, rows: x.elements() / channels.max(1), channels, groups: channels }
    }

    pub(super) fn group(x: &Shape, groups: usize) -> Dims {
        let (samples, channels) = (x[0], x[x.rank() - 1]);
        Dims { samples, rows: x.elements() / (samples * channels).max(1), channels, groups }
    }

    pub(super) fn rows_per_part(self) -> usize {
        self.rows.div_ceil(MOST_PARTS).max(rows_per_task(self.channels, PART))
    }

    pub(super) fn parts(self) -> usize {
        self.rows.div_ceil(self.rows_per_part())
    }

    /// Numbers of one vector a channel, padded so that every vector starts on a cache line.
    fn padded(self) -> usize {
        self.channels.next_multiple_of(16)
    }

    /// Scratch: two vectors for each part, four for each sample.
    pub(super) fn scratch(self, wide_bytes: usize) -> usize {
        self.samples * (2 * self.parts() + 4) * self.padded() * wide_bytes
    }

    /// The channels of a group.
    pub(super) fn width(self) -> usize {
        self.channels / self.groups.max(1)
    }
}

/// Where the vectors of the scratch lie.
#[derive(Clone, Copy)]
pub(super) struct Vectors<A> {
    pub at: Place<A>,
    pub dims: Dims,
}

impl<A> Vectors<A> {
    /// Sum `which` (0 or 1) of a part.
    pub(super) fn part(self, sample: usize, part: usize, which: usize) -> *mut A {
        self.at.at(((sample * self.dims.parts() + part) * 2 + which) * self.dims.padded())
    }

    /// Vector `which` (0 to 3) of a sample.
    pub(super) fn sample(self, sample: usize, which: usize) -> *mut A {
        let parts = self.dims.samples * self.dims.parts() * 2;
        self.at.at((parts + sample * 4 + which) * self.dims.padded())
    }
}

/// Whether a relu follows the norm.
pub(super) trait Tail {
    /// It does.
    const RELU: bool;
}

/// A relu follows.
pub(super) struct Relu;
/// Nothing follows.
pub(super) struct Nothing;

impl Tail for Relu {
    const RELU: bool = true;
}

impl Tail for Nothing {
    const RELU: bool = false;
}

/// Runs a body over groups of channels, wide ones first: `$w` is the width as a constant.
macro_rules! channel_groups {
    ($channels:expr, |$c:ident, $len:ident, $w:ident| $body:block) => {{
        let channels: usize = $channels;
        let wide = channels / WIDE * WIDE;
        {
            const $w: usize = WIDE;
            groups!(WIDE, wide, |$c, $len| $body);
        }
        {
            const $w: usize = SLIM;
            groups!(SLIM, channels - wide, |rest, $len| {
                let $c = wide + rest;
                $body
            });
        }
    }};
}

/// Chan's merge of `count_b` values with mean `mb` and squares `qb` into a running mean and squares of others.
/// `weight` is count_b / (count_a + count_b) and `cross` is count_a · weight.
#[inline(always)]
fn merge<L: Level, A: Wide>(mean: A, squares: A, mb: A, qb: A, weight: A, cross: A) -> (A, A) {
    let delta = mb - mean;
    (delta.fma::<L>(weight, mean), (delta * delta).fma::<L>(cross, squares + qb))
}

multiversion! {
    /// Mean and squares around it of each channel over some rows.
    pub(super) fn statistics<L; T: Stored>(
        x: *const T, rows: usize, channels: usize, means: *mut T::Wide, squares: *mut T::Wide,
    ) {
        let zero = T::Wide::ZERO;
        let piece = rows_per_task(channels, PIECE).max(SLIM);
        let mut done = 0;
        while done < rows {
            let count = piece.min(rows - done);
            let per = T::Wide::of(1.0 / count as f64);
            let weight = count as f64 / (done + count) as f64;
            let (weight, cross) = (T::Wide::of(weight), T::Wide::of(done as f64 * weight));
            // SAFETY: the caller gives `rows` rows of `channels` elements, and vectors of as many numbers.
            unsafe {
                let x = x.add(done * channels);
                channel_groups!(channels, |c, len, W| {
                    let mut total = [zero; W];
                    for r in 0..count {
                        one_at_a_time();
                        let v = load::<T, W>(x.add(r * channels + c), len, zero);
                        for l in 0..W {
                            total[l] += v[l];
                        }
                    }
                    let (mut mean, mut square) = ([zero; W], [zero; W]);
                    for l in 0..W {
                        mean[l] = total[l] * per;
                    }
                    for r in 0..count {
                        one_at_a_time();
                        let v = load::<T, W>(x.add(r * channels + c), len, zero);
                        for l in 0..W {
                            let d = v[l] - mean[l];
                            square[l] = d.fma::<L>(d, square[l]);
                        }
                    }
                    if done > 0 {
                        let before = load::<T::Wide, W>(means.add(c), len, zero);
                        let squares_before = load::<T::Wide, W>(squares.add(c), len, zero);
                        for l in 0..W {
                            (mean[l], square[l]) =
                                merge::<L, _>(before[l], squares_before[l], mean[l], square[l], weight, cross);
                        }
                    }
                    store(means.add(c), len, mean);
                    store(squares.add(c), len, square);
                });
            }
            done += count;
        }
    }

    /// Merges the parts of one sample, in order, into the vectors 0 (mean) and 1 (squares) of the sample.
    pub(super) fn merge_statistics<L; A: Stored>(v: Vectors<A>, sample: usize) {
        let (dims, zero) = (v.dims, A::Wide::ZERO);
        let step = dims.rows_per_part();
        // SAFETY: all vectors lie inside the scratch, which was declared for them.
        unsafe {
            channel_groups!(dims.channels, |c, len, W| {
                let mut mean = load::<A, W>(v.part(sample, 0, 0).add(c), len, zero);
                let mut square = load::<A, W>(v.part(sample, 0, 1).add(c), len, zero);
                for part in 1..dims.parts() {
                    let (done, count) = (part * step, step.min(dims.rows - part * step));
                    let weight = count as f64 / (done + count) as f64;
                    let (weight, cross) = (A::Wide::of(weight), A::Wide::of(done as f64 * weight));
                    let mb = load::<A, W>(v.part(sample, part, 0).add(c), len, zero);
                    let qb = load::<A, W>(v.part(sample, part, 1).add(c), len, zero);
                    for l in 0..W {
                        (mean[l], square[l]) = merge::<L, _>(mean[l], square[l], mb[l], qb[l], weight, cross);
                    }
                }
                store(v.sample(sample, 0).add(c), len, mean);
                store(v.sample(sample, 1).add(c), len, square);
            });
        }
    }

    /// y = (x - mean) scale + shift for some rows, or its relu; y may lie over x.
    pub(super) fn normalise<L; T: Stored, R: Tail>(
        x: *const T, y: *mut T, rows: usize, channels: usize, mean: *const T::Wide, scale: *const T::Wide,
        shift: *const T::Wide,
    ) {
        let zero = T::Wide::ZERO;
        let mut row = 0;
        while row < rows {
            let count = TOGETHER.min(rows - row);
            // SAFETY: the caller gives `rows` rows of `channels` elements, and vectors of as many numbers.
            unsafe {
                let (x, y) = (x.add(row * channels), y.add(row * channels));
                channel_groups!(channels, |c, len, W| {
                    let mean = load::<T::Wide, W>(mean.add(c), len, zero);
                    let scale = load::<T::Wide, W>(scale.add(c), len, zero);
                    let shift = load::<T::Wide, W>(shift.add(c), len, zero);
                    for r in 0..count {
                        one_at_a_time();
                        let mut v = load::<T, W>(x.add(r * channels + c), len, zero);
                        for l in 0..W {
                            let n = (v[l] - mean[l]).fma::<L>(scale[l], shift[l]);
                            v[l] = if R::RELU && n < zero { zero } else { n };
                        }
                        store(y.add(r * channels + c), len, v);
                    }
                });
            }
            row += count;
        }
    }

    /// Σ dy and Σ dy (x - mean) of each channel over some rows. Where a relu follows, dy counts only where the norm, by its
    /// scale and shift, is above zero.
    pub(super) fn gradient_sums<L; T: Stored, R: Tail>(
        x: *const T, dy: *const T, rows: usize, channels: usize, means: *const T::Wide, line: [*const T::Wide; 2],
        sums: *mut T::Wide, products: *mut T::Wide,
    ) {
        let zero = T::Wide::ZERO;
        let piece = rows_per_task(channels, PIECE / 2).max(SLIM);
        let mut done = 0;
        while done < rows {
            let count = piece.min(rows - done);
            // SAFETY: the caller gives `rows` rows of `channels` elements, and vectors of as many numbers.
            unsafe {
                let (x, dy) = (x.add(done * channels), dy.add(done * channels));
                channel_groups!(channels, |c, len, W| {
                    let mean = load::<T::Wide, W>(means.add(c), len, zero);
                    let (mut scale, mut shift) = ([zero; W], [zero; W]);
                    if R::RELU {
                        scale = load::<T::Wide, W>(line[0].add(c), len, zero);
                        shift = load::<T::Wide, W>(line[1].add(c), len, zero);
                    }
                    let (mut total, mut product) = ([zero; W], [zero; W]);
                    for r in 0..count {
                        one_at_a_time();
                        let v = load::<T, W>(x.add(r * channels + c), len, zero);
                        let d = load::<T, W>(dy.add(r * channels + c), len, zero);
                        for l in 0..W {
                            let off = v[l] - mean[l];
                            let shut = R::RELU && off.fma::<L>(scale[l], shift[l]) <= zero;
                            let d = if shut { zero } else { d[l] };
                            total[l] += d;
                            product[l] = d.fma::<L>(off, product[l]);
                        }
                    }
                    if done > 0 {
                        let total_before = load::<T::Wide, W>(sums.add(c), len, zero);
                        let product_before = load::<T::Wide, W>(products.add(c), len, zero);
                        for l in 0..W {
                            total[l] = total_before[l] + total[l];
                            product[l] = product_before[l] + product[l];
                        }
                    }
                    store(sums.add(c), len, total);
                    store(products.add(c), len, product);
                });
            }
            done += count;
        }
    }

    /// Adds the parts of one sample, in order, into the vectors 0 (Σ dy) and 1 (Σ dy (x - mean)) of the sample.
    pub(super) fn merge_sums<L; A: Stored>(v: Vectors<A>, sample: usize) {
        let zero = A::Wide::ZERO;
        for which in 0..2 {
            // SAFETY: all vectors lie inside the scratch, which was declared for them.
            unsafe {
                channel_groups!(v.dims.channels, |c, len, W| {
                    let mut total = [zero; W];
                    for part in 0..v.dims.parts() {
                        let more = load::<A, W>(v.part(sample, part, which).add(c), len, zero);
                        for l in 0..W {
                            total[l] += more[l];
                        }
                    }
                    store(v.sample(sample, which).add(c), len, total);
                });
            }
        }
    }

    /// dx = a dy + b (x - mean) + k for some rows, the factors `[a, b, k]` a channel; dx may lie over x or dy. Where a relu
    /// follows, dy counts only where a (x - mean) + shift is above zero.
    pub(super) fn apply_gradient<L; T: Stored, R: Tail>(
        x: *const T, dy: *const T, dx: *mut T, rows: usize, channels: usize, mean: *const T::Wide,
        factors: [*const T::Wide; 3], shift: *const T::Wide,
    ) {
        let zero = T::Wide::ZERO;
        let mut row = 0;
        while row < rows {
            let count = TOGETHER.min(rows - row);
            // SAFETY: the caller gives `rows` rows of `channels` elements, and vectors of as many numbers.
            unsafe {
                let (x, dy, dx) = (x.add(row * channels), dy.add(row * channels), dx.add(row * channels));
                channel_groups!(channels, |c, len, W| {
                    let mean = load::<T::Wide, W>(mean.add(c), len, zero);
                    let a = load::<T::Wide, W>(factors[0].add(c), len, zero);
                    let b = load::<T::Wide, W>(factors[1].add(c), len, zero);
                    let k = load::<T::Wide, W>(factors[2].add(c), len, zero);
                    let mut shifts = [zero; W];
                    if R::RELU {
                        shifts = load::<T::Wide, W>(shift.add(c), len, zero);
                    }
                    for r in 0..count {
                        one_at_a_time();
                        let v = load::<T, W>(x.add(r * channels + c), len, zero);
                        let mut d = load::<T, W>(dy.add(r * channels + c), len, zero);
                        for l in 0..W {
                            let off = v[l] - mean[l];
                            let shut = R::RELU && off.fma::<L>(a[l], shifts[l]) <= zero;
                            let g = if shut { zero } else { d[l] };
                            d[l] = g.fma::<L>(a[l], b[l].fma::<L>(off, k[l]));
                        }
                        store(dx.add(r * channels + c), len, d);
                    }
                });
            }
            row += count;
        }
    }
}
