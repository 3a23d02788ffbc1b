//! The sizes of a convolution, and what follows from them.

/// A two-dimensional convolution over NHWC images with an HWIO filter: the input is
/// `[batch, in_h, in_w, in_c]`, the filter `[kernel_h, kernel_w, in_c / groups, out_c]`, the output
/// `[batch, out_h, out_w, out_c]`. One-dimensional ones have a height of 1.
///
/// ```
/// use plimsoll_cpu::conv::ConvShape;
/// let shape = ConvShape { pad_h: (1, 1), pad_w: (1, 1), ..ConvShape::new([8, 56, 56, 64], [3, 3], 64) };
/// assert_eq!((shape.out_h(), shape.out_w()), (56, 56));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// Images.
    pub batch: usize,
    /// Lines of an input image.
    pub in_h: usize,
    /// Pixels of an input line.
    pub in_w: usize,
    /// Channels of an input pixel.
    pub in_c: usize,
    /// Channels of an output pixel.
    pub out_c: usize,
    /// Lines of the filter.
    pub kernel_h: usize,
    /// Pixels of a filter line.
    pub kernel_w: usize,
    /// Input lines from one output line to the next.
    pub stride_h: usize,
    /// Input pixels from one output pixel to the next.
    pub stride_w: usize,
    /// Lines of zeros above and below.
    pub pad_h: (usize, usize),
    /// Zeros left and right.
    pub pad_w: (usize, usize),
    /// Input lines from one filter line to the next.
    pub dilation_h: usize,
    /// Input pixels from one filter pixel to the next.
    pub dilation_w: usize,
    /// Parts that the channels are cut into; every part is convolved by itself.
    pub groups: usize,
}

impl ConvShape {
    /// Stride 1, no padding, no dilation, one group; `input` is `[batch, height, width, channels]`.
    pub fn new(input: [usize; 4], kernel: [usize; 2], out_c: usize) -> ConvShape {
        let [batch, in_h, in_w, in_c] = input;
        ConvShape {
            batch,
            in_h,
            in_w,
            in_c,
            out_c,
            kernel_h: kernel[0],
            kernel_w: kernel[1],
            stride_h: 1,
            stride_w: 1,
            pad_h: (0, 0),
            pad_w: (0, 0),
            dilation_h: 1,
            dilation_w: 1,
            groups: 1,
        }
    }

    /// Lines of an output image; 0 where the filter does not fit.
    pub fn out_h(&self) -> usize {
        self.axis_h().out_len()
    }

    /// Pixels of an output line; 0 where the filter does not fit.
    pub fn out_w(&self) -> usize {
        self.axis_w().out_len()
    }

    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_h * self.in_w * self.in_c
    }

    /// Elements of the filter.
    pub fn filter_len(&self) -> usize {
        self.kernel_h * self.kernel_w * self.group_in() * self.out_c
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.out_pixels() * self.out_c
    }

    /// Multiplications and additions of one pass (forward, data gradient or filter gradient), padding included.
    pub fn flops(&self) -> f64 {
        2.0 * self.output_len() as f64 * (self.kernel_h * self.kernel_w * self.group_in()) as f64
    }

    /// Whether every channel is convolved by itself with one filter.
    pub fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.in_c && self.groups == self.out_c
    }

    /// Whether the convolution is a plain matrix product of pixels and channels.
    pub(crate) fn is_pointwise(&self) -> bool {
        let axis = |a: Axis| a.kernel == 1 && a.stride == 1 && a.pad == (0, 0);
        axis(self.axis_h()) && axis(self.axis_w())
    }

    pub(crate) fn out_pixels(&self) -> usize {
        self.batch * self.out_h() * self.out_w()
    }

    pub(crate) fn group_in(&self) -> usize {
        self.in_c / self.groups.max(1)
    }

    pub(crate) fn group_out(&self) -> usize {
        self.out_c / self.groups.max(1)
    }

    pub(crate) fn axis_h(&self) -> Axis {
        let (len, kernel, stride, pad, dilation) =
            (self.in_h, self.kernel_h, self.stride_h, self.pad_h, self.dilation_h);
        Axis { len, kernel, stride, pad, dilation }
    }

    pub(crate) fn axis_w(&self) -> Axis {
        let (len, kernel, stride, pad, dilation) =
            (self.in_w, self.kernel_w, self.stride_w, self.pad_w, self.dilation_w);
        Axis { len, kernel, stride, pad, dilation }
    }

    /// Panics unless the sizes make sense and the slices have them: what follows trusts raw pointers.
    pub(crate) fn check(&self, input: usize, filter: usize, output: usize) {
        assert!(
            self.groups > 0 && self.in_c.is_multiple_of(self.groups),
            "groups do not divide the input channels"
        );
        assert!(self.out_c.is_multiple_of(self.groups), "groups do not divide the output channels");
        assert!(self.stride_h > 0 && self.stride_w > 0, "a stride is zero");
        assert!(self.dilation_h > 0 && self.dilation_w > 0, "a dilation is zero");
        assert!(input >= self.input_len(), "the input is shorter than its shape");
        assert!(filter >= self.filter_len(), "the filter is shorter than its shape");
        assert!(output >= self.output_len(), "the output is shorter than its shape");
    }
}

/// One axis of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub len: usize,
    pub kernel: usize,
    pub stride: usize,
    pub pad: (usize, usize),
    pub dilation: usize,
}

/// The filter taps along one axis, as places in the image that they read: output position q and tap t read
/// position `q * stride + offset + t * step`, where it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taps {
    pub count: usize,
    pub stride: usize,
    pub offset: isize,
    pub step: usize,
    /// Filter index of tap 0.
    pub kernel_first: isize,
    /// From one tap's filter index to the next one's.
    pub kernel_step: isize,
}

impl Taps {
    /// Filter index of a tap.
    pub(crate) fn kernel(&self, tap: usize) -> usize {
        (self.kernel_first + tap as isize * self.kernel_step) as usize
    }
}

impl Axis {
    pub(crate) fn out_len(&self) -> usize {
        let padded = self.len + self.pad.0 + self.pad.1;
        let reach = self.dilation * self.kernel.saturating_sub(1) + 1;
        if self.kernel == 0 || padded < reach { 0 } else { (padded - reach) / self.stride + 1 }
    }

    /// What the outputs read of the input.
    pub(crate) fn forward(&self) -> Taps {
        Taps {
            count: self.kernel,
            stride: self.stride,
            offset: -(self.pad.0 as isize),
            step: self.dilation,
            kernel_first: 0,
            kernel_step: 1,
        }
    }

    /// What the inputs `phase, phase + stride, …` read of the output's gradient. Input i meets output o through
    /// filter index k where `i + pad = o * stride + k * dilation`; for a fixed phase the solutions k lie
    /// `stride / gcd` apart, and o moves by `dilation / gcd` from one to the next.
    pub(crate) fn backward(&self, phase: usize) -> Taps {
        let (stride, dilation) = (self.stride, self.dilation);
        let gcd = gcd(stride, dilation);
        let kernel_step = stride / gcd;
        let place = phase + self.pad.0;
        let meets = |k: usize| (place as isize - (k * dilation) as isize).rem_euclid(stride as isize) == 0;
        let first = (0..kernel_step.min(self.kernel)).find(|&k| meets(k));
        let count = first.map_or(0, |k| (self.kernel - 1 - k) / kernel_step + 1);
        // The last filter index reads the lowest output, so the taps go backwards through the filter.
        let last = first.unwrap_or(0) + count.saturating_sub(1) * kernel_step;
        Taps {
            count,
            stride: 1,
            offset: (place as isize - (last * dilation) as isize).div_euclid(stride as isize),
            step: dilation / gcd,
            kernel_first: last as isize,
            kernel_step: -(kernel_step as isize),
        }
    }

    /// Inputs of a phase.
    pub(crate) fn phase_len(&self, phase: usize) -> usize {
        self.len.saturating_sub(phase).div_ceil(self.stride)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_find_exactly_the_pairs_that_the_forward_pass_uses() {
        for (len, kernel, stride, pad, dilation) in [
            (7, 3, 1, 1, 1),
            (9, 3, 2, 1, 1),
            (10, 5, 3, 2, 2),
            (8, 2, 2, 0, 1),
            (11, 3, 4, 0, 2),
            (5, 1, 2, 0, 3),
        ] {
            let axis = Axis { len, kernel, stride, pad: (pad, pad), dilation };
            let mut forward = Vec::new();
            for o in 0..axis.out_len() {
                for k in 0..kernel {
                    let i = (o * stride + k * dilation) as isize - pad as isize;
                    if (0..len as isize).contains(&i) {
                        forward.push((i as usize, o, k));
                    }
                }
            }
            let mut backward = Vec::new();
            for phase in 0..stride {
                let taps = axis.backward(phase);
                for q in 0..axis.phase_len(phase) {
                    for t in 0..taps.count {
                        let o = q as isize + taps.offset + (t * taps.step) as isize;
                        if (0..axis.out_len() as isize).contains(&o) {
                            backward.push((phase + q * stride, o as usize, taps.kernel(t)));
                        }
                    }
                }
            }
            forward.sort_unstable();
            backward.sort_unstable();
            assert_eq!(forward, backward, "{axis:?}");
        }
    }
}
