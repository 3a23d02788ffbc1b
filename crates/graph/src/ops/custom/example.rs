//! A custom op by which every backend's handling of them is tested: shrinkage by an amount that is learned, in f32 and f64.

use super::{CudaKernel, Custom, CustomOp, HostCall};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Keep, Types};
use crate::trace::Sym;
use crate::{DType, Type, ops};

/// Elements of a task.
const CHUNK: usize = 1024;
/// Bytes of a part of a sum.
const PART: usize = 8;

/// y = x - tanh(power · x) · t, t one number for all. Inputs: x, t `[1]`.
#[derive(Clone, Copy, Debug)]
struct Shrink {
    power: f32,
}

/// dx and dt of [`Shrink`]. Inputs: x, t, dy.
#[derive(Clone, Copy, Debug)]
struct ShrinkGrad {
    power: f32,
}

fn check(x: &Type, t: &Type) -> Result<(), String> {
    let known = matches!(x.dtype, DType::F32 | DType::F64) && t.dtype == x.dtype;
    if known && t.elements() == 1 {
        Ok(())
    } else {
        Err(format!("it takes floats and one number, not {x} and {t}"))
    }
}

/// The kernels, once for each type.
macro_rules! kernels {
    ($ty:ident, $shrink:ident, $shrink_grad:ident) => {
        fn $shrink(power: $ty, call: &mut HostCall<'_>) -> Result<(), String> {
            let (x, t) = (call.inputs[0].$ty()?, call.inputs[1].$ty()?[0]);
            call.parallel.chunks(call.outputs[0].$ty()?, CHUNK, &|i, y| {
                for (y, x) in y.iter_mut().zip(&x[i * CHUNK..]) {
                    *y = x - (power * x).tanh() * t;
                }
            });
            Ok(())
        }

        fn $shrink_grad(power: $ty, call: &mut HostCall<'_>) -> Result<(), String> {
            let (x, t, dy) = (call.inputs[0].$ty()?, call.inputs[1].$ty()?[0], call.inputs[2].$ty()?);
            call.parallel.chunks(call.outputs[0].$ty()?, CHUNK, &|i, dx| {
                for ((dx, x), dy) in dx.iter_mut().zip(&x[i * CHUNK..]).zip(&dy[i * CHUNK..]) {
                    let y = (power * x).tanh();
                    *dx = dy * (1.0 - (1.0 - y * y) * power * t);
                }
            });
            // A part of dt for each chunk, added up in their order: the same bits with any number of threads.
            let parts = &mut call.scratch[..x.len().div_ceil(CHUNK) * PART];
            call.parallel.chunks(parts, PART, &|i, part| {
                let range = i * CHUNK..x.len().min((i + 1) * CHUNK);
                let terms = x[range.clone()].iter().zip(&dy[range]).map(|(x, dy)| -(power * x).tanh() * dy);
                part.copy_from_slice(&f64::from(terms.sum::<$ty>()).to_ne_bytes());
            });
            let part = |bytes: &[u8]| bytes.try_into().map_or(f64::NAN, f64::from_ne_bytes);
            call.outputs[1].$ty()?[0] = parts.chunks(PART).map(part).sum::<f64>() as $ty;
            Ok(())
        }
    };
}
kernels!(f32, shrink_f32, shrink_grad_f32);
kernels!(f64, shrink_f64, shrink_grad_f64);

/// The name of the elements in CUDA.
fn typed(source: &str, ty: &Type) -> String {
    let name = if ty.dtype == DType::F64 { "double" } else { "float" };
    format!("typedef {name} T;\n{source}")
}

impl CustomOp for Shrink {
    fn name(&self) -> &'static str {
        "example_shrink"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, t] = ops::arity(inputs)?;
        check(x, t)?;
        Ok(smallvec::smallvec![x.clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand == 0
    }

    fn run(&self, call: &mut HostCall<'_>) -> Result<(), String> {
        match call.inputs[0].dtype() {
            DType::F64 => shrink_f64(self.power.into(), call),
            _ => shrink_f32(self.power, call),
        }
    }

    fn cuda(&self, inputs: &[&Type], _: &[&Type]) -> Option<CudaKernel> {
        let source = "struct P { const T *x, *t; T *y; i64 n; double power; };
            KERNEL(shrink, P) { EACH(i, p.n) p.y[i] = p.x[i] - (T)tanh(p.power * p.x[i]) * p.t[0]; }";
        let n = inputs[0].elements();
        Some(CudaKernel::new("shrink", typed(source, inputs[0]), n).int(n).float(self.power.into()))
    }

    fn keep(&self) -> Keep {
        Keep::inputs(0b11)
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let op = Custom::new(ShrinkGrad { power: self.power });
        Ok(at.push(op, &[&at.input(0)?, &at.input(1)?, &at.grad(0)?])?.into_iter().map(Some).collect())
    }
}

impl CustomOp for ShrinkGrad {
    fn name(&self) -> &'static str {
        "example_shrink_grad"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, t, dy] = ops::arity(inputs)?;
        check(x, t)?;
        if dy != x {
            return Err(format!("the gradient of {x} cannot be {dy}"));
        }
        Ok(smallvec::smallvec![x.clone(), t.clone()])
    }

    fn scratch(&self, inputs: &[&Type], _: &[&Type]) -> usize {
        inputs[0].elements().div_ceil(CHUNK) * PART
    }

    fn run(&self, call: &mut HostCall<'_>) -> Result<(), String> {
        match call.inputs[0].dtype() {
            DType::F64 => shrink_grad_f64(self.power.into(), call),
            _ => shrink_grad_f32(self.power, call),
        }
    }

    fn cuda(&self, inputs: &[&Type], _: &[&Type]) -> Option<CudaKernel> {
        let source = "struct P { const T *x, *t, *dy; T *dx, *dt; void *scratch; i64 n; double power; };
            KERNEL(shrink_grad, P) {
                EACH(i, p.n) {
                    T y = (T)tanh(p.power * p.x[i]);
                    p.dx[i] = p.dy[i] * (1 - (1 - y * y) * (T)p.power * p.t[0]);
                }
                EACH(once, 1) {
                    double sum = 0;
                    for (i64 i = 0; i < p.n; i++) sum -= tanh(p.power * p.x[i]) * p.dy[i];
                    p.dt[0] = (T)sum;
                }
            }";
        let n = inputs[0].elements();
        Some(CudaKernel::new("shrink_grad", typed(source, inputs[0]), n).int(n).float(self.power.into()))
    }
}

/// Calls over one chunk and over several, in both types, and of the gradient.
pub(super) fn examples(dice: &mut Dice) -> Vec<Example> {
    let mut examples = Vec::new();
    for dtype in [DType::F32, DType::F64] {
        let t = (Type::new(dtype, [1]), Domain::Positive);
        for n in [dice.range(1, 9), 1000 + dice.range(0, 1000)] {
            let x = (Type::new(dtype, [n, 2]), Domain::Normal);
            examples.push(Example::new(Custom::new(Shrink { power: 0.5 }), vec![x.clone(), t.clone()]));
            examples
                .push(Example::new(Custom::new(ShrinkGrad { power: 0.5 }), vec![x.clone(), t.clone(), x]));
        }
    }
    examples
}
