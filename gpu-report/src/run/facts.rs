//! What the machine is, as far as programs of the system say.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::plan::Machine;

/// How long a program may take to say a fact.
const LIMIT: Duration = Duration::from_secs(5);

/// The time of day, UTC.
pub fn now() -> String {
    output("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]).unwrap_or_else(|| "unknown".into())
}

/// The trimmed output of a program that ends with 0 within [`LIMIT`] and says something. One
/// that does not end, such as a question to a driver that hangs, is left behind.
pub fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let (answer, answered) = mpsc::channel();
    std::thread::spawn(move || answer.send(command.output()));
    let out = answered.recv_timeout(LIMIT).ok()?.ok()?;
    if !out.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The first of these programs that is there.
fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let places = names.iter().flat_map(|name| {
        let here = folders.iter().map(move |folder| folder.join(name));
        std::iter::once(PathBuf::from(name))
            .filter(|path| path.is_absolute())
            .chain(here)
    });
    places.into_iter().find(|path| path.is_file())
}

/// What a line of a file says behind a word.
fn line_of(file: &str, begin: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(begin))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Whether the kernel is gVisor's, where tools cannot look into the device.
fn is_gvisor() -> bool {
    let release = output("uname", &["-r"]).unwrap_or_default();
    let version = fs::read_to_string("/proc/version").unwrap_or_default();
    // It says 4.4.0, whatever it runs on.
    release.starts_with("4.4.0") || (release + &version).to_lowercase().contains("gvisor")
}

/// Whether the multi-process service runs: kernels of two processes then run at once.
fn mps() -> String {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = processes.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    match names
        .into_iter()
        .any(|name| name.starts_with("nvidia-cuda-mps"))
    {
        true => "runs".into(),
        false => "does not run: two processes take turns on a GPU".into(),
    }
}

/// What the machine is, as far as it is known without a step.
pub fn facts() -> BTreeMap<String, String> {
    let unknown = || "unknown".to_owned();
    let cores = std::thread::available_parallelism().map_or_else(|_| unknown(), |n| n.to_string());
    let smi = |what: &str| {
        let query = format!("--query-gpu={what}");
        output("nvidia-smi", &[&query, "--format=csv,noheader"])
    };
    let driver = smi("driver_version");
    // One that does not answer once is not asked again.
    let smi = |what: &str| driver.is_some().then(|| smi(what)).flatten();
    let mut facts = BTreeMap::from(
        [
            ("kernel", output("uname", &["-srm"])),
            (
                "gvisor",
                Some(if is_gvisor() { "yes" } else { "no" }.into()),
            ),
            ("processor", line_of("/proc/cpuinfo", "model name")),
            ("cores", Some(cores)),
            ("memory", line_of("/proc/meminfo", "MemTotal")),
            ("libc", output("getconf", &["GNU_LIBC_VERSION"])),
            ("mps", Some(mps())),
            ("driver", driver.clone()),
            ("gpu", smi("name,memory.total,pci.bus_id")),
            ("clocks.max", smi("clocks.max.sm,clocks.max.mem")),
            ("mig", smi("mig.mode.current")),
            ("compute", smi("compute_mode")),
        ]
        .map(|(name, value)| (name.to_owned(), value.unwrap_or_else(unknown))),
    );
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "not set".into());
    facts.insert("visible".into(), visible);
    facts
}

/// What plans need to know; the device is asked later.
pub fn machine(bin: &Path, out: &Path) -> Machine {
    let tools = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"];
    let names = fs::read_dir(bin).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut tests: Vec<String> = names
        .filter_map(|name| name.strip_prefix("test-").map(str::to_owned))
        .collect();
    tests.sort();
    let gpus = output("nvidia-smi", &["-L"]).unwrap_or_default();
    Machine {
        emulated: false,
        no_tools: is_gvisor().then(|| "gVisor does not let tools look into the device".into()),
        gpus: gpus.lines().filter(|line| line.starts_with("GPU")).count(),
        bin: bin.into(),
        work: out.into(),
        tests,
        matrix: Vec::new(),
        sanitizer: program(&tools),
        ncu: program(&["ncu", "/usr/local/cuda/bin/ncu"]),
        python: program(&["python3"]),
        nvcc: program(&["nvcc", "/usr/local/cuda/bin/nvcc"]),
        mps: program(&["nvidia-cuda-mps-control"]),
    }
}
