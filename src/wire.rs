//! What two lanes say to each other: active messages of wire version 1.
//!
//! ```text
//! kind        aux                 arg low 32   arg high 32   payload
//! EAGER       1 = wants ACK       tag          send          data
//! FIRST       1 = wants ACK       tag          send          total u64, data
//! FRAGMENT    0                   send         0             data
//! ANNOUNCE    1 = key follows     tag          send          total u64 [, region key]
//! GO          0                   send         0             none: send fragments
//! FINISH      outcome             send         0             none
//! ACK         0                   send         0             none: matched
//! CREDIT      0                   bytes        0             none
//! WITHDRAW    0                   send         0             none
//! SHARE       0                   send         receive       region key, first byte u64
//! PUSHED      1 = not pushed      receive      0             none
//! ```
//!
//! `send` is the sender's handle of the operation: the receiver only repeats
//! it. Fragments of one send arrive in order, so they carry no offset.

use osier_transports::{AmHead, RegionKey};

pub(crate) const EAGER: u8 = 1;
pub(crate) const FIRST: u8 = 2;
pub(crate) const FRAGMENT: u8 = 3;
pub(crate) const ANNOUNCE: u8 = 4;
pub(crate) const GO: u8 = 5;
pub(crate) const FINISH: u8 = 6;
pub(crate) const ACK: u8 = 7;
pub(crate) const CREDIT: u8 = 8;
pub(crate) const WITHDRAW: u8 = 9;

pub(crate) const SHARE: u8 = 10;
pub(crate) const PUSHED: u8 = 11;

/// Name of a kind of message.
pub(crate) fn name(kind: u8) -> &'static str {
    match kind {
        EAGER => "EAGER",
        FIRST => "FIRST",
        FRAGMENT => "FRAGMENT",
        ANNOUNCE => "ANNOUNCE",
        GO => "GO",
        FINISH => "FINISH",
        ACK => "ACK",
        CREDIT => "CREDIT",
        WITHDRAW => "WITHDRAW",
        SHARE => "SHARE",
        PUSHED => "PUSHED",
        _ => "unknown",
    }
}

/// The receiver has the data.
pub(crate) const OUTCOME_DONE: u16 = 0;
/// The receiver has forgotten the message, as the sender asked.
pub(crate) const OUTCOME_WITHDRAWN: u16 = 1;

/// The receiver has dropped the communicator, and nobody will receive it.
pub(crate) const OUTCOME_CLOSED: u16 = 2;

/// Bytes of the total in front of a FIRST message's data.
pub(crate) const TOTAL_BYTES: usize = 8;

/// A message's fixed part.
#[inline]
pub(crate) fn head(kind: u8, aux: u16, low: u32, high: u32) -> AmHead {
    AmHead {
        kind,
        aux,
        arg: u64::from(low) | u64::from(high) << 32,
    }
}

/// Low and high half of the argument.
#[inline]
pub(crate) fn halves(arg: u64) -> (u32, u32) {
    (arg as u32, (arg >> 32) as u32)
}

/// Body of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub total: u64,
    pub key: Option<RegionKey>,
}

impl Announcement {
    pub const MAX_BYTES: usize = TOTAL_BYTES + RegionKey::WIRE_BYTES;

    /// Writes the wire form; returns it with its length.
    pub fn to_wire(self) -> ([u8; Self::MAX_BYTES], usize) {
        let mut w = [0; Self::MAX_BYTES];
        w[..TOTAL_BYTES].copy_from_slice(&self.total.to_le_bytes());
        match self.key {
            Some(key) => {
                w[TOTAL_BYTES..].copy_from_slice(&key.to_wire());
                (w, Self::MAX_BYTES)
            }
            None => (w, TOTAL_BYTES),
        }
    }

    /// Parses the wire form; `None` for what this version never writes.
    pub fn from_wire(bytes: &[u8], has_key: bool) -> Option<Self> {
        let want = if has_key {
            Self::MAX_BYTES
        } else {
            TOTAL_BYTES
        };
        if bytes.len() != want {
            return None;
        }
        let (total, rest) = bytes.split_at(TOTAL_BYTES);
        let total = u64::from_le_bytes(total.try_into().ok()?);
        let key = if has_key {
            Some(RegionKey::from_wire(rest).filter(|k| k.bytes == total)?)
        } else {
            None
        };
        (total <= isize::MAX as u64).then_some(Self { total, key })
    }
}

/// Body of a request to write the rear part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareRequest {
    /// Where the rear part goes; its size is the part's.
    pub key: RegionKey,
    /// First byte of the message that belongs to it.
    pub from: u64,
}

impl ShareRequest {
    pub const BYTES: usize = RegionKey::WIRE_BYTES + 8;

    pub fn to_wire(self) -> [u8; Self::BYTES] {
        let mut w = [0; Self::BYTES];
        w[..RegionKey::WIRE_BYTES].copy_from_slice(&self.key.to_wire());
        w[RegionKey::WIRE_BYTES..].copy_from_slice(&self.from.to_le_bytes());
        w
    }

    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let (key, from) = bytes.split_at(RegionKey::WIRE_BYTES);
        Some(Self {
            key: RegionKey::from_wire(key)?,
            from: u64::from_le_bytes(from.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_transports::RegionKind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn announcements_survive_the_wire(total in 0..=isize::MAX as u64, base in any::<u32>(), key in any::<bool>()) {
            let a = Announcement {
                total,
                key: key.then_some(RegionKey {
                    kind: RegionKind::Process,
                    owner: 9,
                    base: u64::from(base),
                    bytes: total,
                }),
            };
            let (w, n) = a.to_wire();
            prop_assert_eq!(Announcement::from_wire(&w[..n], key), Some(a));
            prop_assert_eq!(Announcement::from_wire(&w[..n], !key), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), key in any::<bool>()) {
            let _ = Announcement::from_wire(&bytes, key);
            let _ = ShareRequest::from_wire(&bytes);
        }
    }
}
