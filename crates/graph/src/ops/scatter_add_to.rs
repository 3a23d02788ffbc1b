//! Sums by index that are added to what is there: the gradient of a table that something else has a gradient of, too.
//!
//! Nobody traces it: a pass ([`add_where_indexed`](crate::passes::add_where_indexed)) puts it in the place of a sum by index and an addition, so that the
//! sums of what no index names, zeros, are neither made nor added.

use smallvec::{SmallVec, smallvec};

use crate::Type;
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Keep, Rule, Types};
use crate::ops::{Gather, ScatterAdd};
use crate::reference::Array;
use crate::trace::Sym;

/// y = c + what [`ScatterAdd`] makes of x and indices, rounded on its way as if it were stored. Inputs: x, indices, c.
///
/// Where no index points, y is c itself, also where c is -0, which an addition of 0 would make +0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScatterAddTo {
    /// The sums.
    pub sums: ScatterAdd,
}

impl Rule for ScatterAddTo {
    const NAME: &'static str = "scatter_add_to";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, indices, c] = crate::ops::arity(inputs)?;
        let made = self.sums.infer(&[x, indices])?;
        match *c == made[0] {
            true => Ok(made),
            false => Err(format!("{c} cannot be added to sums of {}", made[0])),
        }
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        match along.operand {
            2 => along.axis == along.to,
            _ => self.sums.keeps_apart(along),
        }
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        smallvec![(0, 2)]
    }

    /// Of c only what indices point at is passed, where y lies there.
    fn cost(&self, inputs: &[&Type], _: &[&Type]) -> Cost {
        let moved = 3 * inputs[0].bytes() + inputs[1].bytes();
        Cost { flops: 2.0 * inputs[0].elements() as f64, bytes: moved as f64 }
    }

    const KEEP: Keep = Keep::inputs(2);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let dy = at.grad(0)?;
        let dx = match at.wants(0) {
            true => Some(at.push(Gather { axis: self.sums.axis }, &[&dy, &at.input(1)?])?.remove(0)),
            false => None,
        };
        Ok(vec![dx, None, at.wants(2).then_some(dy)])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut made = self.sums.reference(&inputs[..2], outputs);
        made[0].data.iter_mut().zip(&inputs[2].data).for_each(|(y, c)| *y += c);
        made
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let of_sums = ScatterAdd::examples(dice).into_iter();
        let added = |example: Example| {
            let crate::Op::ScatterAdd(sums) = example.op else { unreachable!("an example of sums") };
            let mut inputs = example.inputs;
            let made = sums.infer(&[&inputs[0].0, &inputs[1].0]).expect("an example fits").remove(0);
            let domain = if made.dtype.is_float() { Domain::Normal } else { Domain::Index(9) };
            inputs.push((made, domain));
            Example::new(ScatterAddTo { sums }, inputs)
        };
        of_sums.map(added).collect()
    }
}
