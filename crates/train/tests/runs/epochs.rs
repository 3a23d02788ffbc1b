//! An epoch ends after its samples, whatever they come from and however they divide by the batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_data::{Dataset, FieldSpec};
use plimsoll_device::Bytes;
use plimsoll_graph::DType;
use plimsoll_nn::{Sequential, Sgd, softmax_cross_entropy};
use plimsoll_run::Device;
use plimsoll_train::{Callback, Epochs, Result, StepEvent, Trainer};

fn spec() -> [FieldSpec; 2] {
    [FieldSpec::new("x", DType::F32, [2]), FieldSpec::new("y", DType::I64, [])]
}

/// Counts steps, and ends a run that does not end by itself.
struct Steps(Arc<AtomicU64>);

impl Callback for Steps {
    fn on_step(&mut self, _: &StepEvent) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn wants_to_stop(&mut self) -> bool {
        self.0.load(Ordering::Relaxed) > 50
    }
}

#[test]
fn streams_and_filters_end_their_epochs_where_samples_divide_by_the_batch() {
    let streamed = || {
        Dataset::from_iter(
            spec(),
            || 0..12u8,
            |i, out| {
                out.set(0, &[f32::from(i), 1.0])?;
                out.set(1, &[i64::from(i % 3)])
            },
        )
    };
    let indexed = || {
        Dataset::from_fn(spec(), 16, |i, out| {
            out.set(0, &[i as f32, 1.0])?;
            out.set(1, &[(i % 3) as i64])
        })
    };
    for (name, data) in [
        ("a stream", streamed().shuffle(5, 1)),
        ("a filter whose last samples are dropped", indexed().filter(|_, at| Ok(at.index < 12))),
        ("a stream behind a filter", streamed().filter(|_, _| Ok(true))),
    ] {
        let steps = Arc::new(AtomicU64::new(0));
        let model = Sequential::new([2]).dense(3);
        let mut trainer = Trainer::new(model, softmax_cross_entropy, Sgd::new(1e-3))
            .device(Device::cpu_with(1, Bytes::mib(64)).unwrap())
            .callback(Steps(steps.clone()));
        let history = trainer.fit(data.batch(4), Epochs(2)).unwrap();
        assert_eq!((history.len(), steps.load(Ordering::Relaxed)), (2, 6), "{name}");
    }
}
