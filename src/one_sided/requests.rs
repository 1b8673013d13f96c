//! Accesses that go on behind the call that has begun them, and the requests that wait for them.
//!
//! What is under way belongs to the window, which waits for it where an epoch ends, whatever
//! becomes of the request.
//!
//! # Invariants
//! 1. A request has its buffer alone, and hands it over to nobody while it reads into it.

use super::raw::RawWindow;
use crate::comm::Communicator;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::lane::Lane;
use osier_engine::rma::pending::Pending;
use osier_engine::view::{Buffer, BufferMut};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// An access that is under way.
#[derive(Debug)]
pub struct UnderWay {
    pending: Mutex<Pending>,
    complete: AtomicBool,
}

impl UnderWay {
    /// Moves it on. True: it is complete. Within the lane's lock, which comes first.
    fn advance(&self, lane: &mut Lane) -> bool {
        let complete = self.pending().advance(lane);
        self.complete.store(complete, Ordering::Release);
        complete
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it has ended, and what it has read.
    fn end(&self, read: impl FnOnce(&[u8])) -> Result<()> {
        self.pending().end().map(read)
    }
}

/// Those of a window.
#[derive(Default)]
pub(super) struct Pool {
    any: AtomicBool,
    all: Mutex<Vec<Arc<UnderWay>>>,
}

impl Pool {
    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Arc<UnderWay>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves all on, and forgets those that are complete. True: all are.
    pub fn advance(&self, comm: &Communicator) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return true;
        }
        let all = self.all().clone();
        comm.core().with(comm.lane(), |lane| {
            for one in &all {
                one.advance(lane);
            }
        });
        let mut all = self.all();
        all.retain(|one| !one.complete.load(Ordering::Acquire));
        self.any.store(!all.is_empty(), Ordering::Release);
        all.is_empty()
    }
}

impl RawWindow {
    /// Keeps an access until it is complete.
    pub(super) fn keep(&self, pending: Pending) -> Arc<UnderWay> {
        let kept = Arc::new(UnderWay {
            pending: Mutex::new(pending),
            complete: AtomicBool::new(false),
        });
        let pool = &self.0.under_way;
        {
            let mut all = pool.all();
            all.push(kept.clone());
            pool.any.store(true, Ordering::Release);
        }
        pool.advance(self.comm());
        kept
    }

    /// Whether anything may be under way behind its call, besides writes that are kept.
    #[inline]
    fn is_under_way(&self) -> bool {
        self.0.devices.is_some()
            || self.0.under_way.any.load(Ordering::Acquire)
            || self.0.streams.get().is_some()
    }

    /// Whether anything may be under way behind its call.
    #[inline]
    pub(super) fn has_unsettled(&self) -> bool {
        self.is_under_way() || self.0.combined.any()
    }

    /// As [`RawWindow::settle`], where there may be nothing to do.
    #[inline]
    #[track_caller]
    pub(super) fn settle_any(&self) -> Result<()> {
        let written = match self.0.combined.any() {
            true => self.write_kept(),
            false => Ok(()),
        };
        match self.is_under_way() {
            true => self.settle().and(written),
            false => written,
        }
    }

    /// Makes writes that are kept, and waits for accesses that are under way behind their calls.
    #[cold]
    #[track_caller]
    pub(super) fn settle(&self) -> Result<()> {
        let written = self.write_kept();
        let comm = self.comm();
        let all = std::mem::take(&mut *self.0.under_way.all());
        self.0.under_way.any.store(false, Ordering::Release);
        comm.core().wait_on(comm.lane(), |lane| {
            let complete = all.iter().all(|one| one.advance(lane));
            complete.then_some(())
        });
        self.settle_enqueued()?;
        written
    }
}

/// An access to a window that may go on while the program does other things
/// ([`Epoch::rput`](super::Epoch::rput), [`Epoch::rget`](super::Epoch::rget)): a future, or to be
/// waited for. It gives the buffer back.
///
/// Whatever becomes of the request, the access is complete where its epoch ends, or is flushed.
/// An error of one that was dropped before is not told.
///
/// ```
/// # osier::testing::ranks(2, |comm| {
/// let window = comm.window::<u64>(100)?;
/// let other = 1 - comm.rank();
/// window.fenced(|epoch| {
///     let put = epoch.rput([7u64, 8, 9], other, 3)?;
///     // Something else meanwhile.
///     put.wait().map(drop)
/// })?;
/// let read = window.fenced(|epoch| epoch.rget(vec![0u64; 3], other, 3)?.wait())?;
/// assert_eq!(read, [7, 8, 9]);
/// window.free()?;
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[must_use = "an error of the access is told by the request alone"]
pub struct AccessRequest<B> {
    comm: Communicator,
    under_way: Option<Arc<UnderWay>>,
    /// None: it was given back.
    buffer: Option<B>,
    /// Takes up what was read.
    read: fn(&mut B, &[u8]),
    /// It counts as a future that waits.
    counted: bool,
}

impl<B> fmt::Debug for AccessRequest<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessRequest")
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

impl<B: Buffer> AccessRequest<B> {
    pub(super) fn of_put(comm: &Communicator, under_way: Option<Arc<UnderWay>>, buffer: B) -> Self {
        Self::new(comm, under_way, buffer, |_, _| {})
    }
}

impl<B: BufferMut> AccessRequest<B> {
    pub(super) fn of_get(comm: &Communicator, under_way: Option<Arc<UnderWay>>, buffer: B) -> Self {
        Self::new(comm, under_way, buffer, |buffer, bytes| {
            let view = buffer.view_mut();
            let view = view.as_raw();
            // SAFETY: invariant 1: inside of the view, and no more than was read.
            unsafe { view.unpack(0..bytes.len().min(view.bytes()), bytes.as_ptr()) };
        })
    }
}

impl<B> AccessRequest<B> {
    fn new(
        comm: &Communicator,
        under_way: Option<Arc<UnderWay>>,
        buffer: B,
        read: fn(&mut B, &[u8]),
    ) -> Self {
        Self {
            comm: comm.clone(),
            under_way,
            buffer: Some(buffer),
            read,
            counted: false,
        }
    }

    /// Makes progress; true if the access is complete.
    pub fn test(&mut self) -> bool {
        let Some(under_way) = &self.under_way else {
            return true;
        };
        let core = self.comm.core();
        core.check_deaths();
        let complete = core.with(self.comm.lane(), |lane| {
            lane.progress_awake();
            under_way.advance(lane)
        });
        if !complete {
            core.give_turn();
        }
        complete
    }

    /// Waits until the access is complete, and gives the buffer back.
    ///
    /// # Errors
    /// As [`Epoch::put`](super::Epoch::put).
    #[track_caller]
    pub fn wait(mut self) -> Result<B> {
        if let Some(under_way) = &self.under_way {
            let core = self.comm.core();
            core.wait_on(self.comm.lane(), |lane| {
                under_way.advance(lane).then_some(())
            });
        }
        self.take()
    }

    #[track_caller]
    fn take(&mut self) -> Result<B> {
        self.uncount();
        let Some(mut buffer) = self.buffer.take() else {
            let message = "the request was polled after its end (hint: wait for or poll it once)";
            return Err(self.comm.raise(Error::new(ErrorKind::Argument, message)));
        };
        let ended = match self.under_way.take() {
            None => Ok(()),
            Some(under_way) => under_way.end(|bytes| (self.read)(&mut buffer, bytes)),
        };
        self.comm.reported(ended).map(|()| buffer)
    }

    fn uncount(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.comm.core().future_done();
        }
    }
}

impl<B: Unpin> Future for AccessRequest<B> {
    type Output = Result<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        let this = self.get_mut();
        if let Some(under_way) = &this.under_way {
            let core = this.comm.core();
            let complete = core.with(this.comm.lane(), |lane| {
                lane.progress();
                let complete = under_way.advance(lane);
                if !complete {
                    under_way.pending().wake_at_end(lane, context.waker());
                }
                complete
            });
            if !complete {
                if !this.counted {
                    this.counted = true;
                    core.future_waits();
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(this.take())
    }
}

impl<B> Drop for AccessRequest<B> {
    fn drop(&mut self) {
        self.uncount();
    }
}
