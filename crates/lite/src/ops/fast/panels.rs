//! Weights in the order in which kernels read them: panels of sixteen channels, in lines of 64 bytes.

use alloc::vec::Vec;

use super::cpu::Level;
use super::lanes::LANES;
use super::{amx, columns, rows};
use crate::bytes::{chunks, f, half, i, s};
use crate::ops::conv::{Bytes, Floats, Numbers};
use crate::ops::layer::{Order, Weights, Window};
use crate::ops::store::{Line, Source, Store};
use crate::schema::Type;

/// Where packed weights lie, and how.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    pub taps: usize,
    pub deep: usize,
    pub channels: usize,
    pub level: Level,
    /// Which of the store's packs has the panels, and at which line they begin.
    pack: usize,
    first: usize,
    /// Which one has lines of zeros, for what is outside the picture, and how many: the same, or that of the heads.
    heads: usize,
    zeros: usize,
    /// Lines of a panel.
    pub panel: usize,
    /// Whether panels are gone through from the last to the first: so does every other operator that reads the same ones, to begin with what the
    /// one before left in the caches.
    pub back: bool,
    /// Whether bytes of a depthwise window lie column by column, four lines of it at once.
    pub columns: bool,
    /// Whether it is for tiles, which take operands as they are: signed.
    pub tiles: bool,
}

impl Packed {
    /// How many panels there are.
    pub fn panels(&self) -> usize {
        self.channels.div_ceil(LANES)
    }

    /// The lines of the panels from one on.
    pub fn from<'s>(&self, store: &'s Store, panel: usize) -> &'s [Line] {
        &store.packs[self.pack][self.first + panel * self.panel..]
    }

    /// The two lines, of what sums begin with and of scales, of each panel of bytes from one on, where those are not in the panel.
    pub fn heads<'s>(&self, store: &'s Store, panel: usize) -> &'s [Line] {
        &store.packs[self.heads][self.zeros + panel * HEAD..]
    }

    /// A row of what stands for zero.
    pub fn zeros<'s>(&self, store: &'s Store) -> &'s [Line] {
        &store.packs[self.heads][..self.zeros]
    }
}

/// Lines of a panel's head.
pub const HEAD: usize = 2;

/// Taps of a window, at most.
pub const TAPS: usize = 128;

/// What is known before anything is packed.
struct Plan<'a> {
    level: Level,
    data: &'a [u8],
    bias: Option<&'a [u8]>,
    taps: usize,
    deep: usize,
    channels: usize,
    order: Order,
    columns: bool,
    /// Whether it is packed for tiles, and how many lines more may be read behind the panels then.
    tiles: bool,
    behind: usize,
    /// Where in the store the scales of results are, if those are bytes.
    scales: Option<usize>,
}

impl Plan<'_> {
    /// Takes lines for zeros and panels of so many, if the store's bounds allow, and lets them be written.
    fn write(
        &self,
        store: &mut Store,
        zeros: usize,
        zero: u8,
        panel: usize,
        write: impl FnOnce(&Store, &mut Vec<Line>),
    ) -> Option<Packed> {
        let pack = self.keep(store, [zeros, panel, self.behind], zero, self.bias, self.scales, write)?;
        Some(self.packed(store, [pack, pack], zeros, panel, zeros))
    }

    /// Where panels of so many lines lie that begin at line `first` of the first pack, and lines of zeros in the second.
    fn packed(
        &self,
        store: &Store,
        [pack, heads]: [usize; 2],
        first: usize,
        panel: usize,
        zeros: usize,
    ) -> Packed {
        let Self { level, taps, deep, channels, columns, tiles, .. } = *self;
        let back = store.readers(pack).is_multiple_of(2);
        Packed { taps, deep, channels, level, pack, first, heads, zeros, panel, back, columns, tiles }
    }

    /// A pack of lines of zeros, panels of so many lines and lines behind, if the store's bounds allow; one that is there, if it was made of the same.
    fn keep(
        &self,
        store: &mut Store,
        [zeros, panel, behind]: [usize; 3],
        zero: u8,
        bias: Option<&[u8]>,
        scales: Option<usize>,
        write: impl FnOnce(&Store, &mut Vec<Line>),
    ) -> Option<usize> {
        let count = self.channels.div_ceil(LANES).checked_mul(panel)?.checked_add(zeros + behind)?;
        let addresses = [self.data, bias.unwrap_or_default()].map(|bytes| bytes.as_ptr().addr());
        let lines = [zeros, panel, count, self.taps, self.deep];
        let source = Source { addresses, lines, order: self.order, zero, scales, readers: 1 };
        if let Some(pack) = store.same_pack(&source, self.channels) {
            return Some(pack);
        }
        if !store.may_pack(count.checked_mul(size_of::<Line>())?) {
            return None;
        }
        let mut lines = Vec::with_capacity(count);
        lines.resize(zeros, Line([zero; 64]));
        write(store, &mut lines);
        lines.resize(count, Line([0; 64]));
        Some(store.add_pack(source, lines))
    }

    /// A line of sixteen numbers, one a channel; zeros where there are no more channels.
    fn line<T: Into<Four> + Default>(&self, panel: usize, number: impl Fn(usize) -> T) -> Line {
        let mut line = Line([0; 64]);
        for (lane, to) in line.0.chunks_exact_mut(4).enumerate() {
            let channel = panel * LANES + lane;
            let value = if channel < self.channels { number(channel) } else { T::default() };
            to.copy_from_slice(&value.into().0);
        }
        line
    }

    fn bias(&self, channel: usize) -> i32 {
        self.bias.map_or(0, |bias| i(chunks::<4>(bias)[channel]))
    }
}

/// Four bytes of a number.
struct Four([u8; 4]);

impl From<f32> for Four {
    fn from(value: f32) -> Self {
        Self(value.to_le_bytes())
    }
}

impl From<i32> for Four {
    fn from(value: i32) -> Self {
        Self(value.to_le_bytes())
    }
}

impl From<[u8; 4]> for Four {
    fn from(value: [u8; 4]) -> Self {
        Self(value)
    }
}

fn plan<'a>(store: &Store, what: &Weights<'_, 'a>, order: Order) -> Option<Plan<'a>> {
    let Weights { weights, bias, taps, deep, channels, .. } = *what;
    let level = if store.pack { Level::detect() } else { return None };
    let data = weights.constant()?;
    let bias = match bias {
        Some(bias) => Some(bias.constant()?),
        None => None,
    };
    (taps <= TAPS && level > Level::Plain).then_some(Plan {
        level,
        data,
        bias,
        taps,
        deep,
        channels,
        order,
        columns: false,
        tiles: false,
        behind: 0,
        scales: match what.numbers {
            Numbers::Floats(_) => None,
            Numbers::Bytes(bytes) => Some(bytes.scales),
        },
    })
}

/// Packs weights that lie as channels of taps of rows, if that is asked for, possible and within the store's bounds.
pub fn pack(store: &mut Store, what: &Weights<'_, '_>) -> Option<Packed> {
    pack_taps(store, what, Order::plain(what.taps))
}

/// The same for a window, whose lines are taken as one row each where that is faster.
pub fn pack_window(store: &mut Store, what: &Weights<'_, '_>, window: &Window) -> Option<Packed> {
    if !rows::by_lines(window, what.numbers.width()) {
        return pack(store, what);
    }
    let (lines, across) = (window.y.size, window.x.size);
    pack(store, &Weights { taps: lines, deep: across * what.deep, ..*what })
}

/// The same with taps in another order than in the file, or some of them.
pub fn pack_taps(store: &mut Store, what: &Weights<'_, '_>, order: Order) -> Option<Packed> {
    let mut plan = plan(store, what, order)?;
    let (numbers, pixels) = (what.numbers, what.pixels);
    // With few pixels or few numbers a tile is mostly empty.
    let plain = order == Order::plain(plan.taps);
    let tiles = plan.level == Level::Amx && pixels >= 6 && plan.deep >= 16 && plain;
    if tiles && matches!(numbers, Numbers::Bytes(_)) && amx::allowed() {
        (plan.tiles, plan.behind) = (true, 16);
    }
    // Otherwise operands are made unsigned, 128 more than they are.
    let more = if plan.tiles { 0 } else { 128 };
    let (taps, deep, channels) = (plan.taps, plan.deep, plan.channels);
    match numbers {
        Numbers::Floats(floats) => {
            let panel = taps.checked_mul(deep)?.checked_add(1)?;
            plan.write(store, deep.div_ceil(LANES), 0, panel, |store, lines| {
                for panel in 0..plan.channels.div_ceil(LANES) {
                    lines.push(plan.line(panel, |channel| floats.bias(plan.bias, channel)));
                    for (tap, at) in (0..taps).flat_map(|tap| (0..deep).map(move |at| (order.tap(tap), at))) {
                        lines.push(plan.line(panel, |channel| {
                            let at = (channel * order.all + tap) * deep + at;
                            weight(store, floats, plan.data, channel, at)
                        }));
                    }
                }
            })
        }
        Numbers::Bytes(bytes) => {
            // Operators that share weights differ in what sums begin with and in scales, as the steps of a recurrent layer do: heads are packs of their own.
            let panels = 0..channels.div_ceil(LANES);
            let row = |channel: usize, tap: usize| {
                &plan.data[(channel * order.all + order.tap(tap)) * deep..][..deep]
            };
            let (fours, zeros) = (deep.div_ceil(4), deep.div_ceil(64));
            let panel = taps.checked_mul(fours)?;
            let pack = plan.keep(store, [0, panel, plan.behind], 0, None, None, |_, lines| {
                for panel in panels.clone() {
                    for (tap, four) in (0..taps).flat_map(|tap| (0..fours).map(move |four| (tap, four))) {
                        lines.push(plan.line(panel, |channel| {
                            core::array::from_fn::<u8, 4, _>(|k| match 4 * four + k {
                                k if k < deep => row(channel, tap)[k],
                                // What is beyond them is multiplied by zero.
                                _ => 0,
                            })
                        }));
                    }
                }
            })?;
            let zero = bytes.in_zero as u8;
            let heads = plan.keep(
                store,
                [zeros, HEAD, plan.behind],
                zero,
                plan.bias,
                plan.scales,
                |store, lines| {
                    for panel in panels {
                        lines.push(plan.line(panel, |channel| {
                            let all = (0..taps).flat_map(|tap| row(channel, tap));
                            let all = all.fold(0i32, |sum, w| sum.wrapping_add(s(*w)));
                            plan.bias(channel).wrapping_sub(all.wrapping_mul(more + bytes.in_zero))
                        }));
                        lines.push(scales(store, &plan, bytes, panel));
                    }
                },
            )?;
            Some(plan.packed(store, [pack, heads], 0, panel, zeros))
        }
    }
}

/// Packs weights of a depthwise convolution, which lie as taps of channels.
pub fn pack_depthwise(store: &mut Store, what: &Weights<'_, '_>, window: &Window) -> Option<Packed> {
    let (columns, size) = (columns::fits(window), window.x.size);
    // The order says how they are packed: the same weights under another window are another pack.
    let order = if columns {
        Order { all: what.taps, first: 0, across: size, steps: [size as isize, 1] }
    } else {
        Order::plain(what.taps)
    };
    let plan = Plan { columns, ..plan(store, what, order)? };
    let (taps, channels) = (plan.taps, plan.channels);
    match what.numbers {
        Numbers::Floats(floats) => {
            plan.write(store, channels.div_ceil(LANES), 0, taps + 1, |store, lines| {
                for panel in 0..channels.div_ceil(LANES) {
                    lines.push(plan.line(panel, |channel| floats.bias(plan.bias, channel)));
                    for tap in 0..taps {
                        lines.push(plan.line(panel, |channel| {
                            weight(store, floats, plan.data, channel, tap * channels + channel)
                        }));
                    }
                }
            })
        }
        Numbers::Bytes(bytes) => {
            // Which taps of the window a line has: the next four of a column, or of all.
            let (down, across) = if columns { (window.y.size, size) } else { (1, taps) };
            let four = move |line: usize| -> [Option<usize>; 4] {
                let (first, column) = (4 * (line / across), line % across);
                core::array::from_fn(|k| match columns {
                    true => (first + k < down).then_some((first + k) * across + column),
                    false => Some(4 * line + k).filter(|tap| *tap < taps),
                })
            };
            let fours = if columns { down.div_ceil(4) * across } else { taps.div_ceil(4) };
            let zero = bytes.in_zero as u8;
            plan.write(store, channels.div_ceil(64), zero, fours + 2, |store, lines| {
                for panel in 0..channels.div_ceil(LANES) {
                    let at = |channel: usize, tap: usize| plan.data[tap * channels + channel];
                    lines.push(plan.line(panel, |channel| {
                        let all = (0..taps).fold(0i32, |sum, tap| sum.wrapping_add(s(at(channel, tap))));
                        // Operands are unsigned, 128 more than they are.
                        plan.bias(channel).wrapping_sub(all.wrapping_mul(128 + bytes.in_zero))
                    }));
                    lines.push(scales(store, &plan, bytes, panel));
                    for line in 0..fours {
                        lines.push(plan.line(panel, |channel| {
                            four(line).map(|tap| tap.map_or(0, |tap| at(channel, tap)))
                        }));
                    }
                }
            })
        }
    }
}

fn scales(store: &Store, plan: &Plan<'_>, bytes: &Bytes, panel: usize) -> Line {
    plan.line(panel, |channel| store.reals[bytes.scales + channel])
}

fn weight(store: &Store, floats: &Floats, data: &[u8], channel: usize, at: usize) -> f32 {
    match floats.weights {
        Type::F32 => f(chunks::<4>(data)[at]),
        Type::F16 => half(chunks::<2>(data)[at]),
        _ => s(data[at]) as f32 * store.reals[floats.scales + channel],
    }
}
