//! One call of a user's kernel on the CPU: operands as slices of their element types, scratch, and the threads.

use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::CustomOp;
use crate::reference::Array;
use crate::{DType, Type};

/// Both enums from one list of element types: slices to be read, and slices to be written.
macro_rules! elements {
    ($($variant:ident: $ty:ty),+) => {
        /// The elements of an operand, to be read. 16-bit floats are their bits.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "the names of element types")]
        pub enum Elements<'a> {
            $( $variant(&'a [$ty]), )+
        }

        /// The elements of an operand, to be written. Their content before is anything.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "the names of element types")]
        pub enum ElementsMut<'a> {
            $( $variant(&'a mut [$ty]), )+
        }
    };
}

elements! {
    F32: f32, F64: f64, BF16: u16, F16: u16, I64: i64, I32: i32, I16: i16, I8: i8, U32: u32, U16: u16, U8: u8, Bool: u8
}

macro_rules! as_slices {
    ($( $(#[$doc:meta])+ $method:ident: $variant:ident, $ty:ty; )+) => {
        impl<'a> Elements<'a> {
            $( $(#[$doc])+ pub fn $method(self) -> Result<&'a [$ty], String> {
                match self {
                    Elements::$variant(elements) => Ok(elements),
                    other => Err(format!("its kernel reads {} as {}", other.dtype(), stringify!($method))),
                }
            } )+

            /// The type of the elements.
            pub fn dtype(self) -> DType {
                match self { $( Elements::$variant(_) => DType::$variant, )+ Elements::Bool(_) => DType::Bool }
            }
        }

        impl ElementsMut<'_> {
            $( $(#[$doc])+ pub fn $method(&mut self) -> Result<&mut [$ty], String> {
                match self {
                    ElementsMut::$variant(elements) => Ok(elements),
                    other => Err(format!("its kernel writes {} as {}", other.dtype(), stringify!($method))),
                }
            } )+

            /// The type of the elements.
            pub fn dtype(&self) -> DType {
                match self { $( ElementsMut::$variant(_) => DType::$variant, )+ ElementsMut::Bool(_) => DType::Bool }
            }
        }
    };
}

as_slices! {
    /// The elements, if they are f32; else what the kernel took them for.
    f32: F32, f32;
    /// The elements, if they are f64; else what the kernel took them for.
    f64: F64, f64;
    /// The bits of the elements, if they are bf16; else what the kernel took them for.
    bf16: BF16, u16;
    /// The bits of the elements, if they are f16; else what the kernel took them for.
    f16: F16, u16;
    /// The elements, if they are i64; else what the kernel took them for.
    i64: I64, i64;
    /// The elements, if they are i32; else what the kernel took them for.
    i32: I32, i32;
    /// The elements, if they are i16; else what the kernel took them for.
    i16: I16, i16;
    /// The elements, if they are i8; else what the kernel took them for.
    i8: I8, i8;
    /// The elements, if they are u32; else what the kernel took them for.
    u32: U32, u32;
    /// The elements, if they are u16; else what the kernel took them for.
    u16: U16, u16;
    /// The elements, if they are u8; else what the kernel took them for.
    u8: U8, u8;
}

/// One call of a kernel on the CPU.
pub struct HostCall<'a> {
    /// The types of the inputs.
    pub input_types: &'a [&'a Type],
    /// What is read.
    pub inputs: SmallVec<[Elements<'a>; 8]>,
    /// What is written: every element.
    pub outputs: SmallVec<[ElementsMut<'a>; 4]>,
    /// The scratch that the op asked for, with any content.
    pub scratch: &'a mut [u8],
    /// The threads.
    pub parallel: Parallel<'a>,
}

/// Runs a body once on every thread of a pool, with the thread's number.
pub type OnEveryThread<'a> = dyn Fn(&(dyn Fn(usize) + Sync)) + Sync + 'a;

/// The threads that a kernel may use.
#[derive(Clone, Copy)]
pub struct Parallel<'a> {
    threads: usize,
    run: &'a OnEveryThread<'a>,
}

impl<'a> Parallel<'a> {
    /// Threads, and a way to run a body once on each.
    pub fn new(threads: usize, run: &'a OnEveryThread<'a>) -> Parallel<'a> {
        Parallel { threads, run }
    }

    /// How many there are. Results must not depend on it.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Cuts elements into chunks of a length, the last one shorter, and hands each with its number to `body`, on all threads.
    ///
    /// ```
    /// use plimsoll_graph::custom::Parallel;
    /// let mut squares = [0; 10];
    /// let alone = |body: &(dyn Fn(usize) + Sync)| body(0);
    /// Parallel::new(1, &alone).chunks(&mut squares, 4, &|chunk, out| {
    ///     out.iter_mut().enumerate().for_each(|(i, y)| *y = (chunk * 4 + i) * (chunk * 4 + i));
    /// });
    /// assert_eq!(squares[9], 81);
    /// ```
    pub fn chunks<T: Send>(
        &self,
        elements: &mut [T],
        length: usize,
        body: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let chunks = Mutex::new(elements.chunks_mut(length.max(1)).enumerate());
        let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
        (self.run)(&|_thread| {
            while let Some((i, chunk)) = next() {
                body(i, chunk);
            }
        });
    }
}

/// Runs a kernel on the reference's arrays: floats as f64 where the op takes them so, else as f32; other values as their type.
pub(super) fn on_arrays(op: &dyn CustomOp, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
    let wide = |dtype: DType| {
        let types: Vec<Type> = inputs.iter().map(|x| Type::new(dtype, &x.shape)).collect();
        op.infer(&types.iter().collect::<Vec<_>>()).is_ok()
    };
    if wide(DType::F64) {
        compute(op, inputs, outputs, DType::F64)
    } else {
        compute(op, inputs, outputs, DType::F32)
    }
}

fn compute(op: &dyn CustomOp, inputs: &[&Array], outputs: &[Type], dtype: DType) -> Vec<Array> {
    let is_wide = dtype == DType::F64;
    let types: Vec<Type> = inputs.iter().map(|x| Type::new(dtype, &x.shape)).collect();
    let types: Vec<&Type> = types.iter().collect();
    let narrow: Vec<Vec<f32>> = inputs.iter().map(|x| x.data.iter().map(|&v| v as f32).collect()).collect();
    let mut results: Vec<(Vec<f32>, Vec<f64>)> =
        outputs.iter().map(|ty| (vec![0.0; ty.elements()], vec![0.0; ty.elements()])).collect();
    let of = |i: usize| if is_wide { Elements::F64(&inputs[i].data) } else { Elements::F32(&narrow[i]) };
    let alone = |body: &(dyn Fn(usize) + Sync)| body(0);
    let mut scratch = vec![0u8; op.scratch(&types, &outputs.iter().collect::<Vec<_>>())];
    let mut call = HostCall {
        input_types: &types,
        inputs: (0..inputs.len()).map(of).collect(),
        outputs: results
            .iter_mut()
            .map(|(f32s, f64s)| if is_wide { ElementsMut::F64(f64s) } else { ElementsMut::F32(f32s) })
            .collect(),
        scratch: &mut scratch,
        parallel: Parallel::new(1, &alone),
    };
    let ran = op.run(&mut call);
    drop(call);
    let value = |(f32s, f64s): (Vec<f32>, Vec<f64>)| {
        if is_wide { f64s } else { f32s.into_iter().map(f64::from).collect() }
    };
    // A kernel that refuses these types or values has no meaning to compare with; NaN is equal to nothing.
    let results = results.into_iter().map(value).zip(outputs);
    match ran {
        Ok(()) => results.map(|(data, ty)| Array::new(ty.shape.clone(), data)).collect(),
        Err(_) => {
            results.map(|(data, ty)| Array::new(ty.shape.clone(), vec![f64::NAN; data.len()])).collect()
        }
    }
}
