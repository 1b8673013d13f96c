//! Collective calls that do not wait: requests that own their buffers.
//!
//! A run goes on whatever call of this rank polls. A request that is dropped lets it go
//! on, with its buffers.

use super::ask::{Ask, Contribution, InPlace};
use crate::comm::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::operator::Reduction;
use crate::exec::run::Combiner;
use crate::p2p::sealed::{Home, Notifies};
use crate::p2p::view::{OwnedBuffer, OwnedBufferMut};
use crate::p2p::{Rank, Status, Waitable, is_driven};
use crate::progress::lane_runs::End;
use crate::progress::ready::Ready;
use osier_collectives::{Call, Operation};
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What a request may own and put into a collective: an [`OwnedBuffer`], or
/// [`IN_PLACE`](crate::IN_PLACE).
pub trait OwnedContribution: Contribution + Send + 'static {}

impl<B: OwnedBuffer> OwnedContribution for B {}
impl OwnedContribution for InPlace {}

enum State {
    Pending(u32),
    Done(Result<()>),
    Taken,
}

/// A collective under way that owns its buffers; a [`Future`] of any executor.
///
/// ```
/// # osier::testing::ranks(3, |comm| {
/// let sum = comm.iallreduce(vec![1u64], vec![0u64], osier::Op::Sum)?;
/// let all = comm.iallgather(vec![comm.rank() as u64], vec![0u64; 3])?;
/// let (_, all) = all.wait()?; // in any order
/// let (_, sum) = sum.wait()?;
/// assert_eq!((sum, all), (vec![3], vec![0, 1, 2]));
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[must_use = "a request that is dropped is detached"]
pub struct Collective<B: Send + 'static> {
    comm: Communicator,
    name: &'static str,
    state: State,
    buffers: Option<B>,
    /// Counted among those that a foreign executor waits for.
    counted: bool,
}

impl<B: Send + 'static> Collective<B> {
    /// Makes progress and asks whether it is over.
    pub fn test(&mut self) -> bool {
        let State::Pending(id) = self.state else {
            return true;
        };
        let core = self.comm.core();
        core.check_deaths();
        let end = core.with(self.comm.lane(), |lane| {
            if !lane.run_is_over(id) {
                lane.progress_awake();
            }
            lane.take_run(id)
        });
        self.ended(end)
    }

    fn ended(&mut self, end: Option<End>) -> bool {
        let Some(end) = end else {
            return false;
        };
        self.state = State::Done(end.result.map_err(|e| e.context(self.name)));
        if let Some(panic) = end.panic {
            resume_unwind(panic);
        }
        true
    }

    /// Waits for the end; gives back the buffers.
    ///
    /// # Panics
    /// If the operator has.
    #[track_caller]
    pub fn wait(mut self) -> Result<B> {
        if let State::Pending(id) = self.state {
            let comm = self.comm.clone();
            let end = comm.core().wait(comm.lane(), |lane| lane.take_run(id));
            self.ended(Some(end));
        }
        self.output()
    }

    #[track_caller]
    fn output(&mut self) -> Result<B> {
        let state = std::mem::replace(&mut self.state, State::Taken);
        match (state, self.buffers.take()) {
            (State::Done(Ok(())), Some(buffers)) => Ok(buffers),
            (State::Done(Err(e)), _) => self.comm.reported(Err(e)),
            _ => Err(self.comm.raise(Error::new(
                ErrorKind::Argument,
                "a request that was polled after its end",
            ))),
        }
    }

    fn uncount(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.comm.core().future_done();
        }
    }
}

impl<B: Send + Unpin + 'static> Future for Collective<B> {
    type Output = Result<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.test() {
            let State::Pending(id) = this.state else {
                return Poll::Ready(this.output());
            };
            let driven = is_driven(context.waker());
            let over = this.comm.core().with(this.comm.lane(), |lane| {
                if !driven {
                    lane.set_run_waker(id, context.waker());
                }
                lane.run_is_over(id)
            });
            if !over {
                if !driven && !this.counted {
                    this.counted = true;
                    this.comm.core().future_waits();
                }
                return Poll::Pending;
            }
            this.test();
        }
        this.uncount();
        Poll::Ready(this.output())
    }
}

impl<B: Send + 'static> Waitable for Collective<B> {
    type Output = B;

    fn test(&mut self) -> bool {
        Collective::test(self)
    }

    #[track_caller]
    fn finish(self) -> Result<B> {
        Collective::wait(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        if !Collective::test(self) {
            return None;
        }
        match &mut self.state {
            State::Done(Err(e)) => Some(Err(self.comm.raise_in_place(e))),
            _ => Some(Ok(Status::empty())),
        }
    }
}

impl<B: Send + 'static> Notifies for Collective<B> {
    fn home(&self) -> Home<'_> {
        Home(self.comm.core())
    }

    fn raise(&self, e: Error) -> Error {
        self.comm.raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        let State::Pending(id) = self.state else {
            return true;
        };
        let end = self.comm.core().with(self.comm.lane(), |lane| {
            if lane.notify_run(id, ready, token) {
                return None;
            }
            lane.take_run(id)
        });
        self.ended(end)
    }
}

impl<B: Send + 'static> Drop for Collective<B> {
    fn drop(&mut self) {
        self.uncount();
        if let State::Pending(id) = self.state {
            let owner = Box::new(self.buffers.take());
            self.comm
                .core()
                .with(self.comm.lane(), |lane| lane.let_run_go(id, owner));
        }
    }
}

impl Communicator {
    #[track_caller]
    fn under_way<B: Send + 'static>(&self, ask: Result<Ask>, buffers: B) -> Result<Collective<B>> {
        let (name, begun) = match ask {
            Ok(mut ask) => {
                ask.defers = false;
                (ask.call.operation.name(), self.begin(ask))
            }
            Err(e) => ("collective", Err(e)),
        };
        Ok(Collective {
            comm: self.clone(),
            name,
            state: State::Pending(self.reported(begun.map_err(|e| e.context(name)))?),
            buffers: Some(buffers),
            counted: false,
        })
    }

    /// Begins a [`Communicator::barrier`].
    #[track_caller]
    pub fn ibarrier(&self) -> Result<Collective<()>> {
        let ask = self.one_group().map(|()| Ask::barrier(self.size()));
        self.under_way(ask, ())
    }

    /// Begins a [`Communicator::bcast`].
    #[track_caller]
    pub fn ibcast<B: OwnedBufferMut>(
        &self,
        mut data: B,
        root: impl Into<Rank>,
    ) -> Result<Collective<B>> {
        let view = data.view_mut().raw();
        let ask = self
            .one_group()
            .and_then(|()| self.root(root))
            .map(|root| Ask::bcast(self.size(), root, view));
        self.under_way(ask, data)
    }

    /// Begins a [`Communicator::gather`].
    #[track_caller]
    pub fn igather<S: OwnedContribution, R: OwnedBufferMut>(
        &self,
        send: S,
        mut recv: R,
        root: impl Into<Rank>,
    ) -> Result<Collective<(S, R)>> {
        let from = send.contribution().map(|view| view.raw());
        let to = recv.view_mut().raw();
        let ask = self
            .one_group()
            .and_then(|()| self.root(root))
            .map(|root| Ask::gather(self.size(), self.rank(), Some(root), from, to));
        self.under_way(ask, (send, recv))
    }

    /// Begins a [`Communicator::allgather`].
    #[track_caller]
    pub fn iallgather<S: OwnedContribution, R: OwnedBufferMut>(
        &self,
        send: S,
        mut recv: R,
    ) -> Result<Collective<(S, R)>> {
        let from = send.contribution().map(|view| view.raw());
        let to = recv.view_mut().raw();
        let ask = self
            .one_group()
            .map(|()| Ask::gather(self.size(), self.rank(), None, from, to));
        self.under_way(ask, (send, recv))
    }

    /// Begins a [`Communicator::scatter`].
    #[track_caller]
    pub fn iscatter<S: OwnedBuffer, R: OwnedBufferMut>(
        &self,
        send: S,
        mut recv: R,
        root: impl Into<Rank>,
    ) -> Result<Collective<(S, R)>> {
        let (from, to) = (send.view().raw(), recv.view_mut().raw());
        let ask = self
            .one_group()
            .and_then(|()| self.root(root))
            .map(|root| Ask::scatter(self.size(), self.rank(), root, from, Some(to)));
        self.under_way(ask, (send, recv))
    }

    /// Begins a [`Communicator::alltoall`].
    #[track_caller]
    pub fn ialltoall<S: OwnedContribution, R: OwnedBufferMut>(
        &self,
        send: S,
        mut recv: R,
    ) -> Result<Collective<(S, R)>> {
        let from = send.contribution().map(|view| view.raw());
        let to = recv.view_mut().raw();
        let ask = self
            .one_group()
            .map(|()| Ask::alltoall(self.size(), from, to));
        self.under_way(ask, (send, recv))
    }

    /// Begins a [`Communicator::reduce`].
    #[track_caller]
    pub fn ireduce<S: OwnedContribution, R: OwnedBufferMut>(
        &self,
        send: S,
        mut recv: R,
        root: impl Into<Rank>,
        op: impl Reduction + 'static,
    ) -> Result<Collective<(S, R)>> {
        let from = send.contribution().map(|view| view.raw());
        let to = recv.view_mut().raw();
        let ask = self.one_group().and_then(|()| self.root(root)).map(|root| {
            let call = Call::new(Operation::Reduce, self.size() as u32).root(root as u32);
            let to = (self.rank() == root).then_some(to);
            Ask::reduce(call, self.rank(), from, to, Combiner::Owned(Arc::new(op)))
        });
        self.under_way(ask, (send, recv))
    }

    /// Begins a [`Communicator::allreduce`].
    #[track_caller]
    pub fn iallreduce<S: OwnedContribution, R: OwnedBufferMut>(
        &self,
        send: S,
        recv: R,
        op: impl Reduction + 'static,
    ) -> Result<Collective<(S, R)>> {
        self.icombine(Operation::Allreduce, send, recv, Arc::new(op))
    }

    /// Begins a [`Communicator::scan`].
    #[track_caller]
    pub fn iscan<S: OwnedContribution, R: OwnedBufferMut>(
        &self,
        send: S,
        recv: R,
        op: impl Reduction + 'static,
    ) -> Result<Collective<(S, R)>> {
        self.icombine(Operation::Scan, send, recv, Arc::new(op))
    }

    /// Begins a [`Communicator::exscan`].
    #[track_caller]
    pub fn iexscan<S: OwnedContribution, R: OwnedBufferMut>(
        &self,
        send: S,
        recv: R,
        op: impl Reduction + 'static,
    ) -> Result<Collective<(S, R)>> {
        self.icombine(Operation::Exscan, send, recv, Arc::new(op))
    }

    #[track_caller]
    fn icombine<S: OwnedContribution, R: OwnedBufferMut>(
        &self,
        operation: Operation,
        send: S,
        mut recv: R,
        op: Arc<dyn Reduction>,
    ) -> Result<Collective<(S, R)>> {
        let from = send.contribution().map(|view| view.raw());
        let to = recv.view_mut().raw();
        let ask = self.one_group().map(|()| {
            let call = Call::new(operation, self.size() as u32);
            Ask::reduce(call, self.rank(), from, Some(to), Combiner::Owned(op))
        });
        self.under_way(ask, (send, recv))
    }
}
