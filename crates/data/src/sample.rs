//! Samples: small lists of arrays, as views into bytes that somebody else owns.
//!
//! A sample never owns memory. Sources and steps write it straight into its row of a batch, or into a scratch
//! row that a thread keeps, so that a pipeline in its stride allocates nothing.

use bytemuck::{AnyBitPattern, NoUninit, Pod, Zeroable};
use plimsoll_graph::DType;
use smallvec::SmallVec;

use crate::error::{Error, Result};

/// What one array of a sample looks like.
///
/// ```
/// use plimsoll_data::FieldSpec;
/// use plimsoll_graph::DType;
///
/// let x = FieldSpec::new("x", DType::F32, [28, 28, 1]);
/// assert_eq!(x.bytes(), 3136);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    /// Its name: `x`, `y`, or what the file calls it.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its extents, without the axis of the batch. Where `varying`, the first is the most it can be.
    pub shape: Vec<usize>,
    /// Whether the first extent differs from sample to sample, as that of sentences does.
    pub varying: bool,
}

impl FieldSpec {
    /// An array of a fixed shape.
    pub fn new(name: &str, dtype: DType, shape: impl Into<Vec<usize>>) -> FieldSpec {
        FieldSpec { name: name.to_owned(), dtype, shape: shape.into(), varying: false }
    }

    /// An array whose first extent is at most `shape[0]`.
    pub fn varying(name: &str, dtype: DType, shape: impl Into<Vec<usize>>) -> FieldSpec {
        FieldSpec { varying: true, ..FieldSpec::new(name, dtype, shape) }
    }

    /// Bytes that one sample takes at most.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }

    /// The first extent, 1 for a scalar.
    pub(crate) fn first(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Bytes of one step along the first axis.
    pub(crate) fn inner_bytes(&self) -> usize {
        self.shape.iter().skip(1).product::<usize>() * self.dtype.bytes()
    }
}

/// A plain element type that the bytes of a field can be seen as.
pub trait Number: AnyBitPattern + NoUninit {
    /// The type as tensors name it.
    const DTYPE: DType;
}

macro_rules! numbers {
    ($($type:ty => $dtype:ident),*) => { $(impl Number for $type { const DTYPE: DType = DType::$dtype; })* };
}

numbers!(f32 => F32, f64 => F64, i64 => I64, i32 => I32, u8 => U8, half::f16 => F16, half::bf16 => BF16);

fn as_type<T: Number>(field: &FieldSpec) -> Result<()> {
    if T::DTYPE == field.dtype || (T::DTYPE == DType::U8 && field.dtype == DType::Bool) {
        return Ok(());
    }
    Err(Error::refused(format!("field '{}' is of type {}, not {}", field.name, field.dtype, T::DTYPE)))
}

fn no_field(index: usize, spec: &[FieldSpec]) -> Error {
    Error::refused(format!("there is no field {index}; the sample has {}", spec.len()))
}

/// A sample to read.
pub struct Sample<'a> {
    pub(crate) spec: &'a [FieldSpec],
    pub(crate) bytes: SmallVec<[&'a [u8]; 4]>,
    pub(crate) lens: &'a [u32],
}

impl<'a> Sample<'a> {
    /// What its fields look like.
    pub fn spec(&self) -> &'a [FieldSpec] {
        self.spec
    }

    /// The bytes of a field, as long as this sample's are; none where there is no such field.
    pub fn bytes(&self, field: usize) -> &'a [u8] {
        let Some(spec) = self.spec.get(field) else { return &[] };
        &self.bytes[field][..self.lens[field] as usize * spec.inner_bytes()]
    }

    /// The first extent of a field in this sample.
    pub fn len(&self, field: usize) -> usize {
        self.lens.get(field).map_or(0, |&len| len as usize)
    }

    /// Whether the sample has no fields.
    pub fn is_empty(&self) -> bool {
        self.spec.is_empty()
    }

    /// The elements of a field; an error where they are of another type.
    pub fn get<T: Number>(&self, field: usize) -> Result<&'a [T]> {
        as_type::<T>(self.spec.get(field).ok_or_else(|| no_field(field, self.spec))?)?;
        bytemuck::try_cast_slice(self.bytes(field)).map_err(|error| Error::refused(error.to_string()))
    }
}

/// A sample to write.
pub struct SampleMut<'a> {
    pub(crate) spec: &'a [FieldSpec],
    pub(crate) bytes: SmallVec<[&'a mut [u8]; 4]>,
    pub(crate) lens: &'a mut [u32],
}

impl SampleMut<'_> {
    /// What its fields look like.
    pub fn spec(&self) -> &[FieldSpec] {
        self.spec
    }

    /// All bytes of a field, the room for the longest included; none where there is no such field.
    pub fn bytes_mut(&mut self, field: usize) -> &mut [u8] {
        self.bytes.get_mut(field).map_or(&mut [], |bytes| &mut **bytes)
    }

    /// The elements of a field, the room for the longest included; an error where they are of another type.
    pub fn get_mut<T: Number>(&mut self, field: usize) -> Result<&mut [T]> {
        as_type::<T>(self.spec.get(field).ok_or_else(|| no_field(field, self.spec))?)?;
        bytemuck::try_cast_slice_mut(&mut *self.bytes[field])
            .map_err(|error| Error::refused(error.to_string()))
    }

    /// Writes a whole field; its first extent becomes what the elements are enough for.
    pub fn set<T: Number>(&mut self, field: usize, elements: &[T]) -> Result<()> {
        let spec = self.spec.get(field).ok_or_else(|| no_field(field, self.spec))?;
        let (inner, room) = (spec.inner_bytes() / spec.dtype.bytes(), spec.bytes() / spec.dtype.bytes());
        let whole = elements.len().is_multiple_of(inner.max(1)) && elements.len() <= room;
        if !whole || (!spec.varying && elements.len() != room) {
            let what = format!(
                "{} elements do not make field '{}' of shape {:?}{}",
                elements.len(),
                spec.name,
                spec.shape,
                if spec.varying { " or shorter" } else { "" }
            );
            return Err(Error::refused(what));
        }
        self.get_mut::<T>(field)?[..elements.len()].copy_from_slice(elements);
        if spec.varying {
            self.lens[field] = (elements.len() / inner.max(1)) as u32;
        }
        Ok(())
    }

    /// Says how long this sample's field is; no effect on fields of a fixed shape.
    pub fn set_len(&mut self, field: usize, len: usize) {
        if let Some(spec) = self.spec.get(field)
            && spec.varying
        {
            self.lens[field] = len.min(spec.first()) as u32;
        }
    }

    /// The sample as written so far.
    pub fn view(&self) -> Sample<'_> {
        Sample { spec: self.spec, bytes: self.bytes.iter().map(|bytes| &**bytes).collect(), lens: self.lens }
    }

    /// Copies one field of a sample of the same fields.
    pub(crate) fn copy_field(&mut self, field: usize, from: &Sample<'_>) {
        let bytes = from.bytes(field);
        self.bytes[field][..bytes.len()].copy_from_slice(bytes);
        self.lens[field] = from.lens[field];
    }

    /// Copies a sample of the same fields.
    pub(crate) fn copy_from(&mut self, from: &Sample<'_>) {
        (0..self.spec.len()).for_each(|field| self.copy_field(field, from));
    }
}

/// A line of the processor's cache: what all batches and scratch rows are made of, so that every array in them
/// begins at a multiple of 64 bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

/// Bytes that begin at a multiple of 64.
#[derive(Default)]
pub(crate) struct Aligned(Vec<Line>);

impl Aligned {
    pub fn zeroed(bytes: usize) -> Aligned {
        Aligned(vec![Line([0; 64]); bytes.div_ceil(64)])
    }

    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Rows of samples in one block: scratch of a thread, or the window of a shuffle.
pub(crate) struct Rows {
    data: Aligned,
    lens: Vec<u32>,
    stride: usize,
}

impl Rows {
    /// Bytes of one row: every field begins at a multiple of 64.
    pub fn stride(spec: &[FieldSpec]) -> usize {
        spec.iter().map(|field| field.bytes().next_multiple_of(64)).sum()
    }

    /// Bytes that `rows` rows take, lengths included.
    pub fn bytes_for(spec: &[FieldSpec], rows: usize) -> u64 {
        (Rows::stride(spec) as u64 + 4 * spec.len() as u64).saturating_mul(rows as u64)
    }

    pub fn new(spec: &[FieldSpec], rows: usize) -> Rows {
        let stride = Rows::stride(spec);
        let lens = (0..rows).flat_map(|_| spec.iter().map(|field| field.first() as u32)).collect();
        Rows { data: Aligned::zeroed(stride * rows), lens, stride }
    }

    pub fn row<'a>(&'a self, spec: &'a [FieldSpec], row: usize) -> Sample<'a> {
        let mut rest = &self.data.bytes()[row * self.stride..(row + 1) * self.stride];
        let bytes = spec.iter().map(|field| {
            let (this, after) = rest.split_at(field.bytes().next_multiple_of(64));
            rest = after;
            &this[..field.bytes()]
        });
        Sample { spec, bytes: bytes.collect(), lens: &self.lens[row * spec.len()..(row + 1) * spec.len()] }
    }

    pub fn row_mut<'a>(&'a mut self, spec: &'a [FieldSpec], row: usize) -> SampleMut<'a> {
        let mut rest = &mut self.data.bytes_mut()[row * self.stride..(row + 1) * self.stride];
        let mut bytes = SmallVec::new();
        for field in spec {
            let (this, after) = rest.split_at_mut(field.bytes().next_multiple_of(64));
            rest = after;
            bytes.push(&mut this[..field.bytes()]);
        }
        SampleMut { spec, bytes, lens: &mut self.lens[row * spec.len()..(row + 1) * spec.len()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_aligned_typed_and_checked() {
        let spec = [FieldSpec::new("x", DType::F32, [3]), FieldSpec::varying("t", DType::I64, [4, 2])];
        let mut rows = Rows::new(&spec, 2);
        let mut row = rows.row_mut(&spec, 1);
        row.set(0, &[1f32, 2.0, 3.0]).unwrap();
        row.set(1, &[7i64, 8]).unwrap();
        assert!(row.set(0, &[1f32]).unwrap_err().to_string().contains("1 elements do not make field 'x'"));
        assert!(row.set(1, &[1i64]).is_err());
        assert!(row.set(1, &[0i64; 10]).is_err());
        assert!(row.set(0, &[1i64, 2, 3]).unwrap_err().to_string().contains("of type f32, not i64"));
        assert!(row.set(2, &[0u8]).is_err());
        drop(row);
        let row = rows.row(&spec, 1);
        assert_eq!(row.get::<f32>(0).unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!((row.get::<i64>(1).unwrap(), row.len(1)), (&[7i64, 8][..], 1));
        for field in 0..2 {
            assert_eq!(row.bytes(field).as_ptr() as usize % 64, 0);
        }
    }
}
