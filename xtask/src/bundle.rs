//! `gpu-bundle`: tests and benchmarks of the device as a folder that runs on any
//! Linux machine with an NVIDIA driver.
//!
//! ```text
//! gpu-bundle/
//!   run            sh: starts gpu-run
//!   gpu-run        runs the steps, writes the report (package osier-gpu-report)
//!   commit, needs  what was built; the C library that it asks for
//!   programs.tar.xz
//!     osier        the launcher and the benchmarks
//!     exercise     messages of all kinds of memory, layouts and sizes
//!     test-*       the tests of osier-kernels, and of messages of devices
//!     jacobi3d, .. the examples that keep their data on a device
//!     cubins/      binaries of the kernels, if their compiler could be had
//!     peers/       scripts and sources of the peers: torch, CuPy, MPI, NCCL, NVSHMEM
//!     ucx/         UCX's libraries and a program that uses them, if they could be had
//! ```
//!
//! # Invariants
//! 1. Nothing in it needs a toolchain, a file of the sources, or a network; but for NVSHMEM,
//!    whose program is built where it is.
//! 2. It is no larger than [`LIMIT_BYTES`]; a larger one is an error.

use crate::setup;
use crate::steps::{Result, cargo, line, root, run as run_command, target_dir};
use osier_gpu_report::archive::{self, Effort};
use osier_gpu_report::plan::Part;
use osier_gpu_report::report::{Measured, Report};
use osier_gpu_report::run::{NOT_MEASURED, PROGRAMS};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Largest bundle.
const LIMIT_BYTES: u64 = 40 << 20;
/// Most of it that UCX takes, before it is packed.
const UCX_BYTES: u64 = 8 << 20;
/// Examples with data on devices.
const EXAMPLES: [&str; 7] = [
    "jacobi3d",
    "transpose",
    "triangle",
    "kv_cache",
    "persistent_halo",
    "buckets",
    "signals",
];
const RUN: &str = include_str!("bundle/run");
/// UCX for CUDA 13, as its makers build it.
const UCX: &str = "libucx-cu13==1.22.0";
/// Its libraries that messages of device memory need, by their places below `libucx/lib`.
const UCX_LIBRARIES: [&str; 7] = [
    "libucp.so.0",
    "libuct.so.0",
    "libucs.so.0",
    "libucm.so.0",
    "ucx/libuct_cuda.so.0",
    "ucx/libucm_cuda.so.0",
    "ucx/libuct_cma.so.0",
];

/// Options of `gpu-bundle`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask gpu-bundle                    target/gpu-bundle
  cargo xtask gpu-bundle --out /tmp/bundle --check
then, on the machine with a GPU: ./run --quick")]
pub struct Args {
    /// Where to put it [default: gpu-bundle in the target folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Run it here: on the emulated driver, and without a driver
    #[arg(long)]
    check: bool,
}

/// `cargo xtask gpu-bundle`.
pub fn run(args: &Args) -> Result {
    setup::linker()?;
    let out = match &args.out {
        Some(out) => std::path::absolute(out).map_err(|e| e.to_string())?,
        None => target_dir().join("gpu-bundle"),
    };
    // Only what is known to be a bundle is thrown away.
    if out.exists() && !out.join("commit").is_file() {
        return Err(format!("{} is there and is no bundle", out.display()));
    }
    let _ = std::fs::remove_dir_all(&out);
    let bin = target_dir().join("gpu-bundle-programs");
    let _ = std::fs::remove_dir_all(&bin);
    for folder in [&out, &bin] {
        std::fs::create_dir_all(folder)
            .map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    }
    write(&out.join("commit"), &format!("{}\n", commit()))?;
    let mut build = cargo();
    build.args(["build", "--release"]);
    for package in ["cli", "examples", "test-programs", "gpu-report"] {
        build.args(["-p", &format!("osier-{package}")]);
    }
    run_command(build.args(["--features", "osier-gpu-report/runner"]))?;
    let built = target_dir().join("release");
    for program in ["osier", "exercise"].iter().chain(&EXAMPLES) {
        place(&built.join(program), &bin.join(program))?;
    }
    for (name, test) in tests()? {
        place(&test, &bin.join(format!("test-{name}")))?;
    }
    place(&built.join("gpu-run"), &out.join("gpu-run"))?;
    let needs = format!("glibc {}", newest_glibc(&bin)?);
    if let Err(why) = crate::kernels::cubins(&bin.join("cubins")) {
        println!("no binaries of the kernels, so their first use compiles: {why}");
    }
    peers(&bin.join("peers"))?;
    if let Err(why) = ucx(&bin.join("ucx")) {
        println!("no UCX, so its figures will be absent: {why}");
        let _ = std::fs::remove_dir_all(bin.join("ucx"));
    }
    let run = out.join("run");
    write(&run, RUN)?;
    executable(&run)?;
    println!("packing {}", bin.display());
    let packed = out.join(PROGRAMS);
    let left_out = archive::pack(&bin, &packed, Effort::Small)
        .map_err(|e| format!("cannot write {}: {e}", packed.display()))?;
    if !left_out.is_empty() {
        return Err(format!("not in the bundle: {}", left_out.join(", ")));
    }
    write(&out.join("needs"), &format!("{needs}\n"))?;
    let bytes = size(&out)?;
    println!(
        "{}: {:.1} MiB, needs {needs} and an NVIDIA driver; ./run --quick on the machine with the GPU",
        out.display(),
        bytes as f64 / f64::from(1 << 20)
    );
    if bytes > LIMIT_BYTES {
        return Err(format!(
            "the bundle has {bytes} bytes, more than {LIMIT_BYTES}"
        ));
    }
    if args.check {
        check(&out, &bin)
    } else {
        Ok(())
    }
}

/// Copies what peers are measured with.
fn peers(to: &Path) -> Result {
    std::fs::create_dir_all(to).map_err(|e| format!("cannot make {}: {e}", to.display()))?;
    for file in files(&root().join("benches/peers/gpu"))? {
        let ending = file.extension().and_then(|ending| ending.to_str());
        if let (Some("py" | "sh" | "cu"), Some(name)) = (ending, file.file_name()) {
            std::fs::copy(&file, to.join(name)).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    Ok(())
}

/// UCX's libraries, and the program that measures it.
fn ucx(to: &Path) -> Result {
    if std::env::consts::ARCH != "x86_64" {
        return Err("its package is for x86-64".into());
    }
    let package = target_dir().join("ucx-package");
    crate::kernels::package(UCX, &package)?;
    let (from, lib) = (package.join("libucx"), to.join("lib"));
    let modules = lib.join("ucx");
    std::fs::create_dir_all(&modules).map_err(|e| format!("{}: {e}", modules.display()))?;
    for library in UCX_LIBRARIES {
        place(&from.join("lib").join(library), &lib.join(library))?;
    }
    // The CUDA runtime that it was built with, by the name that it asks for.
    for file in files(&package.join("libucx_cu13.libs"))? {
        let name = file.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with("libcudart") {
            place(&file, &lib.join(name))?;
        }
    }
    let mut compile = Command::new("cc");
    compile
        .args(["-O2", "-Wall", "-Wextra", "-Wno-sign-compare", "-I"])
        .arg(from.join("include"))
        .arg("-o")
        .arg(to.join("ucx_messages"))
        .arg(root().join("benches/peers/gpu/ucx_messages.c"))
        .args([lib.join("libucp.so.0"), lib.join("libucs.so.0")])
        .arg(format!("-Wl,-rpath-link,{}", lib.display()))
        .arg("-ldl");
    run_command(&mut compile)?;
    match size(to)? {
        bytes if bytes > UCX_BYTES => Err(format!("it takes {bytes} bytes, not {UCX_BYTES}")),
        _ => Ok(()),
    }
}

/// The commit of the sources, and whether they differ from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git").current_dir(root()).args(args).output();
        let out = out.ok().filter(|out| out.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let Some(head) = git(&["log", "-1", "--format=%H %cs %s"]) else {
        return "unknown".into();
    };
    match git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty()) {
        true => head,
        false => format!("{head} (with changes)"),
    }
}

/// Name and program of each test of the device's room, and of messages of devices.
fn tests() -> Result<Vec<(String, PathBuf)>> {
    let mut found = built(&["-p", "osier-kernels", "--lib", "--tests"])?;
    found.extend(built(&[
        "-p",
        "osier-test-programs",
        "--test",
        "device_messages",
        "--test",
        "device_streams",
    ])?);
    Ok(found)
}

/// Builds tests; their names and programs.
fn built(which: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo();
    command
        .args(["test", "--release", "--no-run"])
        .args(which)
        .args(["--message-format", "json-render-diagnostics"]);
    println!("$ {}", line(&command));
    let out = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !out.status.success() {
        return Err(format!("{} ended with {}", line(&command), out.status));
    }
    let mut found = Vec::new();
    for text in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(text) else {
            continue;
        };
        let is_test = message["profile"]["test"].as_bool() == Some(true);
        if let (true, Some(program)) = (is_test, message["executable"].as_str()) {
            let name = message["target"]["name"].as_str().unwrap_or("unnamed");
            found.push((name.replace('_', "-"), program.into()));
        }
    }
    match found.is_empty() {
        true => Err("cargo has built no test".into()),
        false => Ok(found),
    }
}

/// Copies a program without what debuggers need; the names of its functions stay, for what is
/// told of a step that hangs.
fn place(from: &Path, to: &Path) -> Result {
    let strip = Command::new("strip")
        .arg("--strip-debug")
        .arg("-o")
        .arg(to)
        .arg(from)
        .status();
    match strip {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("strip of {} ended with {status}", from.display())),
        Err(e) => Err(format!(
            "cannot run strip: {e} (hint: apt-get install binutils)"
        )),
    }
}

/// The newest version of glibc's symbols that the programs name.
fn newest_glibc(bin: &Path) -> Result<String> {
    const KEY: &[u8] = b"GLIBC_2.";
    let mut newest = 0;
    for file in files(bin)? {
        let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        for at in bytes
            .windows(KEY.len())
            .enumerate()
            .filter(|(_, w)| *w == KEY)
        {
            let rest = &bytes[at.0 + KEY.len()..];
            let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            let number = String::from_utf8_lossy(&rest[..digits])
                .parse()
                .unwrap_or(0);
            newest = newest.max(number);
        }
    }
    Ok(format!("2.{newest}"))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)?),
            path => found.push(path),
        }
    }
    Ok(found)
}

fn size(folder: &Path) -> Result<u64> {
    let lengths = files(folder)?
        .into_iter()
        .map(|file| std::fs::metadata(file).map_or(0, |m| m.len()));
    Ok(lengths.sum())
}

fn write(file: &Path, text: &str) -> Result {
    std::fs::write(file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
}

fn executable(file: &Path) -> Result {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// Runs the bundle as somebody else would, and reads its reports.
fn check(bundle: &Path, programs: &Path) -> Result {
    setup::cplusplus()?;
    run_command(cargo().args(["build", "--release", "-p", "osier-emulated-cuda"]))?;
    let emulated = target_dir().join("release/libosier_emulated_cuda.so");
    let reports = target_dir().join("gpu-bundle-check");
    let absent = Path::new("/nowhere/libcuda.so.1");
    for (name, library, parts) in [
        ("emulated", emulated.as_path(), &Part::ALL[..]),
        ("part", &emulated, &[Part::Pack]),
        ("none", absent, &Part::ALL),
    ] {
        let folder = reports.join(name);
        let mut command = Command::new(bundle.join("run"));
        command
            .current_dir("/")
            .env("OSIER_DEBUG", format!("cuda-library={}", library.display()))
            .arg("--quick");
        if parts.len() < Part::ALL.len() {
            let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
            command.args(["--only", &names.join(",")]);
        }
        command.arg(&folder).stdin(Stdio::null());
        println!("$ {}", line(&command));
        let status = command
            .status()
            .map_err(|e| format!("cannot run it: {e}"))?;
        let report = Report::read(&folder.join("report.json")).map_err(|e| e.to_string())?;
        let code = match library == absent {
            true => i32::from(NOT_MEASURED),
            false => 0,
        };
        if status.code() != Some(code) {
            let failed: Vec<&str> = report.failures().map(|step| step.name.as_str()).collect();
            return Err(format!(
                "run ended with {status}, not with {code}; failed: {} (hint: {}/report.txt)",
                failed.join(", "),
                folder.display()
            ));
        }
        checked(&report, parts, library == absent)?;
    }
    let ucx = programs.join("ucx");
    if ucx.is_dir() {
        let records = reports.join("ucx.json");
        run_command(
            Command::new(ucx.join("ucx_messages"))
                .args(["8,65536"])
                .arg(&records)
                .arg("host")
                .env("LD_LIBRARY_PATH", ucx.join("lib"))
                .env("UCX_MODULE_DIR", ucx.join("lib/ucx")),
        )?;
        let records = osier_gpu_report::record::read(&records).map_err(|e| e.to_string())?;
        if records.len() != 2 || records.iter().any(|record| record.library != "ucx") {
            return Err(format!("UCX has measured {records:?}"));
        }
    }
    println!("the bundle runs on the emulated driver, and says so where there is no driver");
    Ok(())
}

/// Whether a report has what it should.
fn checked(report: &Report, parts: &[Part], is_absent: bool) -> Result {
    let wanted = match is_absent {
        true => Measured::Nothing,
        false => Measured::Emulated,
    };
    if (report.measured, report.finished) != (wanted, true) {
        return Err(format!("the report says: {}", report.source()));
    }
    for part in Part::ALL {
        let ran = report.steps.iter().any(|step| step.part == part.name());
        if ran != (parts.contains(&part) && !is_absent) {
            return Err(format!("{} in the report: {ran}", part.name()));
        }
    }
    for (part, bench) in [
        (Part::Pack, "pack-device-pack"),
        (Part::Messages, "latency"),
        (Part::Messages, "rma-device-put"),
        (Part::Collectives, "allreduce"),
    ] {
        let has = report
            .records
            .iter()
            .any(|found| found.record.bench == bench);
        if has != (parts.contains(&part) && !is_absent) {
            return Err(format!("records of {bench} in the report: {has}"));
        }
    }
    Ok(())
}
