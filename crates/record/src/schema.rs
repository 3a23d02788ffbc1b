//! The version of a file, and the one way in which the text of a file becomes a record.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The version of the schema that a record is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schema(pub u32);

impl Schema {
    /// What is written. It is raised when a key changes its meaning or its name; a key more changes nothing, since readers ignore what
    /// they do not know. Version 1 is read too: it had `line_bytes` where there is `memory_limit_bytes` now.
    pub const CURRENT: Schema = Schema(2);

    /// What a file without a version was written in.
    const FIRST: u64 = 1;
}

impl Default for Schema {
    fn default() -> Schema {
        Schema::CURRENT
    }
}

/// Reads a record of any kind from the text of a file. `needed` says whether there can be no report without it, so that an
/// error says what to do.
///
/// ```
/// use plimsoll_record::{Error, Frontier, parse};
/// assert!(parse::<Frontier>(r#"{"points": []}"#, "frontier.json", false).is_ok());
/// let other = parse::<Frontier>(r#"{"schema": 7, "points": "unlike today"}"#, "frontier.json", false);
/// assert!(matches!(other, Err(Error::Schema { found: 7, known: 2, .. })));
/// ```
///
/// # Errors
/// [`Error::Schema`] for a record of another version, of which nothing else need be right; [`Error::Json`] where the text is not
/// that of such a record.
pub fn parse<T: DeserializeOwned>(text: &str, file: &str, needed: bool) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        schema: Option<u64>,
    }
    if let Ok(Version { schema }) = serde_json::from_str(text) {
        accept(schema, file)?;
    }
    serde_json::from_str(text).map_err(|error| Error::json(file, text, &error, needed))
}

/// Refuses a version that is not read here.
pub(crate) fn accept(schema: Option<u64>, file: &str) -> Result<()> {
    let (found, known) = (schema.unwrap_or(Schema::FIRST), Schema::CURRENT.0);
    if !(Schema::FIRST..=u64::from(known)).contains(&found) {
        return Err(Error::Schema { file: file.into(), found, known });
    }
    Ok(())
}
