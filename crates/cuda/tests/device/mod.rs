//! What a card gives beside kernels: memory that is mapped where it is needed, refusals that are seen, graphs, the link.

use crate::common::{card, emulator, memory};
use plimsoll_cuda::{Arena, CardPages, Cuda, DriverMemory, Error};
use plimsoll_device::backend::{Backend, Call, Operand};
use plimsoll_device::{Allocator, Block, Bytes, LibraryBytes, Owner, Verdict};
use plimsoll_graph::ops::{Gather, Unary};
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, Op, Scalar, Type};
use plimsoll_testing::allocators::{Reach, conforms};
use plimsoll_testing::reference::{Memory, read};

const MIB: usize = 1 << 20;

#[test]
fn a_machine_without_a_card_says_so_in_one_sentence() {
    if let Err(why) = Cuda::new(0) {
        let text = why.to_string();
        assert!(text.starts_with("no CUDA device") && !text.contains('\n'), "{text}");
    }
    if let Some(cuda) = card() {
        assert!(matches!(Cuda::new(4096), Err(Error::NoSuchDevice { ordinal: 4096, .. })), "{cuda:?}");
    }
}

/// Reads an index that is out of range, and then one that is not.
fn refuses_an_index(cuda: &Cuda) {
    let (x, index) = (Type::new(DType::F32, [4, 3]), Type::new(DType::I64, [2]));
    let y = Type::new(DType::F32, [2, 3]);
    let (mx, mi, my) = (memory(cuda, 48), memory(cuda, 16), memory(cuda, 24));
    mx.write(&x, &Array::new([4, 3], (0..12).map(f64::from).collect()));
    let op = Op::from(Gather { axis: 0 });
    let go = |indices: [f64; 2]| {
        mi.write(&index, &Array::new([2], indices.to_vec()));
        let (inputs, outputs) = (
            [Operand { ty: &x, ptr: mx.ptr() }, Operand { ty: &index, ptr: mi.ptr() }],
            [Operand { ty: &y, ptr: my.ptr() }],
        );
        let call = Call { op: &op, inputs: &inputs, outputs: &outputs, scratch: my.ptr(), scratch_bytes: 0 };
        // SAFETY: all memory is live and of the sizes of its types.
        unsafe { cuda.run(&call) }.expect("a launch");
        cuda.synchronize()
    };
    let text = go([1.0, 7.0]).expect_err("7 is out of range").to_string();
    assert!(
        text.contains("gather") && text.contains("index 7 at place 1") && text.contains("0..4"),
        "{text}"
    );
    go([1.0, 3.0]).expect("the refusal was told once");
    assert_eq!(read(&my.bytes(), &y), [3.0, 4.0, 5.0, 9.0, 10.0, 11.0]);
}

#[test]
fn an_index_out_of_range_is_seen_when_the_stream_is_waited_for() {
    [emulator(), card()].iter().flatten().for_each(refuses_an_index);
}

#[test]
fn an_arena_keeps_its_address_and_content_while_its_size_follows_the_plan() {
    let Some(cuda) = card() else { return };
    let mut arena = Arena::new(&cuda, 256 * MIB).expect("addresses");
    let at = arena.at();
    assert_eq!(arena.mapped(), 0);
    arena.resize(100 * MIB).expect("memory");
    assert_eq!(arena.mapped(), 100 * MIB);
    let pattern: Vec<u8> = (0..10 * MIB).map(|i| (i % 251) as u8).collect();
    // SAFETY: the first 10 MiB stay mapped.
    unsafe { cuda.upload(at, &pattern) }.expect("a copy");
    // What this process holds; where NVML cannot tell, what everybody does.
    let held = || {
        let in_use = || cuda.memory().map(|(free, total)| (total - free) as u64).expect("figures");
        cuda.footprint().process.unwrap_or_else(in_use) as usize
    };
    let before = held();
    arena.resize(10 * MIB).expect("less");
    assert_eq!((arena.mapped(), arena.at()), (10 * MIB, at));
    let after = held();
    assert!(after + 80 * MIB <= before, "{before} {after}");
    arena.resize(200 * MIB).expect("more");
    let mut back = vec![0; pattern.len()];
    // SAFETY: as above.
    unsafe { cuda.download(at, &mut back) }.expect("a copy");
    assert!(back == pattern);
    assert!(arena.resize(257 * MIB).is_err());
    assert_eq!(arena.mapped(), 200 * MIB);
}

#[test]
fn no_request_that_fits_the_free_bytes_fails_for_want_of_a_hole() {
    let Some(cuda) = card() else { return };
    let pool = CardPages::pool(&cuda, Bytes::mib(64)).expect("a pool");
    let owner = Owner::here("test");
    // Every second of sixteen blocks of 4 MiB goes: what is free lies in eight holes.
    let mut blocks: Vec<_> =
        (0..16).map(|_| Some(pool.allocate(Bytes::mib(4), 64, owner).expect("it fits"))).collect();
    for block in blocks.iter_mut().step_by(2) {
        pool.release(block.take().expect("live")).expect("ours");
    }
    assert_eq!(pool.stats().free(), Bytes::mib(32));
    assert_eq!(pool.stats().largest_free, Bytes::mib(32));
    let whole = pool.allocate(Bytes::mib(32), 64, owner).expect("all that is free, in one piece");
    let pattern: Vec<u8> = (0..32 * MIB).map(|i| (i % 253) as u8).collect();
    let mut back = vec![0; pattern.len()];
    // SAFETY: the block has as many bytes.
    unsafe {
        cuda.upload(whole.as_ptr().as_ptr(), &pattern).expect("a copy");
        cuda.download(whole.as_ptr().as_ptr(), &mut back).expect("a copy");
    }
    assert!(back == pattern);
    let refused = pool.allocate(Bytes(1), 64, owner).expect_err("it is full");
    assert_eq!(refused.verdict, Verdict::Capacity);
    pool.release(whole).expect("ours");
    let small: Vec<_> = (0..100).map(|_| pool.allocate(Bytes(1000), 64, owner).expect("it fits")).collect();
    assert_eq!(pool.stats().in_use, Bytes::mib(32 + 2));
    let mut places: Vec<usize> = small.iter().map(|b| b.as_ptr().as_ptr() as usize).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|w| w[1] - w[0] >= 1000));
    small.into_iter().for_each(|b| pool.release(b).expect("ours"));
    blocks.into_iter().flatten().for_each(|b| pool.release(b).expect("ours"));
    assert_eq!((pool.stats().in_use, pool.stats().blocks), (Bytes::ZERO, 0));
    pool.release_unused();
    assert_eq!(pool.stats().reserved, Bytes::ZERO);
}

#[test]
fn a_captured_sequence_replays_with_the_same_bits() {
    let Some(cuda) = card() else { return };
    let ty = Type::new(DType::F32, [1000]);
    let memory = memory(&cuda, ty.bytes());
    let start = Array::new([1000], (0..1000).map(f64::from).collect());
    let ops: [Op; 2] = [Unary::AddScalar(Scalar(1.0)).into(), Unary::Sqrt.into()];
    let place = [Operand { ty: &ty, ptr: memory.ptr() }];
    let go = || -> Result<(), Error> {
        for op in &ops {
            let call = Call { op, inputs: &place, outputs: &place, scratch: memory.ptr(), scratch_bytes: 0 };
            // SAFETY: the memory is live, and the ops may run in place.
            unsafe { cuda.run(&call) }?;
        }
        Ok(())
    };
    memory.write(&ty, &start);
    go().expect("launches");
    let plain = memory.bytes();
    let graph = cuda.capture(go).expect("a capture");
    assert_eq!(graph.nodes(), 2);
    memory.write(&ty, &start);
    // SAFETY: the memory is live.
    unsafe { graph.replay() }.expect("a replay");
    assert!(memory.bytes() == plain);
    println!("the graph took {} bytes of the card", graph.bytes());
}

/// Adds one to a block, copies it to the host, goes on with the block while the copy runs, and fetches what it was into another.
fn copies_beside_kernels(cuda: &Cuda) {
    let ty = Type::new(DType::F32, [100_000]);
    let (block, other) = (memory(cuda, ty.bytes()), memory(cuda, ty.bytes()));
    let start = Array::new([100_000], (0..100_000).map(f64::from).collect());
    let run = |op: Unary, memory: &Memory<'_>| {
        let op: Op = op.into();
        let place = [Operand { ty: &ty, ptr: memory.ptr() }];
        let call = Call { op: &op, inputs: &place, outputs: &place, scratch: memory.ptr(), scratch_bytes: 0 };
        // SAFETY: the memory is live, and the ops may run in place.
        unsafe { cuda.run(&call) }
    };
    let mut host = cuda.host_arena().expect("queues").expect("a device with memory of its own");
    host.fit(2 * ty.bytes().next_multiple_of(64), 2).expect("host memory");
    assert_eq!(host.slots(), 2);
    let go = || {
        run(Unary::AddScalar(Scalar(1.0)), &block)?;
        // SAFETY: both sides are live and of these sizes, and nobody writes to them before the waits.
        unsafe { host.offload(block.ptr(), 64, ty.bytes(), 0) }?;
        run(Unary::Exp, &other)?;
        host.wait(0)?;
        run(Unary::Sqrt, &block)?;
        // SAFETY: as above.
        unsafe { host.prefetch(64, other.ptr(), ty.bytes(), 1) }?;
        run(Unary::AddScalar(Scalar(-1.0)), &block)?;
        host.wait(1)?;
        run(Unary::AddScalar(Scalar(2.0)), &other)
    };
    let check = || {
        cuda.synchronize().expect("kernels and copies");
        let (found, fetched) = (read(&block.bytes(), &ty), read(&other.bytes(), &ty));
        for i in [0, 1, 4, 50_000, 99_999] {
            let x = start.data[i] as f32 + 1.0;
            assert!((found[i] - f64::from(x.sqrt() - 1.0)).abs() < 1e-3, "{i}: {}", found[i]);
            assert_eq!(fetched[i], f64::from(x + 2.0), "{i}");
        }
    };
    block.write(&ty, &start);
    go().expect("launches");
    check();
    let recording = Backend::record(cuda, &mut || go()).expect("a capture with forks that join");
    assert_eq!(recording.is_none(), cuda.is_emulated());
    for _ in 0..3 {
        let Some(recording) = &recording else { break };
        block.write(&ty, &start);
        // SAFETY: all memory is live as it was.
        unsafe { recording.replay() }.expect("a replay");
        check();
    }
    host.settle().expect("nothing is under way");
    host.fit(0, 0).expect("less");
    assert_eq!(host.bytes(), 0);
}

#[test]
fn copies_beside_kernels_arrive_where_they_are_waited_for() {
    [emulator(), card()].iter().flatten().for_each(copies_beside_kernels);
}

#[test]
fn the_link_and_the_footprint_are_measured() {
    let Some(cuda) = card() else { return };
    let link = cuda.link().expect("a measurement");
    let footprint = cuda.footprint();
    println!("{cuda:?}: {link:?}, {footprint:?}");
    assert!(link.up > 1e9 && link.down > 1e9, "{link:?}");
    assert!(footprint.context > MIB, "{footprint:?}");
}

/// Blocks of a card, reached by copies.
struct OnCard<'a>(&'a Cuda);

impl Reach for OnCard<'_> {
    fn fill(&self, block: &Block, byte: u8) {
        // SAFETY: the block has as many bytes, which only this test holds.
        unsafe { self.0.upload(block.as_ptr().as_ptr(), &vec![byte; block.len()]) }.expect("a copy");
    }

    fn holds(&self, block: &Block, byte: u8) -> bool {
        let mut bytes = vec![!byte; block.len()];
        // SAFETY: as above.
        unsafe { self.0.download(block.as_ptr().as_ptr(), &mut bytes) }.expect("a copy");
        bytes.iter().all(|found| *found == byte)
    }
}

#[test]
fn every_allocator_of_a_card_keeps_what_all_of_them_promise() {
    let Some(cuda) = card() else { return };
    let limit = Bytes::mib(256);
    let all: [(Box<dyn Allocator>, bool); 3] = [
        (Box::new(CardPages::pool(&cuda, limit).expect("pages")), true),
        (Box::new(DriverMemory::by_block(&cuda, limit).expect("blocks of the driver")), true),
        (Box::new(DriverMemory::by_stream(&cuda, limit).expect("a pool of the driver")), false),
    ];
    let names: Vec<&str> = all.iter().map(|(memory, _)| memory.name()).collect();
    assert_eq!(names, ["pages", "system", "pool"]);
    for (memory, is_whole) in &all {
        println!("{}: chunks of {}", memory.name(), memory.page());
        conforms(&**memory, &OnCard(&cuda), *is_whole);
    }
}

#[test]
fn each_library_of_a_card_has_what_it_took() {
    let Some(cuda) = card() else { return };
    let rows = Backend::libraries(&cuda);
    let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    println!("{rows:?} of {:?}", Backend::taken(&cuda));
    assert_eq!(names[0], "CUDA context");
    assert!(rows[0].bytes > Bytes::mib(50), "{rows:?}");
    let sum: Bytes = rows.iter().map(|row| row.bytes).sum();
    assert!(Some(sum) <= Backend::taken(&cuda).map(|taken| taken + Bytes::mib(8)), "{rows:?}");
    // Code has a row, with nothing in it once it is unloaded.
    let op = Op::from(Unary::Exp);
    let ty = Type::new(DType::F32, [64]);
    cuda.prepare(&op, &[&ty], &[&ty]).expect("code");
    assert!(Backend::libraries(&cuda).iter().any(|row| row.name == "code by NVRTC"));
    Backend::trim(&cuda).expect("trimmed");
    let is_code_gone = |row: &LibraryBytes| row.name != "code by NVRTC" || row.bytes == Bytes::ZERO;
    assert!(Backend::libraries(&cuda).iter().all(is_code_gone), "{:?}", Backend::libraries(&cuda));
}
