//! Every environment variable that Osier reads.

use crate::check::Setting;
use crate::comm::ProcessSets;
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::device::Reductions;
use crate::protocol::reach::Pipelining;
use osier_transports::shm::MAX_RANKS;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

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
        syntax: Syntax::Text(|text| parse_events(text).map(drop)),
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
        syntax: Syntax::Text(|text| bounded(text, MAPPINGS_BOUNDS).map(drop)),
    },
    Variable {
        name: "OSIER_DEVICE_MAPPED",
        default: "1T",
        meaning: "most bytes of these, such as 8G",
        syntax: Syntax::Text(|text| bounded(text, MAPPED_BOUNDS).map(drop)),
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
        syntax: Syntax::Text(|text| parse_pinned_limit(text).map(drop)),
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
        syntax: Syntax::Text(|text| parse_device_chunks(text).map(drop)),
    },
    Variable {
        name: "OSIER_DEVICE_EAGER",
        default: "8K, or more where the costs say so",
        meaning: "messages from a device up to so many bytes go at once, at most 256K, whether somebody waits for them or not; 0: all are announced",
        syntax: Syntax::Text(|text| parse_device_eager(text).map(drop)),
    },
    Variable {
        name: "OSIER_DEVICE_REDUCTIONS",
        default: "auto",
        meaning: "reductions of a device's memory combine on the device, wherever they can, on the host, or, auto, where it is expected to take less time",
        syntax: Syntax::Text(|text| parse_reductions(text).map(drop)),
    },
    Variable {
        name: "OSIER_PIPELINE",
        default: "auto",
        meaning: "messages between devices of two processes in chunks on the device: on, wherever they can, off, never, auto, where nothing is cheaper",
        syntax: Syntax::Text(|text| parse_pipeline(text).map(drop)),
    },
    Variable {
        name: "OSIER_PACK_MULTIPROCESSORS",
        default: "as many as packing needs to keep up",
        meaning: "most multiprocessors of a GPU that kernels of messages take, such as 8 or 25%",
        syntax: Syntax::Text(|text| Share::parse(text).map(drop)),
    },
    Variable {
        name: "OSIER_MODEL",
        default: "auto",
        meaning: "costs by which protocols and plans are chosen: auto, osier run measures them where nobody has, once, in about a second; cached, those that were measured, if any; built-in, those of the library",
        syntax: Syntax::Text(|text| parse_model(text).map(drop)),
    },
    Variable {
        name: "OSIER_COSTS",
        default: "what `osier model measure` has kept for this machine, else built in",
        meaning: "file with the costs of links from which protocols are chosen",
        syntax: Syntax::Path,
    },
];

/// Value of a variable, if it is set and not empty. What is no UTF-8 has replacement
/// characters, which no [`Syntax`] takes.
pub fn value(name: &str) -> Option<String> {
    path(name).map(|value| value.to_string_lossy().into_owned())
}

/// As [`value`], byte for byte.
pub fn path(name: &str) -> Option<PathBuf> {
    debug_assert!(
        VARIABLES.iter().any(|v| v.name == name),
        "{name} is declared"
    );
    let value = std::env::var_os(name).filter(|v| !v.is_empty());
    value.map(PathBuf::from)
}

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

/// A value for a message: as much of it as is recognised.
pub(crate) fn shown(text: &str) -> String {
    let start: String = text.chars().take(80).collect();
    let more = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{more}")
}

fn bad(text: &str, is_no: &str, hint: &str) -> Error {
    Error::new(
        ErrorKind::Config,
        format!("{} is no {is_no} (hint: {hint})", shown(text)),
    )
}

/// A number of a range.
fn number(text: &str, least: usize, most: usize) -> Result<()> {
    let number = text.trim().parse().ok();
    match number.filter(|n| (least..=most).contains(n)) {
        Some(_) => Ok(()),
        None => Err(bad(
            text,
            &format!("number from {least} to {most}"),
            "it is set by the launcher",
        )),
    }
}

#[cfg(debug_assertions)]
fn die_at(text: &str) -> Result<()> {
    crate::progress::steps::parse(text).map(drop)
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

/// Most events of a timeline that a thread keeps: 1 GiB of them.
pub(crate) const MOST_EVENTS: usize = 1 << 24;

/// Parses how many events of the timeline each thread keeps.
pub fn parse_events(text: &str) -> Result<usize> {
    let events = parse_bytes(text).ok().and_then(|n| usize::try_from(n).ok());
    events
        .filter(|n| (2..=MOST_EVENTS).contains(n))
        .ok_or_else(|| bad(text, "number of events", "2 to 16M, such as 64K"))
}

/// Parses a size such as `4096`, `64K`, `2M`, `1G`; binary units.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let bad = || bad(text, "size", "write bytes, or a number with K, M, G or T");
    let trimmed = text.trim();
    let (digits, shift) = match trimmed.char_indices().last() {
        Some((at, 'k' | 'K')) => (&trimmed[..at], 10),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 20),
        Some((at, 'g' | 'G')) => (&trimmed[..at], 30),
        Some((at, 't' | 'T')) => (&trimmed[..at], 40),
        _ => (trimmed, 0),
    };
    let n: u64 = digits.parse().map_err(|_| bad())?;
    n.checked_mul(1 << shift).ok_or_else(bad)
}

/// More memory than any machine has: half of an address space of 47 bits.
pub(crate) const MOST_BYTES: u64 = 1 << 46;

/// Of sizes that variables set.
const SHM_LIMIT_BOUNDS: RangeInclusive<u64> = 1..=MOST_BYTES;
pub(crate) const MAPPINGS_BOUNDS: RangeInclusive<u64> = 0..=1 << 20;
pub(crate) const MAPPED_BOUNDS: RangeInclusive<u64> = 0..=MOST_BYTES;

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

/// A size within bounds.
fn bounded(text: &str, bounds: RangeInclusive<u64>) -> Result<u64> {
    let bytes = parse_bytes(text)?;
    match bounds.contains(&bytes) {
        true => Ok(bytes),
        false => Err(Error::new(
            ErrorKind::Config,
            format!(
                "{} is out of bounds (hint: it is {} to {})",
                shown(text),
                bytes_text(*bounds.start()),
                bytes_text(*bounds.end())
            ),
        )),
    }
}

/// A variable that is a size within bounds.
pub(crate) fn size(name: &str, bounds: RangeInclusive<u64>) -> Result<Option<u64>> {
    let parsed = value(name).map(|text| bounded(&text, bounds));
    parsed.transpose().map_err(|e| e.context(name))
}

/// As [`parse_bytes`] reads it.
fn bytes_text(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units
        .into_iter()
        .find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    match unit {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A longer time is a mistake, in hours.
const MOST_HOURS: u64 = 365 * 24;

/// Parses a time such as `500ms`, `60s`, `5m`, `1h`; `None` for `off`.
pub fn parse_duration(text: &str) -> Result<Option<Duration>> {
    let hint = "write a number with ms, s, m or h, at most 8760h; or off";
    let bad = || bad(text, "time", hint);
    let trimmed = text.trim();
    if trimmed == "off" {
        return Ok(None);
    }
    let at = trimmed.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = trimmed.split_at(at.unwrap_or(trimmed.len()));
    let n: u64 = digits.parse().map_err(|_| bad())?;
    let ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    let most = MOST_HOURS * 3_600_000;
    let ms = n.checked_mul(ms).filter(|ms| (1..=most).contains(ms));
    let ms = ms.ok_or_else(bad)?;
    Ok(Some(Duration::from_millis(ms)))
}

/// How long a rank waits before it says so.
pub fn stall() -> Result<Option<Duration>> {
    match value("OSIER_STALL") {
        Some(text) => parse_duration(&text).map_err(|e| e.context("OSIER_STALL")),
        None => Ok(Some(Duration::from_secs(60))),
    }
}

/// How long a job stands still before it probably hangs.
pub fn patience() -> Result<Option<Duration>> {
    match value("OSIER_PROBABLE_HANG") {
        Some(text) => parse_duration(&text).map_err(|e| e.context("OSIER_PROBABLE_HANG")),
        None => Ok(Some(Duration::from_secs(5))),
    }
}

/// The limit on a job's shared memory.
pub fn shm_limit() -> Result<Option<u64>> {
    size("OSIER_SHM_LIMIT", SHM_LIMIT_BOUNDS)
}

/// A part of a device's multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// So many.
    Count(u32),
    /// So many of a hundred.
    Percent(u32),
}

impl Share {
    /// Of so many, at least one.
    pub fn of(self, multiprocessors: u32) -> u32 {
        match self {
            Share::Count(count) => count.min(multiprocessors),
            Share::Percent(percent) => multiprocessors * percent / 100,
        }
        .max(1)
    }

    fn parse(text: &str) -> Result<Share> {
        let trimmed = text.trim();
        let number = |digits: &str, most: u32| {
            let number: Option<u32> = digits.parse().ok();
            number.filter(|n| (1..=most).contains(n))
        };
        let share = match trimmed.strip_suffix('%') {
            Some(digits) => number(digits, 100).map(Share::Percent),
            None => number(trimmed, 1 << 16).map(Share::Count),
        };
        share.ok_or_else(|| bad(text, "share", "write a number such as 8, or 25%"))
    }
}

/// Most multiprocessors of a device that kernels of messages take.
pub fn pack_multiprocessors() -> Result<Option<Share>> {
    value("OSIER_PACK_MULTIPROCESSORS")
        .map(|text| Share::parse(&text).map_err(|e| e.context("OSIER_PACK_MULTIPROCESSORS")))
        .transpose()
}

/// Host memory that a rank pins for messages of devices, unless told otherwise.
pub const PINNED_LIMIT_BYTES: usize = 64 << 20;

/// The limit on the host memory that a rank pins for messages of devices, in bytes.
pub fn pinned_limit() -> Result<usize> {
    match value("OSIER_PINNED_LIMIT") {
        None => Ok(PINNED_LIMIT_BYTES),
        Some(text) => parse_pinned_limit(&text).map_err(|e| e.context("OSIER_PINNED_LIMIT")),
    }
}

fn parse_pinned_limit(text: &str) -> Result<usize> {
    let least = crate::device::pool::LEAST_LIMIT_BYTES as u64;
    bounded(text, least..=MOST_BYTES).map(|bytes| bytes as usize)
}

/// Memory of a device that a rank takes for chunks, unless told otherwise.
pub const DEVICE_CHUNKS_BYTES: usize = 32 << 20;

/// The memory of each device that a rank takes for chunks, in bytes.
pub fn device_chunks() -> Result<usize> {
    match value("OSIER_DEVICE_CHUNKS") {
        None => Ok(DEVICE_CHUNKS_BYTES),
        Some(text) => parse_device_chunks(&text).map_err(|e| e.context("OSIER_DEVICE_CHUNKS")),
    }
}

fn parse_device_chunks(text: &str) -> Result<usize> {
    let least = 2 * crate::protocol::device::LEAST_DEVICE_CHUNK_BYTES as u64;
    match parse_bytes(text)? {
        0 => Ok(0),
        _ => bounded(text, least..=MOST_BYTES)
            .map(|bytes| bytes as usize)
            .map_err(|e| e.context("neither 0 nor enough")),
    }
}

/// Largest message of a device that goes at once, in bytes; `None`: as the costs say.
pub fn device_eager() -> Result<Option<usize>> {
    let limit = value("OSIER_DEVICE_EAGER").map(|text| parse_device_eager(&text));
    limit
        .transpose()
        .map_err(|e| e.context("OSIER_DEVICE_EAGER"))
}

fn parse_device_eager(text: &str) -> Result<usize> {
    let most = crate::protocol::select::EAGER_LIMIT_BYTES as u64;
    bounded(text, 0..=most).map(|bytes| bytes as usize)
}

/// Where costs come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Costs {
    /// Measured by the launcher where they are missing.
    #[default]
    Auto,
    /// Measured by the user, if at all.
    Cached,
    /// Of the library.
    BuiltIn,
}

/// Where costs come from.
pub fn model() -> Result<Costs> {
    match value("OSIER_MODEL") {
        None => Ok(Costs::Auto),
        Some(text) => parse_model(&text).map_err(|e| e.context("OSIER_MODEL")),
    }
}

fn parse_model(text: &str) -> Result<Costs> {
    match text.trim() {
        "auto" => Ok(Costs::Auto),
        "cached" => Ok(Costs::Cached),
        "built-in" => Ok(Costs::BuiltIn),
        _ => Err(bad(
            text,
            "word of those that are known",
            "auto, cached or built-in",
        )),
    }
}

/// Where reductions of a device's memory combine.
pub fn device_reductions() -> Result<Reductions> {
    match value("OSIER_DEVICE_REDUCTIONS") {
        None => Ok(Reductions::Auto),
        Some(text) => parse_reductions(&text).map_err(|e| e.context("OSIER_DEVICE_REDUCTIONS")),
    }
}

fn parse_reductions(text: &str) -> Result<Reductions> {
    match text.trim() {
        "device" => Ok(Reductions::Device),
        "host" => Ok(Reductions::Host),
        "auto" => Ok(Reductions::Auto),
        _ => Err(bad(
            text,
            "word of those that are known",
            "device, host or auto",
        )),
    }
}

/// When messages between devices go in chunks on the device.
pub fn pipeline() -> Result<Pipelining> {
    match value("OSIER_PIPELINE") {
        None => Ok(Pipelining::Auto),
        Some(text) => parse_pipeline(&text).map_err(|e| e.context("OSIER_PIPELINE")),
    }
}

fn parse_pipeline(text: &str) -> Result<Pipelining> {
    match text.trim() {
        "on" => Ok(Pipelining::On),
        "off" => Ok(Pipelining::Off),
        "auto" => Ok(Pipelining::Auto),
        _ => Err(bad(text, "word of those that are known", "on, off or auto")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let ms = |text| parse_duration(text).expect(text).map(|d| d.as_millis());
        assert_eq!(ms("60s"), Some(60_000));
        assert_eq!(ms(" 500ms "), Some(500));
        assert_eq!(ms("2m"), Some(120_000));
        assert_eq!(ms("off"), None);
        for bad in [
            "",
            "60",
            "0s",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            "99999999999999999999h",
            "8761h",
        ] {
            let e = parse_duration(bad).expect_err(bad);
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }

    #[test]
    fn shares_are_numbers_or_percent() {
        assert_eq!(Share::parse(" 8 ").expect("a number"), Share::Count(8));
        let quarter = Share::parse("25%").expect("percent");
        assert_eq!((quarter.of(132), quarter.of(2)), (33, 1));
        assert_eq!(Share::Count(500).of(132), 132);
        for bad in ["", "0", "0%", "101%", "-1", "a", "1.5"] {
            let e = Share::parse(bad).expect_err(bad);
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }

    #[test]
    fn bounds_are_told_as_they_are_written() {
        for bytes in [0, 1, 1000, 1 << 10, 3 << 20, 1 << 46] {
            assert_eq!(parse_bytes(&bytes_text(bytes)).expect("a size"), bytes);
        }
        assert_eq!(bytes_text(256 << 10), "256K");
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_bytes("17").expect("plain"), 17);
        assert_eq!(parse_bytes(" 64k ").expect("K"), 65536);
        assert_eq!(parse_bytes("3G").expect("G"), 3 << 30);
        for bad in ["", "k", "1.5M", "-1", "99999999999T"] {
            let e = parse_bytes(bad).expect_err(bad);
            assert!(e.to_string().contains("hint"), "{e}");
        }
    }
}
