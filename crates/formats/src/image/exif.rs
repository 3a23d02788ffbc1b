//! Turns the EXIF data of a JPEG into how its camera was held.

/// How the rows and columns of a photo must be turned to stand upright: EXIF's number, from 1 (as it is) to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orientation(pub(super) u8);

impl Orientation {
    /// Upright as it is.
    pub const UPRIGHT: Orientation = Orientation(1);

    /// Whether rows become columns.
    pub fn swaps_axes(self) -> bool {
        self.0 >= 5
    }
}

/// The segments of a JPEG before its pixels: the marker and the body of each, and where it ends.
pub(super) fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8], usize)> {
    let mut at = 2;
    std::iter::from_fn(move || {
        while bytes.get(at) == Some(&0xff) && bytes.get(at + 1) == Some(&0xff) {
            at += 1;
        }
        let [0xff, marker, high, low] = *bytes.get(at..at + 4)? else { return None };
        let length = usize::from(high) << 8 | usize::from(low);
        let body = bytes.get(at + 4..at + 2 + length.max(2))?;
        at += 2 + length.max(2);
        Some((marker, body, at))
    })
}

/// How a photo must be turned to stand upright; what is no JPEG or does not say is upright.
pub fn orientation(bytes: &[u8]) -> Orientation {
    if !bytes.starts_with(&[0xff, 0xd8]) {
        return Orientation::UPRIGHT;
    }
    // Pixels begin behind the marker DA.
    let found = segments(bytes).take_while(|(marker, ..)| *marker != 0xda).find_map(|(marker, body, _)| {
        let tiff = body.strip_prefix(b"Exif\0\0").filter(|_| marker == 0xe1)?;
        read(tiff)
    });
    found.map_or(Orientation::UPRIGHT, Orientation)
}

/// The entry 0x0112 of the first directory of a TIFF header.
pub(super) fn read(tiff: &[u8]) -> Option<u8> {
    let big = match tiff.get(..2)? {
        b"MM" => true,
        b"II" => false,
        _ => return None,
    };
    let two = |at: usize| {
        let pair: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) })
    };
    let four = |at: usize| {
        let four: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) } as usize)
    };
    let directory = four(4)?;
    let entries = usize::from(two(directory)?);
    let entry = |at: usize| directory + 2 + 12 * at;
    let found = (0..entries).map(entry).find(|&at| two(at) == Some(0x0112))?;
    u8::try_from(two(found + 8)?).ok().filter(|number| (1..=8).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_is_found_in_both_byte_orders_and_nowhere_else() {
        let little =
            b"II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x01\0\0\0\0\0\0\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        assert_eq!(read(little), Some(6));
        let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0";
        assert_eq!(read(big), Some(3));
        assert_eq!(read(b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0"), None);
        for cut in 0..big.len() {
            let _ = read(&big[..cut]);
        }
        let mut jpeg = vec![0xff, 0xd8, 0xff, 0xe1, 0, (2 + 6 + big.len()) as u8];
        jpeg.extend(b"Exif\0\0");
        jpeg.extend(big);
        assert_eq!(orientation(&jpeg), Orientation(3));
        assert_eq!(orientation(b"GIF89a"), Orientation::UPRIGHT);
        for cut in 0..jpeg.len() {
            let _ = orientation(&jpeg[..cut]);
        }
    }
}
