//! Complex numbers as pairs of tensors.
//!
//! The engine has no complex type: an op that is given a pair runs on each part, or on sums and products of the parts.

use plimsoll_graph::TensorOps;
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::cut::selected;
use super::elementwise::length;
use super::{Table, fourier, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

type Values = Result<Vec<Value>>;
type Named<'a> = Vec<(&'a str, Value)>;

pub(super) const OPS: Table = &[
    ("aten.view_as_real.default", |c| {
        let (re, im) = parts(c, "self")?;
        let mut shape = re.shape().to_vec();
        shape.push(1);
        let last = shape.len() as isize - 1;
        let wide = |x: &Laid| x.plain()?.reshape(&shape[..]);
        one(Tensor::concat(&[&wide(&re)?, &wide(&im)?], last)?)
    }),
    ("aten.view_as_complex.default", |c| {
        let x = c.laid("self")?;
        one(of_pairs(&x, false)?)
    }),
    ("aten.complex.default", |c| one(Value::complex(c.laid("real")?, c.laid("imag")?))),
    ("aten.polar.default", |c| {
        let (length, angle) = (c.laid("abs")?, c.laid("angle")?);
        let turned = |is_cos: bool| {
            Laid::zip(&[&length, &angle], |t| t[0].mul(&if is_cos { t[1].cos()? } else { t[1].sin()? }))
        };
        one(Value::complex(turned(true)?, turned(false)?))
    }),
    ("aten.real.default", |c| one(parts(c, "self")?.0)),
    ("aten.imag.default", |c| one(parts(c, "self")?.1)),
    ("aten._conj.default", |c| conjugate(c)),
    ("aten.conj.default", |c| conjugate(c)),
    ("aten.conj_physical.default", |c| conjugate(c)),
    ("aten._conj_physical.default", |c| conjugate(c)),
    ("aten.resolve_conj.default", |c| one(c.value("self")?)),
    ("aten.resolve_neg.default", |c| one(c.value("self")?)),
];

/// Ops that do the same to each part, whatever else they are given.
const EACH: &[&str] = &[
    "view",
    "_unsafe_view",
    "reshape",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "permute",
    "transpose",
    "t",
    "movedim",
    "expand",
    "expand_as",
    "broadcast_to",
    "repeat",
    "tile",
    "flip",
    "roll",
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "select",
    "narrow",
    "slice",
    "index",
    "index_select",
    "gather",
    "diagonal",
    "clone",
    "contiguous",
    "alias",
    "detach",
    "neg",
    "sum",
    "mean",
    "cumsum",
    "_to_copy",
    "to",
    "lift_fresh_copy",
    "constant_pad_nd",
    "pad",
    "sym_size",
    "sym_numel",
    "tril",
    "triu",
    "_assert_tensor_metadata",
];
/// Ops whose result is a sum or a choice of what they are given: a real number has 0 as its other part.
const SUMS: &[&str] =
    &["add", "sub", "rsub", "cat", "stack", "where", "copy", "slice_scatter", "select_scatter", "index_put"];
/// Ops that multiply two.
const PRODUCTS: &[&str] = &["mul", "matmul", "mm", "bmm", "mv", "einsum"];

/// Complex numbers of pairs along the last axis.
pub(crate) fn of_pairs(x: &Laid, is_learned: bool) -> Result<Value> {
    let last = x.rank().checked_sub(1).filter(|&at| x.shape()[at] == 2);
    let last = last.ok_or_else(|| refuse("takes pairs along the last axis"))?;
    Ok(Value::Complex(Box::new((selected(x, last, 0)?, selected(x, last, 1)?)), is_learned))
}

/// Whether an op takes pairs as they are.
pub(crate) fn takes(op: &str) -> bool {
    OPS.iter().chain(fourier::OPS).any(|(own, _)| *own == op)
}

/// The result of an op that is given pairs, by what `run` gives for their parts.
pub(crate) fn by_parts<'a>(op: &str, given: Named<'a>, run: &mut dyn FnMut(Named<'a>) -> Values) -> Values {
    let name = op.split('.').nth(1).unwrap_or(op);
    if EACH.contains(&name) {
        let im = given.iter().map(|(name, value)| Ok((*name, value.part(true)))).collect::<Result<_>>()?;
        return paired(run(real(&given))?, run(im)?);
    }
    if SUMS.contains(&name) {
        let summed = |name: &str| matches!(name, "self" | "other" | "tensors" | "src" | "values");
        let im = |(name, value): &(&'a str, Value)| {
            Ok((*name, if summed(name) { value.imaginary()? } else { value.part(true) }))
        };
        let im = given.iter().map(im).collect::<Result<_>>()?;
        return paired(run(real(&given))?, run(im)?);
    }
    if PRODUCTS.contains(&name) {
        return product(&given, run);
    }
    match (name, &given[..]) {
        ("div", [first, (other, Value::Complex(pair, _)), rest @ ..]) => {
            // a / b = a b̄ / |b|²
            let (re, im) = &**pair;
            let square = Laid::zip(&[re, im], |t| t[0].square()?.add(&t[1].square()?))?;
            let over = |x: &Laid, sign: f64| Laid::zip(&[x, &square], |t| t[0].div(&t[1])?.mul_scalar(sign));
            let inverse = Value::complex(over(re, 1.0)?, over(im, -1.0)?);
            let given: Named<'a> =
                [first.clone(), (*other, inverse)].into_iter().chain(rest.iter().cloned()).collect();
            let multiplied = product_of_values(&given)?;
            one(multiplied)
        }
        ("div", _) => {
            let im = given.iter().map(|(name, value)| (*name, value.part(true))).collect();
            paired(run(real(&given))?, run(im)?)
        }
        ("abs", [(_, Value::Complex(pair, _)), ..]) => {
            let (re, im) = &**pair;
            one(Laid::zip(&[re, im], |t| length(&t[0].square()?.add(&t[1].square()?)?))?)
        }
        ("exp", [(_, Value::Complex(pair, _)), ..]) => {
            let (re, im) = &**pair;
            let turned = |is_cos: bool| {
                Laid::zip(&[re, im], |t| t[0].exp()?.mul(&if is_cos { t[1].cos()? } else { t[1].sin()? }))
            };
            one(Value::complex(turned(true)?, turned(false)?))
        }
        _ => Err(refuse("is given complex numbers, of which it is not known here")),
    }
}

fn real<'a>(given: &Named<'a>) -> Named<'a> {
    given.iter().map(|(name, value)| (*name, value.part(false))).collect()
}

/// Results of the real parts with those of the others.
fn paired(re: Vec<Value>, im: Vec<Value>) -> Values {
    let pair = |(re, im): (Value, Value)| match (re, im) {
        (Value::Tensor(re, _), Value::Tensor(im, _)) => Value::complex(re, im),
        (other, _) => other,
    };
    Ok(re.into_iter().zip(im).map(pair).collect())
}

/// (a + bi)(c + di) = ac - bd + (ad + bc)i, of what the op makes of two parts.
fn product<'a>(given: &Named<'a>, run: &mut dyn FnMut(Named<'a>) -> Values) -> Values {
    // Where the two factors are: two arguments, or two in a list.
    let is_listed =
        given.iter().any(|(_, value)| matches!(value, Value::List(all) if all.iter().any(Value::is_complex)));
    let factors: Vec<&Value> = match is_listed {
        true => given
            .iter()
            .filter_map(|(_, value)| match value {
                Value::List(all) if all.iter().any(Value::is_complex) => Some(all),
                _ => None,
            })
            .flatten()
            .collect(),
        false => given.iter().map(|(_, value)| value).take(2).collect(),
    };
    let &[a, b] = &factors[..] else { return Err(refuse("multiplies other than two complex numbers")) };
    let (a_complex, b_complex) = (a.is_complex(), b.is_complex());
    let mut of = |a_im: bool, b_im: bool| -> Result<Laid> {
        let pair = [a.part(a_im && a_complex), b.part(b_im && b_complex)];
        let mut next = pair.into_iter();
        let replaced = |(i, (name, value)): (usize, &(&'a str, Value))| {
            let value = match value {
                Value::List(all) if is_listed && all.iter().any(Value::is_complex) => {
                    Value::List(next.by_ref().collect())
                }
                _ if !is_listed && i < 2 => next.next().unwrap_or(Value::None),
                other => other.clone(),
            };
            (*name, value)
        };
        let given = given.iter().enumerate().map(replaced).collect();
        match run(given)?.into_iter().next() {
            Some(Value::Tensor(laid, _)) => Ok(laid),
            _ => Err(refuse("multiplies to something that is no tensor")),
        }
    };
    let (re, im) = match (a_complex, b_complex) {
        (true, true) => {
            let (ac, bd, ad, bc) = (of(false, false)?, of(true, true)?, of(false, true)?, of(true, false)?);
            (Laid::zip(&[&ac, &bd], |t| t[0].sub(&t[1]))?, Laid::zip(&[&ad, &bc], |t| t[0].add(&t[1]))?)
        }
        _ => (of(false, false)?, of(true, true)?),
    };
    one(Value::complex(re, im))
}

/// The product of the first two arguments, element by element.
fn product_of_values(given: &Named<'_>) -> Result<Value> {
    let pair = |value: &Value| -> Result<(Laid, Laid)> { value.pair() };
    let (Some((_, a)), Some((_, b))) = (given.first(), given.get(1)) else {
        return Err(refuse("has no factors"));
    };
    let ((ar, ai), (br, bi)) = (pair(a)?, pair(b)?);
    let all = [&ar, &ai, &br, &bi];
    let re = Laid::zip(&all, |t| t[0].mul(&t[2])?.sub(&t[1].mul(&t[3])?))?;
    let im = Laid::zip(&all, |t| t[0].mul(&t[3])?.add(&t[1].mul(&t[2])?))?;
    Ok(Value::complex(re, im))
}

/// Both parts of an argument.
pub(super) fn parts(c: &Call<'_, '_>, name: &str) -> Result<(Laid, Laid)> {
    c.value(name)?.pair()
}

fn conjugate(c: &mut Call<'_, '_>) -> Values {
    let (re, im) = parts(c, "self")?;
    one(Value::complex(re, im.map(|t| t.neg())?))
}
