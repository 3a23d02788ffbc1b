//! The table of a run's steps (`steps.csv`) as columns. No quotes are written, so none are understood; a row that is no row of
//! numbers (cut short by a crash, say) is left out.

use serde::{Deserialize, Serialize};

/// A table of steps, by columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Steps {
    /// Updates done.
    pub step: Vec<u64>,
    /// The loss of the batch.
    pub loss: Vec<Option<f64>>,
    /// The learning rate.
    pub rate: Vec<Option<f64>>,
    /// Samples a second since the row before.
    pub samples_s: Vec<Option<f64>>,
    /// The share of time spent waiting for input since the row before.
    pub waiting: Vec<Option<f64>>,
    /// What the process took, as the system counts it.
    pub resident_bytes: Vec<u64>,
    /// The most it had taken until then.
    pub resident_peak_bytes: Vec<u64>,
    /// What was held on the device.
    pub device_bytes: Vec<u64>,
    /// The most that the process had taken of a card's own memory until then; zeros where it is not known.
    pub device_peak_bytes: Vec<u64>,
}

impl Steps {
    /// The heading of the file: its columns in the order in which they are written. Readers find a column by its name.
    pub const HEADING: &str = "step,epoch,loss,rate,samples_s,waiting,resident_bytes,resident_peak_bytes,device_bytes,device_peak_bytes";

    /// Reads the file, the newest row of each step only: a run that went on from a checkpoint does some steps again. With how
    /// many rows were left out.
    pub fn from_csv(text: &str) -> (Steps, u64) {
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let mut rows: Vec<Vec<&str>> = Vec::new();
        let mut unread = 0;
        let step_of = |row: &[&str]| row.first().and_then(|cell| cell.parse::<u64>().ok());
        for line in lines {
            let row: Vec<&str> = line.split(',').collect();
            let Some(step) = step_of(&row).filter(|_| row.len() == names.len()) else {
                unread += 1;
                continue;
            };
            while rows.last().and_then(|last| step_of(last)).is_some_and(|last| last >= step) {
                rows.pop();
            }
            rows.push(row);
        }
        let at = |name: &str| names.iter().position(|known| *known == name);
        let cell = |name: &str, row: &Vec<&str>| -> Option<f64> {
            row.get(at(name)?)?.parse::<f64>().ok().filter(|value| value.is_finite())
        };
        let reals = |name: &str| -> Vec<Option<f64>> { rows.iter().map(|row| cell(name, row)).collect() };
        let counts = |name: &str| -> Vec<u64> {
            let count = |row: &Vec<&str>| row.get(at(name)?)?.parse::<u64>().ok();
            rows.iter().map(|row| count(row).unwrap_or(0)).collect()
        };
        let has_peaks = at("device_peak_bytes").is_some();
        let steps = Steps {
            step: counts("step"),
            loss: reals("loss"),
            rate: reals("rate"),
            samples_s: reals("samples_s"),
            waiting: reals("waiting"),
            resident_bytes: counts("resident_bytes"),
            resident_peak_bytes: counts("resident_peak_bytes"),
            device_bytes: counts("device_bytes"),
            device_peak_bytes: if has_peaks { counts("device_peak_bytes") } else { Vec::new() },
        };
        (steps, unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_were_done_again_count_once_and_broken_rows_not_at_all() {
        let text = "step,epoch,loss,resident_bytes\n1,1,2.5,100\n2,1,2.0,100\n3,1,1.5,100\n2,1,2.1,90\n3,1,NaN,90\n4,1\n";
        let (steps, unread) = Steps::from_csv(text);
        assert_eq!((&steps.step[..], unread), (&[1, 2, 3][..], 1));
        assert_eq!(steps.loss, [Some(2.5), Some(2.1), None]);
        assert_eq!(steps.resident_bytes, [100, 90, 90]);
        assert_eq!(steps.device_bytes, [0, 0, 0]);
        assert!(steps.device_peak_bytes.is_empty());
    }

    #[test]
    fn every_column_of_the_heading_is_read_where_it_has_a_place() {
        let row = (1..=10).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let (steps, unread) = Steps::from_csv(&format!("{}\n{row}\n", Steps::HEADING));
        let read = serde_json::to_value(&steps).unwrap();
        let columns: Vec<f64> = Steps::HEADING.split(',').filter_map(|name| read[name][0].as_f64()).collect();
        // The epoch has no place: it is read from the table of epochs.
        assert_eq!((columns, unread), (vec![1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0], 0));
    }
}
