//! Turns a case into values and compares them: eager against traced bit by bit, both against PyTorch within a tolerance.

use plimsoll_graph::reference::{Array, interpret};
use plimsoll_graph::{DType, Graph, Site, Sym, TensorOps, Trace, Type, gradients};
use plimsoll_run::{Device, Result, Tape, Tensor, function};

use crate::case::{Case, Golden};
use crate::dispatch::apply;

/// How far an output may be from PyTorch's, relative to the element plus the root mean square of its array, at most 1.
///
/// Inputs are exact in every type and PyTorch computes in f64, so this is our rounding alone. An f16 rounds by 2⁻¹² of
/// a value and a bf16 by 2⁻⁹; compositions (a loss of elementwise ops, five steps of an LSTM) round several times.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 5e-6,
        DType::F16 => 4e-3,
        _ => 2e-2,
    }
}

/// A 16-bit gradient is made of 16-bit values, outputs among them, and may be this many times as far off.
const GRADIENT: f64 = 2.0;

/// Second derivatives pass through a dozen 16-bit values one after the other, and terms larger than their sum cancel:
/// they may be this many times as far off, relative to the whole root mean square.
const SECOND: f64 = 4.0;

/// A way to compute a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Op by op, with a tape.
    Eager,
    /// As a function, gradients included.
    Traced,
    /// As a function without gradients: nothing reads what is kept for them.
    Forward,
}

/// What is wrong with a case in one element type on the devices, one line each.
pub fn compare(case: &Case, dtype: DType, devices: &[Device]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut first: Option<Vec<Vec<u8>>> = None;
    for (i, device) in devices.iter().enumerate() {
        for way in [Way::Eager, Way::Traced, Way::Forward] {
            // Outputs of a second derivative are gradients themselves.
            if way == Way::Forward && !case.inner.is_empty() {
                continue;
            }
            let how = format!("in {dtype}, {way:?} on device {i}");
            let results = match device.scope(|| run(case, dtype, way)) {
                Ok(results) => results,
                Err(e) => {
                    wrong.push(format!("{} {how}: {e}", case.name));
                    continue;
                }
            };
            let bytes: Vec<Vec<u8>> = results.iter().map(|t| t.to_bytes().unwrap()).collect();
            let others: Vec<usize> = match &first {
                None => vec![],
                Some(first) => (0..bytes.len()).filter(|&r| bytes[r] != first[r]).collect(),
            };
            if !others.is_empty() {
                wrong.push(format!(
                    "{} {how}: other bits than the first run in results {others:?}",
                    case.name
                ));
            }
            if way != Way::Forward && (first.is_none() || !others.is_empty()) {
                let arrays = results.iter().map(|t| (t.ty().clone(), t.to_f64().unwrap()));
                wrong.extend(differing(case, dtype, &arrays.collect::<Vec<_>>(), &how));
            }
            first.get_or_insert(bytes);
        }
    }
    wrong
}

/// Outputs and gradients of a case, on the current device.
fn run(case: &Case, dtype: DType, way: Way) -> Result<Vec<Tensor>> {
    let inputs = case.inputs.iter().map(|x| Tensor::from_f64(&x.array.data(), x.ty(dtype)));
    let mut arguments = inputs.collect::<Result<Vec<Tensor>>>()?;
    if way == Way::Forward {
        return function(|x| apply(case, x, dtype)).call(&arguments.iter().collect::<Vec<_>>());
    }
    // Seeds are arguments too. Their type is that of an output, which is known when the body runs: casting is exact.
    let seed = |g: &Golden| Tensor::from_f64(&g.data(), Type::new(DType::F64, g.shape()));
    for g in case.inner.iter().chain(case.seeds.iter().flatten()) {
        arguments.push(seed(g)?);
    }
    if way == Way::Traced {
        return function(|x| body(case, dtype, x)).call(&arguments.iter().collect::<Vec<_>>());
    }
    body(case, dtype, &arguments)
}

fn body(case: &Case, dtype: DType, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let (inputs, seeds) = arguments.split_at(case.inputs.len());
    let (inner, seeds) = seeds.split_at(case.inner.len());
    let wrt: Vec<&Tensor> = inputs.iter().zip(&case.inputs).filter(|(_, x)| x.grad).map(|(t, _)| t).collect();
    let watching = || -> Result<Tape> {
        let tape = Tape::new();
        wrt.iter().try_for_each(|x| tape.watch(x))?;
        Ok(tape)
    };
    let slopes = |tape: &Tape, outputs: &[&Tensor], seeds: &[Tensor]| -> Result<Vec<Tensor>> {
        let grads = tape.try_gradient(&weighted(outputs, seeds)?, &wrt)?;
        // Where none flows PyTorch says zero.
        let or_zero =
            |(grad, x): (Option<Tensor>, &&Tensor)| grad.map_or_else(|| x.full_like(x.ty().clone(), 0.0), Ok);
        grads.into_iter().zip(&wrt).map(or_zero).collect()
    };
    if seeds.is_empty() {
        return apply(case, inputs, dtype);
    }
    let tape = watching()?;
    let mut outputs = if inner.is_empty() {
        apply(case, inputs, dtype)?
    } else {
        let tape = watching()?;
        let squares =
            apply(case, inputs, dtype)?.iter().map(|y| y.square()).collect::<Result<Vec<Tensor>>>()?;
        slopes(&tape, &squares.iter().collect::<Vec<_>>(), inner)?
    };
    let seeded: Vec<&Tensor> =
        outputs.iter().zip(&case.seeds).filter(|(_, s)| s.is_some()).map(|(y, _)| y).collect();
    let gradients = slopes(&tape, &seeded, seeds)?;
    outputs.extend(gradients);
    Ok(outputs)
}

/// The sum of all outputs times their seeds.
fn weighted(outputs: &[&Tensor], seeds: &[Tensor]) -> Result<Tensor> {
    let terms = outputs.iter().zip(seeds).map(|(y, seed)| {
        let product = y.mul(&seed.cast(y.dtype())?)?;
        product.cast(y.dtype().accumulator())?.sum(&[], false)
    });
    let terms = terms.collect::<Result<Vec<Tensor>>>()?;
    terms[1..].iter().try_fold(terms[0].clone(), |sum, term| sum.add(term))
}

/// One line for each result that is not PyTorch's.
fn differing(case: &Case, dtype: DType, results: &[(Type, Vec<f64>)], how: &str) -> Vec<String> {
    let wanted: Vec<&Golden> = case.outputs.iter().chain(&case.gradients).collect();
    if results.len() != wanted.len() {
        return vec![format!(
            "{} {how}: {} results, PyTorch gives {}",
            case.name,
            results.len(),
            wanted.len()
        )];
    }
    let mut wrong = Vec::new();
    for (i, ((ty, got), want)) in results.iter().zip(wanted).enumerate() {
        let which = match i.checked_sub(case.outputs.len()) {
            None => format!("output {i}"),
            Some(gradient) => format!("gradient {gradient}"),
        };
        if ty.shape != want.shape() {
            wrong.push(format!(
                "{} {how}: {which} has shape {}, PyTorch's {}",
                case.name,
                ty.shape,
                want.shape()
            ));
            continue;
        }
        let want = want.data();
        let tolerance = if ty.dtype.is_float() && !case.exact { tolerance(dtype) } else { 0.0 };
        let finite = || want.iter().filter(|w| w.is_finite());
        let rms = (finite().map(|w| w * w).sum::<f64>() / finite().count().max(1) as f64).sqrt();
        let (times, rms) = match dtype.bytes() {
            2 if !case.inner.is_empty() => (SECOND, rms),
            2 if i >= case.outputs.len() => (GRADIENT, rms.min(1.0)),
            _ => (1.0, rms.min(1.0)),
        };
        let far = |&(_, (&got, &want)): &(usize, (&f64, &f64))| {
            let same = got == want || (got.is_nan() && want.is_nan());
            // A not-a-number is not near to anything.
            let near = (got - want).abs() <= times * tolerance * (want.abs() + rms);
            !(same || near)
        };
        let far: Vec<(usize, (&f64, &f64))> = got.iter().zip(&want).enumerate().filter(far).collect();
        if let Some((element, (got, want))) = far.first() {
            let count = far.len();
            wrong.push(format!(
                "{} {how}: {which} element {element} is {got}, PyTorch says {want} ({count} elements)",
                case.name
            ));
        }
    }
    wrong
}

/// The case as a graph of f64 values, its gradients included.
pub fn graph(case: &Case) -> plimsoll_graph::Result<Graph> {
    let trace = Trace::new();
    let inputs: Vec<Sym> = case.inputs.iter().map(|x| trace.input("x", x.ty(DType::F64))).collect();
    let seed = |y: &Sym| trace.input("seed", y.ty().clone());
    let wrt: Vec<&Sym> = inputs.iter().zip(&case.inputs).filter(|(_, x)| x.grad).map(|(s, _)| s).collect();
    let slopes = |targets: &[(&Sym, Option<&Sym>)]| -> plimsoll_graph::Result<Vec<Sym>> {
        let or_zero =
            |(grad, x): (Option<Sym>, &&Sym)| grad.map_or_else(|| x.full_like(x.ty().clone(), 0.0), Ok);
        gradients(targets, &wrt, Site::here())?.into_iter().zip(&wrt).map(or_zero).collect()
    };
    let mut outputs = apply(case, &inputs, DType::F64)?;
    if !case.inner.is_empty() {
        let squares = outputs.iter().map(|y| y.square()).collect::<plimsoll_graph::Result<Vec<Sym>>>()?;
        let seeds: Vec<Sym> = squares.iter().map(seed).collect();
        outputs = slopes(&squares.iter().zip(seeds.iter().map(Some)).collect::<Vec<_>>())?;
    }
    if !case.seeds.is_empty() {
        let seeded: Vec<&Sym> =
            outputs.iter().zip(&case.seeds).filter(|(_, s)| s.is_some()).map(|(y, _)| y).collect();
        let seeds: Vec<Sym> = seeded.iter().map(|y| seed(y)).collect();
        let gradients = slopes(&seeded.into_iter().zip(seeds.iter().map(Some)).collect::<Vec<_>>())?;
        outputs.extend(gradients);
    }
    trace.finish(&outputs.iter().collect::<Vec<_>>())
}

/// What is wrong with the reference interpreter's answers, one line each.
pub fn compare_reference(case: &Case) -> Vec<String> {
    let graph = match graph(case) {
        Ok(graph) => graph,
        Err(e) => return vec![format!("{}: {e}", case.name)],
    };
    let array = |g: &Golden| Array::new(g.shape(), g.data());
    let arrays = case.inputs.iter().map(|x| &x.array).chain(&case.inner).chain(case.seeds.iter().flatten());
    let results = interpret(&graph, &arrays.map(array).collect::<Vec<_>>());
    let types = graph.outputs().iter().map(|&v| graph.ty(v).clone());
    let results: Vec<(Type, Vec<f64>)> = types.zip(results.into_iter().map(|a| a.data)).collect();
    differing(case, DType::F64, &results, "by the reference")
}
