//! Plans made from costs between pairs of ranks.

use osier_collectives::*;
use proptest::prelude::*;
use std::sync::Arc;

fn checked(call: Call, adapted: &Adapted, segments: u32) -> Plan {
    let algorithm = Algorithm::Adapted(Arc::new(adapted.clone()));
    let plan = Plan::new(call, algorithm, segments).expect("suitable");
    if let Err(fault) = check(&plan) {
        panic!("{} for {:?}: {fault}", plan.algorithm(), plan.call());
    }
    plan
}

/// Nodes of two packages; rank r at `place(r)`.
fn matrix(size: u32, place: impl Fn(u32) -> (u32, u32)) -> Matrix {
    Matrix::of(size, |i, j| {
        let (a, b) = (place(i), place(j));
        let (overhead, latency) = match () {
            () if i == j => (50.0, 0.0),
            () if a == b => (100.0, 200.0),
            () if a.0 == b.0 => (100.0, 400.0),
            () => (500.0, 20_000.0),
        };
        (overhead, latency, 0.1)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_costs(
        size in 1u32..48,
        seed: u64,
        root: u32,
        sparseness in 0.05f64..0.9,
        bytes in 0u64..100_000,
    ) {
        let noise = |i: u32, j: u32| {
            let x = (seed ^ (u64::from(i) << 32) ^ u64::from(j)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((x >> 40) % 1000) as f64
        };
        let matrix = Matrix::of(size, |i, j| (10.0 + noise(i, j), noise(j, i) * 10.0, 0.1));
        let root = root % size;
        let tree = earliest_completion(&matrix, root, bytes);
        let fitted = adapted_tree(&matrix, root, bytes, &[sparseness, 0.35]);
        for operation in [Operation::Bcast, Operation::Reduce] {
            let call = Call::new(operation, size).root(root).requires(Association::Any);
            checked(call.clone(), &tree, 3);
            checked(call, &fitted, 2);
        }
        checked(Call::new(Operation::Allreduce, size).requires(Association::Any), &fitted, 2);
        let barrier = adapted_barrier(&matrix, &[sparseness, 0.35]).expect("a barrier");
        checked(Call::new(Operation::Barrier, size), &barrier, 1);
    }
}

#[test]
fn barriers_adapt_to_nodes_for_every_number_of_ranks() {
    for size in 1..=256 {
        let matrix = matrix(size, |r| (r % 8, r / 8 % 2));
        let barrier = adapted_barrier(&matrix, &SPARSENESS).expect("a barrier");
        checked(Call::new(Operation::Barrier, size), &barrier, 1);
        for operation in [Operation::Bcast, Operation::Reduce, Operation::Allreduce] {
            let call = Call::new(operation, size).requires(Association::Any);
            let tree = adapted_tree(&matrix, 0, 64, &SPARSENESS);
            checked(call, &tree, 1);
        }
        // Only pivots cross between nodes: up and down a tree, or in rounds.
        let mut crossing = 0;
        for (rank, signals) in signals(&barrier).iter().enumerate() {
            let away = |s: &&Signal| s.raised && s.peer % 8 != rank as u32 % 8;
            crossing += signals.iter().filter(away).count();
            assert!(rank < 8 || signals.iter().find(away).is_none(), "{size}");
        }
        assert!(crossing <= 24, "{size} ranks: {crossing} signals cross");
    }
}

const SPARSENESS: [f64; 4] = [0.11, 0.2, 0.35, 0.4];

fn signals(barrier: &Adapted) -> &[Vec<Signal>] {
    match &barrier.shape {
        Shape::Stages(ranks) => ranks,
        Shape::Tree(_) => panic!("{} is no barrier", barrier.name),
    }
}

/// What 0.35 sees as one node has two packages at 0.11, far enough apart to matter.
#[test]
fn the_sparseness_is_what_pays() {
    let place = |r: u32| (r / 16, r / 8 % 2);
    let matrix = Matrix::of(64, |i, j| match (place(i), place(j)) {
        _ if i == j => (10.0, 0.0, 0.0),
        (a, b) if a == b => (20.0, 30.0, 0.1),
        (a, b) if a.0 == b.0 => (100.0, 500.0, 0.1),
        _ => (500.0, 2500.0, 0.1),
    });
    let barrier = |sparseness: &[f64]| {
        let barrier = adapted_barrier(&matrix, sparseness).expect("a barrier");
        checked(Call::new(Operation::Barrier, 64), &barrier, 1);
        let between = |rank: u32, s: &Signal| s.raised && place(rank) != place(s.peer);
        let ranks = (0..).zip(signals(&barrier));
        let found = ranks.map(|(rank, all)| all.iter().filter(|s| between(rank, s)).count());
        (found.sum::<usize>(), barrier.name)
    };
    let (coarse, _) = barrier(&[0.4]);
    let (fine, name) = barrier(&SPARSENESS);
    assert!(fine <= coarse, "{name}: {fine} between packages, {coarse}");
    assert!(name.contains("at 0."), "{name}");
}

/// Ways that differ by direction: they are named, and a reduction goes against the edges of
/// the tree that suits the ways back.
#[test]
fn costs_by_direction() {
    // A ring in which messages go one way round.
    let ring = Matrix::of(8, |i, j| {
        let hops = f64::from((j + 8 - i) % 8);
        (10.0, 100.0 * hops, 0.0)
    });
    let back = ring.transposed();
    assert_eq!(back.latency_ns(1, 0), ring.latency_ns(0, 1));
    assert_eq!(back.transposed(), ring);
    assert!(!ring.asymmetric(0.2).is_empty());
    let there = adapted_tree(&ring, 0, 8, &SPARSENESS);
    assert!(there.name.contains("unlike both ways"), "{}", there.name);
    let home = adapted_tree(&back, 0, 8, &SPARSENESS);
    let earliest = earliest_completion(&back, 0, 8);
    for tree in [&home, &earliest] {
        let call = Call::new(Operation::Reduce, 8).requires(Association::Any);
        checked(call, tree, 2);
    }
    assert_ne!(earliest.shape, earliest_completion(&ring, 0, 8).shape);
    let even = matrix(16, |r| (r / 4, 0));
    assert!(
        !adapted_tree(&even, 0, 8, &SPARSENESS)
            .name
            .contains("unlike")
    );
}

/// What a cluster below the top that disseminates needs: the same way back lets all go on.
#[test]
fn stages_go_back() {
    for size in 2..=256 {
        let stages = Stages::dissemination(size);
        assert_eq!(stages.back().back(), stages);
        assert_eq!(stages.back().check(), Ok(()), "{size} ranks");
        let nothing = Stages::of(size, vec![Vec::new()]);
        assert_eq!(nothing.then(stages.clone()).without_empty(), stages);
    }
}

/// A tree for a broadcast enters each node once, whatever the root, and within nodes is as
/// deep as messages there are long.
#[test]
fn trees_adapt_to_nodes() {
    let matrix = matrix(64, |r| (r % 8, r / 8 % 2));
    for root in [0, 13, 63] {
        for bytes in [8, 1 << 20] {
            let tree = adapted_tree(&matrix, root, bytes, &SPARSENESS);
            let Shape::Tree(families) = &tree.shape else {
                panic!("{} is no tree", tree.name);
            };
            let families = families.iter().enumerate();
            let edges = families.flat_map(|(rank, f)| f.children.iter().map(move |c| (rank, *c)));
            let crossing = edges.filter(|(a, b)| *a as u32 % 8 != b % 8).count();
            assert_eq!(crossing, 7, "root {root}, {bytes} bytes");
        }
    }
}

#[test]
fn without_a_step_it_is_no_barrier() {
    let matrix = matrix(20, |r| (r / 6, r / 3 % 2));
    let barrier = adapted_barrier(&matrix, &SPARSENESS).expect("a barrier");
    let plan = checked(Call::new(Operation::Barrier, 20), &barrier, 1);
    let whole: Vec<Part> = (0..20).map(|r| plan.part(r)).collect();
    for rank in 0..20 {
        for step in 0..whole[rank].steps().len() as u32 {
            let mut parts = whole.clone();
            parts[rank] = whole[rank].without_step(step);
            assert!(check_parts(plan.call(), Association::Balanced, &parts).is_err());
        }
    }
}

/// On nodes far apart, the adapted barrier is predicted to beat each generic one.
#[test]
fn an_adapted_barrier_beats_generic_ones() {
    let place = |r: u32| (r % 8, r / 8 % 2);
    let link = |latency_ns, overhead_ns| Link {
        latency_ns,
        overhead_ns,
        gap_ns: 50.0,
        per_byte_ns: 0.1,
        work_per_byte_ns: 0.0,
        shared_per_byte_ns: 0.0,
    };
    let mut machine = Machine::flat(60, link(200.0, 100.0));
    machine
        .links
        .extend([link(400.0, 100.0).into(), link(20_000.0, 500.0).into()]);
    machine.places = (0..60).map(|r| vec![place(r).0, place(r).1]).collect();
    let adapted = adapted_barrier(&Matrix::of_machine(&machine, 60, 0), &SPARSENESS);
    let adapted = Arc::new(adapted.expect("a barrier"));
    let time = |algorithm: Algorithm| {
        let plan = Plan::new(Call::new(Operation::Barrier, 60), algorithm, 1).expect("suitable");
        let time = simulate(&plan, &Sizes::Equal(0), &machine, Model::LogGp);
        time.expect("a plan that ends").last_ns
    };
    let fitted = time(Algorithm::Adapted(adapted));
    for algorithm in [
        Algorithm::Linear,
        Algorithm::Dissemination,
        Algorithm::Binomial,
    ] {
        let name = algorithm.to_string();
        let generic = time(algorithm);
        assert!(fitted < generic, "{fitted} ns, {name} {generic} ns");
    }
}
