//! The embedded data set of handwritten digits (see data/README.md for its source).

/// One record: the label, then 8 × 8 pixels of 0 to 16.
const RECORD: usize = 65;
const DATA: &[u8] = include_bytes!("../data/digits.bin");

/// Images as f32 in 0 to 1, and their labels.
pub struct Digits {
    /// Pixels, 64 an image.
    pub images: Vec<f32>,
    /// Labels, 0 to 9.
    pub labels: Vec<i64>,
}

/// The training part: the first 1500 digits.
pub fn train() -> Digits {
    part(&DATA[..1500 * RECORD])
}

/// The test part: the other 297, by other writers.
pub fn test() -> Digits {
    part(&DATA[1500 * RECORD..])
}

fn part(records: &[u8]) -> Digits {
    let images =
        records.chunks_exact(RECORD).flat_map(|r| r[1..].iter().map(|&p| f32::from(p) / 16.0)).collect();
    let labels = records.chunks_exact(RECORD).map(|r| i64::from(r[0])).collect();
    Digits { images, labels }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_record_is_a_digit() {
        for part in [super::train(), super::test()] {
            assert_eq!(part.images.len(), part.labels.len() * 64);
            assert!(part.labels.iter().all(|l| (0..10).contains(l)));
            assert!(part.images.iter().all(|p| (0.0..=1.0).contains(p)));
        }
        assert_eq!(super::train().labels.len() + super::test().labels.len(), 1797);
    }
}
