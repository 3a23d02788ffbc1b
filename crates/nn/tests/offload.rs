//! Models of the zoo, planned for a device that copies to the host: every plan holds.
//! Nothing is run.

use plimsoll_device::Bytes;
use plimsoll_nn::{Adam, Net, Recipe, Training, zoo};
use plimsoll_run::{Device, Exactness, Result, StepInfo, Tensor, TensorOps};

use plimsoll_graph::{DType, Type};

/// The emulator, or a line that says that there is none.
fn emulator() -> Option<Device> {
    Device::cuda_emulated(Bytes::mib(256)).map_err(|why| println!("skipped: no emulator ({why})")).ok()
}

fn recipe(input: Type, labels: Type, host: Option<Bytes>) -> Recipe {
    let recipe = Recipe::cross_entropy(Adam::new(1e-3), input, labels);
    Recipe { host_memory: host, exactness: Exactness::Bitwise, ..recipe }
}

#[test]
fn models_of_the_zoo_are_planned_with_copies() {
    let Some(device) = emulator() else { return };
    let gpt = zoo::Gpt { vocabulary: 64, width: 64, layers: 4, heads: 4 };
    type Model = Box<dyn Fn(&mut Net, &[Tensor]) -> Result<Tensor> + Send + Sync>;
    let tokens = Type::new(DType::I64, [8, 64]);
    let images = Type::new(DType::F32, [8, 32, 32, 3]);
    let cases: Vec<(&str, fn() -> Model, Type, Type)> = vec![
        (
            "unet",
            || Box::new(|net, x| zoo::unet(net, &x[0], 8, 3, 2)),
            images,
            Type::new(DType::I64, [8, 32, 32]),
        ),
        ("gpt", || Box::new(move |net, x| zoo::gpt(net, &x[0], gpt)), tokens.clone(), tokens),
    ];
    device.scope(|| {
        for (name, model, input, labels) in cases {
            let survey = |host| Training::survey(model(), recipe(input.clone(), labels.clone(), host)).unwrap();
            let (mut without, mut with) = (survey(None), survey(Some(Bytes::gib(1))));
            assert!(with.floor() <= without.floor(), "{name}");
            let (least, most) = (without.floor().get(), without.unlimited().get());
            let mut copies = 0;
            for part in [0, 2, 5] {
                let line = Bytes(least + (most - least) * part / 10);
                let plans: [StepInfo; 2] =
                    [without.plan(Some(line)).unwrap(), with.plan(Some(line)).unwrap()];
                println!(
                    "{name} in {line}: {:.3} ms and {} again without, {:.3} ms, {} again and {} copies with",
                    plans[0].predicted_seconds * 1e3,
                    plans[0].recomputed_ops,
                    plans[1].predicted_seconds * 1e3,
                    plans[1].recomputed_ops,
                    plans[1].offloaded_copies
                );
                assert!(plans.iter().all(|plan| plan.planned <= line));
                copies += plans[1].offloaded_copies;
            }
            assert!(copies > 0, "{name}: nothing is copied");
        }
    });
}
