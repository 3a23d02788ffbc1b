//! No hidden copies: a call takes no memory but the scratch that it declares.

use plimsoll_comm::{Buffers, Call, Communicator, Kind, Reduce};
use plimsoll_graph::DType;
use plimsoll_testing::{Counting, child};

use crate::worlds::{PATIENCE, on_each, worlds};

/// Much longer than anything that a call may take for itself.
const LEN: usize = 1 << 20;

#[test]
fn a_call_takes_no_memory_but_its_scratch_however_long_it_is() {
    const TEST: &str = "copies::a_call_takes_no_memory_but_its_scratch_however_long_it_is";
    if child::question().is_none() {
        // In a process of its own, where no other test takes memory.
        let [largest, scratch] = child::ask(TEST, &["largest"]);
        assert!(largest < 16 << 10, "a call took {largest} bytes at once");
        assert!(scratch <= 1 << 20, "{scratch}");
        return;
    }
    let mut largest = 0;
    let mut declared = 0;
    for (_, ranks) in worlds(2, PATIENCE) {
        let met = std::sync::Barrier::new(2);
        let seen = on_each(ranks, |rank| {
            let kinds = [
                Kind::AllReduce(Reduce::Sum),
                Kind::ReduceScatter(Reduce::Max),
                Kind::AllGather,
                Kind::Broadcast { root: 1 },
            ];
            let calls = kinds.map(|kind| Call { kind, dtype: DType::F32, len: LEN });
            let words = calls.iter().map(|call| rank.scratch_bytes(call).div_ceil(8)).max().unwrap();
            let (mut values, mut scratch) = (vec![1f32; LEN], vec![0u64; words]);
            met.wait();
            Counting::forget_largest();
            met.wait();
            for call in calls {
                let mut buffers = Buffers::in_place(values.as_mut_ptr().cast(), &mut scratch);
                let own = plimsoll_comm::shard(LEN, 2, rank.rank()).start * 4;
                match call.kind {
                    Kind::ReduceScatter(_) => buffers.output = buffers.output.wrapping_add(own),
                    Kind::AllGather => buffers.input = buffers.input.wrapping_add(own),
                    _ => {}
                }
                // SAFETY: the vectors outlive the wait.
                rank.wait(unsafe { rank.start(&call, buffers).unwrap() }).unwrap();
            }
            met.wait();
            (Counting::largest() as u64, (words * 8) as u64)
        });
        for (most, scratch) in seen {
            (largest, declared) = (most.max(largest), scratch.max(declared));
        }
    }
    child::answer(&[largest, declared]);
}
