//! Accesses to parts of a window: their checks, and the short way of one run.
//!
//! # Invariants
//! 1. Addresses of a target view count from the first byte of a part, and lie inside: checked
//!    before each access. The part is there as long as the window: invariant 1 of [`super::raw`].
//! 2. The caller of an unsafe function keeps its contract.

#![allow(
    clippy::missing_errors_doc,
    reason = "not published: what windows and the C interface need"
)]

use super::attached::Seen;
use super::check::{Does, Watch};
use super::raw::{Known, RawWindow};
use super::requests::UnderWay;
use osier_datatype::{Basic, Datatype, Element, Layout, Operator, Signature};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::rma::Part;
use osier_engine::rma::update::{Change, Update, Usual};
use osier_engine::view::{RawView, copy_contiguous};
use osier_transports::full_fence;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A rank's part that is used by address: the short way of calls with one run of bytes.
#[derive(Clone, Copy)]
pub struct ByAddress<'w> {
    window: &'w RawWindow,
    known: &'w Known,
    rank: usize,
}

impl ByAddress<'_> {
    /// Whether the epoch on all ranks has its lock.
    #[inline(always)]
    pub fn is_locked_by_all(&self) -> bool {
        self.known.by_all.load(Ordering::Acquire)
    }

    /// As [`RawWindow::flush`], if nothing is under way behind its call; false: something may be.
    #[inline(always)]
    pub fn flush(&self) -> bool {
        let quiet = !self.window.has_unsettled();
        if quiet {
            full_fence();
        }
        quiet
    }

    /// As [`RawWindow::lock`], alone, if that is one atomic; false: nothing has happened.
    #[inline(always)]
    pub fn lock(&self) -> bool {
        (self.known.part).lock_at_once(self.window.own_rank())
    }

    /// As [`RawWindow::unlock`] of what is held alone, if that is one atomic; false: nothing has
    /// happened.
    #[inline(always)]
    pub fn unlock(&self) -> bool {
        !self.window.has_unsettled() && (self.known.part).unlock_at_once(self.window.own_rank())
    }

    /// Where `bytes` bytes lie, `units` displacement units behind the part's first byte, if they
    /// lie inside, and apart from as many at `local`.
    #[inline(always)]
    pub fn place(&self, units: isize, local: *const u8, bytes: usize) -> Option<*mut u8> {
        let known = self.known;
        let offset = units.checked_mul(known.record.unit as isize)?;
        let offset = usize::try_from(offset).ok()?;
        let inside = offset.checked_add(bytes)? <= known.part.bytes();
        let at = known.at.wrapping_add(offset);
        let apart = local.addr().abs_diff(at.addr()) >= bytes;
        (inside && apart).then_some(at)
    }

    /// As [`RawWindow::update`], of one element of a predefined type of `bytes` bytes; `None`: that
    /// is the way of it, or it is not sound.
    ///
    /// # Safety
    /// An element is readable at `given`, unless the change keeps, and writable at `before`.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn update(
        &self,
        change: Change,
        (basic, bytes): (Basic, usize),
        units: isize,
        (given, before): (*const u8, *mut u8),
    ) -> Option<Result<()>> {
        let at = self.place(units, before, bytes)?;
        if given.addr().abs_diff(at.addr()) < bytes {
            return None;
        }
        if let Some(usual) = Usual::of(change, basic) {
            // SAFETY: invariants 1 and 2; apart by the checks.
            let make = || unsafe { usual.make(at, given, before) };
            let path = || self.window.path(self.rank);
            let made = (self.known.part).alone_at_once(self.window.own_rank(), path, make);
            if made.is_some() {
                return made;
            }
        }
        let update = match Update::of_usual(change, basic) {
            Some(update) => update,
            None => Update::new(change, basic.into()).ok()?,
        };
        let path = self.window.path(self.rank);
        let memory = (given, Some(before));
        // SAFETY: invariants 1 and 2; apart by the checks.
        Some(unsafe { (self.known.part).update_run(&path, &update, at, memory, bytes) })
    }

    /// As [`RawWindow::compare_and_swap`], of an element of `bytes` bytes; `None`: it does not lie
    /// inside.
    #[inline(always)]
    #[track_caller]
    pub fn compare_and_swap(
        &self,
        (units, bytes): (isize, usize),
        expected: u64,
        new: u64,
    ) -> Option<Result<u64>> {
        let offset = units.checked_mul(self.known.record.unit as isize)?;
        let place = (usize::try_from(offset).ok()?, bytes);
        let part = &self.known.part;
        let end = place.0.checked_add(bytes);
        if bytes == size_of::<u64>() && end.is_some_and(|end| end <= part.bytes()) {
            let at = self.known.at.wrapping_add(place.0).cast::<u64>();
            let swap = || {
                // SAFETY: invariant 1: a word inside of the part.
                let there = unsafe { at.read_unaligned() };
                if there == expected {
                    // SAFETY: invariant 1: a word inside of the part.
                    unsafe { at.write_unaligned(new) };
                }
                there
            };
            let path = || self.window.path(self.rank);
            let swapped = part.alone_at_once(self.window.own_rank(), path, swap);
            if swapped.is_some() {
                return swapped;
            }
        }
        let path = self.window.path(self.rank);
        Some(part.compare_and_swap(&path, place, expected, new))
    }
}

impl Known {
    /// Where the bytes of a target lie, if they are one run of the part that is used by address.
    #[inline]
    fn run(&self, target: &RawView) -> Option<*mut u8> {
        let start = target.as_contiguous()?.addr();
        let inside = start.checked_add(target.bytes())? <= self.part.bytes();
        (inside && !self.at.is_null()).then(|| self.at.wrapping_add(start))
    }
}

/// Where the bytes of a view lie, if they are one run on the host of as many bytes as that at
/// `there`, and apart from it.
#[inline]
fn flat(view: &RawView, there: *mut u8, bytes: usize) -> Option<*mut u8> {
    let at = view.as_contiguous()?;
    let apart = at.addr().abs_diff(there.addr()) >= bytes;
    (apart && view.bytes() == bytes).then_some(at)
}

impl RawWindow {
    /// When an access of the slower way begins, if that is to be known.
    fn begins(&self) -> Option<u64> {
        self.0.watch.as_ref().map(Watch::now)
    }

    /// Notes an access that was made, where that is asked for.
    #[track_caller]
    fn made(&self, begun: Option<u64>, does: Does, rank: usize, target: &RawView) -> Result<()> {
        match (&self.0.watch, begun) {
            (Some(watch), Some(begun)) => watch.note(self.comm(), does, rank, target, begun),
            _ => Ok(()),
        }
    }

    /// The part that an access goes to, and the target's bytes from its first on, once the access
    /// is sound.
    fn sound<'t>(
        &self,
        what: &str,
        rank: usize,
        local: &[&RawView],
        target: &'t RawView,
    ) -> Result<(Part, Cow<'t, RawView>)> {
        // What was put before comes first, although nobody may rely on that.
        if self.0.combined.any() {
            self.write_kept()?;
        }
        let known = self.known(rank)?;
        let (part, target) = match &known.attached {
            Some(seen) if target.bytes() > 0 => {
                let sync = (&known.part, &known.record.sync);
                let (part, target) = Seen::find(seen, &self.path(rank), sync, target)?;
                (part, Cow::Owned(target))
            }
            _ => (known.part, Cow::Borrowed(target)),
        };
        check(what, rank, local, &part, &target)?;
        Ok((part, target))
    }

    /// Whether a target lies inside of a rank's part.
    pub(super) fn inside(&self, rank: usize, target: &RawView) -> Result<()> {
        check(
            "an access on a stream",
            rank,
            &[],
            &self.known(rank)?.part,
            target,
        )
    }

    /// A rank's part, if it is known already and used by address.
    #[inline(always)]
    pub fn by_address(&self, rank: usize) -> Option<ByAddress<'_>> {
        let known = self.0.known.get(rank)?;
        let window = self;
        (!known.at.is_null()).then_some(ByAddress {
            window,
            known,
            rank,
        })
    }

    /// Writes `from` to `target`, a view that counts from the first byte of a rank's part; in a
    /// window with attached memory, of addresses there.
    ///
    /// # Errors
    /// As `Epoch::put`.
    ///
    /// # Safety
    /// The bytes of `from` are readable.
    #[inline]
    #[track_caller]
    pub unsafe fn put(&self, from: &RawView, rank: usize, target: &RawView) -> Result<()> {
        if let Some(to) = self.known(rank)?.run(target)
            && let Some(from) = flat(from, to, target.bytes())
        {
            // SAFETY: invariants 1 and 2; apart, as `flat` says.
            unsafe { copy_contiguous(from, to, target.bytes()) };
            return Ok(());
        }
        let begun = self.begins();
        let (part, bytes) = self.sound("put", rank, &[from], target)?;
        let way = match self.needs_device(rank, &[from]) {
            // SAFETY: invariants 1 and 2; apart by the check.
            false => unsafe { part.put(&self.path(rank), from, &bytes) }?,
            true => {
                // SAFETY: invariants 1 and 2.
                unsafe { self.put_by_device(from, rank, &bytes) }?;
                self.device_way(rank)
            }
        };
        self.count(way);
        self.made(begun, Does::Put, rank, target)
    }

    /// Reads `target`, as [`RawWindow::put`] has it, to `to`.
    ///
    /// # Errors
    /// As `Epoch::put`.
    ///
    /// # Safety
    /// The bytes of `to` are writable, and nobody else uses them.
    #[inline]
    #[track_caller]
    pub unsafe fn get(&self, to: &RawView, rank: usize, target: &RawView) -> Result<()> {
        if let Some(from) = self.known(rank)?.run(target)
            && let Some(to) = flat(to, from, target.bytes())
        {
            // SAFETY: invariants 1 and 2; apart, as `flat` says.
            unsafe { copy_contiguous(from, to, target.bytes()) };
            return Ok(());
        }
        let begun = self.begins();
        let (part, bytes) = self.sound("get", rank, &[to], target)?;
        let way = match self.needs_device(rank, &[to]) {
            // SAFETY: invariants 1 and 2; apart by the check.
            false => unsafe { part.get(&self.path(rank), to, &bytes) }?,
            true => {
                // SAFETY: invariants 1 and 2.
                unsafe { self.get_by_device(to, rank, &bytes) }?;
                self.device_way(rank)
            }
        };
        self.count(way);
        self.made(begun, Does::Get, rank, target)
    }

    /// As [`RawWindow::put`], of a copy of the bytes: what is still under way then, if anything is.
    ///
    /// # Errors
    /// As `Epoch::put`.
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    pub unsafe fn begin_put(
        &self,
        from: &RawView,
        rank: usize,
        target: &RawView,
    ) -> Result<Option<Arc<UnderWay>>> {
        if self.needs_device(rank, &[from]) {
            // SAFETY: invariant 2: the caller's contract.
            return unsafe { self.put(from, rank, target) }.map(|()| None);
        }
        let begun = self.begins();
        let (part, bytes) = self.sound("put", rank, &[from], target)?;
        // SAFETY: invariants 1 and 2; apart by the check.
        let (way, pending) = unsafe { part.begin_put(&self.path(rank), from, &bytes) }?;
        self.count(way);
        self.made(begun, Does::Put, rank, target)?;
        Ok(pending.map(|pending| self.keep(pending)))
    }

    /// As [`RawWindow::get`]: what is still under way then, if anything is; it has the bytes when
    /// it is complete, and `to` has not.
    ///
    /// # Errors
    /// As `Epoch::put`.
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    pub unsafe fn begin_get(
        &self,
        to: &RawView,
        rank: usize,
        target: &RawView,
    ) -> Result<Option<Arc<UnderWay>>> {
        if self.needs_device(rank, &[to]) {
            // SAFETY: invariant 2: the caller's contract.
            return unsafe { self.get(to, rank, target) }.map(|()| None);
        }
        let begun = self.begins();
        let (part, bytes) = self.sound("get", rank, &[to], target)?;
        // SAFETY: invariants 1 and 2; apart by the check.
        let (way, pending) = unsafe { part.begin_get(&self.path(rank), to, &bytes) }?;
        self.count(way);
        self.made(begun, Does::Get, rank, target)?;
        Ok(pending.map(|pending| self.keep(pending)))
    }

    /// What a change does to the elements of a target.
    #[inline]
    fn update_of(&self, change: Change, rank: usize, target: &RawView) -> Result<Update> {
        let pairs = matches!(change, Change::Combine(Operator::MinLoc | Operator::MaxLoc));
        let element = match target.basic() {
            Some(basic) if !pairs => Some(basic.into()),
            _ => target.signature().and_then(|s| element_of(change, &s)),
        };
        Update::new(change, element.ok_or_else(|| of_several_types(rank))?)
    }

    /// Updates the elements of `target`, as [`RawWindow::put`] has it, by those of `given`; what
    /// was there goes to `before`. `given` is looked at unless the change keeps.
    ///
    /// # Errors
    /// As `Epoch::accumulate`.
    ///
    /// # Safety
    /// The bytes of `given` are readable, those of `before` writable and nobody else's.
    #[track_caller]
    pub unsafe fn update(
        &self,
        change: Change,
        given: &RawView,
        rank: usize,
        target: &RawView,
        before: Option<&RawView>,
    ) -> Result<()> {
        let keeps = change == Change::Keep;
        if target.bytes() == 0 {
            // Of no type.
            return self.known(rank).map(drop);
        }
        let update = self.update_of(change, rank, target)?;
        let known = self.known(rank)?;
        let bytes = target.bytes();
        if let Some(at) = known.run(target)
            && let Some(given) = match keeps {
                true => Some(std::ptr::null_mut()),
                false => flat(given, at, bytes),
            }
            && let Some(before) = match before {
                Some(before) => flat(before, at, bytes).map(Some),
                None => Some(None),
            }
        {
            let path = self.path(rank);
            // SAFETY: invariants 1 and 2; apart, as `flat` says.
            return unsafe { (known.part).update_run(&path, &update, at, (given, before), bytes) };
        }
        let both = [before.unwrap_or(given), given];
        let local = match (before, keeps) {
            (Some(_), false) => &both[..],
            (Some(_), true) => &both[..1],
            (None, false) => &both[1..],
            (None, true) => &[],
        };
        let begun = self.begins();
        let (part, elements) = self.sound("accumulate", rank, local, target)?;
        if self.needs_device(rank, local) {
            // SAFETY: invariants 1 and 2.
            unsafe { self.update_by_device(change, given, rank, &elements, before) }?;
            self.count(self.device_way(rank));
            return self.made(begun, Does::Update(change), rank, target);
        }
        let mut packed = Vec::new();
        let operand = match given.as_contiguous() {
            Some(at) => at.cast_const(),
            None if keeps => std::ptr::null(),
            None => {
                packed.resize(bytes, 0u8);
                // SAFETY: invariant 2: all bytes, and a vector of as many.
                unsafe { given.pack(0..bytes, packed.as_mut_ptr()) };
                packed.as_ptr()
            }
        };
        let mut was = Vec::new();
        let to = before.map(|view| match view.as_contiguous() {
            Some(at) => at,
            None => {
                was.resize(bytes, 0u8);
                was.as_mut_ptr()
            }
        });
        let path = self.path(rank);
        // SAFETY: invariants 1 and 2.
        unsafe { part.update(&path, &update, &elements, operand, to) }?;
        self.count(part.reach());
        if let Some(before) = before.filter(|_| !was.is_empty()) {
            // SAFETY: invariant 2: all bytes, from a vector of as many.
            unsafe { before.unpack(0..bytes, was.as_ptr()) };
        }
        self.made(begun, Does::Update(change), rank, target)
    }

    /// As [`RawWindow::update`], of the one element of a target by a value; what was there.
    #[inline]
    #[track_caller]
    pub(super) fn update_one<T: Datatype>(
        &self,
        change: Change,
        value: T,
        rank: usize,
        target: &RawView,
    ) -> Result<T> {
        let mut before = value;
        let given = RawView::of_slice((&raw const value).cast_mut(), 1);
        let was = RawView::of_slice(&raw mut before, 1);
        // SAFETY: invariant 2: both are values of this call; lengths are compared.
        unsafe { self.update(change, &given, rank, target, Some(&was)) }?;
        Ok(before)
    }

    /// Replaces an element of `size` bytes by `new` if it is `expected`, both in the lower bytes
    /// of words; what was there.
    #[track_caller]
    pub fn compare_and_swap(
        &self,
        rank: usize,
        (at, size): (usize, usize),
        expected: u64,
        new: u64,
    ) -> Result<u64> {
        let known = self.known(rank)?;
        if !known.at.is_null() {
            let path = self.path(rank);
            return (known.part).compare_and_swap(&path, (at, size), expected, new);
        }
        let target = RawView::untyped(std::ptr::without_provenance_mut(at), size);
        let begun = self.begins();
        let (part, element) = self.sound("compare-and-swap", rank, &[], &target)?;
        let place = (element.origin.addr(), size);
        let before = match self.needs_device(rank, &[]) {
            false => part.compare_and_swap(&self.path(rank), place, expected, new)?,
            true if size <= size_of::<u64>() => {
                self.swap_by_device(rank, &element, (expected, new))?
            }
            true => return Err(of_long_element(size)),
        };
        self.made(begun, Does::Swap, rank, &target)?;
        Ok(before)
    }

    /// What was written to a rank's part can be seen by it behind this.
    #[inline]
    pub fn flush(&self, rank: usize) -> Result<()> {
        self.known(rank)?.part.flush();
        self.settle_any()?;
        match &self.0.watch {
            None => Ok(()),
            Some(watch) => watch.flushed(self.comm(), Some(rank)),
        }
    }

    /// As [`RawWindow::flush`], of all ranks.
    #[inline]
    pub fn flush_all(&self) -> Result<()> {
        full_fence();
        self.settle_any()?;
        match &self.0.watch {
            None => Ok(()),
            Some(watch) => watch.flushed(self.comm(), None),
        }
    }
}

/// Checks views of an access to a part.
#[inline]
fn check(what: &str, rank: usize, local: &[&RawView], part: &Part, target: &RawView) -> Result<()> {
    let inside = part.holds(target);
    for view in local {
        if view.bytes() != target.bytes() {
            return Err(of_two_lengths(what, rank, view, target));
        }
        if view.as_device().is_some() {
            // Kernels and copies look for themselves.
            continue;
        }
        if let Some(at) = part.address()
            && inside
            && view.overlaps(&target.moved_by(at.addr()))
        {
            return Err(overlapping(what, rank));
        }
    }
    match inside {
        true => Ok(()),
        false => Err(outside(what, rank, target, part.bytes())),
    }
}

/// What a change is made of in elements of a signature.
pub(super) fn element_of(change: Change, signature: &Signature) -> Option<Element> {
    match change {
        Change::Combine(operator) => operator.element_of(signature),
        Change::Replace | Change::Keep => match signature.uniform() {
            Some(basic) => Some(basic.into()),
            None => Operator::MinLoc.element_of(signature),
        },
    }
}

/// A view of a rank's part: `count` instances of a layout, the first at byte `at`.
pub fn target_of(at: usize, layout: &Layout, count: usize) -> Result<RawView> {
    RawView::at(std::ptr::without_provenance_mut(at), layout, count)
}

#[cold]
fn of_two_lengths(what: &str, rank: usize, local: &RawView, target: &RawView) -> Error {
    Error::new(
        ErrorKind::Datatype,
        format!(
            "{what} of {} bytes, and {} bytes of rank {rank} (hint: both have the same elements)",
            local.bytes(),
            target.bytes()
        ),
    )
}

#[cold]
fn of_long_element(size: usize) -> Error {
    Error::new(
        ErrorKind::WindowRange,
        format!("a compare-and-swap of {size} bytes, at most eight"),
    )
}

#[cold]
fn overlapping(what: &str, rank: usize) -> Error {
    Error::new(
        ErrorKind::WindowConflict,
        format!("{what} with rank {rank}: the buffer overlaps the bytes of the window"),
    )
}

#[cold]
fn of_several_types(rank: usize) -> Error {
    Error::new(
        ErrorKind::Datatype,
        format!(
            "accumulate with rank {rank}: elements of no one predefined type (hint: all elements \
             of an accumulate have the same type)"
        ),
    )
}

#[cold]
fn outside(what: &str, rank: usize, target: &RawView, bytes: usize) -> Error {
    let (start, end) = target.span();
    let (start, end) = (start.cast_signed(), end.cast_signed());
    Error::new(
        ErrorKind::WindowRange,
        format!("{what} with rank {rank}: bytes {start} to {end} of a part of {bytes} bytes"),
    )
}
