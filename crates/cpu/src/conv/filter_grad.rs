//! Turns the input and the output's gradient into the filter's gradient: patches across by gradients.
//!
//! The sums run over all pixels of all images and are many times longer than the filter is large, so k is split in
//! parts of fixed length whose sums are added in order.

use super::patches::{Across, Patches};
use super::route::{On, Route};
use super::strip::StripAcross;
use super::{ConvShape, depthwise};
use crate::gemm::{Dest, Epilogue, Plain, Plan, RowMap, Scalar, Shared, Transposed, tile_size};
use crate::isa::Isa;
use crate::pool::Pool;

/// The route for group 0 of an input.
fn route<T: Scalar>(isa: Isa, shape: &ConvShape, input: *const T) -> Route<Across<T>, StripAcross<T>> {
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

/// Bytes of scratch that [`filter_grad`] needs on a pool of `threads` threads.
pub fn filter_grad_scratch_bytes<O: Scalar>(isa: Isa, shape: &ConvShape, threads: usize) -> usize {
    if shape.is_depthwise() {
        return depthwise::filter_grad_scratch_bytes(shape);
    }
    route::<f32>(isa, shape, std::ptr::null()).scratch_bytes(isa, shape, O::KIND, threads)
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
    let on = On::checked(pool, isa, shape, [input.len(), grad_filter.len(), grad_output.len()]);
    if shape.filter_len() == 0 {
        return;
    }
    if shape.is_depthwise() {
        depthwise::filter_grad(&on, (input, grad_output, grad_filter), accumulate, scratch);
        return;
    }
    let out_c = shape.out_c;
    let route = route(isa, shape, input.as_ptr());
    let epilogue = Epilogue { accumulate, ..Epilogue::NONE };
    let whole =
        Dest::new(grad_filter.as_mut_ptr().cast(), O::KIND, RowMap::Linear { ld: out_c }, out_c, &epilogue);
    let (input, grad) = (Shared(input.as_ptr().cast_mut()), Shared(grad_output.as_ptr().cast_mut()));
    let channels = shape.group_in();
    // Every sum over pixels goes to the columns of its group.
    let grad_at = |group: usize| grad.get().wrapping_add(group * shape.group_out()).cast_const();
    let input_at = |group: usize| input.get().wrapping_add(group * channels).cast_const();
    let right = |group: usize| Plain { data: grad_at(group), ld: out_c };
    let pointwise = |group| (Transposed { data: input_at(group), ld: shape.in_c }, right(group));
    let dest = |group: usize| whole.at_column(group * shape.group_out());
    // SAFETY: `check` saw that all slices have the size of the shape.
    unsafe { route.run((&on, O::KIND, channels), pointwise, right, dest, scratch) };
}
