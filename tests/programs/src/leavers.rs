//! Processes that end while others receive from any source: killed, finalized, or neither.

use crate::{kill_me, through};
use osier::{ANY_SOURCE, ANY_TAG, Communicator, ErrorKind};

/// What a worker is told when there is nothing left to do.
const HOME: u64 = u64::MAX;

/// A master and workers, of which rank 1 is killed with its third task.
pub fn workers(comm: &Communicator) {
    const TASKS: u64 = 200;
    if comm.rank() != 0 {
        for done in 0.. {
            comm.send(&[comm.rank() as u64], 0, 0).expect("asks");
            let mut task = 0u64;
            comm.recv(&mut task, 0, 1).expect("an answer");
            if task == HOME {
                return through(comm);
            }
            if comm.rank() == 1 && done == 2 {
                kill_me();
            }
            let answer = [task, task * task];
            comm.send(&answer, 0, 2).expect("a result");
        }
    }
    let mut open: Vec<u64> = (0..TASKS).collect();
    let mut given = vec![None; comm.size()];
    let mut waiting = Vec::new();
    let mut results = vec![None; TASKS as usize];
    let mut told = 0;
    while told == 0 || results.iter().any(Option::is_none) {
        match comm.recv_vec::<u64>(ANY_SOURCE, ANY_TAG) {
            Ok((message, status)) => {
                let from = status.source().expect("a rank");
                match message[..] {
                    [task, square] => {
                        assert_eq!(given[from].take(), Some(task));
                        results[task as usize] = Some(square);
                    }
                    _ => waiting.push(from),
                }
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
                assert!(
                    e.to_string().contains("rank 1 was killed by signal 9"),
                    "{e}"
                );
                assert_eq!(comm.acknowledge_failures(), [1]);
                open.extend(given[1].take());
                told += 1;
            }
        }
        // Rank 1 gets its three, however slow it is.
        let spare = |open: &[u64]| told != 0 || open.len() > 3;
        while let Some(at) = waiting.iter().position(|w| *w == 1 || spare(&open))
            && let Some(task) = open.last()
        {
            let to = waiting.remove(at);
            // Who is dead gets nothing, and is heard of above.
            if comm.send(task, to, 1).is_ok() {
                given[to] = open.pop();
            }
        }
    }
    assert_eq!(told, 1);
    assert!((0..TASKS).all(|n| results[n as usize] == Some(n * n)));
    for living in 2..comm.size() {
        comm.send(&HOME, living, 1).expect("it lives");
    }
    through(comm);
}

/// Ranks end at different moments; rank 0 has receives that nobody meets. Rank 1 exits with
/// code 0 without finalizing, if it is to fail.
pub fn leave(comm: &Communicator, fails: bool) {
    if comm.rank() != 0 {
        if comm.rank() == 1 && fails {
            std::process::exit(0);
        }
        return through(comm);
    }
    let mut standing = [1, 2].map(|from| comm.irecv(vec![0u8], from, 5).expect("irecv"));
    if fails {
        while !standing[0].test() {
            std::thread::yield_now();
        }
        let [failed, mut other] = standing;
        let e = failed.wait().expect_err("rank 1 has failed");
        let cause = "rank 1 exited with code 0 without finalizing";
        assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
        assert!(e.to_string().contains(cause), "{e}");
        assert!(other.cancel());
        return through(comm);
    }
    let mut any = comm.irecv(vec![0u8], ANY_SOURCE, ANY_TAG).expect("irecv");
    // This returns when both are known to have finalized.
    let e = comm.recv(&mut [0u8], ANY_SOURCE, 6).expect_err("nobody");
    assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
    for who in ["rank 1 has finalized", "rank 2 has finalized"] {
        assert!(e.to_string().contains(who), "{e}");
    }
    for _ in 0..1000 {
        assert!(!standing[0].test() && !standing[1].test() && !any.test());
        assert!(comm.iprobe(1, ANY_TAG).expect("no error").is_none());
        assert!(comm.iprobe(ANY_SOURCE, ANY_TAG).expect("none").is_none());
    }
    assert!(comm.failed_ranks().is_empty());
    assert!(standing.iter_mut().all(|receive| receive.cancel()) && any.cancel());
    through(comm);
}
