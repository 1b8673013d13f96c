//! Compiles the kernels of `kernels/cuda` for the host and links their table.
//!
//! Without kernels nothing is compiled and no C++ compiler is needed.

#[allow(dead_code)]
#[path = "scan.rs"]
mod scan;

use std::path::PathBuf;

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let kernels = here.join("../kernels/cuda");
    println!("cargo::rerun-if-changed=scan.rs");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-env-changed=CXX");
    if kernels.is_dir() {
        println!("cargo::rerun-if-changed={}", kernels.display());
    } else {
        println!("cargo::rerun-if-changed=../kernels");
    }
    println!("cargo::rustc-check-cfg=cfg(has_kernels)");
    // Whoever asks for the real driver by name gets this one once it is loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its thread runs until the process ends, so it is never unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    match scan::compile(&kernels, &here.join("shim"), &out, &[]) {
        Ok(compiled) if compiled.objects.is_empty() => {}
        Ok(compiled) => {
            println!("cargo::rustc-cfg=has_kernels");
            for object in compiled.objects {
                println!("cargo::rustc-link-arg={}", object.display());
            }
        }
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(1);
        }
    }
}
