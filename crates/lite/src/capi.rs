//! The functions of `include/plimsoll_lite.h`: a model and its arena behind plain pointers. Nothing unwinds into C; every failure is a
//! number, and a text that says more.

use alloc::boxed::Box;
use alloc::string::ToString;
use core::ffi::{c_char, c_int};
use core::slice;

use crate::{Error, Model, Options};

/// A loaded model. Its file's bytes are the caller's, who keeps them.
pub struct PlimsollModel(Model<'static>);

/// What a call came to: zero is success.
fn code(error: &Error) -> c_int {
    match error {
        Error::Damaged { .. } | Error::Limit { .. } | Error::Tensor { .. } => 1,
        Error::Refused { .. } | Error::Custom { .. } => 2,
        Error::Arena { .. } => 3,
        Error::Number { .. } | Error::Length { .. } | Error::Type { .. } => 4,
        Error::Value { .. } => 5,
        Error::Bug(_) => 6,
    }
}

/// Writes an error's text, cut to what there is room for, with a zero at its end.
///
/// # Safety
/// `text` is null or points to `room` bytes that may be written.
unsafe fn tell(error: &Error, text: *mut c_char, room: usize) {
    if text.is_null() || room == 0 {
        return;
    }
    let message = error.to_string();
    let count = message.len().min(room - 1);
    // SAFETY: the caller has `room` bytes at `text`, and `count` is less.
    unsafe {
        core::ptr::copy_nonoverlapping(message.as_ptr(), text.cast(), count);
        *text.add(count) = 0;
    }
}

/// Loads a model from a file's bytes, which must stay as they are until it is freed. Null where it is refused; `text` then says why.
///
/// # Safety
/// `file` points to `bytes` bytes; `text` is null or points to `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_lite_load(
    file: *const u8,
    bytes: usize,
    pack_weights: c_int,
    text: *mut c_char,
    room: usize,
) -> *mut PlimsollModel {
    let loaded = if file.is_null() {
        Err(Error::Damaged { what: "a file without bytes", at: 0 })
    } else {
        // SAFETY: the caller promises these bytes for as long as the model lives.
        let file: &'static [u8] = unsafe { slice::from_raw_parts(file, bytes) };
        Model::load_with(file, Options { pack_weights: pack_weights != 0 })
    };
    match loaded {
        Ok(model) => Box::into_raw(Box::new(PlimsollModel(model))),
        Err(error) => {
            // SAFETY: as the caller promises.
            unsafe { tell(&error, text, room) };
            core::ptr::null_mut()
        }
    }
}

/// Frees a model.
///
/// # Safety
/// `model` is null or from `plimsoll_lite_load`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_lite_free(model: *mut PlimsollModel) {
    if !model.is_null() {
        // SAFETY: it was made by `Box::into_raw` and the caller gives it back.
        drop(unsafe { Box::from_raw(model) });
    }
}

/// How many bytes an arena must have; zero for no model.
///
/// # Safety
/// `model` is null or from `plimsoll_lite_load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_lite_arena_bytes(model: *const PlimsollModel) -> usize {
    // SAFETY: as the caller promises.
    unsafe { model.as_ref() }.map_or(0, |model| model.0.arena_bytes())
}

/// How many inputs (`output` zero) or outputs there are.
///
/// # Safety
/// `model` is null or from `plimsoll_lite_load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_lite_count(model: *const PlimsollModel, output: c_int) -> usize {
    // SAFETY: as the caller promises.
    let model = unsafe { model.as_ref() };
    model.map_or(0, |model| if output == 0 { model.0.inputs() } else { model.0.outputs() })
}

/// How many values an input (`output` zero) or output has; zero where there is none.
///
/// # Safety
/// `model` is null or from `plimsoll_lite_load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_lite_values(
    model: *const PlimsollModel,
    output: c_int,
    index: usize,
) -> usize {
    // SAFETY: as the caller promises.
    let Some(model) = (unsafe { model.as_ref() }) else { return 0 };
    let info = if output == 0 { model.0.input_info(index) } else { model.0.output_info(index) };
    info.map_or(0, |info| info.shape.iter().product())
}

/// Writes an input from floats, quantized if the model asks for it.
///
/// # Safety
/// `model` is null or from `plimsoll_lite_load`; `values` points to `count` floats, `arena` to `arena_bytes` bytes that nobody else uses
/// meanwhile; `text` is null or points to `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_lite_set_input(
    model: *const PlimsollModel,
    index: usize,
    values: *const f32,
    count: usize,
    arena: *mut u8,
    arena_bytes: usize,
    text: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: as the caller promises, for all pointers that are not null.
    unsafe {
        answer(model, arena, arena_bytes, values.is_null(), text, room, |model, arena| {
            model.set_input(index, slice::from_raw_parts(values, count), arena)
        })
    }
}

/// Runs the model.
///
/// # Safety
/// As for `plimsoll_lite_set_input`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_lite_run(
    model: *const PlimsollModel,
    arena: *mut u8,
    arena_bytes: usize,
    text: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { answer(model, arena, arena_bytes, false, text, room, |model, arena| model.run(arena)) }
}

/// Reads an output as floats.
///
/// # Safety
/// As for `plimsoll_lite_set_input`, with `values` to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_lite_get_output(
    model: *const PlimsollModel,
    index: usize,
    values: *mut f32,
    count: usize,
    arena: *mut u8,
    arena_bytes: usize,
    text: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: as the caller promises, for all pointers that are not null.
    unsafe {
        answer(model, arena, arena_bytes, values.is_null(), text, room, |model, arena| {
            model.get_output(index, arena, slice::from_raw_parts_mut(values, count))
        })
    }
}

/// Calls with model and arena, and turns the result into a number and a text.
///
/// # Safety
/// As for `plimsoll_lite_set_input`.
unsafe fn answer(
    model: *const PlimsollModel,
    arena: *mut u8,
    arena_bytes: usize,
    missing: bool,
    text: *mut c_char,
    room: usize,
    call: impl FnOnce(&Model<'static>, &mut [u8]) -> crate::Result<()>,
) -> c_int {
    // SAFETY: as the caller promises.
    let model = unsafe { model.as_ref() };
    let result = match model {
        Some(model) if !arena.is_null() && !missing => {
            // SAFETY: the caller has that many bytes there, and nobody else uses them.
            call(&model.0, unsafe { slice::from_raw_parts_mut(arena, arena_bytes) })
        }
        _ => {
            Err(Error::Length { what: "a model, an arena or values behind a null pointer", need: 1, have: 0 })
        }
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: as the caller promises.
            unsafe { tell(&error, text, room) };
            code(&error)
        }
    }
}
