//! Waiting for one, any, all or some of several requests.

use crate::error::Result;
use sealed::OnCommunicator;
use std::sync::Arc;

/// A request that can be waited for together with others.
pub trait Waitable: Sized + OnCommunicator {
    /// What it gives when it is over.
    type Output;

    /// Makes progress and asks whether it is over.
    fn test(&mut self) -> bool;

    /// Waits for its end.
    #[track_caller]
    fn wait(self) -> Result<Self::Output>;
}

pub(super) mod sealed {
    use crate::comm::Communicator;

    /// Keeps [`super::Waitable`] to the requests of this crate.
    pub trait OnCommunicator {
        /// Where the request was made.
        fn communicator(&self) -> &Communicator;
    }
}

/// Waits for all; the outputs are in the order of the requests. The first
/// error is returned after all are over.
#[track_caller]
pub fn wait_all<R: Waitable>(requests: impl IntoIterator<Item = R>) -> Result<Vec<R::Output>> {
    let requests = requests.into_iter();
    let mut results: Vec<Result<R::Output>> = Vec::with_capacity(requests.size_hint().0);
    for request in requests {
        results.push(request.wait());
    }
    results.into_iter().collect()
}

/// Waits until one is over, takes it out (its place goes to the last), and
/// returns where it was; `None` if there are none.
#[track_caller]
pub fn wait_any<R: Waitable>(requests: &mut Vec<R>) -> Option<(usize, Result<R::Output>)> {
    wait_one(requests)?;
    test_any(requests)
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
    Some((at, requests.swap_remove(at).wait()))
}

/// Takes out all that are over, with the places where they were.
#[track_caller]
pub fn test_some<R: Waitable>(requests: &mut Vec<R>) -> Vec<(usize, Result<R::Output>)> {
    let mut over = Vec::new();
    let mut left = Vec::with_capacity(requests.len());
    for (at, mut request) in std::mem::take(requests).into_iter().enumerate() {
        if request.test() {
            over.push((at, request.wait()));
        } else {
            left.push(request);
        }
    }
    *requests = left;
    over
}

#[track_caller]
fn wait_one<R: Waitable>(requests: &mut [R]) -> Option<()> {
    let core = Arc::clone(requests.first()?.communicator().core());
    core.wait_until(|| requests.iter_mut().any(Waitable::test).then_some(()));
    Some(())
}
