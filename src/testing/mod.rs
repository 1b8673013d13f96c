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
use crate::comm::Communicator;
use osier_engine::check::Setting;
use osier_engine::diagnose::threads::Inside;
use osier_engine::wire;
use osier_transports::Death;
use osier_transports::shm::{Job, JobOptions};
use osier_transports::sim::{SimNet, SimOptions};

/// What the ranks talk over.
#[derive(Clone, Debug)]
pub enum Network {
    /// Shared memory, as between processes.
    Shm,
    /// A simulated network with seeded delays.
    Sim(SimOptions),
}

impl Network {
    /// Every transport, for tests that must pass on all of them. `self` takes
    /// part in each: ranks send to themselves through it.
    pub fn all() -> Vec<Network> {
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
pub fn ranks_on<R: Send>(
    network: &Network,
    n: usize,
    f: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    universes_on(network, n, |u| f(u.world().clone()))
}

/// How messages between the host and devices, and between devices, went on a
/// communicator of this rank so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Bytes that this rank's processor has copied for them, each time.
    pub copied: u64,
    /// Chunks of shared memory that this rank has handed over.
    pub handed: u64,
    /// Chunks of its device's memory that this rank has handed over.
    pub device_chunks: u64,
    /// Chunks of a peer's device that this rank has copied to its own before it unpacked
    /// them.
    pub copied_first: u64,
    /// Ends of messages that the processor has read from a device's memory, or written
    /// there, itself.
    pub apertures: u64,
    /// Kernels of this rank that copied between its device memory and a peer's.
    pub kernels: u64,
    /// What they copied.
    pub kernel_bytes: u64,
    /// Combinations of collective calls that kernels of this rank have made.
    pub combined: u64,
    /// Allocations of other processes that this rank has open now.
    pub mappings: usize,
}

/// How messages of devices went; of an intercommunicator, those of its collective calls.
pub fn device_traffic(comm: &Communicator) -> DeviceTraffic {
    let counters = comm.runs_on().lane().lock().counters();
    DeviceTraffic {
        copied: counters.copied,
        handed: counters.handed,
        device_chunks: counters.device_chunks,
        copied_first: counters.copied_first,
        apertures: counters.apertures,
        kernels: counters.kernels,
        kernel_bytes: counters.kernel_bytes,
        combined: counters.combined,
        mappings: comm.core().devices.mappings(),
    }
}

/// What messages of devices hold of a rank now: nothing, when they are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Bytes of chunks of host memory.
    pub pinned: usize,
    /// Bytes of chunks of its devices' memory.
    pub chunks: usize,
    /// Descriptors that were asked for and have not come.
    pub awaited: usize,
    /// Transfers of this communicator.
    pub staged: usize,
    /// Transfers of this rank of which nobody knows that their device is done.
    pub under_way: usize,
}

/// What messages of devices hold of this rank.
pub fn device_use(comm: &Communicator) -> DeviceUse {
    let devices = &comm.core().devices;
    DeviceUse {
        pinned: devices.pool().used(),
        chunks: devices.used_chunks(),
        awaited: devices.descriptors.awaited(),
        staged: comm.lane().lock().staged_transfers(),
        under_way: devices.under_way(),
    }
}

/// A message of a lane as somebody might write it who knows no rules.
#[derive(Clone, Debug)]
pub struct Word {
    /// Its kind, by number.
    pub kind: u8,
    /// What this means depends on the kind, as all that follows.
    pub aux: u16,
    /// Half of the argument.
    pub low: u32,
    /// The other half.
    pub high: u32,
    /// What comes behind.
    pub body: Vec<u8>,
}

impl Word {
    /// The kind of this name.
    pub fn kind_of(name: &str) -> Option<u8> {
        (0..u8::MAX).find(|kind| wire::name(*kind) == name)
    }
}

/// Posts a message to a peer as it is, past all rules.
pub fn post(comm: &Communicator, peer: usize, word: &Word) {
    let head = wire::head(word.kind, word.aux, word.low, word.high);
    let peer = u32::try_from(peer).expect("few ranks");
    while !comm.lane().lock().post_as_is(peer, head, &word.body) {
        // Makes progress.
        let _ = comm.iprobe(peer as usize, 0);
    }
}

/// Messages that this rank has refused, because no correct peer writes them.
pub fn malformed(comm: &Communicator) -> u64 {
    comm.lane().lock().counters().malformed
}

/// When messages that this rank receives from devices of other processes come in chunks
/// on the device, from now on; `OSIER_PIPELINE` says it at first.
pub fn pipeline_devices(comm: &Communicator, when: osier_engine::protocol::reach::Pipelining) {
    comm.core().devices.pipeline(when);
}

/// Where reductions of this rank's device memory combine, from now on;
/// `OSIER_DEVICE_REDUCTIONS` says it at first.
pub fn reduce_devices(comm: &Communicator, where_: osier_engine::protocol::device::Reductions) {
    comm.core().devices.reduce(where_);
}

/// Has plans of a communicator chosen by these costs, also between groups, which
/// [`Communicator::adopt_costs`] refuses. Collective.
///
/// # Errors
/// If a rank dies.
pub fn plan_by(comm: &Communicator, costs: &crate::model::CallCosts) -> crate::Result<()> {
    comm.runs_on().adopt_costs(Some(costs)).map(drop)
}

/// As [`ranks`], with what they do recorded; merge it with
/// [`osier_engine::trace::merge`].
pub fn ranks_traced<R: Send>(
    options: &osier_engine::trace::Options,
    n: usize,
    f: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    on_shm(n, Some(options), from_env(), |u| f(u.world().clone()))
}

/// As [`universes_on`], with checks of choice instead of `OSIER_CHECK`'s.
pub fn universes_checked<R: Send>(
    network: &Network,
    checks: Setting,
    n: usize,
    f: impl Fn(&Universe) -> R + Sync,
) -> Vec<R> {
    match network {
        Network::Shm => on_shm(n, None, checks, f),
        Network::Sim(options) => on_sim(options, checks, n, f),
    }
}

fn from_env() -> Setting {
    Setting::from_env().expect("OSIER_CHECK makes sense")
}

/// As [`ranks_on`], with the whole [`Universe`].
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
        |rank, code| {
            // What it has sent is there before the news of its end.
            net.advance(LAST_WORDS_NS);
            match code {
                0 => net.finalize(rank as u32),
                _ => net.kill(rank as u32),
            }
        },
        f,
    )
}

fn on_shm<R: Send>(
    n: usize,
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
    run(
        job.id(),
        n,
        |rank| join(rank).expect("a place in the job"),
        |rank, code| job.mark_dead(rank, Death::Exited(code)),
        f,
    )
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
