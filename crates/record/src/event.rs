//! Something out of the ordinary in a run: one line of `events.jsonl`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Schema;
use crate::error::Result;
use crate::schema::accept;

/// Something out of the ordinary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// started, ended, replanned, skipped, saved, resumed, damaged, rehearsed, remarked or fault.
    pub event: Cow<'static, str>,
    /// Updates done before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// What happened, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What else belongs to it, by name.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Event {
    /// The event that a run, or what goes on of it, begins with. It says the version of the schema.
    pub fn started() -> Event {
        Event::new("started").with("schema", Schema::CURRENT.0)
    }

    /// An event of a name.
    pub fn new(event: &'static str) -> Event {
        Event { event: event.into(), ..Event::default() }
    }

    /// The same, after so many updates.
    pub fn at(self, step: u64) -> Event {
        Event { step: Some(step), ..self }
    }

    /// The same, with what happened in words.
    pub fn because(self, why: impl Into<String>) -> Event {
        Event { why: Some(why.into()), ..self }
    }

    /// The same, with something else that belongs to it.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Event {
        self.more.insert(name.into(), value.into());
        self
    }

    /// Reads the file, at most so many events of it. With how many lines could not be read.
    ///
    /// # Errors
    /// [`Error::Schema`](crate::Error::Schema) where an event says that it is of another version.
    pub fn from_lines(text: &str, file: &str, most: usize) -> Result<(Vec<Event>, u64)> {
        let (mut events, mut unread) = (Vec::new(), 0);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str::<Event>(line) {
                Ok(event) => {
                    accept(event.more.get("schema").and_then(Value::as_u64), file)?;
                    if events.len() < most {
                        events.push(event);
                    }
                }
                Err(_) => unread += 1,
            }
        }
        Ok((events, unread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_they_are_written_and_a_cut_line_is_counted() {
        let event = Event::new("saved").at(7).with("path", "model").because("asked");
        let text = format!(
            "{}\n{}\n{{\"event\": \"sav",
            serde_json::to_string(&Event::started()).unwrap(),
            serde_json::to_string(&event).unwrap()
        );
        let (events, unread) = Event::from_lines(&text, "events.jsonl", 10).unwrap();
        assert_eq!((&events[..], unread), (&[Event::started(), event][..], 1));
        assert_eq!(Event::from_lines(&text, "events.jsonl", 1).unwrap().0.len(), 1);
        let other = Event::from_lines("{\"event\": \"started\", \"schema\": 4}", "events.jsonl", 1);
        assert!(other.unwrap_err().to_string().starts_with("events.jsonl is a record of schema 4"));
    }
}
