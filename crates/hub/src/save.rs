//! Turns weights that were trained, or a folder and its adapters, into a Hugging Face folder.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use plimsoll_formats::Element;
use plimsoll_formats::durable;
use plimsoll_formats::safetensors::{Spec, Writer};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::Param;
use plimsoll_run::Tensor;
use serde_json::json;

use crate::adapter::{Adapter, floats};
use crate::config::{EncoderConfig, Family, LARGEST_CONFIG, read_json};
use crate::error::{Error, Result};
use crate::folder::Folder;

/// Bytes of a file of weights, about; more go into several.
const SHARD: u64 = 5_000_000_000;
/// What a folder has beside its weights that belongs to the model.
const BESIDE: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "vocab.txt",
    "preprocessor_config.json",
];

/// One tensor to write: its name, and how it is stored.
struct Tensors {
    /// Of each file, in order.
    shards: Vec<Vec<Spec>>,
}

impl Tensors {
    fn new(specs: Vec<Spec>, most: u64) -> Tensors {
        let (mut shards, mut bytes) = (vec![Vec::new()], 0u64);
        for spec in specs {
            let own = spec.element.bytes_of(&spec.shape).unwrap_or(0) as u64;
            if bytes > 0 && bytes + own > most {
                shards.push(Vec::new());
                bytes = 0;
            }
            bytes += own;
            if let Some(last) = shards.last_mut() {
                last.push(spec);
            }
        }
        Tensors { shards }
    }

    /// Writes all files, each tensor's bytes as `bytes` gives them; with an index where there are several.
    fn write(&self, folder: &Path, mut bytes: impl FnMut(&str) -> Result<Vec<u8>>) -> Result<()> {
        let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        let n = self.shards.len();
        let (mut map, mut total) = (BTreeMap::new(), 0);
        for (i, specs) in self.shards.iter().enumerate() {
            let name = match n {
                1 => "model.safetensors".to_string(),
                _ => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
            };
            let path = folder.join(&name);
            for spec in specs {
                map.insert(spec.name.clone(), name.clone());
                total += spec.element.bytes_of(&spec.shape).unwrap_or(0) as u64;
            }
            durable::write_file(&path, |out| -> Result<(), Error> {
                let mut writer = Writer::new(out, specs.clone(), &metadata).map_err(Error::tensors(&path))?;
                while let Some(next) = writer.next_tensor() {
                    let bytes = bytes(&next.name.clone())?;
                    writer.write(&bytes).map_err(Error::tensors(&path))?;
                }
                writer.finish().map(drop).map_err(Error::tensors(&path))
            })
            .map_err(|error| error.at(&path))?;
        }
        if n > 1 {
            let path = folder.join("model.safetensors.index.json");
            let index = json!({"metadata": {"total_size": total}, "weight_map": map});
            let text = serde_json::to_vec_pretty(&index).map_err(|e| Error::Asked(e.to_string()))?;
            durable::write_file(&path, |out| std::io::Write::write_all(out, &text))
                .map_err(Error::io(&path))?;
        }
        Ok(())
    }
}

/// Copies what belongs to a model beside its weights, where it is there.
fn copy_beside(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).map_err(Error::io(to))?;
    for name in BESIDE {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_file() {
            std::fs::copy(&from, &to).map_err(Error::io(&to))?;
        }
    }
    Ok(())
}

fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Writes a folder with the weights of another and what adapters add to them, in the type in which those are stored. One tensor
/// is in memory at a time.
pub fn merge(folder: &mut Folder, adapter: &mut Adapter, out: &Path) -> Result<()> {
    if is_same(&folder.path, out) {
        return Err(Error::Asked(format!("{} is the folder that is read; name another", out.display())));
    }
    let is_turned = folder.config.family == Family::Gpt2;
    let prefix = folder.prefix();
    let mut used = 0;
    let specs: Vec<Spec> = folder
        .weights
        .names()
        .filter_map(|name| folder.weights.find(name).map(|(_, tensor)| tensor))
        .map(|t| Spec { name: t.name.clone(), element: t.element, shape: t.shape.clone() })
        .collect();
    copy_beside(&folder.path, out)?;
    let weights = &mut folder.weights;
    Tensors::new(specs, SHARD).write(out, |name| {
        let Some((path, tensor)) = weights.find(name) else { return Ok(Vec::new()) };
        let (element, shape, path) = (tensor.element, tensor.shape.clone(), path.to_path_buf());
        let Some(dtype) = element.dtype() else {
            return Err(Error::file(&path, format!("tensor {name:?}: {} is not known", element.name())));
        };
        let full = if name.starts_with(prefix) { name.to_string() } else { format!("{prefix}{name}") };
        let delta = match full.strip_suffix(".weight") {
            Some(layer) => adapter.delta(layer, is_turned)?,
            None => None,
        };
        let ty = Type::new(dtype, &shape[..]);
        let Some(delta) = delta else { return weights.read(name, &ty) };
        if delta.shape()[..] != shape[..] {
            let why = format!("tensor {name:?} is {shape:?}, and its adapter is for {:?}", delta.shape());
            return Err(Error::file(&path, why));
        }
        used += delta.tensors();
        let wide = weights.read(name, &ty.with_dtype(DType::F32))?;
        let mut numbers = floats(&wide);
        drop(wide);
        delta.apply(&mut numbers);
        narrowed(&numbers, element)
            .ok_or_else(|| Error::file(&path, format!("tensor {name:?} holds no floats")))
    })?;
    let there = adapter.weights.names().count();
    match used == there {
        true => Ok(()),
        false => {
            let why = format!("of its {there} tensors {used} belong to layers of {}", folder.path.display());
            Err(Error::file(&adapter.path, why))
        }
    }
}

/// Numbers as a file stores them.
fn narrowed(numbers: &[f32], element: Element) -> Option<Vec<u8>> {
    Some(match element {
        Element::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Element::BF16 => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        Element::F16 => numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => return None,
    })
}

/// Writes a model whose weights were all trained as a folder like the one it came from, in the type in which that stores them.
pub fn save_model<'a, C>(
    folder: &Folder<C>,
    out: &Path,
    values: impl IntoIterator<Item = (&'a Param, &'a Tensor)>,
) -> Result<()> {
    if is_same(&folder.path, out) {
        return Err(Error::Asked(format!("{} is the folder that was read; name another", out.display())));
    }
    let stored = folder.weights.widest().unwrap_or(DType::F32);
    let own: BTreeMap<String, &Tensor> = values
        .into_iter()
        .filter_map(|(param, value)| Some((crate::Decoder::tensor_name(&param.name)?, value)))
        .collect();
    let spec = |(name, value): (&String, &&Tensor)| Spec {
        name: name.clone(),
        element: Element::from(stored),
        shape: value.shape()[..].to_vec(),
    };
    copy_beside(&folder.path, out)?;
    Tensors::new(own.iter().map(spec).collect(), SHARD).write(out, |name| {
        let bytes = own[name].to_bytes()?;
        if own[name].dtype() == stored && cfg!(target_endian = "little") {
            return Ok(bytes);
        }
        let numbers: Vec<f32> = match own[name].dtype() {
            DType::F32 => bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
            DType::F64 => bytes.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x) as f32).collect(),
            DType::BF16 => {
                bytes.as_chunks::<2>().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()).collect()
            }
            other => return Err(Error::Asked(format!("weights of {other} are not written"))),
        };
        drop(bytes);
        narrowed(&numbers, Element::from(stored))
            .ok_or_else(|| Error::Asked(format!("weights as {stored} are not written")))
    })
}

/// Writes an encoder as a folder: its weights, and a config that names its task and its labels.
pub fn save_encoder<'a>(
    folder: &Folder<EncoderConfig>,
    out: &Path,
    values: impl IntoIterator<Item = (&'a Param, &'a Tensor)>,
) -> Result<()> {
    save_model(folder, out, values)?;
    let path = out.join("config.json");
    let mut config = read_json(&path, LARGEST_CONFIG)?;
    let numbers = || folder.config.labels.iter().enumerate();
    config["architectures"] = json!([folder.config.class()]);
    if folder.config.has_new_labels {
        config["id2label"] = numbers().map(|(i, label)| (i.to_string(), json!(label))).collect();
        config["label2id"] = numbers().map(|(i, label)| (label.clone(), json!(i))).collect();
    }
    let text = serde_json::to_vec_pretty(&config).map_err(|e| Error::Asked(e.to_string()))?;
    durable::write_file(&path, |out| std::io::Write::write_all(out, &text)).map_err(Error::io(&path))
}
