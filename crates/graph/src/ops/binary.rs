//! y = a ∘ b, element by element, with broadcasting: arithmetic, comparison, choice.

use smallvec::smallvec;

use super::kinds::kinds;
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Keep, Rule, Types};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Shape, Type, ops};

kinds! {
    /// An operation of two elements.
    Binary {
        /// a + b
        Add => "add",
        /// a - b
        Sub => "sub",
        /// a · b
        Mul => "mul",
        /// a / b
        Div => "div",
        /// a^b
        Pow => "pow",
        /// the larger
        Max => "maximum",
        /// the smaller
        Min => "minimum",
        /// both true
        And => "and",
        /// either true
        Or => "or",
    }
}

impl Binary {
    /// The value of the operation, in f64.
    pub fn eval(self, a: f64, b: f64) -> f64 {
        match self {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Pow => a.powf(b),
            Binary::Max | Binary::Min if a.is_nan() || b.is_nan() => f64::NAN,
            Binary::Max => a.max(b),
            Binary::Min => a.min(b),
            Binary::And => f64::from(a != 0.0 && b != 0.0),
            Binary::Or => f64::from(a != 0.0 || b != 0.0),
        }
    }

    /// The element type of the result, or why there is none.
    pub fn result(self, dtype: DType) -> Result<DType, String> {
        let fits = match self {
            Binary::And | Binary::Or => dtype == DType::Bool,
            Binary::Div | Binary::Pow => dtype.is_float(),
            _ => dtype.is_float() || dtype.is_index(),
        };
        if fits { Ok(dtype) } else { Err(format!("it does not take {dtype} elements; cast them first")) }
    }
}

/// The shape of a broadcast of two operands, or the sentence that says why there is none.
fn broadcast(a: &Type, b: &Type) -> Result<Shape, String> {
    a.shape
        .broadcast(&b.shape)
        .ok_or_else(|| format!("shapes {} and {} do not broadcast to one another", a.shape, b.shape))
}

impl Rule for Binary {
    const NAME: &'static str = "binary";

    fn name(&self) -> &'static str {
        self.label()
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [a, b] = ops::arity(inputs)?;
        let dtype = self.result(ops::same_dtype(a, b)?)?;
        Ok(smallvec![Type::new(dtype, broadcast(a, b)?)])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0), (0, 1)];

    fn keep(&self) -> Keep {
        match self {
            Binary::Add | Binary::Sub | Binary::And | Binary::Or => Keep::NOTHING,
            Binary::Pow => Keep::both(3, 1),
            _ => Keep::inputs(3),
        }
    }

    /// da = dy ∂y/∂a and db = dy ∂y/∂b, each summed over the axes along which its operand was repeated. Where max
    /// and min have equal operands, each takes half.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let dy = at.grad(0)?;
        let half_at_ties = |mine: &Sym, other: &Sym| -> Result<Sym> {
            let wins = match self {
                Binary::Max => mine.greater(other)?,
                _ => mine.less(other)?,
            };
            let tie = mine.equal(other)?.select(&dy.mul_scalar(0.5)?, &at.full(dy.ty(), 0.0)?)?;
            wins.select(&dy, &tie)
        };
        let da = |at: &Backward<'_>| -> Result<Sym> {
            Ok(match self {
                Binary::Add | Binary::Sub => dy.clone(),
                Binary::Mul => dy.mul(&at.input(1)?)?,
                Binary::Div => dy.div(&at.input(1)?)?,
                Binary::Pow => {
                    let (a, b) = (at.input(0)?, at.input(1)?);
                    dy.mul(&b)?.mul(&a.pow(&b.add_scalar(-1.0)?)?)?
                }
                Binary::Max | Binary::Min => half_at_ties(&at.input(0)?, &at.input(1)?)?,
                Binary::And | Binary::Or => return Err(at.no_gradient("its result is a truth value")),
            })
        };
        let db = |at: &Backward<'_>| -> Result<Sym> {
            Ok(match self {
                Binary::Add => dy.clone(),
                Binary::Sub => dy.neg()?,
                Binary::Mul => dy.mul(&at.input(0)?)?,
                Binary::Div => {
                    let b = at.input(1)?;
                    dy.mul(&at.input(0)?.div(&b)?)?.div(&b)?.neg()?
                }
                Binary::Pow => {
                    // y ln a, and 0 where a is 0, as the limit from above says.
                    let a = at.input(0)?;
                    let slope = at.output(0)?.mul(&a.log()?)?;
                    let zero = at.full(slope.ty(), 0.0)?;
                    dy.mul(&a.greater(&at.full(a.ty(), 0.0)?)?.select(&slope, &zero)?)?
                }
                Binary::Max | Binary::Min => half_at_ties(&at.input(1)?, &at.input(0)?)?,
                Binary::And | Binary::Or => return Err(at.no_gradient("its result is a truth value")),
            })
        };
        let a = if at.wants(0) { Some(da(at)?.sum_to(&at.input_type(0).shape)?) } else { None };
        let b = if at.wants(1) { Some(db(at)?.sum_to(&at.input_type(1).shape)?) } else { None };
        Ok(vec![a, b])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let f = |i: &[usize]| self.eval(inputs[0].broadcast_at(i), inputs[1].broadcast_at(i));
        vec![Array::from_fn(&outputs[0].shape, f)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for f in Binary::ALL {
            let (dtype, domain) = match f {
                Binary::And | Binary::Or => (DType::Bool, Domain::Truth),
                Binary::Pow | Binary::Div => (DType::F32, Domain::Positive),
                Binary::Max | Binary::Min => (DType::F32, Domain::Distinct),
                _ => (DType::F32, Domain::Normal),
            };
            for (a, b) in operand_shapes(dice) {
                // Both operands of max and min are drawn apart so that no finite difference crosses a tie.
                let other = if domain == Domain::Distinct { Domain::Normal } else { domain };
                let inputs = vec![(Type::new(dtype, a), domain), (Type::new(dtype, b), other)];
                examples.push(Example::new(f, inputs));
            }
        }
        for dtype in [DType::I32, DType::I64] {
            for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min] {
                let ty = Type::new(dtype, [3, 5]);
                examples
                    .push(Example::new(f, vec![(ty.clone(), Domain::Index(90)), (ty, Domain::Index(90))]));
            }
        }
        examples
    }
}

/// Equal shapes, a row, a column, a scalar, and both sides repeated.
fn operand_shapes(dice: &mut Dice) -> Vec<(Shape, Shape)> {
    let (n, c) = (dice.range(2, 6), dice.range(2, 37));
    vec![
        ([n, c].into(), [n, c].into()),
        ([n, c].into(), [c].into()),
        ([n, 1].into(), [n, c].into()),
        ([].into(), [n, c].into()),
        ([2, 1, c].into(), [n, 1].into()),
    ]
}

kinds! {
    /// A comparison of two elements.
    Compare {
        /// a = b
        Eq => "eq",
        /// a ≠ b
        Ne => "ne",
        /// a < b
        Lt => "lt",
        /// a ≤ b
        Le => "le",
        /// a > b
        Gt => "gt",
        /// a ≥ b
        Ge => "ge",
    }
}

impl Compare {
    /// The truth value of the comparison.
    pub fn eval<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Compare::Eq => a == b,
            Compare::Ne => a != b,
            Compare::Lt => a < b,
            Compare::Le => a <= b,
            Compare::Gt => a > b,
            Compare::Ge => a >= b,
        }
    }
}

impl Rule for Compare {
    const NAME: &'static str = "compare";

    fn name(&self) -> &'static str {
        self.label()
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [a, b] = ops::arity(inputs)?;
        ops::same_dtype(a, b)?;
        Ok(smallvec![Type::new(DType::Bool, broadcast(a, b)?)])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("its result is a truth value"))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let f = |i: &[usize]| f64::from(self.eval(inputs[0].broadcast_at(i), inputs[1].broadcast_at(i)));
        vec![Array::from_fn(&outputs[0].shape, f)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (i, f) in Compare::ALL.into_iter().enumerate() {
            // Small integers by turns.
            for dtype in [DType::F32, DType::I64, DType::I32, DType::SMALL_INTEGERS[i % 5]] {
                let (a, b) = operand_shapes(dice).swap_remove(dice.range(0, 5));
                // Few values, so that equal ones meet.
                let inputs =
                    vec![(Type::new(dtype, a), Domain::Index(4)), (Type::new(dtype, b), Domain::Index(4))];
                examples.push(Example::new(f, inputs));
            }
        }
        examples
    }
}

/// y = condition ? a : b.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Select;

impl Rule for Select {
    const NAME: &'static str = "select";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [c, a, b] = ops::arity(inputs)?;
        if c.dtype != DType::Bool {
            return Err(format!("its condition must be bool, not {}", c.dtype));
        }
        let dtype = ops::same_dtype(a, b)?;
        let either = Type::new(dtype, broadcast(a, b)?);
        Ok(smallvec![Type::new(dtype, broadcast(c, &either)?)])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 1), (0, 2)];

    const KEEP: Keep = Keep::inputs(1);

    /// da = c ? dy : 0 and db = c ? 0 : dy.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let (c, dy) = (at.input(0)?, at.grad(0)?);
        let zero = at.full(&dy.ty().with_shape([]), 0.0)?;
        let pick = |i: usize, yes: &Sym, no: &Sym| -> Result<Option<Sym>> {
            if !at.wants(i) {
                return Ok(None);
            }
            Ok(Some(c.select(yes, no)?.sum_to(&at.input_type(i).shape)?))
        };
        Ok(vec![None, pick(1, &dy, &zero)?, pick(2, &zero, &dy)?])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let f = |i: &[usize]| {
            let which = if inputs[0].broadcast_at(i) != 0.0 { 1 } else { 2 };
            inputs[which].broadcast_at(i)
        };
        vec![Array::from_fn(&outputs[0].shape, f)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for dtype in [&[DType::F32, DType::I64, DType::I32, DType::Bool][..], &DType::SMALL_INTEGERS].concat()
        {
            let shapes = if DType::SMALL_INTEGERS.contains(&dtype) { 2 } else { 5 };
            let domain = if dtype == DType::F32 { Domain::Normal } else { Domain::Truth };
            for (a, b) in operand_shapes(dice).into_iter().take(shapes) {
                let c = if dice.range(0, 2) == 0 { a.clone() } else { b.clone() };
                let inputs = vec![
                    (Type::new(DType::Bool, c), Domain::Truth),
                    (Type::new(dtype, a), domain),
                    (Type::new(dtype, b), domain),
                ];
                examples.push(Example::new(Select, inputs));
            }
        }
        examples
    }
}
