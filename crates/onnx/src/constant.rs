//! Turns tensors of a file into values on the host, and values into tensors of a file.

use plimsoll_graph::{DType, Shape, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};
use prost::Message;
use prost::bytes::Bytes;

use crate::messages::TensorProto;
use crate::messages::tensor_proto::{DataLocation, DataType};

/// A value that is known before the model runs: elements in the machine's order of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Element type and shape.
    pub ty: Type,
    /// The elements.
    pub bytes: Bytes,
}

/// The element type of ours for one of ONNX's, or its name where there is none.
pub(crate) fn dtype_of(data_type: i32) -> Result<DType, String> {
    let known = DataType::try_from(data_type).map_err(|_| format!("type number {data_type}"))?;
    Ok(match known {
        DataType::Float => DType::F32,
        DataType::Double => DType::F64,
        DataType::Float16 => DType::F16,
        DataType::Bfloat16 => DType::BF16,
        DataType::Int64 => DType::I64,
        DataType::Int32 => DType::I32,
        DataType::Int16 => DType::I16,
        DataType::Int8 => DType::I8,
        DataType::Uint32 => DType::U32,
        DataType::Uint16 => DType::U16,
        DataType::Uint8 => DType::U8,
        DataType::Bool => DType::Bool,
        other => return Err(other.as_str_name().to_lowercase()),
    })
}

/// ONNX's number of an element type.
pub(crate) fn data_type_of(dtype: DType) -> DataType {
    match dtype {
        DType::F32 => DataType::Float,
        DType::F64 => DataType::Double,
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        DType::I64 => DataType::Int64,
        DType::I32 => DataType::Int32,
        DType::I16 => DataType::Int16,
        DType::I8 => DataType::Int8,
        DType::U32 => DataType::Uint32,
        DType::U16 => DataType::Uint16,
        DType::U8 => DataType::Uint8,
        DType::Bool => DataType::Bool,
    }
}

/// The type of a stored tensor, or what is wrong with it.
pub(crate) fn type_of(tensor: &TensorProto) -> Result<Type, String> {
    let dtype = dtype_of(tensor.data_type.unwrap_or(0))
        .map_err(|name| format!("its elements are {name}, which has no counterpart here"))?;
    let mut shape = Shape::default();
    if tensor.dims.len() > 32 {
        return Err(format!("it has {} axes", tensor.dims.len()));
    }
    for &n in &tensor.dims {
        shape.push(usize::try_from(n).map_err(|_| format!("it has an axis of length {n}"))?);
    }
    let ty = Type::new(dtype, shape);
    if ty.is_too_large() {
        return Err(format!("{ty} is more than any machine can hold"));
    }
    Ok(ty)
}

impl Constant {
    /// A tensor as a file of its own, as onnx's tests have them (`input_0.pb`): its name and its elements.
    ///
    /// # Errors
    /// What is wrong with it: it is damaged, or has elements that have no counterpart here.
    pub fn from_pb(bytes: Vec<u8>) -> Result<(String, Constant), String> {
        let tensor = TensorProto::decode(Bytes::from(bytes)).map_err(|why| why.to_string())?;
        Ok((tensor.name.clone().unwrap_or_default(), Constant::read(&tensor)?))
    }

    /// The elements as f64; those of 64-bit integers beyond 2⁵³ are rounded.
    pub fn elements(&self) -> Vec<f64> {
        self.to_f64()
    }

    /// A tensor of a file that lies in the file itself.
    pub(crate) fn read(tensor: &TensorProto) -> Result<Constant, String> {
        let ty = type_of(tensor)?;
        if tensor.data_location == Some(DataLocation::External as i32) {
            return Err("its elements lie in another file, which is allowed for initializers only".into());
        }
        if tensor.segment.is_some() {
            return Err("it is a segment of a tensor, which is not read here".into());
        }
        let n = ty.elements();
        let wants = |found: usize| match found == n {
            true => Ok(()),
            false => Err(format!("it is {ty}, but {found} elements are stored")),
        };
        if let Some(raw) = &tensor.raw_data {
            return Constant::from_le(ty, raw.clone());
        }
        let ints = |bytes: fn(i32) -> Vec<u8>| -> Result<Vec<u8>, String> {
            wants(tensor.int32_data.len())?;
            Ok(tensor.int32_data.iter().flat_map(|&x| bytes(x)).collect())
        };
        let bytes: Vec<u8> = match ty.dtype {
            DType::F32 => {
                wants(tensor.float_data.len())?;
                tensor.float_data.iter().flat_map(|x| x.to_ne_bytes()).collect()
            }
            DType::F64 => {
                wants(tensor.double_data.len())?;
                tensor.double_data.iter().flat_map(|x| x.to_ne_bytes()).collect()
            }
            DType::I64 => {
                wants(tensor.int64_data.len())?;
                tensor.int64_data.iter().flat_map(|x| x.to_ne_bytes()).collect()
            }
            DType::U32 => {
                wants(tensor.uint64_data.len())?;
                tensor.uint64_data.iter().flat_map(|&x| (x as u32).to_ne_bytes()).collect()
            }
            DType::I32 => ints(|x| x.to_ne_bytes().to_vec())?,
            DType::I16 => ints(|x| (x as i16).to_ne_bytes().to_vec())?,
            DType::U16 | DType::F16 | DType::BF16 => ints(|x| (x as u16).to_ne_bytes().to_vec())?,
            DType::I8 => ints(|x| (x as i8).to_ne_bytes().to_vec())?,
            DType::U8 => ints(|x| vec![x as u8])?,
            DType::Bool => ints(|x| vec![u8::from(x != 0)])?,
        };
        Ok(Constant { ty, bytes: bytes.into() })
    }

    /// Elements as a file holds them, the lowest byte first.
    pub(crate) fn from_le(ty: Type, bytes: Bytes) -> Result<Constant, String> {
        if bytes.len() != ty.bytes() {
            return Err(format!("it is {ty}, but {} bytes are stored", bytes.len()));
        }
        let width = ty.dtype.bytes();
        let bytes = if ty.dtype == DType::Bool {
            // Any other byte than 0 is true.
            bytes.iter().map(|&x| u8::from(x != 0)).collect::<Vec<u8>>().into()
        } else if cfg!(target_endian = "big") && width > 1 {
            let mut swapped = bytes.to_vec();
            swapped.chunks_exact_mut(width).for_each(<[u8]>::reverse);
            swapped.into()
        } else {
            bytes
        };
        Ok(Constant { ty, bytes })
    }

    /// Elements in the order of bytes of a file.
    pub(crate) fn to_le(&self) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        if cfg!(target_endian = "big") {
            bytes.chunks_exact_mut(self.ty.dtype.bytes()).for_each(<[u8]>::reverse);
        }
        bytes
    }

    /// A row of whole numbers.
    pub(crate) fn ints(values: &[i64]) -> Constant {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        Constant { ty: Type::new(DType::I64, [values.len()]), bytes: bytes.into() }
    }

    /// One whole number.
    pub(crate) fn int(value: i64) -> Constant {
        Constant { ty: Type::new(DType::I64, []), bytes: value.to_ne_bytes().to_vec().into() }
    }

    /// A tensor that has its bytes.
    pub(crate) fn of(tensor: &Tensor) -> RunResult<Constant> {
        Ok(Constant { ty: tensor.ty().clone(), bytes: tensor.to_bytes()?.into() })
    }

    /// A tensor on the current device.
    pub(crate) fn tensor(&self) -> RunResult<Tensor> {
        let mut tensor = Tensor::zeros(self.ty.clone())?;
        tensor.set_bytes(&self.bytes)?;
        Ok(tensor)
    }

    /// The elements as f64.
    pub(crate) fn to_f64(&self) -> Vec<f64> {
        let take = |slot: &[u8]| match (self.ty.dtype, slot) {
            (DType::F32, &[a, b, c, d]) => f64::from(f32::from_ne_bytes([a, b, c, d])),
            (DType::F64, &[a, b, c, d, e, f, g, h]) => f64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            (DType::F16, &[a, b]) => half::f16::from_ne_bytes([a, b]).to_f64(),
            (DType::BF16, &[a, b]) => half::bf16::from_ne_bytes([a, b]).to_f64(),
            (_, slot) => integer(self.ty.dtype, slot) as f64,
        };
        self.bytes.chunks_exact(self.ty.dtype.bytes()).map(take).collect()
    }

    /// The elements as whole numbers; none where they are fractions.
    pub(crate) fn to_i64(&self) -> Option<Vec<i64>> {
        let dtype = self.ty.dtype;
        if dtype.is_float() {
            return None;
        }
        Some(self.bytes.chunks_exact(dtype.bytes()).map(|slot| integer(dtype, slot)).collect())
    }

    /// The only element.
    pub(crate) fn one(&self) -> Option<f64> {
        if self.ty.elements() == 1 { self.to_f64().first().copied() } else { None }
    }
}

fn integer(dtype: DType, slot: &[u8]) -> i64 {
    match (dtype, slot) {
        (DType::I64, &[a, b, c, d, e, f, g, h]) => i64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        (DType::I32, &[a, b, c, d]) => i64::from(i32::from_ne_bytes([a, b, c, d])),
        (DType::U32, &[a, b, c, d]) => i64::from(u32::from_ne_bytes([a, b, c, d])),
        (DType::I16, &[a, b]) => i64::from(i16::from_ne_bytes([a, b])),
        (DType::U16, &[a, b]) => i64::from(u16::from_ne_bytes([a, b])),
        (DType::I8, &[a]) => i64::from(a as i8),
        (_, &[a]) => i64::from(a),
        _ => 0,
    }
}
