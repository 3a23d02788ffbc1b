//! Kernels are timed once, kept from run to run, corrected by steps, estimated where there is no time.

use std::fs;

use super::super::likes::Work;
use super::*;
use plimsoll_graph::{DType, TensorOps, Trace};

/// What is kept in a folder of the kernels of a graph.
fn kept_of(folder: &Path, graph: &Graph, device: &Device) -> Costs {
    kept_as(folder, "a cpu", graph, device)
}

fn kept_as(folder: &Path, name: &str, graph: &Graph, device: &Device) -> Costs {
    let mut costs = Costs::kept_in(folder, name);
    costs.look_up(graph, device).unwrap();
    costs
}

#[test]
fn a_kernel_is_timed_once_and_remembered() {
    let (folder, device) = place("costs");
    let graph = product_and_exp(64);
    let mut costs = Costs::kept_in(&folder, "a cpu");
    costs.time(&graph, &device, None).unwrap();
    assert_eq!(costs.known.len(), 2);
    let again = kept_of(&folder, &graph, &device);
    // To the last bit: the run that times a kernel plans as those that read its time.
    let all = |costs: &Costs| {
        let mut all: Vec<(KernelId, u64)> =
            costs.known.iter().map(|(id, timed)| (*id, timed.seconds.to_bits())).collect();
        all.sort();
        all
    };
    assert_eq!(all(&costs), all(&again));
    // Whether a kernel has been asked for does not show in what tells times from others; its time does.
    assert_eq!(costs.digest(), again.digest());
    assert_eq!(costs.digest(), Costs::kept_in(&folder, "a cpu").digest());
    for id in costs.known.keys() {
        let mut other = kept_of(&folder, &graph, &device);
        other.known.get_mut(id).unwrap().seconds += 1e-9;
        assert_ne!(costs.digest(), other.digest(), "a kernel takes longer");
    }
    let elsewhere = folder.join("run");
    costs.write_to(&elsewhere, &device).unwrap();
    costs.write_to(&elsewhere, &device).unwrap();
    assert_eq!(all(&costs), all(&kept_as(&elsewhere, &device.backend().signature(), &graph, &device)));
    fs::write(folder.join("a-cpu.times"), "something else\n12\tx\n").unwrap();
    assert!(kept_of(&folder, &graph, &device).known.is_empty());
    assert_ne!(costs.digest(), Costs::kept_in(&folder, "a cpu").digest(), "a kernel is not known");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn of_a_large_file_only_what_is_asked_for_is_held_and_estimates_are_those_of_all_of_it() {
    let (folder, device) = place("large");
    let graph = product_and_exp(64);
    Costs::kept_in(&folder, "a cpu").time(&graph, &device, None).unwrap();
    // Ten thousand exponentials of other sizes, and one that is written down twice as an estimate.
    let file = file_in(&folder, "a cpu");
    let timed =
        |n: f64| Timed { seconds: n * 1e-9, scratch: 0, flops: n, bytes: 8.0 * n, trust: Trust::Sure };
    let many: Vec<(String, Timed)> =
        (0..10_000).map(|n| (format!("Unary(Exp) f32[{n}, 3]"), timed(30.0 * f64::from(n)))).collect();
    let facts = Facts::new(device.backend(), Bytes(1), Bytes::ZERO);
    Times::append(&file, &facts, &many).unwrap();
    let mut costs = kept_of(&folder, &graph, &device);
    assert_eq!((costs.known.len(), costs.near.len()), (2, 0));
    // A kernel that is not there: the nearest of all stands for it, and nothing else is held.
    let other = product_and_exp(200);
    costs.look_up(&other, &device).unwrap();
    assert_eq!((costs.known.len(), costs.near.len()), (2, 2));
    let (op, ty) = (Op::from(plimsoll_graph::ops::Unary::Exp), Type::new(DType::F32, [200, 200]));
    let id = KernelId::of(&key(&op, &[&ty]));
    let work = Work::of(&op, &[&ty], &[&ty]);
    let best = Likes::new(many.iter().map(|(kernel, timed)| (kernel, timed))).nearest(&op, &work).unwrap();
    assert_eq!(costs.near[&id].like, best);
    // A run keeps what it went by, what stood for others too, and no more: planned again by that it goes by the same times.
    let run = folder.join("run");
    costs.write_to(&run, &device).unwrap();
    let lines = fs::read_to_string(file_in(&run, &device.backend().signature())).unwrap().lines().count();
    assert!(lines < 16, "{lines} lines");
    let mut recalled = Costs::recalled_from(&run, &device.backend().signature(), None);
    recalled.look_up(&other, &device).unwrap();
    let seconds = |costs: &Costs| costs.seconds(device.backend(), &op, &[&ty], &[&ty]);
    assert_eq!(seconds(&recalled), seconds(&costs));
    // What is timed now is nearer than anything in the file.
    costs.time(&other, &device, None).unwrap();
    assert!(costs.near.is_empty() && costs.known.len() == 4);
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
    let mut next = kept_of(&folder, &graph, &device);
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
    let last = kept_of(&folder, &graph, &device);
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
fn who_has_no_time_to_time_kernels_goes_by_the_record_of_such_a_device() {
    const RECORD: &str = "plimsoll kernel times 3
signature\tcuda A Card sm_90 driver 12 kernels 77
7000000\t0\t524288\t49152\tMatMul(MatMul { ta: false, tb: false, bias: false, act: None }) f32[64, 64] f32[64, 64]
9000000\t0\t524288\t49152\tMatMul(MatMul { ta: false, tb: true, bias: false, act: None }) f32[64, 64] f32[64, 64]
500000\t0\t4096\t32768\tUnary(Exp) f32[64, 64]
";
    let (folder, device) = place("record");
    let graph = product_and_exp(64);
    let sum = |costs: &Costs| -> f64 {
        let seconds = |node: &Node| {
            let (inputs, outputs) = (types(&graph, &node.inputs), types(&graph, &node.outputs));
            costs.seconds(device.backend(), &node.op, &inputs, &outputs)
        };
        graph.nodes().iter().map(seconds).sum()
    };
    let hasty = |signature: &str| {
        let mut costs = Costs::kept_in(&folder, "a cpu");
        let is_alike = costs.record(RECORD, signature);
        costs.time_for(Duration::ZERO);
        costs.time(&graph, &device, None).unwrap();
        (costs, is_alike)
    };
    let (costs, is_alike) = hasty("cuda A Card sm_90 driver 13 kernels 78");
    assert!(is_alike && costs.tried.is_empty());
    assert!((sum(&costs) - 7.5e-3).abs() < 1e-8, "{}", sum(&costs));
    assert_eq!((costs.recorded(), costs.looked_for.len()), (Some((2, 2)), 2));
    // The next one goes by the same times, and what tells them from others is the same, whoever has asked for what.
    let (again, _) = hasty("cuda A Card sm_90 driver 13 kernels 78");
    assert_eq!((sum(&again), again.digest()), (sum(&costs), costs.digest()));
    // Whoever has time finds out what this one takes, and that is what counts from then on.
    let mut patient = Costs::kept_in(&folder, "a cpu");
    patient.record(RECORD, "cuda A Card sm_90");
    patient.time(&graph, &device, None).unwrap();
    assert!(patient.recorded().is_none() && patient.tried.len() == 2);
    let hasty_now = hasty("cuda A Card sm_90").0;
    assert_eq!((sum(&hasty_now), hasty_now.recorded()), (sum(&patient), None));
    // Another card, or another architecture, is of another kind.
    let others = [
        "cuda B Card sm_90 driver 12",
        "cuda A Card sm_80 driver 12",
        "cuda A Card sm_90 driver 12 tf32 1",
        "cpu",
    ];
    for other in others {
        let (costs, is_alike) = hasty(other);
        assert!(!is_alike && costs.its_record().is_none());
    }
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
