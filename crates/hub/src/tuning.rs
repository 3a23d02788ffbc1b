//! What of a model is trained: all of it, nothing, or adapters beside some of its layers.

use crate::error::{Error, Result};

/// What of a model is trained.
#[derive(Clone, Debug, PartialEq)]
pub enum Tuning {
    /// Every weight, each kept in f32.
    Full,
    /// Nothing: weights are kept as they are stored.
    Frozen,
    /// Adapters of low rank; weights are kept as they are stored.
    Lora(Lora),
}

/// Adapters of low rank beside linear layers: y = W x + scale · B A x, where only A and B are trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rows of A, columns of B.
    pub rank: usize,
    /// The scale is alpha / rank.
    pub alpha: f64,
    /// Whether the scale is alpha / √rank instead.
    pub rank_stabilised: bool,
    /// The share of x that is dropped before A in training.
    pub dropout: f64,
    /// Whether each output of a layer has a magnitude that is trained beside the direction of its weights (DoRA).
    pub has_magnitudes: bool,
    /// The layers that have adapters.
    pub targets: Targets,
}

/// Layers by name.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// Every linear layer but the output.
    AllLinear,
    /// Layers whose name, or the end of it behind a dot, is one of these; `*` stands for any letters.
    Named(Vec<String>),
}

impl Lora {
    /// Adapters of a rank beside all linear layers, with alpha twice the rank and no dropout.
    pub fn new(rank: usize) -> Lora {
        Lora {
            rank,
            alpha: 2.0 * rank as f64,
            rank_stabilised: false,
            dropout: 0.0,
            has_magnitudes: false,
            targets: Targets::AllLinear,
        }
    }

    /// What B A x is multiplied by.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }

    /// Refuses values that mean nothing.
    pub fn check(&self) -> Result<()> {
        if self.rank == 0 {
            return Err(Error::Asked("adapters of rank 0 learn nothing; give a rank of at least 1".into()));
        }
        if !self.alpha.is_finite() || self.alpha == 0.0 {
            return Err(Error::Asked(format!("adapters scaled by an alpha of {} learn nothing", self.alpha)));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::Asked(format!("a share of {} cannot be dropped", self.dropout)));
        }
        match &self.targets {
            Targets::Named(names) if names.is_empty() => {
                Err(Error::Asked("no layers are named for adapters".into()))
            }
            _ => Ok(()),
        }
    }
}

impl Targets {
    /// Whether a linear layer of that name has an adapter.
    pub fn has(&self, layer: &str) -> bool {
        match self {
            Targets::AllLinear => layer != "lm_head",
            Targets::Named(names) => names.iter().any(|name| {
                // As PEFT: the whole name, or its end behind a dot.
                let ends = layer.match_indices('.').map(|(at, _)| &layer[at + 1..]);
                std::iter::once(layer).chain(ends).any(|end| fits(name, end))
            }),
        }
    }
}

/// Whether a text fits a pattern in which `*` stands for any letters.
pub fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut rest = rest;
    let mut last = None;
    for part in parts {
        if let Some(before) = last.replace(part) {
            let Some(at) = rest.find(before) else { return false };
            rest = &rest[at + before.len()..];
        }
    }
    match last {
        None => rest.is_empty(),
        Some(end) => rest.ends_with(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, text, is) in [
            ("q_proj", "q_proj", true),
            ("q_proj", "q_projx", false),
            ("*_proj", "gate_proj", true),
            ("layers.*.mlp.*", "layers.3.mlp.up", true),
            ("layers.*.mlp.*", "layers.3.attn.up", false),
            ("a*b", "ab", true),
            ("a*b", "a", false),
            ("*", "", true),
            ("a*b*c", "abbc", true),
        ] {
            assert_eq!(fits(pattern, text), is, "{pattern} {text}");
        }
    }

    #[test]
    fn layers_are_named_as_peft_names_them() {
        let named = Targets::Named(vec!["q_proj".into(), "layers.1.*".into()]);
        assert!(named.has("model.layers.0.self_attn.q_proj"));
        assert!(!named.has("model.layers.0.self_attn.k_proj"));
        assert!(named.has("model.layers.1.self_attn.k_proj"));
        assert!(Targets::AllLinear.has("transformer.h.0.attn.c_attn") && !Targets::AllLinear.has("lm_head"));
    }
}
