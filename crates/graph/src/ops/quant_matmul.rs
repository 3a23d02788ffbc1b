//! A product with a weight that is kept in a byte or half a byte a number: a tile of it at a time is made of floats, never all of it.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::quant::{QuantForm, QuantParts};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Site, Type, ops};

/// y = x Wᵀ for x `[.., columns]`, or y = x W for x `[.., rows]` where it is `plain`. Inputs: x, then the parts of W: of int8 codes and a
/// scale a row; of NF4 codes, a code a block, scales of those, and their mean. Scales are in the type that sums of x have. W is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantMatMul {
    /// How W is kept.
    pub form: QuantForm,
    /// Rows of W.
    pub rows: usize,
    /// Columns of W.
    pub columns: usize,
    /// Whether x is multiplied by W as it stands, not by its transpose.
    pub plain: bool,
}

impl QuantMatMul {
    /// Features of x, and of y.
    pub fn widths(&self) -> [usize; 2] {
        if self.plain { [self.rows, self.columns] } else { [self.columns, self.rows] }
    }

    /// Numbers `from .. from + out.len()` of W, of its parts as arrays.
    fn weight(&self, parts: &[&Array]) -> Vec<f32> {
        let bytes = |array: &Array| array.data.iter().map(|x| *x as i64 as u8).collect::<Vec<u8>>();
        let floats = |array: &Array| array.data.iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let codes = bytes(parts[0]);
        let (blocks, scales, mean) = match self.form {
            QuantForm::Int8 => (Vec::new(), floats(parts[1]), 0.0),
            QuantForm::Nf4 => (bytes(parts[1]), floats(parts[2]), parts[3].data[0] as f32),
        };
        let mut out = vec![0.0; self.rows * self.columns];
        let parts = QuantParts { codes: &codes, blocks: &blocks, scales: &scales, mean };
        self.form.unpack(&parts, self.columns, 0, &mut out);
        out
    }
}

impl Rule for QuantMatMul {
    const NAME: &'static str = "quant_matmul";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let Some((x, parts)) = inputs.split_first() else { return Err("it was given no inputs".into()) };
        ops::float(x)?;
        let wanted = self.form.parts(self.rows, self.columns, x.dtype.accumulator());
        if parts.len() != wanted.len() || parts.iter().zip(&wanted).any(|(part, wanted)| **part != *wanted) {
            let listed = |types: &mut dyn Iterator<Item = &Type>| {
                types.map(Type::to_string).collect::<Vec<_>>().join(", ")
            };
            return Err(format!(
                "a weight of [{}, {}] is kept as {}, not as {}",
                self.rows,
                self.columns,
                listed(&mut wanted.iter()),
                listed(&mut parts.iter().copied())
            ));
        }
        let [from, to] = self.widths();
        match x.shape.split_last() {
            Some((&width, samples)) if width == from => {
                let shape: crate::Shape = samples.iter().copied().chain([to]).collect();
                Ok(smallvec![x.with_shape(shape)])
            }
            _ => Err(format!("{} does not fit a weight of {from} features", x.shape)),
        }
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand == 0 && along.from_end() > 1 && along.axis == along.to
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let n = (self.rows * self.columns) as f64;
        let samples = inputs[0].elements() as f64 / self.widths()[0].max(1) as f64;
        // A tile is written and read again beside what all operands take.
        Cost {
            flops: 2.0 * n * samples,
            bytes: traffic(inputs, outputs) + 2.0 * n * inputs[0].dtype.bytes() as f64,
        }
    }

    fn keep(&self) -> Keep {
        Keep::inputs(if self.form == QuantForm::Int8 { 0b110 } else { 0b11110 })
    }

    /// dx = dy W, or dy Wᵀ.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let n = if self.form == QuantForm::Int8 { 3 } else { 5 };
        if (1..n).any(|i| at.wants(i)) {
            return Err(at.no_gradient("its weight is kept in few bits and is constant"));
        }
        let mut inputs = vec![at.grad(0)?];
        for i in 1..n {
            inputs.push(at.input(i)?);
        }
        let op = QuantMatMul { plain: !self.plain, ..*self };
        let mut grads = vec![at.push(op, &inputs.iter().collect::<Vec<_>>())?.into_iter().next()];
        grads.resize(n, None);
        Ok(grads)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let w = self.weight(&inputs[1..]);
        let [from, to] = self.widths();
        let at = |i: usize, o: usize| match self.plain {
            true => f64::from(w[i * self.columns + o]),
            false => f64::from(w[o * self.columns + i]),
        };
        let rows = inputs[0].data.chunks_exact(from.max(1));
        let data =
            rows.flat_map(|x| (0..to).map(move |o| (0..from).map(|i| x[i] * at(i, o)).sum())).collect();
        vec![Array::new(outputs[0].shape.clone(), data)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for i in 0..6 {
            let form = if i % 2 == 0 { QuantForm::Int8 } else { QuantForm::Nf4 };
            let (rows, columns) = match i / 2 {
                0 => (dice.range(1, 6), dice.range(1, 9)),
                1 => (dice.range(3, 7), 64 * dice.range(1, 3)),
                _ => (dice.range(60, 90), dice.range(65, 80)),
            };
            let op = QuantMatMul { form, rows, columns, plain: i >= 2 && dice.range(0, 2) == 1 };
            let x = Type::new(DType::F32, [dice.range(1, 3), dice.range(1, 4), op.widths()[0]]);
            let mut inputs = vec![(x, Domain::Normal)];
            for ty in form.parts(rows, columns, DType::F32) {
                let domain = match ty.dtype {
                    DType::I8 => Domain::Index(128),
                    DType::U8 => Domain::Byte,
                    _ => Domain::Positive,
                };
                inputs.push((ty, domain));
            }
            examples.push(Example::new(op, inputs).wide(if form == QuantForm::Int8 {
                0b100
            } else {
                0b11000
            }));
        }
        examples
    }
}

/// Products with weights of few bits.
pub trait QuantOps: TensorOps {
    /// x Wᵀ, or x W where it is `plain`, of a weight of rows and columns whose parts ([`QuantForm::parts`]) these are.
    #[track_caller]
    fn quant_matmul(
        &self,
        form: QuantForm,
        [rows, columns]: [usize; 2],
        parts: &[&Self],
        plain: bool,
    ) -> Result<Self, Self::Error> {
        let site = Site::here();
        let wide = self.dtype().accumulator();
        let mut inputs = vec![self.clone()];
        for part in parts {
            inputs.push(if part.dtype().is_float() { part.cast(wide)? } else { (*part).clone() });
        }
        let op = QuantMatMul { form, rows, columns, plain };
        self.emit_one(op, &inputs.iter().collect::<Vec<_>>(), site)
    }
}

impl<T: TensorOps> QuantOps for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_named() {
        let op = QuantMatMul { form: QuantForm::Int8, rows: 4, columns: 6, plain: false };
        let x = Type::new(DType::F32, [2, 6]);
        let (codes, scales) = (Type::new(DType::I8, [4, 6]), Type::new(DType::F32, [4]));
        assert_eq!(op.infer(&[&x, &codes, &scales]).unwrap()[0].shape.to_string(), "[2, 4]");
        let wrong = op.infer(&[&x, &codes, &Type::new(DType::F32, [6])]).unwrap_err();
        assert!(wrong.contains("[4, 6]") && wrong.contains("[6]"), "{wrong}");
        let wrong = op.infer(&[&Type::new(DType::F32, [2, 5]), &codes, &scales]).unwrap_err();
        assert!(wrong.contains("[2, 5]"), "{wrong}");
    }
}
