//! Every op by name: what it computes, in ops of ours. One file a family.

mod element;
mod index;
mod loss;
mod matmul;
mod norm;
mod quantize;
mod reduce;
mod resize;
mod sequence;
mod shape;
mod spatial;

use plimsoll_run::Result;

use crate::call::Call;
use crate::value::Value;

/// What an op does.
pub(crate) type Handler = fn(&mut Call<'_>) -> Result<Vec<Value>>;

/// The ops of a family.
pub(crate) type Table = &'static [(&'static str, Handler)];

const TABLES: [Table; 11] = [
    element::TABLE,
    index::TABLE,
    loss::TABLE,
    matmul::TABLE,
    norm::TABLE,
    quantize::TABLE,
    reduce::TABLE,
    resize::TABLE,
    sequence::TABLE,
    shape::TABLE,
    spatial::TABLE,
];

/// The op of a name.
pub(crate) fn find(op: &str) -> Option<Handler> {
    TABLES.iter().flat_map(|table| table.iter()).find(|(name, _)| *name == op).map(|(_, handler)| *handler)
}

/// The names of all ops, in the order of the alphabet.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = TABLES.iter().flat_map(|table| table.iter()).map(|(name, _)| *name).collect();
    // Done where graphs are run.
    names.push("If");
    names.sort_unstable();
    names
}

/// Which inputs of an op must be known before the model runs. Weights never are.
pub(crate) fn wants_known(op: &str, input: usize) -> bool {
    match op {
        "Reshape" | "Expand" | "Tile" | "TopK" | "Unsqueeze" | "Squeeze" | "Split" | "Trilu" | "CumSum"
        | "CumProd" | "OneHot" | "CenterCropPad" | "Compress" | "ReverseSequence" => input == 1,
        "Slice" => input >= 1,
        "Resize" | "Upsample" | "Dropout" => input >= 1,
        "Pad" => input == 1 || input == 3,
        "ConstantOfShape" | "Range" | "If" | "Loop" | "NonZero" => true,
        "LSTM" | "GRU" | "RNN" => input == 4,
        name if name.starts_with("Reduce") => input == 1,
        _ => false,
    }
}
