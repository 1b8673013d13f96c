//! Slab: values by handle, an index and a generation in 32 bits, so that a handle fits a
//! message header and a stale one is noticed.

use crate::error::{Error, ErrorKind};

const INDEX_BITS: u32 = 24;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const NONE: u32 = u32::MAX;

/// On cache lines of its own, as invariant 3 of the lane's cell asks.
#[repr(align(64))]
struct Entry<T> {
    generation: u8,
    next_free: u32,
    value: Option<T>,
}

/// An entry that was taken and has no value yet.
pub struct Vacant<'a, T>(&'a mut Option<T>);

impl<T> Vacant<'_, T> {
    /// Stores the entry's value.
    #[inline(always)]
    pub fn fill(self, value: T) {
        // There is none to drop.
        std::mem::forget(self.0.replace(value));
    }
}

/// A slab with a free list; entries are re-used, newest first.
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: usize,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            len: 0,
        }
    }

    /// Number of live entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no entry lives.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most entries at a time.
    pub const CAPACITY: usize = INDEX_MASK as usize;

    /// Stores a value; `None` if [`Slab::CAPACITY`] values live.
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> Option<u32> {
        let (handle, place) = self.vacant()?;
        place.fill(value);
        Some(handle)
    }

    /// Takes an entry whose value is to be made for its handle, and where it stays: between
    /// a look for room and the value's end nothing may fail, or the value has memory of its
    /// own, from which it is copied before its stores have left the processor.
    #[inline(always)]
    pub fn vacant(&mut self) -> Option<(u32, Vacant<'_, T>)> {
        if self.free == NONE && !self.grow() {
            return None;
        }
        let index = self.free;
        let entry = self.entries.get_mut(index as usize)?;
        let handle = index | u32::from(entry.generation) << INDEX_BITS;
        self.free = entry.next_free;
        entry.next_free = NONE;
        self.len += 1;
        Some((handle, Vacant(&mut entry.value)))
    }

    #[cold]
    fn grow(&mut self) -> bool {
        if self.entries.len() >= Self::CAPACITY {
            return false;
        }
        self.entries.push(Entry {
            generation: 0,
            next_free: NONE,
            value: None,
        });
        self.free = (self.entries.len() - 1) as u32;
        true
    }

    /// Drops a value that lives.
    #[inline]
    pub fn discard(&mut self, handle: u32) {
        let index = handle & INDEX_MASK;
        if let Some(entry) = self.entries.get_mut(index as usize)
            && u32::from(entry.generation) == handle >> INDEX_BITS
            && entry.value.is_some()
        {
            entry.value = None;
            entry.generation = entry.generation.wrapping_add(1);
            entry.next_free = self.free;
            self.free = index;
            self.len -= 1;
        }
    }

    #[inline]
    pub fn get(&self, handle: u32) -> Option<&T> {
        let entry = self.entries.get((handle & INDEX_MASK) as usize)?;
        (u32::from(entry.generation) == handle >> INDEX_BITS)
            .then_some(entry.value.as_ref())
            .flatten()
    }

    #[inline]
    pub fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut((handle & INDEX_MASK) as usize)?;
        (u32::from(entry.generation) == handle >> INDEX_BITS)
            .then_some(entry.value.as_mut())
            .flatten()
    }

    #[inline]
    pub fn remove(&mut self, handle: u32) -> Option<T> {
        let index = handle & INDEX_MASK;
        let entry = self.entries.get_mut(index as usize)?;
        if u32::from(entry.generation) != handle >> INDEX_BITS {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = self.free;
        self.free = index;
        self.len -= 1;
        Some(value)
    }

    /// Values in the slots that are used first: a look of bounded length.
    pub fn first_values(&self) -> impl Iterator<Item = &T> {
        const LOOK: usize = 16;
        self.entries
            .iter()
            .take(LOOK)
            .filter_map(|e| e.value.as_ref())
    }

    /// Handles of all live entries.
    pub fn handles(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().enumerate().filter_map(|(i, e)| {
            e.value
                .is_some()
                .then_some(i as u32 | u32::from(e.generation) << INDEX_BITS)
        })
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The error of a slab without room.
#[cold]
pub fn full() -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        "more than 16 million operations under way (hint: complete requests before posting more)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_handles_find_nothing() {
        let mut s = Slab::new();
        let a = s.insert('a').expect("room");
        assert_eq!(s.remove(a), Some('a'));
        let b = s.insert('b').expect("room");
        assert_ne!(a, b);
        assert_eq!(s.get(a), None);
        assert_eq!(s.remove(a), None);
        assert_eq!(s.get(b), Some(&'b'));
        assert_eq!(s.handles().collect::<Vec<_>>(), [b]);
        assert_eq!(s.len(), 1);
    }
}
