//! Requests that were complete when they were made: short messages that left at once, or
//! were there. All that may be asked of one is its status, which lies in the handle itself;
//! there is no object, and so nothing to make, to look up and to free for each message.
//!
//! ```text
//! handle   63 ......... 32  31  30 ..... 26  25 ......... 0
//!          upper of words    0   1 kind(4)   lower of words
//! words    57 .. tag .. 34  33 .. source .. 14  13 .. bytes .. 1  0 received
//! ```
//!
//! Two such requests may have the same handle, as those of other libraries may.
//!
//! # Invariants
//! 1. None is made while handles are followed (`--check leaks`, `buffers`, `threads`).
//! 2. A send has no words, so that fewer of the numbers that are no handles look like one.

use crate::abi::{Handle, MPI_COMM_WORLD};
use crate::batch::Short;
use crate::call::On;
use crate::leaks;
use crate::objects::REQUESTS;
use crate::work::{Pending, Work};

/// In a handle, where those of tables have the kind of their objects.
const TAG: u32 = 16 + 12;
const LOW_BITS: u32 = 26;
const LOW: u64 = (1 << LOW_BITS) - 1;
const BYTES_BITS: u32 = 13;
const SOURCE_BITS: u32 = 20;
const TAG_BITS: u32 = 24;
const SOURCE_AT: u32 = 1 + BYTES_BITS;
const TAG_AT: u32 = SOURCE_AT + SOURCE_BITS;

#[inline(always)]
fn handle_of(words: u64) -> Handle {
    (words >> LOW_BITS << 32 | u64::from(TAG) << LOW_BITS | words & LOW) as Handle
}

#[inline(always)]
fn words_of(handle: Handle) -> Option<u64> {
    let handle = handle as u64;
    let words = handle >> 32 << LOW_BITS | handle & LOW;
    let of_these = handle as u32 >> LOW_BITS == TAG && (words & 1 == 1 || words == 0);
    of_these.then_some(words)
}

/// The request of a send.
#[inline(always)]
pub fn sent() -> Option<Handle> {
    (!leaks::follows()).then(|| handle_of(0))
}

/// That of a receive, if its status fits.
#[inline(always)]
pub fn received(source: u32, tag: u32, bytes: usize) -> Option<Handle> {
    let bytes = bytes as u64;
    let fits = bytes >> BYTES_BITS == 0 && source >> SOURCE_BITS == 0 && tag >> TAG_BITS == 0;
    let words = 1 | bytes << 1 | u64::from(source) << SOURCE_AT | u64::from(tag) << TAG_AT;
    (fits && !leaks::follows()).then(|| handle_of(words))
}

/// The status of such a request.
#[inline(always)]
pub fn status_of(handle: Handle) -> Option<Short> {
    let words = words_of(handle)?;
    let field = |at: u32, bits: u32| (words >> at) as u32 & ((1 << bits) - 1);
    Some(match words & 1 {
        0 => Short::Empty,
        _ => Short::Message {
            source: field(SOURCE_AT, SOURCE_BITS),
            tag: field(TAG_AT, TAG_BITS),
            bytes: field(1, BYTES_BITS) as usize,
        },
    })
}

/// A handle with the same status whose lower half says all: an object, where the words do not
/// fit. Any other handle as it is.
pub fn numbered(handle: Handle) -> Handle {
    let work = match status_of(handle).filter(|_| handle >> 32 != 0) {
        Some(Short::Message { source, tag, bytes }) => Work::Received { source, tag, bytes },
        Some(Short::Empty) => Work::Sent,
        None => return handle,
    };
    let on = On::Comm(MPI_COMM_WORLD);
    REQUESTS.insert(Pending { work, on })
}

/// The request with this number, if it is one of these.
pub fn of_number(number: u32) -> Option<Handle> {
    let handle = number as Handle;
    words_of(handle).map(|_| handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_comes_out_of_its_handle_or_does_not_fit() {
        let most = ((1 << SOURCE_BITS) - 1, (1 << TAG_BITS) - 1, 8191);
        for (source, tag, bytes) in [(0, 0, 0), (1, 100, 8), (77, 5, 4096), most] {
            let handle = received(source, tag, bytes).expect("it fits");
            let Some(Short::Message {
                source: s,
                tag: t,
                bytes: b,
            }) = status_of(handle)
            else {
                panic!("no message");
            };
            assert_eq!((s, t, b), (source, tag, bytes));
            assert_eq!(handle >> 31 & 1, 0, "as a number it is positive");
        }
        assert!(received(most.0 + 1, 0, 0).is_none());
        assert!(received(0, most.1 + 1, 0).is_none());
        assert!(received(0, 0, most.2 + 1).is_none());
        let sent = sent().expect("nothing is followed");
        assert!(matches!(status_of(sent), Some(Short::Empty)));
    }

    #[test]
    fn objects_and_null_are_none() {
        let on = On::Comm(MPI_COMM_WORLD);
        let object = REQUESTS.insert(Pending {
            work: Work::Sent,
            on,
        });
        let no_send = handle_of(2);
        for handle in [
            object,
            no_send,
            0,
            crate::abi::MPI_REQUEST_NULL,
            MPI_COMM_WORLD,
        ] {
            assert!(status_of(handle).is_none(), "{handle:#x}");
        }
        assert!(REQUESTS.discard(object));
    }

    #[test]
    fn numbers_lead_back_to_the_status() {
        let sent = sent().expect("nothing is followed");
        assert_eq!(numbered(sent), sent);
        assert_eq!(of_number(sent as u32), Some(sent));
        for (source, tag, bytes) in [(0, 0, 8), (3, 4, 5)] {
            let handle = received(source, tag, bytes).expect("it fits");
            let with_number = numbered(handle);
            match of_number(with_number as u32) {
                Some(found) => assert_eq!(found, handle),
                None => {
                    assert_eq!(REQUESTS.handle_of(with_number as u32), Some(with_number));
                    let pending = REQUESTS.remove(with_number).expect("an object");
                    let Work::Received {
                        source: s,
                        tag: t,
                        bytes: b,
                    } = pending.work
                    else {
                        panic!("no receive");
                    };
                    assert_eq!((s, t, b), (source, tag, bytes));
                }
            }
        }
    }
}
