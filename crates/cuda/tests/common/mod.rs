//! Device memory with fences, values of every type, and the devices that this machine has.

use plimsoll_cuda::Cuda;
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, Type};

/// The first card, or a line that says that there is none.
pub fn card() -> Option<Cuda> {
    match Cuda::new(0) {
        Ok(cuda) => Some(cuda),
        Err(why) => {
            println!("skipped: no CUDA device ({why})");
            None
        }
    }
}

/// The emulator, or a line that says that there is none.
pub fn emulator() -> Option<Cuda> {
    match Cuda::emulated() {
        Ok(cuda) => Some(cuda),
        Err(why) => {
            println!("skipped: no emulator ({why})");
            None
        }
    }
}

const FENCE: u8 = 0xA5;
const FENCE_BYTES: usize = 64;

/// Device bytes with a fence behind them, to see what a kernel writes where it must not.
pub struct Memory {
    cuda: Cuda,
    home: Home,
    bytes: usize,
}

enum Home {
    Card(u64),
    Host(Vec<u64>),
}

/// With `PLIMSOLL_NO_FENCE` an operand is an allocation of exactly its bytes: what a memory checker wants to see.
fn fence_bytes() -> usize {
    if std::env::var_os("PLIMSOLL_NO_FENCE").is_some() { 0 } else { FENCE_BYTES }
}

impl Memory {
    pub fn new(cuda: &Cuda, bytes: usize) -> Memory {
        let whole = bytes + fence_bytes();
        let home = if cuda.is_emulated() {
            Home::Host(vec![0; whole.div_ceil(8) + 64])
        } else {
            let mut at = 0;
            // SAFETY: the address is of a number; the context is this thread's since the device was made or waited for.
            let status = unsafe { cudarc::driver::sys::cuMemAlloc_v2(&mut at, whole.max(1)) };
            assert_eq!(status, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
            Home::Card(at)
        };
        let memory = Memory { cuda: cuda.clone(), home, bytes };
        // SAFETY: as many bytes are there.
        unsafe { cuda.upload(memory.ptr(), &vec![FENCE; whole]) }.expect("a fence");
        memory
    }

    pub fn ptr(&self) -> *mut u8 {
        match &self.home {
            Home::Card(at) => *at as *mut u8,
            Home::Host(words) => (words.as_ptr() as usize).next_multiple_of(256) as *mut u8,
        }
    }

    fn all(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes + fence_bytes()];
        // SAFETY: as many bytes are there.
        unsafe { self.cuda.download(self.ptr(), &mut bytes) }.expect("a copy");
        bytes
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut all = self.all();
        all.truncate(self.bytes);
        all
    }

    pub fn fence_stands(&self) -> bool {
        self.all()[self.bytes..].iter().all(|&b| b == FENCE)
    }

    pub fn write(&self, ty: &Type, array: &Array) {
        let mut out: Vec<u8> = Vec::with_capacity(ty.bytes());
        for &x in &array.data {
            match ty.dtype {
                DType::F32 => out.extend((x as f32).to_ne_bytes()),
                DType::F64 => out.extend(x.to_ne_bytes()),
                DType::BF16 => out.extend(half::bf16::from_f64(x).to_ne_bytes()),
                DType::F16 => out.extend(half::f16::from_f64(x).to_ne_bytes()),
                DType::I64 => out.extend((x as i64).to_ne_bytes()),
                DType::I32 => out.extend((x as i32).to_ne_bytes()),
                DType::U8 | DType::Bool => out.push(x as u8),
            }
        }
        // SAFETY: as many bytes are there.
        unsafe { self.cuda.upload(self.ptr(), &out) }.expect("a copy");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Home::Card(at) = self.home {
            // SAFETY: nobody else has it, and all that used it was waited for.
            unsafe {
                let _ = cudarc::driver::sys::cuMemFree_v2(at);
            }
        }
    }
}

/// The values that bytes of a type hold.
pub fn read(bytes: &[u8], ty: &Type) -> Vec<f64> {
    let mut values = Vec::new();
    for slot in bytes.chunks_exact(ty.dtype.bytes()) {
        values.push(match ty.dtype {
            DType::F32 => f64::from(f32::from_ne_bytes(slot.try_into().expect("4 bytes"))),
            DType::F64 => f64::from_ne_bytes(slot.try_into().expect("8 bytes")),
            DType::BF16 => half::bf16::from_ne_bytes(slot.try_into().expect("2 bytes")).to_f64(),
            DType::F16 => half::f16::from_ne_bytes(slot.try_into().expect("2 bytes")).to_f64(),
            DType::I64 => i64::from_ne_bytes(slot.try_into().expect("8 bytes")) as f64,
            DType::I32 => f64::from(i32::from_ne_bytes(slot.try_into().expect("4 bytes"))),
            DType::U8 | DType::Bool => f64::from(slot[0]),
        });
    }
    values
}

/// How far a kernel may be from the reference, relative to one plus the value, for results of a type.
fn tolerance(dtype: DType, computed_in: DType) -> f64 {
    let of = |d: DType| match d {
        DType::F64 => 1e-9f64,
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 0.0,
    };
    of(dtype).max(if dtype.is_float() { of(computed_in) } else { 0.0 })
}

/// Panics where a value is not near the one it should be; `slack` multiplies what is near in 16-bit types.
pub fn check_values(
    ty: &Type,
    computed_in: DType,
    slack: f64,
    got: &[f64],
    want: &[f64],
    what: &dyn Fn() -> String,
) {
    let slack = if computed_in.bytes() == 2 { slack } else { 1.0 };
    // What is rounded on the way is relative to what is summed, and sums of large terms may be small.
    let rms = (want.iter().map(|w| w * w).sum::<f64>() / want.len().max(1) as f64).sqrt();
    let around = if slack > 1.0 { rms } else { 0.0 };
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs() / (1.0 + want.abs() + around);
        let near = error <= slack * tolerance(ty.dtype, computed_in)
            || got == want
            || (got.is_nan() && want.is_nan());
        assert!(near, "{} element {i}: {got} but should be {want} (rms {rms})", what());
    }
}
