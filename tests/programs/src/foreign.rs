//! Device memory that another library has made: by calls of the driver's own.

use osier::devices::{Context, DeviceSlice, Memory};
use osier_kernels::debug;
use std::ffi::{CString, c_char, c_int, c_void};

/// How it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// By the driver's plain call.
    Plain,
    /// From a pool that is exportable.
    Exportable,
    /// From a pool that is not.
    Pool,
    /// Mapped, not to be exported.
    Mapped,
}

/// `CUmemPoolProps`, and the front of it `CUmemAllocationProp`.
#[repr(C)]
struct Props {
    kind: c_int,
    handle_kinds: c_int,
    location: [c_int; 2],
    win32: *mut c_void,
    most_bytes: usize,
    rest: [u8; 56],
}

/// A function of the driver's.
fn function(name: &str) -> *mut c_void {
    let library = debug::value(debug::CUDA_LIBRARY);
    let library = library.unwrap_or_else(|| "libcuda.so.1".into());
    let library = CString::new(library.into_encoded_bytes()).expect("a path");
    let name = CString::new(name).expect("a name");
    // SAFETY: a C string; the library is loaded already.
    let open = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    assert!(!open.is_null(), "{library:?}");
    // SAFETY: an open library and a C string.
    let found = unsafe { libc::dlsym(open, name.as_ptr().cast::<c_char>()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

macro_rules! call {
    ($name:literal, $($arg:expr => $ty:ty),*) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> c_int;
        // SAFETY: the signature is that of the driver's header.
        let function = unsafe { std::mem::transmute::<*mut c_void, Function>(function($name)) };
        // SAFETY: places for what is written, and handles that live.
        let code = unsafe { function($($arg),*) };
        assert_eq!(code, 0, $name);
    }};
}

fn props(device: c_int, exportable: bool) -> Props {
    Props {
        kind: 1,
        handle_kinds: c_int::from(exportable),
        location: [1, device],
        win32: std::ptr::null_mut(),
        most_bytes: 0,
        rest: [0; 56],
    }
}

/// Memory that stays until the process ends.
pub fn memory(context: &Context, how: Foreign, bytes: usize) -> DeviceSlice<u8> {
    let device = context.ordinal();
    let mut primary = std::ptr::null_mut::<c_void>();
    call!("cuDevicePrimaryCtxRetain", &mut primary => *mut *mut c_void, device => c_int);
    call!("cuCtxPushCurrent_v2", primary => *mut c_void);
    let mut at = 0u64;
    match how {
        Foreign::Plain => call!("cuMemAlloc_v2", &mut at => *mut u64, bytes => usize),
        Foreign::Exportable | Foreign::Pool => {
            let props = props(device, how == Foreign::Exportable);
            let (mut pool, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
            call!("cuMemPoolCreate", &mut pool => *mut *mut c_void, &props => *const Props);
            call!("cuStreamCreate", &mut stream => *mut *mut c_void, 1 => u32);
            call!("cuMemAllocFromPoolAsync", &mut at => *mut u64, bytes => usize, pool => *mut c_void, stream => *mut c_void);
            call!("cuStreamSynchronize", stream => *mut c_void);
        }
        Foreign::Mapped => {
            let props = props(device, false);
            let (size, mut handle) = (bytes.next_multiple_of(2 << 20), 0u64);
            call!("cuMemCreate", &mut handle => *mut u64, size => usize, &props => *const Props, 0 => u64);
            call!("cuMemAddressReserve", &mut at => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64);
            call!("cuMemMap", at => u64, size => usize, 0 => usize, handle => u64, 0 => u64);
            let access = [1, device, 3];
            call!("cuMemSetAccess", at => u64, size => usize, access.as_ptr() => *const c_int, 1 => usize);
        }
    }
    call!("cuCtxPopCurrent_v2", &mut primary => *mut *mut c_void);
    // SAFETY: nobody frees it.
    let memory = unsafe { Memory::found(context, at, bytes) };
    memory.and_then(DeviceSlice::of).expect("memory")
}
