//! Turns several pipelines into one: side by side, one behind the other, or by turns.

use std::ops::Range;
use std::path::PathBuf;

use super::fingerprint;
use super::piped::Piped;
use crate::error::Result;
use crate::sample::{FieldSpec, SampleMut};
use crate::source::{Scratch, Source, spec_and_len};

/// What sources of several parts have in common.
macro_rules! of_parts {
    ($name:literal) => {
        fn sample_name(&self, index: u64) -> Option<String> {
            let (part, at) = self.place(index)?;
            self.parts[part].sample_name(at)
        }

        fn files(&self) -> Vec<PathBuf> {
            self.parts.iter().flat_map(Piped::files).collect()
        }

        fn name(&self) -> String {
            let names: Vec<String> = self.parts.iter().map(Piped::name).collect();
            format!("{} of {}", $name, names.join(", "))
        }

        fn scratch_bytes(&self) -> u64 {
            self.parts.iter().map(Piped::scratch_bytes).sum()
        }

        fn fingerprint(&self) -> u64 {
            fingerprint(self.parts.iter().map(Piped::fingerprint).chain(self.said()))
        }
    };
}

/// The white of all parts, where they have the same.
fn common_white(parts: &[Piped]) -> Option<f32> {
    let white = parts.first()?.white();
    white.filter(|_| parts.iter().all(|part| part.white() == white))
}

/// Samples of several pipelines as one sample.
pub(super) struct Zipped {
    parts: Vec<Piped>,
    spec: Vec<FieldSpec>,
    /// The fields of each part.
    fields: Vec<Range<usize>>,
    len: u64,
}

impl Zipped {
    pub fn new(parts: Vec<Piped>) -> Zipped {
        let (mut spec, mut fields): (Vec<FieldSpec>, Vec<_>) = (Vec::new(), Vec::new());
        for part in &parts {
            let first = spec.len();
            for field in part.spec() {
                let is_free = |name: &String| spec.iter().all(|other| other.name != *name);
                let names = std::iter::once(field.name.clone());
                let mut names = names.chain((2..).map(|number| format!("{}{number}", field.name)));
                let name = names.find(is_free).unwrap_or_default();
                spec.push(FieldSpec { name, ..field.clone() });
            }
            fields.push(first..spec.len());
        }
        let len = parts.iter().map(Piped::len).min().unwrap_or(0);
        Zipped { parts, spec, fields, len }
    }

    fn place(&self, index: u64) -> Option<(usize, u64)> {
        (index < self.len).then_some((0, index))
    }

    fn said(&self) -> impl Iterator<Item = u64> {
        [0].into_iter()
    }
}

impl Source for Zipped {
    spec_and_len!(len);

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        for (part, fields) in self.parts.iter().zip(&self.fields) {
            let bytes = out.bytes[fields.clone()].iter_mut().map(|bytes| &mut **bytes).collect();
            let mut own = SampleMut { spec: part.spec(), bytes, lens: &mut out.lens[fields.clone()] };
            part.read(index, scratch, &mut own)?;
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.parts.iter().map(Piped::held).sum()
    }

    fn white(&self) -> Option<f32> {
        self.parts.first()?.white()
    }

    of_parts!("zip");
}

/// Samples of one pipeline behind those of another.
pub(super) struct Chained {
    parts: Vec<Piped>,
    /// Where each begins, and the end.
    starts: Vec<u64>,
}

impl Chained {
    pub fn new(parts: Vec<Piped>) -> Chained {
        let mut starts = vec![0];
        for part in &parts {
            starts.push(starts[starts.len() - 1] + part.len());
        }
        Chained { parts, starts }
    }

    fn place(&self, index: u64) -> Option<(usize, u64)> {
        let part = self.starts.partition_point(|&start| start <= index).checked_sub(1)?;
        (part < self.parts.len()).then(|| (part, index - self.starts[part]))
    }

    fn said(&self) -> impl Iterator<Item = u64> {
        [1].into_iter()
    }
}

impl Source for Chained {
    fn spec(&self) -> &[FieldSpec] {
        self.parts.first().map_or(&[], Piped::spec)
    }

    fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        match self.place(index) {
            Some((part, at)) => self.parts[part].read(at, scratch, out),
            None => Ok(()),
        }
    }

    fn held(&self) -> u64 {
        self.parts.iter().map(Piped::held).sum::<u64>() + 8 * self.starts.len() as u64
    }

    fn white(&self) -> Option<f32> {
        common_white(&self.parts)
    }

    of_parts!("concatenation");
}

/// Samples of several pipelines by turns.
pub(super) struct Interleaved {
    parts: Vec<Piped>,
    block: u64,
    turns: Vec<Turns>,
    len: u64,
}

/// Rounds in which the same pipelines take part, each with equally many samples a round.
struct Turns {
    /// The first sample of the first round among all.
    start: u64,
    /// Samples of a round.
    round: u64,
    /// Who takes part: the pipeline, its first sample here, how many a round, and where in a round.
    who: Vec<(usize, u64, u64, u64)>,
}

impl Interleaved {
    pub fn new(parts: Vec<Piped>, block: u64) -> Interleaved {
        let mut done = vec![0; parts.len()];
        let (mut turns, mut start) = (Vec::new(), 0);
        loop {
            let left = |part: usize, done: &[u64]| parts[part].len() - done[part];
            let active: Vec<usize> = (0..parts.len()).filter(|&part| left(part, &done) > 0).collect();
            let Some(least) = active.iter().map(|&part| left(part, &done)).min() else { break };
            // Whole rounds while everybody has a block left, then one in which somebody ends.
            let (rounds, block) = if least >= block { (least / block, block) } else { (1, block) };
            let mut round = 0;
            let mut who = Vec::new();
            for &part in &active {
                let count = block.min(left(part, &done));
                who.push((part, done[part], count, round));
                round += count;
                done[part] += count * rounds;
            }
            turns.push(Turns { start, round, who });
            start += round * rounds;
        }
        Interleaved { parts, block, turns, len: start }
    }

    fn place(&self, index: u64) -> Option<(usize, u64)> {
        let turns = &self.turns[self.turns.partition_point(|turns| turns.start <= index).checked_sub(1)?];
        let (round, within) = ((index - turns.start) / turns.round, (index - turns.start) % turns.round);
        let whose = turns.who.iter().rfind(|(.., from)| *from <= within)?;
        let (part, first, count, from) = *whose;
        (index < self.len).then(|| (part, first + round * count + within - from))
    }

    fn said(&self) -> impl Iterator<Item = u64> {
        [2, self.block].into_iter()
    }
}

impl Source for Interleaved {
    fn spec(&self) -> &[FieldSpec] {
        self.parts.first().map_or(&[], Piped::spec)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        match self.place(index) {
            Some((part, at)) => self.parts[part].read(at, scratch, out),
            None => Ok(()),
        }
    }

    fn held(&self) -> u64 {
        let turns: usize = self.turns.iter().map(|turns| 40 + 32 * turns.who.len()).sum();
        self.parts.iter().map(Piped::held).sum::<u64>() + turns as u64
    }

    fn white(&self) -> Option<f32> {
        common_white(&self.parts)
    }

    of_parts!("interleaving");
}
