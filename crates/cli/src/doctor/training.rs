//! Trains a tiny model on a device: at the least memory that its plan names and without a limit, with the same bits, near the same
//! training in f64.

use plimsoll::device::Counted;
use plimsoll::prelude::*;

use super::Check;
use crate::Failure;

const SAMPLES: usize = 64;
const EPOCHS: Epochs = Epochs(3);
/// What f32 may be off from f64 after so few steps: a thousand times what rounding explains, a thousandth of what is learned.
const NEAR: f64 = 1e-4;

/// What a training came to.
struct Trained {
    losses: Vec<f64>,
    floor: Bytes,
    counted: Counted,
}

/// The check of one device, where it could be had.
pub fn on(name: &str, device: Result<Device, Failure>) -> Check {
    let check = format!("training on {name}");
    let advice = match name {
        "cpu" => "this program or this machine is damaged; try another build of it",
        _ => "train on the CPU (--device cpu) until this works; plimsoll devices says what was found",
    };
    match device.and_then(|device| tried(&device)) {
        Ok(Tried::Well(found)) => Check::ok(check, found),
        Ok(Tried::Wrong(found)) => Check::broken(check, found, advice),
        Err(Failure(why)) => Check::broken(check, why, advice),
    }
}

enum Tried {
    Well(String),
    Wrong(String),
}

fn tried(device: &Device) -> Result<Tried, Failure> {
    let floor = trainer(device, Precision::F32).plan(data()?)?.figures.floor;
    let limited = train(device, Precision::F32, Some(floor))?;
    let free = train(device, Precision::F32, None)?;
    let wide = train(&Device::cpu_threads(1)?, Precision::F64, None)?;
    let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<u64>>();
    if bits(&limited.losses) != bits(&free.losses) {
        let found =
            format!("losses at a limit of {floor} are {:?}, without one {:?}", limited.losses, free.losses);
        return Ok(Tried::Wrong(found));
    }
    let off = free.losses.iter().zip(&wide.losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let are_numbers = free.losses.iter().all(|loss| loss.is_finite());
    if off > NEAR || !are_numbers || free.losses.len() != wide.losses.len() {
        let found = format!("losses are {:?}, in f64 {:?}", free.losses, wide.losses);
        return Ok(Tried::Wrong(found));
    }
    if limited.counted.peak > limited.floor {
        let found = format!("the memory limit was {floor}, and {} were taken", limited.counted.peak);
        return Ok(Tried::Wrong(found));
    }
    Ok(Tried::Well(format!(
        "{} steps at a limit of {floor}, {} taken at most; the same bits without a limit, {off:.0e} from f64",
        EPOCHS.0 * (SAMPLES as u64 / 16),
        limited.counted.peak
    )))
}

fn train(device: &Device, precision: Precision, limit: Option<Bytes>) -> Result<Trained, Failure> {
    let mut trainer = trainer(device, precision).memory_limit_bytes(limit);
    let history = trainer.fit(data()?, EPOCHS)?;
    let losses = history.iter().map(|epoch| epoch.loss).collect();
    Ok(Trained { losses, floor: limit.unwrap_or(Bytes(u64::MAX)), counted: device.counted() })
}

fn trainer(device: &Device, precision: Precision) -> Trainer {
    let model = Sequential::new([8]).dense(32).relu().dense(2);
    Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
        .device(device.clone())
        .precision(precision)
        .exactness(Exactness::Bitwise)
}

/// Points and on which side of a plane they lie.
fn data() -> Result<Dataset, Failure> {
    let x: Vec<f32> = (0..SAMPLES * 8).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let y: Vec<i64> = x.chunks(8).map(|point| i64::from(point.iter().sum::<f32>() > 0.0)).collect();
    Ok(Dataset::columns([Column::memory("x", x, [8])?, Column::memory("y", y, [])?])?.batch(16))
}
