//! Turns an adapter folder of PEFT into adapters with their weights, and adapters that were trained into such a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use plimsoll_formats::Element;
use plimsoll_formats::durable;
use plimsoll_formats::safetensors::{Spec, Writer};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::Param;
use plimsoll_run::Tensor;
use serde_json::{Value, json};

use crate::config::{Family, read_json};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::magnitudes::{MAGNITUDE, norms};
use crate::tuning::{Lora, Targets};
use crate::weights::Weights;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// What PEFT writes before the name of every layer.
const PREFIX: &str = "base_model.model.";
const LARGEST: u64 = 16 << 20;

/// Fields of `adapter_config.json` that change nothing of what adapters compute.
const WITHOUT_EFFECT: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// An adapter folder. No weight is in memory.
#[derive(Debug)]
pub struct Adapter {
    /// Where it is.
    pub path: PathBuf,
    /// What its adapters are.
    pub lora: Lora,
    /// Their tensors.
    pub weights: Weights,
}

impl Adapter {
    /// Reads a folder's config and the header of its weights.
    pub fn open(path: impl AsRef<Path>) -> Result<Adapter> {
        let path = path.as_ref();
        let config = path.join(CONFIG);
        let lora = read_config(read_json(&config, LARGEST)?).map_err(|why| Error::file(&config, why))?;
        let weights = Weights::of(vec![path.join(TENSORS)])?;
        Ok(Adapter { path: path.into(), lora, weights })
    }

    /// Gives every adapter among a model's parameters its values.
    ///
    /// # Errors
    /// An adapter has no tensor or one of another shape, a tensor belongs to no adapter, or the file is damaged.
    pub fn load(
        &mut self,
        params: &[Param],
        mut give: impl FnMut(&Param, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let own: Vec<(String, &Param)> = params
            .iter()
            .filter(|param| is_adapter(&param.name))
            .map(|p| (tensor_name(&p.name), p))
            .collect();
        let known: BTreeSet<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(other) = self.weights.names().find(|name| !known.contains(name)) {
            let why = format!("the tensor {other:?} is no adapter of this model");
            return Err(Error::file(&self.path.join(TENSORS), why));
        }
        for (name, param) in own {
            let bytes = self.weights.read(&name, &param.ty)?;
            give(param, &bytes)?;
        }
        Ok(())
    }

    /// What adapters add to the weight of a layer `[out, in]` (GPT-2's `[in, out]`), row by row; none where it has no adapter.
    pub(crate) fn delta(&mut self, layer: &str, is_turned: bool) -> Result<Option<Delta>> {
        let names = ["lora_A", "lora_B"].map(|part| format!("{PREFIX}{layer}.{part}.weight"));
        if self.weights.find(&names[0]).is_none() && self.weights.find(&names[1]).is_none() {
            return Ok(None);
        }
        let mut read = |name: &String| {
            let shape = self.weights.find(name).map(|(_, tensor)| tensor.shape.clone()).unwrap_or_default();
            let [rows, columns] = shape[..] else {
                return Err(Error::file(
                    &self.path.join(TENSORS),
                    format!("the tensor {name:?} is no matrix"),
                ));
            };
            let bytes = self.weights.read(name, &Type::new(DType::F32, [rows, columns]))?;
            Ok((floats(&bytes), rows, columns))
        };
        let (a, rank, inputs) = read(&names[0])?;
        let (b, outputs, other) = read(&names[1])?;
        if rank != other || rank != self.lora.rank {
            let why = format!(
                "the adapter of {layer} has ranks {rank} and {other}, and the config says {}",
                self.lora.rank
            );
            return Err(Error::file(&self.path, why));
        }
        let magnitudes = match self.lora.has_magnitudes {
            true => {
                let name = format!("{PREFIX}{layer}.lora_magnitude_vector");
                floats(&self.weights.read(&name, &Type::new(DType::F32, [outputs]))?)
            }
            false => Vec::new(),
        };
        let scale = self.lora.scale() as f32;
        Ok(Some(Delta { a, b, magnitudes, rank, inputs, outputs, is_turned, scale }))
    }
}

/// What the adapters of a folder belong to, as PEFT says it: of a folder that has adapters and no model. None of any other folder.
pub fn base_of_adapter(folder: &Path) -> Result<Option<String>> {
    let path = folder.join(CONFIG);
    if folder.join("config.json").is_file() || !path.is_file() {
        return Ok(None);
    }
    let value = read_json(&path, LARGEST)?;
    Ok(Some(value["base_model_name_or_path"].as_str().unwrap_or_default().to_string()))
}

/// Bytes of a file as f32.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

/// What an adapter makes of a weight: B A · scale, added row by row, then each output with its magnitude, where those are.
pub(crate) struct Delta {
    a: Vec<f32>,
    b: Vec<f32>,
    magnitudes: Vec<f32>,
    rank: usize,
    inputs: usize,
    outputs: usize,
    is_turned: bool,
    scale: f32,
}

impl Delta {
    /// The shape of the weight that it is added to.
    pub(crate) fn shape(&self) -> [usize; 2] {
        if self.is_turned { [self.inputs, self.outputs] } else { [self.outputs, self.inputs] }
    }

    /// The tensors of the file that it is made of.
    pub(crate) fn tensors(&self) -> usize {
        if self.magnitudes.is_empty() { 2 } else { 3 }
    }

    /// Changes a weight to what a layer with the adapter computes with.
    pub(crate) fn apply(&self, weight: &mut [f32]) {
        let [rows, columns] = self.shape();
        for (row, to) in weight.chunks_exact_mut(columns.max(1)).enumerate() {
            self.add_row(row, to);
        }
        if self.magnitudes.is_empty() {
            return;
        }
        let norms = norms(weight, [rows, columns], self.is_turned);
        for (i, x) in weight.iter_mut().enumerate() {
            let output = if self.is_turned { i % columns } else { i / columns };
            *x *= self.magnitudes[output] / norms[output];
        }
    }

    /// Adds one row to a row of the weight.
    fn add_row(&self, row: usize, to: &mut [f32]) {
        for r in 0..self.rank {
            if self.is_turned {
                let a = self.a[r * self.inputs + row] * self.scale;
                for (o, x) in to.iter_mut().enumerate() {
                    *x += a * self.b[o * self.rank + r];
                }
            } else {
                let b = self.b[row * self.rank + r] * self.scale;
                let a = &self.a[r * self.inputs..(r + 1) * self.inputs];
                to.iter_mut().zip(a).for_each(|(x, a)| *x += b * a);
            }
        }
    }
}

/// Whether a parameter is an adapter's.
pub(crate) fn is_adapter(name: &str) -> bool {
    ["/lora_A/weight", "/lora_B/weight", MAGNITUDE].iter().any(|end| name.ends_with(end))
}

/// PEFT's name of an adapter's tensor.
fn tensor_name(parameter: &str) -> String {
    format!("{PREFIX}{}", parameter.replace('/', "."))
}

fn read_config(value: Value) -> Result<Lora, String> {
    let mut fields = Fields::new(value, "")?;
    match fields.text("peft_type")?.as_deref() {
        Some("LORA") => {}
        other => {
            return Err(format!("peft_type {} is not known here; LORA is", other.unwrap_or("is missing")));
        }
    }
    if let Some(bias) = fields.text("bias")?.filter(|bias| bias != "none") {
        return Err(format!("it asks for bias = {bias:?}, which is not known here"));
    }
    for flag in ["lora_bias", "use_qalora"] {
        fields.must_not(flag)?;
    }
    let targets = match fields.value("target_modules") {
        Some(Value::String(text)) if text == "all-linear" => Targets::AllLinear,
        Some(Value::String(text)) => {
            return Err(format!("target_modules is the pattern {text:?}; a list of layers is known here"));
        }
        Some(Value::Array(list)) => {
            let names: Option<Vec<String>> =
                list.iter().map(|name| name.as_str().map(String::from)).collect();
            Targets::Named(names.ok_or("target_modules must be a list of names")?)
        }
        _ => return Err("target_modules is missing".into()),
    };
    let rank = fields.positive("r")?;
    let lora = Lora {
        rank,
        alpha: fields.number("lora_alpha")?.unwrap_or(8.0),
        rank_stabilised: fields.flag("use_rslora")?.unwrap_or(false),
        dropout: fields.number("lora_dropout")?.unwrap_or(0.0),
        has_magnitudes: fields.flag("use_dora")?.unwrap_or(false),
        targets,
    };
    fields.ignore(WITHOUT_EFFECT);
    fields.drop_empty();
    fields.finish()?;
    lora.check().map_err(|e| e.to_string())?;
    Ok(lora)
}

/// Writes a model's adapters as a folder that PEFT reads. `base` is what they belong to, as PEFT is to find it.
pub fn save_adapter<'a>(
    folder: &Path,
    lora: &Lora,
    family: Family,
    base: &str,
    values: impl IntoIterator<Item = (&'a Param, &'a Tensor)>,
) -> Result<()> {
    let own: BTreeMap<String, &Tensor> = values
        .into_iter()
        .filter(|(param, _)| is_adapter(&param.name))
        .map(|(param, value)| (tensor_name(&param.name), value))
        .collect();
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    let layers: BTreeSet<String> = own
        .keys()
        .filter_map(|name| Some(name[PREFIX.len()..].split_once(".lora_")?.0.to_string()))
        .collect();
    // Layers by their whole names: so that nothing else is meant.
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "bias": "none",
        "fan_in_fan_out": family == Family::Gpt2, "inference_mode": true, "r": lora.rank, "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout, "use_rslora": lora.rank_stabilised, "use_dora": lora.has_magnitudes, "modules_to_save": null,
        "target_modules": layers,
    });
    let text = serde_json::to_vec_pretty(&config).map_err(|e| Error::Asked(e.to_string()))?;
    let (path, tensors) = (folder.join(CONFIG), folder.join(TENSORS));
    durable::write_file(&path, |out| std::io::Write::write_all(out, &text)).map_err(Error::io(&path))?;
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    durable::write_file(&tensors, |out| -> Result<(), Error> {
        let spec = |(name, value): (&String, &&Tensor)| Spec {
            name: name.clone(),
            element: Element::from(value.dtype()),
            shape: value.shape()[..].to_vec(),
        };
        let mut writer =
            Writer::new(out, own.iter().map(spec).collect(), &metadata).map_err(Error::tensors(&tensors))?;
        while let Some(next) = writer.next_tensor() {
            let bytes = own[&next.name].to_bytes()?;
            writer.write(&bytes).map_err(Error::tensors(&tensors))?;
        }
        writer.finish().map(drop).map_err(Error::tensors(&tensors))
    })
    .map_err(|error| error.at(&tensors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_adapter_asks_for_and_is_not_known_is_refused_by_its_name() {
        let plain = json!({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "loftq_config": {}, "peft_version": "1"});
        assert_eq!(read_config(plain.clone()).unwrap().scale(), 2.0);
        for (name, value, word) in [
            ("peft_type", json!("IA3"), "IA3"),
            ("use_qalora", json!(true), "use_qalora"),
            ("bias", json!("all"), "bias"),
            ("rank_pattern", json!({"q": 3}), "rank_pattern"),
            ("modules_to_save", json!(["lm_head"]), "modules_to_save"),
            ("target_modules", json!(".*q"), ".*q"),
            ("r", json!(0), "r is 0"),
            ("lora_dropout", json!(1.5), "1.5"),
        ] {
            let mut other = plain.clone();
            other[name] = value;
            let why = read_config(other).unwrap_err();
            assert!(why.contains(word), "{name}: {why}");
        }
    }
}
