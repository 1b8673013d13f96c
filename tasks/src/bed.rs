//! Sleep of a worker without work.
//!
//! # Invariants
//! 1. A worker says that it sleeps before it looks for the last time; who brings work looks
//!    whether it sleeps afterwards (SeqCst): one of the two sees the other.

use crate::sync::{AtomicBool, Mutex, Ordering, Thread, in_order, lock, thread};

/// Where a worker sleeps.
#[derive(Debug, Default)]
pub struct Bed {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Bed {
    /// Sleeps until [`Bed::wake`], or for a while. `quiet` is asked once more before; false
    /// keeps the thread awake.
    pub fn sleep(&self, quiet: impl FnOnce() -> bool) {
        *lock(&self.thread) = Some(thread::current());
        self.asleep.store(true, Ordering::SeqCst);
        in_order();
        if quiet() {
            #[cfg(not(loom))]
            thread::park_timeout(LONGEST);
            #[cfg(loom)]
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Whether its worker seems to sleep.
    pub fn is_taken(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Wakes the worker, if it sleeps.
    #[inline]
    pub fn wake(&self) {
        in_order();
        if self.asleep.load(Ordering::SeqCst) {
            self.wake_sleeper();
        }
    }

    #[cold]
    fn wake_sleeper(&self) {
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }
}

/// Nobody is sure to wake a worker for tasks that it could only steal.
#[cfg(not(loom))]
const LONGEST: std::time::Duration = std::time::Duration::from_millis(10);

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;
    use loom::sync::Arc;

    /// Work that comes while a worker goes to sleep: without the wake the model never ends.
    #[test]
    fn loom_a_sleeper_is_woken() {
        loom::model(|| {
            let shared = Arc::new((Bed::default(), AtomicU32::new(0)));
            let bringer = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    shared.1.store(1, Ordering::SeqCst);
                    shared.0.wake();
                })
            };
            while shared.1.load(Ordering::SeqCst) == 0 {
                shared.0.sleep(|| shared.1.load(Ordering::SeqCst) == 0);
            }
            bringer.join().expect("it ends");
        });
    }
}
