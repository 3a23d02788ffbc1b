//! Turns the input and the output's gradient into the filter's gradient: patches across by gradients.
//!
//! The sums run over all pixels of all images and are many times longer than the filter is large, so k is split in
//! parts of fixed length whose sums are added in order.

use super::patches::{Across, Patches};
use super::strip::StripAcross;
use super::{ConvShape, depthwise};
use crate::gemm::{
    Dest, Epilogue, Plain, Plan, RowMap, Scalar, Shared, Transposed, run_products, scratch_bytes, tile_size,
};
use crate::isa::Isa;
use crate::pool::Pool;

/// How the patches reach the micro-kernel.
enum Route<T> {
    /// Plain product of channels and pixels.
    Pointwise(Plan),
    /// Packed tile by tile.
    Packed(Plan, Across<T>),
    /// Read in place from a padded strip.
    InPlace(Plan, StripAcross<T>),
}

impl<T: Scalar> Route<T> {
    /// The route for group 0 of an input.
    fn new(isa: Isa, shape: &ConvShape, input: *const T) -> Route<T> {
        let (rows, panel) = tile_size(isa);
        let (n, k) = (shape.group_out(), shape.out_pixels());
        let plan = |lines, width| Plan::in_lines(lines, width, n, k, shape.groups, rows, panel);
        let packed = plan(1, shape.kernel_h * shape.kernel_w * shape.group_in());
        if shape.is_pointwise() {
            return Route::Pointwise(packed);
        }
        let patches = Patches::of_input(shape, input);
        match patches.strip_columns(plan) {
            Some((plan, strip)) => Route::InPlace(plan, strip),
            None => Route::Packed(packed, patches.across()),
        }
    }

    fn plan(&self) -> &Plan {
        match self {
            Route::Pointwise(plan) | Route::Packed(plan, _) | Route::InPlace(plan, _) => plan,
        }
    }
}

/// Bytes of scratch that [`filter_grad`] needs on a pool of `threads` threads.
pub fn filter_grad_scratch_bytes<O: Scalar>(isa: Isa, shape: &ConvShape, threads: usize) -> usize {
    if shape.is_depthwise() {
        return depthwise::filter_grad_scratch_bytes(shape);
    }
    let route = Route::<f32>::new(isa, shape, std::ptr::null());
    scratch_bytes(route.plan(), shape.groups, tile_size(isa).1, O::KIND, threads)
}

/// The gradient of the filter, added to what `grad_filter` holds where `accumulate` says so.
///
/// # Panics
/// When a slice or the scratch is shorter than the shape says, or the shape makes no sense.
pub fn filter_grad<T: Scalar, O: Scalar>(
    pool: &Pool,
    isa: Isa,
    shape: &ConvShape,
    input: &[T],
    grad_output: &[T],
    grad_filter: &mut [O],
    accumulate: bool,
    scratch: &mut [u8],
) {
    shape.check(input.len(), grad_filter.len(), grad_output.len());
    assert!(isa.is_available(), "this processor does not have {isa}");
    if shape.filter_len() == 0 {
        return;
    }
    if shape.is_depthwise() {
        depthwise::filter_grad(pool, isa, shape, input, grad_output, grad_filter, accumulate, scratch);
        return;
    }
    let (panel, out_c, groups) = (tile_size(isa).1, shape.out_c, shape.groups);
    let route = Route::new(isa, shape, input.as_ptr());
    let epilogue = Epilogue { accumulate, ..Epilogue::NONE };
    let whole =
        Dest::new(grad_filter.as_mut_ptr().cast(), O::KIND, RowMap::Linear { ld: out_c }, out_c, &epilogue);
    let (input, grad) = (Shared(input.as_ptr().cast_mut()), Shared(grad_output.as_ptr().cast_mut()));
    let right = |group: usize| Plain {
        data: grad.get().wrapping_add(group * shape.group_out()).cast_const(),
        ld: out_c,
    };
    let dest = |group: usize| whole.at_column(group * shape.group_out());
    let channels = shape.group_in();
    match route {
        Route::Pointwise(plan) => {
            let left = |group: usize| Transposed {
                data: input.get().wrapping_add(group * channels).cast_const(),
                ld: shape.in_c,
            };
            let parts = |group| (left(group), right(group), dest(group));
            // SAFETY: `check` saw that all slices have the size of the shape.
            unsafe { run_products(pool, isa, &plan, groups, panel, O::KIND, parts, scratch) };
        }
        Route::Packed(plan, patches) => {
            let parts = |group| (patches.at_channel(group * channels), right(group), dest(group));
            // SAFETY: as above.
            unsafe { run_products(pool, isa, &plan, groups, panel, O::KIND, parts, scratch) };
        }
        Route::InPlace(plan, strip) => {
            let parts = |group| (strip.at_channel(group * channels), right(group), dest(group));
            // SAFETY: as above.
            unsafe { run_products(pool, isa, &plan, groups, panel, O::KIND, parts, scratch) };
        }
    }
}
