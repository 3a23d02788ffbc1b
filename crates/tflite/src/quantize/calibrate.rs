//! Finds the ranges of all that a model computes, on data.

use plimsoll_graph::{DType, TensorOps};

use super::{Calibration, Range};
use crate::error::{Error, Result};
use crate::lite_model::LiteModel;
use crate::run::run_watched;

/// Into how many parts a range is cut to see how values are spread.
const BINS: usize = 2048;
/// How many numbers a byte tells apart.
const LEVELS: usize = 256;

/// The least and the most of every tensor that holds computed numbers.
pub(super) type Ranges = Vec<Option<(f32, f32)>>;

/// The ranges over all samples.
pub(super) fn ranges(model: &LiteModel, calibration: &Calibration) -> Result<Ranges> {
    if calibration.samples.is_empty() {
        return Err(Error::Calibration("there is not one sample to find ranges on".into()));
    }
    let mut found: Ranges = vec![None; model.tensors.len()];
    for sample in &calibration.samples {
        run_watched(model, sample, &mut |at, x| {
            if x.dtype() != DType::F32 {
                return Ok(());
            }
            let (mut low, mut high) = found[at].unwrap_or((0.0, 0.0));
            for value in x.to_vec::<f32>()? {
                if !value.is_finite() {
                    let name = &model.tensors[at].name;
                    return Err(Error::Calibration(format!(
                        "{name} is {value} on this data, which has no range"
                    )));
                }
                (low, high) = (low.min(value), high.max(value));
            }
            found[at] = Some((low, high));
            Ok(())
        })?;
    }
    let narrow: fn(&[u64], f64) -> (usize, usize) = match calibration.range {
        Range::MinMax => return Ok(found),
        Range::Percentile(percent) if !(percent > 0.0 && percent <= 100.0) => {
            return Err(Error::Calibration(format!("{percent} is no share of the values in percent")));
        }
        Range::Percentile(_) => holding,
        Range::Entropy => telling,
    };
    let share = if let Range::Percentile(percent) = calibration.range { percent / 100.0 } else { 1.0 };
    let mut spread: Vec<Vec<u64>> = vec![Vec::new(); model.tensors.len()];
    for sample in &calibration.samples {
        run_watched(model, sample, &mut |at, x| {
            let Some((low, high)) = found[at].filter(|(low, high)| low < high) else { return Ok(()) };
            spread[at].resize(BINS, 0);
            let width = (high - low) / BINS as f32;
            for value in x.to_vec::<f32>()? {
                spread[at][(((value - low) / width) as usize).min(BINS - 1)] += 1;
            }
            Ok(())
        })?;
    }
    for (range, bins) in found.iter_mut().zip(&spread).filter(|(_, bins)| !bins.is_empty()) {
        let Some((low, high)) = *range else { continue };
        let width = (high - low) / BINS as f32;
        let (first, end) = narrow(bins, share);
        // Zero stays inside: padding and zeros of relus are exact.
        *range = Some(((low + width * first as f32).min(0.0), (low + width * end as f32).max(0.0)));
    }
    Ok(found)
}

/// The bins that hold a share of the values, with as much left out below as above.
fn holding(bins: &[u64], share: f64) -> (usize, usize) {
    let all: u64 = bins.iter().sum();
    let left_out = ((1.0 - share) / 2.0 * all as f64).floor() as u64;
    let first = |bins: &mut dyn Iterator<Item = &u64>| {
        let mut passed = 0;
        bins.take_while(|n| {
            passed += **n;
            passed <= left_out
        })
        .count()
    };
    (first(&mut bins.iter()), bins.len() - first(&mut bins.iter().rev()))
}

/// The bins that 256 numbers tell most of: those for which what is cut off and what is merged costs the least information.
fn telling(bins: &[u64], _: f64) -> (usize, usize) {
    let mut best = (f64::INFINITY, (0, bins.len()));
    // Both ends are drawn in by the same share of the values.
    for step in 0..=64 {
        let share = 1.0 - (f64::from(step) / 64.0).powi(3) * 0.05;
        let (first, end) = holding(bins, share);
        if end <= first {
            continue;
        }
        let divergence = divergence(bins, first, end);
        if divergence < best.0 {
            best = (divergence, (first, end));
        }
    }
    best.1
}

/// The Kullback-Leibler divergence of how values are spread from how they are after they were cut off and rounded to 256 numbers.
fn divergence(bins: &[u64], first: usize, end: usize) -> f64 {
    let mut clipped: Vec<f64> = bins[first..end].iter().map(|&n| n as f64).collect();
    let inside: Vec<f64> = clipped.clone();
    clipped[0] += bins[..first].iter().sum::<u64>() as f64;
    let last = clipped.len() - 1;
    clipped[last] += bins[end..].iter().sum::<u64>() as f64;
    // Every level spreads what it holds over those of its bins that held something.
    let n = inside.len();
    let levels = LEVELS.min(n);
    let mut merged = vec![0.0; n];
    for level in 0..levels {
        let (from, to) = (level * n / levels, (level + 1) * n / levels);
        let held = inside[from..to].iter().filter(|x| **x > 0.0).count();
        let sum: f64 = inside[from..to].iter().sum();
        for i in from..to {
            if inside[i] > 0.0 {
                merged[i] = sum / held as f64;
            }
        }
    }
    let (p_all, q_all) = (clipped.iter().sum::<f64>(), merged.iter().sum::<f64>());
    let one = |(p, q): (&f64, &f64)| {
        let (p, q) = (p / p_all, (q / q_all).max(1e-10));
        if p > 0.0 { p * (p / q).ln() } else { 0.0 }
    };
    clipped.iter().zip(&merged).map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_values_leaves_out_both_ends_alike() {
        let bins = [1, 0, 49, 50, 99, 1];
        assert_eq!(holding(&bins, 1.0), (0, 6));
        assert_eq!(holding(&bins, 0.99), (2, 5));
    }

    #[test]
    fn a_lone_value_far_out_is_cut_off_and_an_even_spread_is_kept() {
        let even = vec![10; BINS];
        assert_eq!(telling(&even, 1.0), (0, BINS));
        let mut far = vec![0; BINS];
        (0..300).for_each(|i| far[i] = 1000 - 3 * i as u64);
        far[BINS - 1] = 1;
        let (first, end) = telling(&far, 1.0);
        assert!(first < 10 && (200..1000).contains(&end), "{first} {end}");
    }
}
