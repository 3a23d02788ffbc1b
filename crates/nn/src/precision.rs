//! In which element type a model computes.

use plimsoll_graph::DType;

/// A precision policy. Parameters, statistics and optimizer state are f32 under all of them; what differs is the type
/// in which weights are read and activations are kept.
///
/// Norms keep their statistics, losses their sums in f32 whatever they read. Half precision (`MixedF16`) has a narrow
/// range: small gradients vanish unless the loss is scaled. bfloat16 has f32's range and needs no scale.
///
/// ```
/// use plimsoll_nn::Precision;
/// assert_eq!(Precision::MixedBf16.compute().bytes(), 2);
/// assert!(Precision::MixedF16.needs_loss_scale() && !Precision::MixedBf16.needs_loss_scale());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Everything in f32.
    #[default]
    F32,
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
            Precision::MixedBf16 => DType::BF16,
            Precision::MixedF16 => DType::F16,
        }
    }

    /// Whether gradients underflow unless the loss is multiplied by a scale.
    pub const fn needs_loss_scale(self) -> bool {
        matches!(self, Precision::MixedF16)
    }
}
