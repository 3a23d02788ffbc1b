//! Planned and measured bytes by owner, as they stood when a run ended.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::{Kind, Schema, parse};

/// The ledger of a run (`ledger.json`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// The version of the schema.
    pub schema: Schema,
    /// One row an owner.
    pub rows: Vec<LedgerRow>,
}

/// One row of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerRow {
    /// What its bytes are for.
    pub kind: Kind,
    /// Whose.
    #[serde(default)]
    pub name: String,
    /// What the plan gives it.
    #[serde(default)]
    pub planned_bytes: u64,
    /// What it took when the run ended; none where nobody measured it by itself.
    #[serde(default)]
    pub measured_bytes: Option<u64>,
}

impl Ledger {
    /// Reads a ledger from the text of its file. Early files have the rows alone, without a version around them.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn parse(text: &str, file: &str) -> Result<Ledger> {
        if text.trim_start().starts_with('[') {
            return Ok(Ledger { rows: parse(text, file, false)?, ..Ledger::default() });
        }
        parse(text, file, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_a_version_are_read_as_those_with_one() {
        let rows = r#"[{"kind": "activation", "name": "arena", "planned_bytes": 5, "measured_bytes": null}]"#;
        let early = Ledger::parse(rows, "ledger.json").unwrap();
        let written = serde_json::to_string(&early).unwrap();
        assert!(written.starts_with("{\"schema\":2,\"rows\":["), "{written}");
        assert_eq!(Ledger::parse(&written, "ledger.json").unwrap(), early);
        assert_eq!((early.rows[0].kind, early.rows[0].planned_bytes), (Kind::Activation, 5));
        let other = Ledger::parse("{\"schema\": 3}", "run/ledger.json").unwrap_err().to_string();
        assert!(other.starts_with("run/ledger.json is a record of schema 3"), "{other}");
        let broken = Ledger::parse("[{\"kind\": \"none\"}]", "ledger.json").unwrap_err().to_string();
        assert!(broken.starts_with("ledger.json:1:") && broken.contains("none"), "{broken}");
    }
}
