//! How an optimizer's state is kept: in f32, or in fewer bits, which only a user's word can ask for.

use std::str::FromStr;
use std::sync::Arc;

use super::{Bf16State, EightBit, Optimizer};

/// What an optimizer keeps its state as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Kept {
    /// As the parameters are: f32.
    #[default]
    F32,
    /// In bf16, rounded stochastically: see [`Bf16State`].
    Bf16,
    /// As bytes with a scale for every 256: see [`EightBit`].
    EightBit,
}

impl Kept {
    /// Those that are narrower than f32, the narrowest first.
    pub const NARROW: [Kept; 2] = [Kept::EightBit, Kept::Bf16];

    /// Its name: `f32`, `bf16`, `8bit`.
    pub fn name(self) -> &'static str {
        match self {
            Kept::F32 => "f32",
            Kept::Bf16 => "bf16",
            Kept::EightBit => "8bit",
        }
    }

    /// Its name in a sentence: `8-bit state`.
    pub fn state(self) -> &'static str {
        match self {
            Kept::F32 => "f32 state",
            Kept::Bf16 => "bf16 state",
            Kept::EightBit => "8-bit state",
        }
    }

    /// What it does, in a sentence.
    pub fn change(self) -> &'static str {
        match self {
            Kept::F32 => "the optimizer's state in f32",
            Kept::Bf16 => "the optimizer's state in bf16, rounded stochastically",
            Kept::EightBit => {
                "the optimizer's state as bytes with a scale for every 256, but for tensors under 4096 elements"
            }
        }
    }

    /// An optimizer around one that gives a rule for some parameter.
    pub(super) fn around(self, inner: impl Optimizer + 'static) -> Arc<dyn Optimizer> {
        match self {
            Kept::F32 => Arc::new(inner),
            Kept::Bf16 => Arc::new(Bf16State::new(inner)),
            Kept::EightBit => Arc::new(EightBit::new(inner)),
        }
    }
}

impl FromStr for Kept {
    type Err = String;

    fn from_str(name: &str) -> Result<Kept, String> {
        let all = [Kept::F32, Kept::Bf16, Kept::EightBit];
        let known = all.into_iter().find(|kept| kept.name() == name);
        known.ok_or_else(|| format!("{name} is no way to keep an optimizer's state; use f32, bf16 or 8bit"))
    }
}

/// How an optimizer is made that keeps the state of another one in another form.
macro_rules! around_inner {
    ($optimizer:ident, $kept:expr) => {
        impl $optimizer {
            /// An optimizer with its state in this form; none where it has no such form: its state is no such mean, or it keeps none.
            pub fn of(optimizer: &(impl Optimizer + ?Sized)) -> Option<Arc<dyn Optimizer>> {
                optimizer.with_state($kept)
            }

            pub(super) fn new(inner: impl Optimizer + 'static) -> $optimizer {
                $optimizer { inner: Arc::new(inner) }
            }
        }
    };
}

/// What such an optimizer leaves to the other one, and which form its state has, in its name too.
macro_rules! kept_as {
    ($kept:expr, $form:literal) => {
        /// Its state is not that of the optimizer in f32, and a checkpoint of one is not one of the other.
        fn name(&self) -> &'static str {
            match self.inner.name() {
                "adam" => concat!("adam-", $form),
                "lion" => concat!("lion-", $form),
                _ => concat!("sgd-", $form),
            }
        }

        fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
            self.inner.prepare(count, rate)
        }

        fn with_state(&self, kept: Kept) -> Option<Arc<dyn Optimizer>> {
            self.inner.with_state(kept)
        }

        fn kept(&self) -> Kept {
            $kept
        }
    };
}

pub(super) use {around_inner, kept_as};
