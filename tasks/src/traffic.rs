//! What goes between a rank and others in a run. Counted under the lock of the graph's lane.

use crate::progress::LONG_MESSAGE_BYTES;
use crate::report::{PeerCounts, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Messages along edges to and from each rank.
pub(crate) struct EdgeTraffic {
    sent: Box<[Meter]>,
    received: Box<[Meter]>,
    /// Messages received from all ranks.
    arrived: AtomicU64,
    /// Long messages, sent and received.
    long: AtomicU64,
}

#[derive(Default)]
struct Meter {
    messages: AtomicU64,
    bytes: AtomicU64,
}

/// Adds to a number that one thread at a time changes.
#[inline]
fn add(number: &AtomicU64, by: u64) {
    number.store(number.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

impl Meter {
    #[inline]
    fn add(&self, bytes: usize) {
        add(&self.messages, 1);
        add(&self.bytes, bytes as u64);
    }

    fn volume(&self) -> Volume {
        Volume {
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl EdgeTraffic {
    pub fn new(ranks: usize) -> Arc<EdgeTraffic> {
        let meters = || (0..ranks).map(|_| Meter::default()).collect();
        Arc::new(EdgeTraffic {
            sent: meters(),
            received: meters(),
            arrived: AtomicU64::new(0),
            long: AtomicU64::new(0),
        })
    }

    /// A message is sent. The rank is one of the graph.
    #[inline]
    pub fn send(&self, rank: u32, bytes: usize) {
        self.sent[rank as usize].add(bytes);
        self.count_long(bytes);
    }

    /// A message has come, from a rank of the lane.
    #[inline]
    pub fn receive(&self, rank: u32, bytes: usize) {
        self.received[rank as usize].add(bytes);
        add(&self.arrived, 1);
        self.count_long(bytes);
    }

    #[inline]
    fn count_long(&self, bytes: usize) {
        if bytes >= LONG_MESSAGE_BYTES {
            add(&self.long, 1);
        }
    }

    /// Messages of [`LONG_MESSAGE_BYTES`] and more, in both directions.
    pub fn long(&self) -> u64 {
        self.long.load(Ordering::Relaxed)
    }

    /// Messages that have come.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    pub fn peers(&self) -> Vec<PeerCounts> {
        let peers = self.sent.iter().zip(&self.received);
        let peers = peers.map(|(sent, received)| PeerCounts {
            sent: sent.volume(),
            received: received.volume(),
        });
        peers.collect()
    }
}
