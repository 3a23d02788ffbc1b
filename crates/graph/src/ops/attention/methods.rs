//! What can be called on a tensor: attention, as simple or as particular as it is wanted.

use super::Attention;
use crate::methods::TensorOps;
use crate::{DType, Scalar, Site};

/// What an attention does beside softmax(scale · q kᵀ) v.
#[derive(Debug)]
pub struct AttentionArgs<'a, T> {
    /// Whether query i sees the keys j ≤ i + (Tk − Tq) alone.
    pub causal: bool,
    /// What the products are multiplied by; 1/√D where nothing is said.
    pub scale: Option<f64>,
    /// An additive mask (−∞ hides a key), `[B or 1, H or 1, Tq or 1, Tk]`; leading axes may be left out.
    pub mask: Option<&'a T>,
    /// The first key that each query may see, integers `[B, Tq]`: where the text begins that it belongs to.
    pub starts: Option<&'a T>,
    /// Of the keys that a causal attention shows, only the last so many are seen, the query's own among them.
    pub window: Option<usize>,
    /// c, where scores are c · tanh(x / c) before the mask.
    pub cap: Option<f64>,
}

impl<T> Default for AttentionArgs<'_, T> {
    fn default() -> Self {
        AttentionArgs { causal: false, scale: None, mask: None, starts: None, window: None, cap: None }
    }
}

/// Attention over sequences.
///
/// ```
/// use plimsoll_graph::{AttentionOps, DType, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// // Two samples of 8 positions, 4 heads of 16 features each.
/// let [q, k, v] = ["q", "k", "v"].map(|name| trace.input(name, Type::new(DType::F32, [2, 8, 4, 16])));
/// let o = q.attention(&k, &v, None, true, None)?;
/// assert_eq!(o.shape().to_string(), "[2, 8, 4, 16]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait AttentionOps: TensorOps {
    /// softmax(scale · q kᵀ + mask) v, with this value `[B, Tq, H, D]` as q, k `[B, Tk, Hkv, D]`, v `[B, Tk, Hkv, Dv]`.
    ///
    /// The additive mask (−∞ hides a key) is `[B or 1, H or 1, Tq or 1, Tk]`; leading axes may be left out. With `causal`
    /// query i sees the keys j ≤ i + (Tk − Tq). The scale is 1/√D where none is given.
    #[track_caller]
    fn attention(
        &self,
        k: &Self,
        v: &Self,
        mask: Option<&Self>,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<Self, Self::Error> {
        self.attention_with(k, v, &AttentionArgs { causal, scale, mask, ..AttentionArgs::default() })
    }

    /// Attention with all that may be said of it.
    #[track_caller]
    fn attention_with(
        &self,
        k: &Self,
        v: &Self,
        args: &AttentionArgs<'_, Self>,
    ) -> Result<Self, Self::Error> {
        let site = Site::here();
        let features = self.shape().last().copied().unwrap_or(1).max(1);
        let scale = args.scale.unwrap_or(1.0 / (features as f64).sqrt());
        let op = Attention {
            mask: args.mask.is_some(),
            documents: args.starts.is_some(),
            window: args.window,
            cap: args.cap.map(Scalar),
            ..Attention::new(args.causal, scale)
        };
        let mut inputs = vec![self.clone(), k.clone(), v.clone()];
        if let Some(mask) = args.mask {
            let missing = 4usize.saturating_sub(mask.shape().rank());
            let whole =
                std::iter::repeat_n(1, missing).chain(mask.shape().iter().copied()).collect::<crate::Shape>();
            inputs.push(mask.reshape(whole)?);
        }
        if let Some(starts) = args.starts {
            inputs.push(starts.cast(DType::I32)?);
        }
        self.emit_one(op, &inputs.iter().collect::<Vec<_>>(), site)
    }
}

impl<T: TensorOps> AttentionOps for T {}
