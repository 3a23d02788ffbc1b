//! Turns CSV tables of a run into columns. The command writes no quotes, so none are understood; a line that is no line
//! of numbers (cut short by a crash, say) is left out.

use crate::record::{Epoch, Steps};

/// Steps, the newest line of each step only: a run that went on from a checkpoint does some steps again. With how many lines
/// were left out.
pub(crate) fn steps(text: &str) -> (Steps, u64) {
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
    let steps = Steps {
        step: counts("step"),
        loss: reals("loss"),
        rate: reals("rate"),
        samples_s: reals("samples_s"),
        waiting: reals("waiting"),
        resident_bytes: counts("resident_bytes"),
        resident_peak_bytes: counts("resident_peak_bytes"),
        device_bytes: counts("device_bytes"),
        device_peak_bytes: if at("device_peak_bytes").is_some() {
            counts("device_peak_bytes")
        } else {
            Vec::new()
        },
    };
    (steps, unread)
}

/// Epochs: the columns `epoch` and `step`, then whatever else there is. With how many lines were left out.
pub(crate) fn epochs(text: &str) -> (Vec<Epoch>, u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_were_done_again_count_once_and_broken_lines_not_at_all() {
        let text = "step,epoch,loss,resident_bytes\n1,1,2.5,100\n2,1,2.0,100\n3,1,1.5,100\n2,1,2.1,90\n3,1,NaN,90\n4,1\n";
        let (steps, unread) = steps(text);
        assert_eq!((&steps.step[..], unread), (&[1, 2, 3][..], 1));
        assert_eq!(steps.loss, [Some(2.5), Some(2.1), None]);
        assert_eq!(steps.resident_bytes, [100, 90, 90]);
        assert_eq!(steps.device_bytes, [0, 0, 0]);
        assert!(steps.device_peak_bytes.is_empty());
    }

    #[test]
    fn epochs_keep_every_measure_by_name() {
        let (epochs, unread) = epochs("epoch,step,loss,accuracy\n1,10,0.5,0.9\n2,20,0.25,0.95\n");
        assert_eq!((epochs.len(), unread), (2, 0));
        assert_eq!((epochs[1].step, &epochs[1].values[1]), (20, &("accuracy".to_string(), Some(0.95))));
    }
}
