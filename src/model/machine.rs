//! Properties of this machine on which costs depend.

use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine on which costs were measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor, and family and model where there are such numbers: one name may
    /// stand for several.
    pub cpu: String,
    /// Processors in all.
    pub processors: usize,
    /// Packages, and cores of each, where the system reports them.
    #[serde(default)]
    pub shape: Option<[usize; 2]>,
    /// Version of the kernel.
    pub kernel: String,
    /// Version of Osier.
    pub osier: String,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let values = |key: &'static str| {
            info.lines().filter_map(move |line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == key).then(|| value.trim().to_owned())
            })
        };
        let cpu = values("model name")
            .next()
            // Processors that are not x86 have numbers instead of names.
            .or_else(|| values("CPU part").next())
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let cpu = match (values("cpu family").next(), values("model").next()) {
            (Some(family), Some(model)) => format!("{cpu}, family {family}, model {model}"),
            _ => cpu,
        };
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            cpu,
            processors: values("processor").count().max(1),
            shape: shape(values("physical id"), values("cpu cores")),
            kernel: kernel.trim().to_owned(),
            osier: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl Machine {
    /// A difference of this machine from a file's, if any.
    pub(super) fn differs(&self, other: Option<&Machine>) -> Option<String> {
        let Some(other) = other else {
            return Some("they do not say of which machine they are".into());
        };
        let shape = |m: &Machine| match m.shape {
            Some([packages, cores]) => format!("{packages} packages of {cores} cores"),
            None => "unknown".into(),
        };
        let count = |m: &Machine| m.processors.to_string();
        let all = [
            ("processor", self.cpu.clone(), other.cpu.clone()),
            ("number of processors", count(self), count(other)),
            ("topology", shape(self), shape(other)),
            ("kernel", self.kernel.clone(), other.kernel.clone()),
            ("version of osier", self.osier.clone(), other.osier.clone()),
        ];
        let (what, here, there) = all.into_iter().find(|(_, here, there)| here != there)?;
        Some(format!("of another machine: {what} {there}, here {here}"))
    }
}

/// Packages and cores of each.
fn shape(
    packages: impl Iterator<Item = String>,
    mut cores: impl Iterator<Item = String>,
) -> Option<[usize; 2]> {
    let mut packages: Vec<String> = packages.collect();
    packages.sort_unstable();
    packages.dedup();
    let cores = cores.next()?.parse().ok()?;
    (!packages.is_empty()).then_some([packages.len(), cores])
}

/// Today as year-month-day, UTC.
pub(super) fn today() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    date(seconds / 86_400)
}

/// Days since 1970-01-01 as a date of the Gregorian calendar.
///
/// # Sources
/// H. Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
fn date(days: u64) -> String {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_778), "2026-11-21");
        assert_eq!(date(20_819), "2027-01-01");
    }

    #[test]
    fn this_machine_has_a_name() {
        let here = Machine::here();
        assert!(!here.cpu.is_empty() && here.processors > 0);
        assert_eq!(here, Machine::here());
    }
}
