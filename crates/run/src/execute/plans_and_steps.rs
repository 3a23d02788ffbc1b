//! What is planned for a step is what it runs: plans, the frontier and compiled steps side by side.

use plimsoll_graph::DType;

use std::time::Duration;

use plimsoll_device::Bytes;
use plimsoll_graph::Type;

use crate::*;

/// A chain of layers on a batch, trained by gradient descent.
fn body(pass: &StepArgs<'_>) -> Result<StepResult> {
    let tape = Tape::new();
    pass.state.iter().try_for_each(|w| tape.watch(w))?;
    let mut x = pass.inputs[0].clone();
    for w in pass.state {
        x = x.matmul(w)?.tanh()?;
    }
    let loss = x.square()?.mean(&[], false)?;
    let grads = tape.gradient(&loss, &pass.state.iter().collect::<Vec<_>>())?;
    let new = pass.state.iter().zip(&grads).map(|(w, g)| w.sub(&g.mul_scalar(0.1)?));
    Ok(StepResult { state: new.collect::<Result<_>>()?, outputs: vec![loss], totals: vec![] })
}

/// Six layers of 64 and a batch large enough that what lies between them outweighs what planning needs.
fn parts() -> (Device, StepOptions, Vec<StateSpec>, Vec<Type>) {
    let device = Device::cpu_with(1, Bytes::mib(512)).unwrap();
    let exactness = Exactness::Reassociated;
    let options = StepOptions { batched: true, ..StepOptions::default() }.exactness(exactness);
    let weight = |i: usize| StateSpec::new(format!("w{i}"), Kind::Parameter, Type::new(DType::F32, [64, 64]));
    (device, options, (0..6).map(weight).collect(), vec![Type::new(DType::F32, [32768, 64])])
}

#[test]
fn every_point_of_the_frontier_takes_more_and_is_faster_than_the_one_before() {
    let (device, options, held, inputs) = parts();
    let mut survey = StepPlanner::new(&options, &device, held, &inputs, body).unwrap();
    let frontier = survey.frontier(9, None).unwrap();
    let points = &frontier.points;
    assert!(points.len() > 3 && frontier.left_out == 0, "{points:?}");
    for pair in points.windows(2) {
        assert!(pair[0].planned < pair[1].planned, "{points:?}");
        assert!(pair[0].predicted_seconds > pair[1].predicted_seconds, "{points:?}");
    }
    assert!(points.iter().all(|p| p.planned <= p.limit));
    let (first, last) = (points[0], points[points.len() - 1]);
    let unlimited = survey.plan(Some(survey.unlimited())).unwrap().figures;
    assert_eq!((first.limit, first.planned), (survey.floor(), survey.floor()));
    assert_eq!(last.predicted_seconds, unlimited.unlimited_seconds);
    // What a point takes is a limit that gives the same again.
    for point in points {
        let again = survey.plan(Some(point.planned)).unwrap().figures;
        assert_eq!(
            (again.planned, again.predicted_seconds, again.micro_batches),
            (point.planned, point.predicted_seconds, point.micro_batches)
        );
    }
}

#[test]
fn a_frontier_without_time_has_its_ends_and_says_what_is_missing() {
    let (device, options, held, inputs) = parts();
    let mut survey = StepPlanner::new(&options, &device, held, &inputs, body).unwrap();
    let frontier = survey.frontier(9, Some(Duration::ZERO)).unwrap();
    assert_eq!((frontier.points.len(), frontier.left_out), (2, 7));
}

#[test]
fn plans_for_another_process_are_the_same_but_for_what_it_takes_outside() {
    let (device, options, held, inputs) = parts();
    let mut survey = StepPlanner::new(&options, &device, held, &inputs, body).unwrap();
    let (floor, most) = (survey.floor(), survey.unlimited());
    let line = Bytes((floor.get() + most.get()) / 2);
    let here = survey.plan(Some(line)).unwrap().figures;
    for outside in [here.outside + Bytes::mib(7), Bytes::mib(1)] {
        survey.set_outside(outside);
        let moved = |bytes: Bytes| (bytes + outside).saturating_sub(here.outside);
        let there = survey.plan(Some(moved(line))).unwrap().figures;
        assert_eq!((there.planned, there.floor), (moved(here.planned), moved(here.floor)));
        assert_eq!((there.unlimited, there.outside), (moved(here.unlimited), outside));
        assert_eq!(
            (there.arena, there.predicted_seconds, there.micro_batches),
            (here.arena, here.predicted_seconds, here.micro_batches)
        );
        assert_eq!(survey.frontier(5, None).unwrap().points[0].planned, there.floor);
    }
}

#[test]
fn the_kinds_at_the_peak_add_up_to_what_is_planned() {
    let (device, options, held, inputs) = parts();
    let mut survey = StepPlanner::new(&options, &device, held, &inputs, body).unwrap();
    let (floor, most) = (survey.floor(), survey.unlimited());
    for line in [None, Some(floor), Some(Bytes((floor.get() + most.get()) / 2)), Some(most)] {
        let info = survey.plan(line).unwrap().figures;
        let sum: Bytes = info.peak.kinds.iter().map(|(_, bytes)| *bytes).sum();
        assert_eq!(sum + info.peak.unused, info.planned, "{:?}", info.peak);
        assert!(info.peak.step < info.peak.steps && !info.peak.largest.is_empty());
        assert!(
            info.peak.site.is_some_and(|site| site.file.ends_with("plans_and_steps.rs")),
            "{:?}",
            info.peak
        );
    }
}

#[test]
fn a_survey_plans_what_a_step_would_run() {
    let (device, options, held, inputs) = parts();
    let survey = || StepPlanner::new(&options, &device, held.clone(), &inputs, body).unwrap();
    let (floor, most) = (survey().floor(), survey().unlimited());
    for line in [None, Some(Bytes((floor.get() + 3 * most.get()) / 4)), Some(most + Bytes::mib(64))] {
        // The pages of a test's process are measured, as they are more than declared, and other tests change them meanwhile.
        let same = (0..50).any(|_| {
            let plan = survey().plan(line).unwrap();
            let planned = &plan.figures;
            let tensor = |ty: &Type| device.scope(|| Tensor::zeros(ty.clone())).unwrap();
            let kept = held.iter().map(|part| StateTensor {
                name: part.name.clone(),
                kind: part.kind,
                tensor: tensor(&part.ty),
            });
            let options = options.clone().limit(line);
            let step = Step::compile_with(options, kept.collect(), &inputs, body).unwrap();
            let run = step.info();
            if run.account.program != planned.account.program {
                return false;
            }
            assert_eq!(
                (run.arena, run.predicted_seconds, run.micro_batches, run.recomputed_ops),
                (planned.arena, planned.predicted_seconds, planned.micro_batches, planned.recomputed_ops)
            );
            // Not only the figures: every instruction and every offset.
            let (planned, run) = (plan.timeline().unwrap(), step.timeline().unwrap());
            assert_eq!((&planned.instructions, &planned.tensors), (&run.instructions, &run.tensors));
            assert_eq!(planned.residents, run.residents);
            true
        });
        assert!(same, "the process was never twice the same");
    }
}
