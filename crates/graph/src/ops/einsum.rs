//! Turns a sum over named axes, `bij,bjk->bik`, into transposes, sums, products and batched matrix products.

use smallvec::SmallVec;

use crate::methods::TensorOps;
use crate::ops::{self, Binary, MatMul, Reduce, ReduceKind, Reshape, Transpose};
use crate::{Shape, Site, Type};

/// A value whose axes have letters.
struct Named<T> {
    value: T,
    letters: Vec<char>,
}

impl<T: TensorOps> Named<T> {
    /// The length of a letter's axis.
    fn length(&self, letter: char) -> usize {
        self.letters.iter().position(|&l| l == letter).map_or(1, |axis| self.value.shape()[axis])
    }

    /// With its axes in the order of some letters, which must be its own.
    fn ordered(self, letters: &[char], site: Site) -> Result<Named<T>, T::Error> {
        if self.letters == letters {
            return Ok(self);
        }
        let order = letters.iter().filter_map(|l| self.letters.iter().position(|own| own == l)).collect();
        let value = self.value.emit_one(Transpose(order), &[&self.value], site)?;
        Ok(Named { value, letters: letters.into() })
    }

    /// Summed over all letters but those that are still wanted.
    fn summed(self, wanted: impl Fn(char) -> bool, site: Site) -> Result<Named<T>, T::Error> {
        let axes: SmallVec<[usize; 4]> =
            (0..self.letters.len()).filter(|&axis| !wanted(self.letters[axis])).collect();
        if axes.is_empty() {
            return Ok(self);
        }
        let op = Reduce { kind: ReduceKind::Sum, axes, keep: false };
        let value = self.value.emit_one(op, &[&self.value], site)?;
        Ok(Named { value, letters: self.letters.into_iter().filter(|&l| wanted(l)).collect() })
    }

    fn reshaped(&self, shape: Shape, site: Site) -> Result<T, T::Error> {
        if *self.value.shape() == shape {
            return Ok(self.value.clone());
        }
        self.value.emit_one(Reshape(shape), &[&self.value], site)
    }
}

/// The letters of an equation.
struct Equation {
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
}

impl Equation {
    /// Reads an equation, or says what is wrong with it and where.
    fn parse(text: &str) -> Result<Equation, String> {
        let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        if let Some(wrong) = plain.replace("->", "").chars().find(|&c| c != ',' && !c.is_ascii_alphabetic()) {
            return Err(format!("'{wrong}' in '{text}' is no letter; every axis is named by a letter"));
        }
        let (inputs, output) = match plain.split_once("->") {
            Some((inputs, output)) => (inputs, Some(output)),
            None => (&plain[..], None),
        };
        let inputs: Vec<Vec<char>> = inputs.split(',').map(|letters| letters.chars().collect()).collect();
        let count = |letter: char| inputs.iter().flatten().filter(|&&l| l == letter).count();
        let output: Vec<char> = match output {
            Some(output) => output.chars().collect(),
            // As everywhere: the letters that come up once, in the order of the alphabet.
            None => ('A'..='z').filter(|&letter| count(letter) == 1).collect(),
        };
        for (i, letter) in output.iter().enumerate() {
            if *letter == ',' {
                return Err(format!("'{text}' has more than one result"));
            }
            if output[..i].contains(letter) {
                return Err(format!("letter {letter} stands twice in the result of '{text}'"));
            }
            if count(*letter) == 0 {
                return Err(format!("letter {letter} of the result of '{text}' is in none of its inputs"));
            }
        }
        Ok(Equation { inputs, output })
    }

    /// Checks that the letters are those of the operands' axes.
    fn check(&self, types: &[&Type]) -> Result<(), String> {
        if self.inputs.len() != types.len() {
            return Err(format!(
                "the equation has {} inputs and {} were given",
                self.inputs.len(),
                types.len()
            ));
        }
        let mut lengths: Vec<(char, usize, usize)> = Vec::new();
        for (operand, (letters, ty)) in self.inputs.iter().zip(types).enumerate() {
            if letters.len() != ty.shape.rank() {
                let letters: String = letters.iter().collect();
                return Err(format!(
                    "input {operand} is '{letters}' in the equation and {} as given",
                    ty.shape
                ));
            }
            for (axis, &letter) in letters.iter().enumerate() {
                if letters[..axis].contains(&letter) {
                    return Err(format!(
                        "letter {letter} stands twice in input {operand}; take the diagonal first"
                    ));
                }
                let length = ty.shape[axis];
                match lengths.iter().find(|known| known.0 == letter) {
                    Some(&(_, other, of)) if other != length => {
                        return Err(format!(
                            "letter {letter} has length {other} in input {of} and {length} in input {operand}"
                        ));
                    }
                    Some(_) => {}
                    None => lengths.push((letter, length, operand)),
                }
            }
        }
        Ok(())
    }
}

/// The product of two values, summed over the letters of both that are not wanted any more.
fn product<T: TensorOps>(
    a: Named<T>,
    b: Named<T>,
    wanted: impl Fn(char) -> bool,
    site: Site,
) -> Result<Named<T>, T::Error> {
    let (in_a, in_b) = (a.letters.clone(), b.letters.clone());
    let a = a.summed(|l| in_b.contains(&l) || wanted(l), site)?;
    let b = b.summed(|l| in_a.contains(&l) || wanted(l), site)?;
    let of = |letters: &[char], keep: &dyn Fn(char) -> bool| -> Vec<char> {
        letters.iter().copied().filter(|&l| keep(l)).collect()
    };
    let batch = of(&a.letters, &|l| in_b.contains(&l) && wanted(l));
    let folded = of(&a.letters, &|l| in_b.contains(&l) && !wanted(l));
    let (left, right) = (of(&a.letters, &|l| !in_b.contains(&l)), of(&b.letters, &|l| !in_a.contains(&l)));
    if folded.is_empty() {
        return outer(a, b, &batch, &right, site);
    }
    // Operands that lie transposed are taken as they are: a matrix product reads either way.
    let ta = a.letters == [&batch[..], &folded, &left].concat();
    let tb = b.letters == [&batch[..], &right, &folded].concat();
    let a = if ta { a } else { a.ordered(&[&batch[..], &left, &folded].concat(), site)? };
    let b = if tb { b } else { b.ordered(&[&batch[..], &folded, &right].concat(), site)? };
    let size = |of: &Named<T>, letters: &[char]| letters.iter().map(|&l| of.length(l)).product::<usize>();
    let (n, rows, terms, columns) = (size(&a, &batch), size(&a, &left), size(&a, &folded), size(&b, &right));
    let matrix = |turned: bool, rows: usize, columns: usize| -> Shape {
        let (rows, columns) = if turned { (columns, rows) } else { (rows, columns) };
        if batch.is_empty() { [rows, columns].into() } else { [n, rows, columns].into() }
    };
    let x = a.reshaped(matrix(ta, rows, terms), site)?;
    let y = b.reshaped(matrix(tb, terms, columns), site)?;
    let value = x.emit_one(MatMul { ta, tb, bias: false, act: None }, &[&x, &y], site)?;
    let letters = [&batch[..], &left, &right].concat();
    let lengths = letters.iter().map(|&l| if right.contains(&l) { b.length(l) } else { a.length(l) });
    let shape: Shape = lengths.collect();
    let named = Named { value, letters };
    Ok(Named { value: named.reshaped(shape, site)?, letters: named.letters })
}

/// The product of two values of which no letter is summed over: element by element, with broadcasting.
fn outer<T: TensorOps>(
    a: Named<T>,
    b: Named<T>,
    batch: &[char],
    right: &[char],
    site: Site,
) -> Result<Named<T>, T::Error> {
    let b = b.ordered(&[batch, right].concat(), site)?;
    let letters = [&a.letters[..], right].concat();
    let of_a = a.letters.iter().map(|&l| a.length(l)).chain(right.iter().map(|_| 1)).collect();
    let of_b = letters.iter().map(|&l| b.length(l)).collect();
    let (x, y) = (a.reshaped(of_a, site)?, b.reshaped(of_b, site)?);
    Ok(Named { value: x.emit_one(Binary::Mul, &[&x, &y], site)?, letters })
}

/// Sums over named axes.
///
/// ```
/// use plimsoll_graph::{DType, EinsumOps, Sym, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let q = trace.input("q", Type::new(DType::F32, [8, 16, 4, 32]));
/// let k = trace.input("k", Type::new(DType::F32, [8, 20, 4, 32]));
/// assert_eq!(Sym::einsum("bqhd,bkhd->bhqk", &[&q, &k])?.shape().to_string(), "[8, 4, 16, 20]");
/// let error = Sym::einsum("bqhd,bkqd->bhqk", &[&q, &k]).unwrap_err().to_string();
/// assert!(error.contains("letter q has length 16 in input 0 and 4 in input 1"), "{error}");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait EinsumOps: TensorOps {
    /// The product of the operands, whose axes the letters of an equation name, summed over every letter that is not in the result.
    ///
    /// `"bij,bjk->bik"` is a batched matrix product, `"ij->ji"` a transpose, `"ij->"` the sum of everything. Without `->` the result has
    /// the letters that come up once, in alphabetical order. Two operands at a time are multiplied, from left to right, as matrix
    /// products where a letter of both is summed over: give three or more in the order in which what is between stays small.
    #[track_caller]
    fn einsum(equation: &str, operands: &[&Self]) -> Result<Self, Self::Error> {
        let site = Site::here();
        let types: Vec<&Type> = operands.iter().map(|x| x.ty()).collect();
        let fail = |why: String| -> Self::Error { ops::refuse("einsum", site, &types, why) };
        let Equation { inputs, output } = Equation::parse(equation)
            .and_then(|equation| equation.check(&types).map(|()| equation))
            .map_err(fail)?;
        let mut values = operands.iter().zip(&inputs);
        let named = |(value, letters): (&&Self, &Vec<char>)| Named {
            value: (*value).clone(),
            letters: letters.clone(),
        };
        let Some(mut result) = values.next().map(named) else {
            return Err(fail("it takes at least one input".into()));
        };
        for (i, operand) in values.enumerate() {
            let later = &inputs[i + 2..];
            let wanted = |l: char| output.contains(&l) || later.iter().any(|letters| letters.contains(&l));
            result = product(result, named(operand), wanted, site)?;
        }
        Ok(result.summed(|l| output.contains(&l), site)?.ordered(&output, site)?.value)
    }
}

impl<T: TensorOps> EinsumOps for T {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{Dice, Domain};
    use crate::reference::{Array, for_each_index, interpret};
    use crate::{DType, Sym, Trace};

    /// The sum of products over all values of all letters, as plainly as can be.
    fn plainly(equation: &Equation, values: &[Array]) -> Array {
        let mut letters: Vec<char> = equation.inputs.iter().flatten().copied().collect();
        letters.sort_unstable();
        letters.dedup();
        let length = |letter: &char| -> usize {
            let found = equation.inputs.iter().zip(values).find_map(|(letters, value)| {
                letters.iter().position(|l| l == letter).map(|axis| value.shape[axis])
            });
            found.unwrap()
        };
        let all: Shape = letters.iter().map(length).collect();
        let shape: Shape = equation.output.iter().map(length).collect();
        let mut y = Array::new(shape.clone(), vec![0.0; shape.elements()]);
        for_each_index(&all, |index| {
            let of = |own: &[char]| -> Vec<usize> {
                own.iter().map(|l| index[letters.iter().position(|m| m == l).unwrap()]).collect()
            };
            let term: f64 = equation.inputs.iter().zip(values).map(|(own, x)| x.at(&of(own))).product();
            let place = y.offset(&of(&equation.output));
            y.data[place] += term;
        });
        y
    }

    #[test]
    fn every_equation_is_the_sum_of_products_it_names() {
        for text in [
            "ij,jk->ik",
            "ij,jk",
            "ji,jk->ik",
            "ij,kj->ki",
            "bij,bjk->bik",
            "bqhd,bkhd->bhqk",
            "bhqk,bkhd->bqhd",
            "ij->ji",
            "ij->",
            "ij->i",
            "i,j->ij",
            "i,i->",
            "i,i->i",
            "ij,i->ij",
            "ijk,kl,lm->mi",
            "ij,kl->",
            "ab,bc,cd,de->ae",
            "bij,kj->bik",
            "ij,ij->ij",
            "a,b,c->cab",
            ",ij->ij",
            "bi,bij,bj->b",
            "aij,bij->ab",
        ] {
            let equation = Equation::parse(text).unwrap();
            let lengths =
                |letters: &[char]| -> Shape { letters.iter().map(|&l| 2 + (l as usize) % 3).collect() };
            let trace = Trace::new();
            let types: Vec<Type> =
                equation.inputs.iter().map(|letters| Type::new(DType::F64, lengths(letters))).collect();
            let inputs: Vec<Sym> = types.iter().map(|ty| trace.input("x", ty.clone())).collect();
            let y = Sym::einsum(text, &inputs.iter().collect::<Vec<_>>())
                .unwrap_or_else(|e| panic!("{text}: {e}"));
            let graph = trace.finish(&[&y]).unwrap();
            let mut dice = Dice::new(7);
            let values: Vec<Array> = types.iter().map(|ty| Domain::Normal.fill(ty, &mut dice)).collect();
            let (found, wanted) = (interpret(&graph, &values).remove(0), plainly(&equation, &values));
            assert_eq!(found.shape, wanted.shape, "{text}");
            for (a, b) in found.data.iter().zip(&wanted.data) {
                assert!((a - b).abs() < 1e-9 * (1.0 + b.abs()), "{text}: {a} but should be {b}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_letter() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [2, 3]));
        let said = |text: &str, n: usize| Sym::einsum(text, &vec![&x; n]).unwrap_err().to_string();
        assert!(said("ij,jk->ik", 2).contains("letter j has length 3 in input 0 and 2 in input 1"));
        assert!(said("ii->i", 1).contains("letter i stands twice in input 0"));
        assert!(said("ij->ijj", 1).contains("letter j stands twice in the result"));
        assert!(said("ij->ik", 1).contains("letter k of the result"));
        assert!(said("...j->j", 1).contains("'.'"));
        assert!(said("ijk->k", 1).contains("'ijk'"));
        assert!(said("ij,ij->ij", 1).contains("2 inputs and 1 were given"));
        assert!(said("ij->i,j", 1).contains("more than one result"));
    }
}
