//! What a memory limit counts, and where the time goes: on the host, and on a card that is emulated.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_data::Dataset;
use plimsoll_device::{Bytes, process};
use plimsoll_nn::{Adam, softmax_cross_entropy};
use plimsoll_run::{Device, Error as RunError};
use plimsoll_testing::group;
use plimsoll_train::{Callback, Epochs, Error, Fault, JsonLines, Notice, Result, Trainer};

use super::{data, device, model, samples, trainer};

#[track_caller]
fn emulated() -> Option<Device> {
    group("emulator", Device::cuda_emulated(Bytes::mib(64)))
}

/// A card, where there is one.
#[track_caller]
fn card() -> Option<Device> {
    group("card", Device::cuda(0))
}

/// All devices that there are.
fn devices() -> impl Iterator<Item = Device> {
    [Some(device()), emulated(), card()].into_iter().flatten()
}

fn on(device: Device) -> Trainer {
    Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-2)).device(device)
}

#[test]
fn an_epoch_tells_what_the_line_counts() {
    let history = on(device()).fit(data(), Epochs(1)).unwrap();
    let epoch = &history[0];
    // On the host that is what the system counts of the process.
    assert!(epoch.memory.device_bytes.abs_diff(epoch.memory.resident_bytes) < 64 << 20);
    assert!(epoch.memory.device_peak_bytes >= epoch.memory.device_bytes);
    let Some(card) = emulated() else { return };
    let history = on(card.clone()).fit(data(), Epochs(2)).unwrap();
    for epoch in &history {
        // A small model on a card, in a process that takes far more of the host.
        let held = card.memory_info().current.get();
        assert!(
            epoch.memory.device_bytes > 0 && epoch.memory.device_bytes <= 64 << 20,
            "{}",
            epoch.memory.device_bytes
        );
        assert!(epoch.memory.device_peak_bytes >= held, "{} of {held}", epoch.memory.device_peak_bytes);
        let resident = process::resident().map_or(u64::MAX, Bytes::get);
        assert!(
            epoch.memory.device_peak_bytes < resident,
            "{} of {resident}",
            epoch.memory.device_peak_bytes
        );
        // The system counts pages processor by processor and reads the sums roughly.
        let (now, peak) = (epoch.memory.resident_bytes, epoch.memory.resident_peak_bytes);
        assert!(peak + (4 << 20) >= now, "{now} of {peak}");
    }
    assert_eq!(card.largest_limit(), Some(Bytes::mib(64)));
    assert!(device().largest_limit().unwrap() > Bytes::mib(64));
}

#[test]
fn on_a_real_card_the_line_counts_what_the_system_counts_there() {
    let Some(card) = card() else { return };
    let epoch = on(card.clone()).fit(data(), Epochs(1)).unwrap().remove(0);
    let taken = card.taken().unwrap().get();
    println!(
        "{} counted, {taken} taken, {} resident",
        epoch.memory.device_bytes, epoch.memory.resident_bytes
    );
    assert!(
        epoch.memory.device_bytes.abs_diff(taken) <= 64 << 20,
        "{} of {taken}",
        epoch.memory.device_bytes
    );
    assert!(epoch.memory.device_peak_bytes >= epoch.memory.device_bytes);
    let limit = card.largest_limit().unwrap();
    assert!(limit > Bytes(taken) && limit == card.capacity().unwrap());
    // Without a word and outside of any scope, it is the best device, unless somebody names another.
    if std::env::var_os("PLIMSOLL_DEVICE").is_none() {
        assert!(Device::best().unwrap().name().starts_with("cuda"), "{:?}", Device::best_notes());
    }
}

/// Data of which every sample takes a while.
fn slow(each: Duration) -> Dataset {
    let slow = samples(24).map_in_place(move |_, _| {
        std::thread::sleep(each);
        Ok(())
    });
    slow.batch(4).workers(1).prefetch(1)
}

#[test]
fn waiting_and_steps_add_up_with_the_clock() {
    let each = Duration::from_millis(3);
    for device in devices() {
        let name = device.name().to_string();
        let mut trainer = on(device).validation(data());
        trainer.compile(slow(each)).unwrap();
        let began = Instant::now();
        let history = trainer.fit(slow(each), Epochs(2)).unwrap();
        let wall = began.elapsed().as_secs_f64();
        let sum: f64 = history.iter().map(|epoch| epoch.time.seconds).sum();
        assert!(sum <= wall, "{name}: {sum} s of {wall}");
        for epoch in &history {
            let parts = epoch.time.step_seconds + epoch.time.waiting_seconds + epoch.time.validation_seconds;
            assert!(parts <= epoch.time.seconds * 1.001, "{name}: {parts} s of {}", epoch.time.seconds);
            // What is neither is what callbacks did, and there are none.
            assert!(
                epoch.time.seconds - parts < 0.5 * epoch.time.seconds + 0.2,
                "{name}: {parts} s of {}",
                epoch.time.seconds
            );
            // 24 samples of 3 ms each by one thread: whatever the step takes, most of that is waited for. Up to two batches may have
            // been made while the epoch before was validated.
            let made = 24.0 * each.as_secs_f64();
            assert!(epoch.time.waiting_seconds + epoch.time.step_seconds > 0.6 * made, "{name}: {epoch:?}");
            assert!((0.0..=1.0).contains(&epoch.waiting), "{name}: {}", epoch.waiting);
            let trained = epoch.time.seconds - epoch.time.validation_seconds;
            assert!((epoch.waiting - epoch.time.waiting_seconds / trained).abs() < 0.01, "{name}: {epoch:?}");
            assert!((epoch.samples_s - 24.0 / trained).abs() < 0.01 * epoch.samples_s, "{name}: {epoch:?}");
        }
    }
}

#[test]
fn a_device_that_is_not_named_is_that_of_the_scope() {
    let device = device();
    let mut trainer = Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-2));
    device.scope(|| trainer.compile(data())).unwrap();
    let held = device.memory_info().current;
    assert!(held > Bytes::ZERO);
    // It stays there, wherever it is used from then on.
    trainer.fit(data(), Epochs(1)).unwrap();
    assert!(device.memory_info().current >= held);
}

/// Keeps what was rehearsed.
#[derive(Clone, Default)]
struct Rehearsals(Arc<Mutex<Vec<String>>>);

impl Callback for Rehearsals {
    fn on_notice(&mut self, notice: &Notice) -> Result<()> {
        if let Notice::Rehearsed { what, .. } = notice {
            self.0.lock().unwrap().push(what.clone());
        }
        Ok(())
    }
}

#[test]
fn a_failed_allocation_is_rehearsed_on_every_device_and_says_so() {
    for device in devices() {
        let name = device.name().to_string();
        let mut trainer = on(device).fault(Some(Fault::Alloc(3)));
        let error = trainer.fit(data(), Epochs(1)).unwrap_err();
        assert!(matches!(error, Error::Run(RunError::OutOfMemory(_))), "{name}: {error}");
        let text = error.to_string();
        let first = text.lines().next().unwrap();
        assert!(first.contains("rehearsal") && first.contains("asked for"), "{name}: {first}");
        // The one that failed has failed; from there on there is memory.
        trainer.fit(data(), Epochs(1)).unwrap();
    }
}

#[test]
fn a_spoiled_batch_is_said_to_be_rehearsed_and_so_is_one_that_never_comes() {
    let told = Rehearsals::default();
    let run = |n| trainer().fault(Some(Fault::Nan(n))).callback(told.clone()).fit(data(), Epochs(1)).unwrap();
    assert_eq!(run(3)[0].skipped, 1);
    assert_eq!(run(300)[0].skipped, 0);
    let told = told.0.lock().unwrap();
    assert!(told[0].contains("nan:3") && told[1].contains("never came"), "{told:?}");
}

#[test]
fn json_lines_are_a_callback_like_any_other() {
    let lines = JsonLines::new().run("a/run").ends_later();
    trainer().callback(lines).fit(data(), Epochs(1)).unwrap();
}
