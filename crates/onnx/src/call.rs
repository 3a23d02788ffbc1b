//! A node as its op sees it: inputs and settings by name, of which none may be left unread.

use std::cell::Cell;

use plimsoll_graph::{DType, Shape};
use plimsoll_nn::Net;
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use crate::constant::Constant;
use crate::error::refuse;
use crate::file::Node;
use crate::messages::AttributeProto;
use crate::value::Value;

/// A call of an op.
pub(crate) struct Call<'a> {
    pub node: &'a Node,
    pub opset: i64,
    pub net: &'a mut Net,
    /// Whether everything is known, so that it is computed at once and not when the model runs.
    pub folds: bool,
    inputs: &'a [Option<Value>],
    read: Vec<Cell<bool>>,
    asked: Vec<Cell<bool>>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        node: &'a Node,
        opset: i64,
        inputs: &'a [Option<Value>],
        net: &'a mut Net,
        folds: bool,
    ) -> Call<'a> {
        let read = vec![Cell::new(false); inputs.len()];
        let asked = vec![Cell::new(false); node.attributes.len()];
        Call { node, opset, net, folds, inputs, read, asked }
    }

    /// Refuses what was given and not read.
    pub(crate) fn finish(&self) -> Result<()> {
        let left = self.node.attributes.iter().zip(&self.asked).find(|(_, asked)| !asked.get());
        if let Some((attribute, _)) = left {
            let name = attribute.name.as_deref().unwrap_or_default();
            return Err(refuse(format!("sets {name}, which is not understood here")));
        }
        let unread = |i: &usize| self.inputs[*i].is_some() && !self.read[*i].get();
        match (0..self.inputs.len()).find(unread) {
            Some(i) => Err(refuse(format!("gives input {i}, which is not understood here"))),
            None => Ok(()),
        }
    }

    pub(crate) fn n_inputs(&self) -> usize {
        self.inputs.len()
    }

    pub(crate) fn n_outputs(&self) -> usize {
        self.node.outputs.len()
    }

    /// Whether an output is wanted by anybody.
    pub(crate) fn wants(&self, output: usize) -> bool {
        self.node.outputs.get(output).is_some_and(|name| !name.is_empty())
    }

    // === Inputs ===

    /// An input that may be left out.
    pub(crate) fn given(&self, i: usize) -> Option<&'a Value> {
        let value = self.inputs.get(i)?.as_ref();
        self.read[i].set(true);
        value
    }

    /// An input that must be there.
    pub(crate) fn value(&self, i: usize) -> Result<&'a Value> {
        self.given(i).ok_or_else(|| refuse(format!("has no input {i}")))
    }

    /// An input to compute with.
    pub(crate) fn x(&self, i: usize) -> Result<Laid> {
        self.laid(self.value(i)?)
    }

    /// An input to compute with, which may be left out.
    pub(crate) fn maybe_x(&self, i: usize) -> Result<Option<Laid>> {
        self.given(i).map(|value| self.laid(value)).transpose()
    }

    /// An input as a tensor whose axes lie as they are read.
    pub(crate) fn plain(&self, i: usize) -> Result<Tensor> {
        self.x(i)?.plain()
    }

    /// As [`Call::plain`], of an input that may be left out.
    pub(crate) fn maybe_plain(&self, i: usize) -> Result<Option<Tensor>> {
        self.maybe_x(i)?.map(|x| x.plain()).transpose()
    }

    /// A weight in the type in which it is kept: norms read theirs so.
    pub(crate) fn master(&self, i: usize) -> Result<Tensor> {
        match self.value(i)? {
            Value::Weight(laid, _) => laid.plain(),
            _ => self.plain(i),
        }
    }

    fn laid(&self, value: &Value) -> Result<Laid> {
        match value {
            Value::Known(constant) => {
                let tensor = constant.tensor()?;
                let dtype = self.compute(constant.ty.dtype);
                Laid::from(tensor).map(|x| plimsoll_graph::TensorOps::cast(x, dtype))
            }
            Value::Weight(laid, dtype) => {
                let dtype = self.compute(*dtype);
                laid.map(|x| plimsoll_graph::TensorOps::cast(x, dtype))
            }
            Value::Run(laid) => Ok(laid.clone()),
        }
    }

    /// The type in which floats of the file are computed with: f32 is what the model computes in.
    pub(crate) fn compute(&self, dtype: DType) -> DType {
        if dtype == DType::F32 && !self.folds { self.net.dtype() } else { dtype }
    }

    /// An input that must be known before the model runs.
    pub(crate) fn known(&self, i: usize) -> Result<&'a Constant> {
        let value = self.value(i)?;
        let name = self.node.inputs.get(i).map_or("", String::as_str);
        value.known().ok_or_else(|| {
            refuse(format!(
                "computes its input {i} ({name}) from data; here it must be known when the model is read"
            ))
        })
    }

    /// Whole numbers that are known.
    pub(crate) fn ints(&self, i: usize) -> Result<Vec<i64>> {
        self.known(i)?
            .to_i64()
            .ok_or_else(|| refuse(format!("has fractions as input {i}, where whole numbers belong")))
    }

    /// As [`Call::ints`], of an input that may be left out.
    pub(crate) fn maybe_ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        if self.given(i).is_some() { self.ints(i).map(Some) } else { Ok(None) }
    }

    /// One number that is known.
    pub(crate) fn number(&self, i: usize) -> Result<f64> {
        let one = self.known(i)?.one();
        one.ok_or_else(|| refuse(format!("has several elements as input {i}, where one belongs")))
    }

    /// As [`Call::number`], of an input that may be left out.
    pub(crate) fn maybe_number(&self, i: usize) -> Result<Option<f64>> {
        if self.given(i).is_some() { self.number(i).map(Some) } else { Ok(None) }
    }

    /// The only element of an input that is known, where broadcasting with `other` keeps that one's shape.
    pub(crate) fn scalar(&self, i: usize, other: &Shape) -> Option<f64> {
        let constant = self.given(i)?.known()?;
        if self.folds || constant.ty.shape.rank() > other.rank() { None } else { constant.one() }
    }

    // === Settings ===

    fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        let found = self.node.attributes.iter().position(|a| a.name.as_deref() == Some(name))?;
        self.asked[found].set(true);
        Some(&self.node.attributes[found])
    }

    fn wrong(&self, name: &str, what: &str) -> plimsoll_run::Error {
        refuse(format!("sets {name} to something that is not {what}"))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64> {
        match self.attribute(name) {
            None => Ok(default),
            Some(a) => a.i.ok_or_else(|| self.wrong(name, "a whole number")),
        }
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(crate) fn float(&self, name: &str, default: f64) -> Result<f64> {
        match self.attribute(name) {
            None => Ok(default),
            Some(a) => a.f.map(f64::from).ok_or_else(|| self.wrong(name, "a number")),
        }
    }

    pub(crate) fn text(&self, name: &str, default: &'static str) -> Result<&'a str> {
        match self.attribute(name) {
            None => Ok(default),
            Some(a) => {
                let text = a.s.as_ref().and_then(|s| std::str::from_utf8(s).ok());
                text.ok_or_else(|| self.wrong(name, "text"))
            }
        }
    }

    /// A text that must be one of some.
    pub(crate) fn one_of(&self, name: &str, known: &[&'static str]) -> Result<&'static str> {
        let text = self.text(name, known[0])?;
        let found = known.iter().find(|known| **known == text);
        found
            .copied()
            .ok_or_else(|| refuse(format!("sets {name} to {text:?}; {} are known here", known.join(", "))))
    }

    pub(crate) fn int_list(&self, name: &str) -> Result<Option<Vec<i64>>> {
        Ok(self.attribute(name).map(|a| a.ints.clone()))
    }

    /// Lengths, which are not negative.
    pub(crate) fn lengths(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let Some(list) = self.int_list(name)? else { return Ok(None) };
        let length = |n: i64| match usize::try_from(n) {
            Ok(n) if n <= 1 << 40 => Ok(n),
            _ => Err(refuse(format!("sets {name} to {list:?}, where lengths belong"))),
        };
        list.iter().map(|&n| length(n)).collect::<Result<Vec<usize>>>().map(Some)
    }

    pub(crate) fn float_list(&self, name: &str) -> Result<Option<Vec<f64>>> {
        Ok(self.attribute(name).map(|a| a.floats.iter().map(|&x| f64::from(x)).collect()))
    }

    pub(crate) fn text_list(&self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(a) = self.attribute(name) else { return Ok(None) };
        let text = |s: &prost::bytes::Bytes| {
            std::str::from_utf8(s).map(String::from).map_err(|_| self.wrong(name, "text"))
        };
        a.strings.iter().map(text).collect::<Result<Vec<String>>>().map(Some)
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<Constant>> {
        let Some(a) = self.attribute(name) else { return Ok(None) };
        let tensor = a.t.as_ref().ok_or_else(|| self.wrong(name, "a tensor"))?;
        Constant::read(tensor).map(Some).map_err(|why| refuse(format!("holds a tensor in {name}: {why}")))
    }

    /// An element type.
    pub(crate) fn dtype(&self, name: &str) -> Result<Option<DType>> {
        let Some(a) = self.attribute(name) else { return Ok(None) };
        let number = a.i.ok_or_else(|| self.wrong(name, "an element type"))?;
        if number == 0 {
            return Ok(None);
        }
        let number = i32::try_from(number).map_err(|_| self.wrong(name, "an element type"))?;
        let known = crate::constant::dtype_of(number);
        known
            .map(Some)
            .map_err(|kind| refuse(format!("makes {kind} elements, which have no counterpart here")))
    }

    /// Axes of so many, which may count from the end.
    pub(crate) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        axes.iter().map(|&axis| axis_of(axis, rank)).collect()
    }
}

/// An axis of so many, which may count from the end.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Result<usize> {
    let whole = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    if (0..rank as i64).contains(&whole) {
        return Ok(whole as usize);
    }
    Err(refuse(format!("names axis {axis} of a tensor of {rank} axes")))
}

/// Lengths from whole numbers, each within what a tensor can have.
pub(crate) fn shape_of(lengths: &[i64]) -> Result<Shape> {
    let mut all = 1u64;
    for &n in lengths {
        let fits = u64::try_from(n).ok().and_then(|n| all.checked_mul(n.max(1)));
        all = match fits {
            Some(all) if all <= 1 << 40 => all,
            _ => return Err(refuse(format!("makes a tensor of shape {lengths:?}"))),
        };
    }
    Ok(lengths.iter().map(|&n| n as usize).collect())
}
