//! Turns the sizes of a decoder and the record of a machine into the time of a fully sharded step by a stated model of efficiency: what cards that are not here
//! reach with kernels of another system, to hold against what others publish.
//!
//! The model. Products of matrices reach 0.75 of the datasheet's operations (alone they reach more; in a training, power and exchanges share the card),
//! attention 0.55, and everything else, which is bytes, 0.8 of the memory's bandwidth. A layer's other ops pass over its rows as eager kernels do: 106 bytes
//! for each element of a row (norms and rotations in f32, sums in bf16) and 10 for each element inside its MLP, twice as many on the way back. Parameters are gathered in bf16 twice and
//! gradients added up in f32, beside computation but for the first layer and the last.

use plimsoll::internals::comm::{Kind, Reduce, Topology};
use plimsoll::internals::hub::Config;
use plimsoll::ranks::{Imagined, Machine};
use serde_json::{Value, json};

/// How much of a machine kernels reach, and what they move beside products and attention.
struct Efficiency {
    products: f64,
    attention: f64,
    memory: f64,
    /// Bytes for an element of a row, for one inside the MLP, and for each logit (a few passes in f32, there and back).
    moved: [f64; 3],
}

const REACHED: Efficiency =
    Efficiency { products: 0.75, attention: 0.55, memory: 0.8, moved: [106.0, 10.0, 40.0] };

/// What of the forward pass is computed again on the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    Nothing,
    /// Every second product, and all that is neither product nor attention: PyTorch's selective checkpointing by ops.
    Half,
    All,
}

impl Again {
    const ALL: [Again; 3] = [Again::Nothing, Again::Half, Again::All];

    fn name(self) -> &'static str {
        match self {
            Again::Nothing => "nothing",
            Again::Half => "every second product",
            Again::All => "all",
        }
    }
}

/// What a step works through, for a token.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    layers: f64,
    width: f64,
    inner: f64,
    queries: f64,
    keys: f64,
    vocabulary: f64,
    is_tied: bool,
}

impl Sizes {
    fn of(config: &Config) -> Sizes {
        Sizes {
            layers: config.layers.len() as f64,
            width: config.width as f64,
            inner: config.inner as f64,
            queries: (config.heads * config.head) as f64,
            keys: (config.kv_heads * config.head) as f64,
            vocabulary: config.vocabulary as f64,
            is_tied: config.is_tied,
        }
    }

    /// Weights of a layer's products.
    fn layer(&self) -> f64 {
        self.width * (2.0 * self.queries + 2.0 * self.keys + 3.0 * self.inner)
    }

    fn parameters(&self) -> f64 {
        let tables = if self.is_tied { 1.0 } else { 2.0 };
        self.layers * self.layer() + tables * self.vocabulary * self.width
    }

    /// Seconds of computation for rows of so many tokens, so many of them. What is done to a row's own width is done so many times over, where as many ranks
    /// do the same.
    fn seconds(&self, rows: f64, tokens: f64, machine: &Machine, again: Again, alike: f64) -> f64 {
        let n = rows * tokens;
        let forward = 2.0 * n * self.layers * self.layer();
        let head = 2.0 * n * self.vocabulary * self.width;
        let repeated = match again {
            Again::Nothing => 0.0,
            Again::Half => 0.5,
            Again::All => 1.0,
        };
        let products = 3.0 * (forward + head) + repeated * forward;
        // Causal: half of all pairs. The way back takes two and a half times as many operations.
        let attention = 2.0 * rows * tokens * tokens * self.queries * self.layers;
        let attention = attention * if again == Again::All { 4.5 } else { 3.5 };
        let moved = alike * REACHED.moved[0] * self.width + REACHED.moved[1] * self.inner;
        let bytes = n * self.layers * moved;
        let bytes = bytes * if again == Again::Nothing { 3.0 } else { 4.0 };
        products / (REACHED.products * machine.flops_16)
            + attention / (REACHED.attention * machine.flops_16)
            + (bytes + n * self.vocabulary * REACHED.moved[2]) / (REACHED.memory * machine.memory_bandwidth)
    }
}

/// The step of a card on paper, by what is computed again.
pub struct Paper {
    /// Tokens a second of each way.
    tokens_s: [f64; 3],
    /// The same with parts of weights on the cards of a machine and shares of the batch on machines, where a machine has several.
    parted: Option<[f64; 3]>,
    machine: String,
}

impl Paper {
    /// A step of a rank that has so many rows of so many tokens.
    pub fn new(config: &Config, machine: &Machine, imagined: &Imagined, rows: usize, tokens: usize) -> Paper {
        let sizes = Sizes::of(config);
        Paper {
            tokens_s: tokens_s(&sizes, machine, imagined, rows, tokens),
            parted: parted(&sizes, machine, imagined, rows, tokens),
            machine: machine.name.clone(),
        }
    }

    /// As a sentence. `longer` is how many times as long a plan's step is by what it computes again, where there is a plan.
    pub fn text(&self, longer: Option<f64>) -> String {
        let each = Again::ALL.iter().zip(self.tokens_s);
        let each: Vec<String> =
            each.map(|(again, tokens)| format!("{tokens:.0} computing {} again", again.name())).collect();
        let [nothing, half, _] = self.tokens_s;
        let planned = longer.map_or(String::new(), |longer| {
            let (planned, more) = (nothing / longer, 100.0 * (nothing / longer / half - 1.0));
            format!("; with what this plan computes again {planned:.0}, {more:+.1} % on every second product")
        });
        let parted = self.parted.map_or(String::new(), |[nothing, ..]| {
            format!("; with parts of weights on the cards of a machine and data parallel between machines, {nothing:.0} computing nothing again")
        });
        format!(
            "on paper, fully sharded on {} with kernels as other systems have them, tokens/s a card: {}{planned}{parted}",
            self.machine,
            each.join(", ")
        )
    }

    /// The same for programs.
    pub fn json(&self, longer: Option<f64>) -> Value {
        let [nothing, half, all] = self.tokens_s;
        let planned = longer.map(|longer| nothing / longer);
        json!({
            "nothing_again": nothing, "half_again": half, "all_again": all, "planned": planned,
            "tensor_by_data": self.parted.map(|[nothing, ..]| nothing),
        })
    }
}

fn tokens_s(sizes: &Sizes, machine: &Machine, imagined: &Imagined, rows: usize, tokens: usize) -> [f64; 3] {
    let topology = imagined.topology();
    let gather = topology.seconds(Kind::AllGather, (2.0 * sizes.parameters()) as u64);
    let scatter = topology.seconds(Kind::ReduceScatter(Reduce::Sum), (4.0 * sizes.parameters()) as u64);
    Again::ALL.map(|again| {
        let computing = sizes.seconds(rows as f64, tokens as f64, machine, again, 1.0);
        let alone = (gather + scatter) / sizes.layers;
        let step = computing.max(2.0 * gather + scatter) + alone;
        (rows * tokens) as f64 / step
    })
}

/// Each machine has the rows of all its cards, and each card its part of the weights. Sums of a layer's two halves wait for each other, there and back and
/// where they are computed again; gradients are added up between machines beside computation.
fn parted(
    sizes: &Sizes,
    machine: &Machine,
    imagined: &Imagined,
    rows: usize,
    tokens: usize,
) -> Option<[f64; 3]> {
    let topology = imagined.topology();
    let cards = topology.per_machine;
    if cards < 2 {
        return None;
    }
    let sum = Kind::AllReduce(Reduce::Sum);
    let inside = Topology { machines: 1, ..*topology };
    let between = Topology { per_machine: 1, ..*topology };
    let halves = inside.seconds(sum, (2 * cards * rows * tokens) as u64 * sizes.width as u64);
    let gradients = between.seconds(sum, (4.0 * sizes.parameters()) as u64 / cards as u64);
    Some(Again::ALL.map(|again| {
        let computing = sizes.seconds(rows as f64, tokens as f64, machine, again, cards as f64);
        let times = if again == Again::All { 6.0 } else { 4.0 };
        let step = (computing + times * sizes.layers * halves).max(gradients);
        (rows * tokens) as f64 / step
    }))
}

#[cfg(test)]
mod tests {
    use plimsoll::internals::graph::ops::Rank;

    use super::*;

    fn sizes(layers: f64, width: f64, inner: f64) -> Sizes {
        let (queries, keys, vocabulary) = (width, 1024.0, 128_256.0);
        Sizes { layers, width, inner, queries, keys, vocabulary, is_tied: false }
    }

    /// Llama 3 on 64 A100s with rows of 8192 tokens, one a card.
    fn llama(layers: f64, width: f64, inner: f64) -> [f64; 3] {
        let a100 = Machine::known("a100-80g").unwrap();
        let ranks = Imagined::on(&a100, Rank::new(0, 64), Some(8)).unwrap();
        tokens_s(&sizes(layers, width, inner), &a100, &ranks, 1, 8192)
    }

    #[test]
    fn published_trainings_are_met_within_15_percent() {
        // pytorch/torchtitan, docs/performance.md: 8B computing every second product again, 70B all.
        let [nothing, half, all] = llama(32.0, 4096.0, 14_336.0);
        assert!((half / 2973.0 - 1.0).abs() < 0.15, "{half}");
        assert!(nothing > half && half > all);
        let [.., all] = llama(80.0, 8192.0, 28_672.0);
        assert!((all / 331.0 - 1.0).abs() < 0.15, "{all}");
    }

    #[test]
    fn parts_of_weights_inside_a_machine_wait_for_each_other() {
        let a100 = Machine::known("a100-80g").unwrap();
        let sizes = sizes(32.0, 4096.0, 14_336.0);
        let of = |ranks: usize| {
            let ranks = Imagined::on(&a100, Rank::new(0, ranks), None).unwrap();
            parted(&sizes, &a100, &ranks, 1, 8192)
        };
        let sharded = llama(32.0, 4096.0, 14_336.0);
        let [eight, many] = [of(8), of(64)].map(Option::unwrap);
        assert!(
            many[0] <= eight[0] && eight[0] < sharded[0] && eight[0] > 0.3 * sharded[0],
            "{eight:?} {sharded:?}"
        );
    }

    #[test]
    fn parameters_are_counted_as_models_have_them() {
        let sizes = sizes(32.0, 4096.0, 14_336.0);
        // Llama 3 8B has 8,030,261,248 parameters, of which norms have 266,240.
        assert_eq!(sizes.parameters(), 8_030_261_248.0 - 266_240.0);
    }
}
