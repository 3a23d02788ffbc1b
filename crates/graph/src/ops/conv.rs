//! Convolution over images, channels last: y = act(x ∗ w + bias).
//!
//! This op and its two gradients are one trilinear form, Σ x[n, i, ci] · w[k, ci, co] · y[n, o, co] over all (o, k) with
//! i = o · stride + k · dilation - pad, solved for y, x or w. Each one's gradients are therefore the other two, and
//! second derivatives need nothing new.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::ops::composed::before_activation;
use crate::ops::{ConvGradFilter, ConvGradInput, Unary, WindowAxis};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Shape, Type, ops};

/// How the filter slides over x: what a convolution and its two gradients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvFrame {
    /// Elements of x from one window to the next, along height and width.
    pub stride: [usize; 2],
    /// Zeros before and after each of the two axes of x.
    pub pad: [(usize, usize); 2],
    /// Elements from one element of a window to the next.
    pub dilation: [usize; 2],
    /// Parts that the channels are cut into, each convolved by itself.
    pub groups: usize,
}

impl ConvFrame {
    fn axis(&self, axis: usize, len: usize, window: usize) -> WindowAxis {
        let (stride, pad, dilation) = (self.stride[axis], self.pad[axis], self.dilation[axis]);
        WindowAxis { len, window, stride, pad, dilation }
    }

    /// The shape of y from those of x and w, or what does not fit.
    pub(super) fn output(&self, x: &Shape, w: &Shape) -> Result<Shape, String> {
        let (&[n, height, width, ci], &[kh, kw, group_in, co]) = (&x[..], &w[..]) else {
            return Err(format!(
                "it takes images [N, H, W, C] and a filter [KH, KW, CI, CO], not {x} and {w}"
            ));
        };
        let groups = self.groups;
        if groups == 0 || ci % groups != 0 || co % groups != 0 {
            return Err(format!(
                "{groups} groups do not divide the {ci} channels of {x} and the {co} filters of {w}"
            ));
        }
        if ci / groups != group_in {
            let parts = if groups == 1 { String::new() } else { format!(" in {groups} groups") };
            return Err(format!(
                "the {ci} channels of {x}{parts} do not meet the {group_in} channels of the filter {w}"
            ));
        }
        let outputs = |axis: usize, len: usize, window: usize| {
            let name = ["height", "width"][axis];
            self.axis(axis, len, window).outputs().map_err(|why| format!("{name}: {why}"))
        };
        Ok(Shape::from([n, outputs(0, height, kh)?, outputs(1, width, kw)?, co]))
    }

    /// Calls `f` with the places in x, w and y of every product of the form.
    pub(super) fn for_each(&self, x: &Shape, w: &Shape, y: &Shape, mut f: impl FnMut(usize, usize, usize)) {
        let (group_in, group_out) = (w[2], w[3] / self.groups);
        let (vertical, horizontal) = (self.axis(0, x[1], w[0]), self.axis(1, x[2], w[1]));
        for n in 0..y[0] {
            for (oy, ky) in (0..y[1]).flat_map(|o| (0..w[0]).map(move |k| (o, k))) {
                let Some(iy) = vertical.element(oy, ky) else { continue };
                for (ox, kx) in (0..y[2]).flat_map(|o| (0..w[1]).map(move |k| (o, k))) {
                    let Some(ix) = horizontal.element(ox, kx) else { continue };
                    for co in 0..w[3] {
                        for c in 0..group_in {
                            let ci = co / group_out * group_in + c;
                            f(
                                ((n * x[1] + iy) * x[2] + ix) * x[3] + ci,
                                ((ky * w[1] + kx) * group_in + c) * w[3] + co,
                                ((n * y[1] + oy) * y[2] + ox) * w[3] + co,
                            );
                        }
                    }
                }
            }
        }
    }

    pub(super) fn convolve(self, at: &Backward<'_>, x: &Sym, w: &Sym) -> Result<Sym> {
        let op = Conv { frame: self, bias: false, act: None };
        Ok(at.push(op, &[x, w])?.remove(0))
    }

    pub(super) fn grad_input(self, at: &Backward<'_>, dy: &Sym, w: &Sym, x: &Type) -> Result<Sym> {
        let op = ConvGradInput { frame: self, input: [x.shape[1], x.shape[2]], bias: false };
        Ok(at.push(op, &[dy, w])?.remove(0))
    }

    pub(super) fn grad_filter(self, at: &Backward<'_>, x: &Sym, dy: &Sym, w: &Type) -> Result<Sym> {
        let op = ConvGradFilter { frame: self, filter: [w.shape[0], w.shape[1]] };
        Ok(at.push(op, &[x, dy])?.remove(0))
    }

    /// Two operations a product; those with padding are counted too, as kernels that skip them are rare.
    pub(super) fn cost(y: &Type, w: &Type, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let taps = (w.shape[0] * w.shape[1] * w.shape[2]) as f64;
        Cost { flops: 2.0 * y.elements() as f64 * taps, bytes: traffic(inputs, outputs) }
    }
}

/// Checks the number of inputs and that all are floats of one type.
pub(super) fn operands<'a>(inputs: &[&'a Type], bias: bool) -> Result<(&'a Type, &'a Type), String> {
    let (a, b) = match (bias, inputs) {
        (false, [a, b]) | (true, [a, b, _]) => (*a, *b),
        _ => return Err(format!("it takes {} inputs and was given {}", 2 + usize::from(bias), inputs.len())),
    };
    ops::float(a)?;
    inputs[1..].iter().try_for_each(|t| ops::same_dtype(a, t).map(|_| ()))?;
    Ok((a, b))
}

/// Checks that a bias, where there is one, has an element a channel.
pub(super) fn check_bias(inputs: &[&Type], channels: usize) -> Result<(), String> {
    match inputs.get(2) {
        Some(bias) if *bias.shape != [channels] => {
            Err(format!("the bias of {channels} channels cannot be {bias}; it is [{channels}]"))
        }
        _ => Ok(()),
    }
}

/// `y[n, o, co]` = act(Σ `x[n, o·stride + k·dilation - pad, ci]` · `w[k, ci, co]` + `bias[co]`).
///
/// Inputs: x `[N, H, W, CI]`, w `[KH, KW, CI / groups, CO]`, and with `bias` a vector `[CO]`. Output: `[N, OH, OW, CO]`
/// with OH = (H + pad - dilation · (KH - 1) - 1) / stride + 1, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    /// How the filter slides.
    pub frame: ConvFrame,
    /// Whether a bias is added.
    pub bias: bool,
    /// What is applied to each element of the result.
    pub act: Option<Unary>,
}

impl Rule for Conv {
    const NAME: &'static str = "conv";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let (x, w) = operands(inputs, self.bias)?;
        let y = self.frame.output(&x.shape, &w.shape)?;
        check_bias(inputs, y[3])?;
        match self.act.map(|act| act.result(x.dtype)).transpose()? {
            Some(dtype) if dtype != x.dtype => Err("its activation must keep the type".into()),
            _ => Ok(smallvec![x.with_shape(y)]),
        }
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        (along.operand, along.axis) == (0, 0)
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        ConvFrame::cost(outputs[0], inputs[1], inputs, outputs)
    }

    fn keep(&self) -> Keep {
        match self.act {
            None => Keep::inputs(3),
            Some(Unary::Relu) => Keep::both(3, 1),
            Some(_) => Keep::inputs(if self.bias { 7 } else { 3 }),
        }
    }

    /// With the gradient g at the sum: dx and dw by the other two ops, dbias = Σ g over images and pixels.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let g = before_activation(at, self.act, Conv { act: None, ..*self })?;
        let mut grads = vec![None; at.n_inputs()];
        if at.wants(0) {
            grads[0] = Some(self.frame.grad_input(at, &g, &at.input(1)?, at.input_type(0))?);
        }
        if at.wants(1) {
            grads[1] = Some(self.frame.grad_filter(at, &at.input(0)?, &g, at.input_type(1))?);
        }
        if self.bias && at.wants(2) {
            grads[2] = Some(g.sum(&[0, 1, 2], false)?);
        }
        Ok(grads)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, w, shape) = (inputs[0], inputs[1], &outputs[0].shape);
        let mut y = vec![0.0; shape.elements()];
        self.frame.for_each(&x.shape, &w.shape, shape, |ix, iw, iy| y[iy] += x.data[ix] * w.data[iw]);
        let bias = |i: usize| if self.bias { inputs[2].data[i % shape[3]] } else { 0.0 };
        let finish = |(i, sum): (usize, f64)| self.act.map_or(sum + bias(i), |f| f.eval(sum + bias(i)));
        vec![Array::new(shape.clone(), y.into_iter().enumerate().map(finish).collect())]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let acts = [None, Some(Unary::Relu), Some(Unary::Silu), None, Some(Unary::Tanh)];
        let make = |(i, (frame, x, w, _)): (usize, (ConvFrame, Type, Type, Type))| {
            let (bias, act) = (i % 3 != 1, acts[i % acts.len()]);
            let mut inputs = vec![(x.clone(), Domain::Normal), (w.clone(), Domain::Normal)];
            if bias {
                inputs.push((x.with_shape([w.shape[3]]), Domain::Normal));
            }
            Example::new(Conv { frame, bias, act }, inputs)
        };
        samples(dice).into_iter().enumerate().map(make).collect()
    }
}

/// Geometries with the types of x, w and y, for the examples of all three ops.
pub(super) fn samples(dice: &mut Dice) -> Vec<(ConvFrame, Type, Type, Type)> {
    let frame = |stride, pad, dilation, groups| ConvFrame { stride, pad, dilation, groups };
    let (none, one) = ([(0, 0); 2], [(1, 1); 2]);
    // Frame, kernel, channels in and out: plain, same size, strided, uneven, dilated, grouped, depthwise with one and
    // with two filters a channel, pointwise, pointwise strided, transposed by two, one-dimensional.
    let cases = [
        (frame([1, 1], none, [1, 1], 1), [2, 3], 3, 5),
        (frame([1, 1], one, [1, 1], 1), [3, 3], 3, 4),
        (frame([2, 2], one, [1, 1], 1), [3, 3], 2, 33),
        (frame([3, 2], [(0, 1), (2, 0)], [1, 1], 1), [3, 2], 2, 3),
        (frame([1, 2], [(2, 2), (1, 3)], [2, 3], 1), [3, 2], 2, 3),
        (frame([1, 1], one, [1, 1], 2), [3, 3], 4, 6),
        (frame([2, 1], one, [1, 1], 20), [3, 3], 20, 20),
        (frame([1, 1], one, [1, 2], 3), [3, 2], 3, 6),
        (frame([1, 1], none, [1, 1], 1), [1, 1], 17, 4),
        (frame([2, 2], none, [1, 1], 1), [1, 1], 3, 4),
        (frame([2, 2], none, [1, 1], 1), [2, 2], 4, 3),
        (frame([1, 1], [(0, 0), (1, 1)], [1, 1], 1), [1, 3], 3, 4),
    ];
    let mut samples = Vec::new();
    for (frame, [kh, kw], ci, co) in cases {
        let (n, height, width) = (dice.range(1, 3), dice.range(3, 6), dice.range(3, 7));
        let x = Type::new(DType::F32, [n, height, width, ci]);
        let w = Type::new(DType::F32, [kh, kw, ci / frame.groups, co]);
        if let Ok(y) = frame.output(&x.shape, &w.shape) {
            let y = x.with_shape(y);
            samples.push((frame, x, w, y));
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Conv = Conv { frame: STEPS_OF_ONE, bias: false, act: None };
    const STEPS_OF_ONE: ConvFrame =
        ConvFrame { stride: [1, 1], pad: [(0, 0); 2], dilation: [1, 1], groups: 1 };

    fn grouped(groups: usize) -> Conv {
        Conv { frame: ConvFrame { groups, ..STEPS_OF_ONE }, ..PLAIN }
    }

    fn refusal(op: Conv, shapes: &[&[usize]]) -> String {
        let types: Vec<Type> = shapes.iter().map(|&s| Type::new(DType::F32, s)).collect();
        op.infer(&types.iter().collect::<Vec<_>>()).unwrap_err()
    }

    #[test]
    fn every_sample_is_a_convolution_that_fits() {
        for seed in 0..20 {
            assert_eq!(samples(&mut Dice::new(seed)).len(), 12);
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let text = refusal(PLAIN, &[&[1, 8, 8, 3], &[3, 3, 4, 8]]);
        assert!(text.contains("3 channels of [1, 8, 8, 3]") && text.contains("[3, 3, 4, 8]"), "{text}");
        let text = refusal(PLAIN, &[&[1, 8, 2, 3], &[3, 3, 3, 8]]);
        assert!(text.contains("width: a window that reaches over 3"), "{text}");
        let text = refusal(grouped(2), &[&[1, 8, 8, 3], &[3, 3, 1, 8]]);
        assert!(text.contains("2 groups do not divide the 3 channels"), "{text}");
        let text = refusal(Conv { bias: true, ..PLAIN }, &[&[1, 8, 8, 3], &[3, 3, 3, 8], &[3]]);
        assert!(text.contains("bias of 8 channels"), "{text}");
        let still = Conv { frame: ConvFrame { stride: [0, 1], ..STEPS_OF_ONE }, ..PLAIN };
        assert!(refusal(still, &[&[1, 8, 8, 3], &[3, 3, 3, 8]]).contains("stride 0"));
        assert!(refusal(grouped(0), &[&[1, 8, 8, 3], &[3, 3, 3, 8]]).contains("0 groups"));
        assert!(refusal(PLAIN, &[&[8, 8, 3], &[3, 3, 3, 8]]).contains("[N, H, W, C]"));
    }

    #[test]
    fn the_cost_is_two_operations_a_product() {
        let (x, w) = (Type::new(DType::F32, [2, 8, 8, 4]), Type::new(DType::F32, [3, 3, 2, 6]));
        let op = grouped(2);
        let y = op.infer(&[&x, &w]).unwrap().remove(0);
        assert_eq!(op.cost(&[&x, &w], &[&y]).flops, 2.0 * (2 * 6 * 6 * 6) as f64 * (3 * 3 * 2) as f64);
    }
}
