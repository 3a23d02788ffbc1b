//! Turns a folder into a model with its weights: which tensor each parameter is, and what a folder holds that nobody asked for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use plimsoll_nn::Param;

use crate::base;
use crate::config::{Config, EncoderConfig};
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

/// A Hugging Face folder with the weights of a decoder, or of an encoder. None of them is in memory.
#[derive(Debug)]
pub struct Folder<C = Config> {
    /// Where it is.
    pub path: PathBuf,
    /// What its model is.
    pub config: C,
    /// Its tensors.
    pub weights: Weights,
}

/// What a model's config says of the tensors of its files.
pub trait Described {
    /// Other names that a tensor may have.
    fn other_names(&self, tensor: &str) -> Vec<String>;
    /// Whether a tensor of a file is no weight, or the copy of one.
    fn is_no_weight(&self, tensor: &str) -> bool;
    /// Whether a tensor belongs to a head: of the files', where the model has another; of the model's, where the files have none.
    fn is_of_head(&self, _tensor: &str) -> bool {
        false
    }
    /// Whether files keep the weights of linear layers the other way round, a row an input.
    fn is_turned(&self) -> bool {
        false
    }
    /// Whether a head may begin anew, and where the files' has other shapes.
    fn has_new_head(&self) -> (bool, bool) {
        (false, false)
    }
}

impl Described for Config {
    fn is_turned(&self) -> bool {
        self.family == crate::Family::Gpt2
    }

    fn other_names(&self, tensor: &str) -> Vec<String> {
        // The first files of GPT-2 leave the model's own name out.
        tensor.split_once('.').map(|(_, rest)| rest.to_string()).into_iter().collect()
    }

    fn is_no_weight(&self, tensor: &str) -> bool {
        // A copy of the table, which transformers does not read either.
        NO_WEIGHTS.iter().any(|pattern| fits(pattern, tensor)) || (self.is_tied && tensor == "lm_head.weight")
    }
}

/// Copies of encoders' tables in heads, and numbers that are no weights.
const COPIES: &[&str] = &[
    "*embeddings.position_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
    "vocab_projector.weight",
];

impl Described for EncoderConfig {
    fn other_names(&self, tensor: &str) -> Vec<String> {
        let prefix = format!("{}.", self.family.root());
        // Models without a head are saved without their name; the first files of BERT name the parts of norms otherwise.
        let short = tensor.strip_prefix(&prefix).map(String::from);
        let old = ["weight", "bias"].into_iter().zip(["gamma", "beta"]).find_map(|(new, old)| {
            tensor.strip_suffix(&format!("LayerNorm.{new}")).map(|rest| format!("{rest}LayerNorm.{old}"))
        });
        [short, old].into_iter().flatten().collect()
    }

    fn is_no_weight(&self, tensor: &str) -> bool {
        COPIES.iter().any(|pattern| fits(pattern, tensor))
    }

    fn is_of_head(&self, tensor: &str) -> bool {
        let root = self.family.root();
        let heads =
            ["cls.", "lm_head.", "vocab_", "classifier.", "pre_classifier.", "qa_outputs.", "pooler."];
        heads.iter().any(|head| tensor.starts_with(head)) || tensor.starts_with(&format!("{root}.pooler."))
    }

    fn has_new_head(&self) -> (bool, bool) {
        (self.stored_task != Some(self.task), self.has_new_labels)
    }
}

/// What of a model and of its files did not meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Parameters of a head that no file holds: they begin anew.
    pub anew: Vec<String>,
    /// Tensors of another head, which nobody reads.
    pub unread: Vec<String>,
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
        // What is stored counts, whatever a config says.
        decoder.kept = self.weights.widest().unwrap_or(decoder.kept);
        decoder
    }

    /// What stands before the names of a model's own tensors, where files do not leave it out.
    pub(crate) fn prefix(&self) -> &'static str {
        if self.config.family == crate::Family::Gpt2 { "transformer." } else { "model." }
    }
}

impl Folder<EncoderConfig> {
    /// The folder of an encoder's config, with the headers of its files of weights.
    pub fn of_encoder(path: impl AsRef<Path>, config: EncoderConfig) -> Result<Folder<EncoderConfig>> {
        let path = path.as_ref();
        Ok(Folder { path: path.into(), config, weights: Weights::open(path)? })
    }
}

impl<C: Described> Folder<C> {
    /// The tensor that a parameter is, under the name that the files have; none where it is an adapter's or begins anew.
    pub(crate) fn tensor_of(&self, param: &Param) -> Result<Option<String>> {
        let whole = base::whole_of(&param.name).unwrap_or(&param.name);
        let Some(name) = Decoder::tensor_name(whole) else { return Ok(None) };
        let others = self.config.other_names(&name);
        let found = std::iter::once(&name).chain(&others).find(|name| self.weights.find(name).is_some());
        let (may_miss, may_differ) = self.config.has_new_head();
        let is_head = self.config.is_of_head(&name);
        match found.and_then(|found| Some((found, self.weights.find(found)?.1))) {
            Some((_, tensor)) if is_head && may_differ && tensor.shape[..] != param.ty.shape[..] => Ok(None),
            Some((found, _)) => Ok(Some(found.clone())),
            None if is_head && may_miss => Ok(None),
            None => Err(Error::file(&self.path, format!("no file of weights holds the tensor {name:?}"))),
        }
    }

    /// As [`Folder::load_in_pieces`], each parameter whole.
    pub fn load(
        &mut self,
        params: &[Param],
        mut give: impl FnMut(&Param, &[u8]) -> Result<()>,
    ) -> Result<Unmatched> {
        let mut all = Vec::new();
        self.load_in_pieces(params, |param, at, bytes| {
            if at == 0 {
                all.clear();
            }
            all.extend_from_slice(bytes);
            if all.len() == param.ty.bytes() { give(param, &all) } else { Ok(()) }
        })
    }

    /// Gives every parameter that a file holds its values, one after another in the order of the files' bytes; adapters are left out. Each
    /// comes in pieces: where one begins, and its bytes. Says what begins anew, and what nobody reads.
    ///
    /// # Errors
    /// A parameter has no tensor, or one of another shape; a tensor belongs to no parameter; a file is damaged. The first two are
    /// found before anything is given.
    pub fn load_in_pieces(
        &mut self,
        params: &[Param],
        mut give: impl FnMut(&Param, usize, &[u8]) -> Result<()>,
    ) -> Result<Unmatched> {
        let (mut all, mut unmatched) = (Vec::new(), Unmatched::default());
        for param in params {
            match self.tensor_of(param)? {
                Some(name) => all.push((name, param)),
                None if Decoder::tensor_name(&param.name).is_some() => {
                    unmatched.anew.push(param.name.clone())
                }
                None => {}
            }
        }
        let known: BTreeSet<String> = all.iter().map(|(name, _)| name.clone()).collect();
        let is_unread = |name: &&str| !known.contains(*name) && !self.config.is_no_weight(name);
        let (heads, strange): (Vec<&str>, Vec<&str>) =
            self.weights.names().filter(is_unread).partition(|name| self.config.is_of_head(name));
        unmatched.unread = heads.into_iter().map(String::from).collect();
        if let Some(name) = strange.first() {
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
        let is_turned = self.config.is_turned();
        for (name, param) in all {
            if let Some(whole) = base::whole_of(&param.name) {
                for (part, bytes) in base::packed(&mut self.weights, &name, whole, params, is_turned)? {
                    give(part, 0, &bytes)?;
                }
                continue;
            }
            self.weights.read_in_pieces(&name, &param.ty, |at, bytes| give(param, at, bytes))?;
        }
        self.weights.release();
        Ok(unmatched)
    }
}
