//! Memory of a rank's own part of a window.
//!
//! # Invariants
//! 1. `at` is the first of the bytes of a [`Held`], which stay where they are until it is
//!    dropped; nobody else gives them back.

use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::Core;
use osier_transports::shm::ShmRank;
use std::any::Any;

/// Unit of plain memory: as a sync block is aligned.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; 128]);

enum Owner {
    /// The rank's part of the shared heap.
    Heap(ShmRank),
    /// Of the library.
    Plain(*mut [Line]),
    /// A value of the program's.
    Value(Box<dyn Any + Send + Sync>),
    /// The program vouches for it.
    Promised,
}

/// Memory that a window holds.
pub struct Held {
    at: *mut u8,
    bytes: usize,
    owner: Owner,
}

// SAFETY: invariant 1: the owner of the bytes, whose address is tied to no thread.
unsafe impl Send for Held {}
// SAFETY: invariant 1: whoever has a reference learns the address, and nothing more.
unsafe impl Sync for Held {}

impl Held {
    /// Zeroed memory that peers on this machine map, aligned to two lines.
    pub fn zeroed(core: &Core, bytes: usize) -> Result<Self> {
        if let Some(rank) = core.transport.shm() {
            return Ok(Self {
                at: rank.heap_alloc(bytes.max(1), align_of::<Line>())?,
                bytes,
                owner: Owner::Heap(rank.clone()),
            });
        }
        let mut lines: Vec<Line> = Vec::new();
        let number = bytes.div_ceil(size_of::<Line>());
        lines.try_reserve_exact(number).map_err(|_| {
            let message = format!("{bytes} bytes of a window");
            Error::new(ErrorKind::OutOfMemory, message)
        })?;
        lines.resize(number, Line([0; 128]));
        let lines = Box::into_raw(lines.into_boxed_slice());
        Ok(Self {
            at: lines.cast(),
            bytes,
            owner: Owner::Plain(lines),
        })
    }

    /// Memory of a value, which keeps it where it is.
    pub fn of_value(at: *mut u8, bytes: usize, value: Box<dyn Any + Send + Sync>) -> Self {
        let owner = Owner::Value(value);
        Self { at, bytes, owner }
    }

    /// Memory that the program vouches for.
    pub fn promised(at: *mut u8, bytes: usize) -> Self {
        let owner = Owner::Promised;
        Self { at, bytes, owner }
    }

    pub fn at(&self) -> *mut u8 {
        self.at
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value whose memory it is.
    pub fn into_value(mut self) -> Option<Box<dyn Any + Send + Sync>> {
        match std::mem::replace(&mut self.owner, Owner::Promised) {
            Owner::Value(value) => Some(value),
            owner => {
                self.owner = owner;
                None
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: invariant 1: allocated there, given back once; all ranks have given the
            // window back.
            Owner::Heap(rank) => unsafe { rank.heap_free(self.at) },
            // SAFETY: invariant 1: of `into_raw`, given back once.
            Owner::Plain(lines) => drop(unsafe { Box::from_raw(*lines) }),
            Owner::Value(_) | Owner::Promised => {}
        }
    }
}
