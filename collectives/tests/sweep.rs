//! Every algorithm passes the checker for every number of ranks up to 256.
//!
//! Those that talk to every rank have P^2 steps; the ordinary test takes them for
//! every P up to 64 and some above, `every_number_of_ranks_for_all` (ignored, a
//! minute) for the rest.

use osier_collectives::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const LARGEST: u32 = 256;
const DENSE: u32 = 64;

/// Numbers that look random and repeat.
fn mix(seed: u32, salt: u32) -> u32 {
    let x = (u64::from(seed) << 32 | u64::from(salt)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 27) as u32
}

fn checked(call: &Call, algorithm: &Algorithm, segments: u32) -> u64 {
    let plan = Plan::new(call.clone(), algorithm.clone(), segments).expect("suitable");
    match check(&plan) {
        Ok(report) => report.instances,
        Err(fault) => {
            let call = Call {
                neighbors: None,
                ..call.clone()
            };
            panic!("{algorithm} for {call:?}, {segments} segments: {fault}")
        }
    }
}

/// Runs `f` for all numbers of ranks, on two threads.
fn for_all_sizes(f: impl Fn(u32) -> u64 + Sync) {
    let next = AtomicU32::new(LARGEST);
    let work = || {
        let mut instances = 0;
        loop {
            let size = next.fetch_sub(1, Ordering::Relaxed);
            if size == 0 || size > LARGEST {
                return instances;
            }
            instances += f(size);
        }
    };
    let instances: u64 = std::thread::scope(|s| {
        let threads = [s.spawn(work), s.spawn(work)];
        threads.map(|t| t.join().expect("no fault")).iter().sum()
    });
    eprintln!("{instances} steps executed");
}

/// Sizes above `DENSE` at which algorithms with P^2 steps are tried, too.
fn sampled(size: u32) -> bool {
    matches!(size, 65 | 97 | 127 | 128 | 255 | 256)
}

/// Does every rank talk to every other?
fn talks_to_all(operation: Operation, algorithm: &Algorithm) -> bool {
    match algorithm {
        Algorithm::Ring | Algorithm::Pairwise | Algorithm::Spread | Algorithm::OneKernel => true,
        Algorithm::ScatterAllgather => true,
        // Few steps, but P / 2 pieces in each.
        Algorithm::Bruck => operation == Operation::Alltoall,
        _ => false,
    }
}

#[test]
fn flat_algorithms_for_every_number_of_ranks() {
    flat(|size, dense| !dense || size <= DENSE || sampled(size));
}

#[test]
#[ignore = "takes a minute: cargo test -p osier-collectives --test sweep -- --ignored"]
fn every_number_of_ranks_for_all() {
    flat(|size, dense| dense && size > DENSE && !sampled(size));
}

fn flat(wanted: impl Fn(u32, bool) -> bool + Sync) {
    for_all_sizes(|size| {
        let mut instances = 0;
        for (at, operation) in Operation::ALL.into_iter().enumerate() {
            let others = [
                Algorithm::Postal(2),
                Algorithm::Postal(5),
                Algorithm::OneKernel,
            ];
            for (salt, algorithm) in Algorithm::FLAT.iter().chain(&others).enumerate() {
                let dice = mix(size, (at * 100 + salt) as u32);
                let mut call = Call::new(operation, size).requires(Association::Any);
                if operation.rooted() {
                    call = call.root(dice % size);
                }
                call.in_place = dice >> 16 & 1 == 1 && operation.has_in_place();
                call.varying = dice >> 17 & 1 == 1;
                if algorithm.keeps(&call).is_none() {
                    call.varying = false;
                }
                if operation.of_neighbors() {
                    call = call.on(Arc::new(ring_of_neighbors(size, dice)));
                }
                let wanted = wanted(size, talks_to_all(operation, algorithm));
                if wanted && algorithm.keeps(&call).is_some() {
                    instances += checked(&call, algorithm, 1);
                }
            }
        }
        instances
    });
}

/// Plans in a segment, for every number of ranks that a host may have cores for, and roots.
#[test]
fn plans_in_a_segment() {
    for_all_sizes(|size| {
        if size < 2 || size > 17 && !matches!(size, 24 | 31 | 48) {
            return 0;
        }
        let mut instances = 0;
        for call in calls_in_segment(size) {
            for algorithm in Algorithm::IN_SEGMENT {
                if algorithm.keeps(&call).is_some() {
                    instances += checked(&call, &algorithm, 1);
                }
            }
        }
        instances
    });
}

fn calls_in_segment(size: u32) -> impl Iterator<Item = Call> {
    Operation::ALL.into_iter().flat_map(move |operation| {
        let roots = if operation.rooted() { size } else { 1 };
        (0..roots)
            .step_by(1 + size as usize / 5)
            .flat_map(move |root| {
                let mut call = Call::new(operation, size).root(root);
                if operation.of_neighbors() {
                    let graph = ring_of_neighbors(size, mix(size, operation as u32));
                    call = call.on(Arc::new(graph));
                }
                let in_place = operation.has_in_place().then(|| call.clone().in_place());
                let all = std::iter::once(call).chain(in_place);
                // Contributions that differ have plans with cells.
                all.flat_map(|call| [call.clone().varying(), call])
            })
    })
}

/// Each flag of a plan in a segment is needed.
#[test]
fn a_missing_flag_or_read_is_found() {
    let mut found = 0;
    for size in 2..=5 {
        for call in calls_in_segment(size) {
            for algorithm in Algorithm::IN_SEGMENT {
                let Ok(plan) = Plan::new(call.clone(), algorithm.clone(), 1) else {
                    continue;
                };
                let parts: Vec<Part> = (0..size).map(|r| plan.part(r)).collect();
                for (rank, part) in parts.iter().enumerate() {
                    for step in 0..part.steps().len() as u32 {
                        let mut broken = parts.clone();
                        broken[rank] = part.without_step(step);
                        let at = part.steps()[step as usize];
                        let fault = check_parts(&call, plan.association(), &broken);
                        assert!(
                            fault.is_err(),
                            "{algorithm} for {call:?} needs no {at:?} of rank {rank}"
                        );
                        // Both ends of a flag.
                        let Step::Raise { to, tag } = at else {
                            continue;
                        };
                        let end = |s: &Step| {
                            *s == Step::Await {
                                from: rank as u32,
                                tag,
                            }
                        };
                        let other = &parts[to as usize];
                        let end = other.steps().iter().position(end).expect("another end");
                        broken[to as usize] = other.without_step(end as u32);
                        let fault = check_parts(&call, plan.association(), &broken);
                        found += u32::from(fault.is_err());
                    }
                }
            }
        }
    }
    assert!(found > 500, "{found}");
}

/// Each rank has a few neighbors, itself and others more than once among them.
fn ring_of_neighbors(size: u32, dice: u32) -> Neighbors {
    let mut neighbors = Neighbors {
        sources: vec![Vec::new(); size as usize],
        destinations: vec![Vec::new(); size as usize],
        ..Neighbors::default()
    };
    for rank in 0..size {
        for k in 0..mix(rank, dice) % 5 {
            let to = (rank + mix(dice, rank * 8 + k) % 4) % size;
            neighbors.destinations[rank as usize].push(to);
            neighbors.sources[to as usize].push(rank);
        }
    }
    neighbors
}

#[test]
fn between_groups_of_every_size() {
    for_all_sizes(|size| {
        let mut instances = 0;
        if size < 2 {
            return 0;
        }
        for operation in Operation::ALL {
            let dice = mix(size, operation as u32);
            let mut call = Call::new(operation, size).between(1 + dice % (size - 1));
            if operation.rooted() {
                call = call.root((dice >> 8) % size);
            }
            let wanted = operation != Operation::Alltoall || size <= DENSE || sampled(size);
            if wanted && Algorithm::Between.keeps(&call).is_some() {
                instances += checked(&call, &Algorithm::Between, 1 + dice % 2);
            }
        }
        instances
    });
}

#[test]
fn levels_for_every_number_of_ranks() {
    for_all_sizes(|size| {
        let mut instances = 0;
        for (at, operation) in Operation::ALL.into_iter().enumerate() {
            let dice = mix(size, 7 + at as u32);
            let root = if operation.rooted() { dice % size } else { 0 };
            let places: Vec<Vec<u32>> = (0..size)
                .map(|r| {
                    let place = if dice & 1 == 0 { r } else { mix(r, dice) };
                    vec![place / 16 % 5, place / 4 % 3, place / 2 % 2]
                })
                .collect();
            let shapes = [
                Tree::Chain,
                Tree::Linear,
                Tree::KAry(3),
                Tree::Binomial,
                Tree::Postal(3),
            ];
            let trees: Vec<Tree> = (0..4)
                .map(|l| shapes[mix(dice, l) as usize % shapes.len()])
                .collect();
            let across = [Across::Tree, Across::Exchange][dice as usize >> 4 & 1];
            let levels = Hierarchy::new(&places, root, &trees).with_across(across);
            let algorithm = Algorithm::Hierarchical(Arc::new(levels));
            let call = Call::new(operation, size).root(root);
            let call = call.requires(Association::Any);
            if algorithm.keeps(&call).is_some() {
                instances += checked(&call, &algorithm, 1 + dice % 3);
            }
        }
        instances
    });
}
