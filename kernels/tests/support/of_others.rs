//! Graphs that another library captures, with the driver's own calls and in the mode of
//! torch: what this crate queues meanwhile becomes nodes.

use osier_kernels::{Context, Driver, Stream};
use std::ffi::{CString, c_int, c_uint, c_void};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
pub const GLOBAL: c_uint = 0;

type Handle = *mut c_void;

/// A function of the driver, by its name.
fn address(name: &str) -> Handle {
    let library = CString::new(Driver::get().unwrap().library()).unwrap();
    let symbol = CString::new(name).unwrap();
    // SAFETY: text that ends with zero; the library is open, so that nothing is loaded.
    let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: an open library; text that ends with zero.
    let at = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    assert!(!at.is_null(), "the driver has no {name}");
    at
}

/// Calls the driver; the code.
macro_rules! call {
    ($name:ident($($arg:expr => $ty:ty),*)) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> u32;
        // SAFETY: the signature is the driver's.
        let function: Function = unsafe { std::mem::transmute(address(stringify!($name))) };
        // SAFETY: what is handed over lives, and places are of their type.
        unsafe { function($($arg),*) }
    }};
}

/// Makes the primary context of a device current, as other libraries do.
fn enter(context: &Context) {
    let mut primary: Handle = std::ptr::null_mut();
    let device = context.ordinal() as c_int;
    assert_eq!(
        call!(cuDevicePrimaryCtxRetain(&mut primary => *mut Handle, device => c_int)),
        0
    );
    assert_eq!(call!(cuCtxSetCurrent(primary => Handle)), 0);
}

/// The code of an allocation, which captures may forbid.
#[allow(dead_code)]
pub fn allocate() -> u32 {
    let mut at = 0u64;
    call!(cuMemAlloc_v2(&mut at => *mut u64, 64 => usize))
}

/// Another library's graph.
pub struct OfOthers(Handle);

impl OfOthers {
    /// Captures work in a mode; the code of the end, if the capture was spoiled. A capture of
    /// another thread forbids to make the graph executable: `meet` waits until there is none.
    pub fn capture(
        stream: &Stream,
        mode: c_uint,
        work: impl FnOnce(),
        meet: impl FnOnce(),
    ) -> Result<OfOthers, u32> {
        enter(stream.context());
        let raw = stream.as_raw();
        let (mut graph, mut executable): (Handle, Handle) =
            (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(
            call!(cuStreamBeginCapture_v2(raw => Handle, mode => c_uint)),
            0
        );
        work();
        match call!(cuStreamEndCapture(raw => Handle, &mut graph => *mut Handle)) {
            0 => {}
            code => return Err(code),
        }
        meet();
        let made = call!(cuGraphInstantiateWithFlags(
            &mut executable => *mut Handle, graph => Handle, 0 => u64
        ));
        assert_eq!(made, 0);
        assert_eq!(call!(cuGraphDestroy(graph => Handle)), 0);
        Ok(OfOthers(executable))
    }

    pub fn launch(&self, stream: &Stream) {
        let raw = stream.as_raw();
        assert_eq!(call!(cuGraphLaunch(self.0 => Handle, raw => Handle)), 0);
    }
}

impl Drop for OfOthers {
    fn drop(&mut self) {
        assert_eq!(call!(cuGraphExecDestroy(self.0 => Handle)), 0);
    }
}
