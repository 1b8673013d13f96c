//! The library, loaded as a program loads a driver, and its entry points called
//! through pointers of the C interface.

#![allow(dead_code, missing_docs, clippy::missing_safety_doc)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

#[path = "../../scan.rs"]
pub mod scan;

/// Loads a symbol of the library.
pub fn symbol(name: &str) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let path = CString::new(library().to_string_lossy().into_owned()).unwrap();
        // SAFETY: a C string; the library has no constructors.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) as usize }
    });
    assert_ne!(library, 0, "{} cannot be loaded", self::library().display());
    let name = CString::new(name).unwrap();
    // SAFETY: an open library and a C string.
    let found = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    assert!(!found.is_null(), "no {name:?}");
    found
}

/// Where cargo has built the library: beside the test.
pub fn library() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.push("libosier_emulated_cuda.so");
    path
}

/// Calls an entry point: `cu!(cuMemAlloc_v2(out: *mut u64, n: usize))`.
#[macro_export]
macro_rules! cu {
    ($name:ident ( $($value:expr => $ty:ty),* $(,)? )) => {{
        let f: unsafe extern "C" fn($($ty),*) -> u32 =
            // SAFETY: the signature is that of the driver's documentation.
            unsafe { std::mem::transmute($crate::common::symbol(stringify!($name))) };
        // SAFETY: the test passes what the documentation asks for.
        unsafe { f($($value),*) }
    }};
}

/// The last named error of this thread.
pub fn fault() -> String {
    let f: extern "C" fn() -> *const c_char =
        // SAFETY: the library's function has this type.
        unsafe { std::mem::transmute(symbol("osier_emulated_last_fault")) };
    // SAFETY: a text that lives until the thread's next error.
    unsafe { CStr::from_ptr(f()) }
        .to_string_lossy()
        .into_owned()
}

/// Starts the driver with the context of device 0 current.
pub fn start() -> u64 {
    assert_eq!(cu!(cuInit(0 => u32)), 0);
    context(0)
}

/// Makes a device's primary context current.
pub fn context(device: i32) -> u64 {
    let mut context = 0u64;
    assert_eq!(
        cu!(cuDevicePrimaryCtxRetain(&mut context => *mut u64, device => i32)),
        0
    );
    assert_eq!(cu!(cuCtxSetCurrent(context => u64)), 0);
    context
}

pub fn alloc(bytes: usize) -> u64 {
    let mut at = 0u64;
    assert_eq!(
        cu!(cuMemAlloc_v2(&mut at => *mut u64, bytes => usize)),
        0,
        "{}",
        fault()
    );
    at
}

pub fn pinned(bytes: usize) -> u64 {
    let mut at = 0u64;
    assert_eq!(
        cu!(cuMemHostAlloc(&mut at => *mut u64, bytes => usize, 0 => u32)),
        0
    );
    at
}

pub fn stream() -> u64 {
    let mut s = 0u64;
    assert_eq!(cu!(cuStreamCreate(&mut s => *mut u64, 1 => u32)), 0);
    s
}

pub fn event(flags: u32) -> u64 {
    let mut e = 0u64;
    assert_eq!(cu!(cuEventCreate(&mut e => *mut u64, flags => u32)), 0);
    e
}

pub fn put<T: Copy>(at: u64, data: &[T]) {
    let bytes = size_of_val(data);
    assert_eq!(
        cu!(cuMemcpyHtoD_v2(at => u64, data.as_ptr() => *const T, bytes => usize)),
        0,
        "{}",
        fault()
    );
}

pub fn get<T: Copy + Default>(at: u64, count: usize) -> Vec<T> {
    let mut data = vec![T::default(); count];
    let bytes = size_of_val(&data[..]);
    assert_eq!(
        cu!(cuMemcpyDtoH_v2(data.as_mut_ptr() => *mut T, at => u64, bytes => usize)),
        0,
        "{}",
        fault()
    );
    data
}

/// Compiles the fixture once per process, with the compiler that has built the driver.
pub fn fixture() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compiled("fixture", &[])).clone()
}

/// The kernels of the tests as a library, compiled with some flags more.
pub fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(std::process::id().to_string())
        .join(name);
    let (sources, shim) = (here.join("tests/kernels"), here.join("shim"));
    let compiled = scan::compile(&sources, &shim, &out, flags).unwrap();
    let library = out.join("libfixture.so");
    scan::link(&compiled, flags, &library).unwrap();
    library
}

/// Runs one ignored test of this file again, in a process of its own with these
/// variables.
pub fn again(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            test,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .envs(variables.iter().copied());
    command.env("OSIER_EMULATED_KERNELS", fixture());
    command.output().unwrap()
}

/// As [`again`], and the test must pass.
pub fn passes(test: &str, variables: &[(&str, &str)]) {
    let out = again(test, variables);
    let ran = String::from_utf8_lossy(&out.stdout).contains("1 passed");
    assert!(
        out.status.success() && ran,
        "{test} with {variables:?}:\n{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// A kernel of the fixture.
pub fn kernel(name: &str) -> u64 {
    let names = [
        "add_one",
        "block_sum",
        "reverse",
        "count_add",
        "count_or",
        "reverse_warps",
        "lost",
        "lost_of_warp",
        "trap",
        "beyond",
        "askew",
        "relay",
        "together",
        "ping",
        "hand_on",
        "take_over",
        "tell",
        "tell_and_wait",
        "spread",
        "spread_vectors",
        "absent",
    ];
    let text: String = names
        .iter()
        .map(|n| format!(".visible .entry {n}(\n)\n"))
        .collect();
    let ptx = CString::new(format!("//\n.version 8.0\n.target sm_70\n{text}")).unwrap();
    let (mut module, mut function) = (0u64, 0u64);
    let done = cu!(cuModuleLoadData(&mut module => *mut u64, ptx.as_ptr() => *const c_char));
    assert_eq!(done, 0, "{}", fault());
    let name = CString::new(name).unwrap();
    let done = cu!(cuModuleGetFunction(&mut function => *mut u64, module => u64, name.as_ptr() => *const c_char));
    assert_eq!(done, 0, "{}", fault());
    function
}

pub fn launch(
    function: u64,
    grid: u32,
    block: u32,
    shared: u32,
    stream: u64,
    arguments: &[*const c_void],
) -> u32 {
    cu!(cuLaunchKernel(
        function => u64, grid => u32, 1 => u32, 1 => u32, block => u32, 1 => u32, 1 => u32,
        shared => u32, stream => u64, arguments.as_ptr() => *const *const c_void,
        std::ptr::null() => *const c_void
    ))
}

pub fn address<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

pub fn synchronize() -> u32 {
    cu!(cuCtxSynchronize())
}

/// Bytes as text, for a child.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What [`hex`] has written.
pub fn unhex(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    }
    bytes
}

/// A handle for other processes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle(pub [u8; 64]);
