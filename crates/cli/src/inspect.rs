//! `plimsoll inspect`: what is in a Keras file.

use std::path::PathBuf;

use plimsoll::prelude::*;

use crate::Failure;

/// Arguments of `plimsoll inspect`.
#[derive(clap::Args)]
pub struct Args {
    /// A `.keras`, `.h5` or `.weights.h5` file.
    file: PathBuf,
    /// One JSON line instead of a table.
    #[arg(long)]
    json: bool,
}

/// Prints layers, shapes, parameters and bytes by kind.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.file.is_dir() {
        let shown = args.file.display();
        return Err(Failure(format!("{shown} is a folder; name a .keras, .h5 or .weights.h5 file")));
    }
    let found = plimsoll::keras::inspect(&args.file)?;
    if args.json {
        say!("{}", serde_json::json!(found));
        return Ok(());
    }
    say!(
        "{} {} (Keras {}), {} -> {}",
        found.class,
        found.name,
        found.keras_version,
        found.inputs.join(", "),
        found.outputs.join(", ")
    );
    let width = found.layers.iter().map(|layer| layer.place.chars().count()).max().unwrap_or(0);
    for layer in &found.layers {
        let shapes: Vec<String> =
            layer.outputs.iter().map(|shape| format!("{:?}", shape.get(1..).unwrap_or(&[]))).collect();
        let frozen = if layer.trainable { "" } else { "  frozen" };
        let policy = layer.dtype.as_ref().filter(|policy| *policy != "float32" && layer.elements > 0);
        let policy = policy.map_or(String::new(), |policy| format!("  {policy}"));
        say!(
            "{:<width$}  {:<24} {:>12} {:>10}  {}{policy}{frozen}",
            layer.place,
            layer.class,
            layer.elements,
            Bytes(layer.bytes).to_string(),
            shapes.join(" ")
        );
    }
    let rows = [
        ("trained", found.elements.trained, found.bytes.trained),
        ("frozen", found.elements.frozen, found.bytes.frozen),
        ("statistics", found.elements.statistics, found.bytes.statistics),
        ("optimizer", found.elements.optimizer, found.bytes.optimizer),
        ("other", found.elements.other, found.bytes.other),
    ];
    for (kind, elements, bytes) in rows.into_iter().filter(|row| row.1 > 0) {
        say!("{kind:<width$}  {:<24} {elements:>12} {:>10}", "", Bytes(bytes).to_string());
    }
    if let Some(optimizer) = &found.optimizer {
        let rate = found.learning_rate.map_or(String::new(), |rate| format!(" at {rate}"));
        say!("compiled with {optimizer}{rate}");
    }
    if let Some(problem) = &found.problem {
        say!("it cannot be trained here: {problem}");
    }
    Ok(())
}
