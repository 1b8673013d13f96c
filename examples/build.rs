//! Compiles the kernels of the examples for the host, for the emulated driver.
//!
//! Without a C++ compiler the image is empty, and the examples say so when they would
//! need it.

#[allow(dead_code)]
#[path = "../emulated-cuda/scan.rs"]
mod scan;

use std::path::PathBuf;

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    for path in [
        "build.rs",
        "cuda",
        "../emulated-cuda/scan.rs",
        "../emulated-cuda/shim",
        "../kernels/include",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=CXX");
    let image = out.join("kernels.so");
    let shim = here.join("../emulated-cuda/shim");
    let built = scan::compile(&here.join("cuda"), &shim, &out, &[])
        .and_then(|compiled| scan::link(&compiled, &[], &image));
    if let Err(why) = built {
        let first = why.lines().next().unwrap_or_default().to_owned();
        println!("cargo::warning=kernels of the examples are not compiled for the host: {first}");
        if let Err(e) = std::fs::write(&image, b"") {
            eprintln!("{}: {e}", image.display());
            std::process::exit(1);
        }
    }
}
