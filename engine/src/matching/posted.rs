//! Posted-receive queue.
//!
//! An entry is in exactly one place, by the kind of its pattern:
//!
//! ```text
//!            tag given          any tag
//! source   exact: KeyIndex    by_source: KeyIndex
//! any      by_tag: KeyIndex   any: one list
//! ```
//!
//! A message has at most one candidate in each place, the oldest of its list;
//! the posting order decides between them. While no receive with a wildcard
//! waits, only the exact index is read.
//!
//! While all that wait name one source and one tag, as in a window of receives, they are in
//! one list instead, `alone`, and nothing is hashed. The first other one moves them to the
//! index; the list begins again when the queue has run empty.
//!
//! # Invariants
//! 1. `order` rises with every post and is never used twice, so that a
//!    [`PostedKey`] cannot name a later entry in the same node.
//! 2. A node on the slab's free list has `order == FREE`.
//! 3. Either `alone` is NIL, or all receives are in its list, in posting order, have the same
//!    key, and are exact; the index is empty then.

use super::chains::{Ends, Fifo, KeyIndex, Keyed, NIL, append, detach};
use super::slab::Slab;
use super::{Envelope, Pattern, TagPattern};

/// Names one posted receive, also after it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostedKey {
    order: u64,
    at: u32,
}

/// `order` of a node that holds no receive.
const FREE: u64 = u64::MAX;

/// What is given in a pattern; kept in the low bits of `order`.
const EXACT: u64 = 0;
const BY_SOURCE: u64 = 1;
const BY_TAG: u64 = 2;
const ANY: u64 = 3;
const CLASS_BITS: u32 = 2;

/// Two of these fit a cache line.
struct Node {
    key: u64,
    order: u64,
    ends: Ends,
    chain: u32,
    item: u32,
}

const _: () = assert!(size_of::<Node>() == 32);

impl Node {
    fn class(&self) -> u64 {
        self.order & ((1 << CLASS_BITS) - 1)
    }

    /// Whether the pattern names exactly this source.
    fn names(&self, source: u32) -> bool {
        self.order != FREE
            && match self.class() {
                EXACT => (self.key >> 32) as u32 == source,
                BY_SOURCE => self.key as u32 == source,
                _ => false,
            }
    }
}

impl Fifo<0> for Node {
    #[inline]
    fn ends(&self) -> &Ends {
        &self.ends
    }
    #[inline]
    fn ends_mut(&mut self) -> &mut Ends {
        &mut self.ends
    }
}

impl Keyed for Node {
    #[inline]
    fn key(&self) -> u64 {
        self.key
    }
    #[inline]
    fn chain(&self) -> u32 {
        self.chain
    }
    #[inline]
    fn set_chain(&mut self, head: u32) {
        self.chain = head;
    }
}

/// The posted receives of one communicator, each with a number of the caller's
/// choice (`item`).
///
/// An empty queue owns no memory until the first receive. After that each
/// receive in flight costs 32 bytes and 16 to 32 bytes of buckets; the memory of
/// more than 1024 receives is given back after the queue has run empty 32 times
/// at less than a quarter of it. A queue that never runs empty keeps it.
pub struct PostedQueue {
    len: usize,
    /// Entries with a wildcard.
    wild: usize,
    /// Class bits clear.
    next_order: u64,
    slab: Slab<Node>,
    exact: KeyIndex,
    by_source: KeyIndex,
    by_tag: KeyIndex,
    any: u32,
    /// Head of the only list, while there is one.
    alone: u32,
}

impl PostedQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            len: 0,
            wild: 0,
            next_order: 0,
            slab: Slab::new(),
            exact: KeyIndex::new(),
            by_source: KeyIndex::new(),
            by_tag: KeyIndex::new(),
            any: NIL,
            alone: NIL,
        }
    }

    /// Number of receives waiting.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no receive waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a receive from one source with one tag behind all others.
    #[inline(always)]
    pub fn post_exact(&mut self, envelope: Envelope, item: u32) -> PostedKey {
        let key = envelope.key();
        let order = self.next_order | EXACT;
        self.next_order += 1 << CLASS_BITS;
        self.len += 1;
        let at = self.slab.insert(Node {
            key,
            order,
            ends: Ends::NONE,
            chain: NIL,
            item,
        });
        if self.len == 1 || self.is_alone(key) {
            append(self.slab.nodes_mut(), &mut self.alone, at);
        } else {
            self.insert_beside(EXACT, at);
        }
        PostedKey { order, at }
    }

    /// Adds a receive behind all others.
    #[inline]
    pub fn post(&mut self, pattern: Pattern, item: u32) -> PostedKey {
        let (class, key) = match (pattern.source, pattern.tag) {
            (Some(source), TagPattern::Exact(tag)) => {
                return self.post_exact(Envelope { source, tag }, item);
            }
            (Some(source), TagPattern::Any) => (BY_SOURCE, u64::from(source)),
            (None, TagPattern::Exact(tag)) => (BY_TAG, u64::from(tag)),
            (None, TagPattern::Any) => (ANY, 0),
        };
        let order = self.next_order | class;
        self.next_order += 1 << CLASS_BITS;
        self.len += 1;
        let at = self.slab.insert(Node {
            key,
            order,
            ends: Ends::NONE,
            chain: NIL,
            item,
        });
        self.insert_beside(class, at);
        PostedKey { order, at }
    }

    /// Whether all receives that wait have this key.
    #[inline]
    fn is_alone(&self, key: u64) -> bool {
        let head = self.slab.nodes().get(self.alone as usize);
        head.is_some_and(|head| head.key == key)
    }

    /// The receive that was posted first, with its source and tag, if all that wait name
    /// the same.
    #[inline]
    pub fn alone(&self) -> Option<(Envelope, u32)> {
        let head = self.slab.nodes().get(self.alone as usize)?;
        Some((Envelope::from_key(head.key), head.item))
    }

    /// Removes the receive that [`PostedQueue::alone`] has named.
    #[inline]
    pub fn take_alone(&mut self) {
        let at = self.alone;
        if at != NIL {
            detach(self.slab.nodes_mut(), &mut self.alone, at);
            self.release(at);
        }
    }

    /// Inserts a receive that differs from others, which move to the index if they have not.
    #[inline(never)]
    fn insert_beside(&mut self, class: u64, at: u32) {
        let nodes = self.slab.nodes_mut();
        while self.alone != NIL {
            let moved = self.alone;
            detach(nodes, &mut self.alone, moved);
            self.exact.insert(nodes, moved);
        }
        match class {
            EXACT => self.exact.insert(nodes, at),
            _ => self.insert_wild(class, at),
        }
    }

    fn insert_wild(&mut self, class: u64, at: u32) {
        self.wild += 1;
        let nodes = self.slab.nodes_mut();
        match class {
            BY_SOURCE => self.by_source.insert(nodes, at),
            BY_TAG => self.by_tag.insert(nodes, at),
            _ => append(nodes, &mut self.any, at),
        }
    }

    /// Removes the earliest posted receive that accepts the message, and
    /// returns its item.
    #[inline]
    pub fn take(&mut self, envelope: Envelope) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        if self.alone != NIL {
            let found = self.is_alone(envelope.key());
            return found.then(|| {
                let at = self.alone;
                detach(self.slab.nodes_mut(), &mut self.alone, at);
                self.release(at)
            });
        }
        if self.wild != 0 {
            return self.take_among_wild(envelope);
        }
        let at = self.exact.take_first(self.slab.nodes_mut(), envelope.key());
        if at == NIL {
            return None;
        }
        Some(self.release(at))
    }

    fn take_among_wild(&mut self, envelope: Envelope) -> Option<u32> {
        let nodes = self.slab.nodes();
        let mut candidates = [
            self.exact.first(nodes, envelope.key()),
            self.by_tag.first(nodes, u64::from(envelope.tag)),
            NIL,
            NIL,
        ];
        if !envelope.is_internal() {
            candidates[2] = self.by_source.first(nodes, u64::from(envelope.source));
            candidates[3] = self.any;
        }
        let mut best = (FREE, NIL);
        for at in candidates {
            if at != NIL && nodes[at as usize].order < best.0 {
                best = (nodes[at as usize].order, at);
            }
        }
        (best.1 != NIL).then(|| self.remove(best.1))
    }

    /// Cancels a receive and returns its item; `None` if it was taken or
    /// cancelled before.
    pub fn cancel(&mut self, key: PostedKey) -> Option<u32> {
        let node = self.slab.nodes().get(key.at as usize)?;
        (node.order == key.order).then(|| self.remove(key.at))
    }

    /// Removes a node that is in use from its list and frees it.
    fn remove(&mut self, at: u32) -> u32 {
        let nodes = self.slab.nodes_mut();
        let class = nodes[at as usize].class();
        match class {
            EXACT if self.alone != NIL => detach(nodes, &mut self.alone, at),
            EXACT => self.exact.remove(nodes, at),
            BY_SOURCE => self.by_source.remove(nodes, at),
            BY_TAG => self.by_tag.remove(nodes, at),
            _ => detach(nodes, &mut self.any, at),
        }
        self.wild -= usize::from(class != EXACT);
        self.release(at)
    }

    /// Frees a node that is in no list any more.
    #[inline]
    fn release(&mut self, at: u32) -> u32 {
        let node = &mut self.slab.nodes_mut()[at as usize];
        node.order = FREE;
        let item = node.item;
        self.len -= 1;
        if self.len == 0 {
            self.reset();
        } else {
            self.slab.release(at);
        }
        item
    }

    #[inline]
    fn reset(&mut self) {
        if let Some(entries) = self.slab.reset() {
            self.exact.shrink(entries);
            self.by_source.shrink(entries);
            self.by_tag.shrink(entries);
        }
    }

    /// Nodes that satisfy `wanted`, in posting order.
    fn ordered(&self, wanted: impl Fn(&Node) -> bool) -> Vec<u32> {
        let nodes = self.slab.nodes();
        let mut found: Vec<u32> = (0..nodes.len() as u32)
            .filter(|&at| wanted(&nodes[at as usize]))
            .collect();
        found.sort_unstable_by_key(|&at| nodes[at as usize].order);
        found
    }

    /// The items of all receives, in posting order. Allocates; meant for
    /// diagnostics.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let nodes = self.slab.nodes();
        self.ordered(|node| node.order != FREE)
            .into_iter()
            .map(|at| nodes[at as usize].item)
    }

    /// The sources that exact receives and receives of any tag name, in no order,
    /// as often as they are named.
    pub fn sources(&self) -> impl Iterator<Item = u32> {
        let posted = self.slab.nodes().iter().filter(|node| node.order != FREE);
        posted.filter_map(|node| match node.class() {
            EXACT => Some((node.key >> 32) as u32),
            BY_SOURCE => Some(node.key as u32),
            _ => None,
        })
    }

    /// Whether any receive takes messages of any source.
    pub fn takes_from_any(&self) -> bool {
        let mut posted = self.slab.nodes().iter().filter(|node| node.order != FREE);
        posted.any(|node| !matches!(node.class(), EXACT | BY_SOURCE))
    }

    /// Removes the receives that only `source` can satisfy, for a peer that
    /// died, and returns their items in posting order. Receives from any source
    /// stay.
    pub fn take_all_from(&mut self, source: u32) -> Vec<u32> {
        let found = self.ordered(|node| node.names(source));
        found.into_iter().map(|at| self.remove(at)).collect()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> (usize, usize) {
        (self.slab.capacity(), self.exact.bucket_count())
    }

    #[cfg(test)]
    pub(super) fn chain_lengths(&self) -> Vec<usize> {
        self.exact.chain_lengths(self.slab.nodes())
    }
}

impl Default for PostedQueue {
    fn default() -> Self {
        Self::new()
    }
}
