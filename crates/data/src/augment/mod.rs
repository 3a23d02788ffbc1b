//! Turns pictures into other pictures of the same thing: what training sees anew in every epoch, and evaluation never.
//!
//! A picture depends on seed, epoch and sample alone, whatever thread makes it. Flips, shifts and turns are one resampling
//! (`geometry`), done to masks as well; then come colors and holes (`levels`). `mixup` mixes finished batches.

mod geometry;
mod levels;
mod mixup;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use plimsoll_graph::DType;

use crate::batch_map::BatchStep;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::recipe::Stage;
use crate::sample::{FieldSpec, Sample, SampleMut};
use crate::step::{At, Step};
use geometry::Place;

/// One way in which pictures are changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Mirrored left to right, every other time.
    Flip,
    /// Moved by up to so many pixels each way; beyond the edge its pixels are repeated.
    Crop(usize),
    /// Turned by up to so many degrees each way around the middle; beyond the edge its pixels are repeated.
    Rotate(f32),
    /// Brightness, contrast and saturation multiplied by a number between 1 less and 1 more this.
    Color(f32),
    /// A black square of so many pixels a side, somewhere.
    Cutout(usize),
    /// Mixed with another picture of the batch, and so are the labels: each pair by a share drawn from a beta distribution
    /// with both parameters this number.
    Mixup(f32),
}

/// How pictures are changed for training.
///
/// ```
/// use plimsoll_data::{Augment, Change};
///
/// let augment: Augment = "flip,crop:4,rotate:15,color:0.2,cutout:8".parse()?;
/// assert_eq!(augment.changes()[1], Change::Crop(4));
/// assert!("flip:3".parse::<Augment>().is_err());
/// # Ok::<(), plimsoll_data::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Augment {
    changes: Vec<Change>,
}

const KNOWN: &str = "flip, crop:PIXELS, rotate:DEGREES, color:SHARE, cutout:PIXELS and mixup:ALPHA";

impl Change {
    fn name(self) -> &'static str {
        match self {
            Change::Flip => "flip",
            Change::Crop(_) => "crop",
            Change::Rotate(_) => "rotate",
            Change::Color(_) => "color",
            Change::Cutout(_) => "cutout",
            Change::Mixup(_) => "mixup",
        }
    }

    /// Refuses what changes nothing or means nothing.
    fn check(self) -> Result<()> {
        let lies = |value: f32, least: f32, most: f32| value >= least && value <= most;
        let wrong = match self {
            Change::Flip => None,
            Change::Crop(n) | Change::Cutout(n) => (n == 0).then_some("give 1 pixel or more".to_owned()),
            Change::Rotate(degrees) => (!lies(degrees, f32::MIN_POSITIVE, 180.0))
                .then_some("give degrees above 0, at most 180".into()),
            Change::Color(share) => {
                (!lies(share, f32::MIN_POSITIVE, 1.0)).then_some("give a share above 0, at most 1".into())
            }
            Change::Mixup(alpha) => {
                (!lies(alpha, 0.01, 2.0)).then_some("give a number from 0.01 to 2, as 0.2 is".into())
            }
        };
        match wrong {
            Some(what) => Err(Error::Stage(format!("augment: {self} means nothing; {what}"))),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Change::Flip => f.write_str(name),
            Change::Crop(n) | Change::Cutout(n) => write!(f, "{name}:{n}"),
            Change::Rotate(x) | Change::Color(x) | Change::Mixup(x) => write!(f, "{name}:{x}"),
        }
    }
}

impl Augment {
    /// Changes in this order.
    ///
    /// # Errors
    /// One of them means nothing, or is there twice.
    pub fn new(changes: impl Into<Vec<Change>>) -> Result<Augment> {
        let changes = changes.into();
        for (at, change) in changes.iter().enumerate() {
            change.check()?;
            if changes[..at].iter().any(|other| other.name() == change.name()) {
                return Err(Error::Stage(format!("augment: {} is there twice", change.name())));
            }
        }
        Ok(Augment { changes })
    }

    /// What is done, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Whether labels are mixed, so that classes must be one-hot ([`Dataset::one_hot`]).
    pub fn mixes_labels(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, Change::Mixup(_)))
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes: Vec<String> = self.changes.iter().map(Change::to_string).collect();
        f.write_str(&changes.join(","))
    }
}

impl FromStr for Augment {
    type Err = Error;

    /// Reads changes with commas between them: `flip,crop:4,rotate:15,color:0.2,cutout:8,mixup:0.2`.
    fn from_str(text: &str) -> Result<Augment> {
        let change = |part: &str| -> Result<Change> {
            let (name, number) = part.split_once(':').map_or((part, None), |(name, n)| (name, Some(n)));
            let wrong = || Error::Stage(format!("augment: '{part}' is unknown; there are {KNOWN}"));
            let pixels = || number.and_then(|n| n.trim().parse().ok()).ok_or_else(wrong);
            let real = || number.and_then(|n| n.trim().parse().ok()).ok_or_else(wrong);
            match name.trim() {
                "flip" if number.is_none() => Ok(Change::Flip),
                "crop" => Ok(Change::Crop(pixels()?)),
                "rotate" => Ok(Change::Rotate(real()?)),
                "color" | "colour" => Ok(Change::Color(real()?)),
                "cutout" => Ok(Change::Cutout(pixels()?)),
                "mixup" => Ok(Change::Mixup(real()?)),
                _ => Err(wrong()),
            }
        };
        Augment::new(text.split(',').map(|part| change(part.trim())).collect::<Result<Vec<_>>>()?)
    }
}

impl Dataset {
    /// Changes pictures for training, differently in every epoch: those of the first field, which are of shape height × width ×
    /// channels. Fields of the same height and width, as masks are, are flipped, moved and turned with them. Call it on what is
    /// learned from, not on what is evaluated.
    ///
    /// The same seed, epoch and sample give the same picture, whatever the number of threads. `mixup` mixes finished
    /// batches, so it depends on who is in a batch too.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Shapes};
    ///
    /// let shapes = Shapes { count: 8, height: 32, width: 32, channels: 3, most: 3, seed: 1 };
    /// let train = Dataset::shapes(shapes).augment(&"flip,crop:2".parse()?, 42)?.batch(8);
    /// assert_eq!(train.batches()?.count(), 1);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first field is no picture, a change does not fit it, or `mixup` finds labels that are no numbers of type f32.
    pub fn augment(self, augment: &Augment, seed: u64) -> Result<Dataset> {
        let spec: Arc<[FieldSpec]> = self.spec()?.into();
        let augmenter = Augmenter::new(&spec, augment, seed, self.white())?;
        let mut data = self;
        data.notes.push(format!("training pictures are changed in every epoch: {augment}"));
        for change in augment.changes() {
            if let Change::Mixup(alpha) = *change {
                if let Some(field) = spec.iter().find(|field| field.dtype != DType::F32 || field.varying) {
                    let what = format!(
                        "augment: mixup mixes numbers of type f32, and field '{}' is of type {}; make class numbers one-hot first",
                        field.name, field.dtype
                    );
                    return Err(Error::Stage(what));
                }
                let said = format!("mixup:{alpha} {seed}");
                let step = BatchStep::new("mixup", said, move |batch| mixup::mix(batch, alpha, seed));
                data = data.with(Stage::EachBatch { step, is_mixup: true });
            }
        }
        let is_geometry = augment.changes().iter().any(|change| !matches!(change, Change::Mixup(_)));
        match is_geometry {
            true => Ok(data.with(Stage::Step(Step::Augment(Arc::new(augmenter), spec)))),
            false => Ok(data),
        }
    }
}

/// What happens to a field.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Picture,
    /// It has a value for each pixel of the picture.
    Mask,
    Other,
}

/// Changes for pictures of one form.
pub(crate) struct Augmenter {
    changes: Vec<Change>,
    seed: u64,
    sides: [usize; 2],
    channels: usize,
    /// The number of a white pixel, where it is known: colors do not go beyond it.
    white: Option<f32>,
    roles: Vec<Role>,
}

/// Random numbers of this module begin elsewhere than those of others with the same seed.
const STREAM: u64 = 0x6175_676d_656e_7400;

impl Augmenter {
    fn new(spec: &[FieldSpec], augment: &Augment, seed: u64, white: Option<f32>) -> Result<Augmenter> {
        let refused = |what: String| Error::Stage(format!("augment: {what}"));
        let Some(picture) = spec.first() else { return Err(refused("samples have no fields".into())) };
        let is_picture = !picture.varying && matches!(picture.dtype, DType::F32 | DType::U8);
        let &[height, width, channels @ (1 | 3)] = &picture.shape[..] else {
            let what = "pictures have height, width and 1 or 3 channels";
            return Err(refused(format!(
                "the first field '{}' has shape {:?}; {what}",
                picture.name, picture.shape
            )));
        };
        if !is_picture {
            return Err(refused(format!(
                "pictures are f32 or u8, and '{}' is {}",
                picture.name, picture.dtype
            )));
        }
        for change in augment.changes() {
            let side = height.min(width);
            if let Change::Crop(n) | Change::Cutout(n) = *change
                && n >= side
            {
                let what = format!(
                    "{change} leaves nothing of pictures of {height} × {width}; give less than {side}"
                );
                return Err(refused(what));
            }
        }
        let role = |(at, field): (usize, &FieldSpec)| match (at, &field.shape[..]) {
            (0, _) => Role::Picture,
            (_, [h, w, ..]) if [*h, *w] == [height, width] && !field.varying => Role::Mask,
            _ => Role::Other,
        };
        let white = if picture.dtype == DType::U8 { Some(255.0) } else { white };
        let roles = spec.iter().enumerate().map(role).collect();
        let changes = augment.changes().to_vec();
        Ok(Augmenter { changes, seed: seed ^ STREAM, sides: [height, width], channels, white, roles })
    }

    /// What tells it from others, for positions in a pipeline.
    pub fn said(&self) -> String {
        format!("{} {} {:?}", Augment { changes: self.changes.clone() }, self.seed, self.white)
    }

    /// Writes a changed sample.
    pub fn write(&self, sample: &Sample<'_>, out: &mut SampleMut<'_>, at: &At) -> Result<()> {
        let mut words = at.random(self.seed);
        // The stream of a sample does not end within what a picture takes of it.
        let mut word = || words.next().unwrap_or_default();
        let [height, width] = self.sides;
        let mut place = Place::SAME;
        let (mut factors, mut hole) = (None, None);
        for change in &self.changes {
            match *change {
                Change::Flip if word() & 1 == 1 => place = place.flipped(width),
                Change::Flip | Change::Mixup(_) => {}
                Change::Crop(most) => {
                    let mut by = || below(word(), 2 * most + 1) as f32 - most as f32;
                    place = place.moved(by(), by());
                }
                Change::Rotate(degrees) => {
                    place = place.turned(between(word(), degrees).to_radians(), self.sides);
                }
                Change::Color(share) => {
                    factors = Some([(); 3].map(|()| 1.0 + between(word(), share)));
                }
                Change::Cutout(side) => hole = Some((side, [below(word(), height), below(word(), width)])),
            }
        }
        for (field, role) in self.roles.iter().enumerate() {
            let spec = &sample.spec()[field];
            match (role, spec.dtype) {
                (Role::Other, _) => out.copy_field(field, sample),
                (_, DType::F32) => {
                    place.resample(sample.get::<f32>(field)?, self.sides, out.get_mut::<f32>(field)?)
                }
                (Role::Picture, DType::U8) => {
                    place.resample(sample.get::<u8>(field)?, self.sides, out.get_mut::<u8>(field)?)
                }
                // Classes are never mixed.
                _ => place.nearest(sample.bytes(field), self.sides, out.bytes_mut(field)),
            }
        }
        match sample.spec()[0].dtype {
            DType::U8 => self.paint(out.get_mut::<u8>(0)?, factors, hole),
            _ => self.paint(out.get_mut::<f32>(0)?, factors, hole),
        }
        Ok(())
    }

    fn paint<T: levels::Level>(
        &self,
        pixels: &mut [T],
        factors: Option<[f32; 3]>,
        hole: Option<(usize, [usize; 2])>,
    ) {
        if let Some(factors) = factors {
            levels::color(pixels, self.channels, factors, self.white);
        }
        if let Some((side, middle)) = hole {
            levels::cut(pixels, self.sides, self.channels, side, middle);
        }
    }
}

/// A number from 0 to 1, without 1.
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 / (1 << 24) as f32
}

/// A number from `-most` to `most`.
fn between(word: u32, most: f32) -> f32 {
    (2.0 * unit(word) - 1.0) * most
}

/// A whole number below `n`.
fn below(word: u32, n: usize) -> usize {
    ((u64::from(word) * n as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read_and_nonsense_is_refused_by_name() {
        let text = "flip,crop:4,rotate:15,color:0.2,cutout:8,mixup:0.2";
        assert_eq!(text.parse::<Augment>().unwrap().to_string(), text);
        assert_eq!("colour:0.5".parse::<Augment>().unwrap().changes(), [Change::Color(0.5)]);
        crate::refused::<Augment>(&[
            ("", "'' is unknown; there are flip"),
            ("flip:2", "'flip:2'"),
            ("crop", "'crop'"),
            ("crop:0", "crop:0 means nothing"),
            ("crop:-1", "'crop:-1'"),
            ("rotate:nan", "rotate:NaN"),
            ("rotate:181", "rotate:181"),
            ("color:1.5", "color:1.5"),
            ("mixup:0", "mixup:0"),
            ("flip,crop:2,flip", "flip is there twice"),
            ("blur:2", "'blur:2' is unknown"),
        ]);
    }
}
