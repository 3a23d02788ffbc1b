//! Random graphs within random bytes give what the reference interpreter gives.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::Graph;
use plimsoll_graph::example::Dice;
use plimsoll_graph::passes::sample::random_graph;
use plimsoll_graph::reference::interpret;
use plimsoll_graph::{DType, Site};

use super::{Program, ProgramMemory};
use crate::device::{Buffer, Device};
use crate::lower::{PlannableGraph, Roles};
use crate::peak::fullest;
use crate::tensor::Tensor;

/// Plans a graph within so many bytes and runs it.
fn run(graph: &Graph, arguments: &[Tensor], bytes: u64, device: &Device) -> (Vec<Tensor>, u64) {
    let mut plannable = PlannableGraph::new(graph.clone(), &Roles::default(), device, None).unwrap();
    let plan = plannable.plan(bytes).unwrap().unwrap();
    let fullest = fullest(&plan.lowered().problem, plan.plan());
    assert_eq!(fullest.map_or(0, |f| f.live), plan.live(), "the peak is where most is live");
    let replays = plan.figures().recomputed_ops;
    let program = Program::new(&plan).unwrap();
    assert!(program.arena_bytes() as u64 <= bytes.max(1));
    let site = Site::here();
    let new = |bytes| Buffer::new(device, bytes, "test", site).unwrap();
    let arena = new(program.arena_bytes());
    let results: Vec<Tensor> =
        program.result_types().map(|ty| Tensor::eager(ty.clone(), Arc::new(new(ty.bytes())))).collect();
    let pointers =
        |tensors: &[Tensor]| tensors.iter().map(|t| t.buffer(site).unwrap().ptr()).collect::<Vec<_>>();
    let (given, made) = (pointers(arguments), pointers(&results));
    let memory = ProgramMemory { arguments: &given, results: &made, arena: arena.ptr(), host: None };
    // SAFETY: arguments are only read, results and arena are fresh and of the sizes the program says.
    unsafe { program.run(device, memory, None) }.unwrap();
    (results, replays)
}

#[test]
fn random_graphs_under_random_budgets_mean_what_the_reference_says() {
    let device = Device::cpu_with(2, Bytes::mib(64)).unwrap();
    let mut dice = Dice::new(11);
    let mut replayed = 0;
    for seed in 0..150 {
        let (graph, values) = random_graph(seed, DType::F64).unwrap();
        let expected = interpret(&graph, &values);
        let graph = plimsoll_graph::passes::optimize(&graph).unwrap();
        let arguments: Vec<Tensor> = device.scope(|| {
            let types = graph.inputs().iter().map(|&v| graph.ty(v).clone());
            values.iter().zip(types).map(|(a, ty)| Tensor::from_f64(&a.data, ty).unwrap()).collect()
        });
        let mut plannable = PlannableGraph::new(graph.clone(), &Roles::default(), &device, None).unwrap();
        let (floor, most) = (plannable.floor(), plannable.unlimited());
        assert!(
            floor == 0 || plannable.plan(floor - 1).unwrap().is_err(),
            "graph {seed} fits below its floor"
        );
        let mut bits: Option<Vec<Vec<u8>>> = None;
        for bytes in [floor, most, dice.range(floor as usize, most as usize + 1) as u64] {
            let (results, replays) = run(&graph, &arguments, bytes, &device);
            replayed += replays;
            for (found, expected) in results.iter().zip(&expected) {
                for (a, b) in found.to_f64().unwrap().iter().zip(&expected.data) {
                    let close =
                        (a - b).abs() <= 1e-6 * (1.0 + b.abs()) || (a.is_nan() && b.is_nan()) || a == b;
                    assert!(close, "graph {seed} in {bytes} bytes: {a} and {b}");
                }
            }
            let found: Vec<Vec<u8>> = results.iter().map(|t| t.to_bytes().unwrap()).collect();
            assert_eq!(bits.get_or_insert_with(|| found.clone()), &found, "graph {seed} in {bytes} bytes");
        }
    }
    assert!(replayed > 100, "only {replayed} ops were run again");
}
