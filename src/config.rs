//! Every environment variable that Osier reads.

use crate::error::{Error, ErrorKind, Result};
use crate::protocol::device::Reductions;
use crate::protocol::reach::Pipelining;
use std::ops::RangeInclusive;
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
}

/// All variables.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "OSIER_RANK",
        default: "0",
        meaning: "this process's rank; set by osier run",
    },
    Variable {
        name: "OSIER_RANKS",
        default: "1",
        meaning: "number of ranks; set by osier run, for scripts",
    },
    Variable {
        name: "OSIER_RANKS_HERE",
        default: "1",
        meaning: "ranks that are threads of this process; set by osier run --ranks-per-process",
    },
    Variable {
        name: "OSIER_CPUS",
        default: "not bound",
        meaning: "processors of each rank of this process, such as 0,4;1,5; set by osier run --ranks-per-process",
    },
    Variable {
        name: "OSIER_JOB",
        default: "a job of one rank",
        meaning: "version and file descriptors of the job; set by osier run",
    },
    Variable {
        name: "OSIER_ALONE",
        default: "0",
        meaning: "1: this process is a job of one rank on purpose, though a launcher started it or a rank is its parent; osier run clears it for its ranks",
    },
    Variable {
        name: "OSIER_PSETS",
        default: "none",
        meaning: "process sets of the user, as NAME=0-3,7;NAME=...; set by osier run",
    },
    Variable {
        name: "OSIER_APPNUM",
        default: "0",
        meaning: "number of this rank's program in a job of several; set by mpiexec",
    },
    Variable {
        name: "OSIER_SHM_LIMIT",
        default: "no limit",
        meaning: "most shared memory of a job, such as 512M or 2G; read by osier run",
    },
    Variable {
        name: "OSIER_STALL",
        default: "60s",
        meaning: "a rank that waits longer says so once, such as 500ms, 60s or 5m; off: never",
    },
    Variable {
        name: "OSIER_TRACE",
        default: "no trace",
        meaning: "folder for a timeline of what all ranks do; also osier run --trace",
    },
    Variable {
        name: "OSIER_TRACE_EVENTS",
        default: "64K",
        meaning: "events of the timeline that each thread keeps, the newest; 64 bytes each, at most 16M of them",
    },
    Variable {
        name: "OSIER_CUBINS",
        default: "cubins beside the executable",
        meaning: "folder with binaries of the kernels; without, the driver compiles at first use",
    },
    Variable {
        name: "OSIER_CUDA_LIBRARY",
        default: "libcuda.so.1",
        meaning: "the CUDA driver's library; loaded when a device is first asked for",
    },
    Variable {
        name: "OSIER_GDRCOPY_LIBRARY",
        default: "libgdrapi.so.2",
        meaning: "the library of gdrcopy, by which the processor reaches a device's memory; off: none",
    },
    Variable {
        name: "OSIER_NVML_LIBRARY",
        default: "libnvidia-ml.so.1",
        meaning: "NVIDIA's management library, which tells of NVLinks; loaded when they are first asked for; off: they are unknown",
    },
    Variable {
        name: "OSIER_DEVICE_MAPPINGS",
        default: "256",
        meaning: "most allocations of other processes' devices that a rank keeps open; 0: none, messages go through the host",
    },
    Variable {
        name: "OSIER_DEVICE_MAPPED",
        default: "1T",
        meaning: "most bytes of these, such as 8G",
    },
    Variable {
        name: "OSIER_CHECK",
        default: "off",
        meaning: "what is checked: signature, buffers, leaks, ready, collectives, or all; fatal ends the job at the first finding; also osier run --check",
    },
    Variable {
        name: "OSIER_PINNED_LIMIT",
        default: "64M",
        meaning: "most host memory that a rank pins for messages of devices, at least 256K; less of it makes shorter pipelines",
    },
    Variable {
        name: "OSIER_DIE_AT",
        default: "never",
        meaning: "for tests, in builds with debug assertions: PHASE:KIND:N[@RANK]; the process is killed when it posts, posted, handles or handled so many messages of a kind, such as posted:CHUNK:2@1",
    },
    Variable {
        name: "OSIER_STEPS",
        default: "not written",
        meaning: "for tests, in builds with debug assertions: each process writes what OSIER_DIE_AT counts, one a line, to this path with its process number behind a dot",
    },
    Variable {
        name: "OSIER_DEVICE_CHUNKS",
        default: "32M",
        meaning: "memory of each device that a rank takes for chunks of messages to other processes, once one needs them, at least 512K; 0: none, messages go through the host",
    },
    Variable {
        name: "OSIER_DEVICE_EAGER",
        default: "8K, or more where the costs say so",
        meaning: "messages from a device up to so many bytes go at once, at most 256K, whether somebody waits for them or not; 0: all are announced",
    },
    Variable {
        name: "OSIER_DEVICE_REDUCTIONS",
        default: "auto",
        meaning: "reductions of a device's memory combine on the device, wherever they can, on the host, or, auto, where it is expected to take less time",
    },
    Variable {
        name: "OSIER_PIPELINE",
        default: "auto",
        meaning: "messages between devices of two processes in chunks on the device: on, wherever they can, off, never, auto, where nothing is cheaper",
    },
    Variable {
        name: "OSIER_PACK_MULTIPROCESSORS",
        default: "as many as packing needs to keep up",
        meaning: "most multiprocessors of a GPU that kernels of messages take, such as 8 or 25%",
    },
    Variable {
        name: "OSIER_MODEL",
        default: "auto",
        meaning: "costs by which protocols and plans are chosen: auto, osier run measures them where nobody has, once, in about a second; cached, those that were measured, if any; built-in, those of the library",
    },
    Variable {
        name: "OSIER_COSTS",
        default: "what `osier model measure` has kept for this machine, else built in",
        meaning: "file with the costs of links from which protocols are chosen",
    },
];

/// Value of a variable, if it is set and not empty.
pub fn value(name: &str) -> Option<String> {
    debug_assert!(
        VARIABLES.iter().any(|v| v.name == name),
        "{name} is declared"
    );
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// Parses a size such as `4096`, `64K`, `2M`, `1G`; binary units.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let bad = || {
        Error::new(
            ErrorKind::Config,
            format!("{text:?} is no size (hint: write bytes, or a number with K, M, G or T)"),
        )
    };
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

/// A variable that is a size, within bounds.
pub(crate) fn size(name: &str, bounds: RangeInclusive<u64>) -> Result<Option<u64>> {
    let Some(text) = value(name) else {
        return Ok(None);
    };
    let parsed = parse_bytes(&text).and_then(|bytes| match bounds.contains(&bytes) {
        true => Ok(bytes),
        false => Err(Error::new(
            ErrorKind::Config,
            format!(
                "{text:?} is out of bounds (hint: it is {} to {})",
                bytes_text(*bounds.start()),
                bytes_text(*bounds.end())
            ),
        )),
    });
    parsed.map(Some).map_err(|e| e.context(name))
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

/// That every variable makes sense, also those that this process has no use for: a wrong one
/// is found at the start and not where it first matters.
///
/// # Errors
/// The first that does not, with what it may be.
pub fn check() -> Result<()> {
    stall()?;
    shm_limit()?;
    pack_multiprocessors()?;
    pinned_limit()?;
    device_chunks()?;
    device_eager()?;
    model()?;
    device_reductions()?;
    pipeline()?;
    crate::device::imports::Limits::from_env()?;
    crate::check::Setting::from_env()?;
    crate::trace::Options::from_env().map(drop)
}

/// A longer time is a mistake, in hours.
const MOST_HOURS: u64 = 365 * 24;

/// Parses a time such as `500ms`, `60s`, `5m`, `1h`; `None` for `off`.
pub fn parse_duration(text: &str) -> Result<Option<Duration>> {
    let bad = || {
        Error::new(
            ErrorKind::Config,
            format!(
                "{text:?} is no time (hint: write a number with ms, s, m or h, at most 8760h; or off)"
            ),
        )
    };
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

/// The limit on a job's shared memory.
pub fn shm_limit() -> Result<Option<u64>> {
    size("OSIER_SHM_LIMIT", 1..=MOST_BYTES)
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
        share.ok_or_else(|| {
            Error::new(
                ErrorKind::Config,
                format!("{text:?} is no share (hint: write a number such as 8, or 25%)"),
            )
        })
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
    let least = crate::device::pool::LEAST_LIMIT_BYTES as u64;
    let limit = size("OSIER_PINNED_LIMIT", least..=MOST_BYTES)?;
    Ok(limit.map_or(PINNED_LIMIT_BYTES, |bytes| bytes as usize))
}

/// Memory of a device that a rank takes for chunks, unless told otherwise.
pub const DEVICE_CHUNKS_BYTES: usize = 32 << 20;

/// The memory of each device that a rank takes for chunks, in bytes.
pub fn device_chunks() -> Result<usize> {
    let name = "OSIER_DEVICE_CHUNKS";
    let least = 2 * crate::protocol::device::LEAST_DEVICE_CHUNK_BYTES as u64;
    let limit = match size(name, 0..=MOST_BYTES)? {
        Some(0) => Some(0),
        _ => size(name, least..=MOST_BYTES).map_err(|e| e.context("neither 0 nor enough"))?,
    };
    Ok(limit.map_or(DEVICE_CHUNKS_BYTES, |bytes| bytes as usize))
}

/// Largest message of a device that goes at once, in bytes; `None`: as the costs say.
pub fn device_eager() -> Result<Option<usize>> {
    let most = crate::protocol::select::EAGER_LIMIT_BYTES as u64;
    let limit = size("OSIER_DEVICE_EAGER", 0..=most)?;
    Ok(limit.map(|bytes| bytes as usize))
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
    match value("OSIER_MODEL").as_deref().map(str::trim) {
        None | Some("auto") => Ok(Costs::Auto),
        Some("cached") => Ok(Costs::Cached),
        Some("built-in") => Ok(Costs::BuiltIn),
        Some(text) => Err(Error::new(
            ErrorKind::Config,
            format!("OSIER_MODEL: {text:?} is none of auto, cached and built-in"),
        )),
    }
}

/// Where reductions of a device's memory combine.
pub fn device_reductions() -> Result<Reductions> {
    match value("OSIER_DEVICE_REDUCTIONS").as_deref().map(str::trim) {
        None | Some("auto") => Ok(Reductions::Auto),
        Some("device") => Ok(Reductions::Device),
        Some("host") => Ok(Reductions::Host),
        Some(text) => Err(Error::new(
            ErrorKind::Config,
            format!("OSIER_DEVICE_REDUCTIONS: {text:?} is none of device, host and auto"),
        )),
    }
}

/// When messages between devices go in chunks on the device.
pub fn pipeline() -> Result<Pipelining> {
    match value("OSIER_PIPELINE").as_deref().map(str::trim) {
        None | Some("auto") => Ok(Pipelining::Auto),
        Some("on") => Ok(Pipelining::On),
        Some("off") => Ok(Pipelining::Off),
        Some(text) => Err(Error::new(
            ErrorKind::Config,
            format!("OSIER_PIPELINE: {text:?} is none of on, off and auto"),
        )),
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
