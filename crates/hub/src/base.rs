//! Turns the frozen weights of linear layers into few bits, and products with those into ops: parameters, names, and what a file becomes.
//!
//! A weight `q_proj/weight` is kept as `q_proj/weight/codes` and the scales beside it, whose forms are `plimsoll_graph::quant`'s.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use half::{bf16, f16};
use plimsoll_graph::quant::{QuantForm, QuantParts};
use plimsoll_graph::{DType, QuantOps, Type};
use plimsoll_nn::{Net, Param};
use plimsoll_run::{Result as RunResult, Tensor};

use crate::error::{Error, Result};
use crate::magnitudes::Squares;
use crate::weights::Weights;

/// Stored floats as f32.
fn widened(from: DType, bytes: &[u8], out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], f: impl Fn([u8; N]) -> f32) {
        out.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(y, x)| *y = f(*x));
    }
    match from {
        DType::BF16 => each(bytes, out, |x| bf16::from_le_bytes(x).to_f32()),
        DType::F16 => each(bytes, out, |x| f16::from_le_bytes(x).to_f32()),
        DType::F64 => each(bytes, out, |x| f64::from_le_bytes(x) as f32),
        _ => each(bytes, out, f32::from_le_bytes),
    }
}

/// The names of a form's parts, in their order.
fn names(form: QuantForm) -> &'static [&'static str] {
    match form {
        QuantForm::Int8 => &["codes", "scales"],
        QuantForm::Nf4 => &["codes", "blocks", "scales", "mean"],
    }
}

/// The part that holds ‖w‖² of each output, for layers with magnitudes: a constant, as the weight is.
const SQUARES: &str = "squares";

/// The weight of the scope at hand, in few bits.
pub(crate) struct Small {
    form: QuantForm,
    shape: [usize; 2],
    parts: Vec<Tensor>,
}

impl Small {
    pub(crate) fn of(net: &mut Net, form: QuantForm, shape: [usize; 2]) -> RunResult<Small> {
        let types = form.parts(shape[0], shape[1], DType::F32);
        let part = |(name, ty): (&&str, Type)| net.frozen(&format!("weight/{name}"), ty);
        let parts = names(form).iter().zip(types).map(part).collect::<RunResult<_>>()?;
        Ok(Small { form, shape, parts })
    }

    /// x Wᵀ, or x W where it is `plain`.
    pub(crate) fn product(&self, x: &Tensor, plain: bool) -> RunResult<Tensor> {
        x.quant_matmul(self.form, self.shape, &self.parts.iter().collect::<Vec<_>>(), plain)
    }
}

/// ‖w‖² of each output of the weight of the scope at hand.
pub(crate) fn squares(net: &mut Net, units: usize) -> RunResult<Tensor> {
    net.frozen(&format!("weight/{SQUARES}"), Type::new(DType::F32, [units]))
}

/// The parameter that a part belongs to; none where it is no part of one.
pub(crate) fn whole_of(parameter: &str) -> Option<&str> {
    let (whole, part) = parameter.rsplit_once('/')?;
    (whole.ends_with("/weight") && (names(QuantForm::Nf4).contains(&part) || part == SQUARES))
        .then_some(whole)
}

/// Whether a parameter is such squares.
pub(crate) fn is_squares(parameter: &str) -> bool {
    parameter.ends_with("/weight/squares")
}

/// Numbers that are made of few bits at a time.
const PIECE: usize = 1 << 16;

/// ‖w‖² of each output of a weight that is kept in these parts, `[out, in]` (turned `[in, out]`).
fn squares_of(form: QuantForm, bytes: &[Vec<u8>], [rows, columns]: [usize; 2], is_turned: bool) -> Vec<f64> {
    let floats =
        |bytes: &[u8]| bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect::<Vec<f32>>();
    let (blocks, scales, mean): (&[u8], _, _) = match form {
        QuantForm::Int8 => (&[], floats(&bytes[1]), 0.0),
        QuantForm::Nf4 => (&bytes[1], floats(&bytes[2]), floats(&bytes[3])[0]),
    };
    let parts = QuantParts { codes: &bytes[0], blocks, scales: &scales, mean };
    let mut squares = Squares::new([rows, columns], is_turned);
    let mut numbers = vec![0.0; PIECE.min(rows * columns)];
    for from in (0..rows * columns).step_by(PIECE) {
        let piece = &mut numbers[..PIECE.min(rows * columns - from)];
        form.unpack(&parts, columns, from, piece);
        squares.add(piece);
    }
    squares.sums
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
    is_turned: bool,
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
    // As they are stored: a thread widens what it packs.
    let stored = weights.find(tensor).and_then(|(_, found)| found.element.dtype());
    let stored = stored.filter(|dtype| dtype.is_float()).unwrap_or(DType::F32);
    let numbers = weights.read(tensor, &Type::new(stored, [rows, columns]))?;
    let first_wrong = AtomicUsize::new(usize::MAX);
    let bytes = form.pack_with(rows * columns, columns, |at, out| {
        widened(stored, &numbers[at * stored.bytes()..], out);
        if let Some(i) = out.iter().position(|x| !x.is_finite()) {
            first_wrong.fetch_min(at + i, Relaxed);
        }
    });
    let at = first_wrong.into_inner();
    if at != usize::MAX {
        let why = format!("number {at} of {tensor} is not finite; it cannot be kept in few bits");
        return Err(Error::Asked(why));
    }
    let squares = part(SQUARES).ok().map(|param| {
        let all = squares_of(form, &bytes, [rows, columns], is_turned);
        (param, all.into_iter().flat_map(|x| (x as f32).to_le_bytes()).collect())
    });
    let parts = names(form).iter().zip(bytes).map(|(name, bytes)| Ok((part(name)?, bytes)));
    parts.chain(squares.map(Ok)).collect()
}
