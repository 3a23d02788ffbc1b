//! Where every op of a plan runs, and why there: as lines, and as JSON.

use plimsoll::device::Placement;
use serde_json::{Value, json};

/// A line an op; those in a row that say the same are one.
pub fn text(placed: &[Placement]) -> String {
    let name = |line: &Placement| match line.layer.as_str() {
        "" => line.op.to_string(),
        layer => format!("{layer}/{}", line.op),
    };
    let mut text = String::from("where ops run:\n");
    for same in placed.chunk_by(|a, b| (name(a), &a.device, &a.why) == (name(b), &b.device, &b.why)) {
        let times = if same.len() > 1 { format!(", {} times", same.len()) } else { String::new() };
        let line = &same[0];
        text += &format!("  {} on {}{times} ({})\n", name(line), line.device, line.why);
    }
    text
}

/// The same for programs, an object an op.
pub fn json(placed: &[Placement]) -> Value {
    let line = |line: &Placement| {
        let source = line.site.known().map(|site| site.to_string());
        json!({ "op": line.op, "layer": line.layer, "device": line.device, "why": line.why, "source": source })
    };
    placed.iter().map(line).collect()
}
