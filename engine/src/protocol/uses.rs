//! Messages of plain memory as programs use them, measured: the time of each way by use and size.
//!
//! What a way costs hangs on what its ends do meanwhile. A receive that waits copies fragments
//! while they are written; one that is posted late finds an eager message, which was copied
//! already, or an announced one that has not moved. In a window, ways are limited by what either
//! end copies in all, not by the time of one message. So each way was timed in each use, and the
//! one is chosen that loses least over them ([`super::states`]).
//!
//! | way | what moves |
//! |---|---|
//! | eager | at once: whole, in parts or in fragments |
//! | fragments | announced, then copied by both ends |
//! | kernel | announced, then copied by the receiver through the kernel |

use super::Protocol;
use serde::{Deserialize, Serialize};

/// How a program's messages meet their receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The receive waits for the message.
    Posted,
    /// The message comes before its receive is posted.
    Unposted,
    /// Many are in flight.
    Window,
}

impl Use {
    /// All.
    pub const ALL: [Use; 3] = [Use::Posted, Use::Unposted, Use::Window];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Use::Posted => "posted",
            Use::Unposted => "unposted",
            Use::Window => "window",
        }
    }
}

/// Ways of a message of plain memory.
pub const WAYS: [Protocol; 3] = [Protocol::Eager, Protocol::Fragments, Protocol::GetAttach];
/// Sizes that were measured.
pub const SIZES: [u64; 6] = [16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Times of messages of one size, in ns by use and way; 0: the way is not for it.
pub type Times = [[f64; WAYS.len()]; Use::ALL.len()];

/// Times of messages, by size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Uses(pub [Times; SIZES.len()]);

impl Uses {
    /// The time of a message of `bytes` bytes, in ns, interpolated between the measured sizes next
    /// to it, and in proportion beyond the longest. `None` if it is shorter than all, or the
    /// protocol was not measured for it.
    pub fn ns(&self, protocol: Protocol, in_use: Use, bytes: usize) -> Option<f64> {
        let way = WAYS.iter().position(|way| *way == protocol)?;
        let bytes = bytes as f64;
        let at = |row: usize| {
            let ns = self.0[row][in_use as usize][way];
            (ns > 0.0).then_some((SIZES[row] as f64, ns))
        };
        let above = (0..SIZES.len()).find(|row| SIZES[*row] as f64 >= bytes);
        let (from, to) = match above {
            Some(0) if SIZES[0] as f64 > bytes => return None,
            Some(row) if SIZES[row] as f64 == bytes => return at(row).map(|(_, ns)| ns),
            Some(row) => (row - 1, row),
            None => {
                let (most, ns) = at(SIZES.len() - 1)?;
                return Some(ns * bytes / most);
            }
        };
        let ((from, shorter), (to, longer)) = (at(from)?, at(to)?);
        Some(shorter + (longer - shorter) * (bytes - from) / (to - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_between_those_that_were_measured() {
        let mut uses = Uses([[[0.0; 3]; 3]; SIZES.len()]);
        for (row, bytes) in SIZES.iter().enumerate() {
            // Eager messages are not so long.
            let eager = if *bytes > 256 << 10 {
                0.0
            } else {
                *bytes as f64
            };
            let of = |factor| [factor * eager, factor * 2.0 * *bytes as f64, 3.0];
            uses.0[row] = [of(1.0), of(10.0), of(100.0)];
        }
        let ns = |protocol, in_use, bytes| uses.ns(protocol, in_use, bytes);
        for bytes in [16 << 10, 20_000, 64 << 10, 200_000, 256 << 10] {
            let expected = bytes as f64;
            for (in_use, factor) in Use::ALL.into_iter().zip([1.0, 10.0, 100.0]) {
                let eager = ns(Protocol::Eager, in_use, bytes).expect("measured");
                assert!((eager / (factor * expected) - 1.0).abs() < 1e-9, "{bytes}");
            }
        }
        assert_eq!(ns(Protocol::Eager, Use::Posted, 16_000), None, "too short");
        assert_eq!(ns(Protocol::Eager, Use::Posted, 300_000), None, "too long");
        assert_eq!(ns(Protocol::GetMapped, Use::Posted, 1 << 20), None);
        let longest = ns(Protocol::Fragments, Use::Window, 64 << 20);
        assert_eq!(longest, Some(200.0 * f64::from(64 << 20)));
    }
}
