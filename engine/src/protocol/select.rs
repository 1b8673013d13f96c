//! Which protocol carries a message: the cheapest by predicted cost.
//!
//! The choice is cut into a table when a link is set up, so that a message
//! costs a comparison or two. `osier info --protocols` prints the table.

use super::cost::LinkCosts;
use super::device::Model;
use std::fmt;

/// What the sender can offer for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nothing but copies: a layout with gaps, or a link without get.
    Private,
    /// Contiguous memory of the process, which the kernel can read.
    Plain,
    /// Contiguous memory of Osier's allocator, which the peer maps.
    Heap,
}

/// A protocol by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Data at once.
    Eager,
    /// Announce, then pipelined copy through shared memory.
    RendezvousFragments,
    /// Announce, then one copy from mapped memory.
    RendezvousMapped,
    /// Announce, then cross-memory attach.
    RendezvousAttach,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Protocol::Eager => "eager",
            Protocol::RendezvousFragments => "rendezvous, pipelined copy",
            Protocol::RendezvousMapped => "rendezvous, one copy from the heap",
            Protocol::RendezvousAttach => "rendezvous, cross-memory attach",
        })
    }
}

/// Share of the predicted time below which a handshake no longer matters:
/// from there on a message is announced, and costs the receiver no memory
/// when nobody waits for it yet.
const HANDSHAKE_SHARE: f64 = 0.05;
/// Between processes of one machine, messages up to this size go at once
/// whatever the costs say: then the sender need not ask where its bytes lie, and
/// keeps no operation for them. A copy of this size costs about as much as the
/// handshake that would save it.
pub const AT_ONCE_BYTES: usize = 4 << 10;
/// Eager messages are at most this large whatever a handshake costs.
pub const EAGER_LIMIT_BYTES: usize = 256 << 10;

/// The choice, cut into sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    costs: LinkCosts,
    at_once_bytes: usize,
    /// Largest eager message of private memory.
    eager_max: usize,
    /// Largest eager message of plain memory.
    eager_plain_max: usize,
    /// Largest eager message of heap memory.
    eager_heap_max: usize,
    /// Largest eager message of plain memory between two that send to each other.
    crossing_plain_max: usize,
    /// Smallest message for which attach beats fragments.
    attach_min: usize,
    /// Largest eager message of a device.
    device_max: usize,
}

impl Selection {
    /// Cuts the cost curves. `at_once_bytes`: what is never worth a handshake.
    pub fn new(costs: LinkCosts, at_once_bytes: usize) -> Self {
        let eager_max = last_size(EAGER_LIMIT_BYTES, |n| {
            let eager = costs.eager_ns(n);
            let handshake = costs.fragments_ns(n) - eager;
            handshake > HANDSHAKE_SHARE * eager
        })
        .max(at_once_bytes);
        let eager_heap_max = last_size(eager_max, |n| costs.eager_ns(n) < costs.mapped_ns(n));
        let eager_plain_max = last_size(eager_max, |n| costs.eager_ns(n) < costs.attach_ns(n));
        let crossing_plain_max = last_size(eager_max, |n| {
            costs.crossing_eager_ns(n) < costs.crossing_attach_ns(n)
        });
        let attach_min = last_size(usize::MAX >> 1, |n| {
            costs.fragments_ns(n) <= costs.attach_ns(n)
        })
        .saturating_add(1);
        Self {
            device_max: Model::unlimited(&costs).short_bytes(EAGER_LIMIT_BYTES),
            costs,
            at_once_bytes,
            eager_max,
            eager_plain_max: eager_plain_max.max(at_once_bytes),
            eager_heap_max: eager_heap_max.max(at_once_bytes),
            crossing_plain_max: crossing_plain_max.max(at_once_bytes),
            attach_min,
        }
    }

    /// The same by other costs.
    pub fn by(&self, costs: LinkCosts) -> Self {
        Self::new(costs, self.at_once_bytes)
    }

    /// The costs behind the table.
    pub fn costs(&self) -> &LinkCosts {
        &self.costs
    }

    /// Largest message that goes at once.
    #[inline]
    pub fn eager_max(&self, memory: Memory) -> usize {
        match memory {
            Memory::Heap => self.eager_heap_max,
            Memory::Plain => self.eager_plain_max,
            Memory::Private => self.eager_max,
        }
    }

    /// The same of a message whose sender receives another one meanwhile.
    #[inline]
    pub fn crossing_max(&self, memory: Memory) -> usize {
        match memory {
            Memory::Plain => self.crossing_plain_max,
            Memory::Heap | Memory::Private => self.eager_max(memory),
        }
    }

    /// Largest message of a device that goes at once.
    #[inline]
    pub fn device_eager_max(&self) -> usize {
        self.device_max
    }

    /// Smallest eager message that might have gone another way in other
    /// memory: below, the sender need not ask where its bytes lie.
    #[inline]
    pub fn always_eager(&self) -> usize {
        self.eager_heap_max
            .min(self.eager_plain_max)
            .min(self.crossing_plain_max)
            .min(self.eager_max)
    }

    /// Bytes of a message that the receiver reads while the sender, which
    /// waits, writes the rest.
    #[inline]
    pub fn share(&self, bytes: usize, mapped: bool) -> usize {
        self.costs.share(bytes, mapped)
    }

    /// Whether the receiver of an announcement reads through the kernel.
    #[inline]
    pub fn attach_pays(&self, bytes: usize) -> bool {
        bytes >= self.attach_min
    }

    /// The protocol for a message.
    pub fn choose(&self, bytes: usize, memory: Memory) -> Protocol {
        if bytes <= self.eager_max(memory) {
            return Protocol::Eager;
        }
        match memory {
            Memory::Heap => Protocol::RendezvousMapped,
            Memory::Plain if self.attach_pays(bytes) => Protocol::RendezvousAttach,
            _ => Protocol::RendezvousFragments,
        }
    }

    /// Predicted time of a protocol, in ns.
    pub fn predicted_ns(&self, bytes: usize, protocol: Protocol) -> f64 {
        match protocol {
            Protocol::Eager => self.costs.eager_ns(bytes),
            Protocol::RendezvousFragments => self.costs.fragments_ns(bytes),
            Protocol::RendezvousMapped => self.costs.mapped_ns(bytes),
            Protocol::RendezvousAttach => self.costs.attach_ns(bytes),
        }
    }

    /// The table "size range -> protocol": first size, last size (`None`: no
    /// end), protocol.
    pub fn table(&self, memory: Memory) -> Vec<(usize, Option<usize>, Protocol)> {
        let mut cuts = vec![0, self.eager_max(memory).saturating_add(1)];
        if memory == Memory::Plain && self.attach_min < usize::MAX >> 1 {
            cuts.push(self.attach_min);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut rows: Vec<(usize, Option<usize>, Protocol)> = Vec::new();
        for first in cuts {
            let protocol = self.choose(first, memory);
            if let Some(last) = rows.last_mut() {
                if last.2 == protocol {
                    continue;
                }
                last.1 = Some(first - 1);
            }
            rows.push((first, None, protocol));
        }
        rows
    }
}

/// Last size up to `limit` for which `holds` is true, given that it turns
/// false at most once; sizes are cut at powers of two and their halves.
fn last_size(limit: usize, holds: impl Fn(usize) -> bool) -> usize {
    let mut last = 0;
    let mut size = 64usize;
    while size <= limit.min(1 << 40) {
        for n in [size, size + size / 2] {
            if n > limit || !holds(n) {
                return last;
            }
            last = n;
        }
        size *= 2;
    }
    if limit > 1 << 40 { limit } else { last }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed() -> LinkCosts {
        LinkCosts {
            latency_ns: 100.0,
            overhead_ns: 50.0,
            copy_ns_per_byte: 0.05,
            mapped_ns_per_byte: 0.04,
            attach_call_ns: 2000.0,
            attach_ns_per_byte: 0.04,
            device: None,
        }
    }

    #[test]
    fn the_table_for_fixed_costs() {
        let s = Selection::new(fixed(), AT_ONCE_BYTES);
        assert_eq!(
            s.table(Memory::Private),
            [
                (0, Some(49152), Protocol::Eager),
                (49153, None, Protocol::RendezvousFragments),
            ]
        );
        assert_eq!(
            s.table(Memory::Plain),
            [
                (0, Some(32768), Protocol::Eager),
                (32769, None, Protocol::RendezvousAttach),
            ]
        );
        assert_eq!(
            s.table(Memory::Heap),
            [
                (0, Some(4096), Protocol::Eager),
                (4097, None, Protocol::RendezvousMapped),
            ]
        );
    }

    /// What needs no operation, no allocation and no system call.
    #[test]
    fn four_kibibytes_are_eager_whatever_the_costs() {
        let instant = LinkCosts {
            latency_ns: 0.0,
            attach_call_ns: 0.0,
            ..fixed()
        };
        for costs in [fixed(), LinkCosts::default(), instant] {
            let s = Selection::new(costs, AT_ONCE_BYTES);
            assert!(s.always_eager() >= 4096);
        }
    }

    #[test]
    fn both_sides_of_a_shared_transfer_end_together() {
        let c = fixed();
        for bytes in [256 << 10, 1 << 20, 64 << 20] {
            let k = c.share(bytes, false) as f64;
            let n = bytes as f64;
            let read = c.attach_call_ns + k * c.attach_ns_per_byte;
            let write = c.latency_ns + c.attach_call_ns + (n - k) * c.attach_ns_per_byte;
            assert!(
                (read - write).abs() < 0.05 * read,
                "{bytes}: {read} {write}"
            );
        }
        assert_eq!(c.share(4096, false), 4096, "too small to share");
    }

    /// Who receives as well copies twice for each message that goes at once.
    #[test]
    fn crossing_messages_are_announced_earlier() {
        let s = Selection::new(fixed(), AT_ONCE_BYTES);
        // 100 + 2 * 0.05 n + overheads against 2200 + 0.04 n.
        assert_eq!(s.crossing_max(Memory::Plain), 32768);
        assert_eq!(s.crossing_max(Memory::Private), 49152);
        let slow = LinkCosts {
            copy_ns_per_byte: 0.2,
            ..fixed()
        };
        let s = Selection::new(slow, AT_ONCE_BYTES);
        assert_eq!(s.crossing_max(Memory::Plain), 4096);
    }

    #[test]
    fn attach_is_never_chosen_where_its_rate_is_lower() {
        let costs = LinkCosts {
            attach_ns_per_byte: 0.12,
            ..fixed()
        };
        let s = Selection::new(costs, AT_ONCE_BYTES);
        assert_eq!(
            s.choose(1 << 35, Memory::Plain),
            Protocol::RendezvousFragments
        );
        assert_eq!(s.table(Memory::Plain).len(), 2);
    }

    #[test]
    fn the_choice_is_the_cheapest_among_the_announced() {
        let s = Selection::new(fixed(), AT_ONCE_BYTES);
        let c = fixed();
        for shift in 17..36 {
            let n = 1usize << shift;
            let best = if c.attach_ns(n) < c.fragments_ns(n) {
                Protocol::RendezvousAttach
            } else {
                Protocol::RendezvousFragments
            };
            assert_eq!(s.choose(n, Memory::Plain), best, "{n} bytes");
        }
    }
}
