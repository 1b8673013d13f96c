//! Nesting of the processors of this machine, as far as the system describes it.

use std::fs;

/// A kind of hardware, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The whole machine.
    Machine,
    /// A processor package.
    Package,
    /// Processors with memory near to them.
    NumaNode,
    /// Processors that share a third-level cache.
    L3Cache,
    /// Processors that share a second-level cache.
    L2Cache,
    /// Processors that share a first-level data cache.
    L1Cache,
    /// A core.
    Core,
    /// A processor as the system counts them.
    Pu,
}

/// All levels, outermost first.
pub const LEVELS: [Level; 8] = [
    Level::Machine,
    Level::Package,
    Level::NumaNode,
    Level::L3Cache,
    Level::L2Cache,
    Level::L1Cache,
    Level::Core,
    Level::Pu,
];

impl Level {
    /// Its name, in hwloc's words and lower case.
    pub fn name(self) -> &'static str {
        [
            "machine", "package", "numanode", "l3cache", "l2cache", "l1cache", "core", "pu",
        ][self as usize]
    }

    /// The level of a name; case does not matter, and `hwloc://` may stand in
    /// front.
    pub fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let name = name.strip_prefix("hwloc://").unwrap_or(&name);
        LEVELS.into_iter().find(|level| level.name() == name)
    }
}

/// Instance of each level by processor.
#[derive(Clone, Debug, Default)]
pub struct Hardware {
    /// By level, then by processor: the number of the instance; `None` where the
    /// system does not report it.
    instances: [Vec<Option<u32>>; LEVELS.len()],
}

impl Hardware {
    /// Levels of these processors of this machine: from hwloc with the feature `hwloc`,
    /// else by `/sys`.
    pub fn of(cpus: &[usize]) -> Self {
        #[cfg(feature = "hwloc")]
        if let Some(seen) = super::hwloc::Seen::processors() {
            return Self::seen(cpus, &seen);
        }
        Self::from_files(cpus, &|path| fs::read_to_string(path).ok())
    }

    /// Adds levels of processors of this machine that are not known yet.
    pub(crate) fn learn(&mut self, cpus: &[usize]) {
        for &cpu in cpus {
            if self.place(Level::Pu, &[cpu]).is_some() {
                continue;
            }
            let learned = Self::of(&[cpu]);
            self.add(cpu, |level| learned.place(level, &[cpu]));
        }
    }

    /// From files, laid out as `/sys`: `read` gives a file's text, if there is one.
    pub fn from_files(cpus: &[usize], read: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut hardware = Self::default();
        let nodes = nodes(read);
        for &cpu in cpus {
            hardware.add(cpu, |level| match level {
                Level::NumaNode => nodes
                    .iter()
                    .find(|(_, cpus)| cpus.contains(&cpu))
                    .map(|(node, _)| *node),
                other => instance_of(cpu, other, read),
            });
        }
        hardware
    }

    /// From hwloc.
    #[cfg(feature = "hwloc")]
    pub(super) fn seen(cpus: &[usize], seen: &super::hwloc::Seen) -> Self {
        let mut hardware = Self::default();
        for &cpu in cpus {
            hardware.add(cpu, |level| seen.instance(cpu, level));
        }
        hardware
    }

    /// Adds a processor, whose numbers `instance` gives.
    fn add(&mut self, cpu: usize, instance: impl Fn(Level) -> Option<u32>) {
        for level in LEVELS {
            let of_level = &mut self.instances[level as usize];
            if of_level.len() <= cpu {
                of_level.resize(cpu + 1, None);
            }
            of_level[cpu] = instance(level);
        }
    }

    /// The processors that the calling thread may run on.
    pub fn bound_to() -> Vec<usize> {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.and_then(parse_list).unwrap_or_default()
    }

    /// The instance of a level in which all these processors lie.
    pub fn place(&self, level: Level, cpus: &[usize]) -> Option<u32> {
        let of_level = &self.instances[level as usize];
        let of = |cpu: &usize| of_level.get(*cpu).copied().flatten();
        let first = of(cpus.first()?)?;
        cpus.iter()
            .all(|cpu| of(cpu) == Some(first))
            .then_some(first)
    }
}

/// The number of an instance is its lowest processor, or its node.
fn instance_of(cpu: usize, level: Level, read: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
    let lowest = |file: &str| {
        let list = read(&format!("{folder}/{file}"))?;
        parse_list(&list)?.first().map(|cpu| *cpu as u32)
    };
    let cache = |number: &str| {
        (0..8).find_map(|index| {
            let of_cache = |what| read(&format!("{folder}/cache/index{index}/{what}"));
            let fits =
                of_cache("level")?.trim() == number && of_cache("type")?.trim() != "Instruction";
            fits.then(|| lowest(&format!("cache/index{index}/shared_cpu_list")))?
        })
    };
    match level {
        Level::Machine => Some(0),
        Level::Package => lowest("topology/package_cpus_list"),
        Level::NumaNode => None,
        Level::L3Cache => cache("3"),
        Level::L2Cache => cache("2"),
        Level::L1Cache => cache("1"),
        Level::Core => lowest("topology/core_cpus_list"),
        Level::Pu => Some(cpu as u32),
    }
}

/// Memory nodes and their processors.
fn nodes(read: &dyn Fn(&str) -> Option<String>) -> Vec<(u32, Vec<usize>)> {
    let folder = "/sys/devices/system/node";
    let online = read(&format!("{folder}/online")).and_then(|list| parse_list(&list));
    let cpus = |node: usize| {
        let list = read(&format!("{folder}/node{node}/cpulist"))?;
        Some((node as u32, parse_list(&list)?))
    };
    online
        .unwrap_or_default()
        .into_iter()
        .filter_map(cpus)
        .collect()
}

/// Parses a list of the kernel, such as `0-3,8`.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_up_machine() {
        // Two packages of two cores of two threads; no cache is reported.
        let mut hardware = Hardware::default();
        for cpu in 0..8u32 {
            hardware.add(cpu as usize, |level| match level {
                Level::Machine => Some(0),
                Level::Package | Level::NumaNode => Some(cpu / 4),
                Level::Core => Some(cpu / 2),
                Level::Pu => Some(cpu),
                _ => None,
            });
        }
        assert_eq!(hardware.place(Level::Package, &[4, 7]), Some(1));
        assert_eq!(hardware.place(Level::Package, &[3, 4]), None);
        assert_eq!(hardware.place(Level::Core, &[4, 5]), Some(2));
        assert_eq!(hardware.place(Level::L3Cache, &[0]), None);
        assert_eq!(hardware.place(Level::Pu, &[9]), None);
        assert_eq!(hardware.place(Level::Machine, &[]), None);
    }

    /// Two packages of two caches of two cores; the second package is a node without
    /// a reported cache.
    #[test]
    fn files_of_a_machine_that_is_not_this_one() {
        let read = |path: &str| -> Option<String> {
            if let Some(node) = path.strip_prefix("/sys/devices/system/node/") {
                let text = match node {
                    "online" => "0-1",
                    "node0/cpulist" => "0-3",
                    "node1/cpulist" => "4-7",
                    _ => return None,
                };
                return Some(format!("{text}\n"));
            }
            let rest = path.strip_prefix("/sys/devices/system/cpu/cpu")?;
            let (cpu, file) = rest.split_once('/')?;
            let cpu: usize = cpu.parse().ok()?;
            let block = |width: usize| {
                let first = cpu / width * width;
                format!("{first}-{}\n", first + width - 1)
            };
            match file {
                "topology/package_cpus_list" => Some(block(4)),
                "topology/core_cpus_list" => Some(format!("{cpu}\n")),
                "cache/index0/level" => Some("1\n".into()),
                "cache/index0/type" => Some("Instruction\n".into()),
                "cache/index3/level" if cpu < 4 => Some("3\n".into()),
                "cache/index3/type" => Some("Unified\n".into()),
                "cache/index3/shared_cpu_list" => Some(block(2)),
                _ => None,
            }
        };
        let cpus: Vec<usize> = (0..8).collect();
        let hardware = Hardware::from_files(&cpus, &read);
        let of = |level, cpu| hardware.place(level, &[cpu]);
        assert_eq!(of(Level::Package, 6), Some(4));
        assert_eq!(of(Level::NumaNode, 6), Some(1));
        assert_eq!(of(Level::NumaNode, 3), Some(0));
        assert_eq!(of(Level::L3Cache, 3), Some(2));
        assert_eq!(of(Level::L3Cache, 6), None);
        assert_eq!(of(Level::L1Cache, 0), None);
        assert_eq!(of(Level::Core, 5), Some(5));
        assert_eq!(hardware.place(Level::L3Cache, &[1, 2]), None);
    }

    #[test]
    fn names_and_lists() {
        for level in LEVELS {
            assert_eq!(Level::named(level.name()), Some(level));
        }
        assert_eq!(Level::named("hwloc://NUMANode"), Some(Level::NumaNode));
        assert_eq!(Level::named("router"), None);
        assert_eq!(parse_list(" 0-2,8\n"), Some(vec![0, 1, 2, 8]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("x"), None);
    }

    #[test]
    fn this_machine_has_processors() {
        let cpus = Hardware::bound_to();
        assert!(!cpus.is_empty());
        let hardware = Hardware::of(&cpus);
        assert_eq!(hardware.place(Level::Machine, &cpus), Some(0));
        assert_eq!(hardware.place(Level::Pu, &cpus[..1]), Some(cpus[0] as u32));
    }
}
