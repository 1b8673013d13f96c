//! Accesses on streams to parts that kernels of the stream's device do not reach.
//!
//! A part on the host, on a device that is not linked, in a pool of another process, or one that
//! its owner serves. A thread of the rank makes the access when the stream has come to it, as the
//! rank itself would, and the stream waits until it is complete; the host does not.
//!
//! ```text
//! stream   work | ring | wait until open | work
//! thread               access  open
//! ```
//!
//! In a capture both are part of the graph: each launch rings, and waits.
//!
//! # Invariants
//! 1. A stream goes on when its access has ended, also with an error, and when nobody is left to
//!    make it.
//! 2. Who has rung holds the window no more when the stream goes on: giving it back waits for the
//!    stream, and for nothing else.
//! 3. What is accessed lies inside of the part, and the buffer is of the access alone until its
//!    stream goes on: the caller of [`RawWindow::enqueue_by_thread`] says so.
//!
//! # Sources
//! H. Zhou et al., "MPIX Stream: An Explicit Solution to Hybrid MPI+X Programming", EuroMPI 2022.

use super::far::Bytes;
use super::raw::{Inner, RawWindow};
use osier_engine::completion::hold::Latch;
use osier_engine::device::Use;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::view::RawView;
use osier_engine::view::on_device::handed_over;
use osier_kernels::{
    After, Callback, Context, Event, Memory, Ordered, Stream, StreamSemaphore, Valve,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most accesses of a window that streams wait for, as of messages: a driver takes about 1,000
/// works that wait.
const MOST_HELD: usize = 128;

/// What stops a stream.
enum Gate {
    /// Once; opens as it is dropped.
    Once(Mutex<Option<StreamSemaphore>>),
    /// At each launch of a graph.
    Launches(Arc<Latch>),
}

/// The window of an access.
enum Of {
    Once(Mutex<Option<Arc<Inner>>>),
    /// A graph may live longer.
    Launches(Weak<Inner>),
}

/// An access that a stream waits for.
struct Access {
    window: Of,
    gate: Gate,
    local: RawView,
    rank: usize,
    target: RawView,
    puts: bool,
    room: Room,
}

/// Pinned memory for the packed bytes of an access, which is there before a stream is held: to make
/// some may wait for all streams of a device.
struct Room {
    of: Option<(Context, usize)>,
    kept: Mutex<Option<Arc<Memory>>>,
}

impl Room {
    fn new(of: Option<(Context, usize)>) -> Result<Self> {
        let kept = Mutex::default();
        let room = Self { of, kept };
        room.keep()?;
        Ok(room)
    }

    fn keep(&self) -> Result<()> {
        if let Some((context, bytes)) = &self.of {
            *lock(&self.kept) = Some(Memory::pinned(context, *bytes)?);
        }
        Ok(())
    }

    /// Gives it back, to be found by who makes some.
    fn leave(&self) {
        drop(lock(&self.kept).take());
    }
}

impl Access {
    /// Makes it; the stream waits still.
    fn make(&self) -> Result<()> {
        let window = match &self.window {
            Of::Once(window) => lock(window).take(),
            Of::Launches(window) => window.upgrade(),
        };
        let Some(window) = window.map(RawWindow) else {
            return Ok(());
        };
        self.room.leave();
        let made = match self.puts {
            // SAFETY: invariant 3: memory of a device, which the view keeps.
            true => unsafe { window.put_by_device(&self.local, self.rank, &self.target) },
            // SAFETY: invariant 3.
            false => unsafe { window.get_by_device(&self.local, self.rank, &self.target) },
        };
        match self.gate {
            Gate::Once(_) => made,
            // For the next launch.
            Gate::Launches(_) => made.and(self.room.keep()),
        }
    }

    /// Has the stream go on.
    fn open(&self) {
        match &self.gate {
            Gate::Once(semaphore) => drop(lock(semaphore).take()),
            Gate::Launches(latch) => latch.ended(),
        }
    }
}

/// Accesses that streams have come to, oldest first.
#[derive(Default)]
struct Queue {
    rung: VecDeque<Arc<Access>>,
    /// That streams wait for, rung or not, outside of graphs.
    held: usize,
    /// Nobody makes any more.
    ended: bool,
    /// The first error that no call has returned.
    failed: Option<Error>,
}

/// What streams and the thread share.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    thread: Mutex<Option<std::thread::Thread>>,
}

impl Shared {
    /// A stream has come to an access. No call of the driver, so that its threads may do it.
    fn ring(&self, access: Arc<Access>) {
        let mut queue = lock(&self.queue);
        if queue.ended {
            drop(queue);
            return access.open();
        }
        queue.rung.push_back(access);
        drop(queue);
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    fn run(&self) {
        *lock(&self.thread) = Some(std::thread::current());
        loop {
            let mut queue = lock(&self.queue);
            let next = queue.rung.pop_front();
            if next.is_none() && queue.ended {
                return;
            }
            drop(queue);
            let Some(access) = next else {
                std::thread::park();
                continue;
            };
            // Invariant 2.
            let made = access.make();
            let mut queue = lock(&self.queue);
            queue.held -= usize::from(matches!(access.gate, Gate::Once(_)));
            if let Err(e) = made {
                queue.failed.get_or_insert(e);
            }
            drop(queue);
            access.open();
        }
    }
}

/// The thread that makes accesses of a window for streams; it ends with the value.
pub(super) struct Streams {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Streams {
    fn start() -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("osier-streams".into());
        let thread = thread.spawn(move || {
            osier_kernels::own_thread();
            of_thread.run();
        });
        let thread = thread.map_err(|e| {
            let message =
                format!("an access on a stream to a part that it does not reach: no thread: {e}");
            Error::new(ErrorKind::System, message)
        })?;
        let thread = Some(thread);
        Ok(Self { shared, thread })
    }

    /// The error of an access that has failed, once.
    pub fn failed(&self) -> Result<()> {
        match lock(&self.shared.queue).failed.take() {
            Some(e) => Err(e.context("an access on a stream")),
            None => Ok(()),
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        lock(&self.shared.queue).ended = true;
        let Some(thread) = self.thread.take() else {
            return;
        };
        thread.thread().unpark();
        // The last handle of the window may have been an access's.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl RawWindow {
    /// Enqueues an access to a part that kernels of the stream's device do not reach; the event
    /// behind it, or none in a capture. `staged`: packed bytes go through pinned memory of a device.
    ///
    /// # Errors
    /// The error of an access that was enqueued before, once; no thread can be started; the driver
    /// refuses.
    #[cold]
    #[track_caller]
    pub(super) fn enqueue_by_thread(
        &self,
        stream: &Stream,
        local: &Bytes,
        (rank, target, puts): (usize, &RawView, bool),
        staged: Option<&Context>,
    ) -> Result<Option<Event>> {
        let streams = self.0.streams.get_or_init(Streams::start);
        let streams = streams.as_ref().map_err(Error::clone)?;
        streams.failed()?;
        let (shared, context) = (streams.shared.clone(), stream.context());
        // What is used first may wait until no stream is held.
        let devices = &self.comm().core().devices;
        devices.prepare(context);
        devices.prepare(local.buffer().memory().context());
        staged
            .into_iter()
            .for_each(|context| devices.prepare(context));
        let room = Room::new(staged.map(|context| (context.clone(), target.bytes())))?;
        let access = |local: Bytes, window, gate| Access {
            room,
            window,
            gate,
            local: handed_over(local, if puts { Use::Read } else { Use::Write }),
            rank,
            target: target.clone(),
            puts,
        };
        if stream.is_captured()? {
            // A launch makes it when the work before it is done.
            let local = Ordered::new(local.buffer().clone(), After::Now);
            let latch = Latch::new(Valve::new(context)?);
            let window = Of::Launches(Arc::downgrade(&self.0));
            let access = Arc::new(access(local, window, Gate::Launches(latch.clone())));
            let (rings, shuts) = (access.clone(), latch.clone());
            stream.call(&Callback::new(move || {
                shuts.shut();
                shared.ring(rings.clone());
            }))?;
            stream.keep(access)?;
            latch.valve.hold(stream)?;
            return Ok(None);
        }
        let has_room = || (lock(&shared.queue).held < MOST_HELD).then_some(());
        self.comm().core().wait_until(has_room);
        let window = Of::Once(Mutex::new(Some(self.0.clone())));
        let gate = Gate::Once(Mutex::new(Some(StreamSemaphore::new(context)?)));
        let access = Arc::new(access(local.clone(), window, gate));
        // The driver's thread, which calls back, may drop nothing of a device.
        let rung = Mutex::new(Some(access.clone()));
        let callback = Callback::new({
            let shared = shared.clone();
            move || {
                if let Some(access) = lock(&rung).take() {
                    shared.ring(access);
                }
            }
        });
        lock(&shared.queue).held += 1;
        if let Err(e) = stream.call(&callback) {
            lock(&shared.queue).held -= 1;
            return Err(e.into());
        }
        if let Gate::Once(semaphore) = &access.gate
            && let Some(semaphore) = &*lock(semaphore)
        {
            semaphore.hold(stream)?;
        }
        let event = stream.record()?;
        self.is_used_until(&event);
        Ok(Some(event))
    }
}
