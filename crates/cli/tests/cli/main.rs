//! The command from outside: memory limits that are kept, runs that are killed, models that are used.

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
mod plan;
mod plan_cache;
mod report;
mod resume;
mod same_step;
mod ways_out;
mod wrong;
