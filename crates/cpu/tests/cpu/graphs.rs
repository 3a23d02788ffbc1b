//! Whole graphs on the CPU: passes, threads and shared memory change no bit, and long operands mean what short ones do.

use plimsoll_cpu::Cpu;
use plimsoll_device::backend::{ALIGNMENT, Backend, Call, Operand};
use plimsoll_graph::example::{Dice, Domain};
use plimsoll_graph::passes::{compact, fold_tails, fuse, optimize, sample::random_graph, share};
use plimsoll_graph::reference::{Array, interpret};
use plimsoll_graph::{DType, Graph, Result, Sym, TensorOps, Trace, Type, ValueId, gradient};

/// Bytes at an aligned address.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; ALIGNMENT]);

fn memory(bytes: usize) -> Vec<Line> {
    vec![Line([0; ALIGNMENT]); bytes.div_ceil(ALIGNMENT) + 1]
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

/// Runs a graph node by node and returns the bytes of its outputs. With `share`, a result takes the place of an
/// operand that nobody reads any more, where its op allows it.
fn run(cpu: &Cpu, graph: &Graph, inputs: &[Array], share: bool) -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<Line>> = graph.values().iter().map(|v| memory(v.ty.bytes())).collect();
    for (&v, array) in graph.inputs().iter().zip(inputs) {
        values[v.index()] = encode(graph.ty(v), array);
    }
    let mut places: Vec<*mut u8> = values.iter_mut().map(|lines| lines.as_mut_ptr().cast()).collect();
    for (n, node) in graph.nodes().iter().enumerate() {
        let is_last = |v: ValueId| {
            !graph.outputs().contains(&v)
                && graph.nodes()[n + 1..].iter().all(|later| !later.inputs.contains(&v))
        };
        let mut taken = Vec::new();
        for (o, i) in node.op.in_place().into_iter().filter(|_| share) {
            let (to, from) = (node.outputs[o], node.inputs[i]);
            let is_free = !taken.contains(&to) && !taken.contains(&from) && graph.ty(to) == graph.ty(from);
            if is_free && is_last(from) {
                places[to.index()] = places[from.index()];
                taken.extend([to, from]);
            }
        }
        let operand = |v: &ValueId| Operand { ty: graph.ty(*v), ptr: places[v.index()] };
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
    let read = |&v: &ValueId| {
        // SAFETY: the place has the bytes of its value's type.
        unsafe { std::slice::from_raw_parts(places[v.index()], graph.ty(v).bytes()) }.to_vec()
    };
    graph.outputs().iter().map(read).collect()
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
            let before = run(&cpu, &graph, &inputs, false);
            for (name, pass) in passes {
                let after = run(&cpu, &pass(&graph).unwrap(), &inputs, seed % 2 == 0);
                assert!(before == after, "{name} changes bits of seed {seed} in {dtype}");
            }
        }
    }
}

/// A graph over operands of many tiles and tasks: a row, a column and a scalar against a matrix, sums over each axis.
fn large(dtype: DType, n: usize, c: usize) -> Result<(Graph, Vec<Array>)> {
    let trace = Trace::new();
    let input = |name: &str, shape: &[usize]| trace.input(name, Type::new(dtype, shape));
    let (x, y, row) = (input("x", &[n, c]), input("y", &[n, c]), input("row", &[c]));
    let (column, scalar) = (input("column", &[n, 1]), input("scalar", &[]));
    let z = x.mul(&row)?.add(&column)?.tanh()?.mul(&scalar)?.relu()?;
    let chosen = z.greater(&y)?.select(&x, &z)?.transpose(&[1, 0])?.transpose(&[1, 0])?;
    let loss = chosen.mul(&y)?.mean(&[0, 1], false)?;
    let inputs = [&x, &y, &row, &column, &scalar];
    let mut outputs: Vec<Sym> = gradient(&loss, None, &inputs)?.into_iter().flatten().collect();
    outputs.extend([loss, chosen.max(&[1], false)?, chosen.mean(&[0], true)?, z]);
    let mut dice = Dice::new(n as u64);
    let values = inputs.map(|x| Domain::Normal.fill(x.ty(), &mut dice)).to_vec();
    Ok((trace.finish(&outputs.iter().collect::<Vec<_>>())?, values))
}

#[test]
fn long_operands_mean_what_the_reference_means_on_any_number_of_threads() {
    for (n, c) in [(9000, 7), (700, 130), (150, 700), (3, 40_000), (65_000, 1)] {
        let (graph, inputs) = large(DType::F32, n, c).unwrap();
        let want = interpret(&graph, &inputs);
        let one = run(&Cpu::new(1), &graph, &inputs, false);
        for (o, (got, want)) in one.iter().zip(&want).enumerate() {
            for (i, (bytes, &want)) in got.chunks_exact(4).zip(&want.data).enumerate() {
                let got = f64::from(f32::from_ne_bytes(bytes.try_into().unwrap()));
                let error = (got - want).abs() / (1.0 + want.abs());
                assert!(error < 2e-5, "[{n}, {c}] output {o} element {i}: {got} but should be {want}");
            }
        }
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            let (graph, inputs) = large(dtype, n, c).unwrap();
            let plain = run(&Cpu::new(1), &graph, &inputs, false);
            let fused = optimize(&graph).unwrap();
            for (threads, share) in [(1, true), (2, false), (3, true)] {
                let cpu = Cpu::new(threads);
                assert!(
                    plain == run(&cpu, &graph, &inputs, share),
                    "[{n}, {c}] {dtype} on {threads} threads"
                );
                assert!(
                    plain == run(&cpu, &fused, &inputs, share),
                    "[{n}, {c}] {dtype} fused on {threads} threads"
                );
            }
        }
    }
}
