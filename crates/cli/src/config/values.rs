//! Turns the words of settings into the values that they mean.

use std::path::PathBuf;

use plimsoll::data::{Augment, Columns, OnError, Scale};
use plimsoll::device::AllocatorKind;
use plimsoll::nn::{Clip, Kept, Metric};
use plimsoll::prelude::*;

use super::Config;
use crate::Failure;
use crate::names::metric;

/// Precisions of layers by name.
type OfLayers = Vec<(String, Precision)>;

/// Metrics, each with the name of the output that it is of where that is named.
type OfOutputs = Vec<(Option<String>, Metric)>;

impl Config {
    /// What stored bytes become; none where it is for the model to say.
    pub fn scale(&self) -> Result<Option<Scale>, Failure> {
        let parse = |text: &str| text.parse::<Scale>().map_err(|e| Failure(format!("--scale {text}: {e}")));
        self.scale.as_deref().map(parse).transpose()
    }

    /// The columns of a table that are read.
    pub fn columns(&self) -> Result<Option<Columns>, Failure> {
        let parse =
            |text: &str| text.parse::<Columns>().map_err(|e| Failure(format!("--columns {text}: {e}")));
        self.columns.as_deref().map(parse).transpose()
    }

    /// How training pictures are changed.
    pub fn augment(&self) -> Result<Option<Augment>, Failure> {
        let parse =
            |text: &str| text.parse::<Augment>().map_err(|e| Failure(format!("--augment {text}: {e}")));
        self.augment.as_deref().map(parse).transpose()
    }

    /// The memory limit as it is written, `max` aside.
    pub fn written_memory_limit(&self) -> Result<Option<Bytes>, Failure> {
        size(self.memory.as_deref().filter(|text| *text != "max"), "--memory")
    }

    /// The memory limit in bytes; `max` is what is free of the memory that it counts, which is the card's on a card.
    fn memory_limit(&self, device: &Device) -> Result<Option<Bytes>, Failure> {
        if self.memory.as_deref() != Some("max") {
            return self.written_memory_limit();
        }
        let none = || Failure("the system does not say how much memory is free".into());
        // A limit at the last free byte would leave the machine nothing.
        Ok(Some(Bytes(device.largest_limit().ok_or_else(none)?.get() / 20 * 19)))
    }

    pub fn host_memory(&self) -> Result<Option<Bytes>, Failure> {
        size(self.host_memory.as_deref(), "--host-memory")
    }

    /// The folder of a disk in which tensors may be kept, and how much of it.
    pub fn disk(&self) -> Result<Option<(PathBuf, Bytes)>, Failure> {
        let Some(text) = self.disk.as_deref() else { return Ok(None) };
        let Some((folder, bytes)) = text.rsplit_once(':').filter(|(folder, _)| !folder.is_empty()) else {
            let why = "name a folder and how much of it may be taken, as in /scratch:200GiB";
            return Err(Failure(format!("--disk {text}: {why}")));
        };
        Ok(size(Some(bytes), "--disk")?.map(|bytes| (PathBuf::from(folder), bytes)))
    }

    /// The allocator that is named.
    pub fn allocator(&self) -> Result<Option<AllocatorKind>, Failure> {
        let parse =
            |text: &str| text.parse::<AllocatorKind>().map_err(|why| Failure(format!("--allocator: {why}")));
        self.allocator.as_deref().map(parse).transpose()
    }

    /// What the optimizer's state is kept as: as the weights are, unless it is said.
    pub fn kept(&self) -> Result<Kept, Failure> {
        let is_narrow = self.precision()?.0 == Some(Precision::Bf16);
        let usual = if is_narrow { Kept::Bf16 } else { Kept::F32 };
        self.state
            .as_deref()
            .map_or(Ok(usual), str::parse::<Kept>)
            .map_err(|why| Failure(format!("--state {why}")))
    }

    /// What these settings ask of memory, for a model that computes in this precision on this device.
    pub fn memory_request(&self, precision: Precision, device: &Device) -> Result<MemoryRequest, Failure> {
        Ok(MemoryRequest {
            limit: self.memory_limit(device)?,
            host_limit: self.host_memory()?,
            exactness: self.exact.unwrap_or(Exactness::Reassociated),
            micro_batch: self.micro_batch,
            precision,
            device: Some(device.clone()),
        })
    }

    /// The precision of all layers, where one is named, and those of layers by name.
    pub fn precision(&self) -> Result<(Option<Precision>, OfLayers), Failure> {
        let (mut all, mut layers) = (None, Vec::new());
        let parsed = |name: &str| name.parse::<Precision>().map_err(Failure);
        let named = self.precision.iter().flat_map(|text| text.split(',')).map(str::trim);
        for part in named.filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((layer, of)) => layers.push((layer.trim().to_string(), parsed(of.trim())?)),
                None if all.is_some() => {
                    let why = "names two precisions for all layers; a layer's own is written as name=f32";
                    return Err(Failure(format!(
                        "--precision {} {why}",
                        self.precision.as_deref().unwrap_or_default()
                    )));
                }
                None => all = Some(parsed(part)?),
            }
        }
        Ok((all, layers))
    }

    pub fn clip(&self) -> Option<Clip> {
        self.clip_norm.map(Clip::Norm)
    }

    pub fn on_error(&self) -> Result<OnError, Failure> {
        match self.on_error.as_deref().unwrap_or("fail") {
            "fail" => Ok(OnError::Fail),
            "skip" => Ok(OnError::Skip),
            other => Err(Failure(format!("samples cannot be made to '{other}'; use fail or skip"))),
        }
    }

    /// The schedule over so many steps.
    pub fn schedule(&self, steps: u64) -> Result<Schedule, Failure> {
        let schedule = match self.schedule.as_deref().unwrap_or("constant") {
            "constant" => Schedule::constant(),
            "cosine" => Schedule::cosine(steps),
            "exponential" => Schedule::exponential(0.01f64.powf(1.0 / steps.max(1) as f64)),
            "one-cycle" => Schedule::one_cycle(steps),
            other => {
                let known = "constant, cosine, exponential and one-cycle";
                return Err(Failure(format!("there is no schedule {other}; there are {known}")));
            }
        };
        Ok(schedule.warm_up(self.warm_up.unwrap_or(0)))
    }

    pub fn metrics(&self, default: &[Metric]) -> Result<Vec<Metric>, Failure> {
        let Some(names) = &self.metrics else { return Ok(default.to_vec()) };
        listed(names).map(metric).collect()
    }

    /// The metrics that are named, each with the output that it is of where that is named too.
    pub fn measures(&self) -> Result<Option<OfOutputs>, Failure> {
        let Some(names) = &self.metrics else { return Ok(None) };
        let one = |part: &str| match part.split_once('=') {
            Some((_, name)) => metric(name.trim()),
            None => metric(part),
        };
        let output = |part: &str| part.split_once('=').map(|(output, _)| output.trim().to_string());
        listed(names).map(|part| Ok((output(part), one(part)?))).collect::<Result<_, _>>().map(Some)
    }
}

/// Names with commas between them; `none` stands for none.
fn listed(names: &str) -> impl Iterator<Item = &str> {
    names.split(',').map(str::trim).filter(|name| !matches!(*name, "" | "none"))
}

fn size(text: Option<&str>, flag: &str) -> Result<Option<Bytes>, Failure> {
    let parse = |text: &str| text.parse::<Bytes>().map_err(|e| Failure(format!("{flag}: {e}")));
    text.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precisions_are_of_all_layers_and_of_some() {
        let read = |text: &str| {
            toml::from_str::<Config>(&format!("precision = \"{text}\""))
                .unwrap()
                .precision()
                .map_err(|Failure(why)| why)
        };
        let head = vec![("head".to_string(), Precision::F32)];
        assert_eq!(read("mixed-bf16, head=f32"), Ok((Some(Precision::MixedBf16), head.clone())));
        assert_eq!(read("head = f32"), Ok((None, head)));
        assert_eq!(Config::default().precision().map_err(|Failure(why)| why), Ok((None, Vec::new())));
        assert!(read("head=f31").unwrap_err().contains("f31"));
        assert!(read("f32,mixed-f16").unwrap_err().contains("two precisions"));
    }
}
