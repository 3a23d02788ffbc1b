//! Turns the frozen weights of linear layers into few bits, and products with those into ops: parameters, names, and what a file becomes.
//!
//! A weight `q_proj/weight` is kept as `q_proj/weight/codes` and the scales beside it, whose forms are `plimsoll_graph::quant`'s.

use plimsoll_graph::quant::QuantForm;
use plimsoll_graph::{DType, QuantOps};
use plimsoll_nn::{Net, Param};
use plimsoll_run::{Result as RunResult, Tensor};

use crate::error::{Error, Result};
use crate::weights::Weights;

/// The names of a form's parts, in their order.
fn names(form: QuantForm) -> &'static [&'static str] {
    match form {
        QuantForm::Int8 => &["codes", "scales"],
        QuantForm::Nf4 => &["codes", "blocks", "scales", "mean"],
    }
}

/// x Wᵀ, or x W where it is `plain`, with the weight of the scope at hand.
pub(crate) fn product(
    net: &mut Net,
    x: &Tensor,
    form: QuantForm,
    shape: [usize; 2],
    plain: bool,
) -> RunResult<Tensor> {
    let mut parts = Vec::new();
    for (name, ty) in names(form).iter().zip(form.parts(shape[0], shape[1], DType::F32)) {
        parts.push(net.frozen(&format!("weight/{name}"), ty)?);
    }
    x.quant_matmul(form, shape, &parts.iter().collect::<Vec<_>>(), plain)
}

/// The parameter that a part belongs to; none where it is no part of one.
pub(crate) fn whole_of(parameter: &str) -> Option<&str> {
    let (whole, part) = parameter.rsplit_once('/')?;
    (whole.ends_with("/weight") && names(QuantForm::Nf4).contains(&part)).then_some(whole)
}

/// A weight of a file as the bytes of its parts, with their parameters.
///
/// # Errors
/// A part is missing, or the tensor has another shape than the parts say.
pub(crate) fn packed<'a>(
    weights: &mut Weights,
    tensor: &str,
    whole: &str,
    params: &'a [Param],
) -> Result<Vec<(&'a Param, Vec<u8>)>> {
    let part = |name: &str| {
        let own = format!("{whole}/{name}");
        let found = params.iter().find(|param| param.name == own);
        found.ok_or_else(|| Error::Asked(format!("there is no parameter {own}")))
    };
    let codes = part("codes")?;
    let form = if codes.ty.dtype == DType::I8 { QuantForm::Int8 } else { QuantForm::Nf4 };
    let [rows, columns] = match (form, &codes.ty.shape[..]) {
        (QuantForm::Int8, [rows, columns]) => [*rows, *columns],
        (QuantForm::Nf4, [rows, half]) => [*rows, 2 * half],
        _ => match weights.find(tensor).map(|(_, found)| found.shape.clone()).as_deref() {
            Some([rows, columns]) if (rows * columns).div_ceil(2) == codes.ty.elements() => [*rows, *columns],
            _ => return Err(Error::Asked(format!("{tensor} has another shape than the config says"))),
        },
    };
    let numbers = weights.read(tensor, &plimsoll_graph::Type::new(DType::F32, [rows, columns]))?;
    let numbers: Vec<f32> = numbers.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    if let Some(at) = numbers.iter().position(|x| !x.is_finite()) {
        let why = format!("number {at} of {tensor} is {}; it cannot be kept in few bits", numbers[at]);
        return Err(Error::Asked(why));
    }
    let bytes = form.pack(&numbers, columns);
    names(form).iter().zip(bytes).map(|(name, bytes)| Ok((part(name)?, bytes))).collect()
}
