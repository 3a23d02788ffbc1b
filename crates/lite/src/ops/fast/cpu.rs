//! Asks the processor what it can do, without the standard library.

use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use core::sync::atomic::{AtomicU8, Ordering};

use crate::ops::layer::Work;

/// A set of vector instructions that kernels are written for, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing that is used here.
    Plain,
    /// AVX2 and fused multiplication.
    Avx2,
    /// The same with sums of four products of bytes.
    AvxVnni,
    /// AVX-512 with sums of four products of bytes.
    Avx512,
    /// The same with tiles, for which the system has to be asked before they are used.
    Amx,
}

/// The level once it is known, and one more. Asking takes long where the processor is a virtual one.
static KNOWN: AtomicU8 = AtomicU8::new(0);

impl Level {
    const ALL: [Self; 5] = [Self::Plain, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Amx];

    /// The most that processor and system offer.
    pub fn detect() -> Self {
        match KNOWN.load(Ordering::Relaxed) {
            0 => {
                let level = Self::ask();
                KNOWN.store(level as u8 + 1, Ordering::Relaxed);
                level
            }
            known => Self::ALL[usize::from(known) - 1],
        }
    }

    /// All levels with kernels that this processor has.
    #[cfg(test)]
    pub fn up_to_this() -> impl Iterator<Item = Self> {
        let most = Self::ask();
        // With AVX-512 comes nothing that says whether the narrower instructions for bytes are there too.
        let is_there = move |level: &Self| {
            *level <= most && (*level != Self::AvxVnni || has(__cpuid_count(7, 1).eax, 4))
        };
        Self::ALL.into_iter().skip(1).filter(is_there)
    }

    /// Lets a lower level be found from here on.
    #[cfg(test)]
    pub fn pretend(level: Self) {
        KNOWN.store(level as u8 + 1, Ordering::Relaxed);
    }

    fn ask() -> Self {
        if __cpuid(0).eax < 7 {
            return Self::Plain;
        }
        let (first, seventh) = (__cpuid(1), __cpuid_count(7, 0));
        // The system must keep the registers, or they are lost when threads change.
        if !has(first.ecx, 27) {
            return Self::Plain;
        }
        // SAFETY: bit 27 says that the instruction may be used.
        let kept = unsafe { xcr0() };
        let avx = kept & 6 == 6 && has(first.ecx, 28) && has(first.ecx, 12) && has(seventh.ebx, 5);
        let wide = kept & 0xe6 == 0xe6
            && [16, 17, 30, 31].into_iter().all(|bit| has(seventh.ebx, bit))
            && has(seventh.ecx, 11);
        match avx {
            true if wide && kept & 0x60000 == 0x60000 && has(seventh.edx, 24) && has(seventh.edx, 25) => {
                Self::Amx
            }
            true if wide => Self::Avx512,
            true if seventh.eax >= 1 && has(__cpuid_count(7, 1).eax, 4) => Self::AvxVnni,
            true => Self::Avx2,
            false => Self::Plain,
        }
    }
}

/// Whether bytes can be looked up in tables of two registers; once it is known, one for no and two for yes.
pub fn looks_up_bytes() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if KNOWN.load(Ordering::Relaxed) == 0 {
        let can = Level::ask() >= Level::Avx512 && has(__cpuid_count(7, 0).ecx, 1);
        KNOWN.store(1 + u8::from(can), Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed) == 2
}

fn has(word: u32, bit: u32) -> bool {
    word >> bit & 1 == 1
}

/// The registers that the system keeps.
///
/// # Safety
/// The processor has the instruction, and the system allows it.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: as the caller promises.
    unsafe { _xgetbv(0) }
}

/// Does work with the widest vectors that the processor has.
pub fn widest<W: Work>(work: W) -> W::Result {
    // SAFETY: the processor has the instructions.
    unsafe {
        match Level::detect() {
            Level::Avx512 | Level::Amx => wide(work),
            Level::Avx2 | Level::AvxVnni => narrow(work),
            Level::Plain => work.run(),
        }
    }
}

/// # Safety
/// The processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn wide<W: Work>(work: W) -> W::Result {
    work.run()
}

/// # Safety
/// The processor has the instructions.
#[target_feature(enable = "avx2")]
unsafe fn narrow<W: Work>(work: W) -> W::Result {
    work.run()
}
