//! Turns a batch into one of mixed samples: the first with the last, the second with the one before it.
//!
//! Both of a pair are mixed where they are, so that nothing is copied. Who stands with whom is chance where data is shuffled.

use crate::batch_map::BatchMut;
use crate::error::Result;
use crate::step::At;

/// Random numbers of this module begin elsewhere than those of others with the same seed.
const STREAM: u64 = 0x6d69_7875_7000_0000;
/// A share is found after a few tries; so many never fail.
const TRIES: usize = 1000;

/// Mixes the pairs of a batch, all fields by the same share.
pub(super) fn mix(batch: &mut BatchMut<'_>, alpha: f32, seed: u64) -> Result<()> {
    let (samples, epoch) = (batch.samples(), batch.epoch());
    for first in 0..samples / 2 {
        let at = At { epoch, index: batch.numbers()[first] };
        let share = share(alpha, at.random(seed ^ STREAM));
        for field in 0..batch.spec().len() {
            let numbers = batch.get_mut::<f32>(field)?;
            let row = numbers.len() / samples;
            let (front, back) = numbers.split_at_mut((samples - 1 - first) * row);
            for (one, other) in front[first * row..][..row].iter_mut().zip(&mut back[..row]) {
                let (a, b) = (*one, *other);
                (*one, *other) = (b + share * (a - b), a + share * (b - a));
            }
        }
    }
    Ok(())
}

/// A number from 0 to 1 of a beta distribution with both parameters `alpha`, by the method of Jöhnk.
fn share(alpha: f32, mut words: impl Iterator<Item = u32>) -> f32 {
    let mut power = || {
        let unit = (f64::from(words.next().unwrap_or_default()) + 0.5) / (1u64 << 32) as f64;
        unit.powf(1.0 / f64::from(alpha))
    };
    for _ in 0..TRIES {
        let (x, y) = (power(), power());
        if x + y <= 1.0 && x + y > 0.0 {
            return (x / (x + y)) as f32;
        }
    }
    0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_a_beta_distribution() {
        for alpha in [0.2f32, 1.0, 2.0] {
            let shares: Vec<f64> =
                (0..4000).map(|index| f64::from(share(alpha, At { epoch: 0, index }.random(7)))).collect();
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let variance = shares.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / shares.len() as f64;
            let expected = 1.0 / (4.0 * (2.0 * f64::from(alpha) + 1.0));
            assert!((mean - 0.5).abs() < 0.03, "{alpha}: {mean}");
            assert!((variance - expected).abs() < 0.02, "{alpha}: {variance} {expected}");
        }
    }
}
