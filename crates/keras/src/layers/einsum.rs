//! Dense layers over any axes, by an equation such as `abc,cde->abde`.

use plimsoll_graph::{EinsumOps, TensorOps};
use plimsoll_run::{Result as RunResult, Tensor};

use super::lora::{self, Lora};
use super::{kernel_and_bias, trained};
use crate::error::{Result, refuse};
use crate::layer::{Made, Masks};
use crate::settings::Settings;

/// An equation over one input and one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Equation {
    input: Vec<char>,
    kernel: Vec<char>,
    output: Vec<char>,
    /// Whether axes that are not named come first (`...`).
    has_ellipsis: bool,
}

pub(crate) fn make(s: &Settings<'_>) -> Result<Made> {
    let text = s.text("equation")?;
    let equation = Equation::parse(text).ok_or_else(|| s.wrong("equation", "it is not supported"))?;
    let activation = s.activation("activation")?;
    let bias_axes: Vec<char> = s.text_or("bias_axes", "")?.chars().collect();
    if bias_axes.iter().any(|c| !equation.output.contains(c)) {
        return Err(s.wrong("bias_axes", "an axis is not one of the output's"));
    }
    // Lengths of the output's axes after the first, where they are known.
    let lengths = if s.is_null("output_shape") { Vec::new() } else { output_lengths(s)? };
    let mut weights = kernel_and_bias(s, false)?;
    if !bias_axes.is_empty() {
        weights.push(trained(s, "bias", "bias_regularizer")?);
    }
    let lora = Lora::read(s, &mut weights)?;
    let (init, bias_init) = (s.init("kernel_initializer", 64, 64), s.init("bias_initializer", 1, 1));
    Ok(Made::weighted(weights, move |cx, x| {
        let named = equation.input.len();
        let free = x.shape().rank().checked_sub(named);
        let Some(free) = free.filter(|&n| equation.has_ellipsis || n == 0) else {
            return Err(refuse(format!("gives {} to an equation of {named} axes", x.ty())));
        };
        let length = |c: char| -> RunResult<usize> {
            if let Some(i) = equation.input.iter().position(|k| *k == c) {
                return Ok(x.shape()[free + i]);
            }
            // The list is aligned with the output's last axes.
            let from_end = equation.output.iter().rev().position(|k| *k == c);
            let known = from_end.and_then(|i| lengths.len().checked_sub(i + 1)).and_then(|i| lengths[i]);
            known.ok_or_else(|| refuse(format!("does not say how long axis {c} of an equation is")))
        };
        let kernel = equation.kernel.iter().map(|&c| length(c)).collect::<RunResult<Vec<_>>>()?;
        let w = lora::master(lora, cx, "kernel", &kernel[..], init)?.cast(cx.dtype())?;
        let mut y = equation.apply(x, &w, free)?;
        if !bias_axes.is_empty() {
            let first = equation.output.iter().position(|c| bias_axes.contains(c)).unwrap_or(0);
            let shape: Vec<usize> = equation.output[first..]
                .iter()
                .map(|&c| if bias_axes.contains(&c) { length(c) } else { Ok(1) })
                .collect::<RunResult<_>>()?;
            y = y.add(&cx.param("bias", &shape[..], bias_init)?)?;
        }
        cx.finish(&activation, &y)
    })
    .ends(&activation)
    .masks(Masks::Refuse))
}

fn output_lengths(s: &Settings<'_>) -> Result<Vec<Option<usize>>> {
    let value = s.get("output_shape");
    let list = match value.as_array() {
        Some(list) if list.len() <= 16 => list.clone(),
        _ => vec![value.clone()],
    };
    list.iter()
        .map(|n| match n {
            serde_json::Value::Null => Ok(None),
            n => match n.as_u64() {
                Some(n) if n <= 1 << 28 => Ok(Some(n as usize)),
                _ => Err(s.wrong("output_shape", "it should be a list of lengths")),
            },
        })
        .collect()
}

impl Equation {
    fn parse(text: &str) -> Option<Equation> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) = text.split_once("->")?;
        let (input, kernel) = inputs.split_once(',')?;
        let strip = |part: &str| match part.strip_prefix("...") {
            Some(rest) => (true, rest.chars().collect::<Vec<char>>()),
            None => (false, part.chars().collect()),
        };
        let ((free, input), (free_out, output)) = (strip(input), strip(output));
        let kernel: Vec<char> = kernel.chars().collect();
        let unique = |part: &[char]| {
            part.len() <= 8
                && part.iter().enumerate().all(|(i, c)| c.is_ascii_alphabetic() && !part[..i].contains(c))
        };
        let sound = free == free_out
            && unique(&input)
            && unique(&kernel)
            && unique(&output)
            && !kernel.is_empty()
            // Summed over: in input and kernel, not in the output. Kept: in the output, from one of the two or both.
            && input.iter().all(|c| kernel.contains(c) || output.contains(c))
            && kernel.iter().all(|c| input.contains(c) || output.contains(c))
            // What comes up in all three has no place beside axes that are not named.
            && !(free && input.iter().any(|c| kernel.contains(c) && output.contains(c)))
            && output.iter().all(|c| input.contains(c) || kernel.contains(c))
            && input.iter().any(|c| kernel.contains(c));
        sound.then_some(Equation { input, kernel, output, has_ellipsis: free })
    }

    /// One matrix product between two transpositions; `free` axes come before those that are named.
    fn apply(&self, x: &Tensor, w: &Tensor, free: usize) -> RunResult<Tensor> {
        if self.input.iter().any(|c| self.kernel.contains(c) && self.output.contains(c)) {
            let text = |letters: &[char]| letters.iter().collect::<String>();
            let equation = format!("{},{}->{}", text(&self.input), text(&self.kernel), text(&self.output));
            return Tensor::einsum(&equation, &[x, w]);
        }
        let summed: Vec<char> = self.kernel.iter().copied().filter(|c| self.input.contains(c)).collect();
        let new: Vec<char> = self.kernel.iter().copied().filter(|c| !self.input.contains(c)).collect();
        let kept: Vec<char> = self.input.iter().copied().filter(|c| !summed.contains(c)).collect();
        let at = |list: &[char], c: &char| list.iter().position(|k| k == c).unwrap_or(0);
        let order: Vec<usize> =
            (0..free).chain(kept.iter().chain(&summed).map(|c| free + at(&self.input, c))).collect();
        let x = permuted(x, &order)?;
        let w_order: Vec<usize> = summed.iter().chain(&new).map(|c| at(&self.kernel, c)).collect();
        let w = permuted(w, &w_order)?;
        let outer = free + kept.len();
        let inner: usize = x.shape()[outer..].iter().product();
        let (rows, columns) = (
            x.shape()[..outer].iter().product::<usize>(),
            w.shape()[summed.len()..].iter().product::<usize>(),
        );
        let shape: Vec<usize> =
            x.shape()[..outer].iter().chain(&w.shape()[summed.len()..]).copied().collect();
        let y = x.reshape([rows, inner])?.matmul(&w.reshape([inner, columns])?)?.reshape(&shape[..])?;
        let have: Vec<char> = kept.iter().chain(&new).copied().collect();
        let back: Vec<usize> = (0..free).chain(self.output.iter().map(|c| free + at(&have, c))).collect();
        permuted(&y, &back)
    }
}

fn permuted(x: &Tensor, order: &[usize]) -> RunResult<Tensor> {
    if order.iter().enumerate().all(|(i, &axis)| i == axis) { Ok(x.clone()) } else { x.transpose(order) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_that_are_no_dense_layer_are_not_taken() {
        for good in
            ["abc,bcd->abd", "abc,cd->abd", "...x,xy->...y", "abc,cde->abde", "abcd,cde->abe", "ab,bc->ca"]
        {
            assert!(Equation::parse(good).is_some(), "{good}");
        }
        for bad in ["", "ab,bc", "ab,bc->ad", "aab,bc->ac", "...ab,abc->...ac", "ab,cd->abcd", "a1,1b->ab"] {
            assert_eq!(Equation::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_equation_sums_over_what_the_output_lacks() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap();
        let w = Tensor::from_slice(&[1.0f32, 10.0, 100.0, 2.0, 20.0, 200.0], [2, 3]).unwrap();
        let y = Equation::parse("ab,cb->ca").unwrap().apply(&x, &w, 0).unwrap();
        assert_eq!(y.shape()[..], [2, 2]);
        assert_eq!(y.to_vec::<f32>().unwrap(), [321.0, 654.0, 642.0, 1308.0]);
    }
}
