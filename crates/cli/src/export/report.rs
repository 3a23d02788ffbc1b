//! What an export came to, as text and as JSON.

use plimsoll::tflite::Written;

use super::accuracy::Accuracy;

/// What was written, and how good it is.
pub struct Report {
    pub written: Written,
    /// Bytes of the file once it is compressed.
    pub compressed: u64,
    /// On which data ranges were found, and on how many samples.
    pub calibrated: Option<(String, usize)>,
    pub accuracy: Option<Accuracy>,
}

/// So many of the tensors that are furthest off are shown.
const SHOWN: usize = 8;

impl Report {
    pub fn json(&self, name: &str, to: &str) -> serde_json::Value {
        let found = &self.written;
        let floats: serde_json::Map<_, _> =
            found.floats.iter().map(|(op, n)| (op.clone(), (*n).into())).collect();
        let tensors: Vec<_> = found
            .errors
            .iter()
            .map(|e| {
                serde_json::json!({
                    "name": e.name, "op": e.op, "signal_to_noise_db": e.signal_to_noise, "mean_error": e.mean_error,
                    "largest": e.largest,
                })
            })
            .collect();
        let (arena, problem) = match &found.arena {
            Ok(bytes) => (Some(bytes), None),
            Err(why) => (None, Some(why)),
        };
        serde_json::json!({
            "model": name, "to": to, "bytes": found.bytes, "compressed_bytes": self.compressed, "ops": found.ops, "distance": found.distance, "float_ops": floats,
            "arena_bytes": arena, "layers_in_parts": found.in_parts, "not_run_by_lite": problem,
            "calibrated_on": self.calibrated.as_ref().map(|(data, _)| data),
            "calibration_samples": self.calibrated.as_ref().map(|(_, samples)| samples),
            "accuracy": self.accuracy, "tensors": tensors,
        })
    }

    pub fn print(&self, name: &str, to: &str, asked: usize) {
        let found = &self.written;
        let (bytes, compressed, ops) = (found.bytes, self.compressed, found.ops);
        say!("{to} is {name} as TensorFlow Lite: {bytes} bytes ({compressed} compressed), {ops} ops");
        match &found.arena {
            Ok(bytes) if found.in_parts > 0 => {
                let parts = found.in_parts;
                say!(
                    "plimsoll-lite runs it in an arena of {bytes} bytes, {parts} layers in parts of their channels"
                )
            }
            Ok(bytes) => say!("plimsoll-lite runs it in an arena of {bytes} bytes"),
            Err(why) => say!("plimsoll-lite does not run it: {why}"),
        }
        say!("its outputs differ from the model's by {:.1e} of the largest", found.distance);
        if let Some((data, samples)) = &self.calibrated {
            let fewer = match *samples < asked {
                true => format!(", which has no more; {asked} were asked for"),
                false => String::new(),
            };
            say!("ranges were found on {samples} samples of {data}{fewer}");
        }
        if let Some(accuracy) = &self.accuracy {
            accuracy.print();
        }
        if !found.errors.is_empty() {
            say!("furthest off, by signal to noise:");
            for e in found.errors.iter().take(SHOWN) {
                say!(
                    "  {:>6.1} dB  mean error {:<9.2e} of at most {:<9.2e} {}",
                    e.signal_to_noise,
                    e.mean_error,
                    e.largest,
                    e.name
                );
            }
        }
        if !found.floats.is_empty() {
            let list: Vec<String> = found.floats.iter().map(|(op, n)| format!("{n} {op}")).collect();
            say!(
                "in floating point, because they have no form in int8 or need more bits: {}",
                list.join(", ")
            );
        }
    }
}
