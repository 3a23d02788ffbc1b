//! What the table of examples cannot show: refused indices, empty tensors, and statistics far from zero.

use plimsoll_cpu::Cpu;
use plimsoll_device::backend::{ALIGNMENT, Backend, Call, Element, Fault, Operand};
use plimsoll_graph::example::{Dice, Domain, Example};
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, Op, Scalar, Type, ops};

/// Device memory for one value.
struct Value {
    ty: Type,
    bytes: Vec<u8>,
}

impl Value {
    fn new(ty: Type) -> Value {
        let bytes = vec![0; ty.bytes() + ALIGNMENT];
        Value { ty, bytes }
    }

    fn of<T: Element>(shape: impl Into<plimsoll_graph::Shape>, data: &[T]) -> Value {
        let mut value = Value::new(Type::new(T::DTYPE, shape));
        assert_eq!(value.ty.elements(), data.len());
        // SAFETY: the memory was sized for the type, and nothing else reaches it.
        unsafe { value.operand().slice_mut::<T>() }.copy_from_slice(data);
        value
    }

    fn operand(&mut self) -> Operand<'_> {
        let start = self.bytes.as_ptr().align_offset(ALIGNMENT);
        let ptr = self.bytes[start..].as_mut_ptr();
        Operand { ty: &self.ty, ptr }
    }

    fn read<T: Element>(&mut self) -> Vec<T> {
        // SAFETY: the memory was sized for the type, and nothing writes it now.
        unsafe { self.operand().slice::<T>() }.to_vec()
    }
}

fn run(op: impl Into<Op>, inputs: Vec<Value>) -> Result<Vec<Value>, Fault> {
    run_on(&Cpu::new(2), &op.into(), inputs)
}

fn run_on(cpu: &Cpu, op: &Op, mut inputs: Vec<Value>) -> Result<Vec<Value>, Fault> {
    let types: Vec<Type> = inputs.iter().map(|v| v.ty.clone()).collect();
    let types: Vec<&Type> = types.iter().collect();
    let mut outputs: Vec<Value> = op.infer(&types).unwrap().into_iter().map(Value::new).collect();
    let output_types: Vec<Type> = outputs.iter().map(|v| v.ty.clone()).collect();
    let scratch_bytes = cpu.scratch(op, &types, &output_types.iter().collect::<Vec<_>>()).unwrap();
    let mut scratch = Value::new(Type::new(DType::U8, [scratch_bytes]));
    let ins: Vec<Operand<'_>> = inputs.iter_mut().map(Value::operand).collect();
    let outs: Vec<Operand<'_>> = outputs.iter_mut().map(Value::operand).collect();
    let scratch = scratch.operand().ptr;
    // SAFETY: all memory is live, sized by the types and the declared scratch, and disjoint.
    unsafe { cpu.run(&Call { op, inputs: &ins, outputs: &outs, scratch, scratch_bytes }) }?;
    Ok(outputs)
}

#[test]
fn an_index_out_of_range_is_refused_by_number_and_place() {
    let table = || Value::of([3, 2], &[0f32; 6]);
    let floats = |n: usize| Value::of([n], &vec![0f32; n]);
    let cases: Vec<(Op, Vec<Value>)> = vec![
        (ops::Gather { axis: 0 }.into(), vec![table(), Value::of([2], &[0i64, 3])]),
        (ops::Gather { axis: 0 }.into(), vec![table(), Value::of([2], &[2i32, -1])]),
        (ops::ScatterAdd { axis: 0, length: 2 }.into(), vec![table(), Value::of([3], &[0i64, 2, 1])]),
        (ops::OneHot { depth: 4, dtype: DType::F32 }.into(), vec![Value::of([2], &[3i64, 4])]),
        (ops::TakeAlong { axis: 1 }.into(), vec![table(), Value::of([3, 1], &[1i64, 2, 0])]),
        (ops::PutAlongAdd { axis: 0, length: 2 }.into(), vec![floats(2), Value::of([2], &[1i64, 2])]),
        (ops::CrossEntropy.into(), vec![table(), Value::of([3], &[1i64, 2, 0])]),
    ];
    for (op, inputs) in cases {
        let name = op.name();
        let fault = run(op, inputs).err().unwrap_or_else(|| panic!("{name} took an index out of range"));
        assert_eq!(fault.op, name);
        assert!(fault.why.contains("at position 1 is out of range 0.."), "{fault}");
    }
}

#[test]
fn tensors_without_elements_are_no_trouble() {
    let none = |shape: &[usize]| Value::of(shape, &[0f32; 0]);
    let row = || Value::of([4], &[1f32; 4]);
    let eps = Scalar(1e-5);
    let cases: Vec<(Op, Vec<Value>)> = vec![
        (ops::Softmax { axis: 1 }.into(), vec![none(&[0, 4])]),
        (ops::Softmax { axis: 1 }.into(), vec![none(&[4, 0])]),
        (ops::LogSoftmax { axis: 0 }.into(), vec![none(&[0, 4])]),
        (ops::CrossEntropy.into(), vec![none(&[0, 4]), Value::of([0], &[0i64; 0])]),
        (ops::DenseCrossEntropy.into(), vec![none(&[0, 4]), none(&[0, 4])]),
        (ops::LayerNorm { eps, axes: 1, to: None }.into(), vec![none(&[0, 4]), row(), row()]),
        (ops::RmsNorm { eps }.into(), vec![none(&[0, 4]), row()]),
        (ops::GroupNorm { groups: 2, eps }.into(), vec![none(&[0, 3, 4]), row(), row()]),
        (ops::BatchNorm { eps, relu: false }.into(), vec![none(&[3, 0]), none(&[0]), none(&[0])]),
        (ops::Gather { axis: 0 }.into(), vec![Value::of([2, 2], &[0f32; 4]), Value::of([0], &[0i64; 0])]),
        (ops::OneHot { depth: 3, dtype: DType::F32 }.into(), vec![Value::of([0], &[0i64; 0])]),
        (ops::TakeAlong { axis: 0 }.into(), vec![none(&[2, 0]), Value::of([3, 0], &[0i64; 0])]),
    ];
    for (op, inputs) in cases {
        let name = op.name();
        assert!(run(op, inputs).is_ok(), "{name}");
    }
    // Sums over nothing are zeros, not what was in memory before.
    let scattered =
        run(ops::ScatterAdd { axis: 0, length: 2 }, vec![none(&[0, 3]), Value::of([0], &[0i64; 0])]).unwrap();
    assert_eq!(scattered.into_iter().next().map(|mut v| v.read::<f32>()), Some(vec![0.0; 6]));
    let inputs = vec![none(&[0, 4]), row(), none(&[0]), none(&[0]), none(&[0, 4])];
    let mut grads = run(ops::LayerNormGrad { axes: 1 }, inputs).unwrap();
    assert_eq!(grads[1].read::<f32>(), [0.0; 4]);
    assert_eq!(grads[2].read::<f32>(), [0.0; 4]);
}

#[test]
fn a_norm_written_in_16_bits_is_the_norm_rounded_and_its_gradient_reads_them_as_they_are() {
    // Rows enough for several tasks, of a length that is no multiple of a vector's.
    let (rows, width) = (300, 77);
    let numbers = |n: usize, by: f32| {
        (0..n).map(|i| ((i * 7919 % 1013) as f32 / 500.0 - 1.0) * by).collect::<Vec<f32>>()
    };
    let x = || Value::of([rows, width], &numbers(rows * width, 3.0));
    let scale = || Value::of([width], &numbers(width, 2.0));
    let eps = Scalar(1e-5);
    let norm = |to| run(ops::LayerNorm { eps, axes: 1, to }, vec![x(), scale(), scale()]).unwrap();
    let mut wide = norm(None);
    for to in [DType::BF16, DType::F16] {
        let mut narrow = norm(Some(to));
        let rounded = run(ops::Cast(to), vec![Value::of([rows, width], &wide[0].read::<f32>())]).unwrap();
        let dy = || {
            let values = Value::of([rows, width], &numbers(rows * width, 1.0));
            run(ops::Cast(to), vec![values]).unwrap().remove(0)
        };
        let widened = run(ops::Cast(DType::F32), vec![dy()]).unwrap().remove(0);
        for (narrow, rounded) in narrow.iter_mut().zip(rounded) {
            let in_f32 = |value| run(ops::Cast(DType::F32), vec![value]).unwrap().remove(0).read::<f32>();
            assert_eq!(in_f32(std::mem::replace(narrow, scale())), in_f32(rounded));
        }
        assert_eq!(narrow[1].read::<f32>(), wide[1].read::<f32>());
        let mut gradients = [dy(), widened].map(|dy| {
            let stats = |i: usize, wide: &mut Vec<Value>| Value::of([rows], &wide[i].read::<f32>());
            let (mean, rstd) = (stats(1, &mut wide), stats(2, &mut wide));
            run(ops::LayerNormGrad { axes: 1 }, vec![x(), scale(), mean, rstd, dy]).unwrap()
        });
        for i in 0..3 {
            let [read, widened] = [0, 1].map(|which| gradients[which][i].read::<f32>());
            assert_eq!(read, widened, "{to} {i}");
        }
        // What goes past the norm is added to the same bits, and the sum rounded once more.
        let past = || Value::of([rows, width], &numbers(rows * width, 5.0));
        let dx = Value::of([rows, width], &gradients[0][0].read::<f32>());
        let mut wanted = run(ops::Binary::Add, vec![dx, past()]).unwrap().remove(0);
        let stats = |i: usize, wide: &mut Vec<Value>| Value::of([rows], &wide[i].read::<f32>());
        let inputs = vec![x(), scale(), stats(1, &mut wide), stats(2, &mut wide), dy(), past()];
        let mut sums = run(ops::LayerNormGradAdd { axes: 1, to: Some(to) }, inputs).unwrap();
        assert_eq!(sums[0].read::<f32>(), wanted.read::<f32>());
        let rounded = run(ops::Cast(to), vec![wanted]).unwrap().remove(0);
        let in_f32 = |value| run(ops::Cast(DType::F32), vec![value]).unwrap().remove(0).read::<f32>();
        assert_eq!(in_f32(sums.remove(3)), in_f32(rounded));
        assert_eq!(sums[1].read::<f32>(), gradients[0][1].read::<f32>());
    }
    let wrong = Op::from(ops::LayerNorm { eps, axes: 1, to: Some(DType::F64) });
    let types = [&[rows, width][..], &[width], &[width]].map(|shape| Type::new(DType::F32, shape));
    assert!(wrong.infer(&types.iter().collect::<Vec<_>>()).is_err());
}

#[test]
fn a_mean_a_thousand_deviations_from_zero_leaves_the_variance_right() {
    // Rows enough for several parts and pieces; the mean square alone would lose all digits of the variance.
    let (rows, channels) = (40_000, 3);
    let noise = |i: usize| ((i as u64).wrapping_mul(2_654_435_761) % 1000) as f64 / 1000.0 - 0.5;
    let x: Vec<f32> =
        (0..rows * channels).map(|i| (300.0 * (i % channels) as f64 + noise(i)) as f32).collect();
    let scale = || Value::of([channels], &[1f32; 3]);
    let inputs = vec![Value::of([rows, channels], &x), scale(), scale()];
    let mut outputs = run(ops::BatchNorm { eps: Scalar(0.0), relu: false }, inputs).unwrap();
    for c in 0..channels {
        let column = || x.iter().skip(c).step_by(channels).map(|&v| f64::from(v));
        let mean = column().sum::<f64>() / rows as f64;
        let var = column().map(|v| (v - mean).powi(2)).sum::<f64>() / rows as f64;
        let (got_mean, got_var) = (outputs[1].read::<f32>()[c], outputs[2].read::<f32>()[c]);
        assert!((f64::from(got_mean) - mean).abs() < 1e-6 * (1.0 + mean), "mean {got_mean} should be {mean}");
        assert!((f64::from(got_var) / var - 1.0).abs() < 1e-5, "variance {got_var} should be {var}");
    }
}

#[test]
fn tensors_large_enough_for_many_tasks_mean_what_the_reference_means_on_any_number_of_threads() {
    let f32s = |shape: &[usize]| (Type::new(DType::F32, shape), Domain::Normal);
    let positive = |shape: &[usize]| (Type::new(DType::F32, shape), Domain::Positive);
    let index = |n: usize, limit: usize| (Type::new(DType::I64, [n]), Domain::Index(limit));
    let eps = Scalar(1e-3);
    let examples = [
        Example::new(ops::BatchNorm { eps, relu: false }, vec![f32s(&[3000, 40]), f32s(&[40]), f32s(&[40])]),
        Example::new(
            ops::BatchNormGrad { relu: false },
            vec![f32s(&[3000, 40]), f32s(&[40]), f32s(&[40]), positive(&[40]), f32s(&[3000, 40])],
        ),
        Example::new(ops::GroupNorm { groups: 4, eps }, vec![f32s(&[2, 1500, 48]), f32s(&[48]), f32s(&[48])]),
        Example::new(
            ops::GroupNormGrad { groups: 4 },
            vec![f32s(&[2, 1500, 48]), f32s(&[48]), f32s(&[2, 4]), positive(&[2, 4]), f32s(&[2, 1500, 48])],
        ),
        Example::new(
            ops::LayerNorm { eps, axes: 1, to: None },
            vec![f32s(&[300, 200]), f32s(&[200]), f32s(&[200])],
        ),
        Example::new(
            ops::LayerNormGrad { axes: 1 },
            vec![f32s(&[300, 200]), f32s(&[200]), f32s(&[300]), positive(&[300]), f32s(&[300, 200])],
        ),
        Example::new(
            ops::RmsNormGrad,
            vec![f32s(&[300, 200]), f32s(&[200]), positive(&[300]), f32s(&[300, 200])],
        ),
        Example::new(ops::Softmax { axis: 1 }, vec![f32s(&[90, 301])]),
        Example::new(ops::LogSoftmax { axis: 0 }, vec![f32s(&[301, 90])]),
        Example::new(ops::CrossEntropy, vec![f32s(&[90, 301]), index(90, 301)]),
        Example::new(ops::Gather { axis: 0 }, vec![f32s(&[50, 301]), index(200, 50)]),
        Example::new(ops::ScatterAdd { axis: 0, length: 150 }, vec![f32s(&[400, 301]), index(400, 150)]),
    ];
    for example in examples {
        let values = example.fill(&mut Dice::new(4));
        let input_types: Vec<&Type> = example.inputs.iter().map(|(ty, _)| ty).collect();
        let types = example.op.infer(&input_types).unwrap();
        let wanted = example.op.reference(&values.iter().collect::<Vec<_>>(), &types);
        let inputs = || -> Vec<Value> {
            let value = |((ty, _), array): (&(Type, Domain), &Array)| match ty.dtype {
                DType::I64 => Value::of(&ty.shape, &array.data.iter().map(|&x| x as i64).collect::<Vec<_>>()),
                _ => Value::of(&ty.shape, &array.data.iter().map(|&x| x as f32).collect::<Vec<_>>()),
            };
            example.inputs.iter().zip(&values).map(value).collect()
        };
        let results: Vec<Vec<Vec<f32>>> = [1, 2, 3]
            .map(|threads| {
                let outputs = run_on(&Cpu::new(threads), &example.op, inputs()).unwrap();
                outputs.into_iter().map(|mut value| value.read::<f32>()).collect()
            })
            .into();
        assert!(
            results[0] == results[1] && results[0] == results[2],
            "{:?}: other bits on more threads",
            example.op
        );
        for (o, (got, want)) in results[0].iter().zip(&wanted).enumerate() {
            // Sums of thousands of terms: relative to the largest, for some cancel.
            let largest = want.data.iter().fold(1.0f64, |m, x| m.max(x.abs()));
            for (got, want) in got.iter().zip(&want.data) {
                let error = (f64::from(*got) - want).abs() / largest;
                assert!(error < 1e-5, "{:?} output {o}: {got} but should be {want}", example.op);
            }
        }
    }
}

#[test]
fn softmax_takes_logits_that_would_overflow_and_masks_of_minus_infinity() {
    let x = [1000.0f32, 999.0, f32::NEG_INFINITY, -1000.0];
    let y = run(ops::Softmax { axis: 0 }, vec![Value::of([4], &x)]).unwrap().remove(0).read::<f32>();
    let first = 1.0 / (1.0 + (-1f32).exp());
    assert!((y[0] - first).abs() < 1e-6 && (y[1] - (1.0 - first)).abs() < 1e-6, "{y:?}");
    assert_eq!(y[2..], [0.0, 0.0]);
}
