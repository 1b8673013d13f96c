//! Nodes in one vector, named by index; freed nodes are chained for re-use.
//!
//! # Invariants
//! 1. A node is on the free list or in use, never both. The owner marks which.
//! 2. When the owner says that nothing is in use ([`Slab::reset`]), indices
//!    start again from 0, so that a shallow queue stays in the same cache lines
//!    even after a burst.

use super::chains::{Fifo, NIL};

/// Up to this many nodes, memory is kept for good.
pub(super) const KEEP: usize = 1024;

/// A burst's memory is given back after running empty this many times at less
/// than a quarter of the capacity.
pub(super) const PATIENCE: u32 = 32;

/// The nodes of one queue. The free list runs through `next` of list 0.
pub(super) struct Slab<N> {
    nodes: Vec<N>,
    free: u32,
    /// Times that the queue ran empty since the last check of the capacity.
    emptied: u32,
    /// Most nodes at once since then.
    peak: usize,
}

impl<N: Fifo<0>> Slab<N> {
    pub(super) const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NIL,
            emptied: 0,
            peak: 0,
        }
    }

    #[inline]
    pub(super) fn nodes(&self) -> &[N] {
        &self.nodes
    }

    #[inline]
    pub(super) fn nodes_mut(&mut self) -> &mut [N] {
        &mut self.nodes
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.nodes.capacity()
    }

    /// Stores `node` and returns its index.
    #[inline]
    pub(super) fn insert(&mut self, node: N) -> u32 {
        let at = self.free;
        if at != NIL {
            let slot = &mut self.nodes[at as usize];
            self.free = slot.ends().next;
            *slot = node;
            at
        } else {
            let at = self.nodes.len() as u32;
            assert!(at < NIL, "a matching queue holds fewer than 2^32 entries");
            self.nodes.push(node);
            at
        }
    }

    /// Puts a node that is in no list any more on the free list.
    #[inline]
    pub(super) fn release(&mut self, at: u32) {
        self.nodes[at as usize].ends_mut().next = self.free;
        self.free = at;
    }

    /// Forgets all nodes; none may be in use. Returns the capacity to which
    /// the owner should cut its tables when a past burst was given back.
    #[inline]
    pub(super) fn reset(&mut self) -> Option<usize> {
        self.free = NIL;
        if self.nodes.capacity() <= KEEP {
            self.nodes.clear();
            return None;
        }
        self.reset_large()
    }

    #[cold]
    fn reset_large(&mut self) -> Option<usize> {
        self.peak = self.peak.max(self.nodes.len());
        self.nodes.clear();
        self.emptied += 1;
        if self.emptied < PATIENCE {
            return None;
        }
        let wanted = (self.peak * 2).max(KEEP);
        self.emptied = 0;
        self.peak = 0;
        if wanted > self.nodes.capacity() / 2 {
            return None;
        }
        self.nodes = Vec::with_capacity(wanted);
        Some(wanted)
    }
}
