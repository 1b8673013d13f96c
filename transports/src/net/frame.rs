//! Frames on a connection: a head of 32 bytes, and the bytes that follow it.
//!
//! ```text
//! byte 0     1        2..4  4..8      8..16     16..24    24..28  28..32
//!      kind  handler  aux   sequence  argument  channel   bytes   0      (little endian)
//! ```
//!
//! A head is rejected as a whole: another kind, more bytes than the kind has, a gap in the
//! sequence, or a word that this version leaves zero.

use crate::contract::AmHead;

/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 32;
/// Largest payload of one message.
pub(super) const MESSAGE_BYTES: usize = 32 << 10;
/// Largest piece of a region in one frame: what a short message may have to wait for, besides
/// what the system has taken already.
pub(super) const PIECE_BYTES: usize = 128 << 10;
/// Bytes of the body of [`FrameKind::Get`].
pub(super) const GET_BYTES: usize = 24;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// An active message of a channel.
    Message = 1,
    /// The argument is a number of bytes of the channel that have been received and released.
    Credit = 2,
    /// Asks for bytes of a region: a [`GetBody`]; the argument is the asker's number.
    Get = 3,
    /// The next bytes of what the argument's number asks for.
    Piece = 4,
    /// What the argument's number asks for will not come: aux is a [`Refusal`].
    Refused = 5,
    /// The sender has dropped the channel.
    Close = 6,
    /// The sender has finalized: no frame follows.
    Leave = 7,
}

/// Why a region is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Refusal {
    /// It was withdrawn, or there was none.
    Withdrawn = 1,
    /// The bytes lie outside.
    Outside = 2,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub kind: FrameKind,
    pub am: AmHead,
    pub channel: u64,
    pub sequence: u32,
    pub bytes: u32,
}

/// Which bytes of which region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GetBody {
    pub region: u64,
    pub offset: u64,
    pub bytes: u64,
}

/// What no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadFrame {
    Kind(u8),
    Bytes(FrameKind, u32),
    Sequence { expected: u32, found: u32 },
    NotZero,
}

impl std::fmt::Display for BadFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "a frame of kind {kind}"),
            Self::Bytes(kind, bytes) => write!(f, "a frame {kind:?} of {bytes} bytes"),
            Self::Sequence { expected, found } => {
                write!(f, "frame {found} where {expected} was due")
            }
            Self::NotZero => f.write_str("a frame with a word that should be zero"),
        }
    }
}

fn word(w: &[u8], at: usize) -> u64 {
    let mut all = [0; 8];
    all.copy_from_slice(&w[at..at + 8]);
    u64::from_le_bytes(all)
}

fn half(w: &[u8], at: usize) -> u32 {
    let mut all = [0; 4];
    all.copy_from_slice(&w[at..at + 4]);
    u32::from_le_bytes(all)
}

impl FrameKind {
    fn of_wire(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => Self::Message,
            2 => Self::Credit,
            3 => Self::Get,
            4 => Self::Piece,
            5 => Self::Refused,
            6 => Self::Close,
            7 => Self::Leave,
            _ => return None,
        })
    }

    /// Whether a frame of this kind may have a payload of this size.
    fn has(self, bytes: usize) -> bool {
        match self {
            Self::Message => bytes <= MESSAGE_BYTES,
            Self::Get => bytes == GET_BYTES,
            Self::Piece => (1..=PIECE_BYTES).contains(&bytes),
            Self::Credit | Self::Refused | Self::Close | Self::Leave => bytes == 0,
        }
    }
}

impl Refusal {
    pub fn of_wire(aux: u16) -> Self {
        match aux {
            2 => Self::Outside,
            _ => Self::Withdrawn,
        }
    }
}

impl Head {
    /// A head without a payload.
    pub fn control(kind: FrameKind, channel: u64, arg: u64) -> Self {
        Self {
            kind,
            am: AmHead {
                kind: 0,
                aux: 0,
                arg,
            },
            channel,
            sequence: 0,
            bytes: 0,
        }
    }

    pub fn to_wire(self) -> [u8; HEAD_BYTES] {
        let mut w = [0; HEAD_BYTES];
        w[0] = self.kind as u8;
        w[1] = self.am.kind;
        w[2..4].copy_from_slice(&self.am.aux.to_le_bytes());
        w[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        w[8..16].copy_from_slice(&self.am.arg.to_le_bytes());
        w[16..24].copy_from_slice(&self.channel.to_le_bytes());
        w[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        w
    }

    /// Parses a head that should have the given number.
    pub fn of_wire(w: &[u8; HEAD_BYTES], sequence: u32) -> Result<Self, BadFrame> {
        let kind = FrameKind::of_wire(w[0]).ok_or(BadFrame::Kind(w[0]))?;
        let found = half(w, 4);
        if found != sequence {
            let expected = sequence;
            return Err(BadFrame::Sequence { expected, found });
        }
        if half(w, 28) != 0 {
            return Err(BadFrame::NotZero);
        }
        let bytes = half(w, 24);
        if !kind.has(bytes as usize) {
            return Err(BadFrame::Bytes(kind, bytes));
        }
        Ok(Self {
            kind,
            am: AmHead {
                kind: w[1],
                aux: u16::from_le_bytes([w[2], w[3]]),
                arg: word(w, 8),
            },
            channel: word(w, 16),
            sequence,
            bytes,
        })
    }
}

impl GetBody {
    pub fn to_wire(self) -> [u8; GET_BYTES] {
        let mut w = [0; GET_BYTES];
        w[..8].copy_from_slice(&self.region.to_le_bytes());
        w[8..16].copy_from_slice(&self.offset.to_le_bytes());
        w[16..].copy_from_slice(&self.bytes.to_le_bytes());
        w
    }

    /// Parses a body; `w` has [`GET_BYTES`].
    pub fn of_wire(w: &[u8]) -> Option<Self> {
        let w: &[u8; GET_BYTES] = w.try_into().ok()?;
        Some(Self {
            region: word(w, 0),
            offset: word(w, 8),
            bytes: word(w, 16),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heads() -> impl Strategy<Value = Head> {
        let kinds = prop::sample::select(vec![
            FrameKind::Message,
            FrameKind::Credit,
            FrameKind::Get,
            FrameKind::Piece,
            FrameKind::Refused,
            FrameKind::Close,
            FrameKind::Leave,
        ]);
        let rest = (
            any::<u8>(),
            any::<u16>(),
            any::<u64>(),
            any::<u64>(),
            any::<u32>(),
        );
        (kinds, rest, 1..=MESSAGE_BYTES as u32).prop_map(|(kind, rest, bytes)| {
            let (handler, aux, arg, channel, sequence) = rest;
            Head {
                kind,
                am: AmHead {
                    kind: handler,
                    aux,
                    arg,
                },
                channel,
                sequence,
                bytes: match kind {
                    FrameKind::Message | FrameKind::Piece => bytes,
                    FrameKind::Get => GET_BYTES as u32,
                    _ => 0,
                },
            }
        })
    }

    proptest! {
        #[test]
        fn heads_survive_the_way(head in heads()) {
            prop_assert_eq!(Head::of_wire(&head.to_wire(), head.sequence), Ok(head));
        }

        /// Whatever comes is parsed to what would be written so, or rejected.
        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes in any::<[u8; HEAD_BYTES]>(), kind in 0u8..9) {
            let mut bytes = bytes;
            bytes[0] = kind;
            let sequence = half(&bytes, 4);
            if let Ok(head) = Head::of_wire(&bytes, sequence) {
                prop_assert_eq!(head.to_wire(), bytes);
                prop_assert!(head.bytes as usize <= PIECE_BYTES);
            }
        }

        #[test]
        fn bodies_survive_the_way(region: u64, offset: u64, bytes: u64) {
            let body = GetBody { region, offset, bytes };
            prop_assert_eq!(GetBody::of_wire(&body.to_wire()), Some(body));
        }
    }

    #[test]
    fn each_fault_is_named() {
        let head = Head::control(FrameKind::Credit, 7, 100);
        let with = |at: usize, to: u8| {
            let mut w = head.to_wire();
            w[at] = to;
            Head::of_wire(&w, 0).expect_err("a fault").to_string()
        };
        assert_eq!(with(0, 0), "a frame of kind 0");
        assert_eq!(with(24, 1), "a frame Credit of 1 bytes");
        assert_eq!(with(4, 9), "frame 9 where 0 was due");
        assert_eq!(with(31, 1), "a frame with a word that should be zero");
        assert_eq!(GetBody::of_wire(&[0; 23]), None);
    }
}
