//! Collective calls that are set up once and begun again and again.
//!
//! # Invariants
//! 1. While a run is in flight its buffers are out of reach.
//! 2. Each request has tags of its own, given in the order in which requests are set up:
//!    all ranks set them up alike, and may start them in different orders.
//! 3. Starting chooses no plan; where buffers have no gaps and are of the host, it
//!    allocates nothing (`tests/allocations.rs` counts).
//!
//! # Sources
//! MPI 5.0, section 6.13.

use super::ask::Ask;
use super::in_flight::{InFlight, SetUp};
use super::scoped::ScopedCollective;
use crate::comm::Communicator;
use crate::p2p::sealed::{Home, Notifies};
use crate::p2p::{Scope, Startable, Status, Waitable};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::view::RawView;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Shows the memory of buffers.
type Each<B> = fn(&mut B, &mut dyn FnMut(RawView));

#[cold]
fn started_twice() -> Error {
    Error::new(
        ErrorKind::Argument,
        "start of a persistent collective that is active (hint: wait for it first)",
    )
}

#[cold]
fn buffers_in_use() -> Error {
    Error::new(
        ErrorKind::Argument,
        "the buffers of a persistent collective are in use while it is in flight (hint: wait for it first)",
    )
}

/// A collective that was set up once and can be started again and again; owns its
/// buffers.
///
/// Setting up is collective, in the same order on all ranks; starts may come in any order.
/// What was set up is fixed: counts, the operator, and where the buffers lie. To be filled
/// they are reached through the request.
///
/// ```
/// # osier::testing::ranks(3, |comm| {
/// let mut sum = comm.allreduce_init(vec![0u64; 2], vec![0u64; 2], osier::Op::Sum)?;
/// let mut all = comm.barrier_init()?;
/// for round in 0..10 {
///     sum.buffers_mut()?.0.fill(round);
///     osier::persistent::start_all([&mut sum as &mut dyn osier::persistent::Startable, &mut all])?;
///     all.wait()?;
///     sum.wait()?;
///     assert_eq!(sum.buffers()?.1, [3 * round; 2]);
/// }
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
///
/// Dropped while it is active, it completes by itself.
pub struct PersistentCollective<B: Send + 'static> {
    under_way: InFlight,
    set_up: SetUp,
    buffers: Option<B>,
    each: Each<B>,
}

impl<B: Send + 'static> PersistentCollective<B> {
    /// Begins the call.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if it is active, and stays so, or its buffers lie
    /// elsewhere than they did when it was set up; of kind [`ErrorKind::OutOfMemory`], if there
    /// is no memory for the call. It is inactive then.
    #[track_caller]
    pub fn start(&mut self) -> Result<()> {
        let comm = self.under_way.communicator();
        if self.under_way.is_active() {
            return Err(comm.raise(started_twice()));
        }
        let Some(buffers) = &mut self.buffers else {
            return Err(comm.raise(buffers_in_use()));
        };
        let seen = self.set_up.inspect(|look| (self.each)(buffers, look));
        let id = comm.start_set_up(&self.set_up, seen)?;
        self.under_way.begin(id);
        Ok(())
    }

    /// Whether it was started and not waited for since.
    pub fn is_active(&self) -> bool {
        self.under_way.is_active()
    }

    /// Waits for the end; the request is inactive then.
    ///
    /// # Errors
    /// As the blocking call of the same name ([`Communicator::bcast`], for example). The
    /// request is inactive then, too.
    ///
    /// # Panics
    /// If the operator panicked.
    #[track_caller]
    pub fn wait(&mut self) -> Result<()> {
        match self.under_way.is_active() {
            true => self.under_way.wait(),
            false => Ok(()),
        }
    }

    /// Makes progress; true if it is complete, so that
    /// [`PersistentCollective::wait`] will not block.
    pub fn test(&mut self) -> bool {
        self.under_way.test()
    }

    /// The buffers.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the call is in flight.
    pub fn buffers(&self) -> Result<&B> {
        match &self.buffers {
            Some(buffers) if self.under_way.run().is_none() => Ok(buffers),
            _ => Err(self.under_way.communicator().raise(buffers_in_use())),
        }
    }

    /// The buffers, to fill them.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the call is in flight.
    pub fn buffers_mut(&mut self) -> Result<&mut B> {
        match &mut self.buffers {
            Some(buffers) if self.under_way.run().is_none() => Ok(buffers),
            _ => Err(self.under_way.communicator().raise(buffers_in_use())),
        }
    }

    /// Waits for the end, and gives back the buffers.
    ///
    /// # Errors
    /// As [`PersistentCollective::wait`]; the buffers are dropped then.
    #[track_caller]
    pub fn into_buffers(mut self) -> Result<B> {
        self.wait()?;
        let buffers = self.buffers.take().ok_or_else(buffers_in_use);
        self.under_way.communicator().reported(buffers)
    }
}

impl<B: Send + 'static> Startable for PersistentCollective<B> {
    #[track_caller]
    fn start(&mut self) -> Result<()> {
        PersistentCollective::start(self)
    }
}

impl<B: Send + Unpin + 'static> Future for PersistentCollective<B> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.under_way.is_active() {
            return Poll::Ready(Ok(()));
        }
        this.under_way.poll(context).map(|()| this.under_way.take())
    }
}

/// Gives the request back, inactive, to be started again.
impl<B: Send + 'static> Waitable for PersistentCollective<B> {
    type Output = Self;

    fn test(&mut self) -> bool {
        PersistentCollective::test(self)
    }

    #[track_caller]
    fn finish(mut self) -> Result<Self> {
        PersistentCollective::wait(&mut self)?;
        Ok(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        self.under_way.status()
    }
}

impl<B: Send + 'static> Notifies for PersistentCollective<B> {
    fn home(&self) -> Home<'_> {
        Home(self.under_way.core())
    }

    fn raise(&self, e: Error) -> Error {
        self.under_way.communicator().raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        self.under_way.notify(ready, token)
    }
}

impl<B: Send + 'static> Drop for PersistentCollective<B> {
    fn drop(&mut self) {
        let buffers = &mut self.buffers;
        self.under_way.let_go(|| Box::new(buffers.take()));
    }
}

impl Communicator {
    pub(crate) fn set_up<B: Send + 'static>(
        &self,
        ask: Result<Ask>,
        mut buffers: B,
        each: Each<B>,
    ) -> Result<PersistentCollective<B>> {
        let set_up = self.set_up_ask(ask, |look| each(&mut buffers, look))?;
        Ok(PersistentCollective {
            under_way: InFlight::idle(self, set_up.name()),
            set_up,
            buffers: Some(buffers),
            each,
        })
    }
}

/// As [`PersistentCollective`], of memory that a scope borrows; the memory is reached
/// through the request until the scope ends.
///
/// ```
/// # osier::testing::ranks(3, |comm| {
/// let (mut mine, mut sums) = ([0u64; 2], [0u64; 2]);
/// comm.scope(|s| {
///     let mut sum = s.allreduce_init(&mut mine, &mut sums, osier::Op::Sum)?;
///     for round in 0..10 {
///         sum.buffers_mut()?.0.fill(round);
///         sum.start()?;
///         sum.wait()?;
///         assert_eq!(sum.buffers()?.1, &[3 * round; 2]);
///     }
///     Ok(())
/// })?;
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
pub struct ScopedPersistentCollective<'scope, 'env, B> {
    scope: &'scope Scope<'scope, 'env>,
    set_up: SetUp,
    buffers: B,
    each: Each<B>,
    request: Option<ScopedCollective<'scope>>,
}

impl<'scope, 'env, B> ScopedPersistentCollective<'scope, 'env, B> {
    pub(crate) fn new(
        scope: &'scope Scope<'scope, 'env>,
        ask: Result<Ask>,
        mut buffers: B,
        each: Each<B>,
    ) -> Result<Self> {
        let comm = scope.communicator();
        let set_up = comm.set_up_ask(ask, |look| each(&mut buffers, look))?;
        Ok(Self {
            scope,
            set_up,
            buffers,
            each,
            request: None,
        })
    }

    /// Begins the call.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if it is active, and stays so, or its buffers lie
    /// elsewhere than they did when it was set up; of kind [`ErrorKind::OutOfMemory`], if there
    /// is no memory for the call. It is inactive then.
    #[track_caller]
    pub fn start(&mut self) -> Result<()> {
        let comm = self.scope.communicator();
        if self.request.is_some() {
            return Err(comm.raise(started_twice()));
        }
        let seen = self
            .set_up
            .inspect(|look| (self.each)(&mut self.buffers, look));
        let id = comm.start_set_up(&self.set_up, seen)?;
        self.request = Some(ScopedCollective::new(self.scope, self.set_up.name(), id));
        Ok(())
    }

    /// Whether it was started and not waited for since.
    pub fn is_active(&self) -> bool {
        self.request.is_some()
    }

    /// Waits for the end; the request is inactive then.
    ///
    /// # Errors
    /// As the blocking call of the same name ([`Communicator::bcast`], for example). The
    /// request is inactive then, too.
    #[track_caller]
    pub fn wait(&mut self) -> Result<()> {
        match self.request.take() {
            Some(request) => request.wait(),
            None => Ok(()),
        }
    }

    /// Makes progress; true if it is complete.
    pub fn test(&mut self) -> bool {
        self.request.as_mut().is_none_or(ScopedCollective::test)
    }

    fn is_pending(&self) -> bool {
        self.request
            .as_ref()
            .is_some_and(ScopedCollective::is_pending)
    }

    /// The memory.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the call is in flight.
    pub fn buffers(&self) -> Result<&B> {
        match self.is_pending() {
            true => Err(self.scope.communicator().raise(buffers_in_use())),
            false => Ok(&self.buffers),
        }
    }

    /// The memory, to fill it.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], while the call is in flight.
    pub fn buffers_mut(&mut self) -> Result<&mut B> {
        match self.is_pending() {
            true => Err(self.scope.communicator().raise(buffers_in_use())),
            false => Ok(&mut self.buffers),
        }
    }
}

impl<B> Startable for ScopedPersistentCollective<'_, '_, B> {
    #[track_caller]
    fn start(&mut self) -> Result<()> {
        ScopedPersistentCollective::start(self)
    }
}
