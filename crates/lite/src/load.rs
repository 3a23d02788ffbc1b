//! Turns the bytes of a `.tflite` file into a [`Model`]: everything that the file says is checked here, and nothing is looked at again.

use alloc::vec::Vec;

use crate::error::{Error, Result};
use crate::flat::{Table, Tables};
use crate::model::{Model, Node};
use crate::ops::{self, Call, Kind, Store};
use crate::plan::{self, Layout, Piece};
use crate::plan_file::{self, Plan};
use crate::schema::{Code, Info, OPS, OTHERS, Type};
use crate::tensor::{Border, Place, Tensor};

/// The most tensors, operators and operands that a file may have: planning takes time with the square of the first.
const MOST_TENSORS: usize = 16_384;
const MOST_OPERATORS: usize = 16_384;
const MOST_OPERANDS: usize = 131_072;

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Weights of convolutions and fully connected layers are copied to memory of their own, in the order in which vector instructions read
    /// them: faster, for about the file's size of memory ([`Model::packed_bytes`]). Without, they are read where they lie in the file.
    pub pack_weights: bool,
}

fn limit(what: &'static str, found: usize, most: usize) -> Result<()> {
    if found > most { Err(Error::Limit { what, found, most }) } else { Ok(()) }
}

/// Reads, checks and plans.
pub fn load(file: &[u8], options: Options) -> Result<Model<'_>> {
    load_planned(file, options).map(|(model, _)| model)
}

/// The same, and where all that shares the arena lies.
pub fn load_planned(file: &[u8], options: Options) -> Result<(Model<'_>, Layout)> {
    let (plan, file) = plan_file::split(file)?;
    let root = Table::root(file, b"TFL3")?;
    if root.u32(0, "the schema's version")? != 3 {
        return Err(Error::Damaged { what: "the schema's version, which must be 3,", at: 0 });
    }
    let codes = root.tables(1, "the operator codes")?;
    let graphs = root.tables(2, "the subgraphs")?;
    let buffers = root.tables(4, "the buffers")?;
    limit("subgraphs", graphs.len(), 1)?;
    let graph = graphs.get(0)?;

    let tables = graph.tables(0, "the tensors")?;
    limit("tensors", tables.len(), MOST_TENSORS)?;
    let mut tensors = Vec::with_capacity(tables.len());
    for index in 0..tables.len() {
        tensors.push(Tensor::read(index, tables.get(index)?, &buffers, file)?);
    }
    let ends = |field, what| -> Result<Vec<usize>> {
        let numbers = graph.vector::<4>(field, what)?;
        limit("inputs or outputs", numbers.len(), MOST_TENSORS)?;
        numbers
            .iter()
            .map(|number| match u32::from_le_bytes(*number) as usize {
                tensor if tensor < tables.len() => Ok(tensor),
                _ => Err(Error::Damaged { what, at: 0 }),
            })
            .collect()
    };
    let inputs = ends(1, "the inputs")?;
    let outputs = ends(2, "the outputs")?;
    let operators = graph.tables(3, "the operators")?;
    limit("operators", operators.len(), MOST_OPERATORS)?;

    let mut loader = Loader {
        model: Model {
            tensors,
            nodes: Vec::with_capacity(operators.len()),
            operands: Vec::new(),
            inputs,
            outputs,
            store: Store::new(file.len(), options),
            arena_bytes: 0,
            live_bytes: 0,
        },
        slots: Vec::new(),
        weights_only: Vec::new(),
        pictures_only: Vec::new(),
        borders: Vec::new(),
        keeps_borders: plan.is_some_and(|plan| plan.keeps_borders()),
        last_read: Vec::new(),
    };
    let operators = loader.operators(operators, codes)?;
    loader.find_readers(&operators);
    loader.take_inputs()?;
    for (index, operator) in operators.iter().enumerate() {
        loader.prepare(index, operator)?;
    }
    loader.finish(plan)
}

/// An operator as the file has it.
struct Operator<'a> {
    info: &'static Info,
    inputs: core::ops::Range<usize>,
    outputs: core::ops::Range<usize>,
    options: Option<Table<'a>>,
}

struct Loader<'a> {
    model: Model<'a>,
    /// Memory of the arena, one piece a slot; several tensors may share one.
    slots: Vec<Piece>,
    /// Of every tensor, whether all who read it read it as weights or bias.
    weights_only: Vec<bool>,
    /// Of every tensor, whether all who read it slide windows over it, which can stand for a border of zeros.
    pictures_only: Vec<bool>,
    /// Tensors around which there is a border of zeros that is in no memory.
    borders: Vec<(usize, Border)>,
    /// Whether borders are written to the arena all the same, as in plans from before they were not.
    keeps_borders: bool,
    /// Of every tensor, the last operator that reads it; behind the last one for the model's results.
    last_read: Vec<usize>,
}

impl<'a> Loader<'a> {
    fn operators(&mut self, tables: Tables<'a>, codes: Tables<'a>) -> Result<Vec<Operator<'a>>> {
        let mut operators = Vec::with_capacity(tables.len());
        for index in 0..tables.len() {
            let table = tables.get(index)?;
            let code = codes.get(table.u32(0, "an operator's code")?)?;
            let info = info(code, index)?;
            let refused = |why| Err(Error::Refused { op: info.name, index, why });
            let options = match table.u8(3, 0, "an operator's kind of options")? {
                0 => None,
                kind if kind == info.options => table.table(4, "an operator's options")?,
                _ if info.options == 0 => None,
                _ => return refused("its options are those of another operator"),
            };
            if table.vector::<1>(7, "an operator's mutable inputs")?.iter().any(|mutable| mutable[0] != 0) {
                return refused("it changes one of its inputs");
            }
            let inputs = self.operands(table, 1, "an operator's inputs", -1)?;
            let outputs = self.operands(table, 2, "an operator's outputs", 0)?;
            operators.push(Operator { info, inputs, outputs, options });
        }
        Ok(operators)
    }

    fn operands(
        &mut self,
        table: Table<'a>,
        field: usize,
        what: &'static str,
        least: i32,
    ) -> Result<core::ops::Range<usize>> {
        let start = self.model.operands.len();
        let numbers = table.vector::<4>(field, what)?;
        limit("operands", start + numbers.len(), MOST_OPERANDS)?;
        for number in numbers {
            let number = i32::from_le_bytes(*number);
            if number < least || number >= self.model.tensors.len() as i32 {
                return Err(Error::Damaged { what, at: 0 });
            }
            self.model.operands.push(number);
        }
        Ok(start..self.model.operands.len())
    }

    fn find_readers(&mut self, operators: &[Operator<'a>]) {
        let mut only = alloc::vec![true; self.model.tensors.len()];
        let mut pictures = only.clone();
        self.last_read = alloc::vec![0; self.model.tensors.len()];
        for (index, operator) in operators.iter().enumerate() {
            for (position, tensor) in self.model.operands[operator.inputs.clone()].iter().enumerate() {
                let as_weights = match operator.info.code {
                    Code::Conv | Code::Depthwise | Code::FullyConnected => position == 1 || position == 2,
                    Code::TransposeConv => position == 1 || position == 3,
                    _ => false,
                };
                if let Ok(tensor) = usize::try_from(*tensor) {
                    only[tensor] &= as_weights;
                    pictures[tensor] &=
                        matches!(operator.info.code, Code::Conv | Code::Depthwise) && position == 0;
                    self.last_read[tensor] = index;
                }
            }
        }
        for tensor in &self.model.outputs {
            (only[*tensor], pictures[*tensor]) = (false, false);
            self.last_read[*tensor] = operators.len();
        }
        (self.weights_only, self.pictures_only) = (only, pictures);
    }

    fn take_inputs(&mut self) -> Result<()> {
        for index in self.model.inputs.clone() {
            if self.model.tensors[index].place != Place::Nowhere {
                return Err(Error::Tensor {
                    index,
                    why: "it is an input and has bytes in the file, or is one twice",
                });
            }
            self.new_slot(index, 0);
        }
        Ok(())
    }

    fn new_slot(&mut self, tensor: usize, step: usize) {
        self.model.tensors[tensor].place = Place::Arena(self.slots.len());
        let last = self.last_read[tensor].max(step);
        self.slots.push(Piece { bytes: self.model.tensors[tensor].bytes, first: step, last });
    }

    /// Lets a tensor lie where another does.
    fn share(&mut self, tensor: usize, place: Place<'a>) {
        self.model.tensors[tensor].place = place;
        if let Place::Arena(slot) = place {
            self.slots[slot].last = self.slots[slot].last.max(self.last_read[tensor]);
        }
    }

    fn prepare(&mut self, index: usize, operator: &Operator<'a>) -> Result<()> {
        let model = &mut self.model;
        let refused = |why| Err(Error::Refused { op: operator.info.name, index, why });
        let inputs = &model.operands[operator.inputs.clone()];
        let outputs = &model.operands[operator.outputs.clone()];
        for input in inputs.iter().filter_map(|input| usize::try_from(*input).ok()) {
            if model.tensors[input].place == Place::Nowhere {
                return refused("it reads a tensor that nothing before it makes");
            }
        }
        for (position, output) in outputs.iter().enumerate() {
            if model.tensors[*output as usize].place != Place::Nowhere || outputs[..position].contains(output)
            {
                return refused("it writes a tensor that is an input, in the file or already made");
            }
        }
        let call = Call {
            info: operator.info,
            index,
            tensors: &model.tensors,
            inputs,
            outputs,
            options: operator.options,
            borders: &self.borders,
        };
        let kind = ops::prepare(&call, &mut model.store)?;
        let node = Node {
            info: operator.info,
            index,
            inputs: operator.inputs.clone(),
            outputs: operator.outputs.clone(),
            kind,
        };
        if self.is_alias(&node) {
            return Ok(());
        }
        if matches!(node.kind, Kind::Dequantize(None))
            && self.model.tensors[self.model.operands[node.inputs.start] as usize].kind == Type::I8
        {
            let why =
                "scales a channel are supported for weights of convolutions and fully connected layers only";
            return Err(Error::Refused { op: operator.info.name, index, why });
        }
        self.place_outputs(&node);
        self.model.nodes.push(node);
        Ok(())
    }

    /// Whether the operator's result is the very bytes of its input, so that there is nothing to run.
    fn is_alias(&mut self, node: &Node) -> bool {
        let [first, ..] = self.model.operands[node.inputs.clone()] else { return false };
        let [output] = self.model.operands[node.outputs.clone()] else { return false };
        let (input, output) = (first as usize, output as usize);
        match node.kind {
            Kind::Same | Kind::SameIfShapeIs => {
                self.share(output, self.model.tensors[input].place);
                matches!(node.kind, Kind::Same)
            }
            // Convolutions read zeros where there is nothing: a border is not written.
            Kind::Move(ref pad) if self.pictures_only[output] && !self.keeps_borders => {
                let [x, out] = [input, output].map(|tensor| &self.model.tensors[tensor]);
                let is_pad = matches!(node.info.code, Code::Pad | Code::PadV2);
                let Some(border) = is_pad.then(|| ops::border(pad, x, out)).flatten() else { return false };
                let (shape, bytes, place) = (x.shape, x.bytes, x.place);
                self.model.tensors[output] = Tensor { shape, bytes, ..out.clone() };
                self.borders.push((output, border));
                self.share(output, place);
                true
            }
            // Weights that are stored in fewer bits are read as they are stored.
            Kind::Dequantize(_) if self.weights_only[output] => {
                let stored = self.model.tensors[input].clone();
                if stored.constant().is_none() || !matches!(stored.kind, Type::F16 | Type::I8) {
                    return false;
                }
                if stored.kind == Type::I8 && !stored.zeros.iter().all(|zero| *zero == [0; 8]) {
                    return false;
                }
                let (name, shape) = (self.model.tensors[output].name, self.model.tensors[output].shape);
                self.model.tensors[output] = Tensor { name, shape, ..stored };
                true
            }
            _ => false,
        }
    }

    fn place_outputs(&mut self, node: &Node) {
        for position in node.outputs.clone() {
            let output = self.model.operands[position] as usize;
            if self.model.tensors[output].place != Place::Nowhere {
                continue;
            }
            match self.overwritten(node, output) {
                Some(place) => self.share(output, place),
                None => self.new_slot(output, node.index),
            }
        }
    }

    /// The place of an input that the operator may write its result over: one that nobody reads later, as large as the result.
    fn overwritten(&self, node: &Node, output: usize) -> Option<Place<'a>> {
        let shape = self.model.tensors[output].shape;
        let bytes = self.model.tensors[output].bytes;
        let candidates =
            &self.model.operands[node.inputs.clone()][..node.kind.may_overwrite().min(node.inputs.len())];
        candidates.iter().filter_map(|input| usize::try_from(*input).ok()).find_map(|input| {
            let tensor = &self.model.tensors[input];
            let Place::Arena(slot) = tensor.place else { return None };
            let free = self.slots[slot].last == node.index && self.slots[slot].bytes == bytes;
            (free && tensor.shape == shape && tensor.bytes == bytes).then_some(tensor.place)
        })
    }

    fn finish(mut self, plan: Option<Plan<'a>>) -> Result<(Model<'a>, Layout)> {
        for index in &self.model.outputs {
            if self.model.tensors[*index].place == Place::Nowhere {
                return Err(Error::Tensor { index: *index, why: "it is an output and nothing makes it" });
            }
        }
        let mut total = 0usize;
        for slot in &self.slots {
            total = total.checked_add(slot.bytes).filter(|total| *total < isize::MAX as usize / 2).ok_or(
                Error::Limit { what: "bytes of tensors", found: usize::MAX, most: isize::MAX as usize / 2 },
            )?;
        }
        let layout = match plan {
            Some(plan) => plan.layout(&self.slots)?,
            None => plan::place(&self.slots),
        };
        for tensor in &mut self.model.tensors {
            if let Place::Arena(slot) = tensor.place {
                tensor.place = Place::Arena(layout.offsets[slot]);
            }
        }
        self.model.arena_bytes = layout.bytes;
        self.model.live_bytes = plan::live_at_once(&self.slots);
        Ok((self.model, layout))
    }
}

/// The row of an operator's code, or a refusal with its name.
fn info(code: Table<'_>, index: usize) -> Result<&'static Info> {
    // Codes up to 127 stood in a byte before there were more.
    let old = code.u8(0, 0, "an operator's old code")? as i8;
    let number = code.i32(3, 0, "an operator's code")?.max(i32::from(old));
    if number == 32 {
        let name = code.string(1, "a custom operator's name")?;
        return Err(Error::Custom { name: name.chars().take(80).collect(), index });
    }
    let Some(info) = OPS.iter().find(|info| info.number == number) else {
        let op = OTHERS
            .iter()
            .find(|other| other.0 == number)
            .map_or("an operator without a name here", |other| other.1);
        return Err(Error::Refused { op, index, why: "this operator is not supported" });
    };
    let version = code.i32(2, 1, "an operator's version")?;
    if !(1..=info.version).contains(&version) {
        return Err(Error::Refused {
            op: info.name,
            index,
            why: "its version is newer than those known here",
        });
    }
    Ok(info)
}
