//! Happens-before check of accesses of different streams: two works that touch a byte, one of
//! them writing, and that nothing orders, are an error.
//!
//! Each stream has a clock: of each stream, the last work that is known to be over.
//! Work takes what its stream knows, and what the host knew when it was queued; an
//! event carries a clock from stream to stream, and a wait on the host carries one to
//! the host. What work touches is known exactly: of copies by their shape, of kernels
//! because they are compiled to report each access (`shim/osier_cuda_host.h`).
//!
//! # Invariants
//! 1. Order that cannot be seen here is taken for granted, so a report is never
//!    wrong: threads of the host share one clock; they may have seen whatever was
//!    written to memory that they can read, and what a host function or another
//!    process could have told them.
//! 2. Vector clocks change when work completes, under the driver's lock. Work that was queued
//!    while a kernel ran which stores to host memory atomically is ordered behind that kernel, and
//!    what was queued since its last turn behind what its blocks wrote before such a store.
//!
//! # What is not seen
//! The host's own accesses; works of other processes; nodes of one graph among
//! themselves; two addresses of the same physical memory.
//!
//! # Sources
//! L. Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System",
//! CACM 1978; F. Mattern, "Virtual Time and Global States of Distributed Systems", 1989.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::abi::{self, Handle};
use crate::driver::State;
use crate::fault::{Fault, Result};
use crate::kernel_order::{self, Segment, Unknown};
use crate::settings::settings;
use crate::work::{Item, Op};

/// Works that are remembered.
const REMEMBERED: usize = 4096;
/// Parts of kernels that are remembered.
const PARTS: usize = 128;
/// Works from which on those are forgotten that the host has waited for.
const CROWDED: usize = 128;
/// Records of an event whose clocks are kept.
const RECORDS: usize = 16;

/// Of each stream, the ticket up to which its work is known to be over.
#[derive(Clone, Debug, Default)]
pub struct Clock(BTreeMap<Handle, u64>);

impl Clock {
    /// Whether a work is known to have completed.
    pub fn knows(&self, stream: Handle, ticket: u64) -> bool {
        self.0.get(&stream).is_some_and(|&last| last >= ticket)
    }

    /// A work is known to have completed from now on.
    pub fn pass(&mut self, stream: Handle, ticket: u64) {
        let last = self.0.entry(stream).or_default();
        *last = ticket.max(*last);
    }

    /// Knows what another knows, too.
    pub fn join(&mut self, other: &Clock) {
        for (&stream, &ticket) in &other.0 {
            self.pass(stream, ticket);
        }
    }
}

impl Clock {
    /// Whether no work is known to have completed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether most of its blocks of kernels are not compared any more.
    fn has_blocks(&self, asked: &HashSet<Handle>) -> bool {
        let blocks = self.0.range(kernel_order::BLOCK..).count();
        blocks > 2 * asked.len() + 16
    }

    /// Drops blocks of kernels that are not compared any more.
    fn forget_blocks(&mut self, asked: &HashSet<Handle>) {
        self.0
            .retain(|who, _| !kernel_order::is_block(*who) || asked.contains(who));
    }
}

/// Ranges of addresses, apart and rising.
pub type Ranges = Vec<(u64, u64)>;

/// What a work touches.
#[derive(Clone, Debug, Default)]
pub struct Accesses {
    /// Ranges read.
    pub reads: Ranges,
    /// Ranges written.
    pub writes: Ranges,
    /// Something was written atomically to memory that the host reads: it may have seen it
    /// before the work was over.
    pub tells_host: bool,
}

impl Accesses {
    /// Whether nothing was touched.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// Adds those of another.
    pub fn extend(&mut self, other: Accesses) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
        self.tells_host |= other.tells_host;
    }

    fn tidy(&mut self) {
        merge(&mut self.reads);
        merge(&mut self.writes);
    }

    fn hull(&self) -> (u64, u64) {
        let ends = |ranges: &Ranges| Some((ranges.first()?.0, ranges.last()?.1));
        match (ends(&self.reads), ends(&self.writes)) {
            (Some(a), Some(b)) => (a.0.min(b.0), a.1.max(b.1)),
            (a, b) => a.or(b).unwrap_or((0, 0)),
        }
    }
}

/// Sorts ranges and joins those that meet.
pub fn merge(ranges: &mut Ranges) {
    ranges.retain(|range| range.0 < range.1);
    ranges.sort_unstable();
    let mut kept: usize = 0;
    for at in 0..ranges.len() {
        let range = ranges[at];
        if kept > 0 && ranges[kept - 1].1 >= range.0 {
            ranges[kept - 1].1 = ranges[kept - 1].1.max(range.1);
        } else {
            ranges[kept] = range;
            kept += 1;
        }
    }
    ranges.truncate(kept);
}

/// The first byte that both have.
fn common(a: &Ranges, b: &Ranges) -> Option<u64> {
    let (mut i, mut j) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let start = x.0.max(y.0);
        if start < x.1.min(y.1) {
            return Some(start);
        }
        match x.1 < y.1 {
            true => i += 1,
            false => j += 1,
        }
    }
    None
}

/// A work, or a segment of a block of a kernel.
#[derive(Clone, Copy, Debug)]
struct Whose {
    /// Its stream, and its ticket there.
    work: (Handle, u64),
    /// The block and the segment; of all else the work once more.
    part: (Handle, u64),
}

impl Whose {
    /// Whether it is known to have completed; parts of one kernel are not compared.
    fn is_before(&self, other: &Whose, knows: &Clock) -> bool {
        let known = |(who, ticket)| knows.knows(who, ticket);
        self.work == other.work || known(self.work) || known(self.part)
    }
}

/// A completed work, or a segment of a kernel that may still run.
#[derive(Debug)]
struct Past {
    whose: Whose,
    name: String,
    accesses: Accesses,
    hull: (u64, u64),
}

impl Past {
    /// Drops a range that is other memory now.
    fn forget(&mut self, (start, end): (u64, u64)) {
        if self.hull.1 <= start || end <= self.hull.0 {
            return;
        }
        for ranges in [&mut self.accesses.reads, &mut self.accesses.writes] {
            let outside = |&(from, to): &(u64, u64)| {
                let parts = [(from, to.min(start)), (from.max(end), to)];
                parts.into_iter().filter(|(from, to)| from < to)
            };
            *ranges = ranges.iter().flat_map(outside).collect();
        }
    }
}

/// The clocks, and what was touched.
#[derive(Debug, Default)]
pub struct Order {
    host: Arc<Clock>,
    streams: HashMap<Handle, Clock>,
    events: HashMap<Handle, VecDeque<(u64, Clock)>>,
    /// Of all works that are over.
    all: Clock,
    past: VecDeque<Past>,
}

impl Order {
    /// What the host knows, for work that it queues now.
    pub fn host(&self) -> Arc<Clock> {
        self.host.clone()
    }

    fn host_learns(&mut self, clock: &Clock) {
        if clock.0.iter().any(|(&s, &t)| !self.host.knows(s, t)) {
            Arc::make_mut(&mut self.host).join(clock);
        }
    }

    /// The host has waited for a stream.
    pub fn host_waited(&mut self, stream: Handle) {
        if let Some(clock) = self.streams.get(&stream).cloned() {
            self.host_learns(&clock);
        }
    }

    /// The host has waited for all streams.
    pub fn host_waited_for_all(&mut self) {
        let all = self.all.clone();
        self.host_learns(&all);
    }

    /// The host has seen that an event's last record has happened; another process's
    /// event may carry anything.
    pub fn host_saw(&mut self, event: Handle, last: u64, shared: bool) {
        let clock = match shared {
            true => self.all.clone(),
            false if last == 0 => return,
            false => self.event(event, last),
        };
        self.host_learns(&clock);
    }

    /// A stream, or an event, is gone.
    pub fn forget(&mut self, handle: Handle) {
        self.streams.remove(&handle);
        self.events.remove(&handle);
    }

    fn event(&self, event: Handle, record: u64) -> Clock {
        let Some(records) = self.events.get(&event) else {
            return self.all.clone();
        };
        // Records of several streams are over in any order.
        let found = records.iter().find(|(number, _)| *number == record);
        found.map_or_else(|| self.all.clone(), |(_, clock)| clock.clone())
    }
}

/// What the work at the head of a stream knows when it begins.
pub fn begins(state: &State, stream: Handle, host: &Clock) -> Clock {
    let mut clock = state
        .order
        .streams
        .get(&stream)
        .cloned()
        .unwrap_or_default();
    clock.join(host);
    for other in neighbors(state, stream) {
        if let Some(other) = state.order.streams.get(&other) {
            clock.join(other);
        }
    }
    clock
}

/// Takes note of completed segments of a kernel, which it has told in a pass that began at a
/// ticket; an error as of [`finished`].
pub fn passed(
    state: &mut State,
    (work, since): ((Handle, u64), u64),
    name: &str,
    (segments, unknown): (Vec<Segment>, &[Unknown]),
) -> Result {
    // A word that a kernel has cleared orders nothing; any other store that was not seen may.
    let is_cleared = |word: &Unknown| {
        let wrote = |past: &&Past| {
            let mut writes = past.accesses.writes.iter();
            writes.any(|&(start, end)| start <= word.address && word.address < end)
        };
        let last = state.order.past.iter().rev().find(wrote);
        word.value == 0 && last.is_none_or(|past| past.name.starts_with("kernel"))
    };
    let told = unknown.iter().filter(|word| !is_cleared(word));
    let granted: Vec<Handle> = told.map(|word| word.block).collect();
    for block in &granted {
        kernel_order::grant(work, *block);
    }
    for segment in segments {
        let mut clock = segment.clock;
        if segment.granted || granted.contains(&segment.of.0) {
            clock.join(&state.order.all);
        }
        let mut accesses = clipped(state, segment.accesses);
        accesses.tidy();
        if accesses.tells_host || writes_for_host(state, &accesses) {
            state.order.host_learns(&clock);
            let queued = state.streams.values_mut().flat_map(|s| &mut s.queue);
            for later in queued.filter(|later| later.ticket > since) {
                Arc::make_mut(&mut later.host).join(&clock);
            }
        }
        let part = segment.of;
        state.order.all.pass(part.0, part.1);
        compare(state, name, Whose { work, part }, &clock, accesses)?;
    }
    Ok(())
}

/// Whether something was written to memory that the host reads.
fn writes_for_host(state: &State, accesses: &Accesses) -> bool {
    let readable = |start: u64| match state.memory.find(start) {
        Some(found) => !found.kind.is_device(),
        None => state.memory.is_pageable(start),
    };
    accesses.writes.iter().any(|&(start, _)| readable(start))
}

/// Takes note of a work that is over; an error if it and an earlier one touch the same
/// byte, and nothing orders them.
pub fn finished(state: &mut State, stream: Handle, op: &Op, item: Item) -> Result {
    if !settings().order {
        return Ok(());
    }
    let ticket = item.ticket;
    let work = (stream, ticket);
    let mut clock = begins(state, stream, &item.host);
    let ended = kernel_order::end(work);
    let told = match ended {
        Some((segments, known)) => {
            let now = state.ticket();
            let told = passed(state, (work, now), &op.name(), (segments, &[]));
            clock.join(&known);
            let mut asked: HashSet<Handle> = HashSet::new();
            let past = state.order.past.iter().map(|past| past.whose);
            let others = past.filter(|whose| whose.work != work);
            asked.extend(others.map(|whose| whose.part.0));
            clock.forget_blocks(&asked);
            state.order.all.forget_blocks(&asked);
            if state.order.host.has_blocks(&asked) {
                Arc::make_mut(&mut state.order.host).forget_blocks(&asked);
            }
            told
        }
        None => Ok(()),
    };
    match op {
        Op::Wait(event, record) => clock.join(&state.order.event(*event, *record)),
        // What others have done in between, and a host function has waited for, is not known.
        Op::WaitShared(..) | Op::Await(..) | Op::Calling(_) => clock.join(&state.order.all),
        Op::Graph(run) if run.meets_host() => clock.join(&state.order.all),
        _ => {}
    }
    let before = clock.clone();
    clock.pass(stream, ticket);
    let (mut accesses, tells_host) = (item.accesses, item.told.tells_host);
    accesses.extend(clipped(state, item.told));
    accesses.tidy();
    let mut host_may_know = matches!(op, Op::Host(..) | Op::Calling(_) | Op::Write(..));
    if let Op::Record(event, record) = op {
        let records = state.order.events.entry(*event).or_default();
        records.push_back((*record, clock.clone()));
        if records.len() > RECORDS {
            records.pop_front();
        }
        let shared = state.events.get(event).is_some_and(|e| e.shared.is_some());
        host_may_know |= shared;
    }
    host_may_know |= writes_for_host(state, &accesses);
    if let Op::Fill(fill) = op
        && let Some((range, pattern)) = fill.pattern()
    {
        kernel_order::filled(range, pattern, &clock);
    }
    if host_may_know || tells_host {
        state.order.host_learns(&clock);
    }
    if tells_host {
        let queued = state.streams.values_mut().flat_map(|s| &mut s.queue);
        for later in queued.filter(|later| later.ticket > item.begun) {
            Arc::make_mut(&mut later.host).join(&clock);
        }
    }
    state.order.all.pass(stream, ticket);
    state.order.streams.insert(stream, clock);
    let whose = Whose { work, part: work };
    told.and(compare(state, &op.name(), whose, &before, accesses))
}

/// Streams that a stream's work comes behind by the rules of the legacy default stream.
fn neighbors(state: &State, handle: Handle) -> Vec<Handle> {
    let Some(stream) = state.streams.get(&handle) else {
        return Vec::new();
    };
    let Some(context) = state.contexts.get(&stream.context) else {
        return Vec::new();
    };
    if stream.flags & abi::STREAM_NON_BLOCKING != 0 {
        return Vec::new();
    }
    if context.legacy != handle {
        return vec![context.legacy];
    }
    let blocking = |s: &crate::driver::Stream| {
        s.context == stream.context && s.flags & abi::STREAM_NON_BLOCKING == 0
    };
    let all = state.streams.iter().filter(|(_, s)| blocking(s));
    all.map(|(&other, _)| other).collect()
}

/// What of a kernel's accesses lies in memory that the driver knows; the rest is its
/// stack and its shared memory.
fn clipped(state: &State, mut told: Accesses) -> Accesses {
    told.tidy();
    let clip = |ranges: &Ranges| {
        let mut kept = Vec::with_capacity(ranges.len());
        for &(start, end) in ranges {
            let mut at = start;
            while at < end {
                let Some(found) = state.memory.find(at) else {
                    break;
                };
                let stop = found.end().min(end);
                kept.push((at, stop));
                at = stop;
            }
        }
        kept
    };
    Accesses {
        reads: clip(&told.reads),
        writes: clip(&told.writes),
        ..told
    }
}

fn compare(
    state: &mut State,
    name: &str,
    whose: Whose,
    before: &Clock,
    accesses: Accesses,
) -> Result {
    let hull = accesses.hull();
    if hull.0 == hull.1 {
        return Ok(());
    }
    let order = &mut state.order;
    // What was done to the memory that lay there before orders nothing.
    for born in std::mem::take(&mut state.memory.born) {
        order.past.iter_mut().for_each(|past| past.forget(born));
    }
    let mut found = None;
    for past in order.past.iter().rev() {
        let apart = past.hull.1 <= hull.0 || hull.1 <= past.hull.0;
        if apart || past.whose.is_before(&whose, before) {
            continue;
        }
        let pairs = [
            (
                &accesses.writes,
                "writes",
                &past.accesses.writes,
                "has written",
            ),
            (&accesses.writes, "writes", &past.accesses.reads, "has read"),
            (
                &accesses.reads,
                "reads",
                &past.accesses.writes,
                "has written",
            ),
        ];
        for (mine, verb, other, had) in pairs {
            if let Some(at) = common(mine, other) {
                found = Some((at, verb, had, past.name.clone(), past.whose.work.0));
                break;
            }
        }
        if found.is_some() {
            break;
        }
    }
    if order.past.len() >= CROWDED {
        let host = order.host.clone();
        order
            .past
            .retain(|past| !host.knows(past.whose.work.0, past.whose.work.1));
    }
    if order.past.len() >= REMEMBERED {
        order.past.pop_front();
    }
    // Parts of kernels are named in clocks, which are to stay short.
    let is_part = |past: &Past| past.whose.part != past.whose.work;
    if whose.part != whose.work && order.past.iter().filter(|past| is_part(past)).count() >= PARTS {
        let oldest = order.past.iter().position(is_part);
        oldest.and_then(|at| order.past.remove(at));
    }
    order.past.push_back(Past {
        whose,
        name: name.to_owned(),
        accesses,
        hull,
    });
    let Some((at, verb, had, other, elsewhere)) = found else {
        return Ok(());
    };
    let place = match state.memory.find(at) {
        Some(a) => format!("byte {} of {}", at - a.start, a.describe()),
        None => format!("0x{at:x}"),
    };
    Err(Fault::named(
        abi::ERROR_ILLEGAL_STATE,
        format!(
            "unordered access: it {verb} {place}, which {other} of stream 0x{elsewhere:x} {had}, and \
             nothing orders the two (hint: let the stream wait for an event of the other)"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_compared() {
        let mut ranges = vec![(8, 12), (0, 4), (4, 6), (9, 10), (20, 20)];
        merge(&mut ranges);
        assert_eq!(ranges, [(0, 6), (8, 12)]);
        assert_eq!(common(&ranges, &vec![(6, 8), (11, 30)]), Some(11));
        assert_eq!(common(&ranges, &vec![(6, 8), (12, 30)]), None);
        assert_eq!(common(&vec![], &ranges), None);
    }

    #[test]
    fn clocks_know_what_they_have_joined() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.pass(1, 5);
        b.pass(2, 7);
        assert!(!b.knows(1, 5));
        b.join(&a);
        assert!(b.knows(1, 5) && b.knows(2, 6) && !b.knows(1, 6));
    }
}
