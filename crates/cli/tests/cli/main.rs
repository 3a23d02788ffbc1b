//! The command from outside: lines that are kept, runs that are killed, models that are used.

mod card;
mod common;
mod contract;
mod explain;
mod keras_training;
mod line;
mod live;
mod model;
mod plan;
mod report;
mod resume;
