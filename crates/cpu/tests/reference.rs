//! Every op's kernel against the reference interpreter, in every float type it takes, under every instruction set
//! the processor has, on one, two and three threads.

use plimsoll_cpu::Cpu;
use plimsoll_cpu::isa::Isa;
use plimsoll_graph::example::{Dice, Example};
use plimsoll_graph::{DType, Op, Scalar};
use plimsoll_testing::check_joint_cross_entropy;
use plimsoll_testing::reference::{Bench, Lent, check, check_bits, chosen, examples_of, run};

fn check_on(isa: Isa, example: &Example, dice: &mut Dice, computed_in: DType) {
    let values = example.fill(dice);
    let on = |cpu: &Cpu, share: bool| run(&Bench { backend: cpu, take: Lent::host }, example, &values, share);
    let single = Cpu::with_isa(1, isa);
    // The gradients of logits are rounded on their way into the second product, which in 16-bit types wants both sides alike.
    let slack = match example.op {
        Op::LinearCrossEntropyGrad(_) | Op::JointCrossEntropy(_) | Op::FrozenCrossEntropy(_)
            if computed_in.bytes() == 2 =>
        {
            3.0
        }
        // The numbers of a weight of few bits are rounded to 16 bits before they are multiplied.
        Op::QuantMatMul(_) if computed_in.bytes() == 2 => 3.0,
        _ => 1.0,
    };
    let one = check(&Bench { backend: &single, take: Lent::host }, example, &values, computed_in, slack);
    for (threads, share) in [(2, false), (3, false), (1, true), (2, true)] {
        let many = on(&Cpu::with_isa(threads, isa), share);
        check_bits(example, &one, &many, &format!("on {threads} threads, in place: {share}"));
    }
}

#[test]
fn every_op_has_a_kernel_that_means_what_the_reference_means() {
    for isa in Isa::available() {
        for op in chosen() {
            examples_of(op, 3, &DType::FLOATS, &mut |example, dice, dtype| {
                check_on(isa, example, dice, dtype);
            });
        }
    }
}

#[test]
fn losses_made_with_their_gradients_have_the_bits_of_both_apart() {
    for isa in Isa::available() {
        let cpu = Cpu::with_isa(2, isa);
        let bench = Bench { backend: &cpu, take: Lent::host };
        for (i, sizes) in [[1, 3, 5], [7, 9, 40], [9, 7, 40]].into_iter().enumerate() {
            for dtype in DType::FLOATS {
                check_joint_cross_entropy(&bench, sizes, dtype, (i == 1).then_some(Scalar(2.5)));
            }
        }
    }
    // Logits of more than a piece, with fewer samples than features, and with more.
    let cpu = Cpu::new(2);
    for sizes in [[64, 65, 66_000], [2100, 16, 2100]] {
        check_joint_cross_entropy(&Bench { backend: &cpu, take: Lent::host }, sizes, DType::F32, None);
    }
}
