//! Turns a folder into a model with its weights: which tensor each parameter is, and what a folder holds that nobody asked for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use plimsoll_nn::Param;

use crate::base;
use crate::config::Config;
use crate::decoder::Decoder;
use crate::error::{Error, Result};
use crate::tuning::{Tuning, fits};
use crate::weights::Weights;

/// Tensors of files that are no weights: tables that older versions of transformers saved.
const NO_WEIGHTS: &[&str] = &[
    "*.rotary_emb.inv_freq",
    "h.*.attn.bias",
    "*.h.*.attn.bias",
    "h.*.attn.masked_bias",
    "*.h.*.attn.masked_bias",
];

/// A Hugging Face folder with a model's weights. None of them is in memory.
#[derive(Debug)]
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    /// What its model is.
    pub config: Config,
    /// Its tensors.
    pub weights: Weights,
}

impl Folder {
    /// Reads a folder's config and the headers of its files of weights.
    pub fn open(path: impl AsRef<Path>) -> Result<Folder> {
        let path = path.as_ref();
        let config = Config::open(path)?;
        Ok(Folder { path: path.into(), config, weights: Weights::open(path)? })
    }

    /// The model. Weights that are not trained are kept as the files have them.
    pub fn decoder(&self, tuning: Tuning) -> Decoder {
        let mut decoder = Decoder::new(self.config.clone(), tuning);
        let widest = self.weights.names().filter_map(|name| self.weights.find(name)?.1.element.dtype());
        // What is stored counts, whatever a config says; f32 among 16-bit weights is kept exactly.
        if let Some(dtype) = widest.filter(|dtype| dtype.is_float()).max_by_key(|dtype| dtype.bytes()) {
            decoder.kept = dtype;
        }
        decoder
    }

    /// What stands before the names of a model's own tensors, where files do not leave it out.
    pub(crate) fn prefix(&self) -> &'static str {
        if self.config.family == crate::Family::Gpt2 { "transformer." } else { "model." }
    }

    /// The tensor that a parameter is, under the name that the files have.
    fn tensor_of(&self, param: &Param) -> Result<Option<String>> {
        let whole = base::whole_of(&param.name).unwrap_or(&param.name);
        let Some(name) = Decoder::tensor_name(whole) else { return Ok(None) };
        // The first files of GPT-2 leave the model's own name out.
        let short = name.split_once('.').map(|(_, rest)| rest.to_string());
        let found =
            [Some(name.clone()), short].into_iter().flatten().find(|name| self.weights.find(name).is_some());
        match found {
            Some(found) => Ok(Some(found)),
            None => Err(Error::file(&self.path, format!("no file of weights holds the tensor {name:?}"))),
        }
    }

    /// Gives every parameter that a file holds its values, one after another in the order of the files' bytes; adapters are left out.
    ///
    /// # Errors
    /// A parameter has no tensor, or one of another shape; a tensor belongs to no parameter; a file is damaged. The first two are
    /// found before anything is given.
    pub fn load(
        &mut self,
        params: &[Param],
        mut give: impl FnMut(&Param, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut all = Vec::new();
        for param in params {
            if let Some(name) = self.tensor_of(param)? {
                all.push((name, param));
            }
        }
        let known: BTreeSet<String> = all.iter().map(|(name, _)| name.clone()).collect();
        let is_tied = self.config.is_tied;
        let is_known = |name: &str| {
            known.contains(name)
                || NO_WEIGHTS.iter().any(|pattern| fits(pattern, name))
                // A copy of the table, which transformers does not read either.
                || (is_tied && name == "lm_head.weight")
        };
        if let Some(name) = self.weights.names().find(|name| !is_known(name)) {
            let file = self.weights.find(name).map_or(self.path.clone(), |(path, _)| path.to_path_buf());
            return Err(Error::file(
                &file,
                format!("the tensor {name:?} is no weight of the model that the config describes"),
            ));
        }
        // The parts of a weight are made of one tensor, at once.
        all.retain(|(_, param)| base::whole_of(&param.name).is_none() || param.name.ends_with("/codes"));
        for (name, param) in all.iter().filter(|(_, param)| base::whole_of(&param.name).is_none()) {
            self.weights.check(name, &param.ty)?;
        }
        all.sort_by_key(|(name, _)| self.weights.place(name));
        for (name, param) in all {
            if let Some(whole) = base::whole_of(&param.name) {
                for (part, bytes) in base::packed(&mut self.weights, &name, whole, params)? {
                    give(part, &bytes)?;
                }
                continue;
            }
            let bytes = self.weights.read(&name, &param.ty)?;
            give(param, &bytes)?;
        }
        Ok(())
    }
}
