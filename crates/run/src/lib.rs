//! Turns op calls into results: tensors (eager and traced), the gradient tape, traced functions and training steps.
//!
//! The modules stand in the order in which data passes them; each imports only from those before it:
//!
//! ```text
//! scope, memory, error   names, figures and refusals
//! device, request        what runs kernels and how long they take; what is asked of memory
//! tensor                 eager tensors, the tape, tracing
//! trace                  a step's body -> a graph for so many samples
//! lower                  a graph -> the planner's problem -> a verified plan of it
//! choose                 a step and a memory limit -> the one `StepPlan`
//! program                a plan -> instructions at fixed offsets, and how they run
//! timeline               a program -> a record for people
//! execute                functions and steps over their state
//! ```
//!
//! What is not here: layers, optimizers, files.

mod scope;

mod memory;
mod peak;

mod error;

mod device;
mod request;

mod tensor;

mod trace;

mod lower;

mod choose;

mod program;

mod timeline;

mod execute;

pub use choose::{
    Frontier, FrontierPoint, MeasuredStep, PROGRAM, PlanFigures, StepPlan, StepPlanner, host_program,
    only_plans, undominated,
};
pub use device::{Counted, Device, MemoryInfo, Placement, Profile, Survey, Traffic};
pub use error::{Error, Result};
pub use execute::{Function, Mode, StateTensor, Step, function, profile_room};
pub use memory::{FixedMemory, HostAccount, HostInfeasible, Remedy};
pub use peak::Peak;
pub use plimsoll_cuda::Options as CudaOptions;
pub use plimsoll_graph::TensorOps;
pub use plimsoll_plan::Exactness;
pub use plimsoll_plan::{Job, in_turn, on_all_cores};
pub use plimsoll_record as record;
pub use plimsoll_record::Kind;
pub use request::{MemoryRequest, Precision};
pub use scope::{asked_at, asked_from, named, on_device};
pub use tensor::{
    HostUploader, OpCall, OpProfile, Sketch, Tape, Tensor, cond, profile, pull_back, scan, while_loop,
};
pub use trace::{StateSpec, StepArgs, StepFn, StepOptions, StepResult};
