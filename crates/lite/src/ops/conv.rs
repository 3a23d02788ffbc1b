//! CONV_2D, and what all convolutions share: windows, types of weights, how results of bytes are scaled.

use super::layer::{Layer, Weights, Window};
use super::products::{BLOCK, Kernel, Operands, Products, Sum};
use super::window::Span;
use super::{Call, Store, byte_range, fast};
use crate::bytes::{chunks, f, half, i};
use crate::error::Result;
use crate::quant::Rounding;
use crate::schema::Type;
use crate::tensor::Tensor;

/// A convolution.
#[derive(Debug)]
pub struct Conv {
    pub y: Span,
    pub x: Span,
    pub in_channels: usize,
    pub out_channels: usize,
    /// How many channels of the operand one of the result reads; for a depthwise one, how many of the result one of the operand makes.
    pub deep: usize,
    pub numbers: Numbers,
    pub packed: Option<fast::Packed>,
}

/// What operands, weights and results are.
#[derive(Clone, Copy, Debug)]
pub enum Numbers {
    Floats(Floats),
    Bytes(Bytes),
}

/// Floats by weights that are floats, half floats or bytes.
#[derive(Clone, Copy, Debug)]
pub struct Floats {
    pub weights: Type,
    pub bias: Type,
    /// Where in the store the scales of weights are that are bytes.
    pub scales: usize,
    pub low: f32,
    pub high: f32,
}

/// Bytes by bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    pub in_zero: i32,
    pub out_zero: i32,
    /// Where in the store the channels' scales are.
    pub scales: usize,
    pub low: i32,
    pub high: i32,
}

/// Checks types, weights and bias of something that multiplies with weights. `channels` of the result lie along `axis` of the weights.
pub fn numbers(
    call: &Call<'_, '_>,
    store: &mut Store,
    [x, weights, out]: [&Tensor<'_>; 3],
    bias: Option<&Tensor<'_>>,
    (axis, channels): (usize, usize),
    range: (f32, f32),
) -> Result<Numbers> {
    call.same_type(x, out)?;
    if let Some(bias) = bias {
        call.ensure(bias.shape.count() == channels, "its bias has another length than its channels")?;
    }
    if weights.kind == Type::I8 {
        call.ensure(!weights.scales.is_empty(), "its weights have no scale")?;
        call.ensure(
            weights.scales.len() == 1 || weights.axis == axis,
            "its weights' scales lie along another dimension",
        )?;
        call.ensure(
            (0..weights.zeros.len()).all(|index| weights.zero(index) == 0),
            "its weights' zero points are not zero",
        )?;
    }
    match x.kind {
        Type::F32 => {
            let fits = matches!(weights.kind, Type::F32 | Type::F16 | Type::I8);
            call.ensure(fits, "its weights are none of float32, float16 and int8")?;
            let bias = bias.map_or(Type::F32, |bias| bias.kind);
            call.ensure(matches!(bias, Type::F32 | Type::F16), "its bias is neither float32 nor float16")?;
            let scales = if weights.kind == Type::I8 {
                store.add_floats(channels, |channel| weights.scale(channel))?
            } else {
                0
            };
            let (low, high) = range;
            Ok(Numbers::Floats(Floats { weights: weights.kind, bias, scales, low, high }))
        }
        Type::I8 => {
            call.ensure(weights.kind == Type::I8, "its weights are not int8")?;
            call.ensure(bias.is_none_or(|bias| bias.kind == Type::I32), "its bias is not int32")?;
            let (from, to) = (call.affine(x)?, call.affine(out)?);
            let scales = store.add_scales(call, channels, |channel| {
                // In floats, as XNNPACK computes it, so that what is nearly a half is rounded as there.
                Some(f64::from(from.scale * weights.scale(channel)? / to.scale))
            })?;
            let (low, high) = byte_range(range, to);
            Ok(Numbers::Bytes(Bytes {
                in_zero: from.zero,
                out_zero: to.zero,
                scales,
                low,
                high: high.max(low),
            }))
        }
        _ => call.refuse("its type is neither float32 nor int8"),
    }
}

/// What kinds of convolution differ in.
pub struct Kind {
    /// The option with the activation; the dilations stand behind it.
    pub activation: usize,
    /// The axis of the weights along which the result's channels are.
    pub axis: usize,
    /// Numbers of a row of weights.
    pub row: usize,
    /// How its weights are packed, where they can be.
    pub pack: Option<Pack>,
}

/// Packs weights for the kernels of this machine, if it has any.
pub type Pack = fn(&mut Store, &Weights<'_, '_>, &Window) -> Option<fast::Packed>;

impl Kind {
    /// A convolution of operand, weights and result whose batches and channels fit.
    pub fn prepare(
        &self,
        call: &Call<'_, '_>,
        store: &mut Store,
        operands: [&Tensor<'_>; 3],
        deep: usize,
    ) -> Result<Conv> {
        let [of_x, of_weights, of_out] = call.fours(operands)?;
        let ([_, weights, _], bias, [out_batch, out_height, out_width, channels]) =
            (operands, call.optional(2), of_out);
        let padding = call.option_byte(0)?;
        let span = |axis: usize, stride: usize, dilation: usize| {
            let (stride, dilation) = (call.option(stride, 0)?, call.option(dilation, 1)?);
            let border = call.border(0)[axis - 1];
            let length = of_x[axis].saturating_add(border[0]).saturating_add(border[1]);
            let span = Span::new(call, padding, length, of_out[axis], of_weights[axis], stride, dilation)?;
            Ok(span.without(border))
        };
        let (y, x) = (span(1, 2, self.activation + 2)?, span(2, 1, self.activation + 1)?);
        // A picture cut into patches is one of wider pixels, each of them a row of a patch: fewer and longer products.
        let is_cut = self.axis == 0
            && deep == of_x[3]
            && [x.step, x.dilation, x.before, x.places * x.size] == [x.size, 1, 0, x.length];
        let (wide, x) =
            if is_cut { (x.size, Span { length: x.places, size: 1, step: 1, ..x }) } else { (1, x) };
        let range = call.activation(self.activation)?;
        let numbers = numbers(call, store, operands, bias, (self.axis, channels), range)?;
        let (taps, pixels) = (of_weights[1] * of_weights[2] / wide, out_batch * out_height * out_width);
        let row = self.row * wide;
        let what = Weights { numbers: &numbers, weights, bias, taps, deep: row, channels, pixels };
        let in_channels = of_x[3] * wide;
        let window = Window { y, x, channels: in_channels };
        let packed = self.pack.and_then(|pack| pack(store, &what, &window));
        Ok(Conv { y, x, in_channels, out_channels: channels, deep: deep * wide, numbers, packed })
    }
}

/// Checks a CONV_2D.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Conv> {
    let operands = [call.input(0)?, call.input(1)?, call.output(0)?];
    let [[batch, .., in_channels], [channels, .., deep], [out_batch, .., out_channels]] =
        call.fours(operands)?;
    call.ensure(batch == out_batch && channels == out_channels, "its result has another shape")?;
    call.ensure(in_channels % deep == 0, "its weights do not fit the channels of its operand")?;
    call.ensure(out_channels % (in_channels / deep) == 0, "its groups do not divide its channels")?;
    let pack = (deep == in_channels).then_some(fast::pack_window as Pack);
    Kind { activation: 3, axis: 0, row: deep, pack }.prepare(call, store, operands, deep)
}

/// Computes a CONV_2D.
pub fn run(conv: &Conv, operands: Operands<'_>, out: &mut [u8]) -> Result<()> {
    match &conv.packed {
        Some(packed) => fast::run(&conv.layer(packed, operands), &conv.numbers, out),
        None => {
            conv.numbers.run(conv, operands, out);
            Ok(())
        }
    }
}

impl Numbers {
    /// How many bytes a number of the operand or the result has.
    pub fn width(&self) -> usize {
        match self {
            Self::Floats(_) => 4,
            Self::Bytes(_) => 1,
        }
    }
}

impl Floats {
    /// The bias of a channel.
    #[inline(always)]
    pub fn bias(&self, bias: Option<&[u8]>, channel: usize) -> f32 {
        match (bias, self.bias) {
            (Some(bias), Type::F32) => f(chunks::<4>(bias)[channel]),
            (Some(bias), _) => half(chunks::<2>(bias)[channel]),
            (None, _) => 0.0,
        }
    }

    /// A sum of products as a result: scaled where weights are bytes, with the bias, within the activation's range.
    #[inline(always)]
    pub fn finish(&self, store: &Store, sum: f32, bias: Option<&[u8]>, channel: usize) -> [u8; 4] {
        let sum = if self.weights == Type::I8 { sum * store.reals[self.scales + channel] } else { sum };
        (sum + self.bias(bias, channel)).max(self.low).min(self.high).to_le_bytes()
    }
}

impl Bytes {
    /// How results are made of scaled sums.
    pub fn rounding(&self) -> Rounding {
        Rounding::new(self.low, self.high, self.out_zero)
    }

    /// A sum of products as a byte.
    #[inline(always)]
    pub fn finish(&self, store: &Store, sum: i32, bias: Option<&[u8]>, channel: usize) -> u8 {
        let bias = bias.map_or(0, |bias| i(chunks::<4>(bias)[channel]));
        self.rounding().byte(sum.wrapping_add(bias) as f32 * store.reals[self.scales + channel])
    }
}

/// The sum of products of floats with weights of `N` bytes, in eight sums that a processor adds at once.
#[inline(always)]
pub fn dot<const N: usize>(x: &[[u8; 4]], weights: &[[u8; N]], get: impl Fn([u8; N]) -> f32) -> f32 {
    let mut sums = [0.0f32; 8];
    let (x_eights, x_rest) = x.as_chunks::<8>();
    let (w_eights, w_rest) = weights.as_chunks::<8>();
    for (x, w) in x_eights.iter().zip(w_eights) {
        for lane in 0..8 {
            sums[lane] += f(x[lane]) * get(w[lane]);
        }
    }
    for (lane, (x, w)) in x_rest.iter().zip(w_rest).enumerate() {
        sums[lane] += f(*x) * get(*w);
    }
    (sums[0] + sums[4]) + (sums[1] + sums[5]) + ((sums[2] + sums[6]) + (sums[3] + sums[7]))
}

/// The sum of products of bytes, each less the operand's zero point.
#[inline(always)]
pub fn dot_bytes(x: &[u8], weights: &[u8], zero: i32) -> i32 {
    let zero = zero as i16;
    x.iter().zip(weights).fold(0i32, |sum, (x, w)| {
        // A byte less a zero point is within 16 bits, of which processors multiply and add pairs.
        let x = i16::from(*x as i8) - zero;
        sum.wrapping_add(i32::from(x) * i32::from(i16::from(*w as i8)))
    })
}

impl Kernel for Conv {
    #[inline(always)]
    fn run<P: Products>(&self, products: &P, x: &[P::X], weights: &[P::Weight], out: &mut [P::X]) {
        let (deep, taps) = (self.deep, self.y.size * self.x.size);
        let mut places = [None; TAPS];
        for (pixel, out) in out.chunks_exact_mut(self.out_channels).enumerate() {
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let mut sums = [P::Sum::default(); BLOCK];
                for first in (0..taps).step_by(TAPS) {
                    let places = &mut places[..TAPS.min(taps - first)];
                    // A window of one piece stays located for all channels of a pixel.
                    if taps > TAPS || block == 0 {
                        self.locate(pixel, first, places);
                    }
                    for (lane, sum) in sums.iter_mut().enumerate().take(out.len()) {
                        let (start, row) = self.row(block * BLOCK + lane, first);
                        // No closure, which would not be compiled for the processor's widest vectors.
                        for (tap, from) in places.iter().enumerate() {
                            let Some(from) = from else { continue };
                            let (from, at) = (from + start, (row + tap) * deep);
                            *sum = sum.plus(products.dot(&x[from..from + deep], &weights[at..at + deep]));
                        }
                    }
                }
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = products.finish(sums[lane], block * BLOCK + lane);
                }
            }
        }
    }
}

/// How many elements of a window are located at once.
const TAPS: usize = 64;

/// Where a tap of a window begins in the operand; none outside the picture.
type Tap = Option<usize>;

impl Conv {
    /// The convolution with packed weights.
    pub fn layer<'r>(&self, packed: &'r fast::Packed, operands: Operands<'r>) -> Layer<'r> {
        let window = Window { y: self.y, x: self.x, channels: self.in_channels };
        Layer { packed, store: operands.store, window, x: operands.x }
    }

    /// Where the operand of some elements of the window begins, from the one of that number on, for a pixel of the result.
    fn locate(&self, pixel: usize, first: usize, taps: &mut [Tap]) {
        let (place_x, rest) = (pixel % self.x.places, pixel / self.x.places);
        let (place_y, batch) = (rest % self.y.places, rest / self.y.places);
        for (tap, to) in taps.iter_mut().enumerate() {
            let tap = first + tap;
            let (y, x) = (self.y.at(place_y, tap / self.x.size), self.x.at(place_x, tap % self.x.size));
            *to = y.zip(x).map(|(y, x)| ((batch * self.y.length + y) * self.x.length + x) * self.in_channels);
        }
    }

    /// Which of a pixel's elements are the first that a channel of the result reads, and which row of weights is that of the window's element `first`.
    #[inline(always)]
    fn row(&self, channel: usize, first: usize) -> (usize, usize) {
        let groups = self.in_channels / self.deep;
        let group = if groups == 1 { 0 } else { channel / (self.out_channels / groups) };
        (group * self.deep, channel * self.y.size * self.x.size + first)
    }
}
