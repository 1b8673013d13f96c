//! Which driver tests run on: the one that `cuda-library` of `OSIER_DEBUG` names; else the
//! emulated one where it was built beside this test (as by `cargo build --workspace`); else
//! the system's. Without one they fail (`tests/needs.rs`). `OSIER_DEBUG=cuda-library=libcuda.so.1` chooses a real GPU.

use osier_kernels::{Context, DeviceSlice, Driver, Pinned, Stream, copy, debug};
use std::path::PathBuf;
use std::process::Command;

#[path = "../../../tests/needs.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
pub mod needs;

#[path = "../../../emulated-cuda/scan.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
mod scan;

#[allow(unused_imports)]
pub use needs::{driver as emulated, emulated_driver};

/// The first device's context; none where there is no driver, and the skip was asked for.
#[allow(dead_code)]
#[track_caller]
pub fn context() -> Option<Context> {
    if let Some(library) = emulated_driver() {
        Driver::prefer(library);
    }
    match Driver::get().and_then(|_| Context::new(0)) {
        Ok(context) => Some(context),
        Err(why) => {
            // A driver that was asked for must work.
            assert!(debug::value(debug::CUDA_LIBRARY).is_none(), "{why}");
            needs::missing("driver", why);
            None
        }
    }
}

/// Device memory with these bytes, behind the stream's work.
#[allow(dead_code)]
pub fn upload(stream: &Stream, bytes: &[u8]) -> DeviceSlice<u8> {
    let staged = Pinned::from_slice(stream.context(), bytes).unwrap();
    let place = DeviceSlice::<u8>::new(stream, bytes.len()).unwrap();
    copy::copy(stream, &staged.on_device(stream), &place).unwrap();
    place.into_inner()
}

/// What lies there behind the stream's work.
#[allow(dead_code)]
pub fn download(stream: &Stream, from: &DeviceSlice<u8>) -> Vec<u8> {
    let mut staged = Pinned::from_slice(stream.context(), &vec![0u8; from.len()]).unwrap();
    copy::copy(
        stream,
        &from.after_stream(stream),
        &staged.on_device(stream),
    )
    .unwrap();
    staged.host().unwrap().to_vec()
}

/// Compiles a folder of kernels, of the crate that is tested, for the emulated driver; `None`
/// without a compiler or without the emulated driver, if the skip was asked for.
#[allow(dead_code)]
pub fn library_of_kernels(folder: &str) -> Option<PathBuf> {
    let program = scan::program();
    if emulated().is_none() || !needs::program("cxx", &program) {
        return None;
    }
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let inside = |folder: &&std::path::Path| folder.join("emulated-cuda/shim").is_dir();
    let root = here.ancestors().find(inside).expect("the workspace");
    let shim = root.join("emulated-cuda/shim");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(std::process::id().to_string());
    let compiled = scan::compile(&here.join(folder), &shim, &out, &[]).unwrap();
    let library = out.join("libuser.so");
    let linked = Command::new(program)
        .args(["-shared", "-o"])
        .arg(&library)
        .args(&compiled.objects)
        .status();
    assert!(linked.unwrap().success());
    Some(library)
}
