//! `plimsoll parity` from outside: precisions side by side.

use crate::common::{Scratch, lines, plimsoll};
use serde_json::Value;

fn parity(more: &[&str]) -> Result<Value, String> {
    let words = ["parity", "cnn", "--batch", "16", "--take", "160", "--steps", "5", "--json"];
    lines(&[&words[..], more].concat()).map(|mut lines| lines.pop().unwrap())
}

fn relatives<'a>(found: &'a Value, what: &str) -> Vec<(&'a str, f64)> {
    let rows = found[what].as_array().unwrap();
    rows.iter().map(|row| (row["name"].as_str().unwrap(), row["relative"].as_f64().unwrap())).collect()
}

#[test]
fn layers_gradients_and_losses_are_compared_and_the_place_where_they_part_is_named() {
    let found = parity(&["--precision", "mixed-bf16", "--against", "f32"]).unwrap();
    let (layers, gradients) = (relatives(&found, "layers"), relatives(&found, "gradients"));
    assert!(layers.len() > 3 && layers.last().unwrap().0 == "output 0", "{layers:?}");
    assert!(gradients.iter().any(|(name, _)| name.ends_with("/weight")), "{gradients:?}");
    // bf16 has eight bits: everything differs a little, and nothing much.
    for (name, off) in layers.iter().chain(&gradients) {
        assert!(*off > 0.0 && *off < 0.1, "{name} is {off} apart");
    }
    assert_eq!(found["step_losses"].as_array().map(Vec::len), Some(5));
    assert_ne!(found["step_losses"], found["step_losses_against"]);
    // Held to nothing they part at once; held to little, nowhere.
    let strict = parity(&["--precision", "mixed-bf16", "--tolerance", "0"]).unwrap();
    assert_eq!(strict["parts_at"].as_str(), Some(layers[0].0));
    let loose = parity(&["--precision", "mixed-bf16", "--tolerance", "0.5"]).unwrap();
    assert!(loose["parts_at"].is_null(), "{loose}");
}

#[test]
fn wider_precisions_are_nearer() {
    let worst = |found: &Value| relatives(found, "layers").iter().map(|(_, off)| *off).fold(0.0, f64::max);
    let wide = parity(&["--precision", "f32", "--against", "f64"]).unwrap();
    let half = parity(&["--precision", "mixed-f16"]).unwrap();
    let rough = parity(&["--precision", "mixed-bf16"]).unwrap();
    assert!(worst(&wide) < 1e-5 && wide["parts_at"].is_null(), "{wide}");
    assert!(worst(&wide) < worst(&half) && worst(&half) < worst(&rough));
}

#[test]
fn a_limit_that_stands_in_the_settings_is_left_out_with_a_word() {
    let scratch = Scratch::new("parity");
    let file = scratch.path("run.toml");
    std::fs::write(&file, "model = \"cnn\"\ndata = \"digits\"\nbatch = 8\nwidth = 2\nmemory = \"100MiB\"\n")
        .unwrap();
    let words = ["parity", &file, "--precision", "mixed-bf16", "--take", "16", "--steps", "0"];
    let done = plimsoll().args(words).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("the memory limit 100MiB of"), "{said}");
    assert!(parity(&["--precision", "mixed-bf16", "--memory", "1GiB"]).is_err());
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    for (words, why) in [
        (&[][..], "name the first with --precision"),
        (&["--precision", "f32"], "both name f32"),
        (&["--precision", "mixed-bf16", "--against", "f8"], "--against"),
        (&["--precision", "mixed-bf16", "--memory", "1GiB"], "leave --memory"),
        (&["--precision", "mixed-bf16", "--tolerance", "nan"], "--tolerance"),
    ] {
        let said = parity(words).unwrap_err();
        assert!(said.contains(why), "{words:?}: {said}");
    }
}
