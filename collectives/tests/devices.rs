//! Memory of devices: copies that leaders keep on the host, chains through PCIe switches,
//! and what is chosen by costs of either space.

use osier_collectives::*;
use std::sync::Arc;

/// Bytes per ns of one link of a device, 25 GB/s; the network card is as wide.
const PER_BYTE: f64 = 0.04;

/// Devices behind switches behind sockets of nodes; `order`: which rank has which.
fn machine(shape: [u32; 4], order: impl Fn(u32) -> u32) -> Machine {
    let level = |latency_ns: f64, shared| Link {
        latency_ns,
        // Whoever begins a message of a device launches something.
        overhead_ns: if latency_ns < 4000.0 { 300.0 } else { 2000.0 },
        gap_ns: 0.0,
        per_byte_ns: PER_BYTE,
        work_per_byte_ns: 0.0,
        shared_per_byte_ns: if shared { PER_BYTE } else { 0.0 },
    };
    // The host's memory lies beside the socket: a switch is none of its ways.
    let host = vec![
        level(300.0, false),
        level(300.0, false),
        level(500.0, true),
        level(2000.0, true),
    ];
    let device = vec![
        level(5000.0, false),
        level(5500.0, true),
        level(6000.0, true),
        level(8000.0, true),
    ];
    let mut host = Machine::regular(&shape, host, &order);
    host.combine = 0.1.into();
    host.copy = 0.05.into();
    host.eager_bytes = 8192.0;
    let line = |first: f64, per_byte: f64| {
        Piecewise::through(&[(0.0, first), (1e9, first + 1e9 * per_byte)])
    };
    Machine {
        combine: line(6000.0, 0.0015),
        copy: line(6000.0, 0.001),
        eager_bytes: 0.0,
        aside: Some(Arc::new(Aside {
            host,
            to_host: line(5000.0, PER_BYTE),
            to_device: line(5000.0, PER_BYTE),
        })),
        ..Machine::regular(&shape, device, &order)
    }
}

const MANY: u64 = 64 << 20;

fn played(machine: &Machine, operation: Operation, algorithm: Algorithm, segments: u32) -> f64 {
    let size = machine.places.len() as u32;
    let call = Call::new(operation, size).requires(Association::Any);
    let plan = Plan::new(call, algorithm, segments).expect("suitable");
    check(&plan).expect("a right plan");
    let time = simulate(&plan, &Sizes::Equal(MANY), machine, Model::LogGp);
    time.expect("a plan that ends").last_ns
}

/// A leader that feeds the next node, the next socket and the next device gives each a third
/// of its device's link; with a copy on the host a half: the root's own copy there and the
/// next device share it.
#[test]
fn copies_on_the_host_relieve_the_devices_link() {
    let machine = machine([2, 2, 1, 4], |rank| rank);
    let levels = Hierarchy::new(&machine.places, 0, &[Tree::Chain]);
    assert_eq!(levels.levels(), 3);
    let levels = Arc::new(levels);
    let plain = Algorithm::Hierarchical(levels.clone());
    let copies = Algorithm::HostLeaders(levels, 1);
    let time = |algorithm: &Algorithm| played(&machine, Operation::Bcast, algorithm.clone(), 128);
    let whole = MANY as f64 * PER_BYTE;
    let (without, with) = (time(&plain) / whole, time(&copies) / whole);
    assert!((2.9..3.3).contains(&without), "{without}");
    assert!((1.9..2.3).contains(&with), "{with}");
}

/// The network card is as near to the device as the host: a copy there gains nothing.
#[test]
fn copies_on_the_host_are_no_gain_where_they_cross_the_same_link() {
    let mut machine = machine([4, 1, 1, 1], |rank| rank);
    let aside = machine.aside.as_mut().map(Arc::make_mut);
    let aside = aside.expect("memory of the host");
    aside.to_host = (4.0 * PER_BYTE).into();
    aside.to_device = (4.0 * PER_BYTE).into();
    let call = Call::new(Operation::Bcast, 4).requires(Association::Any);
    let choice = choose(&call, &Sizes::Equal(MANY), &machine, Model::LogGp).expect("a plan");
    let chosen = choice.plan().algorithm();
    assert!(!matches!(chosen, Algorithm::HostLeaders(..)), "{choice}");
    assert!(!choice.through_host(), "{choice}");
}

/// Devices 0 and 2 behind one switch, 1 and 3 behind the other: by rank the chain crosses
/// three times, twice in one direction, and has half the bandwidth.
#[test]
fn chains_go_through_one_switch_after_the_other() {
    let machine = machine([1, 1, 2, 2], |rank| rank % 2 * 2 + rank / 2);
    let in_order = Hierarchy::merged(&machine.places, 1, 0, &[Tree::Chain]);
    assert_eq!(**in_order.group(0, 0).expect("a group"), [0, 2, 1, 3]);
    let by_rank = played(&machine, Operation::Bcast, Algorithm::Chain, 128);
    let by_switch = Algorithm::Hierarchical(Arc::new(in_order));
    let by_switch = played(&machine, Operation::Bcast, by_switch, 128);
    let ratio = by_rank / by_switch;
    assert!((1.8..2.2).contains(&ratio), "{ratio}");
    let crossings = |order: &[u32]| {
        let pairs = order.windows(2);
        pairs.filter(|w| machine.distance(w[0], w[1]) > 0).count()
    };
    assert_eq!((crossings(&[0, 1, 2, 3]), crossings(&[0, 2, 1, 3])), (3, 1));
}

/// What is short goes through the host, what is long stays; of some size copies of leaders
/// are the best there is, and plans of the two spaces differ.
#[test]
fn spaces_have_plans_of_their_own() {
    let machine = machine([4, 2, 2, 2], |rank| (rank * 13 + 5) % 32);
    let host = &machine.aside.as_ref().expect("a host").host;
    let call = Call::new(Operation::Bcast, 32).requires(Association::Any);
    let best = |machine: &Machine, bytes| {
        choose(&call, &Sizes::Equal(bytes), machine, Model::LogGp).expect("a plan")
    };
    assert!(best(&machine, 8).through_host());
    let (mut leaders, mut differ) = (false, false);
    for bytes in [1 << 20, 4 << 20] {
        let (there, here) = (best(&machine, bytes), best(host, bytes));
        let plan = |c: &Choice| (c.plan().algorithm().clone(), c.plan().segments());
        differ |= plan(&there) != plan(&here);
        leaders |= matches!(there.plan().algorithm(), Algorithm::HostLeaders(..));
    }
    assert!(!best(&machine, 4 << 20).through_host());
    assert!(differ && leaders, "differ {differ}, leaders {leaders}");
}

/// Each rank computes on its device beside its processor: combinations overlap messages.
#[test]
fn kernels_overlap_messages() {
    let mut machine = machine([1, 1, 1, 2], |rank| rank);
    let time = |machine: &Machine| played(machine, Operation::Allreduce, Algorithm::Chain, 16);
    let before = time(&machine);
    machine.combine = Piecewise::through(&[(0.0, 6000.0), (1e9, 6000.0 + 1e9 * PER_BYTE / 2.0)]);
    // Half as long as a message: behind one of another segment it is not seen.
    assert!(time(&machine) < 1.1 * before);
}
