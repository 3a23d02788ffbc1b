//! Turns tensors, of which ranks may have pieces, into their bytes one after the other, through a small buffer.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_device::Peers;
use plimsoll_graph::TensorOps;
use plimsoll_nn::Pieces;
use plimsoll_run::Tensor;

use crate::error::Result;

/// Tensors of a device are read through a buffer of this size.
const STAGED_BYTES: usize = 1 << 16;

/// What tensors are read through, piece by piece.
#[derive(Default)]
pub(crate) struct Staged {
    buffer: Vec<u8>,
    /// Where of a tensor the bytes of the buffer begin, while one is read ahead.
    start: usize,
}

impl Staged {
    /// Another tensor is read next.
    pub(crate) fn forget(&mut self) {
        self.buffer.clear();
    }

    /// Hands on some bytes of this rank's tensor, read ahead: short pieces that follow each other are read at once.
    pub(crate) fn read(
        &mut self,
        tensor: &Tensor,
        range: Range<usize>,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            if !(self.start..self.start + self.buffer.len()).contains(&at) {
                self.buffer.resize(STAGED_BYTES.min(tensor.ty().bytes() - at), 0);
                self.start = at;
                tensor.read_bytes(at, &mut self.buffer)?;
            }
            let end = range.end.min(self.start + self.buffer.len());
            write(&self.buffer[at - self.start..end - self.start])?;
            at = end;
        }
        Ok(())
    }

    /// Hands on some bytes of a tensor: of this rank's, or of another's that sends them.
    pub(crate) fn copy(
        &mut self,
        tensor: &Tensor,
        at: usize,
        bytes: usize,
        of_rank: Option<(usize, &Arc<dyn Peers>)>,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        for start in (0..bytes).step_by(STAGED_BYTES) {
            self.buffer.resize(STAGED_BYTES.min(bytes - start), 0);
            if of_rank.is_none_or(|(rank, ranks)| ranks.rank().rank == rank) {
                tensor.read_bytes(at + start, &mut self.buffer)?;
            }
            if let Some((rank, ranks)) = of_rank {
                ranks.of_rank(rank, &mut self.buffer).map_err(crate::ranks::failed)?;
            }
            write(&self.buffer)?;
        }
        Ok(())
    }

    /// Hands on all bytes of a tensor of which each rank has its pieces.
    pub(crate) fn gather(
        &mut self,
        tensor: &Tensor,
        pieces: &Pieces,
        ranks: &Arc<dyn Peers>,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Pieces { units, stride, own } = pieces;
        let at_once = (STAGED_BYTES / own.len().max(1) / (*stride).max(1)).min(*units);
        if at_once <= 1 {
            for (unit, rank) in (0..*units).flat_map(|unit| (0..own.len()).map(move |rank| (unit, rank))) {
                self.copy(tensor, unit * stride, own[rank], Some((rank, ranks)), write)?;
            }
            return Ok(());
        }
        // Short units, several of each rank at once, and then in turn.
        for first in (0..*units).step_by(at_once) {
            let bytes = at_once.min(units - first) * stride;
            self.buffer.resize(bytes * own.len(), 0);
            for (rank, part) in self.buffer.chunks_exact_mut(bytes).enumerate() {
                if rank == ranks.rank().rank {
                    tensor.read_bytes(first * stride, part)?;
                }
                ranks.of_rank(rank, part).map_err(crate::ranks::failed)?;
            }
            for unit in (0..bytes).step_by(*stride) {
                for (part, own) in self.buffer.chunks_exact(bytes).zip(own) {
                    write(&part[unit..unit + own])?;
                }
            }
        }
        Ok(())
    }
}
