//! A model of which only some weights are trained, chosen by the patterns of their names.
//!
//! What is not chosen has no gradient and no state of an optimizer; statistics that layers keep themselves (batch norm's) go on.

use std::sync::Arc;

use plimsoll_run::{Result, Tensor};

use crate::error::refuse;
use crate::{Model, Net, Outputs};

/// Weights by name: a list of patterns, of which one must fit.
///
/// A pattern fits a name or some consecutive parts of it: `head` fits `head/weight`, `layers.3` fits `model/layers/3/mlp/weight`. Parts are
/// told apart by `/` or `.`, which mean the same. `*` stands for any letters, `[01]` and `[a-f]` for one of some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patterns(Vec<String>);

impl Patterns {
    /// Patterns with commas between them.
    ///
    /// # Errors
    /// There is none, or one has a bracket that nothing closes.
    pub fn parse(text: &str) -> std::result::Result<Patterns, String> {
        let all: Vec<String> = text
            .split(',')
            .map(|part| part.trim().replace('/', "."))
            .filter(|part| !part.is_empty())
            .collect();
        if all.is_empty() {
            return Err(format!("{text:?} names no weights"));
        }
        for pattern in &all {
            let mut rest = pattern.as_str();
            while let Some(at) = rest.find('[') {
                let Some(end) = rest[at..].find(']') else {
                    return Err(format!("{pattern:?} has a '[' that no ']' closes"));
                };
                rest = &rest[at + end + 1..];
            }
        }
        Ok(Patterns(all))
    }

    /// Whether one of them fits a name.
    pub fn have(&self, name: &str) -> bool {
        let name = name.replace('/', ".");
        self.0.iter().any(|pattern| fits_part(pattern, &name))
    }

    /// A pattern that fits none of these names.
    pub fn unmatched(&self, names: &[String]) -> Option<&str> {
        self.idle(names).first().map(|pattern| pattern.as_str())
    }

    /// The patterns that fit none of these names.
    fn idle<'a>(&self, names: &'a [String]) -> Vec<&String> {
        let fits = |pattern: &String, name: &'a String| fits_part(pattern, &name.replace('/', "."));
        self.0.iter().filter(|pattern| !names.iter().any(|name| fits(pattern, name))).collect()
    }
}

/// Whether a pattern fits consecutive parts of a name.
fn fits_part(pattern: &str, name: &str) -> bool {
    let dots = || name.match_indices('.').map(|(at, _)| at);
    let starts = std::iter::once(0).chain(dots().map(|at| at + 1));
    starts.into_iter().any(|start| {
        let mut ends = dots().filter(|&end| end > start).chain([name.len()]);
        ends.any(|end| fits(pattern.as_bytes(), &name.as_bytes()[start..end]))
    })
}

/// Whether a pattern fits a whole text.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|at| fits(rest, &text[at..])),
        [b'[', rest @ ..] => {
            let (Some(end), [first, after @ ..]) = (rest.iter().position(|c| *c == b']'), text) else {
                return false;
            };
            one_of(&rest[..end], *first) && fits(&rest[end + 1..], after)
        }
        [own, rest @ ..] => {
            text.split_first().is_some_and(|(first, after)| first == own && fits(rest, after))
        }
    }
}

fn one_of(letters: &[u8], letter: u8) -> bool {
    match letters {
        [] => false,
        [low, b'-', high, rest @ ..] => (*low..=*high).contains(&letter) || one_of(rest, letter),
        [own, rest @ ..] => *own == letter || one_of(rest, letter),
    }
}

/// A model of which only the weights are trained that patterns name.
#[derive(Clone, Debug)]
pub struct TrainOnly<M> {
    model: M,
    patterns: Arc<Patterns>,
}

impl<M: Model> TrainOnly<M> {
    /// The model with the weights to train.
    pub fn new(model: M, patterns: Patterns) -> TrainOnly<M> {
        TrainOnly { model, patterns: Arc::new(patterns) }
    }
}

impl<M: Model> Model for TrainOnly<M> {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        net.train_only(&self.patterns);
        let outputs = self.model.forward(net, inputs)?;
        let Some(names) = net.found() else { return Ok(outputs) };
        let shown = |names: &[String]| {
            let some: Vec<&str> = names.iter().take(12).map(String::as_str).collect();
            format!("{}{}", some.join(", "), if names.len() > some.len() { ", …" } else { "" })
        };
        if let Some(pattern) = self.patterns.unmatched(&names) {
            return Err(refuse(format!(
                "is to train {pattern:?}, which no weight of the model is called; there are {}",
                shown(&names)
            )));
        }
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{DType, TensorOps, Type};

    use super::*;
    use crate::model;

    #[test]
    fn patterns_fit_parts_of_names() {
        for (pattern, name, is) in [
            ("head", "head/weight", true),
            ("head", "ahead/weight", false),
            ("layers.3[01].*", "model/layers/31/mlp/weight", true),
            ("layers.3[01].*", "model/layers/32/mlp/weight", false),
            ("layers/[2-3]", "layers.2.bias", true),
            ("block*/norm", "block12/norm/scale", true),
            ("block*/norm", "block12/conv/scale", false),
            ("weight", "a/weight", true),
            ("a, b", "b/x", true),
        ] {
            assert_eq!(Patterns::parse(pattern).unwrap().have(name), is, "{pattern} {name}");
        }
        assert!(Patterns::parse(" , ").unwrap_err().contains("no weights"));
        assert!(Patterns::parse("a[1").unwrap_err().contains("']'"));
    }

    #[test]
    fn only_what_is_named_is_trained_and_a_name_that_nobody_has_is_an_error() {
        let two = || {
            model(|net, x| {
                let y = net.dense("trunk", &x[0], 16, true)?.relu()?;
                net.dense("head", &y, 3, true)
            })
        };
        let input = [Type::new(DType::F32, [8, 4])];
        let params = Net::discover(&input, &TrainOnly::new(two(), Patterns::parse("head").unwrap())).unwrap();
        let trained: Vec<&str> = params.iter().filter(|p| p.trained).map(|p| p.name.as_str()).collect();
        assert_eq!(trained, ["head/weight", "head/bias"]);
        assert_eq!(params.len(), 4);
        let wrong = TrainOnly::new(two(), Patterns::parse("head,tail").unwrap());
        let error = Net::discover(&input, &wrong).unwrap_err().to_string();
        assert!(error.contains("\"tail\"") && error.contains("trunk/weight"), "{error}");
    }
}
