//! A weight or a constant by itself, as a tensor: what a layer of the user's own reads once it was followed into the operations that it calls.
//!
//! `python/plimsoll/_traced.py` writes them; Keras has no such layers.

use plimsoll_formats::keras::Layer;
use plimsoll_graph::{Shape, TensorOps};
use plimsoll_nn::Init;

use super::{statistic, trained};
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::settings::Settings;

const CONSTANT: &str = "PlimsollConstant";

/// Whether a layer is one of these, by its class and the module that it is from.
pub(super) fn is_weight(layer: &Layer) -> bool {
    ["PlimsollWeight", CONSTANT].contains(&layer.class_name.as_str())
        && layer.module.as_deref() == Some("plimsoll")
}

pub(super) fn make(s: &Settings<'_>) -> Result<Made> {
    if s.class == CONSTANT {
        return Ok(Made::with(Vec::new(), |_, args| {
            let value = args.tensor(1, "value")?;
            Ok(vec![value.ok_or_else(|| refuse("has a constant without a value"))?.clone()])
        })
        .kwargs(&["value"]));
    }
    let size = |n: i64| usize::try_from(n).map_err(|_| s.wrong("shape", "it has a size below 0"));
    let shape: Shape = s.integers("shape")?.into_iter().map(size).collect::<Result<_>>()?;
    let is_kept = s.flag("kept", false)?;
    let weight = match is_kept {
        true => statistic("value"),
        false => trained(s, "value", "value_regularizer")?,
    };
    // What it is called on only says where in the model it stands.
    Ok(Made::with(vec![weight], move |cx, _| {
        let zeros = Init::Constant(0.0);
        let value = match is_kept {
            true => cx.state("value", shape.clone(), zeros)?,
            false => cx.master("value", shape.clone(), zeros)?,
        };
        Ok(vec![value.cast(cx.dtype())?])
    }))
}
