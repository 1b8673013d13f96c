//! The environment variables of Osier, and the keys of `OSIER_DEBUG`: tables with default,
//! meaning and parser.
//!
//! | table | what |
//! |---|---|
//! | [`USER`] | variables that users set |
//! | [`LAUNCHER`] | variables that `osier run` sets; scripts may read the first two |
//! | [`DEBUG`] | `OSIER_DEBUG` |
//! | [`KEYS`] | its keys, for developers |
//! | [`RENAMED`] | variables that once were, with what took their place |

mod delay;
mod process;
mod renamed;

use crate::comm::ProcessSets;
use crate::model::settings as model_settings;
use osier_engine::check::Setting;
use osier_engine::device::settings;
use osier_engine::diagnose::settings::PROBABLE_HANG;
use osier_engine::env::{MOST_BYTES, bounded, number, shown, size};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::trace;
use osier_kernels::debug as pairs;
use osier_transports::net::NetworkSetting;
use osier_transports::shm::MAX_RANKS;
use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::time::Duration;

pub use crate::model::settings::{Costs, wanted as model};
pub use delay::{delay, parse_delay};
pub use osier_engine::device::settings::{
    DEVICE_SLOTS_BYTES, PINNED_LIMIT_BYTES, Share, device_eager, device_reductions, device_slots,
    pack_multiprocessors, pinned_limit, pipeline,
};
pub use osier_engine::diagnose::settings::{patience, stall};
pub use osier_engine::env::parse_duration;
pub use osier_engine::env::{parse_bytes, path, value};
pub use osier_engine::trace::parse_events;
pub use process::Process;
pub use renamed::{RENAMED, Renamed, Successor};

/// A variable, or a key of `OSIER_DEBUG`, for `osier info`.
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

/// Variables that users set.
pub const USER: &[Variable] = &[
    Variable {
        name: "OSIER_CHECK",
        default: "off",
        meaning: "the checks that run: signature, buffers, leaks, ready, collectives, threads, windows, or all; payload, too, by name; fatal ends the job at the first finding; also osier run --check",
        syntax: Syntax::Text(|text| text.parse::<Setting>().map(drop)),
    },
    Variable {
        name: "OSIER_TRACE",
        default: "no trace",
        meaning: "folder for a timeline of all ranks; also osier run --trace",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_STALL",
        default: "60s",
        meaning: "time after which a rank reports a wait, once, such as 500ms, 60s or 5m; off: never",
        syntax: Syntax::Text(|text| parse_duration(text).map(drop)),
    },
    Variable {
        name: "OSIER_SHM_LIMIT",
        default: "no limit",
        meaning: "most shared memory of a job, such as 512M or 2G; read by osier run, or by rank 0 under other launchers",
        syntax: Syntax::Text(|text| bounded(text, SHM_LIMIT_BOUNDS).map(drop)),
    },
    Variable {
        name: "OSIER_HEAP",
        default: "asked",
        meaning: "what lies in the shared heap, where peers read it in place: asked, what programs allocate there; all, also allocations of 16 KiB and more of unmodified programs, once they have joined; read by osier run, as --shared-heap",
        syntax: Syntax::Text(|text| parse_heap(text).map(drop)),
    },
    Variable {
        name: "OSIER_DELAY",
        default: "no delay",
        meaning: "by how much messages between processes are delayed, and by how much more for each MiB of payload, such as 20us or 20us:100us; nothing is read in place then; read by osier run, as --delay, or by rank 0 under other launchers",
        syntax: Syntax::Text(|text| parse_delay(text).map(drop)),
    },
    Variable {
        name: "OSIER_NETWORK",
        default: "all interfaces that are up, but loopback",
        meaning: "interfaces and subnets by which ranks of other hosts reach this one, a range of ports (ports=20000-20100), how long a host may be silent (gone=5s), and whether of two halves of a cut network that of the lowest rank goes on (tie=lowest), with commas between",
        syntax: Syntax::Text(|text| parse_network(text).map(drop)),
    },
    Variable {
        name: "OSIER_PINNED_LIMIT",
        default: "64M",
        meaning: "most host memory that a rank pins for messages of devices, at least 256K; less of it makes shorter pipelines",
        syntax: Syntax::Text(|text| settings::parse_pinned_limit(text).map(drop)),
    },
    Variable {
        name: "OSIER_MODEL",
        default: "auto",
        meaning: "costs by which protocols and plans are chosen: auto, those measured on this machine, which osier run measures if there are none, once, in about a second; cached, those measured before, if any; built-in, those of the library",
        syntax: Syntax::Text(|text| model_settings::parse(text).map(drop)),
    },
    Variable {
        name: "OSIER_COSTS",
        default: "those that `osier model measure` stored for this machine, else built in",
        meaning: "file with the costs of links from which protocols are chosen",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_CUBINS",
        default: "cubins beside the executable",
        meaning: "folder with binaries of the kernels; without, the driver compiles at first use",
        syntax: Syntax::Path,
    },
    Variable {
        name: "OSIER_ALONE",
        default: "0",
        meaning: "1: this process is a job of one rank on purpose, though a launcher started it or a rank is its parent; osier run clears it for its ranks",
        syntax: Syntax::Text(|text| parse_alone(text).map(drop)),
    },
];

/// Variables that the launcher sets for its ranks.
pub const LAUNCHER: &[Variable] = &[
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
        name: "OSIER_JOB",
        default: "a job of one rank",
        meaning: "version and file descriptors of the job, and the part of this process: ranks, processors, program, process sets; set by osier run",
        syntax: Syntax::Text(job),
    },
];

/// The variable of developers, whose keys are [`KEYS`].
pub const DEBUG: &[Variable] = &[Variable {
    name: pairs::VARIABLE,
    default: "none",
    meaning: "settings for developers, as key=value,key=value; a comma of a value is written twice",
    syntax: Syntax::Text(debug),
}];

/// All keys of [`DEBUG`].
pub const KEYS: &[Variable] = &[
    Variable {
        name: PROBABLE_HANG,
        default: "5s",
        meaning: "time without progress, while threads outside Osier sleep, after which a job reports once that it probably hangs, such as 500ms, 5s or 1m; off: never",
        syntax: Syntax::Text(|text| parse_duration(text).map(drop)),
    },
    Variable {
        name: "trace-events",
        default: "64K",
        meaning: "events of the timeline that each thread keeps, the newest; 64 bytes each, at most 16M of them",
        syntax: Syntax::Text(|text| trace::parse_events(text).map(drop)),
    },
    Variable {
        name: "pipeline",
        default: "auto",
        meaning: "messages between devices of two processes in slots on the device: on, wherever they can, off, never, auto, where nothing is cheaper",
        syntax: Syntax::Text(|text| settings::parse_pipeline(text).map(drop)),
    },
    Variable {
        name: "device-eager",
        default: "8K, or more where the costs say so",
        meaning: "largest message from a device that is sent eagerly, whether its receive is posted or not, at most 256K; 0: none",
        syntax: Syntax::Text(|text| settings::parse_device_eager(text).map(drop)),
    },
    Variable {
        name: "device-slots",
        default: "32M",
        meaning: "memory of each device that a rank takes for slots of messages to other processes, once one needs them, at least 512K; 0: none, messages go through the host",
        syntax: Syntax::Text(|text| settings::parse_device_slots(text).map(drop)),
    },
    Variable {
        name: "device-mappings",
        default: "256",
        meaning: "most allocations of other processes' devices that a rank keeps open; 0: none, messages go through the host",
        syntax: Syntax::Text(|text| bounded(text, settings::MAPPINGS_BOUNDS).map(drop)),
    },
    Variable {
        name: "device-mapped",
        default: "1T",
        meaning: "most bytes of these, such as 8G",
        syntax: Syntax::Text(|text| bounded(text, settings::MAPPED_BOUNDS).map(drop)),
    },
    Variable {
        name: "device-reductions",
        default: "auto",
        meaning: "reductions of a device's memory combine on the device, wherever they can, on the host, or, auto, where they are predicted to take less time",
        syntax: Syntax::Text(|text| settings::parse_reductions(text).map(drop)),
    },
    Variable {
        name: "one-kernel",
        default: "auto",
        meaning: "allreduces of at most 64 KiB between ranks with a device each may be one kernel of each rank, by multicast if the switch has it; plain: without multicast; off: not at all; one rank decides for all of a communicator",
        syntax: Syntax::Text(|text| settings::parse_one_kernel(text).map(drop)),
    },
    Variable {
        name: "pack-multiprocessors",
        default: "as many as packing needs to keep up",
        meaning: "most multiprocessors of a GPU that kernels of messages take, such as 8 or 25%",
        syntax: Syntax::Text(|text| settings::Share::parse(text).map(drop)),
    },
    Variable {
        name: pairs::KEPT_PLAIN,
        default: "all",
        meaning: "most bytes of a device's plain memory that are kept for the next allocation when their owner drops them",
        syntax: Syntax::Text(|text| {
            let number = text.parse::<usize>();
            number.map(drop).map_err(|_| {
                Error::new(
                    ErrorKind::Config,
                    format!("'{}' is not a number of bytes", shown(text)),
                )
            })
        }),
    },
    Variable {
        name: pairs::DEVICE_COMPLETION,
        default: "words",
        meaning: "how the host sees that a device's work of messages is done: by words that kernels and streams raise in pinned memory, or by events alone",
        syntax: Syntax::Text(|text| match text {
            "words" | "events" => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Config,
                format!("'{}' is not words or events", shown(text)),
            )),
        }),
    },
    Variable {
        name: pairs::CUDA_LIBRARY,
        default: "libcuda.so.1",
        meaning: "the CUDA driver's library; loaded when a device is first asked for",
        syntax: Syntax::Path,
    },
    Variable {
        name: pairs::GDRCOPY_LIBRARY,
        default: "libgdrapi.so.2",
        meaning: "the library of gdrcopy, by which the processor reaches a device's memory; off: none",
        syntax: Syntax::Path,
    },
    Variable {
        name: pairs::NVML_LIBRARY,
        default: "libnvidia-ml.so.1",
        meaning: "NVIDIA's management library, which lists NVLinks; loaded when they are first asked for; off: they are unknown",
        syntax: Syntax::Path,
    },
    Variable {
        name: "die-at",
        default: "never",
        meaning: "for tests, in builds with debug assertions: PHASE:KIND:N[@RANK]; the process is killed when it posts, posted, handles or handled its Nth message of a kind, such as posted:SLOT:2@1",
        syntax: Syntax::Text(die_at),
    },
    Variable {
        name: "steps",
        default: "not written",
        meaning: "for tests, in builds with debug assertions: each process writes the steps that die-at counts, one a line, to this path with its process number behind a dot",
        syntax: Syntax::Path,
    },
];

/// All variables that are read.
pub fn variables() -> impl Iterator<Item = &'static Variable> {
    USER.iter().chain(LAUNCHER).chain(DEBUG)
}

/// Addresses and ports of this rank: `OSIER_NETWORK`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`].
pub fn network() -> Result<NetworkSetting> {
    parse_network(&value("OSIER_NETWORK").unwrap_or_default())
        .map_err(|e| e.context("OSIER_NETWORK"))
}

fn parse_network(text: &str) -> Result<NetworkSetting> {
    text.parse()
        .map_err(|e: String| Error::new(ErrorKind::Config, e))
}

/// The value of a key of `OSIER_DEBUG`.
pub fn debug_value(key: &str) -> Option<String> {
    let value = pairs::value(key);
    value.map(|value| value.to_string_lossy().into_owned())
}

/// Refuses values that make no sense, of any variable: before a job is made or joined, so
/// that none is found out only where it is used, if at all.
///
/// # Errors
/// Of kind [`ErrorKind::Config`], with the variable's name in front.
pub fn check() -> Result<()> {
    check_names()?;
    for variable in USER.iter().chain(LAUNCHER) {
        if let (Syntax::Text(check), Some(text)) = (variable.syntax, value(variable.name)) {
            check(&text).map_err(|e| e.context(variable.name))?;
        }
    }
    Ok(())
}

/// Refuses variables that are read no longer, and what `OSIER_DEBUG` must not say.
///
/// # Errors
/// Of kind [`ErrorKind::Config`]: what took the variable's place; or the key, with names that
/// are close to it.
pub fn check_names() -> Result<()> {
    renamed::check(&|name| value(name))?;
    match path(pairs::VARIABLE) {
        Some(text) => debug_pairs(text.as_os_str()).map_err(|e| e.context(pairs::VARIABLE)),
        None => Ok(()),
    }
}

fn debug(text: &str) -> Result<()> {
    debug_pairs(OsStr::new(text))
}

/// Checks keys and values.
fn debug_pairs(text: &OsStr) -> Result<()> {
    let pairs = pairs::pairs(text).map_err(|part| {
        config_error(format!(
            "{} is no key=value (hint: pairs end at a comma; a comma of a value is written twice)",
            shown(&part)
        ))
    })?;
    for (key, value) in pairs {
        let known = KEYS.iter().find(|known| known.name == key);
        let known = known.ok_or_else(|| {
            config_error(format!(
                "there is no key {} (hint: {})",
                shown(&key),
                close(&key)
            ))
        })?;
        if let (Syntax::Text(check), false) = (known.syntax, value.is_empty()) {
            check(&value.to_string_lossy()).map_err(|e| e.context(known.name))?;
        }
    }
    Ok(())
}

/// Which keys a name may stand for.
fn close(key: &str) -> String {
    let key = key.to_ascii_lowercase().replace('_', "-");
    let most = (key.len() / 3).clamp(1, 3);
    let is_close = |known: &&Variable| {
        let part = key.len() >= 4 && (known.name.contains(&key) || key.contains(known.name));
        part || distance(&key, known.name) <= most
    };
    let found = KEYS.iter().filter(is_close).map(|known| known.name);
    let found: Vec<&str> = found.collect();
    match found.is_empty() {
        true => "osier info --all lists the keys".into(),
        false => format!("{}? osier info --all lists all keys", found.join(" or ")),
    }
}

/// How many characters are to be changed, added or taken away.
fn distance(a: &str, b: &str) -> usize {
    // Names are short; a long text is close to none.
    if a.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let change = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = change.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn config_error(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

/// What `osier run` told this process; a process of one rank without it.
///
/// # Errors
/// Of kind [`ErrorKind::Config`]: a part makes no sense.
pub fn process() -> Result<Process> {
    let process = value(JOB).map(|text| Process::of(&text));
    let process = process.transpose().map_err(|e| e.context(JOB))?;
    Ok(process.unwrap_or_default())
}

const JOB: &str = "OSIER_JOB";

fn job(text: &str) -> Result<()> {
    osier_transports::shm::check_description(text)?;
    Process::of(text).and_then(|process| psets(&process.sets.join(";")))
}

/// How long a job stands still before it probably hangs, by this text of `OSIER_DEBUG`.
///
/// # Errors
/// Of kind [`ErrorKind::Config`].
pub fn patience_in(debug: &OsStr) -> Result<Option<Duration>> {
    let Some(text) = pairs::value_in(debug, PROBABLE_HANG) else {
        return Ok(Some(Duration::from_secs(5)));
    };
    parse_duration(&text.to_string_lossy())
        .map_err(|e| e.context(osier_engine::env::named(PROBABLE_HANG)))
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

/// Whether allocations of unmodified programs are to lie in the shared heap.
///
/// # Errors
/// Of kind [`ErrorKind::Config`], if it is neither of the two words.
pub fn parse_heap(text: &str) -> Result<bool> {
    match text.trim() {
        "" | "asked" => Ok(false),
        "all" => Ok(true),
        _ => Err(config_error(format!(
            "{} is neither asked nor all",
            shown(text)
        ))),
    }
}

/// The limit on a job's shared memory.
pub fn shm_limit() -> Result<Option<u64>> {
    size("OSIER_SHM_LIMIT", SHM_LIMIT_BOUNDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        debug(text).expect_err(text).to_string()
    }

    #[test]
    fn keys_are_checked_as_variables_are() {
        for good in [
            "",
            "pipeline=on",
            "pipeline=,device-slots=0",
            "steps=a,,b,pack-multiprocessors=25%",
        ] {
            debug(good).expect(good);
        }
        assert!(refused("pipeline=perhaps").contains("pipeline: \"perhaps\""));
        assert!(refused("pipeline").contains("no key=value"));
        assert!(refused("device-slots=1").contains("device-slots"));
    }

    #[test]
    fn unknown_key_names_those_that_are_close() {
        for (key, close) in [
            ("pipelin", "pipeline?"),
            ("PIPELINE", "pipeline?"),
            ("cuda_library", "cuda-library?"),
            ("mapping", "device-mappings?"),
            ("device-slot", "device-slots?"),
            ("xyz", "lists the keys"),
        ] {
            let said = refused(&format!("{key}=1"));
            assert!(said.contains(close) && said.contains("hint"), "{said}");
        }
        assert!(refused(&format!("{}=1", "x".repeat(100_000))).len() < 500);
    }

    #[test]
    fn distances_are_those_of_levenshtein() {
        for (a, b, far) in [
            ("", "", 0),
            ("a", "", 1),
            ("kitten", "sitting", 3),
            ("abc", "abc", 0),
        ] {
            assert_eq!(distance(a, b), far, "{a} {b}");
            assert_eq!(distance(b, a), far, "{b} {a}");
        }
    }
}
