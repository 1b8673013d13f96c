//! Cost model of a link, and predicted time of each protocol.
//!
//! For a message of `n` bytes, `L` the one-way latency, `o` the overhead of
//! one active message, `c` the time to copy a byte, `f` the fragment:
//!
//! | protocol | time |
//! |---|---|
//! | eager, one message | `L + 2 n c` |
//! | eager, fragments | `L + n c + f c + (n / f) o` |
//! | rendezvous, fragments | `3 L + n c + f c + (n / f) o` |
//! | rendezvous, mapped heap | `2 L + k m`, the sender writes the rest |
//! | rendezvous, cross-memory attach | `2 L + call + k a`, the sender writes the rest |
//!
//! Messages of plain memory go by measured times where there are some ([`super::uses`]).
//!
//! `m` and `a` are the times per byte of reading mapped memory and of a copy by
//! the kernel. The fragment that makes the pipeline cheapest is `sqrt(n o / c)`.
//! Where one side reads the other's memory, both can copy at the same time: the
//! receiver reads the first `k` bytes while the sender writes the rest, which
//! takes it `L + call + (n - k) a`; `k` is where both end together.
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD
//! thesis, University of Tennessee, 2017, section 4.3.3: the pipelined
//! transfer costs one fragment of each stage beyond the slowest stage.

use super::device::DeviceCosts;
use super::uses::Uses;
use serde::{Deserialize, Serialize};

/// Costs of one link between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkCosts {
    /// One-way latency of the smallest message, in ns.
    pub latency_ns: f64,
    /// Overhead of one more active message in a stream, in ns.
    pub overhead_ns: f64,
    /// Copying one byte into or out of shared memory, in ns.
    pub copy_ns_per_byte: f64,
    /// Reading one byte of a peer's mapped memory, in ns.
    pub mapped_ns_per_byte: f64,
    /// One copy by the kernel from another process: fixed part, in ns.
    pub attach_call_ns: f64,
    /// One copy by the kernel from another process: per byte, in ns.
    pub attach_ns_per_byte: f64,
    /// Whether who reads a long payload or slot leaves its lines to their writer, which is
    /// faster on some processors, in place of taking them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_lines: bool,
    /// Times of messages as programs use them, where they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<Uses>,
    /// Costs of the devices of both ends, where one was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceCosts>,
}

impl Default for LinkCosts {
    /// Rounded by hand from transfers on a loaded two-core virtual machine
    /// (Sapphire Rapids, 2026-11-21); a rough start until
    /// `osier model measure` has measured the machine at hand.
    fn default() -> Self {
        Self {
            latency_ns: 250.0,
            overhead_ns: 150.0,
            copy_ns_per_byte: 0.124,
            mapped_ns_per_byte: 0.06,
            attach_call_ns: 2500.0,
            attach_ns_per_byte: 0.08,
            leaves_lines: false,
            uses: None,
            device: None,
        }
    }
}

impl LinkCosts {
    /// Between hosts, over TCP: rounded from transfers between two network namespaces of one
    /// machine; a start. A copy of a message costs one in each process here, which reading the
    /// sender's memory by request does without.
    pub fn of_network() -> Self {
        Self {
            latency_ns: 12_000.0,
            overhead_ns: 3_000.0,
            copy_ns_per_byte: 0.3,
            mapped_ns_per_byte: 0.3,
            attach_call_ns: 20_000.0,
            attach_ns_per_byte: 0.2,
            leaves_lines: true,
            uses: None,
            device: None,
        }
    }
}

/// Most bytes of one fragment whose lines are left to their writer,
pub const MAX_FRAGMENT_BYTES: usize = 32 << 10;
/// and of one whose reader takes them: those that are still in a small first-level cache.
const MAX_TAKEN_BYTES: usize = 16 << 10;
/// Least bytes of one fragment: below, headers outweigh data.
pub const MIN_FRAGMENT_BYTES: usize = 2 << 10;
/// Small messages travel whole up to here, and up to four times this size in
/// fragments no smaller: the memory that question and answer use in turn takes
/// them at less than half the cost per byte of a ring (see the mailbox of the
/// shared memory transport), which the pipeline's formula does not know.
pub const WHOLE_BYTES: usize = 16 << 10;

/// Messages from this size on are read while they are written, where the transport can do
/// that,
pub const LEAST_IN_PARTS: usize = 8 << 10;

/// and longer ones up to here leave whole for that.
pub const IN_PARTS_BYTES: usize = 64 << 10;

impl LinkCosts {
    /// The cheapest fragment for a message: a power of two.
    #[inline]
    pub fn fragment_bytes(&self, bytes: usize) -> usize {
        let best = (bytes as f64 * self.overhead_ns / self.copy_ns_per_byte).sqrt();
        let most = match self.leaves_lines {
            true => MAX_FRAGMENT_BYTES,
            false => MAX_TAKEN_BYTES,
        };
        let least = if bytes <= 4 * WHOLE_BYTES {
            WHOLE_BYTES
        } else {
            MIN_FRAGMENT_BYTES
        };
        (best as usize)
            .clamp(least, most)
            .next_power_of_two()
            .min(most)
    }

    /// Pipelined copy through shared memory, without the handshake, in ns.
    fn pipeline_ns(&self, bytes: usize) -> f64 {
        let f = self.fragment_bytes(bytes).min(bytes.max(1));
        let n = bytes as f64;
        n * self.copy_ns_per_byte
            + f as f64 * self.copy_ns_per_byte
            + (n / f as f64).ceil() * self.overhead_ns
    }

    /// Data at once, in ns.
    pub fn eager_ns(&self, bytes: usize) -> f64 {
        let one = 2.0 * bytes as f64 * self.copy_ns_per_byte;
        self.latency_ns + one.min(self.pipeline_ns(bytes))
    }

    /// Data at once between two that send to each other, in ns: each copies both, one
    /// after the other.
    pub fn crossing_eager_ns(&self, bytes: usize) -> f64 {
        let fragments = bytes.div_ceil(self.fragment_bytes(bytes)).max(1);
        self.latency_ns
            + 2.0 * bytes as f64 * self.copy_ns_per_byte
            + 2.0 * (fragments - 1) as f64 * self.overhead_ns
    }

    /// Announce, then fragments, between two that do so at the same time, in ns.
    pub fn crossing_fragments_ns(&self, bytes: usize) -> f64 {
        2.0 * self.latency_ns + self.crossing_eager_ns(bytes)
    }

    /// Announce, then a copy by the kernel, between two that do so at the same time, in
    /// ns: neither has time for the other's.
    pub fn crossing_attach_ns(&self, bytes: usize) -> f64 {
        2.0 * self.latency_ns + self.attach_call_ns + bytes as f64 * self.attach_ns_per_byte
    }

    /// Announce, then fragments, in ns.
    pub fn fragments_ns(&self, bytes: usize) -> f64 {
        3.0 * self.latency_ns + self.pipeline_ns(bytes)
    }

    /// Bytes that the receiver reads while the sender writes the rest; all
    /// of them if the sender would save nothing.
    pub fn share(&self, bytes: usize, mapped: bool) -> usize {
        let n = bytes as f64;
        let (first, per_byte) = if mapped {
            (0.0, self.mapped_ns_per_byte)
        } else {
            (self.attach_call_ns, self.attach_ns_per_byte)
        };
        let write = self.latency_ns + self.attach_call_ns;
        // first + k per_byte = write + (n - k) attach
        let k =
            (write - first + n * self.attach_ns_per_byte) / (per_byte + self.attach_ns_per_byte);
        // The sender must take off more than its answer costs.
        if !k.is_finite() || (n - k) * per_byte < 2.0 * self.latency_ns {
            return bytes;
        }
        (k as usize).next_multiple_of(4096).min(bytes)
    }

    /// Announce, then copies from and to the sender's mapped memory, in ns.
    pub fn mapped_ns(&self, bytes: usize) -> f64 {
        2.0 * self.latency_ns + self.share(bytes, true) as f64 * self.mapped_ns_per_byte
    }

    /// Announce, then copies by the kernel, in ns.
    pub fn attach_ns(&self, bytes: usize) -> f64 {
        let k = self.share(bytes, false) as f64;
        2.0 * self.latency_ns + self.attach_call_ns + k * self.attach_ns_per_byte
    }
}
