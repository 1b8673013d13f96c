//! The environment variables of Osier: one table, with default, meaning and parser.

use crate::comm::ProcessSets;
use crate::model::settings as model_settings;
use osier_engine::check::Setting;
use osier_engine::device::settings;
use osier_engine::env::{MOST_BYTES, bad, bounded, number, shown, size};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::trace;
use osier_transports::shm::MAX_RANKS;
use std::ops::RangeInclusive;

pub use crate::model::settings::{Costs, wanted as model};
pub use osier_engine::device::settings::{
    DEVICE_CHUNKS_BYTES, PINNED_LIMIT_BYTES, Share, device_chunks, device_eager, device_reductions,
    pack_multiprocessors, pinned_limit, pipeline,
};
pub use osier_engine::diagnose::settings::{patience, stall};
pub use osier_engine::env::parse_duration;
pub use osier_engine::env::{parse_bytes, path, value};
pub use osier_engine::trace::parse_events;

/// A variable, for `osier info`.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What it may be.
    pub syntax: Syntax,
}

/// What a variable may be.
#[derive(Clone, Copy, Debug)]
pub enum Syntax {
    /// The path of a file or folder, or the name of a library: what is wrong with it is an
    /// error when it is opened.
    Path,
    /// What this function takes.
    Text(fn(&str) -> Result<()>),
}

/// All variables.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "OSIER_RANK",
        default: "0",
        meaning: "this process's rank; set by osier run",
        syntax: Syntax::Text(|text| number(text, 0, MAX_RANKS - 1)),
    },
    Variable {
        name: "OSIER_RANKS",
        default: "1",
        meaning: "number of ranks; set by osier run, for scripts",
        syntax: Syntax::Text(|text| number(text, 1, MAX_RANKS)),
    },
    Variable {
        name: "OSIER_RANKS_HERE",
        default: "1",
        meaning: "ranks that are threads of this process; set by osier run --ranks-per-process",
        syntax: Syntax::Text(|text| number(text, 1, MAX_RANKS)),
    },
    Variable {
        name: "OSIER_CPUS",
        default: "not bound",
        meaning: "processors of each rank of this process, such as 0,4;1,5; set by osier run --ranks-per-process",
        syntax: Syntax::Text(|text| parse_cpus(text).map(drop)),
    },
    Variable {
        name: "OSIER_JOB",
        default: "a job of one rank",
        meaning: "version and file descriptors of the job; set by osier run",
        syntax: Syntax::Text(|text| Ok(osier_transports::shm::check_description(text)?)),
    },
    Variable {
        name: "OSIER_ALONE",
        default: "0",
        meaning: "1: this process is a job of one rank on purpose, though a launcher started it or a rank is its parent; osier run clears it for its ranks",
        syntax: Syntax::Text(|text| parse_alone(text).map(drop)),
    },
    Variable {
        name: "OSIER_PSETS",
        default: "none",
        meaning: "process sets of the user, as NAME=0-3,7;NAME=...; set by osier run",
        syntax: Syntax::Text(psets),
    },
    Variable {
        name: "OSIER_APPNUM",
        default: "0",
        meaning: "number of this rank's program in a job of several; set by mpiexec",
        syntax: Syntax::Text(|text| number(text, 0, MAX_RANKS - 1)),
    },
    Variable {
        name: "OSIER_SHM_LIMIT",
        default: "no limit",
        meaning: "most shared memory of a job, such as 512M or 2G; read by osier run, or by rank 0 under other launchers",
        syntax: Syntax::Text(|text| bounded(text, SHM_LIMIT_BOUNDS).map(drop)),
    },
    Variable {
        name: "OSIER_STALL",
        default: "60s",
        meaning: "a rank that waits longer says so once, such as 500ms, 60s or 5m; off: never",
        syntax: Syntax::Text(|text| parse_duration(text).map(drop)),
    },
    Variable {
        name: "OSIER_PROBABLE_HANG",
        default: "5s",
        meaning: "a job that stands still for so long, while threads outside Osier sleep, probably hangs, and says so once, such as 500ms, 5s or 1m; off: it never does",
        syntax: Syntax::Text(|text| parse_duration(text).map(drop)),
    },
    Variable {
        name: "OSIER_TRACE",
        default: "no trace",
        meaning: "folder for a timeline of what all ranks do; also osier run --trace",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_TRACE_EVENTS",
        default: "64K",
        meaning: "events of the timeline that each thread keeps, the newest; 64 bytes each, at most 16M of them",
        syntax: Syntax::Text(|text| trace::parse_events(text).map(drop)),
    },
    Variable {
        name: "OSIER_CUBINS",
        default: "cubins beside the executable",
        meaning: "folder with binaries of the kernels; without, the driver compiles at first use",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_CUDA_LIBRARY",
        default: "libcuda.so.1",
        meaning: "the CUDA driver's library; loaded when a device is first asked for",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_GDRCOPY_LIBRARY",
        default: "libgdrapi.so.2",
        meaning: "the library of gdrcopy, by which the processor reaches a device's memory; off: none",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_NVML_LIBRARY",
        default: "libnvidia-ml.so.1",
        meaning: "NVIDIA's management library, which tells of NVLinks; loaded when they are first asked for; off: they are unknown",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_DEVICE_MAPPINGS",
        default: "256",
        meaning: "most allocations of other processes' devices that a rank keeps open; 0: none, messages go through the host",
        syntax: Syntax::Text(|text| bounded(text, settings::MAPPINGS_BOUNDS).map(drop)),
    },
    Variable {
        name: "OSIER_DEVICE_MAPPED",
        default: "1T",
        meaning: "most bytes of these, such as 8G",
        syntax: Syntax::Text(|text| bounded(text, settings::MAPPED_BOUNDS).map(drop)),
    },
    Variable {
        name: "OSIER_CHECK",
        default: "off",
        meaning: "what is checked: signature, buffers, leaks, ready, collectives, threads, or all; payload, too, by name; fatal ends the job at the first finding; also osier run --check",
        syntax: Syntax::Text(|text| text.parse::<Setting>().map(drop)),
    },
    Variable {
        name: "OSIER_PINNED_LIMIT",
        default: "64M",
        meaning: "most host memory that a rank pins for messages of devices, at least 256K; less of it makes shorter pipelines",
        syntax: Syntax::Text(|text| settings::parse_pinned_limit(text).map(drop)),
    },
    Variable {
        name: "OSIER_DIE_AT",
        default: "never",
        meaning: "for tests, in builds with debug assertions: PHASE:KIND:N[@RANK]; the process is killed when it posts, posted, handles or handled so many messages of a kind, such as posted:CHUNK:2@1",
        syntax: Syntax::Text(die_at),
    },
    Variable {
        name: "OSIER_STEPS",
        default: "not written",
        meaning: "for tests, in builds with debug assertions: each process writes what OSIER_DIE_AT counts, one a line, to this path with its process number behind a dot",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_DEVICE_CHUNKS",
        default: "32M",
        meaning: "memory of each device that a rank takes for chunks of messages to other processes, once one needs them, at least 512K; 0: none, messages go through the host",
        syntax: Syntax::Text(|text| settings::parse_device_chunks(text).map(drop)),
    },
    Variable {
        name: "OSIER_DEVICE_EAGER",
        default: "8K, or more where the costs say so",
        meaning: "messages from a device up to so many bytes go at once, at most 256K, whether somebody waits for them or not; 0: all are announced",
        syntax: Syntax::Text(|text| settings::parse_device_eager(text).map(drop)),
    },
    Variable {
        name: "OSIER_DEVICE_REDUCTIONS",
        default: "auto",
        meaning: "reductions of a device's memory combine on the device, wherever they can, on the host, or, auto, where it is expected to take less time",
        syntax: Syntax::Text(|text| settings::parse_reductions(text).map(drop)),
    },
    Variable {
        name: "OSIER_PIPELINE",
        default: "auto",
        meaning: "messages between devices of two processes in chunks on the device: on, wherever they can, off, never, auto, where nothing is cheaper",
        syntax: Syntax::Text(|text| settings::parse_pipeline(text).map(drop)),
    },
    Variable {
        name: "OSIER_PACK_MULTIPROCESSORS",
        default: "as many as packing needs to keep up",
        meaning: "most multiprocessors of a GPU that kernels of messages take, such as 8 or 25%",
        syntax: Syntax::Text(|text| settings::Share::parse(text).map(drop)),
    },
    Variable {
        name: "OSIER_MODEL",
        default: "auto",
        meaning: "costs by which protocols and plans are chosen: auto, osier run measures them where nobody has, once, in about a second; cached, those that were measured, if any; built-in, those of the library",
        syntax: Syntax::Text(|text| model_settings::parse(text).map(drop)),
    },
    Variable {
        name: "OSIER_COSTS",
        default: "what `osier model measure` has kept for this machine, else built in",
        meaning: "file with the costs of links from which protocols are chosen",
        syntax: Syntax::Path,
    },
];

/// Refuses values that make no sense, of any variable: before a job is made or joined, so
/// that none is found out only where it is used, if at all.
///
/// # Errors
/// Of kind [`ErrorKind::Config`], with the variable's name in front.
pub fn check() -> Result<()> {
    for variable in VARIABLES {
        if let (Syntax::Text(check), Some(text)) = (variable.syntax, value(variable.name)) {
            check(&text).map_err(|e| e.context(variable.name))?;
        }
    }
    Ok(())
}

#[cfg(debug_assertions)]
fn die_at(text: &str) -> Result<()> {
    osier_engine::progress::steps::parse(text).map(drop)
}

#[cfg(not(debug_assertions))]
fn die_at(_text: &str) -> Result<()> {
    Err(Error::new(
        ErrorKind::Config,
        "this build has no debug assertions (hint: it is for tests)",
    ))
}

/// Process sets of a job that is as large as any.
fn psets(text: &str) -> Result<()> {
    let mut sets = ProcessSets::predefined(0, MAX_RANKS as u32)?;
    sets.add(text, MAX_RANKS)
}

/// Parses the processors of several ranks, such as `0,4;1,5`; none for a rank that is not
/// bound.
pub fn parse_cpus(text: &str) -> Result<Vec<Vec<usize>>> {
    let parse = |list: &str| -> Option<Vec<usize>> {
        let numbers = list.split(',').filter(|n| !n.is_empty());
        numbers.map(|n| n.parse().ok()).collect()
    };
    let places: Option<Vec<Vec<usize>>> = text.split(';').map(parse).collect();
    places.ok_or_else(|| bad(text, "list of processors", "it is set by osier run"))
}

const SHM_LIMIT_BOUNDS: RangeInclusive<u64> = 1..=MOST_BYTES;

/// Whether a process is to be a job of one rank.
pub(crate) fn parse_alone(text: &str) -> Result<bool> {
    match text.trim() {
        "" | "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Error::new(
            ErrorKind::Config,
            format!("{} is neither 0 nor 1", shown(text)),
        )),
    }
}

/// The limit on a job's shared memory.
pub fn shm_limit() -> Result<Option<u64>> {
    size("OSIER_SHM_LIMIT", SHM_LIMIT_BOUNDS)
}
