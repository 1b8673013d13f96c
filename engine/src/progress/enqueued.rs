//! Operations enqueued on streams of devices.
//!
//! A stream semaphore stops a stream that waits for an operation. It lies with the operation,
//! whose end opens it: a message, an error, a revoke, or the end of lane or rank. The host's
//! threads do other things meanwhile, or wait in the driver. So the rank's progress thread
//! runs as long as any stream waits.

use super::core::Core;
use super::lane::Lane;

use crate::completion::hold::{Drives, Hold, Latch};
use crate::diagnose::waits::{Asked, EndedBy, Watch};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::executor::Gone;
use std::collections::VecDeque;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// What a graph's launch begins.
pub trait Launched: Send + Sync {
    /// Posts it.
    fn begin(&self);
    /// What holds the graph meanwhile.
    fn latch(&self) -> &Arc<Latch>;
}

/// Launches that have reached an operation, oldest first.
#[derive(Default)]
pub struct Rung(Mutex<VecDeque<Arc<dyn Launched>>>);

impl Rung {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<dyn Launched>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the futures of a waker wait for in a lane.
pub struct AwaitedBy {
    /// The operations under way.
    pub asked: Vec<Asked>,
    /// How many futures.
    pub futures: usize,
    /// The name of a collective among them.
    pub collective: Option<&'static str>,
}

impl Drives for Core {
    fn begin_drive(self: Arc<Self>) {
        self.future_waits();
    }

    fn end_drive(&self) {
        self.future_done();
    }
}

impl Core {
    /// Has the progress thread begin what a graph's launch has reached; no driver call, so
    /// that the driver's threads may do it. False: the rank has left.
    pub fn ring(self: &Arc<Self>, launched: Arc<dyn Launched>) -> bool {
        let mut rung = self.rung.lock();
        if self.is_closing() {
            return false;
        }
        rung.push_back(launched);
        drop(rung);
        self.future_waits();
        true
    }

    /// Begins what launches have reached. True if anything was.
    pub(crate) fn begin_rung(&self) -> bool {
        let mut any = false;
        loop {
            let next = self.rung.lock().pop_front();
            let Some(launched) = next else {
                return any;
            };
            launched.begin();
            self.future_done();
            any = true;
        }
    }

    /// Makes sure that a thread makes progress for streams.
    pub fn need_progress_thread(self: &Arc<Self>) -> Result<()> {
        match self.has_progress_thread() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::System,
                "no thread could be started that makes progress while streams wait (hint: is \
                 the number of processes limited?)",
            )),
        }
    }

    /// Registers what streams and futures wait for, once that is long.
    pub(crate) fn watch_others<'a>(&'a self, watch: &mut Option<Watch<'a>>) {
        let (mut asked, futures) = self.asked_by_others();
        // A device may do anything meanwhile.
        let ends = match asked.is_empty() {
            true => EndedBy::Executor,
            false => EndedBy::Anything,
        };
        asked.extend(futures);
        let Some(first) = asked.first() else {
            *watch = None;
            return;
        };
        if watch.as_ref().is_some_and(|watch| watch.ends() != ends) {
            *watch = None;
        }
        let site = first.posted.map_or(Location::caller(), |site| site.line());
        let watch = watch.get_or_insert_with(|| Watch::new(&self.waits, site, ends));
        if watch.is_long() {
            watch.tell(asked);
        }
    }

    /// Opens the semaphores of all streams: the rank leaves its job.
    pub(crate) fn release_held(&self) {
        // Dropped without the lock: it may be the last that holds a communicator.
        let rung = std::mem::take(&mut *self.rung.lock());
        for launched in rung {
            launched.latch().ended();
            self.futures.fetch_sub(1, Ordering::AcqRel);
        }
        let mut left = Vec::new();
        self.each_lane(|lane, _| {
            let mut lane = lane.lock();
            lane.executor.stop_graphs(Gone::All);
            left.extend(lane.release_held());
        });
        for what in left {
            self.say(&format!(
                "leaves its job while a stream waits, which is released: {what}"
            ));
        }
    }
}

impl Lane {
    /// Makes a stream wait for an operation; a complete one opens its semaphore at once, and
    /// one that no rank can match ends.
    pub fn hold(&mut self, handle: u32, hold: Hold) {
        if self.any_left() {
            self.resign(handle);
        }
        if !self.port.is_done(handle)
            && let Some(rare) = self.port.rare(handle)
        {
            rare.holds.push(hold);
        }
    }

    /// What streams wait for.
    pub(crate) fn asked_held(&self) -> Vec<Asked> {
        let steps = self
            .executor
            .held()
            .flat_map(|run| self.steps_under_way(run));
        let held = self.held().into_iter().chain(steps);
        let flags = self.asked_of_flags(self.executor.held());
        held.map(|handle| self.asked(handle)).chain(flags).collect()
    }

    /// What runs wait for that wait for a peer's flag.
    fn asked_of_flags(&self, runs: impl Iterator<Item = u32>) -> impl Iterator<Item = Asked> {
        runs.filter_map(|run| {
            let (peer, tag) = self.executor.awaits_flag(run)?;
            Some(self.asked_of_flag(peer, tag))
        })
    }

    /// What futures wait for.
    pub(crate) fn asked_awaited(&self) -> Vec<Asked> {
        let awaited = |h: &u32| {
            let rare = self.port.ops.get(*h).and_then(|op| op.rare.as_ref());
            rare.is_some_and(|rare| rare.waker.is_some())
        };
        let steps = self
            .executor
            .awaited()
            .flat_map(|run| self.steps_under_way(run));
        let awaited = self.port.ops.handles().filter(awaited).chain(steps);
        let flags = self.asked_of_flags(self.executor.awaited());
        awaited
            .map(|handle| self.asked(handle))
            .chain(flags)
            .collect()
    }

    /// What the futures wait for that are to call a waker.
    pub fn awaited_by(&self, waker: &Waker) -> AwaitedBy {
        let same = |other: &Waker| other.data() == waker.data();
        let ops = self.port.ops.handles().filter(|h| {
            let op = self.port.ops.get(*h);
            let rare = op.and_then(|op| op.rare.as_ref());
            rare.and_then(|rare| rare.waker.as_ref()).is_some_and(same)
        });
        let ops: Vec<u32> = ops.collect();
        let runs = self.executor.wakers().filter(|(_, waker, _)| same(waker));
        let runs: Vec<(u32, &'static str)> = runs.map(|(id, _, name)| (id, name)).collect();
        let ids = || runs.iter().map(|(id, _)| *id);
        let steps = ids().flat_map(|run| self.steps_under_way(run));
        let steps = ops.iter().copied().chain(steps);
        let kernels = ids().filter_map(|run| self.executor.waits_in_kernel(run));
        let kernels = kernels.flat_map(|tag| self.asked_in_kernel(tag));
        let asked = steps.map(|handle| self.asked(handle));
        AwaitedBy {
            asked: asked
                .chain(self.asked_of_flags(ids()))
                .chain(kernels)
                .collect(),
            futures: ops.len() + runs.len(),
            collective: runs.first().map(|(_, name)| *name),
        }
    }

    fn held(&self) -> Vec<u32> {
        let held = |h: &u32| {
            let op = self.port.ops.get(*h);
            op.is_some_and(|op| {
                let rare = op.rare.as_ref();
                !op.is_done() && rare.is_some_and(|rare| !rare.holds.is_empty())
            })
        };
        self.port.ops.handles().filter(held).collect()
    }

    fn release_held(&mut self) -> Vec<String> {
        let held = self.held();
        let mut told: Vec<String> = held
            .iter()
            .map(|handle| self.port.describe(*handle))
            .collect();
        for run in self.executor.held().collect::<Vec<_>>() {
            let step = self.steps_under_way(run).next();
            let step =
                step.map_or_else(String::new, |op| format!(", at {}", self.port.describe(op)));
            told.push(format!("a collective{step}"));
            self.executor.release(run);
        }
        for handle in held {
            if let Some(rare) = self.port.rare(handle) {
                rare.holds.clear();
            }
        }
        told
    }
}
