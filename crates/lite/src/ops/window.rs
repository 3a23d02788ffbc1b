//! How a window slides over a picture: sizes, steps and padding of convolutions and pools.

use super::Call;
use crate::error::Result;

/// A window along one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The length of what it slides over.
    pub length: usize,
    /// How many places it has.
    pub places: usize,
    /// How many elements it looks at.
    pub size: usize,
    /// How far it goes from place to place.
    pub step: usize,
    /// How far its elements are apart.
    pub dilation: usize,
    /// By how much the first place is before the first element.
    pub before: usize,
}

impl Span {
    /// A span by the rules of `SAME` (0) and `VALID` (1) padding; refused unless it has that many places.
    pub fn new(
        call: &Call<'_, '_>,
        padding: u8,
        length: usize,
        places: usize,
        size: usize,
        step: i32,
        dilation: i32,
    ) -> Result<Self> {
        let positive = |value: i32| (1..=65_535).contains(&value);
        call.ensure(positive(step) && positive(dilation), "a stride or dilation is not a positive number")?;
        call.ensure(size > 0 && size < 1 << 24 && length < 1 << 30, "its window is empty or too large")?;
        let (step, dilation) = (step as usize, dilation as usize);
        let reach = (size as u64 - 1) * dilation as u64 + 1;
        call.ensure(reach < 1 << 30, "its window is too large")?;
        let reach = reach as usize;
        let expected = match padding {
            0 => length.div_ceil(step),
            1 if length >= reach => (length - reach) / step + 1,
            1 => return call.refuse("its window is larger than its operand"),
            _ => return call.refuse("its padding is neither SAME nor VALID"),
        };
        call.ensure(places == expected, "its result has another shape")?;
        let before = if padding == 0 { ((places - 1) * step + reach).saturating_sub(length) / 2 } else { 0 };
        Ok(Self { length, places, size, step, dilation, before })
    }

    /// The same span where so much of what it slides over, before and behind, is padding that is in no memory.
    pub fn without(self, [before, behind]: [usize; 2]) -> Self {
        Self { length: self.length - before - behind, before: self.before + before, ..self }
    }

    /// The element that the window looks at, unless it is padding.
    #[inline(always)]
    pub fn at(&self, place: usize, element: usize) -> Option<usize> {
        (place * self.step + element * self.dilation).checked_sub(self.before).filter(|at| *at < self.length)
    }
}
