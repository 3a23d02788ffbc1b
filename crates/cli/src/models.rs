//! `plimsoll models`: the models that `train` and `plan` know by name, with their sizes and the data they take.

use plimsoll::nn::zoo::{self, Entry};

use crate::sizes;
use crate::source;

/// Arguments of `plimsoll models`.
#[derive(clap::Args)]
pub struct Args {
    /// As a JSON array.
    #[arg(long)]
    json: bool,
}

/// Prints the table.
pub fn run(args: &Args) {
    if args.json {
        let row = |entry: &Entry| {
            let sizes: serde_json::Map<String, serde_json::Value> =
                sizes::of(entry).into_iter().map(|(flag, size)| (flag.into(), size.into())).collect();
            serde_json::json!({
                "name": entry.name, "about": entry.about, "sizes": sizes, "takes": sizes::takes(entry),
                "default_data": source::default_data(Some(entry.name)),
            })
        };
        say!("{}", zoo::ALL.iter().map(row).collect::<serde_json::Value>());
        return;
    }
    for entry in zoo::ALL {
        let sizes: Vec<String> =
            sizes::of(entry).into_iter().map(|(flag, size)| format!("--{flag} {size}")).collect();
        say!("{:<10} {}", entry.name, entry.about);
        say!("{:<10} takes {}", "", sizes::takes(entry));
        say!("{:<10} {}", "", sizes.join(" "));
    }
}
