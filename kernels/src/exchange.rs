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
//! # Invariants
//! 1. Launches of an exchange run one after the other: each stream waits for the launch
//!    before. A graph with a captured launch has an exchange of its own.
//! 2. Blocks of all exchanges of a device fit on it at once, so none waits for one that
//!    cannot begin.
//! 3. A word in pinned memory ends the waits of kernels. After that ranks do not agree on
//!    how far they are: the exchange takes no more launches.
//!
//! # Sources
//! As kernels/cuda/exchange.cuh.

use crate::copy::{fill, note};
use crate::device::Context;
use crate::error::{DeviceError, Result};
use crate::launch::{Kernel, launch};
use crate::memory::{Kind, Memory};
use crate::plan::arguments::THREADS;
use crate::plan::reduction::of_words;
use crate::slice::{DeviceSlice, Ordered};
use crate::stream::{Event, Stream};
use crate::stream_semaphore::{RAISED, Word};
use osier_datatype::{Element, Operator};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Most ranks of an exchange.
pub const MOST_RANKS: usize = 8;
/// Most bytes that a rank gives.
pub const MOST_BYTES: usize = LONG_BLOCKS * THREADS as usize * 16;
/// Bytes of an inbox.
pub const INBOX_BYTES: usize = NUMBERS_AT + 4 * LONG_BLOCKS;
/// Where in an inbox the numbers of exchanges are, 4 bytes for each block.
pub const NUMBERS_AT: usize = FLAGS_AT + 2 * MOST_RANKS * LONG_BLOCKS * 16;

/// Up to here each word carries its number.
const SHORT_BYTES: usize = SHORT_BLOCKS * THREADS as usize * 8;
const SHORT_BLOCKS: usize = 4;
const LONG_BLOCKS: usize = 16;
const SLOT_BYTES: usize = 4096;
const LONG_AT: usize = 2 * MOST_RANKS * SHORT_BLOCKS * SLOT_BYTES;
const FLAGS_AT: usize = LONG_AT + 2 * MOST_RANKS * LONG_BLOCKS * SLOT_BYTES;

const STOPPED: u32 = u32::MAX;

/// `osier_exchange`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Argument {
    inboxes: [u64; MOST_RANKS],
    send: u64,
    recv: u64,
    bytes: u64,
    numbers: u64,
    stop: u64,
    verdict: u64,
    ranks: [u8; MOST_RANKS],
    present: u32,
    rank: u32,
    size: u32,
    operation: u32,
    failed: u32,
    unused: u32,
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
    rank: usize,
    inboxes: Vec<Arc<Memory>>,
    stop: Word,
    launched: Mutex<Launched>,
}

#[derive(Debug, Default)]
struct Launched {
    stopped: bool,
    /// Whose words the device may still write.
    under_way: VecDeque<(Event, Arc<Word>)>,
}

/// What became of a launch whose event has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The result is there.
    Fine,
    /// This rank had nothing to give; there is no result.
    Failed(usize),
    /// [`Exchange::stop`] came first; there may be part of a result.
    Stopped,
}

/// A launch.
#[derive(Clone, Debug)]
pub struct Exchanged {
    /// Behind which its verdict is known.
    pub event: Event,
    word: Arc<Word>,
}

impl Exchanged {
    /// What became of it, once the event has passed.
    pub fn verdict(&self) -> Verdict {
        match self.word.get() {
            0 => Verdict::Fine,
            STOPPED => Verdict::Stopped,
            rank => Verdict::Failed(rank as usize - 1),
        }
    }
}

impl Exchange {
    /// Memory for an inbox, cleared; others may open it. Waits for the device.
    ///
    /// # Errors
    /// The device has no room, or the driver refuses.
    pub fn inbox(stream: &Stream) -> Result<Arc<Memory>> {
        let slice = DeviceSlice::<u8>::with_kind(stream, Kind::Plain, INBOX_BYTES)?;
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
        let Kernel { resident, .. } = kernels.kernel(context, "osier_exchange_f64")?;
        let fits = |waiting: u32| {
            let all = waiting + LONG_BLOCKS as u32;
            (all <= resident).then_some(all)
        };
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
            rank,
            inboxes,
            stop,
            launched: Mutex::default(),
        })
    }

    /// Queues one exchange: `recv` becomes what all ranks gave, combined in the order of the
    /// balanced tree. All ranks pass equally many bytes, whole elements, at most
    /// [`MOST_BYTES`]. `send` may be `recv`; none: this rank has nothing to give, and `recv`
    /// stays as it is, at all ranks.
    ///
    /// # Errors
    /// Memory that the kernel does not reach; too many bytes; the exchange was stopped; the
    /// driver refuses. Then nothing is queued.
    pub fn launch(
        &self,
        stream: &Stream,
        combination: Combination,
        send: Option<&Ordered<DeviceSlice<u8>>>,
        recv: &Ordered<DeviceSlice<u8>>,
    ) -> Result<Exchanged> {
        let bytes = recv.buffer.bytes();
        let given = send.map_or(bytes, |send| send.buffer.bytes());
        let whole = bytes.is_multiple_of(combination.element_bytes);
        if given != bytes || bytes > MOST_BYTES || !whole {
            return Err(DeviceError::Size {
                what: "exchange",
                from: given,
                to: bytes,
            });
        }
        if *stream.context() != self.context {
            return Err(DeviceError::WrongDevice {
                what: "exchange",
                memory: self.context.ordinal(),
                stream: stream.context().ordinal(),
            });
        }
        let own = send.into_iter().chain([recv]);
        for side in own.clone() {
            side.buffer.memory().check_stream("exchange", stream)?;
        }
        let word = Arc::new(Word::new(&self.context, RAISED)?);
        word.set(0);
        let mut launched = self.launched();
        if launched.stopped {
            return Err(DeviceError::Unavailable("the exchange was stopped".into()));
        }
        while let Some((event, _)) = launched.under_way.front()
            && launched.under_way.len() > 1
            && event.is_passed()?
        {
            launched.under_way.pop_front();
        }
        if let Some((last, _)) = launched.under_way.back()
            && !stream.is_captured()?
        {
            stream.wait(last)?;
        }
        for side in own.clone() {
            side.order(stream)?;
        }
        let (ranks, present) = leaves(self.inboxes.len());
        let mut inboxes = [0; MOST_RANKS];
        for (at, inbox) in inboxes.iter_mut().zip(&self.inboxes) {
            *at = inbox.address();
        }
        let argument = Argument {
            inboxes,
            send: send.map_or(0, |send| send.buffer.address()),
            recv: recv.buffer.address(),
            bytes: bytes as u64,
            numbers: inboxes[self.rank] + NUMBERS_AT as u64,
            stop: self.stop.address(),
            verdict: word.address(),
            ranks,
            present,
            rank: self.rank as u32,
            size: self.inboxes.len() as u32,
            operation: combination.operation,
            failed: send.is_none().into(),
            unused: 0,
        };
        // SAFETY: the argument is the kernel's; buffers were checked and are noted below, as
        // are the inboxes; the words live until the event has passed.
        unsafe {
            launch(
                stream,
                combination.kernel,
                blocks(bytes),
                THREADS,
                &argument,
            )
        }?;
        let touched = own.map(|side| side.buffer.memory());
        let event = note(stream, touched.chain(&self.inboxes))?;
        let under_way = (event.clone(), word.clone());
        launched.under_way.push_back(under_way);
        Ok(Exchanged { event, word })
    }

    /// Ends the waits of all launches, and refuses more: a peer is gone.
    pub fn stop(&self) {
        self.launched().stopped = true;
        self.stop.set(1);
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
