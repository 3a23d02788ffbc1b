//! Every op's kernel against the reference interpreter, in every float type it takes, under every instruction set
//! the processor has, on one, two and three threads.

use plimsoll_cpu::Cpu;
use plimsoll_cpu::isa::Isa;
use plimsoll_device::backend::{ALIGNMENT, Backend, Call, Operand};
use plimsoll_graph::example::{Dice, Example};
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, OPS, Type};

/// Aligned bytes with a fence behind them, to see what a kernel writes where it must not.
struct Memory {
    words: Vec<u64>,
    start: usize,
    bytes: usize,
}

const FENCE: u8 = 0xA5;

impl Memory {
    fn new(bytes: usize) -> Memory {
        let words = vec![u64::from_ne_bytes([FENCE; 8]); (bytes + 2 * ALIGNMENT).div_ceil(8) + 8];
        let start = (words.as_ptr() as usize).next_multiple_of(ALIGNMENT) - words.as_ptr() as usize;
        Memory { words, start, bytes }
    }

    fn ptr(&mut self) -> *mut u8 {
        let start = self.start;
        &raw mut bytes_of(&mut self.words)[start]
    }

    fn bytes(&mut self) -> &mut [u8] {
        let (start, n) = (self.start, self.bytes);
        &mut bytes_of(&mut self.words)[start..start + n]
    }

    fn fence_stands(&mut self) -> bool {
        let end = self.start + self.bytes;
        bytes_of(&mut self.words)[end..end + 64].iter().all(|&b| b == FENCE)
    }
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    bytemuck::cast_slice_mut(words)
}

fn write(memory: &mut Memory, ty: &Type, array: &Array) {
    let out = memory.bytes();
    for (i, &x) in array.data.iter().enumerate() {
        let n = ty.dtype.bytes();
        let slot = &mut out[i * n..(i + 1) * n];
        match ty.dtype {
            DType::F32 => slot.copy_from_slice(&(x as f32).to_ne_bytes()),
            DType::F64 => slot.copy_from_slice(&x.to_ne_bytes()),
            DType::BF16 => slot.copy_from_slice(&half::bf16::from_f64(x).to_ne_bytes()),
            DType::F16 => slot.copy_from_slice(&half::f16::from_f64(x).to_ne_bytes()),
            DType::I64 => slot.copy_from_slice(&(x as i64).to_ne_bytes()),
            DType::I32 => slot.copy_from_slice(&(x as i32).to_ne_bytes()),
            DType::U8 | DType::Bool => slot[0] = x as u8,
        }
    }
}

fn read(memory: &mut Memory, ty: &Type) -> Vec<f64> {
    let n = ty.dtype.bytes();
    let mut read = Vec::new();
    for slot in memory.bytes().chunks_exact(n) {
        read.push(match ty.dtype {
            DType::F32 => f64::from(f32::from_ne_bytes(slot.try_into().unwrap())),
            DType::F64 => f64::from_ne_bytes(slot.try_into().unwrap()),
            DType::BF16 => half::bf16::from_ne_bytes(slot.try_into().unwrap()).to_f64(),
            DType::F16 => half::f16::from_ne_bytes(slot.try_into().unwrap()).to_f64(),
            DType::I64 => i64::from_ne_bytes(slot.try_into().unwrap()) as f64,
            DType::I32 => f64::from(i32::from_ne_bytes(slot.try_into().unwrap())),
            DType::U8 | DType::Bool => f64::from(slot[0]),
        });
    }
    read
}

/// Runs an example on a device and returns its outputs' types, values and bytes. With `share`, outputs that may be
/// written over an input are.
fn run(cpu: &Cpu, example: &Example, values: &[Array], share: bool) -> Vec<(Type, Vec<f64>, Vec<u8>)> {
    let input_types: Vec<&Type> = example.inputs.iter().map(|(ty, _)| ty).collect();
    let output_types = example.op.infer(&input_types).unwrap_or_else(|e| panic!("{:?}: {e}", example.op));
    let output_types: Vec<&Type> = output_types.iter().collect();
    let scratch_bytes =
        cpu.scratch(&example.op, &input_types, &output_types).unwrap_or_else(|e| panic!("{e}"));
    let mut inputs: Vec<Memory> = input_types.iter().map(|ty| Memory::new(ty.bytes())).collect();
    for ((memory, ty), array) in inputs.iter_mut().zip(&input_types).zip(values) {
        write(memory, ty, array);
    }
    let mut outputs: Vec<Memory> = output_types.iter().map(|ty| Memory::new(ty.bytes())).collect();
    let mut scratch = Memory::new(scratch_bytes);
    let mut places: Vec<Option<usize>> = vec![None; outputs.len()];
    if share {
        for (o, i) in example.op.in_place() {
            if places[o].is_none() && !places.contains(&Some(i)) && input_types[i] == output_types[o] {
                places[o] = Some(i);
            }
        }
    }
    let ins: Vec<Operand<'_>> =
        inputs.iter_mut().zip(&input_types).map(|(m, ty)| Operand { ty, ptr: m.ptr() }).collect();
    let outs: Vec<Operand<'_>> = outputs
        .iter_mut()
        .zip(&output_types)
        .zip(&places)
        .map(|((m, ty), place)| Operand { ty, ptr: place.map_or(m.ptr(), |i| ins[i].ptr) })
        .collect();
    let call = Call { op: &example.op, inputs: &ins, outputs: &outs, scratch: scratch.ptr(), scratch_bytes };
    // SAFETY: all memory is live, sized by the types and the declared scratch, and shared only as the op allows.
    unsafe { cpu.run(&call) }.unwrap_or_else(|e| panic!("{:?}: {e}", example.op));
    assert!(scratch.fence_stands(), "{:?} writes past its scratch", example.op);
    let mut results = Vec::new();
    for (o, ty) in output_types.iter().enumerate() {
        let memory = places[o].map_or(&mut outputs[o], |i| &mut inputs[i]);
        assert!(memory.fence_stands(), "{:?} writes past output {o}", example.op);
        let bytes = memory.bytes().to_vec();
        results.push(((*ty).clone(), read(memory, ty), bytes));
    }
    results
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

fn check(example: &Example, dice: &mut Dice, computed_in: DType, isa: Isa) {
    let values = example.fill(dice);
    let input_types: Vec<&Type> = example.inputs.iter().map(|(ty, _)| ty).collect();
    let Ok(output_types) = example.op.infer(&input_types) else {
        panic!("{:?} does not take {computed_in}: {input_types:?}", example.op);
    };
    let wanted = example.op.reference(&values.iter().collect::<Vec<_>>(), &output_types);
    let one = run(&Cpu::with_isa(1, isa), example, &values, false);
    for (o, ((ty, got, _), want)) in one.iter().zip(&wanted).enumerate() {
        for (i, (&got, &want)) in got.iter().zip(&want.data).enumerate() {
            let error = (got - want).abs() / (1.0 + want.abs());
            let near =
                error <= tolerance(ty.dtype, computed_in) || (got == want) || (got.is_nan() && want.is_nan());
            assert!(
                near,
                "{:?} on {input_types:?} output {o} element {i}: {got} but should be {want}",
                example.op
            );
        }
    }
    for (threads, share) in [(2, false), (3, false), (1, true), (2, true)] {
        let many = run(&Cpu::with_isa(threads, isa), example, &values, share);
        for (o, (a, b)) in one.iter().zip(&many).enumerate() {
            assert!(
                a.2 == b.2,
                "{:?} output {o}: other bits on {threads} threads, in place: {share}",
                example.op
            );
        }
    }
}

#[test]
fn every_op_has_a_kernel_that_means_what_the_reference_means() {
    for isa in Isa::available() {
        every_op_on(isa);
    }
}

fn every_op_on(isa: Isa) {
    for def in OPS.iter().filter(|def| chosen(def.name)) {
        for seed in 0..3 {
            let mut dice = Dice::new(seed);
            for example in (def.examples)(&mut dice) {
                let floats = example.inputs.iter().any(|(ty, _)| ty.dtype.is_float());
                // Casts name both of their types themselves.
                if floats && def.name != "Cast" && def.name != "Fused" {
                    for dtype in DType::FLOATS {
                        check(&example.with_float(dtype), &mut dice, dtype, isa);
                    }
                } else {
                    let narrowest = example.inputs.iter().map(|(ty, _)| ty.dtype).find(|d| d.is_float());
                    check(&example, &mut dice, narrowest.unwrap_or(DType::F32), isa);
                }
            }
        }
    }
}

/// All ops, or those that the environment variable `PLIMSOLL_OPS` names, to look at a few.
fn chosen(name: &str) -> bool {
    std::env::var("PLIMSOLL_OPS").map_or(true, |list| list.split(',').any(|n| n == name))
}
