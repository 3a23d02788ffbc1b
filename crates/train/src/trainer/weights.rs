//! Weights in and out of a trainer, and checkpoints to go on from.

use std::path::{Path, PathBuf};

use plimsoll_data::Dataset;
use plimsoll_nn::{OfRanks, Param};
use plimsoll_run::{Device, Tensor};

use super::Trainer;
use super::planning::Values;
use crate::callback::Notice;
use crate::checkpoint::{Checkpoint, Progress, hand_shards, load_tensors, save_tensors};
use crate::error::{Error, Result};
use crate::pieces::Staged;
use crate::terms::{DataTerms, Terms};

impl Trainer {
    /// Goes on from the newest checkpoint of a folder when [`Trainer::fit`] is called next. `false` if there is none.
    ///
    /// Checkpoints that are damaged are named to callbacks ([`Notice::DamagedCheckpoint`]), and the newest that is whole is
    /// taken.
    ///
    /// # Errors
    /// All checkpoints are damaged ([`Error::AllDamaged`] lists them), or the newest whole one is of another model, optimizer,
    /// batch size, seed or data ([`Error::Unlike`] says what was and what is asked for). Then nothing is changed.
    pub fn resume(&mut self, folder: &Path, data: &Dataset) -> Result<bool> {
        let device = self.pinned()?;
        device.scope(|| self.resume_here(folder, data))
    }

    fn resume_here(&mut self, folder: &Path, data: &Dataset) -> Result<bool> {
        let (mut damaged, mut whole) = (Vec::new(), None);
        for path in Checkpoint::all(folder)? {
            match Checkpoint::read(&path) {
                Ok(checkpoint) => {
                    whole = Some((path, checkpoint));
                    break;
                }
                Err(Error::Damaged { path, why }) => damaged.push((path, why)),
                Err(error) => return Err(error),
            }
        }
        let Some((path, checkpoint)) = whole else {
            return match damaged.is_empty() {
                true => Ok(false),
                false => Err(Error::AllDamaged { folder: folder.into(), found: damaged }),
            };
        };
        // What is known to be other is refused before anything is planned.
        self.check_like(&path, &checkpoint, data)?;
        self.ready(data)?;
        let Some(training) = &mut self.training else { return Ok(false) };
        checkpoint.restore_state(&path, training)?;
        self.progress = checkpoint.progress.clone();
        // Who then fits on other data is told what it was.
        self.terms = checkpoint.terms.clone();
        checkpoint.restore_callbacks(&mut self.callbacks);
        for (path, why) in damaged {
            self.tell(&Notice::DamagedCheckpoint { path, why })?;
        }
        self.tell(&Notice::Resumed { step: self.progress.step, path })?;
        Ok(true)
    }

    /// Refuses a checkpoint of another training by what it was and what is asked for.
    fn check_like(&self, path: &Path, checkpoint: &Checkpoint, data: &Dataset) -> Result<()> {
        let (progress, now) = (&checkpoint.progress, self.terms(data)?);
        let why = match (&checkpoint.terms, &progress.position) {
            (Some(terms), _) => terms.other(&now, progress.is_begun()),
            // A checkpoint of before terms were written down.
            (None, Some(at)) if at.pipeline != now.data.pipeline => {
                Some("its batch size, the source of its data, its stages or their seeds were others".into())
            }
            (None, _) => None,
        };
        match why {
            Some(why) => Err(Error::Unlike { path: path.into(), why }),
            None => Ok(()),
        }
    }

    /// What a training on this data stands on.
    pub(crate) fn terms(&self, data: &Dataset) -> Result<Terms> {
        Ok(Terms {
            optimizer: self.optimizer.name().into(),
            seed: self.seed,
            metrics: self.metrics.iter().map(|measure| measure.name.clone()).collect(),
            data: DataTerms::of(data)?,
        })
    }

    /// Writes a checkpoint of where the training stands, where there is a place for one. Where ranks share the optimizer's state, all of them
    /// call it.
    pub fn save_checkpoint(&mut self) -> Result<Option<PathBuf>> {
        if self.is_device_lost {
            return Err(crate::fault::lost_device());
        }
        let is_asked = self.of_first_if_sharded(self.checkpoints.is_some())?;
        let Some(training) = self.training.as_ref().filter(|_| is_asked) else { return Ok(None) };
        let ranks = self.ranks()?;
        if !self.is_first()? {
            hand_shards(training, ranks.as_ref())?;
            return Ok(None);
        }
        let Some(checkpoints) = &self.checkpoints else { return Ok(None) };
        let checkpoint = Checkpoint::new(self.progress.clone(), self.terms.clone(), &self.callbacks);
        let path = checkpoints.save(&checkpoint, training, ranks.as_ref())?;
        self.tell(&Notice::Saved { step: self.progress.step, path: path.clone() })?;
        Ok(Some(path))
    }

    /// Writes the parameters as safetensors, whole or not at all. Where ranks have shards of parameters, all of them call it, and the first one
    /// writes.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let Some(training) = &self.training else {
            let why = "there are no weights to save before the model has seen data; call fit, load, plan or prepare first";
            return Err(Error::Mismatch(why.into()));
        };
        let ranks = self.ranks()?.filter(|_| training.has_sharded_parameters());
        let parts = training.whole_parameters();
        if ranks.is_some() && !self.is_first()? {
            return save_tensors(&mut std::io::sink(), parts, ranks.as_ref(), path);
        }
        plimsoll_formats::durable::write_file(path, |out| save_tensors(out, parts, ranks.as_ref(), path))
            .map_err(|error| error.at(path))
    }

    /// The parameters that are trained, each whole, on the host. Where ranks have parts of them, all ranks call it, and all of them are put together of what each
    /// has: it is for few of a model's, adapters say.
    pub fn whole_trained(&self) -> Result<Vec<(Param, Tensor)>> {
        let Some(training) = &self.training else { return Ok(Vec::new()) };
        let ranks = self.ranks()?;
        let (host, mut staged) = (Device::cpu()?, Staged::default());
        let parts = training.params().iter().zip(training.whole_parameters());
        let whole = |(param, part): (&Param, OfRanks<'_>)| {
            let mut bytes = Vec::with_capacity(part.whole.bytes());
            let mut write = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            match (&part.pieces, &ranks) {
                (Some(pieces), Some(ranks)) => staged.gather(part.own, pieces, ranks, &mut write)?,
                _ => staged.copy(part.own, 0, part.whole.bytes(), None, &mut write)?,
            }
            let mut value = host.scope(|| Tensor::zeros(part.whole.clone()))?;
            value.set_bytes(&bytes)?;
            Ok((param.clone(), value))
        };
        parts.filter(|(param, _)| param.trained).map(whole).collect()
    }

    /// Reads the parameters from a file that [`Trainer::save`] or a checkpoint wrote, for data like this, and begins anew with
    /// them: an optimizer that has learnt nothing yet, no steps, no epochs. At any time: before [`Trainer::fit`] to fine-tune,
    /// or to evaluate and predict without training. To go on where a training stopped, see [`Trainer::resume`].
    ///
    /// # Errors
    /// The file does not hold parameters of these names and shapes; then everything is as it was.
    pub fn load(&mut self, path: impl AsRef<Path>, data: &Dataset) -> Result<()> {
        let device = self.pinned()?;
        device.scope(|| {
            let is_new = self.training.is_none();
            self.usable(data, Values::Blank)?;
            let Some(training) = &mut self.training else { return Ok(()) };
            let loaded = load_tensors(path.as_ref(), training, false);
            if loaded.is_err() && is_new {
                // Without weights it is no model yet.
                self.training = None;
            }
            loaded?;
            self.begin_anew()
        })
    }

    /// Forgets all steps that were done, but not what the parameters are.
    fn begin_anew(&mut self) -> Result<()> {
        if let Some(training) = &mut self.training {
            training.restart(self.seed)?;
        }
        self.progress = Progress::start();
        Ok(())
    }

    /// Gets ready to evaluate or to predict on data like this, without a training step. Parameters start as the model's layers
    /// say, until [`Trainer::load`] or [`Trainer::training_mut`] sets them. Nothing happens where that was done already.
    pub fn prepare(&mut self, data: &Dataset) -> Result<()> {
        let device = self.pinned()?;
        device.scope(|| self.usable(data, Values::Drawn)).map(drop)
    }

    /// As [`Trainer::prepare`], but parameters are zeros until they are set through [`Trainer::training_mut`]: without the time
    /// and the memory that it takes to draw them.
    pub fn prepare_blank(&mut self, data: &Dataset) -> Result<()> {
        let device = self.pinned()?;
        device.scope(|| self.usable(data, Values::Blank)).map(drop)
    }
}
