//! Turns what a command spent its time on into a line of JSON and a few lines of text.

use std::time::{Duration, Instant};

use plimsoll::internals::device::stopwatch::{Lap, laps};
use serde_json::{Map, Value};

/// What this thread spent its time on since a command began.
pub struct TimeLog {
    laps: Vec<Lap>,
    all: Duration,
}

/// What takes less is not worth a line of its own.
const SHORT: Duration = Duration::from_millis(1);

impl TimeLog {
    /// As it stands now.
    pub fn since(start: Instant) -> TimeLog {
        let (mut laps, all) = (laps(), start.elapsed());
        let named: Duration = laps.iter().map(|lap| lap.time).sum();
        laps.sort_by_key(|lap| std::cmp::Reverse(lap.time));
        laps.push(Lap { what: "other", time: all.saturating_sub(named), count: 1 });
        TimeLog { laps, all }
    }

    /// Milliseconds by what they were spent on, and all together.
    pub fn json(&self) -> Value {
        let ms = |time: Duration| Value::from((time.as_secs_f64() * 1e4).round() / 10.0);
        let spent = self.laps.iter().map(|lap| (lap.what.replace(' ', "_"), ms(lap.time)));
        Value::Object(spent.chain([("all".to_string(), ms(self.all))]).collect::<Map<String, Value>>())
    }

    /// The same as text, a line each, what took most first.
    pub fn text(&self) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mut text = format!("{:.0} ms were spent on\n", ms(self.all));
        for Lap { what, time, count } in self.laps.iter().filter(|lap| lap.time >= SHORT) {
            let often = if *count > 1 { format!(" ({count} times)") } else { String::new() };
            text += &format!("  {:>8.1} ms  {what}{often}\n", ms(*time));
        }
        text
    }
}
