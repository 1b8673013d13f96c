//! Measured costs on disk.
//!
//! ```text
//! { "format": 4,
//!   "machine": { "cpu": ..., "processors": ..., "kernel": ..., "osier": ... },
//!   "sets": [
//!     { "line_ns": 41.2,
//!       "date": "2026-11-25",
//!       "costs": { "latency_ns": ..., ..., "device": { "launch_ns": ..., ... } },
//!       "calls": { "classes": [...], "run_ns": ..., ..., "devices": { ... } },
//!       "probes": [{ "sum": false, "bytes": 4096, "ns": ... }, ...] },
//!     { "line_ns": 163.0, ... }] }
//! ```
//!
//! There is a set of costs for each distance of two cores at which the machine was measured:
//! `line_ns` is what a cache line takes from one to the other (`distance.rs`). Costs that are
//! measured again replace those of the same distance.
//!
//! `device`, `calls`, its `devices`, `probes` and `line_ns` are missing where they were not
//! measured; `machine` and `date` may be missing in a file written by hand. Formats 1 to 3 had
//! one set, in place of `sets`, whose distance is unknown. Format 1 had no `devices`, format 2
//! did not name the measured links: these are left out, and estimated until they are measured
//! anew.

use super::distance;
use super::machine::{Machine, today};
use super::plausible;
use super::recheck::{self, Probe};
use super::settings;
use crate::model::calls::CallCosts;
use osier_engine::env;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::protocol::cost::LinkCosts;
use osier_kernels::files;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const FORMAT: u32 = 4;
/// The last format of one set.
const LAST_OF_ONE_SET: u32 = 3;
/// The oldest readable format.
const OLDEST: u32 = 1;
/// The oldest format whose costs of devices name their links.
const OLDEST_OF_LINKS: u32 = 3;

/// At most this many sets are kept: the oldest goes.
const MOST_SETS: usize = 3;

/// Costs, with the machine of their measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    format: u32,
    /// The machine.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// One for each distance of two cores at which it was measured, the oldest first.
    pub sets: Vec<CostSet>,
}

/// Costs of the machine in one state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostSet {
    /// How long a cache line took from one core to another, in ns; none if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_ns: Option<f64>,
    /// The date: year-month-day, UTC.
    #[serde(default)]
    pub date: Option<String>,
    /// The costs of messages.
    pub costs: LinkCosts,
    /// Costs of collective calls, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallCosts>,
    /// Times for the check that the costs still hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probe>,
}

impl CostSet {
    /// Measured now, at this distance.
    pub fn now(line_ns: Option<f64>, costs: LinkCosts, calls: Option<CallCosts>) -> CostSet {
        CostSet {
            line_ns,
            date: Some(today()),
            costs,
            calls,
            probes: Probe::take(),
        }
    }

    /// Whether they are of this distance.
    pub fn is_at(&self, line_ns: f64) -> bool {
        self.line_ns
            .is_some_and(|own| distance::alike(own, line_ns))
    }

    /// Why jobs do not choose by them, if so.
    fn refused(&self) -> Option<String> {
        if let Some(how) = plausible::absurd(&self.costs, self.calls.as_ref()) {
            return Some(how);
        }
        let without = |calls: &CallCosts| calls.segment.is_none();
        let missing = self.calls.as_ref().is_some_and(without);
        missing.then(|| "flags and slots were not measured".to_owned())
    }
}

/// Source of the costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file that `OSIER_COSTS` names.
    Variable(PathBuf),
    /// The user's cache folder.
    Cache(PathBuf),
    /// Built in: no measurement here.
    Default,
}

/// Costs in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Cached {
    /// Those of the state nearest to the present one; if that is not known, of the farthest
    /// cores. Predictions are by them.
    pub set: CostSet,
    /// Those of other states of the machine.
    pub others: Vec<CostSet>,
    /// Why the cache is not used, if it exists.
    pub refused: Option<String>,
    /// Their source.
    pub origin: Origin,
}

impl Cached {
    /// One of these sets for each state.
    fn of(mut sets: Vec<CostSet>, refused: Option<String>, origin: Origin) -> Cached {
        let here = match sets.len() {
            0 | 1 => None,
            _ => distance::line_ns(),
        };
        let first = nearest(&sets, here);
        let set = match sets.is_empty() {
            true => CostSet::default(),
            false => sets.remove(first),
        };
        Cached {
            set,
            others: sets,
            refused,
            origin,
        }
    }

    /// Why costs of the user's cache do not tell what the machine costs as it is now, if so:
    /// none were measured at the present distance of two cores, or a few times that are measured
    /// again differ.
    pub fn outdated(&self) -> Option<String> {
        if !matches!(self.origin, Origin::Cache(_)) {
            return None;
        }
        let sets = || std::iter::once(&self.set).chain(&self.others);
        let Some(here) = distance::line_ns() else {
            return recheck::outdated(&self.set.probes, &Probe::take());
        };
        if let Some(set) = sets().find(|set| set.is_at(here)) {
            return recheck::outdated(&set.probes, &Probe::take());
        }
        let known = sets().filter_map(|set| Some(format!("{:.0} ns", set.line_ns?)));
        let known: Vec<String> = known.collect();
        let known = match known.is_empty() {
            true => "an unknown time".to_owned(),
            false => known.join(" and "),
        };
        Some(format!(
            "a line takes {here:.0} ns from core to core, and kept costs are of {known}"
        ))
    }
}

/// Which of these sets is of the state nearest to this one, or of the farthest cores.
fn nearest(sets: &[CostSet], here_ns: Option<f64>) -> usize {
    let off = |set: &CostSet| match (set.line_ns, here_ns) {
        (Some(own), Some(here)) => (own / here).ln().abs(),
        (Some(own), None) => -own,
        (None, _) => f64::INFINITY,
    };
    let all = sets.iter().enumerate();
    let least = all.min_by(|(_, a), (_, b)| off(a).total_cmp(&off(b)));
    least.map_or(0, |(at, _)| at)
}

/// The costs in use: those of the file that `OSIER_COSTS` names, else
/// those that were measured on this machine, unless `OSIER_MODEL` says
/// `built-in`, else the default. Never measures them; of several sets, it looks how far two
/// cores are from each other. Returns an error only for the user's settings.
pub fn cached() -> Result<Cached> {
    let wanted = settings::wanted()?;
    if let Some(file) = env::path("OSIER_COSTS") {
        let measured = load(&file).map_err(|e| e.context("OSIER_COSTS"))?;
        return Ok(Cached::of(measured.sets, None, Origin::Variable(file)));
    }
    // An unusable cache counts as missing: the
    // next measurement replaces it.
    let kept = |file: &PathBuf| wanted != settings::Costs::BuiltIn && file.exists();
    let refused = match cache_file().filter(kept) {
        None => None,
        Some(file) => match from_cache(&file, &Machine::here()) {
            Ok(sets) => return Ok(Cached::of(sets, None, Origin::Cache(file))),
            Err(why) => Some(why.to_string()),
        },
    };
    Ok(Cached::of(Vec::new(), refused, Origin::Default))
}

/// The usable sets of the user's cache: at least one.
fn from_cache(file: &Path, here: &Machine) -> Result<Vec<CostSet>> {
    let bad = |what: String| {
        Error::new(
            ErrorKind::Config,
            format!(
                "costs in {}: {what} (hint: osier model measure)",
                file.display()
            ),
        )
    };
    let measured = load(file)?;
    if let Some(differs) = here.differs(measured.machine.as_ref()) {
        return Err(bad(differs));
    }
    let mut refused = None;
    let mut sets = measured.sets;
    sets.retain(|set| match set.refused() {
        None => true,
        Some(why) => {
            refused.get_or_insert(why);
            false
        }
    });
    match refused {
        Some(why) if sets.is_empty() => Err(bad(why)),
        _ => Ok(sets),
    }
}

/// The file of measured costs in the user's cache folder, if there is one.
pub fn cache_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    // The specification of base directories: a relative path is ignored.
    let folder = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(folder.join("osier").join("costs.json"))
}

/// Maximum size of a file of costs.
const MOST_BYTES: u64 = 16 << 20;

/// Reads costs from a file.
pub fn load(file: &Path) -> Result<Measured> {
    let bad = |what: String| {
        Error::new(
            ErrorKind::Config,
            format!(
                "costs in {}: {what} (hint: osier model measure writes such a file)",
                file.display()
            ),
        )
    };
    let text = files::read_text(file, MOST_BYTES).map_err(|e| bad(cause(&e)))?;
    let document: Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    // The other fields may be other ones in other formats.
    let head: Head = serde_json::from_value(document.clone()).map_err(|e| bad(e.to_string()))?;
    let format = head.format;
    if !(OLDEST..=FORMAT).contains(&format) {
        return Err(bad(format!("format {format}, expected at most {FORMAT}")));
    }
    let parsed = match format {
        ..=LAST_OF_ONE_SET => serde_json::from_value(document).map(|set: CostSet| vec![set]),
        _ => serde_json::from_value(document).map(|measured: Measured| measured.sets),
    };
    let mut sets = parsed.map_err(|e| bad(e.to_string()))?;
    if sets.is_empty() {
        return Err(bad("no set of costs".into()));
    }
    for set in &mut sets {
        if format <= LAST_OF_ONE_SET {
            set.line_ns = None;
        }
        if format < OLDEST_OF_LINKS
            && let Some(calls) = &mut set.calls
        {
            calls.devices = None;
        }
        check(set).map_err(bad)?;
    }
    Ok(Measured {
        format,
        machine: head.machine,
        sets,
    })
}

/// What is the same in all formats.
#[derive(Deserialize)]
struct Head {
    format: u32,
    #[serde(default)]
    machine: Option<Machine>,
}

/// Returns the invalid number, if there is one.
fn check(set: &mut CostSet) -> std::result::Result<(), String> {
    let c = &set.costs;
    let device = c.device.unwrap_or_default();
    let [run, strided, listed] = device.pack_ns_per_byte;
    for (name, value) in [
        ("line_ns", set.line_ns.unwrap_or(1.0)),
        ("device.launch_ns", device.launch_ns),
        ("device.copy_ns", device.copy_ns),
        ("device.block_ns_per_byte", device.block_ns_per_byte),
        ("device.pack_ns_per_byte[0]", run),
        ("device.pack_ns_per_byte[1]", strided),
        ("device.pack_ns_per_byte[2]", listed),
        ("device.to_host_ns_per_byte", device.to_host_ns_per_byte),
        ("device.to_device_ns_per_byte", device.to_device_ns_per_byte),
        ("device.peer_ns_per_byte", device.peer_ns_per_byte),
        (
            "device.peer_block_ns_per_byte",
            device.peer_block_ns_per_byte,
        ),
        ("device.turn_ns", device.turn_ns),
        ("device.bar1.read_ns", device.bar1.read_ns),
        ("device.bar1.read_ns_per_byte", device.bar1.read_ns_per_byte),
        ("device.bar1.write_ns", device.bar1.write_ns),
        (
            "device.bar1.write_ns_per_byte",
            device.bar1.write_ns_per_byte,
        ),
        ("latency_ns", c.latency_ns),
        ("overhead_ns", c.overhead_ns),
        ("copy_ns_per_byte", c.copy_ns_per_byte),
        ("mapped_ns_per_byte", c.mapped_ns_per_byte),
        ("attach_call_ns", c.attach_call_ns),
        ("attach_ns_per_byte", c.attach_ns_per_byte),
    ] {
        if !(value.is_finite() && value > 0.0) {
            return Err(format!("{name} is {value}, expected more than 0"));
        }
    }
    if let Some(calls) = set.calls.take() {
        set.calls = Some(calls.checked()?);
    }
    Ok(())
}

/// Writes costs that were measured on this machine to a file, making its
/// folder if there is none. They take the place of those of the same distance, and of one that
/// is not known; usable ones of other distances stay.
///
/// # Errors
/// If the file cannot be written, or if the costs are implausible.
pub fn store(file: &Path, set: CostSet) -> Result<()> {
    if let Some(how) = plausible::absurd(&set.costs, set.calls.as_ref()) {
        return Err(super::disturbed(&how));
    }
    let here = Machine::here();
    let mut sets = from_cache(file, &here).unwrap_or_default();
    let other = |known: &CostSet| match (known.line_ns, set.line_ns) {
        (Some(known), Some(new)) => !distance::alike(known, new),
        (Some(_), None) => true,
        (None, _) => false,
    };
    sets.retain(other);
    sets.push(set);
    sets.drain(..sets.len().saturating_sub(MOST_SETS));
    let measured = Measured {
        format: FORMAT,
        machine: Some(here),
        sets,
    };
    let failed = |what: String| {
        Error::new(
            ErrorKind::System,
            format!("writing costs to {}: {what}", file.display()),
        )
    };
    let mut text = serde_json::to_string_pretty(&measured).map_err(|e| failed(e.to_string()))?;
    text.push('\n');
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(|e| failed(cause(&e)))?;
    }
    // A job that starts meanwhile reads the old file or the new one.
    let mut fresh = file.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    fs::write(&fresh, text)
        .and_then(|()| fs::rename(&fresh, file))
        .map_err(|e| {
            let _ = fs::remove_file(&fresh);
            failed(cause(&e))
        })
}

/// The text of a system error in the style of the other messages.
fn cause(e: &std::io::Error) -> String {
    let mut text = e.to_string();
    if let Some(at) = text.find(" (os error") {
        text.truncate(at);
    }
    text.to_lowercase()
}

#[cfg(test)]
mod tests;
