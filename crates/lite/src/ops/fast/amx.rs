//! Bytes by bytes with the tiles of AMX: sixteen pixels times sixty-four channels at once.
//!
//! Instructions of tiles are written as assembly: the language has no others for them yet. The compiler uses none of these registers itself.

use core::arch::asm;
use core::arch::x86_64::{_mm512_maskz_loadu_epi8, _mm512_store_si512};

use super::lanes::{LANES, Lanes, Wide, soon};
use super::panels::{HEAD, TAPS};
use super::rows::{Copies, TILE, Walk};
use crate::error::{Error, Result};
use crate::ops::conv::Bytes;
use crate::ops::layer::Layer;
use crate::quant::Rounding;

/// Panels that are computed at once.
const PANELS: usize = 4;

/// Asks the system for the registers; whether it gives them. They are this process's from then on.
pub fn allowed() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_PRCTL: i64 = 158;
        const REQUEST: i64 = 0x1023;
        const TILES: i64 = 18;
        let result: i64;
        // SAFETY: the call reads and writes no memory of the process.
        unsafe {
            asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") REQUEST, in("rsi") TILES,
                out("rcx") _, out("r11") _, options(nostack));
        }
        result == 0
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// How many rows and bytes each register has.
#[repr(C, align(64))]
struct Shape([u8; 64]);

impl Shape {
    /// Sums in four registers, an operand in the next, weights in the others.
    fn new(rows: usize) -> Self {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for register in 0..8 {
            bytes[16 + 2 * register] = 64;
            bytes[48 + register] = if register <= PANELS { rows as u8 } else { 16 };
        }
        Self(bytes)
    }
}

#[repr(C, align(64))]
struct Buffer<T, const N: usize>([T; N]);

/// Computes all pixels of bytes.
pub fn run(layer: &Layer<'_>, bytes: &Bytes, out: &mut [u8]) -> Result<()> {
    let Layer { packed, store, window, x } = layer;
    let (row, pixels) = (packed.channels, out.len() / packed.channels);
    let zeros: *const u8 = packed.zeros(store).as_ptr().cast();
    let mut rows = [[zeros; TILE]; TAPS];
    let mut copies = Copies::uninit();
    // Tiles of like sizes, none of them much too large for the last pixels.
    let tile = pixels.div_ceil(pixels.div_ceil(TILE).max(1)).max(1);
    let step = (super::NEAR / (packed.panel * 64)).max(1).next_multiple_of(PANELS);
    let shape = Shape::new(tile);
    // SAFETY: packs are made for tiles only where the processor has them and the system allows them.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &shape, options(nostack, readonly)) };
    let mut done = Ok(());
    'all: for first in (0..packed.panels()).step_by(step) {
        let Some(mut walk) = Walk::new(window, x, 1, zeros, pixels, packed.taps, &mut copies) else {
            done = Err(Error::Bug("an operand is shorter than its shape says"));
            break 'all;
        };
        for pixel in (0..pixels).step_by(tile) {
            let count = tile.min(pixels - pixel);
            walk.locate(count, 0, &mut rows);
            for rows in &mut rows[..packed.taps] {
                rows[count..].fill(zeros);
            }
            let out = &mut out[pixel * row..(pixel + count) * row];
            for panel in (first..(first + step).min(packed.panels())).step_by(PANELS) {
                let part = Part {
                    rows: &rows[..packed.taps],
                    tile,
                    count,
                    deep: packed.deep,
                    panel_bytes: packed.panel * 64,
                    panels: PANELS.min(packed.panels() - panel),
                    weights: packed.from(store, panel).as_ptr().cast(),
                    heads: packed.heads(store, panel).as_ptr().cast(),
                    is_first: pixel == 0,
                    left: packed.channels - panel * LANES,
                    channels: packed.channels,
                    rounding: bytes.rounding(),
                };
                // SAFETY: the processor has AVX-512 where it has tiles. Every row points to `deep` bytes, all panels have been packed with
                // lines behind them that may be read, and `out` has `count` rows of `channels`.
                unsafe { part.run(out.as_mut_ptr().add(panel * LANES)) };
            }
        }
    }
    // SAFETY: as above; the registers are given back, so that switching threads need not keep them.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
    done
}

/// Some pixels times some panels.
struct Part<'r> {
    rows: &'r [[*const u8; TILE]],
    /// Pixels of a tile, and those of them that are there.
    tile: usize,
    count: usize,
    deep: usize,
    weights: *const u8,
    heads: *const u8,
    panel_bytes: usize,
    panels: usize,
    /// Whether its weights are read for the first time.
    is_first: bool,
    left: usize,
    channels: usize,
    rounding: Rounding,
}

impl Part<'_> {
    /// # Safety
    /// As said where it is called.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn run(&self, out: *mut u8) {
        let mut operand = Buffer([0u8; 64 * TILE]);
        let mut sums = Buffer([0i32; LANES * TILE * PANELS]);
        let fours = self.deep.div_ceil(4);
        // SAFETY: as the caller promises. Lines that are read beyond a row of weights are multiplied by zeros.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
            for (tap, rows) in self.rows.iter().enumerate() {
                for chunk in 0..self.deep.div_ceil(64) {
                    let valid = (self.deep - 64 * chunk).min(64);
                    let mask = u64::MAX >> (64 - valid);
                    for (pixel, row) in rows[..self.tile].iter().enumerate() {
                        let bytes = _mm512_maskz_loadu_epi8(mask, row.add(64 * chunk).cast());
                        _mm512_store_si512(operand.0.as_mut_ptr().add(64 * pixel).cast(), bytes);
                    }
                    asm!("tileloadd tmm4, [{at} + {stride}]", at = in(reg) operand.0.as_ptr(),
                        stride = in(reg) 64usize, options(nostack, readonly));
                    let weights = self.weights.add((tap * fours + 16 * chunk) * 64);
                    let panel = |n: usize| weights.add(n * self.panel_bytes);
                    if self.is_first {
                        for n in 0..self.panels {
                            (0..16).for_each(|line| soon(panel(n).add(64 * line)));
                        }
                    }
                    macro_rules! multiply {
                        ($n:literal, $register:literal, $weights:literal) => {
                            asm!(
                                concat!("tileloadd ", $weights, ", [{at} + {stride}]"),
                                concat!("tdpbssd ", $register, ", tmm4, ", $weights),
                                at = in(reg) panel($n), stride = in(reg) 64usize, options(nostack, readonly)
                            )
                        };
                    }
                    multiply!(0, "tmm0", "tmm5");
                    if self.panels > 1 {
                        multiply!(1, "tmm1", "tmm6");
                    }
                    if self.panels > 2 {
                        multiply!(2, "tmm2", "tmm7");
                    }
                    if self.panels > 3 {
                        multiply!(3, "tmm3", "tmm5");
                    }
                }
            }
            let at = |n: usize| LANES * TILE * n;
            asm!(
                "tilestored [{a} + {stride}], tmm0", "tilestored [{b} + {stride}], tmm1",
                "tilestored [{c} + {stride}], tmm2", "tilestored [{d} + {stride}], tmm3",
                a = in(reg) sums.0.as_mut_ptr(), b = in(reg) sums.0.as_mut_ptr().add(at(1)),
                c = in(reg) sums.0.as_mut_ptr().add(at(2)), d = in(reg) sums.0.as_mut_ptr().add(at(3)),
                stride = in(reg) 64usize, options(nostack)
            );
            for n in 0..self.panels {
                let head = self.heads.add(n * 64 * HEAD);
                let (start, scales) = (Wide::whole(head), Wide::floats(head.add(64).cast()));
                for pixel in 0..self.count {
                    let sum = Wide::whole(sums.0.as_ptr().add(at(n) + LANES * pixel).cast());
                    let to = out.add(pixel * self.channels + n * LANES);
                    Wide::put_bytes(to, Wide::plus(sum, start), scales, self.rounding, self.left - n * LANES);
                }
            }
        }
    }
}
