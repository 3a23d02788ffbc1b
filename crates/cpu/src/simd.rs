//! Turns one plain loop into three: compiled for AVX-512, for AVX2 with FMA, and for every processor.
//!
//! A kernel's inner loop is plain Rust over slices inside [`multiversion!`]; the compiler vectorises it for each
//! instruction set, and the caller's [`Isa`](crate::isa::Isa) picks one. Inside the body `L` is the [`Level`]: what
//! differs between the sets in plain Rust is only whether a product and a sum are rounded once or twice, and all of
//! [`math`](crate::math) is written in those terms.
//!
//! ```text
//! multiversion! {
//!     fn exp_all<L>(values: &mut [f32]) {
//!         values.iter_mut().for_each(|x| *x = math::exp::<L>(*x));
//!     }
//! }
//! exp_all(cpu.isa(), values);
//! ```

use half::{bf16, f16};

/// What plain Rust may use inside a body compiled by [`multiversion!`].
pub(crate) trait Level: Copy + 'static {
    /// a · b + c, rounded once where the instruction set can.
    fn fma(a: f32, b: f32, c: f32) -> f32;
    /// The same in f64.
    fn fma64(a: f64, b: f64, c: f64) -> f64;
}

/// The processor multiplies and adds in one instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contracted;

/// A product is rounded before it is added: a library call would be the price of doing otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain;

impl Level for Contracted {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
}

impl Level for Plain {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        a * b + c
    }
}

/// Compiles a function once for each instruction set and makes its first argument the choice.
///
/// `fn name<L>(args) { body }` becomes `fn name(isa: Isa, args)`; `L` names the [`Level`] inside the body. Further
/// type parameters follow after a semicolon: `fn name<L; T: Float>(…)`. Everything called in the body that should
/// be vectorised must be `#[inline(always)]`.
macro_rules! multiversion {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$level:ident $(; $($g:ident : $bound:path),+)?>
        ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )+) => { $(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name $(<$($g: $bound),+>)? (isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$level: $crate::simd::Level $($(, $g: $bound)+)?>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                body::<$crate::simd::Contracted $($(, $g)+)?>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                body::<$crate::simd::Contracted $($(, $g)+)?>($($arg),*)
            }

            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` is only handed out where the processor has it.
                $crate::isa::Isa::Avx512 => unsafe { avx512 $(::<$($g),+>)? ($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::isa::Isa::Avx2Fma => unsafe { avx2 $(::<$($g),+>)? ($($arg),*) },
                _ => body::<$crate::simd::Plain $($(, $g)+)?>($($arg),*),
            }
        }
    )+ };
}
pub(crate) use multiversion;

/// Ends one block of a loop over blocks. The compiler then vectorises the block; without it, it has been seen to
/// unroll the block and vectorise the loop around it instead, with a gather for every load.
#[inline(always)]
pub(crate) fn end_block() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: no instruction, no effect.
    unsafe {
        std::arch::asm!("", options(nomem, nostack, preserves_flags));
    }
}

/// A float type that kernels compute with in f32: load, compute, round to nearest even, store.
pub(crate) trait Float32: plimsoll_device::backend::Element {
    /// The value in single precision.
    fn widen(self) -> f32;
    /// The nearest value, ties to even.
    fn narrow(x: f32) -> Self;
}

impl Float32 for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }
}

impl Float32 for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(x: f32) -> bf16 {
        let bits = x.to_bits();
        // Half a unit of the last place, or just less where the kept part is even, carries into the upper half.
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }
}

impl Float32 for f16 {
    /// Shifts the fields into place and lets one multiplication correct the exponent, subnormals included.
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits((254 - 15) << 23);
        let special = f32::from_bits((bits & 0x7FFF) << 13 | 0xFF << 23);
        let value = if bits & 0x7C00 == 0x7C00 { special } else { magnitude };
        f32::from_bits(value.to_bits() | (bits & 0x8000) << 16)
    }

    /// Normal results are rounded on the integer side, subnormal ones by adding a number whose last place is theirs.
    #[inline(always)]
    fn narrow(x: f32) -> f16 {
        let sign = x.to_bits() >> 16 & 0x8000;
        let a = x.to_bits() & 0x7FFF_FFFF;
        let normal = a.wrapping_add(0xC800_0FFF).wrapping_add(a >> 13 & 1) >> 13;
        let small = (f32::from_bits(a) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if a < 0x3880_0000 { small } else { normal };
        // From 65520 on, the nearest is infinity.
        let bounded = if a >= 0x477F_F000 { 0x7C00 } else { finite };
        f16::from_bits((if a > 0x7F80_0000 { 0x7E00 } else { bounded } | sign) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    multiversion! {
        /// The sum of a slice of any float type.
        fn total<L; T: Float32>(values: &[T]) -> f32 {
            values.iter().fold(0.0, |sum, x| L::fma(x.widen(), 1.0, sum))
        }
    }

    #[test]
    fn every_instruction_set_runs_the_same_body() {
        for isa in Isa::available() {
            assert_eq!(total(isa, &[1.0f32, 2.0, 3.5]), 6.5);
            assert_eq!(total(isa, &[bf16::from_f32(1.0), bf16::from_f32(0.5)]), 1.5);
        }
    }

    #[test]
    fn every_half_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            for (got, want) in [(h.widen(), f16::to_f32(h)), (b.widen(), bf16::to_f32(b))] {
                assert!(
                    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                    "{bits:#x}: {got} {want}"
                );
            }
        }
    }

    #[test]
    fn floats_narrow_to_the_nearest_half_ties_to_even() {
        for i in 0..4_000_000u32 {
            let x = f32::from_bits(i.wrapping_mul(2_654_435_761));
            let (h, b) = (<f16 as Float32>::narrow(x), <bf16 as Float32>::narrow(x));
            assert!(h == f16::from_f32(x) || x.is_nan() && h.is_nan(), "{x}: {h} {}", f16::from_f32(x));
            assert!(b == bf16::from_f32(x) || x.is_nan() && b.is_nan(), "{x}: {b}");
        }
        for h in (0..0x7C00u16).map(f16::from_bits) {
            // The middle between two neighbours, and one step to either side of it.
            let middle = (f16::to_f32(h) + f16::to_f32(f16::from_bits(h.to_bits() + 1)).min(65536.0)) / 2.0;
            for x in [middle, middle.next_up(), middle.next_down(), -middle] {
                assert_eq!(<f16 as Float32>::narrow(x).to_bits(), f16::from_f32(x).to_bits(), "{x}");
            }
        }
    }
}
