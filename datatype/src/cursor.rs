//! Packing of several items into one buffer with a position, as `MPI_Pack` and `MPI_Unpack` do.
//!
//! The packed bytes are those that a message has: the payload in order, without
//! gaps and without a head. So what was packed may be sent as
//! [`Basic::Packed`](crate::Basic::Packed) and received by its types, and the
//! other way round (MPI 5.0, section 5.2).

use crate::{Datatype, Layout, TypeError};
use std::ops::Range;

impl Layout {
    /// Bytes that `count` instances take in a packed buffer (`MPI_Pack_size`,
    /// exact here).
    ///
    /// # Errors
    /// More than `isize::MAX` bytes.
    pub fn pack_size(&self, count: usize) -> Result<usize, TypeError> {
        self.packed_bytes(count).ok_or(TypeError::Count {
            count,
            size: self.size(),
        })
    }

    /// Packs `count` instances, the first with its origin at element `origin`
    /// of `src`, to byte `position` of `dst` on, and moves the position behind
    /// them.
    ///
    /// # Errors
    /// Memory or room is too small; the position stays then.
    ///
    /// ```
    /// use osier_datatype::Layout;
    ///
    /// let mut packed = [0; 20];
    /// let mut position = 0;
    /// Layout::of::<f64>().pack_at(&[1.0, 2.0], 0, 2, &mut packed, &mut position)?;
    /// Layout::of::<i32>().pack_at(&[3], 0, 1, &mut packed, &mut position)?;
    /// assert_eq!(position, 20);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    pub fn pack_at<T: Datatype>(
        &self,
        src: &[T],
        origin: usize,
        count: usize,
        dst: &mut [u8],
        position: &mut usize,
    ) -> Result<(), TypeError> {
        let origin = typed::<T>(origin)?;
        self.check_span(size_of_val(src), origin, count)?;
        let at = src.as_ptr().cast::<u8>().wrapping_add(origin);
        // SAFETY: all bytes that the layout touches lie in the slice, whose
        // elements have no padding.
        unsafe { self.pack_at_raw(at, count, dst, position) }
    }

    /// [`Layout::pack_at`] from memory around an address.
    ///
    /// # Safety
    /// The payload bytes of `count` instances at `origin` are valid for reads
    /// and do not overlap `dst`.
    ///
    /// # Errors
    /// The room is too small.
    pub unsafe fn pack_at_raw(
        &self,
        origin: *const u8,
        count: usize,
        dst: &mut [u8],
        position: &mut usize,
    ) -> Result<(), TypeError> {
        let needed = self.pack_size(count)?;
        let cursor = Cursor::new("pack", count, needed, dst.len(), *position)?;
        let to = dst[cursor.range()].as_mut_ptr();
        // SAFETY: the caller's contract for the memory; the room was checked.
        unsafe { self.pack_raw(origin, count, 0..needed, to) };
        *position = cursor.end();
        Ok(())
    }

    /// Unpacks `count` instances from byte `position` of `src` on, the first
    /// with its origin at element `origin` of `dst`, and moves the position
    /// behind them. Gaps stay untouched.
    ///
    /// # Errors
    /// Memory or packed bytes are too few, or the layout touches a byte twice;
    /// nothing is written then and the position stays.
    pub fn unpack_at<T: Datatype>(
        &self,
        src: &[u8],
        position: &mut usize,
        dst: &mut [T],
        origin: usize,
        count: usize,
    ) -> Result<(), TypeError> {
        let origin = typed::<T>(origin)?;
        self.check_span(size_of_val(dst), origin, count)?;
        let at = dst.as_mut_ptr().cast::<u8>().wrapping_add(origin);
        // SAFETY: all bytes that the layout touches lie in the slice, whose
        // elements may have any bytes and no padding.
        unsafe { self.unpack_at_raw(src, position, at, count) }
    }

    /// [`Layout::unpack_at`] to memory around an address.
    ///
    /// # Safety
    /// The payload bytes of `count` instances at `origin` are valid for writes
    /// and do not overlap `src`.
    ///
    /// # Errors
    /// Packed bytes are too few, or the layout touches a byte twice.
    pub unsafe fn unpack_at_raw(
        &self,
        src: &[u8],
        position: &mut usize,
        origin: *mut u8,
        count: usize,
    ) -> Result<(), TypeError> {
        self.check_receive(count)?;
        let needed = self.pack_size(count)?;
        let cursor = Cursor::new("unpack", count, needed, src.len(), *position)?;
        let from = src[cursor.range()].as_ptr();
        // SAFETY: the caller's contract for the memory; the bytes are there.
        unsafe { self.unpack_raw(origin, count, 0..needed, from) };
        *position = cursor.end();
        Ok(())
    }

    /// Whether `count` instances may be received into: no byte twice.
    ///
    /// # Errors
    /// [`TypeError::Overlap`].
    pub fn check_receive(&self, count: usize) -> Result<(), TypeError> {
        if self.self_overlaps(count) {
            return Err(TypeError::Overlap { count });
        }
        Ok(())
    }
}

/// A place in a packed buffer that has enough room.
pub(crate) struct Cursor {
    start: usize,
    bytes: usize,
}

impl Cursor {
    pub fn new(
        operation: &'static str,
        count: usize,
        needed: usize,
        bytes: usize,
        position: usize,
    ) -> Result<Cursor, TypeError> {
        if bytes.checked_sub(position).is_none_or(|room| room < needed) {
            return Err(TypeError::Room {
                operation,
                count,
                needed,
                position,
                bytes,
            });
        }
        Ok(Cursor {
            start: position,
            bytes: needed,
        })
    }

    pub fn end(&self) -> usize {
        self.start + self.bytes
    }

    pub fn range(&self) -> Range<usize> {
        self.start..self.end()
    }
}

/// Byte at which an element begins; saturating, so that no check passes by
/// overflow.
pub(crate) fn typed<T: Datatype>(origin: usize) -> Result<usize, TypeError> {
    if !T::DENSE {
        return Err(TypeError::Padding {
            element: std::any::type_name::<T>(),
        });
    }
    Ok(origin.saturating_mul(size_of::<T>()))
}
