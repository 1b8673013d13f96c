//! Kernels that were compiled with sanitizers are stopped at their first fault: a byte
//! beyond an allocation, an access at an address that its type does not suit.

// The arguments of a call stand within the macro that makes it.
#![allow(clippy::macro_metavars_in_unsafe)]

#[macro_use]
mod common;
#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

use common::*;
use std::process::Command;

/// The compiler's address sanitizer.
fn libasan() -> Option<String> {
    let answer = Command::new(scan::program())
        .arg("-print-file-name=libasan.so")
        .output()
        .ok()?;
    let path = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    path.starts_with('/').then_some(path)
}

#[test]
fn faults_are_named() {
    let Some(libasan) = libasan() else {
        return needs::missing("asan", "-print-file-name=libasan.so finds none");
    };
    let kernels = compiled("sanitized", scan::SANITIZERS);
    for (fault, told) in [
        ("", "1 passed"),
        ("beyond", "AddressSanitizer"),
        ("askew", "misaligned address"),
    ] {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_launches", "--ignored", "--nocapture"])
            .env("TEST_FAULT", fault)
            .env("LD_PRELOAD", &libasan)
            .env("OSIER_EMULATED_KERNELS", &kernels)
            .env(
                "ASAN_OPTIONS",
                "detect_leaks=0:handle_segv=0:handle_sigbus=0:use_sigaltstack=0",
            )
            .output()
            .unwrap();
        let text = [out.stdout, out.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(
            text.contains(told) && out.status.success() == fault.is_empty(),
            "{fault}: {text}"
        );
    }
}

#[test]
#[ignore = "a child of faults_are_named"]
fn child_launches() {
    start();
    let fault = std::env::var("TEST_FAULT").unwrap();
    let (at, s) = (alloc(100), stream());
    // The last byte is ours; the next lies in the same page.
    let n: u64 = if fault == "beyond" { 100 } else { 99 };
    let beyond = launch(kernel("beyond"), 1, 1, 0, s, &[address(&at), address(&n)]);
    let from = at + u64::from(fault == "askew");
    let askew = launch(kernel("askew"), 1, 1, 0, s, &[address(&from), address(&at)]);
    assert_eq!((beyond, askew, synchronize()), (0, 0, 0));
}
