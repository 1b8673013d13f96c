//! Windows between processes: `exercise windows WHAT`.

use osier::rma::{Updates, Window};
use osier::{Communicator, ErrorKind, Op};

/// Runs one of the programs.
pub fn run(comm: &Communicator, what: &[&str]) {
    match what {
        ["counters", turns] => counters(comm, turns.parse().expect("a number")),
        ["reach", mapped, vector] => reach(comm, [mapped, vector]),
        ["killed"] => killed(comm),
        ["stopped"] => stopped(comm),
        _ => panic!("windows {what:?}?"),
    }
    super::through(comm);
}

/// Windows of all kinds, with this number of elements at each rank.
fn all_kinds(comm: &Communicator, len: usize) -> Vec<Window<u64>> {
    let [many, single] = [Updates::Many, Updates::Single]
        .map(|updates| comm.window_for(len, updates).expect("a window"));
    let vector = comm.window_of(vec![0; len]).expect("a window");
    vec![many, single, vector]
}

/// Everybody counts at rank 0: tickets are handed out once, and a number that is read and written
/// apart, under a lock, ends exact.
fn counters(comm: &Communicator, turns: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    for window in all_kinds(comm, 2 + turns * size) {
        for turn in 0..turns {
            if turn % 2 == 0 {
                let all = window.lock_all();
                for _ in 0..2 {
                    let ticket = all.fetch_and_op(1, 0, 0, Op::Sum).expect("a ticket") as usize;
                    if ticket < turns * size {
                        all.accumulate(&1u64, 0, 2 + ticket, Op::Sum)
                            .expect("a mark");
                    }
                }
            }
            let locked = window.lock(0).expect("a lock");
            let mut there = [0u64];
            locked.get(&mut there, 0, 1).expect("get");
            locked.put(&(there[0] + 1), 0, 1).expect("put");
        }
        window.fence().expect("fence");
        if rank == 0 {
            let there = window.to_vec().expect("a copy");
            let tickets = 2 * turns.div_ceil(2) * size;
            assert_eq!(there[..2], [tickets as u64, (turns * size) as u64]);
            assert!(there[2..].iter().all(|mark| *mark == 1), "each ticket once");
        }
        window.free().expect("free");
    }
}

fn reach(comm: &Communicator, expected: [&str; 2]) {
    let mapped = comm.window::<u64>(100).expect("a window");
    let vector = comm.window_of(vec![0u64; 100]).expect("a window");
    let other = 1 - comm.rank();
    for (window, expected) in [mapped, vector].into_iter().zip(expected) {
        assert_eq!(window.reach_of(other).expect("reached"), expected);
        let mine: Vec<u64> = (0..100).map(|i| 1000 * comm.rank() as u64 + i).collect();
        let put = window.fenced(|epoch| epoch.put(&mine, other, 0));
        put.expect("put");
        let theirs: Vec<u64> = (0..100).map(|i| 1000 * other as u64 + i).collect();
        assert_eq!(window.to_vec().expect("a copy"), theirs);
        window.free().expect("free");
    }
}

/// Rank 1 is killed with the locks of rank 0's parts: rank 2 learns it, and has them then.
fn killed(comm: &Communicator) {
    let windows = all_kinds(comm, 1);
    if comm.rank() == 1 {
        for window in &windows {
            std::mem::forget(window.lock(0).expect("nobody has it"));
        }
    }
    comm.barrier().expect("all are here");
    match comm.rank() {
        1 => super::kill_me(),
        2 => {
            for window in &windows {
                let e = window.lock(0).map(drop).expect_err("rank 1 has it");
                assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
                assert!(e.to_string().contains("rank 1"), "{e}");
                let locked = window.lock(0).expect("it is free now");
                locked.put(&7u64, 0, 0).expect("put");
            }
            comm.send(&[0u8; 0], 0, 3).expect("alive");
        }
        _ => {
            comm.recv(&mut [0u8; 0], 2, 3).expect("alive");
            for window in &windows {
                assert_eq!(window.to_vec().expect("a copy"), [7]);
            }
        }
    }
    // Not all can give them back.
    std::mem::forget(windows);
}

/// Rank 1 is stopped by a signal while rank 0 uses its parts, and goes on behind that.
fn stopped(comm: &Communicator) {
    let windows = all_kinds(comm, 4);
    if comm.rank() == 1 {
        let own = std::process::id();
        comm.send(&own, 0, 3).expect("alive");
        // SAFETY: a system call without pointers.
        unsafe { libc::kill(own.cast_signed(), libc::SIGSTOP) };
    } else {
        let mut pid = 0u32;
        comm.recv(&mut pid, 1, 3).expect("alive");
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
            let behind = stat.rsplit(") ").next().expect("its state");
            behind.chars().next()
        };
        while state() != Some('T') {
            std::thread::yield_now();
        }
        for window in &windows {
            let locked = window.lock(1).expect("nobody has it");
            let mut there = [0u64; 4];
            for turn in 0..100u64 {
                locked.put(&[turn; 3], 1, 0).expect("put");
                locked.accumulate(&1u64, 1, 3, Op::Sum).expect("sum");
                locked.get(&mut there, 1, 0).expect("get");
                assert_eq!(there, [turn, turn, turn, turn + 1]);
            }
        }
        assert_eq!(state(), Some('T'), "nobody has waked it");
        // SAFETY: a system call without pointers.
        unsafe { libc::kill(pid.cast_signed(), libc::SIGCONT) };
    }
    comm.barrier().expect("all are here");
    if comm.rank() == 1 {
        for window in &windows {
            assert_eq!(window.to_vec().expect("a copy"), [99, 99, 99, 100]);
        }
    }
    for window in windows {
        window.free().expect("free");
    }
}
