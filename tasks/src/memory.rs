//! Memory of messages that wait, or that go to other ranks as they lie.
//!
//! # Invariants
//! 1. `at` is the memory of a vector: allocated with `layout`, its first `bytes` bytes
//!    initialised, and nobody else has it.
//! 2. Callers of unsafe functions keep what these ask of them.

use crate::describe::Element;
use std::alloc::{Layout, dealloc};
use std::mem::ManuallyDrop;

/// The packed elements of a message.
pub struct Memory {
    at: *mut u8,
    bytes: usize,
    layout: Layout,
}

// SAFETY: invariant 1: memory of its own, which is only read.
unsafe impl Send for Memory {}
// SAFETY: invariant 1: it is only read.
unsafe impl Sync for Memory {}

impl Memory {
    /// As many bytes as `fill` writes where it is told.
    pub fn filled(bytes: usize, fill: impl FnOnce(*mut u8)) -> Memory {
        // Zeroed: `fill` may be anything.
        let mut packed = vec![0u8; bytes];
        fill(packed.as_mut_ptr());
        packed.into()
    }

    /// The packed form of a message.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` elements.
    pub unsafe fn packed(element: &Element, from: *const u8, len: usize) -> Memory {
        let bytes = len * element.layout.size();
        let mut packed: Vec<u8> = Vec::with_capacity(bytes);
        if element.dense {
            // SAFETY: invariant 2: the caller's contract; there is room for the elements.
            unsafe { std::ptr::copy_nonoverlapping(from, packed.as_mut_ptr(), bytes) };
        } else {
            // SAFETY: invariant 2: the caller's contract; there is room for their packed form.
            unsafe {
                let to = packed.as_mut_ptr();
                element.layout.pack_raw(from, len, 0..bytes, to);
            }
        }
        // SAFETY: invariant 1: they were written above.
        unsafe { packed.set_len(bytes) };
        packed.into()
    }

    /// Takes over a vector of dense elements.
    ///
    /// # Safety
    /// `at`, `len` and `capacity` are of a vector of such elements, which the caller forgets.
    pub unsafe fn given(element: &Element, at: *mut u8, len: usize, capacity: usize) -> Memory {
        // A vector's memory has a layout.
        let layout = Layout::from_size_align(capacity * element.bytes, element.align);
        Memory {
            at,
            bytes: len * element.bytes,
            layout: layout.unwrap_or(Layout::new::<()>()),
        }
    }

    /// The packed elements.
    pub fn bytes(&self) -> &[u8] {
        match self.bytes {
            0 => &[],
            // SAFETY: invariant 1.
            bytes => unsafe { std::slice::from_raw_parts(self.at, bytes) },
        }
    }
}

impl From<Vec<u8>> for Memory {
    fn from(packed: Vec<u8>) -> Self {
        let mut packed = ManuallyDrop::new(packed);
        Memory {
            at: packed.as_mut_ptr(),
            bytes: packed.len(),
            // A vector's memory has a layout.
            layout: Layout::array::<u8>(packed.capacity()).unwrap_or(Layout::new::<()>()),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: invariant 1.
            unsafe { dealloc(self.at, self.layout) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_vector_that_was_given() {
        let element = Element::of::<u32>();
        let mut values = ManuallyDrop::new(vec![1u32, 2, 3]);
        let at = values.as_mut_ptr().cast::<u8>();
        // SAFETY: invariant 2: a vector of elements without gaps, forgotten.
        let memory = unsafe { Memory::given(&element, at, values.len(), values.capacity()) };
        assert_eq!(memory.bytes().as_ptr(), at.cast_const());
        assert_eq!(memory.bytes(), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        let from = [7u32, 8];
        // SAFETY: invariant 2: two elements.
        let memory = unsafe { Memory::packed(&element, from.as_ptr().cast(), 2) };
        assert_eq!(memory.bytes(), [7, 0, 0, 0, 8, 0, 0, 0]);
        assert!(Memory::from(Vec::new()).bytes().is_empty());
    }
}
