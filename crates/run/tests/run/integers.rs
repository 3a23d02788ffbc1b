//! Small integers: kept, moved, compared, sorted, converted and reduced as they are; refused by name where ops compute. And f64 among
//! narrower floats, which is told once.

use plimsoll_device::backend::Element;
use plimsoll_graph::{DType, GatherOps, SortOps, TensorOps};
use plimsoll_run::{Result, Step, StepResult, Tensor, function};

/// Values of a type that go through everything that takes them, eager and traced.
fn goes_through<T: Element + PartialEq + std::fmt::Debug>(values: [T; 4], most: T, least: T) -> Result<()> {
    let x = Tensor::from_slice(&values, [4])?;
    assert_eq!(x.to_vec::<T>()?, values);
    let dtype = x.dtype();
    let again = Tensor::from_f64(&x.to_f64()?, x.ty().clone())?;
    assert_eq!(again.to_vec::<T>()?, values);
    let body = |x: &[Tensor]| {
        let order = x[0].argsort(0, false)?;
        let ends = [x[0].max(&[], false)?, x[0].min(&[], false)?];
        let back = x[0].cast(DType::F64)?.cast(x[0].dtype())?;
        let same = x[0].equal(&back)?.select(&x[0], &ends[0])?;
        Ok(vec![x[0].gather(&order, 0)?, ends[0].clone(), ends[1].clone(), same])
    };
    let eager = body(std::slice::from_ref(&x))?;
    let traced = function(body).call(&[&x])?;
    for results in [eager, traced] {
        let mut sorted: Vec<f64> = x.to_f64()?;
        sorted.sort_by(f64::total_cmp);
        assert_eq!(results[0].to_f64()?, sorted, "{dtype}");
        assert_eq!(results[1].to_vec::<T>()?, [most]);
        assert_eq!(results[2].to_vec::<T>()?, [least]);
        assert_eq!(results[3].to_vec::<T>()?, values);
    }
    for refused in [x.add(&x), x.exp(), x.sum(&[], false), x.matmul(&x)] {
        let why = refused.unwrap_err().to_string();
        assert!(why.contains(dtype.name()), "{why}");
    }
    Ok(())
}

#[test]
fn small_integers_go_through_what_moves_and_are_refused_by_what_computes() -> Result<()> {
    goes_through([3i8, -128, 127, -1], 127, -128)?;
    goes_through([3i16, -32768, 32767, -1], 32767, -32768)?;
    goes_through([3u16, 0, 65535, 40000], 65535, 0)?;
    goes_through([3u32, 0, u32::MAX, 1 << 31], u32::MAX, 0)?;
    goes_through([3u8, 0, 255, 128], 255, 0)
}

#[test]
fn what_does_not_fit_is_held_at_the_ends_of_the_range() -> Result<()> {
    let x = Tensor::from_slice(&[-1e9f32, -1.5, f32::NAN, 200.7, 1e9], [5])?;
    assert_eq!(x.cast(DType::I8)?.to_vec::<i8>()?, [-128, -1, 0, 127, 127]);
    assert_eq!(x.cast(DType::I16)?.to_vec::<i16>()?, [-32768, -1, 0, 200, 32767]);
    assert_eq!(x.cast(DType::U16)?.to_vec::<u16>()?, [0, 0, 0, 200, 65535]);
    assert_eq!(x.cast(DType::U32)?.to_vec::<u32>()?, [0, 0, 0, 200, 1_000_000_000]);
    let wide = Tensor::from_slice(&[-5i64, 70000, 1 << 40], [3])?;
    assert_eq!(wide.cast(DType::U16)?.to_vec::<u16>()?, [0, 65535, 65535]);
    assert_eq!(wide.cast(DType::I8)?.to_vec::<i8>()?, [-5, 127, 127]);
    Ok(())
}

#[test]
fn indices_stay_i64_or_i32() -> Result<()> {
    let table = Tensor::from_slice(&[1f32, 2.0, 3.0], [3])?;
    let why = table.gather(&Tensor::from_slice(&[0u16, 2], [2])?, 0).unwrap_err().to_string();
    assert!(why.contains("i64 or i32") && why.contains("u16"), "{why}");
    Ok(())
}

#[test]
fn f64_that_enters_a_step_of_f32_is_named_once() -> Result<()> {
    let body = |state: &[Tensor], inputs: &[Tensor]| {
        let loss = inputs[0].cast(DType::F32)?.mul(&state[0])?.sum(&[], false)?;
        Ok(StepResult { state: state.to_vec(), outputs: vec![loss], totals: vec![] })
    };
    let w = || Tensor::from_slice(&[1f32, 2.0], [2]);
    let x = Tensor::from_slice(&[1f64, 2.0], [2])?;
    let mut step = Step::compile(vec![w()?], &[x.ty().clone()], body)?;
    let said = step.take_remark().expect("an input is f64");
    assert!(said.contains("input 0 (f64[2])") && said.contains("f32"), "{said}");
    step.run(&[&x])?;
    assert_eq!(step.take_remark(), None);
    let narrow = Tensor::from_slice(&[1f32, 2.0], [2])?;
    let mut step = Step::compile(vec![w()?], &[narrow.ty().clone()], body)?;
    assert_eq!(step.take_remark(), None);
    Ok(())
}
