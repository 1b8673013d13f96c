//! The thread that makes connections: it listens, calls, and shakes hands, whatever the rank
//! computes meanwhile. What is connected goes to the rank, which alone moves messages, or is a
//! stream of news, which this thread keeps.
//!
//! A peer's addresses are tried at the same time, and the first that passes the handshake is
//! taken. A stranger that calls holds a few hundred bytes until it is refused or its time is
//! over, and of those there are at most [`MOST_CALLERS`]: more wait in the system's queue.
//!
//! # Sources
//! D. Schinazi, T. Pauly, "Happy Eyeballs Version 2: Better Connectivity Using Concurrency",
//! RFC 8305, 2017: addresses tried in parallel.

use super::address::Card;
use super::hello::{Acceptor, BadHello, Dialer, Next, Pair, Purpose, Verdict};
use super::news::{News, NoCall, is_silence};
use super::rank::Inner;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Callers whose handshakes are under way.
const MOST_CALLERS: usize = 256;
/// How long a caller may take for its handshake.
const CALLER_TIME: Duration = Duration::from_secs(10);
/// How long a rank waits for the call of a peer whose call crosses its own.
const CROSSED_TIME: Duration = Duration::from_millis(500);

/// How long until addresses are tried again to which there was no way.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A handshake of a caller.
struct Caller {
    socket: TcpStream,
    shake: Acceptor,
    until: Instant,
}

/// A call.
struct Call {
    purpose: Purpose,
    rank: u32,
    host: String,
    addresses: Vec<SocketAddr>,
    tries: Vec<Try>,
    until: Instant,
    /// Why addresses failed.
    failed: Vec<String>,
    /// Some address has answered, though not as it should.
    answered: bool,
    /// Not all has answered, or not that nobody listens there.
    strange: bool,
    /// When all are tried again, as a link may come back.
    again: Option<Instant>,
    /// It crossed one of the peer, which is waited for until then.
    crossed: Option<Instant>,
}

struct Try {
    address: SocketAddr,
    socket: TcpStream,
    connected: bool,
    shake: Dialer,
    hello: Vec<u8>,
    /// The peer has proved itself, and this is our proof. It is said on one connection at a time:
    /// the peer would decide about each.
    proof: Option<Vec<u8>>,
    proving: bool,
}

/// What a handshake has come to.
enum End {
    Open,
    Proved(Pair),
    Decided(Verdict),
    Failed(String),
    /// The host says that nobody listens there.
    Refused(String),
    /// Nothing has answered.
    Silent(String),
    /// The caller, a rank of some job, has been let in elsewhere.
    Dropped,
}

/// What a call has come to.
enum Outcome {
    Connected(TcpStream),
    /// The peer calls, or has been let in otherwise; or it is wanted no more.
    Superseded,
    /// It crossed a call of the peer, which has not come.
    Again,
    Fenced,
    Leaves,
    /// No address has worked.
    Failed(NoCall, String),
}

pub(super) struct Service {
    pub listener: TcpListener,
    pub wake: Arc<EventFd>,
    pub inner: Weak<Inner>,
}

/// Sockets carry short messages at once, and where nothing comes their peers' systems are asked
/// whether they are there. A peer that does not read is there.
pub(super) fn prepare(socket: &TcpStream, gone_after: Duration) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    let seconds = seconds(gone_after);
    let probes = seconds.min(5);
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &(seconds / probes))?;
    setsockopt(socket, sockopt::TcpKeepInterval, &(seconds / probes))?;
    setsockopt(socket, sockopt::TcpKeepCount, &probes)?;
    Ok(())
}

/// As [`prepare`], of a stream of news, which its peer's thread always reads: it fails, too, where
/// what it has sent is not acknowledged.
fn prepare_news(socket: &TcpStream, gone_after: Duration) -> std::io::Result<()> {
    prepare(socket, gone_after)?;
    let ms = seconds(gone_after).saturating_mul(1000);
    setsockopt(socket, sockopt::TcpUserTimeout, &ms)?;
    Ok(())
}

/// How long systems may be silent: that time, less what silent hosts are collected for.
fn seconds(gone_after: Duration) -> u32 {
    let seconds = u32::try_from(gone_after.as_secs()).unwrap_or(u32::MAX);
    seconds.saturating_sub(1).max(1)
}

/// Begins to connect.
fn begin(address: SocketAddr) -> std::io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Stream, flags, None)?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(nix::Error::EINPROGRESS) => Ok(fd.into()),
        Err(e) => Err(e.into()),
    }
}

fn plain(e: &std::io::Error) -> String {
    let text = e.to_string().to_lowercase();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

impl Service {
    /// Serves until the rank is gone.
    pub fn run(self) {
        let mut callers: Vec<Caller> = Vec::new();
        let mut calls: Vec<Call> = Vec::new();
        let mut news = News::default();
        while self.sleep(&callers, &calls, &news) {
            // Reading it resets it.
            let _ = self.wake.read();
            let Some(inner) = self.inner.upgrade().filter(|inner| !inner.is_killed()) else {
                return;
            };
            if let Some((map, near)) = inner.take_attend() {
                news.attend(inner.rank(), map, near);
            }
            let wanted = inner
                .take_wanted()
                .into_iter()
                .map(|rank| (Purpose::Data, rank));
            let partners = news
                .turn(&inner)
                .into_iter()
                .map(|rank| (Purpose::News, rank));
            for (purpose, rank) in wanted.chain(partners) {
                match call(&inner, purpose, rank) {
                    Ok(call) => calls.push(call),
                    Err(why) => ended(
                        &inner,
                        &mut news,
                        purpose,
                        rank,
                        Outcome::Failed(NoCall::Again, why),
                    ),
                }
            }
            calls.retain_mut(|call| match go_on(&inner, call) {
                None => true,
                Some(outcome) => {
                    ended(&inner, &mut news, call.purpose, call.rank, outcome);
                    false
                }
            });
            self.accept(&inner, &mut callers);
            let now = Instant::now();
            let mut at = 0;
            while at < callers.len() {
                let end = match callers[at].until <= now {
                    true => End::Failed(BadHello::Silent.to_string()),
                    false => callers[at].go_on(),
                };
                match end {
                    End::Open => at += 1,
                    End::Proved(pair) => {
                        let socket = callers.swap_remove(at).socket;
                        match pair.purpose {
                            Purpose::Data => answer(&inner, socket, pair.dialer),
                            Purpose::News => answer_news(&inner, &mut news, socket, pair.dialer),
                        }
                    }
                    End::Dropped => drop(callers.swap_remove(at)),
                    End::Failed(_) | End::Refused(_) | End::Silent(_) | End::Decided(_) => {
                        inner.count_refused();
                        callers.swap_remove(at);
                    }
                }
            }
        }
    }

    /// Sleeps until there is something to do. False: the rank is gone.
    fn sleep(&self, callers: &[Caller], calls: &[Call], news: &News) -> bool {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        if callers.len() < MOST_CALLERS {
            fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        let of_callers = callers.iter().map(|c| (c.socket.as_fd(), true));
        let of_calls = calls.iter().filter(|call| call.crossed.is_none());
        let tries = of_calls.flat_map(|call| &call.tries);
        for (fd, reads) in of_callers.chain(tries.map(|t| (t.socket.as_fd(), t.connected))) {
            let flags = if reads {
                PollFlags::POLLIN
            } else {
                PollFlags::POLLOUT
            };
            fds.push(PollFd::new(fd, flags));
        }
        for (fd, reads, room) in news.sockets() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, reads);
            flags.set(PollFlags::POLLOUT, room);
            fds.push(PollFd::new(fd, flags));
        }
        let times = callers.iter().map(|c| c.until).chain(news.due());
        let of_calls = calls
            .iter()
            .map(|c| c.crossed.or(c.again).unwrap_or(c.until));
        let next = times.chain(of_calls).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            let ms = left.as_millis().min(60_000) as u16;
            PollTimeout::from(ms.saturating_add(1))
        });
        // A signal is no reason to end.
        let _ = poll(&mut fds, timeout);
        self.inner.strong_count() > 0
    }

    fn accept(&self, inner: &Inner, callers: &mut Vec<Caller>) {
        while callers.len() < MOST_CALLERS {
            // Also where it has no descriptors left: those that wait are served first.
            let Ok((socket, _)) = self.listener.accept() else {
                return;
            };
            if prepare(&socket, inner.gone_after()).is_ok() {
                callers.push(Caller {
                    socket,
                    shake: inner.acceptor(),
                    until: Instant::now() + CALLER_TIME,
                });
            }
        }
    }
}

/// Lets a caller in that has proved itself, or tells it why not.
fn answer(inner: &Inner, mut socket: TcpStream, rank: u32) {
    inner.decide(rank, |verdict| {
        // A few bytes, to a socket that has sent next to nothing.
        let said = socket.write_all(&Acceptor::verdict(verdict));
        match said.is_ok() && verdict == Verdict::Accepted {
            true => Some(socket),
            false => None,
        }
    });
}

/// Lets a caller with news in, unless it was declared dead.
fn answer_news(inner: &Inner, news: &mut News, mut socket: TcpStream, rank: u32) {
    let Some(verdict) = inner.decide_on_news(rank) else {
        return;
    };
    let said = socket.write_all(&Acceptor::verdict(verdict));
    let watched = prepare_news(&socket, inner.gone_after());
    if said.is_ok() && watched.is_ok() && verdict == Verdict::Accepted {
        news.adopt(inner, rank, socket);
    }
}

/// Does what the end of a call asks for.
fn ended(inner: &Inner, news: &mut News, purpose: Purpose, rank: u32, outcome: Outcome) {
    match (purpose, outcome) {
        (_, Outcome::Superseded) => {}
        (_, Outcome::Fenced) => inner.part(&format!("rank {rank} has declared this rank dead")),
        (Purpose::Data, Outcome::Connected(socket)) => inner.adopt(rank, socket),
        (Purpose::Data, Outcome::Again) => inner.want(rank),
        (Purpose::Data, Outcome::Leaves) => inner.has_left(rank),
        (Purpose::Data, Outcome::Failed(NoCall::Again, why)) => {
            inner.unreachable(rank, &why, true);
        }
        (Purpose::Data, Outcome::Failed(how, why)) => {
            news.unreachable(inner, rank, why, how == NoCall::Refused);
        }
        (Purpose::News, Outcome::Connected(socket)) => news.adopt(inner, rank, socket),
        (Purpose::News, Outcome::Failed(how, _)) => news.not_called(inner, rank, how),
        // It knows that this rank has left.
        (Purpose::News, Outcome::Leaves) => inner.told(),
        (Purpose::News, Outcome::Again) => news.not_called(inner, rank, NoCall::Again),
    }
}

impl Caller {
    fn go_on(&mut self) -> End {
        loop {
            let n = match self.socket.read(self.shake.room()) {
                Ok(0) if self.shake.has_answered() => return End::Dropped,
                Ok(0) => return End::Failed(BadHello::Closed.to_string()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return End::Open,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return End::Failed(plain(&e)),
            };
            match self.shake.take(n) {
                Ok(Next::Wait) => {}
                Ok(Next::Say(bytes)) => {
                    if let Err(e) = self.socket.write_all(&bytes) {
                        return End::Failed(plain(&e));
                    }
                }
                Ok(Next::Proved(pair)) => return End::Proved(pair),
                Ok(Next::Decided(verdict)) => return End::Decided(verdict),
                Err(e) => return End::Failed(e.to_string()),
            }
        }
    }
}

fn call(inner: &Inner, purpose: Purpose, rank: u32) -> Result<Call, String> {
    let Card { host, addresses } = inner.card_of(rank)?;
    let time = match purpose {
        Purpose::Data => inner.call_time(),
        Purpose::News => inner.gone_after(),
    };
    let mut call = Call {
        purpose,
        rank,
        host,
        addresses,
        tries: Vec::new(),
        until: Instant::now() + time,
        failed: Vec::new(),
        answered: false,
        strange: false,
        again: None,
        crossed: None,
    };
    call.try_all(inner)?;
    Ok(call)
}

impl Call {
    /// Tries all addresses.
    fn try_all(&mut self, inner: &Inner) -> Result<(), String> {
        self.failed.clear();
        for address in &self.addresses {
            let pair = Pair {
                purpose: self.purpose,
                job: inner.job(),
                dialer: inner.rank(),
                acceptor: self.rank,
            };
            let (shake, hello) = Dialer::new(inner.key(), pair)?;
            let begun = begin(*address).and_then(|socket| {
                match self.purpose {
                    Purpose::Data => prepare(&socket, inner.gone_after())?,
                    Purpose::News => prepare_news(&socket, inner.gone_after())?,
                }
                Ok(socket)
            });
            match begun {
                Ok(socket) => self.tries.push(Try {
                    address: *address,
                    socket,
                    connected: false,
                    shake,
                    hello,
                    proof: None,
                    proving: false,
                }),
                Err(e) => {
                    // The troubles of this host say nothing of the peer.
                    self.strange = true;
                    self.failed.push(format!("{address}: {}", plain(&e)));
                }
            }
        }
        Ok(())
    }
}

/// Moves a call on; how it has ended, if it has.
fn go_on(inner: &Inner, call: &mut Call) -> Option<Outcome> {
    if call.purpose == Purpose::Data && !inner.is_dialing(call.rank) {
        return Some(Outcome::Superseded);
    }
    let now = Instant::now();
    if let Some(until) = call.crossed {
        // It should have called by now: its call may have failed where ours does not.
        return (now >= until).then_some(Outcome::Again);
    }
    if let Some(at) = call.again {
        if now < at {
            return None;
        }
        call.again = None;
        if let Err(why) = call.try_all(inner) {
            return Some(Outcome::Failed(NoCall::Again, why));
        }
    }
    let (mut at, mut again) = (0, false);
    while at < call.tries.len() || std::mem::take(&mut again) && !call.tries.is_empty() {
        at = if at < call.tries.len() { at } else { 0 };
        let others = call.tries.iter().any(|one| one.proving);
        let one = &mut call.tries[at];
        let end = match call.until <= now {
            true if !one.connected => End::Silent("no answer in time".into()),
            true => End::Failed(BadHello::Silent.to_string()),
            false => one.go_on(others),
        };
        call.answered |= matches!(end, End::Failed(_) | End::Refused(_));
        call.strange |= matches!(end, End::Failed(_) | End::Silent(_));
        match end {
            End::Open => at += 1,
            End::Failed(why) | End::Refused(why) | End::Silent(why) => {
                // Another one may be waiting to prove itself.
                again |= one.proving;
                let address = call.tries.swap_remove(at).address;
                call.failed.push(format!("{address}: {why}"));
            }
            End::Decided(Verdict::Accepted) => {
                return Some(Outcome::Connected(call.tries.swap_remove(at).socket));
            }
            End::Decided(Verdict::Crossed | Verdict::There) => {
                call.tries.clear();
                call.crossed = Some(now + CROSSED_TIME);
                return None;
            }
            End::Decided(Verdict::Fenced) => return Some(Outcome::Fenced),
            End::Decided(Verdict::Leaves) => return Some(Outcome::Leaves),
            End::Proved(_) | End::Dropped => return Some(Outcome::Superseded),
        }
    }
    if !call.tries.is_empty() {
        return None;
    }
    if !call.answered && now < call.until {
        call.again = Some(call.until.min(now + AGAIN_AFTER));
        return None;
    }
    Some({
        let why = format!("on host {}: {}", call.host, call.failed.join("; "));
        let how = match (call.answered, call.strange) {
            (true, false) => NoCall::Refused,
            (true, true) => NoCall::Mixed,
            (false, _) => NoCall::Silent,
        };
        Outcome::Failed(how, why)
    })
}

impl Try {
    /// Moves it on; `others` says that another try is at its proof.
    fn go_on(&mut self, others: bool) -> End {
        if !self.connected {
            match self.socket.take_error() {
                Ok(None) => {}
                Ok(Some(e)) | Err(e) if is_silence(&e) => return End::Silent(plain(&e)),
                Ok(Some(e)) | Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                    return End::Refused(plain(&e));
                }
                Ok(Some(e)) | Err(e) => return End::Failed(plain(&e)),
            }
            match self.socket.write(&self.hello) {
                Ok(n) if n == self.hello.len() => self.connected = true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return End::Open,
                Err(e) if e.kind() == ErrorKind::NotConnected => return End::Open,
                Ok(_) => return End::Failed(BadHello::Closed.to_string()),
                Err(e) => return End::Failed(plain(&e)),
            }
        }
        loop {
            if let Some(proof) = self.proof.take_if(|_| !others) {
                if let Err(e) = self.socket.write_all(&proof) {
                    return End::Failed(plain(&e));
                }
                self.proving = true;
            }
            let n = match self.socket.read(self.shake.room()) {
                Ok(0) => return End::Failed(BadHello::Closed.to_string()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return End::Open,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return End::Failed(plain(&e)),
            };
            match self.shake.take(n) {
                Ok(Next::Wait) => {}
                Ok(Next::Say(bytes)) => self.proof = Some(bytes),
                Ok(Next::Decided(verdict)) => return End::Decided(verdict),
                Ok(Next::Proved(pair)) => return End::Proved(pair),
                Err(e) => return End::Failed(e.to_string()),
            }
        }
    }
}
