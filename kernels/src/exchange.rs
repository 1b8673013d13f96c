//! Reductions to all ranks, one kernel each: short ones between devices that reach each
//! other's memory.
//!
//! ```text
//! rank 0:  own bytes -> inbox of 1, inbox of 2;  waits for its inbox;  combines all
//! ```
//!
//! Each rank has an inbox in the memory of its device, which the others have opened
//! ([`Exchange::inbox`], [`crate::handle`]). All ranks launch the same exchanges in one order.
//! A launch is one call of the driver and needs no host until it ends, so it may be captured.
//!
//! Where a switch has multicast, inboxes can be of a group ([`MulticastGroup`]): then each rank
//! stores what it has once, and the switch copies it ([`Exchange::use_multicast`]). Ranks that
//! do and ranks that do not understand each other.
//!
//! # Invariants
//! 1. Launches of an exchange run one after the other: each stream waits for the launch
//!    before. A graph with a captured launch has an exchange of its own.
//! 2. Blocks of all exchanges of a device fit on it at once, so none waits for one that
//!    cannot begin.
//! 3. A word in pinned memory has a bit for each rank that is gone. What it has stored before
//!    is still taken; other waits end, and ranks do not agree then on how far they are: the
//!    exchange takes no more launches, and those that are queued do nothing.
//!
//! # Sources
//! As kernels/cuda/exchange.cuh.

use crate::completion::Looks;
use crate::copy::{fill, note};
use crate::device::Context;
use crate::error::{DeviceError, Result};
use crate::launch::{Kernel, launch};
use crate::memory::{Kind, Memory};
use crate::multicast::{MulticastGroup, MulticastWindow};
use crate::pack::DeviceView;
use crate::plan::arguments::THREADS;
use crate::plan::reduction::of_words;
use crate::slice::{DeviceSlice, Ordered};
use crate::stream::{Event, Stream};
use crate::stream_semaphore::{KernelWaits, RAISED, Word};
use osier_datatype::{Element, Operator};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Most ranks of an exchange.
pub const MOST_RANKS: usize = 8;
/// Most bytes that a rank gives.
pub const MOST_BYTES: usize = LONG_BLOCKS * THREADS as usize * 16;
/// Bytes of an inbox.
pub const INBOX_BYTES: usize = NUMBER_AT + COUNTS_BYTES;
/// Where in an inbox the number of exchanges is, 4 bytes.
pub const NUMBER_AT: usize = FLAGS_AT + 2 * MOST_RANKS * LONG_BLOCKS * 16;

/// Up to here each word carries its number.
const SHORT_BYTES: usize = SHORT_BLOCKS * THREADS as usize * 8;
const SHORT_BLOCKS: usize = 4;
const LONG_BLOCKS: usize = 16;
const SLOT_BYTES: usize = 4096;
const LONG_AT: usize = 2 * MOST_RANKS * SHORT_BLOCKS * SLOT_BYTES;
const FLAGS_AT: usize = LONG_AT + 2 * MOST_RANKS * LONG_BLOCKS * SLOT_BYTES;

/// The number, blocks that are done, a verdict.
const COUNTS_BYTES: usize = 12;

/// Any of them, where nothing is combined.
const ANY_KERNEL: &str = "osier_exchange_f64";

const FAILED_RANK: u32 = 0x100;
const OTHER_RANK: u32 = 0x200;
const STOPPED: u32 = 0x400;
const DONE: u32 = 1 << 31;
const BEGUN: u32 = 1;

/// `osier_exchange`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Argument {
    inboxes: [u64; MOST_RANKS],
    send: u64,
    recv: u64,
    bytes: u64,
    counts: u64,
    stop: u64,
    done: u64,
    multicast: u64,
    ranks: [u8; MOST_RANKS],
    present: u32,
    rank: u32,
    size: u32,
    operation: u32,
    failed: u32,
    signature: u32,
}

/// What combines in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    kernel: &'static str,
    operation: u32,
    element_bytes: usize,
}

macro_rules! kernels {
    ($stem:expr; $($name:literal)*) => {
        match $stem {
            $($name => Some(concat!("osier_exchange_", $name)),)*
            _ => None,
        }
    };
}

/// The kernel that does the same with multicast, if there is one.
fn with_multicast(kernel: &str) -> Option<&'static str> {
    macro_rules! kernels {
        ($($name:literal)*) => {
            match kernel.strip_prefix("osier_exchange_")? {
                $($name => Some(concat!("osier_exchange_multicast_", $name)),)*
                _ => None,
            }
        };
    }
    kernels!("int4" "int8" "bits" "f16" "bf16" "f32" "f64")
}

impl Combination {
    /// Of elements of at most 8 bytes, by operators that kernels have.
    pub fn of(operator: Operator, element: Element) -> Option<Combination> {
        let (stem, operation) = of_words(operator, element)?;
        let kernel = kernels!(stem; "int1" "int2" "int4" "int8" "bits" "f16" "bf16" "f32" "f64"
            "c16" "c32")?;
        Some(Combination {
            kernel,
            operation,
            element_bytes: element.size(),
        })
    }

    /// What all ranks must have alike: call, bytes, kernel and operation, as one number, which
    /// differs where any of them does but for one time in four thousand millions.
    fn signature(self, bytes: usize, call: u32) -> u32 {
        let parts = [call, bytes as u32, self.operation];
        let bytes = parts.into_iter().flat_map(u32::to_le_bytes);
        // FNV-1a.
        let all = bytes.chain(self.kernel.bytes());
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        all.fold(0x811c_9dc5, mix)
    }
}

/// Ranks by leaf of a full tree of eight, and which leaves have one: combined level by level,
/// they make the balanced tree of `size` ranks, pairs first.
fn leaves(size: usize) -> ([u8; MOST_RANKS], u32) {
    let (mut ranks, mut present) = ([u8::MAX; MOST_RANKS], 0);
    let power = 1 << size.max(1).ilog2();
    let (pairs, apart) = (size - power, MOST_RANKS / power);
    for rank in 0..size {
        let at = match rank < 2 * pairs {
            true => rank / 2 * apart + rank % 2,
            false => (rank - pairs) * apart,
        };
        ranks[at] = rank as u8;
        present |= 1 << at;
    }
    (ranks, present)
}

/// One rank's side.
#[derive(Debug)]
pub struct Exchange {
    context: Context,
    /// For launches that are for no other.
    stream: Stream,
    rank: usize,
    inboxes: Vec<Arc<Memory>>,
    multicast: Option<MulticastWindow>,
    stop: Word,
    launched: Mutex<Launched>,
}

#[derive(Debug, Default)]
struct Launched {
    stopped: bool,
    /// Whose words the device may still write.
    under_way: VecDeque<(Event, Arc<Word>)>,
    /// Where the last one was.
    last: Option<Stream>,
    /// Those that launches of a graph write, and the last captured one's event.
    in_graph: Option<(Event, Vec<Arc<Word>>)>,
}

/// What became of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The result is there.
    Fine,
    /// This rank had nothing to give; there is no result.
    Failed(usize),
    /// This rank combines something else: other bytes, another operator. There is no result.
    Differs(usize),
    /// [`Exchange::stop`] came first, or a rank is gone that has not taken part; there may be
    /// part of a result.
    Stopped,
}

impl Verdict {
    fn of(word: u32) -> Verdict {
        let verdict = word & !DONE;
        let rank = (verdict & 0xff) as usize;
        match verdict & !0xff {
            FAILED_RANK => Verdict::Failed(rank),
            OTHER_RANK => Verdict::Differs(rank),
            STOPPED => Verdict::Stopped,
            _ => Verdict::Fine,
        }
    }
}

/// A launch. While it is kept nothing of this crate waits for the whole device.
#[derive(Clone, Debug)]
pub struct Exchanged {
    /// Passes behind it.
    event: Event,
    word: Arc<Word>,
    looks: Looks,
    /// Until the caller knows its end.
    #[allow(dead_code, reason = "it is only kept")]
    waits: Arc<KernelWaits>,
}

impl Exchanged {
    /// What became of it; none: it is under way. A look at memory of the host.
    ///
    /// # Errors
    /// The device has failed.
    pub fn verdict(&self) -> Result<Option<Verdict>> {
        let word = || Some(self.word.get()).filter(|word| word & DONE != 0);
        if let Some(word) = word() {
            return Ok(Some(Verdict::of(word)));
        }
        if !(self.looks.long() && self.event.is_passed()?) {
            return Ok(None);
        }
        // The word may have come since.
        let lost = || DeviceError::Unavailable("the kernel ended without a word".into());
        word().map(|word| Some(Verdict::of(word))).ok_or_else(lost)
    }

    /// Whether the kernel runs, or has run: what is not done then waits for other ranks.
    pub fn has_begun(&self) -> bool {
        self.word.get() & (DONE | BEGUN) != 0
    }

    /// Passes when its memory may be used again.
    pub fn event(&self) -> &Event {
        &self.event
    }
}

/// A captured launch, which each launch of its graph does.
#[derive(Clone, Debug)]
pub struct InGraph {
    event: Event,
    word: Arc<Word>,
}

impl InGraph {
    /// What became of the last launch; none: it is under way. Fine, if there was none.
    pub fn verdict(&self) -> Option<Verdict> {
        let word = self.word.get();
        (word & DONE != 0).then(|| Verdict::of(word))
    }

    /// For captured streams that go on behind it.
    pub fn event(&self) -> &Event {
        &self.event
    }
}

impl Exchange {
    /// Memory for an inbox, cleared; others may open it. Waits for the device.
    ///
    /// # Errors
    /// The device has no room, or the driver refuses.
    pub fn inbox(stream: &Stream) -> Result<Arc<Memory>> {
        Exchange::cleared(stream, Kind::Plain, INBOX_BYTES)
    }

    /// The same, to be bound to a group of at least [`INBOX_BYTES`]; others open it as mapped
    /// memory.
    ///
    /// # Errors
    /// As [`Exchange::inbox`].
    pub fn inbox_for(stream: &Stream, group: &MulticastGroup) -> Result<Arc<Memory>> {
        Exchange::cleared(stream, Kind::Mapped, group.bytes())
    }

    fn cleared(stream: &Stream, kind: Kind, bytes: usize) -> Result<Arc<Memory>> {
        let slice = DeviceSlice::<u8>::with_kind(stream, kind, bytes)?;
        fill(stream, &slice, 0)?.synchronize()?;
        Ok(slice.into_inner().memory().clone())
    }

    /// Rank `rank` of as many as there are inboxes, each by rank, as this process has opened
    /// them; `context` is of the own one. Loads the kernels.
    ///
    /// # Errors
    /// Too many ranks; an inbox is too small, or not reached; too many exchanges wait on the
    /// device already; the driver refuses.
    pub fn new(context: &Context, rank: usize, inboxes: Vec<Arc<Memory>>) -> Result<Exchange> {
        let unavailable = |why: String| Err(DeviceError::Unavailable(why));
        if inboxes.len() > MOST_RANKS || rank >= inboxes.len() {
            return unavailable(format!(
                "an exchange of {} ranks (hint: 1 to {MOST_RANKS})",
                inboxes.len()
            ));
        }
        if let Some(short) = inboxes.iter().find(|inbox| inbox.bytes() < INBOX_BYTES) {
            return unavailable(format!("an inbox of {} bytes", short.bytes()));
        }
        inboxes.iter().try_for_each(|inbox| context.reach(inbox))?;
        let kernels = context.kernels();
        kernels.load_all(context, "exchange")?;
        let Kernel { resident, .. } = kernels.kernel(context, ANY_KERNEL)?;
        let fits = |waiting: u32| {
            let all = waiting + LONG_BLOCKS as u32;
            (all <= resident).then_some(all)
        };
        let stream = Stream::uncaptured(context)?;
        let stop = Word::new(context, RAISED)?;
        stop.set(0);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if let Err(waiting) = kernels.waiting.fetch_update(set, fetch, fits) {
            return unavailable(format!(
                "{waiting} blocks of kernels may wait on the device, which runs {resident} at once"
            ));
        }
        Ok(Exchange {
            context: context.clone(),
            stream,
            rank,
            inboxes,
            multicast: None,
            stop,
            launched: Mutex::default(),
        })
    }

    /// Stores what this rank has by multicast from now on, of elements for which there are
    /// kernels: all ranks have bound their inboxes to the group of the window, which has no
    /// other devices. Loads the kernels.
    ///
    /// # Errors
    /// The window is of another inbox, or of a group with other devices; the driver is too
    /// old; too many exchanges wait on the device already. Then it goes on without.
    pub fn use_multicast(&mut self, window: &MulticastWindow) -> Result<()> {
        let unavailable = |why: &str| Err(DeviceError::Unavailable(why.into()));
        if !Arc::ptr_eq(window.bound(), &self.inboxes[self.rank]) {
            return unavailable("the window is not of the exchange's own inbox");
        }
        if window.group().devices() != self.size() || window.group().bytes() < INBOX_BYTES {
            return unavailable("the multicast group is not that of the exchange's inboxes");
        }
        let kernels = self.context.kernels();
        kernels.load_all(&self.context, "exchange_multicast")?;
        let most = with_multicast(ANY_KERNEL).unwrap_or(ANY_KERNEL);
        let Kernel { resident, .. } = kernels.kernel(&self.context, most)?;
        if kernels.waiting.load(Ordering::Relaxed) > resident {
            return unavailable("fewer blocks of kernels with multicast run at once");
        }
        self.multicast = Some(window.clone());
        Ok(())
    }

    /// Whether it stores by multicast, where there are kernels.
    pub fn has_multicast(&self) -> bool {
        self.multicast.is_some()
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// A stream of its own, which is never captured.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Ranks.
    pub fn size(&self) -> usize {
        self.inboxes.len()
    }

    /// Queues one exchange: `recv` becomes what all ranks gave, combined in the order of the
    /// balanced tree. All ranks pass equally many bytes, whole elements, at most
    /// [`MOST_BYTES`], each side without gaps. `send` may be `recv`. `call` is the same
    /// number at all ranks, if they are in the same call.
    ///
    /// # Errors
    /// Memory that the kernel does not reach, or with gaps; too many bytes; the exchange was
    /// stopped; the driver refuses. Then nothing is queued.
    pub fn launch(
        &self,
        stream: &Stream,
        (combination, call): (Combination, u32),
        send: &Ordered<DeviceView<u8>>,
        recv: &Ordered<DeviceView<u8>>,
    ) -> Result<Exchanged> {
        let what = self.what((combination, call), [send, recv], stream)?;
        self.queue(stream, &[send, recv], what)
    }

    /// Has a captured stream do it at each launch of its graph. An exchange of a graph is of
    /// this graph alone, and of one capture; the graph keeps it ([`Stream::keep`]).
    ///
    /// # Errors
    /// As [`Exchange::launch`]; the stream is not captured.
    pub fn capture(
        &self,
        stream: &Stream,
        (combination, call): (Combination, u32),
        send: &Ordered<DeviceView<u8>>,
        recv: &Ordered<DeviceView<u8>>,
    ) -> Result<InGraph> {
        if !stream.is_captured()? {
            return Err(DeviceError::Capture("a stream that is not captured"));
        }
        let what = self.what((combination, call), [send, recv], stream)?;
        let mut launched = self.launched();
        // A launch that has not begun is not in flight.
        let word = Word::new(&self.context, RAISED)?;
        word.set(DONE);
        let word = Arc::new(word);
        if let Some((last, _)) = &launched.in_graph {
            stream.wait(last)?;
        }
        let event = self.enqueue(stream, &[send, recv], what, &word)?;
        let mut words = launched
            .in_graph
            .take()
            .map_or_else(Vec::new, |(_, words)| words);
        words.push(word.clone());
        launched.in_graph = Some((event.clone(), words));
        Ok(InGraph { event, word })
    }

    /// Kernel, blocks and argument of a launch.
    fn what(
        &self,
        (combination, call): (Combination, u32),
        [send, recv]: [&Ordered<DeviceView<u8>>; 2],
        stream: &Stream,
    ) -> Result<(&'static str, u32, Argument)> {
        let (given, bytes) = (send.buffer.packed_bytes(), recv.buffer.packed_bytes());
        let whole = bytes.is_multiple_of(combination.element_bytes);
        if given != bytes || bytes > MOST_BYTES || !whole {
            return Err(DeviceError::Size {
                what: "exchange",
                from: given,
                to: bytes,
            });
        }
        let at = |view: &Ordered<DeviceView<u8>>| {
            let gaps = || DeviceError::Unavailable("an exchange of memory with gaps".into());
            view.buffer.run_at().ok_or_else(gaps)
        };
        let sides = (at(send)?, at(recv)?);
        for side in [send, recv] {
            side.buffer.memory().check_stream("exchange", stream)?;
        }
        let argument = Argument {
            send: sides.0,
            recv: sides.1,
            bytes: bytes as u64,
            operation: combination.operation,
            signature: combination.signature(bytes, call),
            ..Argument::default()
        };
        Ok((combination.kernel, blocks(bytes), argument))
    }

    /// Takes part in one exchange as a rank that has nothing to give: there is no result at
    /// any rank.
    ///
    /// # Errors
    /// The exchange was stopped; the driver refuses. Then nothing is queued.
    pub fn launch_failed(&self) -> Result<Exchanged> {
        let argument = Argument {
            failed: 1,
            ..Argument::default()
        };
        self.queue(&self.stream, &[], (ANY_KERNEL, 1, argument))
    }

    fn queue(
        &self,
        stream: &Stream,
        sides: &[&Ordered<DeviceView<u8>>],
        what: (&'static str, u32, Argument),
    ) -> Result<Exchanged> {
        let word = Arc::new(Word::new(&self.context, RAISED)?);
        word.set(0);
        let mut launched = self.launched();
        while let Some((event, word)) = launched.under_way.front()
            && launched.under_way.len() > 1
            && (word.get() & DONE != 0 || event.is_passed()?)
        {
            launched.under_way.pop_front();
        }
        if launched.stopped {
            return Err(DeviceError::Unavailable("the exchange was stopped".into()));
        }
        if let Some((last, _)) = launched.under_way.back()
            && launched.last.as_ref() != Some(stream)
        {
            stream.wait(last)?;
        }
        let waits = Arc::new(KernelWaits::begin(&self.context));
        let event = self.enqueue(stream, sides, what, &word)?;
        launched.under_way.push_back((event.clone(), word.clone()));
        launched.last = Some(stream.clone());
        Ok(Exchanged {
            event,
            word,
            looks: Looks::default(),
            waits,
        })
    }

    fn enqueue(
        &self,
        stream: &Stream,
        sides: &[&Ordered<DeviceView<u8>>],
        (kernel, blocks, argument): (&'static str, u32, Argument),
        word: &Word,
    ) -> Result<Event> {
        if *stream.context() != self.context {
            return Err(DeviceError::WrongDevice {
                what: "exchange",
                memory: self.context.ordinal(),
                stream: stream.context().ordinal(),
            });
        }
        for side in sides {
            side.order(stream)?;
        }
        let (ranks, present) = leaves(self.inboxes.len());
        let mut inboxes = [0; MOST_RANKS];
        for (at, inbox) in inboxes.iter_mut().zip(&self.inboxes) {
            *at = inbox.address();
        }
        let window = self.multicast.as_ref();
        let (kernel, multicast) = match (window, with_multicast(kernel)) {
            (Some(window), Some(kernel)) => (kernel, window.address()),
            _ => (kernel, 0),
        };
        let argument = Argument {
            inboxes,
            multicast,
            counts: inboxes[self.rank] + NUMBER_AT as u64,
            stop: self.stop.address(),
            done: word.address(),
            ranks,
            present,
            rank: self.rank as u32,
            size: self.inboxes.len() as u32,
            ..argument
        };
        // SAFETY: the argument is the kernel's; buffers were checked and are noted below, as
        // are the inboxes; the words live until the event has passed.
        unsafe { launch(stream, kernel, blocks, THREADS, &argument) }?;
        let touched = sides.iter().map(|side| side.buffer.memory());
        let touched = touched.chain(window.map(MulticastWindow::mapped));
        note(stream, touched.chain(&self.inboxes))
    }

    /// Ends the waits of all launches, and refuses more: a peer has failed.
    pub fn stop(&self) {
        self.leave(u32::MAX);
    }

    /// Ranks have left, a bit for each, behind their own last launch: what they have stored is
    /// taken, waits for anything else of them end, and more launches are refused.
    pub fn leave(&self, ranks: u32) {
        let mut launched = self.launched();
        launched.stopped = true;
        self.stop.set(self.stop.get() | ranks);
    }

    fn launched(&self) -> std::sync::MutexGuard<'_, Launched> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Thread blocks for so many bytes: as many at all ranks.
fn blocks(bytes: usize) -> u32 {
    let each = if bytes <= SHORT_BYTES { 8 } else { 16 };
    bytes.div_ceil(each * THREADS as usize).max(1) as u32
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.stop();
        let under_way = std::mem::take(&mut self.launched().under_way);
        // The words of a device that fails are its own from now on.
        for (event, word) in under_way {
            if event.synchronize().is_err() {
                std::mem::forget(word);
            }
        }
        let blocks = LONG_BLOCKS as u32;
        let waiting = &self.context.kernels().waiting;
        waiting.fetch_sub(blocks, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_make_the_balanced_tree() {
        let shape = |size: usize| {
            let (ranks, present) = leaves(size);
            let mut level: Vec<Option<String>> = (0..MOST_RANKS)
                .map(|leaf| (present >> leaf & 1 == 1).then(|| ranks[leaf].to_string()))
                .collect();
            while level.len() > 1 {
                level = level
                    .chunks(2)
                    .map(|both| match (&both[0], &both[1]) {
                        (Some(left), Some(right)) => Some(format!("({left}{right})")),
                        (left, None) => left.clone(),
                        (None, right) => panic!("{right:?} alone on the right"),
                    })
                    .collect();
            }
            level.remove(0).expect("a rank")
        };
        let all = (1..=8).map(shape).collect::<Vec<_>>();
        let balanced = [
            "0",
            "(01)",
            "((01)2)",
            "((01)(23))",
            "(((01)2)(34))",
            "(((01)(23))(45))",
            "(((01)(23))((45)6))",
            "(((01)(23))((45)(67)))",
        ];
        assert_eq!(all, balanced);
    }

    #[test]
    fn the_longest_exchange_has_all_blocks() {
        assert_eq!(blocks(MOST_BYTES), LONG_BLOCKS as u32);
        assert_eq!(blocks(SHORT_BYTES), SHORT_BLOCKS as u32);
        assert_eq!([blocks(0), blocks(1), blocks(SHORT_BYTES + 1)], [1, 1, 3]);
        assert_eq!(MOST_BYTES, 64 << 10);
    }
}
