//! Turns curves (loss, speed, bytes) into an event file that TensorBoard shows.
//!
//! An event file is a sequence of framed records (`record.rs`), each a protocol buffer of a time, a step and a value. The five
//! messages needed are written by hand in `proto.rs`: a generated library would be larger than this crate. The bytes are
//! those that TensorFlow writes, which the tests compare.
//!
//! ```
//! use plimsoll_formats::tensorboard::EventWriter;
//! # let folder = std::env::temp_dir().join(format!("plimsoll-events-doc-{}", std::process::id()));
//! let mut events = EventWriter::create(&folder)?;
//! for step in 0..3 {
//!     events.scalar(step, "loss", 1.0 / (step + 1) as f32)?;
//! }
//! events.flush()?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod proto;
mod record;

use proto::Message;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// `DT_FLOAT`, `DT_DOUBLE` and `DT_STRING` of TensorFlow's `types.proto`.
const FLOAT: u64 = 1;
const DOUBLE: u64 = 2;
const STRING: u64 = 7;

/// One bar of a histogram: how many values lie between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// The lower bound.
    pub left: f64,
    /// The upper bound.
    pub right: f64,
    /// How many values.
    pub count: f64,
}

/// Writes one event file.
#[derive(Debug)]
pub struct EventWriter<W: Write> {
    out: W,
}

impl EventWriter<BufWriter<File>> {
    /// Starts a new event file in `folder`, which is made if it is not there. TensorBoard shows a folder as one run.
    pub fn create(folder: &Path) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(folder)?;
        let time = now();
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        // TensorBoard asks only for `tfevents` in the name and reads the files of a run in the order of their names.
        let name = format!("events.out.tfevents.{:010}.plimsoll.{}.{n}.v2", time as u64, std::process::id());
        EventWriter::new(BufWriter::new(File::create_new(folder.join(name))?), time)
    }
}

impl<W: Write> EventWriter<W> {
    /// Starts an event file at `wall_time`, in seconds since 1970.
    pub fn new(out: W, wall_time: f64) -> io::Result<Self> {
        let mut writer = EventWriter { out };
        let mut event = Message::new();
        event.double(1, wall_time);
        event.bytes(3, b"brain.Event:2");
        record::write(&mut writer.out, event.as_bytes())?;
        Ok(writer)
    }

    /// Adds a point to the curve `tag`, now.
    pub fn scalar(&mut self, step: i64, tag: &str, value: f32) -> io::Result<()> {
        self.scalar_at(now(), step, tag, value)
    }

    /// Adds a point to the curve `tag`, at `wall_time`.
    pub fn scalar_at(&mut self, wall_time: f64, step: i64, tag: &str, value: f32) -> io::Result<()> {
        let content = value.to_le_bytes();
        self.value(wall_time, step, tag, "scalars", |tensor| {
            tensor.uint(1, FLOAT);
            tensor.bytes(2, b"");
            tensor.bytes(4, &content);
        })
    }

    /// Adds a text (Markdown) under `tag`, now.
    pub fn text(&mut self, step: i64, tag: &str, text: &str) -> io::Result<()> {
        self.text_at(now(), step, tag, text)
    }

    /// Adds a text (Markdown) under `tag`, at `wall_time`.
    pub fn text_at(&mut self, wall_time: f64, step: i64, tag: &str, text: &str) -> io::Result<()> {
        self.value(wall_time, step, tag, "text", |tensor| {
            tensor.uint(1, STRING);
            tensor.bytes(2, b"");
            tensor.bytes(8, text.as_bytes());
        })
    }

    /// Adds a histogram under `tag`, now.
    pub fn histogram(&mut self, step: i64, tag: &str, buckets: &[Bucket]) -> io::Result<()> {
        self.histogram_at(now(), step, tag, buckets)
    }

    /// Adds a histogram under `tag`, at `wall_time`.
    pub fn histogram_at(
        &mut self,
        wall_time: f64,
        step: i64,
        tag: &str,
        buckets: &[Bucket],
    ) -> io::Result<()> {
        let mut shape = Message::new();
        for dim in [buckets.len() as u64, 3] {
            let mut size = Message::new();
            size.uint(1, dim);
            shape.message(2, &size);
        }
        let content: Vec<u8> =
            buckets.iter().flat_map(|b| [b.left, b.right, b.count]).flat_map(f64::to_le_bytes).collect();
        self.value(wall_time, step, tag, "histograms", |tensor| {
            tensor.uint(1, DOUBLE);
            tensor.message(2, &shape);
            tensor.bytes(4, &content);
        })
    }

    /// Hands everything written so far to the system, so that a viewer sees it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn value(
        &mut self,
        wall_time: f64,
        step: i64,
        tag: &str,
        plugin: &str,
        fill: impl FnOnce(&mut Message),
    ) -> io::Result<()> {
        let mut tensor = Message::new();
        fill(&mut tensor);
        let mut plugin_data = Message::new();
        plugin_data.bytes(1, plugin.as_bytes());
        let mut metadata = Message::new();
        metadata.message(1, &plugin_data);
        let mut value = Message::new();
        value.bytes(1, tag.as_bytes());
        value.message(8, &tensor);
        value.message(9, &metadata);
        let mut summary = Message::new();
        summary.message(1, &value);
        let mut event = Message::new();
        event.double(1, wall_time);
        // Protocol buffers leave zeros out.
        if step != 0 {
            event.uint(2, step as u64);
        }
        event.message(5, &summary);
        record::write(&mut self.out, event.as_bytes())
    }
}

impl<W: Write> Drop for EventWriter<W> {
    fn drop(&mut self) {
        // Whoever wants to know of an error here calls `flush` before.
        let _ = self.out.flush();
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records of a file, whose frames must be right.
    fn records(mut file: &[u8]) -> Vec<&[u8]> {
        let mut records = Vec::new();
        while !file.is_empty() {
            let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
            let (record, rest) = file.split_at(12 + length + 4);
            let mut framed = Vec::new();
            record::write(&mut framed, &record[12..12 + length]).expect("writing to memory");
            assert_eq!(framed, record);
            records.push(&record[12..12 + length]);
            file = rest;
        }
        records
    }

    #[test]
    fn records_are_those_of_tensorflow_byte_for_byte() {
        let fixture = include_bytes!("../../tests/fixtures/events.tfevents");
        let theirs = records(fixture);
        assert_eq!(theirs.len(), 6);
        // The time is the event's first field: one byte of key, then the double.
        let time = |i: usize| f64::from_le_bytes(theirs[i][1..9].try_into().expect("eight bytes"));

        let mut ours = EventWriter::new(Vec::new(), time(0)).expect("writing to memory");
        ours.scalar_at(time(1), 1, "loss", 0.5).expect("writing to memory");
        ours.scalar_at(time(2), 300, "loss", 0.25).expect("writing to memory");
        ours.scalar_at(time(3), 0, "memory/peak bytes", 6442450944.0).expect("writing to memory");
        ours.text_at(time(4), 2, "plan", "**recompute** 3 blocks").expect("writing to memory");
        let bucket = |left, right| Bucket { left, right, count: 2.0 };
        ours.histogram_at(time(5), 7, "weights", &[bucket(0.0, 0.5), bucket(0.5, 1.0)])
            .expect("writing to memory");

        let ours = records(&ours.out).into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
        // TensorFlow adds its own name to the first record.
        assert!(theirs[0].starts_with(&ours[0]));
        assert_eq!(ours[1..], theirs[1..]);
    }

    #[test]
    fn a_negative_step_takes_ten_bytes_as_protocol_buffers_have_it() {
        let mut ours = EventWriter::new(Vec::new(), 0.0).expect("writing to memory");
        let before = ours.out.len();
        ours.scalar_at(0.0, -1, "a", 0.0).expect("writing to memory");
        assert_eq!(ours.out[before + 12 + 9..][..11], [0x10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    }
}
