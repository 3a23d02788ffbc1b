//! An op of your own in a U-Net: shrinkage by an amount that is learned, with kernels for the CPU and for cards and a gradient.
//!
//! Run with `cargo run --release -p plimsoll --example custom_op`; `PLIMSOLL_DEVICE=cuda` runs it on a card.

use plimsoll::data::Shapes;
use plimsoll::nn::{Conv2d, Init};
use plimsoll::prelude::*;
use plimsoll::tensor::custom::{
    Along, Backward, CudaKernel, Custom, CustomOp, HostCall, Keep, Result as Traced, Sym, Types,
};
use plimsoll::tensor::{Padding, ResizeMode, Result};

// ANCHOR: op
/// y = sign(x) · max(|x| - t, 0): what is small is taken for noise, what is large is less so. Inputs: x, t (one number).
#[derive(Debug)]
struct SoftShrink;

/// Elements that one thread takes at a time.
const CHUNK: usize = 1 << 14;

impl CustomOp for SoftShrink {
    fn name(&self) -> &'static str {
        "soft_shrink"
    }

    fn infer(&self, inputs: &[&Type]) -> std::result::Result<Types, String> {
        match inputs {
            [x, t] if x.dtype == DType::F32 && t.dtype == DType::F32 && t.elements() == 1 => {
                Ok([(*x).clone()].into_iter().collect())
            }
            _ => Err("it takes a tensor and one number, both f32".into()),
        }
    }

    /// Every element goes its own way, so a batch may be split.
    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand == 0
    }

    fn run(&self, call: &mut HostCall<'_>) -> std::result::Result<(), String> {
        let (x, t) = (call.inputs[0].f32()?, call.inputs[1].f32()?[0]);
        call.parallel.chunks(call.outputs[0].f32()?, CHUNK, &|i, y| {
            for (y, &x) in y.iter_mut().zip(&x[i * CHUNK..]) {
                *y = x.signum() * (x.abs() - t).max(0.0);
            }
        });
        Ok(())
    }

    fn cuda(&self, inputs: &[&Type], _: &[&Type]) -> Option<CudaKernel> {
        let n = inputs[0].elements();
        let source = "struct P { const float *x, *t; float *y; i64 n; };
            KERNEL(soft_shrink, P) { EACH(i, p.n) { float x = p.x[i], t = p.t[0]; p.y[i] = x > t ? x - t : -x > t ? x + t : 0; } }";
        Some(CudaKernel::new("soft_shrink", source, n).int(n))
    }

    /// The gradient reads the result alone, so x need not be kept for it.
    fn keep(&self) -> Keep {
        Keep::outputs(1)
    }

    /// dx = dy where y is not 0, dt = -Σ sign(y) dy. Here it is made of ops that exist; it could be an op of its own.
    fn gradient(&self, at: &Backward<'_>) -> Traced<Vec<Option<Sym>>> {
        let sign = at.output(0)?.sign()?;
        let dx = sign.abs()?.mul(&at.grad(0)?)?;
        let dt = sign.mul(&at.grad(0)?)?.sum(&[], false)?.neg()?.reshape(&at.input_type(1).shape)?;
        Ok(vec![Some(dx), Some(dt)])
    }
}
// ANCHOR_END: op

// ANCHOR: use
fn block(net: &mut Net, name: &str, x: &Tensor, channels: usize) -> Result<Tensor> {
    let y = net.conv2d(name, x, Conv2d::new(channels, 3).same())?;
    let y = net.group_norm(&format!("{name}-norm"), &y, 4)?;
    let t = net.param(&format!("{name}-edge"), [1], Init::Constant(0.1))?;
    Ok(y.custom(SoftShrink, &[&y, &t])?.remove(0))
}
// ANCHOR_END: use

fn unet(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let wide = block(net, "down0", &x[0], 8)?;
    let deep = block(net, "down1", &wide.max_pool2d([2, 2], [2, 2], Padding::Valid)?, 16)?;
    let up = deep.upsample2d(2, ResizeMode::Nearest)?;
    let y = block(net, "up0", &Tensor::concat(&[&up, &wide], -1)?, 8)?;
    net.conv2d("classes", &y, Conv2d::new(Shapes::CLASSES, 1))
}

fn main() -> plimsoll::Result<()> {
    let shapes = Shapes { count: 64, height: 48, width: 48, channels: 1, most: 2, seed: 1 };
    let data = || Dataset::shapes(shapes).shuffle(64, 1).batch(8);
    let trainer = || Trainer::new(unet, softmax_cross_entropy, Adam::new(1e-2)).metrics([Metric::Accuracy]);

    // The op is in the plan: the least memory counts it, and in that memory the batch is split or its results are recomputed.
    let least = trainer().plan(data())?.figures.floor;
    let mut trainer = trainer().memory_limit_bytes(Some(least + Bytes::kib(256)));
    let plan = trainer.plan(data())?.figures;
    let history = trainer.fit(data(), Epochs(4))?;
    let right = history[3].metric("accuracy").unwrap_or(f64::NAN);
    println!(
        "{} planned, {} micro-batches, {} ops recomputed: {:.0} % of the pixels are right",
        plan.planned,
        plan.micro_batches,
        plan.recomputed_ops,
        100.0 * right
    );
    assert!(history[3].loss < history[0].loss && right > 0.7);
    // Two ops are the same if their types and attributes are: nothing is timed or compiled twice.
    assert_eq!(Custom::new(SoftShrink), Custom::new(SoftShrink));
    Ok(())
}
