//! A step of an optimizer for one number: what steps over narrow state compute, whatever that state is kept as.

use smallvec::SmallVec;

use super::{Bf16Update, EightBitUpdate};
use crate::error::Error;
use crate::example::{Dice, Domain};
use crate::reference::Array;
use crate::site::Site;
use crate::{DType, Op, Scalar, TensorOps, Type};

/// What a step computes from a parameter, its gradient, scalars and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Update {
    /// The formula.
    pub rule: UpdateRule,
    /// How much of the parameter is added to its gradient first.
    pub l2: Scalar,
    /// Whether the parameter is multiplied by the last scalar before it is moved.
    pub shrinks: bool,
}

/// The formula of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpdateRule {
    /// m ← m + (1 - β₁)(g - m), v ← β₂ v + (1 - β₂) g², p ← p - a · m / (√v / b + ε), with scalars a, b.
    Adam {
        /// β₁
        beta1: Scalar,
        /// β₂
        beta2: Scalar,
        /// ε
        eps: Scalar,
    },
    /// m ← μ m + g, p ← p - a · m; with Nesterov's momentum p ← p - a (g + μ m), with the scalar a.
    Momentum {
        /// μ
        momentum: Scalar,
        /// Whether it is Nesterov's.
        is_nesterov: bool,
    },
    /// p ← p - a · sign(β₁ m + (1 - β₁) g), m ← β₂ m + (1 - β₂) g, with the scalar a.
    Lion {
        /// β₁
        beta1: Scalar,
        /// β₂
        beta2: Scalar,
    },
}

impl UpdateRule {
    /// How many numbers of state an element has.
    pub fn states(self) -> usize {
        if matches!(self, UpdateRule::Adam { .. }) { 2 } else { 1 }
    }

    /// Scalars beside the one that shrinks.
    pub fn scalars(self) -> usize {
        if matches!(self, UpdateRule::Adam { .. }) { 2 } else { 1 }
    }

    /// What kernels on a card call it: 0 for Adam, 1 for momentum, 2 for Nesterov's, 3 for Lion.
    pub fn number(self) -> usize {
        match self {
            UpdateRule::Adam { .. } => 0,
            UpdateRule::Momentum { is_nesterov, .. } => 1 + usize::from(is_nesterov),
            UpdateRule::Lion { .. } => 3,
        }
    }
}

/// The numbers of a step in f32, and the step of one element: what the reference and the kernels of the host compute. Each operation is
/// rounded, in the order of the optimizer's own ops.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep {
    /// What the rule's numbers become: Adam's 1 - β₁, β₂, 1 - β₂ and ε; μ; Lion's β₁, 1 - β₁, β₂ and 1 - β₂.
    pub constants: [f32; 4],
    /// a, b and what the parameter is multiplied by.
    pub scalars: [f32; 3],
    /// How much of the parameter is added to its gradient.
    pub l2: f32,
}

impl Update {
    /// The step with the values of its scalars, in the order of the inputs.
    pub fn step(&self, scalars: &[f32]) -> UpdateStep {
        let constants = match self.rule {
            UpdateRule::Adam { beta1, beta2, eps } => [1.0 - beta1.0, beta2.0, 1.0 - beta2.0, eps.0],
            UpdateRule::Momentum { momentum, .. } => [momentum.0, 0.0, 0.0, 0.0],
            UpdateRule::Lion { beta1, beta2 } => [beta1.0, 1.0 - beta1.0, beta2.0, 1.0 - beta2.0],
        };
        let [first, .., last] = scalars else {
            return UpdateStep { constants: [f32::NAN; 4], scalars: [f32::NAN; 3], l2: 0.0 };
        };
        // Multiplying by one changes nothing, and neither does adding nothing.
        let shrink = if self.shrinks { *last } else { 1.0 };
        let constants = constants.map(|constant| constant as f32);
        UpdateStep { constants, scalars: [*first, scalars[1], shrink], l2: self.l2.0 as f32 }
    }

    /// The input behind the parameter, its gradient and the scalars.
    pub fn first_state(&self) -> usize {
        3 + self.rule.scalars()
    }

    /// Checks the parameter, which has one of these types, its gradient and the scalars, of `arity` inputs in all.
    pub(super) fn check<'a>(
        &self,
        inputs: &[&'a Type],
        arity: usize,
        dtypes: &[DType],
    ) -> Result<&'a Type, String> {
        if inputs.len() != arity {
            return Err(format!("it takes {arity} inputs and was given {}", inputs.len()));
        }
        let (value, grad) = (inputs[0], inputs[1]);
        if !dtypes.contains(&value.dtype) || value != grad {
            let known: Vec<String> = dtypes.iter().map(DType::to_string).collect();
            return Err(format!("{value} and {grad} must be the same type of {}", known.join(" or ")));
        }
        let mut scalars = inputs[2..self.first_state()].iter();
        match scalars.find(|ty| ty.dtype != DType::F32 || ty.shape.rank() != 0) {
            Some(wrong) => Err(format!("{wrong} must be a single f32")),
            None => Ok(value),
        }
    }

    /// The values of an example's inputs, in f32.
    pub(super) fn numbers(inputs: &[&Array]) -> Vec<Vec<f32>> {
        inputs.iter().map(|array| array.data.iter().map(|&x| x as f32).collect()).collect()
    }

    /// New parameters and states, by the numbers of the inputs and what the old states stand for.
    pub(super) fn reference(
        &self,
        inputs: &[Vec<f32>],
        old: impl Fn(usize, usize) -> f32,
    ) -> (Vec<f64>, Vec<Vec<f32>>) {
        let scalars: Vec<f32> = inputs[2..self.first_state()].iter().map(|scalar| scalar[0]).collect();
        let step = self.step(&scalars);
        let (mut values, mut states) = (Vec::new(), vec![Vec::new(); self.rule.states()]);
        for (i, (&p, &g)) in inputs[0].iter().zip(&inputs[1]).enumerate() {
            let p = match self.rule {
                UpdateRule::Adam { .. } => {
                    let (p, m, v) = step.adam(p, g, old(0, i), old(1, i));
                    states[0].push(m);
                    states[1].push(v);
                    p
                }
                UpdateRule::Momentum { is_nesterov, .. } => {
                    let (p, m) = step.momentum(is_nesterov, p, g, old(0, i));
                    states[0].push(m);
                    p
                }
                UpdateRule::Lion { .. } => {
                    let (p, m) = step.lion(p, g, old(0, i));
                    states[0].push(m);
                    p
                }
            };
            values.push(f64::from(p));
        }
        (values, states)
    }

    /// One of each rule, with and without decay of either kind.
    pub(super) fn examples() -> [Update; 4] {
        let (beta1, beta2) = (Scalar(0.9), Scalar(0.99));
        let rules = [
            UpdateRule::Adam { beta1, beta2, eps: Scalar(1e-8) },
            UpdateRule::Momentum { momentum: beta1, is_nesterov: false },
            UpdateRule::Momentum { momentum: beta1, is_nesterov: true },
            UpdateRule::Lion { beta1, beta2 },
        ];
        let mut at = 0;
        rules.map(|rule| {
            at += 1;
            Update { rule, l2: Scalar(0.01 * (at % 2) as f64), shrinks: at > 2 }
        })
    }

    /// Inputs of an example before its state.
    pub(super) fn example_inputs(&self, ty: &Type) -> Vec<(Type, Domain)> {
        let mut inputs = vec![(ty.clone(), Domain::Normal), (ty.clone(), Domain::Normal)];
        inputs.extend(vec![(Type::new(DType::F32, []), Domain::Positive); 1 + self.rule.scalars()]);
        inputs
    }

    /// Elements of the examples: less than a block of so many, whole blocks, and a last one that is not whole.
    pub(super) fn example_sizes(dice: &mut Dice, block: usize) -> [usize; 4] {
        [dice.range(1, block), 3 * block, 2 * block + dice.range(1, block), 9 * block + 1]
    }
}

impl UpdateStep {
    /// The gradient with its part of the decay.
    #[inline(always)]
    fn grad(&self, p: f32, g: f32) -> f32 {
        if self.l2 == 0.0 { g } else { g + p * self.l2 }
    }

    /// p, m and v after a step of Adam.
    #[inline(always)]
    pub fn adam(&self, p: f32, g: f32, m: f32, v: f32) -> (f32, f32, f32) {
        let ([share1, beta2, share2, eps], [size, root, shrink]) = (self.constants, self.scalars);
        let g = self.grad(p, g);
        let m = m + (g - m) * share1;
        let v = v * beta2 + (g * g) * share2;
        let scale = v.sqrt() / root + eps;
        (p * shrink - (m / scale) * size, m, v)
    }

    /// p and m after a step with momentum.
    #[inline(always)]
    pub fn momentum(&self, is_nesterov: bool, p: f32, g: f32, m: f32) -> (f32, f32) {
        let ([momentum, ..], [rate, _, shrink]) = (self.constants, self.scalars);
        let g = self.grad(p, g);
        let m = m * momentum + g;
        let step = if is_nesterov { g + m * momentum } else { m };
        (p * shrink - step * rate, m)
    }

    /// p and m after a step of Lion.
    #[inline(always)]
    pub fn lion(&self, p: f32, g: f32, m: f32) -> (f32, f32) {
        let ([beta1, share1, beta2, share2], [rate, _, shrink]) = (self.constants, self.scalars);
        let g = self.grad(p, g);
        let x = m * beta1 + g * share1;
        let sign = f32::from(u8::from(x > 0.0)) - f32::from(u8::from(x < 0.0));
        (p * shrink - sign * rate, m * beta2 + g * share2)
    }
}

/// Steps of optimizers over state that is narrower than the parameter.
pub trait UpdateOps: TensorOps {
    /// The parameter after a step, and its state: codes and scales of each, as [`EightBitUpdate`] takes them. `self` is the parameter; the
    /// scalars are those of the rule and, last, what the parameter is multiplied by where the op says so.
    #[track_caller]
    fn eight_bit_update(
        &self,
        op: EightBitUpdate,
        grad: &Self,
        scalars: &[&Self],
        state: &[&Self],
    ) -> Result<SmallVec<[Self; 2]>, Self::Error> {
        let inputs = [&[self, grad], scalars, state].concat();
        emit(op.into(), &inputs, state.len(), Site::here())
    }

    /// The parameter after a step, and its state in bf16, as [`Bf16Update`] takes it, drawn by a key of seed and step.
    #[track_caller]
    fn bf16_update(
        &self,
        op: Bf16Update,
        grad: &Self,
        scalars: &[&Self],
        key: &Self,
        state: &[&Self],
    ) -> Result<SmallVec<[Self; 2]>, Self::Error> {
        let inputs = [&[self, grad], scalars, &[key], state].concat();
        emit(op.into(), &inputs, state.len(), Site::here())
    }
}

impl<T: TensorOps> UpdateOps for T {}

fn emit<T: TensorOps>(op: Op, inputs: &[&T], state: usize, site: Site) -> Result<SmallVec<[T; 2]>, T::Error> {
    let outputs = inputs[0].emit(op, inputs, site)?;
    if outputs.len() != 1 + state {
        return Err(Error::Internal("a step gave fewer outputs than state".into()).into());
    }
    Ok(outputs)
}
