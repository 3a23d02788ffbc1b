//! How a model is trained: loss, optimizer, what is asked of memory.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::ops::Rank;
use plimsoll_graph::{DType, Type};
use plimsoll_run::{MemoryRequest, Precision, Result, StepOptions, Tensor};

use super::{Stages, shards, splits};
use crate::error::refuse;
use crate::parts::{Parts, Sketched};
use crate::{Averaged, Init, Kept, Loss, Measure, Model, Net, Optimizer, Param, softmax_cross_entropy};

/// A bound on gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Every element is held between -x and x.
    Value(f64),
    /// All gradients together are scaled down to this norm where it is larger, as PyTorch does it: 1e-6 is added to the norm.
    Norm(f64),
    /// As `Norm`, as Keras does it: nothing is added.
    PlainNorm(f64),
}

/// How ranks share a training. Each has its share of every batch, but with `Tensor` and `Pipeline`; in groups, those of a group have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Parallel {
    /// Every rank has all gradients and all of the optimizer's state.
    #[default]
    Data,
    /// Every rank has its shard of the gradients' sums and of the optimizer's state, updates that, and gets the others' parameters.
    Shard,
    /// As `Shard`, and of parameters, too: those with several axes are gathered where they are used, dropped, and gathered again on the way
    /// back. Vectors (biases, scales of norms) are thousandths of a model, and each rank has all of them.
    Parameters,
    /// Every rank has parts of the weights and computes with these alone: columns of one dense layer and rows of the next, some of the heads of attention,
    /// some of the words of a table and of the classes of a loss. The rest is whole on all of them, and all have the same samples.
    Tensor,
    /// Every rank has a stage of the model, with its parameters, gradients and optimizer state alone. All ranks are given the whole batch, which goes through the
    /// stages in parts, one there and one back.
    Pipeline,
    /// So many groups of ranks, each with its share of every batch; the ranks of a group have parts of the weights, as with `Tensor`.
    DataTensor(usize),
    /// So many groups of ranks, each with its share of every batch; the ranks of a group have stages of the model, as with `Pipeline`.
    DataPipeline(usize),
}

impl Parallel {
    /// Its name, as the command has it.
    pub fn name(self) -> &'static str {
        match self {
            Parallel::Data => "data",
            Parallel::Shard => "shard",
            Parallel::Parameters => "parameters",
            Parallel::Tensor => "tensor",
            Parallel::Pipeline => "pipeline",
            Parallel::DataTensor(_) => "data+tensor",
            Parallel::DataPipeline(_) => "data+pipeline",
        }
    }

    /// Whether ranks have parts of the weights.
    pub fn is_tensor(self) -> bool {
        matches!(self, Parallel::Tensor | Parallel::DataTensor(_))
    }

    /// Whether ranks have stages of the model.
    pub fn is_pipeline(self) -> bool {
        matches!(self, Parallel::Pipeline | Parallel::DataPipeline(_))
    }

    /// How many groups share a batch, where ranks are in groups.
    pub fn groups(self) -> Option<usize> {
        match self {
            Parallel::DataTensor(groups) | Parallel::DataPipeline(groups) => Some(groups),
            _ => None,
        }
    }

    /// Which samples of a batch a rank has, as one of those that share it: its share of them, or all.
    pub fn samples_of(self, rank: Rank) -> Rank {
        match self.in_groups(rank) {
            Some((_, of_groups)) => of_groups,
            None if self.is_tensor() || self.is_pipeline() => Rank::ONLY,
            None => rank,
        }
    }

    /// Which rank it is of those that have one model between them, by parts or stages: the only one where each has all of it.
    pub fn model_of(self, rank: Rank) -> Rank {
        match self.in_groups(rank) {
            Some((in_group, _)) => in_group,
            None if self.is_tensor() || self.is_pipeline() => rank,
            None => Rank::ONLY,
        }
    }

    /// A rank in its group, and its group among groups.
    fn in_groups(self, rank: Rank) -> Option<(Rank, Rank)> {
        match self.groups()? {
            groups @ 1.. if rank.ranks.is_multiple_of(groups) => Some(rank.grouped(groups)),
            // Refused before anything is made of it.
            _ => Some((rank, Rank::ONLY)),
        }
    }

    /// Refuses groups that so many ranks cannot be.
    ///
    /// # Errors
    /// There are not as many ranks in all groups, or one in each.
    pub fn check(self, ranks: usize) -> Result<(), String> {
        let Some(groups) = self.groups().filter(|_| ranks > 1) else { return Ok(()) };
        if groups > 1 && ranks.is_multiple_of(groups) && ranks > groups {
            return Ok(());
        }
        Err(format!(
            "{ranks} ranks are not {groups} groups of several ranks, as many in each, which --parallel {self} asks for; take a number of groups that divides \
             the ranks (--parallel data:2+tensor is two groups), or one way alone"
        ))
    }
}

impl fmt::Display for Parallel {
    /// As people write it: `data:2+tensor`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parallel::DataTensor(groups) => write!(f, "data:{groups}+tensor"),
            Parallel::DataPipeline(groups) => write!(f, "data:{groups}+pipeline"),
            alone => f.write_str(alone.name()),
        }
    }
}

impl FromStr for Parallel {
    type Err = String;

    /// As people write it; groups are two where they do not say how many.
    fn from_str(text: &str) -> Result<Parallel, String> {
        let alone =
            [Parallel::Data, Parallel::Shard, Parallel::Parameters, Parallel::Tensor, Parallel::Pipeline];
        if let Some(known) = alone.into_iter().find(|known| known.name() == text) {
            return Ok(known);
        }
        let unknown = || {
            let names: Vec<&str> = alone.iter().map(|known| known.name()).collect();
            format!(
                "it is none of {}, and of groups that share a batch data+tensor and data+pipeline are built (data:4+tensor is four groups)",
                names.join(", ")
            )
        };
        let (outer, inner) = text.split_once('+').ok_or_else(unknown)?;
        let groups = match outer.split_once(':') {
            None if outer == "data" => 2,
            Some(("data", number)) => number.parse().map_err(|_| unknown())?,
            _ => return Err(unknown()),
        };
        match inner {
            "tensor" => Ok(Parallel::DataTensor(groups)),
            "pipeline" => Ok(Parallel::DataPipeline(groups)),
            _ => Err(unknown()),
        }
    }
}

/// How a model is trained.
#[derive(Clone)]
pub struct Recipe {
    /// What is made smaller.
    pub loss: Arc<dyn Loss>,
    /// How.
    pub optimizer: Arc<dyn Optimizer>,
    /// What is asked of memory, and in which element type the model computes.
    pub request: MemoryRequest,
    /// A bound on gradients.
    pub clip: Option<Clip>,
    /// How many steps make one update: their gradients are added up, and the update is made with their mean. A norm is clipped of that mean.
    /// Statistics that layers keep by themselves change at every step.
    pub accumulate: usize,
    /// Whether the loss is scaled before its gradients are taken, whatever the request's precision: for a model with f16 of its own inside.
    pub scales_loss: bool,
    /// What is counted beside the loss.
    pub metrics: Vec<Measure>,
    /// The types of the model's inputs.
    pub inputs: Vec<Type>,
    /// The types of the labels.
    pub labels: Vec<Type>,
    /// What the process will take beside the step: an input pipeline, say.
    pub reserved: Bytes,
    /// What the process takes of the host's memory beside what the request allows for copies: see [`StepOptions::host_beside`].
    pub host_beside: Bytes,
    /// Whether the next batch is on its way to the device while a step runs, so that two of them are there.
    pub ahead: bool,
    /// How many lengths sequences are padded to: each is a shape of batches, for which a step is planned and kept.
    pub lengths: usize,
    /// Which rank trains, and how many train together: each on its share of every batch, all with the same state.
    pub rank: Rank,
    /// What those have of each other's.
    pub parallel: Parallel,
    /// Whether batch norms take their statistics over the samples of all ranks, as one rank with the whole batch would; otherwise each takes
    /// those of its own.
    pub sync_batch_norm: bool,
    /// Which parameters ranks have parts of ([`Parallel::Tensor`]): found in the model when a training is made of it.
    pub parts: Parts,
    /// The model cut into stages, where ranks have one each: a training finds them, and whoever makes a recipe leaves them out.
    pub stages: Option<Arc<Stages>>,
}

/// What a rank has of a value that another one has: as many bytes as there are in nothing.
pub(super) fn nothing_of(whole: &Type) -> Type {
    whole.with_shape([0])
}

impl Clip {
    /// Whether the norm of all gradients is computed for it.
    pub(super) fn knows_norm(self) -> bool {
        matches!(self, Clip::Norm(_) | Clip::PlainNorm(_))
    }
}

impl Recipe {
    /// A loss and an optimizer over one input, in f32, without a memory limit.
    pub fn new(
        loss: impl Loss + 'static,
        optimizer: impl Optimizer + 'static,
        input: Type,
        labels: Type,
    ) -> Recipe {
        Recipe {
            loss: Arc::new(loss),
            optimizer: Arc::new(optimizer),
            request: MemoryRequest::default(),
            clip: None,
            accumulate: 1,
            scales_loss: false,
            metrics: Vec::new(),
            inputs: vec![input],
            labels: vec![labels],
            reserved: Bytes::ZERO,
            host_beside: Bytes::ZERO,
            ahead: false,
            lengths: 1,
            rank: Rank::ONLY,
            parallel: Parallel::Data,
            sync_batch_norm: false,
            parts: Parts::default(),
            stages: None,
        }
    }

    /// An optimizer on the mean cross-entropy, one input, f32, without a memory limit.
    pub fn cross_entropy(optimizer: impl Optimizer + 'static, input: Type, labels: Type) -> Recipe {
        Recipe::new(softmax_cross_entropy, optimizer, input, labels)
    }

    /// Whether ranks have shards of the optimizer's state.
    pub(super) fn is_sharded(&self) -> bool {
        let in_shards = matches!(self.parallel, Parallel::Shard | Parallel::Parameters);
        self.rank.ranks > 1 && in_shards && self.optimizer.keeps_elements_apart()
    }

    /// Which rank this is of those that have one model between them.
    pub(super) fn of_model(&self) -> Rank {
        self.parallel.model_of(self.rank)
    }

    /// Whether ranks have parts of the weights.
    pub(super) fn is_parted(&self) -> bool {
        self.of_model().ranks > 1 && self.parallel.is_tensor()
    }

    /// The same with what ranks have parts of, where they do.
    pub(super) fn parted(mut self, model: &(impl Model + ?Sized), params: &[Param]) -> Result<Recipe> {
        if self.is_parted() && self.parts.is_empty() {
            let n = self.inputs.len();
            let loss = |whole: &Sketched| {
                let (inputs, labels) = whole.inputs.split_at(n);
                let net = Net::bound(params, &whole.params, true).precision(self.request.precision);
                let outputs = model.forward(&mut net.key(whole.key.clone()), inputs)?;
                // What is only used has no loss.
                if labels.is_empty() {
                    return Ok(outputs.to_vec());
                }
                Ok(vec![self.loss.loss(&outputs, labels)?])
            };
            // What is only used shares nothing.
            if self.shares_batch() && !self.labels.is_empty() {
                splits::check(&splits::of_model(model, &self, params)?)?;
            }
            self.parts = Parts::find(params, &self.types(), self.of_model().ranks, loss)?;
        }
        Ok(self)
    }

    /// Whether every rank has a stage of the model.
    pub(super) fn is_staged(&self) -> bool {
        self.of_model().ranks > 1 && self.parallel.is_pipeline()
    }

    /// Whether every rank is given a share of the batch.
    pub(super) fn shares_batch(&self) -> bool {
        self.parallel.samples_of(self.rank).ranks > 1
    }

    /// Whether another rank has a parameter, and this one nothing of it.
    pub(super) fn is_elsewhere(&self, param: &Param) -> bool {
        self.stages.as_ref().is_some_and(|stages| stages.is_elsewhere(param))
    }

    /// Whether ranks have shards of a parameter's values, too.
    pub(super) fn gathers(&self, param: &Param) -> bool {
        self.is_sharded()
            && self.parallel == Parallel::Parameters
            && param.trained
            && param.ty.shape.rank() > 1
    }

    /// What a rank updates of a parameter, where that is not all of it.
    pub(super) fn updated(&self, param: &Param) -> Option<Param> {
        match self.parts.of(param) {
            Some(cut) => Some(Param { ty: cut.of_type(&param.ty, self.of_model().ranks), ..param.clone() }),
            None => self.is_sharded().then(|| shards::of_param(param, self.rank)),
        }
    }

    /// Elements of a parameter before those, where they are a shard of it.
    pub(super) fn first_updated(&self, param: &Param) -> usize {
        let is_shard = self.parts.of(param).is_none() && self.is_sharded();
        if is_shard { shards::own_bytes(&param.ty, self.rank).start / param.ty.dtype.bytes() } else { 0 }
    }

    /// What a rank holds of a parameter's values: all, its part or its shard.
    pub(super) fn held(&self, param: &Param, value: Tensor) -> Result<Tensor> {
        match self.parts.of(param) {
            _ if self.is_elsewhere(param) => Tensor::zeros(nothing_of(&param.ty)),
            Some(cut) => cut.own(&value, self.of_model()),
            None if self.gathers(param) => shards::own(&value, self.rank),
            None => Ok(value),
        }
    }

    /// The type of that.
    pub(super) fn held_type(&self, param: &Param) -> Type {
        match self.parts.of(param) {
            _ if self.is_elsewhere(param) => nothing_of(&param.ty),
            Some(cut) => cut.of_type(&param.ty, self.of_model().ranks),
            None if self.gathers(param) => shards::of_type(&param.ty, self.rank),
            None => param.ty.clone(),
        }
    }

    /// Whether a loss counts by its share before its gradient is taken: where ranks exchange values on the way through the model; and in f16, whose
    /// gradients are then as large as one rank's, and leave its range where those do.
    pub(super) fn weighs_loss(&self) -> bool {
        let gathers = self.is_sharded() && self.parallel == Parallel::Parameters;
        let is_f16 = self.request.precision.needs_loss_scale();
        let is_shared = self.shares_batch() && !self.is_staged();
        self.is_parted() || (is_shared && (self.sync_batch_norm || gathers || is_f16))
    }

    /// The types of inputs and labels, as a step is given them.
    pub(super) fn types(&self) -> Vec<Type> {
        self.inputs.iter().chain(&self.labels).cloned().collect()
    }

    /// Whether what is asked of the precision can be done. Weights in bf16 that were rounded to nearest would stand still under small steps.
    pub(super) fn check_precision(&self) -> Result<()> {
        if self.request.precision != Precision::Bf16 {
            return Ok(());
        }
        let some = Param {
            name: "some".into(),
            ty: Type::new(DType::BF16, [2, 2]),
            init: Init::Constant(0.0),
            trained: true,
        };
        if self.optimizer.slots(&some).iter().any(|slot| slot.name == Averaged::SLOT) {
            return Err(refuse(
                "averages its weights, and an average of weights in bf16 would stand still; take --precision mixed-bf16",
            ));
        }
        if self.optimizer.kept() != Kept::Bf16 {
            let name = self.optimizer.name();
            return Err(refuse(format!(
                "keeps its weights in bf16 (--precision bf16), which {name} as it is used here cannot move: its state would have to be bf16, too. Adam, AdamW, \
                 momentum, Nesterov's and Lion can have that (--state bf16); --precision mixed-bf16 keeps a copy of the weights in f32"
            )));
        }
        if self.rank.ranks > 1 {
            return Err(refuse(
                "keeps its weights in bf16 (--precision bf16), which is for one rank: what ranks add up is f32; take --precision mixed-bf16",
            ));
        }
        Ok(())
    }

    pub(super) fn needs_loss_scale(&self) -> bool {
        self.scales_loss || self.request.precision.needs_loss_scale()
    }

    /// Whether the first axis of all that a step is given counts samples. That of a graph's edges, say, does not: such a step is not split,
    /// and takes one shape.
    pub(super) fn is_batched(&self) -> bool {
        let mut firsts = self.inputs.iter().chain(&self.labels).map(|ty| ty.shape.first());
        firsts.next().is_none_or(|first| firsts.all(|other| other == first))
    }

    pub(super) fn options(&self) -> StepOptions {
        let mut request = self.request.clone();
        if self.is_staged() {
            // Parts of the batch are in the step itself.
            request.micro_batch = None;
        }
        StepOptions {
            request,
            batched: self.is_batched(),
            reserved: self.reserved,
            host_beside: self.host_beside,
            ahead: self.ahead,
            guarded: !self.needs_loss_scale(),
            // Of parts and stages it is asked where the model is cut.
            shared: self.shares_batch() && self.of_model().ranks == 1,
            // Training, evaluation and prediction, each with a last batch that has fewer samples.
            shapes: 3 * (self.lengths.max(1) + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_as_they_are_written() {
        for way in [Parallel::Data, Parallel::Tensor, Parallel::DataTensor(4), Parallel::DataPipeline(2)] {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        assert_eq!("data+tensor".parse(), Ok(Parallel::DataTensor(2)));
        for unknown in ["shard+tensor", "data:x+tensor", "data+", "data+shard", "tensor+data", ""] {
            assert!(unknown.parse::<Parallel>().unwrap_err().contains("data+tensor"), "{unknown}");
        }
    }

    #[test]
    fn groups_have_their_samples_and_ranks_of_a_group_their_parts() {
        let (way, rank) = (Parallel::DataTensor(2), Rank::new(4, 6));
        assert_eq!(way.model_of(rank), Rank::new(1, 3));
        assert_eq!(way.samples_of(rank), Rank { rank: 1, ranks: 2, stride: 3 });
        assert_eq!((Parallel::Tensor.model_of(rank), Parallel::Data.samples_of(rank)), (rank, rank));
        assert!(way.check(6).is_ok() && way.check(1).is_ok());
        for ranks in [2, 3, 5] {
            assert!(way.check(ranks).unwrap_err().contains("2 groups"), "{ranks}");
        }
        // Of one rank nothing is shared.
        assert_eq!((way.model_of(Rank::ONLY), way.samples_of(Rank::ONLY)), (Rank::ONLY, Rank::ONLY));
    }
}
