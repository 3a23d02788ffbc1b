//! Random ops against what must hold of them: PyTorch draws from another generator, so there are no golden values.

use plimsoll_graph::{DType, RandomOps, Type};
use plimsoll_run::{Result, Tape, Tensor, TensorOps, function};

/// The variants of the op table that are covered here and not by golden files.
pub const OPS: &[&str] = &["Uniform", "Normal", "TruncatedNormal", "Dropout"];

fn key(step: i64, first: i64) -> Tensor {
    Tensor::from_slice(&[42i64, step, first], [3]).unwrap()
}

/// Mean and variance.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n)
}

#[test]
fn uniform_and_normal_values_have_their_distributions_in_every_float_type() -> Result<()> {
    for dtype in DType::FLOATS {
        let ty = Type::new(dtype, [100, 200]);
        let uniform = key(3, 0).random_uniform(ty.clone(), 1, -1.0, 2.0)?.to_f64()?;
        let (mean, var) = moments(&uniform);
        // Over 20,000 draws the standard errors are 0.006 and 0.005, and four times that is a margin.
        assert!(
            (mean - 0.5).abs() < 0.025 && (var - 0.75).abs() < 0.02,
            "{dtype}: mean {mean}, variance {var}"
        );
        assert!(uniform.iter().all(|x| (-1.0..=2.0).contains(x)), "{dtype}");
        let (mean, var) = moments(&key(3, 0).random_normal(ty, 2, 0.5, 2.0)?.to_f64()?);
        assert!(
            (mean - 0.5).abs() < 0.06 && (var - 4.0).abs() < 0.16,
            "{dtype}: mean {mean}, variance {var}"
        );
        // Cut at twice its deviation, a standard normal has 0.7737 of its variance left.
        let cut =
            key(3, 0).random_truncated_normal(Type::new(dtype, [100, 200]), [2, 3, 4, 5, 6, 7, 8], 2.0)?;
        let cut = cut.to_f64()?;
        let (mean, var) = moments(&cut);
        assert!(mean.abs() < 0.06 && (var - 3.095).abs() < 0.12, "{dtype}: mean {mean}, variance {var}");
        assert!(cut.iter().all(|x| x.abs() <= 4.0), "{dtype}");
    }
    Ok(())
}

#[test]
fn a_traced_draw_has_the_bits_of_an_eager_one_and_of_its_parts() -> Result<()> {
    for dtype in DType::FLOATS {
        let ty = |samples: usize| Type::new(dtype, [samples, 9]);
        let draw = |key: &Tensor, samples: usize| {
            let x = Tensor::full(ty(samples), 1.0)?;
            let noise =
                [key.random_uniform(ty(samples), 1, 0.0, 1.0)?, key.random_normal(ty(samples), 2, 0.0, 1.0)?];
            let cut = key.random_truncated_normal(ty(samples), [2, 3, 4, 5, 6, 7, 8], 1.0)?;
            Ok(Vec::from([noise[0].clone(), noise[1].clone(), x.dropout(0.25, key, 3)?, cut]))
        };
        let eager = draw(&key(1, 0), 10)?;
        let traced = function(|x| draw(&x[0], 10)).call(&[&key(1, 0)])?;
        let parts = [draw(&key(1, 0), 4)?, draw(&key(1, 4), 6)?];
        let other = draw(&key(2, 0), 10)?;
        for i in 0..4 {
            let bytes = eager[i].to_bytes()?;
            assert_eq!(bytes, traced[i].to_bytes()?, "{dtype} {i}");
            assert_eq!(bytes, [parts[0][i].to_bytes()?, parts[1][i].to_bytes()?].concat(), "{dtype} {i}");
            assert_ne!(bytes, other[i].to_bytes()?, "{dtype} {i}: another step must draw anew");
        }
    }
    Ok(())
}

#[test]
fn dropout_keeps_the_mean_and_its_gradient_drops_the_same_elements() -> Result<()> {
    for dtype in DType::FLOATS {
        let x = Tensor::full(Type::new(dtype, [200, 100]), 1.0)?;
        let tape = Tape::new();
        tape.watch(&x)?;
        let y = x.dropout(0.25, &key(7, 0), 0)?;
        let scaled = y.mul_scalar(3.0)?;
        let dx = tape.gradient(&scaled, &[&x])?.remove(0).to_f64()?;
        let y = y.to_f64()?;
        let kept = y.iter().filter(|&&y| y != 0.0).count() as f64 / y.len() as f64;
        assert!((kept - 0.75).abs() < 0.013, "{dtype}: {kept} are kept");
        assert!((moments(&y).0 - 1.0).abs() < 0.02, "{dtype}");
        let scale = 4.0 / 3.0;
        for (i, (y, dx)) in y.iter().zip(&dx).enumerate() {
            let expected = if *y == 0.0 { 0.0 } else { scale };
            assert!((y - expected).abs() < 0.01, "{dtype}: element {i} is {y}");
            assert!((dx - 3.0 * expected).abs() < 0.03, "{dtype}: element {i} has the gradient {dx}");
        }
    }
    Ok(())
}
