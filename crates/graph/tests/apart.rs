//! What every op says of samples, against what its reference does: places that it keeps apart do not change one another.

use plimsoll_graph::example::{Dice, Example};
use plimsoll_graph::reference::{Array, for_each_index};
use plimsoll_graph::{Along, Type};
use plimsoll_testing::reference::chosen;

/// Whether a place of `lengths.0` and one of `lengths.1`, two divisions of one axis, overlap.
fn overlap(place: usize, other: usize, lengths: (usize, usize)) -> bool {
    other * lengths.0 < (place + 1) * lengths.1 && place * lengths.1 < (other + 1) * lengths.0
}

/// Whether other values at a place of `along` change nothing but that place of output 0.
fn apart(example: &Example, outputs: &[Type], values: &[Array], along: &Along<'_>, dice: &mut Dice) -> bool {
    let compute =
        |values: &[Array]| example.op.reference(&values.iter().collect::<Vec<_>>(), outputs).swap_remove(0);
    let before = compute(values);
    let lengths = (along.input().shape[along.axis], outputs[0].shape[along.to]);
    (0..lengths.0).all(|place| {
        let mut moved = values.to_vec();
        let (ty, domain) = &example.inputs[along.operand];
        let fresh = domain.fill(ty, dice);
        for_each_index(&ty.shape, |i| {
            if i[along.axis] == place {
                let at = fresh.offset(i);
                moved[along.operand].data[at] = fresh.data[at];
            }
        });
        let after = compute(&moved);
        let mut same = true;
        for_each_index(&outputs[0].shape, |i| {
            let touched = overlap(place, i[along.to], lengths);
            same &= touched || before.at(i).to_bits() == after.at(i).to_bits();
        });
        same
    })
}

#[test]
fn samples_that_an_op_keeps_apart_do_not_change_one_another() {
    let mut claims = 0;
    for def in chosen() {
        for seed in 0..3 {
            let mut dice = Dice::new(seed);
            for example in (def.examples)(&mut dice) {
                let inputs: Vec<&Type> = example.inputs.iter().map(|(ty, _)| ty).collect();
                let outputs = example.op.infer(&inputs).unwrap();
                let values = example.fill(&mut dice);
                for (operand, ty) in inputs.iter().enumerate() {
                    for axis in (0..ty.shape.rank()).filter(|&axis| ty.shape[axis] > 1) {
                        let along = |to| Along { operand, axis, to, inputs: &inputs };
                        let claimed: Vec<usize> = (0..outputs[0].shape.rank())
                            .filter(|&to| outputs[0].shape[to].is_multiple_of(ty.shape[axis]))
                            .filter(|&to| example.op.keeps_apart(&along(to)))
                            .collect();
                        let right = |&to: &usize| {
                            apart(&example, &outputs, &values, &along(to), &mut Dice::new(seed))
                        };
                        claims += usize::from(!claimed.is_empty());
                        assert!(
                            claimed.is_empty() || claimed.iter().any(right),
                            "{:?} does not keep axis {axis} of operand {operand} apart",
                            example.op
                        );
                    }
                }
            }
        }
    }
    assert!(claims > 100, "only {claims} claims were tried");
}
