//! Agreements about failures, and communicators of those that live.

use crate::support::{Watchdog, on_all, one_fails};
use osier::testing::{Network, ranks_on};
use osier::{Communicator, ErrorKind, Op};
use osier_transports::sim::SimOptions;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

/// A number and ranks that members have agreed on.
type Agreed = (u64, Vec<usize>);

fn sum(comm: &Communicator) -> u64 {
    let mut sum = [0u64];
    comm.allreduce(&[1u64], &mut sum, Op::Sum).expect("a sum");
    sum[0]
}

#[test]
fn all_agree_where_nobody_has_failed() {
    on_all(4, |comm| {
        for round in 0..20 {
            let flags = !(1u64 << (comm.rank() * 8 + round));
            let agreed = comm.agree(flags).expect("an agreement");
            let expected = (0..4).fold(u64::MAX, |all, rank| all & !(1u64 << (rank * 8 + round)));
            assert_eq!((agreed.flags, agreed.acknowledged), (expected, true));
            assert_eq!(agreed.failed, [0usize; 0]);
        }
        let living = comm.shrink().expect("all live");
        assert_eq!((living.size(), living.rank()), (4, comm.rank()));
        assert_eq!(sum(&living), 4);
    });
}

#[test]
fn the_others_go_on_without_a_rank_that_fails() {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        for failing in [0, 1, 3] {
            one_fails(&network, 4, |comm| {
                if comm.rank() == failing {
                    return true;
                }
                let agreed = comm
                    .agree(1 << comm.rank() | 1 << 40)
                    .expect("an agreement");
                assert_eq!(agreed.flags, 1 << 40);
                // It may have been seen to drop the communicator first: it takes no part either way.
                assert_eq!(agreed.failed, [failing]);
                assert!(!agreed.acknowledged);
                while comm.failed_ranks().is_empty() {
                    std::thread::yield_now();
                }
                comm.acknowledge_failures();
                let agreed = comm.agree(1).expect("an agreement");
                assert!(agreed.acknowledged, "{agreed:?}");
                let living = comm.shrink().expect("a communicator");
                assert_eq!((living.size(), sum(&living)), (3, 3));
                // The old one is of no use, and nobody hangs in it.
                let e = comm.barrier().expect_err("an error");
                // Others may have finalized since.
                let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
                assert!(kinds.contains(&e.kind()), "{e}");
                false
            });
        }
    }
}

/// Ranks die at any point of agreements and shrinks, on the simulated network by seed: those that
/// live have agreed on the same in the end.
#[test]
fn survivors_agree_wherever_ranks_die() {
    struct Dies;
    let _watchdog = Watchdog::start();
    let seeds = crate::asked::number("agreeing-ranks").unwrap_or(60);
    for seed in 0..seeds {
        let n = 3 + (seed % 3) as usize;
        let options = SimOptions {
            seed,
            ..SimOptions::default()
        };
        let agreed: Mutex<Vec<Vec<Agreed>>> = Mutex::new(vec![Vec::new(); n]);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            ranks_on(&Network::InTurn(options), n, |comm| {
                let me = comm.rank();
                for round in 0..4u64 {
                    // Two of them die, before or behind what they say in a round.
                    let dies = |victim: u64| {
                        me as u64 == victim % n as u64 && round == (seed / 5 + victim) % 4
                    };
                    if dies(seed) {
                        resume_unwind(Box::new(Dies));
                    }
                    let one = comm.agree(!(1 << me)).expect("an agreement");
                    let mut all = agreed.lock().expect("a list");
                    all[me].push((one.flags, one.failed));
                    drop(all);
                    if dies(seed / 3 + 1) {
                        resume_unwind(Box::new(Dies));
                    }
                    let living = comm.shrink().expect("a communicator");
                    let mut sum = [0u64];
                    let _ = living.allreduce(&[1u64], &mut sum, Op::Sum);
                    let mut all = agreed.lock().expect("a list");
                    let members = living.group().world_ranks().collect();
                    all[me].push((living.context(), members));
                }
            });
        }));
        if let Err(panic) = ended
            && !panic.is::<Dies>()
        {
            resume_unwind(panic);
        }
        let all = agreed.into_inner().expect("a list");
        let longest = all.iter().max_by_key(|one| one.len()).expect("ranks");
        for (rank, one) in all.iter().enumerate() {
            assert_eq!(one[..], longest[..one.len()], "seed {seed}, rank {rank}");
        }
    }
}
