//! The meeting: messages between any ranks of a job, found by a key instead of
//! a communicator. Communicators without a parent begin here.
//!
//! ```text
//! create_from_group("x") on {4, 7, 9}, a binomial tree over the group:
//!   up    9 -> 4, 7 -> 4      "I am here, and this is what I was given"
//!   down  4 -> 7, 4 -> 9      the context, or what is wrong
//! ```
//!
//! A message is `key length (4 bytes), key, payload`. All keys share one tag,
//! so a thread that waits receives the next message and puts it into the box of
//! its key. The key has all that distinguishes two calls: the kind of call, the
//! string tag or the parent's context and tag, and the direction.
//!
//! The channel of the meeting is opened when it is first used; what has come
//! before is kept by the transport, as for any channel.
//!
//! # Invariants
//! 1. Messages of one rank under one key are taken in the order in which they
//!    were sent: one thread at a time receives (`receiving`), and it queues
//!    its message before the next may.
//! 2. A message is put into its box, and a box is read, under the lock of the
//!    lane or of the mail: no thread falls asleep over a full box, because the
//!    thread that fills it counts as having completed an operation of the lane.
//! 3. No thread waits for a dead rank: a wait for a rank ends with its death once
//!    all messages that it had sent before are in the boxes.

use super::Group;
use super::context::{Contexts, MEETING};
use super::member::open_lane;
use super::sends::Sends;
use osier_engine::diagnose::page::{Operation, WaitTag};
use osier_engine::diagnose::waits::{Asked, Unheard, hear, listens};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::{INTERNAL_TAG, Pattern, TagPattern};
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::progress::lane::{Matched, Posted};
use osier_engine::view::BufferMut;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const TAG: u32 = INTERNAL_TAG | 0x100;

/// Which call a message belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key(Vec<u8>);

impl Key {
    /// Group calls without a parent, identified by a string.
    pub fn from_group(tag: &str) -> Self {
        Self::with(0, &[tag.as_bytes()])
    }

    /// Group calls within a parent, identified by a number.
    pub fn within(context: u64, tag: u32) -> Self {
        Self::with(1, &[&context.to_le_bytes(), &tag.to_le_bytes()])
    }

    /// Calls over two groups, identified by a string.
    pub fn from_groups(tag: &str) -> Self {
        Self::with(2, &[tag.as_bytes()])
    }

    /// Leaders of two groups, in a communicator that both are in.
    pub fn leaders(context: u64, tag: u32) -> Self {
        Self::with(3, &[&context.to_le_bytes(), &tag.to_le_bytes()])
    }

    fn with(kind: u8, parts: &[&[u8]]) -> Self {
        let mut key = vec![kind, 0];
        parts.iter().for_each(|part| key.extend_from_slice(part));
        Self(key)
    }

    fn towards(&self, direction: u8) -> Self {
        let mut key = self.clone();
        key.0[1] = direction;
        key
    }
}

const UP: u8 = 1;
const DOWN: u8 = 2;

#[derive(Default)]
struct Mail {
    /// A thread takes messages out of the lane.
    receiving: bool,
    boxes: HashMap<(u32, Vec<u8>), VecDeque<Vec<u8>>>,
}

impl Mail {
    fn take(&mut self, from: u32, key: &Key) -> Option<Vec<u8>> {
        let at = (from, key.0.clone());
        let queue = self.boxes.get_mut(&at)?;
        let payload = queue.pop_front();
        if queue.is_empty() {
            self.boxes.remove(&at);
        }
        payload
    }
}

/// Result of one check of the meeting.
enum Found {
    Payload(Vec<u8>),
    Message(Matched),
}

pub(crate) struct Meeting {
    core: Arc<Core>,
    lane: Arc<LaneCell>,
    mail: Mutex<Mail>,
}

impl Meeting {
    pub fn open(core: &Arc<Core>) -> Self {
        let members: Vec<u32> = (0..core.ranks).collect();
        Self {
            lane: open_lane(core, members, core.rank, MEETING, None),
            core: core.clone(),
            mail: Mutex::default(),
        }
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to send; [`Sends::finish`] waits for the end.
    #[track_caller]
    fn post(&self, sends: &mut Sends<'_>, to: u32, key: &Key, payload: &[u8]) -> Result<()> {
        let mut data = (key.0.len() as u32).to_le_bytes().to_vec();
        data.extend_from_slice(&key.0);
        data.extend_from_slice(payload);
        sends.post(data, to, TAG)
    }

    /// Waits for a message with this key.
    #[track_caller]
    fn receive(&self, from: u32, key: &Key) -> Result<Vec<u8>> {
        loop {
            let any = Pattern {
                source: None,
                tag: TagPattern::Exact(TAG),
            };
            let found = self.core.wait_on(&self.lane, |lane| {
                let mut mail = self.mail();
                if let Some(payload) = mail.take(from, key) {
                    return Some(Ok(Found::Payload(payload)));
                }
                if !mail.receiving {
                    let _whole = Unheard::begin();
                    if let Some(matched) = lane.matched_probe(any) {
                        mail.receiving = true;
                        return Some(Ok(Found::Message(matched)));
                    }
                }
                if listens() {
                    hear(Asked {
                        peer: Some(lane.in_world(from)),
                        tag: WaitTag::Collective,
                        ..Asked::of(Operation::Receive)
                    });
                }
                match mail.receiving {
                    true => None,
                    false => lane.lost_source(Pattern::exact(from, TAG)).map(Err),
                }
            })?;
            match found {
                Found::Payload(payload) => return Ok(payload),
                Found::Message(matched) => self.sort(matched),
            }
        }
    }

    /// Receives a message and puts it into its box.
    #[track_caller]
    fn sort(&self, matched: Matched) {
        let mut data = vec![0u8; matched.outcome.bytes];
        let view = data[..].view_mut().raw();
        let mut lane = self.lane.lock();
        let posted = lane.receive_matched(view, matched);
        self.core.after(&mut lane);
        drop(lane);
        let received = posted.and_then(|posted| match posted {
            Posted::Done(_) => Ok(()),
            Posted::Pending(handle) => self
                .core
                .wait_on(&self.lane, |lane| lane.take(handle))
                .map(drop),
        });
        // If its sender died in the middle, the thread that waits for it gets an error.
        let parsed = received.ok().and_then(|()| {
            let (length, rest) = data.split_first_chunk::<4>()?;
            let (key, payload) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            Some((key.to_vec(), payload.to_vec()))
        });
        self.core.with(&self.lane, |lane| {
            let mut mail = self.mail();
            mail.receiving = false;
            if let Some((key, payload)) = parsed {
                let at = (matched.outcome.source, key);
                mail.boxes.entry(at).or_default().push_back(payload);
            }
            lane.mark_finished();
        });
    }

    /// Swaps payloads with one rank.
    #[track_caller]
    pub fn swap(&self, with: u32, key: &Key, mine: &[u8]) -> Result<Vec<u8>> {
        let mut sends = Sends::new(&self.core, &self.lane);
        self.post(&mut sends, with, key, mine)?;
        let theirs = self.receive(with, key)?;
        sends.finish()?;
        Ok(theirs)
    }

    /// Makes all members of a group agree that they were given the same, and
    /// gives them the first of `count` contexts. Collective over the group.
    #[track_caller]
    pub fn agree(
        &self,
        contexts: &Contexts,
        group: &Group,
        key: &Key,
        given: &[u8],
        count: u64,
    ) -> Result<u64> {
        let Some(rank) = group.rank_of(self.core.rank as usize) else {
            return Err(Error::new(
                ErrorKind::Rank,
                format!(
                    "rank {} of the job is no member of the group (hint: only members make the call)",
                    self.core.rank
                ),
            ));
        };
        if let Some(e) = self.cut_off() {
            return Err(e);
        }
        let world = |rank: usize| group.world_rank(rank).unwrap_or_default() as u32;
        let (up, down) = (key.towards(UP), key.towards(DOWN));
        let mine = fingerprint(given);
        let mut sends = Sends::new(&self.core, &self.lane);
        let mut verdict = AGREED;
        let mut mask = 1;
        // Children first, each with its own part of the tree.
        while mask < group.size() && rank & mask == 0 {
            if rank + mask < group.size() {
                match self.receive(world(rank + mask), &up) {
                    Ok(theirs) => {
                        let (theirs, given) = parse(&theirs);
                        verdict = verdict.max(theirs);
                        if given != mine {
                            verdict = verdict.max(DIFFERS);
                        }
                    }
                    Err(_) => verdict = DEAD,
                }
            }
            mask *= 2;
        }
        let (verdict, base) = if rank == 0 {
            match contexts.take(count) {
                Ok(base) => (verdict, base),
                Err(_) => (EXHAUSTED, 0),
            }
        } else {
            // The children must get the verdict when the parent has died.
            let parent = world(rank - mask);
            self.post(&mut sends, parent, &up, &answer(verdict, mine))
                .and_then(|()| self.receive(parent, &down))
                .map_or((DEAD, 0), |answer| parse(&answer))
        };
        let mut down_to = mask / 2;
        while down_to > 0 {
            if rank + down_to < group.size() {
                // A child that has died needs no answer.
                let _ = self.post(
                    &mut sends,
                    world(rank + down_to),
                    &down,
                    &answer(verdict, base),
                );
            }
            down_to /= 2;
        }
        // Ranks that have died meanwhile do not concern this call.
        let _ = sends.finish();
        match verdict {
            AGREED => Ok(base),
            DIFFERS => Err(Error::new(
                ErrorKind::Argument,
                "the members of the group were given different groups or arguments (hint: all pass the same group in the same order, and different tags tell concurrent calls apart)",
            )),
            DEAD => Err(self.member_failed(group)),
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                "the group's first rank has handed out all of its context ids",
            )),
        }
    }
}

impl Meeting {
    /// The error of a rank without which all others go on.
    #[cold]
    fn cut_off(&self) -> Option<Error> {
        let why = self.core.transport.net()?.why_apart()?;
        let what = format!("this rank makes no communicators any more: {why}");
        Some(Error::new(ErrorKind::RankDead, what))
    }

    /// The error of a group of which a member has failed; names it, if this rank knows it.
    #[cold]
    fn member_failed(&self, group: &Group) -> Error {
        if let Some(e) = self.cut_off() {
            return e;
        }
        let failed = self.core.with(&self.lane, |lane| lane.failed_peers());
        let of_group = failed.iter().find(|world| group.rank_of(**world).is_some());
        let who = of_group.map_or("a member of the group has failed".into(), |world| {
            format!("rank {world} of the world, a member of the group, has failed")
        });
        Error::new(
            ErrorKind::RankDead,
            format!("{who} (hint: make the group without failed ranks)"),
        )
    }
}

const AGREED: u8 = 0;
const DIFFERS: u8 = 1;
const DEAD: u8 = 2;
const EXHAUSTED: u8 = 3;

fn answer(verdict: u8, number: u64) -> [u8; 9] {
    let mut bytes = [verdict; 9];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> (u8, u64) {
    match bytes.split_first_chunk::<9>() {
        Some(([verdict, number @ ..], [])) => (*verdict, u64::from_le_bytes(*number)),
        _ => (DIFFERS, 0),
    }
}

/// FNV-1a: differs for arguments that differ by mistake.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
