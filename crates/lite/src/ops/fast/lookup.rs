//! Turns bytes into those that a table has for them, 64 at once where the processor looks up in registers.

use core::arch::x86_64::*;

use super::cpu::looks_up_bytes;

/// Looks up every byte.
pub fn lookup(table: &[u8; 256], bytes: &mut [u8]) {
    if looks_up_bytes() {
        // SAFETY: the processor has the instructions.
        return unsafe { in_registers(table, bytes) };
    }
    bytes.iter_mut().for_each(|byte| *byte = table[*byte as usize]);
}

/// # Safety
/// The processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn in_registers(table: &[u8; 256], bytes: &mut [u8]) {
    // SAFETY: four lines of 64 bytes are in the table.
    let quarter = |number: usize| unsafe { _mm512_loadu_si512(table.as_ptr().add(64 * number).cast()) };
    let [a, b, c, d] = core::array::from_fn(quarter);
    let find = |at: __m512i| {
        let (low, high) = (_mm512_permutex2var_epi8(a, at, b), _mm512_permutex2var_epi8(c, at, d));
        _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high)
    };
    let (lines, rest) = bytes.as_chunks_mut::<64>();
    for line in lines {
        // SAFETY: a line has 64 bytes.
        unsafe {
            _mm512_storeu_si512(line.as_mut_ptr().cast(), find(_mm512_loadu_si512(line.as_ptr().cast())))
        };
    }
    if !rest.is_empty() {
        let mask = u64::MAX >> (64 - rest.len());
        // SAFETY: bytes beyond the rest are neither read nor written.
        unsafe {
            let at = _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast());
            _mm512_mask_storeu_epi8(rest.as_mut_ptr().cast(), mask, find(at));
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn bytes_are_looked_up_whatever_their_number() {
        let table: [u8; 256] = core::array::from_fn(|at| (at * 167 + 13) as u8);
        for count in [0, 1, 63, 64, 65, 130, 256, 700] {
            let mut bytes: Vec<u8> = (0..count).map(|at| (at * 59) as u8).collect();
            let wanted: Vec<u8> = bytes.iter().map(|byte| table[*byte as usize]).collect();
            lookup(&table, &mut bytes);
            assert_eq!(bytes, wanted);
        }
    }
}
