//! What the table of examples cannot show: many units over many steps with gates as they really occur.

use plimsoll_device::backend::{Backend, Call, Operand};
use plimsoll_graph::example::Dice;
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, Op, Type, ops};

use plimsoll_cpu::Cpu;

/// An aligned buffer of floats.
#[derive(Clone)]
#[repr(C, align(64))]
struct Line([f32; 16]);

fn buffer(values: &[f64]) -> Vec<Line> {
    let mut lines = vec![Line([0.0; 16]); values.len().div_ceil(16).max(1)];
    values.iter().enumerate().for_each(|(i, &x)| lines[i / 16].0[i % 16] = x as f32);
    lines
}

/// Runs an op on the CPU in f32.
fn run(op: &Op, inputs: &[Array]) -> (Vec<Type>, Vec<Array>) {
    let cpu = Cpu::new(2);
    let types: Vec<Type> = inputs.iter().map(|a| Type::new(DType::F32, &a.shape)).collect();
    let types: Vec<&Type> = types.iter().collect();
    let outputs = op.infer(&types).unwrap().to_vec();
    let scratch_bytes = cpu.scratch(op, &types, &outputs.iter().collect::<Vec<_>>()).unwrap();
    let mut scratch = buffer(&vec![f64::NAN; scratch_bytes.div_ceil(4)]);
    let mut ins: Vec<Vec<Line>> = inputs.iter().map(|a| buffer(&a.data)).collect();
    let mut outs: Vec<Vec<Line>> = outputs.iter().map(|t| buffer(&vec![f64::NAN; t.elements()])).collect();
    let operand = |(lines, ty): (&mut Vec<Line>, _)| Operand { ty, ptr: lines.as_mut_ptr().cast() };
    let in_operands: Vec<Operand<'_>> = ins.iter_mut().zip(types.iter().copied()).map(operand).collect();
    let out_operands: Vec<Operand<'_>> = outs.iter_mut().zip(&outputs).map(operand).collect();
    let scratch = scratch.as_mut_ptr().cast();
    let call = Call { op, inputs: &in_operands, outputs: &out_operands, scratch, scratch_bytes };
    // SAFETY: all buffers are live, aligned, and have the sizes of their types and of the declared scratch.
    unsafe { cpu.run(&call) }.unwrap();
    let array = |(lines, ty): (&Vec<Line>, &Type)| {
        let data = (0..ty.elements()).map(|i| f64::from(lines[i / 16].0[i % 16])).collect();
        Array::new(&ty.shape, data)
    };
    let results = outs.iter().zip(&outputs).map(array).collect();
    (outputs, results)
}

fn compare(op: &Op, inputs: &[Array]) -> Vec<Array> {
    let (types, got) = run(op, inputs);
    let want = op.reference(&inputs.iter().collect::<Vec<_>>(), &types);
    for (o, (got, want)) in got.iter().zip(&want).enumerate() {
        for (i, (g, w)) in got.data.iter().zip(&want.data).enumerate() {
            assert!(
                (g - w).abs() <= 1e-5 * (1.0 + w.abs()),
                "{op} output {o} element {i}: {g} but should be {w}"
            );
        }
    }
    want
}

/// Values of about the size that trained weights and states have.
fn small(shape: &[usize], dice: &mut Dice) -> Array {
    Array::new(shape, (0..shape.iter().product()).map(|_| f64::from((0.2 * dice.normal()) as f32)).collect())
}

/// Batch, steps, inputs, units: more units than a block, a batch that no tile divides.
const SIZES: [[usize; 4]; 3] = [[5, 6, 7, 70], [19, 3, 33, 48], [2, 0, 3, 20]];

#[test]
fn an_lstm_of_many_units_and_steps_agrees_with_the_reference() {
    let dice = &mut Dice::new(1);
    for [b, t, i, h] in SIZES {
        let shapes: [&[usize]; 6] = [&[b, t, i], &[i, 4 * h], &[h, 4 * h], &[4 * h], &[b, h], &[b, h]];
        let inputs = shapes.map(|shape| small(shape, dice));
        let outputs = compare(&ops::Lstm.into(), &inputs);
        let [x, w, u, _, h0, c0] = inputs;
        let (y, gates, cells) = (outputs[0].clone(), outputs[3].clone(), outputs[4].clone());
        let [dy, dh, dc] = [&[b, t, h][..], &[b, h], &[b, h]].map(|shape| small(shape, dice));
        compare(&ops::LstmGrad.into(), &[x, w, u, h0, c0, y, gates, cells, dy, dh, dc]);
    }
}

#[test]
fn a_gru_of_many_units_and_steps_agrees_with_the_reference() {
    let dice = &mut Dice::new(2);
    for [b, t, i, h] in SIZES {
        let shapes: [&[usize]; 6] = [&[b, t, i], &[i, 3 * h], &[h, 3 * h], &[3 * h], &[3 * h], &[b, h]];
        let inputs = shapes.map(|shape| small(shape, dice));
        let outputs = compare(&ops::Gru.into(), &inputs);
        let [x, w, u, _, _, h0] = inputs;
        let (y, saved) = (outputs[0].clone(), outputs[2].clone());
        let [dy, dh] = [&[b, t, h][..], &[b, h]].map(|shape| small(shape, dice));
        compare(&ops::GruGrad.into(), &[x, w, u, h0, y, saved, dy, dh]);
    }
}
