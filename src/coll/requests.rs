//! Collective calls that do not wait: requests that own their buffers.
//!
//! Any call of this rank that polls advances a run. A dropped request detaches its run,
//! which keeps the buffers.

use super::ask::Ask;
use super::in_flight::InFlight;
use crate::comm::Communicator;
use crate::p2p::sealed::{Home, Notifies};
use crate::p2p::{Status, Waitable};
use osier_engine::completion::ready::Ready;
use osier_engine::error::{Error, ErrorKind, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A collective in flight that owns its buffers; a [`Future`] of any executor.
///
/// It meets the other ranks' calls that do not wait, as MPI 5.0, section 6.12, has it: a blocking call
/// of the same name is another call.
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
    under_way: InFlight,
    buffers: Option<B>,
}

impl<B: Send + 'static> Collective<B> {
    /// Ends it as soon as its memory is free, because a rank of the job has failed.
    pub(crate) fn give_up_for(mut self, failed_rank: u32) {
        self.under_way.give_up_for(failed_rank);
    }

    /// Makes progress; true if it is complete.
    pub fn test(&mut self) -> bool {
        self.under_way.test()
    }

    /// Waits for the end; gives back the buffers.
    ///
    /// # Errors
    /// As the blocking call of the same name ([`Communicator::bcast`], for example); the
    /// buffers are dropped then. Of kind [`ErrorKind::Argument`], if the request was polled to
    /// its end as a future.
    ///
    /// # Panics
    /// If the operator panicked.
    #[track_caller]
    pub fn wait(mut self) -> Result<B> {
        let result = self.under_way.wait();
        self.output(result)
    }

    #[track_caller]
    fn output(&mut self, result: Result<()>) -> Result<B> {
        let buffers = self.buffers.take();
        result?;
        buffers.ok_or_else(|| {
            Error::new(
                ErrorKind::Argument,
                "the request was polled after its end, and its result is taken (hint: wait for or poll it once)",
            )
        })
    }
}

impl<B: Send + Unpin + 'static> Future for Collective<B> {
    type Output = Result<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.under_way.poll(context).map(|()| {
            let result = this.under_way.take();
            this.output(result)
        })
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
        self.under_way.status()
    }
}

impl<B: Send + 'static> Notifies for Collective<B> {
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

impl<B: Send + 'static> Drop for Collective<B> {
    fn drop(&mut self) {
        let buffers = &mut self.buffers;
        self.under_way.let_go(|| Box::new(buffers.take()));
    }
}

impl Communicator {
    /// A call that owns its buffers, begun.
    #[track_caller]
    pub(crate) fn under_way<B: Send + 'static>(
        &self,
        ask: Result<Ask>,
        buffers: B,
    ) -> Result<Collective<B>> {
        Ok(Collective {
            under_way: self.begin_ask(ask)?,
            buffers: Some(buffers),
        })
    }
}
