//! What is promised: an arena of exactly the bytes that are named, no allocation while running, refusals by name.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::fixtures;
use plimsoll_lite::{Error, Model, Options};

/// The system's allocator, which counts what this thread takes.
struct Counting;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn running_takes_no_memory_but_the_arena() {
    for fixture in fixtures() {
        for pack_weights in [false, true] {
            let model = Model::load_with(&fixture.model, Options { pack_weights }).unwrap();
            let mut arena = vec![0; model.arena_bytes()];
            let before = TAKEN.get();
            for (index, input) in fixture.inputs.iter().enumerate() {
                model.input(index, &mut arena).unwrap().copy_from_slice(input);
            }
            model.run(&mut arena).unwrap();
            let first = model.output(0, &arena).unwrap()[0];
            assert_eq!(TAKEN.get(), before, "{} ({first})", fixture.name);
        }
    }
}

#[test]
fn an_arena_one_byte_too_small_is_refused() {
    for fixture in fixtures() {
        let model = Model::load(&fixture.model).unwrap();
        let need = model.arena_bytes();
        assert!(need >= model.live_bytes(), "{}", fixture.name);
        let mut arena = vec![0; need - 1];
        assert_eq!(model.run(&mut arena), Err(Error::Arena { need, have: need - 1 }), "{}", fixture.name);
    }
}

#[test]
fn a_run_twice_gives_the_same() {
    for fixture in fixtures() {
        let model = Model::load(&fixture.model).unwrap();
        let mut results = Vec::new();
        let mut arena = vec![0xff; model.arena_bytes() + 7];
        for _ in 0..2 {
            for (index, input) in fixture.inputs.iter().enumerate() {
                model.input(index, &mut arena).unwrap().copy_from_slice(input);
            }
            model.run(&mut arena).unwrap();
            results.push(model.output(0, &arena).unwrap().to_vec());
        }
        assert_eq!(results[0], results[1], "{}", fixture.name);
    }
}

#[test]
fn what_is_asked_wrongly_is_said() {
    let all = fixtures();
    let net = all.iter().find(|fixture| fixture.name == "net.f32").unwrap();
    let model = Model::load(&net.model).unwrap();
    let mut arena = vec![0; model.arena_bytes()];
    assert_eq!(
        model.set_input(1, &[], &mut arena).unwrap_err().to_string(),
        "there is no input 1; the model has 1, counted from 0"
    );
    assert_eq!(
        model.set_input(0, &[0.0], &mut arena).unwrap_err().to_string(),
        "the values of an input must be 768 and are 1"
    );
    assert_eq!(
        Model::load(&net.model[..100]).unwrap_err().to_string().split(':').next(),
        Some("not a whole .tflite file")
    );
}

#[test]
fn a_plan_file_runs_as_its_model_and_offsets_are_not_believed() {
    for fixture in fixtures() {
        let planned = plimsoll_lite::plan_file(&fixture.model).unwrap();
        let run = |file: &[u8]| {
            let model = Model::load(file).unwrap();
            let mut arena = vec![0; model.arena_bytes()];
            for (index, input) in fixture.inputs.iter().enumerate() {
                model.input(index, &mut arena).unwrap().copy_from_slice(input);
            }
            model.run(&mut arena).unwrap();
            (model.arena_bytes(), model.output(0, &arena).unwrap().to_vec())
        };
        assert_eq!(run(&planned), run(&fixture.model), "{}", fixture.name);
        assert_eq!(plimsoll_lite::plan_file(&planned).unwrap(), planned, "{}", fixture.name);
        // Everything at one place: what is read lies where the result does.
        let slots = u32::from_le_bytes(planned[16..20].try_into().unwrap()) as usize;
        let mut together = planned.clone();
        together[24..24 + 8 * slots].fill(0);
        assert!(slots < 2 || Model::load(&together).is_err() || together == planned, "{}", fixture.name);
        let mut beyond = planned.clone();
        beyond[24..32].copy_from_slice(&(1u64 << 40).to_le_bytes());
        assert!(Model::load(&beyond).is_err(), "{}", fixture.name);
        let mut odd = planned.clone();
        odd[24] ^= 1;
        assert!(Model::load(&odd).is_err(), "{}", fixture.name);
        for cut in [4, 23, 24, 24 + 8 * slots - 1] {
            assert!(Model::load(&planned[..cut]).is_err(), "{} cut at {cut}", fixture.name);
        }
    }
}

#[test]
fn a_border_of_zeros_is_not_written_except_where_an_older_plan_has_room_for_it() {
    let all = fixtures();
    for name in ["conv_padded.f32", "conv_padded.int8"] {
        let fixture = all.iter().find(|fixture| fixture.name == name).unwrap();
        let pads = |model: &Model<'_>| model.operator_infos().filter(|info| info.name == "PAD").count();
        let run = |model: &Model<'_>| {
            let mut arena = vec![0xa5; model.arena_bytes()];
            model.input(0, &mut arena).unwrap().copy_from_slice(&fixture.inputs[0]);
            model.run(&mut arena).unwrap();
            model.output(0, &arena).unwrap().to_vec()
        };
        let model = Model::load(&fixture.model).unwrap();
        assert_eq!(pads(&model), 0, "{name}");
        // A plan of the first version, every tensor at a place of its own: only as many as there were then are taken.
        let room = 1u64 << 20;
        let plans = (1..20u64).map(|slots| {
            let mut plan = b"PLIM".to_vec();
            plan.extend(1u32.to_le_bytes());
            plan.extend((slots * room).to_le_bytes());
            plan.extend(slots.to_le_bytes());
            (0..slots).for_each(|slot| plan.extend((slot * room).to_le_bytes()));
            plan.extend(&fixture.model);
            plan
        });
        let mut loaded = 0;
        for plan in plans {
            let Ok(model) = Model::load(&plan) else { continue };
            assert!(pads(&model) > 0, "{name}");
            loaded += 1;
            assert_eq!(run(&model), run(&Model::load(&fixture.model).unwrap()), "{name}");
        }
        assert_eq!(loaded, 1, "{name}");
    }
}

#[test]
fn a_border_of_another_number_is_written() {
    let all = fixtures();
    let fixture = all.iter().find(|fixture| fixture.name == "conv_padded_value.f32").unwrap();
    let model = Model::load(&fixture.model).unwrap();
    assert!(model.operator_infos().any(|info| info.name == "PADV2"));
}
