//! The passes change no bit of what the CPU computes, in f32 and in 16-bit types.

use plimsoll_cpu::Cpu;
use plimsoll_device::backend::{ALIGNMENT, Backend, Call, Operand};
use plimsoll_graph::passes::{compact, fold_tails, fuse, optimize, sample::random_graph, share};
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, Graph, Result, Type};

/// Bytes at an aligned address.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; ALIGNMENT]);

fn memory(bytes: usize) -> Vec<Line> {
    vec![Line([0; ALIGNMENT]); bytes.div_ceil(ALIGNMENT) + 1]
}

fn bytes_of(lines: &[Line], n: usize) -> Vec<u8> {
    lines.iter().flat_map(|line| line.0).take(n).collect()
}

fn encode(ty: &Type, array: &Array) -> Vec<Line> {
    let mut lines = memory(ty.bytes());
    let mut bytes: Vec<u8> = Vec::new();
    for &x in &array.data {
        match ty.dtype {
            DType::BF16 => bytes.extend(half::bf16::from_f64(x).to_ne_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f64(x).to_ne_bytes()),
            DType::F64 => bytes.extend(x.to_ne_bytes()),
            _ => bytes.extend((x as f32).to_ne_bytes()),
        }
    }
    for (line, chunk) in lines.iter_mut().zip(bytes.chunks(ALIGNMENT)) {
        line.0[..chunk.len()].copy_from_slice(chunk);
    }
    lines
}

/// Runs a graph node by node and returns the bytes of its outputs.
fn run(cpu: &Cpu, graph: &Graph, inputs: &[Array]) -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<Line>> = graph.values().iter().map(|v| memory(v.ty.bytes())).collect();
    for (&v, array) in graph.inputs().iter().zip(inputs) {
        values[v.index()] = encode(graph.ty(v), array);
    }
    let places: Vec<*mut u8> = values.iter_mut().map(|lines| lines.as_mut_ptr().cast()).collect();
    for node in graph.nodes() {
        let operand = |v: &plimsoll_graph::ValueId| Operand { ty: graph.ty(*v), ptr: places[v.index()] };
        let (ins, outs): (Vec<_>, Vec<_>) =
            (node.inputs.iter().map(operand).collect(), node.outputs.iter().map(operand).collect());
        let types = |operands: &[Operand<'_>]| operands.iter().map(|o| o.ty.clone()).collect::<Vec<_>>();
        let (in_types, out_types) = (types(&ins), types(&outs));
        let scratch_bytes = cpu
            .scratch(&node.op, &in_types.iter().collect::<Vec<_>>(), &out_types.iter().collect::<Vec<_>>())
            .unwrap_or_else(|e| panic!("{e}"));
        let mut scratch = memory(scratch_bytes);
        let call = Call {
            op: &node.op,
            inputs: &ins,
            outputs: &outs,
            scratch: scratch.as_mut_ptr().cast(),
            scratch_bytes,
        };
        // SAFETY: every value has memory of its own, sized by its type.
        unsafe { cpu.run(&call) }.unwrap_or_else(|e| panic!("{e}"));
    }
    graph.outputs().iter().map(|&v| bytes_of(&values[v.index()], graph.ty(v).bytes())).collect()
}

#[test]
fn passes_change_no_bit_on_the_cpu() {
    type Pass = fn(&Graph) -> Result<Graph>;
    let passes: [(&str, Pass); 5] =
        [("share", share), ("compact", compact), ("tails", fold_tails), ("fuse", fuse), ("all", optimize)];
    let cpu = Cpu::new(2);
    for dtype in DType::FLOATS {
        for seed in 0..40 {
            let (graph, inputs) = random_graph(seed, dtype).unwrap();
            let before = run(&cpu, &graph, &inputs);
            for (name, pass) in passes {
                let after = run(&cpu, &pass(&graph).unwrap(), &inputs);
                assert!(before == after, "{name} changes bits of seed {seed} in {dtype}");
            }
        }
    }
}
