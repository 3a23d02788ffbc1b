//! The least that a step can do with is a property of the step, and a process keeps to what it announced: with kernels that were
//! never timed, with all of them timed, and with times that make no sense.
//!
//! What a process takes can be read of a process of its own only, so these tests start themselves again for every case.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_device::{Bytes, process};
use plimsoll_graph::{DType, Type};
use plimsoll_nn::{Adam, Net, Recipe, Training, zoo};
use plimsoll_run::{Device, Error, Result, Tensor};
use plimsoll_testing::child;

type Build = Box<dyn Fn(&mut Net, &[Tensor]) -> Result<Tensor> + Send + Sync>;

/// A model with the types of its inputs and labels.
fn model(name: &str) -> (Build, Type, Type) {
    let images = |side: usize| Type::new(DType::F32, [16, side, side, 3]);
    let (tokens, labels) = (Type::new(DType::I64, [16, 24]), Type::new(DType::I64, [16]));
    match name {
        "mlp" => (
            Box::new(|net, x| zoo::mlp(net, &x[0], &[64, 64, 10])),
            Type::new(DType::F32, [32, 64]),
            Type::new(DType::I64, [32]),
        ),
        "resnet18" => (Box::new(|net, x| zoo::resnet18(net, &x[0], 16, 10)), images(48), labels),
        "lstm" => (Box::new(|net, x| zoo::lstm(net, &x[0], 500, 96, 2)), tokens.clone(), tokens),
        "wide" => (
            // Weights that outweigh all that the step makes, so that timing their update would take more than the step does.
            Box::new(|net, x| {
                let x = net.dense("one", &x[0], 1024, true)?;
                net.dense("two", &x, 1024, true)
            }),
            Type::new(DType::F32, [4, 1024]),
            Type::new(DType::I64, [4]),
        ),
        "unet" => (
            Box::new(|net, x| zoo::unet(net, &x[0], 8, 3, 2)),
            images(64),
            Type::new(DType::I64, [16, 64, 64]),
        ),
        _ => panic!("{name} is not among these models"),
    }
}

/// What one process says: the least, what it announced, what a survey says is the least, and the most that it took.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    least: u64,
    announced: u64,
    surveyed: u64,
    peak: u64,
}

/// Trains a few steps under a memory limit, in this process. Refused, it announces nothing.
fn train(name: &str, cache: &Path, line: Option<Bytes>) -> Said {
    let device = Device::cpu_with(2, Bytes::gib(1)).unwrap();
    if !cache.as_os_str().is_empty() {
        device.calibrate(cache);
    }
    device.scope(|| {
        let (build, x, y) = model(name);
        let build = std::sync::Arc::new(build);
        let mut recipe = Recipe::cross_entropy(Adam::new(0.01), x.clone(), y.clone());
        recipe.request.limit = line;
        let shared = |build: &std::sync::Arc<Build>| {
            let build = build.clone();
            plimsoll_nn::model(move |net: &mut Net, x: &[Tensor]| build(net, x))
        };
        let surveyed = Training::planner(shared(&build), recipe.clone()).unwrap().floor().get();
        let mut training = match Training::new(shared(&build), recipe, 1) {
            Err(Error::Infeasible { least, .. }) => {
                return Said { least: least.get(), announced: 0, surveyed, peak: 0 };
            }
            training => training.unwrap(),
        };
        let info = training.info().clone();
        let (x, y) = (Tensor::zeros(x).unwrap(), Tensor::zeros(y).unwrap());
        for _ in 0..4 {
            training.run(&[&x, &y]).unwrap();
        }
        let peak = process::peak_resident().unwrap().get();
        Said { least: info.floor.get(), announced: info.planned.get(), surveyed, peak }
    })
}

/// The same in a process of its own.
fn ask(name: &str, cache: &Path, line: Option<u64>) -> Said {
    let question = [name, &line.unwrap_or(0).to_string(), &cache.to_string_lossy()];
    let [least, announced, surveyed, peak] = child::ask(&format!("floors::of::{name}"), &question);
    Said { least, announced, surveyed, peak }
}

/// A copy of a cache in which the time of every kernel is another.
fn altered(cache: &Path, to: PathBuf, change: impl Fn(u64, usize) -> u64) -> PathBuf {
    fs::create_dir_all(&to).unwrap();
    for file in fs::read_dir(cache).unwrap().map(|file| file.unwrap().path()) {
        let text = fs::read_to_string(&file).unwrap();
        let line = |(n, line): (usize, &str)| match line.split_once('\t') {
            Some((first, rest)) if first.starts_with(|c: char| c.is_ascii_digit()) => {
                let ns: String = first.chars().take_while(char::is_ascii_digit).collect();
                format!("{}\t{rest}\n", change(ns.parse().unwrap(), n))
            }
            _ => format!("{line}\n"),
        };
        let text: String = text.lines().enumerate().map(line).collect();
        assert!(text.lines().count() > 5, "nothing was timed");
        fs::write(to.join(file.file_name().unwrap()), text).unwrap();
    }
    to
}

/// Holds one model to what it announces, or is the process that trains it.
fn the_least_is_a_property_of_the_step_and_what_is_announced_is_kept_to(name: &str) {
    if let Some(question) = child::question() {
        let [name, line, cache] = question.try_into().unwrap();
        let line = Some(line.parse().unwrap()).filter(|&line| line > 0).map(Bytes);
        let Said { least, announced, surveyed, peak } = train(&name, Path::new(&cache), line);
        return child::answer(&[least, announced, surveyed, peak]);
    }
    let folder = std::env::temp_dir().join(format!("plimsoll-floors-{name}-{}", std::process::id()));
    let cache = folder.join(name);
    let never = ask(name, Path::new(""), None);
    let cold = ask(name, &cache, None);
    let warm = ask(name, &cache, None);
    let slow = ask(name, &altered(&cache, folder.join("slow"), |ns, _| 1000 * ns), None);
    let random =
        ask(name, &altered(&cache, folder.join("random"), |_, n| 1 + n as u64 * 7919 % 100_000), None);
    let all = [never, cold, warm, slow, random];
    println!("{name}: {all:?}");
    for said in all {
        assert_eq!((said.least, said.surveyed), (cold.least, cold.least), "{name}: {all:?}");
        assert!(said.peak <= said.announced, "{name}: {said:?}");
    }
    // What is announced depends on whether kernels are timed at all, and not on which have been.
    assert!([warm, slow, random].iter().all(|said| said.announced >= said.peak), "{name}");
    for cache in [folder.join("none"), cache] {
        fs::remove_dir_all(folder.join("none")).ok();
        let at_least = ask(name, &cache, Some(cold.least));
        println!("{name} at the least: {at_least:?}");
        assert_eq!((at_least.least, at_least.surveyed), (cold.least, cold.least), "{name}");
        assert!(at_least.announced <= cold.least && at_least.peak <= cold.least, "{name}: {at_least:?}");
        fs::remove_dir_all(folder.join("none")).ok();
        let below = ask(name, &cache, Some(cold.least - 1));
        assert_eq!(below, Said { announced: 0, peak: 0, ..at_least }, "{name}: a byte less is refused");
        for more in [cold.least + (1 << 20), cold.least.midpoint(cold.announced)] {
            fs::remove_dir_all(folder.join("none")).ok();
            let said = ask(name, &cache, Some(more));
            assert!(said.peak <= said.announced && said.announced <= more, "{name} {more}: {said:?}");
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A test a model, so that they run side by side.
mod of {
    use super::the_least_is_a_property_of_the_step_and_what_is_announced_is_kept_to as holds;

    #[test]
    fn mlp() {
        holds("mlp");
    }

    #[test]
    fn resnet18() {
        holds("resnet18");
    }

    #[test]
    fn lstm() {
        holds("lstm");
    }

    #[test]
    fn wide() {
        holds("wide");
    }

    #[test]
    fn unet() {
        holds("unet");
    }
}
