//! Threads of a block as fibers: each has a stack, and runs until it meets a
//! barrier or ends.
//!
//! # Invariants
//! 1. Only the worker thread runs kernels, one at a time.
//! 2. A fiber is resumed only by the scheduler, and gives back only to it.
//!
//! # Sources
//! System V ABI, AMD64 supplement, section 3.2: registers that a call preserves.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a fiber's stack, and of the closed page below it.
pub const STACK: usize = 128 * 1024;
const GUARD: usize = 4096;

thread_local! {
    static KERNEL_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Where the scheduler's registers lie while a fiber runs.
static SCHEDULER: AtomicUsize = AtomicUsize::new(0);

/// Says that this is the thread that runs kernels.
pub fn become_kernel_thread() {
    KERNEL_THREAD.set(true);
}

/// True on the thread that runs kernels.
pub fn is_kernel_thread() -> bool {
    KERNEL_THREAD.get()
}

/// The scheduler's stack pointer, for a handler that abandons a fiber.
pub fn scheduler_stack() -> usize {
    SCHEDULER.load(Ordering::Relaxed)
}

/// Code that goes on with the registers at the stack pointer.
pub fn resume_address() -> usize {
    resume as *const () as usize
}

/// Saves the registers, keeps the stack pointer in `*save`, goes on at `to`.
#[unsafe(naked)]
unsafe extern "C" fn switch(save: *mut usize, to: usize) {
    core::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn resume() {
    core::arch::naked_asm!(
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp", "cld", "ret",
    )
}

/// A stack with a computation on it.
pub struct Fiber {
    base: usize,
    pointer: Cell<usize>,
}

impl Fiber {
    /// Maps a stack; `None` without memory.
    pub fn new() -> Option<Fiber> {
        // SAFETY: a new private mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                GUARD + STACK,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the first page of the mapping, which nothing uses.
        unsafe { libc::mprotect(base, GUARD, libc::PROT_NONE) };
        Some(Fiber {
            base: base as usize,
            pointer: Cell::new(0),
        })
    }

    /// Lets the fiber begin with `main` when it is resumed next. `main` must not
    /// return: it ends by [`give_back`].
    pub fn begin(&self, main: extern "C" fn()) {
        let top = self.base + GUARD + STACK;
        // Six registers, and the address to which `ret` goes: the stack pointer
        // is then 8 below a multiple of 16, as at the entry of a function.
        let pointer = top - 16 - 6 * 8;
        for slot in 0..6 {
            // SAFETY: within the stack, which nothing else uses.
            unsafe { ((pointer + 8 * slot) as *mut usize).write(0) };
        }
        // SAFETY: as above.
        unsafe { ((top - 16) as *mut usize).write(main as *const () as usize) };
        self.pointer.set(pointer);
    }

    /// Runs the fiber until it gives back.
    pub fn run(&self) {
        RUNNING.store(self.pointer.as_ptr() as usize, Ordering::Relaxed);
        // SAFETY: `pointer` is where `begin` or `give_back` has laid registers;
        // by invariant 2 nobody else runs this fiber.
        unsafe { switch(SCHEDULER.as_ptr(), self.pointer.get()) };
    }
}

/// Where the running fiber's stack pointer is to be kept.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Goes back from a fiber to the scheduler.
pub fn give_back() {
    let save = RUNNING.load(Ordering::Relaxed) as *mut usize;
    // SAFETY: called on a fiber, so `RUNNING` is its cell, and the scheduler has
    // laid its registers at `SCHEDULER`.
    unsafe { switch(save, SCHEDULER.load(Ordering::Relaxed)) };
}

impl Drop for Fiber {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; no fiber runs on it, by invariant 2.
        unsafe { libc::munmap(self.base as *mut _, GUARD + STACK) };
    }
}
