//! One step, instruction by instruction: who holds which bytes of the arena, from when to when.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::{Instruction, Interval, Kind, Resident, Schema};

/// The record of a step (`step.json`). Layers, names and sites are numbers: places in `names` and `sites`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// The version of the schema.
    pub schema: Schema,
    /// The memory limit, if there is one.
    #[serde(alias = "line_bytes")]
    pub memory_limit_bytes: Option<u64>,
    /// What is planned, and what it is made up of beside residents.
    #[serde(flatten)]
    pub bytes: StepBytes,
    /// Names of layers and tensors.
    pub names: Vec<String>,
    /// Source lines.
    pub sites: Vec<String>,
    /// What is there all the step long.
    pub residents: Vec<Resident>,
    /// The programs that the step consists of, in a row.
    #[serde(rename = "stretches")]
    pub sections: Vec<Section>,
    /// Everything that is done.
    pub instructions: Vec<Instruction>,
    /// Everything that lies in the arena.
    pub tensors: Vec<Interval>,
}

/// The bytes of a step: of the whole process, and by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepBytes {
    /// What the whole process will take.
    pub planned_bytes: u64,
    /// The program's own pages, as they are declared.
    pub program_bytes: u64,
    /// Input pipelines.
    pub pipeline_bytes: u64,
    /// Tensors that are neither of the step's state nor staged.
    pub other_bytes: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// What is planned and held by nothing: room that only planning needs, ends of pages. With it, program, pipelines, others,
    /// residents and arena add up to what is planned.
    pub unused_bytes: u64,
}

/// A program of the step: all of it, or where the batch is split, a pass or the update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// step, pass or update.
    pub name: Cow<'static, str>,
    /// Its first instruction.
    pub first: u32,
    /// Samples it is run on.
    pub samples: u64,
    /// How often it is run.
    pub runs: u64,
}

impl Step {
    /// Refuses a record whose numbers point nowhere, so that nothing behind here must look again.
    ///
    /// # Errors
    /// [`Error::Broken`], which names the file and what in it is wrong.
    pub fn check(&self, file: &str) -> Result<()> {
        let broken = |why: String| Err(Error::Broken { file: file.into(), why });
        let (names, sites) = (self.names.len() as u64, self.sites.len() as u64);
        let n = self.instructions.len() as u64;
        let named = |name: u32, site: Option<u32>| {
            u64::from(name) < names && site.is_none_or(|site| u64::from(site) < sites)
        };
        if let Some(i) = self.instructions.iter().position(|i| !named(i.layer, i.site) || !i.us.is_finite()) {
            return broken(format!("instruction {i} has a layer, source line or time that is none"));
        }
        let stray = |t: &Interval| !named(t.name, t.site) || u64::from(t.layer) >= names;
        if let Some(i) = self.tensors.iter().position(stray) {
            return broken(format!("tensor {i} has a name, layer or source line that is none"));
        }
        let out =
            |t: &Interval| t.from >= t.to || u64::from(t.to) > n || t.offset.checked_add(t.bytes).is_none();
        if let Some(i) = self.tensors.iter().position(out) {
            return broken(format!(
                "tensor {i} is not there from one of the {n} instructions to a later one"
            ));
        }
        if let Some(i) = self.residents.iter().position(|r| !named(r.name, r.site)) {
            return broken(format!("resident {i} has a name or source line that is none"));
        }
        if self.sections.iter().any(|s| u64::from(s.first) > n) {
            return broken("a stretch begins behind the last instruction".into());
        }
        Ok(())
    }

    /// The instructions of a section.
    pub fn section(&self, i: usize) -> Option<std::ops::Range<usize>> {
        let first = self.sections.get(i)?.first as usize;
        let end = self.sections.get(i + 1).map_or(self.instructions.len(), |next| next.first as usize);
        (first <= end).then_some(first..end)
    }

    /// Bytes of the arena that tensors of a kind hold during each instruction.
    pub fn held(&self, kind: Kind) -> Vec<u64> {
        self.profile(|tensor| tensor.kind == kind)
    }

    /// The first instruction during which most is held in the arena, and how much.
    pub fn peak(&self) -> (usize, u64) {
        let totals = self.profile(|_| true);
        let most = totals.iter().copied().max().unwrap_or(0);
        (totals.iter().position(|total| *total == most).unwrap_or(0), most)
    }

    fn profile(&self, counts: impl Fn(&Interval) -> bool) -> Vec<u64> {
        let counted = self.tensors.iter().filter(|tensor| counts(tensor));
        let spans = counted.map(|tensor| (tensor.from as usize, tensor.to as usize, tensor.bytes));
        profile(spans, self.instructions.len())
    }
}

/// The bytes that are held at each of `n` points in time, of spans that are held from a time up to, not including, another.
pub fn profile(spans: impl Iterator<Item = (usize, usize, u64)>, n: usize) -> Vec<u64> {
    let mut change = vec![0i128; n + 1];
    for (from, to, bytes) in spans {
        change[from.min(n)] += i128::from(bytes);
        change[to.min(n)] -= i128::from(bytes);
    }
    let mut held = 0;
    let sum = |change: &i128| {
        held += change;
        u64::try_from(held).unwrap_or(u64::MAX)
    };
    change[..n].iter().map(sum).collect()
}
