//! Collectives of all kinds: `exercise collectives SEED CALLS VICTIM AT`.
//!
//! All ranks draw the same calls from the seed. At its call of number AT the victim is
//! killed: before it, while it is under way, or within the operator. The others go on with
//! all calls; those that fail must name the victim.

use crate::kill_me;
use osier::operators::{Reduction, function};
use osier::{Communicator, ErrorKind, Op, Result};
use osier_collectives::Algorithm;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Numbers that all ranks draw alike (xorshift64*).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// How the victim ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Lives,
    Before,
    Begun,
    Combining,
}

static DEADLY: AtomicBool = AtomicBool::new(false);

fn plus(a: u64, b: u64) -> u64 {
    if DEADLY.load(Ordering::Relaxed) {
        kill_me();
    }
    a.wrapping_add(b)
}

const KINDS: usize = 18;

/// One call of a kind, in one of its forms.
fn call(comm: &Communicator, dice: &mut Dice, end: End) -> Result<()> {
    let (size, rank) = (comm.size(), comm.rank());
    let (kind, form, root) = (dice.below(KINDS), dice.below(3), dice.below(size));
    let n = [1, 30, 3000, 40_000][dice.below(4)];
    let (one, all) = (vec![rank as u64; n], vec![0u64; n * size]);
    let counts: Vec<usize> = (0..size).map(|r| (r + kind) % 3 * n).collect();
    let starts: Vec<usize> = (0..size).map(|r| counts[..r].iter().sum()).collect();
    let blocks = (&counts[..], &starts[..]);
    let room = vec![0u64; counts.iter().sum()];
    let own = vec![rank as u64; counts[rank]];
    // What goes to a rank is as long as what comes from it.
    let pairs: Vec<usize> = (0..size).map(|r| (r + rank) % 3 * n).collect();
    let at: Vec<usize> = (0..size).map(|r| pairs[..r].iter().sum()).collect();
    let swap = vec![1u64; pairs.iter().sum()];
    let pairs = (&pairs[..], &at[..]);
    // By messages, operands of the library's operators are combined as they come.
    let by_messages = [
        None,
        Some(Algorithm::RecursiveDoubling),
        Some(Algorithm::Binomial),
    ];
    let by_messages = by_messages[dice.below(3)].clone();
    let ours = by_messages.is_some() && end != End::Combining;
    comm.use_algorithm(by_messages.map(|algorithm| (algorithm, 1 + 2 * dice.below(2) as u32)));
    let op = || -> Arc<dyn Reduction> {
        match ours {
            true => Arc::new(Op::Sum),
            false => Arc::new(function(plus).exact().commutative()),
        }
    };
    if end == End::Before {
        kill_me();
    }
    DEADLY.store(end == End::Combining, Ordering::Relaxed);
    /// The call in one of three forms; begun, the victim dies.
    macro_rules! forms {
        ($begin:ident, $init:ident, $($arg:expr),*) => {{
            if form == 0 {
                let request = comm.$begin($($arg),*)?;
                if end == End::Begun {
                    kill_me();
                }
                request.wait().map(drop)
            } else {
                let mut request = comm.$init($($arg),*)?;
                // All starts, also after an error: elsewhere the first may have gone well.
                let mut result = Ok(());
                for _ in 0..form {
                    let started = request.start();
                    if end == End::Begun {
                        kill_me();
                    }
                    result = result.and(started.and_then(|()| request.wait()));
                }
                result
            }
        }};
    }
    match kind {
        0 => forms!(ibarrier, barrier_init,),
        1 => forms!(ibcast, bcast_init, one, root),
        2 => forms!(igather, gather_init, one, all, root),
        3 => forms!(igatherv, gatherv_init, own, room, blocks.0, blocks.1, root),
        4 => forms!(iscatter, scatter_init, all, one, root),
        5 => forms!(
            iscatterv,
            scatterv_init,
            room,
            own,
            blocks.0,
            blocks.1,
            root
        ),
        6 => forms!(iallgather, allgather_init, one, all),
        7 => forms!(iallgatherv, allgatherv_init, own, room, blocks.0, blocks.1),
        8 => forms!(ialltoall, alltoall_init, all.clone(), all),
        9 => forms!(ialltoallv, alltoallv_init, swap.clone(), swap, pairs, pairs),
        10 => forms!(ireduce, reduce_init, one.clone(), one, root, op()),
        11 => forms!(iallreduce, allreduce_init, one.clone(), one, op()),
        12 => forms!(
            ireduce_scatter_block,
            reduce_scatter_block_init,
            all,
            one,
            op()
        ),
        13 => forms!(
            ireduce_scatter,
            reduce_scatter_init,
            room,
            own,
            blocks.0,
            op()
        ),
        14 => forms!(iscan, scan_init, one.clone(), one, op()),
        15 => forms!(iexscan, exscan_init, one.clone(), one, Op::Max),
        16 => forms!(
            ineighbor_allgather,
            neighbor_allgather_init,
            one,
            vec![0u64; 2 * n]
        ),
        _ => {
            let both = vec![1u64; 2 * n];
            forms!(
                ineighbor_alltoall,
                neighbor_alltoall_init,
                both.clone(),
                both
            )
        }
    }
}

/// Exchanges that ranks may read in place, blocking and not, of several communicators: those that
/// may not block come first, and between.
pub fn exchanges(comm: &Communicator) {
    let copy = comm.split(Some(0), 0).expect("a copy").expect("a member");
    let (rank, size) = (comm.rank(), comm.size());
    for turn in 0..6 {
        for (comm, words) in [(comm, 8192), (&copy, 5000), (comm, 100)] {
            let value = |from: usize, to: usize| (turn << 20 | from << 10 | to) as u64;
            let mine: Vec<u64> = (0..size)
                .flat_map(|to| std::iter::repeat_n(value(rank, to), words))
                .collect();
            let mut theirs = vec![0u64; words * size];
            if turn % 2 == 0 {
                let call = comm.ialltoall(mine, theirs).expect("begun");
                theirs = call.wait().expect("an exchange").1;
            } else {
                comm.alltoall(&mine, &mut theirs).expect("an exchange");
            }
            for (from, theirs) in theirs.chunks_exact(words).enumerate() {
                assert!(
                    theirs.iter().all(|v| *v == value(from, rank)),
                    "turn {turn}"
                );
            }
        }
    }
    super::through(comm);
}

pub fn run(comm: &Communicator, what: &[&str]) {
    let number = |at: usize| -> usize { what[at].parse().expect("a number") };
    let (seed, calls, victim, last) = (number(0), number(1), number(2), number(3));
    let mut dice = Dice((seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let ring = comm.cart_create(&[comm.size()], &[true]);
    let ring = ring.expect("a ring").expect("all ranks");
    let mut missed = 0;
    // It dies of a fault that is injected elsewhere.
    let injected = last >= calls;
    for at in 0..calls {
        let ends = [End::Before, End::Begun, End::Combining][(seed + last) % 3];
        let end = match comm.rank() == victim && at >= last {
            // If nothing is combined there, it dies of the next call.
            true if at > last => End::Before,
            true => ends,
            false => End::Lives,
        };
        if let Err(e) = call(&ring, &mut dice, end) {
            assert_eq!(e.kind(), ErrorKind::RankDead, "call {at}: {e}");
            let cause = [
                format!("rank {victim} was killed by signal 9"),
                format!("rank {victim} is dead"),
            ];
            let text = e.to_string();
            assert!(cause.iter().any(|c| text.contains(c)), "call {at}: {e}");
            assert!(at >= last || injected, "call {at} before the death");
            missed += 1;
        }
    }
    if injected && comm.rank() == victim {
        return; // it has outlived the calls
    }
    // Nobody leaves while others may still need it.
    let living: Vec<usize> = (0..comm.size()).filter(|r| *r != victim).collect();
    for peer in living.into_iter().filter(|r| *r != comm.rank()) {
        let mut token = [0u8; 0];
        comm.sendrecv(&[0u8; 0], peer, 9, &mut token, peer, 9)
            .expect("the living");
    }
    assert!(
        victim >= comm.size() || missed > 0 || injected,
        "nobody was missed"
    );
    println!("rank {} is through", comm.rank());
}
