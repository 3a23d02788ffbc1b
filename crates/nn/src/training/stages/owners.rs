//! Turns a model into as many stages as there are ranks: which rank has which parameter, so that times and bytes balance and little crosses.
//!
//! Parameters stand in the order in which the model first uses them, and all that is made of them goes with them ([`super::places`]): a *level* for each node that uses new
//! ones. A dynamic programme cuts the levels where the largest stage is smallest, by time or by bytes, whichever is the larger part of the whole. Times are what ops
//! declare, on a machine that is the same for all: every rank must cut alike, whatever it measured.

use plimsoll_graph::Type;
use plimsoll_run::{Mode, Result};

use super::places::Places;
use super::whole::Whole;
use crate::error::refuse;
use crate::{Model, Param, Recipe};

/// Samples that stages are weighed with: the cut must not depend on the batch at hand, since the last one of an epoch is another.
const SAMPLES: usize = 4;
/// Operations a second, bytes a second of memory and of the link, seconds of a call: a core of a few years ago. Only their ratios matter.
const FLOPS: f64 = 40e9;
const BANDWIDTH: f64 = 10e9;
const LINK: f64 = 2e9;
const CALL: f64 = 2e-6;

/// The levels of a model.
#[derive(Default)]
struct Levels {
    /// Seconds of the way there.
    seconds: Vec<f64>,
    /// Bytes of parameters, gradients and optimizer state.
    state: Vec<f64>,
    /// Bytes that ops make.
    made: Vec<f64>,
    /// Bytes that cross from the levels before to this one and later ones.
    crossing: Vec<f64>,
    /// Bytes of parameters that are trained.
    trained: Vec<f64>,
}

/// Which rank has which parameter.
pub(super) fn owners(model: &(impl Model + ?Sized), recipe: &Recipe, params: &[Param]) -> Result<Vec<usize>> {
    let of_samples = |ty: &Type| ty.with_shape(ty.shape.with(0, SAMPLES));
    let few: Option<Vec<Type>> = recipe.is_batched().then(|| recipe.inputs.iter().map(of_samples).collect());
    let traced = |given: &[Type]| Whole::new(model, recipe, params, Mode::Train, given);
    // What is made for one batch alone is weighed with that.
    let whole = match few.map(|few| traced(&few)) {
        Some(Ok(whole)) => whole,
        _ => traced(&recipe.inputs)?,
    };
    let (level_of, levels) = levels(&whole, recipe, params);
    let stages = recipe.of_model().ranks;
    let cuts = levels.cut(stages).ok_or_else(|| {
        refuse(format!(
            "is cut into {stages} stages, one a rank, and has parameters to train at {} places of its way only; take fewer ranks, or --parallel data",
            levels.trained.iter().filter(|bytes| **bytes > 0.0).count()
        ))
    })?;
    Ok(level_of.iter().map(|level| cuts.iter().filter(|cut| *cut <= level).count()).collect())
}

/// The level of each parameter, and what there is at each level.
fn levels(whole: &Whole, recipe: &Recipe, params: &[Param]) -> (Vec<usize>, Levels) {
    let graph = &whole.graph;
    let mut leads = vec![false; graph.values().len()];
    whole.outputs.iter().for_each(|v| leads[v.index()] = true);
    for node in graph.nodes().iter().rev() {
        if node.outputs.iter().any(|v| leads[v.index()]) {
            node.inputs.iter().for_each(|v| leads[v.index()] = true);
        }
    }
    let mut level_of: Vec<Option<usize>> = vec![None; params.len()];
    let (mut n, mut last) = (0usize, None);
    let places = Places::new(whole, |param, at, before| {
        if level_of[param].is_none() {
            let is_on_the_way = graph.nodes()[at].outputs.iter().any(|v| leads[v.index()]);
            // What a layer keeps beside the way, statistics say, is where the layer is.
            level_of[param] = Some(match (is_on_the_way, before) {
                (false, before) => before.unwrap_or(n.saturating_sub(1)),
                _ if last == Some(at) => n - 1,
                _ => {
                    (n, last) = (n + 1, Some(at));
                    n - 1
                }
            });
        }
        level_of[param]
    });
    let n = n.max(1);
    let level_of: Vec<usize> = level_of.into_iter().map(|level| level.unwrap_or(n - 1)).collect();
    let zeros = || vec![0.0; n + 1];
    let mut all =
        Levels { seconds: zeros(), state: zeros(), made: zeros(), crossing: zeros(), trained: zeros() };
    for (param, &level) in params.iter().zip(&level_of) {
        let bytes = param.ty.bytes() as f64;
        all.state[level] += bytes;
        if param.trained {
            let slots = recipe.optimizer.slots(param);
            all.state[level] += bytes + slots.iter().map(|slot| slot.ty.bytes() as f64).sum::<f64>();
            all.trained[level] += bytes;
        }
    }
    let mut reaches: Vec<Option<usize>> = vec![None; graph.values().len()];
    for (i, node) in graph.nodes().iter().enumerate() {
        let Some(level) = places.of_node(graph, i) else { continue };
        node.inputs.iter().for_each(|v| reaches[v.index()] = reaches[v.index()].max(Some(level)));
        if node.op.is_view() {
            continue;
        }
        let types =
            |ids: &[plimsoll_graph::ValueId]| ids.iter().map(|v| graph.ty(*v)).collect::<Vec<&Type>>();
        let (inputs, outputs) = (types(&node.inputs), types(&node.outputs));
        let cost = node.op.cost(&inputs, &outputs);
        all.seconds[level] += CALL + (cost.flops / FLOPS).max(cost.bytes / BANDWIDTH);
        all.made[level] += outputs.iter().map(|ty| ty.bytes() as f64).sum::<f64>();
    }
    for (v, reach) in reaches.iter().enumerate() {
        let made = graph.values()[v].producer.and_then(|(node, _)| places.of_node(graph, node.index()));
        if let (Some(made), Some(reach)) = (made, *reach) {
            let bytes = graph.values()[v].ty.bytes() as f64;
            all.crossing[made + 1..=reach.max(made)].iter_mut().for_each(|crossing| *crossing += bytes);
        }
    }
    (level_of, all)
}

impl Levels {
    /// Where each stage but the first begins; nothing where there are fewer levels with something to train.
    fn cut(&self, stages: usize) -> Option<Vec<usize>> {
        let n = self.seconds.len() - 1;
        let sums = |all: &[f64]| -> Vec<f64> {
            let running = all.iter().scan(0.0, |sum, x| {
                *sum += x;
                Some(*sum)
            });
            std::iter::once(0.0).chain(running).collect()
        };
        let [seconds, state, made, trained] =
            [&self.seconds, &self.state, &self.made, &self.trained].map(|all| sums(all));
        let crossing = |at: usize| if at == 0 || at == n { 0.0 } else { self.crossing[at] };
        let (all_seconds, all_bytes) = (3.0 * seconds[n], state[n] + made[n]);
        // The part of the whole that levels `from..to` are as a stage, by time or by bytes.
        let share = |stage: usize, from: usize, to: usize| {
            let of = |sums: &[f64]| sums[to] - sums[from];
            let moved = 2.0 * (crossing(from) + crossing(to));
            // As many micro-batches are under way in a stage as there are stages from it on.
            let bytes = of(&state) + of(&made) * (stages - stage) as f64;
            ((3.0 * of(&seconds) + moved / LINK) / all_seconds.max(CALL)).max(bytes / all_bytes.max(1.0))
        };
        // By the number of levels: the largest stage, what crosses, and where the last stage begins.
        type Best = Option<(f64, f64, usize)>;
        let mut best: Vec<Vec<Best>> = vec![vec![None; n + 1]; stages + 1];
        best[0][0] = Some((0.0, 0.0, 0));
        for stage in 0..stages {
            for to in 1..=n {
                let mut found: Best = None;
                for from in 0..to {
                    let Some((largest, crossed, _)) = best[stage][from] else { continue };
                    if trained[to] - trained[from] <= 0.0 {
                        continue;
                    }
                    let now = (largest.max(share(stage, from, to)), crossed + crossing(from), from);
                    let is_better = |best: (f64, f64, usize)| {
                        now.0 < best.0 * (1.0 - 1e-9) || (now.0 <= best.0 * (1.0 + 1e-9) && now.1 < best.1)
                    };
                    if found.is_none_or(is_better) {
                        found = Some(now);
                    }
                }
                best[stage + 1][to] = found;
            }
        }
        let (mut cuts, mut at) = (Vec::new(), n);
        for stage in (1..=stages).rev() {
            at = best[stage][at]?.2;
            cuts.push(at);
        }
        cuts.pop();
        cuts.reverse();
        Some(cuts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(n: usize) -> Levels {
        let all = |x: f64| {
            let mut all = vec![x; n + 1];
            all[n] = 0.0;
            all
        };
        Levels { seconds: all(1.0), state: all(1e6), made: all(1e6), crossing: all(1e3), trained: all(1e6) }
    }

    #[test]
    fn levels_are_cut_where_time_and_bytes_balance_and_few_bytes_cross() {
        assert_eq!(even(8).cut(1), Some(vec![]));
        // Earlier stages keep more micro-batches.
        let cuts = even(12).cut(3).unwrap();
        assert!(cuts[0] <= 4 && cuts[1] <= 8 && cuts[0] < cuts[1], "{cuts:?}");
        let mut narrow = even(8);
        narrow.made.iter_mut().for_each(|made| *made = 0.0);
        assert_eq!(narrow.cut(2), Some(vec![4]));
        narrow.crossing.iter_mut().for_each(|crossing| *crossing = 4e9);
        narrow.crossing[3] = 0.0;
        assert_eq!(narrow.cut(2), Some(vec![3]));
        narrow.seconds[0] = 100.0;
        assert_eq!(narrow.cut(2).map(|cuts| cuts.len()), Some(1));
    }

    #[test]
    fn every_stage_has_something_to_train_or_there_is_none() {
        let mut levels = even(6);
        levels.trained = vec![0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        let cuts = levels.cut(2).unwrap();
        assert!((2..=5).contains(&cuts[0]), "{cuts:?}");
        assert_eq!(levels.cut(3), None);
    }
}
