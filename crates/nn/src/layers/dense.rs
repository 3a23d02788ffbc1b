//! Dense layers and embeddings.

use plimsoll_graph::{GatherOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::channels;
use crate::{Init, LayerKind, Net};

impl Net {
    /// x w + b over the last axis. Parameters: `weight` `[C, units]`, `bias`.
    #[track_caller]
    pub fn dense(&mut self, name: &str, x: &Tensor, units: usize, bias: bool) -> Result<Tensor> {
        let width = channels(x)?;
        let x = self.compute_in(name, x)?;
        let y = self.layer(name, |net| {
            let w = net.weight([width, units], width, units)?;
            let b = net.bias(bias, units, width)?;
            let (x, w) = net.rounded(&x, &w)?;
            x.matmul_with(&w, b.as_ref(), false, false)
        });
        self.note(name, LayerKind::Dense { units, bias }, &[&x], y)
    }

    /// Rows of a table, by index. Parameter: `table` `[rows, width]`, normal with deviation 1 as PyTorch's.
    #[track_caller]
    pub fn embedding(&mut self, name: &str, indices: &Tensor, rows: usize, width: usize) -> Result<Tensor> {
        self.embedding_from(name, indices, rows, width, Init::Normal(1.0))
    }

    /// As [`Net::embedding`], with another start.
    #[track_caller]
    pub fn embedding_from(
        &mut self,
        name: &str,
        indices: &Tensor,
        rows: usize,
        width: usize,
        init: Init,
    ) -> Result<Tensor> {
        // Rows are picked as f32 and rounded then: so their gradients are added up in f32, and no 16-bit table is
        // made.
        let y = self.layer(name, |net| {
            let dtype = net.dtype();
            net.master("table", [rows, width], init)?.embedding(indices)?.cast(dtype)
        });
        self.note(name, LayerKind::Embedding { rows, width }, &[indices], y)
    }
}
