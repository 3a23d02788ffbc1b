//! The command from outside: memory limits that are kept, runs that are killed, models that are used.

mod card;
mod common;
mod contract;
mod data;
mod evening;
mod explain;
mod keras_training;
mod live;
mod manners;
mod memory_limit;
mod model;
mod plan;
mod report;
mod resume;
mod same_step;
mod wrong;
