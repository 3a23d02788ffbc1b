//! Turns a model of the zoo into a list of its layers with shapes, parameters and bytes, as a Keras file's are listed.

use plimsoll::keras::{Amounts, CompiledInfo, Inspection, LayerInfo, ModelInfo, VariableInfo};
use plimsoll::nn::{Description, LayerCall, Param};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;
use crate::setup::Setup;

/// The model of a setup, layer by layer, for one sample.
pub fn inspect(config: &Config, setup: &Setup) -> Result<Inspection, Failure> {
    let model_setup = &setup.model_setup;
    let input = setup.form.input()?;
    let shape: Vec<usize> = std::iter::once(1).chain(input.shape.iter().copied()).collect();
    let inputs = [Type::new(input.dtype, &shape[..])];
    let found = Description::new(&inputs, &model_setup.model)?;
    let params = Net::discover_in(model_setup.precision, &inputs, &model_setup.model)?;
    let optimizer = model_setup.optimizer(config)?;
    let (mut elements, mut bytes) = (Amounts::default(), Amounts::default());
    for param in &params {
        let (trained, statistics) = (&mut elements.trained, &mut elements.statistics);
        *(if param.trained { trained } else { statistics }) += param.ty.elements() as u64;
        let (trained, statistics) = (&mut bytes.trained, &mut bytes.statistics);
        *(if param.trained { trained } else { statistics }) += param.ty.bytes() as u64;
        for slot in optimizer.slots(param).iter().filter(|_| param.trained) {
            elements.optimizer += slot.ty.elements() as u64;
            bytes.optimizer += slot.ty.bytes() as u64;
        }
    }
    let outputs = found.graph.outputs().iter().map(|&id| found.graph.ty(id).to_string()).collect();
    Ok(Inspection {
        kind: "zoo",
        keras_version: String::new(),
        model: ModelInfo {
            name: model_setup.name.clone(),
            class: String::new(),
            inputs: inputs.iter().map(Type::to_string).collect(),
            outputs,
            problem: None,
        },
        layers: layers(&found, &params),
        elements,
        bytes,
        compiled: CompiledInfo {
            optimizer: Some(optimizer.name().into()),
            learning_rate: Some(optimizer.rate()),
        },
    })
}

/// The layers in the order in which they are done, each with its own parameters; those of no layer stand by themselves.
fn layers(found: &Description, params: &[Param]) -> Vec<LayerInfo> {
    let is_of = |param: &Param, call: &LayerCall| {
        param.name.strip_prefix(call.path.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    // A layer inside of another comes before it, and has its parameters.
    let owner = |param: &Param| found.calls.iter().position(|call| is_of(param, call));
    let of = |call: Option<usize>| params.iter().filter(move |param| owner(param) == call);
    let layer = |(i, call): (usize, &LayerCall)| {
        let class = format!("{:?}", call.kind);
        let class = class.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        info(&call.path, class, Some(found.graph.ty(call.output)), of(Some(i)))
    };
    let alone = of(None).map(|param| info(&param.name, "Parameter", None, std::iter::once(param)));
    found.calls.iter().enumerate().map(layer).chain(alone).collect()
}

fn info<'a>(
    place: &str,
    class: &str,
    output: Option<&Type>,
    params: impl Iterator<Item = &'a Param>,
) -> LayerInfo {
    let mut layer = LayerInfo {
        place: place.into(),
        class: class.into(),
        outputs: output.iter().map(|ty| ty.shape.to_vec()).collect(),
        trainable: true,
        dtype: None,
        elements: 0,
        bytes: 0,
        variables: Vec::new(),
    };
    for param in params {
        layer.elements += param.ty.elements() as u64;
        layer.bytes += param.ty.bytes() as u64;
        layer.variables.push(VariableInfo {
            name: Some(param.name.clone()),
            path: param.name.clone(),
            shape: param.ty.shape.to_vec(),
            element: param.ty.dtype.name(),
        });
    }
    layer
}
