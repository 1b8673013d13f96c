//! Set-up on a bare Debian machine: installs what is absent, says why, and
//! does nothing where everything is there.

use crate::steps::{Result, run, succeeds};
use std::process::Command;

/// True when `program` is found on PATH.
pub fn on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// The C linker that rustc calls, and that the peers' programs are built with.
pub fn linker() -> Result {
    if on_path("cc") {
        return Ok(());
    }
    apt(
        &["gcc", "libc6-dev"],
        "rustc links with cc, which is absent",
    )
}

/// The C++ compiler that makes host code of the CUDA kernels, for the emulated
/// driver.
pub fn cplusplus() -> Result {
    if std::env::var_os("CXX").is_some() || on_path("g++") {
        return Ok(());
    }
    apt(
        &["g++"],
        "the emulated CUDA driver runs the kernels compiled for the host",
    )
}

/// rustfmt and clippy for `check`.
pub fn lints() -> Result {
    let mut components = Vec::new();
    let mut packages = Vec::new();
    for (tool, component, package) in [
        ("fmt", "rustfmt", "rustfmt"),
        ("clippy", "clippy", "rust-clippy"),
    ] {
        if !succeeds(crate::steps::cargo().args([tool, "--version"])) {
            components.push(component);
            packages.push(package);
        }
    }
    if components.is_empty() {
        return Ok(());
    }
    if on_path("rustup") {
        println!(
            "installing {} with rustup: check needs it, and this toolchain lacks it",
            components.join(" and ")
        );
        return run(Command::new("rustup")
            .args(["component", "add"])
            .args(components));
    }
    apt(&packages, "check needs it, and this toolchain lacks it")
}

/// Valgrind, under which a test runs a job; without it `test` asks for the skip.
pub fn valgrind() -> Result {
    if on_path("valgrind") {
        return Ok(());
    }
    apt(&["valgrind"], "a test runs a job of two ranks under it")
}

/// `ip`, by which tests make hosts; without it `test` asks for the skip.
pub fn hosts() -> Result {
    if on_path("ip") {
        return Ok(());
    }
    apt(
        &["iproute2"],
        "tests run jobs on hosts of network namespaces",
    )
}

/// Python with venv, in which `compare` installs the peers.
pub fn python() -> Result {
    if succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"])) {
        return Ok(());
    }
    apt(
        &["python3", "python3-venv"],
        "the peers come as Python packages",
    )
}

/// Installs Debian packages without questions, as root or with sudo.
fn apt(packages: &[&str], why: &str) -> Result {
    let names = packages.join(" ");
    if !on_path("apt-get") {
        return Err(format!("please install {names}: {why}"));
    }
    let root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|out| out.stdout.trim_ascii() == b"0");
    if !root && !on_path("sudo") {
        return Err(format!(
            "please install {names} as root (no sudo here): {why}"
        ));
    }
    println!("installing {names} with apt: {why}");
    let apt_get = || {
        let mut command = if root {
            Command::new("env")
        } else {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "env"]);
            sudo
        };
        command.args([
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "-o",
            "DPkg::Lock::Timeout=300",
        ]);
        command
    };
    run(apt_get().args(["update", "--quiet"]))?;
    run(apt_get()
        .args(["install", "--yes", "--quiet", "--no-install-recommends"])
        .args(packages))
}
