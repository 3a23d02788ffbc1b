//! The plan, its peak and its record say the same of who holds the arena's bytes: all three are read off the plan by one function.

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, Type};
use plimsoll_nn::{Adam, Net, Recipe, Training, zoo};
use plimsoll_run::record::{Kind, Phase};
use plimsoll_run::{Device, Exactness, Result, Tensor};

type Build = fn(&mut Net, &[Tensor]) -> Result<Tensor>;

/// The reference cases at small sizes.
fn cases() -> [(&'static str, Build, Type, Type); 6] {
    let image = |channels: usize| Type::new(DType::F32, [64, 32, 32, channels]);
    let (tokens, labels) = (Type::new(DType::I64, [64, 64]), Type::new(DType::I64, [64]));
    let gpt: Build = |net, x| {
        let size = zoo::Gpt { vocabulary: 64, width: 32, layers: 2, heads: 2 };
        zoo::gpt(net, &x[0], size)
    };
    [
        (
            "mlp",
            |net, x| zoo::mlp(net, &x[0], &[32, 64, 10]),
            Type::new(DType::F32, [64, 32]),
            labels.clone(),
        ),
        ("cnn", |net, x| zoo::cnn(net, &x[0], &[8, 8, 16, 16], 10), image(3), labels.clone()),
        ("resnet18", |net, x| zoo::resnet18(net, &x[0], 8, 10), image(3), labels),
        ("unet", |net, x| zoo::unet(net, &x[0], 4, 2, 2), image(3), Type::new(DType::I64, [64, 32, 32])),
        ("gpt", gpt, tokens.clone(), tokens.clone()),
        ("lstm", |net, x| zoo::lstm(net, &x[0], 64, 32, 2), tokens.clone(), tokens),
    ]
}

#[test]
fn a_plan_its_peak_and_its_record_hold_the_same_bytes() {
    let device = Device::cpu_with(1, Bytes::mib(256)).unwrap();
    let mut recomputed = Vec::new();
    device.scope(|| {
        for (name, build, x, y) in cases() {
            let mut recipe = Recipe::cross_entropy(Adam::new(0.01), x.clone(), y.clone());
            recipe.request.exactness = Exactness::Bitwise;
            let model = plimsoll_nn::model(build);
            let mut planner = Training::planner(model, recipe).unwrap();
            let (floor, most) = (planner.floor(), planner.unlimited());
            for limit in [None, Some(floor), Some(Bytes(floor.get().midpoint(most.get())))] {
                let plan = planner.plan(limit).unwrap();
                let (info, step) = (&plan.figures, plan.timeline().unwrap());
                step.check(name).unwrap();
                let (at, peak) = step.peak();
                assert_eq!(peak, info.live.get(), "{name} in {limit:?}: record and plan");
                let held = |kind: Kind| step.held(kind)[at];
                let peak_of = |kind: Kind| {
                    info.peak
                        .kinds
                        .iter()
                        .find(|(known, _)| *known == kind)
                        .map_or(0, |(_, bytes)| bytes.get())
                };
                for kind in [Kind::Activation, Kind::Scratch, Kind::Gradient] {
                    assert_eq!(held(kind), peak_of(kind), "{name} in {limit:?}: {kind} of record and peak");
                }
                recomputed.extend(step.tensors.iter().any(|tensor| tensor.again).then_some(name));
                // What an update computes is the optimizer's in both.
                let updates = step.tensors.iter().filter(|tensor| {
                    tensor.kind != Kind::Scratch
                        && step.instructions[tensor.from as usize].phase == Phase::Update
                });
                assert!(updates.clone().count() > 0, "{name}");
                assert!(updates.clone().all(|tensor| tensor.kind == Kind::Optimizer), "{name}");
            }
        }
    });
    // The small steps fit as they are.
    for name in ["resnet18", "unet", "gpt", "lstm"] {
        assert!(recomputed.contains(&name), "{name}: no plan recomputes anything: {recomputed:?}");
    }
}
