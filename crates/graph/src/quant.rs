//! Turns weights into one byte or half a byte a number with scales, and back: what small bases of language models are kept in.
//!
//! int8: a row's numbers are multiples of its largest magnitude / 127. NF4: blocks of 64 numbers, row after row, are multiples of the block's
//! largest magnitude by one of sixteen values, the quantiles of a normal distribution; two codes a byte, the first in the high half. The
//! magnitudes, less their mean, are bytes themselves, in blocks of 256 (double quantisation). Tables and bits are those of bitsandbytes.

use crate::eight_bit::{BLOCK, Codes};
use crate::{DType, Shape, Type};

/// How a weight is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantForm {
    /// A byte a number, a scale a row.
    Int8,
    /// Half a byte a number, a byte a block of 64, a scale for 256 of those.
    Nf4,
}

/// Numbers of a block of NF4.
pub const NF4_BLOCK: usize = 64;

/// What the codes of NF4 stand for, as bitsandbytes has them.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

impl QuantForm {
    /// The types of what a weight of rows and columns is kept in; scales in the given type.
    pub fn parts(self, rows: usize, columns: usize, scales: DType) -> Vec<Type> {
        let n = rows * columns;
        let blocks = n.div_ceil(NF4_BLOCK);
        let of = |dtype: DType, shape: Shape| Type::new(dtype, shape);
        match self {
            QuantForm::Int8 => vec![of(DType::I8, [rows, columns].into()), of(scales, [rows].into())],
            QuantForm::Nf4 => vec![
                match columns.is_multiple_of(2) {
                    true => of(DType::U8, [rows, columns / 2].into()),
                    false => of(DType::U8, [n.div_ceil(2)].into()),
                },
                of(DType::U8, [blocks].into()),
                of(scales, [blocks.div_ceil(BLOCK)].into()),
                of(scales, [1].into()),
            ],
        }
    }

    /// A weight as the bytes of its parts, with scales in f32.
    pub fn pack(self, weight: &[f32], columns: usize) -> Vec<Vec<u8>> {
        self.pack_with(weight.len(), columns, |at, out| out.copy_from_slice(&weight[at..at + out.len()]))
    }

    /// As [`QuantForm::pack`], of `n` numbers that are read a piece at a time, on all cores: `read` is told where a piece begins.
    pub fn pack_with(
        self,
        n: usize,
        columns: usize,
        read: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Vec<Vec<u8>> {
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let columns = columns.max(1);
        // Whole rows, or whole blocks and bytes.
        let piece = match self {
            QuantForm::Int8 => (PIECE / columns).max(1) * columns,
            QuantForm::Nf4 => PIECE,
        };
        let packed = in_pieces(n, piece, |start, end| {
            let mut numbers = vec![0.0; end - start];
            read(start, &mut numbers);
            match self {
                QuantForm::Int8 => bytes_of_rows(&numbers, columns),
                QuantForm::Nf4 => halves_of_blocks(&numbers),
            }
        });
        let (mut codes, mut scales) = (Vec::with_capacity(n), Vec::new());
        for (own, most) in packed {
            codes.extend(own);
            scales.extend(most);
        }
        match self {
            QuantForm::Int8 => vec![codes, bytes(&scales)],
            QuantForm::Nf4 => {
                let mean =
                    (scales.iter().map(|x| f64::from(*x)).sum::<f64>() / scales.len().max(1) as f64) as f32;
                scales.iter_mut().for_each(|x| *x -= mean);
                let (blocks, groups) = Codes::Signed.pack(&scales);
                vec![codes, blocks, bytes(&groups), bytes(&[mean])]
            }
        }
    }

    /// Numbers `from .. from + out.len()` of a weight, row after row, from its parts.
    pub fn unpack(self, parts: &QuantParts<'_>, columns: usize, from: usize, out: &mut [f32]) {
        match self {
            QuantForm::Int8 => {
                for (at, y) in (from..).zip(out) {
                    *y = f32::from(parts.codes[at] as i8) * (parts.scales[at / columns.max(1)] / 127.0);
                }
            }
            QuantForm::Nf4 => {
                let values = Codes::Signed.values();
                let scale = |block: usize| {
                    values[usize::from(parts.blocks[block])] * parts.scales[block / BLOCK] + parts.mean
                };
                let (mut block, mut most) = (usize::MAX, 0.0);
                for (at, y) in (from..).zip(out) {
                    if at / NF4_BLOCK != block {
                        block = at / NF4_BLOCK;
                        most = scale(block);
                    }
                    let byte = parts.codes[at / 2];
                    let code = if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
                    *y = NF4[usize::from(code)] * most;
                }
            }
        }
    }
}

/// The parts of a weight in memory.
#[derive(Clone, Copy, Debug)]
pub struct QuantParts<'a> {
    /// Codes of the numbers.
    pub codes: &'a [u8],
    /// Codes of the blocks' magnitudes; none of int8.
    pub blocks: &'a [u8],
    /// Scales of rows, or of 256 blocks.
    pub scales: &'a [f32],
    /// The mean of the blocks' magnitudes; 0 of int8.
    pub mean: f32,
}

/// Numbers that are packed at a time.
const PIECE: usize = 1 << 20;

/// What `f` makes of the pieces of `0 .. n`, in their order, on as many threads as there are cores.
fn in_pieces<T: Send>(n: usize, piece: usize, f: impl Fn(usize, usize) -> T + Sync) -> Vec<T> {
    let count = n.div_ceil(piece);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    let every = |first: usize, step: usize| {
        let starts = (first..count).step_by(step.max(1)).map(|i| i * piece);
        starts.map(|start| f(start, n.min(start + piece))).collect::<Vec<T>>()
    };
    let mut shares = std::thread::scope(|scope| {
        let begin = |t| std::thread::Builder::new().spawn_scoped(scope, move || every(t, threads));
        let others: Vec<_> = (1..threads).map(|t| (t, begin(t))).collect();
        let first = every(0, threads);
        // What no thread could be had for, or what one did not finish, is done here.
        let rest = others.into_iter().map(|(t, thread)| {
            thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(|| every(t, threads))
        });
        std::iter::once(first).chain(rest).map(Vec::into_iter).collect::<Vec<_>>()
    });
    (0..count).filter_map(|i| shares[i % threads].next()).collect()
}

/// Rows as bytes, with a scale each.
fn bytes_of_rows(numbers: &[f32], columns: usize) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::with_capacity(numbers.len()), Vec::new());
    for row in numbers.chunks(columns) {
        let most = largest(row);
        scales.push(most);
        let factor = if most > 0.0 { 127.0 / most } else { 0.0 };
        codes.extend(row.iter().map(|x| (x * factor).round_ties_even() as i8 as u8));
    }
    (codes, scales)
}

/// Blocks as halves of bytes, with a magnitude each.
fn halves_of_blocks(numbers: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut codes = vec![0; numbers.len().div_ceil(2)];
    let mut scales = Vec::new();
    for (i, block) in numbers.chunks(NF4_BLOCK).enumerate() {
        let most = largest(block);
        scales.push(most);
        for (j, x) in block.iter().enumerate() {
            let at = i * NF4_BLOCK + j;
            let code = if most > 0.0 { nearest(x / most) } else { 7 };
            codes[at / 2] |= if at.is_multiple_of(2) { code << 4 } else { code };
        }
    }
    (codes, scales)
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, x| f32::max(most, x.abs()))
}

/// The middles between neighbours of NF4: a number's code is how many of them it is above.
const MIDDLES: [f32; 15] = middles();

const fn middles() -> [f32; 15] {
    let (mut all, mut i) = ([0.0; 15], 0);
    while i < all.len() {
        all[i] = (NF4[i] + NF4[i + 1]) / 2.0;
        i += 1;
    }
    all
}

/// The code of NF4 whose value is nearest; of two that are equally near the lower. Four comparisons, not fifteen: a model has billions of
/// numbers.
fn nearest(x: f32) -> u8 {
    let mut code = 0;
    for step in [8, 4, 2, 1] {
        code += if x > MIDDLES[code + step - 1] { step } else { 0 };
    }
    code as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_as_near_as_the_codes_are() {
        let mut dice = crate::example::Dice::new(3);
        let (rows, columns) = (5, 70);
        let weight: Vec<f32> = (0..rows * columns).map(|_| dice.normal() as f32 * 0.05).collect();
        for (form, off) in [(QuantForm::Int8, 0.004), (QuantForm::Nf4, 0.17)] {
            let parts = form.pack(&weight, columns);
            let types = form.parts(rows, columns, DType::F32);
            assert_eq!(
                parts.iter().map(Vec::len).collect::<Vec<_>>(),
                types.iter().map(Type::bytes).collect::<Vec<_>>()
            );
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
            };
            let (scales, mean) = match form {
                QuantForm::Int8 => (floats(&parts[1]), 0.0),
                QuantForm::Nf4 => (floats(&parts[2]), floats(&parts[3])[0]),
            };
            let blocks: &[u8] = if form == QuantForm::Nf4 { &parts[1] } else { &[] };
            let parts = QuantParts { codes: &parts[0], blocks, scales: &scales, mean };
            let mut back = vec![0.0; weight.len()];
            form.unpack(&parts, columns, 0, &mut back);
            let most = largest(&weight);
            for (x, y) in weight.iter().zip(&back) {
                assert!((x - y).abs() <= off * most, "{form:?}: {x} became {y}, beside {most}");
            }
            assert!(weight != back);
            let mut some = vec![0.0; 9];
            form.unpack(&parts, columns, 66, &mut some);
            assert_eq!(some, back[66..75]);
        }
    }

    #[test]
    fn pieces_on_many_threads_are_the_whole() {
        let mut dice = crate::example::Dice::new(4);
        let (n, columns) = (2 * PIECE + 640, 320);
        let weight: Vec<f32> = (0..n).map(|_| dice.normal() as f32).collect();
        for form in [QuantForm::Int8, QuantForm::Nf4] {
            let parts = form.pack(&weight, columns);
            let (codes, scales) = match form {
                QuantForm::Int8 => bytes_of_rows(&weight, columns),
                QuantForm::Nf4 => halves_of_blocks(&weight),
            };
            assert!(parts[0] == codes && !scales.is_empty(), "{form:?}");
        }
        for x in weight.iter().take(4096) {
            let slow = NF4.windows(2).take_while(|pair| *x > (pair[0] + pair[1]) / 2.0).count();
            assert_eq!(usize::from(nearest(*x)), slow, "{x}");
        }
    }

    #[test]
    fn a_value_has_its_own_code_and_zeros_stay_zeros() {
        for (code, x) in NF4.iter().enumerate() {
            assert_eq!(usize::from(nearest(*x)), code);
        }
        let parts = QuantForm::Nf4.pack(&[0.0; 64], 64);
        assert!(parts[0].iter().all(|byte| *byte == 0x77));
    }
}
