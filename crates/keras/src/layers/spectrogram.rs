//! Layers that turn sound into how strong each of its frequencies is, moment by moment.

use std::f64::consts::{LN_10, TAU};

use plimsoll_graph::{DType, GatherOps, Shape, TensorOps};
use plimsoll_run::{Result as RunResult, Tensor};

use super::{Table, trained};
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::settings::Settings;

/// What Keras takes for the least strength.
const EPSILON: f64 = 1e-7;
/// The scale of pitches: 1127 ln(1 + f / 700).
const PITCH: (f64, f64) = (1127.0, 700.0);

pub(crate) const TABLE: Table = &[("STFTSpectrogram", stft), ("MelSpectrogram", mel)];

/// Where a frame of a sound begins and what its samples are, as places along an axis of `length`: some before the beginning, some
/// behind the end.
struct Frames {
    starts: Vec<i64>,
    length: usize,
}

impl Frames {
    /// The frames of `[.., T]` as `[.., frames, length]`. Around the sound lie zeros, or it is mirrored.
    fn of(&self, x: &Tensor, is_mirrored: bool) -> RunResult<Tensor> {
        let axis = x.shape().rank() - 1;
        let n = x.shape()[axis] as i64;
        let (before, behind) = match (self.starts.first(), self.starts.last()) {
            (Some(first), Some(last)) => ((-first).max(0), (last + self.length as i64 - n).max(0)),
            _ => return Err(refuse(format!("gives {} to a spectrogram of longer frames", x.ty()))),
        };
        let place = |at: i64| match is_mirrored {
            true if n > 1 => {
                let along = at.rem_euclid(2 * (n - 1));
                along.min(2 * (n - 1) - along)
            }
            true => 0,
            false => at + before,
        };
        let wide = if is_mirrored || before + behind == 0 {
            x.clone()
        } else {
            let mut sides = vec![(0, 0); axis + 1];
            sides[axis] = (before as usize, behind as usize);
            x.pad(&sides, 0.0)?
        };
        let places: Vec<i64> = self
            .starts
            .iter()
            .flat_map(|start| (0..self.length as i64).map(move |i| start + i))
            .map(place)
            .collect();
        let places = Tensor::from_slice(&places, [self.starts.len(), self.length])?;
        wide.gather(&places, axis as isize)
    }
}

fn stft(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let mode = s.text_or("mode", "log")?.to_string();
    if !["log", "magnitude", "psd", "real", "imag", "stft"].contains(&mode.as_str()) {
        return Err(s.wrong("mode", "log, magnitude, psd, real, imag and stft are known"));
    }
    let frame = s.units("frame_length")?;
    let step = if s.is_null("frame_step") { frame / 2 } else { s.units("frame_step")? }.max(1);
    let fft = if s.is_null("fft_length") { frame.next_power_of_two() } else { s.units("fft_length")? };
    let is_same = match s.text_or("padding", "valid")? {
        "valid" => false,
        "same" => true,
        _ => return Err(s.wrong("padding", "valid and same are known")),
    };
    let expands = s.flag("expand_dims", false)?;
    // What is in the kernels already.
    for key in ["window", "periodic", "scaling"] {
        s.get(key);
    }
    let bins = fft / 2 + 1;
    let mut weights = Vec::new();
    for (name, without) in [("real_kernel", "imag"), ("imag_kernel", "real")] {
        if mode != without {
            weights.push(trained(s, name, &format!("{name}_regularizer"))?);
        }
    }
    let init = s.init("kernel_initializer", frame, bins);
    Ok(Made::weighted(weights, move |cx, x| {
        let &[n, time, channels] = &x.shape()[..] else {
            return Err(refuse(format!("gives {} to a spectrogram, which takes [B, T, C]", x.ty())));
        };
        let count = if is_same { time.div_ceil(step) } else { (time + step).saturating_sub(frame) / step };
        let missing = if is_same { ((count - 1) * step + frame).saturating_sub(time) } else { 0 };
        let first = -((missing / 2) as i64);
        let starts = (0..count as i64).map(|i| first + i * step as i64).collect();
        // [B, C, frames, samples]
        let frames = Frames { starts, length: frame }.of(&x.transpose(&[0, 2, 1])?, false)?;
        let rows = frames.reshape([n * channels * count, frame])?;
        let mut part = |name: &str, without: &str| -> RunResult<Option<Tensor>> {
            if mode == without {
                return Ok(None);
            }
            let kernel = cx.param(name, [frame, 1, bins], init)?.reshape([frame, bins])?;
            rows.matmul(&kernel)?.reshape([n, channels, count, bins]).map(Some)
        };
        let (real, imag) = (part("real_kernel", "imag")?, part("imag_kernel", "real")?);
        let y = match (real, imag) {
            (Some(one), None) | (None, Some(one)) => one,
            (Some(real), Some(imag)) if mode == "stft" => Tensor::concat(&[&real, &imag], 3)?,
            (Some(real), Some(imag)) => {
                let power = real.square()?.add(&imag.square()?)?;
                match mode.as_str() {
                    "psd" => {
                        let twice: Vec<f32> =
                            (0..bins).map(|i| if i == 0 || i + 1 == bins { 1.0 } else { 2.0 }).collect();
                        power.mul(&Tensor::from_slice(&twice, [bins])?.cast(power.dtype())?)?
                    }
                    "magnitude" => power.clamp(EPSILON, f64::INFINITY)?.sqrt()?,
                    _ => power.clamp(EPSILON, f64::INFINITY)?.sqrt()?.clamp(EPSILON, f64::INFINITY)?.log()?,
                }
            }
            (None, None) => return Err(refuse("has a spectrogram without kernels")),
        };
        let wide = y.shape()[3];
        if expands {
            return y.transpose(&[0, 2, 3, 1]);
        }
        y.transpose(&[0, 2, 1, 3])?.reshape([n, count, channels * wide])
    }))
}

/// A window that fades out to both sides.
fn window(s: &Settings<'_>, length: usize) -> Result<Vec<f64>> {
    let bell = |top: f64| move |i: usize| top - (1.0 - top) * (TAU * i as f64 / length as f64).cos();
    if s.is_null("window") {
        return Ok(vec![1.0; length]);
    }
    match s.text("window")? {
        "hann" => Ok((0..length).map(bell(0.5)).collect()),
        "hamming" => Ok((0..length).map(bell(0.54)).collect()),
        _ => Err(s.wrong("window", "hann, hamming and none are known")),
    }
}

/// How much of each frequency goes into each band of pitches, `[bins, bands]`.
fn bands(bins: usize, bands: usize, nyquist: f64, (low, high): (f64, f64)) -> Vec<f32> {
    let pitch = |hertz: f64| PITCH.0 * (1.0 + hertz / PITCH.1).ln();
    let (low, high) = (pitch(low), pitch(high));
    let edge = |i: usize| low + (high - low) * i as f64 / (bands + 1) as f64;
    let mut shares = vec![0.0f32; bins * bands];
    for (bin, row) in shares.chunks_exact_mut(bands).enumerate().skip(1) {
        let own = pitch(nyquist * bin as f64 / (bins - 1) as f64);
        for (band, share) in row.iter_mut().enumerate() {
            let (lower, middle, upper) = (edge(band), edge(band + 1), edge(band + 2));
            let rising = (own - lower) / (middle - lower);
            let falling = (upper - own) / (upper - middle);
            *share = rising.min(falling).max(0.0) as f32;
        }
    }
    shares
}

fn mel(s: &Settings<'_>) -> Result<Made> {
    let fft = if s.is_null("fft_length") { 2048 } else { s.units("fft_length")? };
    let length = if s.is_null("sequence_length") { fft } else { s.units("sequence_length")? };
    let step = s.units_or("sequence_stride", 512)?;
    if !(2..=1 << 14).contains(&fft) || length > fft || length == 0 || step == 0 {
        return Err(s.wrong("fft_length", "it should be from 2 to 16384, and no less than sequence_length"));
    }
    let window = window(s, length)?;
    let rate = if s.is_null("sampling_rate") { 16000.0 } else { s.positive("sampling_rate")? };
    let count = s.units_or("num_mel_bins", 128)?;
    let low = s.number_or("min_freq", 20.0)?;
    let high = if s.is_null("max_freq") { (rate / 2.0).floor() } else { s.number("max_freq")? };
    let in_db = s.flag("power_to_db", true)?;
    let (top, exponent) = (s.number_or("top_db", 80.0)?, s.number_or("mag_exp", 2.0)?);
    let (least, reference) = (s.number_or("min_power", 1e-10)?, s.number_or("ref_power", 1.0)?.abs());
    let bins = fft / 2 + 1;
    let shares = bands(bins, count, rate / 2.0, (low, high));
    // The window lies in the middle of a frame.
    let before = (fft - length) / 2;
    let mut waves = vec![0.0f32; length * 2 * bins];
    for (i, row) in waves.chunks_exact_mut(2 * bins).enumerate() {
        for bin in 0..bins {
            // Whole turns are taken off first, so that a long frame loses no precision.
            let turns = ((i + before) * bin % fft) as f64 / fft as f64;
            let (sin, cos) = (TAU * turns).sin_cos();
            (row[bin], row[bins + bin]) = ((window[i] * cos) as f32, (-window[i] * sin) as f32);
        }
    }
    Ok(Made::unary(move |cx, x| {
        let rank = x.shape().rank();
        let Some(&time) = x.shape().last().filter(|_| rank >= 2) else {
            return Err(refuse(format!("gives {} to a spectrogram", x.ty())));
        };
        let half = fft / 2;
        if time <= half {
            return Err(refuse(format!("gives {} to a spectrogram of frames of {fft} samples", x.ty())));
        }
        let dtype = if cx.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let frames_count = 1 + (time + 2 * half - fft) / step;
        let first = before as i64 - half as i64;
        let starts = (0..frames_count as i64).map(|i| first + i * step as i64).collect();
        let frames = Frames { starts, length }.of(&x.cast(dtype)?, true)?;
        let rows: usize = frames.shape()[..rank].iter().product();
        let waves = Tensor::from_slice(&waves, [length, 2 * bins])?.cast(dtype)?;
        let parts = frames.reshape([rows, length])?.matmul(&waves)?;
        let (real, imag) = (parts.narrow(1, 0, bins)?, parts.narrow(1, bins, 2 * bins)?);
        let power = real.square()?.add(&imag.square()?)?;
        let power = if exponent == 2.0 { power } else { power.pow_scalar(exponent / 2.0)? };
        let mut y = power.matmul(&Tensor::from_slice(&shares, [bins, count])?.cast(dtype)?)?;
        if in_db {
            let db = 10.0 / LN_10;
            y = y.clamp(least, f64::INFINITY)?.log()?.mul_scalar(db)?;
            y = y.add_scalar(-db * reference.max(least).ln())?;
            // Of the whole batch, as Keras has it.
            let loudest = y.max(&[], false)?.add_scalar(-top)?;
            y = y.maximum(&loudest.broadcast(y.shape().clone())?)?;
        }
        let shape: Shape = x.shape()[..rank - 1].iter().copied().chain([frames_count, count]).collect();
        let order: Vec<usize> = (0..rank - 1).chain([rank, rank - 1]).collect();
        y.reshape(shape)?.transpose(&order)?.cast(cx.dtype())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_reach_over_both_ends_of_a_sound() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [1, 4]).unwrap();
        let frames = Frames { starts: vec![-1, 2], length: 3 };
        let zeros = frames.of(&x, false).unwrap();
        assert_eq!(zeros.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]);
        let mirrored = frames.of(&x, true).unwrap();
        assert_eq!(mirrored.to_vec::<f32>().unwrap(), [2.0, 1.0, 2.0, 3.0, 4.0, 3.0]);
    }

    #[test]
    fn every_band_of_pitches_has_its_peak_between_its_neighbours() {
        let shares = bands(129, 4, 4000.0, (125.0, 3800.0));
        assert!(shares[..4].iter().all(|share| *share == 0.0));
        for band in 0..4 {
            let peak = (0..129).max_by(|a, b| shares[a * 4 + band].total_cmp(&shares[b * 4 + band])).unwrap();
            assert!(shares[peak * 4 + band] > 0.8 && shares[peak * 4 + (band + 2) % 4] < 0.2, "{band}");
        }
    }
}
