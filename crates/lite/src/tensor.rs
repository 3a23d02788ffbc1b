//! Turns a tensor's table into what operators ask of it: shape, type, bytes in the file, quantization.

use crate::bytes::{chunks, f, i};
use crate::error::{Error, Result};
use crate::flat::{Table, Tables};
use crate::quant::Affine;
use crate::schema::Type;

/// The most dimensions that a tensor may have.
pub const MAX_RANK: usize = 6;

/// The lengths of a tensor's dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    rank: usize,
    dims: [usize; MAX_RANK],
}

impl Shape {
    /// A shape of at most [`MAX_RANK`] dimensions.
    pub fn new(dims: impl IntoIterator<Item = usize>) -> Option<Self> {
        let mut shape = Self::default();
        for dim in dims {
            *shape.dims.get_mut(shape.rank)? = dim;
            shape.rank += 1;
        }
        Some(shape)
    }

    /// The lengths.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// How many elements there are.
    pub fn count(&self) -> usize {
        self.dims().iter().product()
    }

    /// The four lengths of a batch of pictures.
    pub fn four(&self) -> Option<[usize; 4]> {
        self.dims().try_into().ok()
    }

    /// The lengths with ones before them, so that there are six.
    pub fn padded(&self) -> [usize; MAX_RANK] {
        let mut all = [1; MAX_RANK];
        all[MAX_RANK - self.rank..].copy_from_slice(self.dims());
        all
    }

    /// A dimension counted from the front, or from the back if negative.
    pub fn axis(&self, axis: impl Into<i64>) -> Option<usize> {
        let (axis, rank) = (axis.into(), self.rank as i64);
        (-rank..rank).contains(&axis).then(|| axis.rem_euclid(rank) as usize)
    }
}

/// How many elements lie between neighbours of each of six dimensions.
pub fn strides(dims: &[usize; MAX_RANK]) -> [isize; MAX_RANK] {
    let mut strides = [1; MAX_RANK];
    for axis in (0..MAX_RANK - 1).rev() {
        strides[axis] = strides[axis + 1] * dims[axis + 1] as isize;
    }
    strides
}

/// Where a tensor's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// In the file.
    File(&'a [u8]),
    /// In the arena, in the slot of that number; its offset once it is planned.
    Arena(usize),
    /// Nowhere: no operator makes it.
    Nowhere,
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    pub shape: Shape,
    pub kind: Type,
    pub bytes: usize,
    pub place: Place<'a>,
    pub name: &'a str,
    pub scales: &'a [[u8; 4]],
    pub zeros: &'a [[u8; 8]],
    pub axis: usize,
}

/// How many zeros there are before and behind the lines of a picture, and before and behind the pixels of a line.
pub type Border = [[usize; 2]; 2];

impl<'a> Tensor<'a> {
    /// Reads the tensor of that index.
    pub fn read(index: usize, table: Table<'a>, buffers: &Tables<'a>, file: &'a [u8]) -> Result<Self> {
        let wrong = |why| Error::Tensor { index, why };
        let kind = Type::new(table.u8(1, 0, "a tensor's type")?)
            .ok_or(wrong("its type is none of float32, float16, int8, uint8, int32, int64 and bool"))?;
        let dims = table.vector::<4>(0, "a tensor's shape")?;
        if dims.len() > MAX_RANK {
            return Err(wrong("it has more than six dimensions"));
        }
        let mut bytes = kind.bytes();
        for dim in dims {
            let dim = usize::try_from(i(*dim)).map_err(|_| wrong("a dimension is negative"))?;
            if dim == 0 && kind != Type::I32 {
                return Err(wrong("a dimension is zero"));
            }
            bytes = bytes
                .checked_mul(dim)
                .filter(|bytes| *bytes <= isize::MAX as usize / 8)
                .ok_or(wrong("it is larger than memory can be"))?;
        }
        let shape =
            Shape::new(dims.iter().map(|dim| i(*dim) as usize)).ok_or(wrong("its shape is too long"))?;
        if table.bool(5, "whether a tensor is a variable")? {
            return Err(wrong("it is a variable, and state between runs is not supported"));
        }
        if table.table(6, "a tensor's sparsity")?.is_some() {
            return Err(wrong("it is stored as a sparse tensor, which is not supported"));
        }
        let place = match data(table.u32(2, "a tensor's buffer")?, buffers, file)? {
            Some(data) if data.len() == bytes => Place::File(data),
            Some(_) => return Err(wrong("its buffer has another length than its shape and type say")),
            None if bytes == 0 => Place::File(&[]),
            None => Place::Nowhere,
        };
        let name = table.string(3, "a tensor's name")?;
        let mut tensor = Self { shape, kind, bytes, place, name, scales: &[], zeros: &[], axis: 0 };
        if let Some(quantization) = table.table(4, "a tensor's quantization")? {
            tensor.read_quantization(index, quantization)?;
        }
        Ok(tensor)
    }

    fn read_quantization(&mut self, index: usize, table: Table<'a>) -> Result<()> {
        let wrong = |why| Err(Error::Tensor { index, why });
        if table.u8(4, 0, "a tensor's kind of quantization")? != 0 {
            return wrong("it has a quantization of its own kind");
        }
        let scales = table.vector::<4>(2, "a tensor's scales")?;
        let zeros = table.vector::<8>(3, "a tensor's zero points")?;
        if scales.is_empty() {
            return if zeros.is_empty() { Ok(()) } else { wrong("it has zero points and no scales") };
        }
        let axis = table.i32(6, 0, "a tensor's quantized dimension")?;
        if scales.len() > 1 {
            let Some(axis) = self.shape.axis(axis).filter(|_| axis >= 0) else {
                return wrong("its quantized dimension does not exist");
            };
            if self.shape.dims()[axis] != scales.len() {
                return wrong("it has another number of scales than its quantized dimension is long");
            }
            self.axis = axis;
        }
        if !zeros.is_empty() && zeros.len() != scales.len() {
            return wrong("it has another number of zero points than of scales");
        }
        if scales.iter().any(|scale| !(f(*scale).is_finite() && f(*scale) > 0.0)) {
            return wrong("a scale is not a positive number");
        }
        let range = match self.kind {
            Type::I8 => -128..=127,
            Type::U8 => 0..=255,
            _ => 0..=0,
        };
        if zeros.iter().any(|zero| !range.contains(&i64::from_le_bytes(*zero))) {
            return wrong("a zero point is not within its type");
        }
        (self.scales, self.zeros) = (scales, zeros);
        Ok(())
    }

    /// The one scale and zero point of the tensor, if it has one.
    pub fn affine(&self) -> Option<Affine> {
        match self.scales {
            [scale] => Some(Affine { scale: f(*scale), zero: self.zero(0) }),
            _ => None,
        }
    }

    /// A zero point; zero where the file has none.
    pub fn zero(&self, index: usize) -> i32 {
        self.zeros.get(index).map_or(0, |zero| i64::from_le_bytes(*zero) as i32)
    }

    /// The scale along the quantized dimension; the one scale there is, if it is one for all.
    pub fn scale(&self, index: usize) -> Option<f32> {
        match self.scales {
            [scale] => Some(f(*scale)),
            scales => scales.get(index).map(|scale| f(*scale)),
        }
    }

    /// Its bytes in the file.
    pub fn constant(&self) -> Option<&'a [u8]> {
        match self.place {
            Place::File(data) => Some(data),
            _ => None,
        }
    }

    /// The whole numbers of a constant, of 32 or 64 bits.
    pub fn numbers(&self) -> Option<impl ExactSizeIterator<Item = i64> + use<'a>> {
        let data = self.constant()?;
        let wide = self.kind == Type::I64;
        if !wide && self.kind != Type::I32 {
            return None;
        }
        let step = if wide { 8 } else { 4 };
        Some(data.chunks_exact(step).map(move |bytes| match (chunks::<8>(bytes), chunks::<4>(bytes)) {
            ([long], _) => i64::from_le_bytes(*long),
            (_, [short]) => i64::from(i(*short)),
            _ => 0,
        }))
    }
}

/// The bytes of a buffer; none for one that is empty.
fn data<'a>(index: usize, buffers: &Tables<'a>, file: &'a [u8]) -> Result<Option<&'a [u8]>> {
    if index == 0 {
        return Ok(None);
    }
    let buffer = buffers.get(index)?;
    let inside = buffer.vector::<1>(0, "a buffer")?.as_flattened();
    if !inside.is_empty() {
        return Ok(Some(inside));
    }
    // Files beyond two gigabytes keep their buffers behind the tables.
    let (offset, size) = (buffer.u64(1, "a buffer's offset")?, buffer.u64(2, "a buffer's size")?);
    if offset <= 1 || size == 0 {
        return Ok(None);
    }
    let at = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
    match at.and_then(|(offset, size)| file.get(offset..)?.get(..size)) {
        Some(data) => Ok(Some(data)),
        None => Err(Error::Damaged { what: "a buffer behind the tables", at: offset as usize }),
    }
}
