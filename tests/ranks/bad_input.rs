//! Bad input: an error that says why, and no other harm.

use crate::support::{Watchdog, fails, on_all, pattern};
use osier::{
    ANY_SOURCE, ANY_TAG, Communicator, Datatype, Error, ErrorKind, Op, PROC_NULL, Result, Type,
    Universe, View, ViewMut,
};
use osier_transports::Death;
use osier_transports::shm::{Job, JobOptions};

/// That the communicator is as good as before.
fn still_works(comm: &Communicator) {
    let (me, n) = (comm.rank(), comm.size());
    let mut got = usize::MAX;
    let left = (me + n - 1) % n;
    comm.sendrecv(&me, (me + 1) % n, 77, &mut got, left, 77)
        .expect("it works");
    assert_eq!(got, left);
    assert_eq!(comm.iprobe(ANY_SOURCE, ANY_TAG).expect("iprobe"), None);
    comm.barrier().expect("barrier");
}

/// A type of 2^52 blocks without order: that it does not lie in the buffer is seen before
/// its blocks are compared.
#[test]
fn a_contrived_layout_is_refused_at_once() {
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut ty = Type::of::<u8>();
        for level in 0..52 {
            let stride = (1isize << 40) + (7 << level);
            ty = Type::hvector(2, 1, stride, &ty).expect("a type");
        }
        let layout = ty.commit().expect("a layout");
        let refused = ViewMut::new(&mut [0u8; 64], 0, &layout, 1).map(drop);
        told.send(refused.expect_err("outside")).expect("heard");
    });
    let guard = std::time::Duration::from_secs(60);
    let e = heard.recv_timeout(guard).expect("it ends");
    assert!(e.to_string().contains("the buffer holds"), "{e}");
}

#[test]
fn ranks_out_of_range_are_refused() {
    on_all(2, |comm| {
        let mut b = [0u8];
        let parts = ["rank 2", "communicator of 2", "hint: ranks are 0 to 1"];
        let kind = ErrorKind::Rank;
        fails(comm.send(&b, 2, 0), kind, &parts);
        fails(comm.ssend(&b, 2usize, 0), kind, &parts);
        fails(comm.recv(&mut b, 2u32, 0), kind, &parts);
        fails(comm.isend(vec![0u8], 2, 0).map(drop), kind, &parts);
        fails(comm.irecv(vec![0u8], 2, 0).map(drop), kind, &parts);
        fails(comm.probe(2, 0), kind, &parts);
        fails(comm.iprobe(2, 0), kind, &parts);
        fails(comm.mprobe(2, 0), kind, &parts);
        fails(comm.improbe(2, 0), kind, &parts);
        fails(comm.recv_vec::<u8>(2, 0), kind, &parts);
        fails(comm.transport(2), kind, &parts);
        fails(comm.bcast(&mut b, 2), kind, &parts);
        fails(comm.gather(&[0u8], &mut [0u8; 2], 2), kind, &parts);
        let mut r = [0u8];
        fails(comm.sendrecv(&b, 2, 0, &mut r, 0, 0), kind, &parts);
        fails(comm.sendrecv(&b, 0, 0, &mut r, 2, 0), kind, &parts);
        fails(comm.scope(|s| s.isend(&b, 2, 0).map(drop)), kind, &parts);
        fails(
            comm.scope(|s| s.irecv(&mut r, 2, 0).map(drop)),
            kind,
            &parts,
        );
        for bad in [i64::MIN, -1, 1 << 40, i64::MAX] {
            fails(comm.send(&b, bad, 0), kind, &["hint"]);
            fails(comm.recv(&mut b, bad, 0), kind, &["hint"]);
        }
        fails(comm.send(&b, usize::MAX, 0), kind, &["hint"]);
        fails(comm.bcast(&mut b, PROC_NULL), kind, &["root"]);
        still_works(&comm);
    });
}

#[test]
fn tags_out_of_range_are_refused() {
    on_all(2, |comm| {
        let mut b = [0u8];
        let kind = ErrorKind::Tag;
        for bad in [-1i64, 1 << 31, i64::MAX, i64::MIN, i64::MIN + 1] {
            fails(
                comm.send(&b, 0, bad),
                kind,
                &["tag", "hint: tags are 0 to 2147483647"],
            );
            fails(comm.isend(vec![0u8], 0, bad).map(drop), kind, &["hint"]);
            fails(comm.send(&b, PROC_NULL, bad), kind, &["hint"]);
        }
        for bad in [-1i64, 1 << 31, i64::MAX, i64::MIN] {
            fails(comm.irecv(vec![0u8], 0, bad).map(drop), kind, &["hint"]);
            fails(comm.probe(0, bad), kind, &["hint"]);
        }
        let mut r = [0u8];
        fails(comm.sendrecv(&b, 0, -1, &mut r, 0, 0), kind, &["tag -1"]);
        fails(comm.sendrecv(&b, 0, 0, &mut r, 0, -1), kind, &["tag -1"]);
        let me = comm.rank();
        comm.sendrecv(&[5u8], me, i32::MAX, &mut b, me, i32::MAX)
            .expect("the largest tag");
        assert_eq!(b, [5]);
        still_works(&comm);
    });
}

#[test]
fn counts_that_do_not_agree() {
    on_all(2, |comm| {
        let kind = ErrorKind::Argument;
        let mut three = [0u8; 3];
        fails(
            comm.allgather(&[0u8], &mut three),
            kind,
            &["allgather", "3", "2"],
        );
        fails(
            comm.allreduce(&[0u8], &mut three, Op::Sum),
            kind,
            &["allreduce", "1", "3"],
        );
        if comm.rank() == 0 {
            fails(
                comm.gather(&[0u8], &mut three, 0),
                kind,
                &["hint: make it 2"],
            );
        } else {
            comm.gather(&[0u8], &mut three, 0).expect("sent");
        }
        still_works(&comm);
        // One rank passes less than the root.
        let mut data = vec![1u16; if comm.rank() == 0 { 3 } else { 5 }];
        let result = comm.bcast(&mut data, 0);
        if comm.rank() == 1 {
            fails(
                result,
                kind,
                &["rank 0 sent 6 bytes", "expected 10", "hint"],
            );
        }
        let mut data = vec![1u16; if comm.rank() == 0 { 5 } else { 3 }];
        let result = comm.bcast(&mut data, 0);
        if comm.rank() == 1 {
            fails(result, ErrorKind::Truncated, &["bcast", "10", "6"]);
        }
        still_works(&comm);
    });
}

/// Counts are equal, so the call is that of equal shares on all ranks, the one that fails too.
#[test]
fn results_of_another_length_fail_at_all_ranks() {
    on_all(3, |comm| {
        for elements in [1, 3000] {
            let data = vec![1u32; 3 * elements];
            let mut share = vec![0u32; elements + usize::from(comm.rank() == 1)];
            let result = comm.reduce_scatter(&data, &mut share, &[elements; 3], Op::Sum);
            match comm.rank() {
                1 => fails(
                    result,
                    ErrorKind::Argument,
                    &["reduce_scatter", "hint: its count is that of this rank"],
                ),
                _ => fails(result, ErrorKind::Cancelled, &["has failed", "hint"]),
            };
            still_works(&comm);
        }
        // One after the other: no flag that says so may take the place of one before.
        let bad = usize::from(comm.rank() == 1);
        for call in 0..9 {
            let mut one = vec![0u8; 1 + bad];
            let result = comm.allreduce(&[1u8], &mut one, Op::Sum);
            let kind = match comm.rank() {
                1 => ErrorKind::Argument,
                _ => ErrorKind::Cancelled,
            };
            let e = fails(result, kind, &["allreduce"]);
            assert!(!e.to_string().contains("overwritten"), "call {call}: {e}");
        }
        still_works(&comm);
    });
}

#[test]
fn bad_arguments_in_the_middle_of_an_exchange_lose_nothing() {
    on_all(2, |comm| {
        let peer = 1 - comm.rank();
        let mut got = vec![0u8; 300_000];
        let data = pattern(300_000, comm.rank());
        comm.scope(|s| {
            s.irecv(&mut got, peer, 0)?;
            fails(s.isend(&data, 9, 0), ErrorKind::Rank, &["rank 9"]);
            fails(s.isend(&data, peer, -5), ErrorKind::Tag, &["tag -5"]);
            s.isend(&data, peer, 0)?;
            Ok(())
        })
        .expect("scope");
        assert!(got == pattern(300_000, peer));
        still_works(&comm);
    });
}

#[test]
fn errors_are_one_word_and_have_their_source() {
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    let e = Type::subarray(&[3], &[4], &[0], osier::Order::C, &Type::of::<u8>());
    let e = Error::from(e.expect_err("larger than the array"));
    assert_eq!(e.kind(), ErrorKind::Datatype);
    assert!(std::error::Error::source(&e).is_some());
    let e = e.context("building the face");
    assert!(e.to_string().starts_with("building the face: "), "{e}");
}

/// Ranks in shared memory of a limited size.
fn with_limit(ranks: usize, limit_bytes: u64, f: impl Fn(&Universe) + Sync) {
    let _watchdog = Watchdog::start();
    let job = Job::create(&JobOptions {
        ranks,
        limit_bytes: Some(limit_bytes),
    })
    .expect("a job");
    std::thread::scope(|s| {
        for rank in 0..ranks {
            let (job, f) = (&job, &f);
            s.spawn(move || {
                /// However it ends, the others hear of it.
                struct Ends<'a>(&'a Job, usize);
                impl Drop for Ends<'_> {
                    fn drop(&mut self) {
                        self.0.mark_dead(self.1, Death::Exited(0));
                    }
                }
                let _ends = Ends(job, rank);
                let universe = Universe::join(job, rank).expect("a place");
                f(&universe);
            });
        }
    });
}

/// Memory that is not contiguous, so that it goes in fragments.
fn send_strided(comm: &Communicator, n: usize, dest: usize) -> Result<()> {
    let gaps = Type::vector(n, 1, 2, &Type::of::<u64>()).and_then(|t| t.commit())?;
    let memory = vec![3u64; 2 * n];
    comm.send(&View::new(&memory, 0, &gaps, 1)?, dest, 9)
}

/// A communicator with rings that are as small as they come: several messages were on their way at
/// a time, and no more.
fn with_rings(comm: &Communicator) -> Communicator {
    let new = comm.dup().expect("there is memory");
    let (left, right) = (comm.size() - 1, comm.size() + 1);
    let [left, right] = [left, right].map(|by| (comm.rank() + by) % comm.size());
    let sent: Vec<_> = (0..8)
        .map(|_| new.isend(vec![0u8; 100], right, 0))
        .collect();
    new.barrier().expect("all were sent");
    for sent in sent {
        new.recv_vec::<u8>(left, 0).expect("received");
        sent.and_then(|sent| sent.wait()).expect("sent");
    }
    new
}

/// Makes communicators until no rank has memory for a ring of another one.
fn fill(comm: &Communicator) -> Vec<Communicator> {
    let mut all = Vec::new();
    loop {
        let new = comm.dup().expect("it needs messages of the old one only");
        // A ring per peer and communicator: at last none is left, for one rank and then for all.
        let dest = (comm.rank() + 1) % comm.size();
        let sent = new.isend(vec![0u8; 100], dest, 0);
        all.push(new);
        let mut failed = [0u8];
        comm.allreduce(&[u8::from(sent.is_err())], &mut failed, Op::Min)
            .expect("the old one works");
        if let Err(e) = sent {
            fails::<()>(Err(e), ErrorKind::OutOfMemory, &["send to rank", "hint"]);
        }
        if failed[0] != 0 {
            return all;
        }
        assert!(all.len() < 1000, "the limit does not hold");
    }
}

#[test]
fn full_shared_memory_is_an_error_at_the_heap() {
    with_limit(2, 7 << 20, |universe| {
        let comm = universe.world();
        comm.barrier().expect("small messages");
        let e = fails(
            comm.alloc::<u64>(1 << 20),
            ErrorKind::OutOfMemory,
            &["hint", "OSIER_SHM_LIMIT"],
        );
        assert!(e.to_string().contains("7168 KiB"), "{e}");
        fails(comm.alloc::<u64>(usize::MAX), ErrorKind::OutOfMemory, &[]);
        fails(
            comm.alloc::<u64>(usize::MAX / 8),
            ErrorKind::OutOfMemory,
            &[],
        );
        still_works(comm);
        let small = comm.alloc::<u64>(100).expect("a little is left");
        assert_eq!(small.len(), 100);
        still_works(comm);
    });
}

#[test]
fn full_shared_memory_is_an_error_at_large_messages() {
    with_limit(2, 1 << 20, |universe| {
        let comm = universe.world();
        // Not the one that communicators are made from: its rings may have grown meanwhile.
        let comm = &with_rings(comm);
        let _full = fill(universe.world());
        for _ in 0..3 {
            if comm.rank() == 0 {
                let result = send_strided(comm, 100_000, 1);
                fails(result, ErrorKind::OutOfMemory, &["rank 1", "hint"]);
            } else {
                // The sender cannot send what it has announced.
                let mut got = vec![0u64; 100_000];
                let e = comm.recv(&mut got, 0, 9).expect_err("it never comes");
                assert!(
                    matches!(e.kind(), ErrorKind::Cancelled | ErrorKind::OutOfMemory),
                    "{e:?}"
                );
            }
            still_works(comm);
        }
        // What needs no fragments goes on, too.
        let data = pattern(1_000_000, 0);
        if comm.rank() == 0 {
            comm.send(&data, 1, 1).expect("plain memory");
        } else {
            let (got, _) = comm.recv_vec::<u8>(0, 1).expect("plain memory");
            assert!(got == data);
        }
        still_works(comm);
    });
}

#[test]
fn full_shared_memory_is_an_error_at_new_communicators() {
    with_limit(3, 1 << 20, |universe| {
        let comm = universe.world();
        let comm = &with_rings(comm);
        let mut all = fill(universe.world());
        // What is given up can be used again.
        all.clear();
        comm.barrier().expect("all have dropped theirs");
        still_works(comm);
    });
}

#[test]
fn jobs_of_impossible_size_are_refused() {
    for ranks in [0, 1 << 20] {
        let options = JobOptions {
            ranks,
            limit_bytes: None,
        };
        let e = Job::create(&options).map(drop).map_err(Error::from);
        fails(e, ErrorKind::Argument, &[&ranks.to_string()]);
    }
    let options = JobOptions {
        ranks: 2,
        limit_bytes: None,
    };
    let job = Job::create(&options).expect("a job");
    fails(
        Universe::join(&job, 2),
        ErrorKind::Argument,
        &["rank 2", "2 ranks"],
    );
    let first = Universe::join(&job, 1).expect("free");
    fails(
        Universe::join(&job, 1),
        ErrorKind::Argument,
        &["rank 1", "already taken", "hint"],
    );
    drop(first);
    for garbage in [
        "",
        "1",
        "2:",
        "2:x",
        "1:3,4,5",
        "2:3,4",
        "2:999999,999998,999997",
        "2:-1,-1,-1",
    ] {
        let e = Job::attach(garbage).map(drop).map_err(Error::from);
        let e = e.expect_err(garbage);
        assert!(e.to_string().contains("hint"), "{garbage:?}: {e}");
    }
}

#[test]
fn a_rank_without_a_job_is_a_job_of_one() {
    let _watchdog = Watchdog::start();
    let universe = Universe::alone().expect("alone");
    let comm = universe.world();
    assert_eq!((comm.rank(), comm.size()), (0, 1));
    still_works(comm);
    fails(comm.send(&[0u8], 1, 0), ErrorKind::Rank, &["hint"]);
    let buffer = comm.alloc::<f32>(10).expect("plain memory");
    assert!(!buffer.is_shared());
    assert_eq!(f32::layout().size(), 4);
    let dup = comm.dup().expect("dup");
    still_works(&dup);
    assert_ne!(dup.context(), universe.own().context());
}
