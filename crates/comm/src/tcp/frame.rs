//! What stands before every message on a stream.

use crate::transport::{NOTICE_BYTES, Tag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The other side has a place for a message of this tag and length.
    Ready,
    /// That message follows.
    Data,
    /// A notice follows.
    Notice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub tag: Tag,
    pub len: usize,
}

impl Frame {
    pub const BYTES: usize = 16;

    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(b"plim");
        bytes[4] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes
    }

    /// None where no rank would have written it.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Frame> {
        let kind = match bytes[4] {
            0 => FrameKind::Ready,
            1 => FrameKind::Data,
            2 => FrameKind::Notice,
            _ => return None,
        };
        let tag = Tag::from_le_bytes([bytes[6], bytes[7]]);
        let len = usize::try_from(u64::from_le_bytes(bytes[8..].try_into().ok()?)).ok()?;
        let is_bounded = kind != FrameKind::Notice || len <= NOTICE_BYTES;
        (&bytes[..4] == b"plim" && is_bounded).then_some(Frame { kind, tag, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_from_its_bytes_and_others_are_refused() {
        for kind in [FrameKind::Ready, FrameKind::Data, FrameKind::Notice] {
            let frame = Frame { kind, tag: 31_000, len: 900 };
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
        let long = Frame { kind: FrameKind::Notice, tag: 0, len: NOTICE_BYTES + 1 };
        assert_eq!(Frame::decode(&long.encode()), None);
        assert_eq!(Frame::decode(b"GET / HTTP/1.1\r\n"), None);
    }
}
