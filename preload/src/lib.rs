//! `libosier_heap.so`: `malloc` and its kin of unmodified programs, in C or Python, whose
//! large blocks come from the shared heap, where peers read them in place.
//!
//! `osier run --shared-heap` preloads it. Until the process joins a job, all memory is the C
//! library's. Then the library that joins, wherever it is in the process, looks for
//! [`osier_heap_serve`] and hands over the functions of its rank's heap.
//!
//! ```text
//! malloc(n)   n < 16 KiB, or before the join, or no room   __libc_malloc
//!             else                                         the rank's heap
//! free(p)     p lies in the heap                           the rank's heap
//!             else                                         __libc_free
//! ```
//!
//! The library allocates nothing itself, and calls the C library by names that are not
//! interposed: it needs no `dlsym` before `main`, which may allocate.
//!
//! # Invariants
//! 1. `HEAP` is null, or functions that stay, in the form of [`Heap`]; it is set once.
//! 2. Memory belongs to the heap that says so by address, and to the C library otherwise.
//! 3. A function with the name of one of C's has its signature, and its contract.

#![cfg(target_os = "linux")]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Smaller blocks stay with the C library.
const FROM_BYTES: usize = 16 << 10;
/// What the C library aligns blocks to.
const ALIGN: usize = 16;
/// Of [`Heap`].
const VERSION: usize = 1;

/// Functions of a rank's heap; the library that joins the job has the same structure.
#[repr(C)]
pub struct Heap {
    version: usize,
    alloc: extern "C" fn(usize, usize, bool) -> *mut c_void,
    free: extern "C" fn(*mut c_void) -> bool,
    resize: extern "C" fn(*mut c_void, usize) -> bool,
    usable: extern "C" fn(*const c_void) -> usize,
    owns: extern "C" fn(*const c_void) -> bool,
}

static HEAP: AtomicPtr<Heap> = AtomicPtr::new(null_mut());

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(ptr: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
    fn __libc_free(ptr: *mut c_void);
}

/// Takes the heap of the rank that this process has joined as; false if there is one already,
/// or if it is of another version.
///
/// # Safety
/// `heap` points to a structure that begins with its version and, if that is known here, is
/// a [`Heap`]; it stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_heap_serve(heap: *const Heap) -> bool {
    // SAFETY: the caller's contract.
    let version = unsafe { heap.cast::<usize>().read() };
    let set = |heap: *const Heap| {
        HEAP.compare_exchange(
            null_mut(),
            heap.cast_mut(),
            Ordering::AcqRel,
            Ordering::Acquire,
        )
    };
    version == VERSION && set(heap).is_ok()
}

#[inline]
fn heap() -> Option<&'static Heap> {
    // SAFETY: invariant 1.
    unsafe { HEAP.load(Ordering::Acquire).as_ref() }
}

/// The heap that has a block.
#[inline]
fn owner(ptr: *const c_void) -> Option<&'static Heap> {
    heap().filter(|heap| (heap.owns)(ptr))
}

/// Calls a function and leaves `errno` as it was.
fn keeping_errno<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: of this thread.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: its own, as long as it lives.
    let before = unsafe { at.read() };
    let result = f();
    // SAFETY: as before.
    unsafe { at.write(before) };
    result
}

fn set_errno(to: c_int) {
    // SAFETY: of this thread.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: its own, as long as it lives.
    unsafe { at.write(to) };
}

/// Ends the process, as the C library does for the same.
#[cold]
fn no_block() -> ! {
    let text = b"osier: free() or realloc() of what is no block, or was freed before\n";
    // SAFETY: a descriptor and bytes of ours.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    // SAFETY: no arguments.
    unsafe { libc::abort() }
}

/// A block of the heap, if it is large enough and there is room; `errno` stays.
#[inline]
fn shared(bytes: usize, align: usize, zeroed: bool) -> Option<*mut c_void> {
    if bytes < FROM_BYTES {
        return None;
    }
    let heap = heap()?;
    let at = keeping_errno(|| (heap.alloc)(bytes, align, zeroed));
    (!at.is_null()).then_some(at)
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    match shared(bytes, ALIGN, false) {
        Some(at) => at,
        // SAFETY: invariant 3.
        None => unsafe { __libc_malloc(bytes) },
    }
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    let all = count.checked_mul(bytes);
    match all.and_then(|all| shared(all, ALIGN, true)) {
        Some(at) => at,
        // SAFETY: invariant 3.
        None => unsafe { __libc_calloc(count, bytes) },
    }
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    if let Some(heap) = owner(ptr) {
        match keeping_errno(|| (heap.free)(ptr)) {
            true => return,
            false => no_block(),
        }
    }
    // SAFETY: invariants 2 and 3.
    unsafe { __libc_free(ptr) };
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(ptr: *mut c_void, bytes: usize) -> *mut c_void {
    if ptr.is_null() {
        // SAFETY: invariant 3.
        return unsafe { malloc(bytes) };
    }
    let owner = owner(ptr);
    if owner.is_some() && bytes == 0 {
        // As the C library does.
        // SAFETY: invariant 3.
        unsafe { free(ptr) };
        return null_mut();
    }
    let old = match owner {
        Some(heap) => {
            if bytes >= FROM_BYTES && (heap.resize)(ptr, bytes) {
                return ptr;
            }
            match (heap.usable)(ptr) {
                0 => no_block(),
                bytes => bytes,
            }
        }
        // SAFETY: invariant 3.
        None if bytes >= FROM_BYTES && heap().is_some() => unsafe { of_libc(ptr) },
        None => usize::MAX,
    };
    // Blocks that were large before the join stay where they are.
    if owner.is_none() && old >= FROM_BYTES {
        // SAFETY: invariants 2 and 3.
        return unsafe { __libc_realloc(ptr, bytes) };
    }
    // SAFETY: invariant 3.
    let to = unsafe { malloc(bytes) };
    if !to.is_null() {
        // SAFETY: both have so many bytes, and the second is new.
        unsafe { std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), to.cast(), old.min(bytes)) };
        // SAFETY: invariant 3.
        unsafe { free(ptr) };
    }
    to
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(ptr: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: invariant 3.
        Some(all) => unsafe { realloc(ptr, all) },
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    let align = align.checked_next_power_of_two().unwrap_or(usize::MAX);
    // More than half of the address space is the C library's to refuse.
    let fits = align <= isize::MAX as usize;
    match fits.then(|| shared(bytes, align, false)).flatten() {
        Some(at) => at,
        // SAFETY: invariant 3.
        None => unsafe { __libc_memalign(align, bytes) },
    }
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: invariant 3.
    unsafe { memalign(align, bytes) }
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: invariant 3.
    let at = keeping_errno(|| unsafe { memalign(align, bytes) });
    if at.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: invariant 3: a place for an address.
    unsafe { to.write(at) };
    0
}

/// # Safety
/// That of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> usize {
    match owner(ptr) {
        Some(heap) => (heap.usable)(ptr),
        // SAFETY: invariants 2 and 3.
        None => unsafe { of_libc(ptr) },
    }
}

/// `malloc_usable_size` of the C library, which has it by no other name.
///
/// # Safety
/// That of C's function.
unsafe fn of_libc(ptr: *mut c_void) -> usize {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        // SAFETY: a name of C's.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
        NEXT.store(next, Ordering::Relaxed);
    }
    type Size = unsafe extern "C" fn(*mut c_void) -> usize;
    // SAFETY: null, which is none, or the function of this name.
    let size: Option<Size> = unsafe { std::mem::transmute(next) };
    // SAFETY: invariant 3.
    size.map_or(0, |size| unsafe { size(ptr) })
}
