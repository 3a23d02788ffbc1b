//! Whole numbers to numbers of buckets, by the hashes that Keras takes them from: of a number's decimal digits, or of several numbers.

use plimsoll_graph::custom::{CustomOp, CustomOps, HostCall};
use plimsoll_graph::{Along, Backward, DType, Sym, TensorOps, Type, Types};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::Table;
use super::category::{Mode, encoded, mode};
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[("HashedCrossing", crossing), ("Hashing", hashing)];

/// By what a number comes into a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The rest of a division.
    Remainder,
    /// FarmHash64 of the digits.
    Farm,
    /// SipHash-2-4 of the digits, with a key.
    Sip([u64; 2]),
    /// One number after the other, mixed in.
    Cross,
}

impl How {
    /// Which hash of digits a salt asks for.
    pub(super) fn salted(s: &Settings<'_>) -> Result<How> {
        // Keras stores a key of two numbers; both wrap round as 64 bits do.
        let key = |value: &Value| value.as_u64().or_else(|| value.as_i64().map(|n| n as u64));
        match s.get("salt") {
            Value::Null => Ok(How::Farm),
            Value::Array(list) if list.len() == 2 => match (key(&list[0]), key(&list[1])) {
                (Some(a), Some(b)) => Ok(How::Sip([a, b])),
                _ => Err(s.wrong("salt", "it should be whole numbers")),
            },
            value => key(value)
                .map(|n| How::Sip([n, n]))
                .ok_or_else(|| s.wrong("salt", "it should be whole numbers")),
        }
    }
}

/// Numbers of buckets, from 0 on, of whole numbers.
pub(super) fn bucket(numbers: &[&Tensor], how: How, bins: usize) -> RunResult<Tensor> {
    let whole = numbers.iter().map(|x| x.cast(DType::I64)).collect::<RunResult<Vec<_>>>()?;
    let Some(first) = whole.first() else { return Err(refuse("hashes nothing")) };
    let bins = (bins as u64).max(1);
    Ok(first.custom(Buckets { how, bins }, &whole.iter().collect::<Vec<_>>())?.remove(0))
}

fn hashing(s: &Settings<'_>) -> Result<Made> {
    let (bins, how, mode) = (s.units("num_bins")?, How::salted(s)?, mode(s, "int")?);
    if s.flag("sparse", false)? {
        return Err(s.wrong("sparse", "only dense rows are made"));
    }
    // The first bucket is kept for it, where there is another.
    let hidden = if s.is_null("mask_value") { None } else { Some(s.number("mask_value")?) };
    let hidden = hidden.filter(|_| bins > 1);
    Ok(Made::unary(move |cx, x| {
        let found = match hidden {
            None => bucket(&[x], how, bins)?,
            Some(value) => {
                let is_hidden = x.equal(&x.full_like(Type::new(x.dtype(), []), value)?)?;
                let found = bucket(&[x], how, bins - 1)?.add_scalar(1.0)?;
                is_hidden.select(&found.full_like(found.ty().clone(), 0.0)?, &found)?
            }
        };
        encoded(&found, mode, bins, cx.dtype())
    }))
}

fn crossing(s: &Settings<'_>) -> Result<Made> {
    let (bins, mode) = (s.units("num_bins")?, mode(s, "int")?);
    if !matches!(mode, Mode::Int | Mode::OneHot) {
        return Err(s.wrong("output_mode", "int and one_hot are known"));
    }
    if s.flag("sparse", false)? {
        return Err(s.wrong("sparse", "only dense rows are made"));
    }
    Ok(Made::with(Vec::new(), move |cx, args| {
        let all = args.all();
        let is_column = |x: &&Tensor| matches!(x.shape()[..], [_] | [_, 1]) && x.shape() == all[0].shape();
        if all.len() < 2 || !all.iter().all(is_column) || all.iter().any(|x| x.dtype().is_float()) {
            return Err(refuse(
                "crosses something else than two or more columns of whole numbers of one shape",
            ));
        }
        Ok(vec![encoded(&bucket(&all, How::Cross, bins)?, mode, bins, cx.dtype())?])
    }))
}

/// The op: element by element, i64 to i64.
#[derive(Debug)]
struct Buckets {
    how: How,
    bins: u64,
}

impl CustomOp for Buckets {
    fn name(&self) -> &'static str {
        "buckets"
    }

    fn infer(&self, inputs: &[&Type]) -> std::result::Result<Types, String> {
        let several = self.how == How::Cross;
        match inputs {
            [first, rest @ ..]
                if first.dtype == DType::I64
                    && rest.iter().all(|x| x == first)
                    && (several || rest.is_empty()) =>
            {
                Ok([(*first).clone()].into_iter().collect())
            }
            _ => Err("it takes whole numbers of one shape".into()),
        }
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn run(&self, call: &mut HostCall<'_>) -> std::result::Result<(), String> {
        const CHUNK: usize = 4096;
        // Few features are ever crossed, but no list of them may be made here.
        let inputs = &call.inputs;
        for x in inputs.iter() {
            x.i64()?;
        }
        let of = |i: usize, at: usize| inputs[i].i64().map_or(0, |x| x[at]);
        let parallel = call.parallel;
        parallel.chunks(call.outputs[0].i64()?, CHUNK, &|chunk, out| {
            for (i, y) in out.iter_mut().enumerate() {
                let at = chunk * CHUNK + i;
                let hash = match self.how {
                    How::Remainder => {
                        // Keras's goes with the divisor, so it is never negative.
                        *y = i128::from(of(0, at)).rem_euclid(i128::from(self.bins)) as i64;
                        continue;
                    }
                    How::Farm => Digits::of(of(0, at)).farm(),
                    How::Sip(key) => Digits::of(of(0, at)).sip(key),
                    How::Cross => (0..inputs.len()).fold(CROSS_KEY, |hash, i| mixed(hash, of(i, at) as u64)),
                };
                *y = (hash % self.bins) as i64;
            }
        });
        Ok(())
    }

    /// A bucket's number does not move with what falls into it.
    fn gradient(&self, at: &Backward<'_>) -> plimsoll_graph::Result<Vec<Option<Sym>>> {
        Ok(vec![None; at.n_inputs()])
    }
}

/// What a cross begins with in TensorFlow.
const CROSS_KEY: u64 = 956_888_297_470;

/// One fingerprint and the next as one.
fn mixed(a: u64, b: u64) -> u64 {
    const BY: u64 = 0xc6a4_a793_5bd1_e995;
    let shifted = |x: u64| x ^ (x >> 47);
    let both = (a ^ BY ^ shifted(b.wrapping_mul(BY)).wrapping_mul(BY)).wrapping_mul(BY);
    shifted(shifted(both).wrapping_mul(BY))
}

/// The decimal digits of a number, with its sign: 20 characters at most.
struct Digits {
    text: [u8; 24],
    length: usize,
}

impl Digits {
    fn of(number: i64) -> Digits {
        let (mut backwards, mut length) = ([0u8; 24], 0);
        let mut rest = number.unsigned_abs();
        loop {
            backwards[length] = b'0' + (rest % 10) as u8;
            (rest, length) = (rest / 10, length + 1);
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            backwards[length] = b'-';
            length += 1;
        }
        let mut text = [0u8; 24];
        for (to, from) in text.iter_mut().zip(backwards[..length].iter().rev()) {
            *to = *from;
        }
        Digits { text, length }
    }

    fn eight(&self, at: usize) -> u64 {
        (0..8).rev().fold(0, |n, i| (n << 8) | u64::from(self.text[at + i]))
    }

    fn four(&self, at: usize) -> u64 {
        (0..4).rev().fold(0, |n, i| (n << 8) | u64::from(self.text[at + i]))
    }

    /// FarmHash64, of up to 32 bytes.
    fn farm(&self) -> u64 {
        const K: [u64; 3] = [0xc3a5_c85c_97cb_3127, 0xb492_b66f_be98_f273, 0x9ae1_6a3b_2f90_404f];
        let shifted = |x: u64| x ^ (x >> 47);
        let pair = |u: u64, v: u64, by: u64| {
            let a = shifted((u ^ v).wrapping_mul(by));
            shifted((v ^ a).wrapping_mul(by)).wrapping_mul(by)
        };
        let n = self.length;
        let by = K[2].wrapping_add(2 * n as u64);
        match n {
            17.. => {
                let (a, b) = (self.eight(0).wrapping_mul(K[1]), self.eight(8));
                let (c, d) = (self.eight(n - 8).wrapping_mul(by), self.eight(n - 16).wrapping_mul(K[2]));
                let first =
                    a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
                let second = a.wrapping_add(b.wrapping_add(K[2]).rotate_right(18)).wrapping_add(c);
                pair(first, second, by)
            }
            8..=16 => {
                let (a, b) = (self.eight(0).wrapping_add(K[2]), self.eight(n - 8));
                let c = b.rotate_right(37).wrapping_mul(by).wrapping_add(a);
                pair(c, a.rotate_right(25).wrapping_add(b).wrapping_mul(by), by)
            }
            4..=7 => pair((n as u64).wrapping_add(self.four(0) << 3), self.four(n - 4), by),
            _ => {
                let at = |i: usize| u64::from(self.text[i]);
                let (y, z) = (at(0) + (at(n / 2) << 8), n as u64 + (at(n - 1) << 2));
                shifted(y.wrapping_mul(K[2]) ^ z.wrapping_mul(K[0])).wrapping_mul(K[2])
            }
        }
    }

    /// SipHash-2-4.
    fn sip(&self, key: [u64; 2]) -> u64 {
        let mut v = [
            key[0] ^ 0x736f_6d65_7073_6575,
            key[1] ^ 0x646f_7261_6e64_6f6d,
            key[0] ^ 0x6c79_6765_6e65_7261,
            key[1] ^ 0x7465_6462_7974_6573,
        ];
        let round = |v: &mut [u64; 4]| {
            (v[0], v[2]) = (v[0].wrapping_add(v[1]), v[2].wrapping_add(v[3]));
            (v[1], v[3]) = (v[1].rotate_left(13) ^ v[0], v[3].rotate_left(16) ^ v[2]);
            v[0] = v[0].rotate_left(32);
            (v[2], v[0]) = (v[2].wrapping_add(v[1]), v[0].wrapping_add(v[3]));
            (v[1], v[3]) = (v[1].rotate_left(17) ^ v[2], v[3].rotate_left(21) ^ v[0]);
            v[2] = v[2].rotate_left(32);
        };
        for at in (0..=self.length).step_by(8).filter(|at| at % 8 == 0) {
            let mut word = self.eight(at);
            if at + 8 > self.length {
                // The last word ends in the length.
                word |= (self.length as u64) << 56;
            }
            v[3] ^= word;
            round(&mut v);
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        (0..4).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINS: usize = 1_000_003;
    const NUMBERS: [i64; 18] = [
        0,
        1,
        -1,
        9,
        12,
        123,
        -999,
        4096,
        -12345,
        1_234_567,
        12_345_678,
        -123_456_789,
        99_999_999_999,
        1_234_567_890_123_456,
        12_345_678_901_234_567,
        -1_234_567_890_123_456_789,
        i64::MAX,
        i64::MIN,
    ];

    /// What TensorFlow 2.21 says: `tf.strings.to_hash_bucket_fast` and `_strong` with the key 5, 7 of `tf.as_string`, and
    /// `tf.sparse.cross_hashed` of the numbers with themselves from the last to the first.
    #[test]
    fn hashes_are_tensorflows() {
        let farm = [
            537292, 361198, 285648, 666077, 477529, 501751, 743512, 80261, 65718, 22860, 470335, 361909,
            291159, 857634, 774961, 225514, 121738, 400334,
        ];
        let sip = [
            79205, 534187, 904330, 601711, 47882, 471422, 432811, 634940, 923757, 398833, 667357, 115414,
            267461, 432862, 240921, 247072, 174542, 932789,
        ];
        let cross = [
            435983, 848850, 856760, 6325, 368087, 102298, 772303, 148331, 894521, 651477, 435431, 231162,
            457847, 431186, 381790, 899998, 588512, 994871,
        ];
        let x = Tensor::from_slice(&NUMBERS, [18]).unwrap();
        let turned: Vec<i64> = NUMBERS.iter().rev().copied().collect();
        let turned = Tensor::from_slice(&turned, [18]).unwrap();
        let got = |numbers: &[&Tensor], how| bucket(numbers, how, BINS).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(got(&[&x], How::Farm), farm);
        assert_eq!(got(&[&x], How::Sip([5, 7])), sip);
        assert_eq!(got(&[&x, &turned], How::Cross), cross);
    }

    #[test]
    fn remainders_are_never_negative() {
        let x = Tensor::from_slice(&[-7i64, -1, 0, 6, i64::MIN], [5]).unwrap();
        assert_eq!(bucket(&[&x], How::Remainder, 3).unwrap().to_vec::<i64>().unwrap(), [2, 2, 0, 0, 1]);
    }
}
