//! What every entry point shares: errors with names, injected failures, and
//! pointers of the caller.
//!
//! # Invariants
//! 1. An entry point's pointer arguments are null or valid for what the driver's
//!    documentation says is read or written through them; the caller upholds it.
//!    [`Out`] and [`In`] are made from such arguments only, by being their types.
//! 2. No panic leaves an entry point.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::abi::{self, Code};
use crate::settings::settings;

/// Why an entry point does not succeed.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What the caller gets.
    pub code: Code,
    /// What was wrong and where; without it the code says all, such as "not ready".
    pub message: Option<String>,
}

/// Result of everything here.
pub type Result<T = ()> = std::result::Result<T, Fault>;

impl Fault {
    /// A code that says all.
    pub fn plain(code: Code) -> Fault {
        Fault {
            code,
            message: None,
        }
    }

    /// An error that is printed, with what was wrong.
    pub fn named(code: Code, message: impl Into<String>) -> Fault {
        Fault {
            code,
            message: Some(message.into()),
        }
    }
}

/// An invalid argument, named.
pub fn invalid(message: impl Into<String>) -> Fault {
    Fault::named(abi::ERROR_INVALID_VALUE, message)
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
    /// True on the thread that executes queued work.
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread executes queued work, so that host functions which call
/// the driver are refused.
pub fn become_worker() {
    WORKER.set(true);
}

static CALLS: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);

/// Whether a call may be unsafe while a stream is captured: it waits for, asks about or
/// changes what is no node of the graph. Of the driver's documentation, and what is like it; of
/// driver 580, allocations in the order of a stream that is not captured.
fn may_hinder_captures(name: &str) -> bool {
    matches!(
        name,
        "cuEventQuery"
            | "cuEventSynchronize"
            | "cuStreamQuery"
            | "cuStreamSynchronize"
            | "cuCtxSynchronize"
            | "cuModuleLoadData"
            | "cuModuleLoadDataEx"
            | "cuModuleLoadFatBinary"
            | "cuModuleUnload"
            | "cuGraphInstantiate_v2"
            | "cuGraphExecDestroy"
            | "cuGraphInstantiateWithFlags"
            | "cuMemAlloc_v2"
            | "cuMemAllocPitch_v2"
            | "cuMemAllocManaged"
            | "cuMemFree_v2"
            | "cuMemAllocAsync"
            | "cuMemAllocFromPoolAsync"
            | "cuMemFreeAsync"
            | "cuMemHostAlloc"
            | "cuMemFreeHost"
            | "cuMemHostRegister_v2"
            | "cuMemHostUnregister"
            | "cuIpcOpenMemHandle_v2"
            | "cuIpcCloseMemHandle"
            | "cuMemMap"
            | "cuMemUnmap"
            | "cuMemSetAccess"
    )
}

/// Runs the body of an entry point.
pub fn enter(name: &'static str, body: impl FnOnce() -> Result) -> Code {
    let done = catch_unwind(AssertUnwindSafe(|| {
        if WORKER.get() {
            return Err(Fault::named(
                abi::ERROR_NOT_PERMITTED,
                "a host function of a stream calls the driver",
            ));
        }
        note(name);
        if may_hinder_captures(name) {
            crate::graph::refuse_unsafe(name)?;
        }
        injected(name)?;
        crate::waits::wait_for_others()?;
        body()?;
        crate::waits::wait_for_room()
    }));
    match done {
        Ok(Ok(())) => abi::SUCCESS,
        Ok(Err(fault)) => {
            if let Some(message) = &fault.message {
                say(&format!("{name}: {message}"));
            }
            fault.code
        }
        Err(_) => {
            say(&format!("{name}: the emulated driver itself has failed"));
            abi::ERROR_UNKNOWN
        }
    }
}

/// Where the calls of this process are written, and how many there were.
struct Trace {
    file: Option<File>,
    /// Those that do something.
    calls: u64,
}

/// Writes a call down; the process may end here, as if it were killed.
fn note(name: &'static str) {
    static TRACE: Mutex<Option<Trace>> = Mutex::new(None);
    let settings = settings();
    if settings.trace.is_none() && settings.dies.is_none() {
        return;
    }
    let mut trace = TRACE.lock().unwrap_or_else(|e| e.into_inner());
    let trace = trace.get_or_insert_with(|| {
        let prefix = settings.trace.as_ref();
        let path = prefix.map(|prefix| format!("{prefix}.{}", std::process::id()));
        let file = path.and_then(|path| File::create(path).ok());
        Trace { file, calls: 0 }
    });
    // Asking changes nothing, and is done any number of times.
    let asks = [
        "cuCtx",
        "cuDevice",
        "cuPointer",
        "cuInit",
        "cuDriver",
        "cuThread",
    ];
    let passive = name.contains("Query") || name.contains("Get");
    if !passive && !asks.iter().any(|asks| name.starts_with(asks)) {
        trace.calls += 1;
    }
    if let Some(file) = &mut trace.file {
        // A file that cannot be written is noticed by who reads it.
        let _ = file.write_all(format!("{name}\n").as_bytes());
    }
    if settings.dies == Some(trace.calls) {
        // SAFETY: a signal to this process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
}

/// Notes that the call being made uses the legacy default stream.
pub fn legacy() {
    note("legacy default stream");
}

/// Prints a line and keeps it for `osier_emulated_last_fault`.
pub fn say(text: &str) {
    if settings().print {
        eprintln!("emulated cuda: {text}");
    }
    LAST.with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// The last named error of this thread, for tests and for messages: a text that
/// is valid until the thread's next one. Not an entry point of the real driver.
#[unsafe(no_mangle)]
pub extern "C" fn osier_emulated_last_fault() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// `OSIER_EMULATED_FAIL`: fails the n-th call of an entry point.
fn injected(name: &'static str) -> Result {
    let failures = &settings().failures;
    if failures.is_empty() {
        return Ok(());
    }
    let base = base_name(name);
    let mut calls = CALLS.lock().unwrap_or_else(|e| e.into_inner());
    let count = calls.get_or_insert_default().entry(base).or_insert(0);
    *count += 1;
    for failure in failures {
        if base_name(&failure.name) == base && failure.call == *count {
            return Err(Fault::named(
                failure.code,
                format!("failure injected at call {count}"),
            ));
        }
    }
    Ok(())
}

/// A name without `_v2` and the like.
pub fn base_name(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

/// A pointer of the caller through which one value is given back.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value; a null pointer is an error.
    pub fn set(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(invalid("a pointer for the result is null"));
        }
        // SAFETY: not null, so valid for a write by invariant 1; the caller may
        // have left it unaligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    pub fn set_if(self, value: T) {
        if !self.0.is_null() {
            let _ = self.set(value);
        }
    }

    /// The address, for arrays of which the caller gives the length.
    pub fn address(self) -> *mut T {
        self.0
    }
}

/// A pointer of the caller from which values are read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value; a null pointer is an error.
    pub fn read(self) -> Result<T> {
        self.at(0)
    }

    /// Reads the value at an index of an array.
    pub fn at(self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(invalid("a pointer to an argument is null"));
        }
        let at = self.0.wrapping_add(index);
        // SAFETY: not null, so valid for reads of the length that the caller has
        // given, by invariant 1; `index` is below it.
        Ok(unsafe { at.read_unaligned() })
    }

    /// True for a null pointer.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address.
    pub fn address(self) -> *const T {
        self.0
    }
}

impl In<std::ffi::c_void> {
    /// The address, which is only handed on.
    pub fn address_void(self) -> usize {
        self.0 as usize
    }
}

impl In<c_char> {
    /// Reads a C string.
    pub fn text(self) -> Result<String> {
        if self.0.is_null() {
            return Err(invalid("a text is null"));
        }
        // SAFETY: not null, so a C string by invariant 1.
        let text = unsafe { std::ffi::CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Defines entry points, and a function that lists them by name.
macro_rules! entries {
    ($( $(#[$meta:meta])* fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $body:block )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("`", stringify!($name), "` of the driver.")]
            ///
            /// # Safety
            /// Pointers are null or valid, as the driver's documentation has it.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> crate::abi::Code {
                crate::fault::enter(stringify!($name), move || $body)
            }
        )*
        /// Names and addresses of these entry points.
        pub fn entries() -> Vec<(&'static str, usize)> {
            vec![$((stringify!($name), $name as *const () as usize)),*]
        }
    };
}
pub(crate) use entries;
