//! Which kernels an op of a device is run with: its own, or the host's. One answer for eager ops, plans and what runs them.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use plimsoll_device::Bytes;
use plimsoll_device::backend::{Backend, Unsupported};
use plimsoll_graph::{Graph, Node, Op, Site, Type, ValueId};
use smallvec::SmallVec;

use super::exchanges::Exchanges;
use super::host_ops::HostOps;
use super::{Device, Placement};
use crate::error::{Error, Result};
use crate::scope::asked_device;

/// A wish for layers by name.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    layers: String,
    device: String,
    is_met: bool,
}

impl Wish {
    /// Whether it is for the layer at a path, or for one around it.
    fn names(&self, path: &str) -> bool {
        match self.layers.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => {
                path.strip_prefix(&self.layers).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}

/// Where an op runs, and why there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) on_host: bool,
    pub(crate) why: Cow<'static, str>,
    /// Bytes of scratch that it needs on the device.
    pub(crate) scratch: usize,
}

impl Device {
    /// Lets ops for which a device has no kernel run on the host instead of being an error, and asks for devices that there are not be
    /// met by the one that there is: soft placement. Each such op copies what it reads to the host and what it makes back, and a
    /// program with one is not recorded. [`Device::placements`] and `plimsoll plan --log-placement` tell which they are.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let device = Device::cpu_with(1, "1MiB".parse().unwrap())?;
    /// device.soft_placement(true);
    /// assert!(device.is_softly_placed());
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn soft_placement(&self, on: bool) {
        self.0.soft.store(on, Ordering::Relaxed);
    }

    /// Whether [`Device::soft_placement`] is on.
    pub fn is_softly_placed(&self) -> bool {
        self.0.soft.load(Ordering::Relaxed)
    }

    /// Asks for a device for the ops of layers by name, as [`on_device`](crate::on_device) does in code: a layer's path, which names all
    /// layers in it too, or the beginning of one with a `*` behind it. What code asks for goes before; of two wishes the first counts.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let device = Device::cpu_with(1, "1MiB".parse().unwrap())?;
    /// device.place("block*", "cpu");
    /// assert_eq!(device.unmet_wishes(), ["block*"]);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn place(&self, layers: &str, device: &str) {
        let wish = Wish { layers: layers.into(), device: device.into(), is_met: false };
        self.wishes().push(wish);
    }

    /// The names of [`Device::place`] that no op so far was of.
    pub fn unmet_wishes(&self) -> Vec<String> {
        self.wishes().iter().filter(|wish| !wish.is_met).map(|wish| wish.layers.clone()).collect()
    }

    pub(super) fn wishes(&self) -> MutexGuard<'_, Vec<Wish>> {
        self.0.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device that is asked for in a path of scopes.
    fn asked(&self, scope: &str) -> Option<String> {
        if let Some(asked) = asked_device(scope) {
            return Some(asked.into());
        }
        let mut wishes = self.wishes();
        let wish = wishes.iter_mut().find(|wish| wish.names(scope))?;
        wish.is_met = true;
        Some(wish.device.clone())
    }

    /// Decides where an op runs, whose scopes are these.
    pub(crate) fn choose(
        &self,
        scope: &str,
        op: &Op,
        inputs: &[&Type],
        outputs: &[&Type],
        site: Site,
    ) -> Result<Chosen> {
        let asked = self.asked(scope);
        let (wants_host, mut why) = match asked.as_deref() {
            None => (false, Cow::Borrowed("the device of the step")),
            Some("cpu" | "cpu:0") => (self.has_own_memory(), Cow::Borrowed("asked for cpu")),
            Some(name) if name == self.name() => (false, format!("asked for {name}").into()),
            Some(name) if self.is_softly_placed() => {
                (false, format!("asked for {name}, which this step has not; soft placement").into())
            }
            Some(name) => {
                let (asked, device) = (name.to_string(), self.name().to_string());
                return Err(Error::Placement { op: op.name(), site, asked, device });
            }
        };
        if let Some(exchanges) = self.exchanges().filter(|_| op.is_exchange()) {
            let scratch = exchanges.scratch(op, inputs, outputs)?;
            let on_host = exchanges.is_staged();
            return Ok(Chosen { on_host, why: Cow::Borrowed("an exchange between ranks"), scratch });
        }
        if let Op::Exchange(exchange) = op
            && exchange.of.ranks > 1
        {
            let (device, types) = (self.name().to_string(), String::from("any type"));
            let why = "this device is connected to no other ranks; connect it (Device::with_ranks)".into();
            return Err(Unsupported { device, op: op.name(), types, why }.into());
        }
        if wants_host {
            self.host_ops()?.scratch(op, inputs, outputs)?;
            return Ok(Chosen { on_host: true, why, scratch: 0 });
        }
        match self.backend().scratch(op, inputs, outputs) {
            Ok(scratch) => Ok(Chosen { on_host: false, why, scratch }),
            Err(refused) if self.has_own_memory() && self.is_softly_placed() => {
                self.host_ops()?.scratch(op, inputs, outputs)?;
                why = format!("{} has no kernel for it; soft placement", refused.device).into();
                Ok(Chosen { on_host: true, why, scratch: 0 })
            }
            Err(refused) if self.has_own_memory() => {
                let why = format!("{}; or let it run on the host (--soft-placement)", refused.why);
                Err(Unsupported { why, ..refused }.into())
            }
            Err(refused) => Err(refused.into()),
        }
    }

    /// Decides where a node of a graph runs.
    pub(crate) fn choose_node(&self, graph: &Graph, node: &Node) -> Result<Chosen> {
        let types = |ids: &[ValueId]| -> SmallVec<[&Type; 4]> { ids.iter().map(|&v| graph.ty(v)).collect() };
        self.choose(&node.scope, &node.op, &types(&node.inputs), &types(&node.outputs), node.site)
    }

    /// Whether a node runs on the host. Without a wish and without soft placement none does, and nothing is asked of kernels.
    pub(crate) fn is_on_host(&self, graph: &Graph, node: &Node) -> Result<bool> {
        if !self.has_own_memory() || (!self.is_softly_placed() && self.asked(&node.scope).is_none()) {
            return Ok(false);
        }
        Ok(self.choose_node(graph, node)?.on_host)
    }

    /// Where a node of a graph runs, as a line of the placement log.
    pub(crate) fn placement_of(&self, graph: &Graph, node: &Node) -> Result<Placement> {
        let chosen = match node.op.is_view() {
            // No kernel runs.
            true => Chosen { on_host: false, why: "a view of its input".into(), scratch: 0 },
            false => self.choose_node(graph, node)?,
        };
        Ok(self.placement(node.op.name(), &node.scope, chosen, node.site))
    }

    /// Adds the nodes of a graph to the placement log, where one is kept.
    pub(crate) fn log_graph(&self, graph: &Graph) -> Result<()> {
        if self.logs_placement() {
            for node in graph.nodes() {
                let placement = self.placement_of(graph, node)?;
                self.placed(|| placement);
            }
        }
        Ok(())
    }

    /// A line of the placement log.
    pub(crate) fn placement(&self, op: &'static str, layer: &str, chosen: Chosen, site: Site) -> Placement {
        let device = if chosen.on_host { "cpu" } else { self.name() };
        Placement { op, layer: layer.into(), device: device.into(), why: chosen.why.into_owned(), site }
    }

    /// The kernels that an op runs with.
    pub(crate) fn kernels(&self, op: &Op, on_host: bool) -> Result<&dyn Backend> {
        if let Some(exchanges) = self.exchanges().filter(|_| op.is_exchange()) {
            return Ok(exchanges);
        }
        if on_host { Ok(self.host_ops()?) } else { Ok(self.backend()) }
    }

    /// The host's kernels over this device's memory.
    fn host_ops(&self) -> Result<&HostOps> {
        if let Some(made) = self.0.host_ops.get() {
            return Ok(made);
        }
        let host = Device::default_cpu()?.0.backend.clone();
        Ok(self.0.host_ops.get_or_init(|| HostOps::new(self.0.backend.clone(), host)))
    }

    /// Bytes of the host's memory that an op there takes.
    pub(crate) fn host_needs(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<Bytes> {
        match self.exchanges().and_then(Exchanges::staged).filter(|_| op.is_exchange()) {
            Some(staged) => Ok(staged.needs(op, inputs, outputs)?),
            None => Ok(self.host_ops()?.needs(op, inputs, outputs)?),
        }
    }

    /// Bytes of the host's memory that ops there hold between calls.
    pub(crate) fn host_staging(&self) -> Bytes {
        let exchanged = self.exchanges().and_then(Exchanges::staged);
        self.0.host_ops.get().into_iter().chain(exchanged).map(HostOps::held).sum()
    }
}
