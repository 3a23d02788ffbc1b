//! Turns images into packed tiles of patches, straight from NHWC memory.
//!
//! A patch is what one output pixel reads: for every filter line a run of channels. Where the filter's pixels are
//! neighbours in the image, the whole filter line is one run, because channels of neighbouring pixels follow each
//! other; that makes three channels as cheap as many. What lies outside of the image reads as zero.

use super::route::Channels;
use super::shape::{ConvShape, Taps};
use crate::gemm::{Left, Lines, ROW_STRIDE, Scalar, Simd, zero};

/// The patches of a grid of pixels: patch (image, y, x), element (tap line, tap pixel, channel).
#[derive(Clone, Copy)]
pub(crate) struct Patches<T> {
    /// Image 0, line 0, pixel 0, first channel of the group.
    pub data: *const T,
    /// Elements of an image, a line, a pixel.
    pub image: usize,
    pub line: usize,
    pub pixel: usize,
    /// Lines of an image.
    pub height: usize,
    /// Lines and pixels of the grid.
    pub grid_h: usize,
    pub grid_w: usize,
    pub y: Taps,
    pub x: Taps,
    /// Elements that one tap reads.
    pub run: usize,
    /// Channels, and filter pixels a line before they were joined to one run.
    pub channels: usize,
    pub taps_x: usize,
}

// SAFETY: the pointer is only read, inside calls that borrow the memory.
unsafe impl<T: Sync> Send for Patches<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Patches<T> {}

impl<T: Scalar> Patches<T> {
    /// Patches of images of `height` by `width` pixels with `pixel` elements each, of which `channels` from
    /// `data` on are read.
    fn new(
        data: *const T,
        [height, width, pixel]: [usize; 3],
        channels: usize,
        grid: [usize; 2],
        y: Taps,
        x: Taps,
    ) -> Patches<T> {
        let mut patches = Patches {
            data,
            image: height * width * pixel,
            line: width * pixel,
            pixel,
            height,
            // An empty grid has no pixel to ask for, but must not be divided by either.
            grid_h: grid[0].max(1),
            grid_w: grid[1].max(1),
            y,
            x,
            run: channels,
            channels,
            taps_x: x.count,
        };
        if pixel == channels && (x.step == 1 || x.count == 1) {
            patches.run = x.count * channels;
            patches.x.count = 1;
        }
        patches
    }

    /// What the outputs of a convolution read of its input, in group 0.
    pub(crate) fn of_input(shape: &ConvShape, data: *const T) -> Patches<T> {
        let size = [shape.in_h, shape.in_w, shape.in_c];
        let grid = [shape.out_h(), shape.out_w()];
        Patches::new(data, size, shape.group_in(), grid, shape.axis_h().forward(), shape.axis_w().forward())
    }

    /// What the inputs of one phase read of the output's gradient, in group 0.
    pub(crate) fn of_output(
        shape: &ConvShape,
        data: *const T,
        grid: [usize; 2],
        y: Taps,
        x: Taps,
    ) -> Patches<T> {
        Patches::new(data, [shape.out_h(), shape.out_w(), shape.out_c], shape.group_out(), grid, y, x)
    }

    /// The patches as columns instead of rows.
    pub(crate) fn across(self) -> Across<T> {
        Across(self)
    }

    #[inline(always)]
    pub(super) fn split(&self, pixel: usize) -> (usize, usize, usize) {
        let y = pixel / self.grid_w;
        (y / self.grid_h, y % self.grid_h, pixel % self.grid_w)
    }

    /// The image line that a grid line's tap reads, if it exists.
    #[inline(always)]
    fn tap_line(&self, y: usize, tap: usize) -> Option<usize> {
        let line = (y * self.y.stride + tap * self.y.step) as isize + self.y.offset;
        (line >= 0 && line < self.height as isize).then_some(line as usize)
    }

    /// Where a grid pixel's tap starts in its image line, in elements; may lie outside.
    #[inline(always)]
    fn tap_start(&self, x: usize, tap: usize) -> isize {
        ((x * self.x.stride + tap * self.x.step) as isize + self.x.offset) * self.pixel as isize
    }

    /// Lists what some grid pixels read through one filter line and no neighbour to the left read before them.
    #[inline(always)]
    fn fresh_lines(&self, pixel: usize, n_pixels: usize, tap_y: usize, lines: &mut Lines) {
        let (image, y, x) = self.split(pixel);
        let Some(line) = self.tap_line(y, tap_y) else { return };
        let fresh = self.x.stride * self.pixel;
        let end = self.tap_start(x, self.x.count - 1) + self.run as isize;
        let low = (end - fresh as isize).clamp(0, self.line as isize) as usize;
        let high = (end + ((n_pixels - 1) * fresh) as isize).clamp(low as isize, self.line as isize) as usize;
        lines.numbers(self.data.wrapping_add(image * self.image + line * self.line + low), high - low);
    }

    /// Copies elements `from .. from + len` of a run that starts at `start` of a line; zero outside of the line.
    #[inline(always)]
    unsafe fn copy_run<S: Simd>(&self, line: *const T, start: isize, from: usize, len: usize, dst: *mut f32) {
        let end = self.line as isize;
        let low = (-start).clamp(from as isize, (from + len) as isize) as usize;
        let high = (end - start).clamp(low as isize, (from + len) as isize) as usize;
        // SAFETY: `low .. high` of the run lies inside the line; `dst` has `len` floats.
        unsafe {
            if low > from {
                zero(dst, low - from);
            }
            S::widen(line.wrapping_offset(start).wrapping_add(low), dst.add(low - from), high - low);
            if high < from + len {
                zero(dst.add(high - from), from + len - high);
            }
        }
    }
}

impl<T: Scalar> Left for Patches<T> {
    const BY_ROW: bool = true;

    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, row: usize, n_rows: usize, k: usize, n_k: usize, dst: *mut f32) {
        let (mut image, mut y, mut x) = self.split(row);
        let run = self.run.max(1);
        let (tap_0, from_0) = (k / run, k % run);
        for i in 0..n_rows {
            let data = self.data.wrapping_add(image * self.image);
            let dst = dst.wrapping_add(i * ROW_STRIDE);
            let (mut done, mut from) = (0, from_0);
            let (mut tap_y, mut tap_x) = (tap_0 / self.x.count.max(1), tap_0 % self.x.count.max(1));
            while done < n_k {
                let len = (run - from).min(n_k - done);
                let dst = dst.wrapping_add(done);
                // SAFETY: the line exists, and the tile has room for `n_k` floats a row.
                unsafe {
                    match self.tap_line(y, tap_y) {
                        Some(line) => {
                            let line = data.wrapping_add(line * self.line);
                            self.copy_run::<S>(line, self.tap_start(x, tap_x), from, len, dst);
                        }
                        None => zero(dst, len),
                    }
                }
                (done, from, tap_x) = (done + len, 0, tap_x + 1);
                if tap_x == self.x.count {
                    (tap_y, tap_x) = (tap_y + 1, 0);
                }
            }
            x += 1;
            if x == self.grid_w {
                (x, y) = (0, y + 1);
                if y == self.grid_h {
                    (y, image) = (0, image + 1);
                }
            }
        }
    }

    #[inline(always)]
    fn lines(&self, row: usize, n_rows: usize, k: usize, n_k: usize, lines: &mut Lines) {
        let filter_line = (self.run * self.x.count).max(1);
        if n_k > 0 {
            for tap_y in k / filter_line..(k + n_k).div_ceil(filter_line) {
                self.fresh_lines(row, n_rows, tap_y, lines);
            }
        }
    }
}

impl<T: Scalar> Channels for Patches<T> {
    fn at_channel(self, channel: usize) -> Patches<T> {
        Patches { data: self.data.wrapping_add(channel), ..self }
    }
}

/// Writes a matrix that is made of patches in another way than by rows.
macro_rules! made_of_patches {
    ($name:ident: $about:literal) => {
        #[doc = $about]
        #[derive(Clone, Copy)]
        pub(crate) struct $name<T>(Patches<T>);

        impl<T: Scalar> Channels for $name<T> {
            fn at_channel(self, channel: usize) -> $name<T> {
                $name(self.0.at_channel(channel))
            }
        }
    };
}
pub(super) use made_of_patches;

made_of_patches!(Across: "Patches as columns: row = element of the patch, k = pixel of the grid.");

impl<T: Scalar> Left for Across<T> {
    const BY_ROW: bool = false;

    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, row: usize, n_rows: usize, k: usize, n_k: usize, dst: *mut f32) {
        let p = &self.0;
        let run = p.run.max(1);
        let start = p.split(k);
        let (mut tap, mut from, mut done) = (row / run, row % run, 0);
        while done < n_rows {
            let len = (run - from).min(n_rows - done);
            let (tap_y, tap_x) = (tap / p.x.count.max(1), tap % p.x.count.max(1));
            let (mut image, mut y, mut x) = start;
            let mut dst = dst.wrapping_add(done);
            let mut left = n_k;
            while left > 0 {
                let pixels = left.min(p.grid_w - x);
                // SAFETY: the line exists, and the tile has room for `n_k` groups.
                unsafe {
                    match p.tap_line(y, tap_y) {
                        Some(line) => {
                            let line = p.data.wrapping_add(image * p.image + line * p.line);
                            across_line::<S, T>(p, line, tap_x, x, pixels, from, len, dst);
                        }
                        None => (0..pixels).for_each(|i| zero(dst.add(i * S::GROUP), len)),
                    }
                }
                dst = dst.wrapping_add(pixels * S::GROUP);
                (left, x, y) = (left - pixels, 0, y + 1);
                if y == p.grid_h {
                    (y, image) = (0, image + 1);
                }
            }
            (done, from, tap) = (done + len, 0, tap + 1);
        }
    }

    #[inline(always)]
    fn lines(&self, _row: usize, _n_rows: usize, k: usize, n_k: usize, lines: &mut Lines) {
        // The filter's last line is the one that reads the image first.
        if n_k > 0 && self.0.y.count > 0 {
            self.0.fresh_lines(k, n_k, self.0.y.count - 1, lines);
        }
    }
}

/// Writes elements `from .. from + len` of one tap for `pixels` grid pixels from `x` on, one group each.
#[inline(always)]
unsafe fn across_line<S: Simd, T: Scalar>(
    p: &Patches<T>,
    line: *const T,
    tap_x: usize,
    x: usize,
    pixels: usize,
    from: usize,
    len: usize,
    dst: *mut f32,
) {
    let advance = p.x.stride * p.pixel;
    let begin = p.tap_start(x, tap_x);
    // Pixels `low .. high` read wholly inside the line; the others are clipped one by one.
    let missing = (-(begin + from as isize)).max(0) as usize;
    let room = p.line as isize - begin - (from + len) as isize;
    let low = missing.div_ceil(advance).min(pixels);
    let high = if room < 0 { low } else { (room as usize / advance + 1).clamp(low, pixels) };
    // SAFETY: `low .. high` lie inside the line by construction; `copy_run` clips the rest; `dst` has a group for
    // every pixel.
    unsafe {
        for i in (0..low).chain(high..pixels) {
            p.copy_run::<S>(line, begin + (i * advance) as isize, from, len, dst.add(i * S::GROUP));
        }
        let mut src = line.wrapping_offset(begin).wrapping_add(low * advance + from);
        for i in low..high {
            S::widen_group(src, dst.add(i * S::GROUP), len);
            src = src.wrapping_add(advance);
        }
    }
}
