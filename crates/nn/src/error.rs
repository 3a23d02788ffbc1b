//! The error of a layer, loss or optimizer that was used wrongly.

use plimsoll_graph::Site;
use plimsoll_run::Error;

/// An error that says, after "this call", what the caller's line did wrong. Forward passes return the engine's errors.
#[track_caller]
pub fn refuse(why: impl Into<String>) -> Error {
    Error::Signature { site: Site::here(), why: why.into() }
}
