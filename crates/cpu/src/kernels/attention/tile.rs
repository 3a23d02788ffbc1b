//! What is done to one tile beside its products: fetch it, change its scores, take the softmax, store results.
//!
//! A tile of scores has [`KEYS`] rows at most, each of [`QUERIES`] numbers, of which the first `width` (a multiple of
//! sixteen) are computed.

use std::ops::Range;

use super::super::lanes::{Stored, Wide};
use super::super::small_matmul::LANES;
use super::QUERIES;
use crate::simd::{Level, multiversion};

/// What changes the scores of a tile before the softmax.
#[derive(Clone, Copy)]
pub(super) struct Bias<T: Stored> {
    /// Query q of the tile sees the keys below `limit + q`.
    pub limit: isize,
    /// And of those the keys from `first + q` on.
    pub first: isize,
    /// The first key of each of the tile's queries, counted from the first key of all; or null.
    pub starts: *const i32,
    /// The tile's first key.
    pub key: usize,
    /// c, where scores are c · tanh(x / c).
    pub cap: Option<T::Wide>,
    /// The mask's element of the tile's first query and key, or null.
    pub mask: *const T,
    /// Elements from one query's row of the mask to the next; 0 where all queries share one.
    pub mask_stride: usize,
}

impl<T: Stored> Bias<T> {
    /// The first query, in whole vectors, that may see a key of the tile.
    pub(super) fn first_query(&self) -> usize {
        let first = usize::try_from(1 - self.limit).unwrap_or(0);
        first / LANES * LANES
    }
}

/// The running softmax of a tile of queries.
#[derive(Clone, Copy)]
pub(super) struct Softmax<E> {
    /// The largest score so far.
    pub most: *mut E,
    /// The sum of exp(score - most) so far.
    pub sum: *mut E,
    /// What results so far must be multiplied by.
    pub rescale: *mut E,
}

/// What the backward pass knows of a tile of queries.
#[derive(Clone, Copy)]
pub(super) struct Saved<E> {
    /// The log of the softmax's sum, +∞ where the query sees nothing.
    pub lse: *const E,
    /// Σ o ∘ do.
    pub delta: *const E,
}

#[inline(always)]
unsafe fn lanes<'a, E>(p: *mut E, at: usize) -> &'a mut [E; LANES] {
    // SAFETY: the caller has sixteen numbers there that nobody else uses.
    unsafe { &mut *p.add(at).cast::<[E; LANES]>() }
}

/// Sixteen scores of key `j`, from query `first` on: scaled, capped, with the mask, and -∞ where the key is hidden. Where there is a cap,
/// `slopes` get the derivatives of the capped scores.
#[inline(always)]
unsafe fn biased<L: Level, T: Stored>(
    scores: &[T::Wide; LANES],
    scale: T::Wide,
    bias: &Bias<T>,
    (j, first, queries): (usize, usize, usize),
    slopes: &mut [T::Wide; LANES],
) -> [T::Wide; LANES] {
    let mut out = *scores;
    out.iter_mut().for_each(|s| *s *= scale);
    if let Some(cap) = bias.cap {
        for (s, slope) in out.iter_mut().zip(slopes) {
            let t = (*s / cap).tanh::<L>();
            *s = cap * t;
            *slope = T::Wide::ONE - t * t;
        }
    }
    if !bias.mask.is_null() {
        for (q, s) in out.iter_mut().enumerate().take(queries.saturating_sub(first)) {
            // SAFETY: the mask has a row for every query of the tile, or one for all.
            *s += unsafe { *bias.mask.add((first + q) * bias.mask_stride + j) }.widen();
        }
    }
    let hidden = j as isize - bias.limit - first as isize + 1;
    if hidden > 0 {
        out.iter_mut().take(hidden as usize).for_each(|s| *s = -T::Wide::INFINITY);
    }
    // Queries behind the window of this key.
    let behind = (j as isize - bias.first - first as isize + 1).clamp(0, LANES as isize) as usize;
    out[behind..].fill(-T::Wide::INFINITY);
    if !bias.starts.is_null() {
        for (q, s) in out.iter_mut().enumerate().take(queries.saturating_sub(first)) {
            // SAFETY: there is a number for every query of the tile.
            let start = unsafe { *bias.starts.add(first + q) };
            *s = if i64::from(start) > (bias.key + j) as i64 { -T::Wide::INFINITY } else { *s };
        }
    }
    out
}

multiversion! {
    /// Copies `n` rows of `width` features to rows of `ld`, the rest zeros.
    pub(super) fn fetch<L; T: Stored>(
        from: *const T,
        stride: usize,
        n: usize,
        width: usize,
        to: *mut T::Wide,
        ld: usize,
    ) {
        for i in 0..n {
            // SAFETY: the caller has `n` rows at both places.
            let (src, dst) = unsafe {
                let src = std::slice::from_raw_parts(from.wrapping_add(i * stride), width);
                (src, std::slice::from_raw_parts_mut(to.add(i * ld), ld))
            };
            dst[..width].iter_mut().zip(src).for_each(|(y, x)| *y = x.widen());
            dst[width..].fill(T::Wide::ZERO);
        }
    }

    /// Transposes `n` rows of `width` features (rows of `ld`) to `width` rows of queries, the rest of `queries` zeros.
    pub(super) fn transpose<L; E: Wide>(from: *const E, ld: usize, n: usize, width: usize, to: *mut E, queries: usize) {
        for first in (0..queries).step_by(LANES) {
            for f in (0..width).step_by(LANES) {
                let mut block = [[E::ZERO; LANES]; LANES];
                for (i, row) in block.iter_mut().enumerate().take(n.saturating_sub(first)) {
                    // SAFETY: rows are padded to whole vectors.
                    *row = unsafe { from.add((first + i) * ld + f).cast::<[E; LANES]>().read() };
                }
                for g in 0..LANES.min(width - f) {
                    // SAFETY: the caller has `width` rows of `QUERIES` numbers.
                    let row = unsafe { lanes(to, (f + g) * QUERIES + first) };
                    for i in 0..LANES {
                        row[i] = block[i][g];
                    }
                }
            }
        }
    }

    /// Begins a softmax over no keys.
    pub(super) fn begin<L; E: Wide>(softmax: Softmax<E>, width: usize) {
        for q in (0..width).step_by(LANES) {
            // SAFETY: the caller has `width` numbers in each.
            unsafe {
                *lanes(softmax.most, q) = [-E::INFINITY; LANES];
                *lanes(softmax.sum, q) = [E::ZERO; LANES];
            }
        }
    }

    /// Turns the scores of `keys` keys into exp(score - most) and brings the running softmax up to date.
    pub(super) fn softmax<L; T: Stored>(
        scores: *mut T::Wide,
        keys: usize,
        queries: usize,
        scale: T::Wide,
        bias: &Bias<T>,
        state: Softmax<T::Wide>,
    ) {
        for first in (bias.first_query()..queries).step_by(LANES) {
            // SAFETY: the caller has `keys` rows of whole vectors, and the state of every query.
            unsafe {
                let before = *lanes(state.most, first);
                let (mut most, mut slopes) = (before, [T::Wide::ONE; LANES]);
                for j in 0..keys {
                    let row = lanes(scores, j * QUERIES + first);
                    let s = biased::<L, T>(row, scale, bias, (j, first, queries), &mut slopes);
                    for q in 0..LANES {
                        most[q] = if s[q] > most[q] { s[q] } else { most[q] };
                    }
                    *row = s;
                }
                // A query that has seen nothing yet: any finite number in place of -∞ keeps 0 from becoming NaN.
                let mut base = most;
                for m in &mut base {
                    *m = if *m == -T::Wide::INFINITY { T::Wide::ZERO } else { *m };
                }
                let mut sum = [T::Wide::ZERO; LANES];
                for j in 0..keys {
                    let row = lanes(scores, j * QUERIES + first);
                    for q in 0..LANES {
                        let p = (row[q] - base[q]).exp::<L>();
                        row[q] = p;
                        sum[q] += p;
                    }
                }
                let (total, rescale) = (lanes(state.sum, first), lanes(state.rescale, first));
                for q in 0..LANES {
                    rescale[q] = (before[q] - base[q]).exp::<L>();
                    total[q] = total[q] * rescale[q] + sum[q];
                }
                *lanes(state.most, first) = most;
            }
        }
    }

    /// Multiplies each query's row of results by its factor.
    pub(super) fn rescale<L; E: Wide>(results: *mut E, ld: usize, queries: Range<usize>, factors: *const E) {
        for q in queries {
            // SAFETY: the caller has a row and a factor for every query.
            let (row, factor) = unsafe { (std::slice::from_raw_parts_mut(results.add(q * ld), ld), *factors.add(q)) };
            if factor != E::ONE {
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }

    /// Divides each query's results by its sum and stores them; writes the log-sums.
    pub(super) fn finish<L; T: Stored>(
        results: *const T::Wide,
        ld: usize,
        size: (usize, usize),
        state: Softmax<T::Wide>,
        out: (*mut T, usize),
        lse: *mut T::Wide,
    ) {
        let ((queries, width), (out, stride)) = (size, out);
        for q in 0..queries {
            // SAFETY: the caller has a row, a state and a place for every query.
            unsafe {
                let (most, sum) = (*state.most.add(q), *state.sum.add(q));
                let none = sum == T::Wide::ZERO;
                let factor = if none { T::Wide::ZERO } else { T::Wide::ONE / sum };
                *lse.add(q) = if none { -T::Wide::INFINITY } else { most + sum.log::<L>() };
                let row = std::slice::from_raw_parts(results.add(q * ld), width);
                let out = std::slice::from_raw_parts_mut(out.add(q * stride), width);
                out.iter_mut().zip(row).for_each(|(y, &x)| *y = T::narrow(x * factor));
            }
        }
    }

    /// Σ a ∘ b over the features of each query, in sixteen partial sums.
    pub(super) fn row_dots<L; T: Stored>(
        a: *const T,
        b: *const T,
        stride: usize,
        size: (usize, usize),
        out: *mut T::Wide,
    ) {
        let (queries, width) = size;
        for q in 0..queries {
            // SAFETY: the caller has a row of both for every query.
            let (a, b) = unsafe {
                let at = q * stride;
                (std::slice::from_raw_parts(a.add(at), width), std::slice::from_raw_parts(b.add(at), width))
            };
            let mut sums = [T::Wide::ZERO; LANES];
            let (wholes_a, wholes_b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
            let (rest_a, rest_b) = (wholes_a.remainder(), wholes_b.remainder());
            for (x, y) in wholes_a.zip(wholes_b) {
                (0..LANES).for_each(|l| sums[l] += x[l].widen() * y[l].widen());
            }
            rest_a.iter().zip(rest_b).enumerate().for_each(|(l, (x, y))| sums[l] += x.widen() * y.widen());
            let mut sum = T::Wide::ZERO;
            sums.iter().for_each(|&s| sum += s);
            // SAFETY: the caller has a place for every query.
            unsafe { *out.add(q) = sum };
        }
    }

    /// Turns scores into probabilities p and do·v into p (do·v - δ) scale: the gradient of the scores.
    pub(super) fn score_grads<L; T: Stored>(
        scores: *mut T::Wide,
        grads: *mut T::Wide,
        size: (usize, usize),
        scale: T::Wide,
        bias: &Bias<T>,
        saved: Saved<T::Wide>,
    ) {
        let (keys, queries) = size;
        for first in (bias.first_query()..queries).step_by(LANES) {
            // SAFETY: the caller has `keys` rows of whole vectors in both, and the saved values of every query.
            unsafe {
                let lse = *saved.lse.add(first).cast::<[T::Wide; LANES]>();
                let delta = *saved.delta.add(first).cast::<[T::Wide; LANES]>();
                let mut slopes = [T::Wide::ONE; LANES];
                for j in 0..keys {
                    let (row, grad) = (lanes(scores, j * QUERIES + first), lanes(grads, j * QUERIES + first));
                    let s = biased::<L, T>(row, scale, bias, (j, first, queries), &mut slopes);
                    for q in 0..LANES {
                        let p = (s[q] - lse[q]).exp::<L>();
                        row[q] = p;
                        grad[q] = p * (grad[q] - delta[q]) * scale;
                    }
                    if bias.cap.is_some() {
                        grad.iter_mut().zip(&slopes).for_each(|(grad, slope)| *grad *= *slope);
                    }
                }
            }
        }
    }

    /// Stores `n` rows of `width` features.
    pub(super) fn store<L; T: Stored>(
        from: *const T::Wide,
        ld: usize,
        n: usize,
        width: usize,
        to: *mut T,
        stride: usize,
    ) {
        for i in 0..n {
            // SAFETY: the caller has `n` rows at both places.
            let (src, dst) = unsafe {
                let src = std::slice::from_raw_parts(from.add(i * ld), width);
                (src, std::slice::from_raw_parts_mut(to.wrapping_add(i * stride), width))
            };
            dst.iter_mut().zip(src).for_each(|(y, &x)| *y = T::narrow(x));
        }
    }
}
