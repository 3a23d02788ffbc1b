//! What can be wrong with the text of a record.

/// An error of reading a record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A record of another version.
    #[error(
        "{file} is a record of schema {found}, and this plimsoll reads schema {known}; make the report with the plimsoll that wrote it, or write the record again with this one"
    )]
    Schema {
        /// Which file.
        file: String,
        /// What it says.
        found: u64,
        /// What is known here.
        known: u32,
    },
    /// A file that is no JSON, or not the JSON of its name.
    #[error("{file}:{line}:{column}: {why}: the file is damaged or was cut short; {}", if *needed {
        "write it again with plimsoll plan --out, or train again"
    } else {
        "move it away for a report without it"
    })]
    Json {
        /// Which file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The character in it, from 1, as an editor counts.
        column: usize,
        /// What is wrong there.
        why: String,
        /// Whether there can be no report without it.
        needed: bool,
    },
    /// A file is not what its name says.
    #[error("{file}: {why}")]
    Broken {
        /// Which file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    /// What is wrong with the text of a JSON file, and where as an editor counts: in characters, where the reader counts bytes.
    pub(crate) fn json(file: &str, text: &str, error: &serde_json::Error, needed: bool) -> Error {
        let line = error.line().max(1);
        let content = text.split('\n').nth(line - 1).unwrap_or_default();
        let before = error.column().saturating_sub(1).min(content.len());
        let column = content.char_indices().take_while(|(at, _)| *at < before).count() + 1;
        let said = error.to_string();
        let why = said.rsplit_once(" at line ").map_or(said.as_str(), |(why, _)| why).to_string();
        Error::Json { file: file.into(), line, column, why, needed }
    }
}

/// The result of reading a record.
pub type Result<T, E = Error> = std::result::Result<T, E>;
