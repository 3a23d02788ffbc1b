//! Turns a source and a list of some of its samples into those, or into all others.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Scratch, Source};
use crate::error::Result;
use crate::sample::{FieldSpec, SampleMut};

/// The first samples of a source that are on a list, or those that are not; 8 bytes are kept for each on the list.
#[derive(Clone)]
pub(crate) struct Subset {
    pub source: Arc<dyn Source>,
    /// Samples of the source that count.
    pub len: u64,
    /// Numbers, in order.
    pub listed: Arc<[u64]>,
    /// Whether this is what is on the list.
    pub is_listed: bool,
}

impl Subset {
    /// The number in the source of sample `at`.
    fn index(&self, at: u64) -> u64 {
        if self.is_listed {
            return self.listed.get(at as usize).copied().unwrap_or(u64::MAX);
        }
        // Before a number on the list stand as many that are not on it as it is larger than its place on the list.
        let (mut low, mut high) = (0, self.listed.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.listed[middle] - middle as u64 <= at {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        at + low as u64
    }
}

impl Source for Subset {
    fn spec(&self) -> &[FieldSpec] {
        self.source.spec()
    }

    fn len(&self) -> u64 {
        let listed = self.listed.len() as u64;
        if self.is_listed { listed } else { self.len - listed }
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        self.source.read(self.index(index), scratch, out)
    }

    fn notes(&self) -> Vec<String> {
        self.source.notes()
    }

    fn class_names(&self) -> Option<Vec<String>> {
        self.source.class_names()
    }

    fn class(&self, index: u64) -> Option<i64> {
        self.source.class(self.index(index))
    }

    fn sample_name(&self, index: u64) -> Option<String> {
        self.source.sample_name(self.index(index))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }

    fn name(&self) -> String {
        self.source.name()
    }

    fn held(&self) -> u64 {
        self.source.held() + 8 * self.listed.len() as u64
    }

    fn scratch_bytes(&self) -> u64 {
        self.source.scratch_bytes()
    }

    fn white(&self) -> Option<f32> {
        self.source.white()
    }

    fn stored(&self) -> Option<Arc<dyn Source>> {
        let source = self.source.stored()?;
        Some(Arc::new(Subset { source, ..self.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Function;

    #[test]
    fn the_list_and_the_rest_are_everything() {
        let f = |_, _: &mut SampleMut<'_>| Ok(());
        let source: Arc<dyn Source> = Arc::new(Function { spec: Vec::new(), len: 12, f });
        for listed in [vec![], vec![0], vec![9], vec![0, 1, 2], vec![3, 4, 9], (0..10).collect()] {
            let part = |is_listed| Subset {
                source: source.clone(),
                len: 10,
                listed: listed.clone().into(),
                is_listed,
            };
            let all = |part: Subset| (0..Source::len(&part)).map(|at| part.index(at)).collect::<Vec<_>>();
            assert_eq!(all(part(true)), listed);
            let rest: Vec<u64> = (0..10).filter(|n| !listed.contains(n)).collect();
            assert_eq!(all(part(false)), rest);
        }
    }
}
