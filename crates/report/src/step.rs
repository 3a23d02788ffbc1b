//! One step, instruction by instruction: who holds which bytes of the arena, from when to when.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The record of a step (`step.json`). Layers, names and sites are numbers: places in `names` and `sites`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// The line, if there is one.
    pub line_bytes: Option<u64>,
    /// What the whole process will take.
    pub planned_bytes: u64,
    /// The program's own pages.
    pub program_bytes: u64,
    /// Input pipelines.
    pub pipeline_bytes: u64,
    /// Tensors that are neither of the step's state nor staged.
    pub other_bytes: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// What is planned and held by nothing: with it, all of the above and the residents add up to what is planned.
    pub unused_bytes: u64,
    /// Names of layers and tensors.
    pub names: Vec<String>,
    /// Source lines.
    pub sites: Vec<String>,
    /// What is there all the step long.
    pub residents: Vec<Resident>,
    /// The programs that the step consists of, in a row.
    pub stretches: Vec<Stretch>,
    /// Everything that is done.
    pub instructions: Vec<Instruction>,
    /// Everything that lies in the arena.
    pub tensors: Vec<Tensor>,
}

/// A tensor that is there all the step long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resident {
    /// What it is called.
    pub name: u32,
    /// parameter, optimizer, gradient, input or other.
    pub kind: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its element type.
    pub dtype: String,
    /// Its bytes.
    pub bytes: u64,
    /// The source line of its layer.
    pub site: Option<u32>,
}

/// A program of the step: all of it, or where the batch is split, a pass or the update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// step, pass or update.
    pub name: String,
    /// Its first instruction.
    pub first: u32,
    /// Samples it is run on.
    pub samples: u64,
    /// How often it is run.
    pub runs: u64,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instruction {
    /// The op.
    pub op: String,
    /// The layer that asked for it.
    pub layer: u32,
    /// The source line that did.
    pub site: Option<u32>,
    /// Predicted microseconds.
    pub us: f64,
    /// run, again, copy or check.
    pub what: String,
    /// forward, backward or update.
    pub phase: String,
}

/// A tensor's stay in the arena.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// What it is called.
    pub name: u32,
    /// The layer that made it.
    pub layer: u32,
    /// activation, gradient, optimizer, scratch or other.
    pub kind: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its element type.
    pub dtype: String,
    /// Its bytes, rounded up to the alignment of the arena.
    pub bytes: u64,
    /// Where it lies.
    pub offset: u64,
    /// The instruction that makes it.
    pub from: u32,
    /// The first instruction that it need not be there for.
    pub to: u32,
    /// Whether it is made again.
    pub again: bool,
    /// The source line that made it.
    pub site: Option<u32>,
}

impl Step {
    /// Refuses a record whose numbers point nowhere, so that nothing behind here must look again.
    pub(crate) fn check(&self, file: &str) -> Result<()> {
        let broken = |why: String| Err(Error::Broken { file: file.into(), why });
        let (names, sites) = (self.names.len() as u64, self.sites.len() as u64);
        let n = self.instructions.len() as u64;
        let named = |name: u32, site: Option<u32>| {
            u64::from(name) < names && site.is_none_or(|site| u64::from(site) < sites)
        };
        if let Some(i) = self.instructions.iter().position(|i| !named(i.layer, i.site) || !i.us.is_finite()) {
            return broken(format!("instruction {i} has a layer, source line or time that is none"));
        }
        let stray = |t: &Tensor| !named(t.name, t.site) || u64::from(t.layer) >= names;
        if let Some(i) = self.tensors.iter().position(stray) {
            return broken(format!("tensor {i} has a name, layer or source line that is none"));
        }
        let out =
            |t: &Tensor| t.from >= t.to || u64::from(t.to) > n || t.offset.checked_add(t.bytes).is_none();
        if let Some(i) = self.tensors.iter().position(out) {
            return broken(format!(
                "tensor {i} is not there from one of the {n} instructions to a later one"
            ));
        }
        if let Some(i) = self.residents.iter().position(|r| !named(r.name, r.site)) {
            return broken(format!("resident {i} has a name or source line that is none"));
        }
        if self.stretches.iter().any(|s| u64::from(s.first) > n) {
            return broken("a stretch begins behind the last instruction".into());
        }
        Ok(())
    }

    /// Bytes of the arena that are held during each instruction, by kind, in the order of `kinds`.
    pub fn held(&self, kinds: &[&str]) -> Vec<Vec<u64>> {
        let of_kind = |kind: &&str| {
            let mut change = vec![0i128; self.instructions.len() + 1];
            for tensor in self.tensors.iter().filter(|tensor| tensor.kind == *kind) {
                change[tensor.from as usize] += i128::from(tensor.bytes);
                change[tensor.to as usize] -= i128::from(tensor.bytes);
            }
            let mut held = 0;
            let sum = |change: &i128| {
                held += change;
                u64::try_from(held).unwrap_or(u64::MAX)
            };
            change[..self.instructions.len()].iter().map(sum).collect()
        };
        kinds.iter().map(of_kind).collect()
    }

    /// The instruction during which most is held in the arena, and how much.
    pub fn peak(&self) -> (usize, u64) {
        let mut totals = vec![0u64; self.instructions.len()];
        for held in self.held(KINDS) {
            totals.iter_mut().zip(held).for_each(|(total, held)| *total = total.saturating_add(held));
        }
        let most = totals.iter().copied().max().unwrap_or(0);
        (totals.iter().position(|total| *total == most).unwrap_or(0), most)
    }
}

/// The kinds of what lies in an arena, in the order in which pictures stack them.
pub(crate) const KINDS: &[&str] = &["activation", "gradient", "optimizer", "scratch", "other"];
