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
        let fitted = adapted_tree(&matrix, root, bytes, sparseness);
        for operation in [Operation::Bcast, Operation::Reduce] {
            let call = Call::new(operation, size).root(root).requires(Association::Any);
            checked(call.clone(), &tree, 3);
            checked(call, &fitted, 2);
        }
        let barrier = adapted_barrier(&matrix, sparseness);
        checked(Call::new(Operation::Barrier, size), &barrier, 1);
        checked(Call::new(Operation::Allreduce, size).requires(Association::Any), &barrier, 2);
    }
}

#[test]
fn barriers_adapt_to_nodes_for_every_number_of_ranks() {
    for size in 1..=256 {
        let barrier = adapted_barrier(&matrix(size, |r| (r % 8, r / 8 % 2)), 0.35);
        checked(Call::new(Operation::Barrier, size), &barrier, 1);
        // Only pivots cross between nodes.
        let crossing = barrier
            .families
            .iter()
            .enumerate()
            .flat_map(|(rank, f)| f.children.iter().map(move |c| (rank as u32, *c)))
            .filter(|(a, b)| a % 8 != b % 8)
            .count();
        assert!(
            crossing < 8,
            "{size} ranks: {crossing} edges of trees cross"
        );
    }
}

/// A tree for a broadcast enters each node once, whatever the root, and within nodes is as
/// deep as messages there are long.
#[test]
fn trees_adapt_to_nodes() {
    let matrix = matrix(64, |r| (r % 8, r / 8 % 2));
    for root in [0, 13, 63] {
        for bytes in [8, 1 << 20] {
            let tree = adapted_tree(&matrix, root, bytes, 0.35);
            let families = tree.families.iter().enumerate();
            let edges = families.flat_map(|(rank, f)| f.children.iter().map(move |c| (rank, *c)));
            let crossing = edges.filter(|(a, b)| *a as u32 % 8 != b % 8).count();
            assert_eq!(crossing, 7, "root {root}, {bytes} bytes");
        }
    }
}

#[test]
fn without_a_step_it_is_no_barrier() {
    let barrier = adapted_barrier(&matrix(20, |r| (r / 6, r / 3 % 2)), 0.35);
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
    let adapted = Arc::new(adapted_barrier(&Matrix::of_machine(&machine, 60, 0), 0.35));
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
