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
use crate::progress::served;
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

/// Type of an element that has none there.
const NO_TYPE: u8 = u8::MAX;

/// An element as ranks tell each other: its type, and that of a pair's index.
pub fn element_to_wire(element: Element) -> [u8; 2] {
    let place = |basic: Basic| {
        let place = Basic::ALL.iter().position(|b| *b == basic);
        place.map_or(NO_TYPE, |place| place as u8)
    };
    match element {
        Element::Basic(basic) => [place(basic), NO_TYPE],
        Element::Pair { value, index } => [place(value), place(index)],
    }
}

/// That of two bytes; `None`: they are no element's.
pub fn element_from_wire([first, second]: [u8; 2]) -> Option<Element> {
    let basic = |w: u8| Basic::ALL.get(usize::from(w)).copied();
    Some(match second {
        NO_TYPE => Element::Basic(basic(first)?),
        index => Element::Pair {
            value: basic(first)?,
            index: basic(index)?,
        },
    })
}

/// The number of a swap by comparison: what is expected is given, and what takes its place behind it.
pub(super) const SWAP: u32 = served::GIVEN_TWICE;

/// What a swap of an element of `size` bytes, at most eight, is given.
pub(super) fn swap_of(expected: u64, new: u64, size: usize) -> [u8; 16] {
    let mut given = [0; 16];
    given[..size].copy_from_slice(&expected.to_ne_bytes()[..size]);
    given[size..2 * size].copy_from_slice(&new.to_ne_bytes()[..size]);
    given
}

/// Makes a change that the owner of a part is asked for ([`Update::number`]); false: it is none.
///
/// # Safety
/// `bytes` bytes at `there` are readable and writable, and nobody else updates them; as many are
/// readable at `given`, or twice as many.
pub(super) unsafe fn change(number: u32, there: *mut u8, given: *const u8, bytes: usize) -> bool {
    if number == SWAP {
        if bytes > size_of::<u64>() {
            return false;
        }
        // SAFETY: invariant 2: the caller's contract.
        let [before, expected] = [there.cast_const(), given].map(|at| unsafe { load(at, bytes) });
        if before == expected {
            // SAFETY: invariant 2: the caller's contract.
            unsafe { copy_contiguous(given.wrapping_add(bytes), there, bytes) };
        }
        return true;
    }
    let [change, first, second, rest] = number.to_le_bytes();
    let known = || {
        let change = Change::from_wire(change)?;
        Update::new(change, element_from_wire([first, second])?).ok()
    };
    match known() {
        Some(update) if rest == 0 && bytes.is_multiple_of(update.size()) => {
            // SAFETY: invariant 2: the caller's contract.
            unsafe { update.packed(there, given, bytes) }.is_ok()
        }
        _ => false,
    }
}

/// An update of one number of those that are updated most, which cannot fail.
#[derive(Clone, Copy, Debug)]
pub struct Usual {
    /// Eight bytes; else four.
    is_long: bool,
    adds: bool,
    is_float: bool,
}

impl Usual {
    /// `None`: it is another.
    #[inline(always)]
    pub fn of(change: Change, basic: Basic) -> Option<Self> {
        let (is_long, is_float) = match basic {
            Basic::I64 | Basic::U64 => (true, false),
            Basic::I32 | Basic::U32 => (false, false),
            Basic::F64 => (true, true),
            Basic::F32 => (false, true),
            _ => return None,
        };
        let adds = match change {
            Change::Combine(Operator::Sum) => true,
            Change::Replace => false,
            _ => return None,
        };
        Some(Self {
            is_long,
            adds,
            is_float,
        })
    }

    /// Updates the number at `at` by that at `given`; what was there goes to `before`.
    ///
    /// # Safety
    /// A number is readable and writable at `at`, and nobody else updates it; one is readable at
    /// `given`, and writable at `before`. Each is one of those or apart from the others.
    #[inline(always)]
    pub unsafe fn make(self, at: *mut u8, given: *const u8, before: *mut u8) {
        macro_rules! number {
            ($bits:ty, $float:ty) => {{
                // SAFETY: invariant 2: a number of the caller's.
                let there = unsafe { at.cast::<$bits>().read_unaligned() };
                // SAFETY: invariant 2: a number of the caller's.
                let given = unsafe { given.cast::<$bits>().read_unaligned() };
                let next = match (self.adds, self.is_float) {
                    (false, _) => given,
                    (true, false) => there.wrapping_add(given),
                    (true, true) => {
                        (<$float>::from_bits(there) + <$float>::from_bits(given)).to_bits()
                    }
                };
                // SAFETY: invariant 2: a number of the caller's.
                unsafe { before.cast::<$bits>().write_unaligned(there) };
                // SAFETY: invariant 2: a number of the caller's.
                unsafe { at.cast::<$bits>().write_unaligned(next) };
            }};
        }
        match self.is_long {
            true => number!(u64, f64),
            false => number!(u32, f32),
        }
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

    /// What the owner of a part is asked for to make it; none: it only reads.
    pub(super) fn number(&self) -> Option<u32> {
        let [first, second] = element_to_wire(self.element);
        let number = u32::from_le_bytes([self.change.to_wire(), first, second, 0]);
        (!self.keeps()).then_some(number)
    }

    /// Whether it only reads.
    pub(super) fn keeps(&self) -> bool {
        self.change == Change::Keep
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

    /// What an owner is asked for by a number is the update, for every operator on every type.
    #[test]
    fn owners_change_by_a_number_what_an_update_changes() {
        let operators = Operator::ALL.map(Change::Combine).into_iter();
        let changes: Vec<Change> = operators.chain([Change::Replace, Change::Keep]).collect();
        let pair = |value| Element::Pair {
            value,
            index: Basic::I32,
        };
        let basics = Basic::ALL.iter().copied();
        let elements = basics.flat_map(|basic| [Element::Basic(basic), pair(basic)]);
        let mut compared = 0;
        for element in elements {
            for change in &changes {
                let Ok(update) = Update::new(*change, element) else {
                    continue;
                };
                let Some(number) = update.number() else {
                    assert_eq!(*change, Change::Keep);
                    continue;
                };
                let given = [3u64, 5, 7, 9];
                let (mut there, mut expected) = ([2u64, 4, 6, 8], [2u64, 4, 6, 8]);
                let (given, bytes) = (given.as_ptr().cast(), update.size());
                // SAFETY: invariant 2: 32 bytes each, the longest element.
                unsafe { update.packed(expected.as_mut_ptr().cast(), given, bytes) }
                    .expect("defined");
                // SAFETY: invariant 2: the same.
                let made =
                    unsafe { super::change(number, there.as_mut_ptr().cast(), given, bytes) };
                assert!(made, "{change:?} of {element}");
                assert_eq!(there, expected, "{change:?} of {element}");
                compared += 1;
            }
        }
        assert!(compared > 150, "{compared}");
    }

    #[test]
    fn numbers_of_strangers_are_no_changes() {
        let (mut there, given) = ([1u64; 4], [2u64; 8]);
        let sum = Update::new(Operator::Sum.into(), Basic::I64.into()).expect("defined");
        let sum = sum.number().expect("it changes");
        let mut lies = vec![(sum, 12), (sum | 1 << 24, 8), (u32::MAX, 8), (SWAP, 9)];
        lies.extend((0..1 << 12).map(|lie| (0xf0f0 + (lie << 12), 8)));
        for (lie, bytes) in lies {
            // SAFETY: invariant 2: as many bytes, and twice as many.
            let made =
                unsafe { change(lie, there.as_mut_ptr().cast(), given.as_ptr().cast(), bytes) };
            assert!(!made, "{lie:#x}");
        }
        assert_eq!(there, [1; 4]);
        // The second half is given behind what is expected.
        for (expected, new) in [(2, 1), (1, 2)] {
            let given = swap_of(expected, 2, 8);
            // SAFETY: invariant 2: a word, and two.
            let made = unsafe { change(SWAP, there.as_mut_ptr().cast(), given.as_ptr(), 8) };
            assert!(made && there[0] == new);
        }
    }

    #[test]
    fn usual_updates_are_what_others_are() {
        let changes = [Change::Replace, Operator::Sum.into()];
        let basics = Basic::ALL.iter().copied();
        let mut compared = 0;
        for (basic, change) in basics.flat_map(|basic| changes.map(|change| (basic, change))) {
            let Some(usual) = Usual::of(change, basic) else {
                continue;
            };
            let update = Update::new(change, basic.into()).expect("defined");
            let bits = [2.5f64.to_bits() + 7, 1.25f64.to_bits()];
            let (mut there, mut expected, mut before) = (bits[0], bits[0], 0u64);
            let given = (&raw const bits[1]).cast::<u8>();
            let to = (&raw mut before).cast();
            // SAFETY: invariant 2: words.
            unsafe { usual.make((&raw mut there).cast(), given, to) };
            let into = (&raw mut expected).cast();
            // SAFETY: invariant 2: words.
            unsafe { update.packed(into, given, update.size()) }.expect("defined");
            assert_eq!(there, expected, "{change:?} of {basic}");
            let bytes = ..update.size();
            assert_eq!(before.to_ne_bytes()[bytes], bits[0].to_ne_bytes()[bytes]);
            compared += 1;
        }
        assert_eq!(compared, 12);
        assert!(Usual::of(Change::Keep, Basic::I64).is_none());
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
