//! Windows between processes: `exercise windows WHAT`.

use osier::datatype::Type;
use osier::rma::{Updates, Way, Window};
use osier::{Communicator, ErrorKind, Op};

/// Runs one of the programs.
pub fn run(comm: &Communicator, what: &[&str]) {
    match what {
        ["counters", turns] => counters(comm, turns.parse().expect("a number")),
        ["reach", mapped, vector] => reach(comm, [mapped, vector]),
        ["served"] => served(comm),
        ["gaps"] => gaps(comm),
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
        let reach = window.reach_of(other).expect("reached");
        assert_eq!(reach.to_string(), expected);
        let mine: Vec<u64> = (0..100).map(|i| 1000 * comm.rank() as u64 + i).collect();
        let put = window.fenced(|epoch| epoch.put(&mine, other, 0));
        put.expect("put");
        let theirs: Vec<u64> = (0..100).map(|i| 1000 * other as u64 + i).collect();
        assert_eq!(window.to_vec().expect("a copy"), theirs);
        window.free().expect("free");
    }
}

/// Short accesses to rank 0's vector are made by it while it waits, for several origins at once;
/// while it computes they are made without it.
fn served(comm: &Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    let window = comm.window_of(vec![0u64; 16 * size]).expect("a window");
    let go_on = comm.window::<u64>(1).expect("a window");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    comm.barrier().expect("all are here");
    if rank == 0 {
        for from in 1..size {
            comm.recv(&mut [0u8; 0], from, 3).expect("alive");
        }
        // Without a call that serves others.
        for from in 1..size {
            comm.send(&[0u8; 0], from, 4).expect("alive");
        }
        let mut told = [0];
        while told[0] < size as u64 - 1 {
            go_on.read(0, &mut told).expect("inside");
            std::hint::spin_loop();
        }
    } else {
        let all = window.lock_all();
        let mut turn = 0u64;
        let mut exchange = || {
            turn += 1;
            let len = 1 + turn as usize % 14;
            let mine: Vec<u64> = (0..len as u64).map(|i| 1000 * turn + i).collect();
            all.put(&mine[..], 0, 16 * rank).expect("put");
            let mut there = vec![0; len];
            all.get(&mut there[..], 0, 16 * rank).expect("get");
            assert_eq!(there, mine, "turn {turn}");
        };
        (0..2000).for_each(|_| exchange());
        // Ranks that share cores do not ask.
        while cores >= size && window.accesses_by(Way::Owner) < 100 {
            exchange();
        }
        comm.send(&[0u8; 0], 0, 3).expect("alive");
        comm.recv(&mut [0u8; 0], 0, 4).expect("alive");
        let before = [Way::Owner, Way::System].map(|way| window.accesses_by(way));
        (0..200).for_each(|_| exchange());
        let after = [Way::Owner, Way::System].map(|way| window.accesses_by(way));
        assert_eq!(after[0] + after[1] - before[0] - before[1], 400);
        assert!(after[1] > before[1], "rank 0 computes");
        all.unlock().expect("unlock");
        let one = go_on.lock_all();
        one.accumulate(&1u64, 0, 0, Op::Sum).expect("accumulate");
        one.unlock().expect("unlock");
    }
    window.free().expect("free");
    go_on.free().expect("free");
}

/// Layouts with gaps in plain memory of a rank that computes, and of one that waits: of one request
/// and of many, of short and of long runs. What lies between stays as it is.
fn gaps(comm: &Communicator) {
    const LEN: usize = 1 << 15;
    let rank = comm.rank();
    let window = comm.window_of(vec![7u64; LEN]).expect("a window");
    let go_on = comm.window::<u64>(1).expect("a window");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    comm.barrier().expect("all are here");
    if rank == 0 {
        // Without a call that serves others, at first.
        let mut told = [0];
        while told[0] == 0 {
            go_on.read(0, &mut told).expect("inside");
            std::hint::spin_loop();
        }
        comm.recv(&mut [0u8; 0], 1, 3).expect("alive");
    } else {
        let mut model = vec![7u64; LEN];
        let mut turn = 0u64;
        let epoch = window.lock(0).expect("a lock");
        let mut exchange = |(count, block, stride): (usize, usize, usize)| {
            turn += 1;
            let layout = Type::vector(count, block, stride as isize, &Type::of::<u64>());
            let layout = layout.and_then(|ty| ty.commit()).expect("a layout");
            let at = 32 * (turn as usize % 16);
            let mine: Vec<u64> = (0..count * block).map(|i| turn << 32 | i as u64).collect();
            epoch.put_as(&mine, 0, at, &layout, 1).expect("put");
            for (i, value) in mine.iter().enumerate() {
                model[at + i / block * stride + i % block] = *value;
            }
            let mut there = vec![0; mine.len()];
            epoch.get_as(&mut there, 0, at, &layout, 1).expect("get");
            assert_eq!(there, mine, "{count} blocks of {block}, stride {stride}");
            let all = 1 + (count - 1) * stride;
            let mut there = vec![0; all];
            epoch.get(&mut there, 0, at).expect("get");
            assert_eq!(there, model[at..at + all]);
        };
        let shapes = [
            (3, 1, 32),
            (100, 1, 32),
            (1000, 1, 32),
            (1000, 8, 32),
            (500, 1, 64),
            (40, 1, 800),
            (3, 1000, 8192),
            (20, 700, 1600),
        ];
        shapes.into_iter().for_each(&mut exchange);
        let before = window.accesses_by(Way::Owner);
        let one = go_on.lock_all();
        one.accumulate(&1u64, 0, 0, Op::Sum).expect("accumulate");
        one.unlock().expect("unlock");
        shapes.into_iter().for_each(&mut exchange);
        // Ranks that share cores do not ask.
        while cores >= 2 && window.accesses_by(Way::Owner) < before + 20 {
            shapes.into_iter().for_each(&mut exchange);
        }
        epoch.unlock().expect("unlock");
        comm.send(&[0u8; 0], 0, 3).expect("alive");
    }
    window.free().expect("free");
    go_on.free().expect("free");
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
