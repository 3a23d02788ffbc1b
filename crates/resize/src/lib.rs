//! Turns pixels of one size into pixels of another by a triangle filter.
//!
//! A crate of its own, and so small, because the library's kernels are compiled where they are called: hundreds of them for every type
//! of pixel, which takes minutes. Here they are compiled once, and not again with the tests of whoever resizes.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{
    FilterType, ImageBufferError, PixelTrait, ResizeAlg, ResizeError, ResizeOptions, Resizer,
};

/// Why an image is not resized.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Pixels that are neither gray nor of three colors.
    #[error("images have 1 channel (gray) or 3 (color)")]
    Channels,
    /// There are not as many bytes as the size says.
    #[error(transparent)]
    Buffer(#[from] ImageBufferError),
    /// The library refuses what is asked of it.
    #[error(transparent)]
    Resize(#[from] ResizeError),
}

/// Resizes by a triangle filter as wide as the scale, so that shrinking averages instead of skipping pixels. It keeps the room that one
/// image took for the next.
///
/// ```
/// let mut half = [0; 2];
/// let whole = [1.0, 4.0];
/// plimsoll_resize::Triangle::default().resize(&[0, 100, 100, 200], [4, 1], 1, whole, [2, 1], &mut half)?;
/// assert_eq!(half, [57, 143]);
/// # Ok::<(), plimsoll_resize::Error>(())
/// ```
#[derive(Default)]
pub struct Triangle(Resizer);

impl Triangle {
    /// Bytes that it keeps for the next image.
    pub fn kept_bytes(&self) -> usize {
        self.0.size_of_internal_buffers()
    }

    /// Gives them back.
    pub fn forget(&mut self) {
        self.0.reset_internal_buffers();
    }

    /// Resizes the first rows and columns of `pixels`, `part` of them, which may be fractions, into `out`. `from` and `to` are width
    /// and height.
    ///
    /// # Errors
    /// The pixels have other than 1 or 3 channels, a buffer is not as long as its size says, or the part is larger than the image.
    pub fn resize(
        &mut self,
        pixels: &[u8],
        from: [u32; 2],
        channels: usize,
        part: [f64; 2],
        to: [u32; 2],
        out: &mut [u8],
    ) -> Result<(), Error> {
        match channels {
            1 => resized::<U8>(&mut self.0, pixels, from, part, to, out),
            3 => resized::<U8x3>(&mut self.0, pixels, from, part, to, out),
            _ => Err(Error::Channels),
        }
    }
}

/// Resizes pixels of one type. By type, since the library would else compile its kernels for every type that could come.
fn resized<P: PixelTrait>(
    resizer: &mut Resizer,
    pixels: &[u8],
    from: [u32; 2],
    part: [f64; 2],
    to: [u32; 2],
    out: &mut [u8],
) -> Result<(), Error> {
    let from = TypedImageRef::<P>::from_buffer(from[0], from[1], pixels)?;
    let mut to = TypedImage::<P>::from_buffer(to[0], to[1], out)?;
    let triangle = ResizeAlg::Convolution(FilterType::Bilinear);
    let options = ResizeOptions::new().resize_alg(triangle).use_alpha(false);
    let options = options.crop(0.0, 0.0, part[1], part[0]);
    Ok(resizer.resize_typed(&from, &mut to, &options)?)
}
