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
//! 2. A capture that fails is ended all the same, so that the stream is usable.
//!
//! # Sources
//! CUDA Driver API reference 12.0: stream management (capture), graph management.

use crate::device::Context;
use crate::driver::{Driver, abi};
use crate::error::Result;
use crate::memory::Memory;
use crate::slice::{After, order};
use crate::stream::{Event, Stream};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What captures under way have touched, by the driver's number of each.
#[derive(Default)]
pub(crate) struct Captures(Mutex<HashMap<u64, Kept>>);

/// What a graph needs.
#[derive(Default)]
struct Kept {
    memory: Vec<Arc<Memory>>,
    owners: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Captures {
    fn begin(&self, id: u64) {
        let mut captures = self.0.lock().unwrap_or_else(|e| e.into_inner());
        captures.insert(id, Kept::default());
    }

    /// Adds memory; captures that others began keep nothing here.
    pub fn touch<'a>(&self, id: u64, memory: impl IntoIterator<Item = &'a Arc<Memory>>) {
        let mut captures = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(kept) = captures.get_mut(&id) {
            for memory in memory {
                if !kept.memory.iter().any(|known| Arc::ptr_eq(known, memory)) {
                    kept.memory.push(memory.clone());
                }
            }
        }
    }

    /// Adds anything else; false for captures that others began.
    pub fn keep(&self, id: u64, owner: Arc<dyn Any + Send + Sync>) -> bool {
        let mut captures = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let kept = captures.get_mut(&id);
        kept.map(|kept| kept.owners.push(owner)).is_some()
    }

    fn end(&self, id: u64) -> Kept {
        let mut captures = self.0.lock().unwrap_or_else(|e| e.into_inner());
        captures.remove(&id).unwrap_or_default()
    }
}

/// Lets this thread call what captures forbid, such as loading a module, while
/// others capture; what the driver lacks is not needed.
pub(crate) struct Relaxed<'a> {
    driver: &'a Driver,
    before: Option<std::ffi::c_uint>,
}

impl Relaxed<'_> {
    pub fn new(driver: &Driver) -> Relaxed<'_> {
        let mut mode = abi::CAPTURE_RELAXED;
        // SAFETY: a place for one mode.
        let exchanged = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        Relaxed {
            driver,
            before: exchanged.is_ok().then_some(mode),
        }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: a place for one mode.
            let _ = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        }
    }
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

/// What graphs needed that were dropped while a launch was under way.
static RETIRED: Mutex<Vec<(Event, Kept)>> = Mutex::new(Vec::new());

/// Drops what launches needed that are over.
pub(crate) fn reap() {
    let over: Vec<(Event, Kept)> = {
        let mut retired = RETIRED.lock().unwrap_or_else(|e| e.into_inner());
        // Failed work calls nothing any more.
        let over = |(event, _): &mut (Event, Kept)| event.is_passed().unwrap_or(true);
        retired.extract_if(.., over).collect()
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
        let kept = match id {
            Ok(Some(id)) => context.captures().end(id),
            _ => Kept::default(),
        };
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
        let driver = self.context.enter()?;
        // SAFETY: the graph lives; the driver keeps it until the launch is over.
        unsafe { driver.cuGraphLaunch(self.executable, stream.raw()) }?;
        let event = crate::copy::note(stream, &self.kept.memory)?;
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
            let mut retired = RETIRED.lock().unwrap_or_else(|e| e.into_inner());
            retired.push((last, std::mem::take(&mut self.kept)));
        }
        reap();
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
