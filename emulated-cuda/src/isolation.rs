//! What keeps host code away from device memory, and catches kernels that leave
//! theirs.
//!
//! Device memory is a memfd that is mapped twice: at the address that the user
//! knows, where no thread may touch it, and at one that only the driver knows,
//! through which copies go. Kernels use the user's addresses, so these are opened
//! while a kernel runs, in one of two ways:
//!
//! | | open for | needs |
//! |---|---|---|
//! | keys | the worker thread alone, memory of the devices it may reach | protection keys of the processor |
//! | windows | all threads while a kernel runs | nothing |
//!
//! A long search for other faults may leave it open. The ways are incomplete: the driver's own mapping can be hit by a wild pointer,
//! and with windows a host thread that touches device memory while a kernel runs
//! is not noticed. A stray access of host code ends in SIGSEGV, with a line that
//! names the allocation; one of a kernel ends the kernel with an illegal address.
//!
//! # Sources
//! Linux man pages pkeys(7), sigaction(2).

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::fiber;

/// How device memory is closed to the host.
#[derive(Debug)]
pub enum Isolation {
    /// A protection key per device, and one for memory that several may reach.
    Keys(Vec<u32>),
    /// Pages are opened while a kernel runs.
    Windows,
    /// It is open at all times.
    Open,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Keys where the processor has enough, else windows.
    Keys,
    /// Windows.
    Windows,
    /// None.
    Open,
}

impl Isolation {
    /// Isolates the memory of `devices` devices.
    pub fn new(devices: usize, wanted: Wanted) -> Isolation {
        if wanted == Wanted::Open {
            return Isolation::Open;
        }
        let mut taken = Vec::new();
        if wanted == Wanted::Keys {
            for _ in 0..devices + 1 {
                // SAFETY: takes two numbers; PKEY_DISABLE_ACCESS is 1.
                let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0 as c_long, 1 as c_long) };
                if key <= 0 {
                    break;
                }
                taken.push(key as u32);
            }
        }
        if taken.len() == devices + 1 {
            return Isolation::Keys(taken);
        }
        for key in taken {
            // SAFETY: a key that was allocated above and is not in use.
            unsafe { libc::syscall(libc::SYS_pkey_free, c_long::from(key)) };
        }
        Isolation::Windows
    }

    /// Closes a fresh mapping: `owner` is its device, or `None` if several
    /// devices may reach it.
    pub fn close(&self, start: u64, bytes: u64, owner: Option<usize>) {
        match self {
            Isolation::Keys(keys) => {
                let key = keys[owner.map_or(0, |d| d + 1)];
                // SAFETY: the range is a mapping of ours (the callers map it just
                // before), and no reference into it exists.
                unsafe {
                    libc::syscall(
                        libc::SYS_pkey_mprotect,
                        start,
                        bytes,
                        c_long::from(libc::PROT_READ | libc::PROT_WRITE),
                        c_long::from(key),
                    )
                };
            }
            Isolation::Windows => protect(start, bytes, libc::PROT_NONE),
            Isolation::Open => protect(start, bytes, libc::PROT_READ | libc::PROT_WRITE),
        }
    }

    /// Opens memory for a kernel of the worker thread: of `devices`, or the
    /// given ranges.
    pub fn open(&self, devices: &[usize], ranges: &[(u64, u64)]) {
        match self {
            Isolation::Keys(keys) => {
                let mut rights = !0u32 << 2;
                for device in devices {
                    rights &= !(3 << (2 * keys[device + 1]));
                }
                write_rights(rights & !(3 << (2 * keys[0])));
            }
            Isolation::Windows => {
                for &(start, bytes) in ranges {
                    protect(start, bytes, libc::PROT_READ | libc::PROT_WRITE);
                }
            }
            Isolation::Open => {}
        }
    }

    /// Closes what `open` has opened.
    pub fn shut(&self, ranges: &[(u64, u64)]) {
        match self {
            Isolation::Keys(_) => write_rights(!0 << 2),
            Isolation::Windows => {
                for &(start, bytes) in ranges {
                    protect(start, bytes, libc::PROT_NONE);
                }
            }
            Isolation::Open => {}
        }
    }
}

/// Whether an address is one of device memory.
pub fn is_device(address: u64) -> bool {
    let start = DEVICE_START.load(Ordering::Relaxed) as u64;
    let end = DEVICE_END.load(Ordering::Relaxed) as u64;
    (start..end).contains(&address)
}

fn protect(start: u64, bytes: u64, rights: c_int) {
    // SAFETY: the range is a mapping of ours, without references into it.
    unsafe { libc::mprotect(start as *mut c_void, bytes as usize, rights) };
}

/// Two bits per key: no access, no writing. Only called where keys were allocated.
fn write_rights(rights: u32) {
    // SAFETY: the processor has protection keys, for some were allocated; the
    // rights of key 0, that of all other memory, are full.
    unsafe {
        std::arch::asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0);
    }
}

/// Where device addresses lie: start and end, for the handler.
static DEVICE_START: AtomicUsize = AtomicUsize::new(0);
static DEVICE_END: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
static CAUGHT: AtomicUsize = AtomicUsize::new(0);
static IN_KERNEL: AtomicBool = AtomicBool::new(false);

/// Installs the handler; device addresses are `start..end`.
pub fn watch(start: u64, end: u64) {
    DEVICE_START.store(start as usize, Ordering::Relaxed);
    DEVICE_END.store(end as usize, Ordering::Relaxed);
    // SAFETY: all-zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: as above.
    let old: libc::sigaction = unsafe { std::mem::zeroed() };
    let old = Box::into_raw(Box::new(old));
    PREVIOUS.store(old, Ordering::Release);
    // SAFETY: both are valid; the handler is as a handler must be, see there.
    unsafe { libc::sigaction(libc::SIGSEGV, &action, old) };
    // A processor reports an access across the end of mapped files so.
    // SAFETY: as above.
    unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
}

/// Gives the worker thread a stack for the handler: a kernel's may be full.
pub fn handler_stack() {
    let bytes = 64 * 1024;
    let stack = Box::leak(vec![0u8; bytes].into_boxed_slice());
    let given = libc::stack_t {
        ss_sp: stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: bytes,
    };
    // SAFETY: the stack lives as long as the process.
    unsafe { libc::sigaltstack(&given, std::ptr::null_mut()) };
}

/// While true, a fault of this thread ends the kernel.
pub fn kernel_runs(runs: bool) {
    IN_KERNEL.store(runs, Ordering::Release);
    if runs {
        CAUGHT.store(0, Ordering::Release);
    }
}

/// The address at which the last kernel faulted.
pub fn caught() -> u64 {
    CAUGHT.load(Ordering::Acquire) as u64
}

/// Only loads, stores, `write` and, for a thread that runs no kernel, what the
/// previous handler does: all may be done in a handler.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system gives a valid siginfo of a fault.
    let info = unsafe { &*info };
    // SAFETY: as above.
    let address = unsafe { info.si_addr() } as usize;
    if IN_KERNEL.load(Ordering::Acquire) && fiber::is_kernel_thread() {
        CAUGHT.store(address.max(1), Ordering::Release);
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the system gives a valid context, which is ours to change.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        registers[libc::REG_RSP as usize] = fiber::scheduler_stack() as i64;
        registers[libc::REG_RIP as usize] = fiber::resume_address() as i64;
        return;
    }
    let device = DEVICE_START.load(Ordering::Relaxed)..DEVICE_END.load(Ordering::Relaxed);
    if device.contains(&address) {
        let mut line = *b"emulated cuda: host code touches device memory at 0x0000000000000000 (hint: copy it, or use pinned memory)\n";
        let start = 52;
        for digit in 0..16 {
            line[start + digit] = b"0123456789abcdef"[(address >> (60 - 4 * digit)) & 15];
        }
        // SAFETY: the line is valid for its length.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    }
    let previous = PREVIOUS.load(Ordering::Acquire);
    if previous.is_null() {
        return;
    }
    // What was installed before us decides; the instruction runs again.
    // SAFETY: `watch` has put a valid action there.
    unsafe { libc::sigaction(signal, previous, std::ptr::null_mut()) };
}
