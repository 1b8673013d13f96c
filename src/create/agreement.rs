//! Agreement of the members that live, and communicators of these.
//!
//! On an intercommunicator both sides agree, on the hidden communicator of both.
//!
//! # Sources
//! W. Bland, A. Bouteiller, T. Herault, G. Bosilca, J. Dongarra, "Post-failure recovery of
//! MPI communication capability", IJHPCA 27(3), 2013 (ULFM: `MPIX_Comm_agree`,
//! `MPIX_Comm_iagree`, `MPIX_Comm_shrink`, `MPIX_Comm_ishrink`).

use super::split::PendingCommunicator;
use crate::comm::{CONTEXTS, Communicator, Inter};
use crate::p2p::sealed::{Home, Notifies};
use crate::p2p::{Status, Waitable, is_driven};
use osier_engine::agree::Value;
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::suspend;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

/// Calls of members, of which all make the same.
const AGREES: u8 = 1;
const SHRINKS: u8 = 2;

#[cold]
fn differ() -> Error {
    Error::new(
        ErrorKind::Argument,
        "some members agree where others shrink (hint: after an error all make the same of these \
         calls, in the same order)",
    )
}

/// What the members of a communicator that live have agreed on: the same at each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The bits that all have set.
    pub flags: u64,
    /// Ranks that have failed or left, in order: of an intercommunicator, those of the other
    /// group.
    pub failed: Vec<usize>,
    /// Whether all have [acknowledged](Communicator::acknowledge_failures) all failures, of both
    /// groups.
    pub acknowledged: bool,
}

impl Communicator {
    /// Agrees with all members that live on the bits that all have set in `flags`, and on who has
    /// failed. Collective over the members that live (of both groups, if there are two), in the
    /// order of other agreements, and of no other call.
    ///
    /// All members that return get the same result, also if more ranks fail during the call. It
    /// works after failures and on a [revoked](Communicator::revoke) communicator, where other
    /// collectives return errors.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// // Has everybody converged?
    /// let agreed = comm.agree(if comm.rank() == 1 { 0b01 } else { 0b11 })?;
    /// assert_eq!((agreed.flags, agreed.failed), (0b01, vec![]));
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::RankDead`], if all other ranks go on without this one, as after a cut
    /// of the network; of kind [`ErrorKind::Argument`], if members shrink in its place.
    #[track_caller]
    pub fn agree(&self, flags: u64) -> Result<Agreement> {
        self.reported(self.may_wait("agree"))?;
        self.iagree(flags).wait()
    }

    /// Begins a [`Communicator::agree`]: does not wait for other ranks. In the order of other
    /// agreements, of which several may be in flight: each begins when the one before is decided.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let first = comm.iagree(if comm.rank() == 1 { 0b01 } else { 0b11 });
    /// let second = comm.iagree(0b10); // other work may come before
    /// assert_eq!((second.wait()?.flags, first.wait()?.flags), (0b10, 0b01));
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    pub fn iagree(&self, flags: u64) -> PendingAgreement {
        PendingAgreement(self.agreeing("agree", AGREES, flags, 0))
    }

    /// A communicator of the members that live, in their order; an intercommunicator of those of
    /// both groups, if this is one. Collective over these, in the order of other agreements.
    ///
    /// All that return have the same members in it. Who fails later is a failed rank there.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let living = comm.shrink()?;
    /// assert_eq!(living.size(), 3); // nobody has failed
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::agree`], and of the same kind, if no rank of the other group lives; of
    /// kind [`ErrorKind::Unavailable`], if this rank has no context left.
    #[track_caller]
    pub fn shrink(&self) -> Result<Self> {
        self.reported(self.may_wait("shrink"))?;
        self.ishrink()?.wait()
    }

    /// Begins a [`Communicator::shrink`]: does not wait for other ranks.
    ///
    /// ```
    /// # osier::testing::ranks(3, |comm| {
    /// let living = comm.ishrink()?;
    /// let living = living.wait()?; // other work may come before
    /// assert_eq!(living.size(), 3);
    /// # Ok::<(), osier::Error>(())
    /// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    /// ```
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Unavailable`], if this rank has no context left; others are returned
    /// by [`PendingCommunicator::wait`].
    #[track_caller]
    pub fn ishrink(&self) -> Result<PendingCommunicator> {
        let contexts = if self.is_inter() { CONTEXTS } else { 1 };
        let number = self.reported(self.member().contexts.take(contexts))?;
        let agreeing = self.agreeing("shrink", SHRINKS, u64::MAX, number);
        Ok(PendingCommunicator::of_living(self, agreeing))
    }

    fn agreeing(&self, name: &'static str, call: u8, flags: u64, number: u64) -> Agreeing {
        self.core().check_deaths();
        let on = self.runs_on();
        let value = Value {
            flags,
            number,
            calls: call,
            ..Value::default()
        };
        let number = (on.core()).with(on.lane(), |lane| lane.agree(value));
        Agreeing {
            comm: self.clone(),
            name,
            number,
            state: State::Pending,
            counted: false,
        }
    }
}

impl Inter {
    /// The ranks of this side, and those of the other one, that are among these of both.
    fn sides(&self, both: impl Iterator<Item = u32>) -> [Vec<usize>; 2] {
        let own = self.local.size();
        let (lower, other) = match self.first {
            true => (own, self.remote.size()),
            false => (self.remote.size(), own),
        };
        debug_assert_eq!(lower + other, self.both.size());
        let mut sides = [Vec::new(), Vec::new()];
        for rank in both.map(|rank| rank as usize) {
            let (of_first, rank) = match rank.checked_sub(lower) {
                None => (true, rank),
                Some(rank) => (false, rank),
            };
            sides[usize::from(of_first != self.first)].push(rank);
        }
        sides
    }
}

enum State {
    Pending,
    Over(Result<Value>),
    Taken,
}

/// An agreement under way, from its caller's side.
pub(crate) struct Agreeing {
    comm: Communicator,
    name: &'static str,
    number: u64,
    state: State,
    /// Counted among those that a foreign executor waits for.
    counted: bool,
}

impl Agreeing {
    pub(crate) fn comm(&self) -> &Communicator {
        &self.comm
    }

    fn ended(&mut self, result: Option<Result<Value>>) -> bool {
        let Some(result) = result else {
            return false;
        };
        self.uncount();
        let sound = |value: Value| match value.calls == AGREES | SHRINKS {
            true => Err(differ()),
            false => Ok(value),
        };
        let result = result.and_then(sound);
        self.state = State::Over(result.map_err(|e| e.context(self.name)));
        true
    }

    fn uncount(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.comm.core().future_done();
        }
    }

    /// Makes progress; true if it is complete.
    pub(crate) fn test(&mut self) -> bool {
        if !matches!(self.state, State::Pending) {
            return true;
        }
        let (on, number) = (self.comm.runs_on().clone(), self.number);
        on.core().check_deaths();
        let result = on.core().with(on.lane(), |lane| {
            if !lane.is_agreed(number) {
                lane.progress_awake();
            }
            lane.agreed(number)
        });
        if result.is_none() {
            on.core().give_turn();
        }
        self.ended(result)
    }

    /// Waits for the result, and takes it.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> Result<Value> {
        if matches!(self.state, State::Pending) {
            self.comm.may_wait(self.name)?;
            let (on, number) = (self.comm.runs_on(), self.number);
            let result = (on.core()).wait_on(on.lane(), |lane| lane.agreed(number));
            self.ended(Some(result));
        }
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Over(result) => result,
            State::Pending | State::Taken => Err(Error::new(
                ErrorKind::Argument,
                "the agreement was polled after its end, and is taken (hint: wait for or poll it once)",
            )),
        }
    }

    /// As a future: ready when it is complete.
    pub(crate) fn poll(&mut self, context: &task::Context<'_>) -> Poll<()> {
        if self.test() {
            return Poll::Ready(());
        }
        let driven = is_driven(context.waker());
        let mut waker = (!driven).then(|| context.waker().clone());
        let (on, number) = (self.comm.runs_on(), self.number);
        let over = on.core().with(on.lane(), |lane| {
            if let Some(waker) = waker.take() {
                lane.set_agreement_waker(number, waker);
            }
            lane.is_agreed(number)
        });
        if over && self.test() {
            return Poll::Ready(());
        }
        if !driven && !suspend::awaits() && !self.counted {
            self.counted = true;
            self.comm.core().future_waits();
        }
        Poll::Pending
    }

    pub(crate) fn status(&mut self) -> Option<Result<Status>> {
        if !self.test() {
            return None;
        }
        match &mut self.state {
            State::Over(Err(e)) => Some(Err(self.comm.raise_in_place(e))),
            _ => Some(Ok(Status::empty())),
        }
    }

    pub(crate) fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        if !matches!(self.state, State::Pending) {
            return true;
        }
        let (on, number) = (self.comm.runs_on().clone(), self.number);
        let result = on.core().with(on.lane(), |lane| {
            if lane.notify_of_agreement(number, ready, token) {
                return None;
            }
            lane.agreed(number)
        });
        self.ended(result)
    }

    /// As callers see it.
    fn in_ranks(&self, value: &Value) -> Agreement {
        let failed = value.failed.iter().copied();
        Agreement {
            flags: value.flags,
            acknowledged: value.failed == value.acknowledged,
            failed: match &self.comm.0.inter {
                None => failed.map(|rank| rank as usize).collect(),
                Some(inter) => {
                    let [_, there] = inter.sides(failed);
                    there
                }
            },
        }
    }

    /// The members that live, in a communicator of them.
    #[track_caller]
    pub(crate) fn living(&self, agreed: &Value) -> Result<Communicator> {
        let comm = &self.comm;
        let failed = agreed.failed.iter().copied();
        let Some(inter) = &comm.0.inter else {
            let failed: Vec<usize> = failed.map(|rank| rank as usize).collect();
            let group = comm.group().excl(&failed)?;
            return Communicator::open(comm.member(), comm.heir(group, agreed.number));
        };
        let [here, there] = inter.sides(failed);
        let group = comm.group().excl(&here)?;
        let remote = inter.remote.excl(&there)?;
        if remote.is_empty() {
            return Err(Error::new(
                ErrorKind::RankDead,
                "shrink: no rank of the other group lives (hint: go on in a communicator of this group)",
            ));
        }
        let design = comm.heir(group, agreed.number);
        Communicator::open_inter(comm.member(), design, remote, inter.first)
    }
}

impl Drop for Agreeing {
    fn drop(&mut self) {
        self.uncount();
        if matches!(self.state, State::Pending) {
            // It takes part all the same.
            let (on, number) = (self.comm.runs_on(), self.number);
            (on.core()).with(on.lane(), |lane| lane.give_up_agreement(number));
        }
    }
}

/// An agreement under way, from [`Communicator::iagree`]: a future, and a request that waits with
/// others. A rank that drops it takes part all the same, as long as it keeps the communicator.
#[must_use = "its result is given up"]
pub struct PendingAgreement(Agreeing);

impl PendingAgreement {
    /// Makes progress; true if the result is there.
    pub fn test(&mut self) -> bool {
        self.0.test()
    }

    /// The result, if it is there and no error; it stays.
    #[doc(hidden)]
    pub fn seen(&mut self) -> Option<Agreement> {
        match (self.0.test(), &self.0.state) {
            (true, State::Over(Ok(value))) => Some(self.0.in_ranks(value)),
            _ => None,
        }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// As [`Communicator::agree`]; of kind [`ErrorKind::Argument`], if it was polled to its end as
    /// a future.
    #[track_caller]
    pub fn wait(mut self) -> Result<Agreement> {
        self.take()
    }

    #[track_caller]
    fn take(&mut self) -> Result<Agreement> {
        let agreed = self.0.wait();
        let agreed = agreed.map(|value| self.0.in_ranks(&value));
        self.0.comm().reported(agreed)
    }
}

impl Future for PendingAgreement {
    type Output = Result<Agreement>;

    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.0.poll(context).map(|()| this.take())
    }
}

impl Waitable for PendingAgreement {
    type Output = Agreement;

    fn test(&mut self) -> bool {
        PendingAgreement::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<Agreement> {
        PendingAgreement::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        self.0.status()
    }
}

impl Notifies for PendingAgreement {
    fn home(&self) -> Home<'_> {
        Home(self.0.comm().core())
    }

    fn raise(&self, e: Error) -> Error {
        self.0.comm().raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        self.0.notify(ready, token)
    }
}

impl fmt::Debug for PendingAgreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingAgreement({:?})", self.0.comm())
    }
}
