//! A learning rate that falls when a number has stopped falling.

/// A factor that falls when a number, a validation loss say, has stopped falling.
///
/// ```
/// use plimsoll_nn::Plateau;
/// let mut plateau = Plateau::new(0.1, 2);
/// for (loss, factor) in [(1.0, 1.0), (0.9, 1.0), (0.9, 1.0), (0.9, 1.0), (0.9, 0.1)] {
///     assert_eq!(plateau.observe(loss), factor);
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plateau {
    /// What the factor is multiplied by.
    pub factor: f64,
    /// Observations without progress that are waited for.
    pub patience: u64,
    /// Progress is to fall below this share less than the best.
    pub threshold: f64,
    /// The least factor.
    pub floor: f64,
    /// The best number so far.
    pub best: f64,
    /// Observations since then.
    pub waited: u64,
    /// The factor as it stands.
    pub current: f64,
}

impl Plateau {
    /// Multiplies by a factor when a number has not fallen for more than `patience` observations; PyTorch's
    /// threshold.
    pub fn new(factor: f64, patience: u64) -> Plateau {
        Plateau {
            factor,
            patience,
            threshold: 1e-4,
            floor: 0.0,
            best: f64::INFINITY,
            waited: 0,
            current: 1.0,
        }
    }

    /// Takes note of a number; returns the factor on the optimizer's rate from now on.
    pub fn observe(&mut self, value: f64) -> f64 {
        if value < self.best * (1.0 - self.threshold) {
            (self.best, self.waited) = (value, 0);
        } else {
            self.waited += 1;
        }
        if self.waited > self.patience {
            self.current = (self.current * self.factor).max(self.floor);
            self.waited = 0;
        }
        self.current
    }
}
