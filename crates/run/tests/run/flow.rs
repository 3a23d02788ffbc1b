//! Choices and loops: the same values and gradients eager and traced, and what does not fit is said.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::{Result, Tape, Tensor, cond, function, scan, while_loop};

/// x · x or 3 x, as the sign of s says, and its gradient.
fn chosen(arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let (x, s) = (&arguments[0], &arguments[1]);
    let tape = Tape::new();
    tape.watch(x)?;
    let is_positive = s.greater(&s.full_like(s.ty().clone(), 0.0)?)?;
    let y = cond(&is_positive, || Ok(vec![x.square()?]), || Ok(vec![x.mul_scalar(3.0)?]))?.remove(0);
    let dx = tape.gradient(&y.sum(&[], false)?, &[x])?.remove(0);
    Ok(vec![y, dx])
}

#[test]
fn a_choice_has_the_values_and_the_gradient_of_the_side_that_was_chosen() -> Result<()> {
    let x = Tensor::from_slice(&[2f32, -5.0], [2])?;
    for (sign, y, dx) in [(1.0f32, [4.0, 25.0], [4.0, -10.0]), (-1.0, [6.0, -15.0], [3.0, 3.0])] {
        let s = Tensor::from_slice(&[sign], [])?;
        let arguments = [x.clone(), s];
        let traced = function(chosen).call(&arguments.iter().collect::<Vec<_>>())?;
        for results in [chosen(&arguments)?, traced] {
            assert_eq!(results[0].to_vec::<f32>()?, y);
            assert_eq!(results[1].to_vec::<f32>()?, dx);
        }
    }
    Ok(())
}

#[test]
fn an_eager_choice_runs_one_side() -> Result<()> {
    let yes = Tensor::from_bools(&[true], [])?;
    let y = cond(&yes, || Ok(vec![yes.clone()]), || panic!("the other side ran"))?;
    assert_eq!(y.len(), 1);
    Ok(())
}

#[test]
fn sides_that_are_not_alike_and_conditions_that_are_none_are_refused() -> Result<()> {
    let x = Tensor::from_slice(&[2f32, -5.0], [2])?;
    let why = function(|x| {
        let one = x[0].sum(&[], false)?.greater(&x[0].full_like(x[0].sum(&[], false)?.ty().clone(), 0.0)?)?;
        cond(&one, || Ok(vec![x[0].clone()]), || Ok(vec![x[0].cast(DType::F64)?]))
    })
    .call(&[&x])
    .unwrap_err()
    .to_string();
    assert!(why.contains("f32[2]") && why.contains("f64[2]"), "{why}");
    let why = cond(&x, || Ok(vec![]), || Ok(vec![])).unwrap_err().to_string();
    assert!(why.contains("one truth value") && why.contains("flow.rs"), "{why}");
    Ok(())
}

/// Two arguments and the tape that watches them.
fn watched(arguments: &[Tensor]) -> Result<(&Tensor, &Tensor, Tape)> {
    let (x, w, tape) = (&arguments[0], &arguments[1], Tape::new());
    tape.watch(x)?;
    tape.watch(w)?;
    Ok((x, w, tape))
}

/// h = tanh(w h + x) over a sequence, its last state, all states, and dw, dx.
fn recurrent(arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let (x, w, tape) = watched(arguments)?;
    let start = x.full_like(plimsoll_graph::Type::new(DType::F32, [2]), 0.0)?;
    let (last, all) = scan("cell", x, 1, vec![start], |carried, x| {
        let h = carried[0].mul(w)?.add(x)?.tanh()?;
        Ok((vec![h.clone()], h))
    })?;
    let loss = all.square()?.sum(&[], false)?.add(&last[0].sum(&[], false)?)?;
    let grads = tape.gradient(&loss, &[x, w])?;
    Ok([vec![last[0].clone(), all], grads].concat())
}

#[test]
fn a_loop_has_one_scope_a_step_and_the_gradient_of_all_steps() -> Result<()> {
    let x = Tensor::from_slice(&[0.5f32, -0.25, 1.0, 0.75, -1.0, 0.125], [2, 3])?;
    let w = Tensor::from_slice(&[0.5f32], [])?;
    let eager = recurrent(&[x.clone(), w.clone()])?;
    let traced = function(recurrent).call(&[&x, &w])?;
    for (a, b) in eager.iter().zip(&traced) {
        assert_eq!(a.to_bytes()?, b.to_bytes()?);
    }
    // By hand, in f64.
    let run = |w: f64, x: &[f64]| -> f64 {
        let mut loss = 0.0;
        for row in x.chunks(3) {
            let mut h = 0.0;
            for x in row {
                h = f64::tanh(w * h + x);
                loss += h * h;
            }
            loss += h;
        }
        loss
    };
    let values = x.to_f64()?;
    let dw = (run(0.5 + 1e-6, &values) - run(0.5 - 1e-6, &values)) / 2e-6;
    assert!((eager[3].to_f64()?[0] - dw).abs() < 1e-4, "{} {dw}", eager[3].to_f64()?[0]);
    let slope = eager[2].to_f64()?;
    for i in 0..6 {
        let at = |delta: f64| {
            let mut moved = values.clone();
            moved[i] += delta;
            run(0.5, &moved)
        };
        let wanted = (at(1e-6) - at(-1e-6)) / 2e-6;
        assert!((slope[i] - wanted).abs() < 1e-4, "{i}: {} {wanted}", slope[i]);
    }
    Ok(())
}

#[test]
fn a_loop_that_carries_on_another_type_is_refused_by_step() -> Result<()> {
    let x = Tensor::from_slice(&[1f32, 2.0], [2])?;
    let start = Tensor::from_slice(&[0f32], [])?;
    let why = scan("cell", &x, 0, vec![start], |_, x| Ok((vec![x.cast(DType::F64)?], x.clone())));
    let why = why.unwrap_err().to_string();
    assert!(why.contains("step 0") && why.contains("f32[]") && why.contains("f64[]"), "{why}");
    Ok(())
}

/// x multiplied by w until it is above 10, at most 6 times; the factor and the rounds, whether it would go on, and dx, dw.
fn grown(arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let (x, w, tape) = watched(arguments)?;
    let (limit, none) = (x.full_like(x.ty().clone(), 10.0)?, x.full_like(x.ty().clone(), 0.0)?);
    let (last, more) = while_loop(
        "grow",
        6,
        vec![x.clone(), none],
        |carried| carried[0].less_equal(&limit),
        |carried| Ok(vec![carried[0].mul(w)?, carried[1].add_scalar(1.0)?]),
    )?;
    // Without a round, an eager loop has not used w, and a gradient of what was not used is an error.
    let loss = last[0].add(&w.mul_scalar(0.0)?)?;
    let grads = tape.gradient(&loss, &[x, w])?;
    Ok([last, vec![more.cast(DType::F32)?], grads].concat())
}

#[test]
fn a_loop_ends_where_its_condition_does_and_has_the_gradient_of_the_rounds_that_counted() -> Result<()> {
    // Three rounds, none, and as many as are allowed.
    for (x, w, rounds, more) in [(2.0f64, 2.0f64, 3, 0.0), (11.0, 2.0, 0, 0.0), (1.0, 1.25, 6, 1.0)] {
        let arguments = [x as f32, w as f32].map(|v| Tensor::from_slice(&[v], []).unwrap());
        let traced = function(grown).call(&arguments.iter().collect::<Vec<_>>())?;
        let power = w.powi(rounds);
        let dw = f64::from(rounds) * x * w.powi(rounds - 1);
        for results in [grown(&arguments)?, traced] {
            let found: Vec<f64> = results.iter().map(Tensor::item).collect::<Result<_>>()?;
            for (found, wanted) in found.iter().zip([x * power, f64::from(rounds), more, power, dw]) {
                assert!((found - wanted).abs() < 1e-4 * wanted.abs().max(1.0), "{found} is not {wanted}");
            }
        }
    }
    let x = Tensor::from_slice(&[1f32], [])?;
    let why = while_loop("l", 3, vec![x.clone()], |c| Ok(c[0].clone()), |c| Ok(c.to_vec()));
    assert!(why.unwrap_err().to_string().contains("one truth value"));
    let yes = |c: &[Tensor]| c[0].equal(&c[0]);
    let why = while_loop("l", 3, vec![x], yes, |c| Ok(vec![c[0].cast(DType::F64)?])).unwrap_err().to_string();
    assert!(why.contains("step 0") && why.contains("f64[]"), "{why}");
    Ok(())
}
