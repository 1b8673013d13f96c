//! Collectives on the command line: operations and algorithms by name, machines as
//! shapes with costs per level.

use std::str::FromStr;

use osier_collectives::{
    Algorithm, Aside, Association, Call, Choice, Curve, DeviceLink, DeviceLinks, Executor,
    Hierarchy, Joined, Link, Machine, Model, Operation, Piecewise, Sizes, Topology, Tree, choose,
};
use osier_transports::sim::{SimLink, SimMachine};
use std::sync::Arc;

/// What a described machine's links cost, innermost first: within a package, across
/// packages, across nodes; nothing of it was measured here.
const DESCRIBED: [LinkSpec; 3] = [
    LinkSpec {
        latency_ns: 160.0,
        per_byte_ns: 0.08,
    },
    LinkSpec {
        latency_ns: 280.0,
        per_byte_ns: 0.1,
    },
    LinkSpec {
        latency_ns: 1900.0,
        per_byte_ns: 0.08,
    },
];

/// The same of messages from device to device, over the devices' own links of 25 GB/s, and
/// what a copy to the host or back costs there. What lies behind a part's switch, socket or
/// network card shares its way out.
const DEVICES: [LinkSpec; 3] = [
    LinkSpec {
        latency_ns: 8000.0,
        per_byte_ns: 0.04,
    },
    LinkSpec {
        latency_ns: 9000.0,
        per_byte_ns: 0.05,
    },
    LinkSpec {
        latency_ns: 11_000.0,
        per_byte_ns: 0.08,
    },
];
const CROSSING: LinkSpec = LinkSpec {
    latency_ns: 5000.0,
    per_byte_ns: 0.04,
};
/// A kernel's launch, and bytes of copies and sums within a device.
const KERNEL_NS: f64 = 6000.0;
const KERNEL_NS_PER_BYTE: f64 = 0.001;

/// The same of NVLinks between two devices, one link.
const NVLINK: LinkSpec = LinkSpec {
    latency_ns: 8000.0,
    per_byte_ns: 0.05,
};

/// A machine that is not here.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Described {
    /// A machine that is not here: nodes, packages, ... and ranks of each, as in 4x2x4; a
    /// benchmark plays a collective there over the simulated network, in virtual time
    #[arg(long, value_name = "SHAPE", value_parser = Topology::regular)]
    pub topology: Option<Topology>,

    /// Costs of its links, innermost first: LATENCY:PER_BYTE in ns
    #[arg(
        long,
        value_name = "LINKS",
        value_delimiter = ',',
        requires = "topology"
    )]
    pub links: Vec<LinkSpec>,
}

/// A machine with NVLinks between devices of each node: `0-1:4,2-3:4`, `switch:18`.
pub fn joined(topology: &Topology, nvlink: Option<&str>) -> Result<Topology, String> {
    let Some(text) = nvlink else {
        return Ok(topology.clone());
    };
    let first = topology.places().first().and_then(|place| place.first());
    let beside = |place: &&Vec<u32>| place.first() == first;
    let each = topology.places().iter().filter(beside).count() as u32;
    let device_links = DeviceLinks::regular(text, topology.size(), each);
    let device_links = device_links.map_err(|why| format!("--nvlink {why}"))?;
    Ok(topology.clone().with_device_links(device_links))
}

/// Where the buffers of a collective are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Space {
    /// In the host's memory
    #[default]
    Host,
    /// In devices' memory
    Device,
}

/// A link as the user writes it: `280:0.1`, ns and ns per byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    latency_ns: f64,
    per_byte_ns: f64,
}

impl FromStr for LinkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkSpec, String> {
        let number = |text: &str| {
            let number: Option<f64> = text.trim().parse().ok();
            number.filter(|n| n.is_finite() && *n >= 0.0)
        };
        text.split_once(':')
            .and_then(|(latency, per_byte)| {
                Some(LinkSpec {
                    latency_ns: number(latency)?,
                    per_byte_ns: number(per_byte)?,
                })
            })
            .ok_or_else(|| {
                "write LATENCY:PER_BYTE in ns, as in 280:0.1; innermost link first".into()
            })
    }
}

/// An operation by name: `bcast`, `reduce-scatter`, `neighbor-alltoall`.
pub fn operation(name: &str) -> Result<Operation, String> {
    let wanted = plain(name);
    let mut all = Operation::ALL.into_iter();
    all.find(|operation| plain(operation.name()) == wanted)
        .ok_or_else(|| {
            let names: Vec<&str> = Operation::ALL.iter().map(|o| o.name()).collect();
            format!("no collective of this name (hint: {})", names.join(", "))
        })
}

/// Lower case, without separators of words.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace([' ', '-', '_'], "")
}

/// An algorithm by its textbook name, `levels` for trees per level.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// A flat one.
    Flat(Algorithm),
    /// Binomial trees per level of the machine.
    Levels,
    /// Chains per level, with copies in the host's memory from the second level on.
    HostCopies,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(name: &str) -> Result<Wanted, String> {
        let wanted = plain(name).replace("tree", "");
        if wanted == "levels" {
            return Ok(Wanted::Levels);
        }
        if wanted == "hostcopies" {
            return Ok(Wanted::HostCopies);
        }
        if let Some(blocks) = blocks(&wanted) {
            return Ok(Wanted::Flat(blocks));
        }
        let found = Algorithm::FLAT
            .into_iter()
            .chain(Algorithm::IN_SEGMENT)
            .find(|algorithm| plain(&algorithm.to_string()).replace("tree", "") == wanted);
        found.map(Wanted::Flat).ok_or_else(|| {
            let all = Algorithm::FLAT.iter().chain(&Algorithm::IN_SEGMENT);
            let names: Vec<String> = all.map(ToString::to_string).collect();
            format!(
                "no algorithm of this name (hint: {}, levels, host copies)",
                names.join(", ")
            )
        })
    }
}

/// Blocks of other sizes than the smallest.
fn blocks(name: &str) -> Option<Algorithm> {
    let widths = name.strip_prefix("blocksof")?.split("in");
    let bit = |width: &str| {
        let width: Option<u32> = width.parse().ok();
        width.filter(|width| width.is_power_of_two())
    };
    let bits = widths
        .map(bit)
        .try_fold(0, |bits, width| Some(bits | width?))?;
    Some(Algorithm::Blocks(bits))
}

impl Wanted {
    /// The algorithm on a machine.
    pub fn on(&self, topology: &Topology, root: u32) -> Algorithm {
        match self {
            Wanted::Flat(flat) => flat.clone(),
            Wanted::Levels => {
                let trees = [Tree::Binomial];
                let levels = Hierarchy::new(topology.places(), root, &trees);
                Algorithm::Hierarchical(levels.into())
            }
            Wanted::HostCopies => {
                let levels = Hierarchy::new(topology.places(), root, &[Tree::Chain]);
                Algorithm::HostLeaders(levels.into(), 1)
            }
        }
    }
}

/// A machine with these places, and costs by distance: the ones given, innermost first,
/// the last for all that is farther; else described ones.
pub fn machine(topology: &Topology, links: &[LinkSpec]) -> Machine {
    let given = if links.is_empty() { &DESCRIBED } else { links };
    let distances = topology.levels().len() + 1;
    let link = |distance: usize| {
        let spec = given[distance.min(given.len() - 1)];
        Link {
            latency_ns: spec.latency_ns / 2.0,
            overhead_ns: spec.latency_ns / 4.0,
            gap_ns: spec.latency_ns / 4.0,
            per_byte_ns: spec.per_byte_ns,
            work_per_byte_ns: 0.0,
            shared_per_byte_ns: 0.0,
        }
    };
    Machine {
        places: topology.places().to_vec().into(),
        links: (0..distances).map(link).map(Curve::from).collect(),
        kept: Vec::new(),
        combine: 0.1.into(),
        copy: 0.05.into(),
        eager_bytes: 8192.0,
        executor: Executor::default(),
        shared_cores: None,
        error: 0.0,
        aside: None,
        joined: None,
        one_kernel: None,
        segment: None,
    }
}

/// A machine for the simulated network, and as the planner knows it: ranks compute in no
/// time, parts share their ways out.
pub fn emulated(topology: &Topology, links: &[LinkSpec]) -> (Machine, SimMachine) {
    let given = if links.is_empty() { &DESCRIBED } else { links };
    let distances = topology.levels().len() + 1;
    let spec = |distance: usize| given[distance.min(given.len() - 1)];
    let link = |distance: usize| {
        let LinkSpec {
            latency_ns,
            per_byte_ns,
        } = spec(distance);
        Link {
            latency_ns,
            gap_ns: latency_ns / 4.0,
            per_byte_ns,
            shared_per_byte_ns: if distance > 0 { per_byte_ns } else { 0.0 },
            ..Link::default()
        }
    };
    let known = Machine {
        links: (0..distances).map(link).map(Curve::from).collect(),
        combine: 0.0.into(),
        copy: 0.0.into(),
        ..machine(topology, links)
    };
    let simulated = |distance: usize| SimLink {
        latency_ns: spec(distance).latency_ns as u64,
        gap_ns: (spec(distance).latency_ns / 4.0) as u64,
        ns_per_byte: spec(distance).per_byte_ns,
    };
    let simulated = SimMachine {
        places: topology.places().to_vec(),
        links: (0..distances).map(simulated).collect(),
    };
    (known, simulated)
}

/// The same where buffers lie on devices, a device for each rank.
pub fn machine_of_devices(
    topology: &Topology,
    links: &[LinkSpec],
    device_links: &[LinkSpec],
) -> Machine {
    let given = if device_links.is_empty() {
        &DEVICES
    } else {
        device_links
    };
    let host = machine(topology, links);
    let distances = host.links.len();
    let link = |distance: usize| {
        let spec = given[distance.min(given.len() - 1)];
        Link {
            latency_ns: spec.latency_ns * 0.8,
            // Whoever begins a message is busy for longer than with one of the host's.
            overhead_ns: spec.latency_ns / 10.0,
            gap_ns: 0.0,
            per_byte_ns: spec.per_byte_ns,
            work_per_byte_ns: 0.0,
            shared_per_byte_ns: if distance > 0 { spec.per_byte_ns } else { 0.0 },
        }
    };
    let kernel =
        |ns_per_byte| Piecewise::through(&[(0.0, KERNEL_NS), (1e9, KERNEL_NS + 1e9 * ns_per_byte)]);
    let crossing = Piecewise::through(&[
        (0.0, CROSSING.latency_ns),
        (1e9, CROSSING.latency_ns + 1e9 * CROSSING.per_byte_ns),
    ]);
    let joined = topology.device_links().map(|device_links| {
        let over = |device_link: DeviceLink| {
            let per_byte_ns = match device_link {
                DeviceLink::Same => KERNEL_NS_PER_BYTE,
                device_link => NVLINK.per_byte_ns / f64::from(device_link.links()),
            };
            let spec = Link {
                latency_ns: NVLINK.latency_ns * 0.8,
                overhead_ns: NVLINK.latency_ns / 10.0,
                per_byte_ns,
                ..Link::default()
            };
            (device_link, Curve::from(spec))
        };
        Arc::new(Joined {
            device_links: device_links.clone(),
            links: device_links.kinds().into_iter().map(over).collect(),
        })
    });
    Machine {
        joined,
        links: (0..distances).map(link).map(Curve::from).collect(),
        combine: kernel(1.5 * KERNEL_NS_PER_BYTE),
        copy: kernel(KERNEL_NS_PER_BYTE),
        eager_bytes: 0.0,
        aside: Some(Arc::new(Aside {
            to_host: crossing.clone(),
            to_device: crossing,
            host: host.clone(),
        })),
        ..host
    }
}

/// What would be done for a call on a machine.
pub fn chosen(
    (operation, root): (Operation, u32),
    bytes: u64,
    topology: &Topology,
    machine: &Machine,
) -> Result<Choice, String> {
    let mut call = Call::new(operation, topology.size()).requires(Association::Balanced);
    if operation.rooted() {
        call = call.root(root);
    }
    choose(&call, &Sizes::Equal(bytes), machine, Model::LogGp).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_they_are_written() {
        for operation_ in Operation::ALL {
            assert_eq!(operation(operation_.name()), Ok(operation_));
        }
        assert_eq!(operation("reduce-scatter"), Ok(Operation::ReduceScatter));
        assert_eq!(
            operation("neighbor_alltoall"),
            Ok(Operation::NeighborAlltoall)
        );
        assert!(operation("sum").unwrap_err().contains("allreduce"));
        for flat in Algorithm::FLAT {
            assert_eq!(flat.to_string().parse(), Ok(Wanted::Flat(flat)));
        }
        assert_eq!("Binomial".parse(), Ok(Wanted::Flat(Algorithm::Binomial)));
        assert_eq!("levels".parse(), Ok(Wanted::Levels));
        let blocks = Wanted::Flat(Algorithm::Blocks(0b10_1000));
        assert_eq!("blocks of 8 in 32".parse(), Ok(blocks));
        assert!("blocks of 6".parse::<Wanted>().is_err());
        assert!("quick".parse::<Wanted>().unwrap_err().contains("ring"));
        assert!("12:".parse::<LinkSpec>().is_err() && "-1:2".parse::<LinkSpec>().is_err());
    }

    #[test]
    fn links_of_a_described_machine_change_the_choice() {
        let shape = Topology::regular("1x2x4").unwrap();
        let with = |nvlink| {
            let shape = joined(&shape, nvlink).unwrap();
            let machine = machine_of_devices(&shape, &[], &[]);
            chosen((Operation::Bcast, 0), 64 << 20, &shape, &machine).unwrap()
        };
        let (bus, switch) = (with(None), with(Some("switch:18")));
        assert!(8.0 * switch.ns() < bus.ns(), "{switch}{bus}");
        let pairs = with(Some("0-5:4,5-2:4,2-7:4,7-1:4,1-4:4,4-3:4,3-6:4"));
        assert!(2.0 * pairs.ns() < bus.ns(), "{pairs}{bus}");
        assert!(pairs.ranking[0].name().contains("links"), "{pairs}");
        assert!(
            joined(&shape, Some("0-8:1"))
                .unwrap_err()
                .contains("0 to 7")
        );
    }

    #[test]
    fn a_choice_on_a_described_machine() {
        let shape = Topology::regular("2x2x4").unwrap();
        let (host, devices) = (machine(&shape, &[]), machine_of_devices(&shape, &[], &[]));
        let found = chosen((Operation::Bcast, 3), 1 << 20, &shape, &host).unwrap();
        assert_eq!(found.plan().call().root, 3);
        assert!(found.runner_up().is_some() && found.ns() > 0.0);
        let there = chosen((Operation::Bcast, 3), 1 << 20, &shape, &devices).unwrap();
        assert!(there.ranking.iter().any(|c| c.through_host));
        assert!(there.ranking.iter().any(|c| !c.through_host));
    }
}
