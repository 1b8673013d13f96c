//! Ranks as threads of one process, for tests.
//!
//! ```
//! osier::testing::ranks(4, |comm| {
//!     let mut sum = [0u64];
//!     comm.allreduce(&[comm.rank() as u64], &mut sum, osier::Op::Sum)
//!         .unwrap();
//!     assert_eq!(sum, [6]);
//! });
//! ```

use crate::bootstrap::Universe;
use crate::bootstrap::virtual_ranks::{Deal, RankResult, give_turn, on_stacks};
use crate::comm::Communicator;
use osier_engine::check::Setting;
use osier_engine::diagnose::threads::Inside;
use osier_transports::Death;
use osier_transports::net::{Card, HostMap, JobKey, NetOptions, NetRank};
use osier_transports::shm::{Job, JobOptions};
use osier_transports::sim::{Held, SimNet, SimOptions};
use std::sync::Arc;

/// What the ranks talk over.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Network {
    /// Shared memory, as between processes.
    Shm,
    /// The same, with virtual ranks on this number of workers.
    Virtual(usize),
    /// This number of hosts, with shared memory within each and TCP between them. Rank r is on
    /// host r modulo that number. All ranks are threads of this process.
    Hosts(usize),
    /// A simulated network with seeded delays.
    Sim(SimOptions),
    /// The same, with ranks that run in turn on one thread: a seed is a run.
    InTurn(SimOptions),
}

impl Network {
    /// Virtual ranks on one worker, and on two.
    pub fn virtual_ranks() -> Vec<Network> {
        vec![Network::Virtual(1), Network::Virtual(2)]
    }

    /// Every transport, for tests that must pass on all of them. `self` takes part in each:
    /// ranks send to themselves through it.
    pub fn all() -> Vec<Network> {
        let mut all = Network::within_host();
        all.push(Network::Hosts(2));
        all
    }

    /// Those of one machine.
    pub fn within_host() -> Vec<Network> {
        vec![
            Network::Shm,
            Network::Sim(SimOptions {
                auto_advance: true,
                ..SimOptions::default()
            }),
        ]
    }
}

/// Virtual time in which everything that a rank has sent arrives.
const LAST_WORDS_NS: u64 = 1_000_000_000;

/// Runs `f` on `n` ranks over shared memory; the results in rank order. A
/// panic of a rank is passed on after all have ended; for the others the rank
/// is dead.
pub fn ranks<R: Send>(n: usize, f: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    ranks_on(&Network::Shm, n, f)
}

/// As [`ranks`], over a network of choice.
#[doc(hidden)]
pub fn ranks_on<R: Send>(
    network: &Network,
    n: usize,
    f: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    universes_on(network, n, |u| f(u.world().clone()))
}

/// When messages that this rank receives from devices of other processes come in slots
/// on the device, from now on; `OSIER_DEBUG=pipeline=..` says it at first.
#[doc(hidden)]
pub fn pipeline_devices(comm: &Communicator, when: osier_engine::protocol::select::Pipelining) {
    comm.core().devices.pipeline(when);
}

/// As [`ranks`], with what they do recorded; merge it with
/// [`osier_engine::trace::merge`].
#[doc(hidden)]
pub fn ranks_traced<R: Send>(
    options: &osier_engine::trace::Options,
    n: usize,
    f: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    on_shm(n, None, Some(options), from_env(), |u| f(u.world().clone()))
}

/// As [`universes_on`], with checks of choice instead of `OSIER_CHECK`'s.
#[doc(hidden)]
pub fn universes_checked<R: Send>(
    network: &Network,
    checks: Setting,
    n: usize,
    f: impl Fn(&Universe) -> R + Sync,
) -> Vec<R> {
    match network {
        Network::Shm => on_shm(n, None, None, checks, f),
        Network::Virtual(workers) => on_shm(n, Some(*workers), None, checks, f),
        Network::Hosts(hosts) => on_hosts(*hosts, checks, n, f),
        Network::Sim(options) => on_sim(options, checks, n, f),
        Network::InTurn(options) => {
            let net = SimNet::new(SimOptions {
                ranks: n as u32,
                auto_advance: true,
                ..options.clone()
            });
            in_turn(&net, checks, n, f)
        }
    }
}

fn from_env() -> Setting {
    Setting::from_env().expect("OSIER_CHECK makes sense")
}

/// As [`ranks_on`], with the whole [`Universe`].
#[doc(hidden)]
pub fn universes_on<R: Send>(
    network: &Network,
    n: usize,
    f: impl Fn(&Universe) -> R + Sync,
) -> Vec<R> {
    universes_checked(network, from_env(), n, f)
}

fn on_sim<R: Send>(
    options: &SimOptions,
    checks: Setting,
    n: usize,
    f: impl Fn(&Universe) -> R + Sync,
) -> Vec<R> {
    let net = SimNet::new(SimOptions {
        ranks: n as u32,
        ..options.clone()
    });
    let join = |rank| Universe::simulated_checked(&net, rank, checks);
    run(
        0,
        n,
        |rank| join(rank).expect("a place in the job"),
        |rank, code| leave(&net, rank, code),
        f,
    )
}

/// A rank leaves a simulated network, in order or as one that has died.
fn leave(net: &SimNet, rank: usize, code: i32) {
    // What it has sent is there before the news of its end.
    net.advance(LAST_WORDS_NS);
    match code {
        0 => net.finalize(rank as u32),
        _ => net.kill(rank as u32),
    }
}

/// As [`ranks_on`], on one thread over a simulated network that holds everything: one thing after
/// another goes on, the first but where `choices` say otherwise ([`SimNet::schedule`]). The results,
/// and what there was to choose from at each step.
#[doc(hidden)]
pub fn ranks_scheduled<R: Send>(
    options: &SimOptions,
    n: usize,
    choices: &[(u32, u8)],
    f: impl Fn(Communicator, &SimNet) -> R + Sync,
) -> (Vec<R>, Vec<u8>) {
    let net = SimNet::new(SimOptions {
        ranks: n as u32,
        held: true,
        auto_advance: true,
        ..options.clone()
    });
    net.schedule(choices);
    let results = in_turn(&net, from_env(), n, |universe| {
        let result = f(universe.world().clone(), &net);
        let own = universe.world().rank() as u32;
        let is_own = |held: &Held| matches!(held, Held::Message { from, .. } if *from == own);
        while net.held().iter().any(is_own) {
            universe.world().core().progress_awake();
            give_turn();
        }
        result
    });
    (results, net.choices())
}

/// Ranks on stacks of one thread, beside which nobody polls.
fn in_turn<R: Send>(
    net: &SimNet,
    checks: Setting,
    n: usize,
    f: impl Fn(&Universe) -> R + Sync,
) -> Vec<R> {
    let deal = Deal {
        job: 0,
        ranks: 0..n,
        workers: 1,
        places: &[],
    };
    let outcomes = on_stacks(
        &deal,
        |rank| {
            let universe = Universe::simulated_checked(net, rank, checks);
            let universe = universe.expect("a place in the job");
            // A progress thread would poll beside the ranks, in an order that the system chooses.
            let _tended = universe.world().core().tend();
            f(&universe)
        },
        |rank, code| leave(net, rank, code),
    );
    let passed_on = |r: RankResult<R>| r.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let results = outcomes.expect("stacks").into_iter().map(passed_on);
    results.collect()
}

fn on_shm<R: Send>(
    n: usize,
    workers: Option<usize>,
    trace: Option<&osier_engine::trace::Options>,
    checks: Setting,
    f: impl Fn(&Universe) -> R + Sync,
) -> Vec<R> {
    let options = JobOptions {
        ranks: n,
        limit_bytes: None,
    };
    let job = Job::create(&options).expect("a job in shared memory");
    job.set_checks(checks.bits());
    let join = |rank| match trace {
        None => Universe::join(&job, rank),
        Some(options) => Universe::join_traced(&job, rank, options),
    };
    let join = |rank| join(rank).expect("a place in the job");
    let ended = |rank, code| job.mark_dead(rank, Death::Exited(code));
    let Some(workers) = workers else {
        return run(job.id(), n, join, ended, f);
    };
    let deal = Deal {
        job: job.id(),
        ranks: 0..n,
        workers,
        places: &[],
    };
    let outcomes = on_stacks(&deal, |rank| f(&join(rank)), ended).expect("stacks and threads");
    let passed_on = |r: RankResult<R>| r.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    outcomes.into_iter().map(passed_on).collect()
}

fn on_hosts<R: Send>(
    hosts: usize,
    checks: Setting,
    n: usize,
    f: impl Fn(&Universe) -> R + Sync,
) -> Vec<R> {
    let of_ranks: Vec<u32> = (0..n).map(|rank| (rank % hosts) as u32).collect();
    let key = JobKey::random().expect("a key");
    let nets: Vec<NetRank> = (0..n as u32)
        .map(|rank| {
            let options = NetOptions {
                setting: "127.0.0.0/8".parse().expect("a setting"),
                ..NetOptions::new(rank, 1, key.clone())
            };
            let host = format!("host{}", of_ranks[rank as usize]);
            NetRank::listen(options, &host).expect("a place on the network")
        })
        .collect();
    let cards: Vec<Card> = nets.iter().map(|net| net.card().clone()).collect();
    let cards = Arc::new(cards);
    let jobs: Vec<Job> = (0..hosts.min(n))
        .map(|host| {
            let options = JobOptions {
                ranks: of_ranks.iter().filter(|of| **of == host as u32).count(),
                limit_bytes: None,
            };
            let job = Job::create(&options).expect("a job in shared memory");
            job.set_checks(checks.bits());
            job
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let crowd = (n.div_ceil(cores) as u32, (cores / n) as u32);
    let map = |rank| {
        let map = HostMap::new(rank as u32, &of_ranks).expect("a rank of the job");
        let names = (0..map.hosts()).map(|host| format!("host{host}"));
        let names = names.collect();
        map.with_cores(crowd.0, crowd.1).with_names(names)
    };
    let place = |rank: usize| {
        let place = map(rank).place(rank as u32);
        (&jobs[rank % hosts], place.expect("it is on its own host"))
    };
    let join = |rank: usize| {
        let net = nets[rank].clone();
        net.look_up_in(cards.clone());
        let (job, place) = place(rank);
        Universe::join_on_host(job, place, net, map(rank)).expect("a place in the job")
    };
    let ended = |rank, code| {
        let (job, place) = place(rank);
        job.mark_dead(place, Death::Exited(code));
        // What a rank has leaked does not outlive its process.
        nets[rank].kill();
    };
    run(0, n, join, ended, f)
}

/// Tells the others of a rank's end, however it ends.
struct Ends<'a>(usize, &'a (dyn Fn(usize, i32) + Sync));

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let code = if std::thread::panicking() { 101 } else { 0 };
        (self.1)(self.0, code);
    }
}

fn run<R: Send>(
    job: u64,
    n: usize,
    join: impl Fn(usize) -> Universe + Sync,
    ended: impl Fn(usize, i32) + Sync,
    f: impl Fn(&Universe) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..n)
            .map(|rank| {
                let (join, ended, f) = (&join, &ended, &f);
                std::thread::Builder::new()
                    .name(format!("rank {rank}"))
                    .spawn_scoped(s, move || {
                        let _ends = Ends(rank, ended);
                        let universe = join(rank);
                        f(&universe)
                    })
                    .expect("a thread")
            })
            .collect();
        // This thread does nothing by itself: hangs of its ranks are certain.
        let inside = Inside::enter(job);
        let results: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        drop(inside);
        results
            .into_iter()
            .map(|r| r.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
