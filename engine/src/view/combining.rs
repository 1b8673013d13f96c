//! Receives that combine: what comes is an operand of a reduction, and goes straight to its
//! result.
//!
//! ```text
//! into[i] = incoming[i] op own[i]     or own[i] op incoming[i]
//! ```
//!
//! A message comes in pieces that are cut anywhere, and some of its bytes may come once more: a
//! message in parts is found anew, as a whole, if its rest takes long; memory that cannot be
//! read after all is sent in fragments. So it is counted how far the operand is combined.
//!
//! # Invariants
//! 1. For as many bytes as the message has, `own` is readable, `into` is writable, and nothing
//!    else uses either, from when a receive with the operand's view is posted until that has
//!    ended: invariant 1 of `view`, for both. `into` is `own`, or apart from it. The same holds
//!    of `room`, which is apart from `own`, and `into` or apart from it.
//! 2. `operator` combines `element`, whose size is `unit`, which is at most [`MOST_UNIT`].
//! 3. Bytes before `taken` are combined, but for those of an element of which some are missing:
//!    these lie in `aside`. So no byte is combined twice, though `into` may be `own`.
//! 4. What is combined is read by address, unaligned, as its sender may change it meanwhile; the
//!    result is anything then.
//! 5. The caller of an unsafe function keeps its contract.

use super::{RawView, Shape};
use osier_datatype::{Element, Operator};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of the longest element: two numbers of 16.
const MOST_UNIT: usize = 32;

/// An operand that is combined as it comes.
#[derive(Debug)]
pub struct Incoming {
    own: *const u8,
    into: *mut u8,
    room: *mut u8,
    bytes: usize,
    unit: usize,
    operator: Operator,
    element: Element,
    /// It is the left operand.
    is_left: bool,
    /// Bytes that have come, in order.
    taken: AtomicUsize,
    /// The first bytes of the element that is cut there.
    aside: Mutex<[u8; MOST_UNIT]>,
}

// SAFETY: invariant 1: addresses of memory that its owner may use on any thread.
unsafe impl Send for Incoming {}
// SAFETY: invariant 1; what changes is atomic or locked, and `take` is unsafe.
unsafe impl Sync for Incoming {}

impl Incoming {
    /// An operand of `bytes` bytes, to be combined with `own` by an operator of the library; it
    /// may lie in its room first. `None`: it combines no such elements, or these bytes are not a number of them.
    pub fn new(
        (operator, element): (Operator, Element),
        is_left: bool,
        (own, into, room): (*const u8, *mut u8, *mut u8),
        bytes: usize,
    ) -> Option<Self> {
        let unit = element.size();
        let whole = unit > 0 && unit <= MOST_UNIT && bytes.is_multiple_of(unit);
        // SAFETY: invariant 1: of no bytes.
        let defined = || unsafe { operator.combine_raw(element, own, own, into, 0) }.is_ok();
        (whole && defined()).then(|| Self {
            own,
            into,
            room,
            bytes,
            unit,
            operator,
            element,
            is_left,
            taken: AtomicUsize::new(0),
            aside: Mutex::new([0; MOST_UNIT]),
        })
    }

    /// Whether all of it has come, and is combined.
    pub fn is_whole(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == self.bytes
    }

    /// Combines the next bytes of the operand, and passes over those that were combined. Bytes
    /// behind others that are missing are not taken, so that it never is whole.
    ///
    /// # Safety
    /// A receive with its view is posted, `packed` lies within its bytes, and `from` is readable
    /// for as many. One thread at a time.
    pub(super) unsafe fn take(&self, packed: Range<usize>, from: *const u8) {
        let taken = self.taken.load(Ordering::Relaxed);
        if packed.end <= taken || packed.start > taken {
            return;
        }
        let mut from = from.wrapping_add(taken - packed.start);
        let mut at = taken;
        let cut = taken % self.unit;
        if cut > 0 {
            let n = (self.unit - cut).min(packed.end - at);
            let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
            let to = aside[cut..cut + n].as_mut_ptr();
            // SAFETY: invariant 5: `n` of the caller's bytes, and of the slice.
            unsafe { std::ptr::copy_nonoverlapping(from, to, n) };
            if cut + n == self.unit {
                // SAFETY: invariants 3 and 5: one element, which the operand has at this place.
                unsafe { self.combine(at - cut, aside.as_ptr(), self.unit) };
            }
            (from, at) = (from.wrapping_add(n), at + n);
        }
        let rest = (packed.end - at) % self.unit;
        let whole = packed.end - at - rest;
        if whole > 0 {
            // SAFETY: invariant 5: elements of the caller's, which the operand has at this place.
            unsafe { self.combine(at, from, whole) };
        }
        if rest > 0 {
            let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
            let to = aside[..rest].as_mut_ptr();
            let from = from.wrapping_add(whole);
            // SAFETY: invariant 5: `rest` of the caller's bytes, and of the slice.
            unsafe { std::ptr::copy_nonoverlapping(from, to, rest) };
        }
        self.taken.store(packed.end, Ordering::Relaxed);
    }

    /// Combines whole elements.
    ///
    /// # Safety
    /// `bytes` bytes are readable at `from`, and lie within the operand from `at` on.
    unsafe fn combine(&self, at: usize, from: *const u8, bytes: usize) {
        let (own, into) = (self.own.wrapping_add(at), self.into.wrapping_add(at));
        let (left, right) = match self.is_left {
            true => (from, own),
            false => (own, from),
        };
        // SAFETY: invariants 1 and 4, within the operand by the caller's contract.
        let done = unsafe { (self.operator).combine_raw(self.element, left, right, into, bytes) };
        debug_assert!(done.is_ok(), "invariant 2");
    }
}

impl RawView {
    /// To receive an operand that is combined as it comes.
    pub fn combining(incoming: &Arc<Incoming>) -> Self {
        Self {
            origin: incoming.into,
            bytes: incoming.bytes,
            shape: Shape::Combining(incoming.clone()),
        }
    }

    /// Memory for an operand that is to be combined, where it has to lie first: as long as the
    /// operand, from where it may be unpacked.
    #[inline]
    pub fn operand_room(&self) -> Option<*mut u8> {
        match &self.shape {
            Shape::Combining(incoming) => Some(incoming.room),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_datatype::Basic;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = (self.0)
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % n.max(1)
        }
    }

    fn elements() -> Vec<Element> {
        let basics = Basic::ALL.iter().copied();
        let pairs = basics.clone().flat_map(|value| {
            let pair = |index| Element::Pair { value, index };
            [Basic::I32, Basic::I16, value].map(pair).into_iter()
        });
        basics.map(Element::Basic).chain(pairs).collect()
    }

    /// Operands of all types, cut anywhere, come to the same bits as combined at once; with bytes
    /// that come again, wherever they lie, and where the result takes an operand's place.
    #[test]
    fn pieces_combine_to_what_the_whole_does() {
        let mut random = Random(1);
        let mut combined = 0;
        for element in elements() {
            for operator in Operator::ALL {
                if !operator.is_defined_for(element) {
                    continue;
                }
                for case in 0..6 {
                    let number = [1, 2, 65, 300][random.below(4)];
                    let bytes = number * element.size();
                    let mut draw =
                        || -> Vec<u8> { (0..bytes).map(|_| random.below(256) as u8).collect() };
                    let (own, theirs) = (draw(), draw());
                    let is_left = case % 2 == 0;
                    let in_place = case % 3 == 0;
                    let mut expected = vec![0u8; bytes];
                    let (left, right) = match is_left {
                        true => (&theirs, &own),
                        false => (&own, &theirs),
                    };
                    let (left, right, to) = (left.as_ptr(), right.as_ptr(), expected.as_mut_ptr());
                    // SAFETY: invariant 1: vectors of as many bytes, apart.
                    let naive = unsafe { operator.combine_raw(element, left, right, to, bytes) };
                    let mut mine = own.clone();
                    let mut result = vec![0u8; bytes];
                    let into = match in_place {
                        true => mine.as_mut_ptr(),
                        false => result.as_mut_ptr(),
                    };
                    let places = (mine.as_ptr(), into, std::ptr::null_mut());
                    let made = Incoming::new((operator, element), is_left, places, bytes);
                    let Some(incoming) = made.map(Arc::new) else {
                        assert!(naive.is_err(), "{operator} on {element}");
                        continue;
                    };
                    naive.expect("defined");
                    let view = RawView::combining(&incoming);
                    let mut at = 0;
                    while at < bytes {
                        assert!(!incoming.is_whole());
                        let start = at - random.below(at + 1).min(random.below(40));
                        let most = [9, 100, 5000][random.below(3)];
                        let end = (at + 1 + random.below(most)).min(bytes);
                        // At any address.
                        let shift = random.below(9);
                        let mut sent = vec![0u8; shift];
                        sent.extend_from_slice(&theirs[start..end]);
                        // SAFETY: invariants 1 and 5: vectors of as many bytes that live on.
                        unsafe { view.unpack(start..end, sent[shift..].as_ptr()) };
                        at = end;
                    }
                    assert!(incoming.is_whole());
                    let found = if in_place { &mine } else { &result };
                    assert_eq!(*found, expected, "{operator} on {element}, case {case}");
                    combined += 1;
                }
            }
        }
        assert!(combined > 1000, "{combined}");
    }

    /// What lacks bytes in the middle never is whole, and nothing is written behind the gap.
    #[test]
    fn bytes_behind_a_gap_are_not_taken() {
        let own = [1u64; 4];
        let mut into = [0u64; 4];
        let known = (Operator::Sum, Element::Basic(Basic::U64));
        let room = std::ptr::null_mut::<u8>();
        let places = (own.as_ptr().cast(), into.as_mut_ptr().cast(), room);
        let incoming = Incoming::new(known, true, places, 32).map(Arc::new);
        let incoming = incoming.expect("sums of whole numbers");
        let view = RawView::combining(&incoming);
        let theirs = [2u64; 4];
        for range in [0..12, 16..32] {
            let from = theirs.as_ptr().cast::<u8>().wrapping_add(range.start);
            // SAFETY: invariants 1 and 5: arrays of as many bytes, which outlive the view.
            unsafe { view.unpack(range, from) };
        }
        assert!(!incoming.is_whole());
        drop(view);
        assert_eq!(into, [3, 0, 0, 0]);
    }

    /// Numbers that are no whole number of elements are for others to refuse.
    #[test]
    fn what_cannot_be_combined_has_no_view() {
        let nowhere = std::ptr::null_mut::<u8>();
        let places = (nowhere.cast_const(), nowhere, nowhere);
        let of = |operator, basic, bytes| {
            let known = (operator, Element::Basic(basic));
            Incoming::new(known, true, places, bytes).is_some()
        };
        assert!(of(Operator::Sum, Basic::F64, 16));
        assert!(!of(Operator::Sum, Basic::F64, 12));
        assert!(!of(Operator::BitAnd, Basic::F64, 16));
    }
}
