//! What a communicator knows of partitioned transfers: internal tags handed
//! out, and setups that have come.
//!
//! While a rank has receives that have not met their sender, a receive for its
//! next setup is posted. A setup that comes is kept by number, and rings a bell:
//! all that wait for this sender check again.
//!
//! # Invariants
//! 1. The k-th setup of a source and tag is for the k-th receive of both.
//! 2. A setup's receive is posted only while a receive waits for the source.
//! 3. A thread may take a lane's lock while it has that of the setups, and never
//!    the reverse; the bell's lock is a leaf.

use super::{SETUP, lock};
use crate::comm::Communicator;
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::matching::Pattern;
use osier_engine::progress::core::Core;
use osier_engine::progress::lane::Posted;
use osier_engine::progress::owed::Later;
use osier_engine::view::RawView;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};

/// Internal tags of partitions on one communicator.
const TAGS: u32 = 0x3FFF_FFFF;

/// What a sender says about a transfer, once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Internal tag of the first partition.
    pub first: u32,
    pub partitions: usize,
    /// Packed bytes of a partition.
    pub bytes: usize,
}

impl Setup {
    /// Whether its partitions have tags that a sender could have reserved.
    pub fn has_tags(&self) -> bool {
        let before = self.first.checked_sub(SETUP + 1);
        let end = before.and_then(|before| (before as usize).checked_add(self.partitions));
        end.is_some_and(|end| end <= TAGS as usize)
    }
}

impl Setup {
    /// As it is sent, with the user's tag.
    pub fn words(self, tag: u32) -> [u64; 4] {
        let (partitions, bytes) = (self.partitions as u64, self.bytes as u64);
        [tag.into(), self.first.into(), partitions, bytes]
    }
}

/// The partitioned transfers of a communicator.
#[derive(Default)]
pub(crate) struct Registry {
    /// Internal tags handed out.
    tags: AtomicU32,
    setups: Mutex<Setups>,
}

#[derive(Default)]
struct Setups {
    /// Per source and tag: how many receives were set up, and how many setups
    /// have come.
    counts: HashMap<(u32, u32), (u64, u64)>,
    /// Setups that have come and were not met.
    arrived: HashMap<SetupKey, Setup>,
    sources: HashMap<u32, Awaited>,
}

/// A receive's place among those of its source and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SetupKey {
    pub source: u32,
    pub tag: u32,
    pub number: u64,
}

/// A source that receives wait for.
struct Awaited {
    /// Receives that have not met their sender.
    unmet: usize,
    /// The receive for the next setup.
    posted: Option<(u32, Arc<Words>)>,
    bell: Arc<Bell>,
}

/// Memory of a setup in flight.
#[derive(Default)]
struct Words([AtomicU64; 4]);

/// Wakes those that wait for a source when a setup has come from it.
struct Bell {
    core: Weak<Core>,
    /// By list and number.
    waiters: Mutex<HashMap<(usize, u64), Arc<Ready>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        for ((_, token), ready) in std::mem::take(&mut *lock(&self.waiters)) {
            ready.push(token);
        }
        if let Some(core) = self.core.upgrade() {
            core.wake_waiting();
        }
    }
}

impl Communicator {
    /// The partitioned transfers of this communicator.
    pub(crate) fn partitioned(&self) -> &Registry {
        self.kept_of_partitions().get()
    }
}

impl Registry {
    /// Receives for setups that are posted.
    pub(crate) fn awaited(&self) -> usize {
        let setups = lock(&self.setups);
        setups
            .sources
            .values()
            .filter(|a| a.posted.is_some())
            .count()
    }

    /// Internal tags for the partitions of a transfer.
    pub(super) fn reserve(&self, partitions: usize) -> Result<u32> {
        let wanted = u32::try_from(partitions).unwrap_or(u32::MAX);
        self.tags
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(wanted).filter(|n| *n <= TAGS)
            })
            .map(|used| SETUP + 1 + used)
            .map_err(|used| {
                Error::new(
                    ErrorKind::OutOfMemory,
                    format!("{partitions} partitions after {used} on this communicator, which has room for {TAGS} (hint: dup gives another)"),
                )
            })
    }

    /// Counts a receive that has not met its sender.
    pub(super) fn expect(&self, comm: &Communicator, source: u32, tag: u32) -> SetupKey {
        let mut setups = lock(&self.setups);
        let counts = setups.counts.entry((source, tag)).or_default();
        let number = counts.0;
        counts.0 += 1;
        let awaited = setups.sources.entry(source).or_insert_with(|| Awaited {
            unmet: 0,
            posted: None,
            bell: Arc::new(Bell {
                core: Arc::downgrade(comm.core()),
                waiters: Mutex::default(),
            }),
        });
        awaited.unmet += 1;
        SetupKey {
            source,
            tag,
            number,
        }
    }

    /// The setup for a receive, once it has come. Then, and never twice, the
    /// receive is no longer counted.
    #[track_caller]
    pub(super) fn find(&self, comm: &Communicator, place: SetupKey) -> Result<Option<Setup>> {
        let _later = Later::begin(comm.lane());
        let mut setups = lock(&self.setups);
        setups.poll_setups(comm, place)?;
        let found = setups.arrived.remove(&place);
        if found.is_some() {
            setups.met(comm, place.source);
        }
        Ok(found)
    }

    /// A receive that has not met its sender is given up.
    pub(super) fn give_up(&self, comm: &Communicator, place: SetupKey) {
        let _later = Later::begin(comm.lane());
        lock(&self.setups).met(comm, place.source);
    }

    /// Pushes a number to `ready` when a setup has come from the source.
    pub(super) fn notify(&self, source: u32, ready: &Arc<Ready>, token: u64) {
        if let Some(awaited) = lock(&self.setups).sources.get(&source) {
            let list = Arc::as_ptr(ready).addr();
            lock(&awaited.bell.waiters).insert((list, token), ready.clone());
        }
    }
}

impl Setups {
    /// Takes what has come from a source until a place has its setup, and
    /// waits for more. Not beyond: the next one may never come, and does not
    /// concern a transfer that has its own; the bell wakes others.
    #[track_caller]
    fn poll_setups(&mut self, comm: &Communicator, place: SetupKey) -> Result<()> {
        let source = place.source;
        while !self.arrived.contains_key(&place) {
            let Some(awaited) = self.sources.get_mut(&source) else {
                return Ok(());
            };
            let (handle, words, fresh) = match awaited.posted.take() {
                Some((handle, words)) => (handle, words, false),
                None => {
                    let words = Arc::new(Words::default());
                    let at = Arc::as_ptr(&words).cast_mut().cast();
                    let view = RawView::untyped(at, size_of::<Words>());
                    match comm.irecv_raw(view, Pattern::exact(source, SETUP))? {
                        Posted::Pending(handle) => (handle, words, true),
                        Posted::Done(_) => {
                            self.arrive(source, &words);
                            continue;
                        }
                    }
                }
            };
            let bell = &awaited.bell;
            let result = comm.core().with(comm.lane(), |lane| {
                let result = lane.take(handle);
                if result.is_none() && fresh {
                    lane.set_owner(handle, Box::new(words.clone()));
                    lane.set_waker(handle, Waker::from(bell.clone()));
                }
                result
            });
            match result {
                None => {
                    awaited.posted = Some((handle, words));
                    return Ok(());
                }
                Some(Ok(_)) => self.arrive(source, &words),
                Some(Err(e)) => return Err(e),
            }
        }
        Ok(())
    }

    fn arrive(&mut self, source: u32, words: &Words) {
        let [tag, first, partitions, bytes] =
            std::array::from_fn(|i| words.0[i].load(Ordering::Relaxed));
        let counts = self.counts.entry((source, tag as u32)).or_default();
        let place = SetupKey {
            source,
            tag: tag as u32,
            number: counts.1,
        };
        counts.1 += 1;
        let setup = Setup {
            first: first as u32,
            partitions: partitions as usize,
            bytes: bytes as usize,
        };
        self.arrived.insert(place, setup);
        // It may be for another receive than the caller's.
        if let Some(awaited) = self.sources.get(&source) {
            awaited.bell.clone().wake();
        }
    }

    /// One receive less waits for a source.
    fn met(&mut self, comm: &Communicator, source: u32) {
        let Some(awaited) = self.sources.get_mut(&source) else {
            return;
        };
        awaited.unmet -= 1;
        if awaited.unmet != 0 {
            return;
        }
        if let Some((handle, words)) = awaited.posted.take() {
            let (cancelled, come) = comm.core().with(comm.lane(), |lane| {
                let cancelled = lane.cancel(handle);
                (cancelled, if cancelled { None } else { lane.take(handle) })
            });
            match come {
                Some(Ok(_)) => self.arrive(source, &words),
                Some(Err(_)) => {}
                None if cancelled => {}
                // It has come in part; the next that waits for the source takes it.
                None => {
                    awaited.posted = Some((handle, words));
                    return;
                }
            }
        }
        self.sources.remove(&source);
    }
}
