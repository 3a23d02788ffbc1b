//! Plans and reports name the line of the model's own code, whoever wrote it: never a line of the engine or of the standard library.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{Adam, Conv2d, Model, Recipe, Sequential, Training, model, zoo};
use plimsoll_run::Tensor;
use plimsoll_run::record::Step;

fn planned(model: impl Model + 'static, input: Type) -> Step {
    let labels = Type::new(DType::I64, [input.shape[0]]);
    let recipe = Recipe::cross_entropy(Adam::new(1e-3), input, labels);
    Training::planner(model, recipe).unwrap().plan(None).unwrap().timeline().unwrap()
}

/// The lines of this file that instructions of a layer carry.
fn lines_of(timeline: &Step, layer: &str) -> Vec<u32> {
    let of_layer = timeline
        .instructions
        .iter()
        .filter(|i| timeline.names[i.layer as usize].split('/').any(|part| part == layer));
    let mut lines: Vec<u32> = of_layer
        .map(|i| {
            let site =
                i.site.unwrap_or_else(|| panic!("{layer} has an instruction {} without a limit", i.op));
            let (file, line) = timeline.sites[site as usize].rsplit_once(':').unwrap();
            assert!(file.ends_with("tests/nn/sites.rs"), "{layer}: {file}");
            line.parse().unwrap()
        })
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// Only lines of this file are named, by anybody.
fn own_lines_only(timeline: &Step) {
    assert!(!timeline.sites.is_empty());
    assert!(timeline.sites.iter().all(|site| site.contains("tests/nn/sites.rs:")), "{:?}", timeline.sites);
}

/// The line of this file that ends in a comment of this word.
fn marked(word: &str) -> u32 {
    let mark = format!("// {word}");
    let at = include_str!("sites.rs").lines().position(|line| line.ends_with(&mark));
    at.unwrap_or_else(|| panic!("no line is marked {word}")) as u32 + 1
}

#[test]
fn a_list_of_layers_has_the_line_of_each_call() {
    let block = Sequential::block().conv2d_with(Conv2d::new(8, 3).same()).batch_norm(); // norm
    let model = Sequential::new([8, 8, 3])
        .conv2d_with(Conv2d::new(8, 3).same())
        .relu()
        .residual(block)
        .layer("own", |net, x| net.conv2d("inner", x, Conv2d::new(4, 1))) // inner
        .flatten()
        .dense(10); // dense
    let input = model.input(4);
    let timeline = planned(model, input);
    own_lines_only(&timeline);
    assert_eq!(lines_of(&timeline, "norm1"), [marked("norm")]);
    assert_eq!(lines_of(&timeline, "inner"), [marked("inner")]);
    assert_eq!(lines_of(&timeline, "dense1"), [marked("dense")]);
    // Parameters carry the line of the layer that reads them.
    let weight =
        timeline.residents.iter().find(|r| timeline.names[r.name as usize] == "dense1/weight").unwrap();
    let site = &timeline.sites[weight.site.unwrap() as usize];
    assert!(site.ends_with(&format!("sites.rs:{}", marked("dense"))), "{site}");
}

#[test]
fn a_closure_has_the_lines_inside_it_and_so_has_a_function() {
    let timeline = planned(
        model(|net, x| {
            let y = net.dense("first", &x[0], 16, true)?.relu()?; // first
            let y = net.scope("deep", |net| net.dense("second", &net.compute(&y)?, 16, true))?; // second
            head(net, &y)
        }),
        Type::new(DType::F32, [4, 8]),
    );
    own_lines_only(&timeline);
    assert_eq!(lines_of(&timeline, "first"), [marked("first")]);
    assert_eq!(lines_of(&timeline, "second"), [marked("second")]);
    assert_eq!(lines_of(&timeline, "head"), [marked("head")]);
}

#[test]
fn a_method_that_is_handed_on_has_the_line_before() {
    let timeline = planned(
        model(|net, x| {
            let y = net.scope("handed", |net| {
                let y = net.compute(&x[0])?.add_scalar(1.0)?; // before
                [&y, &y].into_iter().map(Tensor::sqrt).next_back().unwrap()
            })?;
            head(net, &y)
        }),
        Type::new(DType::F32, [4, 8]),
    );
    own_lines_only(&timeline);
    let after = format!("after crates/nn/tests/nn/sites.rs:{}", marked("before"));
    assert!(timeline.sites.contains(&after), "{:?}", timeline.sites);
}

fn head(net: &mut plimsoll_nn::Net, x: &Tensor) -> plimsoll_run::Result<Tensor> {
    net.dense("head", x, 10, true) // head
}

#[test]
fn a_model_of_the_zoo_has_the_line_that_called_it_or_none_but_never_its_own() {
    let input = || Type::new(DType::F32, [4, 784]);
    let line = line!() + 1;
    let called = planned(model(|net, x| zoo::mlp(net, &x[0], &[16, 10])), input());
    own_lines_only(&called);
    assert_eq!(lines_of(&called, "dense1"), [line]);
    let named = planned(zoo::find("mlp").unwrap(), input());
    assert!(named.sites.is_empty(), "{:?}", named.sites);
    assert!(named.names.iter().any(|name| name == "dense1"), "the layer is named all the same");
}
