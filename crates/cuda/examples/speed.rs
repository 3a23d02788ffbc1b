//! How fast a card runs the kernels that most steps are made of. `cargo run --release --example speed`

use plimsoll_cuda::{Arena, Cuda};
use plimsoll_device::backend::{Backend, Call, Operand};
use plimsoll_graph::ops::{
    Attention, AttentionGrad, Binary, Conv, ConvFrame, ConvGradFilter, ConvGradInput, LayerNorm, MatMul,
    Reduce, ReduceKind, Softmax,
};
use plimsoll_graph::{DType, Op, Scalar, Type};

/// Seconds of one call, from twenty after three to warm up.
fn time(cuda: &Cuda, op: &Op, inputs: &[Type]) -> Result<f64, Box<dyn std::error::Error>> {
    let types: Vec<&Type> = inputs.iter().collect();
    let outputs = op.infer(&types)?;
    let outs: Vec<&Type> = outputs.iter().collect();
    let scratch_bytes = cuda.scratch(op, &types, &outs)?;
    let whole: usize = types.iter().chain(&outs).map(|t| t.bytes().next_multiple_of(256)).sum::<usize>()
        + scratch_bytes
        + 256;
    let mut arena = Arena::new(cuda, whole)?;
    arena.resize(whole)?;
    // SAFETY: the arena has as many bytes.
    unsafe { cuda.zero(arena.at(), whole) }?;
    let mut at = arena.at();
    let mut place = |ty: &Type| {
        let here = at;
        at = at.wrapping_add(ty.bytes().next_multiple_of(256));
        here
    };
    let ins: Vec<Operand<'_>> = types.iter().map(|ty| Operand { ty, ptr: place(ty) }).collect();
    let outs: Vec<Operand<'_>> = outs.iter().map(|ty| Operand { ty, ptr: place(ty) }).collect();
    let call = Call { op, inputs: &ins, outputs: &outs, scratch: at, scratch_bytes };
    let mut seconds = 0.0;
    for rounds in [3, 20] {
        let start = cuda.record()?;
        for _ in 0..rounds {
            // SAFETY: the arena holds all operands and the scratch.
            unsafe { cuda.run(&call) }?;
        }
        let end = cuda.record()?;
        cuda.synchronize()?;
        seconds = end.since(&start)? / f64::from(rounds);
    }
    Ok(seconds)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cuda = Cuda::new(0)?;
    println!("{cuda:?}, {:?}", cuda.footprint());
    for dtype in [DType::F32, DType::BF16] {
        let t = |shape: &[usize]| Type::new(dtype, shape);
        let wide = |shape: &[usize]| Type::new(dtype.accumulator(), shape);
        let frame = ConvFrame { stride: [1, 1], pad: [(1, 1); 2], dilation: [1, 1], groups: 1 };
        let attention = Attention::new(true, 0.125);
        let (q, o) = (t(&[8, 1024, 12, 64]), t(&[8, 1024, 12, 64]));
        let (x, y, w) = (t(&[64, 56, 56, 64]), t(&[64, 56, 56, 64]), t(&[3, 3, 64, 64]));
        let lse = wide(&[8, 12, 1024]);
        let cases: Vec<(&str, Op, Vec<Type>)> = vec![
            ("matmul 4096³", MatMul::default().into(), vec![t(&[4096, 4096]), t(&[4096, 4096])]),
            ("matmul 8192×768×3072", MatMul::default().into(), vec![t(&[8192, 768]), t(&[768, 3072])]),
            (
                "conv 3×3 64→64, 64×56×56",
                Conv { frame, bias: false, act: None }.into(),
                vec![x.clone(), w.clone()],
            ),
            (
                "its data gradient",
                ConvGradInput { frame, input: [56, 56], bias: false }.into(),
                vec![y.clone(), w],
            ),
            ("its filter gradient", ConvGradFilter { frame, filter: [3, 3] }.into(), vec![x, y]),
            ("attention 8×1024×12×64", attention.into(), vec![q.clone(), q.clone(), q.clone()]),
            (
                "its gradient",
                AttentionGrad(attention).into(),
                vec![q.clone(), q.clone(), q, o.clone(), lse, o],
            ),
            ("add of 64 Mi", Binary::Add.into(), vec![t(&[1 << 26]), t(&[1 << 26])]),
            ("softmax 8192×4096", Softmax { axis: 1 }.into(), vec![t(&[8192, 4096])]),
            (
                "layer norm 8192×1024",
                LayerNorm { eps: Scalar(1e-5), axes: 1, to: None }.into(),
                vec![t(&[8192, 1024]), wide(&[1024]), wide(&[1024])],
            ),
            (
                "sum of columns 65536×1024",
                Reduce { kind: ReduceKind::Sum, axes: [0][..].into(), keep: false }.into(),
                vec![t(&[65536, 1024])],
            ),
        ];
        for (name, op, inputs) in cases {
            let types: Vec<&Type> = inputs.iter().collect();
            let outputs = op.infer(&types)?;
            let cost = op.cost(&types, &outputs.iter().collect::<Vec<_>>());
            match time(&cuda, &op, &inputs) {
                Ok(s) => println!(
                    "{dtype:>5} {name:<28} {:>9.1} µs {:>8.2} TFLOP/s {:>8.1} GB/s",
                    s * 1e6,
                    cost.flops / s / 1e12,
                    cost.bytes / s / 1e9
                ),
                Err(why) => println!("{dtype:>5} {name:<28} {why}"),
            }
        }
    }
    Ok(())
}
