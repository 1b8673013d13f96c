//! Every collective in every form, within a group and between two, against the result that
//! follows from everybody's input.

use crate::support::{Random, fails, on_all, on_shm};
use osier::operators::function;
use osier::persistent::start_all;
use osier::{Communicator, ErrorKind, IN_PLACE, Op, PROC_NULL, ROOT, Rank, Type, View, ViewMut};
use osier_collectives::Algorithm;

/// What rank `from` of the job has for rank `to` of the job.
fn gift(from: usize, to: usize, n: usize) -> Vec<u32> {
    (0..n)
        .map(|i| (from * 10_000 + to * 100 + i) as u32)
        .collect()
}

/// A call in all forms: each must give `right` where `recv` was before.
macro_rules! all_forms {
    ($comm:expr, $begin:ident, $init:ident, $send:expr, $recv:expr, $right:expr $(, $arg:expr)*) => {{
        let (comm, right): (&Communicator, &Vec<u32>) = ($comm, &$right);
        let (mut send, recv): (Vec<u32>, Vec<u32>) = ($send, $recv);
        let what = stringify!($begin);
        let begun = comm.$begin(send.clone(), recv.clone() $(, $arg)*).expect(what);
        let (_, got) = begun.wait().expect(what);
        assert_eq!(&got, right, "{what}");
        let mut set = comm.$init(send.clone(), recv.clone() $(, $arg)*).expect(what);
        for _ in 0..3 {
            set.buffers_mut().expect("inactive").1.copy_from_slice(&recv);
            set.start().expect(what);
            set.wait().expect(what);
            assert_eq!(&set.buffers().expect("inactive").1, right, "{what}, persistent");
        }
        let (mut got, mut again) = (recv.clone(), recv.clone());
        comm.scope(|s| {
            s.$begin(&send, &mut got $(, $arg)*)?;
            Ok(())
        })
        .expect(what);
        comm.scope(|s| {
            let mut set = s.$init(&mut send, &mut again $(, $arg)*)?;
            set.start()?;
            set.wait()?;
            set.buffers_mut()?.1.copy_from_slice(&recv);
            set.start() // the scope waits
        })
        .expect(what);
        assert!(&got == right && &again == right, "{what}, in scopes");
    }};
}

/// Blocks of these lengths, one behind the other with gaps of one.
fn starts(counts: &[usize]) -> Vec<usize> {
    (0..counts.len())
        .map(|at| counts[..at].iter().map(|n| n + 1).sum())
        .collect()
}

/// Blocks laid out with gaps, which are 9.
fn laid(blocks: &[Vec<u32>]) -> Vec<u32> {
    blocks
        .iter()
        .flat_map(|b| b.iter().copied().chain([9]))
        .collect()
}

fn sums(parts: impl Iterator<Item = Vec<u32>>) -> Vec<u32> {
    parts
        .reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect())
        .unwrap_or_default()
}

/// `root` is the root, `receives` whether it is this rank, `others` whom data is exchanged
/// with, as ranks of the job, `own` those of this rank's side.
struct Seat<'a> {
    comm: &'a Communicator,
    me: usize,
    own: Vec<usize>,
    others: Vec<usize>,
    root: Rank,
    is_root: bool,
    /// Whether this rank gives to the root, or gets from it.
    serves: bool,
    root_rank: usize,
}

impl Seat<'_> {
    fn rooted(&self, n: usize) {
        let (comm, me, root, top) = (self.comm, self.me, self.root, self.root_rank);
        let (own, others) = (&self.own, &self.others);
        let total = others.len();
        let at_root = |all: Vec<u32>, blank: usize| match self.is_root {
            true => all,
            false => vec![7; blank],
        };
        let from_root = |data: Vec<u32>, blank: usize| match self.serves {
            true => data,
            false => vec![7; blank],
        };
        // gather
        let all: Vec<u32> = others.iter().flat_map(|r| gift(*r, 0, n)).collect();
        let right = at_root(all, total * n);
        all_forms!(
            comm,
            igather,
            gather_init,
            gift(me, 0, n),
            vec![7; total * n],
            right,
            root
        );
        // gatherv: rank r gives r % 3 elements
        let count = |r: &usize| r % 3 + usize::from(n > 100) * 50;
        let counts: Vec<usize> = others.iter().map(count).collect();
        let places = starts(&counts);
        let blocks: Vec<_> = others.iter().map(|r| gift(*r, 1, count(r))).collect();
        let room = counts.iter().sum::<usize>() + total;
        let right = at_root(laid(&blocks), room);
        let blank = if self.is_root {
            vec![9; room]
        } else {
            vec![7; room]
        };
        all_forms!(
            comm,
            igatherv,
            gatherv_init,
            gift(me, 1, count(&me)),
            blank,
            right,
            &counts,
            &places,
            root
        );
        // scatter and scatterv
        let shares: Vec<u32> = others.iter().flat_map(|r| gift(top, *r, n)).collect();
        let right = from_root(gift(top, me, n), n);
        all_forms!(
            comm,
            iscatter,
            scatter_init,
            shares,
            vec![7; n],
            right,
            root
        );
        let blocks: Vec<_> = others.iter().map(|r| gift(top, *r, count(r))).collect();
        let right = from_root(gift(top, me, count(&me)), count(&me));
        all_forms!(
            comm,
            iscatterv,
            scatterv_init,
            laid(&blocks),
            vec![7; count(&me)],
            right,
            &counts,
            &places,
            root
        );
        // reduce
        let right = at_root(sums(others.iter().map(|r| gift(*r, 2, n))), n);
        all_forms!(
            comm,
            ireduce,
            reduce_init,
            gift(me, 2, n),
            vec![7; n],
            right,
            root,
            Op::Sum
        );
        // bcast
        let gets = self.serves && !own.is_empty();
        let right = match gets || self.is_root {
            true => gift(top, 3, n),
            false => vec![7; n],
        };
        let mine = if self.is_root {
            gift(me, 3, n)
        } else {
            vec![7; n]
        };
        let got = comm.ibcast(mine.clone(), root).expect("ibcast").wait();
        assert_eq!(got.expect("ibcast"), right);
        let mut set = comm.bcast_init(mine.clone(), root).expect("bcast_init");
        for _ in 0..2 {
            set.start().expect("start");
            set.wait().expect("wait");
        }
        assert_eq!(set.buffers().expect("inactive"), &right);
        let (mut a, mut b) = (mine.clone(), mine);
        comm.scope(|s| {
            s.ibarrier()?;
            s.ibcast(&mut a, root)?;
            s.bcast_init(&mut b, root)?.start()
        })
        .expect("scope");
        assert!(a == right && b == right);
    }

    fn of_all(&self, n: usize) {
        let (comm, me, own, others) = (self.comm, self.me, &self.own, &self.others);
        let total = others.len();
        let all: Vec<u32> = others.iter().flat_map(|r| gift(*r, 0, n)).collect();
        all_forms!(
            comm,
            iallgather,
            allgather_init,
            gift(me, 0, n),
            vec![7; total * n],
            all
        );
        let count = |r: &usize| r % 3 + usize::from(n > 100) * 50;
        let counts: Vec<usize> = others.iter().map(count).collect();
        let places = starts(&counts);
        let blocks: Vec<_> = others.iter().map(|r| gift(*r, 1, count(r))).collect();
        let blank = vec![9; counts.iter().sum::<usize>() + total];
        all_forms!(
            comm,
            iallgatherv,
            allgatherv_init,
            gift(me, 1, count(&me)),
            blank,
            laid(&blocks),
            &counts,
            &places
        );
        let out: Vec<u32> = others.iter().flat_map(|r| gift(me, *r, n)).collect();
        let into: Vec<u32> = others.iter().flat_map(|r| gift(*r, me, n)).collect();
        all_forms!(
            comm,
            ialltoall,
            alltoall_init,
            out,
            vec![7; total * n],
            into
        );
        let lens = |from: usize, to: usize| (from + 2 * to) % 4;
        let sent: Vec<usize> = others.iter().map(|r| lens(me, *r)).collect();
        let got: Vec<usize> = others.iter().map(|r| lens(*r, me)).collect();
        let out: Vec<_> = others.iter().map(|r| gift(me, *r, lens(me, *r))).collect();
        let into: Vec<_> = others.iter().map(|r| gift(*r, me, lens(*r, me))).collect();
        let (from, to) = (starts(&sent), starts(&got));
        all_forms!(
            comm,
            ialltoallv,
            alltoallv_init,
            laid(&out),
            vec![9; laid(&into).len()],
            laid(&into),
            (&sent[..], &from[..]),
            (&got[..], &to[..])
        );
        let blank: Vec<Vec<u32>> = got.iter().map(|n| vec![7; *n]).collect();
        let (_, whole) = comm
            .ialltoallw(out.clone(), blank.clone())
            .and_then(osier::collectives::Collective::wait)
            .expect("ialltoallw");
        assert_eq!(whole, into);
        let mut set = comm
            .alltoallw_init(out.clone(), blank.clone())
            .expect("init");
        for _ in 0..2 {
            set.start().and_then(|()| set.wait()).expect("alltoallw");
        }
        assert_eq!(set.into_buffers().expect("buffers").1, into);
        let mut again = blank;
        comm.scope(|s| s.ialltoallw(&out, &mut again).map(drop))
            .expect("scope");
        assert_eq!(again, into);
        // Sums of the others' vectors.
        let sum = |what: usize, n: usize| sums(others.iter().map(|r| gift(*r, what, n)));
        all_forms!(
            comm,
            iallreduce,
            allreduce_init,
            gift(me, 4, n),
            vec![7; n],
            sum(4, n),
            function(|a: u32, b: u32| a + b)
        );
        // Shares: both sides combine as much.
        let (here, place) = (own.len(), own.iter().position(|r| *r == me).expect("here"));
        let each = others.len() * 3;
        let whole = sum(5, here * each);
        all_forms!(
            comm,
            ireduce_scatter_block,
            reduce_scatter_block_init,
            gift(me, 5, here * each),
            vec![7; each],
            whole[place * each..][..each].to_vec(),
            Op::Sum
        );
        let mut counts: Vec<usize> = vec![2; here];
        counts[0] = here * others.len() * 3 - 2 * (here - 1);
        let from: usize = counts[..place].iter().sum();
        let whole = sum(6, here * others.len() * 3);
        all_forms!(
            comm,
            ireduce_scatter,
            reduce_scatter_init,
            gift(me, 6, whole.len()),
            vec![7; counts[place]],
            whole[from..][..counts[place]].to_vec(),
            &counts,
            Op::Sum
        );
    }
}

#[test]
fn every_form_of_collectives_gives_same_result_in_one_group() {
    for size in 1..=5 {
        on_shm(size, |comm| {
            let me = comm.rank();
            let everybody: Vec<usize> = (0..size).collect();
            for (n, top) in [(1, 0), (300, size - 1)] {
                let seat = Seat {
                    comm: &comm,
                    me,
                    own: everybody.clone(),
                    others: everybody.clone(),
                    root: top.into(),
                    is_root: me == top,
                    serves: true,
                    root_rank: top,
                };
                seat.rooted(n);
                seat.of_all(n);
                let below = |to: usize| sums((0..to).map(|r| gift(r, 8, n)));
                all_forms!(
                    &comm,
                    iscan,
                    scan_init,
                    gift(me, 8, n),
                    vec![7; n],
                    below(me + 1),
                    Op::Sum
                );
                let right = if me == 0 { vec![7; n] } else { below(me) };
                all_forms!(
                    &comm,
                    iexscan,
                    exscan_init,
                    gift(me, 8, n),
                    vec![7; n],
                    right,
                    Op::Sum
                );
            }
        });
    }
}

/// The low and the high ranks of a communicator, joined.
fn halves(comm: &Communicator, low: usize) -> Communicator {
    let is_low = comm.rank() < low;
    let side = comm.split(Some(u32::from(is_low)), 0).expect("split");
    let side = side.expect("a color");
    let other_leader = if is_low { low } else { 0 };
    let bridge = (side.rank() == 0).then_some((comm, other_leader));
    side.intercomm_create(0, bridge, 5).expect("two sides")
}

#[test]
fn every_form_of_collectives_gives_same_result_between_groups() {
    for (size, low) in [(2, 1), (3, 1), (5, 2), (6, 3)] {
        on_shm(size, |comm| {
            let inter = halves(&comm, low);
            let me = comm.rank();
            let (lows, highs): (Vec<usize>, Vec<usize>) =
                ((0..low).collect(), (low..size).collect());
            let (own, others) = if me < low {
                (lows, highs)
            } else {
                (highs, lows)
            };
            for (n, top) in [(1, 0), (300, size - 1)] {
                let with_root = (me < low) == (top < low);
                let seat = Seat {
                    comm: &inter,
                    me,
                    root: match with_root {
                        true if me == top => ROOT,
                        true => PROC_NULL,
                        false => (top - if top < low { 0 } else { low }).into(),
                    },
                    is_root: me == top,
                    serves: !with_root,
                    root_rank: top,
                    own: own.clone(),
                    others: others.clone(),
                };
                // Whoever only looks on has buffers that nobody touches.
                seat.rooted(n);
                seat.of_all(n);
            }
            let e = inter.scan(&[1u8], &mut [0u8], Op::Sum);
            fails(
                e,
                ErrorKind::Communicator,
                &["scan", "not defined on an intercommunicator", "hint"],
            );
            let e = inter.allreduce(&IN_PLACE, &mut [0u8], Op::Sum);
            fails(
                e,
                ErrorKind::Argument,
                &["IN_PLACE", "intercommunicator", "hint"],
            );
            inter.barrier().expect("goes on");
        });
    }
}

#[test]
fn in_place_with_counts() {
    for size in 1..=4 {
        on_shm(size, |comm| {
            let me = comm.rank();
            let counts: Vec<usize> = (0..size).map(|r| r + 1).collect();
            let places = starts(&counts);
            let blocks: Vec<_> = (0..size).map(|r| gift(r, 0, counts[r])).collect();
            let right = laid(&blocks);
            let mut all = vec![9; right.len()];
            all[places[me]..][..counts[me]].copy_from_slice(&blocks[me]);
            let mut at_root = all.clone();
            comm.allgatherv(&IN_PLACE, &mut all, &counts, &places)
                .expect("allgatherv");
            assert_eq!(all, right);
            if me == size - 1 {
                comm.gatherv(&IN_PLACE, &mut at_root, &counts, &places, me)
                    .expect("gatherv");
                assert_eq!(at_root, right);
                comm.scatterv(
                    &right,
                    &counts,
                    &places,
                    &mut osier::collectives::InPlace,
                    me,
                )
                .expect("scatterv");
            } else {
                comm.gatherv(&blocks[me], &mut at_root, &counts, &places, size - 1)
                    .expect("gatherv");
                let mut share = vec![0; counts[me]];
                comm.scatterv(&right, &counts, &places, &mut share, size - 1)
                    .expect("scatterv");
                assert_eq!(share, blocks[me]);
            }
            // What goes to a rank is as long as what comes from it.
            let lens = |a: usize, b: usize| (a + b) % 3;
            let counts: Vec<usize> = (0..size).map(|r| lens(me, r)).collect();
            let out: Vec<_> = (0..size).map(|r| gift(me, r, counts[r])).collect();
            let into: Vec<_> = (0..size).map(|r| gift(r, me, counts[r])).collect();
            let mut both = laid(&out);
            let blocks = (&counts[..], &starts(&counts)[..]);
            comm.alltoallv(&IN_PLACE, (&[], &[]), &mut both, blocks)
                .expect("alltoallv");
            assert_eq!(both, laid(&into));
            let sum = |n| sums((0..size).map(|r| gift(r, 1, n)));
            let mut data = gift(me, 1, size * 5);
            comm.reduce_scatter_block(&IN_PLACE, &mut data, Op::Sum)
                .expect("block");
            assert_eq!(data[..5], sum(size * 5)[me * 5..][..5]);
            let counts: Vec<usize> = (0..size).map(|r| r + 1).collect();
            let total: usize = counts.iter().sum();
            let mut data = gift(me, 1, total);
            comm.reduce_scatter(&IN_PLACE, &mut data, &counts, Op::Sum)
                .expect("shares");
            let from: usize = counts[..me].iter().sum();
            assert_eq!(data[..counts[me]], sum(total)[from..][..counts[me]]);
        });
    }
}

#[test]
fn counts_of_instances_and_operands_with_gaps() {
    // Every second number; an instance is three of them.
    let every = Type::vector(3, 1, 2, &Type::of::<u32>()).and_then(|t| Type::resized(0, 24, &t));
    let every = every.and_then(|t| t.commit()).expect("every second");
    on_shm(3, |comm| {
        let me = comm.rank();
        let mine: Vec<u32> = gift(me, 0, 12);
        let mut all = vec![7u32; 36];
        // Two instances of rank 1, one of the others.
        let counts = [1, 2, 1];
        let send = View::new(&mine, 0, &every, counts[me]).expect("view");
        let mut recv = ViewMut::new(&mut all, 0, &every, 6).expect("view");
        comm.allgatherv(&send, &mut recv, &counts, &[5, 1, 0])
            .expect("allgatherv");
        let mut right = vec![7u32; 36];
        for (r, at) in [(0, 5), (1, 1), (2, 0)] {
            for i in 0..counts[r] * 3 {
                right[at * 6 + i * 2] = gift(r, 0, 12)[i * 2];
            }
        }
        assert_eq!(all, right);
        // The share of each is one instance.
        let mine = gift(me, 1, 18);
        let mut share = vec![7u32; 6];
        let send = View::new(&mine, 0, &every, 3).expect("view");
        let mut recv = ViewMut::new(&mut share, 0, &every, 1).expect("view");
        comm.reduce_scatter_block(&send, &mut recv, Op::Sum)
            .expect("block");
        let sum = sums((0..3).map(|r| gift(r, 1, 18)));
        for i in 0..6 {
            assert_eq!(share[i], if i % 2 == 0 { sum[me * 6 + i] } else { 7 });
        }
    });
}

#[test]
fn persistent_ones_start_in_any_order() {
    on_all(3, |comm| {
        let me = comm.rank();
        let mut dice = Random::new(me as u64 + 1);
        let mut sets: Vec<_> = (0..6)
            .map(|k| {
                let n = [1, 40, 3000][k % 3];
                comm.allreduce_init(vec![0u64; n], vec![0u64; n], Op::Sum)
                    .expect("init")
            })
            .collect();
        let mut barrier = comm.barrier_init().expect("init");
        for round in 0..8u64 {
            let mut order: Vec<usize> = (0..6).collect();
            dice.shuffle(&mut order);
            for k in &order {
                let value = round * 100 + 10 * *k as u64 + me as u64;
                sets[*k].buffers_mut().expect("inactive").0.fill(value);
                sets[*k].start().expect("start");
            }
            // Others meanwhile, of the numbered kind.
            let mut sum = [0u64];
            comm.allreduce(&[1u64], &mut sum, Op::Sum).expect("sum");
            assert_eq!(sum, [3]);
            barrier.start().expect("start");
            dice.shuffle(&mut order);
            for k in order {
                sets[k].wait().expect("wait");
                let right = 3 * (round * 100 + 10 * k as u64) + 3;
                let sums = &sets[k].buffers().expect("inactive").1;
                assert!(sums.iter().all(|s| *s == right));
            }
            barrier.wait().expect("barrier");
        }
        // Together with a transfer; and what is exchanged is refused.
        let mut send = comm
            .send_init(vec![me as u64], (me + 1) % 3, 0)
            .expect("send");
        let mut recv = comm.recv_init(vec![0u64], (me + 2) % 3, 0).expect("recv");
        start_all([
            &mut recv as &mut dyn osier::persistent::Startable,
            &mut send,
            &mut barrier,
        ])
        .expect("start");
        let (recv, send) = (recv.wait(), send.wait());
        assert!(recv.is_ok() && send.is_ok());
        comm.block_on(&mut barrier).expect("barrier");
        sets[0].buffers_mut().expect("inactive").0 = vec![0; 1];
        fails(
            sets[0].start(),
            ErrorKind::Argument,
            &["set up with", "hint"],
        );
        let moved: Vec<_> = osier::requests::wait_all(sets).expect("inactive");
        assert_eq!(moved.len(), 6);
    });
}

#[test]
fn a_scope_that_ends_with_an_error_gives_up() {
    on_shm(3, |comm| {
        // In segments, each of which needs all ranks.
        comm.use_algorithm(Some((Algorithm::OnePhase, 8)));
        let mine = vec![1u64; 50_000];
        let mut sum = vec![0u64; 50_000];
        let ended = comm.scope(|s| {
            s.iallreduce(&mine, &mut sum, Op::Sum)?;
            match comm.rank() {
                1 => Err(osier::Error::new(ErrorKind::User, "changed its mind")),
                _ => Ok(()),
            }
        });
        assert!(ended.is_err());
        comm.use_algorithm(None);
        comm.barrier().expect("goes on");
        // An operator may borrow what outlives the scope.
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let (one, mut out) = ([1u64], [0u64]);
        let op = function(|a: u64, b: u64| {
            calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            a + b
        });
        comm.scope(|s| s.iallreduce(&one, &mut out, &op).map(drop))
            .expect("scope");
        assert_eq!(out, [3]);
    });
}

#[test]
fn collective_refuses_send_and_receive_of_different_types() {
    on_shm(2, |comm| {
        let mut out = [0i32];
        let e = comm.allreduce(&[1u64], &mut out, Op::Sum);
        fails(e, ErrorKind::Argument, &["u64 given", "i32 wanted", "hint"]);
        let mut out = [0f64];
        let e = comm.allreduce(&[1u64], &mut out, Op::Sum);
        fails(e, ErrorKind::Argument, &["u64 given", "f64 wanted"]);
        let mut out = [0u64; 2];
        let e = comm.allreduce(&[1u64], &mut out, Op::Sum);
        fails(e, ErrorKind::Argument, &["8 bytes into 16", "same count"]);
    });
}
