//! Choices by costs of both states of a machine, as they were measured: two virtual cores of an
//! AMD EPYC of family 25, near (a line takes 60 ns) and far (234 ns), `osier model measure`,
//! 2026-11-25.

use super::*;
use crate::model::{CostSet, OtherState, load};
use osier_collectives::simulate;
use osier_engine::protocol::Protocol;
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::select::{AT_ONCE_BYTES, Memory, Message, Rules, Selection};
use std::path::Path;

fn measured(state: &str) -> CostSet {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/choice/fixtures");
    let mut sets = load(&folder.join(state).with_extension("json"))
        .expect("costs")
        .sets;
    sets.remove(0)
}

/// A job that begins in the first of these states.
fn agreed(states: &[&CostSet]) -> Agreed {
    let other = |set: &&CostSet| OtherState {
        line_ns: set.line_ns,
        links: set.costs,
        calls: set.calls.clone(),
    };
    Agreed {
        links: states[0].costs,
        calls: states[0].calls.clone(),
        places: None,
        line_ns: states[0].line_ns,
        others: states[1..].iter().map(other).collect(),
    }
}

fn described(agreed: &Agreed, ranks: u32) -> Described {
    let all: Vec<u32> = (0..ranks).collect();
    let selection = Selection::among(&agreed.links_by_state(), AT_ONCE_BYTES);
    let eager_bytes = selection.eager_max(Memory::Plain);
    let per_core = ranks.div_ceil(2);
    Described::of(agreed.tables(), &all, per_core, agreed, eager_bytes, true)
}

/// What a plan loses at most over the states, beside the best of each alone.
fn loss(plan: &Plan, sizes: &Sizes, machines: &[&Machine]) -> f64 {
    let ratio = |machine: &&Machine| {
        let best = choose_for_all(plan.call(), sizes, &[machine], Model::LogGp).expect("a plan");
        let best = best
            .ranking
            .iter()
            .map(|c| c.ns)
            .fold(f64::INFINITY, f64::min);
        let played = simulate(plan, sizes, machine, Model::LogGp).expect("a plan that ends");
        played.last_ns / best
    };
    machines.iter().map(ratio).fold(0.0, f64::max)
}

const OPERATIONS: [Operation; 6] = [
    Operation::Bcast,
    Operation::Reduce,
    Operation::Allreduce,
    Operation::Allgather,
    Operation::Alltoall,
    Operation::Gather,
];

/// With the costs of both states no plan loses much in either, whichever the job begins in, and
/// no more than the choice by one of them.
#[test]
fn plans_by_both_states_lose_little_in_either() {
    let (near, far) = (measured("near"), measured("far"));
    let (mut most, mut alone) = (1.0f64, 1.0f64);
    for ranks in [2, 4] {
        let both = described(&agreed(&[&near, &far]), ranks);
        let turned = described(&agreed(&[&far, &near]), ranks);
        let machines = both.machines();
        for operation in OPERATIONS {
            let call = Call::new(operation, ranks);
            for log in [3, 7, 10, 12, 14, 16, 18, 20] {
                let class = class_of(1 << log);
                let sizes = Sizes::Equal(bytes_of(class));
                let choice = ranking(&machines, &call, class).expect("a plan");
                let other = ranking(&turned.machines(), &call, class).expect("a plan");
                // Of plans that are predicted to take equally long either may be first.
                let regret = |choice: &Choice| choice.ranking[0].regret;
                assert!((regret(&choice) - regret(&other)).abs() < 1e-9);
                let own = loss(choice.plan(), &sizes, &machines);
                for machine in &machines {
                    let one = ranking(&[machine], &call, class).expect("a plan");
                    let loss = loss(one.plan(), &sizes, &machines);
                    alone = alone.max(loss);
                    // Flags go before messages that are predicted to gain a fifth at most.
                    assert!(
                        own <= 1.01 * loss / 0.8,
                        "{own}, {loss} alone\n{choice}\n{one}"
                    );
                }
                most = most.max(own);
            }
        }
    }
    println!("{most:.3}, {alone:.3} by the costs of one state");
    assert!(most < 1.3, "{most}, {alone} by one state");
    assert!(most <= alone, "{most}, {alone} by one state");
}

/// Short calls of one way have their flags in the segment, although messages are quicker by the
/// costs of far cores alone.
#[test]
fn short_calls_of_one_way_are_not_messages() {
    let (near, far) = (measured("near"), measured("far"));
    let both = described(&agreed(&[&far, &near]), 2);
    for operation in [Operation::Bcast, Operation::Reduce] {
        let call = Call::new(operation, 2);
        let choice = ranking(&both.machines(), &call, class_of(8)).expect("a plan");
        assert!(choice.plan().algorithm().in_segment(), "{choice}");
        let first = choice.ranking.iter().map(|c| c.ns);
        assert!(
            first.fold(f64::INFINITY, f64::min) < choice.ns(),
            "{choice}"
        );
    }
}

/// Whether a call with counts is in place changes neither its plan nor where its flags lie.
#[test]
fn calls_with_counts_have_flags_in_place_too() {
    let (near, far) = (measured("near"), measured("far"));
    let both = described(&agreed(&[&near, &far]), 2);
    let may = May {
        on_devices: false,
        in_one_kernel: false,
        in_segment: true,
        reads: true,
    };
    let of = |call: Call| {
        let class = class_of(1024);
        let chosen = Choices::default().of(&both, &call, class, may);
        chosen.expect("a plan").algorithm
    };
    let call = Call::new(Operation::Alltoall, 2).varying();
    assert!(of(call.clone()).in_segment());
    assert_eq!(of(call.clone()), of(call.in_place()));
}

/// Nor does a protocol lose much, at any size.
#[test]
fn protocols_by_both_states_lose_little_in_either() {
    let states = [measured("near").costs, measured("far").costs];
    let both = Selection::among(&states, AT_ONCE_BYTES);
    let loss = |selection: &Selection, bytes: usize| {
        let protocol = selection.choose(bytes, Memory::Plain);
        let ratio = |costs: &LinkCosts| {
            let rules = Rules::new(costs, AT_ONCE_BYTES);
            let message = Message::of_host(bytes, Memory::Plain);
            let of = |protocol| rules.predict(protocol, &message).ns;
            let all = [Protocol::Eager, Protocol::Fragments, Protocol::GetAttach];
            let best = all.map(of).into_iter().fold(f64::INFINITY, f64::min);
            of(protocol) / best
        };
        states.iter().map(ratio).fold(0.0, f64::max)
    };
    for log in 13..=24 {
        let bytes = 1 << log;
        let own = loss(&both, bytes);
        for costs in states {
            let alone = loss(&Selection::new(costs, AT_ONCE_BYTES), bytes);
            assert!(own <= 1.06 * alone, "{bytes} bytes: {own}, {alone} alone");
        }
    }
}
