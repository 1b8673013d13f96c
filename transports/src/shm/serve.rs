//! The heap of a rank as the allocator of its process.
//!
//! ```text
//! Rust program     #[global_allocator] SharedAlloc ─┐
//! other programs   malloc of `libosier_heap.so` ────┴─> heap of the process's first rank
//!                                                   └─> the system's allocator
//! ```
//!
//! An allocator is one per process, so is the heap that serves it: that of the first rank
//! that joins, for good, since its blocks may live as long as the process. No other state of
//! this library belongs to the process but the list of [`super::fork`].
//!
//! # Invariants
//! 1. `SERVING` is null, or a heap whose count is never given back; it is set once.
//! 2. Memory comes from the heap if the heap has given it out at that address, and from the
//!    system otherwise: who gives it back asks by address.
//! 3. Callers of [`GlobalAlloc`] keep its contract: layouts are those of the block, and sizes
//!    are not zero and do not overflow.
//! 4. The loader's functions take names of C's and structures of ours, and give back null or
//!    an address of what has the name. Nobody else has a function `osier_heap_serve`; it
//!    takes a [`Served`], which stays.

use super::heap::Heap;
use super::rank::ShmRank;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Smaller allocations stay with the system: a message of them is copied anyway.
pub const SHARED_FROM_BYTES: usize = 16 << 10;

static SERVING: AtomicPtr<Heap> = AtomicPtr::new(std::ptr::null_mut());
/// The program has [`SharedAlloc`].
static WANTED: AtomicBool = AtomicBool::new(false);

#[inline]
fn serving() -> Option<&'static Heap> {
    // SAFETY: invariant 1.
    unsafe { SERVING.load(Ordering::Acquire).as_ref() }
}

/// Global allocator of programs whose large allocations peers read in place.
///
/// Allocations of 16 KiB and more come from the shared heap of the process's rank once it has
/// joined its job; smaller ones, earlier ones, and what does not fit, from the system's
/// allocator.
///
/// ```ignore
/// #[global_allocator]
/// static ALLOCATOR: osier::SharedAlloc = osier::SharedAlloc;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedAlloc;

impl SharedAlloc {
    #[inline]
    fn shared(layout: Layout, zeroed: bool) -> Option<*mut u8> {
        if !WANTED.load(Ordering::Relaxed) {
            WANTED.store(true, Ordering::Relaxed);
        }
        if layout.size() < SHARED_FROM_BYTES {
            return None;
        }
        serving()?.malloc(layout.size(), layout.align(), zeroed)
    }
}

// SAFETY: each block comes from one of two allocators, and goes back to it by invariant 2.
unsafe impl GlobalAlloc for SharedAlloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Self::shared(layout, false) {
            Some(at) => at,
            // SAFETY: invariant 3.
            None => unsafe { System.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match Self::shared(layout, true) {
            Some(at) => at,
            // SAFETY: invariant 3.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // Blocks of the heap are never smaller: `realloc` moves them.
        if layout.size() >= SHARED_FROM_BYTES && serving().is_some_and(|heap| heap.free(ptr)) {
            return;
        }
        // SAFETY: invariants 2 and 3.
        unsafe { System.dealloc(ptr, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let is_large = layout.size() >= SHARED_FROM_BYTES;
        if let Some(heap) = serving()
            && (is_large || bytes >= SHARED_FROM_BYTES)
        {
            let is_shared = is_large && heap.owns(ptr);
            if is_shared && bytes >= SHARED_FROM_BYTES && heap.resize(ptr, bytes) {
                return ptr;
            }
            if is_shared || !is_large {
                // SAFETY: invariant 3: the size does not overflow.
                let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
                // SAFETY: invariant 3: it is not zero.
                let to = unsafe { self.alloc(wanted) };
                if !to.is_null() {
                    let kept = layout.size().min(bytes);
                    // SAFETY: invariant 3: both have so many bytes, and the second is new.
                    unsafe { std::ptr::copy_nonoverlapping(ptr, to, kept) };
                    // SAFETY: invariant 3.
                    unsafe { self.dealloc(ptr, layout) };
                }
                return to;
            }
        }
        // SAFETY: invariants 2 and 3: a block of the system's.
        unsafe { System.realloc(ptr, layout, bytes) }
    }
}

/// What `libosier_heap.so` calls; it has the same structure. Its `malloc` is that of the
/// whole process, and finds the library that joins the job in this way.
#[repr(C)]
struct Served {
    version: usize,
    alloc: extern "C" fn(usize, usize, bool) -> *mut c_void,
    free: extern "C" fn(*mut c_void) -> bool,
    resize: extern "C" fn(*mut c_void, usize) -> bool,
    usable: extern "C" fn(*const c_void) -> usize,
    owns: extern "C" fn(*const c_void) -> bool,
}

static SERVED: Served = Served {
    version: 1,
    alloc,
    free,
    resize,
    usable,
    owns,
};

extern "C" fn alloc(bytes: usize, align: usize, zeroed: bool) -> *mut c_void {
    let at = serving().and_then(|heap| heap.malloc(bytes, align, zeroed));
    at.map_or(std::ptr::null_mut(), <*mut u8>::cast)
}

extern "C" fn free(ptr: *mut c_void) -> bool {
    serving().is_some_and(|heap| heap.owns(ptr.cast()) && heap.free(ptr.cast()))
}

extern "C" fn resize(ptr: *mut c_void, bytes: usize) -> bool {
    serving().is_some_and(|heap| heap.resize(ptr.cast(), bytes))
}

extern "C" fn usable(ptr: *const c_void) -> usize {
    let found = serving().and_then(|heap| heap.usable(ptr.cast()));
    found.unwrap_or(0)
}

extern "C" fn owns(ptr: *const c_void) -> bool {
    serving().is_some_and(|heap| heap.owns(ptr.cast()))
}

/// What takes [`Served`] in `libosier_heap.so`, if it is loaded.
fn preloaded() -> Option<unsafe extern "C" fn(*const Served) -> bool> {
    // SAFETY: invariant 4.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"osier_heap_serve".as_ptr()) };
    // SAFETY: invariant 4; null is none.
    unsafe { std::mem::transmute(found) }
}

/// Keeps the library that has this code loaded: the process's `malloc` calls it.
fn stay() {
    // SAFETY: invariant 4: all zeros are such a structure.
    let mut own: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: invariant 4.
    if unsafe { libc::dladdr((&raw const SERVED).cast(), &raw mut own) } != 0 {
        let how = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: invariant 4: a name of the loader's; nothing new is loaded. The program itself
        // has another name, and stays anyway.
        unsafe { libc::dlopen(own.dli_fname, how) };
    }
}

/// Has the heap of a rank that joins serve the process's allocator, if that is Osier's and
/// has no heap yet.
pub fn serve(rank: &ShmRank) {
    let preloaded = preloaded();
    if preloaded.is_none() && !WANTED.load(Ordering::Relaxed) || serving().is_some() {
        return;
    }
    let heap = Arc::into_raw(rank.heap().into_inner()).cast_mut();
    let none = std::ptr::null_mut();
    let set = SERVING.compare_exchange(none, heap, Ordering::AcqRel, Ordering::Acquire);
    if set.is_err() {
        // SAFETY: invariant 1: the count that was just taken, and not set.
        drop(unsafe { Arc::from_raw(heap) });
        return;
    }
    if let Some(take) = preloaded {
        stay();
        // SAFETY: invariant 4.
        unsafe { take(&raw const SERVED) };
    }
}
