//! Turns what a file says of its inputs, and what a user says of lengths that it leaves open, into types.

use std::collections::BTreeMap;

use plimsoll_graph::{DType, Shape, Type};

use crate::error::{Error, Result};
use crate::file::{Axis, Port};

/// Lengths of axes that a file leaves open: by the name that the file gives an axis, or by input and number, `input_ids.1`.
///
/// ```
/// let lengths = plimsoll_onnx::Lengths::parse(&["sequence=128".into(), "image.2=96".into()])?;
/// assert_eq!(lengths.get("sequence"), Some(128));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lengths(BTreeMap<String, usize>);

impl Lengths {
    /// Reads `name=length` for each.
    ///
    /// # Errors
    /// What is not of that form, or a length of 0.
    pub fn parse(texts: &[String]) -> Result<Lengths, String> {
        let mut lengths = BTreeMap::new();
        for text in texts {
            let wrong = || format!("{text:?} is not of the form NAME=LENGTH, as in sequence=128");
            let (name, length) = text.rsplit_once('=').ok_or_else(wrong)?;
            let length =
                length.trim().parse().ok().filter(|&n: &usize| n > 0 && n <= 1 << 32).ok_or_else(wrong)?;
            let name = name.trim();
            if name.is_empty() {
                return Err(wrong());
            }
            if lengths.insert(name.to_string(), length).is_some_and(|old| old != length) {
                return Err(format!("{name} is given two lengths"));
            }
        }
        Ok(Lengths(lengths))
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, name: &str, length: usize) -> Lengths {
        self.0.insert(name.into(), length);
        self
    }

    /// The length of a name.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }

    /// Whether any is given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses a name that is no axis of these inputs.
    pub(crate) fn check(&self, inputs: &[Port]) -> Result<()> {
        let known = |name: &str| {
            inputs.iter().any(|port| {
                let axes = port.axes.as_deref().unwrap_or_default();
                axes.iter().enumerate().any(|(i, axis)| {
                    matches!(axis, Axis::Named(own) if own == name)
                        || (!matches!(axis, Axis::Fixed(_)) && format!("{}.{i}", port.name) == name)
                })
            })
        };
        match self.0.keys().find(|name| !known(name)) {
            None => Ok(()),
            Some(name) => {
                let why =
                    format!("no axis that the file leaves open has this name; there are {}", open(inputs));
                Err(Error::Input { name: name.clone(), why })
            }
        }
    }
}

/// The axes that a file leaves open, besides the batch, for people.
fn open(inputs: &[Port]) -> String {
    let mut names: Vec<String> = Vec::new();
    for port in inputs {
        for (i, axis) in port.axes.as_deref().unwrap_or_default().iter().enumerate() {
            let name = match axis {
                Axis::Fixed(_) => continue,
                Axis::Named(name) => name.clone(),
                Axis::Open => format!("{}.{i}", port.name),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// The types of a batch of inputs. The batch is the first axis of every input; where the file fixes it, only that size is taken.
pub(crate) fn types(inputs: &[Port], lengths: &Lengths, batch: Option<usize>) -> Result<Vec<Type>> {
    // The name that the file has for the batch stands for it on other axes too.
    let first = inputs.first().and_then(|port| port.axes.as_deref()).and_then(|axes| axes.first());
    let batch_name = match first {
        Some(Axis::Named(name)) => Some(name.as_str()),
        _ => None,
    };
    let one = |port: &Port| {
        let wrong = |why: String| Error::Input { name: port.name.clone(), why };
        let dtype = port.dtype.ok_or_else(|| wrong("the file does not say its element type".into()))?;
        let axes =
            port.axes.as_ref().ok_or_else(|| wrong("the file does not say how many axes it has".into()))?;
        let mut shape = Shape::default();
        for (i, axis) in axes.iter().enumerate() {
            let own = format!("{}.{i}", port.name);
            let said = match axis {
                Axis::Named(name) => lengths.get(name).or(lengths.get(&own)),
                Axis::Open => lengths.get(&own),
                Axis::Fixed(_) => None,
            };
            let is_batch = i == 0 || matches!(axis, Axis::Named(name) if Some(name.as_str()) == batch_name);
            let length = match (axis, said, batch) {
                (Axis::Fixed(n), _, Some(batch)) if i == 0 && *n != batch => {
                    return Err(wrong(format!(
                        "the file fixes its first axis at {n}, so that batches of {batch} do not fit; export it with a \
                         batch axis that is open (dynamic_axes), or use --batch {n}"
                    )));
                }
                (Axis::Fixed(n), ..) => *n,
                (_, Some(n), _) => n,
                (_, None, Some(batch)) if is_batch => batch,
                (_, None, None) if is_batch => 1,
                (Axis::Named(name), ..) => {
                    return Err(wrong(format!(
                        "its axis {i} has no length in the file; give one, as in --bind {name}=128"
                    )));
                }
                (Axis::Open, ..) => {
                    return Err(wrong(format!(
                        "its axis {i} has no length in the file; give one, as in --bind {own}=128"
                    )));
                }
            };
            shape.push(length);
        }
        let ty = Type::new(dtype, shape);
        if ty.is_too_large() {
            return Err(wrong(format!("{ty} is more than any machine can hold")));
        }
        Ok(ty)
    };
    inputs.iter().map(one).collect()
}

/// A port for people: `image f32[batch, 3, 224, 224]`.
pub(crate) fn shown(port: &Port) -> String {
    let dtype = port.dtype.map_or("?", DType::name);
    let axes = match &port.axes {
        None => "[..]".to_string(),
        Some(axes) => {
            let one = |axis: &Axis| match axis {
                Axis::Fixed(n) => n.to_string(),
                Axis::Named(name) => name.clone(),
                Axis::Open => "?".into(),
            };
            format!("[{}]", axes.iter().map(one).collect::<Vec<_>>().join(", "))
        }
    };
    format!("{} {dtype}{axes}", port.name)
}
