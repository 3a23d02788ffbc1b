//! Turns a plan into what was done to take less memory, with what each saves and costs against the fastest plan.

use plimsoll::plan::PlanFigures;
use plimsoll::prelude::*;

/// Something that was done to take less, and what came of it against the fastest plan.
pub struct Lever {
    pub name: &'static str,
    /// How much of it: recomputed ops, micro-batches.
    pub count: Option<u64>,
    pub saved_bytes: i64,
    pub cost_seconds: f64,
}

/// The levers that a plan uses.
pub fn levers(info: &PlanFigures) -> Vec<Lever> {
    let saved = |from: Bytes, to: Bytes| from.get() as i64 - to.get() as i64;
    let mut levers = vec![Lever {
        name: "order and sharing",
        count: None,
        saved_bytes: saved(info.unshared, info.unlimited),
        cost_seconds: 0.0,
    }];
    // What state on the host costs is counted with the copies.
    let here = info.unlimited.saturating_sub(info.hosted_bytes);
    if info.hosted_bytes > Bytes::ZERO {
        levers.push(Lever {
            name: if info.is_on_disk { "state on the disk" } else { "state on the host" },
            count: None,
            saved_bytes: saved(info.unlimited, here),
            cost_seconds: 0.0,
        });
    }
    if info.micro_batches > 1 {
        levers.push(Lever {
            name: "micro-batches",
            count: Some(info.micro_batches as u64),
            saved_bytes: saved(here, info.kept),
            cost_seconds: info.kept_seconds - info.unlimited_seconds,
        });
    }
    // What is recomputed and what is copied is chosen together, so that neither saves anything by itself.
    let name = match (info.recomputed_ops, info.offloaded_copies) {
        (_, 0) => "recompute",
        (0, _) if info.is_on_disk => "copies to the disk and back",
        (0, _) => "copies to the host and back",
        _ => "ops and copies",
    };
    if info.recomputed_ops + info.offloaded_copies > 0 {
        levers.push(Lever {
            name,
            count: Some(info.recomputed_ops + info.offloaded_copies),
            saved_bytes: saved(info.kept, info.planned),
            cost_seconds: info.predicted_seconds - info.kept_seconds,
        });
    }
    levers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_text::tests::survey;

    #[test]
    fn what_the_levers_save_and_cost_adds_up_to_the_plan() {
        let mut survey = survey();
        let info = survey.plan(Some(survey.floor())).unwrap().figures;
        let levers = levers(&info);
        assert!(levers.len() > 1, "the floor takes a lever");
        let saved: i64 = levers.iter().map(|lever| lever.saved_bytes).sum();
        assert_eq!(saved, info.unshared.get() as i64 - info.planned.get() as i64);
        let cost: f64 = levers.iter().map(|lever| lever.cost_seconds).sum();
        assert!((cost - (info.predicted_seconds - info.unlimited_seconds)).abs() < 1e-9);
    }
}
