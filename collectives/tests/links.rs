//! Devices that links of their own join: two, four and eight of them, in pairs, in a mesh and
//! on a switch. Which plans there are, that all are right, and what is chosen.

use osier_collectives::*;
use std::sync::Arc;

/// Bytes per ns of the bus, 25 GB/s, and of one link, as wide.
const BUS: f64 = 0.04;
const LINK: f64 = 0.04;

/// Eight devices in a hybrid cube, six links each.
const MESH: &str = "0-1:1,0-2:1,0-3:2,0-4:2,1-2:2,1-3:1,1-5:2,2-3:2,2-6:1,3-7:1,\
                    4-5:1,4-6:1,4-7:2,5-6:2,5-7:1,6-7:2";

fn link(latency_ns: f64, per_byte_ns: f64, shared: bool) -> Link {
    Link {
        latency_ns,
        overhead_ns: 300.0,
        gap_ns: 0.0,
        per_byte_ns,
        work_per_byte_ns: 0.0,
        shared_per_byte_ns: if shared { per_byte_ns } else { 0.0 },
    }
}

/// Devices behind switches or sockets; each node's are joined as `links` says.
fn machine(shape: &[u32], links: &str) -> Machine {
    let size: u32 = shape.iter().product();
    let each = if shape.len() > 2 {
        size / shape[0]
    } else {
        size
    };
    let level = |level: usize| link(5000.0 + 500.0 * level as f64, BUS, level > 0);
    let host = |level: usize| link(300.0 + 300.0 * level as f64, BUS, level > 1);
    let all = |of: &dyn Fn(usize) -> Link| (0..shape.len()).map(of).collect();
    let line = |first: f64, per_byte: f64| {
        Piecewise::through(&[(0.0, first), (1e9, first + 1e9 * per_byte)])
    };
    let joined = (!links.is_empty()).then(|| {
        let device_links = DeviceLinks::regular(links, size, each).expect("links");
        let curve = |j: DeviceLink| Curve::from(link(5000.0, LINK / f64::from(j.links()), false));
        let links = device_links
            .kinds()
            .into_iter()
            .map(|j| (j, curve(j)))
            .collect();
        Arc::new(Joined {
            device_links,
            links,
        })
    });
    Machine {
        combine: line(6000.0, 0.0015),
        copy: line(6000.0, 0.001),
        aside: Some(Arc::new(Aside {
            host: Machine {
                combine: 0.1.into(),
                copy: 0.05.into(),
                eager_bytes: 8192.0,
                ..Machine::regular(shape, all(&host), |rank| rank)
            },
            to_host: line(5000.0, BUS),
            to_device: line(5000.0, BUS),
        })),
        joined,
        ..Machine::regular(shape, all(&level), |rank| rank)
    }
}

const CASES: [(&[u32], &str); 7] = [
    (&[2], "0-1:4"),
    (&[1, 2], "switch:2"),
    (&[2, 2], "0-2:4,1-3:4"),
    (&[2, 2], "0-1:12"),
    (&[2, 4], MESH),
    (&[2, 2, 2], "0-1:4,2-3:4"),
    (&[2, 4], "switch:18,0-7:1"),
];

fn call(operation: Operation, size: u32) -> Call {
    Call::new(operation, size).requires(Association::Any)
}

fn best(machine: &Machine, operation: Operation, bytes: u64) -> Choice {
    let call = call(operation, machine.places.len() as u32);
    choose(&call, &Sizes::Equal(bytes), machine, Model::LogGp).expect("a plan")
}

/// Every plan that there is for joined devices is right, from every root, whole and in
/// segments, and what is chosen is the best of all of them.
#[test]
fn plans_along_links_are_right() {
    for (shape, links) in CASES {
        let machine = machine(shape, links);
        let size = machine.places.len() as u32;
        for operation in [
            Operation::Barrier,
            Operation::Bcast,
            Operation::Reduce,
            Operation::Allreduce,
            Operation::Allgather,
            Operation::ReduceScatter,
        ] {
            let mut along = 0;
            for root in [0, size - 1] {
                let mut call = call(operation, size);
                match operation.rooted() {
                    true => call = call.root(root),
                    false if root > 0 => continue,
                    false => {}
                }
                let (all, _) = candidates(&call, &machine, 1 << 20);
                for algorithm in all {
                    along += usize::from(algorithm.to_string().contains("links"));
                    // Whole from one root, in segments from the other.
                    let segments = if root == 0 { 3 } else { 1 };
                    let plan = Plan::new(call.clone(), algorithm.clone(), segments);
                    check(&plan.expect("suitable"))
                        .unwrap_or_else(|fault| panic!("{algorithm}: {fault}"));
                }
            }
            let trees = !matches!(operation, Operation::Allgather | Operation::ReduceScatter);
            let alike = machine
                .joined
                .as_ref()
                .expect("joined")
                .device_links
                .are_alike();
            assert!(
                (along > 0) != alike || !trees,
                "{shape:?} {links}: {}",
                operation.name()
            );
            let choice = best(&machine, operation, 1 << 20);
            let first = choice.ns();
            assert!(choice.ranking.iter().all(|c| c.ns >= first), "{choice}");
        }
    }
}

/// What is chosen by costs of links takes no longer than what would be chosen by those of
/// the bus alone, and much less where links are wide.
#[test]
fn links_are_chosen_where_they_gain() {
    let bytes = 16 << 20;
    for (shape, links) in CASES {
        let (with, without) = (machine(shape, links), machine(shape, ""));
        for operation in [Operation::Bcast, Operation::Allreduce] {
            let (new, old) = (
                best(&with, operation, bytes),
                best(&without, operation, bytes),
            );
            let old_here = simulate(old.plan(), &Sizes::Equal(bytes), &with, Model::LogGp);
            let old_here = old_here.expect("a plan that ends").last_ns;
            assert!(new.ns() <= 1.001 * old_here, "{links}: {new}\n{old_here}");
        }
    }
    // All on a switch: as if there were no bus.
    let bytes = 64 << 20;
    let switch = best(&machine(&[2, 4], "switch:18"), Operation::Bcast, bytes);
    let whole = bytes as f64 * LINK / 18.0;
    assert!(
        switch.ns() < 2.0 * whole && !switch.through_host(),
        "{switch}"
    );
    let bus = best(&machine(&[2, 4], ""), Operation::Bcast, bytes);
    assert!(bus.ns() > bytes as f64 * BUS);
}

/// A chain by rank goes over the bus where one of links could be had.
#[test]
fn chains_follow_links() {
    let machine = machine(&[2, 2], "0-2:4,1-2:4,1-3:4");
    let call = call(Operation::Bcast, 4);
    let (all, _) = candidates(&call, &machine, 64 << 20);
    let wanted = "chain in the order of links";
    let along = all.iter().find(|a| a.to_string() == wanted);
    let along = along.expect("a chain").clone();
    let by_bus = |plan: &Plan| {
        let device_links = &machine.joined.as_ref().expect("joined").device_links;
        let all = messages(plan).into_iter();
        all.filter(|(a, b)| device_links.between(*a, *b).is_none())
            .count()
    };
    let time = |plan: &Plan| {
        let time = simulate(plan, &Sizes::Equal(64 << 20), &machine, Model::LogGp);
        time.expect("a plan that ends").last_ns
    };
    let plan = |algorithm| Plan::new(call.clone(), algorithm, 64).expect("suitable");
    let (along, by_rank) = (plan(along), plan(Algorithm::Chain));
    assert_eq!(messages(&along), [(0, 2), (1, 3), (2, 1)]);
    assert_eq!((by_bus(&along), by_bus(&by_rank)), (0, 2));
    let ratio = time(&by_rank) / time(&along);
    assert!((3.0..4.1).contains(&ratio), "{ratio}");
}

/// On a mesh a long sum goes around a ring of links: nothing goes over the bus.
#[test]
fn rings_follow_links() {
    let machine = machine(&[2, 4], MESH);
    let choice = best(&machine, Operation::Allreduce, 256 << 20);
    let device_links = &machine.joined.as_ref().expect("joined").device_links;
    for (from, to) in messages(choice.plan()) {
        assert!(device_links.between(from, to).is_some(), "{choice}");
    }
}

/// Messages of one pair's links do not wait for those of another's, and those into a switch do.
#[test]
fn links_have_ports_of_their_own() {
    let bytes = 64 << 20;
    let time = |links: &str| {
        let machine = machine(&[4], links);
        let plan = Plan::new(call(Operation::Bcast, 4), Algorithm::Linear, 1);
        let plan = plan.expect("suitable");
        let time = simulate(&plan, &Sizes::Equal(bytes), &machine, Model::LogGp);
        time.expect("a plan that ends").last_ns / (bytes as f64 * LINK)
    };
    let (pairs, switch) = (time("0-1:1,0-2:1,0-3:1"), time("switch:1"));
    assert!((1.0..1.1).contains(&pairs), "{pairs}");
    assert!((3.0..3.1).contains(&switch), "{switch}");
    assert!((3.0..3.1).contains(&time("")));
}
