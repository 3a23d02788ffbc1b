//! Layers with `data_format="channels_first"`, as those with channels last between two changes of the layout.

use plimsoll_formats::keras::Layer;
use plimsoll_graph::TensorOps;
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::json;

use super::Activation;
use crate::error::Result;
use crate::layer::Made;
use crate::settings::Settings;

/// Whether a layer has its channels first. Of sequences, images and volumes it is the axis behind the batch.
pub(super) fn is_first(layer: &Layer) -> bool {
    layer.config.get("data_format").is_some_and(|format| format == "channels_first")
}

/// The layer of channels last with what comes in and goes out turned round.
pub(super) fn make(layer: &Layer, place: &str) -> Result<Made> {
    let settings = Settings::new(place, &layer.class_name, &layer.config);
    if layer.class_name.starts_with("ConvLSTM") {
        return Err(settings.wrong("data_format", "of this layer only channels_last is taken"));
    }
    // What runs along the last axis would run along another in Keras.
    let along = [Activation::Softmax, Activation::LogSoftmax, Activation::Glu, Activation::Sparsemax];
    if along.contains(&settings.activation("activation")?) {
        return Err(settings
            .wrong("activation", "with channels first it runs along another axis; put it after this layer"));
    }
    let mut last = layer.clone();
    last.config.insert("data_format".into(), json!("channels_last"));
    let inner = super::make(&last, place)?;
    let (weights, masks, kwargs, body) = (inner.weights, inner.masks, inner.kwargs, inner.body);
    let mut made = Made::with(weights, move |cx, args| {
        let outputs = body(cx, &args.map(&to_last)?)?;
        outputs.iter().map(to_first).collect()
    });
    (made.masks, made.kwargs, made.activity) = (masks, kwargs, inner.activity);
    Ok(made)
}

fn to_last(x: &Tensor) -> RunResult<Tensor> {
    let rank = x.shape().rank();
    if rank < 3 {
        return Ok(x.clone());
    }
    let order: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    x.transpose(&order)
}

fn to_first(y: &Tensor) -> RunResult<Tensor> {
    let rank = y.shape().rank();
    if rank < 3 {
        return Ok(y.clone());
    }
    let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    y.transpose(&order)
}
