//! Exchanges in a step: the same losses on every number of ranks as on one, however the step is planned.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_comm::{Connected, OnCards, Ranks, local};
use plimsoll_device::backend::Operand;
use plimsoll_device::{Bytes, Exchanged, Peers};
use plimsoll_graph::ops::{Exchange, ExchangeKind, Rank};
use plimsoll_graph::{DType, ExchangeOps, LossOps, Type, shard};
use plimsoll_run::{
    Device, Error, Kind, MemoryRequest, Result, StateTensor, Step, StepArgs, StepOptions, StepResult, Tape,
    Tensor, TensorOps,
};
use plimsoll_testing::{alone, group};

const BATCH: usize = 24;
const WIDTH: usize = 64;
const STEPS: usize = 5;

fn noise(shape: &[usize], seed: u64) -> Tensor {
    let mut dice = plimsoll_graph::example::Dice::new(seed);
    let ty = Type::new(DType::F64, shape);
    let data: Vec<f64> = (0..ty.elements()).map(|_| dice.normal() * 0.3).collect();
    Tensor::from_f64(&data, ty).unwrap()
}

/// Runs `body` on every rank of a world of threads, with a device that is one of them.
fn on_ranks<T: Send>(ranks: usize, body: impl Fn(&Device) -> T + Sync) -> Vec<T> {
    on_ranks_of(ranks, |peers| {
        let device = Device::cpu_with(1, Bytes::mib(64)).unwrap().with_ranks(peers.clone());
        device.scope(|| body(&device))
    })
}

/// Runs `body` on every rank of a world of threads.
fn on_ranks_of<T: Send>(ranks: usize, body: impl Fn(&Arc<Connected<Ranks>>) -> T + Sync) -> Vec<T> {
    let body = &body;
    std::thread::scope(|threads| {
        let all: Vec<_> = local::ranks(ranks, Duration::from_secs(20))
            .into_iter()
            .map(|rank| threads.spawn(move || body(&Arc::new(Connected::new(rank).unwrap()))))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// A rank of groups exchanges within its group and with those of its place in other groups, one call after the other and several at once.
#[test]
fn groups_exchange_among_themselves() {
    let found = on_ranks(6, |device| {
        let all = device.rank();
        let (in_group, of_groups) = all.grouped(2);
        let own = Tensor::from_slice(&[1.0f64, all.rank as f64], [2])?;
        let sums = [in_group, of_groups, all].map(|of| own.all_reduce(of)?.to_vec::<f64>());
        let gathered = own.all_gather(in_group, [3, 2])?.to_vec::<f64>()?;
        let told = own.of_rank(of_groups, 1)?.to_vec::<f64>()?;
        let [a, b, c] = sums;
        Ok::<_, Error>((a?[1], b?[1], c?[1], gathered, told[1]))
    });
    for (rank, found) in found.into_iter().enumerate() {
        let (group, place) = (rank / 3, rank % 3);
        let first = 3.0 * group as f64;
        let gathered: Vec<f64> = (0..3).flat_map(|i| [1.0, first + f64::from(i)]).collect();
        let expected = (3.0 * first + 3.0, 2.0 * place as f64 + 3.0, 15.0, gathered, place as f64 + 3.0);
        assert_eq!(found.unwrap(), expected, "rank {rank}");
    }
    // Whoever is no such rank of a group does not exchange as if it were.
    let wrong = on_ranks(4, |device| {
        let of = Rank { rank: (device.rank().rank + 1) % 2, ranks: 2, stride: 1 };
        Tensor::from_slice(&[1.0f64], [1])?.all_reduce(of).map(|_| ())
    });
    assert!(wrong.iter().all(|done| done.as_ref().unwrap_err().to_string().contains("of 2")), "{wrong:?}");
}

/// Three layers and their gradients, of which every rank has its share of samples.
fn body(of: Rank, share: f64) -> impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static {
    move |pass: &StepArgs<'_>| {
        let (state, x, labels) = (pass.state, &pass.inputs[0], &pass.inputs[1]);
        let tape = Tape::new();
        let wrt: Vec<&Tensor> = state.iter().collect();
        for w in &wrt {
            tape.watch(w)?;
        }
        let mut h = x.clone();
        for w in &state[..state.len() - 1] {
            h = h.matmul(w)?.tanh()?;
        }
        let logits = h.matmul(&state[state.len() - 1])?;
        let loss = logits.softmax_cross_entropy(labels)?.mean(&[], false)?;
        let right = logits.argmax(-1)?.equal(labels)?.cast(DType::F64)?.sum(&[], false)?;
        let found = tape.gradient(&loss, &wrt)?;
        let mean = loss.mul_scalar(share)?.all_reduce(of)?;
        let mut new = Vec::new();
        for (w, grad) in state.iter().zip(&found) {
            let grad = grad.mul_scalar(share)?.all_reduce(of)?;
            new.push(w.sub(&grad.mul_scalar(0.1)?)?);
        }
        let right = right.all_reduce_total(of)?;
        Ok(StepResult { state: new, outputs: vec![mean], totals: vec![right] })
    }
}

/// The losses and counts of a few steps on a rank, and how many micro-batches they had.
fn losses(device: &Device, options: StepOptions) -> (Vec<(u64, u64)>, usize, Vec<u8>) {
    let of = device.rank();
    let own = of.shard(BATCH);
    let rows = |t: &Tensor, width: usize| {
        let (row, bytes) = (width * 8, t.to_bytes().unwrap());
        bytes[own.start * row..own.end * row].to_vec()
    };
    let (x, labels) = (noise(&[BATCH, WIDTH], 1), {
        let labels: Vec<i64> = (0..BATCH as i64).map(|i| (i * 7) % 5).collect();
        Tensor::from_slice(&labels, [BATCH]).unwrap()
    });
    let mut own_x = Tensor::zeros(Type::new(DType::F64, [own.len(), WIDTH])).unwrap();
    own_x.set_bytes(&rows(&x, WIDTH)).unwrap();
    let mut own_labels = Tensor::zeros(Type::new(DType::I64, [own.len()])).unwrap();
    own_labels.set_bytes(&rows(&labels, 1)).unwrap();
    let shapes = [[WIDTH, WIDTH], [WIDTH, WIDTH], [WIDTH, 5]];
    let state = shapes.iter().enumerate().map(|(i, shape)| StateTensor {
        name: format!("w{i}"),
        kind: Kind::Parameter,
        tensor: noise(shape, 10 + i as u64),
    });
    let types = [own_x.ty().clone(), own_labels.ty().clone()];
    let share = own.len() as f64 / BATCH as f64;
    let mut step = Step::compile_with(options, state.collect(), &types, body(of, share)).unwrap();
    let found = (0..STEPS)
        .map(|_| {
            let outputs = step.run(&[&own_x, &own_labels]).unwrap();
            (outputs[0].item().unwrap().to_bits(), outputs[1].item().unwrap().to_bits())
        })
        .collect();
    let weights = step.state()[0].to_bytes().unwrap();
    (found, step.info().micro_batches, weights)
}

fn options(micro_batch: Option<usize>) -> StepOptions {
    let request = MemoryRequest { micro_batch, ..MemoryRequest::default() };
    StepOptions { request, batched: true, guarded: true, ..StepOptions::default() }
}

#[test]
fn ranks_have_the_losses_of_one_with_and_without_micro_batches() {
    let (one, ..) = on_ranks(1, |device| losses(device, options(None))).remove(0);
    let number = |bits: u64| f64::from_bits(bits);
    for ranks in 1..=4 {
        for micro_batch in [None, Some(5), Some(2)] {
            let found = on_ranks(ranks, |device| losses(device, options(micro_batch)));
            let again = on_ranks(ranks, |device| losses(device, options(micro_batch)));
            assert_eq!(found, again, "the same bits in every run");
            for (rank, (losses, micro_batches, weights)) in found.iter().enumerate() {
                let split = micro_batch.map_or(1, |n| shard(BATCH, ranks, rank).len().div_ceil(n));
                assert_eq!(*micro_batches, split);
                assert_eq!((losses, weights), (&found[0].0, &found[0].2), "the same bits on every rank");
                for ((a, count), (b, expected)) in losses.iter().zip(&one) {
                    let (a, b) = (number(*a), number(*b));
                    assert!((a - b).abs() < 1e-12, "{ranks} ranks, {micro_batch:?}: {a} and {b}");
                    assert_eq!(count, expected, "{ranks} ranks, {micro_batch:?}");
                }
            }
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_on_one_rank_changes_nothing_on_any() {
    for micro_batch in [None, Some(3)] {
        let kept = on_ranks(2, |device| {
            let of = device.rank();
            let mut x = noise(&[6, WIDTH], 3).to_f64().unwrap();
            if of.rank == 1 {
                x[0] = f64::NAN;
            }
            let x = Tensor::from_f64(&x, Type::new(DType::F64, [6, WIDTH])).unwrap();
            let labels = Tensor::from_slice(&[0i64; 6], [6]).unwrap();
            let w = noise(&[WIDTH, 5], 4);
            let before = w.to_bytes().unwrap();
            let state = vec![StateTensor { name: "w".into(), kind: Kind::Parameter, tensor: w }];
            let types = [x.ty().clone(), labels.ty().clone()];
            let mut step = Step::compile_with(options(micro_batch), state, &types, body(of, 0.5)).unwrap();
            let failed = matches!(step.run(&[&x, &labels]), Err(Error::NotFinite { .. }));
            (failed, step.state()[0].to_bytes().unwrap() == before)
        });
        assert_eq!(kept, [(true, true); 2], "{micro_batch:?}");
    }
}

#[test]
fn a_rank_that_ends_is_named_to_the_others() {
    let found = on_ranks(3, |device| {
        let of = device.rank();
        if of.rank == 2 {
            return String::new();
        }
        let x = Tensor::from_slice(&[1.0f32], [1]).unwrap();
        match x.all_reduce(of) {
            Err(Error::Ranks(fault)) => fault.to_string(),
            other => panic!("{other:?}"),
        }
    });
    assert!(found[..2].iter().all(|why| why.contains("rank 2")), "{found:?}");
}

#[test]
fn an_exchange_of_ranks_that_are_not_there_is_refused_before_it_runs() {
    let x = Tensor::from_slice(&[1.0f32], [1]).unwrap();
    let of = Rank::new(0, 2);
    let why = x.all_reduce(of).unwrap_err().to_string();
    assert!(why.contains("connected to no other ranks"), "{why}");
    let why =
        on_ranks(1, |_| Tensor::from_slice(&[1.0f32], [1]).unwrap().all_reduce(of).unwrap_err().to_string());
    assert!(why[0].contains("this is rank 0 of 1"), "{why:?}");
}

#[test]
fn the_other_exchanges_mean_what_they_say() {
    for ranks in 1..=4 {
        on_ranks(ranks, |device| {
            let of = device.rank();
            let own: Vec<i64> = (0..7).map(|i| i * 10 + of.rank as i64).collect();
            let x = Tensor::from_slice(&own, [7]).unwrap();
            let sum: Vec<i64> = (0..7).map(|i| (0..ranks as i64).map(|r| i * 10 + r).sum()).collect();
            let shard = x.reduce_scatter(of).unwrap();
            assert_eq!(shard.to_vec::<i64>().unwrap(), sum[of.shard(7)]);
            assert_eq!(shard.all_gather(of, [7]).unwrap().to_vec::<i64>().unwrap(), sum);
            let most: Vec<i64> = (0..7).map(|i| i * 10 + ranks as i64 - 1).collect();
            assert_eq!(x.all_reduce_max(of).unwrap().to_vec::<i64>().unwrap(), most);
            assert_eq!(x.of_rank(of, ranks - 1).unwrap().to_vec::<i64>().unwrap(), most);
        });
    }
}

#[test]
fn what_ranks_take_is_a_row_of_the_ledger_and_of_the_plan() {
    let found = on_ranks(2, |device| {
        let of = device.rank();
        let state =
            vec![StateTensor { name: "w".into(), kind: Kind::Parameter, tensor: noise(&[WIDTH, 5], 4) }];
        let types = [Type::new(DType::F64, [6, WIDTH]), Type::new(DType::I64, [6])];
        let step = Step::compile_with(options(None), state, &types, body(of, 0.5)).unwrap();
        let peers = device.ranks().unwrap().own_bytes();
        (step.info().account.ranks == peers, step.ledger().to_string().contains("ranks"), peers > Bytes::ZERO)
    });
    assert_eq!(found, [(true, true, true); 2]);
}

/// Ranks without cards of their own hear why values go through the host; how many of their machine come before each, they know.
#[test]
fn ranks_without_cards_of_their_own_go_through_the_host() {
    let heard = on_ranks_of(3, |host| {
        let device = Device::cpu_with(1, Bytes::mib(8))?;
        let why =
            OnCards::connect(host.clone(), device.shared_backend(), Duration::from_secs(5)).unwrap().err();
        Ok::<_, Error>((host.place_on_machine().unwrap(), why.unwrap()))
    });
    for (rank, heard) in heard.into_iter().enumerate() {
        assert_eq!(heard.unwrap(), (rank, "it is not on a card that has a stream".to_string()));
    }
    let _alone = alone();
    let Some(card) = group("card", Device::cuda(0)) else { return };
    for heard in on_ranks_of(2, |host| {
        OnCards::connect(host.clone(), card.shared_backend(), Duration::from_secs(20)).unwrap().err()
    }) {
        assert_eq!(heard.unwrap(), "2 ranks share 1 card");
    }
}

/// By itself a rank gets back what it exchanges on its card, and what NCCL takes of it is counted.
#[test]
fn a_card_by_itself_exchanges_by_nccl() {
    let _alone = alone();
    let Some(card) = group("card", Device::cuda(0)) else { return };
    let host = Arc::new(Connected::new(local::ranks(1, Duration::from_secs(20)).remove(0)).unwrap());
    let connected = OnCards::connect(host, card.shared_backend(), Duration::from_secs(20)).unwrap();
    let Some(peers) = group("nccl", connected) else { return };
    let peers: Arc<dyn Peers> = Arc::new(peers);
    assert!(peers.by().starts_with("NCCL 2.") && !peers.is_on_host() && peers.own_bytes() > Bytes::mib(1));
    let mut told = [3.0, 4.0];
    peers.sum(&mut told).unwrap();
    assert_eq!((told, peers.any(true).unwrap()), ([3.0, 4.0], true), "between steps, in the host's memory");
    let device = card.with_ranks(peers.clone());
    let of = device.rank();
    // Several at once, waited for in another order.
    let ty = Type::new(DType::F32, [1000]);
    let blocks: Vec<Tensor> =
        (0..3).map(|i| device.scope(|| Tensor::full(ty.clone(), f64::from(i)).unwrap())).collect();
    card.settle().unwrap();
    let exchange = Exchange { kind: ExchangeKind::Sum, of, is_total: true, anew: false };
    let started: Vec<u64> = (blocks.iter())
        .map(|block| {
            let x = Operand { ty: &ty, ptr: block.address().unwrap().cast_mut() };
            // SAFETY: memory of the card of this type, which stays until all are waited for.
            unsafe { peers.start(&exchange, Exchanged { x, y: x, scratch: &mut [] }) }.unwrap()
        })
        .collect();
    started.iter().rev().for_each(|one| peers.finish(*one).unwrap());
    for (i, block) in blocks.iter().enumerate() {
        assert_eq!(block.to_vec::<f32>().unwrap(), vec![i as f32; 1000]);
    }
    device.scope(|| {
        let values: Vec<f32> = (0..3000).map(|i| i as f32 / 7.0).collect();
        let x = Tensor::from_slice(&values, [50, 60]).unwrap();
        let doubled = x.add(&x).unwrap();
        let twice: Vec<f32> = values.iter().map(|x| x + x).collect();
        let there = [
            doubled.all_reduce(of),
            doubled.reduce_scatter(of).and_then(|mine| mine.reshape([50, 60])),
            doubled.all_gather(of, [50, 60]),
            doubled.of_rank(of, 0),
        ];
        for (i, exchanged) in there.into_iter().enumerate() {
            assert_eq!(exchanged.unwrap().to_vec::<f32>().unwrap(), twice, "exchange {i}");
        }
    });
}
