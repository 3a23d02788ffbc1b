//! Every op's kernel against the reference interpreter, for any backend: operands in memory with fences, values of every type,
//! what counts as near.

use std::any::Any;

use plimsoll_device::backend::{Backend, Call, Operand};
use plimsoll_graph::example::{Dice, Example};
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, OPS, OpDef, Type};

const FENCE: u8 = 0xA5;
const FENCE_BYTES: usize = 64;

/// With `PLIMSOLL_NO_FENCE` an operand is an allocation of exactly its bytes: what a memory checker wants to see.
fn fence_bytes() -> usize {
    if std::env::var_os("PLIMSOLL_NO_FENCE").is_some() { 0 } else { FENCE_BYTES }
}

/// Bytes of a device, and what gives them back when it is dropped.
pub struct Lent {
    /// Where they are.
    pub ptr: *mut u8,
    /// Who has them.
    pub owner: Box<dyn Any>,
}

impl Lent {
    /// Bytes of the host, aligned as a device's are.
    pub fn host(bytes: usize) -> Lent {
        let mut words = vec![0u64; bytes.div_ceil(8) + 64];
        let start = words.as_mut_ptr();
        let pad = (start as usize).next_multiple_of(256) - start as usize;
        Lent { ptr: start.cast::<u8>().wrapping_add(pad), owner: Box::new(words) }
    }
}

/// A device under test: its kernels, and how memory of it is taken.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    /// The kernels.
    pub backend: &'a dyn Backend,
    /// Takes so many bytes.
    pub take: fn(usize) -> Lent,
}

/// Device bytes with a fence behind them, to see what a kernel writes where it must not.
pub struct Memory<'a> {
    backend: &'a dyn Backend,
    lent: Lent,
    bytes: usize,
}

impl<'a> Memory<'a> {
    /// So many bytes, all of them fence.
    pub fn new(bench: &Bench<'a>, bytes: usize) -> Memory<'a> {
        let whole = bytes + fence_bytes();
        let memory = Memory { backend: bench.backend, lent: (bench.take)(whole), bytes };
        // SAFETY: as many bytes are there.
        unsafe { bench.backend.upload(memory.ptr(), &vec![FENCE; whole]) }.expect("a fence");
        memory
    }

    /// Where they are.
    pub fn ptr(&self) -> *mut u8 {
        self.lent.ptr
    }

    fn all(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes + fence_bytes()];
        // SAFETY: as many bytes are there.
        unsafe { self.backend.download(self.ptr(), &mut bytes) }.expect("a copy");
        bytes
    }

    /// What they hold, without the fence.
    pub fn bytes(&self) -> Vec<u8> {
        let mut all = self.all();
        all.truncate(self.bytes);
        all
    }

    /// Whether nobody wrote past the end.
    pub fn fence_stands(&self) -> bool {
        self.all()[self.bytes..].iter().all(|&b| b == FENCE)
    }

    /// Writes values as a type holds them.
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
                DType::I16 => out.extend((x as i16).to_ne_bytes()),
                DType::I8 => out.extend((x as i8).to_ne_bytes()),
                DType::U32 => out.extend((x as u32).to_ne_bytes()),
                DType::U16 => out.extend((x as u16).to_ne_bytes()),
                DType::U8 | DType::Bool => out.push(x as u8),
            }
        }
        // SAFETY: as many bytes are there.
        unsafe { self.backend.upload(self.ptr(), &out) }.expect("a copy");
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
            DType::I16 => f64::from(i16::from_ne_bytes(slot.try_into().expect("2 bytes"))),
            DType::I8 => f64::from(slot[0] as i8),
            DType::U32 => f64::from(u32::from_ne_bytes(slot.try_into().expect("4 bytes"))),
            DType::U16 => f64::from(u16::from_ne_bytes(slot.try_into().expect("2 bytes"))),
            DType::U8 | DType::Bool => f64::from(slot[0]),
        });
    }
    values
}

/// An output of an op.
pub struct Output {
    /// Its type.
    pub ty: Type,
    /// Its values.
    pub values: Vec<f64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Runs an example on a device. With `share`, outputs that may be written over an input are.
pub fn run(bench: &Bench<'_>, example: &Example, values: &[Array], share: bool) -> Vec<Output> {
    let backend = bench.backend;
    let input_types: Vec<&Type> = example.inputs.iter().map(|(ty, _)| ty).collect();
    let output_types = example.op.infer(&input_types).unwrap_or_else(|e| panic!("{:?}: {e}", example.op));
    let output_types: Vec<&Type> = output_types.iter().collect();
    let scratch_bytes =
        backend.scratch(&example.op, &input_types, &output_types).unwrap_or_else(|e| panic!("{e}"));
    let inputs: Vec<Memory<'_>> = input_types.iter().map(|ty| Memory::new(bench, ty.bytes())).collect();
    for ((memory, ty), array) in inputs.iter().zip(&input_types).zip(values) {
        memory.write(ty, array);
    }
    let outputs: Vec<Memory<'_>> = output_types.iter().map(|ty| Memory::new(bench, ty.bytes())).collect();
    let scratch = Memory::new(bench, scratch_bytes);
    let mut places: Vec<Option<usize>> = vec![None; outputs.len()];
    if share {
        for (o, i) in example.op.in_place() {
            if places[o].is_none() && !places.contains(&Some(i)) && input_types[i] == output_types[o] {
                places[o] = Some(i);
            }
        }
    }
    let ins: Vec<Operand<'_>> =
        inputs.iter().zip(&input_types).map(|(m, ty)| Operand { ty, ptr: m.ptr() }).collect();
    let outs: Vec<Operand<'_>> = outputs
        .iter()
        .zip(&output_types)
        .zip(&places)
        .map(|((m, ty), place)| Operand { ty, ptr: place.map_or(m.ptr(), |i| ins[i].ptr) })
        .collect();
    let call = Call { op: &example.op, inputs: &ins, outputs: &outs, scratch: scratch.ptr(), scratch_bytes };
    // SAFETY: all memory is live, sized by the types and the declared scratch, and shared only as the op allows.
    unsafe { backend.run(&call) }.unwrap_or_else(|e| panic!("{:?}: {e}", example.op));
    backend.synchronize().unwrap_or_else(|e| panic!("{:?}: {e}", example.op));
    assert!(scratch.fence_stands(), "{:?} writes past its scratch", example.op);
    let result = |(o, ty): (usize, &&Type)| {
        let memory = places[o].map_or(&outputs[o], |i| &inputs[i]);
        assert!(memory.fence_stands(), "{:?} writes past output {o}", example.op);
        let bytes = memory.bytes();
        Output { ty: (*ty).clone(), values: read(&bytes, ty), bytes }
    };
    output_types.iter().enumerate().map(result).collect()
}

/// Runs an example and holds it against the reference; returns its outputs. `slack` multiplies what is near in 16-bit types.
pub fn check(
    bench: &Bench<'_>,
    example: &Example,
    values: &[Array],
    computed_in: DType,
    slack: f64,
) -> Vec<Output> {
    let input_types: Vec<&Type> = example.inputs.iter().map(|(ty, _)| ty).collect();
    let Ok(output_types) = example.op.infer(&input_types) else {
        panic!("{:?} does not take {computed_in}: {input_types:?}", example.op);
    };
    let wanted = example.op.reference(&values.iter().collect::<Vec<_>>(), &output_types);
    let found = run(bench, example, values, false);
    for (o, (found, want)) in found.iter().zip(&wanted).enumerate() {
        check_values(&found.ty, computed_in, slack, &found.values, &want.data, &|| {
            format!("{:?} on {input_types:?} output {o}", example.op)
        });
    }
    found
}

/// Panics where two runs of an op do not have the same bits.
pub fn check_bits(example: &Example, one: &[Output], other: &[Output], how: &str) {
    for (o, (a, b)) in one.iter().zip(other).enumerate() {
        assert!(a.bytes == b.bytes, "{:?} output {o}: other bits {how}", example.op);
    }
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

/// Calls `check` with the examples of an op, in each of the float types that are asked for.
pub fn examples_of(
    op: &OpDef,
    seeds: u64,
    dtypes: &[DType],
    check: &mut dyn FnMut(&Example, &mut Dice, DType),
) {
    for seed in 0..seeds {
        let mut dice = Dice::new(seed);
        for example in (op.examples)(&mut dice) {
            let floats = example.inputs.iter().any(|(ty, _)| ty.dtype.is_float());
            // These name their types themselves.
            if floats && !["Cast", "Fused", "Custom", "EightBitUpdate", "Bf16Update"].contains(&op.name) {
                for &dtype in dtypes {
                    check(&example.with_float(dtype), &mut dice, dtype);
                }
            } else {
                let narrowest = example.inputs.iter().map(|(ty, _)| ty.dtype).find(|d| d.is_float());
                check(&example, &mut dice, narrowest.unwrap_or(DType::F32));
            }
        }
    }
}

/// All ops, or those that the environment variable `PLIMSOLL_OPS` names (`Add,MatMul`), to look at a few; of them the part that
/// `PLIMSOLL_PART` names, as in `2/8`, so that several processes check them side by side.
///
/// # Panics
/// Where a name is that of no op: a test of nothing must not pass.
pub fn chosen() -> Vec<&'static OpDef> {
    let part = std::env::var("PLIMSOLL_PART").unwrap_or_default();
    let (part, parts) = part.split_once('/').unwrap_or(("0", "1"));
    let of = |text: &str| text.parse::<usize>().expect("PLIMSOLL_PART is like 2/8");
    let (part, parts) = (of(part), of(parts).max(1));
    let named = std::env::var("PLIMSOLL_OPS").ok();
    let ops = named_in(named.as_deref()).unwrap_or_else(|wrong| panic!("{wrong}"));
    ops.into_iter().enumerate().filter(|(i, _)| i % parts == part).map(|(_, op)| op).collect()
}

/// The ops that a list names, in the order of the table; all where there is no list.
fn named_in(list: Option<&str>) -> Result<Vec<&'static OpDef>, String> {
    let Some(list) = list else { return Ok(OPS.iter().collect()) };
    let names: Vec<&str> = list.split(',').map(str::trim).collect();
    if let Some(wrong) = names.iter().find(|name| !OPS.iter().any(|op| op.name == **name)) {
        return Err(format!(
            "PLIMSOLL_OPS names '{wrong}', which is no op; the names are those of docs/ops.md, as in {}",
            OPS.first().map_or("", |op| op.name)
        ));
    }
    Ok(OPS.iter().filter(|op| names.contains(&op.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_with_a_name_that_is_no_op_is_refused() {
        assert_eq!(named_in(None).unwrap().len(), OPS.len());
        let first = OPS[0].name;
        assert_eq!(named_in(Some(first)).unwrap().len(), 1);
        for list in ["typo", "", &format!("{first},typo")] {
            assert!(named_in(Some(list)).is_err_and(|why| why.contains("no op")), "{list}");
        }
    }
}
