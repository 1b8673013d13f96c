//! Costs by which plans of collectives are chosen: agreed, adopted, measured.

use crate::support::{fails, on_shm};
use osier::model::CallCosts;
use osier::{Communicator, ErrorKind, IN_PLACE, Op};
use osier_collectives::Operation;
use osier_engine::protocol::cost::LinkCosts;

/// Another table for each seed: latencies, rates and what an executor costs, far apart.
fn table(seed: usize) -> CallCosts {
    let factor = [1.0, 30.0, 0.03, 4.0][seed % 4];
    let mut costs = CallCosts::estimated(&LinkCosts {
        latency_ns: 200.0 * factor,
        copy_ns_per_byte: 0.1 / factor,
        ..LinkCosts::default()
    });
    costs.run_ns = 10.0 * (1 + seed) as f64;
    costs
}

const SIZES: [usize; 3] = [8, 5000, 200_000];

/// What a rank would use, as text.
fn choices(comm: &Communicator) -> Vec<u8> {
    let mut text = String::new();
    for bytes in SIZES {
        let choice = comm.explain(Operation::Allreduce, bytes).unwrap();
        let plan = choice.plan();
        text += &format!("{} in {}; ", plan.algorithm(), plan.segments());
    }
    text.into_bytes()
}

/// Whether all ranks have the same bytes.
fn alike(comm: &Communicator, mine: &[u8]) -> bool {
    let mut first = mine.to_vec();
    first.resize(200, 0);
    let padded = first.clone();
    comm.bcast(&mut first, 0).unwrap();
    let mut same = [u32::from(first == padded)];
    comm.allreduce(&IN_PLACE, &mut same, Op::Min).unwrap();
    same[0] == 1
}

fn sums(comm: &Communicator) {
    for bytes in SIZES {
        let mut sum = vec![comm.rank() as u64 + 1; bytes / 8];
        comm.allreduce(&IN_PLACE, &mut sum, Op::Sum).unwrap();
        let all = (1..=comm.size() as u64).sum::<u64>();
        assert!(sum.iter().all(|s| *s == all));
    }
}

/// Ranks that have tables of their own choose by one of them: the first rank's that has
/// one that makes sense.
#[test]
fn ranks_with_different_costs_choose_alike() {
    on_shm(3, |comm| {
        let own = comm.call_costs();
        assert!(alike(&comm, &own.version().to_le_bytes()));
        for round in 0..4 {
            let mut mine = table(comm.rank() + round);
            let version = match round {
                // One that makes no sense counts as none.
                0 if comm.rank() == 0 => {
                    mine.classes.clear();
                    comm.adopt_costs(Some(&mine))
                }
                1 if comm.rank() < 2 => comm.adopt_costs(None),
                2 => comm.adopt_costs(None),
                _ => comm.adopt_costs(Some(&mine)),
            };
            let version = version.unwrap();
            let wanted = match round {
                0 => table(1),
                1 => table(3),
                2 => own.clone(),
                _ => table(3),
            };
            assert_eq!(version, wanted.version(), "round {round}");
            assert_eq!(comm.call_costs(), wanted, "round {round}");
            assert!(alike(&comm, &choices(&comm)), "round {round}");
            sums(&comm);
        }
        // A communicator made of it begins with the job's own.
        let copy = comm.dup().unwrap();
        assert_eq!(copy.call_costs(), own);
        sums(&copy);
    });
}

#[test]
fn costs_are_measured_between_ranks() {
    on_shm(3, |comm| {
        let (links, costs) = comm.measure_costs(&LinkCosts::default()).unwrap();
        assert!(links.attach_call_ns > 0.0 && links.attach_ns_per_byte > 0.0);
        assert!(alike(&comm, &costs.version().to_le_bytes()));
        assert_eq!(costs.clone().checked(), Ok(costs.clone()));
        comm.adopt_costs(Some(&costs)).unwrap();
        sums(&comm);
    });
    on_shm(1, |comm| {
        fails(
            comm.measure_call_costs(),
            ErrorKind::Unavailable,
            &["one", "hint: osier model measure"],
        );
        let mine = comm.call_costs();
        assert_eq!(comm.adopt_costs(Some(&mine)).unwrap(), mine.version());
    });
}
