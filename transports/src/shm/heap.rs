//! Osier's allocator: memory that peers map read-only and pull from with one
//! copy.
//!
//! Each rank owns a window of the job's heap file, and [`super::ranges`] says which of its
//! bytes are free. What is freed goes back to the system, huge page by huge page; a few MiB
//! are kept for the next allocation, whose pages need not be cleared then.
//!
//! # Invariants
//! 1. A range that is given out lies in one step of the window, below `top`, and one mapping
//!    has all grains that it touches; no other rank writes the window.
//! 2. A range is either free or given out once; it changes under the lock of `ranges`.
//!    Between `take_back` and `release` it belongs to the thread that gives it back.
//! 3. Bytes of a grain that is not `present` are zero when it becomes so: it was never used,
//!    or its pages were given back.
//! 4. In a forked child, which is no rank, the window's mappings are private memory of the
//!    child (`is_private`): it gives out nothing and leaves the file alone.
//!
//! # Sources
//! Wilson, Johnstone, Neely, Boles: Dynamic storage allocation, IWMM 1995, section 3: best
//! fit with immediate merging. Here ranges are kept outside of the memory they describe:
//! peers see the memory, and pages that were given back stay untouched.

use super::fork::{self, Busy};
use super::job::Job;
use super::mapping::{self, Steps};
use super::ranges::{GRAIN, LINE, Ranges, bytes_of, touched};
use crate::contract::{TransportError, TransportErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Most bytes with pages that are kept free. Large enough for the buffers that a program
/// allocates anew for each message; not measured.
const KEPT_BYTES: u64 = 32 << 20;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    bytes: usize,
    /// A power of two.
    align: usize,
    zeroed: bool,
    /// Pages are made present now, so that a lack of memory is found now.
    reserved: bool,
    /// It stands for the process's own data, which may be limited.
    data: bool,
}

/// The lock of a heap, and that this thread has it.
struct Entered<'a> {
    ranges: MutexGuard<'a, Ranges>,
    _busy: Busy,
}

/// One rank's window.
pub(crate) struct Heap {
    job: Job,
    rank: usize,
    window: OnceLock<Steps>,
    ranges: Mutex<Ranges>,
    /// Lowest and highest address of the mappings that memory was given out of.
    low: AtomicUsize,
    high: AtomicUsize,
    private: AtomicBool,
    /// The rank has left the job.
    closed: AtomicBool,
}

impl Heap {
    pub fn new(job: Job, rank: usize) -> Arc<Self> {
        let heap = Arc::new(Self {
            job,
            rank,
            window: OnceLock::new(),
            ranges: Mutex::default(),
            low: AtomicUsize::new(usize::MAX),
            high: AtomicUsize::new(0),
            private: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        // Before it is used: a child must not use it first.
        fork::register(&heap);
        heap
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if this thread has none already: see [`Busy`].
    fn enter(&self) -> Option<Entered<'_>> {
        let busy = Busy::enter()?;
        Some(Entered {
            ranges: self.lock(),
            _busy: busy,
        })
    }

    pub(super) fn window(&self) -> Option<&Steps> {
        self.window.get()
    }

    pub(super) fn is_private(&self) -> bool {
        self.private.load(Ordering::Acquire)
    }

    /// The mappings are private memory from now on: this is a forked child.
    pub(super) fn make_private(&self) {
        self.private.store(true, Ordering::Release);
    }

    /// The rank leaves the job: what is given out stays, and no more is given to
    /// [`Heap::malloc`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether nothing is given out.
    pub fn is_unused(&self) -> bool {
        self.lock().is_unused()
    }

    /// Zeroed memory of at least `bytes` bytes, aligned to `align`, whose pages are present.
    pub fn alloc(&self, bytes: usize, align: usize) -> Result<*mut u8, TransportError> {
        self.get(Wanted {
            bytes,
            align,
            zeroed: true,
            reserved: true,
            data: false,
        })
    }

    /// Memory as `malloc` gives it, of pages that come with their first use; none if a limit
    /// of the process says so, there is no room or the rank has left its job.
    pub fn malloc(&self, bytes: usize, align: usize, zeroed: bool) -> Option<*mut u8> {
        let refused = self.closed.load(Ordering::Acquire) || self.is_private();
        let wanted = Wanted {
            bytes,
            align,
            zeroed,
            reserved: promises_are_kept(),
            data: true,
        };
        (!refused).then(|| self.get(wanted).ok()).flatten()
    }

    fn full(&self, bytes: usize, window: &Steps) -> TransportError {
        TransportError::new(
            TransportErrorKind::OutOfMemory,
            format!(
                "the rank's {} GiB of heap have no room for {bytes} bytes",
                window.bytes() >> 30
            ),
        )
    }

    fn get(&self, wanted: Wanted) -> Result<*mut u8, TransportError> {
        let segment = self.job.segment();
        let window = self
            .window
            .get_or_init(|| segment.window(self.rank, true).own());
        // With room to move its beginning: mappings begin at a page's address.
        let room = match wanted.align as u64 {
            0..=LINE => 0,
            align => align,
        };
        let bytes = (wanted.bytes.max(1) as u64).checked_next_multiple_of(LINE);
        let gross = bytes.and_then(|b| b.checked_add(room));
        let (Some(bytes), Some(gross)) = (bytes, gross.filter(|b| *b <= window.bytes())) else {
            return Err(TransportError::new(
                TransportErrorKind::OutOfMemory,
                format!(
                    "{} bytes do not fit a heap window of {} GiB",
                    wanted.bytes,
                    window.bytes() >> 30
                ),
            ));
        };
        let mut entered = self.enter().ok_or_else(|| {
            TransportError::new(
                TransportErrorKind::OutOfMemory,
                "a handler of a fork may not allocate shared memory",
            )
        })?;
        let ranges = &mut *entered.ranges;
        if self.is_private() {
            return Err(TransportError::new(
                TransportErrorKind::OutOfMemory,
                "a forked child is no rank, and has no part of the job's heap",
            ));
        }
        let mut offset = match ranges.take(gross) {
            Some(offset) => offset,
            None => {
                let offset = window.fit(ranges.top, gross);
                let offset = offset.ok_or_else(|| self.full(wanted.bytes, window))?;
                ranges.grow(offset, gross, (offset + gross).next_multiple_of(GRAIN));
                offset
            }
        };
        let (mut at, mut front) = (std::ptr::null_mut(), 0);
        let grains = touched(offset, gross);
        let mapped = bytes_of(&grains);
        let found = window.at(mapped.start, mapped.end - mapped.start);
        let ready = found.and_then(|base| {
            let base = base.wrapping_add((offset - mapped.start) as usize);
            front = (base as usize).next_multiple_of(wanted.align) - base as usize;
            at = base.wrapping_add(front);
            let absent = ranges.absent(offset + front as u64, bytes);
            if !absent.is_empty() {
                if wanted.data {
                    refuse_limited()?;
                }
                segment.charge(bytes_in(&absent))?;
            }
            Ok(absent)
        });
        let absent = ready.inspect_err(|_| {
            ranges.take_back(offset);
            ranges.release(offset, gross);
        })?;
        if room > 0 {
            ranges.cut(offset, front as u64, bytes);
            offset += front as u64;
        }
        for run in &absent {
            ranges.set_present(run.clone());
        }
        let unreserved = match wanted.reserved {
            true => ranges.unreserved(offset, bytes),
            false => Vec::new(),
        };
        self.low.fetch_min(at as usize, Ordering::Relaxed);
        self.high
            .fetch_max(at as usize + bytes as usize, Ordering::Relaxed);
        drop(entered);
        // Address of an offset in the grains of the range (invariant 1).
        let address = |to: u64| at.wrapping_offset(to.wrapping_sub(offset) as isize);
        for run in &unreserved {
            let run = bytes_of(run);
            // SAFETY: invariant 1: `at` has returned the address.
            let done = unsafe { mapping::populate(address(run.start), run.end - run.start, false) };
            done.inspect_err(|_| {
                self.free(at);
            })?;
        }
        if !unreserved.is_empty() {
            let mut ranges = self.lock();
            for run in unreserved {
                ranges.set_reserved(run);
            }
        }
        if wanted.zeroed {
            let end = offset + bytes;
            let mut next = offset;
            for run in absent.iter().map(bytes_of).chain(std::iter::once(end..end)) {
                if run.start > next {
                    let bytes = (run.start - next) as usize;
                    // SAFETY: invariants 1 and 2: this range, or its part between grains
                    // that are zero (invariant 3).
                    unsafe { std::ptr::write_bytes(address(next), 0, bytes) };
                }
                next = run.end.max(next);
            }
        }
        Ok(at)
    }

    /// Gives back what was given out; false if nothing of this heap begins there.
    pub fn free(&self, ptr: *const u8) -> bool {
        let Some((window, offset)) = self.window.get().zip(self.offset_of(ptr, 1)) else {
            return false;
        };
        let Some(mut entered) = self.enter() else {
            return true; // a handler of a fork frees it: it is lost
        };
        let Some(bytes) = entered.ranges.take_back(offset) else {
            return false;
        };
        if self.is_private() {
            entered.ranges.release(offset, bytes);
            drop_pages(ptr.cast_mut(), bytes);
            return true;
        }
        if bytes > KEPT_BYTES {
            let runs = entered.ranges.idle_of(offset, bytes);
            // Takes a while; nobody else touches it (invariant 2).
            drop(entered);
            let gone: Vec<_> = runs.into_iter().filter(|run| punch(window, run)).collect();
            let mut ranges = self.lock();
            for run in gone {
                self.discharge(run.end - run.start);
                ranges.set_absent(run, false);
            }
            ranges.release(offset, bytes);
            return true;
        }
        entered.ranges.release(offset, bytes);
        self.trim(window, &mut entered.ranges);
        true
    }

    fn discharge(&self, grains: u64) {
        self.job.segment().discharge(grains * GRAIN);
    }

    /// Gives free pages back to the system, if there are many.
    fn trim(&self, window: &Steps, ranges: &mut Ranges) {
        if ranges.idle_bytes() <= KEPT_BYTES {
            return;
        }
        for (offset, bytes) in ranges.free_by_size() {
            for run in ranges.idle_of(offset, bytes) {
                if punch(window, &run) {
                    self.discharge(run.end - run.start);
                    ranges.set_absent(run, true);
                }
                if ranges.idle_bytes() <= KEPT_BYTES / 2 {
                    return;
                }
            }
        }
    }

    /// Makes what begins there smaller, or larger if there is room behind it; its contents
    /// stay. Whether that was done. What is added has pages that come with first use.
    pub fn resize(&self, ptr: *const u8, bytes: usize) -> bool {
        let Some((window, offset)) = self.window.get().zip(self.offset_of(ptr, 1)) else {
            return false;
        };
        let Some(want) = (bytes.max(1) as u64).checked_next_multiple_of(LINE) else {
            return false;
        };
        let Some(mut entered) = self.enter() else {
            return false;
        };
        let ranges = &mut *entered.ranges;
        let Some(size) = ranges.given(offset) else {
            return false;
        };
        if want <= size {
            if !self.is_private() && want < size {
                ranges.cut(offset, 0, want);
                self.trim(window, ranges);
            }
            return true;
        }
        if self.is_private() || want > window.bytes() || promises_are_kept() {
            return false;
        }
        let grown = bytes_of(&touched(offset, want)).end;
        let mapped = window.offset_of(ptr, (grown - offset) as usize);
        if mapped != Some(offset) || window.fit(offset, want) != Some(offset) {
            return false;
        }
        if grown > ranges.top && ranges.reaches_top(offset) {
            ranges.raise(grown);
        }
        if !ranges.extend(offset, want) {
            return false;
        }
        let absent = ranges.absent(offset, want);
        if !absent.is_empty() {
            let charged =
                refuse_limited().and_then(|()| self.job.segment().charge(bytes_in(&absent)));
            if charged.is_err() {
                ranges.cut(offset, 0, size);
                return false;
            }
        }
        absent.into_iter().for_each(|run| ranges.set_present(run));
        self.high
            .fetch_max(ptr as usize + want as usize, Ordering::Relaxed);
        true
    }

    /// Bytes of what was given out and begins there.
    pub fn usable(&self, ptr: *const u8) -> Option<usize> {
        let offset = self.offset_of(ptr, 1).filter(|_| self.owns(ptr))?;
        let given = self.enter()?.ranges.given(offset);
        given.map(|bytes| bytes as usize)
    }

    /// Whether an address lies in this heap; quick where it does not.
    #[inline]
    pub fn owns(&self, ptr: *const u8) -> bool {
        let near = self.low.load(Ordering::Relaxed) <= ptr as usize
            && (ptr as usize) < self.high.load(Ordering::Relaxed);
        near && self.offset_of(ptr, 1).is_some()
    }

    /// Offset in the window of memory that lies there.
    #[inline]
    pub fn offset_of(&self, ptr: *const u8, bytes: usize) -> Option<u64> {
        self.window.get()?.offset_of(ptr, bytes)
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let Some(window) = self.window.get().filter(|_| !self.is_private()) else {
            return;
        };
        let ranges = self.lock();
        for run in ranges.idle_of(0, ranges.top) {
            if punch(window, &run) {
                self.discharge(run.end - run.start);
            }
        }
    }
}

/// Gives pages of the heap file back, those of a run of grains.
fn punch(window: &Steps, run: &std::ops::Range<u64>) -> bool {
    let run = bytes_of(run);
    window.punch(run.start, run.end - run.start)
}

fn bytes_in(runs: &[std::ops::Range<u64>]) -> u64 {
    runs.iter().map(|run| (run.end - run.start) * GRAIN).sum()
}

/// Gives pages of private memory back, of a range that is free now.
fn drop_pages(ptr: *mut u8, bytes: u64) {
    let start = (ptr as usize).next_multiple_of(4096);
    let end = (ptr as usize + bytes as usize) & !4095;
    if end > start {
        let at = ptr.wrapping_add(start - ptr as usize);
        // SAFETY: invariants 2 and 4: whole pages of a range that nobody uses. Advice only.
        unsafe { libc::madvise(at.cast(), end - start, libc::MADV_DONTNEED) };
    }
}

/// Refuses more memory for a process's own data if that is limited (`ulimit -d`): shared
/// memory is none, and would evade the limit. Asked only where pages come anew: it is a system
/// call.
fn refuse_limited() -> Result<(), TransportError> {
    match mapping::limit(libc::RLIMIT_DATA) {
        u64::MAX => Ok(()),
        limit => Err(TransportError::new(
            TransportErrorKind::OutOfMemory,
            format!("data of the process is limited to {} MiB", limit >> 20),
        )),
    }
}

/// Whether the system counts all memory that it promises (`vm.overcommit_memory` is 2), so
/// that `malloc` says no rather than a page that is not there.
fn promises_are_kept() -> bool {
    static KEPT: OnceLock<bool> = OnceLock::new();
    *KEPT.get_or_init(|| {
        let text = std::fs::read("/proc/sys/vm/overcommit_memory");
        text.is_ok_and(|text| text.first() == Some(&b'2'))
    })
}

#[cfg(all(test, not(loom)))]
mod tests;
