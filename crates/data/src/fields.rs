//! Which arrays of a data set a model takes, by name: its inputs, then its labels.
//!
//! An array is named after the input or output it is for, or by its place: `x0`, `x1` are inputs, `y0`, `y1` labels, and a
//! lone one is `x` or `y`. Where a data set has several parts, names end in that part's: `x0_train`, `age_test`. Arrays of
//! other names are taken in their order, if there are exactly as many as are needed.

use plimsoll_formats::{Element, Stored};
use plimsoll_graph::DType;

use crate::open::Split;

/// What is wanted of a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The inputs.
    pub inputs: Vec<Wanted>,
    /// The labels.
    pub labels: Vec<Wanted>,
}

/// An array that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub kind: FieldKind,
}

/// What an array is for, which decides about its element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Numbers to compute with: `f32`, as they are stored unless [`Open::scale`](crate::Open::scale) says otherwise.
    Numbers,
    /// Numbers of rows in a table: whole numbers are `i64`.
    Indices,
    /// What is to be learned: whole numbers are `i64`, others `f32`.
    Label,
}

impl FieldKind {
    /// The type in samples of numbers that are stored so.
    pub fn in_samples(self, element: Element) -> DType {
        self.declared(element.into())
    }

    /// The type in samples.
    pub(crate) fn declared(self, element: Stored) -> DType {
        let kind = element.element;
        match self {
            FieldKind::Numbers if kind.is_integer() || kind == Element::Bool => DType::F32,
            _ if kind.is_integer() => DType::I64,
            _ if kind == Element::F64 => DType::F32,
            _ => kind.widened(),
        }
    }
}

impl Fields {
    /// All that is wanted, inputs first.
    pub fn all(&self) -> impl Iterator<Item = &Wanted> {
        self.inputs.iter().chain(&self.labels)
    }

    /// Which of the arrays that there are is each of those wanted; or what is missing, and what there is.
    pub(crate) fn find(&self, have: &[&str], split: Split) -> Result<Vec<usize>, String> {
        let has = |name: &str| have.iter().position(|own| *own == name);
        // Where any array is of a part, all must be of this one.
        let is_of =
            |split: Split, name: &str| split.names().iter().any(|part| name.ends_with(&format!("_{part}")));
        let parted = have.iter().any(|name| is_of(Split::Train, name) || is_of(Split::Test, name));
        let under = |name: &str| {
            let of_part = split.names().iter().find_map(|part| has(&format!("{name}_{part}")));
            of_part.or_else(|| has(name).filter(|_| !parted))
        };
        let place = |wanted: &Wanted, letter: &str, i: usize, n: usize| {
            let lone = || if n == 1 { under(letter) } else { None };
            under(&wanted.name).or_else(|| under(&format!("{letter}{i}"))).or_else(lone)
        };
        let side = |list: &[Wanted], letter: &str| -> Vec<Option<usize>> {
            list.iter().enumerate().map(|(i, wanted)| place(wanted, letter, i, list.len())).collect()
        };
        let found = [side(&self.inputs, "x"), side(&self.labels, "y")].concat();
        if let Some(all) = found.iter().copied().collect::<Option<Vec<usize>>>() {
            return Ok(all);
        }
        let wanted = found.len();
        let in_order = have.len() == wanted || (self.labels.is_empty() && have.len() > wanted);
        // Names that say what an array is are not to be misread.
        let says = |name: &&str| {
            name.strip_prefix(['x', 'y']).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
        };
        if found.iter().all(Option::is_none) && in_order && !parted && !have.iter().any(says) {
            return Ok((0..wanted).collect());
        }
        let missing = |list: &[Wanted], found: &[Option<usize>], letter: &str| -> Vec<String> {
            let one = |i: usize| match list.len() {
                1 => format!("{} (or {letter})", list[i].name),
                _ => format!("{} (or {letter}{i})", list[i].name),
            };
            (0..list.len()).filter(|&i| found[i].is_none()).map(one).collect()
        };
        let (of_inputs, of_labels) = found.split_at(self.inputs.len());
        let parts = [
            ("input", missing(&self.inputs, of_inputs, "x")),
            ("label", missing(&self.labels, of_labels, "y")),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("no {what} {}", names.join(", ")))
            .collect();
        let of = if parted { format!(" of the {split:?} part") } else { String::new() };
        Err(format!("it has {}{of}; it has {}", parts.join(" and "), have.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(inputs: &[&str], labels: &[&str]) -> Fields {
        let list =
            |names: &[&str], kind| names.iter().map(|name| Wanted { name: name.to_string(), kind }).collect();
        Fields { inputs: list(inputs, FieldKind::Numbers), labels: list(labels, FieldKind::Label) }
    }

    #[test]
    fn arrays_are_found_by_name_by_place_and_in_order() {
        let two = fields(&["image", "meta"], &["age", "class"]);
        let find = |have: &[&str]| two.find(have, Split::Train).unwrap();
        assert_eq!(find(&["class", "image", "other", "age", "meta"]), [1, 4, 3, 0]);
        assert_eq!(find(&["x0", "x1", "y0", "y1"]), [0, 1, 2, 3]);
        assert_eq!(find(&["x1", "image", "y1", "age"]), [1, 0, 3, 2]);
        assert_eq!(find(&["a", "b", "c", "d"]), [0, 1, 2, 3]);
        let one = fields(&["in"], &["out"]);
        assert_eq!(one.find(&["y", "x"], Split::Train), Ok(vec![1, 0]));
        assert_eq!(fields(&["in"], &[]).find(&["x", "y"], Split::Train), Ok(vec![0]));
        assert_eq!(fields(&["in"], &[]).find(&["a", "b"], Split::Train), Ok(vec![0]));
    }

    #[test]
    fn parts_are_kept_apart() {
        let one = fields(&["in"], &["out"]);
        let have = ["x_train", "y_train", "x_test", "y_test"];
        assert_eq!(one.find(&have, Split::Train), Ok(vec![0, 1]));
        assert_eq!(one.find(&have, Split::Test), Ok(vec![2, 3]));
        let error = one.find(&have[..2], Split::Test).unwrap_err();
        assert!(error.contains("Test part") && error.contains("in (or x)"), "{error}");
    }

    #[test]
    fn what_is_missing_and_what_is_there_is_named() {
        let two = fields(&["image", "meta"], &["age", "class"]);
        let error = two.find(&["image", "age", "clas"], Split::Train).unwrap_err();
        for part in ["input meta (or x1)", "label class (or y1)", "it has image, age, clas"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(two.find(&["x0", "x1", "y0"], Split::Train).is_err());
        assert!(two.find(&["a", "b", "c"], Split::Train).is_err());
        assert!(fields(&["a", "b"], &[]).find(&["x", "y"], Split::Train).is_err(), "labels are no inputs");
    }
}
