//! Fork: a child gets private copies of the heaps of its parent's ranks, never the memory
//! itself.
//!
//! ```text
//! parent  prepare: lock; copy what is given out    fork    drop the copies; unlock
//! child                                                    copies to the heaps' addresses
//! ```
//!
//! The mappings of a heap are not inherited (`MADV_DONTFORK`), so a child made without
//! handlers (`clone`, `_Fork`) finds nothing at these addresses. `vfork` and `posix_spawn`
//! share all memory until the new program starts, and run no handlers.
//!
//! Handlers belong to the process and cannot be taken back: so does the list of heaps.
//!
//! # Invariants
//! 1. The thread that forks holds the lock of [`HEAPS`] from `prepare` to `parent` or
//!    `child`, and only it touches [`HELD`] then. It holds the locks of all heaps, too.
//! 2. A guard in [`Held`] is dropped before the heap that it locks.
//! 3. A copy is a mapping of its own, private and anonymous, as long as the heap's mapping.
//! 4. A system call with numbers, functions or bytes that stay, or for a new mapping, touches
//!    no other memory of the process. Nobody uses the position of the heap file.

use super::heap::Heap;
use super::ranges::Ranges;
use std::cell::{Cell, UnsafeCell};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

static HEAPS: Mutex<Vec<Weak<Heap>>> = Mutex::new(Vec::new());
static HELD: Slot = Slot(UnsafeCell::new(None));

struct Slot(UnsafeCell<Option<Held>>);

// SAFETY: invariant 1.
unsafe impl Sync for Slot {}

thread_local! {
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

fn set_busy(to: bool) {
    // A thread that has ended its variables forks no more.
    let _ = BUSY.try_with(|busy| busy.set(to));
}

/// This thread has the lock of a heap, or, in a fork, of all.
pub(super) struct Busy;

impl Busy {
    /// None if it has one already: what the bookkeeping allocates, and handlers of a fork,
    /// must not come from a heap.
    #[inline]
    pub fn enter() -> Option<Busy> {
        let free = !BUSY.try_with(|busy| busy.replace(true)).unwrap_or(true);
        free.then_some(Busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        set_busy(false);
    }
}

/// A copy of a mapping, and where its original lies. Without one there was no memory.
struct Copied {
    copy: Option<*mut u8>,
    base: *mut u8,
    bytes: usize,
}

struct Locked {
    /// First, so that it is dropped first (invariant 2).
    guard: MutexGuard<'static, Ranges>,
    heap: Arc<Heap>,
    copies: Vec<Copied>,
}

struct Held {
    locked: Vec<Locked>,
    list: MutexGuard<'static, Vec<Weak<Heap>>>,
}

/// Has children of this process get copies of a heap.
pub(super) fn register(heap: &Arc<Heap>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: invariant 4: functions of C's convention that stay as long as this library.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
    let mut heaps = HEAPS.lock().unwrap_or_else(PoisonError::into_inner);
    heaps.retain(|heap| heap.strong_count() > 0);
    heaps.push(Arc::downgrade(heap));
}

extern "C" fn prepare() {
    set_busy(true);
    let list = HEAPS.lock().unwrap_or_else(PoisonError::into_inner);
    let heaps: Vec<Arc<Heap>> = list.iter().filter_map(Weak::upgrade).collect();
    let locked = heaps.into_iter().map(|heap| {
        let guard = heap.lock();
        // SAFETY: invariant 2: the heap outlives the guard.
        let guard: MutexGuard<'static, Ranges> = unsafe { std::mem::transmute(guard) };
        let copies = match heap.is_private() {
            true => Vec::new(), // inherited as any private memory is
            false => copies(&heap, &guard),
        };
        Locked {
            guard,
            heap,
            copies,
        }
    });
    let locked = locked.collect();
    // SAFETY: invariant 1.
    unsafe { *HELD.0.get() = Some(Held { locked, list }) };
}

/// Takes what `prepare` has left.
fn held() -> Option<Held> {
    // SAFETY: invariant 1.
    unsafe { (*HELD.0.get()).take() }
}

extern "C" fn parent() {
    let Some(Held { locked, list }) = held() else {
        return;
    };
    let mut heaps = Vec::new();
    for Locked {
        guard,
        heap,
        copies,
    } in locked
    {
        for copied in copies {
            if let Some(copy) = copied.copy {
                // SAFETY: invariant 3; nobody else knows it.
                unsafe { libc::munmap(copy.cast(), copied.bytes) };
            }
        }
        drop(guard);
        heaps.push(heap);
    }
    drop(list);
    set_busy(false);
}

extern "C" fn child() {
    let Some(Held { locked, list }) = held() else {
        return;
    };
    let mut heaps = Vec::new();
    for Locked {
        guard,
        heap,
        copies,
    } in locked
    {
        for copied in copies {
            settle(&copied);
        }
        heap.make_private();
        drop(guard);
        heaps.push(heap);
    }
    drop(list);
    set_busy(false);
}

/// Puts a copy, or memory that nobody may touch, where the parent has its heap.
fn settle(copied: &Copied) {
    let Copied { copy, base, bytes } = *copied;
    if let Some(copy) = copy {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: invariant 3; what lies at `base`, if anything, is the parent's mapping.
        let moved = unsafe { libc::mremap(copy.cast(), bytes, bytes, how, base) };
        if moved == base.cast() {
            return;
        }
    }
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: invariants 3 and 4: it replaces at most the parent's mapping.
    unsafe { libc::mmap(base.cast(), bytes, libc::PROT_NONE, how, -1, 0) };
    let text =
        b"osier: no memory for a forked child's copy of the shared heap: it must not use it\n";
    // SAFETY: invariant 4.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Copies what is given out of a heap, one copy for each of its mappings.
fn copies(heap: &Heap, ranges: &Ranges) -> Vec<Copied> {
    let mut copies = Vec::new();
    let Some(window) = heap.window() else {
        return copies;
    };
    window.each_mapping(|start, base, bytes| {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: invariant 4: at an address of the kernel's choice.
        let copy = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, how, -1, 0) };
        let copy = (copy != libc::MAP_FAILED).then_some(copy.cast::<u8>());
        copies.push(Copied { copy, base, bytes });
        let Some(copy) = copy else {
            return;
        };
        // Most of the time goes into making pages.
        // SAFETY: invariant 3; advice only, its failure is harmless.
        unsafe { libc::madvise(copy.cast(), bytes, libc::MADV_HUGEPAGE) };
        let end = start + bytes as u64;
        let given = ranges.all_given();
        for (offset, size) in given.filter(|(o, size)| *o >= start && o + size <= end) {
            let mut at = offset;
            while let Some((from, to)) = data(window.file(), window.start(), at, offset + size) {
                let there = (from - start) as usize;
                // SAFETY: invariants 1 and 3: both mappings have these bytes, which are given
                // out; what another thread writes meanwhile is copied as it is.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        base.wrapping_add(there),
                        copy.wrapping_add(there),
                        (to - from) as usize,
                    );
                }
                at = to;
            }
        }
    });
    copies
}

/// The first bytes of a part of a file that have pages: those without are zero, and reading
/// them would make some.
fn data(file: &OwnedFd, base: u64, from: u64, to: u64) -> Option<(u64, u64)> {
    if from >= to {
        return None;
    }
    let seek = |at: u64, whence| {
        // SAFETY: invariant 4.
        let found = unsafe { libc::lseek(file.as_raw_fd(), (base + at) as libc::off_t, whence) };
        match found {
            -1 => Err(std::io::Error::last_os_error().raw_os_error()),
            found => Ok((found as u64).saturating_sub(base)),
        }
    };
    let first = match seek(from, libc::SEEK_DATA) {
        Ok(at) => at,
        Err(Some(libc::ENXIO)) => return None,
        Err(_) => return Some((from, to)),
    };
    if first >= to {
        return None;
    }
    let first = first.max(from);
    let end = seek(first, libc::SEEK_HOLE).unwrap_or(to).min(to);
    (end > first).then_some((first, end))
}
