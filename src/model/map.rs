//! The machine as a tree of its parts, with the GPUs beside the nearest memory:
//! the output of `osier topo`.
//!
//! # Sources
//! The folders `devices/system` and `bus/pci` of Linux' `/sys`, or hwloc (`hwloc.rs`).

use super::hardware::{Hardware, LEVELS, Level};
use osier_kernels::DeviceInfo;
use std::path::Path;

/// Levels of the drawing, outermost first.
const DRAWN: [Level; 5] = [
    Level::Package,
    Level::NumaNode,
    Level::L3Cache,
    Level::Core,
    Level::Pu,
];

/// A part of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its kind, in hwloc's words and lower case.
    pub level: &'static str,
    /// Its number: of its first processor, or of its memory node.
    pub number: u32,
    /// Processors in it.
    pub processors: Vec<usize>,
    /// Parts in it.
    pub parts: Vec<Part>,
    /// GPUs beside it.
    pub gpus: Vec<Gpu>,
}

/// A GPU and its position on the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number in the driver.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Its address on the PCI bus.
    pub pci: Option<String>,
    /// Addresses of the bridges and switches in front of it, from the root inward.
    pub bridges: Vec<String>,
    /// The memory node that is near to it.
    pub node: Option<u32>,
    /// GPUs whose memory it accesses without the host.
    pub peers: Vec<i32>,
}

impl Part {
    /// This machine: the processors that this thread may run on, and the GPUs that the
    /// driver reports, if there is one. With the feature `hwloc`, the machine that hwloc's
    /// variables name (`HWLOC_XMLFILE`), if they do.
    pub fn machine() -> Part {
        #[cfg(feature = "hwloc")]
        if let Some(seen) = super::hwloc::Seen::other() {
            return Part::seen(&seen);
        }
        let cpus = Hardware::bound_to();
        let gpus = osier_kernels::devices().unwrap_or_default();
        let gpus = gpus.iter().map(|info| Gpu::of(info, Path::new("/sys")));
        Part::of(&Hardware::of(&cpus), &cpus, gpus.collect())
    }

    /// A machine that hwloc has from elsewhere, with its GPUs.
    #[cfg(feature = "hwloc")]
    pub(super) fn seen(seen: &super::hwloc::Seen) -> Part {
        let cpus = seen.cpus();
        Part::of(&Hardware::seen(&cpus, seen), &cpus, seen.gpus())
    }

    /// Value of [`Part::told_by`] where hwloc has the machine from a file or a description.
    pub const OTHER: &str = "hwloc, of another machine";

    /// Source of [`Part::machine`]: `/sys`, `hwloc`, or hwloc, [of another machine](Part::OTHER).
    pub fn told_by() -> &'static str {
        #[cfg(feature = "hwloc")]
        match super::hwloc::Seen::other() {
            Some(_) => return Part::OTHER,
            None if super::hwloc::Seen::processors().is_some() => return "hwloc",
            None => {}
        }
        "/sys"
    }

    /// This machine without its GPUs: no driver is called.
    pub fn processors() -> Part {
        let cpus = Hardware::bound_to();
        Part::of(&Hardware::of(&cpus), &cpus, Vec::new())
    }

    /// A machine of these processors and GPUs.
    pub(crate) fn of(hardware: &Hardware, cpus: &[usize], gpus: Vec<Gpu>) -> Part {
        let mut machine = Part {
            level: LEVELS[0].name(),
            processors: cpus.to_vec(),
            parts: nested(hardware, cpus, &DRAWN),
            ..Part::default()
        };
        for gpu in gpus {
            let place = match gpu.node {
                Some(node) => machine.find_mut(Level::NumaNode.name(), node),
                None => None,
            };
            match place {
                Some(part) => part.gpus.push(gpu),
                None => machine.gpus.push(gpu),
            }
        }
        machine
    }

    /// The GPUs of all parts, by their numbers.
    pub fn all_gpus(&self) -> Vec<&Gpu> {
        let inner = self.parts.iter().flat_map(Part::all_gpus);
        let mut all: Vec<&Gpu> = self.gpus.iter().chain(inner).collect();
        all.sort_by_key(|gpu| gpu.ordinal);
        all
    }

    fn find_mut(&mut self, level: &str, number: u32) -> Option<&mut Part> {
        if self.level == level && self.number == number {
            return Some(self);
        }
        let mut parts = self.parts.iter_mut();
        parts.find_map(|part| part.find_mut(level, number))
    }
}

/// Parts by the first of these levels that is reported, with the parts inside.
fn nested(hardware: &Hardware, cpus: &[usize], levels: &[Level]) -> Vec<Part> {
    let Some((level, inner)) = levels.split_first() else {
        return Vec::new();
    };
    let mut parts: Vec<Part> = Vec::new();
    for &cpu in cpus {
        let Some(number) = hardware.place(*level, &[cpu]) else {
            // Not reported: the parts inside move one level up.
            return nested(hardware, cpus, inner);
        };
        let known = parts.iter_mut().find(|part| part.number == number);
        match known {
            Some(part) => part.processors.push(cpu),
            None => parts.push(Part {
                level: level.name(),
                number,
                processors: vec![cpu],
                ..Part::default()
            }),
        }
    }
    for part in &mut parts {
        part.parts = nested(hardware, &part.processors, inner);
    }
    parts
}

impl Gpu {
    /// The memory node near to it, and the PCIe switch in front of it, as a
    /// number: in front of a device are a root port, or one and a switch's two ports. None:
    /// not reported, or no switch.
    pub fn place(&self) -> [Option<u32>; 2] {
        let upstream = match &self.bridges[..] {
            [.., upstream, _] if self.bridges.len() > 2 => number(upstream),
            _ => None,
        };
        [self.node, upstream]
    }

    /// The driver's data of a device, with its position on the bus from hwloc or `/sys`.
    pub(super) fn of(info: &DeviceInfo, sys: &Path) -> Gpu {
        let pci = info.pci.as_ref().map(|pci| pci.to_ascii_lowercase());
        let (bridges, node) = pci.as_ref().map(|pci| way_to(pci, sys)).unwrap_or_default();
        Gpu {
            ordinal: info.ordinal,
            name: info.name.clone(),
            bridges,
            pci,
            node,
            peers: info.peers.clone(),
        }
    }
}

/// The bridges in front of a device, from the root inward, and the memory node near to it.
fn way_to(pci: &str, sys: &Path) -> (Vec<String>, Option<u32>) {
    #[cfg(feature = "hwloc")]
    if let Some(way) = super::hwloc::Seen::machine().and_then(|seen| seen.way_to(pci)) {
        return way;
    }
    let folder = sys.join("bus/pci/devices").join(pci);
    let node = std::fs::read_to_string(folder.join("numa_node")).ok();
    // -1: unknown to the firmware.
    let node = node.and_then(|text| text.trim().parse().ok());
    let path = std::fs::canonicalize(folder);
    (path.map(|path| bridges(&path)).unwrap_or_default(), node)
}

/// An address on the bus as a number: `0000:3a:00.0`.
pub(super) fn number(address: &str) -> Option<u32> {
    let digits: String = address.chars().filter(char::is_ascii_hexdigit).collect();
    u64::from_str_radix(&digits, 16).ok()?.try_into().ok()
}

/// The address that a number stands for.
pub(super) fn address(number: u32) -> String {
    let [domain, bus, device, function] = [
        number >> 20,
        number >> 12 & 0xff,
        number >> 4 & 0xff,
        number & 0xf,
    ];
    format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
}

/// The addresses in a device's path before its own: `pci0000:3a/0000:3a:00.0/...`.
fn bridges(path: &Path) -> Vec<String> {
    let is_address = |name: &&str| name.matches(':').count() == 2 && name.contains('.');
    let names = path.iter().filter_map(|name| name.to_str());
    let mut all: Vec<String> = names.filter(is_address).map(str::to_owned).collect();
    all.pop();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Option<String> {
        // Two packages of two cores of one thread; a cache per package is reported.
        if let Some(node) = path.strip_prefix("/sys/devices/system/node/") {
            let text = match node {
                "online" => "0-1",
                "node0/cpulist" => "0-1",
                "node1/cpulist" => "2-3",
                _ => return None,
            };
            return Some(text.into());
        }
        let rest = path.strip_prefix("/sys/devices/system/cpu/cpu")?;
        let (cpu, file) = rest.split_once('/')?;
        let cpu: usize = cpu.parse().ok()?;
        match file {
            "topology/package_cpus_list" => Some(format!("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1)),
            "topology/core_cpus_list" => Some(cpu.to_string()),
            _ => None,
        }
    }

    fn gpu(ordinal: i32, node: Option<u32>) -> Gpu {
        Gpu {
            ordinal,
            name: "some".into(),
            pci: None,
            bridges: Vec::new(),
            node,
            peers: Vec::new(),
        }
    }

    #[test]
    fn parts_nest_and_gpus_lie_beside_their_memory() {
        let cpus = [0, 1, 2, 3];
        let hardware = Hardware::from_files(&cpus, &read);
        let gpus = vec![gpu(0, Some(1)), gpu(1, None), gpu(2, Some(9))];
        let machine = Part::of(&hardware, &cpus, gpus);
        assert_eq!(machine.parts.len(), 2);
        let package = &machine.parts[1];
        assert_eq!((package.level, package.number), ("package", 2));
        let node = &package.parts[0];
        assert_eq!((node.level, node.number), ("numanode", 1));
        assert_eq!(node.gpus, [gpu(0, Some(1))]);
        // No third-level cache is reported.
        assert_eq!(node.parts[1].level, "core");
        assert_eq!(node.parts[1].processors, [3]);
        // GPUs without a position belong to the machine.
        assert_eq!(machine.gpus, [gpu(1, None), gpu(2, Some(9))]);
    }

    #[test]
    fn devices_behind_one_switch_have_one_place() {
        let behind = |bridges: &[&str]| Gpu {
            bridges: bridges.iter().map(|b| (*b).to_owned()).collect(),
            ..gpu(0, Some(1))
        };
        let first = behind(&["0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0"]).place();
        let beside = behind(&["0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0"]).place();
        let other = behind(&["0000:5a:00.0", "0000:5b:00.0", "0000:5c:00.0"]).place();
        assert_eq!(first, beside);
        assert!(
            first != other && first[0] == other[0],
            "{first:?} {other:?}"
        );
        // Right behind a root port there is no switch.
        assert_eq!(behind(&["0000:3a:00.0"]).place(), [Some(1), None]);
    }

    #[test]
    fn bridges_of_a_path() {
        let path = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0";
        assert_eq!(bridges(Path::new(path)), ["0000:3a:00.0", "0000:3b:00.0"]);
        assert!(bridges(Path::new("/sys/devices/pci0000:00/0000:00:04.0")).is_empty());
    }

    #[test]
    fn this_machine_is_a_tree_of_its_processors() {
        let machine = Part::machine();
        assert_eq!(machine.processors, Hardware::bound_to());
        fn leaves(part: &Part) -> usize {
            match part.parts.is_empty() {
                true => part.processors.len(),
                false => part.parts.iter().map(leaves).sum(),
            }
        }
        assert_eq!(leaves(&machine), machine.processors.len());
    }
}
