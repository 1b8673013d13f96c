//! The processors of this machine, as workers of task graphs ask about them.

use crate::model::cores;
use crate::model::hardware::{Hardware, Level};
use osier_tasks::places::Processors;
use osier_tasks::victims::Distance;
use std::sync::{Mutex, PoisonError};

/// This machine.
pub(super) struct ThisMachine;

/// The processors that were asked about: a machine may have hundreds, each described by a dozen
/// files.
static KNOWN: Mutex<Option<Hardware>> = Mutex::new(None);

impl Processors for ThisMachine {
    fn here(&self) -> Option<u32> {
        cores::here()
    }

    fn distance(&self, one: u32, other: u32) -> Option<Distance> {
        let pair = [one as usize, other as usize];
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        known.learn(&pair);
        distance(known, pair)
    }
}

fn distance(hardware: &Hardware, [one, other]: [usize; 2]) -> Option<Distance> {
    if one == other {
        return Some(Distance::Core);
    }
    Distance::ALL
        .into_iter()
        .find(|distance| hardware.place(level(*distance), &[one, other]).is_some())
}

/// The part of a machine in whose instance processors lie that are so far apart.
fn level(distance: Distance) -> Level {
    match distance {
        Distance::Core => Level::Core,
        Distance::L2Cache => Level::L2Cache,
        Distance::L3Cache => Level::L3Cache,
        Distance::NumaNode => Level::NumaNode,
        Distance::Package => Level::Package,
        Distance::Machine => Level::Machine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two packages of two caches of two cores of two threads.
    fn read(path: &str) -> Option<String> {
        let rest = path.strip_prefix("/sys/devices/system/cpu/cpu")?;
        let (cpu, file) = rest.split_once('/')?;
        let cpu: usize = cpu.parse().ok().filter(|cpu| *cpu < 16)?;
        let block = |width: usize| {
            let first = cpu / width * width;
            Some(format!("{first}-{}\n", first + width - 1))
        };
        match file {
            "topology/package_cpus_list" => block(8),
            "topology/core_cpus_list" => block(2),
            "cache/index3/level" => Some("3\n".into()),
            "cache/index3/type" => Some("Unified\n".into()),
            "cache/index3/shared_cpu_list" => block(4),
            _ => None,
        }
    }

    #[test]
    fn processors_are_as_far_apart_as_the_part_that_has_both() {
        let cpus: Vec<usize> = (0..17).collect();
        let hardware = Hardware::from_files(&cpus, &read);
        for (pair, expected) in [
            ([5, 5], Distance::Core),
            ([4, 5], Distance::Core),
            ([5, 6], Distance::L3Cache),
            ([3, 4], Distance::Package),
            ([7, 8], Distance::Machine),
            ([7, 16], Distance::Machine),
        ] {
            assert_eq!(distance(&hardware, pair), Some(expected), "{pair:?}");
        }
        assert_eq!(distance(&hardware, [3, 40]), None, "not there");
    }

    #[test]
    fn this_thread_is_somewhere() {
        let here = ThisMachine.here().expect("a processor");
        assert!(Hardware::bound_to().contains(&(here as usize)));
        assert_eq!(ThisMachine.distance(here, here), Some(Distance::Core));
    }
}
