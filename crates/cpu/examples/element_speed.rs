//! How fast elementwise ops pass memory: GB/s and ns a thousand elements, in cache and out of it, on 1 and 2 threads.
//!
//! `cargo run --release -p plimsoll-cpu --example element_speed [PART OF A CASE'S NAME]`

use std::sync::Arc;
use std::time::Instant;

use plimsoll_cpu::Cpu;
use plimsoll_device::backend::{Backend, Call, Operand};
use plimsoll_graph::ops::{
    Arg, Binary, Broadcast, Cast, Chain, ElementOp, Fused, Reduce, ReduceKind, ReluMask, Step, Transpose,
    Unary,
};
use plimsoll_graph::{DType, Op, Scalar, Type};

/// p, g, m, v -> p', m', v'.
fn adam(n: usize) -> Op {
    use Arg::{Const, Input, Step as S};
    let unary = |f, a| (ElementOp::Unary(f), vec![a]);
    let binary = |f, a, b| (ElementOp::Binary(f), vec![a, b]);
    let s = Scalar;
    let steps = vec![
        unary(Unary::MulScalar(s(0.9)), Input(2)),
        unary(Unary::MulScalar(s(0.1)), Input(1)),
        binary(Binary::Add, S(0), S(1)),
        unary(Unary::Square, Input(1)),
        unary(Unary::MulScalar(s(0.001)), S(3)),
        unary(Unary::MulScalar(s(0.999)), Input(3)),
        binary(Binary::Add, S(5), S(4)),
        unary(Unary::Sqrt, S(6)),
        unary(Unary::AddScalar(s(1e-8)), S(7)),
        binary(Binary::Div, S(2), S(8)),
        binary(Binary::Mul, S(9), Const(s(1e-3))),
        binary(Binary::Sub, Input(0), S(10)),
    ];
    let step =
        |(op, args): (ElementOp, Vec<Arg>)| Step { op, args: args.into_iter().collect(), dtype: DType::F32 };
    let steps = steps.into_iter().map(step).collect();
    Fused(Arc::new(Chain { shape: [n].into(), n_inputs: 4, steps, outputs: vec![11, 2, 6] })).into()
}

/// Seconds a call, the best of many; inputs and outputs in buffers of their own, or in place where `in_place`.
fn time(cpu: &Cpu, op: &Op, types: &[Type], in_place: bool) -> (f64, f64) {
    let inputs: Vec<&Type> = types.iter().collect();
    let outputs = op.infer(&inputs).unwrap_or_default();
    let mut buffers: Vec<Vec<u64>> = Vec::new();
    let mut operand = |ty: &Type| {
        let mut words = vec![0u64; ty.bytes().div_ceil(8) + 16];
        let start = words.as_mut_ptr().cast::<u8>();
        let ptr = start.wrapping_add(start.align_offset(64));
        if ty.dtype == DType::F32 {
            for i in 0..ty.elements() {
                // SAFETY: the buffer was sized for the type.
                unsafe { *ptr.cast::<f32>().add(i) = 0.25 + (i % 1000) as f32 * 1e-3 };
            }
        }
        buffers.push(words);
        ptr
    };
    let ins: Vec<Operand<'_>> = types.iter().map(|ty| Operand { ty, ptr: operand(ty) }).collect();
    let outs: Vec<Operand<'_>> = outputs
        .iter()
        .enumerate()
        .map(|(o, ty)| {
            let place = if outputs.len() > 1 && o > 0 { o + 1 } else { 0 };
            Operand { ty, ptr: if in_place { ins[place].ptr } else { operand(ty) } }
        })
        .collect();
    let refs: Vec<&Type> = outputs.iter().collect();
    let scratch_bytes = cpu.scratch(op, &inputs, &refs).unwrap_or(0);
    let mut scratch = vec![0u64; scratch_bytes / 8 + 16];
    let start = scratch.as_mut_ptr().cast::<u8>();
    let scratch = start.wrapping_add(start.align_offset(64));
    let call = Call { op, inputs: &ins, outputs: &outs, scratch, scratch_bytes };
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    // The first rounds touch the memory for the first time, which is slower by far.
    for round in 0.. {
        if round > 10 && begin.elapsed().as_millis() > 100 {
            break;
        }
        let t = Instant::now();
        // SAFETY: all operands were made above with the sizes of their types.
        if let Err(fault) = unsafe { cpu.run(&call) } {
            eprintln!("{fault}");
        }
        best = best.min(t.elapsed().as_secs_f64());
    }
    let bytes: usize = inputs.iter().chain(&refs).map(|t| t.bytes()).sum();
    (best, bytes as f64)
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    println!("{:34} {:>9} {:>9} {:>9} {:>9}", "case", "GB/s 1t", "us 1t", "GB/s 2t", "us 2t");
    let f32s = |shape: &[usize]| Type::new(DType::F32, shape);
    for n in [16 * 1024, 4 << 20] {
        let x = f32s(&[n]);
        let matrix = f32s(&[n / 256, 256]);
        let narrow = f32s(&[n / 64, 64]);
        let half = Type::new(DType::BF16, [n]);
        let sum = |axes: &[usize]| -> Op {
            Reduce { kind: ReduceKind::Sum, axes: axes.into(), keep: false }.into()
        };
        let cases: Vec<(&str, Op, Vec<Type>, bool)> = vec![
            ("add", Binary::Add.into(), vec![x.clone(), x.clone()], false),
            ("add in place", Binary::Add.into(), vec![x.clone(), x.clone()], true),
            ("add a row of 256", Binary::Add.into(), vec![matrix.clone(), f32s(&[256])], true),
            ("add a row of 64", Binary::Add.into(), vec![narrow.clone(), f32s(&[64])], true),
            ("mul by a column", Binary::Mul.into(), vec![narrow.clone(), f32s(&[n / 64, 1])], true),
            ("relu", Unary::Relu.into(), vec![x.clone()], false),
            ("relu in place", Unary::Relu.into(), vec![x.clone()], true),
            ("relu with mask", ReluMask.into(), vec![x.clone()], false),
            ("exp", Unary::Exp.into(), vec![x.clone()], false),
            ("log", Unary::Log.into(), vec![x.clone()], false),
            ("tanh", Unary::Tanh.into(), vec![x.clone()], false),
            ("gelu_tanh", Unary::GeluTanh.into(), vec![x.clone()], false),
            ("sin", Unary::Sin.into(), vec![x.clone()], false),
            ("pow 1.7", Unary::PowScalar(Scalar(1.7)).into(), vec![x.clone()], false),
            ("bf16 add", Binary::Add.into(), vec![half.clone(), half.clone()], false),
            ("cast f32 to bf16", Cast(DType::BF16).into(), vec![x.clone()], false),
            ("adam", adam(n), vec![x.clone(); 4], true),
            ("broadcast row", Broadcast(matrix.shape.clone()).into(), vec![f32s(&[256])], false),
            ("transpose", Transpose([1, 0].as_slice().into()).into(), vec![matrix.clone()], false),
            ("sum all", sum(&[0]), vec![x.clone()], false),
            ("sum last of 256", sum(&[1]), vec![matrix.clone()], false),
            ("sum first, 256 columns", sum(&[0]), vec![matrix.clone()], false),
            ("sum first, 64 columns", sum(&[0]), vec![narrow.clone()], false),
        ];
        for (name, op, types, in_place) in cases.into_iter().filter(|case| case.0.contains(&wanted)) {
            let (one, bytes) = time(&Cpu::new(1), &op, &types, in_place);
            let (two, _) = time(&Cpu::new(2), &op, &types, in_place);
            let label = format!("{name} ({}k)", n / 1024);
            let gb = |t: f64| bytes / t * 1e-9;
            println!("{label:34} {:9.1} {:9.1} {:9.1} {:9.1}", gb(one), one * 1e6, gb(two), two * 1e6);
        }
    }
}
