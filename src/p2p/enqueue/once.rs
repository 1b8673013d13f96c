//! Operations on streams that a communicator keeps: pending ones, and failed ones whose error
//! no call has returned.

use super::in_graph::InGraph;
use super::lock;
use crate::comm::Communicator;
use crate::p2p::status::Status;
use osier_engine::completion::hold::Hold;
use osier_engine::diagnose;
use osier_engine::error::{Error, Result};
use osier_engine::exec::executor;
use osier_engine::progress::lane::Posted;
use osier_engine::progress::owed::Later;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// An operation, and what became of it.
pub(crate) struct Once {
    pub(super) state: Mutex<State>,
    /// The stream on which it was enqueued, by address.
    stream: usize,
    /// The last stream that waits for it, or 0.
    held_by: AtomicUsize,
}

pub(crate) enum State {
    Pending(Awaited),
    Ended {
        result: Result<Status>,
        reported: bool,
    },
}

/// A pending operation or run, by its number in the lane.
#[derive(Clone, Copy)]
pub(crate) enum Awaited {
    Operation(u32),
    /// A collective of this name, in the lane of its runs.
    Run(u32, &'static str),
}

impl State {
    /// Of what a call or a launch has begun; one that fails is told of later.
    pub fn begun(posted: Result<Posted>) -> State {
        match posted {
            Ok(Posted::Pending(handle)) => State::Pending(Awaited::Operation(handle)),
            Ok(Posted::Done(outcome)) => State::ended(Ok(outcome.into())),
            Err(e) => State::ended(Err(e)),
        }
    }

    /// Of what has ended; an error was not told.
    pub fn ended(result: Result<Status>) -> State {
        State::Ended {
            reported: result.is_ok(),
            result,
        }
    }
}

impl Awaited {
    /// How it has ended, once it has; frees it.
    fn take(self, comm: &Communicator) -> Option<Result<Status>> {
        match self {
            Awaited::Operation(handle) => {
                let taken = comm.core().with(comm.lane(), |lane| lane.take(handle));
                taken.map(|result| result.map(Status::from))
            }
            Awaited::Run(id, name) => {
                let runs = comm.runs_on();
                let end = runs
                    .core()
                    .with(runs.lane(), |lane| executor::take(lane, id))?;
                let result = end.result.map_err(|e| e.context(name));
                Some(result.map(|()| Status::EMPTY))
            }
        }
    }

    pub fn hold(self, comm: &Communicator, hold: Hold) {
        match self {
            Awaited::Operation(handle) => comm
                .core()
                .with(comm.lane(), |lane| lane.hold(handle, hold)),
            Awaited::Run(id, _) => {
                let runs = comm.runs_on();
                runs.core()
                    .with(runs.lane(), |lane| lane.executor.hold(id, hold));
            }
        }
    }
}

/// The operations on streams that a communicator keeps: pending ones, and failed ones
/// whose error no call has returned.
#[derive(Default)]
pub(crate) struct OnStreams {
    all: Mutex<Vec<Arc<Once>>>,
    /// Kernels of graphs.
    in_graphs: Mutex<Vec<Weak<InGraph>>>,
    /// That a stream has very many was said.
    warned: AtomicBool,
}

/// Most operations that one stream waits for. A driver takes about 1,000 works that wait, and
/// blocks the thread that queues one more, with a lock held that every call of the device needs:
/// also those by which the operations would end. Each is two works, an event and a wait, and
/// programs queue some between.
pub(crate) const MOST_HELD: usize = 128;

impl Once {
    fn new(stream: usize, state: State) -> Arc<Once> {
        Arc::new(Once {
            state: Mutex::new(state),
            stream,
            held_by: AtomicUsize::new(0),
        })
    }

    /// A stream waits for it from now on.
    pub(super) fn held_by(&self, stream: usize) {
        self.held_by.store(stream, Ordering::Relaxed);
    }

    fn is_held_by(&self, stream: usize) -> bool {
        self.held_by.load(Ordering::Relaxed) == stream
    }

    /// Whether it is complete; takes the result from the lane.
    pub fn poll(&self, comm: &Communicator) -> bool {
        let _later = match *lock(&self.state) {
            State::Pending(Awaited::Operation(_)) => Later::begin(comm.lane()),
            State::Pending(Awaited::Run(..)) => Later::begin(comm.runs_on().lane()),
            State::Ended { .. } => return true,
        };
        let mut state = lock(&self.state);
        let State::Pending(awaited) = *state else {
            return true;
        };
        match awaited.take(comm) {
            Some(result) => {
                *state = State::Ended {
                    result,
                    reported: false,
                };
                true
            }
            None => false,
        }
    }

    /// The result, which counts as returned.
    pub(super) fn result(&self) -> Option<Result<Status>> {
        match &mut *lock(&self.state) {
            State::Pending(_) => None,
            State::Ended { result, reported } => {
                *reported = true;
                Some(result.clone())
            }
        }
    }

    /// An error that no call has returned; it counts as returned now.
    fn unreported(&self) -> Option<Error> {
        match &mut *lock(&self.state) {
            State::Ended {
                result: Err(e),
                reported,
            } => (!std::mem::replace(reported, true)).then(|| e.clone()),
            _ => None,
        }
    }

    /// Whether no call has to return its result any more.
    fn is_settled(&self) -> bool {
        match &*lock(&self.state) {
            State::Pending(_) => false,
            State::Ended { result, reported } => *reported || result.is_ok(),
        }
    }
}

impl Communicator {
    /// Operations on streams here.
    pub(crate) fn on_streams(&self) -> &OnStreams {
        self.kept_of_streams().get()
    }
}

impl OnStreams {
    pub(super) fn add(&self, stream: usize, state: State) -> Arc<Once> {
        let once = Once::new(stream, state);
        lock(&self.all).push(once.clone());
        once
    }

    /// Waits until a stream has room to wait for another operation: until one completes of
    /// those that it waits for. Operations that it does not wait for take no room.
    #[track_caller]
    pub(super) fn make_room(&self, comm: &Communicator, stream: usize) {
        if self.len() < MOST_HELD {
            return;
        }
        let mut held: Vec<_> = {
            let all = lock(&self.all);
            let held = all.iter().filter(|once| once.is_held_by(stream));
            held.cloned().collect()
        };
        held.retain(|once| !once.poll(comm));
        if held.len() < MOST_HELD {
            return;
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            diagnose::tell(format_args!(
                "a stream waits for {MOST_HELD} operations, none complete: calls that have it wait for \
                 more wait themselves, as a driver takes about 1,000 works that wait in a stream \
                 (hint: synchronize the stream from time to time, or wait for what was enqueued)"
            ));
        }
        let any = || held.iter().any(|once| once.poll(comm));
        comm.core().drive(|| any().then_some(()));
    }

    /// Forgets an operation if no call has to return its result. True if it did.
    pub(super) fn settle(&self, comm: &Communicator, once: &Arc<Once>) -> bool {
        once.poll(comm);
        let settled = once.is_settled();
        if settled {
            self.forget(once);
        }
        settled
    }

    pub(super) fn forget(&self, once: &Arc<Once>) {
        lock(&self.all).retain(|kept| !Arc::ptr_eq(kept, once));
    }

    /// Number of operations that are kept.
    pub fn len(&self) -> usize {
        lock(&self.all).len()
    }

    /// The operations of a stream, oldest first; forgets what is settled. Which of them are
    /// complete is known up to the first that is not: a stream comes to them in this order.
    fn of(&self, stream: usize, comm: &Communicator) -> Known {
        let all: Vec<_> = {
            let all = lock(&self.all);
            let mine = all.iter().filter(|once| once.stream == stream);
            mine.cloned().collect()
        };
        // Polled without the list's lock: what ends may run foreign code.
        let ended = all.iter().take_while(|once| once.poll(comm)).count();
        let mut known = Known {
            pending: all[ended..].to_vec(),
            failed: all[..ended].to_vec(),
        };
        if ended > 0 {
            known.failed.retain(|once| !once.is_settled());
            lock(&self.all).retain(|once| once.stream != stream || !once.is_settled());
        }
        known
    }

    pub(super) fn first_error(&self, comm: &Communicator, stream: usize) -> Option<Error> {
        let known = self.of(stream, comm);
        let failed = known.failed.iter().find_map(|once| once.unreported());
        failed.or_else(|| {
            let in_graphs = self.in_graphs_of(stream);
            in_graphs.iter().find_map(|kernel| kernel.unreported())
        })
    }

    /// Keeps an eye on a kernel of a graph.
    pub(super) fn add_in_graph(&self, kernel: &Arc<InGraph>) {
        let mut all = lock(&self.in_graphs);
        all.retain(|kernel| kernel.strong_count() > 0);
        all.push(Arc::downgrade(kernel));
    }

    fn in_graphs_of(&self, stream: usize) -> Vec<Arc<InGraph>> {
        let all = lock(&self.in_graphs);
        let all = all.iter().filter_map(Weak::upgrade);
        all.filter(|kernel| kernel.is_of(stream)).collect()
    }

    /// Whether a stream waits for any.
    pub(super) fn is_pending(&self, comm: &Communicator, stream: usize) -> bool {
        !self.of(stream, comm).pending.is_empty()
    }
}

/// The operations of a stream.
struct Known {
    /// From the oldest on that is not complete.
    pending: Vec<Arc<Once>>,
    /// Those before whose error no call has returned.
    failed: Vec<Arc<Once>>,
}
