//! The command from outside: lines that are kept, runs that are killed, models that are used.

mod card;
mod common;
mod contract;
mod evening;
mod explain;
mod keras_training;
mod line;
mod live;
mod manners;
mod model;
mod plan;
mod report;
mod resume;
mod same_step;
mod wrong;
