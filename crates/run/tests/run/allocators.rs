//! Every allocator by name, on every device that this machine has: what all of them promise, and the same bits whichever it is.

use plimsoll_device::{Allocator, AllocatorKind, Bytes, NoAllocator, Owner, Pages, process};
use plimsoll_graph::{DType, Type};
use plimsoll_run::{
    CudaOptions, Device, Error, Kind, Result, StateTensor, Step, StepOptions, StepResult, Tape, Tensor,
    TensorOps,
};
use plimsoll_testing::allocators::{OnHost, conforms};
use plimsoll_testing::{alone, child, group};

#[test]
fn every_allocator_of_the_host_keeps_what_all_of_them_promise() {
    for kind in AllocatorKind::ALL {
        let memory = match kind.on_host(Some(Bytes::mib(16))) {
            Ok(memory) => memory,
            // Elsewhere than on Linux pages cannot be moved, and that is said.
            Err(why @ NoAllocator::Pages(_)) if !cfg!(target_os = "linux") => {
                assert!(why.to_string().contains("use best-fit, system or pool"), "{why}");
                continue;
            }
            Err(why) => panic!("{kind}: {why}"),
        };
        assert_eq!(memory.name(), kind.name());
        conforms(&*memory, &OnHost, kind != AllocatorKind::BestFit);
    }
}

/// Every other of many blocks is released, again and again with other sizes: what best fit calls fragmentation.
fn fragment(memory: &Pages, limit: Bytes) -> u64 {
    let page = memory.page().get();
    let ask = |bytes: u64| memory.allocate(Bytes(bytes), 64, Owner::here("fragment"));
    let mut most = 0;
    let mut seen = || {
        most = most.max(process::resident().map_or(0, Bytes::get));
    };
    let mut kept = Vec::new();
    for round in 1..=6u64 {
        let size = page * round;
        let mut blocks = Vec::new();
        while let Ok(block) = ask(size) {
            // SAFETY: the block has as many bytes, which only this test holds.
            unsafe { block.as_ptr().write_bytes(round as u8, size as usize) };
            blocks.push(block);
        }
        seen();
        for (i, block) in blocks.into_iter().enumerate() {
            if i % 2 == 0 { memory.release(block).unwrap() } else { kept.push((block, round as u8)) }
        }
        // All that is free comes in one piece, however it lies.
        let free = memory.stats().free();
        let whole = ask(free.get()).unwrap_or_else(|why| panic!("round {round}: {why}"));
        // SAFETY: as above.
        unsafe { whole.as_ptr().write_bytes(0xee, free.get() as usize) };
        seen();
        memory.release(whole).unwrap();
        while kept.len() > 8 {
            let (block, byte) = kept.swap_remove(kept.len() / 2);
            // SAFETY: as above, and the bytes were written.
            let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr().as_ptr(), block.len()) };
            assert!(bytes.iter().all(|found| *found == byte), "a block was changed");
            memory.release(block).unwrap();
        }
        assert!(memory.stats().reserved <= limit, "{}", memory.stats());
    }
    for (block, _) in kept {
        memory.release(block).unwrap();
    }
    most
}

#[cfg(target_os = "linux")]
#[test]
fn pages_never_want_for_contiguity_and_what_is_resident_stays_within_the_limit() {
    let limit = Bytes::mib(64);
    if child::question().is_some() {
        let memory = Pages::new(limit).unwrap();
        let before = process::resident().unwrap().get();
        let most = fragment(&memory, limit);
        memory.release_unused();
        let after = process::resident().unwrap().get();
        return child::answer(&[before, most, after]);
    }
    let [before, most, after] = child::ask(
        "allocators::pages_never_want_for_contiguity_and_what_is_resident_stays_within_the_limit",
        &["cpu"],
    );
    // The books of the allocator and the stack are a few hundred KiB.
    assert!(most > before + (48 << 20), "{before} {most}: the blocks were written");
    assert!(most <= before + limit.get() + (2 << 20), "{before} {most}");
    assert!(after <= before + (2 << 20), "{before} {after}: all of it went back");
}

/// A few steps down a slope, and eager ops beside them: bytes of the weights, and of the eager result.
fn train(device: &Device) -> Result<(Vec<u8>, Vec<u8>)> {
    device.scope(|| {
        let w = Tensor::from_f64(&vec![0.01; 128 * 128], Type::new(DType::F32, [128, 128]))?;
        let state = vec![StateTensor { name: "w".into(), kind: Kind::Parameter, tensor: w }];
        let ty = Type::new(DType::F32, [64, 128]);
        let mut step =
            Step::compile_with(StepOptions::default(), state, std::slice::from_ref(&ty), |pass| {
                let tape = Tape::new();
                tape.watch(&pass.state[0])?;
                let y = pass.inputs[0].matmul(&pass.state[0])?.tanh()?;
                let loss = y.square()?.mean(&[], false)?;
                let slope = tape.gradient(&loss, &[&pass.state[0]])?.remove(0);
                Ok(StepResult {
                    state: vec![pass.state[0].sub(&slope)?],
                    outputs: vec![loss],
                    totals: vec![],
                })
            })?;
        let x = Tensor::from_f64(&vec![0.5; 64 * 128], ty)?;
        let mut eager = x.clone();
        for _ in 0..4 {
            step.run(&[&x])?;
            eager = eager.matmul(&step.state()[0])?.tanh()?;
        }
        Ok((step.state()[0].to_bytes()?, eager.to_bytes()?))
    })
}

#[test]
fn a_step_and_eager_ops_give_the_same_bits_under_every_allocator_of_the_cpu() {
    let usual = train(&Device::cpu_with(1, Bytes::mib(64)).unwrap()).unwrap();
    for kind in AllocatorKind::ALL {
        if kind == AllocatorKind::Pages && !cfg!(target_os = "linux") {
            continue;
        }
        let device = Device::cpu_allocating(1, Some(Bytes::mib(64)), kind).unwrap();
        assert_eq!(device.allocator(), kind.name());
        assert!(train(&device).unwrap() == usual, "{kind} gives other bits");
        assert_eq!(device.memory_info().current, Bytes::ZERO, "{kind}");
        let refused = device.scope(|| Tensor::zeros(Type::new(DType::U8, [(64 << 20) + 1])));
        assert!(matches!(refused.map(drop), Err(Error::OutOfMemory(_))), "{kind} keeps its limit");
    }
}

#[test]
fn a_card_has_every_allocator_but_best_fit_which_is_refused_by_name() {
    let ask = |kind| Device::cuda_allocating(0, CudaOptions::default(), kind);
    let why = ask(AllocatorKind::BestFit).map(drop).unwrap_err().to_string();
    assert_eq!(why, "cuda:0 has no allocator 'best-fit'; use pages, pool or system");
    let Some(usual) = group("card", ask(AllocatorKind::Pages)) else { return };
    let _alone = alone();
    let bits = train(&usual).unwrap();
    drop(usual);
    for kind in [AllocatorKind::System, AllocatorKind::Pool] {
        let device = ask(kind).unwrap();
        assert_eq!(device.allocator(), kind.name());
        assert!(train(&device).unwrap() == bits, "{kind} gives other bits");
        let limit = device.memory_info().limit;
        let refused = device.scope(|| Tensor::zeros(Type::new(DType::U8, [limit.get() as usize + 1])));
        assert!(matches!(refused.map(drop), Err(Error::OutOfMemory(_))), "{kind} keeps its limit");
    }
}
