//! Costs of collective calls whose buffers lie on devices: measured between ranks of a job,
//! or estimated from the costs of messages of a device.
//!
//! A message between the memory of two ranks' devices costs as one of the host's: from its
//! send to the end of its receive, and the time for which either end is busy with it. Copies and
//! combinations are kernels, and data to and from the host crosses the device's link.
//!
//! ```text
//! A(m)   alternating broadcasts, each on the device: one way(m) = A(m) - r - 2 s
//! G(m)   broadcasts of the same rank: busy(m) = G(m) - r - s, at most one way(m)
//! ```
//!
//! `r` and `s` are the costs of a run and a step on the host ([`super::rounds`]): the executor
//! is the same. An emulated device is measured alike, so that tests can choose by its
//! costs; they are marked, are used by jobs on emulated devices alone, and are no figures of
//! a GPU.

use super::calls::{CallCosts, ClassCosts, MessageCost, Places, WorkCost, rise, round};
use super::device_links::RankLinks;
use osier_collectives::{Aside, Curve, DeviceLink, Executor, Joined, Machine, Point};
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::device::{Class, End, Space};
use osier_engine::protocol::reach::Placement;
use osier_engine::protocol::select::{AT_ONCE_BYTES, DevicePair, Message, Rules};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Sizes of messages and of kernels' work.
pub(crate) const LOGS: [u32; 9] = [3, 8, 12, 14, 16, 18, 20, 22, 24];
/// Costs of collective calls on devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCalls {
    /// The device, by its driver's name; "estimated" if none was measured.
    pub device: String,
    /// It is emulated: these are no figures of a GPU.
    #[serde(default)]
    pub emulated: bool,
    /// Messages from device to device, by class of links.
    pub classes: Vec<ClassCosts>,
    /// Copies within a device,
    pub copy: Vec<WorkCost>,
    /// sums of doubles there,
    pub combine: Vec<WorkCost>,
    /// copies from a device to memory of the host,
    pub to_host: Vec<WorkCost>,
    /// and back.
    pub to_device: Vec<WorkCost>,
}

impl DeviceCalls {
    /// Estimate from the costs of messages of a device, measured or built in, between
    /// two processes whose devices are linked by the bus.
    pub fn estimated(links: &LinkCosts) -> DeviceCalls {
        let mut device = links.device.unwrap_or_default();
        // The measured or built-in costs may be those of another link.
        let bus = device.to_host_ns_per_byte.max(device.to_device_ns_per_byte);
        device.peer_ns_per_byte = device.peer_ns_per_byte.max(bus);
        device.peer_block_ns_per_byte = device.peer_block_ns_per_byte.max(bus);
        let links = &LinkCosts {
            device: Some(device),
            ..*links
        };
        let rules = Rules::new(links, AT_ONCE_BYTES);
        let end = End {
            space: Space::Device,
            class: Class::Run,
        };
        let message = |log: u32| {
            let bytes = 1usize << log;
            let message = Message {
                pair: Some(DevicePair::opened(Placement::Linked)),
                offered: true,
                ..Message::between(end, end, bytes)
            };
            let times = rules.ranking(&message);
            let times = times
                .iter()
                .map(|protocol| rules.predict(protocol, &message).ns);
            let one_way_ns = times.fold(f64::INFINITY, f64::min);
            MessageCost {
                bytes: bytes as u64,
                one_way_ns,
                // The starting end is busy for less time than until the kernel's end is seen.
                busy_ns: (device.launch_ns / 2.0).min(one_way_ns / 2.0),
            }
        };
        let mut messages: Vec<MessageCost> = LOGS.map(message).into();
        rise(&mut messages);
        let line = |first: f64, ns_per_byte: f64| -> Vec<WorkCost> {
            [8u64, 16 << 20]
                .map(|bytes| WorkCost {
                    bytes,
                    ns: round(first + ns_per_byte * bytes as f64),
                })
                .into()
        };
        let [run, ..] = device.pack_ns_per_byte;
        DeviceCalls {
            device: "estimated".into(),
            emulated: false,
            classes: vec![ClassCosts {
                class: "machine".into(),
                messages,
                kept: Vec::new(),
                flags: None,
            }],
            copy: line(device.launch_ns, run),
            // A combination reads two vectors and writes one, a copy reads and writes one.
            combine: line(device.launch_ns, 1.5 * run),
            to_host: line(device.copy_ns, device.to_host_ns_per_byte),
            to_device: line(device.copy_ns, device.to_device_ns_per_byte),
        }
    }

    /// Costs of messages between two linked devices: as measured; of links without a measured
    /// pair, as over the bus but for the time per byte.
    fn over(&self, device_link: DeviceLink, link_ns_per_byte: f64) -> Curve {
        let class = device_link.to_string();
        if self.classes.iter().any(|known| known.class == class) {
            return super::calls::curve(&self.classes, &class, false);
        }
        let works = super::calls::line(&self.copy);
        let within = (works.at(16e6) - works.at(8.0)).max(0.0) / 16e6;
        let ns_per_byte = match device_link {
            DeviceLink::Same => within,
            // Not faster than a device's own memory.
            device_link => within.max(link_ns_per_byte / f64::from(device_link.links().max(1))),
        };
        let bus = super::calls::curve(&self.classes, "machine", false);
        let first = self
            .classes
            .first()
            .and_then(|class| class.messages.first());
        let first = first.map_or(8.0, |m| m.bytes as f64);
        let (start_ns, busy_ns) = {
            let link = bus.of(first);
            (link.one_way_ns(first), link.work_ns(first))
        };
        let points = LOGS.map(|log| {
            let bytes = f64::from(1u32 << log);
            let one_way_ns = start_ns + ns_per_byte * bytes;
            Point {
                bytes,
                one_way_ns,
                busy_ns: busy_ns.min(one_way_ns),
            }
        });
        Curve::measured(&points)
    }

    /// Kinds of work, and their names.
    pub(super) fn works(&self) -> [(&'static str, &[WorkCost]); 4] {
        [
            ("calls.devices.copy", &self.copy),
            ("calls.devices.combine", &self.combine),
            ("calls.devices.to_host", &self.to_host),
            ("calls.devices.to_device", &self.to_device),
        ]
    }
}

impl CallCosts {
    /// The planner's machine of these ranks where buffers lie on devices; `device_links`: their
    /// links besides the bus, by index in `ranks`; `host`: the same for buffers on the host.
    /// None if costs of devices are unknown.
    pub fn machine_of_devices(
        &self,
        ranks: &[u32],
        places: Option<&Places>,
        device_links: &RankLinks,
        host: &Machine,
    ) -> Option<Machine> {
        let devices = self.devices.as_ref()?;
        let (_, classes) = super::calls::paths(ranks, places);
        let curve = |(distance, class): (usize, &String)| {
            let curve = super::calls::curve(&devices.classes, class, false);
            match distance {
                0 => curve,
                // Devices of a part share its uplink: a switch's port, a socket's link.
                _ => curve.with_shared_way(),
            }
        };
        let kinds = device_links.device_links.kinds().into_iter();
        let curves = kinds.map(|device_link| {
            (
                device_link,
                devices.over(device_link, device_links.link_ns_per_byte),
            )
        });
        let joined = (!device_links.device_links.is_empty()).then(|| {
            Arc::new(Joined {
                device_links: device_links.device_links.clone(),
                links: curves.collect(),
            })
        });
        Some(Machine {
            joined,
            one_kernel: None,
            segment: None,
            places: host.places.clone(),
            links: classes.iter().enumerate().map(curve).collect(),
            kept: Vec::new(),
            combine: super::calls::line(&devices.combine),
            copy: super::calls::line(&devices.copy),
            // An RTS waits for its receive; that is part of its time.
            eager_bytes: 0.0,
            executor: Executor {
                row_bytes: -1.0,
                ..host.executor
            },
            shared_cores: host.shared_cores,
            error: host.error,
            aside: Some(Arc::new(Aside {
                host: host.clone(),
                to_host: super::calls::line(&devices.to_host),
                to_device: super::calls::line(&devices.to_device),
            })),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_collectives::{Association, Call, DeviceLinks, Operation, Sizes, choose};
    use osier_engine::protocol::device::DeviceCosts;

    fn table() -> CallCosts {
        let links = LinkCosts {
            device: Some(DeviceCosts::default()),
            ..LinkCosts::default()
        };
        CallCosts {
            devices: Some(DeviceCalls::estimated(&links)),
            ..CallCosts::estimated(&links)
        }
    }

    #[test]
    fn estimates_make_sense() {
        let table = table();
        assert_eq!(table.clone().checked(), Ok(table.clone()));
        let mut bad = table.clone();
        bad.devices.as_mut().expect("devices").to_host.clear();
        assert!(bad.checked().unwrap_err().contains("to_host"));
        let mut bad = table;
        let devices = bad.devices.as_mut().expect("devices");
        devices.classes[0].messages[1].one_way_ns = 0.0;
        assert!(bad.checked().is_err());
    }

    /// Links between devices have measured costs, or else those of the bus but for the time per
    /// byte.
    #[test]
    fn joined_devices_cost_what_their_links_do() {
        let ranks: Vec<u32> = (0..8).collect();
        let mut table = table();
        let host = table.machine(&ranks, None, 8192);
        let ns = |table: &CallCosts, links: &str| {
            let device_links = RankLinks {
                device_links: DeviceLinks::regular(links, 8, 8).expect("links"),
                link_ns_per_byte: 0.05,
                apart: false,
            };
            let machine = table.machine_of_devices(&ranks, None, &device_links, &host);
            let machine = machine.expect("known");
            let call = Call::new(Operation::Bcast, 8);
            let model = osier_collectives::Model::LogGp;
            let choice = choose(&call, &Sizes::Equal(64 << 20), &machine, model);
            choice.expect("a plan").ns()
        };
        let (pair, four, switch) = (
            ns(&table, "0-1:1"),
            ns(&table, "0-1:4"),
            ns(&table, "switch:18"),
        );
        assert!(
            4.0 * switch < pair && four <= pair,
            "{pair} {four} {switch}"
        );
        let devices = table.devices.as_mut().expect("devices");
        let mut slow = devices.classes[0].clone();
        slow.class = "NV18s".into();
        devices.classes.push(slow);
        let as_the_bus = ns(&table, "switch:18");
        assert!(as_the_bus > 2.0 * switch, "{as_the_bus} {switch}");
        // Measurements of links do not count for the bus.
        let devices = table.devices.as_mut().expect("devices");
        devices.classes[1].class = "NV2".into();
        assert!((ns(&table, "switch:18") - switch).abs() < 1e-6 * switch);
    }

    /// Short vectors go through the host, long ones stay on devices, by another plan
    /// than for host memory.
    #[test]
    fn plans_for_devices_are_chosen_by_their_costs() {
        let ranks: Vec<u32> = (0..8).collect();
        let table = table();
        let host = table.machine(&ranks, None, 8192);
        let devices = table
            .machine_of_devices(&ranks, None, &RankLinks::default(), &host)
            .expect("known");
        let call = Call::new(Operation::Allreduce, 8).requires(Association::Any);
        let best = |machine: &Machine, bytes| {
            let model = osier_collectives::Model::LogGp;
            choose(&call, &Sizes::Equal(bytes), machine, model).expect("a plan")
        };
        assert!(best(&devices, 64).through_host());
        let mut differ = false;
        for bytes in [1 << 20, 16 << 20] {
            let (there, here) = (best(&devices, bytes), best(&host, bytes));
            assert!(!there.through_host(), "{there}");
            let plan =
                |c: &osier_collectives::Choice| (c.plan().algorithm().clone(), c.plan().segments());
            differ |= plan(&there) != plan(&here);
        }
        assert!(differ);
    }
}
