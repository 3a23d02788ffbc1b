//! Turns the bytes of a `.tflite` file into a [`LiteModel`].

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lite_model::{ElementType, LiteModel, LiteOp, LiteTensor, Quantization};
use crate::ops::OpCode;
use crate::options::Options;
use crate::table::Table;
use crate::write::{IDENTIFIER, SCHEMA};

/// The most elements that one tensor may claim to have: shapes alone cost a file nothing.
const MOST_ELEMENTS: usize = 1 << 40;

/// Reads a model: one graph, of ops that are known here.
///
/// # Errors
/// The bytes are not what the schema says, or an op is not known; said which.
pub fn read(bytes: &[u8]) -> Result<LiteModel> {
    let model = Table::root(bytes, IDENTIFIER, "the file")?;
    let version = model.u32(0)?;
    if version != SCHEMA {
        return Err(model.wrong(format!("it is of version {version} of the format, and {SCHEMA} is read")));
    }
    let graphs = model.tables(2, "the graph")?;
    let [graph] = graphs[..] else {
        return Err(model.wrong(format!("it has {} graphs, and one is read", graphs.len())));
    };
    let buffers = model.tables(4, "a buffer")?;
    let codes =
        model.tables(1, "an op's code")?.iter().map(code).collect::<Result<Vec<Result<OpCode, String>>>>()?;
    let tensors = graph
        .tables(0, "a tensor")?
        .iter()
        .map(|table| tensor(table, &buffers))
        .collect::<Result<Vec<LiteTensor>>>()?;
    let place = |id: i32| match usize::try_from(id) {
        Ok(id) if id < tensors.len() => Ok(id),
        _ => Err(Error::damaged("the graph", format!("it names tensor {id} of {}", tensors.len()))),
    };
    let mut ops = Vec::new();
    for (index, table) in graph.tables(3, "an op")?.iter().enumerate() {
        let code = codes.get(table.u32(0)? as usize);
        let code = match code.ok_or_else(|| table.wrong("its code is not listed"))? {
            Ok(code) => *code,
            Err(op) => {
                let why = "which is not known here".to_string();
                return Err(Error::Unsupported { index, op: op.clone(), why });
            }
        };
        let given = |id: &i32| if *id == -1 { Ok(None) } else { place(*id).map(Some) };
        let inputs = table.ints(1)?.iter().map(given).collect::<Result<Vec<Option<usize>>>>()?;
        let outputs = table.ints(2)?.iter().map(|&id| place(id)).collect::<Result<Vec<usize>>>()?;
        let of = table.u8(3)?;
        let told = if of == 0 { None } else { table.table(4, "an op's options")? };
        if told.is_some() && of != code.options() {
            return Err(table.wrong(format!("a {code} has options of another op")));
        }
        let options = Options::read(code, told)?;
        ops.push(LiteOp { code, inputs, outputs, options, keeps_float: false });
    }
    check_order(&graph, &tensors, &ops)?;
    let names = signature(&model)?;
    let ports = |slot: u16, which: usize, word: &str| -> Result<Vec<(String, usize)>> {
        let named = |(i, id): (usize, &i32)| {
            let id = place(*id)?;
            let own = names[which].iter().find(|(_, at)| *at == id).map(|(name, _)| name.clone());
            Ok((own.unwrap_or_else(|| format!("{word}_{i}")), id))
        };
        graph.ints(slot)?.iter().enumerate().map(named).collect()
    };
    let (inputs, outputs) = (ports(1, 0, "input")?, ports(2, 1, "output")?);
    Ok(LiteModel { description: model.text(3)?, inputs, outputs, ops, tensors })
}

/// Every tensor is written once, and before it is read.
fn check_order(graph: &Table<'_>, tensors: &[LiteTensor], ops: &[LiteOp]) -> Result<()> {
    let mut known: Vec<bool> = tensors.iter().map(|tensor| tensor.data.is_some()).collect();
    for id in graph.ints(1)? {
        match usize::try_from(id).ok().and_then(|id| known.get_mut(id)) {
            Some(known) => *known = true,
            None => return Err(graph.wrong(format!("its input is tensor {id} of {}", tensors.len()))),
        }
    }
    for (index, op) in ops.iter().enumerate() {
        let wrong = |why: &str| Error::Unsupported { index, op: op.code.name().into(), why: why.into() };
        if op.inputs.iter().flatten().any(|&id| !known[id]) {
            return Err(wrong("which reads a tensor before it is written"));
        }
        for &id in &op.outputs {
            if std::mem::replace(&mut known[id], true) {
                return Err(wrong("which writes a tensor that is there already"));
            }
        }
    }
    match graph.ints(2)?.iter().all(|&id| usize::try_from(id).is_ok_and(|id| known.get(id) == Some(&true))) {
        true => Ok(()),
        false => Err(graph.wrong("an output of it is written by no op")),
    }
}

/// The op of a code, or the number or name of one that is not known.
fn code(table: &Table<'_>) -> Result<Result<OpCode, String>> {
    // Files of before the numbers outgrew a byte have the number in that byte alone.
    let number = i32::from(table.i8(0, 0)?).max(table.i32(3, 0)?);
    let own = table.text(1)?;
    if !own.is_empty() {
        return Ok(Err(own));
    }
    Ok(OpCode::of(number).ok_or_else(|| format!("built-in op {number}")))
}

/// Names of inputs and outputs.
fn signature(model: &Table<'_>) -> Result<[Vec<(String, usize)>; 2]> {
    let mut names = [Vec::new(), Vec::new()];
    for signature in model.tables(7, "a signature")? {
        for (slot, names) in names.iter_mut().enumerate() {
            for port in signature.tables(slot as u16, "a signature")? {
                names.push((port.text(0)?, port.u32(1)? as usize));
            }
        }
    }
    Ok(names)
}

fn tensor(table: &Table<'_>, buffers: &[Table<'_>]) -> Result<LiteTensor> {
    let name = table.text(3)?;
    let wrong = |why: String| Error::damaged(format!("tensor {name}"), why);
    let length = |&n: &i32| usize::try_from(n).map_err(|_| wrong(format!("a length of it is {n}")));
    let shape = table.ints(0)?.iter().map(length).collect::<Result<Vec<usize>>>()?;
    let elements =
        shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).filter(|&n| n <= MOST_ELEMENTS);
    let elements = elements.ok_or_else(|| wrong("its shape is larger than any memory".into()))?;
    let number = table.i8(1, 0)?;
    let ty = ElementType::of(number).ok_or_else(|| wrong(format!("its type has the number {number}")))?;
    let buffer = table.u32(2)? as usize;
    let data = match buffers.get(buffer) {
        None if buffer == 0 => None,
        None => return Err(wrong(format!("its bytes are buffer {buffer} of {}", buffers.len()))),
        Some(buffer) => buffer.bytes(0)?.filter(|bytes| !bytes.is_empty()),
    };
    if let Some(data) = data
        && data.len() != elements * ty.bytes()
    {
        return Err(wrong(format!("it has {} bytes for {elements} elements of {}", data.len(), ty.bytes())));
    }
    if table.flag(5)? || table.table(6, "a sparse tensor")?.is_some() {
        return Err(wrong("variables and sparse tensors are not known here".into()));
    }
    let quantization = match table.table(4, "a quantization")? {
        None => None,
        Some(found) => quantization(&found, &shape).map_err(wrong)?,
    };
    Ok(LiteTensor { name, shape, ty, data: data.map(Arc::from), quantization })
}

fn quantization(table: &Table<'_>, shape: &[usize]) -> Result<Option<Quantization>, String> {
    let text = |error: Error| error.to_string();
    let scales = table.floats(2).map_err(text)?;
    let mut zero_points = table.longs(3).map_err(text)?;
    if scales.is_empty() {
        return Ok(None);
    }
    if zero_points.is_empty() {
        zero_points = vec![0; scales.len()];
    }
    let axis = usize::try_from(table.i32(6, 0).map_err(text)?).map_err(|_| "its axis is negative")?;
    let fits = scales.len() == 1 || shape.get(axis) == Some(&scales.len());
    if !fits || zero_points.len() != scales.len() {
        return Err(format!("it has {} scales and {} zero points", scales.len(), zero_points.len()));
    }
    if scales.iter().any(|scale| !scale.is_finite() || *scale <= 0.0) {
        return Err("a scale of it is no positive number".into());
    }
    Ok(Some(Quantization { scales, zero_points, axis }))
}
