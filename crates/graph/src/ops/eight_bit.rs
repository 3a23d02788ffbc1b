//! An optimizer's step over state that is kept as bytes with a scale a block: read, moved and written again in one pass.
//!
//! For each block of 256 numbers: s = value[code] · scale; the step in f32; scale' = the largest |s'|; code' = the nearest to s' / scale'.

use smallvec::{SmallVec, smallvec};

use crate::eight_bit::{BLOCK, Codes};
use crate::error::{Error, Result};
use crate::example::{Dice, Domain, Example};
use crate::op::{Cost, Rule, Types, traffic};
use crate::reference::Array;
use crate::site::Site;
use crate::{DType, Scalar, TensorOps, Type};

/// A step of an optimizer whose state is bytes. Inputs: the parameter, its gradient, the scalars of the rule, then codes and scales of each
/// state; outputs: the new parameter, then new codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EightBitUpdate {
    /// What is computed from the parameter, the gradient and the state.
    pub rule: EightBitRule,
    /// How much of the parameter is added to its gradient first.
    pub l2: Scalar,
    /// Whether the parameter is multiplied by the last scalar before it is moved.
    pub shrinks: bool,
}

/// The formula of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EightBitRule {
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

impl EightBitRule {
    /// What each state's codes stand for.
    pub fn codes(self) -> &'static [Codes] {
        match self {
            EightBitRule::Adam { .. } => &[Codes::Signed, Codes::Unsigned],
            EightBitRule::Momentum { .. } | EightBitRule::Lion { .. } => &[Codes::Signed],
        }
    }

    /// Scalars beside the one that shrinks.
    pub fn scalars(self) -> usize {
        if matches!(self, EightBitRule::Adam { .. }) { 2 } else { 1 }
    }
}

/// The numbers of a step in f32, and the step of one element: what the reference and the kernels of the host compute. Each operation is
/// rounded, in the order of the optimizer's own ops.
#[derive(Clone, Copy, Debug)]
pub struct EightBitStep {
    /// What the rule's numbers become: Adam's 1 - β₁, β₂, 1 - β₂ and ε; μ; Lion's β₁, 1 - β₁, β₂ and 1 - β₂.
    pub constants: [f32; 4],
    /// a, b and what the parameter is multiplied by.
    pub scalars: [f32; 3],
    /// How much of the parameter is added to its gradient.
    pub l2: f32,
}

impl EightBitUpdate {
    /// The step with the values of its scalars, in the order of the inputs.
    pub fn step(&self, scalars: &[f32]) -> EightBitStep {
        let constants = match self.rule {
            EightBitRule::Adam { beta1, beta2, eps } => [1.0 - beta1.0, beta2.0, 1.0 - beta2.0, eps.0],
            EightBitRule::Momentum { momentum, .. } => [momentum.0, 0.0, 0.0, 0.0],
            EightBitRule::Lion { beta1, beta2 } => [beta1.0, 1.0 - beta1.0, beta2.0, 1.0 - beta2.0],
        };
        let [first, .., last] = scalars else {
            return EightBitStep { constants: [f32::NAN; 4], scalars: [f32::NAN; 3], l2: 0.0 };
        };
        // Multiplying by one changes nothing, and neither does adding nothing.
        let shrink = if self.shrinks { *last } else { 1.0 };
        let constants = constants.map(|constant| constant as f32);
        EightBitStep { constants, scalars: [*first, scalars[1], shrink], l2: self.l2.0 as f32 }
    }

    /// The number of inputs: the parameter, the gradient, the scalars, and two of each state.
    fn arity(&self) -> usize {
        self.first_state() + 2 * self.rule.codes().len()
    }

    /// The first input that is state.
    pub fn first_state(&self) -> usize {
        3 + self.rule.scalars()
    }
}

impl EightBitStep {
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

/// The types of the codes and the scales of a tensor.
pub fn coded(ty: &Type) -> [Type; 2] {
    [ty.with_dtype(DType::U8), Type::new(DType::F32, [ty.elements().div_ceil(BLOCK)])]
}

impl Rule for EightBitUpdate {
    const NAME: &'static str = "eight_bit_update";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        if inputs.len() != self.arity() {
            return Err(format!("it takes {} inputs and was given {}", self.arity(), inputs.len()));
        }
        let [value, grad, rest @ ..] = inputs else { return Err("it takes more inputs".into()) };
        if value.dtype != DType::F32 || value != grad {
            return Err(format!("{value} and {grad} must be the same type of f32"));
        }
        let (scalars, states) = rest.split_at(1 + self.rule.scalars());
        if let Some(wrong) = scalars.iter().find(|ty| ty.dtype != DType::F32 || ty.shape.rank() != 0) {
            return Err(format!("{wrong} must be a single f32"));
        }
        let [codes, scales] = coded(value);
        let mut outputs: Types = smallvec![(*value).clone()];
        for pair in states.chunks_exact(2) {
            if *pair[0] != codes || *pair[1] != scales {
                let (a, b) = (pair[0], pair[1]);
                return Err(format!("state of {value} is {codes} and {scales}, not {a} and {b}"));
            }
            outputs.extend([codes.clone(), scales.clone()]);
        }
        Ok(outputs)
    }

    /// A scale is of a block, wherever that begins in a sample.
    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        let first = self.first_state();
        let states = (0..2 * self.rule.codes().len()).map(|i| (1 + i, first + i));
        [(0, 0), (0, 1)].into_iter().chain(states).collect()
    }

    /// A step is about twenty operations, and a code is found among 256.
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let elements = inputs.first().map_or(0, |ty| ty.elements()) as f64;
        let work = 20.0 + 12.0 * self.rule.codes().len() as f64;
        Cost { flops: work * elements, bytes: traffic(inputs, outputs) }
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let narrow = |array: &Array| array.data.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let all: Vec<Vec<f32>> = inputs.iter().map(|array| narrow(array)).collect();
        let first = self.first_state();
        let scalars: Vec<f32> = all[2..first].iter().map(|scalar| scalar[0]).collect();
        let step = self.step(&scalars);
        let maps = self.rule.codes();
        let old = |state: usize, i: usize| {
            let code = all[first + 2 * state][i] as usize;
            maps[state].values()[code] * all[first + 2 * state + 1][i / BLOCK]
        };
        let (mut values, mut states) = (Vec::new(), vec![Vec::new(); maps.len()]);
        for (i, (&p, &g)) in all[0].iter().zip(&all[1]).enumerate() {
            let p = match self.rule {
                EightBitRule::Adam { .. } => {
                    let (p, m, v) = step.adam(p, g, old(0, i), old(1, i));
                    states[0].push(m);
                    states[1].push(v);
                    p
                }
                EightBitRule::Momentum { is_nesterov, .. } => {
                    let (p, m) = step.momentum(is_nesterov, p, g, old(0, i));
                    states[0].push(m);
                    p
                }
                EightBitRule::Lion { .. } => {
                    let (p, m) = step.lion(p, g, old(0, i));
                    states[0].push(m);
                    p
                }
            };
            values.push(f64::from(p));
        }
        let mut results = vec![values];
        for (map, state) in maps.iter().zip(&states) {
            let (codes, scales) = map.pack(state);
            results.push(codes.into_iter().map(f64::from).collect());
            results.push(scales.into_iter().map(f64::from).collect());
        }
        results.into_iter().zip(outputs).map(|(data, ty)| Array::new(ty.shape.clone(), data)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let (beta1, beta2) = (Scalar(0.9), Scalar(0.99));
        let rules = [
            EightBitRule::Adam { beta1, beta2, eps: Scalar(1e-8) },
            EightBitRule::Momentum { momentum: beta1, is_nesterov: false },
            EightBitRule::Momentum { momentum: beta1, is_nesterov: true },
            EightBitRule::Lion { beta1, beta2 },
        ];
        // Less than a block, whole blocks, and a last one that is not whole.
        let sizes = [dice.range(1, BLOCK), 3 * BLOCK, 2 * BLOCK + dice.range(1, BLOCK), 9 * BLOCK + 1];
        let example = |(at, rule): (usize, EightBitRule)| {
            let ty = Type::new(DType::F32, [sizes[at]]);
            let op = EightBitUpdate { rule, l2: Scalar(0.01 * (at % 2) as f64), shrinks: at > 1 };
            let scalar = (Type::new(DType::F32, []), Domain::Positive);
            let mut inputs = vec![(ty.clone(), Domain::Normal), (ty.clone(), Domain::Normal)];
            inputs.extend(vec![scalar; 1 + rule.scalars()]);
            for _ in rule.codes() {
                let [codes, scales] = coded(&ty);
                inputs.extend([(codes, Domain::Byte), (scales, Domain::Positive)]);
            }
            Example::new(op, inputs)
        };
        rules.into_iter().enumerate().map(example).collect()
    }
}

/// Steps of optimizers over state that is kept as bytes.
pub trait EightBitOps: TensorOps {
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
        let site = Site::here();
        let inputs: Vec<&Self> =
            [self, grad].into_iter().chain(scalars.iter().chain(state).copied()).collect();
        let outputs = self.emit(op.into(), &inputs, site)?;
        if outputs.len() != 1 + state.len() {
            return Err(Error::Internal("a step over bytes gave fewer outputs than state".into()).into());
        }
        Ok(outputs)
    }
}

impl<T: TensorOps> EightBitOps for T {}
