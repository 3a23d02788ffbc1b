//! What can go wrong between model code and a graph.

use crate::{Site, Type};

/// An error of the graph stage: the user's input was wrong, or (for [`Error::Internal`]) the engine was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    // === The user's input ===
    /// An op was given inputs it does not take.
    #[error("{op}{}{}: {why}; its inputs are {}", within(layer), site.at(), list(inputs))]
    Shape {
        /// The op's name.
        op: &'static str,
        /// The path of the layer that it is part of; empty where that is not known.
        layer: String,
        /// The line that asked for it.
        site: Site,
        /// The types of the inputs it was given.
        inputs: Vec<Type>,
        /// What does not fit.
        why: String,
    },
    /// A gradient was asked for through an op that has no rule for it.
    #[error("{op}{} has no gradient: {why}", site.at())]
    NoGradient {
        /// The op's name.
        op: &'static str,
        /// The line that made the op.
        site: Site,
        /// Why not, and what to do instead.
        why: String,
    },
    /// A gradient was asked for a value that does not influence the result.
    #[error("the gradient asked for{} does not exist: {why}", site.at())]
    NoPath {
        /// The line that asked.
        site: Site,
        /// Which value is not connected, and what to check.
        why: String,
    },
    /// Values of two traces met in one op.
    #[error(
        "{op}{}: its inputs belong to different traces; pass values into a function as arguments",
        site.at()
    )]
    ForeignValue {
        /// The op's name.
        op: &'static str,
        /// The line that asked for it.
        site: Site,
    },
    // === Broken invariants ===
    /// The engine broke a rule of its own.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// The same with the layer that the op is part of, and the user's line that asked for that, where those are not known yet.
    #[must_use]
    pub fn within(mut self, path: &str, asked: Option<Site>) -> Error {
        if let Error::Shape { layer, .. } = &mut self
            && layer.is_empty()
        {
            *layer = path.into();
        }
        if let Error::Shape { site, .. } | Error::NoGradient { site, .. } = &mut self
            && let (None, Some(asked)) = (site.of_user().filter(|site| !site.is_before), asked)
        {
            *site = asked;
        }
        self
    }
}

fn within(layer: &str) -> String {
    if layer.is_empty() { String::new() } else { format!(" in {layer}") }
}

fn list(types: &[Type]) -> String {
    match types {
        [] => "none".into(),
        _ => types.iter().map(Type::to_string).collect::<Vec<_>>().join(" and "),
    }
}

/// The result of building a graph.
pub type Result<T, E = Error> = std::result::Result<T, E>;
