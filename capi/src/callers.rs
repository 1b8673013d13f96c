//! Caller: the place in the C program that findings and hang reports name.
//!
//! The stack is unwound to the first frame outside of this library, only where somebody
//! wants to know: at a post if checks are on, and at a wait that has become long. So a call
//! costs nothing for it. An address gets its name, from the program's symbols and lines,
//! when it is printed.
//!
//! | the object has | a caller is called |
//! |---|---|
//! | lines (`-g`) | `halo.c:42 (exchange)` |
//! | symbols | `exchange (halo+0x11ad)` |
//! | neither | `halo+0x11ad` |

use crate::objects::lock;
use osier_engine::check::Callers;
use std::collections::HashMap;
use std::ffi::CStr;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

/// For the library.
pub const CALLERS: Callers = Callers { find, name };

/// Letters of a function's name that are shown.
const FUNCTION_LETTERS: usize = 48;

/// The object that an address lies in: its file, and where it begins.
fn object(address: usize) -> Option<(String, usize)> {
    // SAFETY: it is plain data; zero is a value of each field.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the answer has room; an address that lies nowhere is answered with 0.
    let found = unsafe { libc::dladdr(address as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the linker's own string, which stays while the object is loaded.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((file.to_string_lossy().into_owned(), info.dli_fbase as usize))
}

/// The addresses of this library's code.
fn ours() -> &'static Range<usize> {
    static OURS: OnceLock<Range<usize>> = OnceLock::new();
    OURS.get_or_init(|| {
        let inside = ours as fn() -> &'static Range<usize> as usize;
        let Some((_, base)) = object(inside) else {
            return 0..0;
        };
        let mut search = (base, 0..0);
        // SAFETY: the function keeps to what it is given, and `search` outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(segments), (&raw mut search).cast()) };
        search.1
    })
}

/// Finds the span of the object that begins at a base.
unsafe extern "C" fn segments(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: `ours` hands down its own pair, which no one else uses meanwhile.
    let (base, span) = unsafe { &mut *search.cast::<(usize, Range<usize>)>() };
    // SAFETY: the linker hands out what is valid during the call.
    let info = unsafe { &*info };
    let count = usize::from(info.dlpi_phnum);
    if info.dlpi_addr as usize != *base || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the linker says that `count` headers lie there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, count) };
    let loaded = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    let end = loaded.map(|h| (h.p_vaddr + h.p_memsz) as usize).max();
    *span = *base..*base + end.unwrap_or(0);
    1
}

/// The return address of the call that this thread has made of the library.
fn find() -> Option<usize> {
    let ours = ours();
    let mut found = None;
    let mut inside = false;
    backtrace::trace(|frame| {
        let address = frame.ip() as usize;
        if ours.contains(&address) {
            inside = true;
            return true;
        }
        // What is above the first frame of ours are functions of the unwinder.
        if inside {
            found = Some(address);
        }
        !inside
    });
    found
}

/// The frames of the functions that this thread is in, outside of this library, innermost
/// first: from the stack pointer of each to the return address that it has been called with.
pub fn frames() -> Vec<Range<usize>> {
    let ours = ours();
    let mut pointers = Vec::new();
    let mut inside = false;
    backtrace::trace(|frame| {
        let is_ours = ours.contains(&(frame.ip() as usize));
        inside |= is_ours;
        if inside && !is_ours {
            pointers.push(frame.sp() as usize);
        }
        true
    });
    let pairs = pointers.windows(2).map(|pair| (pair[0], pair[1]));
    // The frame of a function ends where that of its caller begins, but for the address.
    let frames = pairs.map(|(low, high)| low..high.saturating_sub(size_of::<usize>()));
    frames.filter(|frame| !frame.is_empty()).collect()
}

fn name(address: usize) -> String {
    static KNOWN: Mutex<Option<HashMap<usize, String>>> = Mutex::new(None);
    let mut known = lock(&KNOWN);
    let known = known.get_or_insert_default();
    let made = known.entry(address).or_insert_with(|| make_name(address));
    made.clone()
}

fn make_name(address: usize) -> String {
    let mut line = None;
    let mut function = None;
    // A return address is behind the call that it belongs to.
    backtrace::resolve((address - 1) as *mut libc::c_void, |symbol| {
        if line.is_none() && function.is_none() {
            let file = symbol.filename().map(Path::to_path_buf);
            line = file.zip(symbol.lineno());
            function = symbol.name().map(|name| short(&name.to_string()));
        }
    });
    let (file, base) = object(address).unwrap_or_else(|| ("?".into(), 0));
    let file = Path::new(&file).file_name().unwrap_or_default();
    let file = file.to_string_lossy();
    let offset = address.saturating_sub(base);
    match (line, function) {
        (Some((source, line)), Some(function)) => {
            format!("{}:{line} ({function})", source.display())
        }
        (Some((source, line)), None) => format!("{}:{line}", source.display()),
        (None, Some(function)) => format!("{function} ({file}+{offset:#x})"),
        (None, None) => format!("{file}+{offset:#x}"),
    }
}

/// A name that is not too long for a line of a report.
fn short(name: &str) -> String {
    match name.char_indices().nth(FUNCTION_LETTERS) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.into(),
    }
}
