//! Binds parameters by name to variables of a file by path, in Keras's order.

use std::collections::HashSet;

use plimsoll_formats::Element;
use plimsoll_formats::keras::{KerasFile, Kind, Layer, Variable};
use plimsoll_graph::DType;

use crate::block::{Block, Body};
use crate::error::{Error, Result};
use crate::layer::{Weight, WeightKind};

/// A weight of a model: its name here, and its place in the file.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    /// The parameter's name: models, layer, weight.
    pub name: String,
    /// The layer's place alone.
    pub layer: String,
    /// The weight of that layer.
    pub weight: Weight,
    /// Where it is in the file.
    pub path: String,
    /// Whether the optimizer moves it.
    pub trained: bool,
}

/// All weights in Keras's order. Every variable of the file is one of them, but for the optimizer's and random states.
/// `trains` says whether anything is trained.
pub(crate) fn bind(file: &KerasFile, root: &Layer, block: &Block, trains: bool) -> Result<Vec<Binding>> {
    let layers = root.all();
    let mut bindings: Vec<Binding> = Vec::new();
    for (node, layer) in block.all().into_iter().zip(layers.into_iter().skip(1)) {
        let Body::Layer(made) = &node.body else { continue };
        let moves = |weight: &Weight| {
            matches!(weight.kind, WeightKind::Trained | WeightKind::Optional)
                && weight.trainable.unwrap_or(node.trainable)
        };
        let paths: Vec<String> = match file.kind() {
            Kind::Legacy => {
                let first: Vec<bool> = made.weights.iter().map(|w| node.trainable && moves(w)).collect();
                legacy_paths(file, layer, &first, &node.place)?
            }
            _ => {
                archive_paths(&stored_path(file, &node.path), made.weights.iter().map(|w| w.holder.as_str()))
            }
        };
        for (weight, path) in made.weights.iter().zip(paths) {
            if weight.kind == WeightKind::Optional && file.variable(&path).is_err() {
                continue;
            }
            file.variable(&path).map_err(|_| {
                let why =
                    format!("its {} should be at {path:?} in the weights, but there is none", weight.name);
                Error::variables(&node.place, why)
            })?;
            bindings.push(Binding {
                name: format!("{}/{}", node.place, weight.name),
                layer: node.place.clone(),
                path,
                weight: weight.clone(),
                trained: trains && moves(weight),
            });
        }
    }
    check_leftovers(file, &bindings)?;
    Ok(bindings)
}

/// Classes whose own name is not the one that Keras stores: weights are filed under the class's own.
const OTHER_NAMES: [(&str, &str); 1] = [("group_query_attention", "grouped_query_attention")];

/// Where a layer's variables really are.
fn stored_path(file: &KerasFile, path: &str) -> String {
    let (list, name) = path.rsplit_once('/').unwrap_or(("", path));
    for (class, own) in OTHER_NAMES {
        if let Some(number) = name.strip_prefix(class) {
            let other = format!("{list}/{own}{number}");
            if file.variables().iter().any(|v| v.path.starts_with(&format!("{other}/"))) {
                return other;
            }
        }
    }
    path.to_string()
}

/// Keras 3 numbers the variables of each object.
fn archive_paths<'a>(layer: &str, holders: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    let mut paths = Vec::new();
    for holder in holders {
        let number = match counts.iter_mut().find(|(known, _)| *known == holder) {
            Some((_, n)) => {
                *n += 1;
                *n
            }
            None => {
                counts.push((holder, 0));
                0
            }
        };
        let below = if holder.is_empty() { String::new() } else { format!("{holder}/") };
        paths.push(format!("{layer}/{below}vars/{number}"));
    }
    paths
}

/// A legacy file has a layer's weights in their order, under names of its own: those that are trained `first`.
fn legacy_paths(file: &KerasFile, layer: &Layer, first: &[bool], place: &str) -> Result<Vec<String>> {
    let n = first.len();
    if n == 0 {
        return Ok(Vec::new());
    }
    let variables = file.variables_of(layer);
    if variables.len() != n {
        let why = format!("it has {n} weights, but the file holds {} for it", variables.len());
        return Err(Error::variables(place, why));
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|&i| !first[i]);
    let mut paths = vec![String::new(); n];
    order.into_iter().zip(variables).for_each(|(i, variable)| paths[i] = variable.path.clone());
    Ok(paths)
}

fn check_leftovers(file: &KerasFile, bindings: &[Binding]) -> Result<()> {
    let bound: HashSet<&str> = bindings.iter().map(|b| b.path.as_str()).collect();
    let mut once = HashSet::new();
    if let Some(twice) = bindings.iter().find(|b| !once.insert(b.path.as_str())) {
        return Err(Error::variables(&twice.path, "two weights of the model are stored here"));
    }
    match file.variables().iter().find(|v| !bound.contains(v.path.as_str()) && !is_aside(&v.path)) {
        Some(extra) => {
            Err(Error::variables(&extra.path, "the file holds this variable, but no layer has it"))
        }
        None => Ok(()),
    }
}

/// Variables that are no weights: the optimizer's, and the seeds of random layers.
pub(crate) fn is_aside(path: &str) -> bool {
    path.starts_with("optimizer/")
        || path.starts_with("optimizer_weights/")
        || path.split('/').any(|piece| piece.starts_with("seed_generator"))
}

/// A variable's elements as the bytes of f32 or f64 numbers here. A type that is already right is not copied again.
pub(crate) fn read_as(file: &KerasFile, variable: &Variable, dtype: DType) -> Result<Vec<u8>> {
    let mut bytes = vec![0; variable.bytes];
    file.read_into(&variable.path, &mut bytes)?;
    if variable.element.dtype() == Some(dtype) && cfg!(target_endian = "little") {
        return Ok(bytes);
    }
    let numbers = numbers(variable.element, &bytes).ok_or_else(|| not_float(variable))?;
    Ok(match dtype {
        DType::F64 => numbers.flat_map(f64::to_ne_bytes).collect(),
        _ => numbers.flat_map(|x| (x as f32).to_ne_bytes()).collect(),
    })
}

/// A variable's first element.
pub(crate) fn read_number(file: &KerasFile, variable: &Variable) -> Result<f64> {
    let mut bytes = vec![0; variable.bytes];
    file.read_into(&variable.path, &mut bytes)?;
    let mut numbers = numbers(variable.element, &bytes).ok_or_else(|| not_float(variable))?;
    Ok(numbers.next().unwrap_or(0.0))
}

fn not_float(variable: &Variable) -> Error {
    let why = format!("its elements are {}, where floating-point numbers belong", variable.element.name());
    Error::variables(&variable.path, why)
}

/// Numbers from the bytes that a tensor here has of them; none where they are not floating point.
pub(crate) fn own_numbers(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    if cfg!(target_endian = "little") {
        return numbers(Element::from(dtype), bytes).map(Iterator::collect);
    }
    let width = dtype.bytes().max(1);
    let turned: Vec<u8> = bytes.chunks(width).flat_map(|one| one.iter().rev().copied()).collect();
    numbers(Element::from(dtype), &turned).map(Iterator::collect)
}

/// The elements behind stored bytes; none where they are not floating point.
fn numbers(element: Element, bytes: &[u8]) -> Option<Box<dyn Iterator<Item = f64> + '_>> {
    let halves = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match element {
        Element::F64 => {
            let eight = |b: &[u8]| [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]];
            Some(Box::new(bytes.chunks_exact(8).map(move |b| f64::from_le_bytes(eight(b)))))
        }
        Element::F32 => {
            let four = |b: &[u8]| [b[0], b[1], b[2], b[3]];
            Some(Box::new(bytes.chunks_exact(4).map(move |b| f64::from(f32::from_le_bytes(four(b))))))
        }
        Element::F16 => Some(Box::new(halves().map(|b| half::f16::from_le_bytes(b).to_f64()))),
        Element::BF16 => Some(Box::new(halves().map(|b| half::bf16::from_le_bytes(b).to_f64()))),
        _ => None,
    }
}

/// Elements as the bytes of a variable's type.
pub(crate) fn to_bytes(element: Element, values: &[f64]) -> Option<Vec<u8>> {
    match element {
        Element::F64 => Some(values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Element::F32 => Some(values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect()),
        Element::F16 => Some(values.iter().flat_map(|x| half::f16::from_f64(*x).to_le_bytes()).collect()),
        Element::BF16 => Some(values.iter().flat_map(|x| half::bf16::from_f64(*x).to_le_bytes()).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_numbered_by_their_holder() {
        let paths = archive_paths("layers/bi", ["f/cell", "f/cell", "b/cell", ""].into_iter());
        let expected = [
            "layers/bi/f/cell/vars/0",
            "layers/bi/f/cell/vars/1",
            "layers/bi/b/cell/vars/0",
            "layers/bi/vars/0",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn seeds_and_the_optimizer_are_no_weights() {
        assert!(is_aside("optimizer/vars/0") && is_aside("layers/dropout/seed_generator/vars/0"));
        assert!(!is_aside("layers/dense/vars/0"));
    }

    #[test]
    fn halves_go_both_ways_and_integers_are_refused() {
        let bytes = to_bytes(Element::BF16, &[1.5, -2.0]).unwrap();
        assert_eq!(numbers(Element::BF16, &bytes).unwrap().collect::<Vec<f64>>(), [1.5, -2.0]);
        assert!(numbers(Element::I32, &[0; 4]).is_none());
    }
}
