//! Job on one machine: shared memory, a doorbell per rank, liveness.
//!
//! # Invariants
//! 1. A system call on a descriptor and numbers, or on eight bytes of ours, touches no other
//!    memory of the process.
//! 2. A descriptor that a system call has just returned is owned by nobody else.

use super::segment::{RankControl, Segment};
use crate::Death;
use crate::contract::{TransportError, TransportErrorKind};
use crate::delay::Delay;
use crate::sync::Ordering;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Most ranks of one job on one machine.
pub const MAX_RANKS: usize = 4096;

/// What a job is made of.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// Number of ranks.
    pub ranks: usize,
    /// Most shared memory for all ranks together, in bytes.
    pub limit_bytes: Option<u64>,
}

/// How a rank ended, as a word of the segment; 0 says that it has not.
fn to_word(how: Death) -> u32 {
    match how {
        Death::Finalized => 3 << 16,
        Death::Exited(code) => 1 << 16 | (code as u32 & 0xffff),
        Death::Signaled(signal) => 2 << 16 | (signal as u32 & 0xffff),
        Death::Overwritten => 4 << 16,
        Death::Ended => 5 << 16,
        Death::Disconnected => 6 << 16,
        Death::Unreachable => 7 << 16,
        Death::Silent => 8 << 16,
        Death::Apart => 9 << 16,
    }
}

/// Reads [`to_word`]; `None` also for what it never writes.
pub(crate) fn death_of_word(word: u32) -> Option<Death> {
    let value = i32::from((word & 0xffff) as u16);
    match word >> 16 {
        1 => Some(Death::Exited(value)),
        2 => Some(Death::Signaled(value)),
        3 if value == 0 => Some(Death::Finalized),
        4 if value == 0 => Some(Death::Overwritten),
        5 if value == 0 => Some(Death::Ended),
        6 if value == 0 => Some(Death::Disconnected),
        7 if value == 0 => Some(Death::Unreachable),
        8 if value == 0 => Some(Death::Silent),
        9 if value == 0 => Some(Death::Apart),
        _ => None,
    }
}

struct Inner {
    segment: Segment,
    bells: Vec<OwnedFd>,
}

/// A job's shared memory and doorbells. Clones share them.
#[derive(Clone)]
pub struct Job(Arc<Inner>);

/// The word by which a rank asks for the job's end with an exit code. No other word is one:
/// a rank that writes where it must not does not choose how the job ends.
fn abort_word(code: u8) -> u32 {
    0x4142 << 16 | u32::from(!code) << 8 | u32::from(code)
}

fn no_job(description: &str) -> TransportError {
    let shown: String = description.chars().take(80).collect();
    TransportError::new(
        TransportErrorKind::Malformed,
        format!(
            "OSIER_JOB={shown:?} describes no job (hint: it is set by osier run; unset it to run alone)"
        ),
    )
}

/// Version of what `OSIER_JOB` says.
const VERSION: u32 = 2;

/// The file descriptors that the value of `OSIER_JOB` names: `VERSION:FD,FD,...`, and behind
/// a semicolon what is not the transport's.
fn descriptors(description: &str) -> Result<Vec<RawFd>, TransportError> {
    let bad = || no_job(description);
    let (version, rest) = description.split_once(':').ok_or_else(bad)?;
    let version: u32 = version.parse().map_err(|_| bad())?;
    if version != VERSION {
        return Err(TransportError::new(
            TransportErrorKind::Malformed,
            format!(
                "OSIER_JOB describes a job in version {version}, and this program reads version {VERSION} (hint: osier run and the program are of different versions of Osier)"
            ),
        ));
    }
    let list = rest.split_once(';').map_or(rest, |(list, _)| list);
    let fds: Result<Vec<RawFd>, _> = list.split(',').map(str::parse).collect();
    let fds = fds.map_err(|_| bad())?;
    // Two segments, and a bell at least.
    match fds.len() >= 3 {
        true => Ok(fds),
        false => Err(bad()),
    }
}

/// The value of `OSIER_JOB` for descriptors, as `3,4,5`.
pub fn describe(descriptors: &str) -> String {
    format!("{VERSION}:{descriptors}")
}

/// Refuses what cannot be the value of `OSIER_JOB`, in whatever process.
pub fn check_description(description: &str) -> Result<(), TransportError> {
    descriptors(description).map(drop)
}

impl Job {
    /// Makes a job: two memfds and an eventfd per rank, all closed on exec.
    pub fn create(options: &JobOptions) -> Result<Job, TransportError> {
        let ranks = options.ranks;
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("a job has 1 to {MAX_RANKS} ranks, not {ranks}"),
            ));
        }
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64);
        let id = now ^ u64::from(std::process::id()) << 40;
        let segment = Segment::create(ranks, options.limit_bytes.unwrap_or(0), id)?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        segment
            .header()
            .cores
            .store(cores as u32, Ordering::Relaxed);
        let fence = u32::from(!super::wait::membarrier_offered());
        segment
            .header()
            .fence_required
            .store(fence, Ordering::Relaxed);
        let bells = (0..ranks).map(|_| new_bell()).collect::<Result<_, _>>()?;
        Ok(Job(Arc::new(Inner { segment, bells })))
    }

    /// File descriptors that a rank's process must inherit.
    pub fn inherited_fds(&self) -> Vec<RawFd> {
        self.descriptors().map(|fd| fd.as_raw_fd()).collect()
    }

    /// The same, to hand them on.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let segment = &self.0.segment;
        [segment.arena.file(), &*segment.heap_fd]
            .into_iter()
            .chain(&self.0.bells)
            .map(AsFd::as_fd)
    }

    /// Environment by which a process finds the job as the given rank. `process` is what the
    /// launcher says besides, empty or with a semicolon in front.
    pub fn env(&self, rank: usize, process: &str) -> Vec<(String, String)> {
        let fds: Vec<String> = self.inherited_fds().iter().map(RawFd::to_string).collect();
        let fds = fds.join(",");
        vec![
            ("OSIER_RANK".into(), rank.to_string()),
            ("OSIER_RANKS".into(), self.ranks().to_string()),
            ("OSIER_JOB".into(), format!("{}{process}", describe(&fds))),
        ]
    }

    /// Attaches to the job that the value of `OSIER_JOB` describes.
    pub fn attach(description: &str) -> Result<Job, TransportError> {
        let bad = || no_job(description);
        let mut fds = Vec::new();
        for fd in descriptors(description)? {
            fds.push(duplicate(fd)?);
        }
        let bells = fds.split_off(2);
        let heap = fds.pop().ok_or_else(bad)?;
        let arena = fds.pop().ok_or_else(bad)?;
        let segment = Segment::attach(arena, heap)?;
        if segment.ranks() != bells.len() {
            return Err(bad());
        }
        Ok(Job(Arc::new(Inner { segment, bells })))
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.0.segment.ranks()
    }

    /// Cores that the launcher may use.
    pub fn cores(&self) -> usize {
        self.0.segment.header().cores.load(Ordering::Relaxed) as usize
    }

    /// Number that tells this job from others.
    pub fn id(&self) -> u64 {
        self.0.segment.header().job_id.load(Ordering::Relaxed)
    }

    /// Leaves up to [`super::NOTE_BYTES`] for all ranks to read.
    pub fn set_note(&self, note: &[u8]) {
        self.0.segment.set_note(note);
    }

    /// What was left.
    pub fn note(&self) -> Vec<u8> {
        self.0.segment.note()
    }

    /// Says that this process looks out for hangs and reports them.
    pub fn set_watched(&self) {
        self.0.segment.header().watched.store(1, Ordering::Relaxed);
    }

    /// Whether somebody else than the ranks looks out for hangs.
    pub fn watched(&self) -> bool {
        self.0.segment.header().watched.load(Ordering::Relaxed) != 0
    }

    /// Leaves bits that tell all ranks what to check; before the first joins.
    pub fn set_checks(&self, bits: u32) {
        self.0
            .segment
            .header()
            .checks
            .store(bits, Ordering::Relaxed);
    }

    /// The bits that were left.
    pub fn checks(&self) -> u32 {
        self.0.segment.header().checks.load(Ordering::Relaxed)
    }

    /// Delays messages between processes; before the first rank joins.
    pub fn set_delay(&self, delay: Option<Delay>) {
        let header = self.0.segment.header();
        let Delay {
            latency_ns,
            ns_per_mib,
        } = delay.unwrap_or_default();
        header.delay_latency_ns.store(latency_ns, Ordering::Relaxed);
        header.delay_ns_per_mib.store(ns_per_mib, Ordering::Relaxed);
        let delayed = u32::from(delay.is_some());
        header.delayed.store(delayed, Ordering::Relaxed);
    }

    /// By how much messages between processes are delayed, if they are.
    pub fn delay(&self) -> Option<Delay> {
        let header = self.0.segment.header();
        let delayed = header.delayed.load(Ordering::Relaxed) != 0;
        delayed.then(|| Delay {
            latency_ns: header.delay_latency_ns.load(Ordering::Relaxed),
            ns_per_mib: header.delay_ns_per_mib.load(Ordering::Relaxed),
        })
    }

    /// Records that a rank has ended, and wakes all others. What was recorded
    /// first holds: a rank may end before its process. A rank that said that it
    /// finalizes has finalized, however its process ended.
    pub fn mark_dead(&self, rank: usize, how: Death) {
        let how = match self.control(rank).finalizes.load(Ordering::Acquire) {
            0 => how,
            _ => Death::Finalized,
        };
        let epoch = &self.0.segment.header().death_epoch;
        super::words::record_death(&self.control(rank).death, epoch, to_word(how));
        for r in 0..self.ranks() {
            self.wake(r);
        }
    }

    /// Asks the launcher to end the job with this exit code as soon as a rank
    /// ends, whichever that is. The first who asks is heard.
    pub fn abort(&self, code: i32) {
        let aborted = &self.0.segment.header().aborted;
        // Fails if somebody else was first; what nobody wrote so is written over.
        let _ = aborted.fetch_update(Ordering::Release, Ordering::Relaxed, |word| {
            (word != abort_word(word as u8)).then_some(abort_word(code as u8))
        });
    }

    /// The exit code with which a rank has asked for the job's end.
    pub fn aborted(&self) -> Option<u8> {
        let word = self.0.segment.header().aborted.load(Ordering::Acquire);
        (word == abort_word(word as u8)).then_some(word as u8)
    }

    /// How a rank ended, if it has.
    pub fn death(&self, rank: usize) -> Option<Death> {
        death_of_word(self.control(rank).death.load(Ordering::Acquire))
    }

    /// Changes with each death.
    #[inline]
    pub fn death_epoch(&self) -> u32 {
        self.0.segment.header().death_epoch.load(Ordering::Acquire)
    }

    /// Takes the place of a rank for this process, or says who has it.
    pub(crate) fn claim(&self, rank: usize) -> Result<(), TransportError> {
        if rank >= self.ranks() {
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("rank {rank} in a job of {} ranks", self.ranks()),
            ));
        }
        let pid = std::process::id();
        match self
            .control(rank)
            .pid
            .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                let space = &self.control(rank).namespace;
                space.store(namespace(), Ordering::Release);
                Ok(())
            }
            Err(other) => Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!(
                    "rank {rank} of this job is already taken by process {other} (hint: one osier program per rank, and one Universe per program; unset OSIER_JOB to run alone)"
                ),
            )),
        }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.0.segment
    }

    #[inline]
    pub(crate) fn control(&self, rank: usize) -> &RankControl {
        self.0.segment.control(rank)
    }

    /// Wakes a rank that sleeps, or is about to.
    pub fn wake(&self, rank: usize) {
        if super::words::rouse_anyway(&self.control(rank).sleeping) {
            self.ring(rank);
        }
    }

    /// Rings the bell of a rank that sleeps.
    pub(crate) fn ring(&self, rank: usize) {
        let one = 1u64;
        // SAFETY: invariant 1: eight bytes to our own eventfd; a full counter
        // (EAGAIN) means that it rings already.
        unsafe { libc::write(self.0.bells[rank].as_raw_fd(), (&raw const one).cast(), 8) };
    }

    pub(crate) fn bell(&self, rank: usize) -> &OwnedFd {
        &self.0.bells[rank]
    }
}

/// The process namespace of this process, so that processes of two namespaces do not take
/// each other's numbers for their own; 1 where the system does not say.
pub(crate) fn namespace() -> u32 {
    use std::os::unix::fs::MetadataExt;
    // Never 0, which says that a rank has not joined yet.
    std::fs::metadata("/proc/self/ns/pid").map_or(1, |data| (data.ino() as u32).max(1))
}

fn new_bell() -> Result<OwnedFd, TransportError> {
    // SAFETY: invariant 1.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(TransportError::last_os(
            "creating a doorbell (hint: raise ulimit -n)",
        ));
    }
    // SAFETY: invariant 2.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A close-on-exec copy, so that the process's own children do not inherit
/// the job and a second attach finds the number still open.
fn duplicate(fd: RawFd) -> Result<OwnedFd, TransportError> {
    // SAFETY: invariant 1.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(TransportError::last_os(format!(
            "opening descriptor {fd} of the job (hint: OSIER_JOB is only valid in a process that osier run started)"
        )));
    }
    // SAFETY: invariant 2.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
