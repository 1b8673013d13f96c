//! Eager credit: bytes that may be under way without a receive.
//!
//! Small messages are one active message; larger ones a first message and
//! fragments. The receiver keeps messages without a receive, so eager bytes
//! are bounded: each sender has a credit per peer, and announces when it is
//! used up.
//!
//! # Invariants
//! 1. `out <= LIMIT_BYTES`: what a sender has sent eagerly and not been
//!    credited for.
//! 2. The receiver credits each eager message once, when a receive has it.
//! 3. It reports at the latest at half the limit, so a sender whose messages
//!    are received is never without credit for long.

/// Most eager bytes in flight or unexpected per pair and communicator.
pub const LIMIT_BYTES: u64 = 1 << 20;
/// What a message counts for besides its bytes.
pub const MESSAGE_BYTES: u64 = 64;

/// What a message counts for.
#[inline]
pub fn cost(bytes: usize) -> u64 {
    bytes as u64 + MESSAGE_BYTES
}

/// A sender's credit with one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct SenderCredit {
    out: u64,
}

impl SenderCredit {
    /// Takes credit for a message, if there is enough.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> bool {
        let after = self.out + cost(bytes);
        if after > LIMIT_BYTES {
            return false;
        }
        self.out = after;
        true
    }

    /// Credit that is taken.
    pub fn out(&self) -> u64 {
        self.out
    }

    /// Takes back credit that the receiver reports; false if it was never
    /// given, which no correct peer does.
    #[inline]
    pub fn give(&mut self, amount: u64) -> bool {
        match self.out.checked_sub(amount) {
            Some(left) => {
                self.out = left;
                true
            }
            None => false,
        }
    }
}

/// What a receiver owes one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiverCredit {
    owed: u64,
}

impl ReceiverCredit {
    /// Credit that was not reported yet.
    pub fn owed(&self) -> u64 {
        self.owed
    }

    /// Counts a message that a receive has; returns what is to be reported
    /// now.
    #[inline]
    pub fn received(&mut self, bytes: usize) -> Option<u32> {
        self.owed += cost(bytes);
        if self.owed < LIMIT_BYTES / 2 {
            return None;
        }
        Some(std::mem::take(&mut self.owed) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Whatever the sizes and the delay of reports, credit is conserved
        /// and never stays away once everything is received.
        #[test]
        fn credit_is_conserved(sizes in proptest::collection::vec(0usize..300_000, 1..200), delay in 0usize..10) {
            let mut sender = SenderCredit::default();
            let mut receiver = ReceiverCredit::default();
            let mut reports: VecDeque<u32> = VecDeque::new();
            for n in sizes {
                while !sender.take(n) {
                    let report = reports.pop_front();
                    prop_assert!(report.is_some(), "no credit and no report under way");
                    prop_assert!(sender.give(u64::from(report.unwrap_or(0))));
                }
                prop_assert!(sender.out <= LIMIT_BYTES);
                reports.extend(receiver.received(n));
                while reports.len() > delay {
                    let report = reports.pop_front().unwrap_or(0);
                    prop_assert!(sender.give(u64::from(report)));
                }
            }
            let under_way: u64 = reports.iter().map(|r| u64::from(*r)).sum();
            prop_assert_eq!(sender.out, receiver.owed + under_way);
        }
    }

    #[test]
    fn credit_that_was_never_taken_is_refused() {
        let mut sender = SenderCredit::default();
        assert!(sender.take(10));
        assert!(!sender.give(1000));
    }
}
