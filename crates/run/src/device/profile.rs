//! A file of kernel times as a device that plans and runs nothing: for the memory of a card that is not here.
//!
//! Kernels that were timed take the time and the scratch that were recorded. Of others, the recorded kernel of the same op
//! that is nearest in work is asked, and its time and scratch are scaled by the work; how many were so estimated is told.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use plimsoll_device::backend::{Backend, Call, Fault, Link, Speed, Unsupported};
use plimsoll_device::{
    Allocator, BestFit, Block, Bytes, Holder, OutOfMemory, Owner, ReleaseError, ReserveError, Stats,
};
use plimsoll_graph::{Op, Type};
use rustc_hash::{FxHashMap, FxHashSet};

use super::costs::{LINK, LINK_BYTES, key};
use super::likes::{Likes, Work, factor, scaled};
use super::times::{Facts, Timed, Times, Trust};

/// What was recorded of a device's kernels.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_run::{Device, Profile};
/// let text = "plimsoll kernel times 3\nsignature\tcuda A Card\ntotal\t8589934592\npage\t2097152\nown\t500000000\n";
/// let device = Device::profiled(&Arc::new(Profile::parse("a-card", text).unwrap()))?;
/// assert_eq!(device.name(), "a-card");
/// assert!(Profile::parse("nothing", "").is_err());
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub struct Profile {
    name: String,
    facts: Facts,
    kernels: FxHashMap<String, Timed>,
    likes: Likes,
    /// Kernels that were asked for: all, and those that had to be estimated.
    asked: Mutex<(FxHashSet<String>, FxHashSet<String>)>,
}

impl Profile {
    /// Reads a profile from a file's text.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub fn parse(name: &str, text: &str) -> Result<Profile, String> {
        let Times { facts, kernels } = Times::parse(text);
        let Some(facts) = facts else {
            return Err(format!("{name} is no profile of kernel times of this version; record it anew"));
        };
        if facts.total == Bytes::ZERO {
            let Facts { signature, .. } = facts;
            return Err(format!(
                "{name} was recorded on {signature}, which has no memory of its own to plan"
            ));
        }
        // What was only estimated is estimated here too.
        let kernels: FxHashMap<String, Timed> =
            kernels.into_iter().filter(|(_, timed)| timed.trust != Trust::Estimated).collect();
        let likes = Likes::new(kernels.iter());
        Ok(Profile { name: name.into(), facts, kernels, likes, asked: Mutex::default() })
    }

    /// Reads a profile from a file.
    ///
    /// # Errors
    /// As for [`Profile::parse`], or the file cannot be read.
    pub fn read(file: &Path) -> Result<Profile, String> {
        let shown = file.display();
        let text = std::fs::read_to_string(file).map_err(|why| format!("{shown} cannot be read: {why}"))?;
        let name = file.file_stem().map_or_else(|| shown.to_string(), |n| n.to_string_lossy().into_owned());
        Profile::parse(&name, &text)
    }

    /// The recorded kernel, or one that stands for it: with the factor of its work.
    fn find(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Option<(Timed, f64)> {
        let key = key(op, inputs);
        let found = self.kernels.get(&key).map(|timed| (*timed, 1.0));
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_none() && !asked.1.contains(&key) {
            asked.1.insert(key.clone());
        }
        asked.0.insert(key);
        drop(asked);
        found.or_else(|| {
            let timed = self.likes.nearest(op, &Work::of(op, inputs, outputs))?.timed;
            Some((timed, factor(&timed, self.facts.speed, op, inputs, outputs)))
        })
    }

    /// How many distinct kernels were asked for, and how many of them were not recorded.
    pub fn estimated(&self) -> (usize, usize) {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        (asked.0.len(), asked.1.len())
    }

    pub(crate) fn memory(&self) -> Result<Sheets, ReserveError> {
        Ok(Sheets { host: BestFit::new(HOST)?, page: self.facts.page })
    }

    fn absent(&self) -> Fault {
        let why = format!("{} is a record of a device; nothing can be run on it", self.facts.signature);
        Fault::new("profile", why)
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} kernels of {})", self.name, self.kernels.len(), self.facts.signature)
    }
}

impl Backend for Profile {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> String {
        self.facts.signature.clone()
    }

    fn speed(&self) -> Speed {
        self.facts.speed
    }

    fn predict(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> f64 {
        if let Some((timed, factor)) = self.find(op, inputs, outputs) {
            return scaled(timed, factor, self.facts.speed);
        }
        let (speed, cost) = (self.facts.speed, op.cost(inputs, outputs));
        (cost.flops / speed.flops).max(cost.bytes / speed.bytes) + speed.call
    }

    fn scratch(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Unsupported> {
        let Some((timed, factor)) = self.find(op, inputs, outputs) else { return Ok(0) };
        Ok(if factor == 1.0 { timed.scratch } else { (timed.scratch as f64 * factor).ceil() as usize })
    }

    unsafe fn run(&self, _: &Call<'_>) -> Result<(), Fault> {
        Err(self.absent())
    }

    fn is_recorded(&self) -> bool {
        true
    }

    fn is_host(&self) -> bool {
        false
    }

    fn rough_link(&self) -> Option<Link> {
        let speed = LINK_BYTES / self.kernels.get(LINK)?.seconds.max(1e-9);
        Some(Link { up: speed, down: speed })
    }

    fn host_program(&self) -> Bytes {
        plimsoll_cuda::HOST_PROGRAM
    }

    fn taken(&self) -> Option<Bytes> {
        Some(self.facts.own)
    }

    fn free(&self) -> Option<Bytes> {
        Some(self.facts.total.saturating_sub(self.facts.own))
    }

    fn total(&self) -> Option<Bytes> {
        Some(self.facts.total)
    }
}

/// Host memory for the few constants of a step that is only planned.
const HOST: Bytes = Bytes::gib(1);

/// Memory that counts as the recorded device's would: in its pages, none of them the host's.
#[derive(Debug)]
pub(crate) struct Sheets {
    host: BestFit,
    page: Bytes,
}

impl Allocator for Sheets {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        self.host.allocate(bytes, align, owner)
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        self.host.release(block)
    }

    fn stats(&self) -> Stats {
        Stats { reserved: Bytes::ZERO, ..self.host.stats() }
    }

    fn reset_peak(&self) {
        self.host.reset_peak();
    }

    fn release_unused(&self) {
        self.host.release_unused();
    }

    fn page(&self) -> Bytes {
        self.page
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        self.host.holders(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::DType;
    use plimsoll_graph::ops::{MatMul, Unary};

    const TEXT: &str = "plimsoll kernel times 3
signature\tcuda A Card
speed\t1e12\t1e11\t1e-6
total\t8589934592
page\t2097152
own\t500000000
5000\t1024\t524288\t49152\tMatMul(MatMul { ta: false, tb: false, bias: false, act: None }) f32[64, 64] f32[64, 64]
1100\t512\t524288\t24576\tMatMul(MatMul { ta: false, tb: false, bias: false, act: None }) bf16[64, 64] bf16[64, 64]
";

    #[test]
    fn a_recorded_kernel_takes_what_was_recorded_and_others_are_scaled_from_the_nearest() {
        let profile = Profile::parse("a-card", TEXT).unwrap();
        let op = Op::from(MatMul { ta: false, tb: false, bias: false, act: None });
        let of = |dtype, n: usize| Type::new(dtype, [n, n]);
        let (a, c) = (of(DType::F32, 64), of(DType::F32, 64));
        assert_eq!(profile.predict(&op, &[&a, &a], &[&c]), 5e-6);
        assert_eq!(profile.scratch(&op, &[&a, &a], &[&c]).unwrap(), 1024);
        assert_eq!(profile.estimated(), (1, 0));
        // Twice as large: eight times the arithmetic, and by the roofline four times the memory; of bf16 the bf16 kernel.
        let a = of(DType::BF16, 128);
        let (seconds, scratch) =
            (profile.predict(&op, &[&a, &a], &[&a]), profile.scratch(&op, &[&a, &a], &[&a]).unwrap());
        assert!(seconds > 1.1e-6 && seconds < 5e-6, "{seconds}");
        assert!((512 * 4..=512 * 9).contains(&scratch), "{scratch}");
        // An op of which nothing was recorded goes by the roofline and needs no scratch that is known.
        let exp = Op::from(Unary::Exp);
        assert!(profile.predict(&exp, &[&a], &[&a]) >= 1e-6);
        assert_eq!(profile.scratch(&exp, &[&a], &[&a]).unwrap(), 0);
        assert_eq!(profile.estimated(), (3, 2));
    }

    #[test]
    fn what_is_no_profile_of_a_card_is_refused_in_a_sentence() {
        let why = Profile::parse("x", "plimsoll kernel times 2\n").unwrap_err();
        assert!(why.contains("record it anew"), "{why}");
        let why = Profile::parse("x", "plimsoll kernel times 3\nsignature\tcpu\n").unwrap_err();
        assert!(why.contains("no memory of its own"), "{why}");
    }
}
