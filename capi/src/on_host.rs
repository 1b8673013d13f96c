//! Host copies of device memory, for calls that work on the host alone.
//!
//! # Invariants
//! 1. A copy has the same instances of the same layout around its origin, so that whoever
//!    works on it need not know.
//! 2. Copies are messages of this rank to itself, on a communicator that nobody else has,
//!    each with a tag of its own: threads may copy at the same time.

use crate::abi::*;
use crate::buffers::{Address, view_mut_of, view_of};
use crate::fail::Res;
use crate::objects::ctype;
use crate::state;
use osier::{Layout, View, ViewMut};
use osier_kernels::classify;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether an address is one of a device.
#[inline]
pub fn is_of_device(at: *const u8) -> bool {
    classify::is_expected() && matches!(classify::find(at.addr() as u64), Ok(Some(_)))
}

/// Copies what one view shows to another, wherever they lie; both are of the same size.
#[cold]
pub fn copy(from: &View<'_>, to: &mut ViewMut<'_>) -> Res {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let tag = NEXT.fetch_add(1, Ordering::Relaxed) & 0x7fff;
    let own = state::scratch()?;
    own.sendrecv(from, 0, tag, to, 0, tag)?;
    Ok(())
}

/// Memory for instances as they lie, aligned for anything.
pub struct Room {
    memory: Vec<u128>,
    /// From the front of the memory to the origin of the first instance.
    origin: isize,
}

impl Room {
    pub fn new(layout: &Layout, n: usize) -> Self {
        let (start, end) = layout.span(n);
        let bytes = (end - start).unsigned_abs();
        Self {
            memory: vec![0u128; bytes.div_ceil(16).max(1)],
            origin: -start,
        }
    }

    /// Where the first instance has its origin.
    pub fn origin(&mut self) -> Address {
        let front = self.memory.as_mut_ptr().cast::<u8>();
        front.wrapping_offset(self.origin)
    }
}

/// Instances that the host can work on: those of C's memory, or a copy.
pub struct OnHost {
    at: Address,
    room: Option<Room>,
}

impl OnHost {
    /// Of memory that is read.
    #[inline]
    pub fn read(at: Address, n: usize, layout: &Layout) -> Res<Self> {
        let view = view_of(at, n, layout)?;
        if !view.is_on_device() {
            return Ok(Self { at, room: None });
        }
        let mut room = Room::new(layout, n);
        copy(&view, &mut view_mut_of(room.origin(), n, layout)?)?;
        Ok(Self {
            at: room.origin(),
            room: Some(room),
        })
    }

    /// Of memory that is written, and is not read: [`OnHost::give_back`] ends it.
    #[inline]
    pub fn write(at: Address, n: usize, layout: &Layout) -> Res<Self> {
        if !view_mut_of(at, n, layout)?.is_on_device() {
            return Ok(Self { at, room: None });
        }
        let mut room = Room::new(layout, n);
        Ok(Self {
            at: room.origin(),
            room: Some(room),
        })
    }

    /// Where the host has it.
    #[inline]
    pub fn at(&self) -> Address {
        self.at
    }

    /// Brings it to the memory that it is a copy of.
    #[inline]
    pub fn give_back(mut self, to: Address, n: usize, layout: &Layout) -> Res {
        match &mut self.room {
            None => Ok(()),
            Some(room) => {
                let from = view_of(room.origin(), n, layout)?;
                copy(&from, &mut view_mut_of(to, n, layout)?)
            }
        }
    }
}

/// Bytes that have been packed, or will be.
pub fn packed<'a>(at: Address, bytes: usize) -> Res<View<'a>> {
    view_of(at, bytes, ctype(MPI_PACKED)?.committed()?)
}

/// As [`packed`], to write.
pub fn packed_mut<'a>(at: Address, bytes: usize) -> Res<ViewMut<'a>> {
    view_mut_of(at, bytes, ctype(MPI_PACKED)?.committed()?)
}
