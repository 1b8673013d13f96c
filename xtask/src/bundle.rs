//! `gpu-bundle`: tests and benchmarks of the device as a folder that runs on any
//! Linux machine with an NVIDIA driver.
//!
//! ```text
//! gpu-bundle/
//!   run            sh: runs all, writes report.txt and report.json
//!   commit, needs  what was built; the C library that it asks for
//!   bin/osier.gz   the launcher and the benchmarks
//!   bin/exercise.gz  messages of all kinds of memory, layouts and sizes, by ranks that
//!                  are processes or threads
//!   bin/test-*.gz  the tests of osier-kernels, and of messages of devices
//!   bin/jacobi3d.gz and others: the examples that keep their data on a device
//!   bin/cubins/    binaries of the kernels, if their compiler could be had
//! ```
//!
//! # Invariants
//! 1. Nothing in it needs a toolchain, a file of the sources, or a network.
//! 2. It is smaller than [`LIMIT_BYTES`]; a larger one is an error.

use crate::setup;
use crate::steps::{Result, cargo, line, root, run as run_command, target_dir};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Largest bundle.
const LIMIT_BYTES: u64 = 60 << 20;
/// Examples with data on devices.
const EXAMPLES: [&str; 4] = ["jacobi3d", "transpose", "triangle", "kv_cache"];
const RUN: &str = include_str!("bundle/run");
/// What `run` ends with where there is nothing to measure on.
const NOT_MEASURED: i32 = 77;

/// Options of `gpu-bundle`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask gpu-bundle                    target/gpu-bundle
  cargo xtask gpu-bundle --out /tmp/bundle --check
then, on the machine with a GPU: ./run")]
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
    let bin = out.join("bin");
    std::fs::create_dir_all(&bin).map_err(|e| format!("cannot make {}: {e}", bin.display()))?;
    write(&out.join("commit"), &format!("{}\n", commit()))?;
    run_command(cargo().args([
        "build",
        "--release",
        "-p",
        "osier-cli",
        "-p",
        "osier-examples",
        "-p",
        "osier-test-programs",
    ]))?;
    for program in ["osier", "exercise"].iter().chain(&EXAMPLES) {
        let built = target_dir().join("release").join(program);
        place(&built, &bin.join(program))?;
    }
    for (name, test) in tests()? {
        place(&test, &bin.join(format!("test-{name}")))?;
    }
    if let Err(why) = crate::kernels::cubins(&bin.join("cubins")) {
        println!("no binaries of the kernels, so their first use compiles: {why}");
    }
    let run = out.join("run");
    write(&run, RUN)?;
    executable(&run)?;
    let needs = format!("glibc {}", newest_glibc(&bin)?);
    // Programs have their names of functions and lines, which pack well.
    for program in files(&bin)? {
        if program.extension().is_none() {
            run_command(Command::new("gzip").args(["-9", "-n"]).arg(program))?;
        }
    }
    write(&out.join("needs"), &format!("{needs}\n"))?;
    let bytes = size(&out)?;
    println!(
        "{}: {:.1} MiB, needs {needs} and an NVIDIA driver; ./run on the machine with the GPU",
        out.display(),
        bytes as f64 / f64::from(1 << 20)
    );
    if bytes >= LIMIT_BYTES {
        return Err(format!(
            "the bundle has {bytes} bytes, not less than {LIMIT_BYTES}"
        ));
    }
    if args.check { check(&out) } else { Ok(()) }
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

/// Copies a program without its symbols.
fn place(from: &Path, to: &Path) -> Result {
    let strip = Command::new("strip")
        .arg("-s")
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
fn check(bundle: &Path) -> Result {
    setup::cplusplus()?;
    run_command(cargo().args(["build", "--release", "-p", "osier-emulated-cuda"]))?;
    let emulated = target_dir().join("release/libosier_emulated_cuda.so");
    let reports = target_dir().join("gpu-bundle-check");
    for (library, code, measured) in [
        (emulated.as_path(), 0, "on the emulated driver"),
        (
            Path::new("/nowhere/libcuda.so.1"),
            NOT_MEASURED,
            "not measured",
        ),
    ] {
        let folder = reports.join(if code == 0 { "emulated" } else { "none" });
        let mut command = Command::new(bundle.join("run"));
        command
            .current_dir("/")
            .env("OSIER_DEBUG", format!("cuda-library={}", library.display()))
            .args(["--trees", "2000"])
            .args(["--bench", "--shapes matrix,cache,indexed,random -r 2"])
            .args(["--bench-blocks", "--sizes 64K -r 2"])
            .args(["--bench-messages", "--sizes 8,64K -i 2 -x 1 -r 2"])
            .args(["--examples", "small"])
            .arg(&folder)
            .stdin(Stdio::null());
        println!("$ {}", line(&command));
        let status = command
            .status()
            .map_err(|e| format!("cannot run it: {e}"))?;
        if status.code() != Some(code) {
            return Err(format!("run ended with {status}, not with {code}"));
        }
        let text =
            std::fs::read_to_string(folder.join("report.json")).map_err(|e| e.to_string())?;
        let report: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| format!("report.json: {e}"))?;
        let told = report["measured"].as_str().unwrap_or_default();
        for part in ["pack", "messages"] {
            let rows = report[part].as_array().map_or(0, Vec::len);
            if !told.starts_with(measured) || (rows > 0) != (code == 0) {
                return Err(format!(
                    "the report says {told:?} with {rows} records of {part}"
                ));
            }
        }
    }
    println!("the bundle runs on the emulated driver, and says so where there is no driver");
    Ok(())
}
