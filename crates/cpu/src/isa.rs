//! Turns what the processor offers into one of three instruction sets, chosen once at run time.
//!
//! The choice is a plain value that is handed to every kernel, not a global: a test can ask for the portable path
//! next to the AVX-512 path in one process, and a device can record what it runs on.

/// The instruction set that the kernels are allowed to use.
///
/// ```
/// use plimsoll_cpu::isa::Isa;
/// let isa = Isa::detect();
/// assert!(isa.is_available());
/// assert!(Isa::Portable.is_available());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512 F, BW, DQ and VL: 32 registers of 16 floats.
    Avx512,
    /// AVX2 with fused multiply-add and half-precision conversion: 16 registers of 8 floats.
    Avx2Fma,
    /// Plain Rust that every processor runs.
    Portable,
}

impl Isa {
    /// All sets, fastest first.
    pub const ALL: [Isa; 3] = [Isa::Avx512, Isa::Avx2Fma, Isa::Portable];

    /// The fastest set of this processor, or the one named by the environment variable `PLIMSOLL_ISA`
    /// (`avx512`, `avx2`, `portable`) where the processor has it; an unknown or missing set is passed over.
    pub fn detect() -> Isa {
        let named = std::env::var("PLIMSOLL_ISA").ok().and_then(|name| Isa::from_name(&name));
        match named {
            Some(isa) if isa.is_available() => isa,
            _ => Isa::fastest(),
        }
    }

    /// The set with this name, as `PLIMSOLL_ISA` spells it.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name.trim()))
    }

    /// The name as `PLIMSOLL_ISA` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2Fma => "avx2",
            Isa::Portable => "portable",
        }
    }

    /// Whether this processor (and operating system) can run the set.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2Fma.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Fma => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2Fma => false,
            Isa::Portable => true,
        }
    }

    /// The names of what the processor offers beyond the plainest of its kind, as far as numeric kernels care.
    pub fn features() -> Vec<&'static str> {
        #[cfg(target_arch = "x86_64")]
        {
            let found = [
                ("sse4.2", is_x86_feature_detected!("sse4.2")),
                ("avx", is_x86_feature_detected!("avx")),
                ("avx2", is_x86_feature_detected!("avx2")),
                ("fma", is_x86_feature_detected!("fma")),
                ("f16c", is_x86_feature_detected!("f16c")),
                ("avx512f", is_x86_feature_detected!("avx512f")),
                ("avx512bw", is_x86_feature_detected!("avx512bw")),
                ("avx512dq", is_x86_feature_detected!("avx512dq")),
                ("avx512vl", is_x86_feature_detected!("avx512vl")),
                ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
                ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
                ("avx512fp16", is_x86_feature_detected!("avx512fp16")),
            ];
            found.into_iter().filter_map(|(name, is_there)| is_there.then_some(name)).collect()
        }
        #[cfg(not(target_arch = "x86_64"))]
        Vec::new()
    }

    fn fastest() -> Isa {
        Isa::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// The sets that this processor can run, fastest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_set() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("sse9"), None);
    }

    #[test]
    fn the_portable_set_is_always_the_last_resort() {
        assert_eq!(Isa::available().last(), Some(Isa::Portable));
    }
}
