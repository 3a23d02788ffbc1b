//! What a run says of its gradients: their norm, the loss scale, steps that were left out.

use crate::common::{Scratch, lines};
use serde_json::Value;

fn train(
    scratch: &Scratch,
    name: &str,
    more: &[&str],
) -> (Vec<Value>, Vec<std::collections::HashMap<String, String>>, Vec<u8>) {
    let out = scratch.path(name);
    let words = ["train", "mlp", "--take", "320", "--batch", "16", "--epochs", "2", "--json", "--out", &out];
    let said = lines(&[&words[..], more].concat()).unwrap();
    let epochs = said.into_iter().filter(|line| line["event"] == "epoch").collect();
    let table = std::fs::read_to_string(format!("{out}/metrics.csv")).unwrap();
    let mut rows = table.lines().map(|line| line.split(',').map(String::from).collect::<Vec<_>>());
    let heading = rows.next().unwrap();
    let rows = rows.map(|row| heading.iter().cloned().zip(row).collect()).collect();
    let mut curves = Vec::new();
    for entry in std::fs::read_dir(format!("{out}/events")).unwrap() {
        curves.extend(std::fs::read(entry.unwrap().path()).unwrap());
    }
    (epochs, rows, curves)
}

fn has(curves: &[u8], tag: &str) -> bool {
    curves.windows(tag.len()).any(|window| window == tag.as_bytes())
}

#[test]
fn norm_scale_and_skipped_steps_are_in_the_table_the_curves_and_the_lines() {
    let scratch = Scratch::new("gradients-followed");
    let (epochs, rows, curves) =
        train(&scratch, "clipped", &["--clip-norm", "0.5", "--precision", "mixed-f16"]);
    assert_eq!((epochs.len(), rows.len()), (2, 2));
    for (epoch, row) in epochs.iter().zip(&rows) {
        let (mean, most) =
            (epoch["gradient_norm"].as_f64().unwrap(), epoch["gradient_norm_max"].as_f64().unwrap());
        assert!(mean > 0.0 && mean <= most, "{epoch}");
        assert!(epoch["loss_scale"].as_f64().unwrap() >= 1.0, "{epoch}");
        for column in ["gradient_norm", "gradient_norm_max", "loss_scale", "skipped"] {
            assert_eq!(row[column].parse::<f64>().unwrap(), epoch[column].as_f64().unwrap(), "{column}");
        }
    }
    for tag in
        ["step/gradient_norm", "step/loss_scale", "epoch/gradient_norm", "epoch/loss_scale", "epoch/skipped"]
    {
        assert!(has(&curves, tag), "there is no curve {tag}");
    }
}

#[test]
fn what_is_not_computed_is_not_told() {
    let scratch = Scratch::new("gradients-untold");
    let (epochs, rows, curves) = train(&scratch, "plain", &[]);
    assert!(epochs[0]["gradient_norm"].is_null() && epochs[0]["loss_scale"].is_null(), "{}", epochs[0]);
    assert_eq!((rows[0]["gradient_norm"].as_str(), rows[0]["skipped"].as_str()), ("", "0"));
    assert!(!has(&curves, "gradient_norm") && has(&curves, "epoch/skipped"));
    // A bound that is never reached measures the norm and changes no bit.
    let (bounded, ..) = train(&scratch, "bounded", &["--clip-norm", "1e9"]);
    assert_eq!(bounded[1]["loss"], epochs[1]["loss"]);
    assert!(bounded[1]["gradient_norm"].as_f64().unwrap() > 0.0);
}
