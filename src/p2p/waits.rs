//! Waiting for one, any, all or some of several requests.
//!
//! Each call asks all requests that it is given. For thousands of requests take a
//! [`WaitSet`](super::WaitSet), which asks only those that are complete.

use super::status::Status;
use osier_engine::completion::ready::Ready;
use osier_engine::diagnose::waits::listens;
use osier_engine::error::{Error, Result};
use std::sync::Arc;

/// A request that can be waited for together with others.
///
/// The functions of this module and [`WaitSet`](super::WaitSet) take all kinds: transfers,
/// collectives, persistent and partitioned requests. An inactive persistent or partitioned
/// request is complete. A buffer comes back with the output, and may be used again then.
pub trait Waitable: Sized + sealed::Notifies {
    /// The result of a complete request, as of its own `wait`: a buffer and a status, for
    /// example.
    type Output;

    /// Makes progress; true if the request is complete, also with an error. Takes nothing
    /// out.
    fn test(&mut self) -> bool;

    /// Waits until the request is complete, and returns its output.
    ///
    /// # Errors
    /// The error of the operation, as its own `wait` returns it.
    #[track_caller]
    fn finish(self) -> Result<Self::Output>;

    /// Makes progress; the status if the request is complete. Leaves the request, its output
    /// and its error to [`Waitable::finish`].
    fn status(&mut self) -> Option<Result<Status>>;
}

pub(crate) mod sealed {
    use osier_engine::completion::ready::Ready;
    use osier_engine::error::Error;
    use osier_engine::progress::core::Core;
    use std::sync::Arc;

    /// The rank that a request belongs to.
    pub struct Home<'a>(pub(crate) &'a Arc<Core>);

    /// Keeps [`super::Waitable`] to the requests of this crate.
    pub trait Notifies {
        /// The rank that it belongs to.
        fn home(&self) -> Home<'_>;

        /// Runs the handler of the communicator that it belongs to.
        fn raise(&self, e: Error) -> Error;

        /// Pushes `token` to `ready` when something about it has changed,
        /// most often its end. True if it is complete already; pushes nothing
        /// then. To be called again after each token.
        fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool;
    }
}

/// A request of any kind, borrowed by [`first_over`].
pub trait Watched: sealed::Notifies {}

impl<R: sealed::Notifies + ?Sized> Watched for R {}

/// Waits until a request is complete, and returns its index; `None` of an empty list. Leaves
/// all requests as they are. For libraries that keep requests of different kinds. All
/// requests belong to one rank.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let mut later = comm.irecv(vec![0u8], comm.rank(), 7)?;
/// let mut barrier = comm.ibarrier()?;
/// assert_eq!(osier::requests::first_over(&mut [&mut later, &mut barrier]), Some(1));
/// barrier.wait()?;
/// comm.send(&[1u8], comm.rank(), 7)?;
/// assert_eq!(later.wait()?.0, [1]);
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[track_caller]
pub fn first_over(requests: &mut [&mut dyn Watched]) -> Option<usize> {
    wait_one(requests)
}

impl<R: sealed::Notifies + ?Sized> sealed::Notifies for &mut R {
    fn home(&self) -> sealed::Home<'_> {
        (**self).home()
    }

    fn raise(&self, e: Error) -> Error {
        (**self).raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        (**self).notify(ready, token)
    }
}

/// Waits for all requests (`MPI_Waitall`). The outputs are in the order of the
/// requests, in whatever order these complete.
///
/// ```
/// # osier::testing::ranks(3, |comm| {
/// use osier::requests::wait_all;
/// let others = || (0..3).filter(|other| *other != comm.rank());
/// let receives: Vec<_> = others()
///     .map(|other| comm.irecv(vec![0usize], other, 0))
///     .collect::<osier::Result<_>>()?;
/// for other in others() {
///     comm.send(&[comm.rank()], other, 0)?;
/// }
/// let got: Vec<usize> = wait_all(receives)?.into_iter().map(|(v, _)| v[0]).collect();
/// assert_eq!(got, others().collect::<Vec<_>>());
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
///
/// # Errors
/// The first error in the order of the requests, after all are complete; the outputs of the
/// others are dropped, with their buffers.
#[track_caller]
pub fn wait_all<R: Waitable>(requests: impl IntoIterator<Item = R>) -> Result<Vec<R::Output>> {
    let requests = requests.into_iter();
    let mut results: Vec<Result<R::Output>> = Vec::with_capacity(requests.size_hint().0);
    for request in requests {
        results.push(request.finish());
    }
    results.into_iter().collect()
}

/// Waits until a request is complete, takes it out, and returns the index that it
/// had with its result (`MPI_Waitany`); `None` if the list is empty. The last
/// request moves to this index. All requests belong to one rank.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// use osier::requests::{test_any, wait_all, wait_any, wait_some};
/// let peer = 1 - comm.rank();
/// let mut receives = (0..4u8)
///     .map(|tag| comm.irecv(vec![0u8], peer, u32::from(tag)))
///     .collect::<osier::Result<Vec<_>>>()?;
/// assert!(test_any(&mut receives).is_none());
/// comm.barrier()?;
/// comm.send(&[2u8], peer, 2)?;
/// let (index, result) = wait_any(&mut receives).expect("four requests");
/// assert_eq!((index, result?.0), (2, vec![2]));
/// assert_eq!(receives.len(), 3); // of tags 0, 1 and 3
/// comm.barrier()?;
/// for tag in [0u8, 1, 3] {
///     comm.send(&[tag], peer, u32::from(tag))?;
/// }
/// let some = wait_some(&mut receives);
/// assert!(!some.is_empty());
/// wait_all(receives)?;
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[track_caller]
pub fn wait_any<R: Waitable>(requests: &mut Vec<R>) -> Option<(usize, Result<R::Output>)> {
    let at = wait_one(requests)?;
    Some((at, requests.swap_remove(at).finish()))
}

/// Waits until a request is complete, and takes out all that are, each with the
/// index that it had and its result (`MPI_Waitsome`). Both these and the requests
/// that stay keep their order. Empty only if the list was.
#[track_caller]
pub fn wait_some<R: Waitable>(requests: &mut Vec<R>) -> Vec<(usize, Result<R::Output>)> {
    let Some(at) = wait_one(requests) else {
        return Vec::new();
    };
    let mut ended = test_some(requests);
    if ended.is_empty() {
        ended.push((at, requests.remove(at).finish()));
    }
    ended
}

/// Makes progress; if all requests are complete, takes them out and returns what
/// [`wait_all`] does (`MPI_Testall`). Otherwise takes out none.
#[track_caller]
pub fn test_all<R: Waitable>(requests: &mut Vec<R>) -> Option<Result<Vec<R::Output>>> {
    if requests.iter_mut().all(Waitable::test) {
        return Some(wait_all(std::mem::take(requests)));
    }
    None
}

/// Makes progress, and takes out the first request that is complete, as [`wait_any`]
/// does (`MPI_Testany`); `None` if none is.
#[track_caller]
pub fn test_any<R: Waitable>(requests: &mut Vec<R>) -> Option<(usize, Result<R::Output>)> {
    let at = requests.iter_mut().position(Waitable::test)?;
    Some((at, requests.swap_remove(at).finish()))
}

/// Makes progress, and takes out all requests that are complete, as [`wait_some`]
/// does (`MPI_Testsome`); empty if none is.
#[track_caller]
pub fn test_some<R: Waitable>(requests: &mut Vec<R>) -> Vec<(usize, Result<R::Output>)> {
    let mut ended = Vec::new();
    let mut left = Vec::with_capacity(requests.len());
    for (at, mut request) in std::mem::take(requests).into_iter().enumerate() {
        if request.test() {
            ended.push((at, request.finish()));
        } else {
            left.push(request);
        }
    }
    *requests = left;
    ended
}

/// Makes progress; the statuses in the order of the requests, if all are complete
/// (`MPI_Request_get_status_all`). Leaves the requests as they are; the first error in
/// their order takes the place of the statuses.
pub fn status_all<R: Waitable>(requests: &mut [R]) -> Option<Result<Vec<Status>>> {
    requests.iter_mut().map(Waitable::status).collect()
}

/// Makes progress; index and status of the first request that is complete, if any
/// (`MPI_Request_get_status_any`). Leaves the requests as they are.
pub fn status_any<R: Waitable>(requests: &mut [R]) -> Option<(usize, Result<Status>)> {
    let mut all = requests.iter_mut().enumerate();
    all.find_map(|(at, r)| r.status().map(|status| (at, status)))
}

/// Makes progress; indices and statuses of all requests that are complete, in their
/// order (`MPI_Request_get_status_some`). Leaves the requests as they are.
pub fn status_some<R: Waitable>(requests: &mut [R]) -> Vec<(usize, Result<Status>)> {
    let all = requests.iter_mut().enumerate();
    all.filter_map(|(at, r)| r.status().map(|status| (at, status)))
        .collect()
}

/// Waits until a request is complete: asks each once, and then only those that
/// report.
#[track_caller]
fn wait_one<R: sealed::Notifies>(requests: &mut [R]) -> Option<usize> {
    let core = Arc::clone(requests.first()?.home().0);
    let ready = Arc::new(Ready::default());
    for (at, request) in requests.iter_mut().enumerate() {
        if request.notify(&ready, at as u64) {
            return Some(at);
        }
    }
    if core.must_not_wait() {
        // Its result says so.
        return Some(0);
    }
    Some(core.wait_until(|| {
        if listens() {
            // Each reports its operation.
            for (at, request) in requests.iter_mut().enumerate() {
                if request.notify(&ready, at as u64) {
                    return Some(at);
                }
            }
        }
        let at = ready.pop()? as usize;
        requests[at].notify(&ready, at as u64).then_some(at)
    }))
}
