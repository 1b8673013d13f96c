//! Asks the system what it offers. Each question is cheap and leaves nothing
//! behind.

use std::fs;

use osier::model;
use osier_kernels::DeviceInfo;
use osier_transports::shm::{Job, JobOptions, MAX_PAYLOAD_BYTES, MAX_RANKS};

/// All answers.
pub struct Report {
    pub machine: Vec<(&'static str, String)>,
    pub transports: Vec<Entry>,
    pub system: Vec<Entry>,
    /// GPUs, or why there is none.
    pub devices: Result<Vec<DeviceInfo>, String>,
}

/// Something that is there or not.
pub struct Entry {
    pub name: &'static str,
    pub available: bool,
    /// What it does, or why it is absent.
    pub note: String,
}

impl Entry {
    /// Whether a later version will have it, on any machine.
    pub fn is_of_later(&self) -> bool {
        self.note == LATER
    }

    fn new(name: &'static str, available: bool, note: impl Into<String>) -> Entry {
        Entry {
            name,
            available,
            note: note.into(),
        }
    }
}

const LATER: &str = "not yet in this version";

impl Report {
    pub fn of_this_machine() -> Report {
        Report {
            machine: machine(),
            transports: vec![
                Entry::new("self", true, "messages of a rank to itself"),
                shm(),
                cma(),
                Entry::new("cuda_ipc", false, LATER),
                Entry::new("tcp", false, LATER),
                Entry::new("ofi", false, LATER),
                Entry::new("verbs", false, LATER),
            ],
            system: vec![windows(), membarrier(), huge_pages(), gdrcopy()],
            devices: osier_kernels::devices().map_err(|e| e.to_string()),
        }
    }
}

fn machine() -> Vec<(&'static str, String)> {
    let here = model::Machine::here();
    let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
    let processors = here.processors;
    vec![
        ("cpu", here.cpu),
        (
            "processors",
            if usable == processors {
                processors.to_string()
            } else {
                format!("{processors}, of which {usable} may be used here")
            },
        ),
        ("memory", memory()),
        ("kernel", here.kernel),
    ]
}

fn memory() -> String {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |key: &str| {
        let line = info.lines().find_map(|l| l.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let gib = |kib: u64| kib as f64 / f64::from(1 << 20);
    match (kib("MemTotal:"), kib("MemAvailable:")) {
        (Some(all), Some(free)) => {
            format!("{:.1} GiB, {:.1} GiB available", gib(all), gib(free))
        }
        _ => "unknown".to_owned(),
    }
}

fn shm() -> Entry {
    let options = JobOptions {
        ranks: 2,
        limit_bytes: None,
    };
    match Job::create(&options) {
        Ok(_) => {
            let fragment = MAX_PAYLOAD_BYTES >> 10;
            let note =
                format!("ranks of this machine, up to {MAX_RANKS}; fragments up to {fragment} KiB");
            Entry::new("shm", true, note)
        }
        Err(e) => Entry::new("shm", false, e.to_string()),
    }
}

fn cma() -> Entry {
    match osier::measure::attach_permitted() {
        Ok(()) => Entry::new(
            "cma",
            true,
            "part of shm: one copy by the kernel, process_vm_readv",
        ),
        Err(e) => {
            let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
            let hint = match (e.raw_os_error(), scope.as_deref().map(str::trim)) {
                (Some(libc::EPERM), Ok("2" | "3")) => {
                    " (hint: /proc/sys/kernel/yama/ptrace_scope forbids it)"
                }
                (Some(libc::EPERM), _) => " (hint: a container may need the capability SYS_PTRACE)",
                (Some(libc::ENOSYS), _) => " (hint: a sandbox or the kernel leaves it out)",
                _ => "",
            };
            let cause = e.to_string().to_lowercase();
            let cause = cause.split(" (os error").next().unwrap_or_default();
            let note = format!(
                "process_vm_readv from another process: {cause}{hint}; shm copies without it"
            );
            Entry::new("cma", false, note)
        }
    }
}

/// How ranks of this machine reach each other's windows.
fn windows() -> Entry {
    let note = match osier::measure::attach_permitted() {
        Ok(()) => "allocated ones by address, others by cma; no progress thread",
        Err(_) => "allocated ones by address; others need a progress thread",
    };
    Entry::new("windows", true, note)
}

/// As the library asks: a barrier for all registered processes, which spares
/// senders a fence.
fn membarrier() -> Entry {
    const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
    const REGISTER_GLOBAL_EXPEDITED: libc::c_long = 1 << 2;
    // SAFETY: a system call without pointers; 0 asks what is offered.
    let offered = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    let both = GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED;
    if offered >= 0 && offered & both == both {
        Entry::new("membarrier", true, "senders need no fence to wake sleepers")
    } else {
        let note = "senders use a fence instead, some 20 ns a message";
        Entry::new("membarrier", false, note)
    }
}

fn huge_pages() -> Entry {
    const NAME: &str = "huge pages";
    let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let Ok(text) = fs::read_to_string(file) else {
        return Entry::new(NAME, false, "for shared memory: not in this kernel");
    };
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("unknown", |(chosen, _)| chosen);
    let there = matches!(chosen, "always" | "within_size" | "advise" | "force");
    Entry::new(NAME, there, format!("for shared memory: {chosen} ({file})"))
}

/// Whether it is one of the emulated driver's.
pub fn is_emulated(device: &DeviceInfo) -> bool {
    device.name.to_lowercase().contains("emulated")
}

/// Copies by the processor through a mapped window of the device's memory.
pub fn gdrcopy() -> Entry {
    match osier_kernels::bar1::available() {
        Ok(()) => Entry::new(
            "gdrcopy",
            true,
            "BAR1 windows of plain device memory: the processor moves short messages itself where \
             that is quicker; not tested on hardware",
        ),
        Err(why) => Entry::new(
            "gdrcopy",
            false,
            format!(
                "BAR1 windows of device memory: {why}; short messages go through pinned memory"
            ),
        ),
    }
}

/// What a device is, in one line.
pub fn describe(device: &DeviceInfo) -> String {
    let (major, minor) = device.capability;
    let mut kinds = vec!["plain"];
    let offers = [
        (device.pools, "pool"),
        (device.mapping, "mapped"),
        (device.descriptors, "mapped by descriptor"),
        (device.managed, "managed"),
    ];
    kinds.extend(
        offers
            .iter()
            .filter(|(there, _)| *there)
            .map(|(_, kind)| *kind),
    );
    let peers: Vec<String> = device.peers.iter().map(i32::to_string).collect();
    let peers = match peers.is_empty() {
        true => "no peers".to_owned(),
        false => format!("peers {}", peers.join(", ")),
    };
    let gib = device.memory_bytes as f64 / f64::from(1 << 30);
    let (name, pci) = (
        &device.name,
        device.pci.as_deref().unwrap_or("no PCI address"),
    );
    let processes = match device.mps {
        true => "processes share it (MPS)",
        false => "processes take turns (no MPS)",
    };
    format!(
        "{name} at {pci}, {gib:.1} GiB, sm_{major}{minor}, {} multiprocessors; memory: {}; \
         {peers}; {processes}",
        device.multiprocessors,
        kinds.join(", "),
    )
}
