//! Ready list: finished operations in the order of their ends.
//!
//! After [`crate::progress::lane::Lane::notify`] an operation pushes a number here when it
//! ends, so that a thread that waits for thousands examines only those that have
//! ended.
//!
//! # Invariants
//! 1. The list's lock is a leaf: its owner takes no other lock and calls nothing,
//!    so it may be taken under a lane's lock.
//! 2. A registration leaves its number at most once.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A list of numbers that stand for operations.
#[derive(Default)]
pub struct Ready(Mutex<VecDeque<u64>>);

impl Ready {
    fn list(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a number.
    pub fn push(&self, token: u64) {
        self.list().push_back(token);
    }

    /// Takes the oldest number.
    pub fn pop(&self) -> Option<u64> {
        self.list().pop_front()
    }
}
