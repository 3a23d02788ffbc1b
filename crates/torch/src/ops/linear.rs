//! Matrix products.

use plimsoll_graph::{GradientOps, Shape, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::einsum::without_dots;
use plimsoll_run::{Result, Tensor};

use super::elementwise::length;
use super::{Table, Values, einsum, one};
use crate::call::Call;
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.linear.default", |c| {
        let (x, w, bias) = (c.tensor("input")?, c.laid("weight")?, c.opt_tensor("bias")?);
        if w.rank() == 1 {
            let y = product(&x.into(), &w)?;
            return one(match bias {
                Some(bias) => y.add(&bias)?,
                None => y,
            });
        }
        // The weight is [outputs, inputs]; where it lies transposed already, it is read as it lies.
        let (w, is_transposed) =
            if w.is_plain() { (w.plain()?, true) } else { (w.in_order(&[1, 0])?, false) };
        if x.shape().rank() == 1 {
            let n = x.shape()[0];
            let y = x.reshape([1, n])?.matmul_with(&w, bias.as_ref(), false, is_transposed)?;
            let n = y.shape()[1];
            return one(y.reshape([n])?);
        }
        one(x.matmul_with(&w, bias.as_ref(), false, is_transposed)?)
    }),
    ("aten.matmul.default", |c| product_of(c, "self", "other")),
    ("aten.mm.default", |c| product_of(c, "self", "mat2")),
    ("aten.bmm.default", |c| product_of(c, "self", "mat2")),
    ("aten.mv.default", |c| product_of(c, "self", "vec")),
    ("aten.dot.default", |c| product_of(c, "self", "tensor")),
    ("aten.vdot.default", |c| product_of(c, "self", "other")),
    ("aten.outer.default", |c| {
        let (a, b) = (c.tensor("self")?, c.tensor("vec2")?);
        let (n, m) = (a.shape().elements(), b.shape().elements());
        one(a.reshape([n, 1])?.mul(&b.reshape([1, m])?)?)
    }),
    ("aten.addmm.default", |c| added(c, "mat1", "mat2")),
    ("aten.addbmm.default", |c| {
        let y = product(&c.laid("batch1")?, &c.laid("batch2")?)?.sum(&[0], false)?;
        sum(c, y)
    }),
    ("aten.baddbmm.default", |c| added(c, "batch1", "batch2")),
    ("aten.addmv.default", |c| added(c, "mat", "vec")),
    ("aten.einsum.default", |c| {
        let (equation, all) = (c.text("equation")?, c.laids("tensors")?);
        let _ = c.value("path");
        let ranks: Vec<usize> = all.iter().map(Laid::rank).collect();
        one(einsum::summed(&without_dots(&equation, &ranks)?, all)?)
    }),
    ("aten.bilinear.default", |c| {
        let (a, b, w) = (c.tensor("input1")?, c.tensor("input2")?, c.tensor("weight")?);
        let bias = c.opt_tensor("bias")?;
        let (&[outputs, n, m], Some((&own, outer))) = (&w.shape()[..], a.shape().split_last()) else {
            return Err(refuse("takes rows and a weight [O, N, M]"));
        };
        if own != n || b.shape().elements() != outer.iter().product::<usize>() * m {
            return Err(refuse(format!("multiplies {} and {} by {}", a.shape(), b.shape(), w.shape())));
        }
        let rows = outer.iter().product::<usize>();
        // x W, one row a sample and output; then times the other, row by row.
        let first = a.reshape([rows, n])?.matmul(&w.transpose(&[1, 0, 2])?.reshape([n, outputs * m])?)?;
        let both = first.reshape([rows, outputs, m])?.mul(&b.reshape([rows, 1, m])?)?.sum(&[2], false)?;
        let y = match bias {
            Some(bias) => both.add(&bias)?,
            None => both,
        };
        one(y.reshape(outer.iter().copied().chain([outputs]).collect::<Vec<usize>>())?)
    }),
    ("aten.cdist.default", |c| distances(c)),
    ("aten._cdist_forward.default", |c| distances(c)),
    ("aten.cosine_similarity.default", |c| {
        let (a, b, eps) = (c.laid("x1")?, c.laid("x2")?, c.float("eps")?);
        let rank = a.rank().max(b.rank());
        let at = c.axis("dim", rank)?;
        let (a, b) = (a.plain()?, b.plain()?);
        // What is too short is held at the least length, and its gradient is that of its own length all the same.
        let norm = |x: &Tensor| {
            let own = length(&x.square()?.sum(&[at], true)?)?;
            let least = own.full_like(plimsoll_graph::Type::new(own.dtype(), []), eps)?;
            own.maximum(&least)?.with_gradient(&[&own], |at| Ok(vec![Some(at.grad(0)?)]))
        };
        one(a.div(&norm(&a)?)?.mul(&b.div(&norm(&b)?)?)?.sum(&[at], false)?)
    }),
];

/// How far each row of one is from each of the other.
fn distances(c: &mut Call<'_, '_>) -> Values {
    let (a, b, power) = (c.tensor("x1")?, c.tensor("x2")?, c.float("p")?);
    let _ = c.value("compute_mode");
    let (ra, rb) = (a.shape().rank(), b.shape().rank());
    if ra < 2 || rb < 2 {
        return Err(refuse("takes distances of what is no rows"));
    }
    let wide = |x: &Tensor, at: usize| {
        let mut shape = x.shape().to_vec();
        shape.insert(at, 1);
        x.reshape(shape)
    };
    let apart = wide(&a, ra - 1)?.sub(&wide(&b, rb - 2)?)?;
    let last = apart.shape().rank() - 1;
    one(super::reduce::lengths(&apart, &[last], false, power)?)
}

/// β · self + α · a b
fn added(c: &mut Call<'_, '_>, a: &str, b: &str) -> Values {
    let y = product(&c.laid(a)?, &c.laid(b)?)?;
    sum(c, y)
}

fn sum(c: &mut Call<'_, '_>, y: Tensor) -> Values {
    let (alpha, beta) = (c.float("alpha")?, c.float("beta")?);
    let x = c.tensor("self")?;
    let y = if alpha == 1.0 { y } else { y.mul_scalar(alpha)? };
    // With a β of 0 what is added is not looked at, be it not a number.
    if beta == 0.0 {
        return one(y.broadcast(
            x.shape().broadcast(y.shape()).ok_or_else(|| refuse("adds shapes that do not fit"))?,
        )?);
    }
    let x = if beta == 1.0 { x } else { x.mul_scalar(beta)? };
    one(y.add(&x)?)
}

/// The product of the operands of these names.
fn product_of(c: &mut Call<'_, '_>, a: &str, b: &str) -> Values {
    let (a, b) = (c.laid(a)?, c.laid(b)?);
    one(product(&a, &b)?)
}

/// The product of vectors, matrices and stacks of them, as `torch.matmul` has it. An operand whose last two axes lie the other way round
/// is read so.
fn product(a: &Laid, b: &Laid) -> Result<Tensor> {
    let (ra, rb) = (a.rank(), b.rank());
    if ra == 0 || rb == 0 {
        return Err(refuse("multiplies a number as a matrix"));
    }
    let (la, lb) = (a.shape().to_vec(), b.shape().to_vec());
    let matrix_a = if ra == 1 { a.reshape([1, la[0]])? } else { a.clone() };
    let matrix_b = if rb == 1 { b.reshape([lb[0], 1])? } else { b.clone() };
    let ((x, tx), (y, ty)) = (as_matrix(&matrix_a)?, as_matrix(&matrix_b)?);
    let (x, y) = if ra > 2 && rb > 2 { stacked(x, y)? } else { (x, y) };
    let z = x.matmul_with(&y, None, tx, ty)?;
    let mut shape = z.shape().to_vec();
    if rb == 1 {
        shape.pop();
    }
    if ra == 1 {
        shape.remove(shape.len() - 1 - usize::from(rb != 1));
    }
    z.reshape(shape)
}

/// Two stacks of matrices, each repeated to the stack that both make where theirs differ.
fn stacked(x: Tensor, y: Tensor) -> Result<(Tensor, Tensor)> {
    let outer = |t: &Tensor| t.shape()[..t.shape().rank() - 2].to_vec();
    let (ox, oy) = (outer(&x), outer(&y));
    if ox == oy {
        return Ok((x, y));
    }
    let both = Shape::from(ox).broadcast(&Shape::from(oy));
    let both = both.ok_or_else(|| refuse(format!("multiplies stacks {} and {}", x.shape(), y.shape())))?;
    let wide = |t: &Tensor| {
        let rank = t.shape().rank();
        let shape: Vec<usize> = both.iter().chain(&t.shape()[rank - 2..]).copied().collect();
        if t.shape()[..] == shape[..] { Ok(t.clone()) } else { t.broadcast(shape) }
    };
    Ok((wide(&x)?, wide(&y)?))
}

/// A stack of matrices, and whether each is to be read transposed.
fn as_matrix(x: &Laid) -> Result<(Tensor, bool)> {
    let rank = x.rank();
    let mut swapped: Vec<usize> = (0..rank).collect();
    swapped.swap(rank - 1, rank - 2);
    let other = x.permute(&swapped);
    if !x.is_plain() && other.is_plain() { Ok((other.plain()?, true)) } else { Ok((x.plain()?, false)) }
}
