//! Every set of instructions that this processor has against the portable kernels: bytes bit by bit, floats within rounding.

use alloc::vec::Vec;

use super::cpu::Level;
use super::pairs::run_pair_with;
use super::{pack, pack_depthwise, pack_window, run, run_depthwise, run_pair};
use crate::bytes::{chunks, f};
use crate::load::Options;
use crate::ops::conv::{Bytes, Conv, Floats, Numbers};
use crate::ops::layer::{Layer, Weights, Window};
use crate::ops::matmul::{BytePairs, Pair};
use crate::ops::products::Operands;
use crate::ops::store::Store;
use crate::ops::transpose_conv::Transposed;
use crate::ops::window::Span;
use crate::quant::{Rounding, Scale};
use crate::schema::Type;
use crate::tensor::{Place, Shape, Tensor};

/// Pixels, taps, strides and channels that leave rests everywhere: height, width, window, stride, padding, channels in and out.
const CASES: [[usize; 7]; 24] = [
    [1, 1, 1, 1, 0, 37, 50],
    [1, 7, 1, 1, 0, 64, 64],
    [5, 9, 1, 1, 0, 16, 33],
    [6, 6, 3, 1, 1, 3, 17],
    [9, 7, 3, 2, 1, 20, 70],
    [8, 8, 3, 1, 1, 70, 16],
    [4, 13, 5, 1, 2, 6, 5],
    [13, 13, 2, 3, 0, 129, 96],
    [3, 40, 1, 1, 0, 31, 130],
    [5, 23, 3, 1, 1, 35, 9],
    [6, 31, 3, 2, 0, 48, 16],
    [9, 19, 5, 2, 1, 18, 4],
    [5, 16, 5, 1, 2, 32, 3],
    [3, 3, 3, 1, 1, 20, 8],
    // Windows with nothing of the picture in them.
    [4, 5, 3, 1, 4, 19, 6],
    [7, 4, 5, 2, 6, 33, 7],
    // Lines of windows as rows, with borders that are wider than the picture or reach over both of its sides.
    [4, 5, 3, 1, 4, 4, 6],
    [3, 2, 3, 1, 1, 2, 3],
    [20, 9, 7, 2, 3, 3, 20],
    [9, 19, 3, 5, 2, 20, 6],
    [12, 14, 5, 5, 4, 16, 4],
    [10, 12, 3, 7, 4, 35, 5],
    [10, 11, 3, 7, 0, 35, 5],
    // Panels that are larger than the second cache.
    [1, 2, 1, 1, 0, 33_000, 20],
];

struct Dice(u64);

impl Dice {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as u8
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    fn floats(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| (f32::from(self.byte()) / 64.0 - 2.0).to_le_bytes()).collect()
    }
}

fn span(length: usize, size: usize, step: usize, before: usize) -> Span {
    let places = (length + 2 * before - size) / step + 1;
    Span { length, places, size, step, dilation: 1, before }
}

/// The same with elements of the window further apart.
fn dilated(length: usize, size: usize, dilation: usize, before: usize) -> Span {
    Span { size, dilation, ..span(length, (size - 1) * dilation + 1, 1, before) }
}

fn tensor(kind: Type, data: &[u8]) -> Tensor<'_> {
    let shape = Shape::new([data.len() / kind.bytes()]).unwrap();
    Tensor {
        shape,
        kind,
        bytes: data.len(),
        place: Place::File(data),
        name: "",
        scales: &[],
        zeros: &[],
        axis: 0,
    }
}

fn store() -> Store {
    Store::new(1 << 30, Options { pack_weights: true })
}

/// Transposed ones: height, width, height and width of the window, both strides, padding, channels in and out.
const TRANSPOSED: [[usize; 9]; 8] = [
    [5, 13, 2, 2, 2, 2, 0, 37, 50],
    [4, 30, 2, 2, 2, 2, 0, 64, 32],
    [3, 7, 5, 4, 2, 3, 1, 9, 5],
    [6, 5, 3, 3, 1, 1, 1, 16, 70],
    [1, 1, 4, 3, 4, 2, 0, 130, 17],
    [2, 3, 5, 5, 4, 4, 2, 8, 33],
    [3, 4, 2, 1, 3, 1, 0, 20, 20],
    [7, 2, 16, 15, 1, 4, 3, 4, 3],
];

/// The results of the portable kernel and of the fast one at every level.
fn compare(case: [usize; 7], is_float: bool, is_depthwise: bool, check: impl Fn(&[u8], &[u8], &str)) {
    let [height, width, size, step, before, deep, channels] = case;
    let channels = if is_depthwise { deep } else { channels };
    let mut dice = Dice(case.iter().fold(7, |sum, n| sum * 31 + *n as u64));
    // Steps beyond three stand for dilations, less three.
    let (y, x) = match step.checked_sub(3) {
        Some(dilation @ 1..) => {
            (dilated(height, size, dilation, before), dilated(width, size, dilation, before))
        }
        _ => (span(height, size, step, before), span(width, size, step, before)),
    };
    let taps = size * size;
    let (inputs, weights) =
        (2 * height * width * deep, taps * if is_depthwise { channels } else { deep * channels });
    let outputs = 2 * y.places * x.places * channels;
    let mut kept = store();
    let scales = kept.add_floats(channels, |channel| Some(0.0001 * (1 + channel % 5) as f32)).unwrap();
    let (kind, numbers) = if is_float {
        let floats = Floats { weights: Type::F32, bias: Type::F32, scales, low: -50.0, high: 60.0 };
        (Type::F32, Numbers::Floats(floats))
    } else {
        (Type::I8, Numbers::Bytes(Bytes { in_zero: -7, out_zero: 3, scales, low: -100, high: 120 }))
    };
    let draw = |dice: &mut Dice, count| if is_float { dice.floats(count) } else { dice.bytes(count) };
    let (operand, weights) = (draw(&mut dice, inputs), draw(&mut dice, weights));
    let bias = if is_float {
        dice.floats(channels)
    } else {
        dice.bytes(4 * channels).chunks(4).flat_map(|b| [b[0], b[1], b[2] & 1, 0]).collect()
    };
    let (of_weights, of_bias) =
        (tensor(kind, &weights), tensor(if is_float { Type::F32 } else { Type::I32 }, &bias));
    let conv = Conv {
        y,
        x,
        in_channels: deep,
        out_channels: channels,
        deep: if is_depthwise { 1 } else { deep },
        numbers,
        packed: None,
    };
    let mut wanted = alloc::vec![0; outputs * kind.bytes()];
    let operands = Operands { store: &kept, x: &operand, weights: &weights, bias: Some(&bias) };
    match is_depthwise {
        true => crate::ops::depthwise::run(&conv, operands, &mut wanted).unwrap(),
        false => crate::ops::conv::run(&conv, operands, &mut wanted).unwrap(),
    }
    let window = Window { y, x, channels: deep };
    for level in Level::up_to_this() {
        Level::pretend(level);
        let what = Weights {
            numbers: &numbers,
            weights: &of_weights,
            bias: Some(&of_bias),
            taps,
            deep: conv.deep,
            channels,
            pixels: outputs / channels,
        };
        let once = |kept: &mut Store| {
            let pack = if is_depthwise { pack_depthwise } else { pack_window };
            pack(kept, &what, &window)
        };
        let packed = once(&mut kept).expect("weights can be packed");
        let bytes = kept.packed_bytes();
        let again = once(&mut kept).expect("weights can be packed");
        assert_eq!(kept.packed_bytes(), bytes, "the same weights are packed once");
        // The second reader goes from the last to the first.
        for packed in [packed, again] {
            let mut found = alloc::vec![0; wanted.len()];
            let layer = Layer { packed: &packed, store: &kept, window, x: &operand };
            match is_depthwise {
                true => run_depthwise(&layer, &numbers, &mut found).unwrap(),
                false => run(&layer, &numbers, &mut found).unwrap(),
            }
            check(&wanted, &found, &alloc::format!("{case:?} with {level:?}"));
        }
    }
}

/// The same of a transposed convolution, whose spans go from its result to its operand. Answers whether it was packed.
fn compare_transposed(case: [usize; 9], is_float: bool, check: impl Fn(&[u8], &[u8], &str)) -> bool {
    let [height, width, down, right, step_y, step_x, before, deep, channels] = case;
    let mut dice = Dice(case.iter().fold(11, |sum, n| sum * 31 + *n as u64));
    let span = |places: usize, size: usize, step: usize| Span {
        length: (places - 1) * step + size - 2 * before,
        places,
        size,
        step,
        dilation: 1,
        before,
    };
    let (y, x) = (span(height, down, step_y), span(width, right, step_x));
    let draw = |dice: &mut Dice, count| if is_float { dice.floats(count) } else { dice.bytes(count) };
    let operand = draw(&mut dice, 2 * height * width * deep);
    let weights = draw(&mut dice, channels * down * right * deep);
    let kind = if is_float { Type::F32 } else { Type::I8 };
    let of_weights = tensor(kind, &weights);
    let run = |pack_weights: bool| {
        let mut kept = Store::new(1 << 30, Options { pack_weights });
        let scales = kept.add_floats(channels, |channel| Some(0.0001 * (1 + channel % 5) as f32)).unwrap();
        let numbers = if is_float {
            Numbers::Floats(Floats { weights: kind, bias: kind, scales, low: -50.0, high: 60.0 })
        } else {
            Numbers::Bytes(Bytes { in_zero: -7, out_zero: 3, scales, low: -100, high: 120 })
        };
        let conv = Conv { y, x, in_channels: deep, out_channels: channels, deep, numbers, packed: None };
        let transposed = Transposed::new(conv, &mut kept, &of_weights, None, 2);
        let mut out = alloc::vec![0x5a; 2 * y.length * x.length * channels * kind.bytes()];
        let operands = Operands { store: &kept, x: &operand, weights: &weights, bias: None };
        crate::ops::transpose_conv::run(&transposed, operands, &mut out).unwrap();
        (out, kept.packed_bytes() > 0)
    };
    let (wanted, _) = run(false);
    let mut packs = true;
    for level in Level::up_to_this() {
        Level::pretend(level);
        let (found, is_packed) = run(true);
        packs &= is_packed;
        check(&wanted, &found, &alloc::format!("transposed {case:?} with {level:?}"));
    }
    packs
}

#[test]
fn every_set_of_instructions_gives_what_the_portable_kernels_give() {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let near = |wanted: &[u8], found: &[u8], what: &str| {
        for (wanted, found) in floats(wanted).into_iter().zip(floats(found)) {
            assert!((wanted - found).abs() <= 1e-5 * wanted.abs().max(10.0), "{what}: {wanted} {found}");
        }
    };
    let same = |wanted: &[u8], found: &[u8], what: &str| assert_eq!(wanted, found, "{what}");
    let mut levels = 0;
    for (case, is_depthwise) in CASES.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        compare(case, false, is_depthwise, same);
        compare(case, true, is_depthwise, near);
        levels = Level::up_to_this().count();
    }
    let mut packed = 0;
    for case in TRANSPOSED {
        packed += usize::from(compare_transposed(case, false, same));
        compare_transposed(case, true, near);
    }
    // Of one no element reaches every line; of another the first that does lies beyond what a window of one element sees.
    assert!(levels == 0 || packed == TRANSPOSED.len() - 2, "{packed} are packed");
    std::println!("{levels} levels up to {:?}", Level::up_to_this().last());
}

#[test]
fn operators_that_differ_in_bias_and_scales_share_their_weights() {
    // So few pixels that no level packs for tiles: another test changes levels meanwhile.
    let (deep, channels, pixels) = (70, 50, 5);
    let mut dice = Dice(11);
    let (x, weights) = (dice.bytes(pixels * deep), dice.bytes(channels * deep));
    let of_weights = tensor(Type::I8, &weights);
    let mut kept = store();
    let mut before = 0;
    for step in 0..3 {
        let scales = kept.add_floats(channels, |channel| Some(1e-4 * (1 + channel + step) as f32)).unwrap();
        let bias: Vec<u8> =
            (0..channels).flat_map(|channel| ((channel * 31 * step) as i32).to_le_bytes()).collect();
        let of_bias = tensor(Type::I32, &bias);
        let bytes = Bytes { in_zero: 4 * step as i32 - 5, out_zero: 3, scales, low: -128, high: 127 };
        let numbers = Numbers::Bytes(bytes);
        let bias = (step > 0).then_some(&of_bias);
        let what = Weights { numbers: &numbers, weights: &of_weights, bias, taps: 1, deep, channels, pixels };
        // Without vector instructions nothing is packed.
        let Some(packed) = pack(&mut kept, &what) else { return };
        let more = kept.packed_bytes() - before;
        before += more;
        assert!(step == 0 || more < weights.len() / 2, "{more} bytes more for step {step}");
        let mut found = alloc::vec![0; pixels * channels];
        let layer = Layer { packed: &packed, store: &kept, window: Window::of_rows(pixels, deep), x: &x };
        run(&layer, &numbers, &mut found).unwrap();
        for (at, found) in found.iter().enumerate() {
            let (pixel, channel) = (at / channels, at % channels);
            let rows = [&x[pixel * deep..], &weights[channel * deep..]];
            let sum = crate::ops::conv::dot_bytes(&rows[0][..deep], &rows[1][..deep], bytes.in_zero);
            let bias = bias.and_then(|bias| bias.constant());
            assert_eq!(*found, bytes.finish(&kept, sum, bias, channel), "{at} of step {step}");
        }
    }
}

/// Rows, columns and what is summed of matrices that are both computed: rests everywhere, and more lines than are brought together at once.
const PAIRS: [[usize; 3]; 10] = [
    [4, 16, 16],
    [5, 1, 3],
    [12, 33, 64],
    [13, 48, 17],
    [29, 70, 130],
    [7, 40, 600],
    [16, 17, 1030],
    [4, 20, 1],
    [10, 64, 300],
    [27, 113, 50],
];

/// How the second matrix lies, and by how much rows are longer than they need be.
const LAYOUTS: [(bool, usize); 4] = [(false, 0), (true, 0), (false, 5), (true, 3)];

#[test]
fn matrices_that_are_both_computed_are_multiplied_by_every_set_of_instructions() {
    let mut dice = Dice(5);
    for ([rows, columns, deep], (turned, more)) in
        PAIRS.into_iter().flat_map(|case| LAYOUTS.map(|layout| (case, layout)))
    {
        let row_x = deep + more;
        let (step_y, across) = if turned { (1, deep + more) } else { (columns + more, 1) };
        let many = (deep + more) * (columns + more);
        for pairs in [
            None,
            Some(BytePairs {
                zeros: [-7, 0, 3],
                scale: scale(),
                floats: Some((0.001, Rounding::new(-128, 127, 3))),
            }),
            Some(BytePairs { zeros: [5, -9, -2], scale: scale(), floats: None }),
        ] {
            let bytes = pairs.as_ref();
            let mut draw = |count| if bytes.is_none() { dice.floats(count) } else { dice.bytes(count) };
            let (x, y) = (draw(rows * row_x), draw(many));
            let pair = Pair { rows, columns, deep, x: &x, row_x, step_x: 1, y: &y, step_y, across, bytes };
            for level in Level::up_to_this() {
                let what = alloc::format!("{rows} {columns} {deep} {turned} {more} with {level:?}");
                let mut found = alloc::vec![0; rows * columns * if bytes.is_some() { 1 } else { 4 }];
                assert!(run_pair_with(level, &pair, &mut found), "{what}");
                for (at, k) in (0..rows * columns).map(|at| (at, 0..deep)) {
                    let (row, column) = (at / columns * row_x, at % columns * across);
                    if let Some(bytes) = bytes {
                        let less = |byte: u8, zero: i32| i32::from(byte as i8) - zero;
                        let [zero_x, zero_y, zero] = bytes.zeros;
                        let sum =
                            k.map(|k| less(x[row + k], zero_x) * less(y[column + k * step_y], zero_y)).sum();
                        let wanted = match bytes.floats {
                            Some((scale, rounding)) => rounding.byte(sum as f32 * scale),
                            None => (bytes.scale.apply(sum) + zero).clamp(-128, 127) as u8,
                        };
                        assert_eq!(wanted, found[at], "{what} at {at}");
                    } else {
                        let number = |bytes: &[u8], at: usize| f64::from(f(chunks::<4>(bytes)[at]));
                        let sum: f64 = k.map(|k| number(&x, row + k) * number(&y, column + k * step_y)).sum();
                        let found = number(&found, at);
                        assert!(
                            (sum - found).abs() <= 1e-5 * sum.abs().max(10.0),
                            "{what} at {at}: {sum} {found}"
                        );
                    }
                }
            }
        }
    }
}

fn scale() -> Scale {
    Scale::new(0.0007).unwrap()
}

#[test]
fn matrices_that_no_kernel_is_for_are_left_to_loops() {
    let (x, y) = (alloc::vec![0; 40_000], alloc::vec![0; 40_000]);
    let pairs = BytePairs { zeros: [0; 3], scale: scale(), floats: None };
    let pair = |rows, columns, deep, step_y, across, bytes| Pair {
        rows,
        columns,
        deep,
        x: &x,
        row_x: deep,
        step_x: 1,
        y: &y,
        step_y,
        across,
        bytes,
    };
    let mut out = alloc::vec![0; 4096];
    // Few rows, columns and sums that are both apart, and more sums of bytes than are brought together.
    assert!(!run_pair(&pair(1, 8, 8, 8, 1, None), &mut out));
    assert!(!run_pair(&pair(8, 8, 8, 16, 2, None), &mut out));
    assert!(!run_pair(&pair(8, 8, 2100, 8, 1, Some(&pairs)), &mut out));
    // Operands and a result that are shorter than they should be.
    assert!(!run_pair(&pair(8, 8, 2000, 8, 1, None), &mut out));
    assert!(!run_pair(&pair(64, 64, 8, 64, 1, None), &mut out));
}
