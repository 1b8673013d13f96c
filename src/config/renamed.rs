//! Variables that are read no longer: one that is set is an error that names its successor.
//!
//! Why they went is in decision 0180, which has this table, too.

use osier_engine::env::shown;
use osier_engine::error::{Error, ErrorKind, Result};

/// A variable that once was.
#[derive(Clone, Copy, Debug)]
pub struct Renamed {
    /// Its name.
    pub old: &'static str,
    /// What took its place.
    pub by: Successor,
}

/// What took the place of a variable.
#[derive(Clone, Copy, Debug)]
pub enum Successor {
    /// A key of `OSIER_DEBUG`.
    Debug(&'static str),
    /// A part of `OSIER_JOB`, which only a launcher sets.
    Job(&'static str),
}

const fn debug(old: &'static str, key: &'static str) -> Renamed {
    let by = Successor::Debug(key);
    Renamed { old, by }
}

const fn job(old: &'static str, part: &'static str) -> Renamed {
    let by = Successor::Job(part);
    Renamed { old, by }
}

/// All of them.
pub const RENAMED: &[Renamed] = &[
    debug("OSIER_PROBABLE_HANG", "probable-hang"),
    debug("OSIER_TRACE_EVENTS", "trace-events"),
    debug("OSIER_PIPELINE", "pipeline"),
    debug("OSIER_DEVICE_EAGER", "device-eager"),
    debug("OSIER_DEVICE_CHUNKS", "device-slots"),
    debug("OSIER_DEVICE_MAPPINGS", "device-mappings"),
    debug("OSIER_DEVICE_MAPPED", "device-mapped"),
    debug("OSIER_DEVICE_REDUCTIONS", "device-reductions"),
    debug("OSIER_PACK_MULTIPROCESSORS", "pack-multiprocessors"),
    debug("OSIER_CUDA_LIBRARY", "cuda-library"),
    debug("OSIER_GDRCOPY_LIBRARY", "gdrcopy-library"),
    debug("OSIER_NVML_LIBRARY", "nvml-library"),
    debug("OSIER_DIE_AT", "die-at"),
    debug("OSIER_STEPS", "steps"),
    job("OSIER_RANKS_HERE", "ranks"),
    job("OSIER_CPUS", "cpus"),
    job("OSIER_APPNUM", "program"),
    job("OSIER_PSETS", "pset"),
];

/// Refuses those that are set.
pub(super) fn check(value: &dyn Fn(&str) -> Option<String>) -> Result<()> {
    for renamed in RENAMED {
        if let Some(text) = value(renamed.old) {
            return Err(refusal(renamed, &text));
        }
    }
    Ok(())
}

fn refusal(renamed: &Renamed, text: &str) -> Error {
    let hint = match renamed.by {
        Successor::Debug(key) if text.len() <= 80 => {
            format!("set OSIER_DEBUG={key}={}", text.replace(',', ",,"))
        }
        Successor::Debug(key) => format!("set OSIER_DEBUG={key}=VALUE"),
        Successor::Job(part) => {
            format!("unset it; osier run of this version says {part} in OSIER_JOB")
        }
    };
    Error::new(
        ErrorKind::Config,
        format!(
            "{} is {}, and is read no longer (hint: {hint})",
            renamed.old,
            shown(text)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KEYS, variables};

    #[test]
    fn successors_are_there_and_old_names_are_not() {
        for renamed in RENAMED {
            assert!(
                variables().all(|v| v.name != renamed.old),
                "{}",
                renamed.old
            );
            if let Successor::Debug(key) = renamed.by {
                assert!(KEYS.iter().any(|known| known.name == key), "{key}");
            }
        }
    }

    #[test]
    fn old_name_that_is_set_is_refused_with_its_successor() {
        for renamed in RENAMED {
            let set = |name: &str| (name == renamed.old).then(|| "a,b".to_owned());
            let said = check(&set).expect_err(renamed.old).to_string();
            let successor = match renamed.by {
                Successor::Debug(key) => format!("set OSIER_DEBUG={key}=a,,b"),
                Successor::Job(_) => "in OSIER_JOB".to_owned(),
            };
            assert!(
                said.contains(renamed.old) && said.contains(&successor),
                "{said}"
            );
        }
        check(&|_| None).expect("none is set");
    }
}
