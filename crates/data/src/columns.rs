//! Turns names of columns into those of a table that are inputs and the one that is the label.

use std::str::FromStr;

use crate::error::{Error, Result};

/// The columns of a table that are read, by name; all others are passed over, whatever they hold.
///
/// ```
/// use plimsoll_data::Columns;
///
/// let columns: Columns = "x=age,height,y=price".parse()?;
/// assert_eq!((columns.inputs.len(), columns.label.as_deref()), (2, Some("price")));
/// # Ok::<(), plimsoll_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// What `x` is made of, in this order.
    pub inputs: Vec<String>,
    /// What `y` is; without it there are no labels.
    pub label: Option<String>,
}

/// What is asked for of a table's columns.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asked<'a> {
    /// The label's column, by its name or number.
    pub label: Option<&'a str>,
    /// Whether there is to be a label, where somebody said so.
    pub labelled: Option<bool>,
    /// All columns that are read.
    pub named: Option<&'a Columns>,
}

impl Asked<'_> {
    /// The columns that are named, without the label where none is wanted.
    pub fn columns(&self) -> Option<Columns> {
        let named = self.named?;
        let label = named.label.clone().filter(|_| self.labelled != Some(false));
        Some(Columns { label, ..named.clone() })
    }
}

impl FromStr for Columns {
    type Err = Error;

    /// Reads `x=NAME,NAME,…` and, where there are labels, `,y=NAME`. Columns of a table without a heading are named by their
    /// numbers, from 0.
    fn from_str(text: &str) -> Result<Columns> {
        let wrong = |what: &str| {
            Error::Stage(format!(
                "'{text}' names no columns: {what}; write x=NAME,NAME,y=NAME, as x=age,height,y=price"
            ))
        };
        let (mut inputs, mut labels, mut is_label) = (Vec::new(), Vec::new(), None);
        for part in text.split(',') {
            let (field, name) = match part.trim_start().split_once('=') {
                Some(("x", name)) => (Some(false), name),
                Some(("y", name)) => (Some(true), name),
                _ => (is_label, part),
            };
            is_label = Some(field.ok_or_else(|| wrong("it begins with neither x= nor y="))?);
            let name = name.trim();
            if name.is_empty() {
                return Err(wrong("a name is empty"));
            }
            let names = if is_label == Some(true) { &mut labels } else { &mut inputs };
            names.push(name.to_owned());
        }
        if inputs.is_empty() {
            return Err(wrong("there is no input"));
        }
        if labels.len() > 1 {
            return Err(wrong("there is one label at most"));
        }
        let all: Vec<&String> = inputs.iter().chain(&labels).collect();
        if let Some(twice) = all.iter().enumerate().find(|(at, name)| all[..*at].contains(name)) {
            return Err(wrong(&format!("'{}' is there twice", twice.1)));
        }
        Ok(Columns { inputs, label: labels.pop() })
    }
}

/// Where the inputs and the label of a table are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// For each column of the table its place in `x`; none where it is not of it.
    pub slots: Vec<Option<usize>>,
    pub label: Option<usize>,
}

impl Chosen {
    /// All columns of a table but the label, in their order.
    pub fn all(count: usize, label: Option<usize>) -> Chosen {
        let mut next = 0;
        let slot = |at: usize| {
            (Some(at) != label).then(|| {
                next += 1;
                next - 1
            })
        };
        Chosen { slots: (0..count).map(slot).collect(), label }
    }

    /// Those of a table of `count` columns that are named; `find` says where a column of a name is. `Err` is the name that is not
    /// there.
    pub fn named(
        columns: &Columns,
        count: usize,
        find: impl Fn(&str) -> Option<usize>,
    ) -> std::result::Result<Chosen, String> {
        let place = |name: &String| find(name).filter(|&at| at < count).ok_or_else(|| name.clone());
        let mut slots = vec![None; count];
        for (slot, name) in columns.inputs.iter().enumerate() {
            slots[place(name)?] = Some(slot);
        }
        Ok(Chosen { slots, label: columns.label.as_ref().map(place).transpose()? })
    }

    /// Numbers of `x`.
    pub fn inputs(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_order_and_nonsense_is_refused() {
        let columns: Columns = "y=c,x=b, a".parse().unwrap();
        assert_eq!((columns.inputs.join(" "), columns.label.as_deref()), ("b a".into(), Some("c")));
        let chosen = Chosen::named(&columns, 3, |name| "abc".find(name)).unwrap();
        assert_eq!((chosen.slots, chosen.label), (vec![Some(1), Some(0), None], Some(2)));
        assert_eq!(Chosen::named(&columns, 2, |name| "abc".find(name)).unwrap_err(), "c");
        crate::refused::<Columns>(&[
            ("", "neither x= nor y="),
            ("age", "neither x= nor y="),
            ("y=a", "there is no input"),
            ("x=a,y=b,c", "one label"),
            ("x=a,,b", "a name is empty"),
            ("x=a,b,y=a", "'a' is there twice"),
        ]);
    }
}
