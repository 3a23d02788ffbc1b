//! `plimsoll ops`: the table of all ops, as text, markdown or JSON.

use plimsoll::internals::graph::OPS;

/// Arguments of `plimsoll ops`.
#[derive(clap::Args)]
pub struct Args {
    /// As a markdown page (docs/ops.md is made with it).
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// As a JSON array.
    #[arg(long)]
    json: bool,
}

/// Prints the table.
pub fn run(args: &Args) {
    if args.json {
        let rows: Vec<_> = OPS
            .iter()
            .map(|op| serde_json::json!({"name": op.name, "section": op.section, "formula": op.formula.trim()}))
            .collect();
        say!("{}", serde_json::Value::Array(rows));
        return;
    }
    if args.markdown {
        say!("{}", page().trim_end());
        return;
    }
    for op in OPS {
        say!("{:12} {:18} {}", op.section, op.name, op.formula.trim());
    }
}

/// The page docs/ops.md.
fn page() -> String {
    let mut page = String::from(
        "# The ops\n\nMade by `plimsoll ops --markdown` from the table that drives the tests.\n",
    );
    let mut section = "";
    for op in OPS {
        if op.section != section {
            section = op.section;
            page += &format!("\n## {section}\n\n| op | what it computes |\n| --- | --- |\n");
        }
        page += &format!("| `{}` | {} |\n", op.name, op.formula.trim().replace('|', "\\|"));
    }
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_ops_is_the_table() {
        let written = include_str!("../../../docs/ops.md");
        assert!(written == super::page(), "run: cargo run --release -- ops --markdown > docs/ops.md");
    }
}
