//! Averages of weights over a training (EMA): kept by the optimizer, used in place of the weights.

use std::path::Path;
use std::sync::Arc;

use plimsoll_device::process;
use plimsoll_nn::Averaged;

use crate::error::{Error, Result};
use crate::trainer::Trainer;

impl Trainer {
    /// Also keeps an exponential average of the weights: a ← d a + (1 - d) w after every update. It takes the memory of the trained parameters
    /// once more, as a part of the optimizer's state: the plan counts it, the ledger shows it and checkpoints hold it.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Sequential, Sgd, softmax_cross_entropy};
    /// use plimsoll_train::{Epochs, Trainer};
    /// # let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    /// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    /// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(20);
    /// let model = Sequential::new([2]).dense(8).relu().dense(2);
    /// let mut trainer = Trainer::new(model, softmax_cross_entropy, Sgd::new(0.5)).average(0.99)?;
    /// trainer.fit(&data, Epochs(5))?;
    /// let last = trainer.evaluate(&data)?.loss;
    /// let averaged = trainer.with_average(|trainer| Ok(trainer.evaluate(&data)?.loss))?;
    /// assert_ne!(averaged, last);
    /// // The weights are as before.
    /// assert_eq!(trainer.evaluate(&data)?.loss, last);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// The decay is not between 0 and 1.
    pub fn average(mut self, decay: f64) -> Result<Trainer> {
        if !(decay > 0.0 && decay < 1.0) {
            let what = "the decay of the average of weights".into();
            return Err(Error::Setting { what, value: decay, must: "between 0 and 1, as 0.999 is" });
        }
        if self.pruning.is_some() {
            let why =
                "averages of weights are not zero where pruned weights are: prune, or average, not both";
            return Err(Error::Mismatch(why.into()));
        }
        self.optimizer = Arc::new(Averaged::new(self.optimizer.clone(), decay));
        self.is_averaged = true;
        Ok(self)
    }

    /// Does something with the averages in place of the weights: evaluates, predicts, saves. They are exchanged parameter by parameter, and
    /// exchanged back whatever comes of it. Statistics that layers keep by themselves stay.
    ///
    /// # Errors
    /// No averages are kept ([`Trainer::average`]), nothing has been trained yet, or what `body` gives.
    pub fn with_average<T>(&mut self, body: impl FnOnce(&mut Trainer) -> Result<T>) -> Result<T> {
        self.exchange_average()?;
        let done = body(self);
        self.exchange_average()?;
        done
    }

    /// Writes the averages as safetensors under the parameters' names, as [`Trainer::save`] writes the weights.
    ///
    /// # Errors
    /// As of [`Trainer::with_average`] and [`Trainer::save`].
    pub fn save_average(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref().to_path_buf();
        self.with_average(|trainer| trainer.save(&path))
    }

    fn exchange_average(&mut self) -> Result<()> {
        let none = |why: &str| Error::Mismatch(format!("there are no averages of weights: {why}"));
        if !self.is_averaged {
            return Err(none("ask for them with .average(0.999)"));
        }
        if self.progress.step == 0 {
            return Err(none("nothing has been trained yet"));
        }
        let device = self.pinned()?;
        let Some(training) = &mut self.training else { return Err(none("nothing has been trained yet")) };
        let trained: Vec<String> =
            training.params().iter().filter(|param| param.trained).map(|param| param.name.clone()).collect();
        device.scope(|| {
            for name in trained {
                let average = format!("{name}.{}", Averaged::SLOT);
                let bytes = |wanted: &str| -> Result<Vec<u8>> {
                    let found = training.state().find(|(known, _)| *known == wanted);
                    let (_, tensor) = found.ok_or_else(|| none("the model was begun without them"))?;
                    Ok(tensor.to_bytes()?)
                };
                let (own, other) = (bytes(&name)?, bytes(&average)?);
                training.restore(&name, &other)?;
                training.restore(&average, &own)?;
                drop((own, other));
                // Copies of one parameter are counted, and not what the heap keeps of the one before.
                process::release_unused_heap();
            }
            Ok(())
        })
    }
}
