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
//! 3. A port's count is that of its signals which the program may raise, until those that were
//!    raised have put their message. A task makes signals of its own ports only: while it waits,
//!    the count does not grow.

use crate::instance::{Fired, Instance};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// Wakes workers that sleep.
pub type WakeWorkers = Arc<dyn Fn() + Send + Sync>;

/// The signals of a run that were raised.
pub(crate) struct Events {
    any: AtomicBool,
    raised: Mutex<Vec<Arc<State>>>,
    wake: WakeWorkers,
    /// By output port, if there are events: its signals (invariant 3).
    signals: Box<[AtomicU32]>,
}

struct State {
    events: Arc<Events>,
    /// The output port of the task.
    output: u32,
    /// The program may raise it, at any time.
    counts: bool,
    raised: AtomicBool,
}

impl Drop for State {
    fn drop(&mut self) {
        if self.counts {
            let signals = &self.events.signals[self.output as usize];
            signals.fetch_sub(1, Ordering::AcqRel);
        }
    }
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

    /// The output port that it puts messages on.
    pub(crate) fn output(&self) -> u32 {
        self.0.output
    }

    /// How many hold it: this, its clones, and wakers that were made of them. For layers above.
    #[doc(hidden)]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
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
    /// Of a run with this many output ports, of which some are events.
    pub fn new(wake: WakeWorkers, outputs: usize) -> Arc<Events> {
        Arc::new(Events {
            any: AtomicBool::new(false),
            raised: Mutex::default(),
            wake,
            signals: (0..outputs).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<State>>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A signal of an output port, for the program.
    pub fn signal(self: &Arc<Self>, output: u32) -> Signal {
        self.signals[output as usize].fetch_add(1, Ordering::AcqRel);
        self.make(output, true)
    }

    /// The same that only a child graph raises.
    pub fn signal_of_child(self: &Arc<Self>, output: u32) -> Signal {
        self.make(output, false)
    }

    fn make(self: &Arc<Self>, output: u32, counts: bool) -> Signal {
        Signal(Arc::new(State {
            events: self.clone(),
            output,
            counts,
            raised: AtomicBool::new(false),
        }))
    }

    /// Whether the program may raise a signal of an output port.
    pub fn may_be_raised(&self, output: u32) -> bool {
        self.signals[output as usize].load(Ordering::Acquire) > 0
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
