//! Turns some lines of images into a padded strip in which patches need not be copied at all.
//!
//! In a line that is padded with zeros on both sides, the patches of neighbouring pixels overlap at a constant
//! distance: the micro-kernel can read all of them in place, as rows (forward pass, data gradient) or as columns
//! (filter gradient). A strip copies every image line about once, where packed patches copy it once for every tap
//! of the filter. It pays where lines are long enough to fill a tile and the strip fits into the second-level cache.

use super::patches::{Patches, made_of_patches};
use super::route::Channels;
use crate::gemm::{Left, Plan, Scalar, Segments, Simd, TileAt, zero};
use std::ops::Range;

/// Pixels below which a grid line would make tiles too low.
const LEAST_WIDTH: usize = 12;

/// Floats of the largest strip that is worth it.
const MOST_FLOATS: usize = 112 << 10;

impl<T: Scalar> Patches<T> {
    /// Pixels of a padded line.
    fn strip_width(&self) -> usize {
        (self.grid_w - 1) * self.x.stride + (self.taps_x - 1) * self.x.step + 1
    }

    /// Image lines that the filter reaches over.
    fn reach(&self) -> usize {
        (self.y.count - 1) * self.y.step + 1
    }

    /// Floats of a strip for any `grid_lines` neighbouring grid lines.
    fn strip_floats(&self, grid_lines: usize) -> usize {
        let images = (grid_lines - 1) / self.grid_h + 2;
        (grid_lines * self.y.stride + images * self.reach()) * self.strip_width() * self.channels
    }

    /// Whether taps and runs allow a strip at all.
    fn has_strip(&self) -> bool {
        self.y.count > 0 && self.taps_x > 0 && self.run > 0 && self.grid_w >= LEAST_WIDTH
    }

    /// The plan and the operand for rows read in place, if that pays.
    pub(crate) fn strip_rows(
        self,
        plan: impl Fn(usize, usize) -> Plan,
        lines: usize,
    ) -> Option<(Plan, Strip<T>)> {
        if !self.has_strip() || self.run < 8 {
            return None;
        }
        let mut plan = plan(lines, self.grid_w);
        plan.extra = self.strip_floats(plan.block_lines());
        (plan.extra <= MOST_FLOATS).then_some((plan, Strip(self)))
    }

    /// The plan and the operand for columns read in place, if that pays.
    pub(crate) fn strip_columns(self, plan: impl Fn(usize, usize) -> Plan) -> Option<(Plan, StripAcross<T>)> {
        if !self.has_strip() {
            return None;
        }
        let mut plan = plan(self.y.count * self.x.count, self.run);
        plan.extra = self.strip_floats(plan.step_len().saturating_sub(1) / self.grid_w + 2);
        (plan.extra <= MOST_FLOATS).then_some((plan, StripAcross(self)))
    }

    /// The strip's line that a grid line's tap reads, where the strip begins at grid line `first`.
    #[inline(always)]
    fn strip_line(&self, first: usize, grid_line: usize, tap_y: usize) -> usize {
        let (image, y) = (grid_line / self.grid_h, grid_line % self.grid_h);
        let (first_image, first_y) = (first / self.grid_h, first % self.grid_h);
        let lines = |y: usize| (self.grid_h - 1 - y) * self.y.stride + self.reach();
        let before = match image - first_image {
            0 => return (y - first_y) * self.y.stride + tap_y * self.y.step,
            more => lines(first_y) + (more - 1) * lines(0),
        };
        before + y * self.y.stride + tap_y * self.y.step
    }

    /// Where a tap of a pixel of the grid begins in the strip that begins at grid line `first`.
    #[inline(always)]
    fn strip_place(&self, first: usize, (grid_line, x): (usize, usize), tap: usize) -> usize {
        let line = self.strip_line(first, grid_line, tap / self.x.count);
        let pixel = x * self.x.stride + tap % self.x.count * self.x.step;
        (line * self.strip_width() + pixel) * self.channels
    }

    /// Lists where `left` numbers lie in the strip that begins at grid line `first`, from a pixel's number of a tap on: along its taps, or
    /// along the pixels of its line. Returns how far pixels are apart.
    #[inline(always)]
    fn stretches<const ALONG_TAPS: bool>(
        &self,
        own: *const f32,
        first: usize,
        [mut line, mut x, mut tap, mut from]: [usize; 4],
        mut left: usize,
        to: &mut Segments,
    ) -> usize {
        to.clear();
        while left > 0 {
            let len = if ALONG_TAPS { self.run - from } else { self.grid_w - x }.min(left);
            to.push(own.wrapping_add(self.strip_place(first, (line, x), tap) + from), len);
            if ALONG_TAPS {
                (tap, from) = (tap + 1, 0);
            } else {
                (line, x) = (line + 1, 0);
            }
            left -= len;
        }
        self.x.stride * self.channels
    }

    /// Writes the strip for these grid lines.
    #[inline(always)]
    unsafe fn write_strip<S: Simd>(&self, grid_lines: Range<usize>, own: *mut f32) {
        let (width, channels) = (self.strip_width(), self.channels);
        let pixels = self.line / self.pixel;
        let low = (-self.x.offset).clamp(0, width as isize) as usize;
        let high = (pixels as isize - self.x.offset).clamp(low as isize, width as isize) as usize;
        let (mut line, mut dst) = (grid_lines.start, own);
        while line < grid_lines.end {
            let (image, y) = (line / self.grid_h, line % self.grid_h);
            let n_lines = (grid_lines.end - line).min(self.grid_h - y);
            let data = self.data.wrapping_add(image * self.image);
            for i in 0..(n_lines - 1) * self.y.stride + self.reach() {
                let place = (y * self.y.stride + i) as isize + self.y.offset;
                // SAFETY: the strip has room for every line that the grid lines reach over; pixels `low .. high`
                // of the padded line exist in the image.
                unsafe {
                    if place < 0 || place >= self.height as isize || low == high {
                        zero(dst, width * channels);
                    } else {
                        zero(dst, low * channels);
                        let first = (low as isize + self.x.offset) as usize;
                        let src = data.add(place as usize * self.line + first * self.pixel);
                        if self.pixel == channels {
                            S::widen(src, dst.add(low * channels), (high - low) * channels);
                        } else {
                            for x in 0..high - low {
                                S::widen(src.add(x * self.pixel), dst.add((low + x) * channels), channels);
                            }
                        }
                        zero(dst.add(high * channels), (width - high) * channels);
                    }
                }
                dst = dst.wrapping_add(width * channels);
            }
            line += n_lines;
        }
    }
}

made_of_patches!(Strip: "Patches as rows, read in place.");

impl<T: Scalar> Left for Strip<T> {
    const BY_ROW: bool = true;

    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, row: usize, n_rows: usize, k: usize, n_k: usize, dst: *mut f32) {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.0.pack::<S>(row, n_rows, k, n_k, dst) }
    }

    #[inline(always)]
    unsafe fn prepare<S: Simd>(&self, rows: Range<usize>, _k: Range<usize>, own: *mut f32) {
        let lines = rows.start / self.0.grid_w..(rows.end - 1) / self.0.grid_w + 1;
        // SAFETY: the plan's extra floats hold the strip of any block.
        unsafe { self.0.write_strip::<S>(lines, own) }
    }

    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: TileAt, _: *mut f32, own: *const f32, to: &mut Segments) -> usize {
        let (p, TileAt { origin, row, k, n_k, .. }) = (&self.0, at);
        let (first, line, x) = (origin / p.grid_w, row / p.grid_w, row % p.grid_w);
        p.stretches::<true>(own, first, [line, x, k / p.run, k % p.run], n_k, to)
    }
}

made_of_patches!(StripAcross: "Patches as columns, read in place.");

impl<T: Scalar> Left for StripAcross<T> {
    const BY_ROW: bool = false;

    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, row: usize, n_rows: usize, k: usize, n_k: usize, dst: *mut f32) {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.0.across().pack::<S>(row, n_rows, k, n_k, dst) }
    }

    #[inline(always)]
    unsafe fn prepare<S: Simd>(&self, _rows: Range<usize>, k: Range<usize>, own: *mut f32) {
        if !k.is_empty() {
            let lines = k.start / self.0.grid_w..(k.end - 1) / self.0.grid_w + 1;
            // SAFETY: the plan's extra floats hold the strip of any step.
            unsafe { self.0.write_strip::<S>(lines, own) }
        }
    }

    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: TileAt, _: *mut f32, own: *const f32, to: &mut Segments) -> usize {
        let (p, TileAt { origin, row, k, n_k, .. }) = (&self.0, at);
        let (tap, from) = (row / p.run, row % p.run);
        p.stretches::<false>(own, origin / p.grid_w, [k / p.grid_w, k % p.grid_w, tap, from], n_k, to)
    }
}
