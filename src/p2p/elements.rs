//! Elements of one predefined type at an address: what nearly all messages of layers above
//! are made of.
//!
//! A view has room for whatever a message may be made of, and is moved through memory. Moved
//! again before its stores have left the processor, piece by piece and at other widths, it
//! holds up the call for longer than all else that the call does. These fit in registers,
//! and a view of them is made where it is used.

use osier_datatype::Basic;
use osier_engine::view::{
    Buffer, BufferMut, OwnedBuffer, OwnedBufferMut, Plain, RawView, View, ViewMut,
};
use std::mem::ManuallyDrop;

/// Elements of one predefined type, one after the other, on the host.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    origin: *mut u8,
    bytes: usize,
    basic: Basic,
}

// SAFETY: an address, of which its maker has promised that it may be used from any thread.
unsafe impl Send for Elements {}

impl Elements {
    /// `count` elements of a predefined type of `bytes` bytes each; `None` if that overflows.
    ///
    /// # Safety
    /// While the value or a transfer of it exists, the elements are valid for reads from any
    /// thread, and no thread writes them. If they are received into, also for writes, and
    /// nothing else touches them; any bytes are valid values there.
    #[inline]
    pub unsafe fn new(origin: *mut u8, basic: Basic, bytes: usize, count: usize) -> Option<Self> {
        let bytes = bytes.checked_mul(count)?;
        (bytes <= isize::MAX as usize).then_some(Self {
            origin,
            bytes,
            basic,
        })
    }

    /// A view of them. There is nothing to drop in it.
    #[inline]
    pub fn shown(&self) -> ManuallyDrop<View<'_>> {
        ManuallyDrop::new(self.view())
    }

    /// As [`Elements::shown`], to receive into.
    #[inline(always)]
    pub fn shown_mut(&mut self) -> ManuallyDrop<ViewMut<'_>> {
        ManuallyDrop::new(self.view_mut())
    }

    #[inline(always)]
    pub(super) fn whole(&self) -> Plain {
        Plain {
            at: self.origin,
            bytes: self.bytes,
            basic: self.basic,
        }
    }

    #[inline(always)]
    fn raw(&self) -> RawView {
        RawView::uniform(self.origin, self.bytes, self.basic)
    }
}

impl Buffer for Elements {
    #[inline]
    fn view(&self) -> View<'_> {
        View::of_raw(self.raw())
    }

    #[inline]
    fn lend<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        look(&self.shown())
    }

    #[inline]
    fn plain(&self) -> Option<Plain> {
        Some(self.whole())
    }
}

impl BufferMut for Elements {
    #[inline(always)]
    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::of_raw(self.raw())
    }

    #[inline(always)]
    fn lend_mut<R>(&mut self, look: impl FnOnce(&ViewMut<'_>) -> R) -> R {
        look(&self.shown_mut())
    }

    #[inline]
    fn plain_mut(&mut self) -> Option<Plain> {
        Some(self.whole())
    }
}

// SAFETY: the memory lies where it lies, and its maker has vouched for it.
unsafe impl OwnedBuffer for Elements {}
// SAFETY: as above, with sole access where it is received into.
unsafe impl OwnedBufferMut for Elements {}
