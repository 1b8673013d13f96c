//! Generalised requests: work of the program's own that is waited for like a
//! transfer.
//!
//! # Invariants
//! 1. A request is complete once its [`Completer`] is gone, used or dropped:
//!    no call waits for an end that cannot come.
//! 2. `query` runs once, in the call that takes the result; `free` once after it,
//!    or when the request is dropped and the work is complete, whichever is last.
//!
//! # Sources
//! MPI 5.0, section 13.2. There the callbacks share a pointer `extra_state`;
//! here they are closures.

use super::status::Status;
use super::waits::{Waitable, sealed};
use crate::comm::Communicator;
use osier_engine::check::Site;
use osier_engine::completion::ready::Ready;
use osier_engine::diagnose::page::Operation;
use osier_engine::diagnose::waits::{Asked, hear, listens};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::Core;
use osier_engine::progress::no_wait::refused;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

type Query = Box<dyn FnOnce() -> Result<Status> + Send>;
type Cancel = Box<dyn FnMut(bool) + Send>;
type Free = Box<dyn FnOnce() + Send>;

/// What a generalised request calls; see
/// [`Communicator::generalized_request`].
#[derive(Default)]
pub struct Callbacks {
    query: Option<Query>,
    cancel: Option<Cancel>,
    free: Option<Free>,
}

impl Callbacks {
    /// None: the status is empty, cancelling does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the status when the request is complete. An error is the
    /// request's result.
    #[must_use]
    pub fn query(mut self, query: impl FnOnce() -> Result<Status> + Send + 'static) -> Self {
        self.query = Some(Box::new(query));
        self
    }

    /// Called by [`GeneralizedRequest::cancel`]; the argument says whether the
    /// request is complete.
    #[must_use]
    pub fn cancel(mut self, cancel: impl FnMut(bool) + Send + 'static) -> Self {
        self.cancel = Some(Box::new(cancel));
        self
    }

    /// Called once when the request is complete and no call asks any more.
    #[must_use]
    pub fn free(mut self, free: impl FnOnce() + Send + 'static) -> Self {
        self.free = Some(Box::new(free));
        self
    }
}

enum State {
    Pending,
    Complete,
    Abandoned,
}

struct Inner {
    state: State,
    waker: Option<Waker>,
    notify: Option<(Arc<Ready>, u64)>,
}

struct Shared {
    core: Arc<Core>,
    inner: Mutex<Inner>,
    /// Runs when request and completer are both gone.
    free: Mutex<Option<Free>>,
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, state: State) {
        let mut inner = self.inner();
        inner.state = state;
        let waker = inner.waker.take();
        if let Some((ready, token)) = inner.notify.take() {
            ready.push(token);
        }
        drop(inner);
        self.core.wake_waiting();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = free.take() {
            free();
        }
    }
}

/// A request whose work the program does itself; works wherever requests do,
/// and as a future.
///
/// ```
/// use osier::Status;
/// use osier::requests::Callbacks;
///
/// let universe = osier::init()?;
/// let callbacks = Callbacks::new().query(|| Ok(Status::new(0, 7, 40)));
/// let (request, completer) = universe.own().generalized_request(callbacks);
/// let work = std::thread::spawn(move || completer.complete());
/// assert_eq!(request.wait()?.count::<f64>(), Some(5));
/// # work.join().unwrap();
/// # Ok::<(), osier::Error>(())
/// ```
#[must_use = "nobody waits for a request that is dropped"]
pub struct GeneralizedRequest {
    /// Whose handler sees its error.
    comm: Communicator,
    /// The line that began it.
    site: Site,
    shared: Arc<Shared>,
    query: Option<Query>,
    cancel: Option<Cancel>,
    result: Option<Result<Status>>,
}

/// Completes a generalised request, on any thread. Dropped without it, the
/// request ends with an error.
#[must_use = "a request whose completer is dropped ends with an error"]
pub struct Completer(Option<Arc<Shared>>);

impl Completer {
    /// The work is done.
    pub fn complete(mut self) {
        if let Some(shared) = self.0.take() {
            shared.end(State::Complete);
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.end(State::Abandoned);
        }
    }
}

impl Communicator {
    /// Begins a generalised request of this rank; the completer ends it.
    #[track_caller]
    pub fn generalized_request(&self, callbacks: Callbacks) -> (GeneralizedRequest, Completer) {
        let shared = Arc::new(Shared {
            core: self.core().clone(),
            inner: Mutex::new(Inner {
                state: State::Pending,
                waker: None,
                notify: None,
            }),
            free: Mutex::new(callbacks.free),
        });
        let request = GeneralizedRequest {
            comm: self.clone(),
            site: self.core().checks.site(Location::caller()),
            shared: shared.clone(),
            query: callbacks.query,
            cancel: callbacks.cancel,
            result: None,
        };
        (request, Completer(Some(shared)))
    }
}

impl GeneralizedRequest {
    /// Whether it is complete.
    pub fn test(&mut self) -> bool {
        let over = !matches!(self.shared.inner().state, State::Pending);
        if !over {
            self.shared.core.give_turn();
        }
        over
    }

    /// Waits until it is complete; the status is that of `query`.
    ///
    /// # Errors
    /// The error that `query` returns; of kind [`ErrorKind::Cancelled`], if the completer was
    /// dropped without completing the request.
    #[track_caller]
    pub fn wait(mut self) -> Result<Status> {
        let core = Arc::clone(&self.shared.core);
        if core.must_not_wait() {
            return match self.result() {
                Some(result) => result,
                None => self.comm.reported(Err(refused("wait"))),
            };
        }
        core.wait_until(|| self.result())
    }

    /// The status if it is complete, which leaves the request as it is;
    /// `query` runs the first time.
    pub fn status(&mut self) -> Option<Result<Status>> {
        self.result()
    }

    /// Calls `cancel`. The request ends when its completer says so; whether it
    /// was cancelled is for `query` to say ([`Status::set_cancelled`]).
    pub fn cancel(&mut self) {
        let complete = self.test();
        if let Some(cancel) = &mut self.cancel {
            cancel(complete);
        }
    }

    fn asked(&self) -> Asked {
        Asked {
            context: self.comm.context(),
            posted: Some(self.site),
            ..Asked::of(Operation::GeneralizedRequest)
        }
    }

    #[track_caller]
    fn result(&mut self) -> Option<Result<Status>> {
        if self.result.is_none() {
            let abandoned = match self.shared.inner().state {
                State::Pending => {
                    if listens() {
                        hear(self.asked());
                    }
                    return None;
                }
                State::Complete => false,
                State::Abandoned => true,
            };
            let result = match self.query.take() {
                _ if abandoned => Err(Error::new(
                    ErrorKind::Cancelled,
                    "generalised request: its completer was dropped (hint: call complete)",
                )),
                Some(query) => query(),
                None => Ok(Status::EMPTY),
            };
            self.result = Some(self.comm.reported(result));
        }
        self.result.clone()
    }
}

impl Future for GeneralizedRequest {
    type Output = Result<Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        // To clone a waker and to drop one is foreign code, which may complete the request:
        // both without the lock.
        let waker = context.waker().clone();
        let mut inner = this.shared.inner();
        if let State::Pending = inner.state {
            let before = inner.waker.replace(waker);
            drop(inner);
            drop(before);
            return Poll::Pending;
        }
        drop(inner);
        match this.result() {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl Waitable for GeneralizedRequest {
    type Output = Status;

    fn test(&mut self) -> bool {
        GeneralizedRequest::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<Status> {
        GeneralizedRequest::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        GeneralizedRequest::status(self)
    }
}

impl sealed::Notifies for GeneralizedRequest {
    fn home(&self) -> sealed::Home<'_> {
        sealed::Home(&self.shared.core)
    }

    fn raise(&self, e: Error) -> Error {
        self.comm.raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        let mut inner = self.shared.inner();
        if let State::Pending = inner.state {
            inner.notify = Some((ready.clone(), token));
            drop(inner);
            if listens() {
                hear(self.asked());
            }
            return false;
        }
        true
    }
}
