//! Turns the JSON that Python writes into values, the three numbers that JSON does not have included.

use serde_json::Value;
use std::borrow::Cow;

/// Parses JSON in which `NaN`, `Infinity` and `-Infinity` may stand for numbers, as Python writes them (a mask's constant in
/// the arguments of a call is the usual case). They become texts of the same letters.
///
/// Nesting deeper than 128 is refused, which bounds every recursion over the result.
pub(super) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(&quote_non_finite(text))
}

fn quote_non_finite(text: &str) -> Cow<'_, str> {
    if !text.contains("NaN") && !text.contains("Infinity") {
        return Cow::Borrowed(text);
    }
    let mut quoted = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let token = match c {
            '"' => string_end(rest),
            _ => {
                ["NaN", "Infinity", "-Infinity"].into_iter().find(|t| rest.starts_with(t)).map_or(0, str::len)
            }
        };
        let (piece, after) = rest.split_at(if token == 0 { c.len_utf8() } else { token });
        if c != '"' && token > 0 {
            quoted.extend(["\"", piece, "\""]);
        } else {
            quoted.push_str(piece);
        }
        rest = after;
    }
    Cow::Owned(quoted)
}

/// The length of the string literal that `text` starts with, quotes included; all of the text if it does not end.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (i, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_does_not_have_become_texts_and_texts_stay() {
        let text = r#"{"a": [NaN, -Infinity, 1.5], "Infinity": "NaN \" NaN\\", "ü": Infinity}"#;
        let value = parse(text).expect("Python's JSON");
        let expected = serde_json::json!({
            "a": ["NaN", "-Infinity", 1.5], "Infinity": "NaN \" NaN\\", "ü": "Infinity"
        });
        assert_eq!(value, expected);
        assert!(parse("\"NaN").is_err() && parse("[NaN").is_err());
    }
}
