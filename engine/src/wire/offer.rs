//! Offer of device memory to another process: key, layout and ready event.
//!
//! ```text
//! offer   key 105, origin u64, count u64, slot u16, ready event u8, event 64
//! slot    index of the receiver's copy of a LAYOUT; 0xffff: one run of bytes at the
//!         origin; 0xfffe: the layout was not sent
//! ready event  0 passed, 1 pending with an event to wait for, 2 pending until READY
//! ```
//!
//! # Invariants
//! 1. A parsed offer is data: origin, count and sizes are checked where the memory is
//!    opened.

use osier_kernels::handle::{EventHandle, Key};
use osier_transports::cuda_ipc::Name;

/// Cached layouts of one rank at another.
pub const LAYOUTS: usize = 64;
/// Longest LAYOUT message: a longer layout comes in several.
pub const LAYOUT_PART_BYTES: usize = 16 << 10;
/// Longest layout: 16 thousand blocks from a list.
pub const LAYOUT_BYTES: usize = 256 << 10;

/// The layout of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutRef {
    /// One run of bytes.
    Contiguous,
    /// The last LAYOUT sent for this slot.
    Slot(u16),
    /// Too long to send.
    Absent,
}

/// Readiness of an offer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once.
    Passed,
    /// When this event has passed.
    Event(EventHandle),
    /// When the owner sends READY.
    Signalled,
}

/// Device memory and its layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub key: Key,
    /// Bytes from the start of the allocation to the origin of the first instance.
    pub origin: u64,
    /// Instances of the layout; bytes of a run.
    pub count: u64,
    pub layout: LayoutRef,
    pub when: When,
}

impl Offer {
    pub const BYTES: usize = Key::WIRE_BYTES + 8 + 8 + 2 + 1 + 64;

    pub fn to_wire(&self) -> [u8; Self::BYTES] {
        const AT: usize = Key::WIRE_BYTES;
        let mut w = [0; Self::BYTES];
        w[..AT].copy_from_slice(&self.key.to_wire());
        w[AT..AT + 8].copy_from_slice(&self.origin.to_le_bytes());
        w[AT + 8..AT + 16].copy_from_slice(&self.count.to_le_bytes());
        let slot = match self.layout {
            LayoutRef::Contiguous => u16::MAX,
            LayoutRef::Absent => u16::MAX - 1,
            LayoutRef::Slot(slot) => slot,
        };
        w[AT + 16..AT + 18].copy_from_slice(&slot.to_le_bytes());
        match &self.when {
            When::Passed => {}
            When::Event(event) => {
                w[AT + 18] = 1;
                w[AT + 19..].copy_from_slice(&event.0);
            }
            When::Signalled => w[AT + 18] = 2,
        }
        w
    }

    /// `None` for what this version never writes.
    pub fn from_wire(w: &[u8]) -> Option<Offer> {
        let w: &[u8; Self::BYTES] = w.try_into().ok()?;
        let (key, rest) = w.split_at(Key::WIRE_BYTES);
        let (origin, rest) = rest.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<8>()?;
        let (slot, rest) = rest.split_first_chunk::<2>()?;
        let (ready_event, event) = rest.split_first()?;
        let layout = match u16::from_le_bytes(*slot) {
            u16::MAX => LayoutRef::Contiguous,
            slot if slot == u16::MAX - 1 => LayoutRef::Absent,
            slot if usize::from(slot) < LAYOUTS => LayoutRef::Slot(slot),
            _ => return None,
        };
        let event: [u8; 64] = event.try_into().ok()?;
        let when = match ready_event {
            0 if event == [0; 64] => When::Passed,
            1 => When::Event(EventHandle(event)),
            2 if event == [0; 64] => When::Signalled,
            _ => return None,
        };
        Some(Offer {
            key: Key::from_wire(key)?,
            origin: u64::from_le_bytes(*origin),
            count: u64::from_le_bytes(*count),
            layout,
            when,
        })
    }
}

/// Body of an FD_REQUEST: descriptors are sent to a socket, under a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    pub number: u64,
    pub socket: Name,
}

impl Want {
    pub const BYTES: usize = 8 + size_of::<Name>();

    pub fn to_wire(self) -> [u8; Self::BYTES] {
        let mut w = [0; Self::BYTES];
        w[..8].copy_from_slice(&self.number.to_le_bytes());
        w[8..].copy_from_slice(&self.socket);
        w
    }

    pub fn from_wire(w: &[u8; Self::BYTES]) -> Option<Want> {
        let (number, socket) = w.split_first_chunk::<8>()?;
        Some(Want {
            number: u64::from_le_bytes(*number),
            socket: socket.try_into().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_kernels::handle::Made;
    use proptest::prelude::*;

    fn offer() -> impl Strategy<Value = Offer> {
        let key = (
            0..Made::ALL.len(),
            any::<[u8; 16]>(),
            any::<u64>(),
            any::<[u32; 2]>(),
            any::<u8>(),
        );
        let layout = prop_oneof![
            Just(LayoutRef::Contiguous),
            Just(LayoutRef::Absent),
            (0..LAYOUTS as u16).prop_map(LayoutRef::Slot)
        ];
        let when = prop_oneof![
            Just(When::Passed),
            Just(When::Signalled),
            any::<u8>().prop_map(|byte| When::Event(EventHandle([byte; 64]))),
        ];
        (key, any::<[u64; 2]>(), layout, when).prop_map(
            |((made, device, identity, [start, bytes], handle), [origin, count], layout, when)| {
                Offer {
                    key: Key {
                        made: Made::ALL[made],
                        device,
                        identity,
                        start: start.into(),
                        bytes: bytes.into(),
                        handle: [handle; 64],
                    },
                    origin,
                    count,
                    layout,
                    when,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn requests_for_descriptors_survive_the_wire(number in any::<u64>(), socket in any::<[u8; 16]>()) {
            let want = Want { number, socket };
            prop_assert_eq!(Want::from_wire(&want.to_wire()), Some(want));
        }

        #[test]
        fn offers_survive_the_wire(offer in offer()) {
            prop_assert_eq!(Offer::from_wire(&offer.to_wire()), Some(offer));
        }

        /// Any changed byte gives another offer or none.
        #[test]
        fn damaged_offer_parses_to_an_offer_or_none(offer in offer(), at in 0..Offer::BYTES, byte in any::<u8>(), cut in 0..Offer::BYTES) {
            let mut w = offer.to_wire();
            w[at] = byte;
            if let Some(other) = Offer::from_wire(&w) {
                prop_assert_eq!(Offer::from_wire(&other.to_wire()), Some(other));
            }
            prop_assert_eq!(Offer::from_wire(&w[..cut]), None);
        }
    }
}
