//! Plan files (`.plim`): a `.tflite` file with the offsets of its tensors in the arena, found once. Loading one searches for nothing, and gives
//! the same arena on every device.
//!
//! ```text
//! "PLIM"  version u32  arena u64  slots u32  zero u32  offset u64 × slots  the .tflite file
//! ```
//!
//! All numbers are little-endian. The offsets are not believed: pieces that live together must lie apart, inside the arena.

use alloc::vec::Vec;

use crate::bytes::chunks;
use crate::error::{Error, Result};
use crate::load::{self, Options};
use crate::plan::{ALIGNMENT, Layout, Piece};

const MAGIC: &[u8; 4] = b"PLIM";
/// In the first version, borders of zeros before convolutions have memory of their own.
const VERSION: u32 = 2;
/// Bytes before the offsets.
const HEADER: usize = 24;

/// Where the pieces of a model lie, as a file has it.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    version: u32,
    arena: u64,
    offsets: &'a [[u8; 8]],
}

/// The plan of a file and the `.tflite` file in it; no plan where it is a `.tflite` file itself.
pub fn split(file: &[u8]) -> Result<(Option<Plan<'_>>, &[u8])> {
    if !file.starts_with(MAGIC) {
        return Ok((None, file));
    }
    let short = Error::Damaged { what: "the plan", at: 0 };
    let Some((header, rest)) = file.split_at_checked(HEADER) else { return Err(short) };
    let [_, version, low, high, slots, zero] = *chunks::<4>(header) else { return Err(short) };
    let version = u32::from_le_bytes(version);
    if !(1..=VERSION).contains(&version) || zero != [0; 4] {
        return Err(Error::Damaged { what: "the plan's version, which must be 1 or 2,", at: 4 });
    }
    let slots = u32::from_le_bytes(slots) as usize;
    let bytes = slots.checked_mul(8).ok_or(short.clone())?;
    let Some((offsets, model)) = rest.split_at_checked(bytes) else { return Err(short) };
    let arena = u64::from(u32::from_le_bytes(low)) | (u64::from(u32::from_le_bytes(high)) << 32);
    Ok((Some(Plan { version, arena, offsets: chunks::<8>(offsets) }), model))
}

impl Plan<'_> {
    /// Whether it has memory for borders of zeros that convolutions can do without.
    pub fn keeps_borders(&self) -> bool {
        self.version == 1
    }

    /// The layout of these pieces, checked.
    pub fn layout(&self, pieces: &[Piece]) -> Result<Layout> {
        let wrong = |what, at| Err(Error::Damaged { what, at });
        let Some(bytes) = usize::try_from(self.arena).ok().filter(|bytes| *bytes < isize::MAX as usize / 2)
        else {
            return wrong("the plan's arena", 8);
        };
        if self.offsets.len() != pieces.len() {
            return wrong("the plan's slots, which are of another model,", 16);
        }
        let mut offsets = Vec::with_capacity(pieces.len());
        for (index, (offset, piece)) in self.offsets.iter().zip(pieces).enumerate() {
            let at = HEADER + 8 * index;
            match usize::try_from(u64::from_le_bytes(*offset)) {
                Ok(offset)
                    if offset.is_multiple_of(ALIGNMENT)
                        && offset.checked_add(piece.bytes).is_some_and(|end| end <= bytes) =>
                {
                    offsets.push(offset);
                }
                _ => return wrong("an offset of the plan", at),
            }
        }
        // Neighbours by offset are enough only where all live at once: every two are compared.
        for (index, piece) in pieces.iter().enumerate() {
            for other in 0..index {
                let (a, b) = (offsets[index], offsets[other]);
                let apart = a + piece.bytes <= b || b + pieces[other].bytes <= a;
                if !apart && piece.meets(&pieces[other]) {
                    return wrong(
                        "an offset of the plan, whose tensor overlaps another,",
                        HEADER + 8 * index,
                    );
                }
            }
        }
        Ok(Layout { offsets, bytes })
    }
}

/// A `.tflite` file as a plan file.
///
/// ```no_run
/// let file = std::fs::read("model.tflite")?;
/// std::fs::write("model.plim", plimsoll_lite::plan_file(&file)?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As of [`Model::load`](crate::Model::load).
pub fn plan_file(file: &[u8]) -> Result<Vec<u8>> {
    let (_, model) = split(file)?;
    let (_, layout) = load::load_planned(model, Options::default())?;
    let mut planned = Vec::with_capacity(HEADER + 8 * layout.offsets.len() + model.len());
    planned.extend(MAGIC);
    planned.extend(VERSION.to_le_bytes());
    planned.extend((layout.bytes as u64).to_le_bytes());
    planned.extend((layout.offsets.len() as u32).to_le_bytes());
    planned.extend([0; 4]);
    layout.offsets.iter().for_each(|offset| planned.extend((*offset as u64).to_le_bytes()));
    planned.extend(model);
    Ok(planned)
}
