//! Parts on devices that not all ranks reach: accesses by messages, which a thread of the owner
//! serves.
//!
//! A window has this if any of its ranks does not reach the part of another on a device: there are
//! no devices that both see, or the memory is of a kind that other processes do not open. Messages
//! are between buffers, so what lies on a device is packed and unpacked there.
//!
//! ```text
//! origin                             thread of the owner
//! ASK what, target, ...        ->    asks of all ranks, in the order of each, one by one
//! DATA elements that are given ->    to the target; of an update to the host
//!                              <-    ANSWER how it went, word
//!                              <-    DATA elements that were there
//! ```
//!
//! ```text
//! ask
//! byte 0    1       2        4       8       16     24     32        40   48      56      64
//!      what change  element  number  origin  count  bytes  expected  new  signal  signal  layout
//!                                                          (or       at   (or     value
//!                                                          change)        !0)
//! answer: kind of error u64 (0: none), word u64, text
//! ```
//!
//! # Invariants
//! 1. Bytes of a stranger are an ask or `None`, and what an ask touches lies inside of the part:
//!    its view is made as that of an access of this rank.
//! 2. The caller of an unsafe function keeps its contract.
//!
//! # Sources
//! S. Potluri et al., "Extending OpenSHMEM for GPU Computing", IPDPS 2013: a thread of the owner
//! serves where the origin reaches nothing.

use super::raw::RawWindow;
use crate::comm::Communicator;
use crate::names::{ANY_SOURCE, Source};
use crate::p2p::Request;
use osier_datatype::{Basic, Element, Layout};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::WithThread;
use osier_engine::rma::update::{Change, element_from_wire, element_to_wire};
use osier_engine::view::RawView;
use osier_kernels::{DeviceView, Ordered};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};

/// A view of bytes of a device, and when they are valid.
pub(super) type Bytes = Ordered<DeviceView<u8>>;

/// Most bytes of an ask: layouts that take more are refused.
const ASK_BYTES: usize = 64 << 10;
/// Those before the layout.
const HEAD_BYTES: usize = 64;
/// Most bytes of an answer.
const ANSWER_BYTES: usize = 512;
/// Tag of asks. Given data, answers and data that come back have those behind it, in turn.
const ASK: u32 = 0;
const TAGS: u32 = 3;
/// Numbers of asks go round.
const NUMBERS: u32 = 1 << 24;

/// What an ask is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Data go to the target.
    Put,
    /// The target's elements come back.
    Get,
    /// Elements of the target change; what was there comes back, if it `reads`.
    Update {
        change: Change,
        element: Element,
        reads: bool,
    },
    /// An element of the target becomes `new` if it is `expected`; what it was is the answer's word.
    Swap { expected: u64, new: u64 },
    /// A word of the target changes; what it was is the answer's word.
    Signal { change: Change, value: u64 },
}

/// A word of the same part that becomes something behind a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signal {
    /// Its first byte in the part.
    pub at: u64,
    pub change: Change,
    pub value: u64,
}

/// What an origin asks for.
#[derive(Clone, Debug)]
struct Ask {
    what: What,
    number: u32,
    layout: Layout,
    count: usize,
    origin: isize,
    bytes: usize,
    signal: Option<Signal>,
}

/// Types of an element that is none.
const NO_TYPE: u8 = u8::MAX;

impl Ask {
    /// The words of `what` that are none in most: kind, change, element, operands.
    fn parts(&self) -> (u8, u8, [u8; 2], [u64; 2]) {
        let none = [NO_TYPE; 2];
        let of_signal = |signal: &Signal| signal.change.to_wire();
        match self.what {
            What::Put => (0, self.signal.as_ref().map_or(0, of_signal), none, [0, 0]),
            What::Get => (1, 0, none, [0, 0]),
            What::Update {
                change,
                element,
                reads,
            } => (
                2 + u8::from(reads),
                change.to_wire(),
                element_to_wire(element),
                [0, 0],
            ),
            What::Swap { expected, new } => (4, 0, none, [expected, new]),
            What::Signal { change, value } => (5, change.to_wire(), none, [value, 0]),
        }
    }

    /// `None`: the layout takes too many bytes.
    fn to_wire(&self) -> Option<Vec<u8>> {
        let layout = self.layout.to_wire(ASK_BYTES - HEAD_BYTES)?;
        let (kind, change, element, operands) = self.parts();
        let mut w = vec![kind, change, element[0], element[1]];
        w.extend(self.number.to_le_bytes());
        let (at, value) = self.signal.map_or((!0, 0), |s| (s.at, s.value));
        for word in [
            self.origin as u64,
            self.count as u64,
            self.bytes as u64,
            operands[0],
            operands[1],
            at,
            value,
        ] {
            w.extend(word.to_le_bytes());
        }
        w.extend(layout);
        Some(w)
    }

    fn from_wire(w: &[u8]) -> Option<Self> {
        let (head, layout) = w.split_first_chunk::<HEAD_BYTES>()?;
        let word = |at: usize| {
            let bytes = head.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let [kind, change, first, second, ..] = *head;
        let number = u32::from_le_bytes(head.get(4..8)?.try_into().ok()?);
        let (one, two) = (word(32)?, word(40)?);
        let what = match kind {
            0 => What::Put,
            1 => What::Get,
            2 | 3 => What::Update {
                change: Change::from_wire(change)?,
                element: element_from_wire([first, second])?,
                reads: kind == 3,
            },
            4 => What::Swap {
                expected: one,
                new: two,
            },
            5 => What::Signal {
                change: Change::from_wire(change)?,
                value: one,
            },
            _ => return None,
        };
        let (layout, count) = (Layout::from_wire(layout)?, usize::try_from(word(16)?).ok()?);
        let bytes = usize::try_from(word(24)?).ok()?;
        let signal = match word(48)? {
            u64::MAX => None,
            at => Some(Signal {
                at,
                change: Change::from_wire(change)?,
                value: word(56)?,
            }),
        };
        let whole = layout.size().checked_mul(count) == Some(bytes);
        (whole && number < NUMBERS).then_some(Self {
            what,
            number,
            layout,
            count,
            origin: word(8)? as isize,
            bytes,
            signal,
        })
    }

    /// The target, as an access of its owner has it.
    fn target(&self) -> Result<RawView> {
        let at = std::ptr::without_provenance_mut(self.origin as usize);
        RawView::at(at, &self.layout, self.count)
    }

    fn given_tag(&self) -> u32 {
        1 + TAGS * self.number
    }

    fn answer_tag(&self) -> u32 {
        answer_tag(self.number)
    }

    fn back_tag(&self) -> u32 {
        3 + TAGS * self.number
    }
}

fn answer_tag(number: u32) -> u32 {
    2 + TAGS * number
}

/// A transfer of elements, which has its buffer.
enum Moving {
    Host(Request<Vec<u8>>),
    Device(Request<Bytes>),
}

impl Moving {
    fn test(&mut self) -> bool {
        match self {
            Moving::Host(request) => request.test(),
            Moving::Device(request) => request.test(),
        }
    }

    /// Waits for its end; the bytes, if they are the host's.
    #[track_caller]
    fn wait(self) -> Result<Vec<u8>> {
        match self {
            Moving::Host(request) => request.wait().map(|(bytes, _)| bytes),
            Moving::Device(request) => request.wait().map(|_| Vec::new()),
        }
    }
}

/// Elements of this rank: their bytes on the host, or where they lie on a device.
pub(super) enum Local {
    Host(Vec<u8>),
    Device(Bytes),
}

impl Local {
    /// What is given: bytes of the host are copied.
    ///
    /// # Safety
    /// The bytes are readable.
    pub unsafe fn given(view: &RawView) -> Result<Self> {
        if let Some(memory) = view.as_device() {
            return Ok(Local::Device(memory.view()?.clone()));
        }
        let mut bytes = vec![0u8; view.bytes()];
        // SAFETY: invariant 2: all bytes, and as many.
        unsafe { view.pack(0..view.bytes(), bytes.as_mut_ptr()) };
        Ok(Local::Host(bytes))
    }

    /// Where something comes to.
    pub fn room(view: &RawView) -> Result<Self> {
        Ok(match view.as_device() {
            Some(memory) => Local::Device(memory.view()?.clone()),
            None => Local::Host(vec![0u8; view.bytes()]),
        })
    }

    fn send(self, comm: &Communicator, to: usize, tag: u32) -> Result<Moving> {
        Ok(match self {
            Local::Host(bytes) => Moving::Host(comm.isend(bytes, to, tag)?),
            Local::Device(view) => Moving::Device(comm.isend(view, to, tag)?),
        })
    }

    fn receive(self, comm: &Communicator, from: usize, tag: u32) -> Result<Moving> {
        Ok(match self {
            Local::Host(bytes) => Moving::Host(comm.irecv(bytes, from, tag)?),
            Local::Device(view) => Moving::Device(comm.irecv(view, from, tag)?),
        })
    }
}

/// An ask that is under way.
pub(super) struct Asking {
    comm: Communicator,
    owner: usize,
    back_tag: u32,
    sent: Vec<Moving>,
    answer: Option<Request<Vec<u8>>>,
    /// The answer's word, once it is there.
    word: Result<u64>,
    /// Where data come to that the answer announces.
    room: Option<Local>,
    data: Option<Moving>,
}

impl Asking {
    /// Makes progress; true: it is complete, and [`Asking::wait`] returns at once.
    pub fn test(&mut self) -> bool {
        if let Some(mut answer) = self.answer.take() {
            if !answer.test() {
                self.answer = Some(answer);
                return false;
            }
            self.answered(answer);
        }
        self.sent.iter_mut().all(Moving::test) && self.data.as_mut().is_none_or(Moving::test)
    }

    /// Takes the answer, and has its data come.
    #[track_caller]
    fn answered(&mut self, answer: Request<Vec<u8>>) {
        self.word = answer.wait().and_then(|(answer, status)| {
            answer_from_wire(answer.get(..status.bytes()).unwrap_or_default())
        });
        if let (Ok(_), Some(room)) = (&self.word, self.room.take()) {
            match room.receive(&self.comm, self.owner, self.back_tag) {
                Ok(data) => self.data = Some(data),
                Err(e) => self.word = Err(e),
            }
        }
    }

    /// Waits for its end; the answer's word, and what has come to the host.
    #[track_caller]
    pub fn wait(mut self) -> Result<(u64, Vec<u8>)> {
        if let Some(answer) = self.answer.take() {
            self.answered(answer);
        }
        let word = self.word?;
        for sent in self.sent {
            sent.wait()?;
        }
        let data = self.data.map(Moving::wait).transpose()?;
        Ok((word, data.unwrap_or_default()))
    }
}

/// Errors that an owner tells by their kind; others are a device's.
const KINDS: [ErrorKind; 6] = [
    ErrorKind::Device,
    ErrorKind::Datatype,
    ErrorKind::Malformed,
    ErrorKind::OutOfMemory,
    ErrorKind::Unavailable,
    ErrorKind::RankDead,
];

fn answer_to_wire(answer: &Result<u64>) -> Vec<u8> {
    let (kind, word, text) = match answer {
        Ok(word) => (0, *word, String::new()),
        Err(e) => {
            let place = KINDS.iter().position(|kind| *kind == e.kind());
            (1 + place.unwrap_or(0), 0, e.to_string())
        }
    };
    let mut w = (kind as u64).to_le_bytes().to_vec();
    w.extend(word.to_le_bytes());
    let mut end = text.len().min(ANSWER_BYTES - w.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    w.extend(&text.as_bytes()[..end]);
    w
}

fn answer_from_wire(w: &[u8]) -> Result<u64> {
    let split = w.split_first_chunk::<8>().and_then(|(kind, rest)| {
        let (word, text) = rest.split_first_chunk::<8>()?;
        let kind = usize::try_from(u64::from_le_bytes(*kind)).ok()?;
        Some((kind, u64::from_le_bytes(*word), text))
    });
    match split {
        Some((0, word, _)) => Ok(word),
        Some((kind, _, text)) if kind <= KINDS.len() => Err(Error::new(
            KINDS[kind - 1],
            format!("at the owner: {}", String::from_utf8_lossy(text)),
        )),
        _ => Err(Error::new(
            ErrorKind::Malformed,
            "an answer to an access of a window",
        )),
    }
}

/// The way to parts that are served, of one window.
pub(super) struct Far {
    comm: Communicator,
    numbers: AtomicU32,
    /// Messages go on while this rank computes.
    _with_thread: WithThread,
}

impl Far {
    /// On a communicator of its own. Collective.
    #[track_caller]
    pub fn open(comm: &Communicator) -> Result<Self> {
        let comm = comm.split(Some(0), 0)?.ok_or_else(|| {
            let message = "a communicator for accesses has no members";
            Error::new(ErrorKind::Communicator, message)
        })?;
        // Windows have handlers, and the messages here types of their own.
        comm.set_error_handler(crate::errors::ErrorHandler::Return);
        comm.lane().lock().check_nothing();
        Ok(Self {
            _with_thread: comm.core().with_progress_thread(),
            comm,
            numbers: AtomicU32::new(0),
        })
    }

    /// Begins to ask a rank for an access to a target in its part: `given` goes there, and what comes
    /// back to `room`.
    ///
    /// # Errors
    /// The target's layout takes too many bytes; as [`Communicator::isend`].
    #[track_caller]
    pub fn begin(
        &self,
        rank: usize,
        (what, signal): (What, Option<Signal>),
        (layout, count, origin): (Layout, usize, isize),
        given: Option<Local>,
        room: Option<Local>,
    ) -> Result<Asking> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) % NUMBERS;
        let ask = Ask {
            what,
            number,
            bytes: layout.size().saturating_mul(count),
            layout,
            count,
            origin,
            signal,
        };
        let wire = ask.to_wire().ok_or_else(|| too_long(rank))?;
        let comm = &self.comm;
        let answer = comm.irecv(vec![0u8; ANSWER_BYTES], rank, ask.answer_tag())?;
        let mut sent = vec![Moving::Host(comm.isend(wire, rank, ASK)?)];
        if let Some(given) = given {
            let data = given.send(comm, rank, ask.given_tag());
            sent.push(data.or_else(|e| {
                // The owner waits for something.
                let nothing = Local::Host(Vec::new()).send(comm, rank, ask.given_tag());
                nothing.and(Err(e))
            })?);
        }
        Ok(Asking {
            comm: comm.clone(),
            owner: rank,
            back_tag: ask.back_tag(),
            sent,
            answer: Some(answer),
            word: Ok(0),
            room,
            data: None,
        })
    }
}

#[cold]
fn too_long(rank: usize) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "an access to the part of rank {rank} on a device that this rank does not reach: the \
             target's layout takes more than {ASK_BYTES} bytes (hint: fewer blocks in a call)"
        ),
    )
}

/// The thread that serves the part of this rank; it ends with the value.
pub(super) struct Service {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Serves `window`, this rank's own handle for it, which others do not wait for.
    pub fn start(window: RawWindow, far: &Far) -> Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let owner = Owner {
            window,
            comm: far.comm.clone(),
        };
        let (told, with_thread) = (ends.clone(), far.comm.core().with_progress_thread());
        let thread = std::thread::Builder::new().name("osier-window".into());
        let thread = thread.spawn(move || {
            osier_kernels::own_thread();
            owner.run(&told);
            drop(with_thread);
        });
        let thread = thread.map_err(|e| {
            let message = format!("a window on devices that others do not reach: no thread: {e}");
            Error::new(ErrorKind::Unavailable, message)
        })?;
        Ok(Self {
            ends,
            thread: Some(thread),
        })
    }

    /// Ends it, and waits for that: nobody asks any more.
    pub fn join(mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn end(&self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// Goes on where a request has ended.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What the thread has.
struct Owner {
    window: RawWindow,
    comm: Communicator,
}

impl Owner {
    /// Serves asks until it is told to end.
    fn run(&self, ends: &AtomicBool) {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut serves = pin!(self.serve_all());
        while !ends.load(Ordering::Acquire) {
            match serves.as_mut().poll(&mut context) {
                Poll::Ready(()) => return,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    async fn serve_all(&self) {
        let mut buffer = vec![0u8; ASK_BYTES];
        loop {
            let source: Source = ANY_SOURCE;
            let asked = match self.comm.irecv(buffer, source, ASK) {
                Ok(request) => request.await,
                Err(e) => Err(e),
            };
            match asked {
                Ok((wire, status)) => {
                    let ask = wire.get(..status.bytes()).unwrap_or_default();
                    if let Some(origin) = status.source() {
                        // One that has ended is told nothing.
                        let _ = self.serve(ask, origin).await;
                    }
                    buffer = wire;
                }
                // Of the ranks that live others go on.
                Err(e) if e.kind() == ErrorKind::RankDead => {
                    let ended = self.comm.acknowledge_failures().len();
                    if ended + 1 >= self.comm.size() {
                        return;
                    }
                    buffer = vec![0u8; ASK_BYTES];
                }
                Err(_) => return,
            }
        }
    }

    async fn serve(&self, wire: &[u8], origin: usize) -> Result<()> {
        let Some(ask) = Ask::from_wire(wire) else {
            let number = wire.get(4..8).and_then(|w| w.try_into().ok());
            let number = number.map_or(0, u32::from_le_bytes) % NUMBERS;
            let e = Error::new(ErrorKind::Malformed, "an ask for an access to a window");
            return self.answer(origin, answer_tag(number), &Err(e)).await;
        };
        let (answer, data) = match self.make(&ask, origin).await {
            Ok((word, data)) => (Ok(word), data),
            Err(e) => (Err(e), None),
        };
        self.answer(origin, ask.answer_tag(), &answer).await?;
        match data {
            None => Ok(()),
            Some(Local::Host(bytes)) => {
                let sent = self.comm.isend(bytes, origin, ask.back_tag())?;
                sent.await.map(drop)
            }
            Some(Local::Device(view)) => {
                let sent = self.comm.isend(view, origin, ask.back_tag())?;
                sent.await.map(drop)
            }
        }
    }

    async fn answer(&self, origin: usize, tag: u32, answer: &Result<u64>) -> Result<()> {
        let sent = self.comm.isend(answer_to_wire(answer), origin, tag)?;
        sent.await.map(drop)
    }

    /// Makes an access; the answer's word, and what goes back behind it.
    async fn make(&self, ask: &Ask, origin: usize) -> Result<(u64, Option<Local>)> {
        let target = ask.target();
        match ask.what {
            What::Put => {
                let view = target.and_then(|target| self.window.own_view(&target));
                self.put(view, ask, origin).await?;
                if let Some(Signal { at, change, value }) = ask.signal {
                    self.signal(at, change, value)?;
                }
                Ok((0, None))
            }
            What::Get => {
                let view = self.window.own_view(&target?)?;
                Ok((0, Some(Local::Device(view))))
            }
            What::Update {
                change,
                element,
                reads,
            } => {
                let given = match change {
                    Change::Keep => Vec::new(),
                    _ => self.given(ask, origin).await?,
                };
                let target = target?;
                let before = self.window.update_own((change, element), &given, &target)?;
                Ok((0, reads.then_some(Local::Host(before))))
            }
            What::Swap { expected, new } => {
                let target = target?;
                if ask.bytes > size_of::<u64>() {
                    return Err(Error::new(ErrorKind::Malformed, "a swap of a long element"));
                }
                self.window.own_view(&target)?;
                let own = self.comm.rank();
                let before = self.window.swap_by_device(own, &target, (expected, new))?;
                Ok((before, None))
            }
            What::Signal { change, value } => {
                let before = self.signal(ask.origin as u64, change, value)?;
                Ok((before, None))
            }
        }
    }

    /// Receives the data of an ask where they go; or takes them, if there is no such place.
    async fn put(&self, view: Result<Bytes>, ask: &Ask, origin: usize) -> Result<()> {
        let view = match view {
            Ok(view) => view,
            Err(e) => return self.given(ask, origin).await.and(Err(e)),
        };
        let (_, status) = (self.comm.irecv(view, origin, ask.given_tag())?).await?;
        complete(ask, status.bytes())
    }

    /// The data of an ask.
    async fn given(&self, ask: &Ask, origin: usize) -> Result<Vec<u8>> {
        let room = osier_engine::view::zeroed_vec::<u8>(ask.bytes)?;
        let (given, status) = (self.comm.irecv(room, origin, ask.given_tag())?).await?;
        complete(ask, status.bytes()).map(|()| given)
    }

    /// Changes a word of the part, behind all that was written before; what it was.
    fn signal(&self, at: u64, change: Change, value: u64) -> Result<u64> {
        let place = std::ptr::without_provenance_mut(at as usize);
        let target = RawView::at(place, &Layout::of::<u64>(), 1)?;
        let what = (change, Element::Basic(Basic::U64));
        let before = (self.window).update_own(what, &value.to_ne_bytes(), &target)?;
        let before = before.try_into();
        Ok(before.map_or(0, u64::from_ne_bytes))
    }
}

fn complete(ask: &Ask, came: usize) -> Result<()> {
    if came == ask.bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Malformed,
        format!("{came} bytes for an access of {}", ask.bytes),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_datatype::{Operator, Type};
    use proptest::prelude::*;

    fn asks() -> Vec<Ask> {
        let column = Type::vector(5, 2, 7, &Type::of::<f32>()).and_then(|t| t.commit());
        let column = column.expect("a column");
        let mut whats = vec![
            What::Put,
            What::Get,
            What::Swap {
                expected: 1,
                new: 2,
            },
        ];
        let changes = Operator::ALL.map(Change::Combine).into_iter();
        for change in changes.chain([Change::Replace, Change::Keep]) {
            whats.push(What::Signal { change, value: 9 });
            for reads in [false, true] {
                whats.push(What::Update {
                    change,
                    element: Element::Pair {
                        value: Basic::F64,
                        index: Basic::I32,
                    },
                    reads,
                });
            }
        }
        for basic in Basic::ALL {
            whats.push(What::Update {
                change: Change::Keep,
                element: Element::Basic(*basic),
                reads: true,
            });
        }
        let signal = Signal {
            at: 64,
            change: Change::Combine(Operator::Sum),
            value: 3,
        };
        let ask = |what| Ask {
            what,
            number: 77,
            layout: column.clone(),
            count: 3,
            origin: -8,
            bytes: 3 * column.size(),
            signal: (what == What::Put).then_some(signal),
        };
        whats.into_iter().map(ask).collect()
    }

    #[test]
    fn asks_are_read_as_they_were_written() {
        for ask in asks() {
            let wire = ask.to_wire().expect("a short layout");
            let read = Ask::from_wire(&wire).expect("an ask");
            assert_eq!((read.what, read.signal), (ask.what, ask.signal));
            let numbers = |ask: &Ask| (ask.number, ask.count, ask.origin, ask.bytes);
            assert_eq!(numbers(&read), numbers(&ask));
            let runs = |ask: &Ask| {
                let mut runs = Vec::new();
                ask.target().expect("a target").runs(|run| runs.push(run));
                runs
            };
            assert_eq!(runs(&read), runs(&ask));
        }
    }

    #[test]
    fn answers_tell_words_and_errors() {
        assert_eq!(answer_from_wire(&answer_to_wire(&Ok(5))).ok(), Some(5));
        let long = Error::new(ErrorKind::Datatype, "ä".repeat(1000));
        let wire = answer_to_wire(&Err(long));
        assert!(wire.len() <= ANSWER_BYTES);
        let e = answer_from_wire(&wire).expect_err("an error");
        assert_eq!(e.kind(), ErrorKind::Datatype);
        for bad in [&wire[..7], &[7; 20]] {
            let e = answer_from_wire(bad).expect_err("no answer");
            assert_eq!(e.kind(), ErrorKind::Malformed);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever comes is an ask with a target, or none.
        #[test]
        fn strangers_are_refused(
            which in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let all = asks();
            let mut wire = which.get(&all).to_wire().expect("a short layout");
            let place = at.index(wire.len());
            wire[place] = byte;
            if let Some(ask) = Ask::from_wire(&wire) {
                prop_assert_eq!(ask.target().map(|target| target.bytes()).ok(), Some(ask.bytes));
            }
            let short = cut.index(wire.len());
            prop_assert!(Ask::from_wire(&wire[..short]).is_none());
        }
    }
}
