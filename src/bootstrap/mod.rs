//! How a process becomes a rank, or several: the world at once ([`init`],
//! [`run`]), or sessions.
//!
//! | module | duty |
//! |---|---|
//! | `launcher` | which launcher started this process; refuses those whose job it cannot join |
//! | `pmi1` | joins the job of a launcher that speaks PMI-1 |
//! | `run` | ranks as threads of one process, or virtual ranks |
//! | `session` | sessions |
//! | `virtual_ranks` | ranks on stacks of their own, many to a thread |

#[allow(unsafe_code, reason = "descriptors that a launcher names by number")]
mod descriptor;
mod launcher;
mod pmi1;
mod run;
pub(crate) mod virtual_ranks;

pub use run::{Failure, run, run_code, run_ranks, run_ranks_code};
pub use virtual_ranks::{give_turn, ranks, ranks_async};

use crate::comm::{Communicator, ErrorCodes, Joined, Member, ProcessSets, Session};
use crate::config;
use crate::model::Agreed;
use crate::p2p::HeapBuffer;
use launcher::{Environment, Launch};
use osier_datatype::Datatype;
use osier_engine::check::{Checks, Setting};
use osier_engine::device::imports::Limits;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::attached::Attached;
use osier_engine::progress::core::{Core, JobTransport, OnHosts};
use osier_engine::progress::lane::Lane;
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::select::{AT_ONCE_BYTES, Selection};
use osier_engine::trace::{self, Tracer};
use osier_transports::net::{HostMap, NetRank};
use osier_transports::shm::{Job, SharedHeap, ShmRank};
use osier_transports::sim::SimNet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A rank's membership in a job: a value, of which a process may hold several
/// for ranks of their own (see [`crate::testing`]).
///
/// Dropping it waits, as `MPI_Finalize` does, until everything sent has left
/// this rank. A message that its receiver leaves the job without having received
/// is lost, and standard error names it; so two ranks that leave with a message
/// for each other do not wait for ever. A receiver that keeps a communicator and
/// never receives is waited for, which is reported like any long wait.
///
/// Then the rank has finalized, once no clone of a communicator is left either. Others do not
/// take it for a failed rank; one whose process ends without dropping its universe has failed,
/// whatever its exit code.
pub struct Universe {
    joined: Joined,
    world: Communicator,
    own: Communicator,
}

impl fmt::Debug for Universe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Universe {{ {:?} }}", self.world)
    }
}

/// Joins the job in which `osier run`, or a launcher that speaks PMI-1, started this
/// process. Without a launcher, or with `OSIER_ALONE=1`, it is a job of one rank.
///
/// A process that calls this is one rank; see [`run`] for several.
///
/// # Errors
/// Of kind [`ErrorKind::Config`], if a variable of the environment is wrong, or the launcher
/// wants several ranks in this process ([`run`] makes them). If another launcher started this
/// process as one of several, and its job cannot be joined: each would be rank 0 of 1; the
/// error names the launcher and a remedy.
pub fn init() -> Result<Universe> {
    Universe::open(&join()?)
}

impl Session {
    /// Joins a job as [`init`](crate::init) does. No communicator is made.
    ///
    /// # Errors
    /// As [`init`](crate::init); if this process has joined the job before, since a rank joins
    /// once.
    pub fn init() -> Result<Session> {
        Ok(Self::of(&join()?))
    }
}

/// Joins the job of this process's launcher, or a job of one rank.
fn join() -> Result<Arc<Member>> {
    config::check()?;
    // Two threads that join at the same time must not both take the launcher's descriptor,
    // which is the process's.
    static JOINING: Mutex<()> = Mutex::new(());
    let _joining = JOINING.lock().unwrap_or_else(PoisonError::into_inner);
    run::refuse_many()?;
    let launch = launcher::detect(&Environment {
        variable: &launcher::variable,
        descriptor: &descriptor::inspect,
    })?;
    match launch {
        Launch::Alone => member(alone()?, Agreed::default(), false),
        Launch::Osier => match joined_rank()? {
            Some((job, rank)) => member(in_job(&job, rank)?, agreed(&job), true),
            None => member(alone()?, Agreed::default(), false),
        },
        Launch::Pmi1 {
            descriptor,
            rank,
            ranks,
        } => {
            let (launcher, way) = pmi1::Connected::join(descriptor, rank, ranks)?;
            let member = match way {
                Some(way) => {
                    agree_on_checks(&way.job, rank)?;
                    let agreed = agreed(&way.job);
                    let core = by_way(way, rank, ranks)?;
                    // Launchers may end the job when a rank's process ends, or may not.
                    core.watch_processes();
                    member(core, agreed, false)?
                }
                None => member(alone()?, Agreed::default(), false)?,
            };
            // No other thread uses this core yet.
            let _ = member.core.launcher.set(Box::new(launcher));
            Ok(member)
        }
    }
}

/// A rank's membership, with the process sets of the launcher.
fn member(core: Arc<Core>, agreed: Agreed, launched: bool) -> Result<Arc<Member>> {
    config::check()?;
    if let Some(limit) = config::stall()? {
        let _ = core.waits.stall.set(limit);
    }
    if let Some(patience) = config::patience()? {
        let _ = core.waits.patience.set(patience);
    }
    core.devices.configure(core.rank, Limits::from_env()?);
    let mut sets = ProcessSets::predefined(core.rank as usize, core.ranks)?;
    if launched {
        sets.add(&config::process()?.sets.join(";"), core.ranks as usize)
            .map_err(|e| e.context("OSIER_JOB"))?;
    }
    Ok(Member::new(core, sets, agreed))
}

fn alone() -> Result<Arc<Core>> {
    let selection = Arc::new(Selection::new(LinkCosts::default(), AT_ONCE_BYTES));
    let job = u64::from(std::process::id()) << 32 | trace::now_ns() & 0xffff_ffff;
    let trace = tracer(trace::Options::from_env()?, job, 0, 1)?;
    let checks = Setting::from_env()?;
    let transport = JobTransport::Alone;
    Ok(Core::new(transport, 0, 1, selection, false, trace, checks))
}

fn in_job(job: &Job, rank: usize) -> Result<Arc<Core>> {
    in_job_traced(job, rank, trace::Options::from_env()?)
}

fn in_job_traced(job: &Job, rank: usize, options: Option<trace::Options>) -> Result<Arc<Core>> {
    let trace = tracer(options, job.id(), rank, job.ranks())?;
    let member = in_segment(job, rank, rank)?;
    let transport = JobTransport::Shm(member);
    on_machine(job, transport, rank, job.ranks(), trace)
}

/// Takes a rank's place in the segment of its host.
fn in_segment(job: &Job, place: usize, rank: usize) -> Result<ShmRank> {
    let member = ShmRank::join(job, place)
        .map_err(|e| Error::from(e).context(format!("joining as rank {rank}")))?;
    if Setting::from_bits(job.checks()).has_payload() {
        member.check_payloads();
    }
    let costs = agreed(job).links_by_state();
    if costs.first().is_some_and(|costs| costs.leaves_lines) {
        member.leave_lines();
    }
    osier_transports::shm::serve(&member);
    Ok(member)
}

fn on_machine(
    job: &Job,
    transport: JobTransport,
    rank: usize,
    ranks: usize,
    trace: Option<Arc<Tracer>>,
) -> Result<Arc<Core>> {
    let costs = agreed(job).links_by_state();
    Ok(Core::new(
        transport,
        rank as u32,
        ranks as u32,
        Arc::new(Selection::among(&costs, AT_ONCE_BYTES)),
        job.ranks() > job.cores(),
        trace,
        Setting::from_bits(job.checks()),
    ))
}

/// A rank that a foreign launcher has started.
fn by_way(way: pmi1::Way, rank: usize, ranks: usize) -> Result<Arc<Core>> {
    let pmi1::Way { job, place, others } = way;
    if others.is_some() && job.delay().is_some() {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "OSIER_DELAY: messages between hosts are not delayed (hint: unset it, or use one host)",
        ));
    }
    let id = others.as_ref().map_or(job.id(), |(_, _, number)| *number);
    let trace = tracer(trace::Options::from_env()?, id, rank, ranks)?;
    let shm = in_segment(&job, place, rank)?;
    let transport = match others {
        None => JobTransport::Shm(shm),
        Some((net, map, _)) => {
            let net = exchange_news(net, &map, &job);
            JobTransport::Hosts(OnHosts { shm, net, map })
        }
    };
    on_machine(&job, transport, rank, ranks, trace)
}

/// Has a rank learn of the ends of ranks of other hosts, and tell these of those of its own.
fn exchange_news(net: NetRank, map: &HostMap, job: &Job) -> NetRank {
    let (job, places) = (job.clone(), map.clone());
    let near = move |rank| job.death(places.place(rank)?);
    net.attend(map.clone(), Box::new(near));
    net
}

fn tracer(
    options: Option<trace::Options>,
    job: u64,
    rank: usize,
    ranks: usize,
) -> Result<Option<Arc<Tracer>>> {
    options
        .map(|options| Tracer::new(options, job, rank as u32, ranks as u32))
        .transpose()
        .map_err(|e| e.context("OSIER_TRACE"))
}

/// The job that `osier run` started this process in, and its first rank here.
fn joined_rank() -> Result<Option<(Job, usize)>> {
    let Some(description) = config::value("OSIER_JOB") else {
        return Ok(None);
    };
    let rank = config::value("OSIER_RANK").ok_or_else(|| {
        Error::new(
            ErrorKind::Config,
            "OSIER_JOB is set and OSIER_RANK is not (hint: start programs with osier run)",
        )
    })?;
    let rank: usize = rank.parse().map_err(|_| {
        Error::new(
            ErrorKind::Config,
            format!("OSIER_RANK={rank:?} is no rank (hint: it is set by osier run)"),
        )
    })?;
    let job = Job::attach(&description).map_err(|e| Error::from(e).context("joining"))?;
    agree_on_checks(&job, rank)?;
    Ok(Some((job, rank)))
}

/// Fails if other checks than the job's are requested for this rank.
fn agree_on_checks(job: &Job, rank: usize) -> Result<()> {
    let (own, all) = (Setting::from_env()?, Setting::from_bits(job.checks()));
    if config::value("OSIER_CHECK").is_some() && own != all {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "OSIER_CHECK={own} in rank {rank}, and {all} in the job (hint: all ranks check the same; use osier run --check)"
            ),
        ));
    }
    Ok(())
}

impl Universe {
    /// A job of this rank alone.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Config`], if a variable of the environment is wrong; of kind
    /// [`ErrorKind::System`], if the file of a trace cannot be made.
    pub fn alone() -> Result<Universe> {
        Self::open(&member(alone()?, Agreed::default(), false)?)
    }

    /// Joins a job on this machine as the given rank.
    #[doc(hidden)]
    pub fn join(job: &Job, rank: usize) -> Result<Universe> {
        Self::open(&member(in_job(job, rank)?, agreed(job), false)?)
    }

    /// Joins a job on several hosts, at a place in the segment of one.
    #[doc(hidden)]
    pub fn join_on_host(job: &Job, place: usize, net: NetRank, map: HostMap) -> Result<Universe> {
        let (rank, ranks) = (net.rank() as usize, map.ranks());
        let shm = in_segment(job, place, rank)?;
        let net = exchange_news(net, &map, job);
        let transport = JobTransport::Hosts(OnHosts { shm, net, map });
        let core = on_machine(job, transport, rank, ranks, None)?;
        Self::open(&member(core, agreed(job), false)?)
    }

    /// As [`Universe::join`], recording the events of the rank.
    #[doc(hidden)]
    pub fn join_traced(job: &Job, rank: usize, options: &trace::Options) -> Result<Universe> {
        let core = in_job_traced(job, rank, Some(options.clone()))?;
        Self::open(&member(core, agreed(job), false)?)
    }

    /// Joins a job of the launcher as the given rank.
    fn launched(job: &Job, rank: usize) -> Result<Universe> {
        Self::open(&member(in_job(job, rank)?, agreed(job), true)?)
    }

    /// Joins a simulated job as the given rank.
    #[doc(hidden)]
    pub fn simulated(net: &SimNet, rank: usize) -> Result<Universe> {
        Self::simulated_checked(net, rank, Setting::from_env()?)
    }

    /// As [`Universe::simulated`], with checks of choice; all ranks should
    /// choose the same.
    #[doc(hidden)]
    pub fn simulated_checked(net: &SimNet, rank: usize, checks: Setting) -> Result<Universe> {
        let ranks = net.options().ranks as usize;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let core = Core::new(
            JobTransport::Sim(net.clone(), rank as u32),
            rank as u32,
            ranks as u32,
            Arc::new(Selection::new(LinkCosts::default(), AT_ONCE_BYTES)),
            ranks > cores,
            None,
            checks,
        );
        Self::open(&member(core, Agreed::default(), false)?)
    }

    fn open(member: &Arc<Member>) -> Result<Universe> {
        let joined = Joined::new(member, true);
        let world = Communicator::world(member)?;
        let own = Communicator::alone(member)?;
        Ok(Universe { joined, world, own })
    }

    /// A session in the same membership. There may be several, beside the
    /// universe.
    pub fn session(&self) -> Session {
        Session::of(&self.joined.member)
    }

    /// The enabled checks, and the findings so far. Leaks are found when the
    /// universe is dropped; the returned value outlives it.
    #[doc(hidden)]
    pub fn checks(&self) -> Checks {
        self.joined.member.core.checks.clone()
    }

    /// Lets findings and hang reports name callers in another language: for the layer that
    /// they call.
    #[doc(hidden)]
    pub fn name_callers(&self, callers: osier_engine::check::Callers) {
        let core = &self.joined.member.core;
        core.checks.name_callers(callers);
        core.waits.name_callers(callers);
    }

    /// Error codes that this program has added.
    pub fn error_codes(&self) -> &ErrorCodes {
        &self.joined.member.codes
    }

    /// The number of this rank's program in a job of several programs (`MPI_APPNUM`).
    #[doc(hidden)]
    pub fn application(&self) -> usize {
        match self.joined.member.core.launcher.get() {
            Some(launcher) => launcher.application(),
            // The join has checked it.
            None => config::process().map_or(0, |process| process.program),
        }
    }

    /// Ends the job: all ranks, with this exit code (`MPI_Abort`).
    pub fn abort(&self, code: i32) -> ! {
        self.joined.member.core.abort(code)
    }

    /// The communicator of all ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// The communicator of this rank alone (MPI's self).
    pub fn own(&self) -> &Communicator {
        &self.own
    }

    /// The rank's part of the shared heap, for the C interface: it stays usable after the
    /// rank has left.
    #[doc(hidden)]
    pub fn heap(&self) -> Option<SharedHeap> {
        let rank = self.joined.member.core.transport.shm()?;
        Some(rank.heap())
    }

    /// A buffer that peers on this machine read in place, zeroed.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::OutOfMemory`], if there is no room.
    pub fn alloc<T: Datatype>(&self, len: usize) -> Result<HeapBuffer<T>> {
        self.world.alloc(len)
    }

    pub(crate) fn attached(&self) -> &Attached {
        &self.joined.member.core.attached
    }

    /// Which protocol carries which size.
    #[doc(hidden)]
    pub fn selection(&self) -> &Selection {
        &self.joined.member.core.selection
    }
}

impl Drop for Universe {
    fn drop(&mut self) {
        // Messages that no rank here can receive any more; then wait for the rest.
        for comm in [&self.world, &self.own] {
            if comm.is_last() {
                comm.core().with(comm.lane(), Lane::refuse);
            }
        }
    }
}

/// The launcher's settings for all ranks, so that all agree.
fn agreed(job: &Job) -> Agreed {
    Agreed::of_note(&job.note())
}

impl Universe {
    crate::p2p::buffer_calls!("this rank");

    fn buffers_core(&self) -> &Arc<Core> {
        self.own().core()
    }

    /// Errors that belong to no communicator are its own's, as in MPI.
    fn buffers_comm(&self) -> Option<&Communicator> {
        Some(self.own())
    }

    fn buffers_reported<T>(&self, result: Result<T>) -> Result<T> {
        self.own().reported(result)
    }
}
