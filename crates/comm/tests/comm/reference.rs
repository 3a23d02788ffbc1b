//! Calls as they are meant: all ranks' values in, all ranks' values out, with plain loops.

use half::{bf16, f16};
use plimsoll_comm::{Call, Collectives, Communicator, Element, Kind, Reduce, Result, shard};

/// A value that is made of a number, and how two are reduced, in the wide type and back.
pub trait Value: Element + std::fmt::Debug {
    fn of(n: i64) -> Self;
    fn reduced(values: &[Self], reduce: Reduce) -> Self;
}

macro_rules! value {
    ($type:ident, $wide:ident, $of:expr, $widen:expr, $narrow:expr, $add:expr) => {
        impl Value for $type {
            fn of(n: i64) -> $type {
                $of(n)
            }
            fn reduced(values: &[$type], reduce: Reduce) -> $type {
                let mut sum: $wide = $widen(values[0]);
                for value in &values[1..] {
                    let value: $wide = $widen(*value);
                    sum = match reduce {
                        Reduce::Sum => $add(sum, value),
                        Reduce::Max => sum.max(value),
                    };
                }
                $narrow(sum)
            }
        }
    };
}

/// Not whole, of several magnitudes, so that another order of additions shows.
fn real(n: i64) -> f64 {
    (n as f64 * 0.7371).sin() * 10f64.powi((n % 7) as i32 - 3)
}

value!(f32, f32, |n| real(n) as f32, |x| x, |x| x, |a: f32, b: f32| a + b);
value!(f64, f64, real, |x| x, |x| x, |a: f64, b: f64| a + b);
value!(f16, f32, |n| f16::from_f64(real(n)), f16::to_f32, f16::from_f32, |a: f32, b: f32| a + b);
value!(bf16, f32, |n| bf16::from_f64(real(n)), bf16::to_f32, bf16::from_f32, |a: f32, b: f32| a + b);
value!(
    i32,
    i32,
    |n: i64| (n.wrapping_mul(0x9e3779b97f4a7c15u64 as i64) >> 31) as i32,
    |x| x,
    |x| x,
    i32::wrapping_add
);
value!(i64, i64, |n: i64| n.wrapping_mul(0x9e3779b97f4a7c15u64 as i64), |x| x, |x| x, i64::wrapping_add);
value!(
    u8,
    u8,
    |n: i64| (n.wrapping_mul(0x9e3779b97f4a7c15u64 as i64) >> 40) as u8,
    |x| x,
    |x| x,
    u8::wrapping_add
);

/// What a rank begins a call with.
pub fn begin<T: Value>(rank: usize, len: usize, seed: i64) -> Vec<T> {
    (0..len as i64).map(|i| T::of(seed * 7919 + i * 31 + rank as i64 * 10007)).collect()
}

/// What a rank has after a call.
pub fn expected<T: Value>(call: &Call, rank: usize, ranks: usize, seed: i64) -> Vec<T> {
    let all: Vec<Vec<T>> = (0..ranks).map(|r| begin(r, call.len, seed)).collect();
    let own = shard(call.len, ranks, rank);
    let at = |i: usize| -> Vec<T> { all.iter().map(|values| values[i]).collect() };
    let reduced = |i: usize, reduce| T::reduced(&at(i), reduce);
    (0..call.len)
        .map(|i| match call.kind {
            Kind::AllReduce(reduce) => reduced(i, reduce),
            Kind::ReduceScatter(reduce) if own.contains(&i) => reduced(i, reduce),
            Kind::AllGather => {
                let owner = (0..ranks).find(|r| shard(call.len, ranks, *r).contains(&i)).unwrap();
                all[owner][i]
            }
            Kind::Broadcast { root } => all[root][i],
            Kind::Receive { from } => all[from][i],
            _ => all[rank][i],
        })
        .collect()
}

/// Makes a call on values in place.
pub fn make<T: Value>(ranks: &dyn Communicator, call: &Call, values: &mut [T]) -> Result<()> {
    match call.kind {
        Kind::AllReduce(reduce) => ranks.all_reduce(reduce, values),
        Kind::ReduceScatter(reduce) => ranks.reduce_scatter(reduce, values),
        Kind::AllGather => ranks.all_gather(values),
        Kind::Broadcast { root } => ranks.broadcast(root, values),
        Kind::Send { to } => ranks.send(to, values),
        Kind::Receive { from } => ranks.receive(from, values),
        Kind::Barrier => ranks.barrier(),
    }
}

/// All calls that a world makes, but sends and receives.
pub fn kinds(ranks: usize) -> Vec<Kind> {
    let mut kinds = vec![Kind::AllGather, Kind::Barrier];
    for reduce in [Reduce::Sum, Reduce::Max] {
        kinds.extend([Kind::AllReduce(reduce), Kind::ReduceScatter(reduce)]);
    }
    kinds.extend((0..ranks).map(|root| Kind::Broadcast { root }));
    kinds
}

/// Makes every call of a type with every length and holds the results to the reference to the bit; what came out, as one number.
pub fn hold<T: Value>(ranks: &dyn Communicator, lens: &[usize]) -> u64 {
    let (rank, n) = (ranks.rank(), ranks.ranks());
    let mut digest = Digest::default();
    for &len in lens {
        for (seed, kind) in kinds(n).into_iter().enumerate() {
            let call = Call { kind, dtype: T::DTYPE, len };
            let mut values: Vec<T> = begin(rank, len, seed as i64);
            make(ranks, &call, &mut values).unwrap_or_else(|why| panic!("{call} on {n} ranks: {why}"));
            let expected: Vec<T> = expected(&call, rank, n, seed as i64);
            let bytes: &[u8] = bytemuck::cast_slice(&values);
            assert!(bytes == bytemuck::cast_slice::<T, u8>(&expected), "{call} on rank {rank} of {n}");
            digest.add(bytes);
        }
        // Around a ring, the even ranks first.
        let (to, from) = ((rank + 1) % n, (rank + n - 1) % n);
        if n > 1 {
            let send = Call { kind: Kind::Send { to }, dtype: T::DTYPE, len };
            let receive = Call { kind: Kind::Receive { from }, dtype: T::DTYPE, len };
            let (mut own, mut got) = (begin::<T>(rank, len, 3), begin::<T>(rank, len, 3));
            let mut steps = [(send, &mut own), (receive, &mut got)];
            if rank % 2 == 1 {
                steps.reverse();
            }
            for (call, values) in &mut steps {
                make(ranks, call, values).unwrap_or_else(|why| panic!("{call}: {why}"));
            }
            assert_eq!(
                bytemuck::cast_slice::<T, u8>(&got),
                bytemuck::cast_slice::<T, u8>(&expected::<T>(&receive, rank, n, 3))
            );
            digest.add(bytemuck::cast_slice(&got));
        }
    }
    digest.0
}

/// The same for all types.
pub fn hold_all(ranks: &dyn Communicator, lens: &[usize]) -> u64 {
    let mut digest = Digest::default();
    for one in [
        hold::<f32>(ranks, lens),
        hold::<f64>(ranks, lens),
        hold::<f16>(ranks, lens),
        hold::<bf16>(ranks, lens),
        hold::<i32>(ranks, lens),
        hold::<i64>(ranks, lens),
        hold::<u8>(ranks, lens),
    ] {
        digest.add(&one.to_le_bytes());
    }
    digest.0
}

/// FNV, for comparing bits of processes.
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf29ce484222325)
    }
}

impl Digest {
    pub fn add(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100000001b3));
    }
}
