//! The window in which a stream is shuffled: packed records, and at most 16 bytes beside each.
//!
//! Records lie without gaps in one block. Beside them stand the number (8 bytes) and the epoch (4 bytes) each came
//! from, and 4 bytes for every field of varying length.

use plimsoll_graph::philox::philox4x32;

use crate::sample::{FieldSpec, Sample, SampleMut};

pub(crate) struct Window {
    records: Vec<u8>,
    stride: usize,
    numbers: Vec<u64>,
    epochs: Vec<u32>,
    lens: Vec<u32>,
    varying: usize,
    capacity: usize,
    drawn: u64,
    seed: u64,
    /// How often the stages before were started: every pass shuffles anew.
    pass: u64,
    pub ended: bool,
}

fn stride(spec: &[FieldSpec]) -> usize {
    spec.iter().map(FieldSpec::bytes).sum()
}

fn varying(spec: &[FieldSpec]) -> usize {
    spec.iter().filter(|field| field.varying).count()
}

impl Window {
    /// Bytes of one record in a window, and of those the ones beside the record itself.
    pub fn bytes_per_record(spec: &[FieldSpec]) -> (u64, u64) {
        let beside = 12 + 4 * varying(spec) as u64;
        (stride(spec) as u64 + beside, beside)
    }

    pub fn new(spec: &[FieldSpec], capacity: usize, seed: u64) -> Window {
        let (stride, varying) = (stride(spec), varying(spec));
        Window {
            records: vec![0; stride * capacity],
            stride,
            numbers: Vec::with_capacity(capacity),
            epochs: Vec::with_capacity(capacity),
            lens: Vec::with_capacity(capacity * varying),
            varying,
            capacity,
            drawn: 0,
            seed,
            pass: 0,
            ended: false,
        }
    }

    /// Empties the window for pass number `pass`.
    pub fn begin(&mut self, pass: u64) {
        self.numbers.clear();
        self.epochs.clear();
        self.lens.clear();
        (self.drawn, self.pass, self.ended) = (0, pass, false);
    }

    /// The pass that it was emptied for.
    pub fn pass(&self) -> u64 {
        self.pass
    }

    pub fn is_full(&self) -> bool {
        self.numbers.len() == self.capacity
    }

    pub fn push(&mut self, sample: &Sample<'_>, (epoch, number): (u64, u64)) {
        let mut at = self.numbers.len() * self.stride;
        for (field, spec) in sample.spec().iter().enumerate() {
            let bytes = sample.bytes(field);
            self.records[at..at + bytes.len()].copy_from_slice(bytes);
            at += spec.bytes();
            if spec.varying {
                self.lens.push(sample.len(field) as u32);
            }
        }
        self.numbers.push(number);
        self.epochs.push(epoch as u32);
    }

    /// Takes a random record out, and says where it came from.
    pub fn draw(&mut self, out: &mut SampleMut<'_>) -> Option<(u64, u64)> {
        let last = self.numbers.len().checked_sub(1)?;
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let [a, b] = halves(self.drawn);
        let [c, d] = halves(self.pass);
        let words = philox4x32([a, b, c, d], halves(self.seed));
        let word = u64::from(words[0]) | u64::from(words[1]) << 32;
        // The high half of the product is uniform over the window.
        let pick = ((u128::from(word) * (last as u128 + 1)) >> 64) as usize;
        self.drawn += 1;
        let (mut at, mut len) = (pick * self.stride, pick * self.varying);
        for field in 0..out.spec.len() {
            let bytes = out.bytes_mut(field);
            bytes.copy_from_slice(&self.records[at..at + bytes.len()]);
            at += bytes.len();
            if out.spec[field].varying {
                out.lens[field] = self.lens[len];
                len += 1;
            }
        }
        // The last record takes the free place.
        self.records.copy_within(last * self.stride..(last + 1) * self.stride, pick * self.stride);
        self.lens.copy_within(last * self.varying..(last + 1) * self.varying, pick * self.varying);
        self.lens.truncate(last * self.varying);
        Some((self.epochs.swap_remove(pick).into(), self.numbers.swap_remove(pick)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Rows;
    use plimsoll_graph::DType;

    #[test]
    fn records_of_any_length_come_out_whole_and_once() {
        let spec = [FieldSpec::varying("t", DType::U8, [9]), FieldSpec::new("y", DType::I64, [])];
        assert_eq!(Window::bytes_per_record(&spec), (17 + 16, 16));
        let mut window = Window::new(&spec, 9, 3);
        window.begin(1);
        let mut rows = Rows::new(&spec, 1);
        for n in 0..9u8 {
            let mut row = rows.row_mut(&spec, 0);
            row.set(0, &vec![n; n.into()]).unwrap();
            row.set(1, &[i64::from(n)]).unwrap();
            window.push(&row.view(), (0, n.into()));
        }
        assert!(window.is_full());
        let mut seen = Vec::new();
        loop {
            let drawn = window.draw(&mut rows.row_mut(&spec, 0));
            let Some((_, number)) = drawn else { break };
            let row = rows.row(&spec, 0);
            assert_eq!(row.bytes(0), vec![number as u8; number as usize]);
            assert_eq!(row.get::<i64>(1).unwrap(), [number as i64]);
            seen.push(number);
        }
        assert_ne!(seen, (0..9).collect::<Vec<_>>());
        seen.sort_unstable();
        assert_eq!(seen, (0..9).collect::<Vec<_>>());
    }
}
