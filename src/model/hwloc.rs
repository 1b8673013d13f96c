//! The machine as hwloc reports it: the levels and numbers of `/sys`, and the PCI bus.
//!
//! hwloc's own variables (`HWLOC_XMLFILE`, `HWLOC_SYNTHETIC`) name another machine. That one
//! can be drawn, with its GPUs and the share of each rank; ranks that run are placed
//! on this one.
//!
//! # Sources
//! hwloc 2, through the crate `hwlocality`.

use super::hardware::Level;
use super::map::Gpu;
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{
    BridgeAttributes, ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes,
};
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{TopologyBuilder, TypeFilter};

/// PCI vendor of GPUs on a machine that is not this one: NVIDIA,
const VENDOR: u16 = 0x10de;
/// and upper byte of their class: displays, and accelerators without one.
const DISPLAY: u16 = 3;

/// Result of hwloc's discovery.
pub(super) struct Seen(Topology);

impl Seen {
    /// This machine's processors; none if hwloc finds none, or another machine.
    pub fn processors() -> Option<Seen> {
        Some(Seen(Topology::new().ok()?)).filter(|seen| seen.0.is_this_system())
    }

    /// This machine with its bus.
    pub fn machine() -> Option<Seen> {
        Seen::with_bus(Topology::builder()).filter(|seen| seen.0.is_this_system())
    }

    /// Another machine, if hwloc's variables name one.
    pub fn other() -> Option<Seen> {
        let named = ["HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT"];
        if named.iter().all(|name| std::env::var_os(name).is_none()) {
            return None;
        }
        Seen::with_bus(Topology::builder()).filter(|seen| !seen.0.is_this_system())
    }

    fn with_bus(builder: TopologyBuilder) -> Option<Seen> {
        let builder = builder.with_io_type_filter(TypeFilter::KeepImportant);
        Some(Seen(builder.ok()?.build().ok()?))
    }

    /// All processors.
    pub fn cpus(&self) -> Vec<usize> {
        self.0
            .complete_cpuset()
            .iter_set()
            .map(usize::from)
            .collect()
    }

    /// The instance of a level in which a processor lies, as in [`super::hardware`].
    pub fn instance(&self, cpu: usize, level: Level) -> Option<u32> {
        let mut pus = self.0.objects_with_type(ObjectType::PU);
        let pu = pus.find(|pu| pu.os_index() == Some(cpu))?;
        let of = |kind| {
            let part = pu.first_ancestor_with_type(kind)?;
            // All of it, even processors that this process may not use.
            part.complete_cpuset()?.first_set()
        };
        let first = match level {
            Level::Machine => return Some(0),
            Level::Pu => return Some(cpu as u32),
            Level::NumaNode => pu.complete_nodeset()?.first_set(),
            Level::Package => of(ObjectType::Package),
            Level::L3Cache => of(ObjectType::L3Cache),
            Level::L2Cache => of(ObjectType::L2Cache),
            Level::L1Cache => of(ObjectType::L1Cache),
            Level::Core => of(ObjectType::Core),
        };
        first.map(|first| usize::from(first) as u32)
    }

    /// The bridges in front of a device at this address, from the root inward, and the
    /// memory node that is near to it; none if there is no such device.
    pub fn way_to(&self, pci: &str) -> Option<(Vec<String>, Option<u32>)> {
        let device = self.0.pci_device_by_bus_id_string(pci).ok()??;
        Some(Self::way(device))
    }

    fn way(device: &TopologyObject) -> (Vec<String>, Option<u32>) {
        let upstream = |object: &TopologyObject| match object.attributes()? {
            ObjectAttributes::Bridge(bridge) => port(bridge),
            _ => None,
        };
        let mut bridges: Vec<String> = device.ancestors().filter_map(upstream).collect();
        bridges.reverse();
        // Near to one node, or the firmware does not say.
        let near = device.first_non_io_ancestor();
        let nodes = near.and_then(|near| near.complete_nodeset());
        let mut nodes = nodes.iter().flat_map(|nodes| nodes.iter_set());
        let node = match (nodes.next(), nodes.next()) {
            (Some(only), None) => Some(usize::from(only) as u32),
            _ => None,
        };
        (bridges, node)
    }

    /// The GPUs of a machine that is not this one, in the order of the bus.
    pub fn gpus(&self) -> Vec<Gpu> {
        let mut all: Vec<(String, &TopologyObject)> = Vec::new();
        for device in self.0.pci_devices() {
            if let Some(ObjectAttributes::PCIDevice(about)) = device.attributes()
                && about.vendor_id() == VENDOR
                && about.class_id() >> 8 == DISPLAY
            {
                all.push((address(about), device));
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let gpu = |(ordinal, (pci, device)): (usize, (String, &TopologyObject))| {
            let (bridges, node) = Self::way(device);
            let name = device.info("PCIDevice").or(device.name());
            Gpu {
                ordinal: ordinal as i32,
                name: name.map_or("GPU".into(), |name| name.to_string_lossy().into_owned()),
                pci: Some(pci),
                bridges,
                node,
                // Only a driver reports that.
                peers: Vec::new(),
            }
        };
        all.into_iter().enumerate().map(gpu).collect()
    }
}

/// The address of a bridge; the host's has none.
fn port(bridge: &BridgeAttributes) -> Option<String> {
    let UpstreamAttributes::PCI(about) = bridge.upstream_attributes()?;
    Some(address(about))
}

fn address(at: &PCIDeviceAttributes) -> String {
    format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        at.domain(),
        at.bus_id(),
        at.bus_device(),
        at.function()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::hardware::{Hardware, LEVELS};
    use crate::model::map::Part;

    /// Both sources agree about this machine.
    #[test]
    fn hwloc_and_sys_agree() {
        let cpus = Hardware::bound_to();
        let seen = Seen::processors().expect("this machine");
        let files = Hardware::from_files(&cpus, &|path| std::fs::read_to_string(path).ok());
        for level in LEVELS {
            for cpu in &cpus {
                let told = files.place(level, &[*cpu]);
                let found = seen.instance(*cpu, level);
                // hwloc leaves out what the system does not report, and has a node for
                // machines without one.
                if level == Level::NumaNode && told.is_none() {
                    continue;
                }
                assert_eq!(found, told, "{level:?} of {cpu}");
            }
        }
    }

    /// Two packages of two caches of two cores of two threads, numbered core by core.
    #[test]
    fn a_described_machine_has_all_levels() {
        let builder = Topology::builder().from_synthetic("pack:2 [numa] l3:2 core:2 pu:2");
        let topology = builder.expect("a description").build().expect("a machine");
        let seen = Seen(topology);
        assert_eq!(seen.cpus(), (0..16).collect::<Vec<_>>());
        let of = |level| seen.instance(13, level);
        assert_eq!(of(Level::Machine), Some(0));
        assert_eq!(of(Level::Package), Some(8));
        assert_eq!(of(Level::NumaNode), Some(1));
        assert_eq!(of(Level::L3Cache), Some(12));
        assert_eq!(of(Level::L1Cache), None);
        assert_eq!(of(Level::Core), Some(12));
        assert_eq!(of(Level::Pu), Some(13));
        assert_eq!(seen.instance(99, Level::Core), None);
    }

    /// Two GPUs behind one switch, one behind a root port, of a machine from a file.
    #[test]
    fn gpus_of_a_file_lie_behind_their_switches() {
        let xml = include_str!("hwloc/switch.xml");
        let builder = Topology::builder().from_xml(xml).expect("a file");
        let seen = Seen::with_bus(builder).expect("a machine");
        assert!(!seen.0.is_this_system());
        let gpus = seen.gpus();
        let places: Vec<_> = gpus.iter().map(Gpu::place).collect();
        assert_eq!(gpus.len(), 3);
        assert_eq!(places[0], places[1]);
        assert_eq!(places[0][0], Some(0));
        assert!(places[0][1].is_some(), "{gpus:?}");
        assert_eq!(places[2], [Some(1), None]);
        assert_eq!(gpus[0].name, "H100");
        assert_eq!(gpus[2].pci.as_deref(), Some("0000:81:00.0"));
        assert_eq!(gpus[2].bridges, ["0000:80:01.0"]);
        let way = seen.way_to("0000:03:00.0").expect("a device");
        assert_eq!((way.0, way.1), (gpus[0].bridges.clone(), Some(0)));
        assert!(seen.way_to("0000:ff:00.0").is_none() && seen.way_to("?").is_none());
        let machine = Part::seen(&seen);
        assert_eq!(machine.parts.len(), 2);
        assert_eq!(machine.parts[0].parts[0].gpus.len(), 2);
    }
}
