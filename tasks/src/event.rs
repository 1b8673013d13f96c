//! Events: what tasks wait for besides messages of tasks.
//!
//! An event port of a task has an edge from the task to itself, on which the task puts nothing.
//! A [`Signal`] is raised by any thread at any time; a worker of the run then puts an empty
//! message there. Raising it again before that changes nothing.
//!
//! # Invariants
//! 1. Only who holds `raised` puts messages on the branches of event ports.
//! 2. A signal that is raised after the last message of its port was published is in `raised`;
//!    one that was raised before is read by a later firing.

use crate::instance::{Fired, Instance};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// Wakes workers that sleep.
pub type WakeWorkers = Arc<dyn Fn() + Send + Sync>;

/// The signals of a run that were raised.
pub(crate) struct Events {
    any: AtomicBool,
    raised: Mutex<Vec<Arc<State>>>,
    wake: WakeWorkers,
}

struct State {
    events: Arc<Events>,
    /// The output port of the task.
    output: u32,
    raised: AtomicBool,
}

/// Fires a task that waits for its event: [`crate::context::Context::signal`].
#[derive(Clone)]
pub struct Signal(Arc<State>);

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raised = self.0.raised.load(Ordering::Relaxed);
        write!(f, "Signal {{ raised: {raised} }}")
    }
}

impl Signal {
    /// The event has happened. By any thread; it does not wait.
    pub fn raise(&self) {
        self.0.raise();
    }
}

impl From<Signal> for Waker {
    fn from(signal: Signal) -> Waker {
        Waker::from(signal.0)
    }
}

impl State {
    fn raise(self: &Arc<Self>) {
        if self.raised.swap(true, Ordering::SeqCst) {
            return;
        }
        let events = &self.events;
        events.lock().push(self.clone());
        events.any.store(true, Ordering::SeqCst);
        (events.wake)();
    }
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}

impl Events {
    pub fn new(wake: WakeWorkers) -> Arc<Events> {
        Arc::new(Events {
            any: AtomicBool::new(false),
            raised: Mutex::default(),
            wake,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<State>>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A signal of an output port.
    pub fn signal(self: &Arc<Self>, output: u32) -> Signal {
        Signal(Arc::new(State {
            events: self.clone(),
            output,
            raised: AtomicBool::new(false),
        }))
    }

    /// Whether there are signals to settle.
    pub fn are_raised(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Puts the messages of the signals that were raised. True: there were any.
    #[inline]
    pub fn settle(&self, instance: &Instance, fired: &mut (impl Fired + ?Sized)) -> bool {
        self.any.load(Ordering::Relaxed) && self.settle_raised(instance, fired)
    }

    #[cold]
    fn settle_raised(&self, instance: &Instance, fired: &mut (impl Fired + ?Sized)) -> bool {
        let mut raised = self.lock();
        self.any.store(false, Ordering::SeqCst);
        let any = !raised.is_empty();
        for state in raised.drain(..) {
            state.raised.store(false, Ordering::SeqCst);
            instance.put_event(state.output, fired);
        }
        any
    }
}
