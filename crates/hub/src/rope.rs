//! Turns a config's words on rotary embeddings into the angle of each pair of features.

use serde_json::Value;

use crate::fields::Fields;

/// How positions turn queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the wavelengths.
    pub theta: f64,
    /// Features of a head that are turned; the others stay as they are.
    pub features: usize,
    /// How the angles are stretched for longer contexts.
    pub scaling: Scaling,
}

/// How angles are stretched for longer contexts than a model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    Default,
    /// All by one factor.
    Linear {
        /// It.
        factor: f64,
    },
    /// Llama 3.1's: slow ones by a factor, fast ones not at all.
    Llama3 {
        /// What slow angles are divided by.
        factor: f64,
        /// Wavelengths above context / this are slow.
        low: f64,
        /// Wavelengths below context / this are fast.
        high: f64,
        /// The context that the model was first trained on.
        context: f64,
    },
    /// YaRN.
    Yarn {
        /// What slow angles are divided by.
        factor: f64,
        /// Turns within the context above which an angle is fast.
        beta_fast: f64,
        /// Turns within the context below which an angle is slow.
        beta_slow: f64,
        /// The context that the model was first trained on.
        context: f64,
        /// Whether the bounds between slow and fast are whole numbers.
        truncate: bool,
        /// What sines and cosines are multiplied by.
        attention: f64,
    },
    /// Phi-3's: a divisor for each angle, others for sequences longer than the first context.
    Long {
        /// Divisors up to the first context.
        short: Vec<f64>,
        /// Divisors beyond it.
        long: Vec<f64>,
        /// The context that the model was first trained on.
        context: usize,
        /// What sines and cosines are multiplied by.
        attention: f64,
    },
}

/// What a config says beside its words on rotary embeddings that they refer to.
pub(crate) struct Around {
    pub theta: f64,
    pub partial: f64,
    pub head: usize,
    /// `max_position_embeddings`.
    pub context: usize,
    /// `original_max_position_embeddings`, where it stands outside.
    pub original: Option<usize>,
}

impl Rope {
    /// Reads `rope_scaling` or `rope_parameters`; null is the default.
    pub(crate) fn read(value: Value, name: &str, around: &Around) -> Result<Rope, String> {
        let mut fields = Fields::new(value, &format!("{name}."))?;
        let kind = match (fields.text("rope_type")?, fields.text("type")?) {
            (Some(kind), _) | (None, Some(kind)) => kind,
            (None, None) => "default".into(),
        };
        let theta = fields.number("rope_theta")?.unwrap_or(around.theta);
        let partial = fields.number("partial_rotary_factor")?.unwrap_or(around.partial);
        if theta.is_nan() || theta <= 1.0 {
            return Err(format!("{name}: a base of {theta} gives no angles"));
        }
        if !(partial > 0.0 && partial <= 1.0) {
            return Err(format!("{name}: a part of {partial} of a head cannot be turned"));
        }
        let features = (around.head as f64 * partial) as usize;
        if features == 0 || features % 2 == 1 {
            return Err(format!("{name}: {features} features of a head cannot be turned in pairs"));
        }
        let scaling = Rope::scaling(&mut fields, &kind, name, around, features)?;
        // Written by tools that copy the parameter for other models; it repeats what stands outside.
        if matches!(scaling, Scaling::Default | Scaling::Linear { .. }) {
            fields.ignore(&["original_max_position_embeddings"]);
        }
        fields.finish()?;
        Ok(Rope { theta, features, scaling })
    }

    fn scaling(
        fields: &mut Fields,
        kind: &str,
        name: &str,
        around: &Around,
        features: usize,
    ) -> Result<Scaling, String> {
        let need = |fields: &mut Fields, field: &str| {
            let found = fields.number(field)?;
            found.filter(|x| *x > 0.0).ok_or_else(|| format!("{name}.{field} is missing or not above 0"))
        };
        Ok(match kind {
            "default" => Scaling::Default,
            // Stretches angles for sequences longer than `max_position_embeddings` alone, and longer ones are refused here.
            "dynamic" => {
                need(fields, "factor")?;
                Scaling::Default
            }
            "linear" => Scaling::Linear { factor: need(fields, "factor")? },
            "llama3" => Scaling::Llama3 {
                factor: need(fields, "factor")?,
                low: need(fields, "low_freq_factor")?,
                high: need(fields, "high_freq_factor")?,
                context: need(fields, "original_max_position_embeddings")?,
            },
            "yarn" => {
                let original = fields.number("original_max_position_embeddings")?;
                let context = original.or(around.original.map(|n| n as f64)).unwrap_or(around.context as f64);
                let factor = fields.number("factor")?.unwrap_or(around.context as f64 / context);
                let (mscale, all) = (fields.number("mscale")?, fields.number("mscale_all_dim")?);
                let of = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
                let own = match (mscale.filter(|m| *m != 0.0), all.filter(|m| *m != 0.0)) {
                    (Some(m), Some(all)) => of(m) / of(all),
                    _ => of(1.0),
                };
                Scaling::Yarn {
                    factor,
                    context,
                    beta_fast: fields.number("beta_fast")?.filter(|b| *b != 0.0).unwrap_or(32.0),
                    beta_slow: fields.number("beta_slow")?.filter(|b| *b != 0.0).unwrap_or(1.0),
                    truncate: fields.flag("truncate")?.unwrap_or(true),
                    attention: fields.number("attention_factor")?.unwrap_or(own),
                }
            }
            // Phi-3's first files call it "su" and, for the larger context, "yarn" with factors; the first is the same thing.
            "longrope" | "su" => {
                let original = fields.size("original_max_position_embeddings")?.or(around.original);
                let context = original.ok_or("original_max_position_embeddings is missing")?;
                let factor = fields.number("factor")?.unwrap_or(around.context as f64 / context as f64);
                let own = match factor <= 1.0 {
                    true => 1.0,
                    false => (1.0 + factor.ln() / (context as f64).ln()).sqrt(),
                };
                let attention = fields.number("attention_factor")?.unwrap_or(own);
                let mut divisors = |field: &str| {
                    let found = fields.numbers(field)?.ok_or_else(|| format!("{name}.{field} is missing"))?;
                    match found.len() == features / 2 && found.iter().all(|x| *x > 0.0) {
                        true => Ok(found),
                        false => Err(format!("{name}.{field} must be {} numbers above 0", features / 2)),
                    }
                };
                Scaling::Long {
                    short: divisors("short_factor")?,
                    long: divisors("long_factor")?,
                    context,
                    attention,
                }
            }
            other => {
                return Err(format!(
                    "{name} asks for {other:?}, which is not known here; default, linear, dynamic, llama3, yarn and longrope are"
                ));
            }
        })
    }

    /// The angle of each pair of features for one position, and what sines and cosines are multiplied by, for sequences up to a
    /// length. Computed in f32 where transformers does.
    pub fn angles(&self, length: usize) -> (Vec<f32>, f64) {
        let dim = self.features as f32;
        let power = |i: usize| (self.theta as f32).powf((2 * i) as f32 / dim);
        let plain: Vec<f32> = (0..self.features / 2).map(|i| 1.0 / power(i)).collect();
        match &self.scaling {
            Scaling::Default => (plain, 1.0),
            Scaling::Linear { factor } => (plain.iter().map(|x| x / *factor as f32).collect(), 1.0),
            Scaling::Llama3 { factor, low, high, context } => {
                let (slow, fast) = (context / low, context / high);
                let stretched = |&x: &f32| {
                    let wave = 2.0 * std::f32::consts::PI / x;
                    let factor = *factor as f32;
                    if wave > slow as f32 {
                        x / factor
                    } else if wave < fast as f32 {
                        x
                    } else {
                        let smooth = (*context as f32 / wave - *low as f32) / (high - low) as f32;
                        (1.0 - smooth) * x / factor + smooth * x
                    }
                };
                (plain.iter().map(stretched).collect(), 1.0)
            }
            Scaling::Yarn { factor, beta_fast, beta_slow, context, truncate, attention } => {
                let dim = self.features as f64;
                let at = |turns: f64| {
                    dim * (context / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * self.theta.ln())
                };
                let (mut from, mut to) = (at(*beta_fast), at(*beta_slow));
                if *truncate {
                    (from, to) = (from.floor(), to.ceil());
                }
                let (from, mut to) = (from.max(0.0), to.min(dim - 1.0));
                if from == to {
                    to += 0.001;
                }
                let blend = |i: usize| {
                    let ramp = ((i as f32 - from as f32) / (to - from) as f32).clamp(0.0, 1.0);
                    let kept = 1.0 - ramp;
                    1.0 / (*factor as f32 * power(i)) * (1.0 - kept) + plain[i] * kept
                };
                ((0..self.features / 2).map(blend).collect(), *attention)
            }
            Scaling::Long { short, long, context, attention } => {
                let divisors = if length > *context { long } else { short };
                let angle = |(i, d): (usize, &f64)| 1.0 / (*d as f32 * power(i));
                (divisors.iter().enumerate().map(angle).collect(), *attention)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const AROUND: Around =
        Around { theta: 500_000.0, partial: 1.0, head: 8, context: 131_072, original: None };

    #[test]
    fn llama_stretches_slow_angles_alone() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let rope = Rope::read(scaling, "rope_scaling", &AROUND).unwrap();
        let plain = Rope::read(Value::Null, "rope_scaling", &AROUND).unwrap();
        let ((scaled, _), (plain, _)) = (rope.angles(16), plain.angles(16));
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[3] * 8.0 - plain[3]).abs() < 1e-9, "{scaled:?} {plain:?}");
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let refusal = |value: Value| Rope::read(value, "rope_scaling", &AROUND).unwrap_err();
        assert!(refusal(json!({"type": "wavy", "factor": 2.0})).contains("\"wavy\""));
        let text = refusal(json!({"type": "linear", "factor": 2.0, "wobble": 3}));
        assert!(text.contains("rope_scaling.wobble = 3"), "{text}");
        assert!(refusal(json!({"type": "linear"})).contains("rope_scaling.factor"));
        assert!(refusal(json!({"type": "dynamic"})).contains("rope_scaling.factor"));
    }

    #[test]
    fn dynamic_stretches_nothing_up_to_the_context() {
        let dynamic = json!({"type": "dynamic", "factor": 2.0});
        let rope = Rope::read(dynamic, "rope_scaling", &AROUND).unwrap();
        assert_eq!(rope, Rope::read(Value::Null, "rope_scaling", &AROUND).unwrap());
    }
}
