//! Turns a number and a word into a number of things: 1 op, 2 ops.

/// A number of things, with the word in the plural unless it is one.
///
/// ```
/// use plimsoll_graph::counted;
/// assert_eq!([0, 1, 2].map(|n| counted(n, "sample")), ["0 samples", "1 sample", "2 samples"]);
/// assert_eq!(counted(3, "batch"), "3 batches");
/// ```
pub fn counted(n: impl TryInto<u64>, one: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    if n == 1 { format!("1 {one}") } else { format!("{n} {}", several(one)) }
}

/// The plural of a word, as far as messages need it.
fn several(one: &str) -> String {
    match one.as_bytes() {
        _ if one.ends_with("epoch") => format!("{one}s"),
        _ if one == "axis" || one.ends_with(" axis") => format!("{}es", &one[..one.len() - 2]),
        [.., before, b'y'] if !b"aeiou".contains(before) => format!("{}ies", &one[..one.len() - 1]),
        [.., b's' | b'x'] | [.., b'c' | b's', b'h'] => format!("{one}es"),
        _ => format!("{one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_plurals() {
        for (one, many) in [
            ("op", "ops"),
            ("epoch", "epochs"),
            ("micro-batch", "micro-batches"),
            ("class", "classes"),
            ("copy", "copies"),
            ("array", "arrays"),
            ("axis", "axes"),
            ("loss", "losses"),
            ("buffer", "buffers"),
        ] {
            assert_eq!((counted(1, one), counted(2, one)), (format!("1 {one}"), format!("2 {many}")));
        }
        assert_eq!(counted(0usize, "tensor"), "0 tensors");
    }
}
