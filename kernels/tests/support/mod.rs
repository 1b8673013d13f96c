//! Which driver tests run on: the one that `OSIER_CUDA_LIBRARY` names; else the
//! emulated one where it was built beside this test (as by
//! `cargo test --workspace`); else the system's. Without one they are skipped, out
//! loud. `OSIER_CUDA_LIBRARY=libcuda.so.1` chooses a real GPU.

use osier_kernels::{Context, Driver, LIBRARY_VARIABLE};
use std::path::PathBuf;

/// The emulated driver's library, beside the test or one folder up.
fn emulated() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let folders = exe.ancestors().skip(1).take(2);
    let mut libraries = folders.map(|folder| folder.join("libosier_emulated_cuda.so"));
    libraries.find(|library| library.is_file())
}

/// The first device's context; none, said aloud, where there is no driver.
pub fn context() -> Option<Context> {
    if let Some(library) = emulated() {
        Driver::prefer(library);
    }
    match Driver::get().and_then(|_| Context::new(0)) {
        Ok(context) => Some(context),
        Err(why) => {
            // A driver that was asked for must work.
            assert!(std::env::var_os(LIBRARY_VARIABLE).is_none(), "{why}");
            eprintln!("SKIPPED: {why}");
            None
        }
    }
}
