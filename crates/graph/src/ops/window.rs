//! Turns the sizes of a sliding window along one axis into what it covers: shared by convolution and pooling.

use std::ops::Range;

/// One axis over which a window slides.
///
/// ```
/// use plimsoll_graph::ops::WindowAxis;
/// let axis = WindowAxis { len: 7, window: 3, stride: 2, pad: (1, 1), dilation: 1 };
/// assert_eq!(axis.outputs(), Ok(4));
/// assert_eq!(axis.taps(0), 1..3);
/// assert_eq!(axis.covering(3), 1..3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowAxis {
    /// Elements of the axis.
    pub len: usize,
    /// Elements that one window reads.
    pub window: usize,
    /// Elements from one window to the next.
    pub stride: usize,
    /// Elements added before and after the axis.
    pub pad: (usize, usize),
    /// Elements from one element of a window to the next.
    pub dilation: usize,
}

impl WindowAxis {
    /// The number of windows, or what does not fit.
    pub fn outputs(&self) -> Result<usize, String> {
        if self.window == 0 || self.stride == 0 || self.dilation == 0 {
            let WindowAxis { window, stride, dilation, .. } = self;
            return Err(format!(
                "window {window}, stride {stride} and dilation {dilation} must all be at least 1"
            ));
        }
        let reach = (self.window - 1).saturating_mul(self.dilation).saturating_add(1);
        let padded = self.len.saturating_add(self.pad.0).saturating_add(self.pad.1);
        if padded < reach {
            let (WindowAxis { len, .. }, (low, high)) = (self, self.pad);
            return Err(format!(
                "a window that reaches over {reach} elements does not fit into {len} elements padded by {low} and {high}"
            ));
        }
        Ok((padded - reach) / self.stride + 1)
    }

    /// The element that window `o` reads at its place `k`, where there is one.
    pub fn element(&self, o: usize, k: usize) -> Option<usize> {
        let place = (o * self.stride + k * self.dilation).checked_sub(self.pad.0)?;
        (place < self.len).then_some(place)
    }

    /// The places of window `o` that lie on elements. Needs a dilation of 1.
    pub fn taps(&self, o: usize) -> Range<usize> {
        let start = o * self.stride;
        let low = self.pad.0.saturating_sub(start).min(self.window);
        let high = (self.len + self.pad.0).saturating_sub(start).min(self.window);
        low..high.max(low)
    }

    /// The windows that read element `i`, of those that exist. Needs a dilation of 1.
    pub fn covering(&self, i: usize) -> Range<usize> {
        let place = i + self.pad.0;
        let last = (self.len + self.pad.0 + self.pad.1 - self.window) / self.stride;
        let first = (place + 1).saturating_sub(self.window).div_ceil(self.stride);
        first..((place / self.stride).min(last) + 1).max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_and_covering_windows_are_two_views_of_one_relation() {
        for len in 1..8 {
            for window in 1..5 {
                for stride in 1..5 {
                    for pad in [(0, 0), (1, 0), (0, 2), (3, 3)] {
                        let axis = WindowAxis { len, window, stride, pad, dilation: 1 };
                        let Ok(outputs) = axis.outputs() else { continue };
                        for o in 0..outputs {
                            for i in 0..len {
                                let reads = (0..window).any(|k| axis.element(o, k) == Some(i));
                                let taps = axis.taps(o).any(|k| o * stride + k == i + pad.0);
                                assert_eq!(reads, taps, "{axis:?} window {o} element {i}");
                                assert_eq!(
                                    reads,
                                    axis.covering(i).contains(&o),
                                    "{axis:?} window {o} element {i}"
                                );
                            }
                            assert!(
                                axis.taps(o).all(|k| axis.element(o, k).is_some()),
                                "{axis:?} window {o}"
                            );
                        }
                        assert!((0..len).all(|i| axis.covering(i).end <= outputs), "{axis:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_window_that_does_not_fit_is_refused_with_its_sizes() {
        let axis = WindowAxis { len: 4, window: 3, stride: 1, pad: (0, 1), dilation: 3 };
        let why = axis.outputs().unwrap_err();
        assert!(why.contains("7 elements") && why.contains("into 4 elements padded by 0 and 1"), "{why}");
        assert!(WindowAxis { stride: 0, ..axis }.outputs().unwrap_err().contains("at least 1"));
    }
}
