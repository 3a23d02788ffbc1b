//! What operators compute with beside tensors: scales of channels, tables of bytes, packed weights. Taken when a model is loaded, bounded by
//! the size of its file.

use alloc::vec::Vec;

use super::Call;
use super::layer::{Order, Part};
use crate::error::{Error, Result};
use crate::load::Options;
use crate::quant::Scale;

/// Bytes that lie as vector instructions like to read them.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Line(pub [u8; 64]);

/// Memory of operators.
#[derive(Debug)]
pub struct Store {
    /// How many scales there may be: a file has a byte at least of every channel's weights.
    most_scales: usize,
    /// How many bytes of packed weights there may be.
    most_packed: usize,
    /// Whether weights are packed.
    pub pack: bool,
    /// Scales of channels: of weights that are stored as bytes and used with floats, and from sums to quantized results.
    pub reals: Vec<f32>,
    /// Functions of bytes.
    pub tables: Vec<[u8; 256]>,
    /// Weights in the order in which vector instructions read them, one pack for all operators that read the same.
    pub packs: Vec<Vec<Line>>,
    /// Parts of results of operators that are computed in several.
    pub parts: Vec<Part>,
    /// What each pack was made of.
    sources: Vec<Source>,
}

/// What a pack is made of: where weights and bias lie, how many lines of what it has, and where in the store its scales are.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub addresses: [usize; 2],
    pub lines: [usize; 5],
    pub order: Order,
    pub zero: u8,
    pub scales: Option<usize>,
    /// How many operators read it.
    pub readers: usize,
}

impl Store {
    /// An empty one for a file of that many bytes.
    pub fn new(file_bytes: usize, options: Options) -> Self {
        Self {
            most_scales: file_bytes.saturating_add(1024),
            most_packed: file_bytes.saturating_mul(6).saturating_add(1 << 20),
            pack: options.pack_weights,
            reals: Vec::new(),
            tables: Vec::new(),
            packs: Vec::new(),
            parts: Vec::new(),
            sources: Vec::new(),
        }
    }

    /// Takes what sums of channels are multiplied with to be quantized; answers where the first is.
    pub fn add_scales(
        &mut self,
        call: &Call<'_, '_>,
        count: usize,
        real: impl Fn(usize) -> Option<f64>,
    ) -> Result<usize> {
        for channel in 0..count.min(self.most_scales) {
            let usable = real(channel).and_then(Scale::new).is_some();
            call.ensure(usable, "its scales are missing or too far apart")?;
        }
        self.add_floats(count, |channel| real(channel).map(|real| real as f32))
    }

    /// Takes floats, a number a channel; answers where the first is.
    pub fn add_floats(&mut self, count: usize, value: impl Fn(usize) -> Option<f32>) -> Result<usize> {
        let start = self.reals.len();
        self.check_channels(start, count)?;
        for channel in 0..count {
            self.reals.push(value(channel).ok_or(Error::Bug("a scale is missing"))?);
        }
        Ok(start)
    }

    /// Refuses more channels than a file of this size can have.
    fn check_channels(&self, start: usize, count: usize) -> Result<()> {
        let (found, most) = (start.saturating_add(count), self.most_scales);
        if found > most { Err(Error::Limit { what: "channels", found, most }) } else { Ok(()) }
    }

    /// Takes a function of bytes; answers where it is. The argument is the byte as a signed number.
    pub fn add_table(&mut self, function: impl Fn(i32) -> i32) -> usize {
        self.tables.push(core::array::from_fn(|byte| function(i32::from(byte as u8 as i8)) as u8));
        self.tables.len() - 1
    }

    /// Whether so many bytes more may be packed.
    pub fn may_pack(&self, bytes: usize) -> bool {
        self.pack && self.packed_bytes().saturating_add(bytes) <= self.most_packed
    }

    /// Which pack was made of the same, with scales of the same `channels`, for one reader more. The steps of a recurrent layer share theirs.
    pub fn same_pack(&mut self, source: &Source, channels: usize) -> Option<usize> {
        let scales = |at: Option<usize>| at.map(|at| &self.reals[at..at + channels]);
        let key = |source: &Source| (source.addresses, source.lines, source.order, source.zero);
        let same = |old: &Source| key(old) == key(source) && scales(old.scales) == scales(source.scales);
        let pack = self.sources.iter().position(same)?;
        self.sources[pack].readers += 1;
        Some(pack)
    }

    /// How many operators read a pack.
    pub fn readers(&self, pack: usize) -> usize {
        self.sources[pack].readers
    }

    /// Keeps a pack; answers which it is.
    pub fn add_pack(&mut self, source: Source, lines: Vec<Line>) -> usize {
        self.packs.push(lines);
        self.sources.push(source);
        self.packs.len() - 1
    }

    /// Forgets packs and parts behind so many, which nothing reads.
    pub fn forget(&mut self, packs: usize, parts: usize) {
        self.packs.truncate(packs);
        self.sources.truncate(packs);
        self.parts.truncate(parts);
    }

    /// How many bytes of packed weights there are.
    pub fn packed_bytes(&self) -> usize {
        self.packs.iter().map(|lines| lines.capacity() * size_of::<Line>()).sum()
    }

    /// How many bytes of tables there are.
    pub fn table_bytes(&self) -> usize {
        self.reals.capacity() * 4
            + self.tables.capacity() * 256
            + self.packs.capacity() * size_of::<Vec<Line>>()
            + self.parts.capacity() * size_of::<Part>()
            + self.sources.capacity() * size_of::<Source>()
    }
}
