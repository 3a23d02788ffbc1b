//! Files that are damaged: errors, never a panic, and no more memory than what the file itself takes.

use plimsoll_graph::{DType, Type};
use plimsoll_nn::{Net, zoo};
use plimsoll_run::Tensor;
use plimsoll_testing::{Counting, Dice, Scratch, damaged};
use plimsoll_tflite::{Goal, Quantize, read, write_model};

#[global_allocator]
static COUNTING: Counting = Counting;

fn file(scratch: &Scratch, name: &str, how: &Quantize) -> Vec<u8> {
    let entry = zoo::find(name).unwrap().sized(|size| {
        (size.image, size.width, size.depth) = (size.image.min(8), 4, 2);
        (size.heads, size.sequence, size.classes) = (2, 4, 5);
    });
    let input = entry.input(1);
    let params = Net::discover(std::slice::from_ref(&input), &entry).unwrap();
    let values: Vec<Tensor> = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 3).unwrap()).collect();
    let path = scratch.folder().join(name);
    let goal = Goal { quantize: how.clone(), arena: None };
    write_model(&path, name, &entry, &[("x".into(), input)], &params, &values, &goal).unwrap();
    std::fs::read(&path).unwrap()
}

#[test]
fn ten_thousand_damaged_files_are_refused_or_read_within_bounds() {
    let scratch = Scratch::new("tflite-damaged");
    let files = [
        file(&scratch, "cnn", &Quantize::No),
        file(&scratch, "gpt", &Quantize::HalfWeights),
        file(&scratch, "lstm", &Quantize::No),
    ];
    Tensor::zeros(Type::new(DType::F32, [1])).unwrap();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut refused, mut most) = (0, 0);
    for i in 0..10_000 {
        let bad = damaged(&files[i % 3], &mut dice);
        let before = Counting::forget_most();
        refused += usize::from(read(&bad).is_err());
        let taken = Counting::held().1 - before;
        // Tables become structures, a few times as large as what is written of them.
        most = most.max(taken as usize * 100 / bad.len().max(4096));
    }
    assert!(refused > 2_000, "{refused}");
    assert!(most < 2_000, "{most} % of the file");
}

#[test]
fn other_files_are_named_as_such() {
    let error = read(b"not a model at all").unwrap_err().to_string();
    assert!(error.contains("TFL3"), "{error}");
    assert!(read(&[]).is_err());
}
