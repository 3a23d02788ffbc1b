//! Tape, traced functions and steps: the same rules and the same bits as eager ops.

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, LossOps, NormOps, Site, SoftmaxOps, Type};
use plimsoll_run::{
    Device, Error, Kind, Result, StateSpec, Step, StepArgs, StepOptions, StepPlanner, StepResult, Tape,
    Tensor, TensorOps, asked_at, function, named,
};

fn noise(shape: &[usize], dtype: DType, seed: u64) -> Tensor {
    let mut dice = plimsoll_graph::example::Dice::new(seed);
    let ty = Type::new(dtype, shape);
    let data: Vec<f64> = (0..ty.elements()).map(|_| dice.normal()).collect();
    Tensor::from_f64(&data, ty).unwrap()
}

/// Loss and gradients of a small network with many kinds of ops.
fn network(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let (x, w1, w2, gamma, labels) = (&x[0], &x[1], &x[2], &x[3], &x[4]);
    let tape = Tape::new();
    for w in [w1, w2, gamma] {
        tape.watch(w)?;
    }
    let h = x.matmul(w1)?.relu()?;
    let (h, _, _) = h.batch_norm(gamma, gamma, 1e-5)?;
    let h = h.add(&h.sigmoid()?.mul(&h)?)?.gelu_tanh()?;
    let h = h.sub(&h.mean(&[1], true)?)?.softmax(-1)?;
    let loss = h.matmul(w2)?.softmax_cross_entropy(labels)?.mean(&[], false)?;
    let mut results = tape.gradient(&loss, &[w1, w2, gamma])?;
    results.push(loss);
    Ok(results)
}

fn arguments(dtype: DType) -> Vec<Tensor> {
    let labels = Tensor::from_slice(&[0i64, 3, 2, 1, 1, 0], [6]).unwrap();
    let gamma = noise(&[16], dtype.accumulator(), 4);
    vec![noise(&[6, 10], dtype, 1), noise(&[10, 16], dtype, 2), noise(&[16, 4], dtype, 3), gamma, labels]
}

#[test]
fn eager_and_traced_give_the_same_bits_in_every_float_type() {
    for dtype in DType::FLOATS {
        let arguments = arguments(dtype);
        let eager = network(&arguments).unwrap();
        let traced = function(network).call(&arguments.iter().collect::<Vec<_>>()).unwrap();
        for (i, (a, b)) in eager.iter().zip(&traced).enumerate() {
            assert_eq!(a.to_bytes().unwrap(), b.to_bytes().unwrap(), "result {i} in {dtype}");
        }
    }
}

#[test]
fn a_function_keeps_a_bounded_number_of_programs() {
    let double = function(|x| Ok(vec![x[0].mul_scalar(2.0)?])).keep_at_most(3);
    for n in 1..=10 {
        let x = noise(&[n], DType::F32, 1);
        let y = double.call(&[&x]).unwrap().remove(0);
        assert_eq!(y.to_f64().unwrap()[0], 2.0 * x.to_f64().unwrap()[0]);
        assert!(double.n_cached() <= 3);
    }
    assert_eq!(double.n_cached(), 3);
}

#[test]
fn a_function_uses_tensors_from_outside() {
    let w = noise(&[4], DType::F32, 9);
    let scaled = function(|x| Ok(vec![x[0].mul(&w)?, w.clone(), x[0].clone()]));
    let x = noise(&[4], DType::F32, 8);
    let y = scaled.call(&[&x]).unwrap();
    assert_eq!(y[0].to_bytes().unwrap(), x.mul(&w).unwrap().to_bytes().unwrap());
    assert_eq!(y[1].to_bytes().unwrap(), w.to_bytes().unwrap());
    assert_eq!(y[2].to_bytes().unwrap(), x.to_bytes().unwrap());
}

#[test]
fn a_tape_sees_through_a_function() {
    let cube = function(|x| Ok(vec![x[0].mul(&x[0])?.mul(&x[0])?]));
    let x = Tensor::from_slice(&[2.0f32], [1]).unwrap();
    let tape = Tape::new();
    tape.watch(&x).unwrap();
    let y = cube.call(&[&x]).unwrap().remove(0);
    assert_eq!(tape.gradient(&y, &[&x]).unwrap()[0].to_vec::<f32>().unwrap(), [12.0]);
}

#[test]
fn a_tape_gives_gradients_once_and_a_persistent_one_often() {
    let x = Tensor::from_slice(&[3.0f32], [1]).unwrap();
    for (tape, again) in [(Tape::new(), false), (Tape::persistent(), true)] {
        tape.watch(&x).unwrap();
        let y = x.square().unwrap();
        assert_eq!(tape.gradient(&y, &[&x]).unwrap()[0].to_vec::<f32>().unwrap(), [6.0]);
        assert_eq!(tape.gradient(&y, &[&x]).is_ok(), again);
    }
}

#[test]
fn nested_tapes_give_second_derivatives() {
    let x = Tensor::from_slice(&[2.0f32], [1]).unwrap();
    let outer = Tape::new();
    outer.watch(&x).unwrap();
    let inner = Tape::new();
    inner.watch(&x).unwrap();
    let y = x.pow_scalar(4.0).unwrap();
    let first = inner.gradient(&y, &[&x]).unwrap().remove(0);
    let second = outer.gradient(&first, &[&x]).unwrap().remove(0);
    let (first, second) = (first.to_vec::<f32>().unwrap()[0], second.to_vec::<f32>().unwrap()[0]);
    assert!((first - 32.0).abs() < 1e-4 && (second - 48.0).abs() < 1e-4, "{first} {second}");
}

#[test]
fn a_gradient_that_does_not_exist_is_an_error_and_never_a_zero() {
    let x = noise(&[4], DType::F32, 1);
    let other = noise(&[4], DType::F32, 2);
    let tape = Tape::persistent();
    tape.watch(&x).unwrap();
    tape.watch(&other).unwrap();
    let y = x.exp().unwrap();
    assert!(matches!(tape.gradient(&y, &[&other]), Err(Error::Graph(_))));
    assert!(tape.try_gradient(&y, &[&other]).unwrap()[0].is_none());
    let counted = x.greater(&other).unwrap().cast(DType::F32).unwrap();
    let text = tape.gradient(&counted, &[&x]).unwrap_err().to_string();
    assert!(text.contains("gradient"), "{text}");
}

#[test]
fn the_tape_frees_as_the_backward_pass_goes() {
    // Twenty tanh in a row keep twenty outputs; their gradients must not come on top of all of them.
    let device = Device::cpu_with(1, Bytes::mib(64)).unwrap();
    device.scope(|| {
        let bytes = 1 << 20;
        let x = Tensor::full(Type::new(DType::U8, [bytes]), 1.0).unwrap().cast(DType::F32).unwrap();
        let x = x.narrow(0, 0, bytes / 4).unwrap();
        let tape = Tape::new();
        tape.watch(&x).unwrap();
        let mut y = x.clone();
        for _ in 0..20 {
            y = y.tanh().unwrap();
        }
        let loss = y.sum(&[], false).unwrap();
        drop(y);
        let before = device.memory_info().current;
        device.reset_peak();
        tape.gradient(&loss, &[&x]).unwrap();
        let peak = device.memory_info().peak;
        assert!(peak <= before + Bytes::mib(4), "{before} before, {peak} at the peak");
    });
}

#[test]
fn a_step_updates_its_state_in_place_and_a_clone_keeps_what_it_saw() {
    let start = noise(&[32, 8], DType::F32, 1);
    let bytes = start.to_bytes().unwrap();
    let mut step = Step::compile(vec![start.clone()], &[Type::new(DType::F32, [8])], |state, inputs| {
        let new = state[0].mul(&inputs[0])?;
        Ok(StepResult {
            state: vec![new.clone()],
            outputs: vec![new.sum(&[], false)?, state[0].clone(), new],
            totals: vec![],
        })
    })
    .unwrap();
    let half = Tensor::full(Type::new(DType::F32, [8]), 0.5).unwrap();
    let first = step.run(&[&half]).unwrap().to_vec();
    let seen = step.state()[0].clone();
    let seen_bytes = seen.to_bytes().unwrap();
    step.run(&[&half]).unwrap();
    assert_eq!(start.to_bytes().unwrap(), bytes, "the tensor given is not the step's to write");
    assert_eq!(first[1].to_bytes().unwrap(), bytes, "the old value leaves as it was");
    assert_eq!(first[2].to_bytes().unwrap(), seen_bytes);
    assert_eq!(seen.to_bytes().unwrap(), seen_bytes, "a clone keeps what it saw");
    let quarter: Vec<f64> = start.to_f64().unwrap().into_iter().map(|x| x * 0.25).collect();
    assert_eq!(step.state()[0].to_f64().unwrap(), quarter);
}

#[test]
fn states_may_change_places() {
    let [a, b] = [1, 2].map(|seed| noise(&[5], DType::F32, seed));
    let (bytes_a, bytes_b) = (a.to_bytes().unwrap(), b.to_bytes().unwrap());
    let mut step = Step::compile(vec![a, b], &[], |s, _| {
        Ok(StepResult { state: vec![s[1].clone(), s[0].clone()], outputs: vec![], totals: vec![] })
    })
    .unwrap();
    step.run(&[]).unwrap();
    assert_eq!(step.state()[0].to_bytes().unwrap(), bytes_b);
    assert_eq!(step.state()[1].to_bytes().unwrap(), bytes_a);
}

#[test]
fn a_step_refuses_inputs_it_was_not_compiled_for() {
    let mut step = Step::compile(vec![], &[Type::new(DType::F32, [2])], |_, x| {
        Ok(StepResult { state: vec![], outputs: vec![x[0].exp()?], totals: vec![] })
    })
    .unwrap();
    for wrong in [noise(&[3], DType::F32, 1), noise(&[2], DType::F64, 1)] {
        assert!(matches!(step.run(&[&wrong]), Err(Error::Signature { .. })));
    }
    assert!(matches!(step.run(&[]), Err(Error::Signature { .. })));
}

#[test]
fn values_of_two_traces_do_not_meet() {
    let leaked = std::cell::RefCell::new(None);
    let leak = function(|x| {
        *leaked.borrow_mut() = Some(x[0].clone());
        Ok(vec![x[0].exp()?])
    });
    let x = noise(&[2], DType::F32, 1);
    leak.call(&[&x]).unwrap();
    let leaked = leaked.borrow().clone().unwrap();
    assert!(matches!(leaked.to_f64(), Err(Error::Traced { .. })));
    let mix = function(|x| Ok(vec![x[0].add(&leaked)?]));
    assert!(mix.call(&[&x]).is_err());
}

#[test]
fn an_error_names_the_layer_and_the_users_line_and_never_the_standard_library() {
    let x = Tensor::from_slice(&[1.0f32; 6], [2, 3]).unwrap();
    // Called through a pointer, a method has a line of the standard library for a caller.
    let product: fn(&Tensor, &Tensor) -> Result<Tensor> = Tensor::matmul;
    let through = |f: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| f(&x, &x).unwrap_err().to_string();
    let plain = through(&product);
    assert!(plain.starts_with("matmul") && !plain.contains("rustc"), "{plain}");
    let traced = function(move |x| named("down0", || named("conva", || Ok(vec![product(&x[0], &x[0])?]))));
    let named = traced.call(&[&x]).unwrap_err().to_string();
    assert!(named.starts_with("matmul in down0/conva") && !named.contains("rustc"), "{named}");
    // The line that a layer was asked for at is told where it is known.
    let (site, x) = (Site::here(), x.clone());
    let asked = asked_at(site, || product(&x, &x)).unwrap_err().to_string();
    assert!(asked.contains(&format!("matmul at {site}: ")), "{asked}");
}

#[test]
fn values_without_elements_run_like_others() {
    let weights = Tensor::from_slice(&[2.0f32; 12], [3, 4]).unwrap();
    let f = function(move |x| {
        // Nothing of x, times the weights, beside something.
        let empty = x[0].slice(&[(0, 0, 0, 1)])?.matmul(&weights)?.tanh()?;
        Ok(vec![empty.exp()?, x[0].tanh()?.exp()?])
    });
    let results = f.call(&[&Tensor::from_slice(&[0.0f32; 6], [2, 3]).unwrap()]).unwrap();
    assert!(results[0].to_vec::<f32>().unwrap().is_empty());
    assert_eq!(results[1].to_vec::<f32>().unwrap(), [1.0; 6]);
}

#[test]
fn sizes_that_cannot_be_counted_are_refused_as_such() {
    let rows = Type::new(DType::F32, [1 << 40, 1 << 40]);
    assert_eq!(rows.bytes(), usize::MAX);
    let state = vec![StateSpec::new("w", Kind::Parameter, Type::new(DType::F32, [2, 2]))];
    let survey = |ty: Type| {
        let options = StepOptions::default();
        let body = |pass: &StepArgs<'_>| {
            let x = &pass.inputs[0];
            // As wide as it is long.
            let square =
                x.reshape([x.shape().elements(), 1])?.matmul(&x.reshape([1, x.shape().elements()])?)?;
            Ok(StepResult {
                state: pass.state.to_vec(),
                outputs: vec![square.mean(&[], false)?],
                totals: vec![],
            })
        };
        match StepPlanner::new(&options, &Device::current().unwrap(), state.clone(), &[ty], body) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it was planned"),
        }
    };
    let why = survey(rows);
    assert!(
        why.contains("an input of f32[1099511627776, 1099511627776]") && why.contains("smaller"),
        "{why}"
    );
    let why = survey(Type::new(DType::F32, [1 << 30]));
    assert!(why.starts_with("matmul") && why.contains("no machine can hold"), "{why}");
}
