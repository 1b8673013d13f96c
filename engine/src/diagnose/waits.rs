//! Long waits of a rank.
//!
//! A wait has a [`Watch`]. Once it has slept for [`LONG`] it registers, with
//! what it waits for: its check is run once more while the thread listens, and
//! each operation that has not ended when the check asks its lane describes itself
//! ([`hear`]). So every wait describes itself, without code of its own.
//!
//! The thread that sleeps at the doorbell ticks now and then
//! ([`crate::progress::core::Core::tick`]) and publishes the rank's page.
//!
//! # Invariants
//! 1. A registered thread runs nothing but its wait until it has been taken
//!    off the list, which ends the rank's quiet time.
//! 2. A thread never takes the list's lock while it has a lane's.

use super::LONG;
use super::outside::{Asleep, Sleeper};
use super::page::{Operation, Page, SourceLine, State, Wait, WaitTag};
use super::threads::Inside;
use super::verdict::{Drowse, Quiet, Standing};
use crate::site::{Callers, Layer, Site};
use osier_transports::shm::monotonic_ns;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What a check asked for in vain.
#[derive(Clone, Debug)]
pub struct Asked {
    pub operation: Operation,
    pub peer: Option<u32>,
    pub tag: WaitTag,
    pub context: u64,
    pub bytes: u64,
    /// The line that posted it, if it was posted before the wait.
    pub posted: Option<Site>,
    /// All ranks that could end it have left.
    pub unreachable: bool,
    /// What the other fields do not say.
    pub what: Option<String>,
}

impl Asked {
    /// Something that anyone may end.
    pub const OTHER: Asked = Asked::of(Operation::Other);

    /// An operation of which nothing else is known.
    pub const fn of(operation: Operation) -> Asked {
        Asked {
            operation,
            peer: None,
            tag: WaitTag::Any,
            context: 0,
            bytes: 0,
            posted: None,
            unreachable: false,
            what: None,
        }
    }
}

/// Most operations that one thread is said to wait for.
const MOST_ASKED: usize = 16;

thread_local! {
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    static RESIGNS: Cell<bool> = const { Cell::new(false) };
    static HEARD: RefCell<Vec<Asked>> = const { RefCell::new(Vec::new()) };
}

/// Whether this thread wants to know what is asked for in vain.
#[inline]
pub fn listens() -> bool {
    LISTENS.get()
}

/// Tells a thread that listens what was asked for in vain.
#[cold]
pub fn hear(asked: Asked) {
    HEARD.with_borrow_mut(|heard| {
        // The list shows whether all are unreachable, for any number of them.
        let first_reachable = !asked.unreachable && is_hopeless(heard);
        if heard.len() < MOST_ASKED || asked.operation == Operation::Other || first_reachable {
            heard.truncate(MOST_ASKED - 1);
            heard.push(asked);
        }
    });
}

/// While it lives, unsuccessful tests of this thread are not recorded as waits: for a test
/// of several operations, which is recorded as one.
pub struct Unheard(bool);

impl Unheard {
    #[inline]
    pub fn begin() -> Unheard {
        Unheard(LISTENS.replace(false))
    }
}

impl Drop for Unheard {
    #[inline]
    fn drop(&mut self) {
        LISTENS.set(self.0);
    }
}

/// What this thread wants to know of a check, while a virtual rank that runs one is suspended.
pub(crate) struct Listening {
    listens: bool,
    resigns: bool,
    heard: Vec<Asked>,
}

impl Listening {
    #[inline]
    pub fn put_aside() -> Listening {
        Listening {
            listens: LISTENS.replace(false),
            resigns: RESIGNS.replace(false),
            heard: HEARD.take(),
        }
    }

    #[inline]
    pub fn bring_back(self) {
        LISTENS.set(self.listens);
        RESIGNS.set(self.resigns);
        HEARD.set(self.heard);
    }
}

/// Runs a check, listening.
pub fn listen<R>(check: impl FnOnce() -> R) -> (R, Vec<Asked>) {
    LISTENS.set(true);
    let result = check();
    LISTENS.set(false);
    (result, HEARD.take())
}

/// Whether a check has asked for nothing but what is unreachable.
pub fn is_hopeless(heard: &[Asked]) -> bool {
    !heard.is_empty() && heard.iter().all(|asked| asked.unreachable)
}

/// Whether this thread gives up what is unreachable: it waits for nothing else.
#[inline]
pub fn resigns() -> bool {
    RESIGNS.get()
}

/// Runs a check that has asked for nothing but what is unreachable once more: what it asks
/// for ends, with an error.
pub fn resign<R>(check: impl FnOnce() -> R) -> R {
    RESIGNS.set(true);
    let (result, _) = listen(check);
    RESIGNS.set(false);
    result
}
/// Time of an event that has not come yet.
const NOT_YET: u64 = u64::MAX;

/// What can end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndedBy {
    /// A message, or another thread of the process.
    Ranks,
    /// The same; but a future waits, and its executor may do other things.
    Executor,
    /// Anything.
    Anything,
}

/// A wait of this thread. Costs nothing until it sleeps.
pub struct Watch<'a> {
    waits: &'a Waits,
    site: &'static Location<'static>,
    ends: EndedBy,
    /// When it began to yield its core; 0: it has done so for long enough.
    yields_ns: u64,
    /// When it first slept.
    since_ns: u64,
    /// Time before its last check whether it has ended.
    asks_ns: u64,
    registered: Option<(u64, Inside)>,
}

impl<'a> Watch<'a> {
    #[inline]
    pub fn new(waits: &'a Waits, site: &'static Location<'static>, ends: EndedBy) -> Self {
        Self {
            waits,
            site,
            ends,
            yields_ns: NOT_YET,
            since_ns: 0,
            asks_ns: 0,
            registered: None,
        }
    }

    /// Whether a thread that has yielded its core so often in a row may do so again, before it
    /// sleeps. On a machine with much other work a yield takes as long as a time slice of
    /// each of the others; so it does not for longer than [`LONG`].
    pub fn may_yield(&mut self, round: u32, most: u32) -> bool {
        if round == 0 || self.yields_ns == NOT_YET {
            self.yields_ns = monotonic_ns();
        }
        if round.is_multiple_of(8) && monotonic_ns() - self.yields_ns >= LONG.as_nanos() as u64 {
            self.yields_ns = 0;
        }
        round < most && self.yields_ns != 0
    }

    /// What can end it.
    pub fn ends(&self) -> EndedBy {
        self.ends
    }

    /// Whether the wait has lasted so long that it should describe itself by [`Watch::tell`]:
    /// to be called before the check that precedes a sleep.
    pub fn is_long(&mut self) -> bool {
        let now = monotonic_ns();
        if self.since_ns == 0 {
            self.since_ns = now;
        }
        self.asks_ns = now;
        now - self.since_ns >= LONG.as_nanos() as u64
    }

    /// Registers the wait, or its present operations: a check after
    /// [`Watch::is_long`] asked for these in vain.
    pub fn tell(&mut self, asked: Vec<Asked>) {
        // Named before the list is locked: a name may have to be read from a file.
        let posted: Vec<_> = asked
            .iter()
            .map(|a| a.posted.map(SourceLine::from))
            .collect();
        let asked = asked.into_iter().zip(posted).collect();
        let site = match self.registered {
            Some(_) => None,
            None => Some(Site::here(&self.waits.layer, self.site)),
        };
        let waits_at = site.map(SourceLine::from);
        let mut state = self.waits.lock();
        if let Some((id, _)) = &self.registered {
            if let Some(entry) = state.list.iter_mut().find(|e| e.id == *id) {
                entry.asked = asked;
                entry.checked_ns = self.asks_ns;
            }
            return;
        }
        state.next += 1;
        let id = state.next;
        state.stir();
        state.list.push(Entry {
            id,
            since_ns: self.since_ns,
            checked_ns: self.asks_ns,
            foreign: site.is_some_and(|site| site.is_foreign()),
            site: waits_at.unwrap_or_default(),
            ends: self.ends,
            asked,
            reported: false,
        });
        self.registered = Some((id, Inside::enter(self.waits.job)));
    }
}

impl Drop for Watch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.registered.is_some() {
            self.waits.leave(self.registered.take());
        }
    }
}

struct Entry {
    id: u64,
    since_ns: u64,
    /// When the last check in vain began.
    checked_ns: u64,
    site: SourceLine,
    /// It is called from another language: lines are the library's.
    foreign: bool,
    ends: EndedBy,
    /// And where each was posted.
    asked: Vec<(Asked, Option<SourceLine>)>,
    /// Its rank has complained of it.
    reported: bool,
}

#[derive(Default)]
struct Listed {
    list: Vec<Entry>,
    quiet: Quiet,
    drowse: Drowse,
    /// Threads outside that the last inspection found asleep.
    sleepers: Vec<Sleeper>,
    next: u64,
    /// Counts threads that came and went.
    changes: u64,
}

/// What a rank has polled or inspected, and the result.
pub enum Observed {
    /// Nothing: not only messages can end its waits.
    Nothing,
    /// Its lanes; all threads are inside.
    Inside {
        /// Nothing came.
        calm: bool,
        /// See [`Quiet::observe`].
        moved: u64,
    },
    /// Its lanes and its threads outside.
    Outside {
        /// Nothing came.
        calm: bool,
        /// See [`Quiet::observe`].
        moved: u64,
        /// The threads outside, if all are asleep.
        asleep: Option<Asleep>,
    },
}

/// What a rank publishes, and to whom.
pub type Publish = Box<dyn Fn(&[u64]) + Send + Sync>;

pub struct Waits {
    state: Mutex<Listed>,
    publish: Publish,
    /// Number of the job, for [`super::threads`].
    pub job: u64,
    /// After which a rank complains of a wait of its own; set once, at init.
    pub stall: OnceLock<Duration>,
    /// Names callers in another language.
    layer: Layer,
    /// After which a job that stands still probably hangs; set once, at init.
    pub patience: OnceLock<Duration>,
    last_tick_ns: AtomicU64,
    /// Time of the last inspection of the threads outside.
    looked_ns: AtomicU64,
}

impl Waits {
    pub fn new(job: u64, publish: Publish) -> Self {
        let waits = Self {
            state: Mutex::default(),
            publish,
            job,
            stall: OnceLock::new(),
            layer: Layer::new(),
            patience: OnceLock::new(),
            last_tick_ns: AtomicU64::new(0),
            looked_ns: AtomicU64::new(0),
        };
        waits.publish(&waits.lock());
        waits
    }

    /// Has callers in another language named.
    pub fn name_callers(&self, callers: Callers) {
        // The first layer keeps it: there is one program.
        let _ = self.layer.set(callers);
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn leave(&self, registered: Option<(u64, Inside)>) {
        let Some((id, inside)) = registered else {
            return;
        };
        let mut state = self.lock();
        state.list.retain(|e| e.id != id);
        state.stir();
        self.publish(&state);
        drop(state);
        // After that: a thread that is still counted is on no list, so its
        // rank is not quiet.
        drop(inside);
    }

    /// Whether a tick is due: about every [`LONG`].
    pub fn is_due(&self) -> bool {
        let now = monotonic_ns();
        let last = self.last_tick_ns.load(Ordering::Relaxed);
        now - last.min(now) >= LONG.as_nanos() as u64 * 9 / 10
            && self
                .last_tick_ns
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Whether an inspection of the threads outside is due: ten times within the job's
    /// patience, which costs a file or two per thread.
    pub fn is_outside_due(&self) -> bool {
        let Some(patience) = self.patience.get() else {
            return false;
        };
        let now = monotonic_ns();
        let due = now - self.looked_ns.load(Ordering::Relaxed).min(now)
            >= (patience.as_nanos() / 10) as u64;
        if due {
            self.looked_ns.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Number of changes of the list, if anyone waits for long, and what can end
    /// one of these waits.
    pub fn before_look(&self) -> Option<(u64, EndedBy)> {
        let state = self.lock();
        let known = |e: &Entry| e.asked.iter().all(|(a, _)| a.operation != Operation::Other);
        let ends = |e: &Entry| match !e.asked.is_empty() && known(e) {
            true => e.ends,
            false => EndedBy::Anything,
        };
        let ends = state.list.iter().map(ends).max()?;
        Some((state.changes, ends))
    }

    /// Takes a poll of all lanes that began at `began`, if there was one; see
    /// [`Quiet::observe`].
    pub fn after_observation(&self, changes: u64, observed: Observed, began: u64) {
        let mut state = self.lock();
        if state.changes == changes {
            let checked = state.list.iter().map(|e| e.checked_ns).min();
            let times = (began, monotonic_ns());
            let checked = checked.unwrap_or(0);
            match observed {
                Observed::Nothing => state.quiet.observe(false, 0, checked, times),
                Observed::Inside { calm, moved } => {
                    state.quiet.observe(calm, moved, checked, times)
                }
                Observed::Outside {
                    calm,
                    moved,
                    asleep,
                } => {
                    let (calm, print) = (calm && asleep.is_some(), asleep.as_ref());
                    let print = print.map_or(0, |asleep| asleep.print);
                    state.quiet.observe(false, moved, checked, times);
                    state.drowse.observe(calm, print, moved, checked, times);
                    state.sleepers = asleep.map(|a| a.sleepers).unwrap_or_default();
                }
            }
        }
        self.publish(&state);
    }

    /// How the rank stands.
    pub fn standing(&self) -> Standing {
        let state = self.lock();
        match state.quiet.standing() {
            Standing::Busy => state.drowse.standing(),
            quiet => quiet,
        }
    }

    /// Waits that have lasted longer than the limit and were not reported yet.
    pub fn stalled(&self) -> Vec<Wait> {
        let Some(limit) = self.stall.get() else {
            return Vec::new();
        };
        let now = monotonic_ns();
        let mut state = self.lock();
        let late = |e: &&mut Entry| {
            !e.reported && u128::from(now.saturating_sub(e.since_ns)) >= limit.as_nanos()
        };
        let mut stalled = Vec::new();
        for entry in state.list.iter_mut().filter(late) {
            entry.reported = true;
            entry.describe(&mut stalled);
        }
        stalled
    }

    /// The rank's page.
    pub fn page(&self) -> Page {
        self.lock().page()
    }

    fn publish(&self, state: &Listed) {
        (self.publish)(&state.page().encode());
    }

    /// Notes that the rank has left.
    pub fn left(&self) {
        let page = Page {
            state: State::Left,
            quiet_ns: monotonic_ns(),
            ..Page::default()
        };
        (self.publish)(&page.encode());
    }
}

impl Listed {
    /// A thread has come or gone.
    fn stir(&mut self) {
        self.changes += 1;
        self.quiet.stir();
        self.drowse.stir();
        self.sleepers.clear();
    }

    fn page(&self) -> Page {
        let mut waits = Vec::new();
        for entry in &self.list {
            entry.describe(&mut waits);
        }
        waits.sort_by_key(|w| w.since_ns);
        let (quiet_ns, polled_ns) = self.quiet.times();
        let (asleep_ns, asleep_polled_ns) = self.drowse.times();
        Page {
            state: State::Joined,
            quiet_ns,
            polled_ns,
            asleep_ns,
            asleep_polled_ns,
            total: waits.len(),
            waits,
            sleepers: self.sleepers.clone(),
        }
    }
}

impl Entry {
    /// Where an operation was posted; where that is known only as a line of the library,
    /// where it is waited for.
    fn posted(&self, asked: &Asked, place: Option<&SourceLine>) -> SourceLine {
        let ours = asked.posted.is_none_or(|site| !site.is_foreign());
        match place {
            Some(place) if !(self.foreign && ours) => place.clone(),
            _ => self.site.clone(),
        }
    }

    fn describe(&self, to: &mut Vec<Wait>) {
        let asked: &[(Asked, Option<SourceLine>)] = match &self.asked[..] {
            [] => &[(Asked::OTHER, None)],
            some => some,
        };
        to.extend(asked.iter().map(|(asked, posted)| Wait {
            operation: asked.operation,
            peer: asked.peer,
            tag: asked.tag,
            context: asked.context,
            bytes: asked.bytes,
            since_ns: self.since_ns,
            posted: self.posted(asked, posted.as_ref()),
            waits: self.site.clone(),
            what: asked.what.clone().unwrap_or_default(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stops_yielding_once_that_takes_long() {
        let waits = Waits::new(1, Box::new(|_| {}));
        let mut watch = Watch::new(&waits, Location::caller(), EndedBy::Ranks);
        let begin = monotonic_ns();
        assert!(
            watch.may_yield(1, 2_000),
            "a wait that begins in the middle"
        );
        assert!(!watch.may_yield(2_000, 2_000), "often enough");
        while monotonic_ns() - begin < 2 * LONG.as_nanos() as u64 {
            std::thread::yield_now();
        }
        assert!(!watch.may_yield(8, 2_000));
        assert!(!watch.may_yield(9, 2_000), "until something moves");
        assert!(watch.may_yield(0, 2_000));
    }
}
