//! An optimizer of `torch.optim`: groups of parameters, each with a rule, settings and a learning rate of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{Averaged, Optimizer, Param, Slot, UpdateAt, Updated};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// Groups of parameters, each with an optimizer.
///
/// ```
/// use plimsoll_nn::{Optimizer, Sgd};
/// use plimsoll_torch::TorchOptimizer;
/// let groups = [(Sgd::new(0.1), ["a"]), (Sgd::momentum(0.01, 0.9), ["b"])];
/// let groups = groups.map(|(sgd, names)| (sgd.into(), names.map(String::from).to_vec()));
/// let optimizer = TorchOptimizer::new(groups.to_vec())?;
/// assert_eq!(optimizer.rates(), [0.1, 0.01]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TorchOptimizer {
    groups: Vec<Group>,
    /// Groups by the names of their parameters.
    of: BTreeMap<String, usize>,
}

#[derive(Clone, Debug)]
struct Group {
    rule: Rule,
    /// How many scalars its rule prepares, and of how many rates.
    scalars: usize,
    rates: usize,
}

/// An optimizer that a group shares with its clones.
#[derive(Clone, Debug)]
pub struct Rule(Arc<dyn Optimizer>);

impl<O: Optimizer + 'static> From<O> for Rule {
    fn from(optimizer: O) -> Rule {
        Rule(Arc::new(optimizer))
    }
}

impl Rule {
    /// The same rule, that also keeps averages of the weights as PyTorch's `AveragedModel` does: see [`Averaged::from_update`].
    #[must_use]
    pub fn averaged(self, decay: f64, after: Option<u64>) -> Rule {
        Averaged::from_update(self.0, decay, after).into()
    }
}

impl TorchOptimizer {
    /// Groups in their order: a rule, and the names of the parameters that it moves.
    ///
    /// # Errors
    /// There is no group, or a parameter is in two.
    pub fn new(groups: Vec<(Rule, Vec<String>)>) -> Result<TorchOptimizer> {
        let mut optimizer = TorchOptimizer { groups: Vec::new(), of: BTreeMap::new() };
        for (i, (rule, names)) in groups.into_iter().enumerate() {
            for name in names {
                if optimizer.of.contains_key(&name) {
                    return Err(refuse(format!("gives an optimizer {name} in two groups")));
                }
                optimizer.of.insert(name, i);
            }
            let rates = rule.0.rates().len();
            let half = |shape: &[usize]| Tensor::full(Type::new(DType::F64, shape), 0.5);
            let given = if rates == 1 { half(&[])? } else { half(&[rates])? };
            let scalars = rule.0.prepare(&half(&[])?, &given)?.len();
            optimizer.groups.push(Group { rule, scalars, rates });
        }
        match optimizer.groups.is_empty() {
            true => Err(refuse("makes an optimizer without groups of parameters")),
            false => Ok(optimizer),
        }
    }

    /// The group of a parameter, and where its scalars begin.
    fn group(&self, name: &str) -> Option<(&Group, usize)> {
        let at = *self.of.get(name)?;
        Some((&self.groups[at], self.groups[..at].iter().map(|group| group.scalars).sum()))
    }
}

impl Optimizer for TorchOptimizer {
    fn name(&self) -> &'static str {
        self.groups[0].rule.0.name()
    }

    fn rate(&self) -> f64 {
        self.groups[0].rule.0.rate()
    }

    fn rates(&self) -> Vec<f64> {
        self.groups.iter().flat_map(|group| group.rule.0.rates()).collect()
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        self.group(&param.name).map_or(Vec::new(), |(group, _)| group.rule.0.slots(param))
    }

    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        let (mut scalars, mut at) = (Vec::new(), 0);
        for group in &self.groups {
            let own = match (rate.shape().rank(), group.rates) {
                (0, _) => rate.clone(),
                (_, 1) => rate.narrow(0, at, at + 1)?.reshape([])?,
                (_, n) => rate.narrow(0, at, at + n)?,
            };
            at += group.rates;
            scalars.extend(group.rule.0.prepare(count, &own)?);
        }
        Ok(scalars)
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let name = &at.param.name;
        let (group, first) =
            self.group(name).ok_or_else(|| refuse(format!("moves {name}, which no group has")))?;
        let scalars = at.scalars.get(first..first + group.scalars);
        let scalars = scalars.ok_or_else(|| refuse("gives an optimizer fewer scalars than it prepared"))?;
        group.rule.0.update(&UpdateAt { scalars, ..*at }, value, grad, slots)
    }
}
