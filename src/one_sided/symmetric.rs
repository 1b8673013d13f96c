//! A symmetric heap: memory of all ranks, in which each allocation has the same offset.
//!
//! A heap is a window of bytes. Its allocations are made by all ranks in the same order, so that
//! each rank finds the same free offsets by itself; one that a rank drops is free once all have
//! dropped it, which they tell each other at the next allocation.
//!
//! # Invariants
//! 1. An allocation lies inside the heap's part on every rank, and no other one that is alive on
//!    any rank overlaps it: a range is free again when all ranks have dropped its handles.
//! 2. What a call touches lies inside its allocation: checked before.
//!
//! # Sources
//! OpenSHMEM 1.5, sections 9.3 (memory), 9.5 to 9.8 (put, get, atomics, put with signal), 9.10
//! (waiting).

use super::offsets::{Offsets, UNIT};
use super::raw::{Flavor, RawWindow, Updates};
use super::window::zeroed_on;
use super::words::{value_of, word_of, zeroed};
use crate::comm::Communicator;
use osier_datatype::{Datatype, Operator as Op};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::rma::update::Change;
use osier_engine::view::{Buffer, BufferMut, RawView};
use osier_kernels::Context;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of each rank of a communicator, of which allocations lie at the same offset everywhere.
///
/// A rank reads, writes and updates the elements of any rank without its help, at any time: there
/// are no epochs. Each call returns when its buffer may be used again and the access is complete,
/// as the target sees it. What ranks write to the same elements at once may be mixed there;
/// updates are atomic for each element.
///
/// ```
/// use osier::rma::SignalOp;
///
/// # osier::testing::ranks(4, |comm| {
/// // Each rank writes its number to the next one, and says so.
/// let heap = comm.symmetric_heap(1 << 16)?;
/// let cell = heap.alloc::<u32>(1)?;
/// let flag = heap.alloc::<u64>(1)?;
/// let (rank, size) = (comm.rank(), comm.size());
/// cell.put_signal(&(rank as u32), (rank + 1) % size, 0, &flag, 0, SignalOp::Set(1))?;
/// flag.wait_until(0, |flag| flag == 1)?;
/// assert_eq!(cell.to_vec()?, [((rank + size - 1) % size) as u32]);
/// drop((cell, flag));
/// heap.free()?;
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
pub struct SymmetricHeap {
    inner: Arc<Inner>,
}

struct Inner {
    window: RawWindow,
    state: Mutex<State>,
}

struct State {
    offsets: Offsets,
    /// Allocations that not all ranks have dropped, by number; those that are free are `None`.
    slots: Vec<Option<Slot>>,
}

#[derive(Clone, Copy)]
struct Slot {
    start: usize,
    bytes: usize,
    /// This rank has dropped it.
    dropped: bool,
}

/// Which allocation a handle is for; the last handle of a rank drops it.
struct Allocation {
    heap: Arc<Inner>,
    number: usize,
    start: usize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut state = self.heap.state();
        if let Some(slot) = &mut state.slots[self.number] {
            slot.dropped = true;
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A bit for each allocation: this rank has dropped it, or it is free.
    fn dropped(&self) -> Vec<u64> {
        let mut bits = vec![0u64; self.slots.len().div_ceil(64)];
        for (number, slot) in self.slots.iter().enumerate() {
            let dropped = slot.is_none_or(|slot| slot.dropped);
            bits[number / 64] |= u64::from(dropped) << (number % 64);
        }
        bits
    }

    /// Frees those that all ranks have dropped.
    fn free(&mut self, bits: &[u64]) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if bits[number / 64] >> (number % 64) & 1 == 1
                && let Some(slot) = slot.take()
            {
                self.offsets.give(slot.start, slot.bytes);
            }
        }
        while matches!(self.slots.last(), Some(None)) {
            self.slots.pop();
        }
    }

    fn take(&mut self, bytes: usize) -> Result<(usize, usize)> {
        let Some(start) = self.offsets.take(bytes) else {
            let message = format!(
                "{bytes} bytes of a symmetric heap whose longest free range has {} (hint: drop \
                 allocations, or make the heap larger)",
                self.offsets.longest()
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        };
        let slot = Some(Slot {
            start,
            bytes,
            dropped: false,
        });
        let unused = self.slots.iter().position(Option::is_none);
        let number = unused.unwrap_or(self.slots.len());
        match self.slots.get_mut(number) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        Ok((number, start))
    }
}

impl Communicator {
    /// A symmetric heap of `bytes` bytes of each rank, the same on all. Collective.
    ///
    /// # Errors
    /// As [`Communicator::window`]; of kind [`ErrorKind::Argument`], if ranks ask for different
    /// numbers of bytes.
    #[track_caller]
    pub fn symmetric_heap(&self, bytes: usize) -> Result<SymmetricHeap> {
        let bytes = bytes / UNIT * UNIT;
        let flavor = Ok(Flavor::Allocate(bytes));
        self.reported(SymmetricHeap::make(self, bytes, flavor))
    }

    /// The same in the memory of each rank's device, which may differ by rank. Collective.
    ///
    /// Elements are reached as those of [`Communicator::device_window`]. Waiting for them asks the
    /// device each time, so words of signals are better in a heap on the host
    /// ([`Symmetric::put_signal`]).
    ///
    /// # Errors
    /// As [`Communicator::symmetric_heap`]; of kind [`ErrorKind::Device`], if the driver refuses.
    #[track_caller]
    pub fn symmetric_heap_on(&self, context: &Context, bytes: usize) -> Result<SymmetricHeap> {
        let bytes = bytes / UNIT * UNIT;
        let flavor = zeroed_on::<u8>(context, bytes).map(Flavor::Device);
        self.reported(SymmetricHeap::make(self, bytes, flavor))
    }
}

impl SymmetricHeap {
    #[track_caller]
    fn make(comm: &Communicator, bytes: usize, flavor: Result<Flavor>) -> Result<Self> {
        let window = RawWindow::make(comm, flavor, 1, Updates::Single)?;
        for rank in 0..comm.size() {
            let theirs = window.bytes_of(rank)?;
            if theirs != bytes {
                return Err(Error::new(
                    ErrorKind::Argument,
                    format!("a symmetric heap of {bytes} bytes here and {theirs} on rank {rank}"),
                ));
            }
        }
        window.is_without_epochs();
        let state = State {
            offsets: Offsets::new(bytes),
            slots: Vec::new(),
        };
        let inner = Arc::new(Inner {
            window,
            state: Mutex::new(state),
        });
        Ok(Self { inner })
    }

    /// The heap's own communicator: the ranks of the one that it was made on.
    pub fn communicator(&self) -> &Communicator {
        self.inner.window.comm()
    }

    /// The window that it is.
    pub(super) fn window(&self) -> &RawWindow {
        &self.inner.window
    }

    /// Bytes of each rank.
    pub fn bytes(&self) -> usize {
        let rank = self.communicator().rank();
        self.inner.window.bytes_of(rank).unwrap_or(0)
    }

    /// `len` zeroed elements of each rank. Collective: all ranks ask for as many bytes.
    ///
    /// Memory of allocations that all ranks have dropped is used again.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::OutOfMemory`] on all ranks, if there is no room; of kind
    /// [`ErrorKind::Argument`] on all, if they ask for different numbers of bytes.
    #[track_caller]
    pub fn alloc<T: Datatype>(&self, len: usize) -> Result<Symmetric<T>> {
        let allocated = self.allocate(len);
        self.communicator().reported(allocated)
    }

    #[track_caller]
    fn allocate<T: Datatype>(&self, len: usize) -> Result<Symmetric<T>> {
        osier_engine::view::require_dense::<T>()?;
        let inner = &self.inner;
        // What does not fit into the address space fits into no heap.
        let bytes = len.saturating_mul(size_of::<T>());
        let mut mine = vec![bytes as u64, !(bytes as u64)];
        mine.extend(inner.state().dropped());
        let mut all = vec![0u64; mine.len()];
        self.communicator().allreduce(&mine, &mut all, Op::BitAnd)?;
        if (all[0], all[1]) != (mine[0], mine[1]) {
            return Err(Error::new(
                ErrorKind::Argument,
                format!("{bytes} bytes of a symmetric heap here, and others ask for other numbers"),
            ));
        }
        let (number, start) = {
            let mut state = inner.state();
            state.free(&all[2..]);
            state.take(bytes)?
        };
        let allocation = Allocation {
            heap: inner.clone(),
            number,
            start,
        };
        let symmetric = Symmetric {
            allocation: Arc::new(allocation),
            len,
            team: None,
            elements: PhantomData,
        };
        // The others wait here in any case, and may write to it behind this.
        let cleared = symmetric.clear();
        self.communicator().barrier()?;
        cleared.map(|()| symmetric)
    }

    /// Waits until all ranks come here. Collective.
    ///
    /// Each access is complete when its call returns, so nothing else is to be waited for.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.communicator().barrier()
    }

    /// Gives the heap back, once all ranks do. Collective; its allocations are dropped before.
    ///
    /// A heap that is dropped instead waits for nobody: its memory is kept until all ranks have
    /// given it back.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if there are allocations here; as
    /// [`Communicator::barrier`].
    #[track_caller]
    pub fn free(self) -> Result<()> {
        let comm = self.communicator().clone();
        let freed = match Arc::into_inner(self.inner) {
            Some(inner) => inner.window.free().map(drop),
            None => Err(Error::new(
                ErrorKind::Argument,
                "a symmetric heap with allocations (hint: drop them first)",
            )),
        };
        comm.reported(freed)
    }
}

/// What becomes of the word of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOp {
    /// It becomes this.
    Set(u64),
    /// This is added to it, wrapping.
    Add(u64),
}

/// Elements of each rank in a symmetric heap. Clones are the same elements.
///
/// Elements are named by the rank that has them and their index there. Buffers are anything that
/// can be sent or received: slices, numbers, and views of any layout. [`SymmetricHeap`] has an
/// example.
pub struct Symmetric<T: Datatype> {
    allocation: Arc<Allocation>,
    len: usize,
    /// The heap's ranks of a communicator by whose numbers this handle goes.
    team: Option<Arc<[usize]>>,
    elements: PhantomData<fn(T) -> T>,
}

impl<T: Datatype> Clone for Symmetric<T> {
    fn clone(&self) -> Self {
        Self {
            allocation: self.allocation.clone(),
            len: self.len,
            team: self.team.clone(),
            elements: PhantomData,
        }
    }
}

impl<T: Datatype> Symmetric<T> {
    /// Its first byte in the heap.
    pub(super) fn start(&self) -> usize {
        self.allocation.start
    }

    /// Whether it lies in a heap.
    pub(super) fn is_of(&self, window: &RawWindow) -> bool {
        self.allocation.heap.window.is(window)
    }

    /// Elements of each rank.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offset of the first element in the heap in bytes, the same on all ranks.
    pub fn offset(&self) -> usize {
        self.allocation.start
    }

    fn window(&self) -> &RawWindow {
        &self.allocation.heap.window
    }

    fn comm(&self) -> &Communicator {
        self.window().comm()
    }

    /// The same elements, of which ranks are named by their numbers in `team`, a communicator of
    /// some of the heap's ranks.
    ///
    /// ```
    /// # osier::testing::ranks(4, |comm| {
    /// let heap = comm.symmetric_heap(1 << 12)?;
    /// let cells = heap.alloc::<u64>(1)?;
    /// // Two teams: of even and of odd ranks. Rank 0 of each counts its members.
    /// let team = comm.split(Some(comm.rank() as u32 % 2), 0)?.expect("a team");
    /// let theirs = cells.on(&team)?;
    /// theirs.add(1, 0, 0)?;
    /// team.barrier()?;
    /// assert_eq!(theirs.fetch(0, 0)?, 2);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Group`], if a member is no rank of the heap.
    pub fn on(&self, team: &Communicator) -> Result<Self> {
        let ranks = self.window().ranks_of(team.group());
        Ok(Self {
            team: Some(self.comm().reported(ranks)?.into()),
            ..self.clone()
        })
    }

    /// The heap's rank.
    #[inline]
    fn rank(&self, rank: usize) -> Result<usize> {
        let Some(team) = &self.team else {
            return Ok(rank);
        };
        team.get(rank).copied().ok_or_else(|| {
            let message = format!("rank {rank} of a team of {}", team.len());
            Error::new(ErrorKind::Rank, message)
        })
    }

    /// `bytes` bytes of this allocation, from element `at` on.
    #[inline]
    fn target(&self, at: usize, bytes: usize) -> Result<RawView> {
        let size = size_of::<T>();
        let before = at.checked_mul(size);
        let end = before.and_then(|before| before.checked_add(bytes));
        match (before, end) {
            (Some(_), Some(_)) if !bytes.is_multiple_of(size) => Err(self.no_elements(bytes)),
            // Invariant 2.
            (Some(before), Some(end)) if end <= self.len * size => {
                let at = std::ptr::without_provenance_mut(self.allocation.start + before);
                Ok(RawView::dense::<T>(at, bytes))
            }
            _ => Err(self.outside(at, bytes)),
        }
    }

    #[cold]
    fn outside(&self, at: usize, bytes: usize) -> Error {
        Error::new(
            ErrorKind::WindowRange,
            format!(
                "{bytes} bytes from element {at} on, of an allocation of {} elements of {} bytes",
                self.len,
                size_of::<T>()
            ),
        )
    }

    #[cold]
    fn no_elements(&self, bytes: usize) -> Error {
        let (size, name) = (size_of::<T>(), std::any::type_name::<T>());
        Error::new(
            ErrorKind::Datatype,
            format!("a buffer of {bytes} bytes for elements of {size} (hint: they are {name})"),
        )
    }

    /// Writes the elements of a buffer to a rank's, from `at` on.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::WindowRange`], if they do not lie inside the allocation; of kind
    /// [`ErrorKind::Rank`], if there is no such rank; of kind [`ErrorKind::RankDead`], if it has
    /// died and its memory is not reached any more.
    #[inline]
    #[track_caller]
    pub fn put<B: Buffer + ?Sized>(&self, from: &B, rank: usize, at: usize) -> Result<()> {
        let put = self.put_raw(from.view().as_raw(), rank, at);
        self.comm().reported(put)
    }

    #[inline]
    #[track_caller]
    fn put_raw(&self, from: &RawView, rank: usize, at: usize) -> Result<()> {
        let target = self.target(at, from.bytes())?;
        // SAFETY: the caller's buffer is borrowed until this returns.
        unsafe { self.window().put(from, self.rank(rank)?, &target) }
    }

    /// Reads a rank's elements, from `at` on, to a buffer.
    ///
    /// # Errors
    /// As [`Symmetric::put`].
    #[inline]
    #[track_caller]
    pub fn get<B: BufferMut + ?Sized>(&self, to: &mut B, rank: usize, at: usize) -> Result<()> {
        let got = self.get_raw(to.view_mut().as_raw(), rank, at);
        self.comm().reported(got)
    }

    #[inline]
    #[track_caller]
    fn get_raw(&self, to: &RawView, rank: usize, at: usize) -> Result<()> {
        let target = self.target(at, to.bytes())?;
        // SAFETY: the caller's buffer is borrowed mutably until this returns.
        unsafe { self.window().get(to, self.rank(rank)?, &target) }
    }

    /// Copies elements of this rank, from `at` on.
    ///
    /// # Errors
    /// As [`Symmetric::put`].
    #[track_caller]
    pub fn read(&self, at: usize, to: &mut [T]) -> Result<()> {
        self.of_heap().get(to, self.comm().rank(), at)
    }

    /// Writes elements of this rank, from `at` on.
    ///
    /// # Errors
    /// As [`Symmetric::put`].
    #[track_caller]
    pub fn write(&self, at: usize, from: &[T]) -> Result<()> {
        self.of_heap().put(from, self.comm().rank(), at)?;
        let told = self.tell(self.comm().rank());
        self.comm().reported(told)
    }

    /// All elements of this rank, as they are now.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::OutOfMemory`].
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let elements = osier_engine::view::zeroed_vec(self.len);
        let mut elements = self.comm().reported(elements)?;
        self.read(0, &mut elements)?;
        Ok(elements)
    }

    /// The same elements by the heap's numbers of ranks.
    fn of_heap(&self) -> Self {
        Self {
            team: None,
            ..self.clone()
        }
    }

    /// Zeroes this rank's elements.
    fn clear(&self) -> Result<()> {
        const PIECE: usize = 64 << 10;
        let (zeros, bytes) = (vec![0u8; PIECE], self.len * size_of::<T>());
        for start in (0..bytes).step_by(PIECE) {
            let piece = RawView::untyped(zeros.as_ptr().cast_mut(), PIECE.min(bytes - start));
            let at = std::ptr::without_provenance_mut(self.allocation.start + start);
            let target = RawView::untyped(at, piece.bytes());
            // SAFETY: invariant 1; the zeros are alive, and only read.
            unsafe { self.window().put(&piece, self.comm().rank(), &target) }?;
        }
        Ok(())
    }

    /// Wakes a rank of the heap that waits for a change of its elements.
    #[inline]
    fn tell(&self, rank: usize) -> Result<()> {
        self.window().tell(rank)
    }

    /// Writes as [`Symmetric::put`], and then changes word `signal_at` of `signal` on the same
    /// rank, which sees the elements when it sees the change, and is woken if it waits.
    ///
    /// # Errors
    /// As [`Symmetric::put`], of both; of kind [`ErrorKind::Argument`], if `signal` is in a heap of
    /// other ranks.
    #[track_caller]
    pub fn put_signal<B: Buffer + ?Sized>(
        &self,
        from: &B,
        rank: usize,
        at: usize,
        signal: &Symmetric<u64>,
        signal_at: usize,
        op: SignalOp,
    ) -> Result<()> {
        let done = self.signalled(from.view().as_raw(), rank, at, (signal, signal_at, op));
        self.comm().reported(done)
    }

    #[track_caller]
    fn signalled(
        &self,
        from: &RawView,
        rank: usize,
        at: usize,
        (signal, signal_at, op): (&Symmetric<u64>, usize, SignalOp),
    ) -> Result<()> {
        let same_ranks = || self.comm().group() == signal.comm().group();
        if !Arc::ptr_eq(&self.allocation.heap, &signal.allocation.heap) && !same_ranks() {
            return Err(Error::new(
                ErrorKind::Argument,
                "a signal in a symmetric heap of other ranks than the elements'",
            ));
        }
        // Nothing is written, if the word is none.
        signal.target(signal_at, size_of::<u64>())?;
        self.put_raw(from, rank, at)?;
        let (change, value) = match op {
            SignalOp::Set(value) => (Change::Replace, value),
            SignalOp::Add(value) => (Change::Combine(Op::Sum), value),
        };
        let rank = self.rank(rank)?;
        (signal.of_heap().change(change, value, rank, signal_at)).map(drop)
    }

    /// Changes one element, wakes its rank; what it was before.
    #[inline]
    #[track_caller]
    fn change(&self, change: Change, value: T, rank: usize, at: usize) -> Result<T> {
        let target = self.target(at, size_of::<T>())?;
        let rank = self.rank(rank)?;
        let before = self.window().update_one(change, value, rank, &target)?;
        if change != Change::Keep {
            self.tell(rank)?;
        }
        Ok(before)
    }

    /// The value of one element, read at once.
    ///
    /// # Errors
    /// As [`Symmetric::fetch_and_op`].
    #[inline]
    #[track_caller]
    pub fn fetch(&self, rank: usize, at: usize) -> Result<T> {
        let value = zeroed::<T>();
        let fetched = self.change(Change::Keep, value, rank, at);
        self.comm().reported(fetched)
    }

    /// Replaces one element, at once, and wakes its rank if it waits.
    ///
    /// # Errors
    /// As [`Symmetric::fetch_and_op`].
    #[inline]
    #[track_caller]
    pub fn set(&self, value: T, rank: usize, at: usize) -> Result<()> {
        self.swap(value, rank, at).map(drop)
    }

    /// As [`Symmetric::set`]; what it was before.
    ///
    /// # Errors
    /// As [`Symmetric::fetch_and_op`].
    #[inline]
    #[track_caller]
    pub fn swap(&self, value: T, rank: usize, at: usize) -> Result<T> {
        let swapped = self.change(Change::Replace, value, rank, at);
        self.comm().reported(swapped)
    }

    /// Adds to one element, at once for all that update it, and wakes its rank if it waits.
    ///
    /// # Errors
    /// As [`Symmetric::fetch_and_op`].
    #[inline]
    #[track_caller]
    pub fn add(&self, value: T, rank: usize, at: usize) -> Result<()> {
        self.fetch_and_add(value, rank, at).map(drop)
    }

    /// As [`Symmetric::add`]; what it was before.
    ///
    /// # Errors
    /// As [`Symmetric::fetch_and_op`].
    #[inline]
    #[track_caller]
    pub fn fetch_and_add(&self, value: T, rank: usize, at: usize) -> Result<T> {
        self.fetch_and_op(value, rank, at, Op::Sum)
    }

    /// Combines one element with a value, at once for all that update it, and wakes its rank if
    /// it waits; what it was before.
    ///
    /// # Errors
    /// As [`Symmetric::put`]; of kind [`ErrorKind::Datatype`], if elements are not of a
    /// predefined type, or the operator is not defined for it.
    #[inline]
    #[track_caller]
    pub fn fetch_and_op(
        &self,
        value: T,
        rank: usize,
        at: usize,
        op: impl Into<Change>,
    ) -> Result<T> {
        let changed = self.change(op.into(), value, rank, at);
        self.comm().reported(changed)
    }

    /// Replaces one element by `new` if it is `expected`, at once for all that update it, and
    /// wakes its rank if it waits; what it was before.
    ///
    /// # Errors
    /// As [`Symmetric::put`]; of kind [`ErrorKind::Datatype`], if elements are no integers of
    /// the library, or longer than eight bytes.
    #[track_caller]
    pub fn compare_and_swap(&self, expected: T, new: T, rank: usize, at: usize) -> Result<T> {
        let swapped = self.swapped((expected, new), rank, at);
        self.comm().reported(swapped)
    }

    #[track_caller]
    fn swapped(&self, (expected, new): (T, T), rank: usize, at: usize) -> Result<T> {
        let words = (word_of(&expected)?, word_of(&new)?);
        let target = self.target(at, size_of::<T>())?;
        let place = (target.origin.addr(), size_of::<T>());
        let rank = self.rank(rank)?;
        let before = (self.window()).compare_and_swap(rank, place, words.0, words.1)?;
        self.tell(rank)?;
        Ok(value_of(before))
    }

    /// Waits until an element of this rank is as `wanted`; its value then.
    ///
    /// It is looked at again when it is updated or signalled; what others [`Symmetric::put`] is
    /// seen within a tenth of a second at the latest. Other calls of this rank's threads go on
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Symmetric::fetch`]; of kind [`ErrorKind::RankDead`], if a rank of the heap has died.
    #[track_caller]
    pub fn wait_until(&self, at: usize, mut wanted: impl FnMut(T) -> bool) -> Result<T> {
        let waited = self.awaited(at, &mut wanted);
        self.comm().reported(waited)
    }

    #[track_caller]
    fn awaited(&self, at: usize, wanted: &mut dyn FnMut(T) -> bool) -> Result<T> {
        let (own, rank) = (self.of_heap(), self.comm().rank());
        let first = own.fetch_raw(rank, at)?;
        if wanted(first) {
            return Ok(first);
        }
        let what = || format!("element {at} of an allocation of {} elements", self.len);
        self.window()
            .await_change(what, || match own.fetch_raw(rank, at) {
                Ok(value) => wanted(value).then_some(Ok(value)),
                Err(e) => Some(Err(e)),
            })?
    }

    #[track_caller]
    fn fetch_raw(&self, rank: usize, at: usize) -> Result<T> {
        let value = zeroed::<T>();
        self.change(Change::Keep, value, rank, at)
    }
}
