//! What a test needs that cargo does not build for it: it is there, or the test fails and says
//! which command brings it. A skip must be asked for, and is said past the capture of output:
//!
//! ```text
//! OSIER_TEST=skip=cmake,,gfortran    keys of this table; a comma of a value is written twice
//! ```
//!
//! A key that is asked for skips only where its thing is missing. `cargo xtask test` asks for
//! what this machine has not, and says so.

use std::fmt::Display;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[path = "asked.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
mod asked;

/// Key, thing, and what brings it.
const NEEDS: [(&str, &str, &str); 19] = [
    ("driver", "the emulated driver", BUILD),
    ("launcher", "the launcher `osier`", BUILD),
    ("cc", "a C compiler", "apt-get install gcc"),
    (
        "cxx",
        "a C++ compiler",
        "apt-get install g++, or name it by CXX",
    ),
    ("asan", "libasan of the C++ compiler", "apt-get install g++"),
    ("nm", "nm", "apt-get install binutils"),
    ("valgrind", "valgrind", "apt-get install valgrind"),
    ("pkg-config", "pkg-config", "apt-get install pkg-config"),
    ("cmake", "cmake", "apt-get install cmake"),
    ("gfortran", "gfortran", "apt-get install gfortran"),
    ("python", "Python 3", "apt-get install python3"),
    (
        "hydra",
        "mpiexec.hydra",
        "cargo xtask compare installs MPICH's",
    ),
    (
        "attach",
        "leave to read another process",
        "sysctl kernel.yama.ptrace_scope=1",
    ),
    (
        "namespaces",
        "namespaces of processes for users",
        "unshare -Urpf true says why",
    ),
    (
        "root",
        "root, who may start processes of others",
        "run the tests as root",
    ),
    (
        "hosts",
        "network namespaces, as hosts",
        "run the tests as root, with iproute2 and util-linux installed",
    ),
    (
        "fma",
        "a processor with AVX2 and FMA",
        "another processor has them",
    ),
    (
        "quiet",
        "a machine without other work",
        "run this test alone",
    ),
    (
        "gpu",
        "something that this GPU has not",
        "the emulated driver has it",
    ),
];

const BUILD: &str = "cargo build --workspace, in the same profile, or cargo xtask test";

/// Fails the test for want of something, unless the skip was asked for: then the caller
/// returns.
#[track_caller]
pub fn missing(key: &str, why: impl Display) {
    let known = |key: &str| NEEDS.iter().find(|(known, ..)| *known == key);
    let Some((_, thing, hint)) = known(key) else {
        panic!("{key} is no key of tests/needs.rs");
    };
    let asked = asked::text("skip").unwrap_or_default();
    for other in asked.split(',').filter(|other| !other.is_empty()) {
        let keys = NEEDS.map(|(key, ..)| key);
        assert!(
            known(other).is_some(),
            "OSIER_TEST: skip={other}: none of {keys:?}"
        );
    }
    assert!(
        asked.split(',').any(|asked| asked == key),
        "this test needs {thing}: {why}\n(hint: {hint}; or ask for the skip with OSIER_TEST=skip={key})"
    );
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test").to_owned();
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED {test}, as OSIER_TEST asks: without {thing}: {why}"
    );
}

/// The emulated driver's library where it was built: beside the test or one folder up.
#[allow(dead_code)]
pub fn emulated_driver() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let folders = exe.ancestors().skip(1).take(2);
    let mut libraries = folders.map(|folder| folder.join("libosier_emulated_cuda.so"));
    libraries.find(|library| library.is_file())
}

/// As [`emulated_driver`], but missing where it is not.
#[allow(dead_code)]
#[track_caller]
pub fn driver() -> Option<PathBuf> {
    let found = emulated_driver();
    if found.is_none() {
        missing("driver", "it was not built beside this test");
    }
    found
}

/// Whether this program can be started; its key is missing where not.
#[allow(dead_code)]
#[track_caller]
pub fn program(key: &str, program: impl AsRef<std::ffi::OsStr>) -> bool {
    let mut command = Command::new(&program);
    command.arg("--version").stdin(Stdio::null());
    let started = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if let Err(e) = &started {
        missing(key, format_args!("{}: {e}", program.as_ref().display()));
    }
    started.is_ok()
}
