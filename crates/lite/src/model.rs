//! A loaded model: what goes in and out of it, and running it in an arena.

use alloc::vec::Vec;
use core::ops::Range;

use crate::bytes::{b, chunks, chunks_mut, f, s};
use crate::error::{Error, Result};
use crate::load::{self, Options};
use crate::ops::{Kind, Store};
use crate::schema::{Code, Info, Type};
use crate::tensor::{Place, Tensor};

/// A `.tflite` model that can be run. Its weights stay in the file's bytes.
#[derive(Debug)]
pub struct Model<'a> {
    pub(crate) tensors: Vec<Tensor<'a>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) operands: Vec<i32>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    pub(crate) store: Store,
    pub(crate) arena_bytes: usize,
    pub(crate) live_bytes: usize,
}

/// An operator that is run.
#[derive(Debug)]
pub(crate) struct Node {
    pub info: &'static Info,
    pub index: usize,
    pub inputs: Range<usize>,
    pub outputs: Range<usize>,
    pub kind: Kind,
}

/// An input or output of a model.
#[derive(Clone, Copy, Debug)]
pub struct TensorInfo<'m> {
    /// Its name in the file.
    pub name: &'m str,
    /// The type of its elements.
    pub kind: Type,
    /// The lengths of its dimensions.
    pub shape: &'m [usize],
    /// How many bytes it has.
    pub bytes: usize,
    /// Scale and zero point: a byte means `scale * (byte - zero)`.
    pub quantization: Option<(f32, i32)>,
    /// Whether its bytes are in the file: a weight or another constant.
    pub is_stored: bool,
}

/// An operator that is run.
#[derive(Clone, Copy, Debug)]
pub struct OperatorInfo<'m> {
    /// Its name in the schema.
    pub name: &'static str,
    /// Which of the file's operators it is.
    pub index: usize,
    model: &'m Model<'m>,
    node: &'m Node,
}

impl<'m> OperatorInfo<'m> {
    /// What it reads; operands that are left out are not there.
    pub fn operands(&self) -> impl Iterator<Item = TensorInfo<'m>> + use<'m> {
        self.infos(&self.node.inputs)
    }

    /// What it writes.
    pub fn results(&self) -> impl Iterator<Item = TensorInfo<'m>> + use<'m> {
        self.infos(&self.node.outputs)
    }

    fn infos(&self, range: &Range<usize>) -> impl Iterator<Item = TensorInfo<'m>> + use<'m> {
        let model = self.model;
        let tensors = model.operands.get(range.clone()).unwrap_or_default();
        tensors.iter().filter_map(|at| Some(info(model.tensors.get(usize::try_from(*at).ok()?)?)))
    }
}

/// An operand of an operator, as its kernel finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'r> {
    /// There is none.
    Absent,
    /// It lies where the result will.
    Own,
    /// Its bytes.
    At(&'r [u8]),
}

impl<'r> Operand<'r> {
    /// The bytes of an operand that must be there and elsewhere than the result.
    pub fn bytes(self) -> Result<&'r [u8]> {
        match self {
            Self::At(bytes) => Ok(bytes),
            Self::Own => Err(Error::Bug("an operand lies where the result does")),
            Self::Absent => Err(Error::Bug("an operand is missing")),
        }
    }

    /// The bytes of an operand that need not be there.
    pub fn optional(self) -> Result<Option<&'r [u8]>> {
        match self {
            Self::Absent => Ok(None),
            _ => self.bytes().map(Some),
        }
    }
}

impl<'a> Model<'a> {
    /// Reads a model from the bytes of a `.tflite` file, or of a plan file ([`plan_file`](crate::plan_file())). All memory that the model takes beside the arena is taken here.
    pub fn load(file: &'a [u8]) -> Result<Self> {
        load::load(file, Options::default())
    }

    /// The same with options.
    pub fn load_with(file: &'a [u8], options: Options) -> Result<Self> {
        load::load(file, options)
    }

    /// How many bytes an arena must have at least.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// How many bytes of tensors are live at once: no arena for this order of operators is smaller.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// How many bytes the tables of a loaded model take: tensors, operators and what they compute with.
    pub fn table_bytes(&self) -> usize {
        self.tensors.capacity() * size_of::<Tensor<'a>>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.operands.capacity() * size_of::<i32>()
            + (self.inputs.capacity() + self.outputs.capacity()) * size_of::<usize>()
            + self.store.table_bytes()
    }

    /// How many bytes of weights were copied when the model was loaded ([`Options::pack_weights`]).
    pub fn packed_bytes(&self) -> usize {
        self.store.packed_bytes()
    }

    /// How many operators are run.
    pub fn operators(&self) -> usize {
        self.nodes.len()
    }

    /// The operators that are run, in order. Those that move nothing, as most reshapes, are not among them.
    pub fn operator_infos(&self) -> impl ExactSizeIterator<Item = OperatorInfo<'_>> {
        self.nodes.iter().map(|node| OperatorInfo {
            name: node.info.name,
            index: node.index,
            model: self,
            node,
        })
    }

    /// The name of the operator whose numbers an output holds, in whatever type; none where a reshape or nothing stands before it.
    pub fn output_maker(&self, index: usize) -> Result<Option<&'static str>> {
        let mut tensor = self.end("output", index)?;
        for node in self.nodes.iter().rev() {
            if self.result(node, 0)? != tensor {
                continue;
            }
            match (node.info.code, self.operand(node, 0)) {
                (Code::Quantize | Code::Dequantize, Some(before)) => tensor = before,
                _ => return Ok(Some(node.info.name)),
            }
        }
        Ok(None)
    }

    /// How many bytes of weights and other constants the file holds.
    pub fn stored_bytes(&self) -> usize {
        self.tensors.iter().filter_map(Tensor::constant).map(<[u8]>::len).sum()
    }

    /// How many inputs there are.
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// How many outputs there are.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// What an input is.
    pub fn input_info(&self, index: usize) -> Result<TensorInfo<'_>> {
        Ok(info(&self.tensors[self.end("input", index)?]))
    }

    /// What an output is.
    pub fn output_info(&self, index: usize) -> Result<TensorInfo<'_>> {
        Ok(info(&self.tensors[self.end("output", index)?]))
    }

    /// The bytes of an input, to be written before every run: a run may use them for something else.
    pub fn input<'r>(&self, index: usize, arena: &'r mut [u8]) -> Result<&'r mut [u8]> {
        let range =
            self.range(self.end("input", index)?)?.ok_or(Error::Bug("an input is not in the arena"))?;
        self.check(arena)?;
        arena.get_mut(range).ok_or(Error::Bug("an input lies outside the arena"))
    }

    /// The bytes of an output after a run.
    pub fn output<'r>(&'r self, index: usize, arena: &'r [u8]) -> Result<&'r [u8]> {
        let tensor = self.end("output", index)?;
        self.check(arena)?;
        match self.range(tensor)? {
            Some(range) => arena.get(range).ok_or(Error::Bug("an output lies outside the arena")),
            None => self.tensors[tensor].constant().ok_or(Error::Bug("an output is nowhere")),
        }
    }

    /// Writes an input from floats: as they are, or as the nearest quantized bytes.
    pub fn set_input(&self, index: usize, values: &[f32], arena: &mut [u8]) -> Result<()> {
        let tensor = &self.tensors[self.end("input", index)?];
        same_length("the values of an input", tensor.shape.count(), values.len())?;
        let bytes = self.input(index, arena)?;
        match (tensor.kind, tensor.affine()) {
            (Type::F32, _) => write(bytes, values, f32::to_le_bytes),
            (Type::I8, Some(affine)) => write(bytes, values, |value| [b(affine.quantize(value, -128, 127))]),
            (Type::U8, Some(affine)) => write(bytes, values, |value| [affine.quantize(value, 0, 255) as u8]),
            (Type::I32, _) => write(bytes, values, |value| (value as i32).to_le_bytes()),
            _ => return Err(Error::Type { what: "input", index }),
        }
        Ok(())
    }

    /// Reads an output as floats.
    pub fn get_output(&self, index: usize, arena: &[u8], values: &mut [f32]) -> Result<()> {
        let tensor = &self.tensors[self.end("output", index)?];
        same_length("the values of an output", tensor.shape.count(), values.len())?;
        let bytes = self.output(index, arena)?;
        match (tensor.kind, tensor.affine()) {
            (Type::F32, _) => read(bytes, values, f),
            (Type::I8, Some(affine)) => read(bytes, values, |[byte]| affine.real(s(byte))),
            (Type::U8, Some(affine)) => read(bytes, values, |[byte]| affine.real(i32::from(byte))),
            (Type::I32, _) => read(bytes, values, |bytes| i32::from_le_bytes(bytes) as f32),
            _ => return Err(Error::Type { what: "output", index }),
        }
        Ok(())
    }

    /// Runs the model once. Nothing is allocated.
    pub fn run(&self, arena: &mut [u8]) -> Result<()> {
        self.check(arena)?;
        for node in &self.nodes {
            crate::ops::run(self, node, arena)?;
        }
        Ok(())
    }

    /// The result of an operator to write to, and up to three operands of it, in one arena.
    pub(crate) fn views<'r, const N: usize>(
        &'r self,
        arena: &'r mut [u8],
        output: usize,
        inputs: [Option<usize>; N],
    ) -> Result<(&'r mut [u8], [Operand<'r>; N])> {
        let own = self.range(output)?.ok_or(Error::Bug("a result is not in the arena"))?;
        let (before, rest) =
            arena.split_at_mut_checked(own.start).ok_or(Error::Bug("a result is outside"))?;
        let (result, after) =
            rest.split_at_mut_checked(own.len()).ok_or(Error::Bug("a result is outside"))?;
        let (before, after) = (&*before, &*after);
        let mut operands = [Operand::Absent; N];
        for (operand, input) in operands.iter_mut().zip(inputs) {
            let Some(input) = input else { continue };
            *operand = match self.range(input)? {
                None => {
                    Operand::At(self.tensors[input].constant().ok_or(Error::Bug("an operand is nowhere"))?)
                }
                Some(range) if range == own => Operand::Own,
                Some(range) if range.end <= own.start => Operand::At(&before[range]),
                Some(range) if range.start >= own.end && range.end - own.end <= after.len() => {
                    Operand::At(&after[range.start - own.end..range.end - own.end])
                }
                Some(_) => return Err(Error::Bug("an operand overlaps the result")),
            };
        }
        Ok((result, operands))
    }

    /// The tensor of an operator's input; none if it is left out.
    pub(crate) fn operand(&self, node: &Node, position: usize) -> Option<usize> {
        let operands = self.operands.get(node.inputs.clone())?;
        usize::try_from(*operands.get(position)?).ok()
    }

    /// The tensor of an operator's output.
    pub(crate) fn result(&self, node: &Node, position: usize) -> Result<usize> {
        let operands = self.operands.get(node.outputs.clone());
        operands
            .and_then(|operands| operands.get(position))
            .map(|tensor| *tensor as usize)
            .ok_or(Error::Bug("a result is missing"))
    }

    /// The bytes of a tensor.
    pub(crate) fn bytes<'r>(&'r self, tensor: usize, arena: &'r [u8]) -> Result<&'r [u8]> {
        match self.range(tensor)? {
            Some(range) => arena.get(range).ok_or(Error::Bug("a tensor lies outside the arena")),
            None => self.tensors[tensor].constant().ok_or(Error::Bug("a tensor is nowhere")),
        }
    }

    /// Where in the arena a tensor lies; none if it is in the file.
    fn range(&self, tensor: usize) -> Result<Option<Range<usize>>> {
        let tensor = &self.tensors[tensor];
        match tensor.place {
            Place::Arena(offset) => Ok(Some(offset..offset + tensor.bytes)),
            Place::File(_) => Ok(None),
            Place::Nowhere => Err(Error::Bug("a tensor is nowhere")),
        }
    }

    fn check(&self, arena: &[u8]) -> Result<()> {
        if arena.len() < self.arena_bytes {
            return Err(Error::Arena { need: self.arena_bytes, have: arena.len() });
        }
        Ok(())
    }

    fn end(&self, what: &'static str, index: usize) -> Result<usize> {
        let ends = if what == "input" { &self.inputs } else { &self.outputs };
        ends.get(index).copied().ok_or(Error::Number { what, index, count: ends.len() })
    }
}

fn same_length(what: &'static str, need: usize, have: usize) -> Result<()> {
    if need == have { Ok(()) } else { Err(Error::Length { what, need, have }) }
}

fn info<'m>(tensor: &'m Tensor<'_>) -> TensorInfo<'m> {
    TensorInfo {
        name: tensor.name,
        kind: tensor.kind,
        shape: tensor.shape.dims(),
        bytes: tensor.bytes,
        quantization: tensor.affine().map(|affine| (affine.scale, affine.zero)),
        is_stored: tensor.constant().is_some(),
    }
}

/// Writes floats as numbers of `N` bytes.
fn write<const N: usize>(bytes: &mut [u8], values: &[f32], number: impl Fn(f32) -> [u8; N]) {
    chunks_mut(bytes).iter_mut().zip(values).for_each(|(to, from)| *to = number(*from));
}

/// Reads numbers of `N` bytes as floats.
fn read<const N: usize>(bytes: &[u8], values: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    chunks(bytes).iter().zip(values).for_each(|(from, to)| *to = number(*from));
}
