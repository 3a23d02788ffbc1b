//! Turns Keras's learning-rate schedules into ours.

use plimsoll_nn::{Schedule, ScheduleShape as Shape};
use serde_json::Value;

use crate::error::Result;
use crate::named::Named;
use crate::settings::Settings;

/// A rate and how it changes: their product at a step is what Keras's schedule gives there.
pub(crate) fn read(value: &Value) -> Result<(f64, Schedule)> {
    let named = Named::read(value, "the learning rate")?;
    let s = named.settings("the learning rate");
    let shape = shape(&s)?;
    s.finish(&["name"])?;
    Ok((shape.0, Schedule { shape: shape.1, warm_up: 0, done: 0 }))
}

fn shape(s: &Settings<'_>) -> Result<(f64, Shape)> {
    let start = || s.number("initial_learning_rate");
    let length = |key: &str| s.positive(key);
    let factor = |key: &str, default: f64| s.at_least(key, default, 0.0);
    Ok(match s.class {
        "ExponentialDecay" => {
            let (every, stairs) = (length("decay_steps")?, s.flag("staircase", false)?);
            (start()?, Shape::Decay { every, factor: s.positive("decay_rate")?, stairs })
        }
        "InverseTimeDecay" => {
            let (every, stairs) = (length("decay_steps")?, s.flag("staircase", false)?);
            (start()?, Shape::Inverse { every, decay: factor("decay_rate", 0.0)?, stairs })
        }
        "PiecewiseConstantDecay" => {
            let ends = s.list("boundaries")?;
            let values = s.list("values")?;
            if ends.is_empty() || values.len() != ends.len() + 1 {
                return Err(
                    s.wrong("values", "it should be one more than the boundaries, which should not be none")
                );
            }
            if ends.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(s.wrong("boundaries", "each should be after the one before"));
            }
            let base = largest(&values);
            (base, Shape::Pieces { ends, factors: values.iter().map(|value| value / base).collect() })
        }
        "PolynomialDecay" => {
            let (from, to) = (start()?, s.number_or("end_learning_rate", 1e-4)?);
            let base = largest(&[from, to]);
            let shape = Shape::Slope {
                over: length("decay_steps")?,
                power: factor("power", 1.0)?,
                from: from / base,
                to: to / base,
                again: s.flag("cycle", false)?,
            };
            (base, shape)
        }
        "CosineDecay" => {
            let (from, fall, floor) = (start()?, length("decay_steps")?, s.number_or("alpha", 0.0)?);
            let rise = factor("warmup_steps", 0.0)?;
            if s.is_null("warmup_target") {
                return Ok((from, Shape::RampedCosine { rise: 0.0, fall, from: 1.0, floor }));
            }
            let top = s.positive("warmup_target")?;
            (top, Shape::RampedCosine { rise, fall, from: from / top, floor })
        }
        "CosineDecayRestarts" => {
            let shape = Shape::Restarts {
                first: length("first_decay_steps")?,
                longer: s.at_least("t_mul", 2.0, 1.0)?,
                lower: factor("m_mul", 1.0)?,
                floor: s.number_or("alpha", 0.0)?,
            };
            (start()?, shape)
        }
        _ => return Err(s.unsupported("which is not known here; name another rate")),
    })
}

/// The largest of some rates, to which the others are held; 1 where all are zero.
fn largest(rates: &[f64]) -> f64 {
    match rates.iter().fold(0.0f64, |most, rate| most.max(rate.abs())) {
        0.0 => 1.0,
        most => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What Keras says the rates are at the first steps; see tests/make_fixtures.py.
    #[test]
    fn every_schedule_of_keras_gives_kerass_rates() {
        let cases: Value = serde_json::from_str(include_str!("../tests/fixtures/schedules.json")).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() >= 14);
        for case in cases {
            let (base, schedule) = read(&case["schedule"]).unwrap();
            for (step, rate) in case["rates"].as_array().unwrap().iter().enumerate() {
                let (rate, found) = (rate.as_f64().unwrap(), schedule.rate(base, step as u64));
                let far = (found - rate).abs();
                assert!(far <= 1e-6 * base.abs(), "{}: {found}, Keras {rate} at {step}", case["schedule"]);
            }
        }
    }

    #[test]
    fn schedules_that_cannot_be_followed_are_refused_by_name() {
        let of = |class: &str, config: Value| json!({"module": "keras.optimizers.schedules", "class_name": class, "config": config, "registered_name": null});
        let own = json!({"module": null, "class_name": "ExponentialDecay", "config": {}, "registered_name": "My>ExponentialDecay"});
        for (value, expected) in [
            (own, "My>ExponentialDecay"),
            (of("Noam", json!({})), "Noam"),
            (
                of(
                    "ExponentialDecay",
                    json!({"initial_learning_rate": 0.1, "decay_steps": 0, "decay_rate": 0.5}),
                ),
                "decay_steps",
            ),
            (
                of("CosineDecay", json!({"initial_learning_rate": 0.1, "decay_steps": 9, "surprise": 1})),
                "surprise",
            ),
            (
                of(
                    "CosineDecayRestarts",
                    json!({"initial_learning_rate": 0.1, "first_decay_steps": 9, "t_mul": 0.5}),
                ),
                "t_mul",
            ),
            (of("PiecewiseConstantDecay", json!({"boundaries": [5, 3], "values": [1, 2, 3]})), "boundaries"),
        ] {
            let error = read(&value).unwrap_err().to_string();
            assert!(error.contains("the learning rate") && error.contains(expected), "{error}");
        }
    }
}
