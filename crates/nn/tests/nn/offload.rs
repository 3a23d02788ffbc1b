//! Models of the zoo, planned for a device that copies to the host: every plan holds, and what is allowed never
//! makes one slower. Nothing is run.

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, Type};
use plimsoll_nn::{Adam, Net, Recipe, Training, zoo};
use plimsoll_run::{Device, Exactness, PlanFigures, Result, Tensor};
use plimsoll_testing::group;

const GPT: zoo::Gpt = zoo::Gpt { vocabulary: 64, width: 64, layers: 4, heads: 4 };

/// The emulator, or a line that says that there is none.
#[track_caller]
fn emulator() -> Option<Device> {
    group("emulator", Device::cuda_emulated(Bytes::mib(256)))
}

fn recipe(input: Type, labels: Type, host: Option<Bytes>) -> Recipe {
    let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), input, labels);
    (recipe.request.host_limit, recipe.request.exactness) = (host, Exactness::Bitwise);
    recipe
}

#[test]
fn models_of_the_zoo_are_planned_with_copies() {
    let Some(device) = emulator() else { return };
    type Model = Box<dyn Fn(&mut Net, &[Tensor]) -> Result<Tensor> + Send + Sync>;
    let tokens = Type::new(DType::I64, [8, 64]);
    let images = Type::new(DType::F32, [8, 32, 32, 3]);
    type Case = (&'static str, fn() -> Model, Type, Type);
    let cases: Vec<Case> = vec![
        (
            "unet",
            || Box::new(|net, x| zoo::unet(net, &x[0], 8, 3, 2)),
            images,
            Type::new(DType::I64, [8, 32, 32]),
        ),
        ("gpt", || Box::new(|net, x| zoo::gpt(net, &x[0], GPT)), tokens.clone(), tokens),
    ];
    device.scope(|| {
        for (name, model, input, labels) in cases {
            // One after the other: what a survey holds of the device is counted by the next.
            let survey = |host: Option<Bytes>, lines: &[Bytes]| -> (Bytes, Bytes, Vec<PlanFigures>) {
                let recipe = recipe(input.clone(), labels.clone(), host);
                let mut survey = Training::planner(model(), recipe).unwrap();
                let plans = lines.iter().map(|&line| survey.plan(Some(line)).unwrap().figures).collect();
                (survey.floor(), survey.unlimited(), plans)
            };
            let (least, most, _) = survey(None, &[]);
            let lines = [0, 2, 5].map(|part| Bytes(least.get() + (most.get() - least.get()) * part / 10));
            let (_, _, without) = survey(None, &lines);
            let (lower, _, with) = survey(Some(Bytes::gib(1)), &lines);
            println!("{name}: the least is {} with copies, {} without", lower.get(), least.get());
            assert!(lower <= least, "{name}: {} with copies, {} without", lower.get(), least.get());
            let mut copies = 0;
            for (line, (without, with)) in lines.iter().zip(without.iter().zip(&with)) {
                println!(
                    "{name} in {line}: {:.3} ms and {} again without, {:.3} ms, {} again and {} copies with; {:.2} s",
                    without.predicted_seconds * 1e3,
                    without.recomputed_ops,
                    with.predicted_seconds * 1e3,
                    with.recomputed_ops,
                    with.offloaded_copies,
                    with.plan_seconds
                );
                assert!(without.planned <= *line && with.planned <= *line);
                assert!(with.predicted_seconds <= without.predicted_seconds, "{name} in {line}");
                copies += with.offloaded_copies;
            }
            assert!(copies > 0, "{name}: nothing is copied");
        }
    });
}
