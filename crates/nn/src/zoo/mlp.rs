//! Dense layers with relu between them.

use plimsoll_graph::TensorOps;
use plimsoll_run::{Result, Tensor};

use crate::Net;

/// Dense layers of these widths; the last has no activation.
#[track_caller]
pub fn mlp(net: &mut Net, x: &Tensor, widths: &[usize]) -> Result<Tensor> {
    net.together(|net| {
        let mut x = x.clone();
        for (i, &width) in widths.iter().enumerate() {
            x = net.dense(&format!("dense{}", i + 1), &x, width, true)?;
            if i + 1 < widths.len() {
                x = x.relu()?;
            }
        }
        Ok(x)
    })
}
