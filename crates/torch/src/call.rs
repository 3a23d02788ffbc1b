//! One call of an op: its arguments by name, with PyTorch's defaults for those that were left out, and none that is not looked at.

use std::cell::Cell;
use std::collections::BTreeMap;

use plimsoll_graph::{DType, Shape, TensorOps, Type};
use plimsoll_nn::Net;
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use crate::defaults;
use crate::error::refuse;
use crate::program::part_dtype;
use crate::schema::{Argument, Node, TensorMeta};
use crate::value::Value;

/// Arguments that say nothing of what is computed.
const ASIDE: &[&str] = &[
    "device",
    "layout",
    "pin_memory",
    "memory_format",
    "non_blocking",
    "copy",
    "generator",
    "cudnn_enable",
    "implicit",
];

/// An op's name, arguments and surroundings.
pub struct Call<'a, 'n> {
    /// `aten.add.Tensor`.
    pub op: &'a str,
    node: &'a Node,
    given: Vec<(&'a str, Value, Cell<bool>)>,
    types: &'a BTreeMap<String, TensorMeta>,
    anchor: &'a Tensor,
    pub net: &'n mut Net,
    /// Of a loss that is a mean over labels that count: what one counts for, sample by sample.
    pub share: Option<Tensor>,
}

/// A number, and whether it was written as one with a fraction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    pub value: f64,
    pub is_float: bool,
    pub is_bool: bool,
}

impl<'a, 'n> Call<'a, 'n> {
    pub fn new(
        op: &'a str,
        node: &'a Node,
        given: Vec<(&'a str, Value)>,
        types: &'a BTreeMap<String, TensorMeta>,
        anchor: &'a Tensor,
        net: &'n mut Net,
    ) -> Call<'a, 'n> {
        let given = given.into_iter().map(|(name, value)| (name, value, Cell::new(false))).collect();
        Call { op, node, given, types, anchor, net, share: None }
    }

    /// That every argument was looked at: one that was given and means nothing here would be obeyed silently.
    pub fn finish(&self) -> Result<()> {
        let is_left = |(name, value, read): &&(&str, Value, Cell<bool>)| {
            !read.get() && !ASIDE.contains(name) && !matches!(value, Value::None | Value::Aside)
        };
        match self.given.iter().find(is_left) {
            Some((name, ..)) => Err(refuse(format!("gives it the argument {name}, which is not known here"))),
            None => Ok(()),
        }
    }

    /// Whether the program reads so many results and one more; PyTorch's serializer names the others as unused.
    pub fn wants(&self, place: usize) -> bool {
        let Some(Argument::AsTensor(named)) = self.node.outputs.get(place) else { return false };
        !named.name.ends_with(&format!("_unused_{place}"))
    }

    /// An argument, as given or by default.
    pub fn value(&self, name: &str) -> Result<Value> {
        if let Some((_, value, read)) = self.given.iter().find(|(own, ..)| *own == name) {
            read.set(true);
            return Ok(value.clone());
        }
        defaults::default(self.op, name).ok_or_else(|| refuse(format!("leaves out its argument {name}")))
    }

    /// Marks every argument as looked at.
    pub fn look_at_all(&self) {
        self.given.iter().for_each(|(.., read)| read.set(true));
    }

    /// An argument at a place, where names are not given.
    pub fn at(&self, place: usize) -> Result<Value> {
        let Some((_, value, read)) = self.given.get(place) else {
            return Err(refuse(format!("has no argument number {place}")));
        };
        read.set(true);
        Ok(value.clone())
    }

    fn wrong<T>(&self, name: &str, wanted: &str, value: &Value) -> Result<T> {
        Err(refuse(format!("gives it {} for {name}, which is {wanted}", value.kind())))
    }

    pub fn opt_laid(&self, name: &str) -> Result<Option<Laid>> {
        match self.value(name)? {
            Value::Tensor(laid, _) => Ok(Some(laid)),
            Value::None => Ok(None),
            other => self.wrong(name, "a tensor", &other),
        }
    }

    pub fn laid(&self, name: &str) -> Result<Laid> {
        self.opt_laid(name)?.ok_or_else(|| refuse(format!("gives it no {name}")))
    }

    /// A tensor as it is read.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.laid(name)?.plain()
    }

    pub fn opt_tensor(&self, name: &str) -> Result<Option<Tensor>> {
        self.opt_laid(name)?.map(|laid| laid.plain()).transpose()
    }

    /// Whether a gradient flows through an argument.
    pub fn is_learned(&self, name: &str) -> bool {
        self.given.iter().any(|(own, value, _)| *own == name && value.is_learned())
    }

    pub fn laids(&self, name: &str) -> Result<Vec<Laid>> {
        let all = self.opt_laids(name)?;
        all.into_iter()
            .map(|laid| laid.ok_or_else(|| refuse(format!("has nothing in its list {name}"))))
            .collect()
    }

    pub fn opt_laids(&self, name: &str) -> Result<Vec<Option<Laid>>> {
        let Value::List(values) = self.value(name)? else {
            return Err(refuse(format!("gives it no list {name}")));
        };
        let laid = |value: Value| match value {
            Value::Tensor(laid, _) => Ok(Some(laid)),
            Value::None => Ok(None),
            other => self.wrong(name, "a list of tensors", &other),
        };
        values.into_iter().map(laid).collect()
    }

    pub fn opt_int(&self, name: &str) -> Result<Option<i64>> {
        match self.value(name)? {
            Value::Int(n) => Ok(Some(n)),
            Value::Bool(flag) => Ok(Some(flag.into())),
            Value::None => Ok(None),
            other => self.wrong(name, "a whole number", &other),
        }
    }

    pub fn int(&self, name: &str) -> Result<i64> {
        self.opt_int(name)?.ok_or_else(|| refuse(format!("gives it no {name}")))
    }

    pub fn size(&self, name: &str) -> Result<usize> {
        let n = self.int(name)?;
        usize::try_from(n).map_err(|_| refuse(format!("gives it {n} for {name}")))
    }

    pub fn opt_ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        match self.value(name)? {
            Value::List(values) => {
                let whole = |value: &Value| match value {
                    Value::Int(n) => Ok(*n),
                    other => self.wrong(name, "a list of whole numbers", other),
                };
                values.iter().map(whole).collect::<Result<_>>().map(Some)
            }
            Value::Int(n) => Ok(Some(vec![n])),
            Value::None => Ok(None),
            other => self.wrong(name, "a list of whole numbers", &other),
        }
    }

    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        self.opt_ints(name)?.ok_or_else(|| refuse(format!("gives it no {name}")))
    }

    /// Lengths, none of them below 0.
    pub fn sizes(&self, name: &str) -> Result<Vec<usize>> {
        let all = self.ints(name)?;
        all.iter()
            .map(|&n| usize::try_from(n).map_err(|_| refuse(format!("gives it {n} in {name}"))))
            .collect()
    }

    /// As many lengths as there are axes: one stands for all.
    pub fn sizes_of(&self, name: &str, axes: usize) -> Result<Vec<usize>> {
        let all = self.sizes(name)?;
        match all.len() {
            1 => Ok(vec![all[0]; axes]),
            n if n == axes => Ok(all),
            n => Err(refuse(format!("gives it {n} numbers for {name} over {axes} axes"))),
        }
    }

    pub fn opt_number(&self, name: &str) -> Result<Option<Number>> {
        Ok(Some(match self.value(name)? {
            Value::Int(n) => Number { value: n as f64, is_float: false, is_bool: false },
            Value::Float(value) => Number { value, is_float: true, is_bool: false },
            Value::Bool(flag) => Number { value: f64::from(u8::from(flag)), is_float: false, is_bool: true },
            Value::None => return Ok(None),
            other => return self.wrong(name, "a number", &other),
        }))
    }

    pub fn number(&self, name: &str) -> Result<Number> {
        self.opt_number(name)?.ok_or_else(|| refuse(format!("gives it no {name}")))
    }

    pub fn float(&self, name: &str) -> Result<f64> {
        Ok(self.number(name)?.value)
    }

    pub fn opt_floats(&self, name: &str) -> Result<Option<Vec<f64>>> {
        match self.value(name)? {
            Value::List(values) => {
                let number = |value: &Value| match value {
                    Value::Int(n) => Ok(*n as f64),
                    Value::Float(x) => Ok(*x),
                    other => self.wrong(name, "a list of numbers", other),
                };
                values.iter().map(number).collect::<Result<_>>().map(Some)
            }
            Value::None => Ok(None),
            other => self.wrong(name, "a list of numbers", &other),
        }
    }

    pub fn flag(&self, name: &str) -> Result<bool> {
        match self.value(name)? {
            Value::Bool(flag) => Ok(flag),
            Value::Int(n) => Ok(n != 0),
            other => self.wrong(name, "a truth value", &other),
        }
    }

    pub fn text(&self, name: &str) -> Result<String> {
        match self.value(name)? {
            Value::Text(text) => Ok(text),
            other => self.wrong(name, "a word", &other),
        }
    }

    pub fn opt_text(&self, name: &str) -> Result<Option<String>> {
        match self.value(name)? {
            Value::None => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            other => self.wrong(name, "a word", &other),
        }
    }

    /// An axis of a tensor, counted from the last where negative.
    pub fn axis(&self, name: &str, rank: usize) -> Result<usize> {
        axis(self.int(name)?, rank)
    }

    /// Axes of a tensor; none stands for all.
    pub fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let given = self.opt_ints(name)?.unwrap_or_default();
        if given.is_empty() {
            return Ok((0..rank).collect());
        }
        given.iter().map(|&n| axis(n, rank)).collect()
    }

    /// The element type of an output, as the program says.
    pub fn out_dtype(&self, output: usize) -> Result<DType> {
        let name = match self.node.outputs.get(output) {
            Some(Argument::AsTensor(named)) => Some(&named.name),
            Some(Argument::AsTensors(all)) => all.first().map(|named| &named.name),
            _ => None,
        };
        let meta = name.and_then(|name| self.types.get(name));
        let meta = meta.ok_or_else(|| refuse("does not say what comes out of it"))?;
        part_dtype(meta.dtype).map_err(|why| refuse(format!("gives what {why}")))
    }

    /// A key and a stream for what it draws.
    pub fn draw(&mut self) -> Result<(Tensor, u32)> {
        let name = self.node.outputs.first().and_then(|output| match output {
            Argument::AsTensor(named) => Some(named.name.clone()),
            _ => None,
        });
        self.net.draw(&name.unwrap_or_else(|| self.op.into()))
    }

    /// A tensor beside which constants are made: in the same trace, on the same device.
    pub fn beside(&self) -> &Tensor {
        self.anchor
    }

    /// A constant.
    pub fn full(&self, dtype: DType, shape: impl Into<Shape>, value: f64) -> Result<Tensor> {
        self.anchor.full_like(Type::new(dtype, shape), value)
    }
}

/// An axis counted from the last where negative. A scalar has one, as PyTorch takes it.
pub fn axis(given: i64, rank: usize) -> Result<usize> {
    let whole = rank.max(1) as i64;
    let index = if given < 0 { given + whole } else { given };
    match (0..whole).contains(&index) {
        true => Ok(index as usize),
        false => Err(refuse(format!("names axis {given} of {rank}"))),
    }
}
