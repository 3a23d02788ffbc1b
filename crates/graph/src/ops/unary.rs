//! y = f(x), element by element.

use smallvec::{SmallVec, smallvec};

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Type, ops};

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// -x
    Neg,
    /// |x|
    Abs,
    /// -1, 0 or 1
    Sign,
    /// the largest integer not above x
    Floor,
    /// e^x
    Exp,
    /// ln x
    Log,
    /// √x
    Sqrt,
    /// 1/√x
    Rsqrt,
    /// x²
    Square,
    /// 1/x
    Reciprocal,
    /// sin x
    Sin,
    /// cos x
    Cos,
    /// tanh x
    Tanh,
    /// 1/(1+e^-x)
    Sigmoid,
    /// the error function
    Erf,
    /// max(x, 0)
    Relu,
    /// x where x > 0, else slope · x
    LeakyRelu(Scalar),
    /// x · Φ(x), Φ the normal distribution
    Gelu,
    /// ½x(1 + tanh(√(2/π)(x + 0.044715x³)))
    GeluTanh,
    /// x · sigmoid(x)
    Silu,
    /// ln(1 + e^x)
    Softplus,
    /// x held between two bounds
    Clamp(Scalar, Scalar),
    /// x + s
    AddScalar(Scalar),
    /// x · s
    MulScalar(Scalar),
    /// s - x
    RsubScalar(Scalar),
    /// s / x
    RdivScalar(Scalar),
    /// x^s
    PowScalar(Scalar),
    /// true where x is false
    Not,
    /// true where x is neither infinite nor not-a-number
    IsFinite,
}

/// √(2/π)
const GELU_SCALE: f64 = 0.797_884_560_802_865_4;
const GELU_CUBE: f64 = 0.044715;

impl Unary {
    /// All functions, with typical attributes.
    pub fn all() -> Vec<Unary> {
        use Unary::*;
        let s = Scalar;
        let plain = [
            Neg, Abs, Sign, Floor, Exp, Log, Sqrt, Rsqrt, Square, Reciprocal, Sin, Cos, Tanh, Sigmoid, Erf,
            Relu, Gelu, GeluTanh, Silu, Softplus, Not, IsFinite,
        ];
        let with_scalars = [
            LeakyRelu(s(0.1)),
            Clamp(s(-0.5), s(0.8)),
            AddScalar(s(1.5)),
            MulScalar(s(-2.5)),
            RsubScalar(s(1.0)),
            RdivScalar(s(2.0)),
            PowScalar(s(3.0)),
            PowScalar(s(0.5)),
        ];
        plain.into_iter().chain(with_scalars).collect()
    }

    /// The numbers that are part of the function, in their order.
    pub fn scalars(self) -> SmallVec<[Scalar; 2]> {
        use Unary::*;
        match self {
            LeakyRelu(s) | AddScalar(s) | MulScalar(s) | RsubScalar(s) | RdivScalar(s) | PowScalar(s) => {
                smallvec![s]
            }
            Clamp(low, high) => smallvec![low, high],
            _ => smallvec![],
        }
    }

    /// The value of the function, in f64.
    pub fn eval(self, x: f64) -> f64 {
        match self {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Sign => f64::from(x > 0.0) - f64::from(x < 0.0),
            Unary::Floor => x.floor(),
            Unary::Exp => x.exp(),
            Unary::Log => x.ln(),
            Unary::Sqrt => x.sqrt(),
            Unary::Rsqrt => 1.0 / x.sqrt(),
            Unary::Square => x * x,
            Unary::Reciprocal => 1.0 / x,
            Unary::Sin => x.sin(),
            Unary::Cos => x.cos(),
            Unary::Tanh => x.tanh(),
            Unary::Sigmoid => sigmoid(x),
            Unary::Erf => erf(x),
            // A NaN stays one, here and in clamp: a step that has gone wrong must not look right.
            Unary::Relu if x.is_nan() => x,
            Unary::Relu => x.max(0.0),
            Unary::LeakyRelu(slope) => {
                if x > 0.0 {
                    x
                } else {
                    slope.0 * x
                }
            }
            Unary::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Unary::GeluTanh => 0.5 * x * (1.0 + (GELU_SCALE * (x + GELU_CUBE * x * x * x)).tanh()),
            Unary::Silu => x * sigmoid(x),
            Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Unary::Clamp(..) if x.is_nan() => x,
            Unary::Clamp(low, high) => x.max(low.0).min(high.0),
            Unary::AddScalar(s) => x + s.0,
            Unary::MulScalar(s) => x * s.0,
            Unary::RsubScalar(s) => s.0 - x,
            Unary::RdivScalar(s) => s.0 / x,
            Unary::PowScalar(s) => x.powf(s.0),
            Unary::Not => f64::from(x == 0.0),
            Unary::IsFinite => f64::from(x.is_finite()),
        }
    }

    /// The element type of the result for an operand of `dtype`, or why there is none.
    pub fn result(self, dtype: DType) -> Result<DType, String> {
        match self {
            Unary::Not if dtype == DType::Bool => Ok(DType::Bool),
            Unary::Not => Err(format!("it takes truth values, not {dtype}; compare first")),
            Unary::IsFinite if dtype.is_float() => Ok(DType::Bool),
            Unary::Neg | Unary::Abs | Unary::Sign | Unary::Square | Unary::Relu if dtype.is_index() => {
                Ok(dtype)
            }
            Unary::AddScalar(s) | Unary::MulScalar(s) | Unary::RsubScalar(s) if dtype.is_index() => {
                if s.0.fract() == 0.0 {
                    Ok(dtype)
                } else {
                    Err(format!("{dtype} elements cannot take the fractional scalar {s}; cast them first"))
                }
            }
            Unary::Clamp(low, high) if low.0 > high.0 => {
                Err(format!("the bounds {low} and {high} are in the wrong order"))
            }
            Unary::Clamp(..) if dtype.is_index() => Ok(dtype),
            _ if dtype.is_float() => Ok(dtype),
            _ => Err(format!("it takes floating-point values, not {dtype}; cast them first")),
        }
    }

    fn domain(self) -> Domain {
        match self {
            Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Reciprocal => Domain::Positive,
            Unary::RdivScalar(_) | Unary::PowScalar(_) => Domain::Positive,
            Unary::Not => Domain::Truth,
            _ => Domain::Normal,
        }
    }
}

impl Rule for Unary {
    const NAME: &'static str = "unary";

    fn name(&self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Sign => "sign",
            Unary::Floor => "floor",
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Square => "square",
            Unary::Reciprocal => "reciprocal",
            Unary::Sin => "sin",
            Unary::Cos => "cos",
            Unary::Tanh => "tanh",
            Unary::Sigmoid => "sigmoid",
            Unary::Erf => "erf",
            Unary::Relu => "relu",
            Unary::LeakyRelu(_) => "leaky_relu",
            Unary::Gelu => "gelu",
            Unary::GeluTanh => "gelu_tanh",
            Unary::Silu => "silu",
            Unary::Softplus => "softplus",
            Unary::Clamp(..) => "clamp",
            Unary::AddScalar(_) => "add_scalar",
            Unary::MulScalar(_) => "mul_scalar",
            Unary::RsubScalar(_) => "rsub_scalar",
            Unary::RdivScalar(_) => "rdiv_scalar",
            Unary::PowScalar(_) => "pow_scalar",
            Unary::Not => "not",
            Unary::IsFinite => "is_finite",
        }
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        Ok(smallvec![x.with_dtype(self.result(x.dtype)?)])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        match self {
            Unary::IsFinite => smallvec![],
            _ => smallvec![(0, 0)],
        }
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = match self {
            Unary::Exp | Unary::Log | Unary::Sin | Unary::Cos | Unary::Sigmoid | Unary::PowScalar(_) => 16.0,
            Unary::Tanh | Unary::Erf | Unary::Gelu | Unary::GeluTanh | Unary::Silu | Unary::Softplus => 24.0,
            _ => 1.0,
        };
        Cost { flops: flops * outputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    fn keep(&self) -> Keep {
        match self {
            Unary::Exp | Unary::Sqrt | Unary::Rsqrt | Unary::Tanh | Unary::Sigmoid => Keep::outputs(1),
            Unary::Relu | Unary::Reciprocal => Keep::outputs(1),
            // With a slope that is not negative, the output has the input's sign.
            Unary::LeakyRelu(slope) if slope.0 >= 0.0 => Keep::outputs(1),
            Unary::Neg | Unary::Sign | Unary::Floor | Unary::Not | Unary::IsFinite => Keep::NOTHING,
            Unary::AddScalar(_) | Unary::MulScalar(_) | Unary::RsubScalar(_) => Keep::NOTHING,
            _ => Keep::inputs(1),
        }
    }

    /// dx = dy · f'(x), with f' built of differentiable ops. What takes several steps takes them in the
    /// accumulator's type, so that 16-bit values are rounded once.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let narrow = at.input_type(0).dtype;
        let wide = narrow.accumulator();
        let x = || at.input(0)?.cast(wide);
        let y = || at.output(0)?.cast(wide);
        let dy = at.grad(0)?;
        let g = dy.cast(wide)?;
        let dx = match *self {
            Unary::Neg => dy.neg()?,
            Unary::Abs => dy.mul(&at.input(0)?.sign()?)?,
            // The derivative is zero wherever it exists.
            Unary::Sign | Unary::Floor => return Ok(vec![None]),
            Unary::Exp => dy.mul(&at.output(0)?)?,
            Unary::Log => dy.div(&at.input(0)?)?,
            Unary::Sqrt => g.div(&y()?)?.mul_scalar(0.5)?,
            Unary::Rsqrt => {
                let y = y()?;
                g.mul(&y.square()?.mul(&y)?)?.mul_scalar(-0.5)?
            }
            Unary::Square => g.mul(&x()?)?.mul_scalar(2.0)?,
            Unary::Reciprocal => g.mul(&y()?.square()?)?.neg()?,
            Unary::Sin => g.mul(&x()?.cos()?)?,
            Unary::Cos => g.mul(&x()?.sin()?)?.neg()?,
            Unary::Tanh => g.mul(&y()?.square()?.rsub_scalar(1.0)?)?,
            Unary::Sigmoid => {
                let y = y()?;
                g.mul(&y.mul(&y.rsub_scalar(1.0)?)?)?
            }
            Unary::Erf => {
                g.mul(&x()?.square()?.neg()?.exp()?)?.mul_scalar(std::f64::consts::FRAC_2_SQRT_PI)?
            }
            Unary::Relu => at.push(ops::ReluGrad { slope: Scalar(0.0) }, &[&at.output(0)?, &dy])?.remove(0),
            Unary::LeakyRelu(slope) => {
                let sign = if slope.0 >= 0.0 { at.output(0)? } else { at.input(0)? };
                at.push(ops::ReluGrad { slope }, &[&sign, &dy])?.remove(0)
            }
            Unary::Gelu => {
                // Φ(x) + x φ(x)
                let x = x()?;
                let cdf =
                    x.mul_scalar(std::f64::consts::FRAC_1_SQRT_2)?.erf()?.add_scalar(1.0)?.mul_scalar(0.5)?;
                let pdf = x.square()?.mul_scalar(-0.5)?.exp()?.mul_scalar(0.398_942_280_401_432_7)?;
                g.mul(&cdf.add(&x.mul(&pdf)?)?)?
            }
            Unary::GeluTanh => {
                // t = tanh(s(x + c x³)): ½(1 + t) + ½ x (1 - t²) s (1 + 3c x²)
                let x = x()?;
                let xx = x.square()?;
                let inner = xx.mul_scalar(GELU_CUBE)?.add_scalar(1.0)?.mul(&x)?.mul_scalar(GELU_SCALE)?;
                let t = inner.tanh()?;
                let slope = xx.mul_scalar(3.0 * GELU_CUBE)?.add_scalar(1.0)?.mul_scalar(GELU_SCALE)?;
                let bend = t.square()?.rsub_scalar(1.0)?.mul(&slope)?.mul(&x)?;
                g.mul(&t.add_scalar(1.0)?.add(&bend)?.mul_scalar(0.5)?)?
            }
            Unary::Silu => {
                // s + x s (1 - s)
                let x = x()?;
                let s = x.sigmoid()?;
                g.mul(&s.mul(&x.mul(&s.rsub_scalar(1.0)?)?.add_scalar(1.0)?)?)?
            }
            Unary::Softplus => g.mul(&x()?.sigmoid()?)?,
            Unary::Clamp(low, high) => {
                let x = at.input(0)?;
                let inside = x.equal(&x.clamp(low.0, high.0)?)?;
                inside.select(&dy, &at.full(dy.ty(), 0.0)?)?
            }
            Unary::AddScalar(_) => dy,
            Unary::MulScalar(s) => dy.mul_scalar(s.0)?,
            Unary::RsubScalar(_) => dy.neg()?,
            Unary::RdivScalar(s) => g.div(&x()?.square()?)?.mul_scalar(-s.0)?,
            Unary::PowScalar(s) => g.mul(&x()?.pow_scalar(s.0 - 1.0)?)?.mul_scalar(s.0)?,
            Unary::Not | Unary::IsFinite => return Err(at.no_gradient("its result is a truth value")),
        };
        Ok(vec![Some(dx.cast(narrow)?)])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let data = inputs[0].data.iter().map(|&x| self.eval(x)).collect();
        vec![Array::new(inputs[0].shape.clone(), data)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples: Vec<Example> = Unary::all()
            .into_iter()
            .map(|f| {
                let dtype = if f == Unary::Not { DType::Bool } else { DType::F32 };
                let shape = [dice.range(1, 5), dice.range(1, 40)];
                Example::new(f, vec![(Type::new(dtype, shape), f.domain())])
            })
            .collect();
        for dtype in [DType::I32, DType::I64] {
            let kinds =
                [Unary::Neg, Unary::Square, Unary::AddScalar(Scalar(3.0)), Unary::MulScalar(Scalar(-2.0))];
            examples.extend(kinds.map(|f| Example::new(f, vec![(Type::new(dtype, [7]), Domain::Index(50))])));
        }
        examples
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function to f64 accuracy: its series near zero, the continued fraction of its complement farther out.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..80 {
            term *= -a * a / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        return (std::f64::consts::FRAC_2_SQRT_PI * sum).copysign(x);
    }
    let mut fraction = 0.0;
    for n in (1..60).rev() {
        fraction = n as f64 / 2.0 / (a + fraction);
    }
    let complement = (-a * a).exp() / (a + fraction) / std::f64::consts::PI.sqrt();
    (1.0 - complement).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_the_tabulated_values() {
        let table =
            [(0.0, 0.0), (0.5, 0.5204998778130465), (1.0, 0.8427007929497149), (2.4, 0.9993114861033549)];
        for (x, want) in table.into_iter().chain([(2.6, 0.9997639655834707), (-4.0, -0.9999999845827421)]) {
            assert!((erf(x) - want).abs() < 1e-14, "erf({x}) = {}", erf(x));
        }
    }

    #[test]
    fn a_nan_is_never_swallowed() {
        for f in
            [Unary::Relu, Unary::LeakyRelu(Scalar(0.1)), Unary::Clamp(Scalar(0.0), Scalar(1.0)), Unary::Abs]
        {
            assert!(f.eval(f64::NAN).is_nan(), "{f:?}");
        }
        for f in [ops::Binary::Max, ops::Binary::Min, ops::Binary::Add] {
            assert!(f.eval(f64::NAN, 1.0).is_nan() && f.eval(1.0, f64::NAN).is_nan(), "{f:?}");
        }
    }

    #[test]
    fn integers_take_no_fractional_scalar() {
        assert!(Unary::AddScalar(Scalar(0.5)).result(DType::I64).is_err());
        assert_eq!(Unary::AddScalar(Scalar(2.0)).result(DType::I64), Ok(DType::I64));
    }
}
