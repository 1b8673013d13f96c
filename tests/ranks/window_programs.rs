//! Random programs of windows: ranks use parts of each other at the same time, and what is there
//! behind each phase is what a sequential memory has.
//!
//! In a phase each cell is one rank's, which writes and reads it alone, or everybody's, who add to
//! it. All ranks keep their accesses apart in one way in a phase: by fences, locks of either kind,
//! an epoch on all parts, or post and start. Then all learn what has become of all cells.

use crate::support::{Random, Watchdog, one_fails};
use osier::rma::{Epoch, Updates, Window};
use osier::testing::{Network, ranks_on};
use osier::{Communicator, ErrorKind, Op, Result, Type, View, ViewMut};
use osier_transports::sim::SimOptions;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Cells of a part.
const LEN: usize = 24;
const PHASES: usize = 4;
/// Programs of a job of the long test.
const A_JOB: u64 = 64;

/// How accesses of a phase are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    All,
    Shared,
    Alone,
    Fences,
    Start,
}

/// A network whose operations end in an order of the seed's, and of which ranks reach parts in
/// one of several ways.
fn simulated(seed: u64) -> SimOptions {
    let mut random = Random::new(seed ^ 0x77);
    let ways = [
        (true, true, true, false),
        (true, true, true, true),
        (false, false, false, false),
        (true, false, false, false),
    ];
    let (get, put, atomics, mapped) = ways[random.below(ways.len())];
    SimOptions {
        seed,
        get,
        put,
        atomics,
        mapped,
        auto_advance: true,
        ..SimOptions::default()
    }
}

/// One rank of a program.
struct Rank<'a> {
    comm: &'a Communicator,
    seed: u64,
    window: &'a Window<i64>,
    /// What this rank does by itself.
    own: Random,
    /// What each cell is, as far as this rank knows, and what it has added to it.
    values: Vec<i64>,
    sums: Vec<i64>,
    /// Calls until it dies.
    left: &'a Cell<Option<u64>>,
}

impl Rank<'_> {
    /// Counts a call. True: the rank dies here.
    fn dies(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.map(|left| left.saturating_sub(1)));
        left == Some(0)
    }

    /// The rank that dies leaves by an error; the test makes a death of it.
    fn call(&self) -> Result<()> {
        match self.dies() {
            true => Err(osier::Error::new(ErrorKind::User, "it dies")),
            false => Ok(()),
        }
    }

    /// Uses a part, of whose cells these are the owners.
    fn access(
        &mut self,
        epoch: &Epoch<'_, i64>,
        target: usize,
        owners: &[usize],
        apart: Apart,
    ) -> Result<()> {
        self.call()?;
        let (rank, size, seed) = (self.comm.rank(), self.comm.size(), self.seed);
        let first = target * LEN;
        let value = self.own.below(1000) as i64 - 500;
        let mine: Vec<usize> = (0..LEN).filter(|at| owners[first + at] == rank).collect();
        if self.own.below(4) == 0 && !mine.is_empty() {
            // Several cells at once, in any order.
            let mut mine = mine;
            self.own.shuffle(&mut mine);
            mine.truncate(1 + self.own.below(mine.len()));
            return self.blocks(epoch, target, &mine, value);
        }
        let at = self.own.below(LEN);
        let cell = first + at;
        match owners[cell] {
            owner if owner == rank => {
                let known = self.values[cell];
                if self.own.below(3) == 0 {
                    let mut got = [0i64];
                    match self.own.below(2) {
                        0 => epoch.get(&mut got, target, at)?,
                        _ => got = epoch.rget(got, target, at)?.wait()?,
                    }
                    assert_eq!(got[0], known, "seed {seed}");
                    let was = epoch.compare_and_swap(known, value, target, at)?;
                    assert_eq!(was, known, "seed {seed}");
                } else {
                    match self.own.below(4) {
                        0 => drop(epoch.rput(value, target, at)?.wait()?),
                        1 => {
                            drop(epoch.rput(value, target, at)?);
                            epoch.flush(target)?;
                        }
                        _ => epoch.put(&value, target, at)?,
                    }
                }
                self.values[cell] = value;
            }
            owner if owner >= size => {
                match self.own.below(3) {
                    0 => epoch.accumulate(&value, target, at, Op::Sum)?,
                    1 if apart == Apart::Alone => {
                        let mut there = [0i64];
                        epoch.get(&mut there, target, at)?;
                        epoch.put(&[there[0] + value], target, at)?;
                    }
                    _ => drop(epoch.fetch_and_op(value, target, at, Op::Sum)?),
                }
                self.sums[cell] += value;
            }
            _ => {}
        }
        if self.own.below(8) == 0 {
            epoch.flush(target)?;
        }
        Ok(())
    }

    /// Reads cells that are this rank's, and writes others to them, in the order given.
    fn blocks(
        &mut self,
        epoch: &Epoch<'_, i64>,
        target: usize,
        cells: &[usize],
        value: i64,
    ) -> Result<()> {
        let places: Vec<isize> = cells.iter().map(|at| *at as isize).collect();
        let there = Type::indexed_block(1, &places, &Type::of::<i64>())?.commit()?;
        // Every other element of a buffer of its own.
        let here = Type::vector(cells.len(), 1, 2, &Type::of::<i64>())?.commit()?;
        let mut buffer = vec![0i64; 2 * cells.len()];
        epoch.get_as(
            &mut ViewMut::new(&mut buffer, 0, &here, 1)?,
            target,
            0,
            &there,
            1,
        )?;
        for (i, at) in cells.iter().enumerate() {
            let cell = target * LEN + at;
            assert_eq!(buffer[2 * i], self.values[cell], "seed {}", self.seed);
            self.values[cell] = value + i as i64;
            buffer[2 * i] = self.values[cell];
        }
        epoch.put_as(&View::new(&buffer, 0, &here, 1)?, target, 0, &there, 1)
    }

    /// One phase, of whose cells these are the owners.
    fn phase(&mut self, apart: Apart, owners: &[usize]) -> Result<()> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let window = self.window;
        let accesses = self.own.below(25);
        match apart {
            Apart::All => {
                let all = window.lock_all();
                for _ in 0..accesses {
                    let target = self.own.below(size);
                    self.access(&all, target, owners, apart)?;
                }
                self.call()?;
                all.unlock()
            }
            Apart::Shared | Apart::Alone => {
                for _ in 0..accesses {
                    let target = self.own.below(size);
                    self.call()?;
                    let locked = match apart {
                        Apart::Shared => window.lock_shared(target)?,
                        _ => window.lock(target)?,
                    };
                    self.access(&locked, target, owners, apart)?;
                    locked.unlock()?;
                }
                Ok(())
            }
            Apart::Fences => window.fenced(|epoch| {
                for _ in 0..accesses {
                    let target = self.own.below(size);
                    self.access(epoch, target, owners, apart)?;
                }
                Ok(())
            }),
            Apart::Start => {
                let others: Vec<usize> = (0..size).filter(|r| *r != rank).collect();
                let others = self.comm.group().incl(&others)?;
                self.call()?;
                let posted = window.post(&others)?;
                let started = window.start(&others)?;
                for _ in 0..accesses {
                    let target = (rank + 1 + self.own.below(size - 1)) % size;
                    self.access(&started, target, owners, apart)?;
                }
                self.call()?;
                started.complete()?;
                posted.wait()
            }
        }
    }

    /// Everybody learns what has become of all cells.
    fn compare(&mut self, owners: &[usize]) -> Result<()> {
        let (rank, seed) = (self.comm.rank(), self.seed);
        self.window.fence()?;
        let told: Vec<i64> = owners
            .iter()
            .enumerate()
            .flat_map(|(cell, owner)| {
                let mine = i64::from(*owner == rank);
                [mine, mine * self.values[cell], self.sums[cell]]
            })
            .collect();
        let mut all = vec![0i64; told.len()];
        self.comm.allreduce(&told, &mut all, Op::Sum)?;
        let there = self.window.to_vec()?;
        for (cell, told) in all.chunks_exact(3).enumerate() {
            self.values[cell] = match told[0] {
                0 => self.values[cell] + told[2],
                _ => told[1],
            };
            if cell / LEN == rank {
                let now = there[cell % LEN];
                assert_eq!(now, self.values[cell], "seed {seed}, cell {cell}");
            }
        }
        self.sums.fill(0);
        self.window.fence()
    }
}

/// Runs the program of a seed on one rank.
fn run(comm: &Communicator, seed: u64, left: &Cell<Option<u64>>) -> Result<()> {
    let size = comm.size();
    // The same on all ranks.
    let mut shared = Random::new(seed);
    let window = match seed % 3 {
        0 => comm.window::<i64>(LEN),
        1 => comm.window_for::<i64>(LEN, Updates::Single),
        _ => comm.window_of(vec![0i64; LEN]),
    }?;
    let mut rank = Rank {
        comm,
        seed,
        window: &window,
        own: Random::new(seed * 31 + comm.rank() as u64 + 1),
        values: vec![0; size * LEN],
        sums: vec![0; size * LEN],
        left,
    };
    for _ in 0..PHASES {
        let owners: Vec<usize> = (0..size * LEN).map(|_| shared.below(2 * size)).collect();
        let apart = [
            Apart::All,
            Apart::Shared,
            Apart::Alone,
            Apart::Fences,
            Apart::Start,
        ];
        rank.phase(apart[shared.below(apart.len())], &owners)?;
        rank.compare(&owners)?;
    }
    window.free().map(drop)
}

fn ranks_of(seed: u64) -> usize {
    2 + (seed % 3) as usize
}

fn play(network: &Network, seed: u64) {
    ranks_on(network, ranks_of(seed), |comm| {
        run(&comm, seed, &Cell::new(None)).expect("no errors");
    });
}

/// The same, and a rank dies at one of its calls: all others end, with its name or without.
fn play_death(network: &Network, seed: u64) {
    let mut random = Random::new(seed ^ 0xdead);
    let (dies, calls) = (random.below(ranks_of(seed)), random.below(60) as u64);
    one_fails(network, ranks_of(seed), |comm| {
        let left = Cell::new((comm.rank() == dies).then_some(calls));
        let done = run(&comm, seed, &left);
        if let Err(e) = &done
            && comm.rank() != dies
        {
            let kinds = [ErrorKind::RankDead, ErrorKind::Closed];
            assert!(kinds.contains(&e.kind()), "seed {seed}: {e}");
        }
        comm.rank() == dies
    });
}

/// `OSIER_TEST=window-programs=N` says how many seeds on each network.
#[test]
fn programs_end_as_those_of_a_sequential_memory() {
    let seeds = crate::asked::number("window-programs").unwrap_or(60);
    let _watchdog = Watchdog::start();
    for seed in 0..seeds {
        for network in Network::all().iter().chain(&Network::virtual_ranks()) {
            play(network, seed);
        }
        for disorder in 0..4 {
            let network = simulated(4 * seed + disorder);
            play(&Network::Sim(network.clone()), seed);
            play(&Network::InTurn(network), seed);
        }
    }
}

#[test]
fn programs_whose_ranks_die_end() {
    let seeds = crate::asked::number("window-programs").unwrap_or(60);
    let _watchdog = Watchdog::start();
    for seed in 0..seeds {
        play_death(&Network::Shm, seed);
        play_death(&Network::Sim(simulated(seed)), seed);
    }
}

/// `cargo xtask soak windows`: a failure repeats with the seed of its job, the first of each 64.
#[test]
#[ignore = "runs as long as OSIER_TEST says"]
fn soak() {
    let first = crate::asked::number("seed").unwrap_or(0);
    let runs = crate::asked::number("runs");
    let seconds = crate::asked::number("seconds").unwrap_or(60);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (next, played) = (AtomicU64::new(0), AtomicU64::new(0));
    let jobs = || {
        loop {
            let number = next.fetch_add(A_JOB, Ordering::Relaxed);
            let goes_on = runs.map_or_else(|| Instant::now() < end, |runs| number < runs);
            if !goes_on {
                return;
            }
            let seed = first.wrapping_add(number);
            let _told = Told(seed);
            let _watchdog = Watchdog::start();
            a_job(seed);
            played.fetch_add(A_JOB, Ordering::Relaxed);
        }
    };
    std::thread::scope(|s| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        (0..threads).for_each(|_| drop(s.spawn(jobs)));
    });
    println!("{} programs, seeds from {first}", played.into_inner());
}

/// Tells the seed of a job that has panicked.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "repeat: cargo xtask soak windows --runs 1 --seed {}",
                self.0
            );
        }
    }
}

/// Programs in one job whose ranks have agreed on their plans, and the first of them alone on other
/// networks.
fn a_job(seed: u64) {
    let network = simulated(seed);
    ranks_on(&Network::InTurn(network.clone()), ranks_of(seed), |comm| {
        for seed in seed..seed + A_JOB {
            run(&comm, seed, &Cell::new(None)).expect("no errors");
        }
    });
    play(&Network::Shm, seed);
    play(&Network::Sim(network.clone()), seed);
    play_death(&Network::Sim(network), seed);
}
