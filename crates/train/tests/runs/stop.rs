//! Runs that are asked to end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_data::{Dataset, FieldSpec};
use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{Adam, Precision, softmax_cross_entropy};
use plimsoll_run::Tensor;
use plimsoll_train::{
    Callback, Checkpoint, Checkpoints, EarlyStopping, Ended, EpochEvent, Epochs, Notice, Result, StepEvent,
    StopFlag, Trainer, Verdict,
};

use super::{Scratch, data, samples, trainer, weights};

/// Sets a flag after a step.
struct StopAfter(StopFlag, u64);

impl Callback for StopAfter {
    fn on_step(&mut self, event: &StepEvent) -> Result<()> {
        if event.step == self.1 {
            self.0.stop();
        }
        Ok(())
    }
}

/// How runs ended, as callbacks are told.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<Ended>>>);

impl Callback for Ends {
    fn on_end(&mut self, ended: &Ended) -> Result<()> {
        self.0.lock().unwrap().push(ended.clone());
        Ok(())
    }
}

/// Sets a flag when so many batches were left out.
struct StopAfterSkips(StopFlag, u64);

impl Callback for StopAfterSkips {
    fn on_notice(&mut self, notice: &Notice) -> Result<()> {
        if matches!(notice, Notice::Skipped { .. }) {
            self.1 -= 1;
            if self.1 == 0 {
                self.0.stop();
            }
        }
        Ok(())
    }
}

#[test]
fn an_epoch_that_is_looking_for_a_loss_scale_goes_on_wherever_it_was_stopped() {
    // Its gradients are too large for f16 until the scale has come down, which takes more than an epoch of two batches.
    let loss = |y: &Tensor, labels: &Tensor| softmax_cross_entropy(y, labels)?.mul_scalar(512.0);
    let run = || {
        let trainer = Trainer::new(super::model(), loss, Adam::new(1e-2)).device(super::device());
        trainer.precision(Precision::MixedF16)
    };
    let short = || samples(8).batch(4);
    let mut whole = run();
    let history = whole.fit(short(), Epochs(6)).unwrap();
    assert!(history[0].skipped == 2 && history[5].skipped == 0, "{history:?}");
    for skips in 1..=2 {
        let scratch = Scratch::new(&format!("stop-skips-{skips}"));
        let flag = StopFlag::new();
        let kept = || run().checkpoints(Checkpoints::new(&scratch.0));
        let mut stopped = kept().stop_flag(flag.clone()).callback(StopAfterSkips(flag.clone(), skips));
        assert!(stopped.fit(short(), Epochs(6)).unwrap().is_empty());
        let mut again = kept();
        assert!(again.resume(&scratch.0, &short()).unwrap());
        let after = again.fit(short(), Epochs(6)).unwrap();
        let losses = |history: &[EpochEvent]| history.iter().map(|e| e.loss).collect::<Vec<_>>();
        assert_eq!(losses(&after), losses(&history), "stopped after {skips}");
        assert_eq!(weights(&again), weights(&whole));
    }
}

#[test]
fn a_run_that_is_stopped_after_any_step_goes_on_with_the_same_bits() {
    let mut whole = trainer().validation(data());
    let history = whole.fit(data(), Epochs(2)).unwrap();
    assert_eq!(whole.ended(), Some(&Ended::Complete));
    for step in 1..12 {
        let scratch = Scratch::new(&format!("stop-{step}"));
        let flag = StopFlag::new();
        let run = || trainer().validation(data()).checkpoints(Checkpoints::new(&scratch.0));
        let ends = Ends::default();
        let mut stopped =
            run().stop_flag(flag.clone()).callback(StopAfter(flag.clone(), step)).callback(ends.clone());
        // Also at the end of an epoch: then its validation is what is left to do.
        let before = stopped.fit(data(), Epochs(2)).unwrap();
        let Some(Ended::Stopped { checkpoint: Some(path) }) = stopped.ended() else {
            panic!("{:?}", stopped.ended())
        };
        assert_eq!(ends.0.lock().unwrap()[..], [stopped.ended().unwrap().clone()]);
        assert_eq!((stopped.progress().step, before.len() as u64), (step, (step - 1) / 6));
        assert_eq!(Checkpoint::read(path).unwrap().progress.step, step);
        let mut again = run();
        assert!(again.resume(&scratch.0, &data()).unwrap());
        let after = again.fit(data(), Epochs(2)).unwrap();
        assert_eq!(again.ended(), Some(&Ended::Complete));
        assert_eq!(weights(&again), weights(&whole), "stopped after step {step}");
        let metrics =
            |history: &[EpochEvent]| history.iter().map(|e| (e.loss, e.metrics.clone())).collect::<Vec<_>>();
        assert_eq!([metrics(&before), metrics(&after)].concat(), metrics(&history), "step {step}");
        // In the same process it goes on once the flag is taken back.
        assert_eq!(stopped.fit(data(), Epochs(2)).unwrap().len(), 0);
        flag.clear();
        stopped.fit(data(), Epochs(2)).unwrap();
        assert_eq!(weights(&stopped), weights(&whole), "gone on after step {step}");
    }
}

#[test]
fn a_validation_is_broken_off_and_done_again_later() {
    let scratch = Scratch::new("validation");
    let flag = StopFlag::new();
    let seen = Arc::new(AtomicU64::new(0));
    let (counted, stops) = (seen.clone(), flag.clone());
    let validation = samples(40).map_in_place(move |_, _| {
        // By the time the tenth sample is read, the run is asked to end.
        if counted.fetch_add(1, Ordering::SeqCst) == 10 {
            stops.stop();
        }
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    });
    let validation = validation.batch(2).workers(1).prefetch(1);
    let run = || trainer().checkpoints(Checkpoints::new(&scratch.0));
    let mut stopped = run().validation(validation).stop_flag(flag.clone());
    assert_eq!(stopped.fit(data(), Epochs(1)).unwrap().len(), 0);
    assert!(matches!(stopped.ended(), Some(Ended::Stopped { checkpoint: Some(_) })));
    assert!(seen.load(Ordering::SeqCst) < 40, "it read all of it");
    assert!(stopped.progress().is_epoch_over && stopped.progress().step == 6);
    let mut again = run().validation(samples(40).batch(2));
    assert!(again.resume(&scratch.0, &data()).unwrap());
    let history = again.fit(data(), Epochs(1)).unwrap();
    assert_eq!((history.len(), again.progress().step), (1, 6));
    assert!(history[0].metric("val_loss").is_some_and(f64::is_finite));
}

#[test]
fn a_run_that_waits_for_input_can_be_stopped() {
    let flag = StopFlag::new();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let spec = [FieldSpec::new("x", DType::F32, [6]), FieldSpec::new("y", DType::I64, [])];
    // After two batches nothing comes any more, until long after somebody wanted to stop.
    let data = Dataset::from_fn(spec, 1000, move |i, out| {
        let began = Instant::now();
        while i >= 8 && !is_over.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        out.set(0, &[0.5f32; 6])?;
        out.set(1, &[(i % 3) as i64])
    });
    let data = data.batch(4).workers(1).prefetch(1);
    let elsewhere = flag.clone();
    let asked = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        elsewhere.stop();
        let asked = Instant::now();
        std::thread::sleep(Duration::from_millis(700));
        over.store(true, Ordering::SeqCst);
        asked
    });
    let mut trainer = trainer().stop_flag(flag);
    trainer.fit(&data, Epochs(1)).unwrap();
    let waited = asked.join().unwrap().elapsed();
    assert_eq!(trainer.ended(), Some(&Ended::Stopped { checkpoint: None }));
    assert_eq!(trainer.progress().step, 2);
    assert!(waited < Duration::from_secs(30), "{waited:?}");
}

#[test]
fn one_that_is_stopped_before_it_begins_does_no_step_and_can_be_gone_on_with() {
    let scratch = Scratch::new("at-once");
    let run = || trainer().checkpoints(Checkpoints::new(&scratch.0));
    let mut stopped = run();
    stopped.stop_handle().stop();
    assert!(stopped.fit(data(), Epochs(1)).unwrap().is_empty());
    assert!(matches!(stopped.ended(), Some(Ended::Stopped { checkpoint: Some(_) })));
    assert_eq!(stopped.progress().step, 0);
    let mut again = run();
    assert!(again.resume(&scratch.0, &data()).unwrap());
    again.fit(data(), Epochs(1)).unwrap();
    let mut whole = trainer();
    whole.fit(data(), Epochs(1)).unwrap();
    assert_eq!(weights(&again), weights(&whole));
}

/// Wants no more after an epoch.
struct Enough;

impl Callback for Enough {
    fn on_epoch(&mut self, _: &EpochEvent) -> Result<Verdict> {
        Ok(Verdict::Stop("it is enough".into()))
    }
}

#[test]
fn how_a_run_ended_is_told_apart() {
    let ends = Ends::default();
    let mut early = trainer().callback(Enough).callback(ends.clone());
    assert_eq!(early.fit(data(), Epochs(5)).unwrap().len(), 1);
    assert_eq!(early.ended(), Some(&Ended::EarlyStop { why: "it is enough".into() }));
    let mut failed = trainer().callback(EarlyStopping::new("no such", 1)).callback(ends.clone());
    let error = failed.fit(data(), Epochs(5)).unwrap_err().to_string();
    assert_eq!(failed.ended(), Some(&Ended::Failed { why: error.clone() }));
    let told = ends.0.lock().unwrap().clone();
    assert_eq!(told.iter().map(Ended::name).collect::<Vec<_>>(), ["early-stop", "failed"]);
    let json = told[1].to_json(Some("run/model".as_ref()));
    assert_eq!(
        (&json["event"], &json["ended"], &json["model"]),
        (&"end".into(), &"failed".into(), &"run/model".into())
    );
    assert_eq!(json["why"], error.as_str());
    let none = trainer();
    assert_eq!(none.ended(), None);
}
