//! Unexpected-message queue.
//!
//! Four kinds of pattern ask for the earliest message:
//!
//! ```text
//!            tag given             any tag
//! source   exact: KeyIndex       by_source: KeyIndex, built on demand
//! any      by_tag: on demand     user: one list in arrival order
//! ```
//!
//! A message is in the exact index and in one arrival list (`user`, or
//! `internal`, which no any-tag pattern walks). The other two indices are built
//! when a pattern first needs them and dropped when the queue runs empty: each
//! message enters each index at most once, so a receive still costs constant
//! time on average, and a program without such wildcards never pays for them.
//!
//! # Invariants
//! 1. `order` rises with every push and is never used twice, so that an
//!    [`UnexpectedKey`] cannot name a later message in the same node.
//! 2. A node in use has `message == Some`, one on the free list has `None`.
//! 3. `by_source`, if built, holds all messages without an internal tag;
//!    `by_tag`, if built, holds all messages.

use super::chains::{Ends, Fifo, KeyIndex, Keyed, NIL, append, detach};
use super::slab::Slab;
use super::{Envelope, Pattern, TagPattern};

/// Names one waiting message, also after it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnexpectedKey {
    order: u64,
    at: u32,
}

/// In list 0 with its envelope as the key, in list 1 by arrival.
struct Node<M> {
    key: u64,
    order: u64,
    same_key: Ends,
    arrival: Ends,
    chain: u32,
    message: Option<M>,
}

impl<M> Node<M> {
    #[inline]
    fn envelope(&self) -> Envelope {
        Envelope::from_key(self.key)
    }
}

impl<M> Fifo<0> for Node<M> {
    #[inline]
    fn ends(&self) -> &Ends {
        &self.same_key
    }
    #[inline]
    fn ends_mut(&mut self) -> &mut Ends {
        &mut self.same_key
    }
}

impl<M> Fifo<1> for Node<M> {
    #[inline]
    fn ends(&self) -> &Ends {
        &self.arrival
    }
    #[inline]
    fn ends_mut(&mut self) -> &mut Ends {
        &mut self.arrival
    }
}

impl<M> Keyed for Node<M> {
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

/// A node's place in an index that is built on demand.
#[derive(Clone, Copy)]
struct Indexed {
    key: u64,
    ends: Ends,
    chain: u32,
}

impl Indexed {
    const NONE: Self = Self {
        key: 0,
        ends: Ends::NONE,
        chain: NIL,
    };
}

impl Fifo<0> for Indexed {
    #[inline]
    fn ends(&self) -> &Ends {
        &self.ends
    }
    #[inline]
    fn ends_mut(&mut self) -> &mut Ends {
        &mut self.ends
    }
}

impl Keyed for Indexed {
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

/// An index beside the slab, with its links in an array of its own.
struct SideIndex {
    built: bool,
    index: KeyIndex,
    /// Same numbers as the slab's nodes.
    places: Vec<Indexed>,
}

impl SideIndex {
    const fn new() -> Self {
        Self {
            built: false,
            index: KeyIndex::new(),
            places: Vec::new(),
        }
    }

    fn insert(&mut self, at: u32, key: u32) {
        let wanted = at as usize + 1;
        if self.places.len() < wanted {
            self.places.resize(wanted, Indexed::NONE);
        }
        self.places[at as usize].key = u64::from(key);
        self.index.insert(&mut self.places, at);
    }

    fn remove(&mut self, at: u32) {
        self.index.remove(&mut self.places, at);
    }

    fn first(&self, key: u32) -> u32 {
        self.index.first(&self.places, u64::from(key))
    }

    fn reset(&mut self, shrink_to: Option<usize>) {
        self.built = false;
        self.places.clear();
        if let Some(entries) = shrink_to {
            self.index.shrink(entries);
            self.places.shrink_to(entries);
        }
    }
}

/// The messages of one communicator that no receive was waiting for, each with
/// a value `M` of the caller's choice.
///
/// An empty queue owns no memory until the first message. After that each
/// waiting message costs its node (48 bytes and an `Option<M>`), 16 to 32 bytes
/// of buckets and, under wildcards, as much again; the memory of more than 1024
/// messages is given back after the queue has run empty 32 times at less than a
/// quarter of it. A queue that never runs empty keeps it.
pub struct UnexpectedQueue<M> {
    len: usize,
    next_order: u64,
    slab: Slab<Node<M>>,
    exact: KeyIndex,
    /// Heads of the arrival lists.
    user: u32,
    internal: u32,
    by_source: SideIndex,
    by_tag: SideIndex,
}

impl<M> UnexpectedQueue<M> {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            len: 0,
            next_order: 0,
            slab: Slab::new(),
            exact: KeyIndex::new(),
            user: NIL,
            internal: NIL,
            by_source: SideIndex::new(),
            by_tag: SideIndex::new(),
        }
    }

    /// Number of messages waiting.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no message waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a message behind all others.
    #[inline]
    pub fn push(&mut self, envelope: Envelope, message: M) -> UnexpectedKey {
        let order = self.next_order;
        self.next_order += 1;
        self.len += 1;
        let at = self.slab.insert(Node {
            key: envelope.key(),
            order,
            same_key: Ends::NONE,
            arrival: Ends::NONE,
            chain: NIL,
            message: Some(message),
        });
        let nodes = self.slab.nodes_mut();
        self.exact.insert(nodes, at);
        if envelope.is_internal() {
            append::<1, _>(nodes, &mut self.internal, at);
        } else {
            append::<1, _>(nodes, &mut self.user, at);
            if self.by_source.built {
                self.by_source.insert(at, envelope.source);
            }
        }
        if self.by_tag.built {
            self.by_tag.insert(at, envelope.tag);
        }
        UnexpectedKey { order, at }
    }

    /// Removes and returns the earliest message that the pattern accepts.
    #[inline]
    pub fn take(&mut self, pattern: Pattern) -> Option<(Envelope, M)> {
        if self.len == 0 {
            return None;
        }
        if let (Some(source), TagPattern::Exact(tag)) = (pattern.source, pattern.tag) {
            let key = Envelope { source, tag }.key();
            let at = self.exact.take_first(self.slab.nodes_mut(), key);
            if at == NIL {
                return None;
            }
            return self.release(at);
        }
        let at = self.find(pattern);
        if at == NIL {
            return None;
        }
        self.remove_at(at)
    }

    /// The earliest message that the pattern accepts, left in place. Needs
    /// `&mut` because the first wildcard builds its index.
    #[inline]
    pub fn peek(&mut self, pattern: Pattern) -> Option<(UnexpectedKey, Envelope, &M)> {
        if self.len == 0 {
            return None;
        }
        let at = self.find(pattern);
        if at == NIL {
            return None;
        }
        self.view(at)
    }

    fn view(&self, at: u32) -> Option<(UnexpectedKey, Envelope, &M)> {
        let node = &self.slab.nodes()[at as usize];
        let key = UnexpectedKey {
            order: node.order,
            at,
        };
        Some((key, node.envelope(), node.message.as_ref()?))
    }

    fn find(&mut self, pattern: Pattern) -> u32 {
        match (pattern.source, pattern.tag) {
            (Some(source), TagPattern::Exact(tag)) => {
                let key = Envelope { source, tag }.key();
                self.exact.first(self.slab.nodes(), key)
            }
            (Some(source), TagPattern::Any) => {
                if !self.by_source.built {
                    self.build_by_source();
                }
                self.by_source.first(source)
            }
            (None, TagPattern::Exact(tag)) => {
                if !self.by_tag.built {
                    self.build_by_tag();
                }
                self.by_tag.first(tag)
            }
            (None, TagPattern::Any) => self.user,
        }
    }

    fn build_by_source(&mut self) {
        self.by_source.built = true;
        let mut at = self.user;
        while at != NIL {
            let node = &self.slab.nodes()[at as usize];
            self.by_source.insert(at, node.envelope().source);
            at = node.arrival.next;
        }
    }

    /// A tag is in one of the two arrival lists only, so the order of the lists
    /// does not matter.
    fn build_by_tag(&mut self) {
        self.by_tag.built = true;
        for head in [self.user, self.internal] {
            let mut at = head;
            while at != NIL {
                let node = &self.slab.nodes()[at as usize];
                self.by_tag.insert(at, node.envelope().tag);
                at = node.arrival.next;
            }
        }
    }

    fn holds(&self, key: UnexpectedKey) -> bool {
        (self.slab.nodes().get(key.at as usize))
            .is_some_and(|node| node.order == key.order && node.message.is_some())
    }

    /// Removes and returns the message with this key, unless it is gone.
    pub fn remove(&mut self, key: UnexpectedKey) -> Option<(Envelope, M)> {
        if !self.holds(key) {
            return None;
        }
        self.remove_at(key.at)
    }

    fn remove_at(&mut self, at: u32) -> Option<(Envelope, M)> {
        self.exact.remove(self.slab.nodes_mut(), at);
        self.release(at)
    }

    /// Removes a node that has left the exact index from the rest and frees it.
    #[inline]
    fn release(&mut self, at: u32) -> Option<(Envelope, M)> {
        let nodes = self.slab.nodes_mut();
        let envelope = nodes[at as usize].envelope();
        let message = nodes[at as usize].message.take();
        if envelope.is_internal() {
            detach::<1, _>(nodes, &mut self.internal, at);
        } else {
            detach::<1, _>(nodes, &mut self.user, at);
            if self.by_source.built {
                self.by_source.remove(at);
            }
        }
        if self.by_tag.built {
            self.by_tag.remove(at);
        }
        self.len -= 1;
        if self.len == 0 {
            self.reset();
        } else {
            self.slab.release(at);
        }
        Some((envelope, message?))
    }

    #[inline]
    fn reset(&mut self) {
        let shrink_to = self.slab.reset();
        if let Some(entries) = shrink_to {
            self.exact.shrink(entries);
        }
        if shrink_to.is_some() || self.by_source.built || self.by_tag.built {
            self.by_source.reset(shrink_to);
            self.by_tag.reset(shrink_to);
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> (usize, usize) {
        (self.slab.capacity(), self.exact.bucket_count())
    }
}

impl<M> Default for UnexpectedQueue<M> {
    fn default() -> Self {
        Self::new()
    }
}
