//! Turns a model and ranks that need not be here into the ways to share its training, side by side, and the one to take.

use std::fmt::Write;

use plimsoll::internals::comm::{Kind, Reduce, Way};
use plimsoll::internals::graph::ops::{ExchangeKind, Rank};
use plimsoll::internals::run::Error;
use plimsoll::internals::run::record;
use plimsoll::nn::Pipeline;
use plimsoll::prelude::*;
use plimsoll::ranks::{Imagined, Peers};
use serde_json::{Value, json};

use crate::config::Config;
use crate::plot::duration;
use crate::setup::Setup;
use crate::stage_plans::plan_stages;
use crate::{Failure, ranks};

/// A way is worth having shards only where it saves so much of a step: with all of it everywhere, any rank can write a checkpoint.
const WORTH: f64 = 0.95;

/// What a rank takes by one way.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    pub bytes: u64,
    pub predicted_seconds: f64,
    pub exchange_seconds: f64,
    pub parameters: u64,
    pub optimizer: u64,
    /// What ranks exchange in a step.
    pub calls: Vec<(Kind, Rank, u64)>,
    /// Where ranks have stages: what those come to, and each that was planned, by its rank.
    pub pipeline: Option<Pipeline>,
    pub stages: Vec<(usize, Planned)>,
}

/// Why a way cannot be taken.
#[derive(Clone, Debug)]
pub struct Refused {
    pub why: String,
    pub least: Option<u64>,
}

/// What planning a way came to.
pub type Answer = Result<Planned, Refused>;

/// The ways that are built, in the order in which they are preferred where they are as fast. Ranks in groups are one group a machine, or two.
pub fn built(machines: usize) -> Vec<String> {
    let alone = ["data", "shard", "parameters", TENSOR, PIPELINE].map(String::from);
    let groups = machines.max(2);
    alone.into_iter().chain([TENSOR, PIPELINE].map(|way| format!("data:{groups}+{way}"))).collect()
}

pub const TENSOR: &str = "tensor";
pub const PIPELINE: &str = "pipeline";

/// What makes a trainer of settings on a device, and its data.
pub type Made<'a> = dyn Fn(&Config, &Device) -> Result<(Trainer, Dataset), Failure> + 'a;

/// A trainer of a model by name or of a file.
pub fn of_setup(config: &Config, device: &Device) -> Result<(Trainer, Dataset), Failure> {
    let Setup { trainer, train, .. } = Setup::new(config, device)?;
    Ok((trainer, train))
}

/// Plans a way on the rank that a device is.
pub fn plan_way(name: &str, config: &Config, device: &Device, made: &Made<'_>) -> Result<Answer, Failure> {
    let config = Config { parallel: Some(name.into()), ..config.clone() };
    if let Err(Failure(why)) = ranks::check(&config) {
        return Ok(Err(Refused { why, least: None }));
    }
    let (trainer, data) = made(&config, device)?;
    let planned = || -> Result<Planned, plimsoll::train::Error> {
        let plan = trainer.plan(&data)?;
        let (bytes, seconds) = (plan.figures.planned, plan.figures.predicted_seconds);
        let mut planned = Planned::of(bytes, seconds, &plan.timeline()?);
        planned.calls = plan
            .exchanged()
            .iter()
            .filter_map(|(kind, of, bytes)| Some((call(kind)?, *of, *bytes)))
            .collect();
        planned.pipeline = trainer.pipeline(&data)?;
        planned.predicted_seconds *= planned.pipeline.as_ref().map_or(1.0, Pipeline::longer);
        Ok(planned)
    };
    match planned() {
        Ok(planned) => Ok(Ok(planned)),
        Err(plimsoll::train::Error::Run(error @ Error::Infeasible { .. })) => {
            let Error::Infeasible { least, .. } = &error else { return Err(Failure(error.to_string())) };
            let why = format!("needs {least:#}");
            Ok(Err(Refused { why, least: Some(least.get()) }))
        }
        // An optimizer whose state cannot be cut, say; what is wrong with the model itself is told of data.
        Err(error) if name != "data" => Ok(Err(Refused { why: error.to_string(), least: None })),
        Err(error) => Err(error.into()),
    }
}

/// Plans the ways that are built, on the rank that a device is.
pub fn plan_each(
    ways: &[String],
    config: &Config,
    device: &Device,
    made: &Made<'_>,
) -> Result<Vec<Answer>, Failure> {
    ways.iter().map(|name| plan_way(name, config, device, made)).collect()
}

/// The collective call that an exchange is; a message between two ranks is none.
fn call(kind: &ExchangeKind) -> Option<Kind> {
    match kind {
        ExchangeKind::Sum => Some(ALL_REDUCE),
        ExchangeKind::Max => Some(Kind::AllReduce(Reduce::Max)),
        ExchangeKind::ScatterSum => Some(REDUCE_SCATTER),
        ExchangeKind::Gather(_) => Some(Kind::AllGather),
        ExchangeKind::From(root) => Some(Kind::Broadcast { root: *root }),
        ExchangeKind::Send(_) | ExchangeKind::Receive(..) => None,
    }
}

/// Which way to take by the seconds of a step with each ([`built`]), where it fits; and why.
pub fn choose(ways: &[String], seconds: &[Option<f64>]) -> (String, String) {
    let ways = || ways.iter().map(String::as_str).zip(seconds);
    let fitting: Vec<(&str, f64)> = ways().filter_map(|(name, seconds)| Some((name, (*seconds)?))).collect();
    let Some(&first) = fitting.first() else {
        return ("parameters".into(), "no way fits; parameters in shards take the least".into());
    };
    let (name, taken) =
        fitting.iter().fold(first, |best, other| if other.1 < WORTH * best.1 { *other } else { best });
    let mut why = format!("{name} is taken: {} a step", duration(taken));
    for (other, seconds) in fitting.iter().filter(|(other, _)| *other != name) {
        why =
            format!("{why}, {} ({:+.0} %) with {other}", duration(*seconds), 100.0 * (seconds / taken - 1.0));
    }
    let unfit: Vec<&str> = ways().filter(|(_, seconds)| seconds.is_none()).map(|(name, _)| name).collect();
    if !unfit.is_empty() {
        why = format!("{why}; {} does not fit or cannot be taken", unfit.join(" and "));
    }
    (name.into(), why)
}

impl Planned {
    /// Seconds of a step whose exchanges go on beside its computation, as far as one of the two is longer.
    fn beside_seconds(&self) -> f64 {
        (self.predicted_seconds - self.exchange_seconds).max(self.exchange_seconds)
    }

    fn of(bytes: Bytes, seconds: f64, step: &record::Step) -> Planned {
        let is_exchange =
            |op: &str| matches!(op, "all_reduce" | "reduce_scatter" | "all_gather" | "send" | "receive");
        let us: f64 = step.instructions.iter().filter(|i| is_exchange(&i.op)).map(|i| i.us).sum();
        let of_kind =
            |kind: record::Kind| step.residents.iter().filter(move |r| r.kind == kind).map(|r| r.bytes);
        Planned {
            bytes: bytes.get(),
            predicted_seconds: seconds,
            exchange_seconds: us * 1e-6,
            parameters: of_kind(record::Kind::Parameter).sum(),
            optimizer: of_kind(record::Kind::Optimizer).sum(),
            calls: Vec::new(),
            pipeline: None,
            stages: Vec::new(),
        }
    }
}

/// A way to share a training, with what it comes to.
struct Row {
    name: String,
    what: &'static str,
    is_estimated: bool,
    planned: Answer,
    /// Bytes that a rank sends in a step, to others of its machine and to other machines.
    sent: (f64, f64),
}

/// All ways side by side, and the one that is taken.
pub struct Compared {
    rows: Vec<Row>,
    name: String,
    why: String,
}

const ALL_REDUCE: Kind = Kind::AllReduce(Reduce::Sum);
const REDUCE_SCATTER: Kind = Kind::ReduceScatter(Reduce::Sum);

impl Compared {
    /// Plans each way for a rank that is only planned for.
    pub fn new(
        config: &Config,
        device: &Device,
        made: &Made<'_>,
        imagined: &Imagined,
    ) -> Result<Compared, Failure> {
        let plan = |name: &str| plan_way(name, config, device, made);
        let [data, shard, parameters_too, tensor] = ["data", "shard", "parameters", TENSOR].map(plan);
        let (data, shard, parameters_too, tensor) = (data?, shard?, parameters_too?, tensor?);
        let topology = imagined.topology();
        let asked = ranks::parallel(config);
        let ways = built(asked.groups().unwrap_or(topology.machines));
        let stages = |name: &str, stages: usize| {
            plan_stages(device, imagined, stages, |device| plan_way(name, config, device, made))
        };
        let staged = stages(PIPELINE, imagined.rank().ranks)?;
        let [.., in_parts, in_stages] = &ways[..] else { return Err(Failure("no way is built".into())) };
        let parted_groups = plan(in_parts)?;
        let of_group = in_stages.parse().unwrap_or(asked).model_of(imagined.rank()).ranks;
        let staged_groups = stages(in_stages, of_group)?;
        let ranks = imagined.rank().ranks as u64;
        let saved = |bytes: u64| bytes - bytes / ranks;
        // A gradient is whole until the backward pass is over, and no longer than its update otherwise.
        let state_only = shard.clone().map(|shard| {
            let most = data.as_ref().map_or(u64::MAX, |data| data.bytes);
            Planned { bytes: (shard.bytes + saved(shard.parameters)).min(most), ..shard }
        });
        let seconds = |planned: &Answer| planned.as_ref().ok().map(|p| p.predicted_seconds);
        let all = [&data, &shard, &parameters_too, &tensor, &staged, &parted_groups, &staged_groups];
        let (name, why) = match config.parallel.as_deref() {
            // As `train` does here, where nothing is asked for.
            None if imagined.is_on_host() => {
                ("data".into(), "data is what train does unless it is asked (--parallel)".into())
            }
            None | Some("auto") => choose(&ways, &all.map(seconds)),
            Some(_) => (asked.to_string(), format!("{asked} is asked for")),
        };
        // What is exchanged depends on the way, the batch and the precision: as it is planned.
        let sent = |planned: &Answer| {
            let calls = planned.as_ref().map_or(&[][..], |planned| &planned.calls[..]);
            let each =
                calls.iter().map(|(kind, of, bytes)| topology.within(*of).traffic(Way::Ring, *kind, *bytes));
            each.fold((0.0, 0.0), |(a, b), (inside, between)| (a + inside, b + between))
        };
        let sent_by_stages = |planned: &Answer| {
            let own =
                planned.as_ref().map_or((0.0, 0.0), |staged| staged.sent_by_stages(topology.per_machine));
            let gradients = sent(planned);
            (own.0 + gradients.0, own.1 + gradients.1)
        };
        let rows = vec![
            Row {
                name: "data".into(),
                what: "all on every rank",
                is_estimated: false,
                sent: sent(&data),
                planned: data,
            },
            Row {
                name: "state".into(),
                what: "optimizer state in shards",
                is_estimated: true,
                sent: sent(&state_only),
                planned: state_only,
            },
            Row {
                name: "shard".into(),
                what: "state and gradients",
                is_estimated: false,
                sent: sent(&shard),
                planned: shard,
            },
            Row {
                name: "parameters".into(),
                what: "parameters too",
                is_estimated: false,
                sent: sent(&parameters_too),
                planned: parameters_too,
            },
            Row {
                name: TENSOR.into(),
                what: "weights, each computes its part",
                is_estimated: false,
                sent: sent(&tensor),
                planned: tensor,
            },
            Row {
                name: PIPELINE.into(),
                what: "a stage of the model each",
                is_estimated: false,
                sent: sent_by_stages(&staged),
                planned: staged,
            },
            Row {
                name: in_parts.clone(),
                what: "weights, in each group",
                is_estimated: false,
                sent: sent(&parted_groups),
                planned: parted_groups,
            },
            Row {
                name: in_stages.clone(),
                what: "a stage each, in each group",
                is_estimated: false,
                sent: sent_by_stages(&staged_groups),
                planned: staged_groups,
            },
        ];
        Ok(Compared { rows, name, why })
    }

    /// The way that is taken.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The settings with that way.
    pub fn chosen(&self, config: &Config) -> Config {
        Config { parallel: Some(self.name.clone()), ..config.clone() }
    }

    /// Seconds of a step with the way that is taken, where exchanges go on wholly beside computation; nothing where it does not fit.
    pub fn beside_seconds(&self) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.name == self.name)?;
        row.planned.as_ref().ok().map(Planned::beside_seconds)
    }

    /// A table for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<17}{:<32}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>12}{:>12}\n",
            "--parallel",
            "in shards",
            "a rank",
            "parameters",
            "optimizer",
            "a step",
            "exchanges",
            "beside",
            "sent inside",
            "to others"
        );
        for Row { name, what, is_estimated, planned, sent } in &self.rows {
            let what = format!("{what}{}", if *is_estimated { " *" } else { "" });
            let what = if name == "data" { "nothing".to_string() } else { what };
            match planned {
                Ok(p) => writeln!(
                    text,
                    "{name:<17}{what:<32}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>12}{:>12}",
                    Bytes(p.bytes).to_string(),
                    Bytes(p.parameters).to_string(),
                    Bytes(p.optimizer).to_string(),
                    duration(p.predicted_seconds),
                    duration(p.exchange_seconds),
                    duration(p.beside_seconds()),
                    Bytes(sent.0 as u64).to_string(),
                    Bytes(sent.1 as u64).to_string(),
                )
                .ok(),
                Err(Refused { why, .. }) => writeln!(text, "{name:<17}{what:<32}  {why}").ok(),
            };
        }
        text +=
            "* sends as much as shard and holds more, so it is not built: reckoned from the plan of shard\n";
        text += &self.why;
        let taken =
            self.rows.iter().find(|row| row.name == self.name).and_then(|row| row.planned.as_ref().ok());
        let stages = taken.map(Planned::stages_text).unwrap_or_default();
        if stages.is_empty() { text } else { format!("{text}\n{}", stages.trim_end()) }
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let row = |Row { name, what, is_estimated, planned, sent }: &Row| match planned {
            Ok(p) => json!({
                "parallel": name, "what": what, "estimated": is_estimated, "fits": true, "planned_bytes": p.bytes,
                "parameter_bytes": p.parameters, "optimizer_bytes": p.optimizer, "predicted_seconds": p.predicted_seconds,
                "exchange_seconds": p.exchange_seconds, "beside_seconds": p.beside_seconds(), "sent_inside_bytes": sent.0, "sent_between_bytes": sent.1,
                "pipeline": p.stages_json(),
            }),
            Err(Refused { why, least }) => {
                json!({ "parallel": name, "what": what, "estimated": is_estimated, "fits": false, "why": why, "floor_bytes": least })
            }
        };
        self.rows.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{built, choose};

    #[test]
    fn shards_parts_and_stages_are_taken_where_they_must_be_or_are_worth_it() {
        let of = |seconds: &[Option<f64>]| choose(&built(1), seconds);
        let all = |ways: [f64; 5]| of(&ways.map(Some)).0;
        assert_eq!(all([1.0; 5]), "data");
        assert_eq!(of(&[1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.89].map(Some)).0, "data:2+tensor");
        assert_eq!(of(&[Some(1.0), Some(0.9), Some(0.88), None, None]).0, "shard");
        assert_eq!(all([1.0, 0.99, 0.8, 0.79, 0.79]), "parameters");
        assert_eq!(all([1.0, 0.99, 0.8, 0.7, 0.69]), "tensor");
        assert_eq!(all([1.0, 0.99, 0.8, 0.7, 0.5]), "pipeline");
        let (name, why) = of(&[None, Some(2.0), Some(3.0), None, None]);
        assert_eq!(name, "shard");
        assert!(why.contains("data") && why.contains("not fit") && why.contains("with parameters"), "{why}");
        assert_eq!(of(&[None, None, Some(3.0), None, None]).0, "parameters");
        assert_eq!(of(&[None, None, None, None, Some(3.0)]).0, "pipeline");
        assert_eq!(of(&[Some(1.0), None, None, None, None]).0, "data");
        assert!(of(&[None; 5]).1.contains("no way fits"));
    }
}
