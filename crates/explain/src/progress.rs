//! Turns the lines that training loops print into how far a run had come before it failed.
//!
//! A step that worked a hundred times and then does not fit is another case than one that never fitted.

/// How far the run had come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The highest number of a step.
    pub steps: u64,
    /// The highest number of an epoch.
    pub epochs: u64,
    /// Whether the log mentions Keras.
    pub keras: bool,
}

/// Words before a number, and whether they count epochs.
const WORDS: [(&str, bool); 5] =
    [("step", false), ("iteration", false), ("iter", false), ("batch", false), ("epoch", true)];

impl Progress {
    /// Takes a line of a log. Lines of allocators and stack traces are long or say nothing; only short ones are looked at.
    pub fn line(&mut self, line: &str) {
        if line.len() > 400 {
            return;
        }
        if !self.keras && (line.contains("keras") || line.contains("Keras")) {
            self.keras = true;
        }
        let bytes = line.as_bytes();
        for (at, pair) in bytes.windows(4).enumerate() {
            // The first letters decide quickly: st, it, ba, ep.
            let first = pair.first().copied().unwrap_or(0) | 0x20;
            if !matches!(first, b's' | b'i' | b'b' | b'e')
                || at.checked_sub(1).and_then(|i| bytes.get(i)).is_some_and(u8::is_ascii_alphabetic)
            {
                continue;
            }
            for (word, is_epoch) in WORDS {
                let Some(here) = bytes.get(at..at + word.len()) else { continue };
                if here.eq_ignore_ascii_case(word.as_bytes())
                    && let Some(number) = number(bytes.get(at + word.len()..).unwrap_or(&[]))
                {
                    let highest = if is_epoch { &mut self.epochs } else { &mut self.steps };
                    *highest = (*highest).max(number);
                    break;
                }
            }
        }
        // Keras's bar: `12/100 ━━━`.
        let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits > 0 && bytes.get(digits) == Some(&b'/') && (line.contains('━') || line.contains("[=")) {
            self.steps = self.steps.max(number(bytes).unwrap_or(0));
        }
    }

    /// Whether enough was done before to say that a step had fitted: the first steps may still build the state.
    pub fn had_worked(&self) -> bool {
        self.steps >= 8 || self.epochs >= 2
    }

    /// In words.
    pub fn words(&self) -> String {
        match (self.epochs, self.steps) {
            (0 | 1, steps) => format!("step {steps}"),
            (epochs, 0) => format!("epoch {epochs}"),
            (epochs, steps) => format!("epoch {epochs}, step {steps}"),
        }
    }
}

/// The number after a word, with at most a few signs between them.
fn number(bytes: &[u8]) -> Option<u64> {
    let skip = bytes.iter().take_while(|b| matches!(b, b' ' | b':' | b'=' | b'#' | b'[' | b'(')).count();
    let digits: &[u8] = bytes.get(skip..)?;
    let count = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    if skip > 4 || count == 0 || count > 9 {
        return None;
    }
    std::str::from_utf8(digits.get(..count)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lines: &[&str]) -> Progress {
        let mut progress = Progress::default();
        for line in lines {
            progress.line(line);
        }
        progress
    }

    #[test]
    fn the_usual_ways_of_counting_steps_are_read() {
        for line in [
            "step 12: loss 0.3",
            "[Step=12] x",
            "Iteration 12",
            "iter: 12",
            "12/100 ━━━━ 3s",
            "Epoch 1 batch (12/90)",
        ] {
            assert_eq!(after(&[line]).steps, 12, "{line}");
        }
        let epochs = after(&["Epoch 1/20", "Epoch 7/20", "Epoch: 3"]);
        assert_eq!((epochs.epochs, epochs.words()), (7, "epoch 7".to_string()));
    }

    #[test]
    fn other_numbers_are_no_steps() {
        for line in [
            "footstep 12",
            "steps",
            "step",
            "batch size 64",
            "2/3",
            "step of 9",
            "item 3",
            "step 99999999999999999999",
        ] {
            assert_eq!((after(&[line]).steps, after(&[line]).epochs), (0, 0), "{line}");
        }
    }
}
