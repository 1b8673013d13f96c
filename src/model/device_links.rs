//! Links between GPUs: NVLinks, or the path over the bus, in the notation of `nvidia-smi topo -m`.
//!
//! | word | between two GPUs are |
//! |---|---|
//! | `NV4` | NVLinks from one to the other, with their number |
//! | `NV18s` | NVLinks of each, with their number, into switches that join both |
//! | `PIX` | one PCIe switch |
//! | `PXB` | several PCIe switches, no host bridge |
//! | `PHB` | a host bridge |
//! | `NODE` | host bridges of one memory node |
//! | `SYS` | the links between memory nodes |
//! | `PCI` | a bus that `/sys` does not describe |
//!
//! Brackets mark a lack of access to the other's memory: messages go through the
//! host.
//!
//! # Sources
//! `nvidia-smi topo -m`, legend. Rates of links: data sheets of the GPUs, per link and
//! direction 20 GB/s (sm 60), 25 (sm 70, 80, 90), 14 (sm 86), 50 (sm 100); four fifths of
//! that are taken as the rate of messages. Not measured yet.

use super::map::Gpu;
use osier_collectives::{DeviceLink, DeviceLinks, matrix};
use osier_kernels::{DeviceId, DeviceInfo, NvLinks};
use std::fmt;
use std::path::Path;

/// Link between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The same GPU.
    Same,
    /// NVLinks.
    Links(DeviceLink),
    /// One PCIe switch.
    Switch,
    /// Several PCIe switches, no host bridge.
    Switches,
    /// A host bridge.
    HostBridge,
    /// Host bridges of one memory node.
    Node,
    /// Links between memory nodes.
    System,
    /// A bus, of unknown kind.
    Bus,
}

/// Link and access between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuLink {
    /// The link.
    pub way: Way,
    /// Kernels of one can access the other's memory.
    pub reached: bool,
}

impl fmt::Display for GpuLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.way {
            Way::Same => "X".to_owned(),
            Way::Links(device_link) => device_link.to_string(),
            Way::Switch => "PIX".into(),
            Way::Switches => "PXB".into(),
            Way::HostBridge => "PHB".into(),
            Way::Node => "NODE".into(),
            Way::System => "SYS".into(),
            Way::Bus => "PCI".into(),
        };
        match self.reached {
            true => f.pad(&word),
            false => f.pad(&format!("[{word}]")),
        }
    }
}

/// What names a GPU in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuName {
    /// Its UUID, or that of a slice of it.
    pub id: DeviceId,
    /// Its address on the bus, as a number.
    pub bus: Option<u32>,
}

impl GpuName {
    /// As numbers that are not all 0.
    pub fn to_words(self) -> [u64; 3] {
        let (high, low) = self.id.split_at(8);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let bus = self.bus.map_or(0, |bus| u64::from(bus) + 1);
        [word(high), word(low), bus + (1 << 40)]
    }

    /// From such numbers; none if all are 0.
    pub fn of_words(words: &[u64]) -> Option<GpuName> {
        let [high, low, bus] = *words else {
            return None;
        };
        let bus = bus.checked_sub(1 << 40)?;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&high.to_be_bytes());
        id[8..].copy_from_slice(&low.to_be_bytes());
        let bus = bus.checked_sub(1).map(|bus| bus as u32);
        Some(GpuName { id, bus })
    }
}

/// The GPUs that the driver reports, and their links.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuLinks {
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// What the driver says of each.
    devices: Vec<DeviceInfo>,
    /// By pair of GPUs.
    pub between: Vec<Vec<GpuLink>>,
    /// Why NVLinks are unknown, if they are.
    pub unknown: Option<String>,
    /// Time of a byte over one link of these GPUs, in ns, by data sheets.
    pub link_ns_per_byte: f64,
}

impl GpuLinks {
    /// Of this machine; none where the driver reports no GPU.
    pub fn here() -> Option<GpuLinks> {
        let device_links = osier_kernels::device_links().ok()?;
        let sys = Path::new("/sys");
        let gpus = device_links.devices.iter().map(|info| Gpu::of(info, sys));
        let rate = device_links
            .devices
            .iter()
            .map(|info| rate(info.capability));
        Some(GpuLinks::of(
            gpus.collect(),
            device_links,
            rate.fold(f64::INFINITY, f64::min),
        ))
    }

    fn of(
        gpus: Vec<Gpu>,
        device_links: &osier_kernels::DeviceLinks,
        bytes_per_ns: f64,
    ) -> GpuLinks {
        let link = |one: usize, other: usize| {
            let device_link = device_links.between[one][other];
            GpuLink {
                way: match device_link.nvlinks {
                    _ if one == other => Way::Same,
                    NvLinks::Direct(n) => Way::Links(DeviceLink::Direct(n)),
                    NvLinks::Switched(n) => Way::Links(DeviceLink::Switched(n)),
                    NvLinks::None | NvLinks::Unknown => bus(&gpus[one], &gpus[other]),
                },
                reached: device_link.reached,
            }
        };
        let all = 0..gpus.len();
        let between = all.clone().map(|one| {
            let row = all.clone().map(|other| link(one, other));
            row.collect()
        });
        GpuLinks {
            between: between.collect(),
            devices: device_links.devices.clone(),
            unknown: device_links.unknown.clone(),
            link_ns_per_byte: 1.0 / bytes_per_ns,
            gpus,
        }
    }

    /// Links between two GPUs besides the bus, where one can access the other.
    pub fn device_link(&self, one: usize, other: usize) -> Option<DeviceLink> {
        match self.between[one][other] {
            GpuLink {
                way: Way::Links(device_link),
                reached: true,
            } => Some(device_link),
            _ => None,
        }
    }

    /// The GPU with this number in this process, as other processes know it.
    pub(crate) fn find(&self, ordinal: i32) -> Option<(usize, GpuName)> {
        let at = self.gpus.iter().position(|gpu| gpu.ordinal == ordinal)?;
        let bus = self.gpus[at]
            .pci
            .as_ref()
            .and_then(|pci| super::map::number(pci));
        let id = self.devices.get(at)?.id;
        Some((at, GpuName { id, bus }))
    }

    /// Links between a GPU and one that this process need not see.
    pub(crate) fn device_link_to(&self, one: usize, other: &GpuName) -> Option<DeviceLink> {
        if let Some(at) = self.devices.iter().position(|info| info.id == other.id) {
            return self.device_link(one, at);
        }
        let pci = super::map::address(other.bus?);
        match osier_kernels::nvlinks_to(self.devices.get(one)?, &pci) {
            NvLinks::Direct(n) => Some(DeviceLink::Direct(n)),
            NvLinks::Switched(n) => Some(DeviceLink::Switched(n)),
            NvLinks::None | NvLinks::Unknown => None,
        }
    }

    /// Links between the GPUs of ranks that have them round robin.
    pub fn of_ranks(&self, ranks: u32) -> RankLinks {
        let gpu = |rank: u32| rank as usize % self.gpus.len().max(1);
        let pairs = (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b)));
        let device_link = |(a, b): (u32, u32)| match gpu(a) == gpu(b) {
            true => Some((a, b, DeviceLink::Same)),
            false => Some((a, b, self.device_link(gpu(a), gpu(b))?)),
        };
        RankLinks {
            device_links: DeviceLinks::of(ranks, pairs.filter_map(device_link)),
            link_ns_per_byte: self.link_ns_per_byte,
            apart: false,
        }
    }

    /// As a matrix with a legend of its words.
    pub fn draw(&self) -> String {
        let names: Vec<String> = self
            .gpus
            .iter()
            .map(|gpu| format!("gpu {}", gpu.ordinal))
            .collect();
        let mut text = matrix(&names, &|a, b| self.between[a][b].to_string());
        let all = || self.between.iter().flatten();
        for (way, meaning) in [
            (Way::Switch, "PIX: one PCIe switch"),
            (Way::Switches, "PXB: several PCIe switches"),
            (Way::HostBridge, "PHB: a host bridge"),
            (Way::Node, "NODE: host bridges of one memory node"),
            (Way::System, "SYS: the ways between memory nodes"),
            (Way::Bus, "PCI: a bus of which the system tells no more"),
        ] {
            if all().any(|link| link.way == way) {
                text += &format!("  {meaning}\n");
            }
        }
        let device_link = |wanted: &dyn Fn(DeviceLink) -> bool| {
            all().any(|link| matches!(link.way, Way::Links(device_link) if wanted(device_link)))
        };
        if device_link(&|device_link| matches!(device_link, DeviceLink::Direct(_))) {
            text += "  NVn: n NVLinks between the two\n";
        }
        if device_link(&|device_link| matches!(device_link, DeviceLink::Switched(_))) {
            text += "  NVns: n NVLinks of each, through switches\n";
        }
        if all().any(|link| !link.reached) {
            text += "  [...]: no way for kernels; messages go through the host\n";
        }
        if let Some(why) = &self.unknown {
            text += &format!("  NVLinks are unknown: {why}\n");
        }
        text
    }
}

/// Links between the devices of ranks, and their rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankLinks {
    /// The linked pairs.
    pub device_links: DeviceLinks,
    /// Time of a byte over one link, in ns.
    pub link_ns_per_byte: f64,
    /// Each rank has a device of its own.
    pub apart: bool,
}

/// Bytes per ns of a message over one link of a GPU of this compute capability.
fn rate(capability: (i32, i32)) -> f64 {
    let sheet = match capability {
        (..=6, _) => 20.0,
        (8, 6 | 9) => 14.0,
        (7..=9, _) => 25.0,
        _ => 50.0,
    };
    0.8 * sheet
}

/// The path on the bus between two GPUs.
fn bus(one: &Gpu, other: &Gpu) -> Way {
    let (a, b) = (&one.bridges, &other.bridges);
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    if common > 0 {
        // In front of each GPU, below their common bridges, is a port of the switch.
        return match a.len().max(b.len()) - common {
            0 | 1 => Way::Switch,
            _ => Way::Switches,
        };
    }
    let root = |gpu: &Gpu| {
        let first = gpu.bridges.first().or(gpu.pci.as_ref())?;
        Some(first.rsplit_once(':')?.0.to_owned())
    };
    // Devices without a bridge in front may be anywhere: emulated ones, virtual machines.
    if a.is_empty() || b.is_empty() {
        return match (one.node, other.node) {
            (Some(a), Some(b)) if a != b => Way::System,
            _ => Way::Bus,
        };
    }
    match (one.node, other.node) {
        _ if root(one) == root(other) => Way::HostBridge,
        (Some(a), Some(b)) if a == b => Way::Node,
        (Some(_), Some(_)) => Way::System,
        _ => Way::Bus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(ordinal: i32, node: u32, bridges: &[&str]) -> Gpu {
        Gpu {
            ordinal,
            name: "some".into(),
            pci: None,
            bridges: bridges.iter().map(|b| (*b).to_owned()).collect(),
            node: Some(node),
            peers: Vec::new(),
        }
    }

    fn machine() -> GpuLinks {
        let gpus = vec![
            gpu(0, 0, &["0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0"]),
            gpu(1, 0, &["0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0"]),
            gpu(2, 0, &["0000:3a:02.0", "0000:4b:00.0", "0000:4c:00.0"]),
            gpu(3, 0, &["0000:5a:00.0", "0000:5b:00.0", "0000:5c:00.0"]),
            gpu(4, 1, &["0000:8a:00.0", "0000:8b:00.0", "0000:8c:00.0"]),
        ];
        let device_link = |one: usize, other: usize| osier_kernels::DeviceLink {
            reached: one.max(other) < 4,
            nvlinks: match (one.min(other), one.max(other)) {
                (1, 2) => NvLinks::Direct(4),
                (2, 4) => NvLinks::Direct(2),
                _ => NvLinks::None,
            },
            ..osier_kernels::DeviceLink::default()
        };
        let device_links = osier_kernels::DeviceLinks {
            devices: Vec::new(),
            between: (0..5)
                .map(|a| (0..5).map(|b| device_link(a, b)).collect())
                .collect(),
            unknown: None,
        };
        GpuLinks::of(gpus, &device_links, rate((9, 0)))
    }

    #[test]
    fn names_of_gpus_go_between_processes() {
        let id = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255];
        for bus in [None, Some(0), super::super::map::number("0000:3a:00.0")] {
            let name = GpuName { id, bus };
            assert_eq!(GpuName::of_words(&name.to_words()), Some(name));
        }
        assert_eq!(GpuName::of_words(&[0; 3]), None);
        for text in ["0000:3a:00.0", "0001:00:1f.7"] {
            let number = super::super::map::number(text).unwrap();
            assert_eq!(super::super::map::address(number), text);
        }
    }

    #[test]
    fn words_are_those_that_users_know() {
        let links = machine();
        let word = |a: usize, b: usize| links.between[a][b].to_string();
        assert_eq!(word(0, 1), "PIX");
        assert_eq!(word(1, 2), "NV4");
        assert_eq!(word(0, 2), "PHB");
        assert_eq!(word(2, 3), "NODE");
        assert_eq!(word(0, 4), "[SYS]");
        assert_eq!(word(2, 4), "[NV2]");
        // Plans ignore links without access.
        assert_eq!(links.device_link(2, 4), None);
        assert_eq!(links.device_link(2, 1), Some(DeviceLink::Direct(4)));
        let text = links.draw();
        assert!(text.starts_with("       gpu 0  gpu 1"), "{text}");
        assert!(
            text.contains("NVn: n NVLinks") && text.contains("[...]"),
            "{text}"
        );
    }

    #[test]
    fn switches_may_be_behind_switches() {
        let near = ["r", "u", "d", "0000:3d:00.0", "0000:3e:00.0"];
        let far = ["r", "u", "d", "0000:4d:00.0", "0000:4e:00.0"];
        let (a, b) = (gpu(0, 0, &near), gpu(1, 0, &far));
        assert_eq!(bus(&a, &b), Way::Switches);
        assert_eq!(bus(&gpu(0, 0, &[]), &gpu(1, 0, &[])), Way::Bus);
        assert_eq!(bus(&gpu(0, 0, &[]), &gpu(1, 1, &[])), Way::System);
    }

    #[test]
    fn ranks_have_the_links_of_their_devices() {
        let all = machine().of_ranks(7);
        assert_eq!(all.device_links.between(1, 2), Some(DeviceLink::Direct(4)));
        assert_eq!(all.device_links.between(6, 2), Some(DeviceLink::Direct(4)));
        assert_eq!(all.device_links.between(0, 5), Some(DeviceLink::Same));
        assert_eq!(all.device_links.between(0, 1), None);
        assert!((all.link_ns_per_byte - 0.05).abs() < 1e-9);
    }
}
