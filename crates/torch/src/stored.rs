//! Where in an archive the elements of kept tensors are, and which of them are one tensor under two names.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use plimsoll_graph::Type;
use rustc_hash::FxHashMap;

use crate::archive::{Archive, Limits};
use crate::error::Result;
use crate::program::{Held, Values, fixed_type, natural};
use crate::schema::{Payload, Payloads, Size};

/// Where in an archive a tensor's elements are.
struct Place {
    member: String,
    ty: Type,
    strides: Vec<usize>,
    offset: usize,
}

/// The tensors of an archive.
pub struct Stored {
    archive: Archive,
    places: FxHashMap<String, Place>,
}

impl Stored {
    /// Reads where tensors are, and which are one under two names.
    pub fn open(archive: Archive, limits: &Limits) -> Result<(Arc<Stored>, BTreeMap<String, String>)> {
        let mut stored = Stored { archive, places: FxHashMap::default() };
        let mut tied = BTreeMap::new();
        for (folder, config) in
            [("data/weights", "model_weights_config.json"), ("data/constants", "model_constants_config.json")]
        {
            let config = format!("{folder}/{config}");
            let Some(payloads) = stored.archive.json::<Payloads>(&config, limits)? else { continue };
            // What is known of each member: a name, and the range of its elements.
            let mut members: FxHashMap<String, Vec<(String, usize, usize)>> = FxHashMap::default();
            for (name, payload) in payloads.config {
                let Some(place) = stored.place(folder, &name, payload, limits)? else { continue };
                let (first, last) = place.range();
                let others = members.entry(place.member.clone()).or_default();
                let same = others
                    .iter()
                    .find(|(other, ..)| stored.places.get(other).is_some_and(|known| known.is_same(&place)));
                if let Some((other, ..)) = same {
                    tied.insert(name.clone(), other.clone());
                } else if let Some((other, ..)) =
                    others.iter().find(|(_, from, to)| first <= *to && *from <= last)
                {
                    let why = format!(
                        "{name} and {other} share some of their elements, which is not taken; clone one of them"
                    );
                    return Err(stored.archive.broken(why));
                }
                others.push((name.clone(), first, last));
                stored.places.insert(name, place);
            }
        }
        Ok((Arc::new(stored), tied))
    }

    fn place(&self, folder: &str, name: &str, payload: Payload, limits: &Limits) -> Result<Option<Place>> {
        let broken = |why: String| self.archive.broken(format!("{name} {why}"));
        // An object in a pickle, which is never read: a tensor that is wanted and not there is refused later.
        let Some(meta) = payload.tensor_meta.filter(|_| !payload.use_pickle) else { return Ok(None) };
        if meta.layout != 7 {
            return Err(broken("is sparse, which is not taken".into()));
        }
        let ty = fixed_type(&meta).map_err(broken)?;
        let whole = |size: &Size| match size {
            Size::AsInt(n) => natural(*n).map_err(broken),
            Size::AsExpr(_) => Err(broken("has a stride that is no number".into())),
        };
        let strides = meta.strides.iter().map(whole).collect::<Result<Vec<usize>>>()?;
        let offset = whole(&meta.storage_offset)?;
        let member = format!("{folder}/{}", payload.path_name);
        if strides.len() != ty.shape.rank() {
            return Err(broken(format!("has {} strides for {} axes", strides.len(), ty.shape.rank())));
        }
        let place = Place { member, ty, strides, offset };
        let Some(last) = place.last() else {
            return Err(broken("has strides that no machine can hold".into()));
        };
        let size = self.archive.size(&place.member)?;
        let size = size.ok_or_else(|| broken(format!("should be in {}, which is missing", place.member)))?;
        let unit = place.ty.dtype.bytes() as u64;
        if place.ty.elements() > 0 && (last as u64 + 1).saturating_mul(unit) > size {
            return Err(broken(format!("reaches beyond the {size} bytes of {}", place.member)));
        }
        let bytes = place.ty.bytes() as u64;
        if bytes > size && bytes > limits.repeated {
            let most = limits.repeated;
            return Err(broken(format!(
                "repeats its elements to {bytes} bytes, and at most {most} are taken"
            )));
        }
        Ok(Some(place))
    }

    /// A tensor of the program is stored with the type that the program says.
    pub fn check(&self, held: &Held) -> Result<()> {
        let broken = |why: String| self.archive.broken(format!("{} {why}", held.name));
        match self.places.get(&held.name) {
            None => Err(broken("is not stored as plain bytes; pickles are not read".into())),
            Some(place) if place.ty != held.ty => {
                Err(broken(format!("is stored as {}, and the program takes {}", place.ty, held.ty)))
            }
            Some(_) => Ok(()),
        }
    }
}

impl Place {
    /// The last element that is read, counted from the member's beginning.
    fn last(&self) -> Option<usize> {
        let axes = self.ty.shape.iter().zip(&self.strides);
        axes.filter(|(n, _)| **n > 1)
            .try_fold(self.offset, |at, (n, stride)| at.checked_add((n - 1).checked_mul(*stride)?))
    }

    fn range(&self) -> (usize, usize) {
        (self.offset, self.last().unwrap_or(usize::MAX))
    }

    fn is_same(&self, other: &Place) -> bool {
        (self.offset, &self.ty, &self.strides) == (other.offset, &other.ty, &other.strides)
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.ty.shape.iter().zip(&self.strides).rev().all(|(&n, &stride)| {
            let fits = n == 1 || stride == expected;
            expected *= n;
            fits
        })
    }
}

impl Values for Stored {
    fn read_into(&self, name: &str, buffer: &mut [u8]) -> io::Result<()> {
        let place = self.places.get(name).ok_or_else(|| io::Error::other("it is not in the archive"))?;
        if buffer.len() != place.ty.bytes() {
            return Err(io::Error::other("it has another size"));
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let unit = place.ty.dtype.bytes();
        let (first, last) = place.range();
        let size = self.archive.size(&place.member).map_err(io::Error::other)?.unwrap_or(0) as usize;
        if first == 0 && buffer.len() == size && place.is_contiguous() {
            return self.archive.read_into(&place.member, buffer).map_err(io::Error::other);
        }
        // The elements from the first to the last, of which the strides pick.
        let end = (last + 1) * unit;
        if end > size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; end];
        self.archive.read_into(&place.member, &mut bytes).map_err(io::Error::other)?;
        let mut index = vec![0; place.ty.shape.rank()];
        for out in buffer.chunks_exact_mut(unit) {
            let at = index.iter().zip(&place.strides).map(|(i, stride)| i * stride).sum::<usize>() + first;
            out.copy_from_slice(&bytes[at * unit..(at + 1) * unit]);
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                if index[axis] < place.ty.shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Ok(())
    }
}
