//! Turns a seed into samples of random numbers: data of any shape to try the speed and the memory of a model with.
//!
//! A number is a function of seed, sample, field and place, and is quickly made. So no thread makes batches ahead and the pipeline
//! keeps none: a batch is written straight to where it is wanted ([`Batch::write_field`](crate::Batch::write_field)).

use plimsoll_graph::DType;
use plimsoll_graph::philox::mix;

use super::{Scratch, Source, spec_and_len};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::sample::{FieldSpec, SampleMut};

/// What the numbers of a field are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// Spread evenly around 0, with a variance of 1: what most models expect of their inputs.
    Centered,
    /// Spread evenly from 0 to 1.
    Unit,
    /// Whole numbers from 0 on, below this: classes, or tokens.
    Below(usize),
    /// 1 everywhere: a token that every vocabulary has, and that no mask leaves out as it does 0.
    One,
}

/// Random numbers as samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Random {
    /// What samples look like.
    pub spec: Vec<FieldSpec>,
    /// What the numbers of each field are.
    pub draws: Vec<Draw>,
    /// How many samples there are.
    pub count: u64,
    /// What tells one set of samples from another.
    pub seed: u64,
}

/// Half of the width of an even distribution of variance 1.
const HALF: f32 = 1.732_050_8;

impl Random {
    /// Writes field `field` of sample `number` to `out`, which has as many bytes.
    pub fn write(&self, number: u64, field: usize, out: &mut [u8]) {
        let (Some(spec), Some(&draw)) = (self.spec.get(field), self.draws.get(field)) else { return };
        let key = mix(self.seed ^ mix((number << 8).wrapping_add(field as u64 + 1)));
        let size = spec.dtype.bytes();
        // Two numbers of each hash.
        for (at, pair) in out.chunks_mut(2 * size).enumerate() {
            let bits = mix(key.wrapping_add(at as u64));
            for (half, slot) in pair.chunks_exact_mut(size).enumerate() {
                write_number(spec.dtype, draw, (bits >> (32 * half)) as u32, slot);
            }
        }
    }
}

/// Writes one number that is made of random bits.
fn write_number(dtype: DType, draw: Draw, bits: u32, slot: &mut [u8]) {
    let whole = match draw {
        Draw::Below(most) => (u64::from(bits) * most.max(1) as u64) >> 32,
        Draw::Centered | Draw::Unit => u64::from(bits & 1),
        Draw::One => 1,
    };
    let unit = (bits >> 8) as f32 / (1 << 24) as f32;
    let number = match draw {
        Draw::Centered => (2.0 * unit - 1.0) * HALF,
        Draw::Unit => unit,
        Draw::Below(_) | Draw::One => whole as f32,
    };
    match dtype {
        DType::F32 => slot.copy_from_slice(&number.to_ne_bytes()),
        DType::F64 => slot.copy_from_slice(&f64::from(number).to_ne_bytes()),
        DType::F16 => slot.copy_from_slice(&half::f16::from_f32(number).to_ne_bytes()),
        DType::BF16 => slot.copy_from_slice(&half::bf16::from_f32(number).to_ne_bytes()),
        DType::I64 => slot.copy_from_slice(&(whole as i64).to_ne_bytes()),
        DType::I32 => slot.copy_from_slice(&(whole as i32).to_ne_bytes()),
        DType::U32 => slot.copy_from_slice(&(whole as u32).to_ne_bytes()),
        // A number that does not fit would come out negative.
        DType::I16 => slot.copy_from_slice(&(whole.min(i16::MAX as u64) as i16).to_ne_bytes()),
        DType::I8 => slot.copy_from_slice(&(whole.min(i8::MAX as u64) as i8).to_ne_bytes()),
        DType::U16 => slot.copy_from_slice(&(whole as u16).to_ne_bytes()),
        DType::U8 => slot.copy_from_slice(&[whole as u8]),
        DType::Bool => slot.copy_from_slice(&[u8::from(whole > 0)]),
    }
}

impl Source for Random {
    spec_and_len!(count);

    fn read(&self, index: u64, _: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        (0..self.spec.len()).for_each(|field| self.write(index, field, out.bytes_mut(field)));
        Ok(())
    }

    fn name(&self) -> String {
        "random numbers".to_owned()
    }

    fn random(&self) -> Option<&Random> {
        Some(self)
    }
}

impl Dataset {
    /// Random numbers: to see how fast a model is and what memory it takes, without data. The pipeline takes no memory.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Draw, FieldSpec, Random};
    /// use plimsoll_graph::DType;
    ///
    /// let spec = vec![FieldSpec::new("x", DType::F32, [4]), FieldSpec::new("y", DType::I64, [])];
    /// let random = Random { spec, draws: vec![Draw::Centered, Draw::Below(10)], count: 100, seed: 42 };
    /// let data = Dataset::random(random).batch(50);
    /// assert_eq!(data.declared_bytes()?.get(), 0);
    /// let batch = data.batches()?.next().unwrap()?;
    /// assert!(batch.field(1).unwrap().get::<i64>()?.iter().all(|label| (0..10).contains(label)));
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    pub fn random(random: Random) -> Dataset {
        Dataset::source(random)
    }
}
