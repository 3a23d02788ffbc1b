//! Turns images and a filter into convolved images: pixels of the output by patches of the input.

use super::patches::Patches;
use super::route::{On, Route, check_bias};
use super::strip::Strip;
use super::{ConvShape, depthwise};
use crate::gemm::{Dest, Epilogue, Plain, Plan, RowMap, Scalar, Shared, tile_size};
use crate::isa::Isa;
use crate::pool::Pool;

/// The route for group 0 of an input.
fn route<T: Scalar>(isa: Isa, shape: &ConvShape, input: *const T) -> Route<Patches<T>, Strip<T>> {
    let (rows, panel) = tile_size(isa);
    let (n, k) = (shape.group_out(), shape.kernel_h * shape.kernel_w * shape.group_in());
    let plan = |lines, width| Plan::in_lines(lines, width, n, k, shape.groups, rows, panel);
    let packed = plan(1, shape.out_pixels());
    if shape.is_pointwise() {
        return Route::Pointwise(packed);
    }
    let patches = Patches::of_input(shape, input);
    match patches.strip_rows(plan, shape.batch * shape.out_h()) {
        Some((plan, strip)) => Route::InPlace(plan, strip),
        None => Route::Packed(packed, patches),
    }
}

/// Bytes of scratch that [`forward`] needs on a pool of `threads` threads.
pub fn forward_scratch_bytes<O: Scalar>(isa: Isa, shape: &ConvShape, threads: usize) -> usize {
    if shape.is_depthwise() {
        return 0;
    }
    route::<f32>(isa, shape, std::ptr::null()).scratch_bytes(isa, shape, O::KIND, threads)
}

/// `output = conv(input, filter)` with the epilogue; the hook sees row = output pixel, column = channel.
///
/// # Panics
/// When a slice or the scratch is shorter than the shape says, or the shape makes no sense.
pub fn forward<T: Scalar, O: Scalar>(
    pool: &Pool,
    isa: Isa,
    shape: &ConvShape,
    input: &[T],
    filter: &[T],
    output: &mut [O],
    epilogue: &Epilogue<'_>,
    scratch: &mut [u8],
) {
    let on = On::checked(pool, isa, shape, [input.len(), filter.len(), output.len()]);
    check_bias(epilogue.bias, shape.out_c);
    if shape.output_len() == 0 {
        return;
    }
    if shape.is_depthwise() {
        depthwise::forward(&on, (input, filter, output), epilogue);
        return;
    }
    let out_c = shape.out_c;
    let route = route(isa, shape, input.as_ptr());
    let whole = Dest::new(output.as_mut_ptr().cast(), O::KIND, RowMap::Linear { ld: out_c }, out_c, epilogue);
    let (input, filter) = (Shared(input.as_ptr().cast_mut()), Shared(filter.as_ptr().cast_mut()));
    let right = |group: usize| Plain {
        data: filter.get().wrapping_add(group * shape.group_out()).cast_const(),
        ld: out_c,
    };
    let dest = |group: usize| whole.at_column(group * shape.group_out());
    let channels = shape.group_in();
    let left = |group: usize| Plain {
        data: input.get().wrapping_add(group * channels).cast_const(),
        ld: shape.in_c,
    };
    let pointwise = |group| (left(group), right(group));
    // SAFETY: `check` saw that all slices have the size of the shape.
    unsafe { route.run((&on, O::KIND, channels), pointwise, right, dest, scratch) };
}
