//! Turns one scratch buffer into the parts that a kernel needs.

/// Hands out parts of a scratch buffer, each aligned to a cache line; with a null start it only counts.
pub(crate) struct Carver {
    start: *mut u8,
    used: usize,
}

impl Carver {
    /// A buffer that begins at an aligned address, or null to count.
    pub(crate) fn new(start: *mut u8) -> Carver {
        Carver { start, used: 0 }
    }

    /// Room for `n` elements.
    pub(crate) fn take<E>(&mut self, n: usize) -> *mut E {
        let place = self.start.wrapping_add(self.used).cast();
        self.used = (self.used + n * size_of::<E>()).next_multiple_of(64);
        place
    }

    /// Bytes handed out.
    pub(crate) fn used(&self) -> usize {
        self.used
    }
}
