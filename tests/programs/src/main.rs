//! What ranks do in the tests of real processes: `exercise WHAT`.
//!
//! Checks panic; the tests see the exit code and the text.

mod blocks;
mod checks;
mod collectives;
mod counts;
mod delayed;
mod device_windows;
mod devices;
mod foreign;
mod garbled;
mod graph_deaths;
mod halts;
mod joined;
mod leavers;
mod lifetimes;
mod mapped;
mod matrix;
mod one_kernel;
mod reductions;
mod scribbles;
mod still;
mod windows;

use std::process::ExitCode;

use osier::{ANY_SOURCE, ANY_TAG, Communicator, ErrorKind, Op, Type, Universe, View, ViewMut};
use std::time::{Duration, Instant};

const SIZES: [usize; 11] = [
    0, 8, 49, 600, 2_049, 30_000, 65_537, 100_000, 200_000, 1_000_000, 3_000_003,
];

fn main() -> ExitCode {
    let what: Vec<String> = std::env::args().skip(1).collect();
    let what: Vec<&str> = what.iter().map(String::as_str).collect();
    if let ["run", what @ ..] = &what[..] {
        return osier::run_code(|comm| threads(comm, what));
    }
    if let ["virtual", workers, what @ ..] = &what[..] {
        let workers = workers.parse().expect("a number");
        return osier::task::run_ranks_code(workers, |comm| threads(comm, what));
    }
    if let ["virtual-job", n, workers, how] = what[..] {
        // Virtual ranks of a job of their own, without a launcher.
        let [n, workers] = [n, workers].map(|n| n.parse().expect("a number"));
        osier::task::ranks(n, workers, |comm| hang(&comm, how)).expect("ranks");
        return ExitCode::SUCCESS;
    }
    if let ["session"] = what[..] {
        return match osier::Session::init() {
            Ok(session) => {
                println!("rank {}", session.rank());
                ExitCode::SUCCESS
            }
            Err(e) => {
                eprintln!("exercise: {e} [{:?}]", e.kind());
                ExitCode::from(9)
            }
        };
    }
    if let ["matrix-jobs", launcher, program] = what[..] {
        matrix::print_jobs(launcher, program);
        return ExitCode::SUCCESS;
    }
    if let ["outsider", what @ ..] = &what[..] {
        still::outsider(what);
        return ExitCode::SUCCESS;
    }
    if let ["sets"] = what[..] {
        sets();
        return ExitCode::SUCCESS;
    }
    let universe = match osier::init() {
        Ok(universe) => universe,
        Err(e) => {
            eprintln!("exercise: {e} [{:?}]", e.kind());
            return ExitCode::from(9);
        }
    };
    let comm = universe.world();
    match what[..] {
        ["join"] => println!("rank {} of {}", comm.rank(), comm.size()),
        ["sizes"] => sizes(comm, &SIZES),
        ["far-sizes"] => {
            exchange(comm, &SIZES);
            through(comm);
        }
        ["some-sizes"] => sizes(comm, &[0, 8, 600, 30_000, 200_000]),
        ["scribble", seed] => scribbles::run(comm, seed.parse().expect("a number")),
        ["traffic", seed] => scribbles::traffic(comm, seed.parse().expect("a number")),
        ["device-traffic", seed] => {
            scribbles::device_traffic(comm, seed.parse().expect("a number"));
        }
        ["crowd"] => crowd(comm),
        ["die", how] => die(comm, how),
        ["stream", how, way] => stream(comm, how, way),
        ["wait"] => wait(comm),
        ["die-inside"] => die_inside(comm),
        ["workers"] => leavers::workers(comm),
        ["leave", how] => leavers::leave(comm, how == "failing"),
        ["survive", left] => survive(comm, left.parse().expect("a number")),
        ["early", code] => early(comm, code.parse().expect("a code"), false),
        ["parted"] => parted(comm),
        ["full"] => full(&universe),
        ["twice"] => twice(comm),
        ["child", says] => child(comm, says),
        ["once-more", says] => {
            let e = osier::init().expect_err("joined already");
            assert!(e.to_string().contains(says), "{e}");
            sizes(comm, &SIZES);
        }
        ["abort", code] => abort(&universe, code.parse().expect("a code")),
        ["fatal"] => fatal(comm),
        ["panic-hook"] => panic_hook(comm),
        ["hang", how] => hang(comm, how),
        ["slow", how] => slow(comm, how),
        ["blocks", how] => blocks::run(&universe, how),
        ["halts", how] => halts::run(comm, how),
        ["graph-deaths", seed, victim, point] => {
            let [seed, point] = [seed, point].map(|n| n.parse().expect("a number"));
            graph_deaths::run(comm, seed, victim.parse().expect("a number"), point);
        }
        ["graph-traffic", seed] => {
            graph_deaths::traffic(comm, seed.parse().expect("a number"));
        }
        ["stuck", how] => still::stuck(comm, how),
        ["looks-stuck", how] => still::looks_stuck(comm, how),
        ["devices"] => devices::exchange(comm),
        ["device-exhaust"] => devices::exhaust(comm),
        ["device-steps"] => devices::steps(comm),
        ["device-lifetime", how] => lifetimes::run(comm, how),
        ["device-reductions"] => reductions::run(comm),
        ["device-reductions-deaths"] => reductions::until_death(comm),
        ["device-counts", calls, way] => {
            counts::run(comm, calls.parse().expect("a number"), way);
        }
        ["device-joined"] => joined::run(comm),
        ["one-kernel", ref what @ ..] => one_kernel::run(comm, what),
        ["device-garbled"] => garbled::run(comm),
        ["device-stream", how] => devices::stream(comm, how),
        ["mapped", ref what @ ..] => mapped::run(comm, what),
        ["matrix", ref what @ ..] => matrix::run(comm, what),
        ["collectives", "exchanges"] => collectives::exchanges(comm),
        ["collectives", ref what @ ..] => collectives::run(comm, what),
        ["delay", ref what @ ..] => delayed::run(comm, what),
        ["windows", ref what @ ..] => windows::run(comm, what),
        ["device-windows"] => device_windows::run(comm),
        ["device-windows", "first"] => device_windows::first(comm),
        ["device-windows", "killed"] => device_windows::killed(comm),
        ["check", what] => checks::check(comm, what),
        ["threads", how] => {
            // Ranks of a job of their own, without a launcher.
            osier::testing::ranks(2, |comm| hang(&comm, how));
        }
        ["threads", "halts", ranks, how] => {
            let ranks = ranks.parse().expect("a number");
            osier::testing::ranks(ranks, |comm| halts::run(&comm, how));
        }
        _ => panic!("exercise {what:?}?"),
    }
    ExitCode::SUCCESS
}

/// What ranks do that may be threads of one process: `exercise run WHAT`.
fn threads(comm: Communicator, what: &[&str]) -> u8 {
    match what {
        ["sizes"] => sizes(&comm, &SIZES),
        ["devices"] => devices::exchange(&comm),
        ["one-kernel", what @ ..] => one_kernel::run(&comm, what),
        ["mapped", what @ ..] => mapped::run(&comm, what),
        ["delay", what @ ..] => delayed::run(&comm, what),
        ["windows", what @ ..] => windows::run(&comm, what),
        ["device-windows"] => device_windows::run(&comm),
        ["device-windows", "first"] => device_windows::first(&comm),
        ["matrix", what @ ..] => matrix::run(&comm, what),
        ["crowd"] => crowd(&comm),
        ["hang", how] => hang(&comm, how),
        ["stuck", how] => still::stuck(&comm, how),
        ["half-dies"] => half_dies(&comm),
        ["wait"] => wait(&comm),
        ["leave"] => leavers::leave(&comm, false),
        ["early"] if comm.rank() == 1 => {
            comm.barrier().expect("all are here");
            comm.send(&[1u8], 0, 0).expect("the last word");
        }
        ["early"] => early(&comm, 0, true),
        ["fails"] => {
            comm.barrier().expect("all are here");
            if comm.rank() == 1 {
                return 7;
            }
            comm.recv(&mut [0u8], 1, 0).expect_err("nobody sends");
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
        ["panic"] => {
            assert_ne!(comm.rank(), 1, "as asked");
            comm.recv(&mut [0u8], 1, 0).expect_err("nobody sends");
        }
        ["where"] => {
            let cpus = std::fs::read_to_string("/proc/thread-self/status").expect("its status");
            let cpus = cpus
                .lines()
                .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
            println!(
                "rank {} pid {} cpus {}",
                comm.rank(),
                std::process::id(),
                cpus.expect("a list").trim()
            );
        }
        ["stdin"] => {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("a line");
            println!("rank {} read {line:?}", comm.rank());
        }
        _ => panic!("exercise run {what:?}?"),
    }
    0
}

fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n)
        .map(|i| (i * 31 + seed * 7 + (i >> 8)) as u8)
        .collect()
}

/// A session without a world, and the launcher's process sets.
fn sets() {
    let session = osier::Session::init().expect("a session");
    let names: Vec<&str> = session.process_sets().names().collect();
    assert_eq!(names, ["mpi://WORLD", "mpi://SELF", "ocean", "ice"]);
    let e = osier::Session::init().expect_err("the place is taken");
    assert!(e.to_string().contains("already taken"), "{e}");
    let [ocean, ice] = ["ocean", "ice"].map(|name| session.group(name).expect("a set"));
    let (name, mine, other) = match ocean.rank_of(session.rank()) {
        Some(_) => ("ocean", &ocean, &ice),
        None => ("ice", &ice, &ocean),
    };
    let info = session.process_sets().info(name).expect("a set");
    assert_eq!(info.get("mpi_size"), Some(mine.size().to_string().as_str()));
    // Two parts of the program, each with a session of its own.
    let part = session.another();
    let comm = part.create_from_group(mine, name).expect("a model");
    let mut sum = [0u64];
    comm.allreduce(&[session.rank() as u64], &mut sum, Op::Sum)
        .expect("allreduce");
    assert_eq!(sum[0] as usize, mine.world_ranks().sum::<usize>());
    let coupler = part
        .intercomm_create_from_groups(mine, 0, other, 0, "coupler")
        .expect("a coupler");
    coupler
        .allreduce(&[session.rank() as u64], &mut sum, Op::Sum)
        .expect("across");
    assert_eq!(sum[0] as usize, other.world_ranks().sum::<usize>());
    let all = coupler.merge(name == "ice").expect("all");
    through(&all);
}

/// Rank 1 ends the job; the others wait for ever.
fn abort(universe: &Universe, code: i32) {
    universe.world().barrier().expect("all are here");
    if universe.world().rank() == 1 {
        universe.abort(code);
    }
    let _ = universe.world().recv(&mut [0u8], ANY_SOURCE, 0);
    std::thread::sleep(std::time::Duration::from_secs(600));
}

/// An error on a communicator whose errors are fatal ends the job.
fn fatal(comm: &Communicator) {
    let strict = comm.dup().expect("dup");
    strict.set_name("strict").expect("short");
    strict.set_error_handler(osier::errors::ErrorHandler::Fatal);
    comm.barrier().expect("all are here");
    if comm.rank() == 1 {
        let _ = strict.send(&[0u8], 99, 0);
    }
    let _ = comm.recv(&mut [0u8], ANY_SOURCE, 0);
    std::thread::sleep(std::time::Duration::from_secs(600));
}

/// Says that this rank is through; printed once per rank.
fn through(comm: &Communicator) {
    println!("rank {} is through", comm.rank());
}

/// Child processes are no ranks: they say this, and disturb nobody.
fn child(comm: &Communicator, says: &str) {
    comm.barrier().expect("all are here");
    let own = std::env::current_exe().expect("this program");
    let start = |alone: &str| {
        let mut command = std::process::Command::new(&own);
        // It has what this process has, as far as that is passed on.
        command.arg("join").env("OSIER_ALONE", alone);
        let done = command.stdin(std::process::Stdio::inherit()).output();
        done.expect("it starts")
    };
    let done = start("");
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(text.contains(says), "{text}");
    assert_eq!(done.status.code(), Some(9), "{text}");
    let done = start("1");
    let text = String::from_utf8_lossy(&done.stdout);
    assert_eq!(text, "rank 0 of 1\n", "{done:?}");
    sizes(comm, &SIZES);
}

/// Every size on every way: plain memory, heap, with gaps.
fn sizes(comm: &Communicator, all: &[usize]) {
    exchange(comm, all);
    let right = (comm.rank() + 1) % comm.size();
    let transport = comm.transport(right).expect("neighbor");
    assert!(matches!(transport, "shm" | "delayed shm"), "{transport}");
    through(comm);
}

/// The same, whatever carries it.
fn exchange(comm: &Communicator, sizes: &[usize]) {
    let (me, n) = (comm.rank(), comm.size());
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    for (i, &bytes) in sizes.iter().enumerate() {
        let (mine, theirs) = (pattern(bytes, me + i), pattern(bytes, left + i));
        let mut got = vec![0; bytes];
        comm.sendrecv(&mine, right, i, &mut got, left, i)
            .expect("plain");
        assert!(got == theirs, "plain, {bytes} bytes");

        let mut heap = comm.alloc::<u8>(bytes).expect("heap");
        assert!(heap.is_shared() || n == 1);
        heap.copy_from_slice(&mine);
        let mut into = comm.alloc::<u8>(bytes).expect("heap");
        comm.sendrecv(&heap, right, i, &mut into, left, ANY_TAG)
            .expect("heap");
        assert!(*into == *theirs, "heap, {bytes} bytes");

        if bytes == 0 {
            continue;
        }
        let gaps = Type::vector(bytes, 1, 2, &Type::of::<u8>()).and_then(|t| t.commit());
        let gaps = gaps.expect("a type");
        let mut wide = vec![0u8; 2 * bytes];
        wide.iter_mut()
            .step_by(2)
            .zip(&mine)
            .for_each(|(w, m)| *w = *m);
        let view = View::new(&wide, 0, &gaps, 1).expect("view");
        let mut sparse = vec![255u8; 2 * bytes];
        let mut sparse_view = ViewMut::new(&mut sparse, 0, &gaps, 1).expect("view");
        comm.scope(|s| {
            s.irecv(&mut sparse_view, ANY_SOURCE, i)?;
            s.issend(&view, right, i)?;
            Ok(())
        })
        .expect("gaps");
        let (filled, left_alone): (Vec<u8>, Vec<u8>) =
            sparse.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
        assert!(filled == theirs, "gaps, {bytes} bytes");
        assert!(left_alone.iter().all(|b| *b == 255));
    }
}

/// Many ranks on few cores.
fn crowd(comm: &Communicator) {
    let (me, n) = (comm.rank(), comm.size());
    let half = comm
        .split(Some(me as u32 % 2), 0)
        .expect("split")
        .expect("a color");
    for round in 0..30u64 {
        let mut sum = [0u64];
        comm.allreduce(&[me as u64 + round], &mut sum, Op::Sum)
            .expect("allreduce");
        assert_eq!(sum[0], (n * (n - 1) / 2) as u64 + n as u64 * round);
        half.barrier().expect("barrier");
        let mine = vec![me as u64; 1_000];
        let mut all = vec![0u64; if me == 0 { 1_000 * n } else { 0 }];
        comm.gather(&mine, &mut all, 0).expect("gather");
        assert!(all.iter().enumerate().all(|(i, x)| *x == i as u64 / 1_000));
    }
    through(comm);
}

/// Ranks go round until some are lost; the given number that is left goes on.
fn survive(comm: &Communicator, left: usize) {
    let sum = |comm: &Communicator| {
        let mut sum = [0u64];
        comm.allreduce(&[1u64], &mut sum, Op::Sum).map(|()| sum[0])
    };
    let mut said = false;
    let e = loop {
        match sum(comm) {
            Ok(n) => assert_eq!(n, comm.size() as u64),
            Err(e) => break e,
        }
        if !std::mem::replace(&mut said, true) {
            println!("rank {} goes round", comm.rank());
        }
    };
    println!("{e}");
    // Those that live agree on who they are; all that are lost are known a little later.
    let first = comm.shrink();
    if let Ok(first) = &first {
        assert!(first.size() >= left);
    }
    while comm.size() - comm.failed_ranks().len() > left {
        std::thread::yield_now();
    }
    let failed = comm.acknowledge_failures();
    for rank in &failed {
        println!("{}", comm.send(&[0u8], *rank, 0).expect_err("it is lost"));
    }
    let living = (0..comm.size()).filter(|rank| !failed.contains(rank));
    let world = |rank| comm.group().world_rank(rank).expect("a member");
    let living: Vec<usize> = living.map(world).collect();
    let group = osier::Group::from_world_ranks(&living).expect("a group");
    match comm.create_group(&group, 0).and_then(|rest| sum(&rest)) {
        Ok(n) => println!("rank {} goes on with {n}", comm.rank()),
        Err(e) => println!("rank {} does not go on: {e}", comm.rank()),
    }
}

/// Ranks that wait for each other for ever.
fn hang(comm: &Communicator, how: &str) {
    let (me, n) = (comm.rank(), comm.size());
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    let mut word = [0u64];
    // Something comes and goes first.
    comm.sendrecv(&[1u64], right, 0, &mut word, left, 0)
        .expect("a neighbor");
    match how {
        "recv" => drop(comm.recv(&mut word, left, 7)),
        "ssend" => drop(comm.ssend(&word, right, 8)),
        // Larger than what goes without asking.
        "large" => drop(comm.send(&vec![0u8; 8 << 20], right, 8)),
        "any" => drop(comm.recv(&mut word, ANY_SOURCE, ANY_TAG)),
        "probe" => drop(comm.probe(left, 9)),
        "barrier" if me != 0 => drop(comm.barrier()),
        "barrier" => drop(comm.recv(&mut word, 1, 5)),
        "scope" => drop(comm.scope(|s| {
            s.isend(&[5u64], right, 3)?;
            s.irecv(&mut word, left, 4)?;
            Ok(())
        })),
        "request" => {
            let request = comm.irecv(vec![0u64; 3], left, 4).expect("posted");
            drop(osier::requests::wait_any(&mut vec![request]));
        }
        "set" => {
            let mut set = osier::requests::WaitSet::new();
            let request = comm.irecv(vec![0u64; 3], left, 4).expect("posted");
            set.add((), request).expect("one of ours");
            drop(set.wait());
        }
        "future" => {
            let request = comm.irecv(vec![0u64; 3], left, 4).expect("posted");
            drop(comm.block_on(request));
        }
        "two-threads" => {
            let other = comm.dup().expect("dup");
            std::thread::scope(|s| {
                s.spawn(|| drop(other.recv(&mut [0u64], left, 1)));
                drop(comm.recv(&mut [0u64], right, 2));
            });
        }
        // One rank is through, and nobody else can be.
        "one-left" if me == 0 => std::thread::sleep(Duration::from_secs(600)),
        "one-left" => drop(comm.recv(&mut word, 0, 7)),
        _ => panic!("hang {how}?"),
    }
    through(comm);
}

/// Ranks that wait for long, but not for ever.
fn slow(comm: &Communicator, how: &str) {
    let (me, n) = (comm.rank(), comm.size());
    let long = Duration::from_millis(1_500);
    let mut word = [0u64];
    match how {
        "compute" if me == 0 => {
            let start = Instant::now();
            while start.elapsed() < long {
                std::hint::spin_loop();
            }
        }
        "sleep" if me == 0 => std::thread::sleep(long),
        // All ranks wait inside, but a thread of one of them does not.
        "thread" if me == 0 => std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(long);
                comm.send(&[3u64], 1, 4).expect("alive");
            });
            comm.recv(&mut word, 1, 5).expect("alive");
        }),
        "thread" if me == 1 => {
            comm.recv(&mut word, 0, 4).expect("alive");
            comm.send(&[3u64], 0, 5).expect("alive");
        }
        // A process that is stopped by a signal, and goes on.
        "stop" if me == 0 => {
            let own = std::process::id();
            let wake = format!("sleep 1.5; kill -CONT {own}");
            let mut shell = std::process::Command::new("sh")
                .args(["-c", &wake])
                .spawn()
                .expect("a shell");
            // SAFETY: a system call without pointers.
            unsafe { libc::kill(own.cast_signed(), libc::SIGSTOP) };
            shell.wait().expect("its end");
        }
        _ => {}
    }
    for round in 0..3u64 {
        let mut sum = [0u64];
        comm.allreduce(&[round], &mut sum, Op::Sum).expect("alive");
        assert_eq!(sum[0], round * n as u64);
    }
    through(comm);
}

fn kill_me() -> ! {
    let own = std::process::id().cast_signed();
    // SAFETY: a system call without pointers.
    unsafe { libc::kill(own, libc::SIGKILL) };
    unreachable!("SIGKILL is not survived")
}

/// That an error is the death of a rank. A send that notices it first may not
/// know the cause yet.
fn killed(e: &osier::Error, rank: usize) {
    let text = e.to_string();
    assert_eq!(e.kind(), ErrorKind::RankDead, "{text}");
    let cause = ["was killed by signal 9", "is dead"].map(|how| format!("rank {rank} {how}"));
    assert!(cause.iter().any(|c| text.contains(c)), "{text}");
}

/// Rank 1 of 3 is killed while the others wait for it.
fn die(comm: &Communicator, how: &str) {
    let me = comm.rank();
    let large = pattern(3_000_000, me);
    comm.barrier().expect("all are here");
    if me == 1 {
        kill_me();
    }
    let mut b = [0u8; 8];
    let result = match how {
        "recv" => comm.recv(&mut b, 1, 0).map(drop),
        "send" => comm.ssend(&large, 1, 0),
        "probe" => comm.probe(1, ANY_TAG).map(drop),
        "barrier" => comm.barrier(),
        "future" => comm
            .irecv(vec![0u8; 8], 1, 0)
            .and_then(|r| comm.block_on(r))
            .map(drop),
        _ => panic!("{how}?"),
    };
    killed(&result.expect_err("rank 1 is dead"), 1);
    // The others go on, and so does everything that does not need the dead.
    let peer = 2 - me;
    let mut got = vec![0; large.len()];
    let e = comm.recv(&mut b, ANY_SOURCE, 6).expect_err("not told yet");
    killed(&e, 1);
    assert_eq!(comm.acknowledge_failures(), [1]);
    comm.sendrecv(&large, peer, 5, &mut got, ANY_SOURCE, 5)
        .expect("the living");
    assert!(got == pattern(got.len(), peer));
    killed(&comm.send(&large, 1, 0).expect_err("still dead"), 1);
    through(comm);
}

/// Rank 0 of 2 is killed within a call of the library.
fn die_inside(comm: &Communicator) {
    let me = comm.rank();
    let deadly =
        osier::operators::function(|a: u64, b: u64| if me == 0 { kill_me() } else { a + b });
    let mut sum = [0u64];
    // Rank 0 may have sent what it had before it combined.
    if let Err(e) = comm.allreduce(&[1u64], &mut sum, deadly) {
        assert_eq!(e.kind(), ErrorKind::RankDead, "{e}");
    }
    through(comm);
}

/// Of two processes with two ranks each, the first is killed.
fn half_dies(comm: &Communicator) {
    let me = comm.rank();
    comm.barrier().expect("all are here");
    match me {
        0 => drop(comm.recv(&mut [0u8], 3, 0)),
        1 => {
            // Or rank 0 might die within the barrier of these.
            for living in [2, 3] {
                comm.recv(&mut [0u8], living, 2).expect("it is there");
            }
            kill_me();
        }
        _ => {
            comm.send(&[1u8], 1, 2).expect("it lives");
            for dead in [0, 1] {
                let e = comm.recv(&mut [0u8], dead, 1).expect_err("it is dead");
                let text = e.to_string();
                let cause = format!("rank {dead} was killed by signal 9");
                assert!(text.contains(&cause), "{text}");
            }
            let peer = 5 - me;
            let mut got = vec![0; 100_000];
            comm.sendrecv(&pattern(100_000, me), peer, 5, &mut got, peer, 5)
                .expect("the living");
            assert!(got == pattern(100_000, peer));
            through(comm);
        }
    }
}

/// Rank 1 of 2 is killed in the middle of large transfers.
fn stream(comm: &Communicator, how: &str, way: &str) {
    const N: usize = 4 << 20;
    let me = comm.rank();
    let gaps = Type::vector(N, 1, 2, &Type::of::<u64>()).and_then(|t| t.commit());
    let gaps = gaps.expect("a type");
    let heap = comm.alloc::<u64>(N).expect("heap");
    let plain = vec![1u64; 2 * N];
    let mut buffer = vec![0u64; N];
    comm.barrier().expect("all are here");
    let view = View::new(&plain, 0, &gaps, 1).expect("view");
    let result = comm.scope(|s| {
        let mut request = match (me == 0) == (how == "receiver") {
            true => match way {
                "heap" => s.isend(&heap, 1 - me, 0)?,
                "plain" => s.isend(&plain[..N], 1 - me, 0)?,
                _ => s.isend(&view, 1 - me, 0)?,
            },
            false => s.irecv(&mut buffer, 1 - me, 0)?,
        };
        if me == 1 {
            for _ in 0..3 {
                request.test();
            }
            kill_me();
        }
        Ok(())
    });
    // It may have been over before the end came.
    if let Err(e) = result {
        killed(&e, 1);
    }
    killed(&comm.barrier().expect_err("rank 1 is dead"), 1);
    through(comm);
}

/// Everybody waits for a message that never comes; rank 1 is killed.
fn wait(comm: &Communicator) {
    comm.barrier().expect("all are here");
    if comm.rank() == 1 {
        kill_me();
    }
    let mut b = [0u8];
    let next = (comm.rank() + 1) % comm.size();
    let e = comm.recv(&mut b, next, 0).expect_err("nobody sends");
    // Whoever waits for rank 1 hears of it before the launcher's signal.
    println!("{e}");
    comm.acknowledge_failures();
    let e = comm.recv(&mut b, ANY_SOURCE, 0);
    panic!("{e:?}");
}

/// Rank 1 leaves without a word; one that returns has dropped its communicator, which
/// may be seen first.
fn early(comm: &Communicator, code: i32, returns: bool) {
    comm.barrier().expect("all are here");
    if comm.rank() == 1 {
        comm.send(&[1u8], 0, 0).expect("the last word");
        std::process::exit(code);
    }
    let mut b = [0u8; 8];
    let e = comm.recv(&mut b, 1, 9).expect_err("rank 1 has left");
    let text = e.to_string();
    if !returns || e.kind() != ErrorKind::Closed {
        assert_eq!(e.kind(), ErrorKind::RankDead, "{text}");
        let cause = format!("rank 1 exited with code {code}");
        assert!(text.contains(&cause), "{text}");
    }
    if comm.rank() == 0 {
        comm.recv(&mut b, 1, 0).expect("what it sent before");
    }
    through(comm);
}

/// Rank 1 sends all of a partitioned transfer and leaves its job properly; rank
/// 0 only asks for it once the other is known to have gone.
fn parted(comm: &Communicator) {
    if comm.rank() == 1 {
        let mut send = comm.psend_init(vec![7u64; 48], 4, 0, 0).expect("init");
        send.start().expect("start");
        send.pready_range(0..=3).expect("ready");
        send.wait().expect("sent");
        return;
    }
    comm.recv(&mut [0u8], 1, 9).expect_err("rank 1 has left");
    let mut recv = comm.precv_init(vec![0u64; 48], 6, 1, 0).expect("init");
    recv.start().expect("start");
    recv.wait().expect("what it sent before");
    assert_eq!(recv.buffer().expect("idle"), &[7; 48]);
    through(comm);
}

/// Shared memory is used up.
fn full(universe: &Universe) {
    let comm = universe.world();
    comm.barrier().expect("all are here");
    let mut blocks = Vec::new();
    let e = loop {
        match comm.alloc::<u8>(3 << 20) {
            Ok(mut block) => {
                block.fill(1);
                blocks.push(block);
            }
            Err(e) => break e,
        }
        assert!(blocks.len() < 1_000, "there is no limit");
    };
    let text = e.to_string();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory, "{text}");
    assert!(text.contains("hint: raise OSIER_SHM_LIMIT"), "{text}");
    for round in 0..100u64 {
        let mut sum = [0u64];
        comm.allreduce(&[round], &mut sum, Op::Sum)
            .expect("small messages");
        assert_eq!(sum[0], round * comm.size() as u64);
    }
    comm.barrier().expect("barrier");
    blocks.clear();
    drop(comm.alloc::<u8>(1 << 20).expect("given back"));
    comm.barrier().expect("barrier");
    through(comm);
}

/// A second program claims this one's rank.
/// A panic hook that communicates, of a reduction function that panics.
fn panic_hook(comm: &Communicator) {
    let inside = comm.clone();
    std::panic::set_hook(Box::new(move |_| {
        let me = inside.rank();
        inside.send(&[7u8; 100], me, 3).expect("in the hook");
        let (got, _) = inside.recv_vec::<u8>(me, 3).expect("in the hook");
        assert_eq!(got, [7; 100]);
        eprintln!("hooked on rank {me}");
    }));
    let fails = osier::operators::function(|_: u64, _: u64| -> u64 { panic!("as asked") });
    let reduced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        comm.allreduce(&[1u64], &mut [0u64], &fails)
    }));
    drop(std::panic::take_hook());
    assert!(!matches!(reduced, Ok(Ok(()))), "nobody has a sum");
    comm.barrier().expect("it did no harm");
    through(comm);
}

fn twice(comm: &Communicator) {
    comm.barrier().expect("all are here");
    if comm.rank() == 1 {
        let own = std::env::current_exe().expect("this program");
        let second = std::process::Command::new(own)
            .arg("join")
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&second.stderr);
        assert_eq!(second.status.code(), Some(9), "{text}");
        assert!(
            text.contains("rank 1") && text.contains("already taken"),
            "{text}"
        );
        assert!(text.contains("hint"), "{text}");
    }
    comm.barrier().expect("it did no harm");
    through(comm);
}
