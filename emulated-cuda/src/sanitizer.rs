//! Where kernels were compiled with an address sanitizer (as by `cargo xtask test`),
//! it is told which bytes around an allocation are nobody's, so that
//! a kernel's access is checked to the byte rather than to the page.
//!
//! # Sources
//! The sanitizers' `asan_interface.h`.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::OnceLock;

type Poison = unsafe extern "C" fn(*const c_void, usize);

/// The sanitizer's function of a name, if one is loaded.
fn function(name: &std::ffi::CStr) -> Option<Poison> {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the sanitizer's interface gives both functions this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, Poison>(found) })
}

/// Says that of a mapping only some bytes belong to somebody.
pub fn reveal(mapping: Range<u64>, used: Range<u64>) {
    static FUNCTIONS: OnceLock<Option<(Poison, Poison)>> = OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        let poison = function(c"__asan_poison_memory_region")?;
        Some((poison, function(c"__asan_unpoison_memory_region")?))
    });
    let Some((poison, unpoison)) = functions else {
        return;
    };
    for (mark, range) in [
        (unpoison, mapping.clone()),
        (poison, mapping.start..used.start),
        (poison, used.end..mapping.end),
    ] {
        let bytes = range.end.saturating_sub(range.start) as usize;
        // SAFETY: addresses of our own mapping; only the sanitizer's notes change.
        unsafe { mark(range.start as *const c_void, bytes) };
    }
}
