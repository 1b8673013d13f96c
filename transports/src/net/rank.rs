//! A rank's part of the network: its state behind one lock, and the thread that makes its
//! connections.

use super::address::{Card, NetworkSetting};
use super::endpoint::NetEndpoint;
use super::ends::{Cause, Ends, Record};
use super::hello::{Acceptor, JobKey, Verdict};
use super::map::HostMap;
use super::news::Near;
use super::service::Service;
use super::state::{NOTE, NetCounts, State};
use crate::contract::{TransportError, TransportErrorKind};
use crate::death::Death;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a peer's system may be silent until its connections, and calls, count as lost.
const GONE_AFTER: Duration = Duration::from_secs(5);
/// How long a rank that leaves waits until its peers' systems have all that it has sent, from
/// the last byte on that they took.
const LEAVING_TIME: Duration = Duration::from_secs(5);

/// Addresses of the ranks of a job.
pub trait Directory: Send + Sync {
    /// Where a rank is called. Asked when it is called first, and may take a while.
    ///
    /// # Errors
    /// Why it is not known.
    fn card(&self, rank: u32) -> Result<Card, String>;
}

/// How a rank takes part in a network.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// This rank's number in the job.
    pub rank: u32,
    /// The job's number, and its secret.
    pub job: u64,
    /// See above.
    pub key: JobKey,
    /// Which addresses and ports it uses.
    pub setting: NetworkSetting,
    /// How long a call may take.
    pub call_time: Duration,
    /// How long a peer's system may be silent.
    pub gone_after: Duration,
}

impl NetOptions {
    /// With the usual times.
    pub fn new(rank: u32, job: u64, key: JobKey) -> Self {
        Self {
            rank,
            job,
            key,
            setting: NetworkSetting::default(),
            call_time: GONE_AFTER,
            gone_after: GONE_AFTER,
        }
    }
}

pub(super) struct Inner {
    options: NetOptions,
    own: Card,
    state: Mutex<State>,
    directory: Mutex<Option<Arc<dyn Directory>>>,
    /// Wakes the thread that makes connections.
    wake: Arc<EventFd>,
    /// Registered with the events on which a thread sleeps.
    note: EventFd,
    /// The same number as the state's, to be asked without its lock.
    epoch: AtomicU64,
    /// `note` is set.
    noted: AtomicBool,
    killed: AtomicBool,
    /// The hosts of the job, until the thread takes part in their exchange of news.
    to_attend: Mutex<Option<(HostMap, Near)>>,
    /// Partners know that this rank has left.
    told: AtomicBool,
}

/// A rank on a network. Clones are the same rank.
#[derive(Clone)]
pub struct NetRank(Arc<Inner>);

fn system(what: &str, e: nix::Error) -> TransportError {
    TransportError::os(what, &std::io::Error::from(e))
}

impl NetRank {
    /// Listens. Others can call it from now on; it can call others once it knows where they are
    /// ([`NetRank::look_up_in`]).
    ///
    /// # Errors
    /// No address, port, descriptor or thread is left.
    pub fn listen(mut options: NetOptions, host: &str) -> Result<NetRank, TransportError> {
        if let Some(time) = options.setting.gone_after() {
            (options.gone_after, options.call_time) = (time, time);
        }
        let (listener, addresses) = options.setting.listen()?;
        let os = |e: std::io::Error| TransportError::os("a listener", &e);
        listener.set_nonblocking(true).map_err(os)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| system("a set of events", e))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = || EventFd::from_value_and_flags(0, flags).map_err(|e| system("an event", e));
        let (wake, note) = (Arc::new(event()?), event()?);
        epoll
            .add(note.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, NOTE))
            .map_err(|e| system("a set of events", e))?;
        let inner = Arc::new(Inner {
            own: Card {
                host: host.to_owned(),
                addresses,
            },
            state: Mutex::new(State::new(options.rank, epoll)),
            options,
            directory: Mutex::default(),
            wake: wake.clone(),
            note,
            epoch: AtomicU64::new(0),
            noted: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            to_attend: Mutex::default(),
            told: AtomicBool::new(false),
        });
        let service = Service {
            listener,
            wake,
            inner: Arc::downgrade(&inner),
        };
        std::thread::Builder::new()
            .name("osier-net".into())
            .spawn(move || service.run())
            .map_err(|e| TransportError::os("a thread for connections", &e))?;
        Ok(NetRank(inner))
    }

    /// Where peers are called.
    pub fn look_up_in(&self, directory: Arc<dyn Directory>) {
        *lock(&self.0.directory) = Some(directory);
    }

    /// Exchanges news of ends of ranks with the other hosts of the job from now on. `near` says how
    /// ranks of this host have ended, as far as its segment knows.
    pub fn attend(&self, map: HostMap, near: Near) {
        self.state().attend(map.clone());
        *lock(&self.0.to_attend) = Some((map, near));
        self.0.rouse();
    }

    /// Where this rank is called.
    pub fn card(&self) -> &Card {
        &self.0.own
    }

    /// This rank's number in the job.
    pub fn rank(&self) -> u32 {
        self.0.options.rank
    }

    /// Opens a channel to the given ranks of the job, of which this rank is one.
    pub fn endpoint(&self, channel: u64, members: impl Into<Arc<[u32]>>) -> NetEndpoint {
        let members = members.into();
        self.state().open(channel, members.clone());
        NetEndpoint::new(self.clone(), channel, members)
    }

    /// Changes with each end of a peer.
    #[inline]
    pub fn death_epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Acquire)
    }

    /// How a peer ended, if it has, as far as this rank knows.
    pub fn death(&self, rank: u32) -> Option<Death> {
        self.state().death(rank)
    }

    /// Why, in words.
    pub fn why(&self, rank: u32) -> Option<String> {
        self.state().why(rank)
    }

    /// Why all other ranks go on without this one, if they do.
    pub fn why_apart(&self) -> Option<String> {
        self.state().why_apart()
    }

    /// What has happened so far.
    pub fn counts(&self) -> NetCounts {
        self.state().counts
    }

    /// Bytes of memory that its state takes.
    pub fn heap_bytes(&self) -> usize {
        self.state().heap_bytes()
    }

    /// A descriptor that is readable when something may have come, or there is room again.
    /// To be asked before each sleep, and polled once more behind it.
    pub fn events(&self) -> i32 {
        let mut state = self.state();
        if self.0.noted.swap(false, Ordering::AcqRel) {
            // Reading it resets it.
            let _ = self.0.note.read();
        }
        state.watch_blocked();
        state.epoll.0.as_raw_fd()
    }

    /// Leaves the job: says good-bye to all peers, and waits until their systems have what was
    /// sent.
    pub fn finalize(&self) {
        self.with(State::leave);
        let mut last = (Instant::now(), self.counts().sent_bytes);
        let patience = LEAVING_TIME.max(self.0.options.call_time);
        while !self.state().has_left() && last.0.elapsed() < patience {
            let sent = self.counts().sent_bytes;
            if sent != last.1 {
                last = (Instant::now(), sent);
            }
            // No event tells that a peer's system has acknowledged bytes.
            std::thread::sleep(Duration::from_micros(50));
        }
        if !self.0.with_ends(Ends::are_exchanged) {
            return;
        }
        // Last, so that whoever learns of it has all that was sent.
        self.with(|state| state.reports.push((self.rank(), Cause::Finalized, true)));
        let begun = Instant::now();
        while !self.0.told.load(Ordering::Acquire) && begun.elapsed() < patience {
            // The thread looks whether the news are acknowledged, of which no event tells, either.
            self.0.rouse();
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Ends as the end of the process would, for ranks that are threads of one: all connections
    /// are closed, and nobody is called or let in any more.
    pub fn kill(&self) {
        self.0.killed.store(true, Ordering::Release);
        self.with(State::kill);
        self.0.rouse();
    }

    /// The state, for calls that may call peers or learn of their ends.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state();
        let result = f(&mut state);
        self.0.epoch.store(state.epoch, Ordering::Release);
        let wanted = !state.wanted.is_empty() || !state.reports.is_empty();
        drop(state);
        if wanted {
            self.0.rouse();
        }
        result
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread that makes connections asks for and tells.
impl Inner {
    pub fn key(&self) -> &JobKey {
        &self.options.key
    }

    pub fn job(&self) -> u64 {
        self.options.job
    }

    pub fn rank(&self) -> u32 {
        self.options.rank
    }

    pub fn call_time(&self) -> Duration {
        self.options.call_time
    }

    pub fn gone_after(&self) -> Duration {
        self.options.gone_after
    }

    pub fn acceptor(&self) -> Acceptor {
        Acceptor::new(&self.options.key, self.options.job, self.options.rank)
    }

    pub fn card_of(&self, rank: u32) -> Result<Card, String> {
        let directory = lock(&self.directory).clone();
        let directory = directory.ok_or("nobody has said where ranks are called")?;
        directory.card(rank)
    }

    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    pub fn take_attend(&self) -> Option<(HostMap, Near)> {
        lock(&self.to_attend).take()
    }

    pub fn take_reports(&self) -> Vec<(u32, Cause, bool)> {
        std::mem::take(&mut lock(&self.state).reports)
    }

    pub fn with_ends<R>(&self, f: impl FnOnce(&Ends) -> R) -> R {
        f(&lock(&self.state).ends)
    }

    /// Takes note of ends: see [`State::learn`].
    pub fn learn(&self, records: &[Record]) -> (Vec<Record>, Vec<Record>) {
        let tie = self.options.setting.lowest_goes_on();
        self.tell(|state| state.learn(records, tie))
    }

    /// The connection to a rank that has ended is given up.
    pub fn give_up(&self, rank: u32, cause: Cause) {
        self.tell(|state| state.give_up(rank, cause));
    }

    /// Whether this rank has left, as its thread knows.
    pub fn leaves(&self) -> bool {
        self.with_ends(|ends| ends.cause(self.rank()).is_some())
    }

    /// Partners know that this rank has left, or there are none.
    pub fn told(&self) {
        self.told.store(true, Ordering::Release);
    }

    pub fn count_malformed(&self) {
        lock(&self.state).counts.malformed += 1;
    }

    pub fn take_wanted(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.state).wanted)
    }

    pub fn is_dialing(&self, rank: u32) -> bool {
        lock(&self.state).is_dialing(rank)
    }

    pub fn count_refused(&self) {
        lock(&self.state).counts.refused += 1;
    }

    /// Has a peer called once more.
    pub fn want(&self, rank: u32) {
        lock(&self.state).wanted.push(rank);
        self.rouse();
    }

    /// A peer cannot be called; `here` says that this rank is to blame.
    pub fn unreachable(&self, rank: u32, why: &str, here: bool) {
        self.tell(|state| state.unreachable(rank, why, here));
    }

    pub fn is_unread(&self, rank: u32) -> bool {
        lock(&self.state).is_unread(rank)
    }

    pub fn is_apart(&self) -> bool {
        lock(&self.state).why_apart().is_some()
    }

    pub fn part(&self, why: &str) {
        self.tell(|state| state.part(why.to_owned()));
    }

    pub fn has_left(&self, rank: u32) {
        self.tell(|state| state.finalized(rank));
    }

    pub fn adopt(&self, rank: u32, socket: TcpStream) {
        self.tell(|state| state.adopt(rank, socket, false));
    }

    /// Decides about a caller; `say` tells it, and returns its socket if it is let in.
    pub fn decide(&self, rank: u32, say: impl FnOnce(Verdict) -> Option<TcpStream>) {
        self.tell(|state| {
            if let Some(socket) = state.decide(rank).and_then(say) {
                state.adopt(rank, socket, true);
            }
        });
    }

    /// Decides about a caller with news; who is cut off decides nothing.
    pub fn decide_on_news(&self, rank: u32) -> Option<Verdict> {
        let verdict = match self.with_ends(|ends| ends.cause(rank)) {
            None => Verdict::Accepted,
            // What it has to say is known.
            Some(Cause::Finalized) => Verdict::Leaves,
            Some(_) => Verdict::Fenced,
        };
        (!self.is_apart()).then_some(verdict)
    }

    fn rouse(&self) {
        // A full counter is awake anyway.
        let _ = self.wake.write(1);
    }

    /// Changes the state, and wakes a sleeping thread.
    fn tell<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.state);
        let result = f(&mut state);
        self.epoch.store(state.epoch, Ordering::Release);
        let reports = !state.reports.is_empty();
        self.noted.store(true, Ordering::Release);
        let _ = self.note.write(1);
        drop(state);
        if reports {
            self.rouse();
        }
        result
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.rouse();
    }
}

/// A directory for tests and tools: all cards are known.
impl Directory for Vec<Card> {
    fn card(&self, rank: u32) -> Result<Card, String> {
        let card = self.get(rank as usize).cloned();
        card.ok_or_else(|| format!("no rank {rank} among {}", self.len()))
    }
}

/// For errors of calls that a network does not offer.
#[cold]
pub(super) fn unavailable(what: &str) -> TransportError {
    TransportError::new(
        TransportErrorKind::Unavailable,
        format!("{what}: this transport does not offer it"),
    )
}
