//! What can go wrong between model code and a graph.

use crate::{Site, Type};

/// An error of the graph stage: the user's input was wrong, or (for [`Error::Internal`]) the engine was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    // === The user's input ===
    /// An op was given inputs it does not take.
    #[error("{op} at {site}: {why}; its inputs are {}", list(inputs))]
    Shape {
        /// The op's name.
        op: &'static str,
        /// The line that asked for it.
        site: Site,
        /// The types of the inputs it was given.
        inputs: Vec<Type>,
        /// What does not fit.
        why: String,
    },
    /// A gradient was asked for through an op that has no rule for it.
    #[error("{op} at {site} has no gradient: {why}")]
    NoGradient {
        /// The op's name.
        op: &'static str,
        /// The line that made the op.
        site: Site,
        /// Why not, and what to do instead.
        why: String,
    },
    /// A gradient was asked for a value that does not influence the result.
    #[error("the gradient asked for at {site} does not exist: {why}")]
    NoPath {
        /// The line that asked.
        site: Site,
        /// Which value is not connected, and what to check.
        why: String,
    },
    /// Values of two traces met in one op.
    #[error(
        "{op} at {site}: its inputs belong to different traces; pass values into a function as arguments"
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

fn list(types: &[Type]) -> String {
    match types {
        [] => "none".into(),
        _ => types.iter().map(Type::to_string).collect::<Vec<_>>().join(" and "),
    }
}

/// The result of building a graph.
pub type Result<T, E = Error> = std::result::Result<T, E>;
