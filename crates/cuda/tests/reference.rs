//! Every op's kernel against the reference interpreter, in every float type it takes, in place and not, twice with equal
//! bits: on a card where there is one, and on the emulator where there is a C++ compiler.

mod common;
mod device;

use common::{bench, card, emulator};
use plimsoll_cuda::{Cuda, Options};
use plimsoll_graph::example::{Dice, Domain, Example};
use plimsoll_graph::ops::{
    Attention, AttentionGrad, Conv, ConvFrame, ConvGradFilter, ConvGradInput, JointCrossEntropy, LayerNorm,
    LayerNormGrad, LayerNormGradAdd, MatMul, MatMulAdd, RmsNorm, RmsNormGrad, ScatterAdd, ScatterAddTo,
};
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, Op, OpDef, Rule, Scalar, Type};
use plimsoll_testing::check_joint_cross_entropy;
use plimsoll_testing::reference::{self, check_bits, check_values, chosen, examples_of, run};

fn check(cuda: &Cuda, example: &Example, dice: &mut Dice, computed_in: DType) {
    check_filled(cuda, example, &example.fill(dice), computed_in);
}

fn check_filled(cuda: &Cuda, example: &Example, values: &[Array], computed_in: DType) {
    // The gradients of recurrences round the gates' own before they are summed over steps and samples, as products in
    // 16-bit types want both sides alike; everything else is rounded once, at its end.
    let slack = match example.op {
        Op::LstmGrad(_) | Op::GruGrad(_) => 3.0,
        Op::LinearCrossEntropyGrad(_) | Op::JointCrossEntropy(_) | Op::FrozenCrossEntropy(_)
            if computed_in.bytes() == 2 =>
        {
            3.0
        }
        // The numbers of a weight of few bits are rounded to 16 bits before they are multiplied.
        Op::QuantMatMul(_) if computed_in.bytes() == 2 => 3.0,
        // Probabilities and their gradients are rounded on their way into the second product, for the same reason.
        Op::Attention(_) | Op::AttentionGrad(_) if computed_in.bytes() == 2 => 3.0,
        _ => 1.0,
    };
    let bench = bench(cuda);
    let one = reference::check(&bench, example, values, computed_in, slack);
    for share in [false, true] {
        check_bits(example, &one, &run(&bench, example, values, share), &format!("in place: {share}"));
    }
}

/// Checks every op on so many threads and gathers what fails, so that one run shows all of it.
fn every_op(cuda: &Cuda, threads: usize, seeds: u64, dtypes: &[DType]) {
    let ops = chosen();
    let of_thread = |thread: usize| -> Vec<&str> {
        let fails = |op: &&&OpDef| {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                examples_of(op, seeds, dtypes, &mut |example, dice, dtype| check(cuda, example, dice, dtype));
            }));
            outcome.is_err()
        };
        ops.iter().skip(thread).step_by(threads).filter(fails).map(|op| op.name).collect()
    };
    let failures: Vec<&str> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|thread| {
                scope.spawn({
                    let of_thread = &of_thread;
                    move || of_thread(thread)
                })
            })
            .collect();
        let mut failures = of_thread(0);
        others.into_iter().for_each(|other| failures.extend(other.join().unwrap()));
        failures
    });
    assert!(failures.is_empty(), "{} ops fail: {failures:?}", failures.len());
}

/// How many examples of each kind: one takes a card minutes already, most of them its compiler's.
fn seeds() -> u64 {
    if std::env::var_os("PLIMSOLL_ALL_TYPES").is_some() { 3 } else { 1 }
}

/// Checks something on the card and on the emulator, where they are.
#[track_caller]
fn on_each_device(check: fn(&Cuda)) {
    [card(), emulator()].iter().flatten().for_each(check);
}

/// An attention with its inputs: batch, queries, keys, heads, heads of keys, width of keys and of values.
fn attention(causal: bool, sizes: [usize; 7], dtype: DType) -> (Attention, Vec<(Type, Domain)>) {
    let [batch, tq, tk, heads, kv_heads, d, dv] = sizes;
    let of = |shape: [usize; 4]| (Type::new(dtype, shape), Domain::Normal);
    let inputs = vec![of([batch, tq, heads, d]), of([batch, tk, kv_heads, d]), of([batch, tk, kv_heads, dv])];
    (Attention::new(causal, 1.0 / (d as f64).sqrt()), inputs)
}

/// Attentions in both types of 16 bits: whether it is causal, its sizes, its type.
fn in_halves<const N: usize>(
    cases: [(bool, [usize; 7]); N],
) -> impl Iterator<Item = (bool, [usize; 7], DType)> {
    let both = |(causal, sizes)| [DType::BF16, DType::F16].map(|dtype| (causal, sizes, dtype));
    cases.into_iter().flat_map(both)
}

/// Attention over heads that tensor cores take: one tile and several, keys before the queries, shared keys, other widths.
fn attention_on_tensor_cores(cuda: &Cuda) {
    let mut dice = Dice::new(5);
    let plain = |op: Attention| op;
    let packed = |op: Attention| Attention { documents: true, ..op };
    let narrow = |op: Attention| Attention { window: Some(40), ..op };
    let capped = |op: Attention| Attention { cap: Some(Scalar(1.5)), ..op };
    type Change = fn(Attention) -> Attention;
    let cases: [(bool, [usize; 7], Change); 11] = [
        (true, [2, 150, 150, 2, 2, 64, 64], plain),
        (false, [1, 70, 33, 4, 2, 16, 32], plain),
        (true, [1, 20, 90, 2, 1, 32, 16], plain),
        // So many blocks of keys that heads which share them are summed in one.
        (true, [320, 20, 20, 4, 2, 16, 16], plain),
        (true, [1, 90, 20, 1, 1, 48, 48], plain),
        (true, [1, 80, 80, 1, 1, 128, 128], plain),
        (true, [2, 200, 200, 2, 1, 64, 64], packed),
        (true, [1, 200, 200, 1, 1, 32, 32], narrow),
        (true, [1, 70, 150, 2, 1, 128, 128], |op| Attention { documents: true, window: Some(40), ..op }),
        (false, [1, 70, 80, 2, 2, 16, 16], capped),
        (true, [1, 130, 130, 1, 1, 64, 64], |op| Attention {
            documents: true,
            window: Some(70),
            cap: Some(Scalar(2.0)),
            ..op
        }),
    ];
    for (i, (causal, sizes, change)) in cases.into_iter().enumerate() {
        // Hundreds of blocks take the emulator minutes.
        if sizes[0] > 100 && cuda.is_emulated() {
            continue;
        }
        let both = [DType::BF16, DType::F16];
        // What differs between them is how they are read and written: on the emulator, which is slow, they take turns.
        let dtypes = if cuda.is_emulated() { &both[i % 2..][..1] } else { &both[..] };
        for &dtype in dtypes {
            let (op, mut inputs) = attention(causal, sizes, dtype);
            let op = change(op);
            let [batch, tq, tk, heads, _, _, dv] = sizes;
            inputs.extend(op.documents.then(|| (Type::new(DType::I32, [batch, tq]), Domain::Index(tk))));
            // Texts of 37 tokens in one row, of 61 in the next; so that whole blocks of keys are hidden.
            let check = |example: Example, dice: &mut Dice| {
                let mut values = example.fill(dice);
                if let Some(at) = op.starts_at() {
                    let text = |row: usize| 37 + 24 * (row % 2);
                    let start = |e: usize| (e % tq + tk - tq) / text(e / tq) * text(e / tq);
                    values[at].data = (0..batch * tq).map(|e| start(e) as f64).collect();
                }
                check_filled(cuda, &example, &values, dtype);
            };
            check(Example::new(op, inputs.clone()), &mut dice);
            let of = (Type::new(dtype, [batch, tq, heads, dv]), Domain::Normal);
            let lse = (Type::new(DType::F32, [batch, heads, tq]), Domain::Positive);
            inputs.extend([of.clone(), lse, of]);
            // As among the op's own examples: the log-sums are not those of the scores, so scores are flat.
            let op = Attention { scale: Scalar(0.25 * op.scale.0), ..op };
            check(Example::new(AttentionGrad(op), inputs), &mut dice);
        }
    }
}

/// Attention over so many scores that cuDNN is asked, which the reference would take minutes for: our own kernels, which are
/// held against it, stand for it.
#[test]
fn attention_by_a_library_means_what_our_own_means() {
    let Some(cuda) = card() else { return };
    let own = Cuda::with(0, Options { cudnn: false, ..Options::default() }).expect("there is a card");
    let mut dice = Dice::new(7);
    for (causal, sizes, dtype) in in_halves([
        (true, [2, 1024, 1024, 2, 2, 64, 64]),
        (true, [1, 1030, 1030, 4, 2, 64, 64]),
        (false, [1, 1024, 1100, 4, 4, 128, 64]),
        (false, [10, 197, 197, 12, 12, 64, 64]),
        (true, [1, 2100, 2100, 1, 1, 128, 128]),
    ]) {
        let (op, mut inputs) = attention(causal, sizes, dtype);
        let [batch, tq, tk, heads, .., dv] = sizes;
        // Results of our own.
        let both = |example: &Example, values: &[Array]| {
            let one = run(&bench(&cuda), example, values, false);
            let wanted = run(&bench(&own), example, values, false);
            for (o, (got, want)) in one.iter().zip(&wanted).enumerate() {
                check_values(&got.ty, dtype, 3.0, &got.values, &want.values, &|| {
                    format!("{:?} of {tq} by {tk}, output {o}", example.op)
                });
            }
            let again = run(&bench(&cuda), example, values, false);
            check_bits(example, &one, &again, &format!("for {tq} by {tk}"));
            wanted
        };
        let example = Example::new(op, inputs.clone());
        let mut values = example.fill(&mut dice);
        let made = both(&example, &values);
        let of = (Type::new(dtype, [batch, tq, heads, dv]), Domain::Normal);
        let lse = (Type::new(DType::F32, [batch, heads, tq]), Domain::Normal);
        inputs.extend([of.clone(), lse, of.clone()]);
        values.extend(made.iter().map(|y| Array::new(y.ty.shape.clone(), y.values.clone())));
        values.push(of.1.fill(&of.0, &mut dice));
        both(&Example::new(AttentionGrad(op), inputs), &values);
    }
}

/// Convolutions that are turned into something else before a library does them: few channels, with and without a stride, and
/// windows side by side that enlarge.
fn convolutions_in_disguise(cuda: &Cuda) {
    let mut dice = Dice::new(6);
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let of = |shape: [usize; 4]| (Type::new(dtype, shape), Domain::Normal);
        let frame = |stride, pad| ConvFrame { stride, pad, dilation: [1, 1], groups: 1 };
        for (channels, stride, window, pad, size, out) in [
            (3, [2, 2], [7, 7], [(3, 3); 2], [40, 38], [20, 19]),
            (3, [1, 1], [3, 3], [(1, 1); 2], [21, 24], [21, 24]),
            (1, [2, 2], [3, 3], [(0, 1); 2], [20, 24], [10, 12]),
            (4, [3, 3], [4, 5], [(0, 0); 2], [22, 23], [7, 7]),
            // Patches of a vision transformer, and others that lie side by side.
            (3, [16, 16], [16, 16], [(0, 0); 2], [32, 48], [2, 3]),
            (5, [4, 7], [4, 7], [(0, 0); 2], [12, 35], [3, 5]),
        ] {
            let x = of([3, size[0], size[1], channels]);
            let w = of([window[0], window[1], channels, 16]);
            let dy = of([3, out[0], out[1], 16]);
            let frame = frame(stride, pad);
            let conv = Conv { frame, bias: false, act: None };
            check(cuda, &Example::new(conv, vec![x.clone(), w]), &mut dice, dtype);
            let grad = ConvGradFilter { frame, filter: window };
            check(cuda, &Example::new(grad, vec![x, dy]), &mut dice, dtype);
        }
        for (stride, out, bias) in
            [([2, 2], [5, 33], true), ([2, 2], [4, 40], false), ([3, 2], [3, 36], true)]
        {
            let input = [out[0] * stride[0], out[1] * stride[1]];
            let (dy, w) = (of([2, out[0], out[1], 24]), of([stride[0], stride[1], 16, 24]));
            let grad = ConvGradInput { frame: frame(stride, [(0, 0); 2]), input, bias };
            let mut inputs = vec![dy, w];
            inputs.extend(bias.then(|| (Type::new(dtype, [16]), Domain::Normal)));
            check(cuda, &Example::new(grad, inputs), &mut dice, dtype);
        }
    }
}

#[test]
fn convolutions_in_disguise_mean_what_the_reference_means() {
    on_each_device(convolutions_in_disguise);
}

/// Adding back by index with lists of all lengths: few outputs, many, one that nearly all indices name, several samples.
fn sums_by_index(cuda: &Cuda) {
    let mut dice = Dice::new(8);
    for (axis, shape, indices, length, hot) in [
        (0, vec![5000], 5000, 4, 0.5),
        (1, vec![3, 2100, 6], 2100, 5, 0.9),
        (0, vec![2500, 24], 2500, 300, 0.7),
        (0, vec![18_000, 16], 18_000, 700, 0.5),
        (1, vec![2, 17_000, 12], 17_000, 1200, 0.0),
        // More sums than are counted up at a time.
        (0, vec![700, 8], 700, 20_000, 0.2),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            let x = (Type::new(dtype, shape.clone()), Domain::Normal);
            let index = (Type::new(DType::I64, [indices]), Domain::Index(length));
            let example = Example::new(ScatterAdd { axis, length }, vec![x, index]);
            let mut values = example.fill(&mut dice);
            for place in values[1].data.iter_mut() {
                if dice.unit() < hot {
                    *place = 2.0;
                }
            }
            check_filled(cuda, &example, &values, dtype);
            let mut inputs = example.inputs;
            let made =
                ScatterAdd { axis, length }.infer(&[&inputs[0].0, &inputs[1].0]).expect("it fits").remove(0);
            values.push(Domain::Normal.fill(&made, &mut dice));
            inputs.push((made, Domain::Normal));
            let sums = ScatterAdd { axis, length };
            check_filled(cuda, &Example::new(ScatterAddTo { sums }, inputs), &values, dtype);
        }
    }
}

#[test]
fn sums_by_index_mean_what_the_reference_means_however_long_their_lists() {
    on_each_device(sums_by_index);
}

/// Layer and RMS norms of rows that take one warp, several, and more than a block has registers for.
fn norms_of_wide_rows(cuda: &Cuda) {
    let mut dice = Dice::new(9);
    for (dtype, rows, width) in [
        (DType::BF16, 21, 1000),
        (DType::BF16, 5, 1600),
        (DType::BF16, 11, 2048),
        (DType::BF16, 3, 4096),
        (DType::BF16, 2, 8192),
        (DType::F32, 7, 640),
        (DType::F32, 3, 3000),
        (DType::F32, 2, 5120),
    ] {
        let wide = dtype.accumulator();
        let of = |dtype, shape: &[usize], domain| (Type::new(dtype, shape), domain);
        let (x, scale) = (of(dtype, &[rows, width], Domain::Normal), of(wide, &[width], Domain::Normal));
        let (some, positive) = (of(wide, &[rows], Domain::Normal), of(wide, &[rows], Domain::Positive));
        let eps = Scalar(1e-2);
        for example in [
            Example::new(RmsNorm { eps }, vec![x.clone(), scale.clone()]),
            Example::new(RmsNormGrad, vec![x.clone(), scale.clone(), positive.clone(), x.clone()]),
            Example::new(LayerNorm { eps, axes: 1, to: None }, vec![x.clone(), scale.clone(), scale.clone()]),
            Example::new(
                LayerNormGrad { axes: 1 },
                vec![x.clone(), scale.clone(), some.clone(), positive.clone(), x.clone()],
            ),
            Example::new(
                LayerNormGradAdd { axes: 1, to: None },
                vec![x.clone(), scale.clone(), some.clone(), positive.clone(), x.clone(), x.clone()],
            ),
        ] {
            check(cuda, &example, &mut dice, dtype);
        }
        // Of an f32 stream beside 16-bit products: written and read in their type.
        for to in [DType::BF16, DType::F16].into_iter().filter(|_| dtype == DType::F32) {
            let dy = of(to, &[rows, width], Domain::Normal);
            for example in [
                Example::new(
                    LayerNorm { eps, axes: 1, to: Some(to) },
                    vec![x.clone(), scale.clone(), scale.clone()],
                ),
                Example::new(
                    LayerNormGrad { axes: 1 },
                    vec![x.clone(), scale.clone(), some.clone(), positive.clone(), dy.clone()],
                ),
                Example::new(
                    LayerNormGradAdd { axes: 1, to: Some(to) },
                    vec![x.clone(), scale.clone(), some.clone(), positive.clone(), dy, x.clone()],
                ),
            ] {
                check(cuda, &example, &mut dice, to);
            }
        }
    }
}

#[test]
fn norms_of_wide_rows_mean_what_the_reference_means() {
    on_each_device(norms_of_wide_rows);
}

#[test]
fn products_of_rows_that_begin_anywhere_mean_what_the_crates_own_products_mean() {
    let Some(cuda) = card() else { return };
    let own = Cuda::with(0, Options { cublaslt: false, ..Default::default() }).expect("a card was there");
    let (m, n, k) = (1021, 1031, 1027);
    let mut dice = Dice::new(10);
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let shape = |turned, rows, columns| if turned { [columns, rows] } else { [rows, columns] };
        let of = |shape: &[usize]| (Type::new(DType::BF16, shape), Domain::Normal);
        let inputs = vec![of(&shape(ta, m, k)), of(&shape(tb, k, n)), of(&[n])];
        let example = Example::new(MatMul { ta, tb, bias: true, act: None }, inputs);
        let values = example.fill(&mut dice);
        let found = run(&bench(&cuda), &example, &values, false);
        let wanted = run(&bench(&own), &example, &values, false);
        let (found, wanted) = (&found[0], &wanted[0]);
        // Sums of a thousand terms lie around zero as often as not.
        check_values(&found.ty, DType::BF16, 2.0, &found.values, &wanted.values, &|| format!("{ta} {tb}"));
        assert!(found.bytes != wanted.bytes, "both were computed alike");
    }
}

#[test]
fn a_product_that_adds_has_the_same_bits_in_place_and_elsewhere() {
    let Some(cuda) = card() else { return };
    let mut dice = Dice::new(11);
    let tokens = 2048;
    let mut apart = Vec::new();
    // Layers of language models with adapters, there and back, and the gradients of their weights.
    for (m, n, k) in [(tokens, 2048, 2048), (tokens, 2048, 16), (16, 2048, tokens)] {
        for (ta, tb) in [(false, false), (false, true), (true, false)] {
            let shape = |turned, rows, columns| if turned { [columns, rows] } else { [rows, columns] };
            let of = |shape: &[usize]| (Type::new(DType::BF16, shape), Domain::Normal);
            let inputs = vec![of(&shape(ta, m, k)), of(&shape(tb, k, n)), of(&[m, n])];
            let op = MatMulAdd { ta, tb, scale: Scalar(1.0), add: true };
            let example = Example::new(op, inputs);
            let values = example.fill(&mut dice);
            let bits = |share: bool| run(&bench(&cuda), &example, &values, share).remove(0).bytes;
            let (elsewhere, in_place) = (bits(false), bits(true));
            if elsewhere != in_place || elsewhere != bits(false) {
                apart.push(format!("{m} x {n} x {k}, {ta} {tb}"));
            }
        }
    }
    assert!(apart.is_empty(), "other bits in place: {apart:?}");
}

/// Losses with their gradients: samples of all sizes, in types that are taken apart by samples and by classes.
fn losses_with_gradients(cuda: &Cuda) {
    let bench = bench(cuda);
    let mut dice = Dice::new(3);
    for (i, sizes) in [[1, 3, 5], [7, 9, 40], [20, 24, 131], [9, 7, 40]].into_iter().enumerate() {
        let [rows, width, classes] = sizes;
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            // What differs between the types of 16 bits is how they are read and written.
            if cuda.is_emulated() && dtype == [DType::F16, DType::BF16][i % 2] {
                continue;
            }
            let cap = (i % 2 == 1).then_some(Scalar(2.5));
            check_joint_cross_entropy(&bench, sizes, dtype, cap);
            let of = |dtype, shape: &[usize]| Type::new(dtype, shape);
            let inputs = vec![
                (of(dtype, &[rows, width]), Domain::Normal),
                (of(dtype, &[classes, width]), Domain::Normal),
                (of(DType::I64, &[rows]), Domain::Index(classes)),
                (of(DType::F32, &[rows]), Domain::Normal),
            ];
            check(cuda, &Example::new(JointCrossEntropy { cap, dx: true }, inputs), &mut dice, dtype);
        }
    }
    if !cuda.is_emulated() {
        // Several pieces of samples, and of classes, the last one shorter.
        check_joint_cross_entropy(&bench, [300, 304, 200_001], DType::BF16, None);
        check_joint_cross_entropy(&bench, [300, 304, 200_000], DType::BF16, Some(Scalar(2.5)));
        for dtype in [DType::F32, DType::BF16] {
            check_joint_cross_entropy(&bench, [2000, 16, 30_000], dtype, None);
        }
    }
}

#[test]
fn losses_made_with_their_gradients_have_the_bits_of_both_apart() {
    on_each_device(losses_with_gradients);
}

#[test]
fn attention_on_tensor_cores_means_what_the_reference_means() {
    on_each_device(attention_on_tensor_cores);
}

#[test]
fn every_op_means_on_a_card_what_the_reference_means() {
    if let Some(cuda) = card() {
        every_op(&cuda, 1, seeds(), &DType::FLOATS);
    }
}

#[test]
fn every_op_means_on_the_crates_own_products_what_the_reference_means() {
    if card().is_some() {
        let options = Options { cublaslt: false, ..Default::default() };
        every_op(&Cuda::with(0, options).expect("a card was there"), 1, 1, &DType::FLOATS);
    }
}

#[test]
fn every_op_means_on_the_emulator_what_the_reference_means() {
    if let Some(cuda) = emulator() {
        // A C++ compiler takes its time, so that there are several at once, which a card's one stream would not bear; the other types are the card's.
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let dtypes = if seeds() > 1 { &DType::FLOATS[..] } else { &[DType::F32] };
        every_op(&cuda, threads, seeds(), dtypes);
    }
}
