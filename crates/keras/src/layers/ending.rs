//! A layer as the activation of another, `Dense(4, activation=PReLU())`: the two, one after the other.

use plimsoll_formats::keras::Layer;
use serde_json::Value;

use super::{Activation, wrapper};
use crate::error::Result;
use crate::layer::{Args, Made};
use crate::settings::Settings;

/// Layers whose activation is the last thing they do.
const ENDING: [&str; 12] = [
    "Dense",
    "EinsumDense",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "Conv1DTranspose",
    "Conv2DTranspose",
    "Conv3DTranspose",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "SeparableConv1D",
    "SeparableConv2D",
];

/// Whether a layer ends in another one, which is more than a function by name.
pub(super) fn is_layer(layer: &Layer, place: &str) -> bool {
    let activation = layer.config.get("activation").and_then(|value| value.get("config"));
    ENDING.contains(&layer.class_name.as_str())
        && activation.is_some_and(Value::is_object)
        && Activation::read(&Settings::new(place, &layer.class_name, &layer.config), "activation").is_err()
}

/// The layer without its activation, and then that.
pub(super) fn make(layer: &Layer, place: &str) -> Result<Made> {
    let settings = Settings::new(place, &layer.class_name, &layer.config);
    let last = wrapper::inner(&settings, "activation")?;
    if last.model.is_some() {
        return Err(settings
            .wrong("activation", "a model as an activation is not supported; put it after this layer"));
    }
    let mut plain = layer.clone();
    plain.config.insert("activation".into(), Value::Null);
    let first = super::make(&plain, place)?;
    let second = super::make(&last, &format!("{place}/{}", last.name))?;
    if second.activity.is_some() {
        return Err(settings.wrong(
            "activation",
            "with an activity regularizer of its own it is not supported; put it after this layer",
        ));
    }
    let mut weights = first.weights;
    weights.extend(wrapper::below(&second.weights, "activation", &last.name, last.trainable));
    let (masks, kwargs, activity) = (first.masks, first.kwargs, first.activity);
    let (head, tail) = (first.body, second.body);
    let mut made = Made::with(weights, move |cx, args| {
        let outputs = head(cx, args)?;
        cx.pass.enter(last.trainable);
        // What it makes of masks is between Keras and the outer layer.
        let mask = cx.pass.mask.take();
        let mut all = Vec::with_capacity(outputs.len());
        for y in outputs {
            all.extend(cx.scope(&last.name, |cx| tail(cx, &Args::of(y, None)))?);
        }
        cx.pass.mask = mask;
        Ok(all)
    });
    (made.masks, made.kwargs, made.activity) = (masks, kwargs, activity);
    Ok(made)
}
