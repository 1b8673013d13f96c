//! Work captured from a stream, launched as often as wanted.
//!
//! Packs, unpacks, copies and reductions are captured like anything else: one node
//! each. What must not be captured happens beside the capture: modules are loaded
//! and lists uploaded on a stream of their own, which the host waits for once.
//!
//! # Invariants
//! 1. A graph owns the memory that its nodes touch: an operation that this crate
//!    queues on a captured stream leaves a clone with the capture, instead of an
//!    event with the memory. Functions of the host are kept until the last launch is over.
//!    A graph whose capture others began owns them by an object of the user.
//! 2. A capture that fails is ended all the same, so that the stream is usable.
//!
//! # Sources
//! CUDA Driver API reference 12.0: stream management (capture), graph management.

use crate::device::Context;
use crate::driver::abi;
use crate::error::Result;
use crate::memory::Memory;
use crate::slice::{After, order};
use crate::stream::{Event, Stream};
use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// What captures under way have touched, by the driver's number of each.
#[derive(Default)]
pub(crate) struct Captures(Mutex<Known>);

#[derive(Default)]
struct Known {
    own: HashMap<u64, Kept>,
    /// Captures that others began; their graphs own what is kept.
    of_others: HashMap<u64, Weak<Mutex<Kept>>>,
}

/// What a graph needs.
#[derive(Default)]
struct Kept {
    memory: Vec<Arc<Memory>>,
    owners: Vec<Arc<dyn Any + Send + Sync>>,
    /// Recorded by the capture, until it has ended.
    events: Vec<Event>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Kept {
    fn touch<'a>(&mut self, memory: impl IntoIterator<Item = &'a Arc<Memory>>) {
        for memory in memory {
            if !self.memory.iter().any(|known| Arc::ptr_eq(known, memory)) {
                self.memory.push(memory.clone());
            }
        }
    }
}

impl Captures {
    fn begin(&self, id: u64) {
        lock(&self.0).own.insert(id, Kept::default());
    }

    fn end(&self, id: u64) -> Kept {
        lock(&self.0).own.remove(&id).unwrap_or_default()
    }

    /// Adds memory to what the graph of a stream's capture keeps.
    pub fn touch<'a>(
        &self,
        stream: &Stream,
        id: u64,
        memory: impl IntoIterator<Item = &'a Arc<Memory>>,
    ) -> Result<()> {
        self.add(stream, id, |kept| kept.touch(memory))
    }

    /// Adds anything else.
    pub fn keep(&self, stream: &Stream, id: u64, owner: Arc<dyn Any + Send + Sync>) -> Result<()> {
        self.add(stream, id, |kept| kept.owners.push(owner))
    }

    /// Keeps an event that the capture has recorded.
    pub fn keep_event(&self, stream: &Stream, id: u64, event: &Event) -> Result<()> {
        self.add(stream, id, |kept| kept.events.push(event.clone()))
    }

    /// Whether a graph that others have captured, or capture, has owners: it may hold streams
    /// whenever it is launched.
    pub fn any_of_others(&self) -> bool {
        let known = lock(&self.0);
        let mut graphs = known.of_others.values().filter_map(Weak::upgrade);
        graphs.any(|kept| !lock(&kept).owners.is_empty())
    }

    fn add(&self, stream: &Stream, id: u64, add: impl FnOnce(&mut Kept)) -> Result<()> {
        let mut known = lock(&self.0);
        if let Some(kept) = known.own.get_mut(&id) {
            add(kept);
            return Ok(());
        }
        let kept = match known.of_others.get(&id).and_then(Weak::upgrade) {
            Some(kept) => kept,
            None => {
                let kept = Arc::default();
                give(stream, &kept)?;
                known.of_others.retain(|_, kept| kept.strong_count() > 0);
                known.of_others.insert(id, Arc::downgrade(&kept));
                kept
            }
        };
        add(&mut lock(&kept));
        Ok(())
    }
}

/// Makes the graph that a stream's capture builds an owner.
fn give(stream: &Stream, kept: &Arc<Mutex<Kept>>) -> Result<()> {
    let driver = stream.context().enter()?;
    let (mut status, mut id, mut graph) = (0, 0, abi::Graph::NULL);
    let (after, count) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: places for two numbers and a graph; the rest is not asked for.
    unsafe {
        driver.cuStreamGetCaptureInfo_v2(
            stream.raw(),
            &mut status,
            &mut id,
            &mut graph,
            after,
            count,
        )
    }?;
    let mut object = abi::UserObject::NULL;
    let data = Arc::into_raw(kept.clone()).cast_mut().cast::<c_void>();
    let flags = abi::USER_OBJECT_NO_DESTRUCTOR_SYNC;
    // SAFETY: a place for one object; the destructor takes back the count given here.
    let made = unsafe { driver.cuUserObjectCreate(&mut object, data, Some(given_back), 1, flags) };
    if made.is_err() {
        // SAFETY: nobody else has taken it.
        drop(unsafe { Arc::from_raw(data.cast::<Mutex<Kept>>().cast_const()) });
        return made;
    }
    // SAFETY: graph and object live; the object's count goes over to the graph.
    let moved =
        unsafe { driver.cuGraphRetainUserObject(graph, object, 1, abi::GRAPH_USER_OBJECT_MOVE) };
    if moved.is_err() {
        // SAFETY: the object is ours still.
        let _ = unsafe { driver.cuUserObjectRelease(object, 1) };
    }
    moved
}

/// The graph, what was made of it, and all launches have ended. A thread of the driver, which
/// may not call it: what was kept is dropped later.
unsafe extern "C" fn given_back(data: *mut c_void) {
    // SAFETY: `give` has given one count away.
    let kept = unsafe { Arc::from_raw(data.cast::<Mutex<Kept>>().cast_const()) };
    let kept = std::mem::take(&mut *lock(&kept));
    lock(&RETIRED).push((None, kept));
    ANY_RETIRED.store(true, Ordering::Release);
}

/// A captured graph, ready to be launched.
pub struct Graph {
    context: Context,
    executable: abi::GraphExec,
    /// Invariant 1.
    kept: Kept,
    /// Behind the last launch.
    last: Mutex<Option<Event>>,
}

/// What graphs needed that are gone: behind an event, or idle already.
static RETIRED: Mutex<Vec<(Option<Event>, Kept)>> = Mutex::new(Vec::new());

/// Whether anything is there.
static ANY_RETIRED: AtomicBool = AtomicBool::new(false);

/// Drops what graphs needed that are gone and whose launches are over. It runs what owners do
/// when they are dropped, so the caller holds no lock.
pub fn reap_graphs() {
    if !ANY_RETIRED.load(Ordering::Acquire) {
        return;
    }
    let over: Vec<(Option<Event>, Kept)> = {
        let mut retired = lock(&RETIRED);
        // Failed work calls nothing any more.
        let over = |(event, _): &mut (Option<Event>, Kept)| {
            event
                .as_ref()
                .is_none_or(|event| event.is_passed().unwrap_or(true))
        };
        let over = retired.extract_if(.., over).collect();
        ANY_RETIRED.store(!retired.is_empty(), Ordering::Release);
        over
    };
    drop(over);
}

impl Graph {
    /// Captures what `work` queues on a stream, and on streams that wait for
    /// events of it; nothing runs yet. Buffers are ordered by the captured stream
    /// or by events of the capture: what comes before it is the launch's matter.
    ///
    /// # Errors
    /// The error of `work`, among them [`DeviceError::Capture`] for what cannot be
    /// captured, such as an allocation; or the driver refuses. The stream is usable
    /// again in any case.
    ///
    /// [`DeviceError::Capture`]: crate::DeviceError::Capture
    pub fn capture(stream: &Stream, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        let context = stream.context();
        let driver = context.enter()?;
        // SAFETY: the stream lives.
        unsafe { driver.cuStreamBeginCapture_v2(stream.raw(), abi::CAPTURE_RELAXED) }?;
        let id = stream.capture();
        if let Ok(Some(id)) = id {
            context.captures().begin(id);
        }
        let done = id.clone().and_then(|_| work(stream));
        let mut graph = abi::Graph::NULL;
        // SAFETY: a place for one graph; the capture began above.
        let ended = unsafe { driver.cuStreamEndCapture(stream.raw(), &mut graph) };
        let mut kept = match id {
            Ok(Some(id)) => context.captures().end(id),
            _ => Kept::default(),
        };
        kept.events.clear();
        let mut executable = abi::GraphExec::NULL;
        let instantiated = done.and(ended).and_then(|()| {
            // SAFETY: a place for one graph; the captured one is ours.
            unsafe { driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0) }
        });
        if graph != abi::Graph::NULL {
            // SAFETY: ours; the executable graph does not need it.
            let _ = unsafe { driver.cuGraphDestroy(graph) };
        }
        instantiated?;
        Ok(Graph {
            context: context.clone(),
            executable,
            kept,
            last: Mutex::default(),
        })
    }

    /// Queues the captured work on a stream, behind what it has and behind `after`:
    /// what other streams do with the graph's buffers.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn launch(&self, stream: &Stream, after: &[After]) -> Result<Event> {
        after.iter().try_for_each(|after| order(after, stream))?;
        let launch = || {
            let driver = self.context.enter()?;
            // SAFETY: the graph lives; the driver keeps it until the launch has ended.
            unsafe { driver.cuGraphLaunch(self.executable, stream.raw()) }?;
            crate::copy::note(stream, &self.kept.memory)
        };
        let event = match self.kept.owners.is_empty() {
            true => launch()?,
            false => self.context.semaphores().launch(launch)?,
        };
        *self.last.lock().unwrap_or_else(|e| e.into_inner()) = Some(event.clone());
        Ok(event)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let last = self.last.get_mut().unwrap_or_else(|e| e.into_inner());
        if !self.kept.owners.is_empty()
            && let Some(last) = last.take()
        {
            lock(&RETIRED).push((Some(last), std::mem::take(&mut self.kept)));
            ANY_RETIRED.store(true, Ordering::Release);
        }
        reap_graphs();
        if let Ok(driver) = self.context.enter() {
            // SAFETY: ours; a launch under way is finished first by the driver.
            let _ = unsafe { driver.cuGraphExecDestroy(self.executable) };
        }
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph of device {}", self.context.ordinal())
    }
}
