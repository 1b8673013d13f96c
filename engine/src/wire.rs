//! Wire format of lanes: active messages.
//!
//! The table is `kinds`; a digest of it stands beside each version of the wire in
//! `wire/version.rs`. RTS (ready to send) announces a message, CTS (clear to send) asks for
//! its fragments, FIN ends a rendezvous: the sender's memory is free.
//!
//! `send` is the sender's handle of the operation: the receiver only repeats
//! it. Fragments of one send arrive in order, so they carry no offset. POISON cancels
//! a message of a collective in advance, and names the failed rank of the job; so does a
//! CANCEL of a message that has begun.
//!
//! Where messages are checked (`crate::check`), a CHECK precedes EAGER, EAGER_FIRST and
//! RTS.

pub mod offer;
#[cfg(test)]
mod version;

use offer::Offer;
use osier_datatype::SignatureDigest;
use osier_transports::{AmHead, RegionKey};

/// The kinds of messages: fields of their heads, and payload.
macro_rules! kinds {
    ($($name:ident = $number:literal: $aux:literal, $low:literal, $high:literal, $payload:literal;)*) => {
        $(pub const $name: u8 = $number;)*

        /// Name of a kind of message.
        pub fn name(kind: u8) -> &'static str {
            match kind {
                $($name => stringify!($name),)*
                _ => "unknown",
            }
        }

        /// The table, for code derived from it.
        #[cfg(test)]
        const KINDS: &[Kind] = &[$(Kind {
            name: stringify!($name),
            number: $name,
            fields: [$aux, $low, $high, $payload],
        }),*];
    };
}

kinds! {
    // kind     aux; low and high half of the argument; payload
    EAGER = 1: "1 = wants ACK, 2 = after CHECK", "tag", "send", "data";
    EAGER_FIRST = 2: "1 = wants ACK, 2 = after CHECK", "tag", "send", "total u32, check u32, data";
    FRAGMENT = 3: "0", "send", "0", "data";
    RTS = 4: "1 = key follows, 2 = after CHECK, 4 = on a device, 8 = offer follows, 16 = not valid yet",
        "tag", "send", "total u64 [, region key or offer]";
    // Send fragments.
    CTS = 5: "units, 0: all", "send", "0", "none";
    FIN = 6: "outcome", "send", "0", "none";
    // The send is matched.
    ACK = 7: "0", "send", "0", "none";
    CREDIT = 8: "0", "bytes", "0", "none";
    // The remaining fragments will not come.
    CANCEL = 9: "1 = of a run", "send", "rank", "none";
    REAR_PUT = 10: "0", "send", "receive", "region key, first byte u64";
    REAR_DONE = 11: "1 = not pushed", "receive", "0", "none";
    CHECK = 12: "0", "send", "0", "types and source line of the next start";
    // Clear to send by bounce buffers, which are granted slot by slot.
    SLOT_CTS = 13: "2 = on the device, 4 = linked to ours", "send", "0", "none";
    SLOT = 14: "1 = there are none, 2 = on the device", "send", "0",
        "where in shared memory, or on the device, the next bytes lie";
    // Slots return to the sender.
    SLOT_CREDIT = 15: "how many", "send", "0", "none";
    LAYOUT = 16: "1 = more follows", "slot", "0", "a layout or a part of one, kept for later offers";
    // In place of a message.
    POISON = 17: "0", "tag", "rank", "none";
    FD_REQUEST = 18: "1 = of slots, 2 = of the receive (halves are exchanged)", "send", "receive",
        "number u64, socket: descriptors of the memory";
    // There are no descriptors. Names the send, if the send requested them.
    FD_REFUSED = 19: "0", "receive", "0", "none";
    PUT_OFFER = 20: "1 = give up", "send", "receive", "offer of the receive's memory";
    PUT_DONE = 21: "1 = not written", "receive", "0", "none";
    // The offered memory may be used.
    READY = 22: "1 = it never is", "send", "0", "none";
    // Along the edges of task graphs.
    EDGE = 23: "0", "id of the run, place", "0", "packed elements, or the last part of them";
    EDGE_PART = 24: "0", "id, place", "0", "more packed elements, of which more follow";
    EDGE_CREDIT = 25: "0", "id, place", "0", "messages u32, all bits: no more, all but the lowest: asks for the end";
    EDGE_FAILED = 26: "0", "id, place", "0", "why, as text";
    // What the id in later messages stands for.
    EDGE_RUN = 27: "id, 256 = takes no part", "run", "0", "none";
    // The elements follow as a send with id and place as its tag.
    EDGE_LONG = 28: "0", "id, place", "0", "bytes u64";
    // The producer has ended, as was asked. Its run may have ended, too, and has no id then.
    EDGE_ENDED = 29: "0", "place", "0", "run u32";
    // Of a message in parts.
    EDGE_FIRST = 30: "0", "id, place", "0", "bytes u64, packed elements, of which more follow";
    // One-sided access by messages.
    ACCESS = 31: "0 get, 1 put, 2 add, 3 swap, 4 compare and swap, 5 load; runs from bit 3 on",
        "access", "bytes",
        "region key, runs: offset u64, bytes u64 [, bytes or two operands u64]";
    ACCESS_DATA = 32: "0", "access", "0", "the next bytes of a get";
    ACCESS_DONE = 33: "1 = refused", "access", "0", "value before u64";
    // Of an agreement about failures.
    AGREE = 34: "1 = more follows", "0", "0", "a message of an agreement, or a part of one";
    // Of a communicator that is revoked.
    REVOKE = 35: "1 = the sender's calls have ended, too", "0", "0", "none";
}

/// A line of the table.
#[cfg(test)]
struct Kind {
    name: &'static str,
    number: u8,
    fields: [&'static str; 4],
}

/// Unit of the window in CTS.
pub const WINDOW_BYTES: usize = 64 << 10;

/// In the aux of RTS: a region key follows.
pub const KEYED: u16 = 1;
/// In the aux of a start: a CHECK precedes it.
pub const CHECKED: u16 = 2;
/// In the aux of RTS: the bytes lie in a device's memory.
pub const ON_DEVICE: u16 = 4;
/// In the aux of RTS: an offer of that memory follows.
pub const OFFERED: u16 = 8;
/// In the aux of RTS: the bytes are not valid yet; their ready event is pending.
pub const LATE: u16 = 16;
/// In the aux of SLOT: the sender has no slots to grant.
pub const NO_SLOTS: u16 = 1;

/// In the aux of SLOT_CTS and SLOT: slots on the sender's device.
pub const DEVICE_SLOTS: u16 = 2;
/// In the aux of SLOT_CTS: the receiver's device is another, linked one.
pub const LINKED: u16 = 4;
/// In the aux of FD_REQUEST: descriptors of the slots on the send's device.
pub const OF_SLOTS: u16 = 1;
/// In the aux of FD_REQUEST: descriptors of the receive's memory.
pub const OF_RECEIVE: u16 = 2;
/// In the aux of CANCEL: a collective owes the message, and fails.
pub const OF_RUN: u16 = 1;
/// In the aux of PUT_OFFER: do not begin the put.
pub const GIVE_UP: u16 = 1;
/// In the aux of PUT_DONE: nothing was written.
pub const NOT_WRITTEN: u16 = 1;

/// In the aux of READY: the ready event of the memory has failed.
pub const NEVER: u16 = 1;
/// In the aux of LAYOUT: another part follows.
pub const MORE: u16 = 1;

/// The receiver has the data.
pub const OUTCOME_DONE: u16 = 0;
/// The receiver has forgotten the message, as the sender requested.
pub const OUTCOME_CANCELLED: u16 = 1;

/// The receiver has dropped the communicator, and no receive can match.
pub const OUTCOME_CLOSED: u16 = 2;

/// The communicator is revoked, and no receive can match.
pub const OUTCOME_REVOKED: u16 = 3;
/// In the aux of REVOKE: no call of the sender reads its peers' memory any more.
pub const RETIRED: u16 = 1;

/// Bytes of the total in front of an EAGER_FIRST message's data.
pub const TOTAL_BYTES: usize = 8;

/// A message's fixed part.
#[inline]
pub fn head(kind: u8, aux: u16, low: u32, high: u32) -> AmHead {
    AmHead {
        kind,
        aux,
        arg: u64::from(low) | u64::from(high) << 32,
    }
}

/// The total of an EAGER_FIRST, with check bits: it lies in a payload, which the
/// transport does not check, and gives the length of the message.
#[inline]
pub fn eager_first_total(total: u64, tag: u32) -> u64 {
    let total = total & 0xffff_ffff;
    let mixed = (total << 32 | u64::from(tag)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    total | (mixed ^ mixed << 29) & !0xffff_ffff
}

/// The total of an EAGER_FIRST; `None` if its check bits do not match.
#[inline]
pub fn open_eager_first_total(word: u64, tag: u32) -> Option<u64> {
    (word == eager_first_total(word, tag)).then_some(word & 0xffff_ffff)
}

/// Low and high half of the argument.
#[inline]
pub fn halves(arg: u64) -> (u32, u32) {
    (arg as u32, (arg >> 32) as u32)
}

/// The sender's memory, as an RTS offers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    Nothing,
    /// Memory that a transport reads.
    Key(RegionKey),
    /// Memory of a device in another process.
    Offer(Box<Offer>),
}

/// Body of an RTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtsBody {
    pub total: u64,
    pub reach: Reach,
}

impl RtsBody {
    pub const MAX_BYTES: usize = TOTAL_BYTES + Offer::BYTES;

    /// Writes the wire form; returns it with its length, and its aux flag.
    pub fn to_wire(&self) -> ([u8; Self::MAX_BYTES], usize, u16) {
        let mut w = [0; Self::MAX_BYTES];
        w[..TOTAL_BYTES].copy_from_slice(&self.total.to_le_bytes());
        let (bytes, aux) = match &self.reach {
            Reach::Nothing => (0, 0),
            Reach::Key(key) => {
                w[TOTAL_BYTES..TOTAL_BYTES + RegionKey::WIRE_BYTES].copy_from_slice(&key.to_wire());
                (RegionKey::WIRE_BYTES, KEYED)
            }
            Reach::Offer(offer) => {
                w[TOTAL_BYTES..].copy_from_slice(&offer.to_wire());
                (Offer::BYTES, OFFERED)
            }
        };
        (w, TOTAL_BYTES + bytes, aux)
    }

    /// Parses the wire form; `None` for what this version never writes.
    pub fn from_wire(bytes: &[u8], aux: u16) -> Option<Self> {
        let (total, rest) = bytes.split_first_chunk::<TOTAL_BYTES>()?;
        let total = u64::from_le_bytes(*total);
        let reach = match aux & (KEYED | OFFERED) {
            0 if rest.is_empty() => Reach::Nothing,
            KEYED if rest.len() == RegionKey::WIRE_BYTES => {
                Reach::Key(RegionKey::from_wire(rest).filter(|k| k.bytes == total)?)
            }
            OFFERED => Reach::Offer(Box::new(Offer::from_wire(rest)?)),
            _ => return None,
        };
        (total <= isize::MAX as u64).then_some(Self { total, reach })
    }
}

/// Body of a REAR_PUT: the sender is to put the rear part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RearPutBody {
    /// Target of the rear part; its size is the part's.
    pub key: RegionKey,
    /// Offset of the rear part in the message.
    pub from: u64,
}

impl RearPutBody {
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

/// Body of a CHECK: the sender's description of its next message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckBody {
    /// `None` if the sender does not know the types.
    pub digest: Option<SignatureDigest>,
    /// The types as text.
    pub types: String,
    /// Source line of the send.
    pub file: String,
    pub line: u32,
    /// The send is a ready send.
    pub ready: bool,
}

impl CheckBody {
    /// Longest text.
    const TEXT_BYTES: usize = 160;
    const FIXED_BYTES: usize = 8 + 8 + 4 + 1 + 2;
    pub const MAX_BYTES: usize = Self::FIXED_BYTES + 2 * Self::TEXT_BYTES;

    /// Writes the wire form; longer texts are cut, a path at its front.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut file = self.file.as_str();
        while file.len() > Self::TEXT_BYTES {
            file = &file[file.chars().next().map_or(1, char::len_utf8)..];
        }
        let mut types = self.types.as_str();
        while types.len() > Self::TEXT_BYTES {
            types = &types[..types.char_indices().last().map_or(0, |(at, _)| at)];
        }
        // No message has so many elements.
        let digest = self.digest.unwrap_or(SignatureDigest {
            elements: u64::MAX,
            hash: 0,
        });
        let mut w = Vec::with_capacity(Self::MAX_BYTES);
        w.extend(digest.elements.to_le_bytes());
        w.extend(digest.hash.to_le_bytes());
        w.extend(self.line.to_le_bytes());
        w.push(u8::from(self.ready));
        w.extend((file.len() as u16).to_le_bytes());
        w.extend(file.as_bytes());
        w.extend(types.as_bytes());
        w
    }

    /// Parses the wire form; `None` for what this version never writes.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        let (elements, rest) = bytes.split_first_chunk::<8>()?;
        let (hash, rest) = rest.split_first_chunk::<8>()?;
        let (line, rest) = rest.split_first_chunk::<4>()?;
        let (ready, rest) = rest.split_first()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (file, types) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        if file.len() > Self::TEXT_BYTES || types.len() > Self::TEXT_BYTES || *ready > 1 {
            return None;
        }
        let elements = u64::from_le_bytes(*elements);
        Some(Self {
            digest: (elements != u64::MAX).then(|| SignatureDigest {
                elements,
                hash: u64::from_le_bytes(*hash),
            }),
            types: String::from_utf8(types.to_vec()).ok()?,
            file: String::from_utf8(file.to_vec()).ok()?,
            line: u32::from_le_bytes(*line),
            ready: *ready == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_transports::RegionKind;
    use proptest::prelude::*;

    #[test]
    fn a_total_that_was_overwritten_is_none() {
        let word = eager_first_total(20_000, 7);
        assert_eq!(open_eager_first_total(word, 7), Some(20_000));
        let others = (0..64).map(|bit| word ^ 1 << bit).chain([0, u64::MAX]);
        assert!(
            others
                .into_iter()
                .all(|w| open_eager_first_total(w, 7).is_none())
        );
        assert_eq!(open_eager_first_total(word, 8), None);
    }

    proptest! {
        #[test]
        fn announcements_survive_the_wire(total in 0..=isize::MAX as u64, base in any::<u32>(), key in any::<bool>()) {
            let region = RegionKey {
                kind: RegionKind::Process,
                owner: 9,
                base: u64::from(base),
                bytes: total,
            };
            let reach = if key { Reach::Key(region) } else { Reach::Nothing };
            let a = RtsBody { total, reach };
            let (w, n, aux) = a.to_wire();
            prop_assert_eq!(RtsBody::from_wire(&w[..n], aux), Some(a));
            prop_assert_eq!(RtsBody::from_wire(&w[..n], KEYED - aux), None);
            prop_assert_eq!(RtsBody::from_wire(&w[..n], OFFERED), None);
        }

        #[test]
        fn checks_survive_the_wire(elements in any::<u64>(), hash in any::<u64>(), file in "[a-zé/]{0,100}", types in ".{0,400}", line in any::<u32>(), ready in any::<bool>()) {
            let digest = (elements != u64::MAX).then_some(SignatureDigest { elements, hash });
            let check_body = CheckBody { digest, types, file, line, ready };
            let w = check_body.to_wire();
            prop_assert!(w.len() <= CheckBody::MAX_BYTES);
            let back = CheckBody::from_wire(&w).expect("what was written");
            prop_assert_eq!((back.digest, back.line), (check_body.digest, check_body.line));
            prop_assert_eq!(back.ready, check_body.ready);
            prop_assert!(check_body.file.ends_with(&back.file) && check_body.types.starts_with(&back.types));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), aux in 0..16u16) {
            // Also of the length of an offer.
            let mut whole = bytes.clone();
            whole.resize(RtsBody::MAX_BYTES, 0);
            whole[7] = 0;
            for made in 0..9 {
                whole[TOTAL_BYTES] = made;
                let _ = RtsBody::from_wire(&whole, OFFERED);
            }
            let _ = RtsBody::from_wire(&bytes, aux);
            let _ = RearPutBody::from_wire(&bytes);
            let _ = CheckBody::from_wire(&bytes);
        }
    }
}
