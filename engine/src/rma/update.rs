//! Updates of elements of a window: one by one by atomics of the processor, or many under a lock.
//!
//! ```text
//! before = there;  there = there op given        for each element
//! ```
//!
//! # Invariants
//! 1. Memory that is updated by atomics is reached by atomics of one size by all that update it
//!    at the same time: a window is updated by atomics by all of its ranks or by none, and
//!    elements of one place are of one type, as MPI asks.
//! 2. The caller of an unsafe function keeps its contract.
//!
//! # Sources
//! MPI 5.0, sections 12.3.4 and 12.7.1: which operators there are, and that they are atomic for
//! each element.

use crate::error::{Error, ErrorKind, Result};
use crate::view::copy_contiguous;
use osier_datatype::{Basic, BasicKind, Element, Operator};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// What becomes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The given one takes its place (`MPI_REPLACE`).
    Replace,
    /// It stays (`MPI_NO_OP`): the call only reads.
    Keep,
    /// Both are combined.
    Combine(Operator),
}

impl From<Operator> for Change {
    fn from(operator: Operator) -> Change {
        Change::Combine(operator)
    }
}

impl Change {
    /// As ranks tell each other: 0 and 1, then operators in their order.
    pub fn to_wire(self) -> u8 {
        match self {
            Change::Replace => 0,
            Change::Keep => 1,
            Change::Combine(operator) => {
                let place = Operator::ALL.iter().position(|o| *o == operator);
                2 + place.unwrap_or(0) as u8
            }
        }
    }

    /// That of a byte; `None`: it is no change's.
    pub fn from_wire(w: u8) -> Option<Self> {
        Some(match w {
            0 => Change::Replace,
            1 => Change::Keep,
            more => Change::Combine(*Operator::ALL.get(usize::from(more) - 2)?),
        })
    }
}

/// An update of elements of one type.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    change: Change,
    element: Element,
    /// Bytes of an element.
    size: u8,
    /// Elements are integers.
    whole: bool,
}

/// Bytes of the longest element.
const MOST_BYTES: usize = 32;

impl Update {
    /// An update of elements.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Datatype`], if the operator does not combine them.
    pub fn new(change: Change, element: Element) -> Result<Self> {
        let is_short = element.size() <= size_of::<u64>();
        let known = |operator: Operator| is_short && operator.is_defined_for(element);
        if let Change::Combine(operator) = change
            && !known(operator)
        {
            // Some arithmetic is missing on some processors.
            let nothing = &mut [0u8; 0];
            let at = nothing.as_mut_ptr();
            // SAFETY: invariant 2: of no bytes.
            unsafe { operator.combine_raw(element, at, at, at, 0) }?;
        }
        if element.size() == 0 || element.size() > MOST_BYTES {
            return Err(Error::new(
                ErrorKind::Datatype,
                format!("an update of elements of type {element}"),
            ));
        }
        Ok(Self {
            change,
            element,
            size: element.size() as u8,
            whole: matches!(element, Element::Basic(basic) if is_whole(basic)),
        })
    }

    /// An update of numbers that are updated most, which every operator of these is known for;
    /// none: [`Update::new`] says it.
    #[inline(always)]
    pub fn of_usual(change: Change, basic: Basic) -> Option<Self> {
        let (size, whole) = match basic {
            Basic::I32 | Basic::U32 => (4, true),
            Basic::I64 | Basic::U64 => (8, true),
            Basic::F32 => (4, false),
            Basic::F64 => (8, false),
            _ => return None,
        };
        let known = matches!(
            change,
            Change::Replace | Change::Keep | Change::Combine(Operator::Sum)
        );
        known.then_some(Self {
            change,
            element: Element::Basic(basic),
            size,
            whole,
        })
    }

    /// Bytes of an element.
    #[inline]
    pub fn size(&self) -> usize {
        self.size.into()
    }

    /// Whether the processor has atomics for an element that lies there.
    #[inline]
    pub fn is_atomic_at(&self, at: *const u8) -> bool {
        matches!(self.element, Element::Basic(_))
            && matches!(self.size(), 1 | 2 | 4 | 8)
            && at.addr().is_multiple_of(self.size())
    }

    /// Updates one element by an atomic: `given` and what was there, in memory order in the
    /// lower bytes.
    ///
    /// # Safety
    /// [`Update::is_atomic_at`] says so of `at`, which is alive and used by atomics of this size
    /// alone meanwhile.
    #[inline]
    pub unsafe fn one(&self, at: *mut u8, given: u64) -> u64 {
        match self.size() {
            // SAFETY: invariants 1 and 2.
            8 => self.word(unsafe { AtomicU64::from_ptr(at.cast()) }, given),
            // SAFETY: invariants 1 and 2.
            4 => self
                .half(unsafe { AtomicU32::from_ptr(at.cast()) }, given as u32)
                .into(),
            // SAFETY: invariants 1 and 2.
            2 => self
                .short(unsafe { AtomicU16::from_ptr(at.cast()) }, given as u16)
                .into(),
            // SAFETY: invariants 1 and 2.
            _ => self
                .byte(unsafe { AtomicU8::from_ptr(at) }, given as u8)
                .into(),
        }
    }

    /// Updates elements by an atomic each, and leaves what was there at `before`, if that is an
    /// address.
    ///
    /// # Safety
    /// As [`Update::one`] for each element of `bytes` bytes; as many are readable at `given`,
    /// unless the update keeps, and writable at `before`.
    pub unsafe fn each(
        &self,
        at: *mut u8,
        given: *const u8,
        before: Option<*mut u8>,
        bytes: usize,
    ) {
        let size = self.size();
        for offset in (0..bytes).step_by(size) {
            let value = match self.change {
                Change::Keep => 0,
                // SAFETY: invariant 2: inside the caller's bytes.
                _ => unsafe { load(given.wrapping_add(offset), size) },
            };
            // SAFETY: invariant 2: an element of the caller's.
            let was = unsafe { self.one(at.wrapping_add(offset), value) };
            if let Some(before) = before {
                let to = before.wrapping_add(offset);
                // SAFETY: invariant 2: inside the caller's bytes.
                unsafe { std::ptr::copy_nonoverlapping((&raw const was).cast(), to, size) };
            }
        }
    }

    /// Adds one element, without a loop where it is a usual number.
    ///
    /// # Errors
    /// As [`Update::packed`].
    ///
    /// # Safety
    /// As there, of one element.
    #[inline(always)]
    unsafe fn sum_of_one(&self, at: *mut u8, given: *const u8) -> Result<()> {
        macro_rules! add {
            ($number:ty, $add:expr) => {{
                let (at, given) = (at.cast::<$number>(), given.cast::<$number>());
                // SAFETY: invariant 2: an element of this type.
                let there = unsafe { at.read_unaligned() };
                // SAFETY: invariant 2: an element of this type.
                let given = unsafe { given.read_unaligned() };
                let add: fn($number, $number) -> $number = $add;
                // SAFETY: invariant 2: an element of this type.
                unsafe { at.write_unaligned(add(there, given)) };
                return Ok(());
            }};
        }
        match (self.whole, self.size) {
            (true, 8) => add!(u64, u64::wrapping_add),
            (true, 4) => add!(u32, u32::wrapping_add),
            _ => {}
        }
        match self.element {
            Element::Basic(Basic::F64) => add!(f64, |a, b| a + b),
            Element::Basic(Basic::F32) => add!(f32, |a, b| a + b),
            _ => {}
        }
        // SAFETY: invariant 2: the caller's contract.
        unsafe { self.combine_packed(Operator::Sum, at, given, self.size()) }
    }

    /// Combines packed elements by the operator's loop.
    ///
    /// # Errors
    /// As [`Update::packed`].
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn combine_packed(
        &self,
        operator: Operator,
        at: *mut u8,
        given: *const u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: invariant 2: the result is the left operand.
        unsafe { operator.combine_raw(self.element, at, given, at, bytes) }?;
        Ok(())
    }

    /// Updates packed elements without atomics.
    ///
    /// # Errors
    /// As [`Operator::combine_raw`].
    ///
    /// # Safety
    /// `bytes` bytes at `at` are readable and writable, and nobody else's; as many are readable
    /// at `given`, unless the update keeps.
    #[inline(always)]
    pub unsafe fn packed(&self, at: *mut u8, given: *const u8, bytes: usize) -> Result<()> {
        match self.change {
            Change::Keep => {}
            // SAFETY: invariant 2.
            Change::Replace => unsafe { std::ptr::copy(given, at, bytes) },
            Change::Combine(Operator::Sum) if bytes == self.size() => {
                // SAFETY: invariant 2: an element.
                unsafe { self.sum_of_one(at, given) }?;
            }
            Change::Combine(operator) => {
                // SAFETY: invariant 2: the caller's contract.
                unsafe { self.combine_packed(operator, at, given, bytes) }?;
            }
        }
        Ok(())
    }
}

/// The bytes of an element, in the lower bytes of a word.
///
/// # Safety
/// `bytes` bytes are readable, at most eight.
#[inline]
pub(super) unsafe fn load(at: *const u8, bytes: usize) -> u64 {
    let mut word = 0u64;
    // SAFETY: invariant 2, and a word has eight.
    unsafe { copy_contiguous(at, (&raw mut word).cast(), bytes) };
    word
}

/// Replaces the element of `before` by `new` if it is `expected`; what was there.
///
/// # Safety
/// As [`Update::one`], of an element of `size` bytes.
pub unsafe fn compare_and_swap(at: *mut u8, size: usize, expected: u64, new: u64) -> u64 {
    macro_rules! swap {
        ($atomic:ty, $of:ty) => {{
            // SAFETY: invariants 1 and 2.
            let word = unsafe { <$atomic>::from_ptr(at.cast()) };
            let (expected, new) = (expected as $of, new as $of);
            let swapped = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
            u64::from(swapped.unwrap_or_else(|before| before))
        }};
    }
    match size {
        8 => swap!(AtomicU64, u64),
        4 => swap!(AtomicU32, u32),
        2 => swap!(AtomicU16, u16),
        _ => swap!(AtomicU8, u8),
    }
}

macro_rules! by_size {
    ($($name:ident: $atomic:ty, $of:ty;)*) => {$(
        impl Update {
            #[inline]
            fn $name(&self, word: &$atomic, given: $of) -> $of {
                let operator = match self.change {
                    Change::Keep => return word.load(Ordering::Acquire),
                    Change::Replace => return word.swap(given, Ordering::AcqRel),
                    Change::Combine(operator) => operator,
                };
                match operator {
                    Operator::Sum if self.whole => word.fetch_add(given, Ordering::AcqRel),
                    Operator::BitAnd => word.fetch_and(given, Ordering::AcqRel),
                    Operator::BitOr => word.fetch_or(given, Ordering::AcqRel),
                    Operator::BitXor => word.fetch_xor(given, Ordering::AcqRel),
                    _ => {
                        let mut before = word.load(Ordering::Relaxed);
                        loop {
                            let mut new = before;
                            let (left, right) = ((&raw mut new).cast(), (&raw const given).cast());
                            let bytes = size_of::<$of>();
                            // SAFETY: invariant 2: two words of our own, of as many bytes as
                            // the element has.
                            let done = unsafe {
                                operator.combine_raw(self.element, left, right, left, bytes)
                            };
                            debug_assert!(done.is_ok(), "asked when the update was made");
                            let swapped = word.compare_exchange_weak(
                                before, new, Ordering::AcqRel, Ordering::Relaxed,
                            );
                            match swapped {
                                Ok(before) => return before,
                                Err(now) => before = now,
                            }
                        }
                    }
                }
            }
        }
    )*};
}

by_size! {
    word: AtomicU64, u64;
    half: AtomicU32, u32;
    short: AtomicU16, u16;
    byte: AtomicU8, u8;
}

/// Whether sums of a type are those of its words.
#[inline]
fn is_whole(basic: Basic) -> bool {
    matches!(basic.kind(), BasicKind::Signed | BasicKind::Unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_by_a_byte() {
        let operators = Operator::ALL.map(Change::Combine).into_iter();
        for change in operators.chain([Change::Replace, Change::Keep]) {
            assert_eq!(Change::from_wire(change.to_wire()), Some(change));
        }
        assert_eq!(Change::from_wire(2 + Operator::ALL.len() as u8), None);
        assert_eq!(Change::from_wire(u8::MAX), None);
    }

    /// Every operator on every type that fits a word gives by atomics what it gives packed.
    #[test]
    fn atomics_give_what_packed_elements_do() {
        let operators = Operator::ALL.map(Change::Combine).into_iter();
        let changes: Vec<Change> = operators.chain([Change::Replace, Change::Keep]).collect();
        let mut random = 7u64;
        let mut draw = move || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(99);
            random >> 11
        };
        let mut compared = 0;
        for basic in Basic::ALL.iter().copied() {
            for change in &changes {
                let Ok(update) = Update::new(*change, Element::Basic(basic)) else {
                    continue;
                };
                // Words, so that elements are aligned.
                let mut there: Vec<u64> = (0..16).map(|_| draw()).collect();
                let given: Vec<u64> = (0..16).map(|_| draw()).collect();
                let at = there.as_mut_ptr().cast::<u8>();
                if !update.is_atomic_at(at) {
                    continue;
                }
                let mut expected = there.clone();
                let was = there.clone();
                let mut before = vec![0u64; 16];
                let (given, bytes) = (given.as_ptr().cast::<u8>(), 128);
                let into = expected.as_mut_ptr().cast();
                // SAFETY: invariant 2: vectors of as many bytes.
                unsafe { update.packed(into, given, bytes) }.expect("defined");
                let to = before.as_mut_ptr().cast();
                // SAFETY: invariants 1 and 2: the same, and no other thread has them.
                unsafe { update.each(at, given, Some(to), bytes) };
                // NaNs have open bits.
                let floats = basic.kind() == BasicKind::Float;
                if !floats || matches!(change, Change::Replace | Change::Keep) {
                    assert_eq!(there, expected, "{change:?} of {basic}");
                }
                assert_eq!(before, was, "{change:?} of {basic}");
                compared += 1;
            }
        }
        assert!(compared > 80, "{compared}");
    }

    #[test]
    fn sums_of_floats_are_sums() {
        let update = Update::new(Operator::Sum.into(), Basic::F64.into()).expect("defined");
        let mut there = [1.5f64, 2.0];
        let given = [0.25f64, -4.0];
        let at = there.as_mut_ptr().cast();
        // SAFETY: invariants 1 and 2: arrays of as many bytes, of this thread.
        unsafe { update.each(at, given.as_ptr().cast(), None, 16) };
        assert_eq!(there, [1.75, -2.0]);
    }

    #[test]
    fn what_is_not_defined_is_refused() {
        assert!(Update::new(Operator::BitAnd.into(), Basic::F64.into()).is_err());
        assert!(Update::new(Operator::Sum.into(), Basic::F64.into()).is_ok());
    }

    #[test]
    fn a_swap_needs_what_it_expects() {
        let mut there = [5u32, 9];
        let at = there.as_mut_ptr().cast();
        // SAFETY: invariants 1 and 2: an array of this thread.
        assert_eq!(unsafe { compare_and_swap(at, 4, 5, 6) }, 5);
        // SAFETY: invariants 1 and 2: the same array.
        assert_eq!(unsafe { compare_and_swap(at, 4, 5, 7) }, 6);
        assert_eq!(there, [6, 9]);
    }
}
