//! Turns a sequence of kernel calls into one CUDA graph, and replays it with a single call.

use std::sync::atomic::Ordering;

use cudarc::driver::sys;
use plimsoll_device::backend::{Fault, Recording};

use crate::card::cu;
use crate::error::Error;
use crate::{Cuda, Engine};

/// A captured sequence of calls, ready to be replayed.
#[derive(Debug)]
pub struct Graph {
    cuda: Cuda,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    nodes: usize,
    bytes: usize,
}

// SAFETY: handles of the driver, which locks its own state.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Cuda {
    /// Captures what `record` puts on the stream, without running it. All code must have been compiled: run the calls
    /// once before. Nothing inside may wait for the stream or copy from or to the host.
    ///
    /// # Errors
    /// The first error of `record`, or the driver's refusal.
    pub fn capture(&self, record: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        let card = self.card("a graph")?;
        self.synchronize()?;
        let (before, _) = card.memory()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        unsafe { cu!(cuStreamBeginCapture_v2(card.stream, mode)) }?;
        let recorded = record();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is live, and a capture that failed is ended too.
        let ended = unsafe { cu!(cuStreamEndCapture(card.stream, &mut graph)) };
        // From here on whatever was made goes with this value, however the rest turns out.
        let executable = std::ptr::null_mut();
        let mut captured = Graph { cuda: self.clone(), graph, executable, nodes: 0, bytes: 0 };
        self.0.graphs.fetch_add(1, Ordering::SeqCst);
        recorded?;
        ended?;
        // SAFETY: the graph is live; a null list asks for the number of nodes only.
        unsafe {
            cu!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut captured.nodes))?;
            cu!(cuGraphInstantiateWithFlags(&mut captured.executable, graph, 0))?;
            cu!(cuGraphUpload(captured.executable, card.stream))?;
            cu!(cuStreamSynchronize(card.stream))?;
        }
        let (after, _) = card.memory()?;
        captured.bytes = before.saturating_sub(after);
        Ok(captured)
    }
}

impl Graph {
    /// Puts the whole sequence on the stream.
    ///
    /// # Safety
    /// All memory that the captured calls use must be live until the stream has run it.
    ///
    /// # Errors
    /// The driver's refusal.
    pub unsafe fn replay(&self) -> Result<(), Error> {
        let Engine::Card(card) = &self.cuda.0.engine else { return Ok(()) };
        card.enter()?;
        // SAFETY: the caller's promise.
        unsafe { cu!(cuGraphLaunch(self.executable, card.stream)) }
    }

    /// The number of kernels, copies and fills.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Bytes of the card that the executable took.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Recording for Graph {
    unsafe fn replay(&self) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { Graph::replay(self) }.map_err(Error::into_fault)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nobody has the handles any more; those that were not made are null. A drop cannot report a refusal.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                let _ = sys::cuGraphDestroy(self.graph);
            }
        }
        self.cuda.0.graphs.fetch_sub(1, Ordering::SeqCst);
    }
}
