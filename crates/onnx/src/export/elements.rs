//! Ops that go element by element as ONNX's.

use plimsoll_graph::ops::{Binary, Compare, Unary};
use plimsoll_graph::{DType, Node, Op, ValueId};

use super::emit::{Emitter, float, text};
use super::ops::refuse;
use crate::error::Result;

impl Emitter<'_> {
    /// Ops that go element by element, on images as they lie. Whether it was one.
    pub(super) fn by_element(&mut self, node: &Node) -> Result<bool> {
        let is_one =
            matches!(&node.op, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_));
        if !is_one {
            return Ok(false);
        }
        let out = node.outputs[0];
        let rank = |id: ValueId| self.graph.ty(id).shape.rank();
        let in_first = rank(out) == 4
            && node.inputs.iter().any(|&id| self.has_first(id))
            && node.inputs.iter().all(|&id| matches!(rank(id), 0 | 1 | 4));
        let mut names = Vec::new();
        for &id in &node.inputs {
            names.push(match (in_first, self.graph.ty(id).shape.rank()) {
                (true, 4) => self.first(id)?,
                (true, 1) if self.graph.ty(id).elements() > 1 => {
                    // Channels broadcast along the second axis.
                    let (plain, n) = (self.plain(id)?, self.graph.ty(id).elements() as i64);
                    let shape = self.list(&[n, 1, 1]);
                    self.node("Reshape", &[&plain, &shape], vec![])
                }
                _ => self.plain(id)?,
            });
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let dtype = self.graph.ty(node.inputs[0]).dtype;
        let name = match &node.op {
            Op::Unary(f) => self.unary(*f, names[0], dtype)?,
            Op::Binary(f) => {
                let op = match f {
                    Binary::Add => "Add",
                    Binary::Sub => "Sub",
                    Binary::Mul => "Mul",
                    Binary::Div => "Div",
                    Binary::Pow => "Pow",
                    Binary::Max => "Max",
                    Binary::Min => "Min",
                    Binary::And => "And",
                    Binary::Or => "Or",
                };
                self.node(op, &names, vec![])
            }
            Op::Compare(f) => {
                let op = match f {
                    Compare::Eq | Compare::Ne => "Equal",
                    Compare::Lt => "Less",
                    Compare::Le => "LessOrEqual",
                    Compare::Gt => "Greater",
                    Compare::Ge => "GreaterOrEqual",
                };
                let made = self.node(op, &names, vec![]);
                if *f == Compare::Ne { self.node("Not", &[&made], vec![]) } else { made }
            }
            Op::Cast(cast) => self.cast(names[0], cast.0),
            _ => self.node("Where", &names, vec![]),
        };
        if in_first {
            self.set_first(out, name)
        } else {
            self.set(out, name)
        }
        Ok(true)
    }

    fn unary(&mut self, f: Unary, x: &str, dtype: DType) -> Result<String> {
        let plain = match f {
            Unary::Neg => "Neg",
            Unary::Abs => "Abs",
            Unary::Sign => "Sign",
            Unary::Floor => "Floor",
            Unary::Exp => "Exp",
            Unary::Log => "Log",
            Unary::Sqrt => "Sqrt",
            Unary::Reciprocal => "Reciprocal",
            Unary::Sin => "Sin",
            Unary::Cos => "Cos",
            Unary::Tanh => "Tanh",
            Unary::Sigmoid => "Sigmoid",
            Unary::Erf => "Erf",
            Unary::Relu => "Relu",
            Unary::Softplus => "Softplus",
            Unary::Not => "Not",
            _ => "",
        };
        if !plain.is_empty() {
            return Ok(self.node(plain, &[x], vec![]));
        }
        let with = |own: &mut Self, op: &str, s: f64, is_first: bool| -> Result<String> {
            let number = own.scalar(dtype, s)?;
            let inputs = if is_first { [number.as_str(), x] } else { [x, number.as_str()] };
            Ok(own.node(op, &inputs, vec![]))
        };
        Ok(match f {
            Unary::Rsqrt => {
                let root = self.node("Sqrt", &[x], vec![]);
                self.node("Reciprocal", &[&root], vec![])
            }
            Unary::Square => self.node("Mul", &[x, x], vec![]),
            Unary::Gelu => self.node("Gelu", &[x], vec![]),
            Unary::GeluTanh => self.node("Gelu", &[x], vec![text("approximate", "tanh")]),
            Unary::Silu => {
                let gate = self.node("Sigmoid", &[x], vec![]);
                self.node("Mul", &[x, &gate], vec![])
            }
            Unary::LeakyRelu(slope) => self.node("LeakyRelu", &[x], vec![float("alpha", slope.0)]),
            Unary::Clamp(low, high) => {
                let mut bound =
                    |s: f64| if s.is_finite() { self.scalar(dtype, s) } else { Ok(String::new()) };
                let (low, high) = (bound(low.0)?, bound(high.0)?);
                self.node("Clip", &[x, &low, &high], vec![])
            }
            Unary::AddScalar(s) => with(self, "Add", s.0, false)?,
            Unary::MulScalar(s) => with(self, "Mul", s.0, false)?,
            Unary::RsubScalar(s) => with(self, "Sub", s.0, true)?,
            Unary::RdivScalar(s) => with(self, "Div", s.0, true)?,
            Unary::PowScalar(s) => with(self, "Pow", s.0, false)?,
            Unary::IsFinite => {
                let (inf, nan) = (self.node("IsInf", &[x], vec![]), self.node("IsNaN", &[x], vec![]));
                let either = self.node("Or", &[&inf, &nan], vec![]);
                self.node("Not", &[&either], vec![])
            }
            _ => return refuse("there is no such function"),
        })
    }
}
