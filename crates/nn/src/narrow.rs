//! Turns a trained model into a narrower one: finds in its graph which channels of which weights belong together, and leaves out those whose
//! weights are the least.
//!
//! A channel is a place along the last axis of what a layer gives. What reads it (the inputs of the next weight, a norm, the other branch of
//! a sum, a part of what is joined) goes with it: places that must stay or go together are one set, found by walking the graph once. Ops that are
//! not known here keep what they read as it is.

use std::sync::Arc;

use plimsoll_graph::{Node, Op, Shape, TensorOps, Type, ValueId};
use plimsoll_run::{Result, Tensor};
use rustc_hash::FxHashMap;

use crate::error::refuse;
use crate::{Model, Net, Outputs, Param, Predicting};

/// The set of all places that stay.
const STAYS: usize = 0;

/// A model with other shapes of some parameters than its layers ask for.
#[derive(Clone)]
pub struct Narrowed<'a> {
    model: &'a dyn Model,
    shapes: Arc<FxHashMap<String, Shape>>,
    /// Its parameters.
    pub params: Vec<Param>,
    /// Their values: what is left of those of the whole model.
    pub values: Vec<Tensor>,
    /// How many channels of layers there were, and how many are left.
    pub channels: (usize, usize),
}

impl Model for Narrowed<'_> {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        let outer = net.shapes.replace(self.shapes.clone());
        let outputs = self.model.forward(net, inputs);
        net.shapes = outer;
        outputs
    }
}

impl<'a> Narrowed<'a> {
    /// The model for inputs of these types without this share of the channels of each layer, or set of layers that belong together: those with
    /// the least weights. One is left at least, and what the model gives keeps its shape.
    ///
    /// # Errors
    /// The share is not between 0 and 1, nothing can be left out, or the model does not take other widths.
    pub fn new(
        model: &'a dyn Model,
        inputs: &[Type],
        params: &[Param],
        values: &[Tensor],
        share: f64,
    ) -> Result<Narrowed<'a>> {
        if !(share > 0.0 && share < 1.0) {
            return Err(refuse(format!(
                "leaves out {share} of its channels, which is no share between 0 and 1"
            )));
        }
        let traced = Predicting::new(model, inputs, params)?;
        let mut walk = Walk::new(&traced);
        traced.graph.nodes().iter().for_each(|node| walk.node(node));
        for id in traced.graph.outputs() {
            walk.stay(*id);
        }
        let (left_out, channels) = walk.least(&traced, values, share)?;
        if left_out.is_empty() {
            return Err(refuse("has no channels that could be left out"));
        }
        let (mut narrow, mut kept) = (Vec::new(), Vec::new());
        for ((param, value), id) in params.iter().zip(values).zip(&traced.params) {
            let mut value = value.clone();
            let rank = param.ty.shape.len();
            for (axis, places) in
                [(rank.wrapping_sub(1), walk.last.get(id)), (rank.wrapping_sub(2), walk.rows.get(id))]
            {
                let Some(Some(places)) = places.map(|places| (axis < rank).then(|| places.clone())) else {
                    continue;
                };
                let stays: Vec<usize> =
                    (0..places.len()).filter(|&i| !left_out.contains(&walk.find(places[i]))).collect();
                if stays.len() < places.len() {
                    value = picked(&value, axis, &stays)?;
                }
            }
            narrow.push(Param { ty: value.ty().clone(), ..param.clone() });
            kept.push(value);
        }
        let shapes = narrow.iter().map(|param| (param.name.clone(), param.ty.shape.clone())).collect();
        let narrowed = Narrowed { model, shapes: Arc::new(shapes), params: narrow, values: kept, channels };
        // What it computes must follow the shapes of its parameters, and end as before.
        let again = Predicting::new(&narrowed, inputs, &narrowed.params)?;
        let types = |traced: &Predicting| -> Vec<Type> {
            traced.graph.outputs().iter().map(|&id| traced.graph.ty(id).clone()).collect()
        };
        let ops = |traced: &Predicting| -> Vec<&'static str> {
            traced.graph.nodes().iter().map(|node| node.op.name()).collect()
        };
        match types(&again) == types(&traced) && ops(&again) == ops(&traced) {
            true => Ok(narrowed),
            false => {
                Err(refuse("computes something else when it is narrower: its layers go by their widths"))
            }
        }
    }
}

/// Some places of an axis.
fn picked(value: &Tensor, axis: usize, places: &[usize]) -> Result<Tensor> {
    let places: Vec<i64> = places.iter().map(|&place| place as i64).collect();
    plimsoll_graph::GatherOps::gather(value, &Tensor::from_slice(&places, [places.len()])?, axis as isize)
}

/// The places of a value's last axis, each with the set it belongs to; nothing where it is the same all along.
type Places = Option<Vec<usize>>;

struct Walk<'a> {
    traced: &'a Predicting,
    /// Sets of places that stay or go together, each known by one of them.
    sets: Vec<usize>,
    last: FxHashMap<ValueId, Vec<usize>>,
    /// Of weights: the places of the axis before the last.
    rows: FxHashMap<ValueId, Vec<usize>>,
    /// Weights that make channels: the value, and whether they lie along its last axis.
    makers: Vec<(ValueId, bool)>,
}

impl<'a> Walk<'a> {
    fn new(traced: &'a Predicting) -> Walk<'a> {
        let mut walk = Walk {
            traced,
            sets: vec![STAYS],
            last: FxHashMap::default(),
            rows: FxHashMap::default(),
            makers: Vec::new(),
        };
        for &id in &traced.inputs {
            walk.last.insert(id, vec![STAYS; walk.width(id)]);
        }
        for (id, _) in &traced.captured {
            walk.last.insert(*id, vec![STAYS; walk.width(*id)]);
        }
        for &id in &traced.params {
            let own = walk.fresh(walk.width(id));
            walk.last.insert(id, own);
            if let [.., rows, _] = traced.graph.ty(id).shape[..] {
                let own = walk.fresh(rows);
                walk.rows.insert(id, own);
            }
        }
        walk
    }

    fn width(&self, id: ValueId) -> usize {
        self.traced.graph.ty(id).shape.last().copied().unwrap_or(0)
    }

    fn fresh(&mut self, n: usize) -> Vec<usize> {
        let first = self.sets.len();
        self.sets.extend(first..first + n);
        (first..first + n).collect()
    }

    fn find(&self, mut at: usize) -> usize {
        while self.sets[at] != at {
            at = self.sets[at];
        }
        at
    }

    fn join(&mut self, a: &[usize], b: &[usize]) {
        for (&a, &b) in a.iter().zip(b) {
            let (a, b) = (self.find(a), self.find(b));
            self.sets[a.max(b)] = a.min(b);
        }
    }

    /// All places of a value stay.
    fn stay(&mut self, id: ValueId) {
        for places in [self.last.get(&id).cloned(), self.rows.get(&id).cloned()].into_iter().flatten() {
            self.join(&places, &vec![STAYS; places.len()]);
        }
    }

    fn places(&self, id: ValueId) -> Places {
        self.last.get(&id).cloned()
    }

    fn node(&mut self, node: &Node) {
        let made = self.made(node);
        for (i, &id) in node.outputs.iter().enumerate() {
            let places = match (i, &made) {
                (0, Some(places)) => places.clone(),
                _ => Some(vec![STAYS; self.width(id)]),
            };
            if let Some(places) = places {
                self.last.insert(id, places);
            }
        }
        if made.is_none() {
            node.inputs.iter().for_each(|&id| self.stay(id));
        }
    }

    /// The places of an op's first result; nothing where the op is not known, and keeps what it reads as it is.
    fn made(&mut self, node: &Node) -> Option<Places> {
        let x = node.inputs.first().copied();
        let traced = self.traced;
        let shape = |id: ValueId| &traced.graph.ty(id).shape;
        let (out, width) = (node.outputs[0], self.width(node.outputs[0]));
        let same = |own: &Self, id: ValueId| match own.places(id) {
            None => Some(None),
            Some(places) if places.len() == width => Some(Some(places)),
            Some(_) => None,
        };
        match &node.op {
            Op::Conv(conv) => {
                let (places, w) = (self.places(x?)?, node.inputs[1]);
                let (last, rows) = (self.last.get(&w)?.clone(), self.rows.get(&w)?.clone());
                match conv.frame.groups {
                    1 => self.join(&places, &rows),
                    groups if groups == places.len() && last.len() == groups => self.join(&places, &last),
                    _ => return None,
                }
                self.layer(node, w, last, true)
            }
            Op::MatMul(product) if !product.ta && self.rows.contains_key(&node.inputs[1]) => {
                let (places, w) = (self.places(x?)?, node.inputs[1]);
                let (mut last, mut rows) = (self.last.get(&w)?.clone(), self.rows.get(&w)?.clone());
                if shape(w).len() != 2 || !self.traced.params.contains(&w) {
                    return None;
                }
                if product.tb {
                    std::mem::swap(&mut last, &mut rows);
                }
                self.join(&places, &rows);
                self.layer(node, w, last, !product.tb)
            }
            Op::Unary(_)
            | Op::Cast(_)
            | Op::StopGradient(_)
            | Op::MaxPool(_)
            | Op::AvgPool(_)
            | Op::Resize(_) => same(self, x?),
            Op::Full(_) => Some(None),
            Op::Binary(_) | Op::Compare(_) | Op::Select(_) => {
                let mut all: Places = None;
                for &id in &node.inputs {
                    let Some(places) = self.places(id).filter(|places| places.len() == width && width > 1)
                    else {
                        if self.width(id) > 1 {
                            continue;
                        }
                        self.stay(id);
                        continue;
                    };
                    match &all {
                        Some(known) => self.join(&known.clone(), &places),
                        None => all = Some(places),
                    }
                }
                Some(all)
            }
            Op::Reduce(reduce) if !reduce.axes.contains(&(shape(x?).len().wrapping_sub(1))) => same(self, x?),
            Op::Pad(pad) if pad.axes.last().is_none_or(|axis| axis.low + axis.high + axis.inner == 0) => {
                same(self, x?)
            }
            Op::Broadcast(_) => same(self, x?),
            Op::Reshape(_) => match self.places(x?) {
                None => Some(None),
                Some(places) if !places.is_empty() && width.is_multiple_of(places.len()) => {
                    Some(Some(places.iter().copied().cycle().take(width).collect()))
                }
                Some(_) => None,
            },
            Op::Concat(concat) => {
                let parts: Vec<Vec<usize>> =
                    node.inputs.iter().map(|&id| self.places(id)).collect::<Option<_>>()?;
                if concat.axis + 1 == shape(out).len() {
                    return Some(Some(parts.concat()));
                }
                parts[1..].iter().for_each(|part| self.join(&parts[0], part));
                Some(Some(parts[0].clone()))
            }
            _ => None,
        }
    }

    /// What a layer gives: the places of its weight's channels, to which a bias belongs.
    fn layer(&mut self, node: &Node, weight: ValueId, channels: Vec<usize>, is_last: bool) -> Option<Places> {
        if let Some(bias) = node.inputs.get(2) {
            let bias = self.last.get(bias)?.clone();
            self.join(&channels, &bias);
        }
        self.makers.push((weight, is_last));
        Some(Some(channels))
    }

    /// The sets to leave out, and how many channels there were and are left.
    fn least(
        &self,
        traced: &Predicting,
        values: &[Tensor],
        share: f64,
    ) -> Result<(Vec<usize>, (usize, usize))> {
        // What each set weighs, and the layers that make it.
        let mut sets: FxHashMap<usize, (f64, Vec<usize>)> = FxHashMap::default();
        for (layer, (id, is_last)) in self.makers.iter().enumerate() {
            let Some(at) = traced.params.iter().position(|param| param == id) else { continue };
            let (numbers, shape) = (values[at].to_f64()?, &values[at].ty().shape);
            let width = shape.last().copied().unwrap_or(1);
            let places = if *is_last { &self.last[id] } else { &self.rows[id] };
            let mut squares = vec![0.0; places.len()];
            for (i, x) in numbers.iter().enumerate() {
                let channel = if *is_last { i % width } else { i / width % places.len() };
                squares[channel] += x * x;
            }
            let mean = (squares.iter().sum::<f64>() / squares.len() as f64).max(f64::MIN_POSITIVE);
            for (place, square) in places.iter().zip(squares) {
                let set = sets.entry(self.find(*place)).or_default();
                set.0 += square / mean;
                set.1.push(layer);
            }
        }
        let all = sets.len();
        sets.remove(&self.find(STAYS));
        // Sets that the same layers make are compared with each other.
        let mut groups: FxHashMap<Vec<usize>, Vec<(f64, usize)>> = FxHashMap::default();
        for (set, (weight, mut layers)) in sets {
            layers.sort_unstable();
            layers.dedup();
            groups.entry(layers).or_default().push((weight, set));
        }
        let mut left_out = Vec::new();
        for mut group in groups.into_values() {
            group.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let n = ((share * group.len() as f64) as usize).min(group.len() - 1);
            left_out.extend(group[..n].iter().map(|(_, set)| *set));
        }
        left_out.sort_unstable();
        let left = all - left_out.len();
        Ok((left_out, (all, left)))
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{DType, PoolOps};

    use super::*;
    use crate::{Conv2d, model, zoo};

    fn drawn(params: &[Param]) -> Vec<Tensor> {
        params.iter().map(|p| p.init.draw(&p.name, &p.ty, 3).unwrap()).collect()
    }

    #[test]
    fn what_depends_on_a_channel_goes_with_it_through_skips_and_joins() -> Result<()> {
        let net = model(|net, x: &[Tensor]| {
            let a = net.conv2d("a", &x[0], Conv2d::new(8, 3).same())?;
            let a = net.batch_norm("norm", &a)?.relu()?;
            let b = net.conv2d("b", &a, Conv2d::new(8, 3).same())?.relu()?;
            // The skip ties b to a; c is joined with both.
            let sum = a.add(&b)?;
            let c = net.depthwise_conv2d("c", &sum, Conv2d::new(8, 3).same())?;
            let d = net.conv2d("d", &sum, Conv2d::new(4, 1))?.relu()?;
            let both = Tensor::concat(&[&c, &d], -1)?.max_pool2d([2, 2], [2, 2], Default::default())?;
            net.dense("out", &both.flatten(1)?, 3, true)
        });
        let input = Type::new(DType::F32, [1, 4, 4, 2]);
        let params = Net::discover(std::slice::from_ref(&input), &net)?;
        let mut values = drawn(&params);
        // Channels 1 and 5 of a, b and c weigh nothing, nor 2 of d.
        for (param, value) in params.iter().zip(&mut values) {
            let gone: &[usize] = match param.name.split('/').next() {
                Some("a" | "b" | "c" | "norm") => &[1, 5],
                Some("d") => &[2],
                _ => continue,
            };
            let width = param.ty.shape.last().copied().unwrap_or(1);
            let zeroed: Vec<f64> = value
                .to_f64()?
                .into_iter()
                .enumerate()
                .map(|(i, x)| if gone.contains(&(i % width)) { 0.0 } else { x })
                .collect();
            *value = Tensor::from_f64(&zeroed, param.ty.clone())?;
        }
        let narrow = Narrowed::new(&net, std::slice::from_ref(&input), &params, &values, 0.25)?;
        let shape = |name: &str| narrow.params.iter().find(|p| p.name == name).unwrap().ty.shape.to_vec();
        assert_eq!(shape("a/weight"), [3, 3, 2, 6]);
        assert_eq!(shape("norm/gamma"), [6]);
        assert_eq!(shape("b/weight"), [3, 3, 6, 6]);
        assert_eq!(shape("c/weight"), [3, 3, 1, 6]);
        assert_eq!(shape("d/weight"), [1, 1, 6, 3]);
        assert_eq!(shape("out/weight"), [2 * 2 * 9, 3]);
        // Those that were left out gave nothing: the rest computes the same.
        let x = crate::blocks::read_back::drawn(std::slice::from_ref(&input))?;
        let (a, b) = (
            Predicting::forward(&net, &x, &params, &values)?[0].to_vec::<f32>()?,
            Predicting::forward(&narrow, &x, &narrow.params, &narrow.values)?[0].to_vec::<f32>()?,
        );
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?} {b:?}");
        Ok(())
    }

    #[test]
    fn models_of_the_zoo_are_about_a_quarter_at_half_their_width() -> Result<()> {
        for name in ["cnn", "resnet18", "mobilenet"] {
            let entry = zoo::find(name).unwrap().sized(|size| {
                size.image = 32;
                size.classes = 10;
            });
            let input = entry.input(1);
            let params = Net::discover(std::slice::from_ref(&input), &entry)?;
            let narrow = Narrowed::new(&entry, std::slice::from_ref(&input), &params, &drawn(&params), 0.5)?;
            let count = |params: &[Param]| params.iter().map(|p| p.ty.elements()).sum::<usize>() as f64;
            let share = count(&narrow.params) / count(&params);
            assert!((0.2..0.4).contains(&share), "{name}: {share}");
        }
        Ok(())
    }
}
