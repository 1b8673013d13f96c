//! Parts of views: a range of a message, and several ranges as one message.

use super::{RawView, Shape};
use osier_datatype::{Basic, Signature};
use std::ops::Range;
use std::sync::Arc;

impl RawView {
    /// A range of the packed bytes, in place. Of device memory whole instances only.
    #[inline]
    pub fn section(&self, packed: Range<usize>) -> RawView {
        debug_assert!(packed.start <= packed.end && packed.end <= self.bytes);
        let bytes = packed.len();
        if bytes == self.bytes {
            return self.clone();
        }
        let (origin, shape) = match &self.shape {
            Shape::Loose(layout, count) => (
                self.origin,
                Shape::Section(layout.clone(), *count, packed.start),
            ),
            Shape::Section(layout, count, skip) => (
                self.origin,
                Shape::Section(layout.clone(), *count, packed.start + skip),
            ),
            Shape::Parts(parts) => {
                return Self::joined(
                    &mut inner(parts, packed).map(|(part, range, _)| part.section(range)),
                );
            }
            Shape::Device(memory) => match memory.section(packed) {
                Some(section) => return RawView::of_device(section),
                None => (self.origin, Shape::Device(memory.clone())),
            },
            Shape::Slice(layout) => (
                self.origin.wrapping_add(packed.start),
                Shape::Slice(*layout),
            ),
            Shape::Uniform(basic) if bytes.is_multiple_of(basic.size()) => (
                self.origin.wrapping_add(packed.start),
                Shape::Uniform(*basic),
            ),
            _ => (self.origin.wrapping_add(packed.start), Shape::Untyped),
        };
        RawView {
            origin,
            bytes,
            shape,
        }
    }

    /// Several views of host memory as one message. Neighbors are joined.
    pub fn joined(views: &mut dyn Iterator<Item = RawView>) -> RawView {
        let mut parts: Vec<RawView> = Vec::new();
        for view in views {
            if let Some(last) = parts.last_mut()
                && let (Some(at), Some(next)) = (last.as_contiguous(), view.as_contiguous())
                && at.wrapping_add(last.bytes) == next
            {
                *last = RawView::untyped(at, last.bytes + view.bytes);
                continue;
            }
            parts.push(view);
        }
        match parts.len() {
            0 => RawView::empty(),
            1 => parts.swap_remove(0),
            _ => RawView {
                origin: std::ptr::null_mut(),
                bytes: parts.iter().map(|part| part.bytes).sum(),
                shape: Shape::Parts(parts.into()),
            },
        }
    }

    /// The one predefined type of the elements of a Rust slice, or of a view of these;
    /// `None` if it is neither, or not of one type.
    #[inline]
    pub fn element(&self) -> Option<Basic> {
        match &self.shape {
            Shape::Slice(layout) => layout().signature().uniform(),
            Shape::Uniform(basic) => Some(*basic),
            _ => None,
        }
    }

    /// Packed bytes of an element: of slices one of theirs, of other views an instance of
    /// the layout. `None` if it is unknown.
    pub fn element_bytes(&self) -> Option<usize> {
        match &self.shape {
            Shape::Slice(layout) => Some(layout().size()),
            Shape::Uniform(basic) => Some(basic.size()),
            Shape::Loose(layout, _) | Shape::Dense(layout) => Some(layout.size()),
            Shape::Device(memory) => Some(memory.instances().0.size()),
            Shape::Untyped | Shape::Section(..) | Shape::Parts(_) | Shape::Combining(_) => None,
        }
    }

    /// Whether the elements are of one type for certain.
    #[inline]
    pub fn alike(&self, other: &RawView) -> bool {
        match (&self.shape, &other.shape) {
            // One type may have its function at several addresses.
            (Shape::Slice(a), Shape::Slice(b)) => {
                std::ptr::fn_addr_eq(*a, *b)
                    || self.element().is_some() && self.element() == other.element()
            }
            (Shape::Uniform(a), Shape::Uniform(b)) => a == b,
            _ => false,
        }
    }

    /// Hash of address and length.
    pub fn mark(&self) -> u64 {
        let origin = (self.origin.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (origin ^ self.bytes as u64).rotate_left(23)
    }

    /// The types of one instance, if known.
    pub fn instance(&self) -> Option<Signature> {
        match &self.shape {
            Shape::Slice(layout) => Some(layout().signature().clone()),
            Shape::Uniform(basic) => Some(Signature::run(*basic, 1)),
            Shape::Loose(layout, _) | Shape::Dense(layout) => Some(layout.signature().clone()),
            Shape::Device(memory) => Some(memory.instances().0.signature().clone()),
            Shape::Untyped | Shape::Section(..) | Shape::Parts(_) | Shape::Combining(_) => None,
        }
    }
}

/// The parts that a range touches: the range of each, and its offset in the range.
fn inner(
    parts: &Arc<[RawView]>,
    packed: Range<usize>,
) -> impl Iterator<Item = (&RawView, Range<usize>, usize)> {
    let mut at = 0;
    parts.iter().filter_map(move |part| {
        let (start, end) = (at, at + part.bytes);
        at = end;
        let (from, to) = (packed.start.max(start), packed.end.min(end));
        (from < to).then(|| (part, from - start..to - start, from - packed.start))
    })
}

/// Packs part of the packed stream of several views.
///
/// # Safety
/// As [`RawView::pack`], for each.
pub(super) unsafe fn pack(parts: &Arc<[RawView]>, packed: Range<usize>, to: *mut u8) {
    for (part, range, at) in inner(parts, packed) {
        // SAFETY: invariant 6: the part's share of the caller's range, and of the room.
        unsafe { part.pack(range, to.wrapping_add(at)) };
    }
}

/// Unpacks part of the packed stream of several views.
///
/// # Safety
/// As [`RawView::unpack`], for each.
pub(super) unsafe fn unpack(parts: &Arc<[RawView]>, packed: Range<usize>, from: *const u8) {
    for (part, range, at) in inner(parts, packed) {
        // SAFETY: invariant 6: the part's share of the caller's range, and of the bytes to
        // fill it.
        unsafe { part.unpack(range, from.wrapping_add(at)) };
    }
}
