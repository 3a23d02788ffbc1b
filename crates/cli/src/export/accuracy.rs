//! A quantized file beside the model that it was made from, on the user's data: how often each is right.

use plimsoll::internals::nn::Predicting;
use plimsoll::nn::{Measure, Metric};
use serde::Serialize;

use super::Exported;
use crate::Failure;
use crate::tflite_file::{Runner, add, tensor};

/// So many samples are compared at most.
const MOST_SAMPLES: usize = 1000;

/// The same metric of both.
#[derive(Serialize)]
pub struct Accuracy {
    metric: String,
    /// Of the model, and of the file.
    f32: f64,
    int8: f64,
    samples: usize,
    data: String,
}

impl Accuracy {
    /// Runs both over labelled data; nothing where the data has no labels. The file runs as on a device, in whole numbers.
    pub fn of(whole: &Exported<'_>, runner: &mut Runner<'_>) -> Result<Option<Accuracy>, Failure> {
        let Some((data, name)) = whole.data else { return Ok(None) };
        let n_inputs = whole.inputs.len();
        let Some(label) = data.spec()?.get(n_inputs).cloned() else { return Ok(None) };
        let metric: Measure = if label.dtype.is_float() { Metric::Mse } else { Metric::Accuracy }.into();
        let mut totals = [Vec::new(), Vec::new()];
        let mut samples = 0;
        for batch in data.batches()? {
            let batch = batch?;
            let inputs = (0..n_inputs).map(|i| tensor(&batch, i)).collect::<Result<Vec<_>, _>>()?;
            let labels = [tensor(&batch, n_inputs)?];
            let right = Predicting::forward(whole.model, &inputs, whole.params, whole.values)?;
            for (total, outputs) in totals.iter_mut().zip([right, runner.run(&batch)?]) {
                add(total, &metric.sums(&outputs, &labels, &[])?.to_f64()?);
            }
            samples += batch.samples();
            if samples >= MOST_SAMPLES {
                break;
            }
        }
        let [f32, int8] = totals.map(|sums| metric.finish(&sums));
        Ok(Some(Accuracy { metric: metric.name.clone(), f32, int8, samples, data: name.into() }))
    }

    /// One line.
    pub fn print(&self) {
        let Accuracy { metric, f32, int8, samples, data } = self;
        say!("{metric} on {samples} samples of {data}: {f32:.4} in f32, {int8:.4} in int8");
    }
}
