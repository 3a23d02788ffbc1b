//! Memory refused at every allocation of a run in turn: the run goes on, or stops with a checkpoint from which it does.

use std::path::Path;

use plimsoll_data::Dataset;
use plimsoll_device::{BestFit, Bytes, Failing};
use plimsoll_run::{Device, Error as RunError};
use plimsoll_testing::Scratch;
use plimsoll_train::{Epochs, Error, Fault, Trainer};

fn data() -> Dataset {
    crate::common::data([4, 4, 1])
}

fn trainer(device: Device, folder: &Path) -> Trainer {
    crate::common::trainer(device, [4, 4, 1], 4, folder, 2).validation(data())
}

fn weights(trainer: &Trainer) -> Vec<Vec<u8>> {
    trainer.parameters().map(|(_, value)| value.to_bytes().unwrap()).collect()
}

fn memory() -> BestFit {
    BestFit::new(Bytes::mib(64)).unwrap()
}

#[test]
fn a_run_survives_a_refusal_at_every_allocation() {
    let scratch = Scratch::new("alloc");
    let mut undisturbed = trainer(Device::cpu_over(1, Failing::new(memory(), 0)).unwrap(), scratch.folder());
    undisturbed.fit(data(), Epochs(2)).unwrap();
    let expected = weights(&undisturbed);
    let (mut went_on, mut stopped, mut refused) = (0, 0, 0);
    for n in 1.. {
        std::fs::remove_dir_all(scratch.folder()).ok();
        let failing = Failing::new(memory(), n);
        let device = Device::cpu_over(1, failing).unwrap();
        let mut trainer = trainer(device.clone(), scratch.folder());
        match trainer.fit(data(), Epochs(2)) {
            Ok(_) => {
                assert_eq!(weights(&trainer), expected, "allocation {n}");
                if device.memory_info().current == Bytes::ZERO || n > 400 {
                    panic!("the run asks for more than 400 allocations");
                }
                went_on += 1;
                if untouched(n, scratch.folder()) {
                    break;
                }
            }
            Err(Error::Stopped { cause, checkpoint, .. }) => {
                assert!(matches!(*cause, Error::Run(RunError::OutOfMemory(_))), "allocation {n}: {cause}");
                let device = Device::cpu_over(1, memory()).unwrap();
                let mut again = self::trainer(device, scratch.folder());
                assert!(again.resume(&checkpoint, &data()).unwrap());
                again.fit(data(), Epochs(2)).unwrap();
                assert_eq!(weights(&again), expected, "allocation {n}, resumed");
                stopped += 1;
            }
            // Before the first step there is nothing to lose.
            Err(Error::Run(RunError::OutOfMemory(_))) => refused += 1,
            Err(error) => panic!("allocation {n}: {error}"),
        }
    }
    // One refusal is planned around wherever the run has begun: it need not stop.
    assert!(refused > 10 && went_on > 10, "{refused} refused, {went_on} went on, {stopped} stopped");
}

#[test]
fn a_run_whose_memory_is_gone_for_good_stops_with_a_checkpoint_from_which_it_goes_on() {
    let scratch = Scratch::new("gone");
    let mut undisturbed = trainer(Device::cpu_over(1, memory()).unwrap(), &scratch.folder().join("whole"));
    undisturbed.fit(data(), Epochs(2)).unwrap();
    let expected = weights(&undisturbed);
    let (mut stopped, mut refused) = (0, 0);
    for from in 1.. {
        let folder = scratch.folder().join(from.to_string());
        let gone = Watched { inner: Failing::new(memory(), 0).into(), gone_from: from };
        let mut broken = trainer(Device::cpu_over(1, gone).unwrap(), &folder);
        match broken.fit(data(), Epochs(2)) {
            // Nothing was asked for any more.
            Ok(_) => break,
            // Before the first step there is nothing to lose.
            Err(Error::Run(RunError::OutOfMemory(_))) => refused += 1,
            Err(Error::Stopped { cause, checkpoint, .. }) => {
                assert!(matches!(*cause, Error::Run(RunError::OutOfMemory(_))), "request {from}: {cause}");
                let mut again = trainer(Device::cpu_over(1, memory()).unwrap(), &folder);
                assert!(again.resume(&checkpoint, &data()).unwrap());
                again.fit(data(), Epochs(2)).unwrap();
                assert_eq!(weights(&again), expected, "request {from}, resumed");
                stopped += 1;
            }
            Err(error) => panic!("request {from}: {error}"),
        }
        std::fs::remove_dir_all(&folder).ok();
    }
    assert!(refused > 10 && stopped > 0, "{refused} refused, {stopped} stopped");
}

/// Whether a run makes fewer than `n` allocations, so that none of them failed.
fn untouched(n: u64, folder: &Path) -> bool {
    let counting = std::sync::Arc::new(Failing::new(memory(), 0));
    let device = Device::cpu_over(1, Watched { inner: counting.clone(), gone_from: u64::MAX }).unwrap();
    trainer(device, &folder.join("counted")).fit(data(), Epochs(2)).unwrap();
    counting.asked() < n
}

/// An allocator that somebody else looks at too, and that refuses everything from the n-th request on.
struct Watched {
    inner: std::sync::Arc<Failing<BestFit>>,
    gone_from: u64,
}

impl plimsoll_device::Allocator for Watched {
    fn allocate(
        &self,
        bytes: Bytes,
        align: usize,
        owner: plimsoll_device::Owner,
    ) -> Result<plimsoll_device::Block, plimsoll_device::OutOfMemory> {
        let is_gone = self.inner.asked() + 1 >= self.gone_from;
        self.inner.allocate(if is_gone { Bytes::gib(1 << 20) } else { bytes }, align, owner)
    }

    fn release(&self, block: plimsoll_device::Block) -> Result<(), plimsoll_device::ReleaseError> {
        self.inner.release(block)
    }

    fn stats(&self) -> plimsoll_device::Stats {
        self.inner.stats()
    }

    fn reset_peak(&self) {
        self.inner.reset_peak();
    }

    fn holders(&self, n: usize) -> Vec<plimsoll_device::Holder> {
        self.inner.holders(n)
    }
}

// SAFETY: blocks are the inner allocator's own.
unsafe impl plimsoll_device::HostMemory for Watched {}

#[test]
fn a_batch_that_is_not_finite_is_left_out_and_said() {
    let scratch = Scratch::new("nan");
    let device = Device::cpu_over(1, memory()).unwrap();
    let mut spoiled = trainer(device, scratch.folder()).fault(Some(Fault::Nan(3)));
    let history = spoiled.fit(data(), Epochs(2)).unwrap();
    assert_eq!(history.iter().map(|epoch| epoch.skipped).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(spoiled.progress().step, 11);
    assert!(history.iter().all(|epoch| epoch.loss.is_finite()));
    let parameters: Vec<Vec<f32>> =
        spoiled.parameters().map(|(_, value)| value.to_vec::<f32>().unwrap()).collect();
    assert!(parameters.iter().flatten().all(|weight| weight.is_finite()), "{parameters:?}");
    // The batch that was left out changed nothing: with another one spoiled, the weights are others; with none, too.
    let undisturbed = |fault: Option<Fault>, name: &str| {
        let device = Device::cpu_over(1, memory()).unwrap();
        let mut other = trainer(device, &scratch.folder().join(name)).fault(fault);
        other.fit(data(), Epochs(2)).unwrap();
        weights(&other)
    };
    assert_ne!(undisturbed(None, "none"), weights(&spoiled), "eleven updates are not twelve");
    assert_eq!(undisturbed(Some(Fault::Nan(3)), "same"), weights(&spoiled), "the same batch, the same bits");
}

#[test]
fn a_checkpoint_that_cannot_be_written_at_the_end_of_an_epoch_names_the_one_before() {
    let scratch = Scratch::new("unwritten");
    // A file stands where the checkpoint of the second epoch should go.
    std::fs::write(scratch.folder().join("step-00000012"), "in the way").unwrap();
    let mut trainer = trainer(Device::cpu_over(1, memory()).unwrap(), scratch.folder());
    let error = trainer.fit(data(), Epochs(3)).unwrap_err();
    let Error::Lost { step: 12, checkpoint, .. } = &error else { panic!("{error}") };
    assert_eq!(*checkpoint, scratch.folder().join("step-00000010"));
}

#[test]
fn another_line_between_two_fits_goes_on_with_the_same_bits() {
    let scratch = Scratch::new("line");
    let device = || Device::cpu_over(1, memory()).unwrap();
    let mut steady = trainer(device(), &scratch.folder().join("a"));
    steady.fit(data(), Epochs(4)).unwrap();
    let mut changed = trainer(device(), &scratch.folder().join("b"));
    changed.fit(data(), Epochs(2)).unwrap();
    changed.set_memory_limit(Some(Bytes::gib(1))).unwrap();
    assert!(changed.set_memory_limit(Some(Bytes::mib(1))).is_err());
    changed.fit(data(), Epochs(4)).unwrap();
    assert_eq!(weights(&steady), weights(&changed));
}
