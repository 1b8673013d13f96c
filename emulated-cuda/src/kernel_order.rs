//! Order among kernels that tell each other by memory: what their blocks release and acquire.
//!
//! ```text
//! block    segments, which end where it releases, acquires or fences
//! word     what the block knew that stored it: with a release, or behind a fence
//! acquire  the block knows what the word knows; a fence: what the words do that it has read
//! ```
//!
//! A segment's accesses are compared with those of other works by what its block knew
//! ([`crate::order`]). So data that another kernel writes and this one reads are in order if a word
//! is released behind the writes and acquired before the reads, and an error if either is missing.
//!
//! # Invariants
//! 1. Only the worker thread calls, as it runs kernels.
//! 2. Order that cannot be seen is assumed, so that no report is wrong. A block is ordered behind all
//!    completed work if it acquires a word of host memory, or a value whose store was not
//!    seen: one of a copy, of another process, or by another address of the same memory. Stores that
//!    are seen are those of kernels' atomics, of fills, and of kernels that clear a word.
//!
//! # What is not seen
//! Races of threads of a block and of blocks of a kernel; the order within graphs, and that made by the
//! library's own kernels: words that they store order all completed work. What a kernel accesses
//! before its first atomic is attributed to the block that executes that one.
//!
//! # Sources
//! PTX ISA 8.0, memory consistency model: release and acquire patterns, with fences and
//! without. C. Flanagan, S. N. Freund, "FastTrack: Efficient and Precise Dynamic Race
//! Detection", PLDI 2009: clocks of words.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::rc::Rc;

use crate::abi::Handle;
use crate::isolation;
use crate::order::{Accesses, Clock};
use crate::record;

/// A kernel that runs: its stream, and its ticket there.
pub type Key = (Handle, u64);

/// Names of blocks in clocks have this bit; those of streams do not.
pub const BLOCK: u64 = 1 << 63;
/// Words whose clocks are kept; beyond them order is assumed.
const MOST_WORDS: usize = 1 << 16;
/// Fills that are remembered.
const MOST_FILLS: usize = 1 << 10;

/// What is known behind an acquire.
#[derive(Clone, Debug, Default)]
struct Known {
    clock: Clock,
    /// All completed work.
    granted: bool,
}

impl Known {
    fn is_nothing(&self) -> bool {
        !self.granted && self.clock.is_empty()
    }

    fn join(&mut self, other: &Known) {
        self.clock.join(&other.clock);
        self.granted |= other.granted;
    }
}

/// A word that atomics use.
#[derive(Debug, Default)]
struct Word {
    value: u64,
    known: Rc<Known>,
}

/// Memory that was filled.
#[derive(Debug)]
struct Filled {
    range: (u64, u64),
    /// Eight bytes of it.
    pattern: u64,
    clock: Clock,
}

/// What a block has touched between two of its releases and acquires.
#[derive(Debug)]
pub struct Segment {
    /// The block's name in clocks, and the segment's number.
    pub of: (Handle, u64),
    /// What the block knew.
    pub clock: Clock,
    /// It was ordered behind all completed work.
    pub granted: bool,
    /// What it has touched.
    pub accesses: Accesses,
}

/// A block that releases or acquires.
#[derive(Debug)]
struct Actor {
    name: Handle,
    segment: u64,
    knows: Known,
    open: Accesses,
    /// What it knew at its last fence, which a store behind it tells.
    fenced: Option<Rc<Known>>,
    /// What words know that it has read, by address, which a fence behind that acquires.
    read: HashMap<usize, Rc<Known>>,
    /// What it has acquired last: who polls finds the same again.
    last: Rc<Known>,
}

impl Actor {
    /// Ends the segment, if it has touched anything, or tells the host.
    fn close(&mut self) -> Option<Segment> {
        if self.open.is_empty() && !self.open.tells_host {
            return None;
        }
        let number = self.segment;
        self.segment += 1;
        self.knows.clock.pass(self.name, number);
        Some(Segment {
            of: (self.name, number),
            clock: self.knows.clock.clone(),
            granted: self.knows.granted,
            accesses: std::mem::take(&mut self.open),
        })
    }
}

/// A block that has acquired a word whose store was not seen.
#[derive(Clone, Copy, Debug)]
pub struct Unknown {
    /// The block.
    pub block: Handle,
    /// The word's address.
    pub address: u64,
    /// The value that was found there.
    pub value: u64,
}

/// A kernel that has begun.
#[derive(Debug, Default)]
struct Run {
    begin: Clock,
    block: u64,
    actors: HashMap<u64, Actor>,
    closed: Vec<Segment>,
    /// What blocks have touched that tell nothing.
    rest: Accesses,
    unknown: Vec<Unknown>,
}

impl Run {
    /// What was touched since the last call is the current block's.
    fn flush(&mut self) {
        let mut told = record::take();
        self.rest.tells_host |= std::mem::take(&mut told.tells_host);
        for ranges in [&mut told.reads, &mut told.writes] {
            ranges.retain(|range| range.0 < range.1);
        }
        match self.actors.get_mut(&self.block) {
            Some(actor) => actor.open.extend(told),
            None => self.rest.extend(told),
        }
    }
}

#[derive(Default)]
struct Kernels {
    runs: HashMap<Key, Run>,
    current: Option<Key>,
    words: HashMap<u64, Word>,
    fills: VecDeque<Filled>,
    names: u64,
}

thread_local! {
    static KERNELS: RefCell<Kernels> = RefCell::default();
}

fn with<R>(f: impl FnOnce(&mut Kernels) -> R) -> R {
    KERNELS.with_borrow_mut(f)
}

/// A pass of a kernel begins. `begin` is what it knows from the start.
pub fn enter(key: Key, begin: impl FnOnce() -> Clock) {
    with(|kernels| {
        kernels.current = Some(key);
        kernels.runs.entry(key).or_insert_with(|| Run {
            begin: begin(),
            ..Run::default()
        });
    });
}

/// A block has a turn.
pub fn block(number: u64) {
    with(|kernels| {
        let key = kernels.current;
        if let Some(run) = key.and_then(|key| kernels.runs.get_mut(&key)) {
            if !run.actors.is_empty() {
                run.flush();
            }
            run.block = number;
        }
    });
}

/// What a pass of a kernel has told.
pub struct Told {
    /// Of blocks that tell nothing.
    pub rest: Accesses,
    /// Segments that have ended.
    pub segments: Vec<Segment>,
    /// Words that may tell anything.
    pub unknown: Vec<Unknown>,
}

/// A pass of a kernel ends: what it has told.
pub fn leave() -> Option<Told> {
    with(|kernels| {
        let key = kernels.current.take()?;
        let run = kernels.runs.get_mut(&key)?;
        run.flush();
        Some(Told {
            rest: std::mem::take(&mut run.rest),
            segments: std::mem::take(&mut run.closed),
            unknown: std::mem::take(&mut run.unknown),
        })
    })
}

/// Orders a block behind all completed work.
pub fn grant(key: Key, block: Handle) {
    with(|kernels| {
        let run = kernels.runs.get_mut(&key);
        let actors = run.into_iter().flat_map(|run| run.actors.values_mut());
        for actor in actors.filter(|actor| actor.name == block) {
            actor.knows.granted = true;
        }
    });
}

/// A kernel has completed: the last segments of its blocks, and what they know.
pub fn end(key: Key) -> Option<(Vec<Segment>, Clock)> {
    with(|kernels| {
        let run = kernels.runs.remove(&key)?;
        let mut known = Clock::default();
        let mut last = Vec::new();
        for mut actor in run.actors.into_values() {
            last.extend(actor.close());
            known.join(&actor.knows.clock);
        }
        Some((last, known))
    })
}

/// Memory was filled with a pattern of eight bytes, by work whose clock is given.
pub fn filled(range: (u64, u64), pattern: u64, clock: &Clock) {
    with(|kernels| {
        let inside = |at: &u64| range.0 <= *at && *at < range.1;
        kernels.words.retain(|at, _| !inside(at));
        if kernels.fills.len() >= MOST_FILLS {
            kernels.fills.pop_front();
        }
        let clock = clock.clone();
        kernels.fills.push_back(Filled {
            range,
            pattern,
            clock,
        });
    });
}

/// Whether a name in a clock is a block's.
pub fn is_block(name: Handle) -> bool {
    name & BLOCK != 0
}

/// What an atomic does with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Load,
    Store,
    Update,
    Fence,
}

/// An atomic of a kernel.
#[derive(Clone, Copy, Debug)]
struct Atomic {
    act: Act,
    address: u64,
    bytes: usize,
    acquires: bool,
    releases: bool,
    /// Values of the word.
    before: u64,
    after: u64,
}

/// Called by kernels behind each atomic: what it does (0 load, 1 store, 2 both, 3 a fence), its order as
/// C++ counts them, the bytes of the word, and its values before, of what loads, and after.
pub extern "C" fn atomic(
    address: *const c_void,
    act: c_int,
    order: c_int,
    bytes: usize,
    before: u64,
    after: u64,
) {
    let act = match act {
        0 => Act::Load,
        1 => Act::Store,
        2 => Act::Update,
        _ => Act::Fence,
    };
    let atomic = Atomic {
        act,
        address: address as u64,
        bytes,
        // memory_order: relaxed, consume, acquire, release, acq_rel, seq_cst.
        acquires: matches!(order, 1 | 2 | 4 | 5),
        releases: order >= 3,
        before,
        after,
    };
    with(|kernels| kernels.atomic(&atomic));
}

impl Kernels {
    fn atomic(&mut self, atomic: &Atomic) {
        let run = self.current.and_then(|key| self.runs.get_mut(&key));
        let Some(run) = run else {
            // What it tells is not known.
            let granted = Known {
                granted: true,
                ..Known::default()
            };
            return self.store(atomic, Rc::new(granted));
        };
        let block = run.block;
        run.begin_actor(block, &mut self.names);
        let orders = atomic.acquires || atomic.releases;
        let stores = matches!(atomic.act, Act::Store | Act::Update);
        let tells_host = stores && atomic.releases && !isolation::is_device(atomic.address);
        if orders {
            let told = run.rest.tells_host;
            run.flush();
            if tells_host {
                // What the segment has written, and no more.
                run.rest.tells_host = told;
                let actor = run.actors.get_mut(&block);
                actor.into_iter().for_each(|a| a.open.tells_host = true);
            }
        }
        let (loaded, is_unknown) = match atomic.act {
            Act::Load | Act::Update => self.loaded(atomic),
            Act::Store | Act::Fence => (Rc::default(), false),
        };
        let run = self.current.and_then(|key| self.runs.get_mut(&key));
        let Some(Run {
            actors,
            closed,
            unknown,
            ..
        }) = run
        else {
            return;
        };
        let Some(actor) = actors.get_mut(&block) else {
            return;
        };
        if is_unknown {
            unknown.push(Unknown {
                block: actor.name,
                address: atomic.address,
                value: atomic.before,
            });
        }
        if orders {
            closed.extend(actor.close());
        }
        match (atomic.act, atomic.acquires) {
            (Act::Fence, _) => {
                for read in std::mem::take(&mut actor.read).into_values() {
                    actor.knows.join(&read);
                }
                actor.fenced = Some(Rc::new(actor.knows.clone()));
                return;
            }
            (_, true) if !Rc::ptr_eq(&actor.last, &loaded) => {
                actor.knows.join(&loaded);
                actor.last = loaded.clone();
            }
            (_, true) => {}
            (_, false) if loaded.is_nothing() => {}
            (_, false) => {
                let at = Rc::as_ptr(&loaded).addr();
                actor.read.insert(at, loaded.clone());
            }
        }
        if atomic.act == Act::Load {
            return;
        }
        let told = match atomic.releases {
            true => Some(Rc::new(actor.knows.clone())),
            false => actor.fenced.clone(),
        };
        // An update leaves what others have told before; a store does not.
        let told = match (told, atomic.act) {
            (Some(told), Act::Update) => {
                let mut both = (*told).clone();
                both.join(&loaded);
                Rc::new(both)
            }
            (None, Act::Update) => loaded,
            (told, _) => told.unwrap_or_default(),
        };
        self.store(atomic, told);
    }

    /// What a word tells whose value was loaded; true: its store was not seen.
    fn loaded(&mut self, atomic: &Atomic) -> (Rc<Known>, bool) {
        let low = u64::MAX >> (64 - 8 * atomic.bytes.clamp(1, 8));
        let of_device = isolation::is_device(atomic.address);
        let known = match self.words.get(&atomic.address) {
            Some(word) if of_device && word.value == atomic.before => {
                return (word.known.clone(), false);
            }
            None if of_device => {
                let end = atomic.address + atomic.bytes as u64;
                let inside = |fill: &&Filled| {
                    fill.range.0 <= atomic.address
                        && end <= fill.range.1
                        && (fill.pattern ^ atomic.before) & low == 0
                };
                match self.fills.iter().rev().find(inside) {
                    Some(fill) => Known {
                        clock: fill.clock.clone(),
                        granted: false,
                    },
                    None => return (Rc::default(), true),
                }
            }
            _ => Known {
                clock: Clock::default(),
                granted: true,
            },
        };
        let known = Rc::new(known);
        self.keep(atomic.address, atomic.before, known.clone());
        (known, false)
    }

    /// A word has the value that an atomic has stored, and tells what is given.
    fn store(&mut self, atomic: &Atomic, known: Rc<Known>) {
        if matches!(atomic.act, Act::Store | Act::Update) {
            self.keep(atomic.address, atomic.after, known);
        }
    }

    fn keep(&mut self, address: u64, value: u64, known: Rc<Known>) {
        if self.words.len() < MOST_WORDS || self.words.contains_key(&address) {
            self.words.insert(address, Word { value, known });
        }
    }
}

impl Run {
    /// Makes an actor of a block: its accesses are its own from now on.
    fn begin_actor(&mut self, block: u64, names: &mut u64) {
        if self.actors.contains_key(&block) {
            return;
        }
        *names += 1;
        let knows = Known {
            clock: self.begin.clone(),
            granted: false,
        };
        let actor = Actor {
            name: BLOCK | *names,
            segment: 1,
            knows,
            open: Accesses::default(),
            fenced: None,
            read: HashMap::new(),
            last: Rc::default(),
        };
        self.actors.insert(block, actor);
    }
}
