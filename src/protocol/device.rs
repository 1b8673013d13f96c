//! How messages of devices are cut: pure choices from predicted times.

use super::cost::MAX_FRAGMENT_BYTES;
use crate::wire;

/// Least bytes of a piece of a long message.
pub const LEAST_FRAGMENT_BYTES: usize = 64 << 10;

// An engine's fragment is sent from one piece, and GO counts pieces in its units.
const _: () = assert!(MAX_FRAGMENT_BYTES <= LEAST_FRAGMENT_BYTES);
const _: () = assert!(LEAST_FRAGMENT_BYTES.is_multiple_of(wire::WINDOW_BYTES));

/// The pieces of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Bytes of a piece: a power of two.
    pub fragment: usize,
    /// Pieces under way at a time.
    pub depth: usize,
}

/// The pieces of a message of so many bytes.
pub fn pipeline(bytes: usize) -> Pipeline {
    let fragment = match bytes <= LEAST_FRAGMENT_BYTES {
        true => LEAST_FRAGMENT_BYTES,
        false => 1 << 20,
    };
    Pipeline { fragment, depth: 2 }
}
