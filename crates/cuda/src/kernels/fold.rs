//! Turns a convolution of few channels, such as the first one over images, into one of more channels and no stride.
//!
//! Tensor cores take channels by eight. A library that meets images of three channels pads them to eight, and with a stride
//! of two loads four times as many pixels as a row of outputs shares. Squares of stride by stride pixels as channels make of
//! a stride of two over three channels a stride of one over twelve, padded to sixteen: half the memory, and nothing is
//! loaded twice.

use plimsoll_graph::DType;

use crate::Cuda;
use crate::dnn::Shape;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("fold.cu");
/// Channels that are few.
const FEW: usize = 4;
/// Channels that tensor cores take together.
const TOGETHER: usize = 8;

/// A convolution and what it is folded to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    whole: Shape,
    pub folded: Shape,
    dtype: DType,
}

impl Fold {
    /// The folded convolution, where folding is of use: 16-bit numbers of few channels, squares, no holes in the window.
    pub(super) fn of(whole: &Shape, dtype: DType) -> Option<Fold> {
        let factor = whole.stride[0];
        let fits = matches!(dtype, DType::BF16 | DType::F16)
            && (1..=FEW).contains(&whole.channels)
            && whole.stride == [factor; 2]
            && (1..=4).contains(&factor)
            && whole.dilation == [1; 2]
            && whole.groups == 1
            && whole.out.iter().chain(&whole.window).all(|&n| n > 0);
        if !fits {
            return None;
        }
        let window = whole.window.map(|n| n.div_ceil(factor));
        let size = [0, 1].map(|i| whole.out[i] + window[i] - 1);
        let channels = (factor * factor * whole.channels).next_multiple_of(TOGETHER);
        let folded = Shape { size, channels, window, stride: [1; 2], pad: [(0, 0); 2], ..*whole };
        Some(Fold { whole: *whole, folded, dtype })
    }

    /// The bytes of folded images.
    pub(super) fn image_bytes(&self) -> usize {
        let Shape { images, size, channels, .. } = self.folded;
        images * size[0] * size[1] * channels * self.dtype.bytes()
    }

    unsafe fn launch(
        &self,
        cuda: &Cuda,
        kernel: &str,
        n: usize,
        from: *mut u8,
        to: *mut u8,
    ) -> Result<(), Error> {
        let (whole, folded) = (&self.whole, &self.folded);
        let mut code = Code::of("fold", TEXT, self.dtype);
        // Elements are moved and not computed with; all types that are folded have two bytes.
        code.head = "typedef u16 T;\n".into();
        let code = code.with("F", whole.stride[0]).with("C", whole.channels).with("DEEP", folded.channels);
        let args = Args::new()
            .at(from)
            .at(to)
            .int(whole.images)
            .ints(whole.size, 2, 1)
            .ints(folded.size, 2, 1)
            .ints(whole.pad.map(|(low, _)| low), 2, 0)
            .int(whole.filters)
            .ints(whole.window, 2, 1);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, kernel, Grid::each(n), &args) }
    }

    /// Folds images.
    ///
    /// # Safety
    /// Both must be live memory of the device, of as many elements as the shapes say.
    pub(super) unsafe fn images(&self, cuda: &Cuda, from: *mut u8, to: *mut u8) -> Result<(), Error> {
        let Shape { images, size, .. } = self.folded;
        // SAFETY: the caller's promise.
        unsafe { self.launch(cuda, "fold_images", images * size[0] * size[1], from, to) }
    }

    /// Folds a filter.
    ///
    /// # Safety
    /// As for [`Fold::images`].
    pub(super) unsafe fn filter(&self, cuda: &Cuda, from: *mut u8, to: *mut u8) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(cuda, "fold_filter", self.folded.taps() * self.folded.filters, from, to) }
    }

    /// Brings a folded filter back.
    ///
    /// # Safety
    /// As for [`Fold::images`].
    pub(super) unsafe fn unfold_filter(&self, cuda: &Cuda, from: *mut u8, to: *mut u8) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(cuda, "unfold_filter", self.whole.taps() * self.whole.filters, from, to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Shape = Shape {
        images: 2,
        size: [9, 12],
        out: [5, 6],
        filters: 6,
        window: [5, 7],
        stride: [2, 2],
        pad: [(2, 2), (3, 3)],
        ..Shape::EXAMPLE
    };

    /// What folding means, element by element.
    fn folded(whole: &Shape, folded: &Shape, x: &[u16]) -> Vec<u16> {
        let (factor, mut to) = (whole.stride[0], Vec::new());
        for n in 0..whole.images {
            for (h, w) in (0..folded.size[0]).flat_map(|h| (0..folded.size[1]).map(move |w| (h, w))) {
                for e in 0..folded.channels {
                    let (square, c) = (e / whole.channels, e % whole.channels);
                    let row = (h * factor + square / factor).checked_sub(whole.pad[0].0);
                    let column = (w * factor + square % factor).checked_sub(whole.pad[1].0);
                    to.push(match (row, column) {
                        (Some(row), Some(column))
                            if square < factor * factor && row < whole.size[0] && column < whole.size[1] =>
                        {
                            x[((n * whole.size[0] + row) * whole.size[1] + column) * whole.channels + c]
                        }
                        _ => 0,
                    });
                }
            }
        }
        to
    }

    #[test]
    fn squares_become_channels_and_filters_come_back() {
        let Some(cuda) = plimsoll_testing::group("emulator", Cuda::emulated()) else { return };
        for whole in [WHOLE, Shape { stride: [1, 1], out: [9, 12], ..WHOLE }, Shape { channels: 1, ..WHOLE }]
        {
            let fold = Fold::of(&whole, DType::BF16).unwrap();
            let elements = whole.images * whole.size[0] * whole.size[1] * whole.channels;
            let mut x: Vec<u16> = (0..elements).map(|i| i as u16 + 1).collect();
            // Aligned as operands are.
            let mut y = vec![[7u64; 2]; fold.image_bytes().div_ceil(16)];
            // SAFETY: both live in the host's memory, which is the emulator's, and are as long as is said.
            unsafe { fold.images(&cuda, x.as_mut_ptr().cast(), y.as_mut_ptr().cast()) }.unwrap();
            let found: Vec<u16> =
                y.iter().flatten().flat_map(|n| (0..4).map(move |i| (n >> (16 * i)) as u16)).collect();
            assert_eq!(found, folded(&whole, &fold.folded, &x));
            let mut w: Vec<u16> = (0..whole.taps() * whole.filters).map(|i| i as u16 + 1).collect();
            let mut back = vec![0u16; w.len()];
            let mut small = vec![7u16; fold.folded.taps() * fold.folded.filters];
            // SAFETY: as above.
            unsafe {
                fold.filter(&cuda, w.as_mut_ptr().cast(), small.as_mut_ptr().cast()).unwrap();
                fold.unfold_filter(&cuda, small.as_mut_ptr().cast(), back.as_mut_ptr().cast()).unwrap();
            }
            assert_eq!(back, w);
            assert_eq!(small.iter().filter(|&&n| n > 0).count(), w.len());
        }
    }

    #[test]
    fn many_channels_groups_and_wide_numbers_are_left_alone() {
        let whole = Shape { size: [8, 8], out: [4, 4], window: [3, 3], pad: [(1, 1); 2], ..WHOLE };
        let folded = Fold::of(&whole, DType::F16).unwrap().folded;
        assert_eq!(
            (folded.size, folded.channels, folded.window, folded.stride),
            ([5, 5], 16, [2, 2], [1, 1])
        );
        assert!(Fold::of(&whole, DType::F32).is_none());
        assert!(Fold::of(&Shape { channels: 8, ..whole }, DType::F16).is_none());
        assert!(Fold::of(&Shape { groups: 3, ..whole }, DType::F16).is_none());
        assert!(Fold::of(&Shape { dilation: [2, 2], ..whole }, DType::F16).is_none());
        assert!(Fold::of(&Shape { stride: [2, 1], ..whole }, DType::F16).is_none());
    }
}
