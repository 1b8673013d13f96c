//! A rank's heap as others hold it.
//!
//! # Invariants
//! 1. What a heap gives out stays mapped as long as the heap, and a heap of which anything
//!    is given out is never dropped: the last handle leaves it.

use super::heap::Heap;
use crate::contract::TransportError;
use std::sync::Arc;

/// The heap of a rank, which outlives the rank's membership in its job. Clones are the same
/// heap.
pub struct SharedHeap(Arc<Heap>);

impl Clone for SharedHeap {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl SharedHeap {
    pub(super) fn new(heap: &Arc<Heap>) -> Self {
        Self(heap.clone())
    }

    pub(super) fn into_inner(self) -> Arc<Heap> {
        self.0.clone()
    }

    /// Zeroed memory of at least `bytes` bytes, aligned to `align`, a power of two.
    ///
    /// # Errors
    /// Of kind [`OutOfMemory`](crate::TransportErrorKind::OutOfMemory).
    pub fn alloc(&self, bytes: usize, align: usize) -> Result<*mut u8, TransportError> {
        self.0.alloc(bytes, align)
    }

    /// Gives back what `alloc` returned; false if nothing that this heap has given out begins
    /// there.
    ///
    /// # Safety
    /// No transfer uses the memory, and nobody else.
    pub unsafe fn free(&self, ptr: *mut u8) -> bool {
        self.0.free(ptr)
    }

    /// Whether an address lies in this heap.
    pub fn owns(&self, ptr: *const u8) -> bool {
        self.0.owns(ptr)
    }
}

impl Drop for SharedHeap {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 1 && !self.0.is_unused() {
            // Invariant 1: its blocks are in use, and nobody can give them back any more.
            std::mem::forget(self.0.clone());
        }
    }
}
