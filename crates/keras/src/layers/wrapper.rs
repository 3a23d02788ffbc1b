//! Layers around a layer.

use plimsoll_formats::keras::Layer;
use plimsoll_graph::{Shape, TensorOps};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::merge;
use super::recurrent::{self, Rnn, reversed};
use super::recurrent_cell::Cell;
use crate::block::{self, Block};
use crate::error::{Error, Result, refuse};
use crate::layer::{Arg, Args, Body, Made, Masks, Weight, WeightKind};
use crate::settings::Settings;

pub(crate) const CLASSES: [&str; 4] =
    ["Bidirectional", "Pipeline", "SpectralNormalization", "TimeDistributed"];

pub(crate) fn make(s: &Settings<'_>) -> Result<Made> {
    match s.class {
        "Bidirectional" => bidirectional(s),
        "Pipeline" => pipeline(s),
        "SpectralNormalization" => spectral(s),
        _ => time_distributed(s),
    }
}

/// A layer whose kernel is divided by its largest singular value before each step of training.
fn spectral(s: &Settings<'_>) -> Result<Made> {
    let layer = inner(s, "layer")?;
    if layer.model.is_some() {
        return Err(s.wrong("layer", "a model inside is not supported"));
    }
    let iterations = s.units_or("power_iterations", 1)?;
    if !(1..=64).contains(&iterations) {
        return Err(s.wrong("power_iterations", "it should be from 1 to 64"));
    }
    let made = super::make(&layer, &format!("{}/{}", s.place, layer.name))?;
    let is_kernel = |w: &&Weight| w.holder.is_empty() && ["kernel", "embeddings"].contains(&w.name.as_str());
    let Some(kernel) = made.weights.iter().find(is_kernel).map(|w| w.name.clone()) else {
        return Err(s.wrong("layer", "a layer without a kernel of its own is not supported"));
    };
    if made.activity.is_some() || made.masks == Masks::Refuse {
        return Err(s.wrong("layer", "with an activity regularizer or masks of its own it is not supported"));
    }
    // Keras keeps the kernel under the wrapper too.
    let mut again = super::statistic(&format!("{}/{kernel}", layer.name));
    (again.kind, again.trainable) = (WeightKind::Trained, Some(false));
    let mut weights = vec![again, super::statistic(&format!("{}/vector_u", layer.name))];
    weights.extend(below(&made.weights, "layer", &layer.name, layer.trainable));
    let (masks, kwargs, probabilities) = (made.masks, made.kwargs, made.probabilities);
    let body = made.body;
    let mut made = Made::with(weights, move |cx, args| {
        cx.pass.enter(layer.trainable);
        let outer = cx.pass.spectral.replace((kernel.clone(), iterations));
        let result = cx.scope(&layer.name, |cx| body(cx, args));
        cx.pass.spectral = outer;
        result
    });
    (made.masks, made.kwargs, made.probabilities) = (masks, kwargs, probabilities);
    Ok(made)
}

/// Layers without weights, one after the other.
fn pipeline(s: &Settings<'_>) -> Result<Made> {
    let Some(list) = s.get("layers").as_array().filter(|list| list.len() <= 256) else {
        return Err(s.wrong("layers", "it should be a list of layers"));
    };
    let mut parts = Vec::with_capacity(list.len());
    for value in list {
        let layer =
            Layer::from_json(value).map_err(|e| Error::config(s.place, format!("a layer of it: {e}")))?;
        if layer.model.is_some() {
            return Err(s.wrong("layers", "a model inside is not supported"));
        }
        let made = super::make(&layer, &format!("{}/{}", s.place, layer.name))?;
        if !made.weights.is_empty() || made.activity.is_some() || made.masks == Masks::Refuse {
            let why = format!(
                "a {} inside, which has weights or masks of its own, is not supported",
                layer.class_name
            );
            return Err(s.wrong("layers", &why));
        }
        parts.push((layer.name, made));
    }
    Ok(Made::with(Vec::new(), move |cx, args| {
        let mut x = args.one()?.clone();
        for (name, made) in &parts {
            let outputs = cx.scope(name, |cx| (made.body)(cx, &Args::of(x.clone(), None)))?;
            x = outputs.into_iter().next().ok_or_else(|| refuse("has a layer that gives nothing"))?;
        }
        Ok(vec![x])
    }))
}

/// A layer inside. It computes in the wrapper's type here, so a policy of its own is refused.
pub(super) fn inner(s: &Settings<'_>, key: &str) -> Result<Layer> {
    let layer =
        Layer::from_json(s.get(key)).map_err(|e| Error::config(s.place, format!("its {key}: {e}")))?;
    let (own, outer) = (policy(layer.config.get("dtype")), policy(Some(s.get("dtype"))));
    if let (Some(own), Some(outer)) = (own, outer)
        && own != outer
    {
        let why = format!(
            "its {key} has the dtype policy {own:?} and itself {outer:?}; only one for both is supported"
        );
        return Err(Error::config(s.place, why));
    }
    Ok(layer)
}

/// The name of a dtype policy.
fn policy(dtype: Option<&Value>) -> Option<&str> {
    let dtype = dtype?;
    dtype.as_str().or_else(|| dtype.get("config")?.get("name")?.as_str())
}

/// Weights of an inner layer as the outer one's. Whether they are trained is for the inner layer to say.
pub(super) fn below(weights: &[Weight], holder: &str, name: &str, trainable: bool) -> Vec<Weight> {
    let join = |a: &str, b: &str| if b.is_empty() { a.to_string() } else { format!("{a}/{b}") };
    let moved = |w: &Weight| Weight {
        holder: join(holder, &w.holder),
        name: join(name, &w.name),
        trainable: Some(w.trainable.unwrap_or(trainable)),
        ..w.clone()
    };
    weights.iter().map(moved).collect()
}

fn direction(s: &Settings<'_>, layer: &Layer) -> Result<Rnn> {
    let place = format!("{}/{}", s.place, layer.name);
    super::check_own(layer, &place)?;
    let own = Settings::new(&place, &layer.class_name, &layer.config);
    let rnn = match layer.class_name.as_str() {
        "LSTM" => Rnn::read(&own, Cell::Lstm)?,
        "GRU" => Rnn::read(&own, Cell::gru(&own)?)?,
        "SimpleRNN" => Rnn::read(&own, Cell::Simple)?,
        "RNN" => match Rnn::of_cells(&own)? {
            mut cells if cells.len() == 1 => cells.remove(0),
            _ => return Err(own.unsupported("of several cells, which is not supported in both directions")),
        },
        _ => return Err(own.unsupported("which is not supported in both directions")),
    };
    own.finish_layer(&super::idle(own.class))?;
    Ok(rnn)
}

fn bidirectional(s: &Settings<'_>) -> Result<Made> {
    let mode = match s.get("merge_mode") {
        value if value.is_null() => "",
        _ => s.text("merge_mode")?,
    }
    .to_string();
    if !["", "concat", "sum", "mul", "ave"].contains(&mode.as_str()) {
        return Err(s.wrong("merge_mode", "it is not known"));
    }
    let forward_layer = inner(s, "layer")?;
    let forward = direction(s, &forward_layer)?;
    let (backward, backward_name, backward_trainable) = if s.is_null("backward_layer") {
        let name = forward_layer.name.strip_prefix("forward_").unwrap_or(&forward_layer.name);
        (forward.turned(), format!("backward_{name}"), forward_layer.trainable)
    } else {
        let layer = inner(s, "backward_layer")?;
        (direction(s, &layer)?, layer.name, layer.trainable)
    };
    // Older files name the inner layer without its direction.
    let forward_name = match forward_layer.name.starts_with("forward_") {
        true => forward_layer.name.clone(),
        false => format!("forward_{}", forward_layer.name),
    };
    let forward_trainable = forward_layer.trainable;
    let mut weights = below(forward.weights(), "forward_layer", &forward_name, forward_trainable);
    weights.extend(below(backward.weights(), "backward_layer", &backward_name, backward_trainable));
    Ok(Made::with(weights, move |cx, args| {
        let Some(Arg::Tensor(x, mask)) = args.get(0, "sequences") else {
            return Err(refuse("gives no sequence to a recurrent layer"));
        };
        let start = recurrent::initial(args)?;
        let (first, second) = start.split_at(start.len() / 2);
        cx.pass.enter(forward_trainable);
        let a = cx.scope(&forward_name, |cx| forward.run(cx, x, mask.as_ref(), first))?;
        cx.pass.enter(backward_trainable);
        let b = cx.scope(&backward_name, |cx| backward.run(cx, x, mask.as_ref(), second))?;
        cx.pass.mask = if forward.gives_all { mask.clone() } else { None };
        let (y, z) = (a.output, if forward.gives_all { reversed(&b.output)? } else { b.output });
        let mut outputs = match mode.as_str() {
            "concat" => vec![Tensor::concat(&[&y, &z], -1)?],
            "sum" => vec![y.add(&z)?],
            "ave" => vec![y.add(&z)?.mul_scalar(0.5)?],
            "mul" => vec![y.mul(&z)?],
            _ => vec![y, z],
        };
        if forward.gives_state {
            outputs.extend(a.state);
            outputs.extend(b.state);
        }
        Ok(outputs)
    })
    .masks(Masks::Read)
    .kwargs(&["initial_state"]))
}

/// The layer on every step of a sequence by itself: steps are samples.
fn time_distributed(s: &Settings<'_>) -> Result<Made> {
    let layer = inner(s, "layer")?;
    let place = format!("{}/{}", s.place, layer.name);
    let inside = match &layer.model {
        Some(_) => Inside::model(s, &layer, &place)?,
        None => Inside::layer(super::make(&layer, &place)?, &layer),
    };
    if inside.has_activity {
        return Err(s.unsupported("whose inner layer has an activity regularizer, which is not supported"));
    }
    let by_steps = inside.weights.iter().any(|w| w.kind == WeightKind::Statistic);
    // A mask is of steps; of an inner layer that reads it, Keras would give it the step's own.
    let masks = if inside.reads_masks { Masks::Refuse } else { Masks::Read };
    let body = inside.body;
    Ok(Made::with(inside.weights, move |cx, args| {
        let mask = args.mask().cloned();
        // A softmax here is followed by a change of shape, so a loss does not see through it.
        let outer = std::mem::replace(&mut cx.pass.wants_logits, false);
        let result = over_steps(args.one()?, by_steps, |x| {
            cx.pass.enter(layer.trainable);
            cx.scope(&layer.name, |cx| body(cx, &Args::of(x, None)))
        });
        cx.pass.wants_logits = outer;
        cx.pass.mask = mask;
        result
    })
    .masks(masks))
}

/// What a wrapper runs: a layer or a whole model.
struct Inside {
    weights: Vec<Weight>,
    has_activity: bool,
    reads_masks: bool,
    body: Body,
}

impl Inside {
    fn layer(made: Made, layer: &Layer) -> Inside {
        Inside {
            weights: below(&made.weights, "layer", &layer.name, layer.trainable),
            has_activity: made.activity.is_some(),
            reads_masks: !matches!(made.masks, Masks::Pass | Masks::Drop),
            body: made.body,
        }
    }

    /// A model of one input and one output. It says of each of its layers what the layer would say itself.
    fn model(s: &Settings<'_>, layer: &Layer, place: &str) -> Result<Inside> {
        super::check_model(layer, place)?;
        let Some(model) = &layer.model else { return Err(s.wrong("layer", "it is no model")) };
        let outer = policy(Some(s.get("dtype")));
        let differs = |own: &&Layer| {
            let is_plain = own.model.is_none() && !own.is_input() && !super::is_function(own);
            is_plain
                && own.policy.as_ref().is_some_and(|policy| outer.is_some_and(|outer| policy.name != outer))
        };
        if let Some(own) = layer.all().into_iter().find(differs) {
            let why = format!(
                "its layer {} has another dtype policy than itself; only one for all is supported",
                own.name
            );
            return Err(Error::config(s.place, why));
        }
        let block = Block::build(model, place, 1)?;
        if (block.n_inputs(), block.n_outputs()) != (1, 1) {
            return Err(s.wrong("layer", "only a model of one input and one output is taken"));
        }
        let mut weights = Vec::new();
        let (mut has_activity, mut reads_masks) = (false, false);
        for node in block.all() {
            let block::Body::Layer(made) = &node.body else { continue };
            has_activity |= made.activity.is_some();
            reads_masks |= !matches!(made.masks, Masks::Pass | Masks::Drop);
            let name = node.place.strip_prefix(place).unwrap_or(&node.place).trim_start_matches('/');
            let name = format!("{}/{name}", layer.name);
            weights.extend(below(&made.weights, &format!("layer/{}", node.path), &name, node.trainable));
        }
        let body: Body = Box::new(move |cx, args| {
            let outputs = block.run(cx, &[(args.one()?.clone(), None)], &[])?;
            Ok(outputs.into_iter().map(|(y, _)| y).collect())
        });
        Ok(Inside { weights, has_activity, reads_masks, body })
    }
}

/// A function on every step of sequences: on all at once, where steps are samples, or one after the other, where the function keeps
/// statistics of each.
fn over_steps(
    x: &Tensor,
    by_steps: bool,
    mut f: impl FnMut(Tensor) -> RunResult<Vec<Tensor>>,
) -> RunResult<Vec<Tensor>> {
    let [n, steps] = x.shape()[..2.min(x.shape().rank())] else {
        return Err(refuse(format!("gives {} to a layer that takes sequences", x.ty())));
    };
    let with = |head: &[usize], rest: &[usize]| head.iter().chain(rest).copied().collect::<Shape>();
    if !by_steps {
        let folded = with(&[n.saturating_mul(steps)], &x.shape()[2..]);
        let unfold = |y: &Tensor| y.reshape(with(&[n, steps], &y.shape()[1..]));
        return f(x.reshape(folded)?)?.iter().map(unfold).collect();
    }
    let mut all: Vec<Vec<Tensor>> = Vec::new();
    for t in 0..steps {
        let step = x.narrow(1, t, t + 1)?.reshape(with(&[n], &x.shape()[2..]))?;
        for (i, y) in f(step)?.into_iter().enumerate() {
            if t == 0 {
                all.push(Vec::new());
            }
            all[i].push(y.reshape(with(&[n, 1], &y.shape()[1..]))?);
        }
    }
    all.iter().map(|rows| merge::concat(&rows.iter().collect::<Vec<_>>(), 1)).collect()
}
