//! What is dropped goes back to the system when it is asked for: a process that trained and trims is as small as before.

use crate::dense::body;
use plimsoll_device::Bytes;
use plimsoll_graph::{DType, SoftmaxOps, Type};
use plimsoll_run::{Device, Kind, Result, StateTensor, Step, StepOptions, Tensor, TensorOps};
use plimsoll_testing::{alone, child, group};

const WIDTH: usize = 1024;
const BATCH: usize = 2048;

/// What this process holds in memory of its own. Pages of code, which the system maps a few more or fewer of, are nobody's to give back.
fn own_pages() -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"))?;
    Some(Bytes::kib(kib.parse().ok()?))
}

/// Trains for some steps, keeps nothing, and says what the process takes before, while the step is there, when it is dropped, and
/// when the device is trimmed.
fn train_and_trim(device: &Device) -> Result<[u64; 4]> {
    let taken = || device.taken().or_else(own_pages).unwrap_or(Bytes::ZERO).get();
    let before = taken();
    let during = device.scope(|| -> Result<u64> {
        let zeros = |shape: [usize; 2]| Tensor::from_slice(&vec![0.01f32; shape[0] * shape[1]], shape);
        let held = |i: usize| {
            Ok(StateTensor { name: format!("w{i}"), kind: Kind::Parameter, tensor: zeros([WIDTH; 2])? })
        };
        let x = zeros([BATCH, WIDTH])?;
        let state = (0..4).map(held).collect::<Result<_>>()?;
        let ty = Type::new(DType::F32, [BATCH, WIDTH]);
        let mut step = Step::compile_with(StepOptions::default(), state, &[ty], body)?;
        for _ in 0..3 {
            step.run(&[&x])?;
        }
        assert!(step.outputs()[0].item()?.is_finite());
        Ok(taken())
    })?;
    let dropped = taken();
    let back = device.trim()?;
    let trimmed = taken();
    assert!(
        back.get() >= dropped.saturating_sub(trimmed).saturating_sub(1 << 20),
        "{back} of {dropped} to {trimmed}"
    );
    assert_eq!(device.memory_info().reserved, Bytes::ZERO);
    Ok([before, during, dropped, trimmed])
}

#[test]
fn a_process_that_trained_and_trims_is_as_small_as_before() {
    if child::question().is_some() {
        let device = Device::cpu_with(2, Bytes::gib(1)).unwrap();
        // Threads and their buffers are there from the first steps on; what is looked at is what more of them leave.
        for _ in 0..3 {
            train_and_trim(&device).unwrap();
        }
        return child::answer(&train_and_trim(&device).unwrap());
    }
    let [before, during, dropped, trimmed] =
        child::ask("trim::a_process_that_trained_and_trims_is_as_small_as_before", &["cpu"]);
    assert!(during > before + (32 << 20), "{before} {during}");
    // What the step held is gone with it; the batch, which was dropped behind it, when the device is trimmed.
    assert!(dropped < before + (10 << 20) && trimmed <= dropped, "{before} {dropped} {trimmed}");
    assert!(trimmed < before + (2 << 20), "{before} {trimmed}");
}

#[test]
fn a_card_that_is_trimmed_can_be_used_again_and_gives_the_same_bits() {
    let found = [("emulator", Device::cuda_emulated(Bytes::mib(256))), ("card", Device::cuda(0))];
    let there: Vec<Device> = found.into_iter().filter_map(|(name, device)| group(name, device)).collect();
    let _alone = alone();
    for device in there {
        let product = || {
            device.scope(|| {
                let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
                x.matmul(&x)?.tanh()?.softmax(-1)?.to_bytes()
            })
        };
        let first = product().unwrap();
        device.trim().unwrap();
        let opened = device.taken().unwrap_or(Bytes::ZERO);
        if device.name() == "cuda:0" {
            let [_, during, _, trimmed] = train_and_trim(&device).unwrap();
            println!(
                "{} opened {opened}, training {}, trimmed {}",
                device.name(),
                Bytes(during),
                Bytes(trimmed)
            );
            // The driver gives memory back in blocks of 2 MiB, and what libraries load stays with the context.
            assert!(trimmed <= opened.get() + (64 << 20), "{opened} {trimmed}");
        }
        assert_eq!(product().unwrap(), first);
        // While a tensor is held, only what nobody holds goes.
        let held = device.scope(|| Tensor::from_slice(&[1.0f32; 1000], [1000])).unwrap();
        device.trim().unwrap();
        assert_eq!(held.to_vec::<f32>().unwrap(), [1.0; 1000]);
    }
}
