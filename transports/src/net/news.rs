//! News of ends of ranks between hosts, exchanged by the threads that make connections, whatever
//! their ranks compute.
//!
//! ```text
//! of this rank's own connections --\                      /--> its state: what needs the rank ends
//! of its partners' streams ---------+--> what is new ----+---> partners
//! of its host's processes ---------/                      \--> who watches, who is called
//! ```
//!
//! A stream that ends without a word is the end of its peer's process; one that the kernel gives
//! up, as nothing answers, is the end of all that host's ranks. What a peer with an open connection
//! has sent before its end comes by that connection and ends it, so the news wait for it for
//! [`GRACE`].
//!
//! # Frames
//! Kind (1), three zero bytes, a number of records in 4 bytes, and these ([`Record`]).

use super::ends::{Cause, Ends, Overlay, RECORD_BYTES, Record};
use super::map::HostMap;
use super::rank::Inner;
use super::state::unsent;
use crate::death::Death;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

const RECORDS: u8 = 1;
const HEAD_BYTES: usize = 8;
/// Records of a frame.
const MOST_RECORDS: usize = 1024;
/// How long news of a rank wait for what comes by an open connection of it.
const GRACE: Duration = Duration::from_secs(1);
/// How long a rank that has closed a connection may say meanwhile that it is this rank that was
/// declared dead; the higher rank of two waits twice as long, so that they do not declare each
/// other dead.
const HEARING: Duration = Duration::from_millis(500);
/// How long silent hosts are collected: those of one cut are found within about a probe of each
/// other, and are judged together.
const COLLECTING: Duration = Duration::from_secs(1);
/// How often a watcher looks at the processes of its host.
const LOOK: Duration = Duration::from_millis(500);

/// Ends of ranks of this host, as its segment records them.
pub type Near = Box<dyn Fn(u32) -> Option<Death> + Send + Sync>;

struct Stream {
    rank: u32,
    socket: TcpStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// What it sends is read no more.
    deaf: bool,
}

/// What is due at a time.
enum Later {
    /// A rank's connection is given up, if it is still there.
    Ends(u32, Cause),
    /// A rank with which a connection has failed is called, if nobody says how it has ended.
    Suspect(u32),
    /// A rank that could not be called has ended, if nobody says otherwise; true if its host
    /// refused the connection at all of its addresses.
    Unreachable(u32, String, bool),
    /// A partner is called, unless it has called.
    Call(u32),
    /// The hosts that were found silent are judged.
    Judge,
}

/// How a call for news has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoCall {
    /// Nothing has answered.
    Silent,
    /// Connections to all addresses were refused: nobody listens there.
    Refused,
    /// Some addresses did not answer and others refused, or another program answers.
    Mixed,
    /// The cause is on this rank's side: it tries again.
    Again,
}

/// A thread's part in the exchange of news.
#[derive(Default)]
pub(super) struct News {
    attended: Option<Attended>,
    streams: Vec<Stream>,
    later: Vec<(Instant, Later)>,
}

struct Attended {
    overlay: Overlay,
    near: Near,
    looked: Instant,
    /// Partners that are being called, or will be.
    sought: Vec<u32>,
    /// Partners that could not be called once.
    failed: Vec<u32>,
    /// Ranks with which a connection has failed, and that are called to see whether they live.
    suspects: Vec<u32>,
    /// Ranks whose hosts this rank has found silent, to be judged together.
    silent: Vec<u32>,
}

impl News {
    /// Takes part in a job from now on.
    pub fn attend(&mut self, own: u32, map: HostMap, near: Near) {
        self.attended = Some(Attended {
            overlay: Overlay::new(own, map),
            near,
            looked: Instant::now(),
            sought: Vec::new(),
            failed: Vec::new(),
            suspects: Vec::new(),
            silent: Vec::new(),
        });
    }

    /// Whether it takes part.
    pub fn attends(&self) -> bool {
        self.attended.is_some()
    }

    /// Sockets to sleep on, and whether something to read and room are waited for.
    pub fn sockets(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool, bool)> {
        let streams = self.streams.iter().filter(|_| self.attends());
        let streams = streams.filter(|one| !one.deaf || !one.outgoing.is_empty());
        streams.map(|one| (one.socket.as_fd(), !one.deaf, !one.outgoing.is_empty()))
    }

    /// When something is due next.
    pub fn due(&self) -> Option<Instant> {
        let looks = self.attended.as_ref().filter(|a| a.overlay.watches());
        let looks = looks.filter(|a| a.overlay.map().here().len() > 1);
        let times = self.later.iter().map(|(at, _)| *at);
        times.chain(looks.map(|a| a.looked + LOOK)).min()
    }

    /// Takes a stream that has passed its handshake, and tells its peer all that is known.
    pub fn adopt(&mut self, inner: &Inner, rank: u32, socket: TcpStream) {
        if let Some(attended) = &mut self.attended {
            attended.sought.retain(|one| *one != rank);
            attended.failed.retain(|one| *one != rank);
            let suspects = attended.suspects.len();
            attended.suspects.retain(|one| *one != rank);
            if attended.suspects.len() < suspects {
                // It lives, and has lost a connection all the same.
                self.learn(inner, &[Record::of(rank, Cause::Lost, inner.rank())], None);
            }
        }
        let mut stream = Stream {
            rank,
            socket,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            deaf: false,
        };
        if self.may_tell(inner, rank) {
            push(&mut stream.outgoing, &inner.with_ends(Ends::records));
        }
        self.streams.push(stream);
    }

    /// Whether a rank is told of ends. What a side has found that does not go on is nothing to
    /// other hosts, should they hear it.
    fn may_tell(&self, inner: &Inner, rank: u32) -> bool {
        let attended = self.attended.as_ref();
        let here = attended.is_none_or(|a| a.overlay.map().place(rank).is_some());
        here || !inner.is_apart()
    }

    /// A rank could not be called for news.
    pub fn not_called(&mut self, inner: &Inner, rank: u32, how: NoCall) {
        let Some(attended) = &mut self.attended else {
            return;
        };
        attended.sought.retain(|one| *one != rank);
        let is_suspect = attended.suspects.contains(&rank);
        match how {
            NoCall::Silent => return self.is_silent(inner, rank),
            NoCall::Again => {}
            // It may have left, and the news of that be on their way.
            _ if !is_suspect && !attended.failed.contains(&rank) => attended.failed.push(rank),
            _ => {
                attended.suspects.retain(|one| *one != rank);
                let cause = match how {
                    NoCall::Refused => Cause::Ended,
                    _ => Cause::Unreachable,
                };
                return self.learn(inner, &[Record::of(rank, cause, inner.rank())], None);
            }
        }
        attended.sought.push(rank);
        let later = match is_suspect {
            true => Later::Suspect(rank),
            false => Later::Call(rank),
        };
        self.later.push((Instant::now() + GRACE, later));
    }

    /// A rank could not be called for data; `sure` says that its host refused the connection.
    pub fn unreachable(&mut self, inner: &Inner, rank: u32, why: String, sure: bool) {
        match self.attends() {
            false => inner.unreachable(rank, &why, false),
            true => {
                let at = Instant::now() + GRACE;
                self.later.push((at, Later::Unreachable(rank, why, sure)));
            }
        }
    }

    /// What this rank alone knows of an end, and the others learn from it.
    fn report(&mut self, inner: &Inner, rank: u32, cause: Cause, sure: bool) {
        match cause {
            Cause::Silent => self.is_silent(inner, rank),
            Cause::Lost if !sure => {
                let waits = if rank < inner.rank() { 2 } else { 1 };
                let at = Instant::now() + HEARING * waits;
                self.later.push((at, Later::Suspect(rank)));
            }
            _ => self.learn(inner, &[Record::of(rank, cause, inner.rank())], None),
        }
    }

    /// A rank's host does not answer.
    fn is_silent(&mut self, inner: &Inner, rank: u32) {
        let Some(attended) = &mut self.attended else {
            return;
        };
        attended.suspects.retain(|one| *one != rank);
        let map = attended.overlay.map();
        let all = match map.host(rank) == Some(map.own()) {
            true => vec![rank],
            false => inner.with_ends(|ends| attended.overlay.of_host(rank, ends)),
        };
        if attended.silent.is_empty() {
            let at = Instant::now() + COLLECTING;
            self.later.push((at, Later::Judge));
        }
        attended.silent.extend(all);
    }

    /// Judges the hosts that were found silent.
    fn judge(&mut self, inner: &Inner) {
        let silent = self
            .attended
            .as_mut()
            .map(|a| std::mem::take(&mut a.silent));
        let record = |rank: u32| Record::of(rank, Cause::Silent, inner.rank());
        let records: Vec<Record> = silent.into_iter().flatten().map(record).collect();
        self.learn(inner, &records, None);
    }

    /// Takes note of what has come from a stream, or of what this rank has found itself; passes
    /// on what is new.
    fn learn(&mut self, inner: &Inner, records: &[Record], from: Option<usize>) {
        let Some(attended) = &mut self.attended else {
            return;
        };
        // Who is cut off has nothing to say of others.
        if records.is_empty() || from.is_none() && inner.is_apart() {
            return;
        }
        let (new, open) = inner.learn(records);
        let at = Instant::now() + GRACE;
        let ends = |record: Record| (at, Later::Ends(record.first, record.cause));
        self.later.extend(open.into_iter().map(ends));
        inner.with_ends(|ends| {
            let each = new.iter();
            each.for_each(|record| attended.overlay.ended(record.first, ends));
        });
        if new.is_empty() {
            return;
        }
        for at in (0..self.streams.len()).filter(|at| Some(*at) != from) {
            if self.may_tell(inner, self.streams[at].rank) {
                push(&mut self.streams[at].outgoing, &new);
            }
        }
    }

    /// Goes on with all that can be; the partners to call.
    pub fn turn(&mut self, inner: &Inner) -> Vec<u32> {
        let mut calls = Vec::new();
        let reports = inner.take_reports();
        if !self.attends() {
            return calls;
        }
        for (rank, cause, sure) in reports {
            self.report(inner, rank, cause, sure);
        }
        let mut at = 0;
        while at < self.streams.len() {
            match self.read(inner, at) {
                Ok(()) => at += 1,
                Err(silent) => {
                    let rank = self.streams.swap_remove(at).rank;
                    self.lost(inner, rank, silent);
                }
            }
        }
        self.look(inner);
        let now = Instant::now();
        let mut due = Vec::new();
        self.later.retain_mut(|(at, later)| {
            let is_due = *at <= now;
            if is_due {
                due.push(std::mem::replace(later, Later::Call(u32::MAX)));
            }
            !is_due
        });
        for later in due {
            match later {
                // The rank, which computes, has not read all that was sent.
                Later::Ends(rank, cause) if inner.is_unread(rank) => {
                    let at = now + GRACE;
                    self.later.push((at, Later::Ends(rank, cause)));
                }
                Later::Ends(rank, cause) => inner.give_up(rank, cause),
                Later::Suspect(rank) => self.suspect(inner, rank, &mut calls),
                Later::Unreachable(rank, _, true) => {
                    self.learn(inner, &[Record::of(rank, Cause::Ended, inner.rank())], None);
                }
                Later::Unreachable(rank, why, false) => inner.unreachable(rank, &why, false),
                Later::Call(rank) => {
                    if let Some(attended) = &mut self.attended {
                        attended.sought.retain(|one| *one != rank);
                    }
                    if self.is_missing(inner, rank) {
                        calls.push(rank);
                    }
                }
                Later::Judge => self.judge(inner),
            }
        }
        self.seek(inner, &mut calls);
        self.flush(inner);
        calls
    }

    /// Calls a rank with which a connection has failed, if nobody has said how it has ended.
    fn suspect(&mut self, inner: &Inner, rank: u32, calls: &mut Vec<u32>) {
        let Some(attended) = &mut self.attended else {
            return;
        };
        if inner.is_apart() || inner.with_ends(|ends| ends.cause(rank)).is_some() {
            attended.suspects.retain(|one| *one != rank);
            return;
        }
        if !attended.suspects.contains(&rank) {
            attended.suspects.push(rank);
        }
        attended.sought.push(rank);
        calls.push(rank);
    }

    /// Whether a partner lives with which there is no stream.
    fn is_missing(&self, inner: &Inner, rank: u32) -> bool {
        let partners = self.attended.as_ref();
        let partners = partners.map(|a| inner.with_ends(|ends| a.overlay.partners(ends)));
        let is_partner = partners.is_some_and(|partners| partners.contains(&rank));
        is_partner && !self.streams.iter().any(|stream| stream.rank == rank)
    }

    /// Calls partners of lower rank at once; the others call, and are called if they do not.
    fn seek(&mut self, inner: &Inner, calls: &mut Vec<u32>) {
        let Some(attended) = &mut self.attended else {
            return;
        };
        for rank in inner.with_ends(|ends| attended.overlay.partners(ends)) {
            let there = self.streams.iter().any(|stream| stream.rank == rank);
            if there || calls.contains(&rank) || attended.sought.contains(&rank) {
                continue;
            }
            attended.sought.push(rank);
            if rank < inner.rank() {
                calls.push(rank);
            } else {
                let at = Instant::now() + inner.gone_after();
                self.later.push((at, Later::Call(rank)));
            }
        }
    }

    /// Looks at the processes of this host.
    fn look(&mut self, inner: &Inner) {
        let Some(attended) = &mut self.attended else {
            return;
        };
        if attended.looked.elapsed() < LOOK || !attended.overlay.watches() {
            return;
        }
        attended.looked = Instant::now();
        let near = inner.with_ends(|ends| attended.overlay.near(ends));
        let ended = near.iter().filter_map(|rank| {
            let how = (attended.near)(*rank)?;
            Some(Record::of(*rank, Cause::of_death(how), inner.rank()))
        });
        let ended: Vec<Record> = ended.collect();
        self.learn(inner, &ended, None);
    }

    /// A stream has ended.
    fn lost(&mut self, inner: &Inner, rank: u32, silent: bool) {
        if self.streams.iter().any(|stream| stream.rank == rank) {
            return;
        }
        match silent {
            true => self.is_silent(inner, rank),
            false => self.learn(inner, &[Record::of(rank, Cause::Ended, inner.rank())], None),
        }
    }

    /// Reads what has come by a stream. An error: it has ended, true if in silence.
    fn read(&mut self, inner: &Inner, at: usize) -> Result<(), bool> {
        let mut bytes = [0; 4096];
        let mut end = Ok(());
        let stream = &mut self.streams[at];
        // Who was declared dead is heard no more.
        let of = inner.with_ends(|ends| ends.cause(stream.rank));
        stream.deaf |= of.is_some_and(Cause::is_doubtful);
        while !stream.deaf && end.is_ok() {
            let n = match stream.socket.read(&mut bytes) {
                // Its last words are heard first.
                Ok(0) => {
                    end = Err(false);
                    0
                }
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => {
                    end = Err(is_silence(&e));
                    0
                }
            };
            stream.incoming.extend_from_slice(&bytes[..n]);
            // A peer that sends without end is heard in turn.
            if stream.incoming.len() > HEAD_BYTES + MOST_RECORDS * RECORD_BYTES {
                break;
            }
        }
        let ranks = self
            .attended
            .as_ref()
            .map_or(0, |a| a.overlay.map().ranks());
        let rank = stream.rank;
        let mut records = Vec::new();
        let good = take_frames(&mut stream.incoming, ranks as u32, &mut records);
        if !good {
            // It stays open: its end would be taken for the end of this process.
            (stream.deaf, stream.incoming) = (true, Vec::new());
            inner.count_malformed();
            records.push(Record::of(rank, Cause::Lost, inner.rank()));
        }
        self.learn(inner, &records, good.then_some(at));
        end
    }

    /// Sends what there is room for, and tells a rank that leaves when its partners know.
    fn flush(&mut self, inner: &Inner) {
        let mut failed = Vec::new();
        for (at, stream) in self.streams.iter_mut().enumerate() {
            while !stream.outgoing.is_empty() {
                match stream.socket.write(&stream.outgoing) {
                    Ok(n) => drop(stream.outgoing.drain(..n)),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => {
                        stream.outgoing.clear();
                        failed.push((at, is_silence(&e)));
                    }
                }
            }
        }
        for (at, silent) in failed.into_iter().rev() {
            // Its last words may have come.
            let read = self.read(inner, at);
            let rank = self.streams.swap_remove(at).rank;
            self.lost(inner, rank, silent || read == Err(true));
        }
        if inner.leaves() {
            let is_out = |one: &Stream| one.outgoing.is_empty() && unsent(Some(&one.socket)) == 0;
            let told = !self.streams.is_empty() && self.streams.iter().all(is_out);
            if told || self.is_alone(inner) {
                inner.told();
            }
        }
    }

    /// Whether there is nobody to tell anything.
    fn is_alone(&self, inner: &Inner) -> bool {
        let attended = self.attended.as_ref();
        attended.is_none_or(|a| inner.with_ends(|ends| a.overlay.partners(ends)).is_empty())
    }
}

/// Whether an error says that nothing answers.
pub(super) fn is_silence(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    )
}

/// Appends records, in frames.
fn push(to: &mut Vec<u8>, records: &[Record]) {
    for some in records.chunks(MOST_RECORDS) {
        to.extend([RECORDS, 0, 0, 0]);
        to.extend((some.len() as u32).to_le_bytes());
        some.iter().for_each(|record| to.extend(record.to_wire()));
    }
}

/// Takes whole frames from the begin of bytes. False: something else was there.
fn take_frames(bytes: &mut Vec<u8>, ranks: u32, records: &mut Vec<Record>) -> bool {
    let mut at = 0;
    let good = loop {
        let Some(head) = bytes[at..].first_chunk::<HEAD_BYTES>() else {
            break true;
        };
        let number = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if head[..4] != [RECORDS, 0, 0, 0] || number == 0 || number > MOST_RECORDS {
            break false;
        }
        let body = &bytes[at + HEAD_BYTES..];
        if body.len() < number * RECORD_BYTES {
            break true;
        }
        let (all, _) = body[..number * RECORD_BYTES].as_chunks::<RECORD_BYTES>();
        let before = records.len();
        records.extend(all.iter().filter_map(|w| Record::of_wire(w, ranks)));
        if records.len() - before < number {
            break false;
        }
        at += HEAD_BYTES + number * RECORD_BYTES;
    };
    bytes.drain(..at);
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Frames come whole from pieces of any length, and noise is found.
        #[test]
        fn frames_come_in_pieces(
            firsts in proptest::collection::vec(0u32..100, 1..3000),
            piece in 1usize..5000,
            noise in proptest::option::of((any::<prop::sample::Index>(), 1u8..)),
        ) {
            let all: Vec<Record> = firsts.iter().map(|r| Record::of(*r, Cause::Ended, 7)).collect();
            let mut wire = Vec::new();
            push(&mut wire, &all);
            let mut flipped = None;
            if let Some((at, bits)) = noise {
                let at = at.index(wire.len());
                wire[at] ^= bits;
                flipped = Some(at);
            }
            let (mut held, mut got, mut good) = (Vec::new(), Vec::new(), true);
            for piece in wire.chunks(piece) {
                held.extend_from_slice(piece);
                good &= take_frames(&mut held, 100, &mut got);
                prop_assert!(!good || held.len() < HEAD_BYTES + MOST_RECORDS * RECORD_BYTES);
            }
            match flipped {
                None => prop_assert!(good && held.is_empty() && got == all),
                // Or another record of this job is there, or a frame's end has not come.
                Some(_) => prop_assert!(got.iter().all(|r| r.first + r.ranks <= 100)),
            }
        }
    }
}
