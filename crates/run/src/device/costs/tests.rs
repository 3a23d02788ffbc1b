//! Kernels are timed once, kept from run to run, corrected by steps, estimated where there is no time.

use std::fs;

use super::*;
use plimsoll_graph::{DType, TensorOps, Trace};

#[test]
fn a_kernel_is_timed_once_and_remembered() {
    let (folder, device) = place("costs");
    let trace = Trace::new();
    let x = trace.input("x", Type::new(DType::F32, [64, 64]));
    let y = x.matmul(&x).unwrap().exp().unwrap();
    let graph = trace.finish(&[&y]).unwrap();
    let mut costs = Costs::kept_in(&folder, "a cpu");
    costs.time(&graph, &device, None).unwrap();
    assert_eq!(costs.known.len(), 2);
    let again = Costs::kept_in(&folder, "a cpu");
    // To the last bit: the run that times a kernel plans as those that read its time.
    let all = |costs: &Costs| {
        let mut all: Vec<(String, u64)> =
            costs.known.iter().map(|(k, t)| (k.clone(), t.seconds.to_bits())).collect();
        all.sort();
        all
    };
    assert_eq!(all(&costs), all(&again));
    assert_eq!(costs.digest(), again.digest());
    for key in costs.known.keys() {
        let mut other = Costs::kept_in(&folder, "a cpu");
        other.known.get_mut(key).unwrap().seconds += 1e-9;
        assert_ne!(costs.digest(), other.digest(), "{key} takes longer");
        other.known.remove(key);
        assert_ne!(costs.digest(), other.digest(), "{key} is not known");
    }
    let elsewhere = folder.join("run");
    costs.write_to(&elsewhere, &device).unwrap();
    costs.write_to(&elsewhere, &device).unwrap();
    assert_eq!(all(&costs), all(&Costs::kept_in(&elsewhere, &device.backend().signature())));
    fs::write(folder.join("a-cpu.times"), "something else\n12\tx\n").unwrap();
    assert!(Costs::kept_in(&folder, "a cpu").known.is_empty());
    fs::remove_dir_all(folder).unwrap();
}

/// A folder for times, and a device to time on.
fn place(name: &str) -> (PathBuf, Device) {
    let folder = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
    (folder, Device::cpu_with(1, Bytes::mib(64)).unwrap())
}

/// Two kernels over a square.
fn product_and_exp(side: usize) -> Graph {
    let trace = Trace::new();
    let x = trace.input("x", Type::new(DType::F32, [side, side]));
    trace.finish(&[&x.matmul(&x).unwrap().exp().unwrap()]).unwrap()
}

#[test]
fn steps_far_from_the_prediction_correct_the_kernels_and_have_them_timed_again() {
    let (folder, device) = place("drift");
    let graph = product_and_exp(64);
    let kernels = || graph.nodes().iter().map(|node| (&graph, node, 1));
    let sum = |costs: &Costs| costs.known.values().map(|timed| timed.seconds).sum::<f64>();
    let mut costs = Costs::kept_in(&folder, "a cpu");
    costs.time(&graph, &device, None).unwrap();
    let predicted = sum(&costs);
    // About right, or disturbed now and then: nothing changes.
    costs.compare(&device, kernels(), (1.2 * predicted, 9.0 * predicted));
    assert_eq!(sum(&costs), predicted);
    // Five times too much was predicted.
    costs.compare(&device, kernels(), (0.2 * predicted, 0.2 * predicted));
    let mut next = Costs::kept_in(&folder, "a cpu");
    assert!((sum(&next) - 0.2 * predicted).abs() < 1e-8, "{} of {predicted}", sum(&next));
    assert!(next.known.values().all(|timed| timed.trust == Trust::Doubted));
    // This process has timed them; the next one does so again, once.
    costs.time(&graph, &device, None).unwrap();
    assert!(costs.known.values().all(|timed| timed.trust == Trust::Doubted));
    next.time(&graph, &device, None).unwrap();
    assert!(next.known.values().all(|timed| timed.trust == Trust::Again));
    // Steps that contradict those too have the last word.
    let least = 3.0 * sum(&next);
    next.compare(&device, kernels(), (least, least));
    let last = Costs::kept_in(&folder, "a cpu");
    assert!((sum(&last) - least).abs() < 1e-8 && last.known.len() == 2);
    assert!(last.known.values().all(|timed| timed.trust == Trust::Corrected));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn whoever_asks_is_told_how_far_timing_has_come() {
    let (folder, device) = place("told");
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let lines = told.clone();
    device.on_timing(move |done, total, op| lines.lock().unwrap().push((done, total, op.to_string())));
    let graph = product_and_exp(8);
    let mut costs = Costs::kept_in(&folder, "a cpu");
    costs.time(&graph, &device, None).unwrap();
    let expected = [(0, 2, "matmul"), (1, 2, "exp"), (2, 2, "")].map(|(d, t, op)| (d, t, op.to_string()));
    assert_eq!(*told.lock().unwrap(), expected);
    // What is known is not timed, and nobody is told anything.
    costs.time(&graph, &device, None).unwrap();
    assert_eq!(told.lock().unwrap().len(), 3);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn without_time_kernels_are_estimated_alike_by_everybody_until_somebody_has_more() {
    let (folder, device) = place("patience");
    let trace = Trace::new();
    let x = trace.input("x", Type::new(DType::F32, [64, 64]));
    let narrow = x.narrow(0, 0, 32).unwrap();
    let y = x.exp().unwrap().matmul(&x).unwrap();
    let graph = trace.finish(&[&y, &narrow.exp().unwrap()]).unwrap();
    let trusts = |costs: &Costs| costs.known.values().map(|timed| timed.trust).collect::<Vec<_>>();
    let mut costs = Costs::kept_in(&folder, "a cpu");
    costs.time_for(Duration::ZERO);
    costs.time(&graph, &device, None).unwrap();
    assert!(trusts(&costs).len() >= 3 && trusts(&costs).iter().all(|trust| *trust == Trust::Estimated));
    // The next one in a hurry goes by the same estimates.
    let mut next = Costs::kept_in(&folder, "a cpu");
    next.time_for(Duration::from_millis(100));
    next.time(&graph, &device, None).unwrap();
    assert_eq!(next.known, costs.known);
    // Who has time takes it, and finds no estimate to scale from.
    let mut patient = Costs::kept_in(&folder, "a cpu");
    patient.time_for(Duration::from_secs(60));
    patient.time(&graph, &device, None).unwrap();
    assert!(trusts(&patient).iter().all(|trust| *trust != Trust::Estimated));
    // A kernel that nobody timed is scaled from one that was: half the elements, about half the time.
    let (op, wide) = (Op::from(plimsoll_graph::ops::Unary::Exp), Type::new(DType::F32, [64, 64]));
    let wider = Type::new(DType::F32, [128, 64]);
    let seconds = |ty: &Type| patient.seconds(device.backend(), &op, &[ty], &[ty]);
    let call = device.backend().speed().call;
    let expected = (seconds(&wide) - call).max(0.0) * 2.0 + call.min(seconds(&wide));
    assert!((seconds(&wider) - expected).abs() < 1e-9, "{} and {expected}", seconds(&wider));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_kernel_without_room_is_not_timed() {
    let trace = Trace::new();
    let x = trace.input("x", Type::new(DType::F32, [64, 64]));
    let graph = trace.finish(&[&x.exp().unwrap()]).unwrap();
    let (folder, device) = place("room");
    let mut costs = Costs::kept_in(&folder, "a cpu");
    costs.time(&graph, &device, Some(Bytes::kib(31))).unwrap();
    assert!(costs.known.is_empty());
    costs.time(&graph, &device, Some(Bytes::kib(32))).unwrap();
    assert_eq!(costs.known.len(), 1);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_link_is_timed_once_where_there_is_room_and_remembered() {
    let emulated = Device::cuda_emulated(Bytes::mib(64));
    let Some(device) = plimsoll_testing::group("emulator", emulated) else { return };
    let folder = std::env::temp_dir().join(format!("plimsoll-link-{}", std::process::id()));
    let mut costs = Costs::kept_in(&folder, "a card");
    costs.time_link(&device, Bytes::kib(512)).unwrap();
    assert!(costs.known.is_empty(), "half a MiB is not timed");
    costs.time_link(&device, Bytes::mib(2)).unwrap();
    assert_eq!(costs.known.len(), 1);
    let again = Costs::kept_in(&folder, "a card");
    let (one, two) = (costs.link(device.backend()).unwrap(), again.link(device.backend()).unwrap());
    // Times are kept in whole nanoseconds.
    assert!(one.bytes_per_second.abs_diff(two.bytes_per_second) <= one.bytes_per_second / 1_000_000);
    let cpu = Device::cpu_with(1, Bytes::mib(64)).unwrap();
    assert_eq!(again.link(cpu.backend()), None, "the CPU has none");
    fs::remove_dir_all(folder).unwrap();
}
