//! Waiting for thousands of requests in time of those that are over.
//!
//! A request that is added is told where to leave its number when it ends; the
//! set looks only at numbers that were left. `examined` counts the looks.
//!
//! # Invariants
//! 1. A slot's generation changes when its request leaves, so that a number
//!    that a request leaves behind finds nobody.
//! 2. Each request in the set has either a number in `ready` or will leave one.
//!
//! # Sources
//! MPI 5.0 has `MPI_Waitany` and `MPI_Waitsome` over arrays, which cost a look
//! at each request per call. Completion queues of network cards and epoll
//! report what has happened instead.

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

/// A set of requests, each with a key of its user's, that gives them back as
/// they end. For requests of one kind, or of any as [`AnyRequest`].
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

/// Names a request in a [`WaitSet`].
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

    /// How often the set has looked at a request since it was made: once when
    /// it is added, once after each `get_mut`, and once or twice at its end.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// Adds a request. All requests of a set belong to one rank.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`], if the request is of another rank of this process than
    /// the set's others.
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

    /// The request, to cancel it for example.
    pub fn get_mut(&mut self, member: Member) -> Option<&mut R> {
        self.member(member)?;
        // It may be over by what is done to it, which nobody else reports.
        self.ready.push(member.0);
        self.member(member)
    }

    /// As [`WaitSet::get_mut`], for those who leave it as it is.
    pub(crate) fn member(&mut self, member: Member) -> Option<&mut R> {
        let slot = self.slots.get_mut(member.slot())?;
        (slot.generation == member.generation())
            .then_some(slot.member.as_mut())
            .flatten()
            .map(|(_, request)| request)
    }

    /// Takes a request out before its end.
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

    /// One that is over, of those that have reported; makes no progress.
    pub(crate) fn next(&mut self) -> Option<(K, Result<R::Output>)> {
        while let Some(token) = self.ready.pop() {
            let member = Member(token);
            let ready = Arc::clone(&self.ready);
            let Some(request) = self.member(member) else {
                continue; // it has left the set
            };
            let over = request.notify(&ready, token);
            self.examined += 1;
            if over {
                let (key, request) = self.leave(member)?;
                return Some((key, request.finish()));
            }
        }
        None
    }

    /// Asks each request, so that it says what it is.
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

    /// Waits until one is over and takes it out; `None` if the set is empty.
    #[track_caller]
    pub fn wait(&mut self) -> Option<(K, Result<R::Output>)> {
        if self.is_empty() {
            return None;
        }
        let core = Arc::clone(self.core.as_ref()?);
        Some(core.wait_until(|| {
            if listens() {
                self.ask_all();
            }
            self.next()
        }))
    }

    /// Makes progress, and takes out one that is over, if any is.
    pub fn test(&mut self) -> Option<(K, Result<R::Output>)> {
        if let Some(over) = self.next() {
            return Some(over);
        }
        self.core.as_ref()?.progress_awake();
        self.next()
    }

    /// Waits until at least one is over, and takes out all that are. Empty
    /// only if the set is.
    #[track_caller]
    pub fn wait_some(&mut self) -> Vec<(K, Result<R::Output>)> {
        let mut over: Vec<_> = self.wait().into_iter().collect();
        over.extend(std::iter::from_fn(|| self.next()));
        over
    }

    /// Waits for all, in the order in which they end.
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
/// different kinds. [`Status`] can be made of the output of every transfer.
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
    /// Forgets the kind of a request.
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
