//! Turns an output's gradient and the filter into the input's gradient. The same thing forward is the transposed
//! convolution, so it takes an epilogue with bias and activation as well.
//!
//! A strided convolution is undone phase by phase: the inputs `phase, phase + stride, …` all read the same few
//! filter taps, so that each phase is a convolution with stride 1 and no product with a zero is formed.

use super::patches::Patches;
use super::route::{On, Route, check_bias};
use super::shape::Taps;
use super::strip::Strip;
use super::{ConvShape, depthwise};
use crate::gemm::{
    Dest, Epilogue, Lines, Plain, Plan, Right, RowMap, Scalar, Shared, Simd, Transposed, tile_size,
    transpose_panels,
};
use crate::isa::Isa;
use crate::pool::Pool;

/// One phase: its first input line and pixel, its grid, and its taps.
struct Phase {
    first: [usize; 2],
    grid: [usize; 2],
    y: Taps,
    x: Taps,
}

/// The phases that hold any input.
fn phases(shape: &ConvShape) -> impl Iterator<Item = Phase> + use<> {
    let (h, w) = (shape.axis_h(), shape.axis_w());
    (0..h.stride.min(h.len)).flat_map(move |fy| {
        (0..w.stride.min(w.len)).map(move |fx| Phase {
            first: [fy, fx],
            grid: [h.phase_len(fy), w.phase_len(fx)],
            y: h.backward(fy),
            x: w.backward(fx),
        })
    })
}

/// The route of one phase for group 0 of an output's gradient.
fn route<T: Scalar>(
    isa: Isa,
    shape: &ConvShape,
    phase: &Phase,
    grad_output: *const T,
) -> Route<Patches<T>, Strip<T>> {
    let (rows, panel) = tile_size(isa);
    let (n, k) = (shape.group_in(), phase.y.count * phase.x.count * shape.group_out());
    let plan = |lines, width| Plan::in_lines(lines, width, n, k, shape.groups, rows, panel);
    let packed = plan(1, shape.batch * phase.grid[0] * phase.grid[1]);
    if shape.is_pointwise() {
        return Route::Pointwise(packed);
    }
    let patches = Patches::of_output(shape, grad_output, phase.grid, phase.y, phase.x);
    match patches.strip_rows(plan, shape.batch * phase.grid[0]) {
        Some((plan, strip)) => Route::InPlace(plan, strip),
        None => Route::Packed(packed, patches),
    }
}

/// Bytes of scratch that [`data_grad`] needs on a pool of `threads` threads.
pub fn data_grad_scratch_bytes<O: Scalar>(isa: Isa, shape: &ConvShape, threads: usize) -> usize {
    if shape.is_depthwise() {
        return 0;
    }
    let bytes = |phase| {
        route::<f32>(isa, shape, &phase, std::ptr::null()).scratch_bytes(isa, shape, O::KIND, threads)
    };
    phases(shape).map(bytes).max().unwrap_or(0)
}

/// The gradient of the input, or the transposed convolution of `grad_output`; the hook sees row = input pixel,
/// column = input channel, and the bias has `in_c` values.
///
/// # Panics
/// When a slice or the scratch is shorter than the shape says, or the shape makes no sense.
pub fn data_grad<T: Scalar, O: Scalar>(
    pool: &Pool,
    isa: Isa,
    shape: &ConvShape,
    grad_output: &[T],
    filter: &[T],
    grad_input: &mut [O],
    epilogue: &Epilogue<'_>,
    scratch: &mut [u8],
) {
    let on = On::checked(pool, isa, shape, [grad_input.len(), filter.len(), grad_output.len()]);
    check_bias(epilogue.bias, shape.in_c);
    if shape.input_len() == 0 {
        return;
    }
    if shape.is_depthwise() {
        depthwise::data_grad(&on, (grad_output, filter, grad_input), epilogue);
        return;
    }
    let (in_c, in_w, channels) = (shape.in_c, shape.in_w, shape.group_out());
    let out = grad_input.as_mut_ptr().cast::<u8>();
    let (grad, filter) = (Shared(grad_output.as_ptr().cast_mut()), Shared(filter.as_ptr().cast_mut()));
    let of_group = |group: usize| filter.get().wrapping_add(group * shape.group_out()).cast_const();
    for phase in phases(shape) {
        let route = route(isa, shape, &phase, grad_output.as_ptr());
        let map = if shape.stride_h == 1 && shape.stride_w == 1 {
            RowMap::Linear { ld: in_c }
        } else {
            RowMap::Grid {
                height: phase.grid[0],
                width: phase.grid[1],
                image: shape.in_h * in_w * in_c,
                line: shape.stride_h * in_w * in_c,
                pixel: shape.stride_w * in_c,
            }
        };
        let whole = Dest::new(out, O::KIND, map, in_c, epilogue);
        let first = (phase.first[0] * in_w + phase.first[1]) * in_c;
        let dest = |group: usize| Dest {
            base: first + group * shape.group_in(),
            ..whole.at_column(group * shape.group_in())
        };
        let right = |group: usize| FilterBack {
            data: of_group(group),
            y: phase.y,
            x: phase.x,
            kernel_w: shape.kernel_w,
            in_c: shape.group_in(),
            out_c: shape.out_c,
            run: shape.group_out(),
        };
        let grad_at = |group: usize| grad.get().wrapping_add(group * channels).cast_const();
        let pointwise = |group| {
            let ld = shape.out_c;
            (Plain { data: grad_at(group), ld }, Transposed { data: of_group(group), ld })
        };
        // SAFETY: `check` saw that all slices have the size of the shape; the phases' grids lie inside the input.
        unsafe { route.run((&on, O::KIND, channels), pointwise, right, dest, scratch) };
    }
}

/// The filter as the gradient sees it: k = (tap line, tap pixel, output channel), column = input channel.
#[derive(Clone, Copy)]
struct FilterBack<T> {
    data: *const T,
    y: Taps,
    x: Taps,
    kernel_w: usize,
    in_c: usize,
    out_c: usize,
    run: usize,
}

// SAFETY: the pointer is only read, inside calls that borrow the memory.
unsafe impl<T: Sync> Send for FilterBack<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for FilterBack<T> {}

impl<T: Scalar> Right for FilterBack<T> {
    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, k: usize, n_k: usize, col: usize, n_cols: usize, dst: *mut f32) {
        let (mut done, mut tap, mut from) = (0, k / self.run, k % self.run);
        while done < n_k {
            let len = (self.run - from).min(n_k - done);
            let (ky, kx) = (self.y.kernel(tap / self.x.count), self.x.kernel(tap % self.x.count));
            let place = ((ky * self.kernel_w + kx) * self.in_c + col) * self.out_c + from;
            // SAFETY: the tap lies inside the filter, and `dst` has room for the panels.
            unsafe {
                transpose_panels::<S, T>(self.data.add(place), self.out_c, done, len, n_k, n_cols, dst);
            }
            (done, tap, from) = (done + len, tap + 1, 0);
        }
    }
    /// The filter is small next to the images and stays in the caches.
    #[inline(always)]
    fn lines(&self, _k: usize, _n_k: usize, _col: usize, _n_cols: usize, _lines: &mut Lines) {}
}
