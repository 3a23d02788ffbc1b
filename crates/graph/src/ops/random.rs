//! Random values from a counter-based generator: uniform, normal, and dropout.
//!
//! Every op here takes a key: an i64 tensor `[3]` of (seed, step, first sample index). A sample is one index of axis 0;
//! together with the op's own number, its `stream`, these coordinates say which words are drawn ([`crate::philox`] has
//! the exact rule). Element e of a sample comes from word e mod 4 of block e / 4. Nothing depends on call order, on
//! what else is drawn, or on how a batch is split: the piece that starts at sample 4 is given the first index 4.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::philox::{Source, normal_pair, unit};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Site, Type, ops};

/// Operations that an element's random word takes, about: ten rounds of two multiplications for four words.
const WORD_FLOPS: f64 = 12.0;

/// Elements of a sample at most: the block number has 32 bits, and a block is four elements.
const SAMPLE_ELEMENTS: usize = 1 << 34;

/// Checks that a value is a key.
fn check_key(key: &Type) -> Result<(), String> {
    if key.dtype == DType::I64 && *key.shape == [3] {
        return Ok(());
    }
    Err(format!("its key is i64[3], the seed, the step and the index of the first sample, not {key}"))
}

/// Checks that random values of a type can be drawn.
fn check_values(ty: &Type) -> Result<(), String> {
    ops::float(ty)?;
    let sample = sample_elements(ty);
    if sample > SAMPLE_ELEMENTS {
        return Err(format!(
            "a sample of {sample} elements is more than the {SAMPLE_ELEMENTS} that one counter numbers"
        ));
    }
    Ok(())
}

/// Elements of one index of axis 0; a scalar is one sample of one element.
fn sample_elements(ty: &Type) -> usize {
    ty.shape.get(1..).map_or(1, |rest| rest.iter().product())
}

fn source(key: &Array, stream: u32) -> Source {
    Source::new([key.data[0] as i64, key.data[1] as i64, key.data[2] as i64], stream)
}

/// An array of a type whose elements are a function of their block and place in it.
fn fill(ty: &Type, source: Source, f: impl Fn([u32; 4], usize) -> f64) -> Array {
    let sample = sample_elements(ty).max(1);
    let element = |i: usize| f(source.block(i / sample, (i % sample / 4) as u32), i % sample % 4);
    Array::new(ty.shape.clone(), (0..ty.elements()).map(element).collect())
}

/// Examples of an op that draws values of a type, by its own number.
fn drawn<R: Into<crate::Op>>(dice: &mut Dice, op: impl Fn(Type, u32) -> R) -> Vec<Example> {
    let mut examples = Vec::new();
    for dtype in DType::FLOATS {
        for shape in shapes(dice) {
            let stream = dice.range(0, 9) as u32;
            examples.push(Example::new(op(Type::new(dtype, shape), stream), vec![key_input()]));
        }
    }
    examples
}

fn word_cost(inputs: &[&Type], outputs: &[&Type]) -> Cost {
    Cost { flops: WORD_FLOPS * outputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
}

/// Writes an op that draws values by a key from a distribution of two numbers: what is wrong with them, if anything; the value
/// from a block and a place in it; and the operations of an element's word for each of it.
macro_rules! distribution {
    (
        $(#[doc = $about:literal])+
        $op:ident = $name:literal {
            $(#[doc = $about_first:literal])+ $first:ident: $some:literal,
            $(#[doc = $about_second:literal])+ $second:ident: $other:literal,
        }
        $words:literal, $wrong:expr, $value:expr
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $op {
            /// The type of the result.
            pub ty: Type,
            /// The op's own number.
            pub stream: u32,
            $(#[doc = $about_first])+
            pub $first: Scalar,
            $(#[doc = $about_second])+
            pub $second: Scalar,
        }

        impl Rule for $op {
            const NAME: &'static str = $name;

            fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
                let [key] = ops::arity(inputs)?;
                check_key(key)?;
                check_values(&self.ty)?;
                let wrong: fn(f64, f64) -> Option<String> = $wrong;
                match wrong(self.$first.0, self.$second.0) {
                    Some(wrong) => Err(wrong),
                    None => Ok(smallvec![self.ty.clone()]),
                }
            }

            fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
                let words = word_cost(inputs, outputs);
                Cost { flops: $words * words.flops, ..words }
            }

            fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
                Err(at.no_gradient("random values do not depend on anything differentiable"))
            }

            fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
                let value: fn([u32; 4], usize, f64, f64) -> f64 = $value;
                let ($first, $second) = (self.$first.0, self.$second.0);
                let drawn = |words, i| value(words, i, $first, $second);
                vec![fill(&self.ty, source(inputs[0], self.stream), drawn)]
            }

            fn examples(dice: &mut Dice) -> Vec<Example> {
                drawn(dice, |ty, stream| $op { ty, stream, $first: Scalar($some), $second: Scalar($other) })
            }
        }
    };
}

distribution! {
    /// Values evenly spread over [low, high): y = low + (high - low) · u with u a multiple of 2⁻²⁴. Input: key.
    ///
    /// The draw is the same in every element type; 16-bit types round it to their nearest value, which can be `high`.
    Uniform = "random_uniform" {
        /// The least value.
        low: -0.5,
        /// The bound above all values.
        high: 1.5,
    }
    1.0,
    |low, high| {
        let is_interval = low.is_finite() && high.is_finite() && low <= high;
        (!is_interval)
            .then(|| format!("its bounds {low} and {high} are not an interval; give finite ones, the lower first"))
    },
    |words, i, low, high| low + (high - low) * unit(words[i])
}

distribution! {
    /// Normally distributed values of a mean and a standard deviation. Input: key.
    ///
    /// Elements 2i and 2i + 1 of a sample are mean + std · √(-2 ln(1-u)) · (cos 2πv, sin 2πv), with u and v from their own
    /// two words.
    Normal = "random_normal" {
        /// The mean.
        mean: 0.25,
        /// The standard deviation.
        std: 1.5,
    }
    3.0,
    |mean, std| {
        let is_one = mean.is_finite() && std.is_finite() && std >= 0.0;
        (!is_one).then(|| format!("there is no normal distribution of mean {mean} and standard deviation {std}"))
    },
    |words, i, mean, std| mean + std * normal_pair([words[i / 2 * 2], words[i / 2 * 2 + 1]])[i % 2]
}

/// Normally distributed values around zero, those beyond two standard deviations drawn again. Input: key.
///
/// An element that lies beyond is taken from the next of the streams, where it may lie beyond too; what the last one leaves there, one
/// in 10⁹, is held at the bound. One op does it, since the first weights of a model are drawn by it, and the largest of them is to take no
/// more memory than its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TruncatedNormal {
    /// The type of the result.
    pub ty: Type,
    /// Numbers of the op: the first draw's, and those of what is drawn again.
    pub streams: [u32; TruncatedNormal::DRAWS],
    /// The standard deviation before anything is drawn again.
    pub std: Scalar,
}

impl TruncatedNormal {
    /// Draws of an element at most.
    pub const DRAWS: usize = 7;
}

impl Rule for TruncatedNormal {
    const NAME: &'static str = "random_truncated_normal";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [key] = ops::arity(inputs)?;
        check_key(key)?;
        check_values(&self.ty)?;
        match self.std.0.is_finite() && self.std.0 >= 0.0 {
            true => Ok(smallvec![self.ty.clone()]),
            false => Err(format!("there is no normal distribution of standard deviation {}", self.std)),
        }
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let words = word_cost(inputs, outputs);
        // One in 22 lies beyond, so of 64 that are drawn at once most have one and many a second.
        Cost { flops: 8.0 * words.flops, ..words }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("random values do not depend on anything differentiable"))
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let (std, bound) = (self.std.0, 2.0 * self.std.0);
        let drawn =
            |words: [u32; 4], i: usize| std * normal_pair([words[i / 2 * 2], words[i / 2 * 2 + 1]])[i % 2];
        let mut all = fill(&self.ty, source(inputs[0], self.streams[0]), drawn).data;
        for &stream in &self.streams[1..] {
            let again = fill(&self.ty, source(inputs[0], stream), drawn).data;
            all.iter_mut().zip(again).filter(|(x, _)| x.abs() > bound).for_each(|(x, y)| *x = y);
        }
        all.iter_mut().for_each(|x| *x = x.clamp(-bound, bound));
        vec![Array::new(self.ty.shape.clone(), all)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        drawn(dice, |ty, stream| {
            let streams = std::array::from_fn(|draw| stream + 100 * draw as u32);
            TruncatedNormal { ty, streams, std: Scalar(1.5) }
        })
    }
}

/// y = x / (1 - rate) where the element's draw is at least rate, else 0. Inputs: x, key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dropout {
    /// The share of elements that become 0, in [0, 1).
    pub rate: Scalar,
    /// The op's own number.
    pub stream: u32,
}

impl Dropout {
    /// The draws, as 24-bit integers, from which on an element is kept: the least n with n / 2²⁴ ≥ rate.
    pub fn threshold(&self) -> u32 {
        (self.rate.0 * f64::from(1 << 24)).ceil() as u32
    }

    /// What kept elements are multiplied by.
    pub fn scale(&self) -> f64 {
        1.0 / (1.0 - self.rate.0)
    }
}

impl Rule for Dropout {
    const NAME: &'static str = "dropout";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, key] = ops::arity(inputs)?;
        check_key(key)?;
        check_values(x)?;
        if !(0.0..1.0).contains(&self.rate.0) {
            return Err(format!(
                "a rate of {} is not in 0 ≤ rate < 1; it is the share of elements that go",
                self.rate
            ));
        }
        Ok(smallvec![x.clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand == 0
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        word_cost(inputs, outputs)
    }

    const KEEP: Keep = Keep::inputs(2);

    /// The same op with the same key: the mask is drawn again and need not be kept.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.push(*self, &[&at.grad(0)?, &at.input(1)?])?.remove(0)), None])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let kept = |words: [u32; 4], i: usize| f64::from(unit(words[i]) >= self.rate.0) * self.scale();
        let mut y = fill(&outputs[0], source(inputs[1], self.stream), kept);
        // A dropped element is 0 even where x is infinite.
        y.data.iter_mut().zip(&inputs[0].data).for_each(|(y, x)| *y = if *y == 0.0 { 0.0 } else { *y * x });
        vec![y]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for rate in [0.0, 0.1, 0.5, 0.9] {
            for shape in shapes(dice) {
                let op = Dropout { rate: Scalar(rate), stream: dice.range(0, 9) as u32 };
                examples.push(Example::new(
                    op,
                    vec![(Type::new(DType::F32, shape), Domain::Normal), key_input()],
                ));
            }
        }
        examples
    }
}

fn key_input() -> (Type, Domain) {
    (Type::new(DType::I64, [3]), Domain::Key)
}

/// Shapes with samples shorter and longer than a vector of blocks, a vector of samples, and a scalar.
fn shapes(dice: &mut Dice) -> [Vec<usize>; 4] {
    [
        vec![dice.range(1, 4), dice.range(1, 5), dice.range(1, 40)],
        vec![dice.range(1, 4), dice.range(60, 300)],
        vec![dice.range(1, 40)],
        vec![],
    ]
}

/// Random values and dropout. A key is an i64 tensor `[3]`: seed, step, index of the batch's first sample.
///
/// ```
/// use plimsoll_graph::{DType, RandomOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [8, 4]));
/// let key = trace.input("key", Type::new(DType::I64, [3]));
/// let noise = key.random_normal(x.ty().clone(), 0, 0.0, 0.1)?;
/// let y = x.add(&noise)?.dropout(0.2, &key, 1)?;
/// assert_eq!(y.ty(), x.ty());
/// assert!(x.dropout(1.0, &key, 2).is_err());
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait RandomOps: TensorOps {
    /// Values evenly spread over [low, high), drawn with this key by the op number `stream`.
    #[track_caller]
    fn random_uniform(&self, ty: Type, stream: u32, low: f64, high: f64) -> Result<Self, Self::Error> {
        let op = Uniform { ty, stream, low: Scalar(low), high: Scalar(high) };
        self.emit_one(op, &[self], Site::here())
    }

    /// Normally distributed values, drawn with this key by the op number `stream`.
    #[track_caller]
    fn random_normal(&self, ty: Type, stream: u32, mean: f64, std: f64) -> Result<Self, Self::Error> {
        let op = Normal { ty, stream, mean: Scalar(mean), std: Scalar(std) };
        self.emit_one(op, &[self], Site::here())
    }

    /// Normally distributed values around zero, drawn with this key; those beyond two standard deviations are drawn again by the op
    /// numbers that follow the first.
    #[track_caller]
    fn random_truncated_normal(
        &self,
        ty: Type,
        streams: [u32; TruncatedNormal::DRAWS],
        std: f64,
    ) -> Result<Self, Self::Error> {
        self.emit_one(TruncatedNormal { ty, streams, std: Scalar(std) }, &[self], Site::here())
    }

    /// This value with a share `rate` of its elements set to 0 and the others divided by 1 - rate.
    #[track_caller]
    fn dropout(&self, rate: f64, key: &Self, stream: u32) -> Result<Self, Self::Error> {
        self.emit_one(Dropout { rate: Scalar(rate), stream }, &[self, key], Site::here())
    }
}

impl<T: TensorOps> RandomOps for T {}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(op: &impl Rule, inputs: &[&Array], samples: usize) -> Vec<f64> {
        op.reference(inputs, &[Type::new(DType::F32, [samples, 7])]).remove(0).data
    }

    #[test]
    fn a_batch_of_ten_draws_what_its_pieces_of_four_four_and_two_draw() {
        let key = |first: usize| Array::new([3], vec![42.0, 7.0, first as f64]);
        let ty = |samples: usize| Type::new(DType::F32, [samples, 7]);
        let x = |samples: usize| Array::new([samples, 7], vec![1.0; samples * 7]);
        let all = |samples: usize, first: usize| {
            let (low, high, mean, std) = (Scalar(0.0), Scalar(1.0), Scalar(0.0), Scalar(1.0));
            let uniform = Uniform { ty: ty(samples), stream: 1, low, high };
            let normal = Normal { ty: ty(samples), stream: 2, mean, std };
            let dropout = Dropout { rate: Scalar(0.5), stream: 3 };
            let key = key(first);
            [
                draw(&uniform, &[&key], samples),
                draw(&normal, &[&key], samples),
                draw(&dropout, &[&x(samples), &key], samples),
            ]
        };
        let (whole, pieces) = (all(10, 0), [all(4, 0), all(4, 4), all(2, 8)]);
        for op in 0..3 {
            assert_eq!(whole[op], pieces.iter().flat_map(|p| p[op].clone()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_share_of_dropped_elements_is_the_rate() {
        let x = Array::new([1000, 7], vec![1.0; 7000]);
        let y = draw(
            &Dropout { rate: Scalar(0.3), stream: 0 },
            &[&x, &Array::new([3], vec![1.0, 0.0, 0.0])],
            1000,
        );
        let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / 7000.0;
        assert!((dropped - 0.3).abs() < 0.02, "{dropped}");
        assert!(y.iter().all(|&y| y == 0.0 || (y - 1.0 / 0.7).abs() < 1e-12));
    }

    #[test]
    fn rates_outside_zero_to_one_are_refused() {
        let (x, key) = (Type::new(DType::F32, [4]), Type::new(DType::I64, [3]));
        for rate in [-0.1, 1.0, 1.5, f64::NAN] {
            let error = Dropout { rate: Scalar(rate), stream: 0 }.infer(&[&x, &key]).unwrap_err();
            assert!(error.contains("rate"), "{error}");
        }
    }
}
