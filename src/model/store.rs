//! Measured costs on disk.
//!
//! ```text
//! { "format": 3,
//!   "machine": { "cpu": ..., "processors": ..., "kernel": ..., "osier": ... },
//!   "date": "2026-11-21",
//!   "costs": { "latency_ns": ..., ..., "device": { "launch_ns": ..., ... } },
//!   "calls": { "classes": [...], "run_ns": ..., ..., "devices": { ... } },
//!   "probes": [{ "sum": false, "bytes": 4096, "ns": ... }, ...] }
//! ```
//!
//! `device`, `calls`, its `devices` and `probes` are missing where they were not measured;
//! `machine` and `date` may be missing in a file written by hand. Format 1 had no `devices`,
//! format 2 did not name the measured links: these are left out, and estimated until
//! they are measured anew.

use super::machine::{Machine, today};
use super::plausible;
use super::recheck::{self, Probe};
use super::settings;
use crate::model::calls::CallCosts;
use osier_engine::env;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::protocol::cost::LinkCosts;
use osier_kernels::Driver;
use osier_kernels::files;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

const FORMAT: u32 = 3;
/// The oldest readable format.
const OLDEST: u32 = 1;
/// The oldest format whose costs of devices name their links.
const OLDEST_OF_LINKS: u32 = 3;

/// Costs, with machine and date of their measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    format: u32,
    /// The machine.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// The date: year-month-day, UTC.
    #[serde(default)]
    pub date: Option<String>,
    /// The costs.
    pub costs: LinkCosts,
    /// Costs of collective calls, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallCosts>,
    /// Times for the check that the costs still hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probe>,
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
    /// The costs.
    pub costs: LinkCosts,
    /// Costs of collective calls, if measured.
    pub calls: Option<CallCosts>,
    /// Why the cache is not used, if it exists.
    pub refused: Option<String>,
    /// Their source.
    pub origin: Origin,
    /// Date of measurement, if known.
    pub date: Option<String>,
    /// Times measured then.
    pub probes: Vec<Probe>,
}

impl Cached {
    /// Measures a few times again. Returns the reason against costs of the user's cache, if
    /// any.
    pub fn outdated(&self) -> Option<String> {
        match self.origin {
            Origin::Cache(_) => recheck::outdated(&self.probes, &Probe::take()),
            Origin::Variable(_) | Origin::Default => None,
        }
    }
}

/// The costs in use: those of the file that `OSIER_COSTS` names, else
/// those that were measured on this machine, unless `OSIER_MODEL` says
/// `built-in`, else the default. Never measures. Returns an error only for the
/// user's settings.
pub fn cached() -> Result<Cached> {
    let wanted = settings::wanted()?;
    if let Some(file) = env::path("OSIER_COSTS") {
        let measured = load(&file).map_err(|e| e.context("OSIER_COSTS"))?;
        return Ok(Cached {
            costs: measured.costs,
            calls: measured.calls,
            refused: None,
            origin: Origin::Variable(file),
            date: measured.date,
            probes: measured.probes,
        });
    }
    // An unusable cache counts as missing: the
    // next measurement replaces it.
    let kept = |file: &PathBuf| wanted != settings::Costs::BuiltIn && file.exists();
    let refused = match cache_file().filter(kept) {
        None => None,
        Some(file) => match from_cache(file, &Machine::here()) {
            Ok(cached) => return Ok(cached),
            Err(why) => Some(why.to_string()),
        },
    };
    Ok(Cached {
        costs: LinkCosts::default(),
        calls: None,
        refused,
        origin: Origin::Default,
        date: None,
        probes: Vec::new(),
    })
}

fn from_cache(file: PathBuf, here: &Machine) -> Result<Cached> {
    let measured = load(&file)?;
    if let Some(differs) = here.differs(measured.machine.as_ref()) {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "costs in {}: {differs} (hint: osier model measure)",
                file.display()
            ),
        ));
    }
    if let Some(how) = plausible::absurd(&measured.costs, measured.calls.as_ref()) {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "costs in {}: {how} (hint: osier model measure)",
                file.display()
            ),
        ));
    }
    // Beside a driver there are none.
    let without = |calls: &CallCosts| calls.segment.is_none() && !Driver::is_there();
    if measured.calls.as_ref().is_some_and(without) {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "costs in {}: flags and slots were not measured (hint: osier model measure)",
                file.display()
            ),
        ));
    }
    Ok(Cached {
        costs: measured.costs,
        calls: measured.calls,
        refused: None,
        origin: Origin::Cache(file),
        date: measured.date,
        probes: measured.probes,
    })
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
    let mut measured: Measured = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if !(OLDEST..=FORMAT).contains(&measured.format) {
        let format = measured.format;
        return Err(bad(format!("format {format}, expected at most {FORMAT}")));
    }
    if measured.format < OLDEST_OF_LINKS
        && let Some(calls) = &mut measured.calls
    {
        calls.devices = None;
    }
    let c = &measured.costs;
    let device = c.device.unwrap_or_default();
    let [run, strided, listed] = device.pack_ns_per_byte;
    for (name, value) in [
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
            return Err(bad(format!("{name} is {value}, expected more than 0")));
        }
    }
    if let Some(calls) = measured.calls {
        measured.calls = Some(calls.checked().map_err(bad)?);
    }
    Ok(measured)
}

/// Writes costs that were measured on this machine to a file, making its
/// folder if there is none.
///
/// # Errors
/// If the file cannot be written, or if the costs are implausible.
pub fn store(file: &Path, costs: LinkCosts, calls: Option<CallCosts>) -> Result<()> {
    if let Some(how) = plausible::absurd(&costs, calls.as_ref()) {
        return Err(super::disturbed(&how));
    }
    let measured = Measured {
        format: FORMAT,
        machine: Some(Machine::here()),
        date: Some(today()),
        costs,
        calls,
        probes: Probe::take(),
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
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("osier-costs-{}-{name}", std::process::id()))
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let folder = scratch("store");
        let file = folder.join("deeper").join("costs.json");
        let costs = LinkCosts {
            latency_ns: 123.0,
            ..LinkCosts::default()
        };
        let calls = CallCosts {
            error: 0.1,
            ..CallCosts::estimated(&costs)
        };
        store(&file, costs, Some(calls.clone())).expect("written");
        let measured = load(&file).expect("read");
        assert_eq!(measured.costs, costs);
        let here = Machine::here();
        let cached = from_cache(file.clone(), &here).expect("of this machine");
        assert_eq!(cached.origin, Origin::Cache(file.clone()));
        assert_eq!(cached.calls, Some(calls));
        assert_eq!(cached.probes, measured.probes);
        assert!(!cached.probes.is_empty());
        // Implausible costs are neither stored nor used.
        let absurd = LinkCosts {
            latency_ns: 748_000.0,
            ..costs
        };
        let why = store(&file, absurd, None).expect_err("absurd").to_string();
        assert!(why.contains("latency_ns"), "{why}");
        let text = fs::read_to_string(&file).expect("read");
        let other = folder.join("absurd.json");
        let text = text.replace("\"latency_ns\": 123.0", "\"latency_ns\": 748000.0");
        fs::write(&other, text).expect("written");
        let why = from_cache(other, &here).expect_err("absurd").to_string();
        assert!(why.contains("other work"), "{why}");
        let other = Machine {
            kernel: "other".into(),
            ..here
        };
        let refused = from_cache(file, &other)
            .expect_err("another machine")
            .to_string();
        assert!(
            refused.contains("kernel") && refused.contains("hint"),
            "{refused}"
        );
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_file_and_a_hint() {
        let file = scratch("bad.json");
        let good = serde_json::json!({
            "format": 1,
            "costs": {
                "latency_ns": 80.0, "overhead_ns": 60.0, "copy_ns_per_byte": 0.035, "mapped_ns_per_byte": 0.06,
                "attach_call_ns": 2000.0, "attach_ns_per_byte": 0.08,
            },
        });
        fs::write(&file, good.to_string()).expect("written");
        assert_eq!(load(&file).expect("by hand").machine, None);
        let mut bad = vec![String::new(), "{}".into(), "\u{7f}".into()];
        for (at, value) in [
            ("/costs/latency_ns", serde_json::json!(-1.0)),
            ("/costs/copy_ns_per_byte", serde_json::json!(0.0)),
            ("/costs/overhead_ns", serde_json::json!("fast")),
            ("/costs/attach_call_ns", serde_json::Value::Null),
            ("/format", serde_json::json!(4)),
        ] {
            let mut value_changed = good.clone();
            *value_changed.pointer_mut(at).expect("a field") = value;
            bad.push(value_changed.to_string());
        }
        for text in bad {
            fs::write(&file, &text).expect("written");
            let message = load(&file).expect_err(&text).to_string();
            assert!(message.contains("hint"), "{message}");
            assert!(message.contains("osier-costs"), "{message}");
            assert!(from_cache(file.clone(), &Machine::here()).is_err());
        }
        fs::remove_file(&file).expect("removed");
        assert!(
            load(&file)
                .expect_err("gone")
                .to_string()
                .contains("no such file")
        );
    }
}
