//! What a training stands on, so that a checkpoint can tell whether it is asked to go on with something else.

use plimsoll_data::{Dataset, FieldSpec};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// What must be the same for a training to go on as if it had never stopped. Shapes of parameters are in the state itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The optimizer's name.
    pub optimizer: String,
    /// Where randomness started.
    pub seed: u64,
    /// Metrics by name, in the order of their sums.
    pub metrics: Vec<String>,
    /// The data.
    #[serde(flatten)]
    pub data: DataTerms,
}

/// What must be the same of the data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataTerms {
    /// Fields of a sample: `image f32[28, 28, 1]`.
    pub fields: Vec<String>,
    /// Samples in a batch.
    pub batch: Option<usize>,
    /// Samples of a pass, where that is known.
    pub samples: Option<u64>,
    /// What tells the pipeline from others: source, stages, seeds.
    pub pipeline: u64,
}

impl DataTerms {
    /// Those of a pipeline.
    pub(crate) fn of(data: &Dataset) -> Result<DataTerms> {
        let field = |field: &FieldSpec| format!("{} {}{:?}", field.name, field.dtype, &field.shape[..]);
        Ok(DataTerms {
            fields: data.spec()?.iter().map(field).collect(),
            batch: data.batch_size(),
            samples: data.samples()?,
            // The pipeline of a run goes on without end, and its position says so.
            pipeline: data.clone().repeat_forever().fingerprint()?,
        })
    }

    /// What is not the same now: what was, and what is asked for.
    pub(crate) fn other(&self, now: &DataTerms) -> Option<String> {
        let count = |n: Option<u64>| {
            n.map_or("an unknown number of samples".to_string(), |n| plimsoll_graph::counted(n, "sample"))
        };
        if self.fields != now.fields {
            let (was, is) = (self.fields.join(", "), now.fields.join(", "));
            return Some(format!("a sample was {was}, and is {is} now"));
        }
        if self.batch != now.batch {
            let size = |batch: Option<usize>| batch.map_or("none".to_string(), |n| n.to_string());
            let (was, is) = (size(self.batch), size(now.batch));
            return Some(format!("its batch size was {was}, and {is} is asked for"));
        }
        if self.samples != now.samples {
            let (was, is) = (count(self.samples), count(now.samples));
            return Some(format!("its data had {was}, and has {is} now"));
        }
        (self.pipeline != now.pipeline).then(|| {
            "its data came by other stages or other seeds of them (shuffle, map, filter, take, skip, shard)".into()
        })
    }
}

impl Terms {
    /// What is not the same now. `is_begun` says that an epoch has begun, whose sums of metrics go on.
    pub(crate) fn other(&self, now: &Terms, is_begun: bool) -> Option<String> {
        if self.optimizer != now.optimizer {
            let (was, is) = (&self.optimizer, &now.optimizer);
            return Some(format!("its optimizer was {was}, and {is} is asked for"));
        }
        if self.seed != now.seed {
            let (was, is) = (self.seed, now.seed);
            return Some(format!("its seed was {was}, and {is} is asked for"));
        }
        if is_begun && self.metrics != now.metrics {
            let list = |names: &[String]| if names.is_empty() { "none".into() } else { names.join(", ") };
            let (was, is) = (list(&self.metrics), list(&now.metrics));
            return Some(format!(
                "it is in the middle of an epoch whose metrics were {was}, and {is} are asked for"
            ));
        }
        self.data.other(&now.data)
    }
}
