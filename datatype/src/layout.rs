//! The committed layout: what everything after the type tree works with.

use crate::blocks::Blocks;
use crate::bounds::Facts;
use crate::copy::{Pack, Unpack, instances};
use crate::form::{Body, Form, Level};
use crate::{Datatype, Signature, TypeError, overlap};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A committed datatype: canonical form, bounds and signature.
///
/// Immutable, cheap to clone, shared between threads. Two layouts are equal if
/// they have the same bytes in the same order, the same bounds and the same
/// signature; [`Layout::same_bytes`] ignores the latter two.
#[derive(Clone)]
pub struct Layout(Arc<Inner>);

struct Inner {
    form: Form,
    size: usize,
    lb: isize,
    extent: isize,
    true_lb: isize,
    true_extent: isize,
    alignment: usize,
    signature: Signature,
    overlaps_itself: OnceLock<bool>,
}

/// What the canonical form of a layout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class<'a> {
    /// One run of bytes, maybe of none.
    Contiguous,
    /// Blocks of one length under nested strides.
    Strided {
        /// The loops, outermost first.
        levels: &'a [Level],
        /// Bytes of each block.
        block_bytes: usize,
    },
    /// Listed blocks, maybe under nested strides.
    Indexed {
        /// The loops around the list, outermost first.
        levels: &'a [Level],
        /// Blocks in the list.
        blocks: usize,
    },
    /// Unlike or listed forms, maybe under nested strides.
    Composite {
        /// The loops around it, outermost first.
        levels: &'a [Level],
    },
}

impl Layout {
    pub(crate) fn new(facts: &Facts, form: Form) -> Layout {
        let (true_lb, true_extent) = facts
            .data
            .map_or((0, 0), |data| (data.low, data.high - data.low));
        Layout(Arc::new(Inner {
            form,
            size: facts.size,
            lb: facts.lb,
            extent: facts.extent,
            true_lb,
            true_extent,
            alignment: facts.alignment,
            signature: facts.signature.clone(),
            overlaps_itself: OnceLock::new(),
        }))
    }

    /// The layout of a Rust type.
    pub fn of<T: Datatype>() -> Layout {
        T::layout()
    }

    /// What the canonical form is.
    pub fn class(&self) -> Class<'_> {
        let form = &self.0.form;
        let levels = form.levels.as_slice();
        match &form.body {
            Body::Block if levels.is_empty() => Class::Contiguous,
            Body::Block => Class::Strided {
                levels,
                block_bytes: form.body_bytes,
            },
            Body::List(list) => Class::Indexed {
                levels,
                blocks: list.len(),
            },
            _ => Class::Composite { levels },
        }
    }

    pub(crate) fn form(&self) -> &Form {
        &self.0.form
    }

    /// A number that no other live layout has; clones share it.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Packed bytes of one instance.
    #[inline]
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Lower bound.
    #[inline]
    pub fn lb(&self) -> isize {
        self.0.lb
    }

    /// Distance in bytes between consecutive instances.
    #[inline]
    pub fn extent(&self) -> isize {
        self.0.extent
    }

    /// Lowest byte touched by one instance.
    #[inline]
    pub fn true_lb(&self) -> isize {
        self.0.true_lb
    }

    /// Bytes from the lowest to the highest byte touched by one instance.
    #[inline]
    pub fn true_extent(&self) -> isize {
        self.0.true_extent
    }

    /// Largest alignment of a predefined type inside.
    #[inline]
    pub fn alignment(&self) -> usize {
        self.0.alignment
    }

    /// A power of two, at most 64, that divides every offset, length and stride
    /// of `count > 1` instances: what an access may be as wide as if the
    /// origin's address allows it.
    pub fn granularity(&self) -> usize {
        let extent = 1usize << self.0.extent.trailing_zeros().min(6);
        self.0.form.granularity().min(extent)
    }

    /// The sequence of predefined types of one instance.
    #[inline]
    pub fn signature(&self) -> &Signature {
        &self.0.signature
    }

    /// Packed bytes of `count` instances, unless that exceeds `isize::MAX`.
    #[inline]
    pub fn packed_bytes(&self, count: usize) -> Option<usize> {
        self.size()
            .checked_mul(count)
            .filter(|&bytes| bytes <= isize::MAX as usize)
    }

    /// Lowest and one-past-highest byte that `count` instances touch, relative
    /// to the origin; saturating, so that no buffer check passes by overflow.
    #[inline]
    pub fn span(&self, count: usize) -> (isize, isize) {
        if count == 0 || self.size() == 0 {
            return (0, 0);
        }
        let (low, high) = (self.true_lb(), self.true_lb() + self.true_extent());
        let steps = isize::try_from(count - 1).unwrap_or(isize::MAX);
        let reach = steps.saturating_mul(self.extent());
        (
            low.saturating_add(reach.min(0)),
            high.saturating_add(reach.max(0)),
        )
    }

    /// The same bytes as seen from an origin that lies `bytes` further on.
    ///
    /// ```
    /// # use osier_datatype::{Order, Type};
    /// let layout = Type::subarray(&[8], &[2], &[5], Order::C, &Type::of::<u8>())?.commit()?;
    /// assert_eq!(layout.true_lb(), 5);
    /// assert_eq!(layout.seen_from(5).true_lb(), 0);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    pub fn seen_from(&self, bytes: isize) -> Layout {
        let inner = &*self.0;
        let mut form = inner.form.clone();
        form.base = form.base.wrapping_sub(bytes);
        Layout(Arc::new(Inner {
            form,
            lb: inner.lb.wrapping_sub(bytes),
            true_lb: inner.true_lb.wrapping_sub(bytes),
            signature: inner.signature.clone(),
            overlaps_itself: inner.overlaps_itself.clone(),
            ..*inner
        }))
    }

    /// The offset at which all bytes of `count` instances start, if they form
    /// one run in pack order. Nothing at all is a run at 0.
    #[inline]
    pub fn contiguous_at(&self, count: usize) -> Option<isize> {
        if count == 0 || self.size() == 0 {
            return Some(0);
        }
        let (base, length) = self.0.form.as_block()?;
        (count == 1 || isize::try_from(length) == Ok(self.extent())).then_some(base)
    }

    /// Maximal runs (offset, length) of `count` instances, in pack order.
    pub fn blocks(&self, count: usize) -> Blocks<'_> {
        Blocks::new(self, count)
    }

    /// Maximal runs of one instance; constant time for strided layouts.
    pub fn block_count(&self) -> usize {
        self.0.form.maximal_runs()
    }

    /// Packs the bytes `packed` of the packed stream of `count` instances at
    /// `origin` to `dst`, which receives the first of them.
    ///
    /// # Safety
    /// `packed` ends within [`Layout::packed_bytes`]. Memory around `origin` is
    /// valid for reads of the payload bytes in that range, `dst` for writes of
    /// as many bytes as the range is long; they do not overlap.
    #[inline]
    pub unsafe fn pack_raw(
        &self,
        origin: *const u8,
        count: usize,
        packed: Range<usize>,
        dst: *mut u8,
    ) {
        let form = &self.0.form;
        // SAFETY: the caller's contract; packing only reads memory.
        unsafe { instances::<Pack>(form, count, self.0.extent, origin.cast_mut(), packed, dst) }
    }

    /// Unpacks the bytes `packed` of the packed stream of `count` instances at
    /// `origin` from `src`, which holds the first of them. Gaps stay untouched.
    ///
    /// # Safety
    /// `packed` ends within [`Layout::packed_bytes`]. Memory around `origin` is
    /// valid for writes of the payload bytes in that range, `src` for reads of
    /// as many bytes as the range is long; they do not overlap.
    #[inline]
    pub unsafe fn unpack_raw(
        &self,
        origin: *mut u8,
        count: usize,
        packed: Range<usize>,
        src: *const u8,
    ) {
        let form = &self.0.form;
        // SAFETY: the caller's contract; unpacking only reads the packed side.
        unsafe { instances::<Unpack>(form, count, self.0.extent, origin, packed, src.cast_mut()) }
    }

    /// Packs the bytes `packed` of the packed stream of `count` instances in
    /// `src`, whose origin is byte `origin`, to `dst`.
    ///
    /// Counts are instances; origin and range are bytes.
    ///
    /// # Errors
    /// [`TypeError::Memory`], if an instance reaches out of the buffer;
    /// [`TypeError::Fragment`], if the range lies beyond the packed bytes or differs from the
    /// other buffer's length; [`TypeError::Count`], if the packed size is no 64-bit number.
    pub fn pack(
        &self,
        src: &[u8],
        origin: usize,
        count: usize,
        packed: Range<usize>,
        dst: &mut [u8],
    ) -> Result<(), TypeError> {
        self.check(src.len(), origin, count, &packed, dst.len())?;
        let at = src.as_ptr().wrapping_add(origin);
        // SAFETY: `check` found span and range inside of the slices.
        unsafe { self.pack_raw(at, count, packed, dst.as_mut_ptr()) };
        Ok(())
    }

    /// Unpacks `src` as the bytes `packed` of the packed stream of `count`
    /// instances into `dst`, whose origin is byte `origin`.
    ///
    /// # Errors
    /// As [`Layout::pack`].
    pub fn unpack(
        &self,
        dst: &mut [u8],
        origin: usize,
        count: usize,
        packed: Range<usize>,
        src: &[u8],
    ) -> Result<(), TypeError> {
        self.check(dst.len(), origin, count, &packed, src.len())?;
        let at = dst.as_mut_ptr().wrapping_add(origin);
        // SAFETY: `check` found span and range inside of the slices.
        unsafe { self.unpack_raw(at, count, packed, src.as_ptr()) };
        Ok(())
    }

    /// Whether `count` instances at byte `origin` stay within a buffer of
    /// `bytes` bytes.
    ///
    /// # Errors
    /// [`TypeError::Memory`], if they do not.
    pub fn check_span(&self, bytes: usize, origin: usize, count: usize) -> Result<(), TypeError> {
        let (low, high) = self.span(count);
        let fits = |at: isize| {
            isize::try_from(origin)
                .ok()
                .and_then(|origin| origin.checked_add(at))
                .is_some_and(|at| (0..=bytes as i128).contains(&(at as i128)))
        };
        if low == high || (fits(low) && fits(high)) {
            return Ok(());
        }
        Err(TypeError::Memory {
            count,
            low,
            high,
            bytes,
            origin,
        })
    }

    fn check(
        &self,
        bytes: usize,
        origin: usize,
        count: usize,
        fragment: &Range<usize>,
        packed_bytes: usize,
    ) -> Result<(), TypeError> {
        let packed = self.packed_bytes(count).ok_or(TypeError::Count {
            count,
            size: self.size(),
        })?;
        if fragment.start > fragment.end || fragment.end > packed {
            return Err(TypeError::Fragment {
                start: fragment.start,
                end: fragment.end,
                count,
                packed,
            });
        }
        if packed_bytes != fragment.len() {
            return Err(TypeError::Packed {
                bytes: packed_bytes,
                fragment: fragment.len(),
            });
        }
        self.check_span(bytes, origin, count)
    }

    /// Whether `count` instances touch a byte twice: legal for sending only.
    pub fn self_overlaps(&self, count: usize) -> bool {
        match count {
            0 => false,
            1 => *self
                .0
                .overlaps_itself
                .get_or_init(|| overlap::with_itself(self, 1)),
            // Instances that lie apart.
            _ if self.extent().unsigned_abs() >= self.true_extent() as usize => {
                self.self_overlaps(1)
            }
            _ => overlap::with_itself(self, count),
        }
    }

    /// Whether `count` instances share a byte with `other_count` instances of
    /// `other` whose origin lies `other_offset` bytes further. Exact.
    pub fn overlaps(
        &self,
        count: usize,
        other: &Layout,
        other_count: usize,
        other_offset: isize,
    ) -> bool {
        overlap::between(self, count, other, other_count, other_offset)
    }

    /// Whether both touch the same bytes in the same order.
    pub fn same_bytes(&self, other: &Layout) -> bool {
        if self.0.form == other.0.form {
            return true;
        }
        self.size() == other.size()
            && self.true_lb() == other.true_lb()
            && self.true_extent() == other.true_extent()
            && self.block_count() == other.block_count()
            && self.blocks(1).eq(other.blocks(1))
    }

    /// Whether both met in one canonical form, without looking at blocks.
    pub fn same_form(&self, other: &Layout) -> bool {
        self.0.form == other.0.form
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.lb == other.0.lb
                && self.0.extent == other.0.extent
                && self.0.signature == other.0.signature
                && self.same_bytes(other))
    }
}

impl Eq for Layout {}

impl std::hash::Hash for Layout {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let inner = &self.0;
        (inner.lb, inner.extent, inner.true_lb, inner.true_extent).hash(state);
        std::hash::Hash::hash(&inner.signature, state);
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("class", &self.class())
            .field("size", &self.size())
            .field("extent", &self.extent())
            .field("signature", self.signature())
            .finish_non_exhaustive()
    }
}
