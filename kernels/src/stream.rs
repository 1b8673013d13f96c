//! Streams and events.
//!
//! # Invariants
//! 1. A stream never waits for, or holds up, the default stream.
//! 2. Events are pooled per context and have no timing. A pooled event goes back
//!    only when its last clone goes; a wait that was queued before keeps the
//!    record it saw, as the driver promises.
//! 3. A query has three answers: passed, not yet, or an error. An error is never
//!    read as "not yet".
//! 4. A point whose number a kernel stores has no event of the driver until somebody needs
//!    one: a wait of another stream, or of the host. That is recorded then, behind what the
//!    stream has by then, so it passes late, never early.
//! 5. An event that a capture has recorded is of no pool and is destroyed when the capture has
//!    ended: recorded by another thread before that, a driver (580) crashed.

use crate::completion::{Completion, Number, Seen};
use crate::device::{Context, Entered};
use crate::driver::abi;
use crate::error::{DeviceError, Result};
use crate::handle::EventHandle;
use std::sync::{Arc, Mutex, PoisonError};

/// A queue of work on one device; cheap to clone.
#[derive(Clone)]
pub struct Stream(Arc<StreamInner>);

struct StreamInner {
    context: Context,
    stream: abi::Stream,
    owned: bool,
    /// Nobody captures it.
    private: bool,
    /// Of streams for messages, in the order in which they were made.
    number: u64,
    /// Raised behind each record, or by kernels, on a stream for messages.
    completion: Option<Arc<Completion>>,
}

impl Stream {
    /// A new stream of a device.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(context: &Context) -> Result<Stream> {
        Stream::with_priority(context, 0)
    }

    /// A new stream; a lower number goes first.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn with_priority(context: &Context, priority: i32) -> Result<Stream> {
        Stream::make(context, priority, false)
    }

    /// A new stream for messages, that is never captured: work on it asks the driver less.
    /// Captured all the same, it would record work as if it were not. It has the highest
    /// priority of the device: other streams may be held by the host, and what opens them
    /// shall not wait in a hardware queue behind them; streams of different priority
    /// share none.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn uncaptured(context: &Context) -> Result<Stream> {
        let driver = context.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: places for two numbers.
        let known = unsafe { driver.cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        Stream::make(context, known.map_or(0, |()| greatest), true)
    }

    /// Its number among the streams for messages, in the order in which they were made.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Its priority; a lower number goes first.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn priority(&self) -> Result<i32> {
        let driver = self.context().enter()?;
        let mut priority = 0;
        // SAFETY: a place for one number; the stream lives.
        unsafe { driver.cuStreamGetPriority(self.raw(), &mut priority) }?;
        Ok(priority)
    }

    fn make(context: &Context, priority: i32, private: bool) -> Result<Stream> {
        let driver = context.enter()?;
        let mut stream = abi::Stream::NULL;
        // SAFETY: a place for one stream.
        unsafe {
            driver.cuStreamCreateWithPriority(&mut stream, abi::STREAM_NON_BLOCKING, priority)
        }?;
        Ok(Stream(Arc::new(StreamInner {
            context: context.clone(),
            stream,
            owned: true,
            private,
            number: if private {
                context.next_stream_number()
            } else {
                0
            },
            completion: private.then(|| Completion::of(context)).flatten(),
        })))
    }

    /// A stream of another library, such as torch's. It is not destroyed here.
    ///
    /// # Safety
    /// `raw` is a stream (`CUstream`) of the device's primary context and lives
    /// longer than all clones. If it is captured by others, memory of
    /// theirs that is handed over meanwhile lives as long as their graph.
    pub unsafe fn from_raw(context: &Context, raw: *mut std::ffi::c_void) -> Stream {
        Stream(Arc::new(StreamInner {
            context: context.clone(),
            stream: abi::Stream(raw),
            owned: false,
            private: false,
            number: 0,
            completion: None,
        }))
    }

    /// The driver's stream.
    pub fn as_raw(&self) -> *mut std::ffi::c_void {
        self.0.stream.0
    }

    pub(crate) fn raw(&self) -> abi::Stream {
        self.0.stream
    }

    /// Its word, where it has one.
    pub(crate) fn completion(&self) -> Option<&Arc<Completion>> {
        self.0.completion.as_ref()
    }

    /// Where the stream is.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Whether all work queued so far is done.
    ///
    /// # Errors
    /// Work failed; not that it is under way.
    pub fn is_done(&self) -> Result<bool> {
        let driver = self.context().enter()?;
        // SAFETY: the stream lives.
        answer(unsafe { driver.cuStreamQuery(self.raw()) })
    }

    /// Waits on the host until all work queued so far is done.
    ///
    /// # Errors
    /// Work failed.
    pub fn synchronize(&self) -> Result<()> {
        let driver = self.context().enter()?;
        // SAFETY: the stream lives.
        unsafe { driver.cuStreamSynchronize(self.raw()) }
    }

    /// An event that passes when the work queued so far is done.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record(&self) -> Result<Event> {
        if let Some(id) = self.capture()? {
            return self.record_in(id);
        }
        let (event, number) = match &self.0.completion {
            Some(completion) => completion.behind(self, || self.record_pooled())?,
            None => (self.record_pooled()?, None),
        };
        let mark = Mark::Event {
            event,
            pooled: true,
            number,
        };
        Ok(Event::with(self.context(), mark))
    }

    /// An event of a capture that the stream takes part in: invariant 5.
    fn record_in(&self, capture: u64) -> Result<Event> {
        let context = self.context();
        let driver = context.enter()?;
        let mut raw = abi::Event::NULL;
        // SAFETY: a place for one event.
        unsafe { driver.cuEventCreate(&mut raw, abi::EVENT_DISABLE_TIMING) }?;
        let event = Event::own(context, raw);
        // SAFETY: event and stream live, in one context.
        unsafe { driver.cuEventRecord(raw, self.raw()) }?;
        context.captures().keep_event(self, capture, &event)?;
        Ok(event)
    }

    /// An event of the pool, recorded.
    fn record_pooled(&self) -> Result<abi::Event> {
        let context = self.context();
        let event = context.take_event()?;
        // SAFETY: event and stream live, in one context.
        let record = |driver: Entered| unsafe { driver.cuEventRecord(event, self.raw()) };
        let recorded = context.enter().and_then(record);
        recorded.inspect_err(|_| context.give_event(event))?;
        Ok(event)
    }

    /// Whether what is queued is captured, and runs later.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn is_captured(&self) -> Result<bool> {
        Ok(self.capture()?.is_some())
    }

    /// The number of the capture that the stream takes part in, which this process has once.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn capture_id(&self) -> Result<Option<u64>> {
        self.capture()
    }

    /// The driver's number of the capture that the stream takes part in.
    pub(crate) fn capture(&self) -> Result<Option<u64>> {
        if self.0.private {
            return Ok(None);
        }
        let driver = self.context().enter()?;
        if !driver.has("cuStreamGetCaptureInfo") {
            return Ok(None);
        }
        let (mut status, mut id) = (0, 0);
        // SAFETY: places for two numbers; the stream lives.
        unsafe { driver.cuStreamGetCaptureInfo(self.raw(), &mut status, &mut id) }?;
        Ok((status != 0).then_some(id))
    }

    /// Holds the work queued from now on until an event passes; the host does
    /// not wait.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn wait(&self, event: &Event) -> Result<()> {
        if event.is_before(self)? {
            return Ok(());
        }
        let event = event.driver_event()?;
        let driver = self.context().enter()?;
        // SAFETY: event and stream live.
        unsafe { driver.cuStreamWaitEvent(self.raw(), event, 0) }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Stream({:p} of device {})",
            self.as_raw(),
            self.context().ordinal()
        )
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.raw() == other.raw() && self.context() == other.context()
    }
}

impl Drop for StreamInner {
    /// The driver destroys a stream after its work; nothing waits here.
    fn drop(&mut self) {
        if self.owned
            && let Ok(driver) = self.context.enter()
        {
            // SAFETY: the last clone goes.
            let _ = unsafe { driver.cuStreamDestroy_v2(self.stream) };
        }
    }
}

/// A point in a stream; cheap to clone.
#[derive(Clone)]
pub struct Event(Arc<EventInner>);

struct EventInner {
    context: Context,
    mark: Mark,
}

/// What tells that a point has passed.
enum Mark {
    /// An event of the driver; a pooled one is recorded once, and may have a number behind it.
    Event {
        event: abi::Event,
        pooled: bool,
        number: Option<Number>,
    },
    /// The number that the kernel before it stores; its event, once that was needed:
    /// invariant 4.
    Told {
        stream: Stream,
        number: Number,
        event: Mutex<Option<abi::Event>>,
    },
}

impl Event {
    fn with(context: &Context, mark: Mark) -> Event {
        Event(Arc::new(EventInner {
            context: context.clone(),
            mark,
        }))
    }

    /// One of the driver, not of the pool.
    fn own(context: &Context, event: abi::Event) -> Event {
        let mark = Mark::Event {
            event,
            pooled: false,
            number: None,
        };
        Event::with(context, mark)
    }

    /// The point behind a kernel that stores this number as the last thing.
    pub(crate) fn told(stream: &Stream, number: Number) -> Event {
        let mark = Mark::Told {
            stream: stream.clone(),
            number,
            event: Mutex::new(None),
        };
        Event::with(stream.context(), mark)
    }

    /// The driver's event, recorded now if there is none yet.
    fn driver_event(&self) -> Result<abi::Event> {
        let (stream, kept) = match &self.0.mark {
            Mark::Event { event, .. } => return Ok(*event),
            Mark::Told { stream, event, .. } => (stream, event),
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match *kept {
            Some(event) => Ok(event),
            None => Ok(*kept.insert(stream.record_pooled()?)),
        }
    }

    /// Whether later work of a stream comes behind it anyway, as far as that is known without
    /// the driver: it is of the same stream, or has passed. A capture may not rely on what has
    /// passed; the driver refuses such an event.
    fn is_before(&self, stream: &Stream) -> Result<bool> {
        match &self.0.mark {
            Mark::Event { .. } => Ok(false),
            Mark::Told { stream: own, .. } if own == stream => Ok(true),
            Mark::Told { number, .. } => Ok(number.is_raised() && stream.capture()?.is_none()),
        }
    }

    /// An event that other processes can open, recorded on a stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn shared(stream: &Stream) -> Result<Event> {
        let driver = stream.context().enter()?;
        let flags = abi::EVENT_DISABLE_TIMING | abi::EVENT_INTERPROCESS;
        let mut event = abi::Event::NULL;
        // SAFETY: a place for one event.
        unsafe { driver.cuEventCreate(&mut event, flags) }?;
        let own = Event::own(stream.context(), event);
        // SAFETY: event and stream live, in one context.
        unsafe { driver.cuEventRecord(event, stream.raw()) }?;
        Ok(own)
    }

    /// Records a [`Event::shared`] event once more: whoever asks from now on asks for this
    /// record.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record_again(&self, stream: &Stream) -> Result<()> {
        let event = self.driver_event()?;
        let driver = self.0.context.enter()?;
        // SAFETY: event and stream live.
        unsafe { driver.cuEventRecord(event, stream.raw()) }
    }

    /// What another process opens a [`Event::shared`] event with.
    ///
    /// # Errors
    /// The event is not shared, or the driver refuses.
    pub fn export(&self) -> Result<EventHandle> {
        let event = self.driver_event()?;
        let driver = self.0.context.enter()?;
        let mut handle = abi::IpcHandle([0; 64]);
        // SAFETY: a place for one handle; the event lives.
        unsafe { driver.cuIpcGetEventHandle(&mut handle, event) }?;
        Ok(EventHandle(handle.0))
    }

    /// Opens an event of another process.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn import(context: &Context, handle: &EventHandle) -> Result<Event> {
        let driver = context.enter()?;
        let mut event = abi::Event::NULL;
        // SAFETY: a place for one event; a wrong handle is refused.
        unsafe { driver.cuIpcOpenEventHandle(&mut event, abi::IpcHandle(handle.0)) }?;
        Ok(Event::own(context, event))
    }

    /// Whether the event has passed.
    ///
    /// # Errors
    /// The work before it failed; not that it is under way.
    pub fn is_passed(&self) -> Result<bool> {
        let (number, passed) = match &self.0.mark {
            Mark::Event { event, number, .. } => {
                match number.as_ref().map(Number::look) {
                    Some(Seen::Passed) => return Ok(true),
                    Some(Seen::NotYet) => return Ok(false),
                    Some(Seen::Raised | Seen::Ask) | None => {}
                }
                let driver = self.0.context.enter()?;
                // SAFETY: the event lives.
                let passed = answer(unsafe { driver.cuEventQuery(*event) });
                (number.as_ref(), passed)
            }
            Mark::Told { stream, number, .. } => {
                let passed = match number.look() {
                    Seen::Passed => return Ok(true),
                    Seen::NotYet => return Ok(false),
                    Seen::Raised => Ok(true),
                    // Later work of the stream may be under way, or the kernel has failed.
                    Seen::Ask => stream.is_done(),
                };
                (Some(number), passed)
            }
        };
        if let (Ok(true), Some(number)) = (&passed, number) {
            number.has_passed();
        }
        passed
    }

    /// Whether the driver, too, knows that the event has passed: a kernel that has stored its
    /// number is about to end, and what it used must not be taken from the driver yet.
    ///
    /// # Errors
    /// As [`Event::is_passed`].
    pub(crate) fn is_settled(&self) -> Result<bool> {
        match &self.0.mark {
            Mark::Event { .. } => self.is_passed(),
            Mark::Told { stream, number, .. } => {
                Ok(self.is_passed()? && (number.is_behind() || stream.is_done()?))
            }
        }
    }

    /// Waits on the host until the event has passed.
    ///
    /// # Errors
    /// The work before it failed.
    pub fn synchronize(&self) -> Result<()> {
        if let Mark::Told { number, .. } = &self.0.mark
            && number.is_raised()
        {
            return Ok(());
        }
        let event = self.driver_event()?;
        let driver = self.0.context.enter()?;
        // SAFETY: the event lives.
        unsafe { driver.cuEventSynchronize(event) }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0.mark {
            Mark::Event { event, .. } => {
                let ordinal = self.0.context.ordinal();
                write!(f, "Event({:p} of device {ordinal})", event.0)
            }
            Mark::Told { stream, number, .. } => {
                write!(f, "Event({} of {stream:?})", number.value())
            }
        }
    }
}

impl Drop for EventInner {
    fn drop(&mut self) {
        let event = match &mut self.mark {
            Mark::Told { event, .. } => {
                let event = event.get_mut().unwrap_or_else(PoisonError::into_inner);
                return event
                    .take()
                    .into_iter()
                    .for_each(|event| self.context.give_event(event));
            }
            Mark::Event { event, pooled, .. } if *pooled => {
                return self.context.give_event(*event);
            }
            Mark::Event { event, .. } => *event,
        };
        if let Ok(driver) = self.context.enter() {
            // SAFETY: the last clone goes.
            let _ = unsafe { driver.cuEventDestroy_v2(event) };
        }
    }
}

/// Invariant 3.
fn answer(queried: Result<()>) -> Result<bool> {
    match queried {
        Ok(()) => Ok(true),
        Err(DeviceError::NotReady) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_not_not_yet() {
        let refused = |code| DeviceError::Driver {
            call: "cuEventQuery",
            code,
            name: String::new(),
            text: String::new(),
        };
        assert_eq!(answer(Ok(())), Ok(true));
        assert_eq!(answer(Err(DeviceError::NotReady)), Ok(false));
        assert_eq!(DeviceError::NotReady.code(), Some(600));
        assert_eq!(answer(Err(refused(700))), Err(refused(700)));
    }
}
