//! Training on the CUDA backend: on the emulator everywhere, on a card where there is one. The same losses as on the CPU.

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{Adam, Kept, Net, Optimizer, Precision, Recipe, Training};
use plimsoll_run::{Device, Error, Exactness, Result, Tensor};
use plimsoll_testing::group;

const BATCH: usize = 8;

/// Losses, the whole state by name, and how much of it is on the host.
type Trained = (Vec<f64>, Vec<(String, Vec<u8>)>, Bytes);

/// The devices to compare with the CPU, or lines that say which are not there.
fn devices() -> Vec<Device> {
    let found = [("emulator", Device::cuda_emulated(Bytes::mib(64))), ("card", Device::cuda(0))];
    let there = found.into_iter().filter_map(|(name, device)| group(name, device));
    there.collect()
}

fn model(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let x = net.dense("in", &x[0], 48, true)?.relu()?;
    let x = net.dropout("drop", &x, 0.25)?;
    net.dense("out", &x, 5, true)
}

fn recipe() -> Recipe {
    let (x, y) = (Type::new(DType::F32, [BATCH, 20]), Type::new(DType::I64, [BATCH]));
    Recipe::cross_entropy(Adam::new(1e-2), x, y)
}

/// Losses of a few steps, the bytes planned, the least bytes and the number of micro-batches.
fn train(device: &Device, change: impl FnOnce(&mut Recipe)) -> Result<(Vec<f64>, Bytes, Bytes, usize)> {
    device.scope(|| {
        let mut recipe = recipe();
        change(&mut recipe);
        let mut training = Training::new(model, recipe, 3)?;
        let x: Vec<f32> = (0..BATCH * 20).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
        let x = Tensor::from_slice(&x, [BATCH, 20])?;
        let y: Vec<i64> = (0..BATCH as i64).map(|i| i * 3 % 5).collect();
        let y = Tensor::from_slice(&y, [BATCH])?;
        // More than two steps, so that a device that records replays too.
        let losses = (0..5).map(|_| training.step(&[&x], &y)).collect::<Result<Vec<f64>>>()?;
        let info = training.info();
        Ok((losses, info.planned, info.floor, info.micro_batches))
    })
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: {found:?} and {expected:?}");
    }
}

#[test]
fn weights_in_bf16_move_on_the_backend_as_on_the_cpu() {
    let narrow = |recipe: &mut Recipe| {
        recipe.request.precision = Precision::Bf16;
        recipe.optimizer = Adam::new(1e-2).with_state(Kept::Bf16).unwrap();
    };
    let cpu = Device::cpu_with(1, Bytes::mib(64)).unwrap();
    let (expected, ..) = train(&cpu, narrow).unwrap();
    assert!(expected[4] < expected[0]);
    for device in devices() {
        let (losses, ..) = train(&device, narrow).unwrap();
        for (a, b) in losses.iter().zip(&expected) {
            // Products in bf16 differ in their last bits, and with them what is rounded to.
            assert!((a - b).abs() <= 0.02 * b.abs(), "{device:?}: {losses:?} and {expected:?}");
        }
    }
}

#[test]
fn losses_on_the_backend_are_those_of_the_cpu_whole_and_split() {
    let cpu = Device::cpu_with(1, Bytes::mib(64)).unwrap();
    let (expected, ..) = train(&cpu, |_| ()).unwrap();
    assert!(expected[4] < expected[0]);
    for device in devices() {
        let (whole, ..) = train(&device, |_| ()).unwrap();
        assert_close(&whole, &expected, "whole");
        let (split, _, _, parts) = train(&device, |recipe| recipe.request.micro_batch = Some(3)).unwrap();
        assert_eq!(parts, 3);
        assert_close(&split, &expected, "split");
    }
}

#[test]
fn narrow_state_is_that_of_the_cpu() {
    // In the first steps what differs are sums alone; later a number that lies between two codes, or near its draw, may become either.
    let train = |device: &Device, kept: Kept| {
        device.scope(|| -> Result<(Vec<f64>, Vec<i32>)> {
            let mut recipe = recipe();
            recipe.optimizer = Adam::new(1e-3).with_state(kept).expect("Adam with narrow state");
            let wide = |net: &mut Net, x: &[Tensor]| {
                let x = net.dense("in", &x[0], 260, true)?.tanh()?;
                net.dense("out", &x, 5, true)
            };
            let mut training = Training::new(wide, recipe, 3)?;
            let x: Vec<f32> = (0..BATCH * 20).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
            let y: Vec<i64> = (0..BATCH as i64).map(|i| i * 3 % 5).collect();
            let (x, y) = (Tensor::from_slice(&x, [BATCH, 20])?, Tensor::from_slice(&y, [BATCH])?);
            let losses = (0..6).map(|_| training.step(&[&x], &y)).collect::<Result<Vec<f64>>>()?;
            let name = if kept == Kept::Bf16 { "in/weight.v" } else { "in/weight.v.codes" };
            let bytes = training.state().find(|(found, _)| *found == name).expect("a state").1.to_bytes()?;
            // Of bf16 the bits, which are in the order of the numbers.
            let codes = match kept {
                Kept::Bf16 => {
                    bytes.chunks_exact(2).map(|two| i32::from(u16::from_ne_bytes([two[0], two[1]]))).collect()
                }
                _ => bytes.into_iter().map(i32::from).collect(),
            };
            Ok((losses, codes))
        })
    };
    for kept in Kept::NARROW {
        let (expected, codes) = train(&Device::cpu_with(1, Bytes::mib(64)).unwrap(), kept).unwrap();
        assert!(expected[5] < expected[0]);
        for device in devices() {
            let (losses, found) = train(&device, kept).unwrap();
            for (a, b) in losses.iter().zip(&expected) {
                assert!((a - b).abs() <= 1e-3 * b.abs(), "{losses:?} and {expected:?}");
            }
            let far = found.iter().zip(&codes).filter(|(a, b)| a.abs_diff(**b) > 1).count();
            assert!(far * 100 <= codes.len(), "{far} of {} codes are others", codes.len());
        }
    }
}

#[test]
fn narrow_state_may_live_on_the_host_with_the_same_bits() {
    for (device, kept) in
        devices().into_iter().flat_map(|device| Kept::NARROW.map(|kept| (device.clone(), kept)))
    {
        // State lives on the host where it has pages of its own: a card's are large.
        let width = if device.name().contains("emulated") { 1024 } else { 1 << 17 };
        let wide = move |net: &mut Net, x: &[Tensor]| {
            let x = net.dense("in", &x[0], width, true)?.tanh()?;
            net.dense("out", &x, 5, true)
        };
        let recipe = |limit: Option<Bytes>, host: Option<Bytes>| {
            let mut recipe = recipe();
            // So many weights of one sum want small steps, each.
            let rate = 0.125 / width as f64;
            recipe.optimizer = Adam::new(rate).with_state(kept).expect("Adam with narrow state");
            let request = &mut recipe.request;
            (request.limit, request.host_limit, request.exactness) = (limit, host, Exactness::Bitwise);
            recipe
        };
        let train = |limit: Option<Bytes>, host: Option<Bytes>| {
            device.scope(|| -> Result<Trained> {
                let mut training = Training::new(wide, recipe(limit, host), 3)?;
                let x: Vec<f32> = (0..BATCH * 20).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
                let y: Vec<i64> = (0..BATCH as i64).map(|i| i * 3 % 5).collect();
                let (x, y) = (Tensor::from_slice(&x, [BATCH, 20])?, Tensor::from_slice(&y, [BATCH])?);
                let losses = (0..4).map(|_| training.step(&[&x], &y)).collect::<Result<Vec<f64>>>()?;
                let bytes = |(name, tensor): (&str, &Tensor)| Ok((name.to_string(), tensor.to_bytes()?));
                let state = training.state().map(bytes).collect::<Result<Vec<_>>>()?;
                Ok((losses, state, training.info().hosted_bytes))
            })
        };
        let host = Some(Bytes::gib(1));
        let least =
            device.scope(|| Training::planner(wide, recipe(None, host)).map(|step| step.floor())).unwrap();
        let alone =
            device.scope(|| Training::planner(wide, recipe(None, None)).map(|step| step.floor())).unwrap();
        assert!(least < alone, "{least} with the host, {alone} without");
        let (losses, state, hosted) = train(None, None).unwrap();
        assert_eq!(hosted, Bytes::ZERO);
        assert!(losses[3] < losses[0], "{losses:?}");
        let is_narrow = |name: &str| match kept {
            Kept::Bf16 => name.ends_with("/weight.m") || name.ends_with("/weight.v"),
            _ => name.contains("/weight") && name.ends_with(".codes"),
        };
        let narrow = state.iter().filter(|(name, _)| is_narrow(name)).count();
        assert_eq!(narrow, 4, "both weights have narrow state");
        let (there_losses, there, hosted) = train(Some(least), host).unwrap();
        assert!(hosted >= Bytes::from(2 * 20 * width), "{hosted} on the host");
        assert_eq!(there_losses, losses);
        for (here, there) in state.iter().zip(&there) {
            assert!(here == there, "{} is another where state lives on the host", here.0);
        }
    }
}

#[test]
fn a_tight_line_is_kept_and_a_byte_less_is_refused() {
    let cpu = Device::cpu_with(1, Bytes::mib(64)).unwrap();
    let (expected, ..) = train(&cpu, |_| ()).unwrap();
    for device in devices() {
        let reassociated = |line: Bytes| {
            move |recipe: &mut Recipe| {
                recipe.request.limit = Some(line);
                recipe.request.exactness = Exactness::Reassociated;
            }
        };
        let (_, _, least, _) = train(&device, reassociated(Bytes::mib(4096))).unwrap();
        let (losses, planned, floor, _) = train(&device, reassociated(least)).unwrap();
        assert!(planned <= least && floor <= least, "{planned} and {floor} of {least}");
        assert_close(&losses, &expected, "at the least limit");
        // What a card's context takes may change by a page or two while it is in use.
        let page = if device.name().contains("emulated") { 1 } else { 64 << 20 };
        match train(&device, reassociated(Bytes(least.get() - page))) {
            Err(Error::Infeasible { least: known, .. }) => assert!(known <= least, "{known} of {least}"),
            other => panic!("a limit below the least gave {other:?}"),
        }
    }
}

#[test]
fn a_label_out_of_range_changes_nothing() {
    for device in devices() {
        device.scope(|| {
            let mut training = Training::new(model, recipe(), 3).unwrap();
            let x = Tensor::zeros(Type::new(DType::F32, [BATCH, 20])).unwrap();
            let y = Tensor::from_slice(&[0i64, 1, 2, 3, 4, 5, 0, 1], [BATCH]).unwrap();
            let before: Vec<Vec<u8>> = training.values().iter().map(|t| t.to_bytes().unwrap()).collect();
            let refused = training.step(&[&x], &y).unwrap_err();
            assert!(refused.to_string().contains("index 5"), "{refused}");
            let after: Vec<Vec<u8>> = training.values().iter().map(|t| t.to_bytes().unwrap()).collect();
            assert_eq!(before, after);
        });
    }
}
