//! Random roots, segments, shapes of levels and neighborhoods; and broken plans.

use osier_collectives::*;
use proptest::prelude::*;
use std::sync::Arc;

fn algorithms() -> Vec<Algorithm> {
    let mut all = Algorithm::FLAT.to_vec();
    all.extend([Algorithm::KAry(3), Algorithm::KAry(7), Algorithm::Postal(3)]);
    all.extend([Algorithm::Between, Algorithm::OneKernel]);
    all
}

fn neighbors(size: u32) -> impl Strategy<Value = Neighbors> {
    prop::collection::vec((0..size, 0..size), 0..60).prop_map(move |edges| {
        let mut neighbors = Neighbors {
            sources: vec![Vec::new(); size as usize],
            destinations: vec![Vec::new(); size as usize],
            ..Neighbors::default()
        };
        for (from, to) in edges {
            neighbors.destinations[from as usize].push(to);
            neighbors.sources[to as usize].push(from);
        }
        neighbors
    })
}

fn calls() -> impl Strategy<Value = Call> {
    let operations = prop::sample::select(&Operation::ALL[..]);
    (1u32..40, operations).prop_flat_map(|(size, operation)| {
        let side = prop::option::of(1..size.max(2));
        let flags = (any::<bool>(), any::<bool>());
        (0..size, flags, side, neighbors(size)).prop_map(move |(root, flags, side, graph)| {
            let mut call = Call::new(operation, size).requires(Association::Any);
            if operation.rooted() {
                call = call.root(root);
            }
            call.varying = flags.0;
            if let Some(first) = side.filter(|_| size > 1) {
                return call.between(first);
            }
            call.in_place = flags.1 && operation.has_in_place();
            if operation.of_neighbors() {
                call = call.on(Arc::new(graph));
            }
            call
        })
    })
}

fn places(size: u32) -> impl Strategy<Value = Vec<Vec<u32>>> {
    let place = (0u32..4, 0u32..3, 0u32..2).prop_map(|(a, b, c)| vec![a, b, c]);
    prop::collection::vec(place, size as usize)
}

fn trees() -> impl Strategy<Value = Vec<Tree>> {
    let tree = prop_oneof![
        Just(Tree::Linear),
        Just(Tree::Chain),
        Just(Tree::Binomial),
        (1u32..5).prop_map(Tree::KAry),
        (2u32..6).prop_map(Tree::Postal),
    ];
    prop::collection::vec(tree, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_call_by_any_algorithm(call in calls(), segments in 1u32..8) {
        for algorithm in algorithms() {
            if algorithm.keeps(&call).is_some() {
                let plan = Plan::new(call.clone(), algorithm.clone(), segments).expect("suitable");
                if let Err(fault) = check(&plan) {
                    prop_assert!(false, "{algorithm}: {fault}");
                }
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_levels(
        (places, root) in (1u32..60).prop_flat_map(|size| (places(size), 0..size)),
        trees in trees(),
        segments in 1u32..8,
    ) {
        let size = places.len() as u32;
        let levels = |root| {
            let merged = |n| Arc::new(Hierarchy::merged(&places, n, root, &trees));
            let all = [0, 1, 2].map(merged);
            let exchange = all.clone().map(|levels| {
                let levels = (*levels).clone().with_across(Across::Exchange);
                Algorithm::Hierarchical(Arc::new(levels))
            });
            let plain = all.clone().map(Algorithm::Hierarchical).into_iter().chain(exchange);
            let copies = all.into_iter().flat_map(|levels| {
                (0..=levels.levels() as u32).map(move |from| Algorithm::HostLeaders(levels.clone(), from))
            });
            plain.chain(copies).collect::<Vec<_>>()
        };
        for operation in Operation::ALL {
            let root = if operation.rooted() { root } else { 0 };
            let call = Call::new(operation, size).root(root).requires(Association::Any);
            let order = Arc::new(Permutation::by_place(&places, root));
            let flat = Algorithm::FLAT.map(|f| Algorithm::Permuted(order.clone(), Box::new(f)));
            for algorithm in flat.into_iter().chain(levels(root)) {
                if algorithm.keeps(&call).is_some() {
                    let plan = Plan::new(call.clone(), algorithm.clone(), segments);
                    if let Err(fault) = check(&plan.expect("suitable")) {
                        prop_assert!(false, "{operation:?} by {algorithm}: {fault}");
                    }
                }
            }
        }
    }
}

/// Every plan, small: all ways in which it can be broken by leaving out a step, or a
/// dependency.
#[test]
fn a_plan_without_one_step_fails() {
    let mut deleted = 0;
    for size in [2, 3, 4, 5, 7, 8] {
        for operation in Operation::ALL {
            for algorithm in algorithms() {
                let mut calls = vec![Call::new(operation, size)];
                if size > 2 {
                    calls.push(Call::new(operation, size).between(size / 2));
                }
                if operation.has_in_place() {
                    calls.push(Call::new(operation, size).in_place());
                }
                for mut call in calls {
                    call.required = Association::Any;
                    if operation.rooted() {
                        call = call.root(size - 1);
                    }
                    if operation.of_neighbors() {
                        let around = |step| (0..size).map(|r| vec![(r + step) % size, r]).collect();
                        call = call.on(Arc::new(Neighbors {
                            sources: around(size - 1),
                            destinations: around(1),
                            ..Neighbors::default()
                        }));
                    }
                    if algorithm.keeps(&call).is_none() {
                        continue;
                    }
                    let plan = Plan::new(call, algorithm.clone(), 1).expect("suitable");
                    deleted += delete_each_step(&plan);
                }
            }
        }
    }
    assert!(deleted > 5000, "{deleted} steps");
}

fn delete_each_step(plan: &Plan) -> u32 {
    let mut deleted = 0;
    let mut parts: Vec<Part> = (0..plan.call().size).map(|r| plan.part(r)).collect();
    assert_eq!(
        check_parts(plan.call(), plan.association(), &parts).map(|_| ()),
        Ok(())
    );
    for rank in 0..parts.len() {
        let whole = parts[rank].clone();
        for step in 0..whole.steps().len() as u32 {
            parts[rank] = whole.without_step(step);
            let verdict = check_parts(plan.call(), plan.association(), &parts);
            assert!(
                verdict.is_err(),
                "{} of {:?} without step {step} of rank {rank}, {:?}, passes",
                plan.algorithm(),
                plan.call(),
                whole.steps()[step as usize]
            );
            deleted += 1;
        }
        parts[rank] = whole;
    }
    deleted
}

/// What the checker must not let pass.
mod wrong {
    use super::*;

    fn fault(call: &Call, association: Association, parts: &[Part]) -> String {
        check_parts(call, association, parts)
            .expect_err("a fault")
            .to_string()
    }

    fn built(call: &Call, segments: u32, build: impl Fn(&mut Builder)) -> Vec<Part> {
        (0..call.size)
            .map(|rank| {
                let mut b = Builder::new(call, rank, 1, segments, 2);
                build(&mut b);
                b.finish()
            })
            .collect()
    }

    #[test]
    fn both_send_first_and_then_receive() {
        let call = Call::new(Operation::Allgather, 2);
        let parts = built(&call, 1, |b| {
            let other = 1 - b.rank;
            b.copy(
                Region::piece(Buffer::Send, 0),
                Region::piece(Buffer::Recv, b.rank),
            );
            let sent = b.send(other, 0, Region::piece(Buffer::Send, 0));
            b.after(sent);
            b.recv(other, 0, Region::piece(Buffer::Recv, other));
        });
        let text = fault(&call, Association::Balanced, &parts);
        assert!(text.contains("deadlock"), "{text}");
    }

    #[test]
    fn dissemination_counts_twice_where_ranks_are_no_power_of_two() {
        let sum = |call: &Call| {
            built(call, 1, |b| {
                let (rank, size) = (b.rank, b.call.size);
                let result = Region::piece(Buffer::Recv, 0);
                b.copy(Region::piece(Buffer::Send, 0), result);
                let mut distance = 1;
                while distance < size {
                    let theirs = Region::piece(b.scratch(1), 0);
                    b.recv((rank + size - distance) % size, distance, theirs);
                    b.send((rank + distance) % size, distance, result);
                    b.combine(result, theirs, result);
                    distance *= 2;
                }
            })
        };
        for size in [4, 8, 5, 6, 7, 13, 60, 115] {
            let call = Call::new(Operation::Allreduce, size).requires(Association::Any);
            let verdict = check_parts(&call, Association::Any, &sum(&call));
            if size.is_power_of_two() {
                assert!(verdict.is_ok(), "{verdict:?}");
            } else {
                let text = verdict.expect_err("a fault").to_string();
                assert!(text.contains("twice"), "{text}");
            }
        }
    }

    #[test]
    fn other_brackets_than_claimed() {
        let call = Call::new(Operation::Allreduce, 6).requires(Association::Any);
        let plan = Plan::new(call.clone(), Algorithm::Chain, 1).expect("suitable");
        let parts: Vec<Part> = (0..6).map(|r| plan.part(r)).collect();
        assert!(check_parts(&call, Association::Ordered, &parts).is_ok());
        let text = fault(&call, Association::Balanced, &parts);
        assert!(text.contains("other brackets"), "{text}");

        let plan = Plan::new(call.clone(), Algorithm::KAry(2), 1).expect("suitable");
        let parts: Vec<Part> = (0..6).map(|r| plan.part(r)).collect();
        let text = fault(&call, Association::Ordered, &parts);
        assert!(text.contains("rank order"), "{text}");
    }

    #[test]
    fn two_steps_that_nothing_orders() {
        let call = Call::new(Operation::Bcast, 3);
        let mut parts = built(&call, 1, |b| {
            let data = Region::piece(Buffer::Recv, 0);
            match b.rank {
                0 => {
                    b.send(1, 0, data);
                }
                1 => {
                    b.recv(0, 0, data);
                    b.send(2, 0, data);
                }
                _ => {
                    b.recv(1, 0, data);
                }
            }
        });
        assert!(check_parts(&call, Association::Balanced, &parts).is_ok());
        parts[1] = parts[1].without_dependencies(1);
        let text = fault(&call, Association::Balanced, &parts);
        assert!(text.contains("nothing orders"), "{text}");
    }

    #[test]
    fn room_for_fewer_segments_than_are_under_way() {
        let call = Call::new(Operation::Reduce, 4).requires(Association::Any);
        let plan = Plan::new(call.clone(), Algorithm::Chain, 9).expect("suitable");
        let parts: Vec<Part> = (0..4).map(|r| plan.part(r)).collect();
        assert!(check_parts(&call, Association::Ordered, &parts).is_ok());
        let lags =
            |p: &Part| (0..p.steps().len()).any(|s| p.after(s as u32).iter().any(|d| d.lag > 0));
        let at = parts.iter().position(lags).expect("slots are reused");
        for step in 0..parts[at].steps().len() as u32 {
            if parts[at].after(step).iter().all(|d| d.lag == 0) {
                continue;
            }
            let mut broken = parts.clone();
            broken[at] = parts[at].without_dependencies(step);
            let text = fault(&call, Association::Ordered, &broken);
            assert!(text.contains("nothing orders"), "{text}");
        }
    }

    #[test]
    fn a_barrier_that_one_rank_leaves_early() {
        let call = Call::new(Operation::Barrier, 3);
        let parts = built(&call, 1, |b| match b.rank {
            0 => {
                b.wait(1, 0);
                b.raise(1, 0);
                b.wait(2, 0);
                b.raise(2, 0);
            }
            _ => {
                b.raise(0, 0);
                b.wait(0, 0);
            }
        });
        let text = fault(&call, Association::Balanced, &parts);
        assert!(text.contains("without knowing of rank 2"), "{text}");
    }

    #[test]
    fn reading_a_peer_that_may_have_left() {
        let call = Call::new(Operation::Bcast, 2);
        let data = Region::piece(Buffer::Recv, 0);
        let read = |with_end: bool| {
            built(&call, 1, |b| {
                if b.rank == 0 {
                    b.raise(1, 0);
                    if with_end {
                        b.wait(1, 1);
                    }
                } else {
                    b.wait(0, 0);
                    let read = b.read_peer(0, data, data);
                    if with_end {
                        b.after(read);
                        b.raise(0, 1);
                    }
                }
            })
        };
        assert!(check_parts(&call, Association::Balanced, &read(true)).is_ok());
        let text = fault(&call, Association::Balanced, &read(false));
        assert!(text.contains("after the peer has left"), "{text}");
    }
}
