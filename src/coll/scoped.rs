//! Collective calls of memory that a scope borrows.

use super::ask::Ask;
use super::in_flight::InFlight;
use crate::p2p::sealed::{Home, Notifies};
use crate::p2p::{Scope, ScopedRuns, Status, Waitable};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, Result};
use std::sync::Arc;

/// A collective in flight in a scope; see [`Communicator::scope`](crate::Communicator::scope).
/// The scope waits for it if no call has; a scope that ends with an error gives it up,
/// and then it fails on the other ranks, too.
///
/// ```
/// # osier::testing::ranks(3, |comm| {
/// let (mine, mut sum) = ([comm.rank() as u64], [0u64]);
/// let mut all = [0u64; 3];
/// comm.scope(|s| {
///     s.iallreduce(&mine, &mut sum, osier::Op::Sum)?;
///     s.iallgather(&mine, &mut all)?.wait()
/// })?;
/// assert_eq!((sum, all), ([3], [0, 1, 2]));
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
///
/// The memory stays borrowed until the scope has ended:
///
/// ```compile_fail
/// # osier::testing::ranks(1, |comm| {
/// let mut sum = [0u64];
/// comm.scope(|s| {
///     s.iallreduce(&[1u64], &mut sum, osier::Op::Sum)?;
///     sum[0] = 1; // still borrowed by the call
///     Ok(())
/// })
/// .unwrap();
/// # });
/// ```
pub struct ScopedCollective<'scope> {
    under_way: InFlight,
    runs: &'scope ScopedRuns,
}

impl<'scope> ScopedCollective<'scope> {
    pub(crate) fn new(scope: &'scope Scope<'scope, '_>, name: &'static str, id: u32) -> Self {
        let mut under_way = InFlight::idle(scope.communicator(), name);
        under_way.begin(id);
        scope.runs().add(id);
        Self {
            under_way,
            runs: scope.runs(),
        }
    }

    #[track_caller]
    pub(crate) fn begin(scope: &'scope Scope<'scope, '_>, ask: Result<Ask>) -> Result<Self> {
        let under_way = scope.communicator().begin_ask(ask)?;
        if let Some(id) = under_way.run() {
            scope.runs().add(id);
        }
        Ok(Self {
            under_way,
            runs: scope.runs(),
        })
    }

    /// Whether its memory may be in use.
    pub(crate) fn is_pending(&self) -> bool {
        self.under_way.run().is_some()
    }

    /// The scope forgets a complete run.
    fn settle(&mut self, before: Option<u32>) {
        if let (Some(id), None) = (before, self.under_way.run()) {
            self.runs.remove(id);
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As the blocking call of the same name ([`Communicator::bcast`](crate::Communicator::bcast),
    /// for example).
    ///
    /// # Panics
    /// If the operator panicked.
    #[track_caller]
    pub fn wait(mut self) -> Result<()> {
        // The scope must not wait for a run that ends here, even if the operator panics.
        if let Some(id) = self.under_way.run() {
            self.runs.remove(id);
        }
        self.under_way.wait()
    }

    /// Makes progress; true if it is complete: [`ScopedCollective::wait`] will not block
    /// then.
    pub fn test(&mut self) -> bool {
        let before = self.under_way.run();
        let ended = self.under_way.test();
        self.settle(before);
        ended
    }
}

impl Waitable for ScopedCollective<'_> {
    type Output = ();

    fn test(&mut self) -> bool {
        ScopedCollective::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<()> {
        ScopedCollective::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        self.test().then(|| self.under_way.status()).flatten()
    }
}

impl Notifies for ScopedCollective<'_> {
    fn home(&self) -> Home<'_> {
        Home(self.under_way.core())
    }

    fn raise(&self, e: Error) -> Error {
        self.under_way.communicator().raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        let before = self.under_way.run();
        let ended = self.under_way.notify(ready, token);
        self.settle(before);
        ended
    }
}
