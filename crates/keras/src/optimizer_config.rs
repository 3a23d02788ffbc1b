//! Turns an optimizer's configuration in a file into the optimizer, its schedule and its bounds.

use plimsoll_nn::{Ftrl, Schedule, ScheduleShape};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::named::Named;
use crate::optimizer::{GROWTH, KerasOptimizer, Part, Rule};
use crate::optimizer_more::{Adafactor, Muon, ScheduleFree};
use crate::schedule;
use crate::settings::Settings;

const PLACE: &str = "the optimizer";
/// Settings that change nothing: names, how updates are compiled, and what belongs to averages where there are none.
const IDLE: [&str; 5] =
    ["name", "ema_momentum", "ema_overwrite_frequency", "jit_compile", "is_legacy_optimizer"];

/// What a file says of an optimizer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OptimizerConfig {
    pub optimizer: KerasOptimizer,
    /// The largest norm of all gradients together.
    pub clip: Option<f64>,
    pub schedule: Schedule,
    /// Whether the rate is a schedule's: else it is one of the optimizer's variables.
    pub is_scheduled: bool,
    /// What the loss is scaled by at first, where a `LossScaleOptimizer` is around the optimizer.
    pub scale: Option<f64>,
}

impl OptimizerConfig {
    /// Reads `{"class_name": …, "config": {…}}`.
    pub(crate) fn read(value: &Value) -> Result<OptimizerConfig> {
        let named = Named::read(value, PLACE)?;
        if named.is_word {
            let why = "the file names it without its settings; name an optimizer";
            return Err(Error::config(PLACE, format!("{}: {why}", named.name)));
        }
        let s = named.settings(PLACE);
        if named.name == "MultiOptimizer" {
            return several(&s);
        }
        if !["LossScaleOptimizer", "LossScaleOptimizerV3"].contains(&named.name) {
            return plain(&s);
        }
        let inner = s.get("inner_optimizer");
        if inner
            .get("class_name")
            .is_none_or(|class| class.as_str().is_none_or(|c| c.starts_with("LossScale")))
        {
            return Err(s.wrong("inner_optimizer", "an optimizer should be inside"));
        }
        if !s.flag("dynamic", true)? {
            return Err(s.wrong("dynamic", "only a scale that adapts itself is taken"));
        }
        let growth = s.units_or("dynamic_growth_steps", GROWTH as usize)?;
        let scale = if s.is_null("initial_scale") { 32768.0 } else { s.positive("initial_scale")? };
        // Older files hold what any optimizer has, and what an outer one does not use.
        s.finish(&[&IDLE[..], &["learning_rate"]].concat())?;
        let mut found = OptimizerConfig { scale: Some(scale), ..OptimizerConfig::read(inner)? };
        found.optimizer.growth = Some(growth as u64);
        Ok(found)
    }
}

/// An optimizer that hands each parameter to one of several. Which to which is said by patterns, or by a function, so that only a live
/// model knows it, which adds it under `assigned`: optimizers, each with where its parameters are stored.
fn several(s: &Settings<'_>) -> Result<OptimizerConfig> {
    let Some(list) = s.get("assigned").as_array().filter(|list| !list.is_empty()) else {
        let why = "which chooses by patterns or by a function, which is known of live models alone; train the model from Python";
        return Err(s.unsupported(why));
    };
    let mut parts = Vec::with_capacity(list.len());
    for value in list {
        let own = OptimizerConfig::read(value.get("optimizer").unwrap_or(&Value::Null))?;
        let optimizer = own.optimizer;
        let is_plain = own.clip.is_none()
            && own.scale.is_none()
            && !own.is_scheduled
            && own.schedule == Schedule::constant()
            && optimizer.parts.is_empty()
            && optimizer.average.is_none()
            && optimizer.accumulate.is_none()
            && !matches!(optimizer.rule, Rule::Nadam { .. });
        if !is_plain {
            let why = "of which one has a schedule, an average of weights, global_clipnorm, gradient_accumulation_steps or is Nadam: \
                       that is not supported inside";
            return Err(s.unsupported(why));
        }
        let paths = value.get("paths").and_then(Value::as_array).into_iter().flatten();
        let paths = paths.filter_map(|path| path.as_str().map(str::to_string)).collect();
        parts.push(Part { optimizer, paths, names: Vec::new() });
    }
    for key in ["optimizer_map", "loss_scale_factor"] {
        s.get(key);
    }
    s.finish(&IDLE)?;
    let optimizer = KerasOptimizer {
        rule: Rule::Sgd { momentum: 0.0, nesterov: false },
        clip_norm: None,
        clip_value: None,
        lr: 0.0,
        weight_decay: None,
        average: None,
        accumulate: None,
        growth: None,
        parts,
    };
    Ok(OptimizerConfig {
        optimizer,
        clip: None,
        schedule: Schedule::constant(),
        is_scheduled: false,
        scale: None,
    })
}

fn plain(s: &Settings<'_>) -> Result<OptimizerConfig> {
    // A loss that is scaled, and gradients that are scaled back, are what they were.
    s.get("loss_scale_factor");
    let often = |key: &str| if s.is_null(key) { Ok(None) } else { s.units(key).map(|n| Some(n as u64)) };
    let average = match s.flag("use_ema", false)? {
        true => Some((s.rate_or("ema_momentum", 0.99)?, often("ema_overwrite_frequency")?)),
        false => None,
    };
    let accumulate = often("gradient_accumulation_steps")?;
    if accumulate.is_some() && !s.is_null("global_clipnorm") {
        return Err(s.wrong("global_clipnorm", "with gradient_accumulation_steps this is not supported"));
    }
    if accumulate.is_some() && (average.is_some() || is_schedule(s.get("learning_rate"))) {
        let why = "with averages of the weights or a schedule this is not supported";
        return Err(s.wrong("gradient_accumulation_steps", why));
    }
    let rule = rule(s)?;
    let (lr, schedule) = rate(s, &rule)?;
    let bound = |key: &str| if s.is_null(key) { Ok(None) } else { s.number(key).map(Some) };
    let optimizer = KerasOptimizer {
        rule,
        lr,
        weight_decay: bound("weight_decay")?,
        clip_norm: bound("clipnorm")?,
        clip_value: bound("clipvalue")?,
        average,
        accumulate,
        growth: None,
        parts: Vec::new(),
    };
    let clip = bound("global_clipnorm")?;
    s.finish(&IDLE)?;
    let is_scheduled = is_schedule(s.get("learning_rate"));
    Ok(OptimizerConfig { optimizer, schedule, is_scheduled, clip, scale: None })
}

fn rule(s: &Settings<'_>) -> Result<Rule> {
    let beta = |key: &str, default: f64| s.rate_or(key, default);
    let eps = || s.number_or("epsilon", 1e-7);
    let momentum = || s.number_or("momentum", 0.0);
    let betas = |second: f64| Ok::<_, Error>((beta("beta_1", 0.9)?, beta("beta_2", second)?));
    Ok(match s.class {
        "SGD" => Rule::Sgd { momentum: momentum()?, nesterov: s.flag("nesterov", false)? },
        "Adam" | "AdamW" => {
            let (beta1, beta2) = betas(0.999)?;
            Rule::Adam { beta1, beta2, eps: eps()?, amsgrad: s.flag("amsgrad", false)? }
        }
        "Nadam" => {
            let (beta1, beta2) = betas(0.999)?;
            Rule::Nadam { beta1, beta2, eps: eps()? }
        }
        "Adamax" => {
            let (beta1, beta2) = betas(0.999)?;
            Rule::Adamax { beta1, beta2, eps: eps()? }
        }
        "RMSprop" => Rule::RmsProp {
            rho: beta("rho", 0.9)?,
            momentum: momentum()?,
            eps: eps()?,
            centered: s.flag("centered", false)?,
        },
        "Adagrad" => Rule::Adagrad { start: s.number_or("initial_accumulator_value", 0.1)?, eps: eps()? },
        "Adadelta" => Rule::Adadelta { rho: beta("rho", 0.95)?, eps: eps()? },
        "Ftrl" => {
            let power = s.number_or("learning_rate_power", -0.5)?;
            if power > 0.0 {
                return Err(s.wrong("learning_rate_power", "it should be 0 or less"));
            }
            Rule::Ftrl(Ftrl {
                lr: 0.0,
                power,
                start: s.at_least("initial_accumulator_value", 0.1, 0.0)?,
                l1: s.at_least("l1_regularization_strength", 0.0, 0.0)?,
                l2: s.at_least("l2_regularization_strength", 0.0, 0.0)?,
                shrinkage: s.at_least("l2_shrinkage_regularization_strength", 0.0, 0.0)?,
                beta: s.number_or("beta", 0.0)?,
            })
        }
        "Lamb" => {
            let (beta1, beta2) = betas(0.999)?;
            Rule::Lamb { beta1, beta2, eps: eps()? }
        }
        "Muon" => {
            if s.get("exclude_layers").as_array().is_some_and(|list| !list.is_empty()) {
                return Err(s.wrong("exclude_layers", "patterns of names are not supported"));
            }
            let decay = s.get("adam_weight_decay");
            Rule::Muon(Muon {
                beta1: beta("adam_beta_1", 0.9)?,
                beta2: beta("adam_beta_2", 0.999)?,
                eps: eps()?,
                adam_decay: if decay.is_null() { None } else { Some(s.number("adam_weight_decay")?) },
                adam_ratio: s.number_or("adam_lr_ratio", 1.0)?,
                coefficients: [
                    s.number_or("muon_a", 3.4445)?,
                    s.number_or("muon_b", -4.7750)?,
                    s.number_or("muon_c", 2.0315)?,
                ],
                momentum: s.number_or("momentum", 0.95)?,
                steps: s.units_or("ns_steps", 5)?.min(64),
                nesterov: s.flag("nesterov", true)?,
                rms: if s.is_null("rms_rate") { None } else { Some(s.number("rms_rate")?) },
                spares_embeddings: s.flag("exclude_embeddings", true)?,
            })
        }
        "Adafactor" => {
            s.flag("relative_step", true)?;
            Rule::Adafactor(Adafactor {
                decay: s.number_or("beta_2_decay", -0.8)?,
                eps1: s.number_or("epsilon_1", 1e-30)?,
                eps2: s.number_or("epsilon_2", 1e-3)?,
                clip: if s.is_null("clip_threshold") { 1.0 } else { s.positive("clip_threshold")? },
            })
        }
        "ScheduleFreeAdamW" => {
            let (beta1, beta2) = betas(0.999)?;
            if beta1 == 0.0 {
                return Err(s.wrong("beta_1", "it should be above 0, since Keras divides by it"));
            }
            Rule::ScheduleFree(ScheduleFree {
                beta1,
                beta2,
                eps: s.number_or("epsilon", 1e-8)?,
                warm_up: s.at_least("warmup_steps", 0.0, 0.0)?,
            })
        }
        "Lion" => {
            let (beta1, beta2) = betas(0.99)?;
            Rule::Lion { beta1, beta2 }
        }
        _ => return Err(s.unsupported("which is not known here; name another optimizer")),
    })
}

/// Whether a rate is a schedule, and not a number that NumPy or a tensor made.
fn is_schedule(rate: &Value) -> bool {
    rate.get("class_name").is_some_and(|class| class != "__numpy__" && class != "__tensor__")
}

/// The learning rate and how it changes. Keras 2 called it `lr`, and divided it by 1 + decay · t.
fn rate(s: &Settings<'_>, rule: &Rule) -> Result<(f64, Schedule)> {
    let value = s.get("learning_rate");
    let decay = s.at_least("decay", 0.0, 0.0)?;
    // In Keras 2, Nadam's decay was one of its momentum, by another formula than today's.
    if decay != 0.0 && (is_schedule(value) || matches!(rule, Rule::Nadam { .. })) {
        return Err(s.wrong("decay", "this is not supported here; name a rate and a schedule"));
    }
    if is_schedule(value) {
        return schedule::read(value);
    }
    let key = if value.is_null() { "lr" } else { "learning_rate" };
    if s.is_null(key) {
        return Err(s.wrong("learning_rate", "it should be a number or a schedule"));
    }
    let lr = s.number_or(key, 0.0)?;
    if !s.is_null("lr") && s.number("lr")? != lr {
        return Err(s.wrong("lr", "the file names two learning rates"));
    }
    Ok(match decay {
        0.0 => (lr, Schedule::constant()),
        decay => {
            let shape = ScheduleShape::Inverse { every: 1.0, decay, stairs: false };
            (lr, Schedule { shape, warm_up: 0, done: 0 })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(class: &str, config: Value) -> Value {
        json!({"module": "keras.optimizers", "class_name": class, "config": config, "registered_name": null})
    }

    #[test]
    fn rates_of_old_files_are_those_they_name() {
        let old = json!({"class_name": "SGD", "config": {"lr": 0.05, "momentum": 0.5, "decay": 0.25, "nesterov": false}});
        let found = OptimizerConfig::read(&old).unwrap();
        assert_eq!((found.optimizer.lr, found.is_scheduled), (0.05, false));
        assert_eq!(found.schedule.rate(0.05, 0), 0.05);
        assert_eq!(found.schedule.rate(0.05, 4), 0.025);
        let none = OptimizerConfig::read(&of("Adam", json!({}))).unwrap_err().to_string();
        assert!(none.contains("learning_rate"), "{none}");
    }

    #[test]
    fn what_an_optimizer_cannot_obey_is_refused_by_name() {
        for (class, config, expected) in [
            ("SGD", json!({"learning_rate": 0.1, "surprise": 2}), "surprise"),
            (
                "SGD",
                json!({"learning_rate": 0.1, "use_ema": true, "ema_overwrite_frequency": 0}),
                "ema_overwrite_frequency",
            ),
            ("SGD", json!({"learning_rate": 0.1, "beta_1": 0.5}), "beta_1"),
            ("SGD", json!({"learning_rate": 0.1, "lr": 0.2}), "two learning rates"),
            (
                "Adam",
                json!({"learning_rate": 0.1, "gradient_accumulation_steps": 4, "global_clipnorm": 1.0}),
                "gradient_accumulation_steps",
            ),
            ("Nadam", json!({"learning_rate": 0.1, "decay": 0.004}), "decay"),
            ("Muon", json!({"learning_rate": 0.1, "exclude_layers": ["head"]}), "exclude_layers"),
            ("Newton", json!({"learning_rate": 0.1}), "Newton"),
            ("LossScaleOptimizer", json!({"inner_optimizer": null}), "inner_optimizer"),
            ("MultiOptimizer", json!({"optimizer_map": {}}), "MultiOptimizer"),
            (
                "MultiOptimizer",
                json!({"assigned": [{"optimizer": of("SGD", json!({"learning_rate": 0.1, "use_ema": true})), "paths": []}]}),
                "average of weights",
            ),
            ("ScheduleFreeAdamW", json!({"learning_rate": 0.1, "beta_1": 0.0}), "beta_1"),
            ("Adafactor", json!({"learning_rate": 0.1, "clip_threshold": -1.0}), "clip_threshold"),
        ] {
            let error = OptimizerConfig::read(&of(class, config)).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(PLACE), "{error}");
        }
        let own = json!({"module": null, "class_name": "SGD", "config": {"learning_rate": 0.1}, "registered_name": "My>SGD"});
        assert!(OptimizerConfig::read(&own).unwrap_err().to_string().contains("My>SGD"));
        assert!(OptimizerConfig::read(&json!("sgd")).unwrap_err().to_string().contains("sgd"));
    }
}
