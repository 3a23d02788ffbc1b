//! Ops and gradients that users write, in planned steps: inside limits, split, refused, and on the emulator of a card.

use plimsoll_device::Bytes;
use plimsoll_graph::custom::{CudaKernel, CustomOp, CustomOps, HostCall};
use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{Along, Backward, CumulativeOps, DType, GridSampleOps, Keep, Sym, Type, Types};
use plimsoll_run::{
    Device, Exactness, Kind, Result, StateTensor, Step, StepArgs, StepOptions, StepResult, Tape, Tensor,
    TensorOps,
};
use plimsoll_testing::group;

const BATCH: usize = 2048;
const WIDTH: usize = 64;

/// y = x + sin(3x) / 3 of f32, which ops can say too. With `on_cards` it has a kernel for them; with `broken` it fails.
#[derive(Clone, Copy, Debug)]
struct Ripple {
    on_cards: bool,
    broken: bool,
}

impl CustomOp for Ripple {
    fn name(&self) -> &'static str {
        "ripple"
    }

    fn infer(&self, inputs: &[&Type]) -> std::result::Result<Types, String> {
        match inputs {
            [x] if x.dtype == DType::F32 => Ok([(*x).clone()].into_iter().collect()),
            _ => Err("it takes one tensor of f32".into()),
        }
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn run(&self, call: &mut HostCall<'_>) -> std::result::Result<(), String> {
        assert!(!self.broken, "a mistake of its author");
        let x = call.inputs[0].f32()?;
        call.parallel.chunks(call.outputs[0].f32()?, 512, &|i, y| {
            y.iter_mut().zip(&x[i * 512..]).for_each(|(y, x)| *y = x + (3.0 * x).sin() / 3.0);
        });
        Ok(())
    }

    fn cuda(&self, inputs: &[&Type], _: &[&Type]) -> Option<CudaKernel> {
        let source = "struct P { const float *x; float *y; i64 n; };
            KERNEL(ripple, P) { EACH(i, p.n) p.y[i] = p.x[i] + sinf(3 * p.x[i]) / 3; }";
        let n = inputs[0].elements();
        self.on_cards.then(|| CudaKernel::new("ripple", source, n).int(n))
    }

    fn keep(&self) -> Keep {
        Keep::inputs(1)
    }

    fn gradient(&self, at: &Backward<'_>) -> plimsoll_graph::Result<Vec<Option<Sym>>> {
        let slope = at.input(0)?.mul_scalar(3.0)?.cos()?.add_scalar(1.0)?;
        Ok(vec![Some(slope.mul(&at.grad(0)?)?)])
    }
}

const RIPPLE: Ripple = Ripple { on_cards: true, broken: false };

fn composed(x: &Tensor) -> Result<Tensor> {
    x.add(&x.mul_scalar(3.0)?.sin()?.mul_scalar(1.0 / 3.0)?)
}

fn noise(shape: &[usize], seed: u64) -> Result<Tensor> {
    let mut dice = plimsoll_graph::example::Dice::new(seed);
    let ty = Type::new(DType::F32, shape);
    Tensor::from_f64(&(0..ty.elements()).map(|_| dice.normal() / 8.0).collect::<Vec<_>>(), ty)
}

type Body = fn(&StepArgs<'_>) -> Result<StepResult>;

fn compile(options: StepOptions, body: Body) -> Result<Step> {
    let held = (0..4).map(|i| {
        Ok(StateTensor { name: format!("w{i}"), kind: Kind::Parameter, tensor: noise(&[WIDTH, WIDTH], i)? })
    });
    let x = Type::new(DType::F32, [BATCH, WIDTH]);
    Step::compile_with(options, held.collect::<Result<_>>()?, &[x], body)
}

fn options() -> StepOptions {
    StepOptions { batched: true, ..StepOptions::default() }.exactness(Exactness::Reassociated)
}

fn network(pass: &StepArgs<'_>, ripple: impl Fn(&Tensor) -> Result<Tensor>) -> Result<StepResult> {
    let tape = Tape::new();
    pass.state.iter().try_for_each(|w| tape.watch(w))?;
    let y = pass.state.iter().try_fold(pass.inputs[0].clone(), |x, w| ripple(&x.matmul(w)?))?;
    let loss = y.square()?.mean(&[], false)?;
    let slopes = tape.gradient(&loss, &pass.state.iter().collect::<Vec<_>>())?;
    let new = pass.state.iter().zip(&slopes).map(|(w, slope)| w.sub(&slope.mul_scalar(0.1)?));
    Ok(StepResult { state: new.collect::<Result<_>>()?, outputs: vec![loss], totals: vec![] })
}

fn with_ripple(pass: &StepArgs<'_>) -> Result<StepResult> {
    network(pass, |x| Ok(x.custom(RIPPLE, &[x])?.remove(0)))
}

fn with_ops(pass: &StepArgs<'_>) -> Result<StepResult> {
    network(pass, composed)
}

/// The losses of a few steps, and all weights behind them.
fn run(mut step: Step) -> Result<(Vec<f64>, Vec<f64>)> {
    let x = noise(&[BATCH, WIDTH], 9)?;
    let losses = (0..4).map(|_| step.run(&[&x])?[0].item()).collect::<Result<Vec<f64>>>()?;
    let weights = step.state().iter().map(Tensor::to_f64).collect::<Result<Vec<Vec<f64>>>>()?;
    Ok((losses, weights.concat()))
}

fn near(a: &(Vec<f64>, Vec<f64>), b: &(Vec<f64>, Vec<f64>), by: f64) {
    for (a, b) in a.0.iter().chain(&a.1).zip(b.0.iter().chain(&b.1)) {
        assert!((a - b).abs() <= by * (1.0 + b.abs()), "{a} and {b}");
    }
}

#[test]
fn an_op_of_ones_own_is_split_like_any_other_and_means_what_ops_mean() {
    Device::cpu().unwrap().scope(|| {
        let expected = run(compile(options(), with_ripple).unwrap()).unwrap();
        near(&expected, &run(compile(options(), with_ops).unwrap()).unwrap(), 1e-5);
        let split = compile(options().micro_batch(Some(600)), with_ripple).unwrap();
        assert_eq!(split.info().micro_batches, 4);
        near(&run(split).unwrap(), &expected, 1e-5);
    });
}

#[test]
fn on_a_card_it_needs_a_kernel_and_is_planned_and_recomputed_inside_a_limit() {
    let Some(card) = group("emulator", Device::cuda_emulated(Bytes::mib(64))) else { return };
    let expected = Device::cpu().unwrap().scope(|| run(compile(options(), with_ripple).unwrap()).unwrap());
    card.scope(|| {
        let options = options().exactness(Exactness::Bitwise);
        let whole = compile(options.clone(), with_ripple).unwrap();
        let floor = whole.info().floor;
        assert!(floor < whole.info().planned, "{:?}", whole.info());
        let whole = run(whole).unwrap();
        near(&whole, &expected, 1e-5);
        let tight = compile(options.clone().limit(Some(floor)), with_ripple).unwrap();
        assert!(tight.info().recomputed_ops > 0, "{:?}", tight.info());
        assert_eq!(run(tight).unwrap(), whole);
        let without = |pass: &StepArgs<'_>| {
            network(pass, |x| Ok(x.custom(Ripple { on_cards: false, ..RIPPLE }, &[x])?.remove(0)))
        };
        let refused = compile(options, without).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("ripple") && refused.contains("CustomOp::cuda"), "{refused}");
    });
}

#[test]
fn a_kernel_that_panics_is_an_error_and_the_step_changes_nothing() {
    let broken = |pass: &StepArgs<'_>| {
        let y = pass.inputs[0].custom(Ripple { broken: true, ..RIPPLE }, &[&pass.inputs[0]])?.remove(0);
        let new = pass.state.iter().map(|w| w.add(&y.mean(&[], false)?));
        Ok(StepResult { state: new.collect::<Result<_>>()?, outputs: vec![y], totals: vec![] })
    };
    let eager = noise(&[4], 1).and_then(|x| x.custom(Ripple { broken: true, ..RIPPLE }, &[&x])).unwrap_err();
    assert!(
        eager.to_string().contains("ripple") && eager.to_string().contains("a mistake of its author"),
        "{eager}"
    );
    let result = compile(options(), broken).and_then(|mut step| {
        let before = step.state()[0].to_f64()?;
        let failed = step.run(&[&noise(&[BATCH, WIDTH], 9)?]).map(|_| ());
        assert_eq!(step.state()[0].to_f64()?, before);
        failed
    });
    assert!(result.unwrap_err().to_string().contains("a mistake of its author"));
}

/// A loss with the slope of the network with respect to its input, and the weights behind a step down its own slope.
fn penalised(state: &[Tensor], x: &Tensor) -> Result<(Tensor, Vec<Tensor>)> {
    let outer = Tape::new();
    state.iter().try_for_each(|w| outer.watch(w))?;
    let inner = Tape::new();
    inner.watch(x)?;
    let y = state.iter().try_fold(x.clone(), |x, w| x.matmul(w)?.tanh())?;
    let slope = inner.gradient(&y.sum(&[], false)?, &[x])?.remove(0);
    let penalty = slope.square()?.sum(&[1], false)?.add_scalar(1e-6)?.sqrt()?.add_scalar(-1.0)?.square()?;
    let loss = y.square()?.mean(&[], false)?.add(&penalty.mean(&[], false)?)?;
    let slopes = outer.gradient(&loss, &state.iter().collect::<Vec<_>>())?;
    let new = state.iter().zip(&slopes).map(|(w, slope)| w.sub(&slope.mul_scalar(1e-3)?));
    Ok((loss, new.collect::<Result<_>>()?))
}

fn with_penalty(pass: &StepArgs<'_>) -> Result<StepResult> {
    let (loss, state) = penalised(pass.state, &pass.inputs[0])?;
    Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
}

#[test]
fn a_gradient_penalty_is_the_same_eagerly_whole_and_split() {
    Device::cpu().unwrap().scope(|| {
        let whole = run(compile(options(), with_penalty).unwrap()).unwrap();
        let split = compile(options().micro_batch(Some(600)), with_penalty).unwrap();
        assert_eq!(split.info().micro_batches, 4);
        near(&run(split).unwrap(), &whole, 1e-5);
        let mut state: Vec<Tensor> = (0..4).map(|i| noise(&[WIDTH, WIDTH], i).unwrap()).collect();
        let x = noise(&[BATCH, WIDTH], 9).unwrap();
        for expected in &whole.0 {
            let (loss, new) = penalised(&state, &x).unwrap();
            assert_eq!(loss.item().unwrap(), *expected);
            state = new;
        }
    });
}

/// The slope of the slope of the sum of what `f` makes of `x`.
fn twice(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let outer = Tape::new();
    outer.watch(x)?;
    let inner = Tape::new();
    inner.watch(x)?;
    let slope = inner.gradient(&f(x)?.sum(&[], false)?, &[x])?.remove(0);
    Ok(outer.gradient(&slope.sum(&[], false)?, &[x])?.remove(0))
}

#[test]
fn a_second_derivative_that_is_not_defined_is_an_error_by_name_and_others_are_right() {
    Device::cpu().unwrap().scope(|| {
        let x = noise(&[3, 4], 1).unwrap();
        let product = twice(&x, |x| x.cumprod(1)).unwrap_err().to_string();
        assert!(product.contains("cumprod_grad") && product.contains("exp, cumsum and log"), "{product}");
        let images = noise(&[1, 4, 4, 2], 2).unwrap();
        let grid = noise(&[1, 3, 3, 2], 3).unwrap();
        let sampled = twice(&grid, |grid| images.grid_sample(grid, ResizeMode::Bilinear, false, false));
        let sampled = sampled.unwrap_err().to_string();
        assert!(sampled.contains("second derivative of a grid sample"), "{sampled}");
        // The same product as the error says to write it.
        let positive = x.square().unwrap().add_scalar(0.5).unwrap();
        let slope = twice(&positive, |x| x.log()?.cumsum(1)?.exp()).unwrap().to_f64().unwrap();
        let values = positive.to_f64().unwrap();
        // Of Σ x0, x0 x1, x0 x1 x2, …: the mixed derivatives with respect to the first element of a row.
        for (row, slope) in values.chunks(4).zip(slope.chunks(4)) {
            let partial = |without: usize| -> f64 {
                let among = |k: usize| (1..=k).filter(|&i| i != without).map(|i| row[i]).product::<f64>();
                (without..4).map(among).sum()
            };
            let expected: f64 = (1..4).map(partial).sum();
            assert!((slope[0] - expected).abs() <= 1e-4 * expected.abs(), "{} and {expected}", slope[0]);
        }
    });
}

/// A second loss behind an update by the first: the parts of a batch would each update on their own.
fn with_two_updates(pass: &StepArgs<'_>) -> Result<StepResult> {
    let first = Tape::new();
    first.watch(&pass.state[0])?;
    let loss = pass.inputs[0].matmul(&pass.state[0])?.square()?.mean(&[], false)?;
    let slope = first.gradient(&loss, &[&pass.state[0]])?.remove(0);
    let new = pass.state[0].sub(&slope)?;
    let second = Tape::new();
    second.watch(&pass.state[1])?;
    let y = pass.inputs[0].matmul(&new)?.tanh()?.matmul(&pass.state[1])?;
    let loss = y.square()?.mean(&[], false)?;
    let slope = second.gradient(&loss, &[&pass.state[1]])?.remove(0);
    let state = vec![new, pass.state[1].sub(&slope)?, pass.state[2].clone(), pass.state[3].clone()];
    Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
}

#[test]
fn a_step_with_an_update_in_its_middle_is_not_split() {
    Device::cpu().unwrap().scope(|| {
        let refused = compile(options().micro_batch(Some(512)), with_two_updates).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("is not split"), "{refused}");
        run(compile(options(), with_two_updates).unwrap()).unwrap();
    });
}
