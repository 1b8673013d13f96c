//! Waiting for thousands of requests in time of those that are complete.
//!
//! A request that is added gets a number, which it leaves in `ready` when it
//! ends; the set asks only those requests. `examined` counts the questions.
//!
//! # Invariants
//! 1. A slot's generation changes when its request leaves, so that a number
//!    that a request leaves behind finds no other.
//! 2. Each request in the set has either a number in `ready` or will leave one.
//!
//! # Sources
//! MPI 5.0 has `MPI_Waitany` and `MPI_Waitsome` over arrays, which ask each
//! request in each call. Completion queues of network cards and epoll report
//! events instead.

use super::status::Status;
use super::waits::{Waitable, sealed};
use osier_engine::completion::ready::Ready;
use osier_engine::diagnose::waits::listens;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::Core;
use std::sync::Arc;

struct Slot<K, R> {
    generation: u32,
    member: Option<(K, R)>,
}

/// A set of requests, each with a key of the program's, that returns them as
/// they complete. For requests of one kind, or of any as [`AnyRequest`].
///
/// A call costs time for the requests that have completed, whatever the size of
/// the set. Requests come out in the order in which the library learned of their
/// ends, which need not be that of the additions; keys may repeat. A buffer comes
/// out with its request, and may be used again then. All requests of a set belong
/// to one rank. A dropped set drops its requests.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let peer = 1 - comm.rank();
/// let mut set = osier::requests::WaitSet::new();
/// for tag in 0..1000u32 {
///     set.add(tag, comm.irecv(vec![0u32], peer, tag)?)?;
/// }
/// for tag in (0..1000u32).rev() {
///     comm.send(&[tag * tag], peer, tag)?;
/// }
/// while let Some((tag, result)) = set.wait() {
///     assert_eq!(result?.0, [tag * tag]);
/// }
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
pub struct WaitSet<K, R: Waitable> {
    core: Option<Arc<Core>>,
    ready: Arc<Ready>,
    slots: Vec<Slot<K, R>>,
    free: Vec<u32>,
    examined: u64,
}

/// Names a request in a [`WaitSet`], for as long as it is in the set; afterwards it names
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member(u64);

impl Member {
    fn slot(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl<K, R: Waitable> WaitSet<K, R> {
    /// An empty set.
    pub fn new() -> Self {
        Self {
            core: None,
            ready: Arc::default(),
            slots: Vec::new(),
            free: Vec::new(),
            examined: 0,
        }
    }

    /// Number of requests in the set.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of questions whether a request is complete, since the set was made:
    /// one when it is added, one after each `get_mut`, one or two at its end.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// Adds a request, which may be complete, under a key.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the request is of another rank of this process than
    /// the first that was added. The request is dropped then.
    pub fn add(&mut self, key: K, mut request: R) -> Result<Member> {
        let core = self.core.get_or_insert_with(|| request.home().0.clone());
        if !Arc::ptr_eq(core, request.home().0) {
            let e = Error::new(
                ErrorKind::Argument,
                format!(
                    "a request of rank {} in a wait set of rank {} (hint: one set per rank)",
                    request.home().0.rank,
                    core.rank
                ),
            );
            return Err(request.raise(e));
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.slots.push(Slot {
                    generation: 0,
                    member: None,
                });
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[at as usize];
        let member = Member(u64::from(slot.generation) << 32 | u64::from(at));
        self.examined += 1;
        if request.notify(&self.ready, member.0) {
            self.ready.push(member.0);
        }
        slot.member = Some((key, request));
        Ok(member)
    }

    /// The request, to cancel it for example; `None` if it has left the set.
    pub fn get_mut(&mut self, member: Member) -> Option<&mut R> {
        self.member(member)?;
        // The caller may complete it, which nothing else reports.
        self.ready.push(member.0);
        self.member(member)
    }

    /// As [`WaitSet::get_mut`], for callers that do not change the request.
    pub(crate) fn member(&mut self, member: Member) -> Option<&mut R> {
        let slot = self.slots.get_mut(member.slot())?;
        (slot.generation == member.generation())
            .then_some(slot.member.as_mut())
            .flatten()
            .map(|(_, request)| request)
    }

    /// Takes a request out, complete or not; `None` if it has left the set.
    pub fn remove(&mut self, member: Member) -> Option<(K, R)> {
        self.member(member)?;
        self.leave(member)
    }

    fn leave(&mut self, member: Member) -> Option<(K, R)> {
        let slot = &mut self.slots[member.slot()];
        let left = slot.member.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(member.slot() as u32);
        Some(left)
    }

    /// A complete request, of those that have reported; makes no progress.
    pub(crate) fn next(&mut self) -> Option<(K, Result<R::Output>)> {
        while let Some(token) = self.ready.pop() {
            let member = Member(token);
            let ready = Arc::clone(&self.ready);
            let Some(request) = self.member(member) else {
                continue; // it has left the set
            };
            let ended = request.notify(&ready, token);
            self.examined += 1;
            if ended {
                let (key, request) = self.leave(member)?;
                return Some((key, request.finish()));
            }
        }
        None
    }

    /// Asks each request, so that it reports its operation.
    #[cold]
    fn ask_all(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let token = u64::from(slot.generation) << 32 | at as u64;
            if let Some((_, request)) = &mut slot.member
                && request.notify(&self.ready, token)
            {
                self.ready.push(token);
            }
        }
    }

    /// Waits until a request is complete, takes it out, and returns its key and
    /// result; `None` if the set is empty.
    #[track_caller]
    pub fn wait(&mut self) -> Option<(K, Result<R::Output>)> {
        if self.is_empty() {
            return None;
        }
        let core = Arc::clone(self.core.as_ref()?);
        if core.must_not_wait() {
            return self.next().or_else(|| self.refuse());
        }
        Some(core.wait_until(|| {
            if listens() {
                self.ask_all();
            }
            self.next()
        }))
    }

    /// Takes a request out that is not complete, in a task of a graph: its result says so.
    #[cold]
    fn refuse(&mut self) -> Option<(K, Result<R::Output>)> {
        let at = self.slots.iter().position(|slot| slot.member.is_some())?;
        let token = u64::from(self.slots[at].generation) << 32 | at as u64;
        let (key, request) = self.leave(Member(token))?;
        Some((key, request.finish()))
    }

    /// Makes progress, and takes out a request that is complete; `None` if none is.
    pub fn test(&mut self) -> Option<(K, Result<R::Output>)> {
        if let Some(ended) = self.next() {
            return Some(ended);
        }
        self.core.as_ref()?.progress_awake();
        self.next()
    }

    /// Waits until a request is complete, and takes out all that are known to be.
    /// Empty only if the set is.
    #[track_caller]
    pub fn wait_some(&mut self) -> Vec<(K, Result<R::Output>)> {
        let mut ended: Vec<_> = self.wait().into_iter().collect();
        ended.extend(std::iter::from_fn(|| self.next()));
        ended
    }

    /// Waits for all requests; the results are in the order in which they end. An
    /// error of one does not end the wait for the others.
    #[track_caller]
    pub fn wait_all(&mut self) -> Vec<(K, Result<R::Output>)> {
        std::iter::from_fn(|| self.wait()).collect()
    }
}

impl<K, R: Waitable> Default for WaitSet<K, R> {
    fn default() -> Self {
        Self::new()
    }
}

/// A request of any kind whose output becomes a `T`: for a [`WaitSet`] of
/// different kinds. [`Status`] can be made of the output of every transfer; the
/// buffer is dropped then.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// use osier::requests::{AnyRequest, WaitSet};
/// let peer = 1 - comm.rank();
/// let mut set = WaitSet::new();
/// set.add("receive", AnyRequest::<osier::Status>::new(comm.irecv(vec![0u8; 3], peer, 0)?))?;
/// set.add("send", AnyRequest::new(comm.isend(vec![1u16; 1], peer, 1)?))?;
/// comm.send(&[1u8; 3], peer, 0)?;
/// comm.recv(&mut [0u16], peer, 1)?;
/// let mut keys = Vec::new();
/// while let Some((key, status)) = set.wait() {
///     status?;
///     keys.push(key);
/// }
/// keys.sort();
/// assert_eq!(keys, ["receive", "send"]);
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
pub struct AnyRequest<'a, T = Status>(Box<dyn Erased<T> + 'a>);

trait Erased<T>: sealed::Notifies {
    fn test(&mut self) -> bool;
    fn status(&mut self) -> Option<Result<Status>>;
    #[track_caller]
    fn wait(self: Box<Self>) -> Result<T>;
}

impl<T, R: Waitable> Erased<T> for R
where
    R::Output: Into<T>,
{
    fn test(&mut self) -> bool {
        Waitable::test(self)
    }

    fn status(&mut self) -> Option<Result<Status>> {
        Waitable::status(self)
    }

    #[track_caller]
    fn wait(self: Box<Self>) -> Result<T> {
        Waitable::finish(*self).map(Into::into)
    }
}

impl<'a, T> AnyRequest<'a, T> {
    /// Wraps a request of any kind.
    pub fn new<R: Waitable + 'a>(request: R) -> Self
    where
        R::Output: Into<T>,
    {
        Self(Box::new(request))
    }
}

impl<T> Waitable for AnyRequest<'_, T> {
    type Output = T;

    fn test(&mut self) -> bool {
        self.0.test()
    }

    #[track_caller]
    fn finish(self) -> Result<T> {
        self.0.wait()
    }

    fn status(&mut self) -> Option<Result<Status>> {
        self.0.status()
    }
}

impl<T> sealed::Notifies for AnyRequest<'_, T> {
    fn home(&self) -> sealed::Home<'_> {
        self.0.home()
    }

    fn raise(&self, e: Error) -> Error {
        self.0.raise(e)
    }

    fn notify(&mut self, ready: &Arc<Ready>, token: u64) -> bool {
        self.0.notify(ready, token)
    }
}
