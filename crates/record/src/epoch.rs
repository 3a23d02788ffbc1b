//! One epoch of a run: a row of `metrics.csv`.

use serde::{Deserialize, Serialize};

/// One epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Epoch {
    /// The epoch, from 1.
    pub epoch: u64,
    /// Updates done at its end.
    pub step: u64,
    /// Everything that was measured, by name, the loss among it.
    pub values: Vec<(String, Option<f64>)>,
}

impl Epoch {
    /// Reads the file: the columns `epoch` and `step`, then whatever else there is. With how many rows were left out.
    pub fn from_csv(text: &str) -> (Vec<Epoch>, u64) {
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let (mut epochs, mut unread): (Vec<Epoch>, u64) = (Vec::new(), 0);
        for line in lines {
            let row: Vec<&str> = line.split(',').collect();
            if row.len() != names.len() {
                unread += 1;
                continue;
            }
            let mut epoch = Epoch::default();
            for (name, cell) in names.iter().zip(&row) {
                match *name {
                    "epoch" => epoch.epoch = cell.parse().unwrap_or(0),
                    "step" => epoch.step = cell.parse().unwrap_or(0),
                    _ => {
                        let value = cell.parse::<f64>().ok().filter(|value| value.is_finite());
                        epoch.values.push((name.to_string(), value));
                    }
                }
            }
            while epochs.last().is_some_and(|last| last.epoch >= epoch.epoch) {
                epochs.pop();
            }
            epochs.push(epoch);
        }
        (epochs, unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_keep_every_measure_by_name() {
        let (epochs, unread) = Epoch::from_csv("epoch,step,loss,accuracy\n1,10,0.5,0.9\n2,20,0.25,0.95\n");
        assert_eq!((epochs.len(), unread), (2, 0));
        assert_eq!((epochs[1].step, &epochs[1].values[1]), (20, &("accuracy".to_string(), Some(0.95))));
    }
}
