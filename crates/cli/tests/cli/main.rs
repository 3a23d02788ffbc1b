//! The command from outside: memory limits that are kept, runs that are killed, models that are used.

mod allocator;
mod batch_auto;
mod card;
mod common;
mod contract;
mod daily_tools;
mod data;
mod devices;
mod doctor;
mod evening;
mod explain;
mod gradients_followed;
mod keras_training;
mod live;
mod manners;
mod memory_limit;
mod model;
mod parity;
mod placement;
mod plan;
mod profile;
mod report;
mod resume;
mod same_step;
mod wrong;
