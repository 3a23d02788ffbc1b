//! Turns the frame header of a JPEG into its components, and into how large each of them becomes when it is scaled.

/// The header of a frame: what the pixels are made of.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The second byte of its marker: how it is coded.
    pub marker: u8,
    pub height: usize,
    pub width: usize,
    precision: u8,
    count: usize,
    parts: [Part; 4],
}

/// A component: brightness or a color.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part {
    pub id: u8,
    /// Blocks of 8 × 8 samples in a unit of the scan: across and down.
    pub across: usize,
    pub down: usize,
    /// The number of its table of quantization.
    pub table: usize,
}

impl Frame {
    /// Reads the body of a segment C0 to CF.
    pub fn read(marker: u8, body: &[u8]) -> Option<Frame> {
        let [precision, y1, y0, x1, x0, count, list @ ..] = body else { return None };
        let side = |high: &u8, low: &u8| usize::from(*high) << 8 | usize::from(*low);
        let mut parts = [Part::default(); 4];
        for (part, of) in parts.iter_mut().zip(list.chunks_exact(3)) {
            let (across, down) = (usize::from(of[1] >> 4), usize::from(of[1] & 15));
            *part = Part { id: of[0], across, down, table: usize::from(of[2]) };
        }
        let count = usize::from(*count).min(4).min(list.len() / 3);
        let (height, width) = (side(y1, y0), side(x1, x0));
        Some(Frame { marker, height, width, precision: *precision, count, parts })
    }

    /// Its components, four at most.
    pub fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    /// How it is scaled, if it can be: one scan of all components, without refinement, gray or brightness with two colors that are
    /// at most halved. `scanned` are the components of its first scan, `adobe` is the transform that an Adobe segment names.
    pub fn grid(&self, scanned: usize, adobe: Option<u8>) -> Option<Grid> {
        let parts = self.parts();
        let is_plain = matches!(self.marker, 0xc0 | 0xc1) && self.precision == 8 && scanned == parts.len();
        let is_known = match parts {
            [_] => true,
            [y, u, v] => adobe.is_none_or(|transform| transform == 1) && [y.id, u.id, v.id] != *b"RGB",
            _ => false,
        };
        if !is_plain || !is_known || self.height == 0 || self.width == 0 {
            return None;
        }
        let mut grid =
            Grid { height: self.height, width: self.width, parts: parts.len(), across: 1, down: 1 };
        if parts.len() > 1 {
            grid.across = parts.iter().map(|part| part.across).max()?;
            grid.down = parts.iter().map(|part| part.down).max()?;
            let is_even = |most: usize, of: usize| of > 0 && most <= 4 && (most == of || most == 2 * of);
            let mut all = parts.iter();
            all.all(|part| is_even(grid.across, part.across) && is_even(grid.down, part.down))
                .then_some(())?;
        }
        Some(grid)
    }
}

/// The units of a scan, in which a picture is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub height: usize,
    pub width: usize,
    /// Components: 1 or 3.
    pub parts: usize,
    /// Blocks of the finest component in a unit: across and down.
    pub across: usize,
    pub down: usize,
}

impl Grid {
    /// Rows and columns of units.
    pub fn units(&self) -> [usize; 2] {
        [self.height.div_ceil(8 * self.down), self.width.div_ceil(8 * self.across)]
    }

    /// Rows and columns of the picture where every block of 8 × 8 becomes `side` × `side`.
    pub fn size(&self, side: usize) -> [usize; 2] {
        [(self.height * side).div_ceil(8), (self.width * side).div_ceil(8)]
    }

    /// Rows and columns of samples in a row of units, the same for all components.
    pub fn strip(&self, side: usize) -> [usize; 2] {
        [self.down * side, self.units()[1] * self.across * side]
    }

    /// Bytes of decoding so, the pixels included.
    pub fn bytes(&self, side: usize) -> u64 {
        let area = |[height, width]: [usize; 2]| height as u64 * width as u64;
        // The tables of codes and of quantization come on top.
        3 * area(self.size(side)) + self.parts as u64 * area(self.strip(side)) + (64 << 10)
    }
}
