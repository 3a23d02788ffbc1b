//! Turns the coded bytes of a JPEG's scan into the coefficients of its blocks.

/// Codes of so many bits are looked up at once.
const QUICK: u32 = 9;
const TABLE_WORDS: usize = 1 << QUICK;

/// A table of Huffman codes.
#[derive(Clone)]
pub struct Codes {
    /// By the next bits: the length of the code and its value, or 0 where the code is longer.
    quick: [u16; TABLE_WORDS],
    /// By length: the first code that is too large, brought to 16 bits, and what a code plus this is the place of its value.
    ends: [u32; 17],
    shifts: [i32; 17],
    values: [u8; 256],
}

impl Codes {
    /// Reads a table at the front of a segment C4, behind its class; says how many bytes it has.
    pub fn read(body: &[u8]) -> Option<(Codes, usize)> {
        let counts = body.get(..16)?;
        let count: usize = counts.iter().map(|&count| usize::from(count)).sum();
        let list = body.get(16..16 + count).filter(|_| count <= 256)?;
        let mut codes = Codes { quick: [0; TABLE_WORDS], ends: [0; 17], shifts: [0; 17], values: [0; 256] };
        codes.values[..count].copy_from_slice(list);
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=16u32 {
            let count = u32::from(counts[length as usize - 1]);
            // More codes than so many bits can tell apart.
            if code + count > 1 << length {
                return None;
            }
            codes.shifts[length as usize] = place as i32 - code as i32;
            for _ in 0..count {
                if length <= QUICK {
                    let word = (length as u16) << 8 | u16::from(list[place]);
                    let from = (code << (QUICK - length)) as usize;
                    codes.quick[from..from + (1 << (QUICK - length))].fill(word);
                }
                (code, place) = (code + 1, place + 1);
            }
            codes.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Some((codes, 16 + count))
    }
}

/// Bits of a scan, the highest of a byte first.
pub struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    held: u64,
    count: u32,
    /// Zeros that stand for bits behind the end.
    padded: u32,
}

impl<'a> Bits<'a> {
    pub fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0, held: 0, count: 0, padded: 0 }
    }

    /// Holds at least 32 bits. A byte FF is written as FF 00; another byte behind it is a marker, where the bits end.
    fn fill(&mut self) {
        while self.count <= 56 {
            let byte = match (self.bytes.get(self.at), self.bytes.get(self.at + 1)) {
                (Some(0xff), Some(0)) => {
                    self.at += 2;
                    0xff
                }
                (Some(0xff), _) | (None, _) => {
                    self.padded = self.padded.saturating_add(8);
                    0
                }
                (Some(&byte), _) => {
                    self.at += 1;
                    byte
                }
            };
            self.held |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    fn drop(&mut self, count: u32) {
        self.held <<= count;
        self.count -= count;
    }

    /// Whether more was read than there is.
    pub fn is_overrun(&self) -> bool {
        self.padded > self.count
    }

    fn code(&mut self, codes: &Codes) -> Option<u8> {
        if self.count < 32 {
            self.fill();
        }
        let word = codes.quick[(self.held >> (64 - QUICK)) as usize];
        if word != 0 {
            self.drop(u32::from(word >> 8));
            return Some(word as u8);
        }
        let next = (self.held >> 48) as u32;
        let length = (1..=16).find(|&length| next < codes.ends[length as usize])?;
        let place = (next >> (16 - length)) as i32 + codes.shifts[length as usize];
        self.drop(length);
        codes.values.get(usize::try_from(place).ok()?).copied()
    }

    /// A number of so many bits; those that begin with 0 are negative.
    fn number(&mut self, bits: u8) -> i32 {
        if bits == 0 {
            return 0;
        }
        let bits = u32::from(bits);
        if self.count < 32 {
            self.fill();
        }
        let value = (self.held >> (64 - bits)) as i32;
        self.drop(bits);
        if value < 1 << (bits - 1) { value - (1 << bits) + 1 } else { value }
    }

    /// Reads a block: its mean and then the others, each to `each` with its place in zigzag order. No code means damage.
    pub fn block(
        &mut self,
        (dc, ac): (&Codes, &Codes),
        before: &mut i32,
        mut each: impl FnMut(usize, i32),
    ) -> Option<()> {
        let bits = self.code(dc).filter(|&bits| bits <= 11)?;
        *before = before.wrapping_add(self.number(bits));
        each(0, *before);
        let mut place = 1;
        while place < 64 {
            let code = self.code(ac)?;
            let (run, bits) = (usize::from(code >> 4), code & 15);
            match (run, bits) {
                (15, 0) => place += 16,
                (_, 0) => break,
                _ => {
                    place += run;
                    let value = self.number(bits);
                    if place > 63 {
                        return None;
                    }
                    each(place, value);
                    place += 1;
                }
            }
        }
        Some(())
    }

    /// Goes on behind the next marker, which must be the restart of this number.
    pub fn restart(&mut self, number: u8) -> Option<()> {
        if self.is_overrun() {
            return None;
        }
        // Bytes that are held already are the fill of the last one: a scan ends in the byte before its marker.
        while self.bytes.get(self.at) == Some(&0xff) && self.bytes.get(self.at + 1) == Some(&0xff) {
            self.at += 1;
        }
        let is_restart = self.bytes.get(self.at..self.at + 2)? == [0xff, 0xd0 | number];
        (self.held, self.count, self.padded) = (0, 0, 0);
        self.at += 2;
        is_restart.then_some(())
    }
}
