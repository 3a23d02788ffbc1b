//! Kernels through the backend that they are part of: what the table of examples cannot show, and graphs of several.
//!
//! Not in the crate itself: a test that reaches the backend has every kernel compiled again.

mod graphs;
mod indices_and_statistics;
mod recurrent;
