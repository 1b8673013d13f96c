//! Waiting for one, any, all or some of several requests.
//!
//! The functions look at all requests that they are given. For thousands of
//! them take a [`WaitSet`](super::WaitSet), which looks only at those that are
//! over.

use super::status::Status;
use osier_engine::completion::ready::Ready;
use osier_engine::diagnose::waits::listens;
use osier_engine::error::{Error, Result};
use std::sync::Arc;

/// A request that can be waited for together with others.
pub trait Waitable: Sized + sealed::Notifies {
    /// What it gives when it is over.
    type Output;

    /// Makes progress and asks whether it is over.
    fn test(&mut self) -> bool;

    /// Waits for its end, and gives its output.
    ///
    /// # Errors
    /// That of the operation, as its own `wait` has it.
    #[track_caller]
    fn finish(self) -> Result<Self::Output>;

    /// Makes progress; the status if it is over, which leaves it as it is.
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

        /// Has `token` left in `ready` when something about it has changed,
        /// most often its end. True if it is over already, and then nothing
        /// is left. To be called again after each token.
        fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool;
    }
}

/// A request of any kind where it lies, for [`first_over`].
pub trait Watched: sealed::Notifies {}

impl<R: sealed::Notifies + ?Sized> Watched for R {}

/// Waits until one of them is over, and leaves it where it is; its place, or `None` if
/// there are none. For layers above that keep requests of different kinds themselves.
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

/// Waits for all; the outputs are in the order of the requests. The first
/// error is returned after all are over.
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
/// The first of a request in their order, after all are over; what the others had is
/// dropped.
#[track_caller]
pub fn wait_all<R: Waitable>(requests: impl IntoIterator<Item = R>) -> Result<Vec<R::Output>> {
    let requests = requests.into_iter();
    let mut results: Vec<Result<R::Output>> = Vec::with_capacity(requests.size_hint().0);
    for request in requests {
        results.push(request.finish());
    }
    results.into_iter().collect()
}

/// Waits until one is over, takes it out (its place goes to the last), and
/// returns where it was; `None` if there are none.
#[track_caller]
pub fn wait_any<R: Waitable>(requests: &mut Vec<R>) -> Option<(usize, Result<R::Output>)> {
    let at = wait_one(requests)?;
    Some((at, requests.swap_remove(at).finish()))
}

/// Waits until at least one is over, and takes out all that are; with the
/// places where they were. Empty only if there are none.
#[track_caller]
pub fn wait_some<R: Waitable>(requests: &mut Vec<R>) -> Vec<(usize, Result<R::Output>)> {
    if wait_one(requests).is_none() {
        return Vec::new();
    }
    test_some(requests)
}

/// Whether all are over: their outputs if so, in order, and none are left.
#[track_caller]
pub fn test_all<R: Waitable>(requests: &mut Vec<R>) -> Option<Result<Vec<R::Output>>> {
    if requests.iter_mut().all(Waitable::test) {
        return Some(wait_all(std::mem::take(requests)));
    }
    None
}

/// Takes out one that is over, if any is.
#[track_caller]
pub fn test_any<R: Waitable>(requests: &mut Vec<R>) -> Option<(usize, Result<R::Output>)> {
    let at = requests.iter_mut().position(Waitable::test)?;
    Some((at, requests.swap_remove(at).finish()))
}

/// Takes out all that are over, with the places where they were.
#[track_caller]
pub fn test_some<R: Waitable>(requests: &mut Vec<R>) -> Vec<(usize, Result<R::Output>)> {
    let mut over = Vec::new();
    let mut left = Vec::with_capacity(requests.len());
    for (at, mut request) in std::mem::take(requests).into_iter().enumerate() {
        if request.test() {
            over.push((at, request.finish()));
        } else {
            left.push(request);
        }
    }
    *requests = left;
    over
}

/// The statuses of all if all are over, in order; leaves the requests as they
/// are.
pub fn status_all<R: Waitable>(requests: &mut [R]) -> Option<Result<Vec<Status>>> {
    requests.iter_mut().map(Waitable::status).collect()
}

/// Place and status of one that is over, if any is; leaves the requests as
/// they are.
pub fn status_any<R: Waitable>(requests: &mut [R]) -> Option<(usize, Result<Status>)> {
    let mut all = requests.iter_mut().enumerate();
    all.find_map(|(at, r)| r.status().map(|status| (at, status)))
}

/// Places and statuses of those that are over; leaves the requests as they
/// are.
pub fn status_some<R: Waitable>(requests: &mut [R]) -> Vec<(usize, Result<Status>)> {
    let all = requests.iter_mut().enumerate();
    all.filter_map(|(at, r)| r.status().map(|status| (at, status)))
        .collect()
}

/// Waits until one is over: each is looked at once, and then only those that
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
    Some(core.wait_until(|| {
        if listens() {
            // Each says what it is.
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
