//! What a person asks of memory: one value that the command line, files of settings and every front end make, and that is handed
//! on by reference until the planner reads it.

use plimsoll_device::Bytes;
use plimsoll_graph::DType;
use plimsoll_plan::Exactness;

use crate::device::Device;

/// How much memory a training may take, of what, and what may be changed to keep to it.
///
/// ```
/// use plimsoll_run::{Exactness, MemoryRequest};
/// let request = MemoryRequest { limit: Some("6GiB".parse().unwrap()), ..MemoryRequest::default() };
/// assert_eq!(request.exactness, Exactness::Reassociated);
/// ```
#[derive(Clone, Debug)]
pub struct MemoryRequest {
    /// The memory limit: the most that the process may take, as the system counts it; on a card, of the card's memory. Without one
    /// a step takes the least memory that is predicted to cost at most one percent of time over the fastest plan.
    pub limit: Option<Bytes>,
    /// On a card, the limit of the host's memory. To a trainer it is the most that the process may take of it, everything counted:
    /// the program with the card's driver and libraries, pipelines, staging, and with what is left a plan may offload activations and
    /// keep optimizer state there. To a step of one's own ([`StepOptions`](crate::StepOptions)) it is that rest: how much pinned memory
    /// its plan may use, taken once when it is compiled. None and zero mean that nothing is copied. On the CPU a step does not look at
    /// it, and to a trainer it is what its pipelines may take.
    pub host_limit: Option<Bytes>,
    /// How far a plan may depart from the bits of an unlimited run: whether the batch may be split.
    pub exactness: Exactness,
    /// Samples in a micro-batch, where that is not for the planner to choose.
    pub micro_batch: Option<usize>,
    /// In which element type a model computes.
    pub precision: Precision,
    /// Where it runs. Without a word, on the device of the scope, or on the best of the machine: see [`Device::best`].
    pub device: Option<Device>,
}

impl Default for MemoryRequest {
    /// No limit; batches may be split where that changes nothing but the order of sums; f32, on the best device.
    fn default() -> MemoryRequest {
        MemoryRequest {
            limit: None,
            host_limit: None,
            exactness: Exactness::Reassociated,
            micro_batch: None,
            precision: Precision::F32,
            device: None,
        }
    }
}

/// A precision policy. Parameters, statistics and optimizer state are f32 under all of them but `F64`; what differs is the
/// type in which weights are read and activations are kept.
///
/// Norms keep their statistics, losses their sums in f32 at least, whatever they read. Half precision (`MixedF16`) has a narrow
/// range: small gradients vanish unless the loss is scaled. bfloat16 has f32's range and needs no scale.
///
/// ```
/// use plimsoll_run::Precision;
/// assert_eq!(Precision::MixedBf16.compute().bytes(), 2);
/// assert!(Precision::MixedF16.needs_loss_scale() && !Precision::MixedBf16.needs_loss_scale());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Everything in f32.
    #[default]
    F32,
    /// Everything in f64, parameters and the optimizer's state too: to compare with other systems beyond rounding. On the CPU.
    F64,
    /// Weights are kept as bf16, and activations too: no copy in f32 is moved beside them. Only an optimizer whose state is bf16 moves such weights,
    /// rounded stochastically. Biases, norms and statistics stay f32.
    Bf16,
    /// Weights are read and activations kept as bf16.
    MixedBf16,
    /// Weights are read and activations kept as f16.
    MixedF16,
}

impl Precision {
    /// The type of activations and of weights as ops read them.
    pub const fn compute(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::F64 => DType::F64,
            Precision::Bf16 | Precision::MixedBf16 => DType::BF16,
            Precision::MixedF16 => DType::F16,
        }
    }

    /// The type of parameters, statistics and the optimizer's state; of weights it is [`Precision::weight`].
    pub const fn master(self) -> DType {
        self.compute().accumulator()
    }

    /// The type in which a parameter of so many axes is kept.
    pub const fn weight(self, axes: usize) -> DType {
        if matches!(self, Precision::Bf16) && axes > 1 { DType::BF16 } else { self.master() }
    }

    /// Whether gradients underflow unless the loss is multiplied by a scale.
    pub const fn needs_loss_scale(self) -> bool {
        matches!(self, Precision::MixedF16)
    }

    /// Its name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::F64 => "f64",
            Precision::Bf16 => "bf16",
            Precision::MixedBf16 => "mixed-bf16",
            Precision::MixedF16 => "mixed-f16",
        }
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    /// ```
    /// use plimsoll_run::Precision;
    /// assert_eq!("mixed-bf16".parse(), Ok(Precision::MixedBf16));
    /// assert!("f8".parse::<Precision>().is_err_and(|why| why.contains("use f32, f64, bf16, mixed-bf16 or mixed-f16")));
    /// ```
    fn from_str(name: &str) -> Result<Precision, String> {
        let all =
            [Precision::F32, Precision::F64, Precision::Bf16, Precision::MixedBf16, Precision::MixedF16];
        let known = all.into_iter().find(|precision| precision.name() == name);
        known.ok_or_else(|| {
            format!("there is no precision {name}; use f32, f64, bf16, mixed-bf16 or mixed-f16")
        })
    }
}
