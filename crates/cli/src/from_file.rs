//! `--from`: the weights of a safetensors file as the beginning of a training, as far as names and shapes are the model's.

use std::collections::BTreeSet;
use std::path::PathBuf;

use plimsoll::hub::Weights;
use plimsoll::internals::graph::counted;
use plimsoll::nn::Param;
use plimsoll::prelude::*;
use serde_json::json;

use crate::Failure;
use crate::config::Config;
use crate::session::Session;

/// Names of a kind that are shown at most; `--json` has all.
const SHOWN: usize = 8;

/// A file of weights beside the parameters that it has values for.
pub struct FromFile {
    path: PathBuf,
    weights: Weights,
    /// Parameters with the tensors that they begin with.
    matched: Vec<(Param, String)>,
    /// Parameters of which the file has nothing.
    missing: Vec<String>,
    /// Parameters whose tensor has another shape, in words.
    other_shape: Vec<String>,
    /// Tensors that no parameter is called.
    unused: Vec<String>,
}

impl FromFile {
    /// The file that settings name, held against the parameters of a trainer that is compiled.
    ///
    /// # Errors
    /// The file is damaged, or has no weight of the model.
    pub fn of(config: &Config, trainer: &Trainer) -> Result<Option<FromFile>, Failure> {
        let (Some(path), Some(training)) = (&config.from, trainer.training()) else { return Ok(None) };
        let path = PathBuf::from(path);
        let weights = Weights::of(vec![path.clone()])?;
        let mut file = FromFile {
            path,
            weights,
            matched: Vec::new(),
            missing: Vec::new(),
            other_shape: Vec::new(),
            unused: Vec::new(),
        };
        let mut used = BTreeSet::new();
        for param in training.params() {
            // Other systems have a dot where we have a slash.
            let names = [param.name.clone(), param.name.replace('/', ".")];
            let Some(name) = names.into_iter().find(|name| file.weights.find(name).is_some()) else {
                file.missing.push(param.name.clone());
                continue;
            };
            match file.weights.check(&name, &param.ty) {
                Ok(()) => file.matched.push((param.clone(), name.clone())),
                Err(_) => {
                    let shape = file.weights.find(&name).map(|(_, tensor)| format!("{:?}", tensor.shape));
                    let shape = shape.unwrap_or_default();
                    file.other_shape.push(format!("{} is {} and {shape} in the file", param.name, param.ty));
                }
            }
            used.insert(name);
        }
        file.unused = file.weights.names().filter(|name| !used.contains(*name)).map(String::from).collect();
        if file.matched.is_empty() {
            let some: Vec<&str> = file.unused.iter().take(SHOWN).map(String::as_str).collect();
            let own: Vec<&str> = training.params().iter().take(SHOWN).map(|p| p.name.as_str()).collect();
            let why = format!(
                "--from {}: none of its tensors ({} …) is a weight of the model ({} …) by name and shape",
                file.path.display(),
                some.join(", "),
                own.join(", ")
            );
            return Err(Failure(why));
        }
        Ok(Some(file))
    }

    /// Gives the parameters their values.
    pub fn load(mut self, trainer: &mut Trainer) -> Result<FromFile, Failure> {
        if let Some(training) = trainer.training_mut() {
            for (param, name) in &self.matched {
                let bytes = self.weights.read(name, &param.ty)?;
                training.restore_whole(&param.name, &bytes)?;
            }
        }
        Ok(self)
    }

    /// Says what matched and what did not.
    pub fn say(&self, session: &Session) {
        if session.json {
            let matched: Vec<&str> = self.matched.iter().map(|(param, _)| param.name.as_str()).collect();
            say!(
                "{}",
                json!({ "event": "from", "file": self.path, "matched": matched, "missing": self.missing,
                    "other_shape": self.other_shape, "unused": self.unused })
            );
        }
        if session.is_text() {
            let all = self.matched.len() + self.missing.len() + self.other_shape.len();
            say!(
                "{} of {} begin as in {}",
                self.matched.len(),
                counted(all as u64, "weight"),
                self.path.display()
            );
            listed("not in the file", &self.missing);
            listed("of another shape", &self.other_shape);
            listed("in the file and not in the model", &self.unused);
        }
    }
}

/// Says some names of a kind, where there are some.
pub fn listed(what: &str, names: &[String]) {
    if names.is_empty() {
        return;
    }
    let some: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    say!("{what}: {}{more}", some.join(", "));
}
