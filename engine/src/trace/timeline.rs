//! Spans and arrows from the recordings of all threads. Pure.
//!
//! # Invariants
//! 1. Spans of a thread nest: of two, one holds the other or they are apart.
//! 2. A message has one arrow if both its ends were recorded, else none.
//! 3. No span ends before it begins.

use super::event::{Event, Kind, Phase};
use super::file::{Recording, Site};
use std::collections::HashMap;

/// Something that a thread did, on the job's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Span<'a> {
    /// Place among the threads of the timeline.
    pub thread: usize,
    /// When it began and ended, in ns.
    pub start_ns: i128,
    /// When it ended.
    pub end_ns: i128,
    /// What was recorded when it began.
    pub event: Event,
    /// The user's line.
    pub site: Option<&'a Site>,
    /// Its end was not recorded: the rank was killed in it, or it lasts.
    pub unfinished: bool,
}

/// A message from its start to the receive that has all of it: places among
/// the spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// The start, at the sender.
    pub from: usize,
    /// The end, at the receiver.
    pub to: usize,
}

/// A thread of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its rank.
    pub rank: u32,
    /// The rank's own number of it.
    pub thread: u32,
    /// Its process.
    pub pid: u32,
    /// Its name; may be empty.
    pub name: String,
    /// Events of it that did not fit.
    pub dropped: u64,
    /// What was added to its times, in ns.
    pub clock_offset_ns: i64,
}

/// What all ranks did.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline<'a> {
    /// Threads by rank and number.
    pub threads: Vec<Thread>,
    /// Spans by thread, and by begin within a thread; a span before those that
    /// it holds.
    pub spans: Vec<Span<'a>>,
    /// Messages.
    pub arrows: Vec<Arrow>,
}

impl<'a> Timeline<'a> {
    /// Puts recordings together.
    pub fn of(recordings: &'a [Recording]) -> Timeline<'a> {
        let mut sorted: Vec<&Recording> = recordings.iter().collect();
        sorted.sort_by_key(|r| (r.rank, r.thread, r.pid));
        let threads = sorted.iter().map(|r| Thread {
            rank: r.rank,
            thread: r.thread,
            pid: r.pid,
            name: r.name.clone(),
            dropped: r.dropped,
            clock_offset_ns: r.clock_offset_ns,
        });
        let mut timeline = Timeline {
            threads: threads.collect(),
            spans: Vec::new(),
            arrows: Vec::new(),
        };
        for (thread, recording) in sorted.into_iter().enumerate() {
            let mut spans = spans(thread, recording);
            spans.sort_by_key(|s| (s.start_ns, std::cmp::Reverse(s.end_ns)));
            timeline.spans.append(&mut spans);
        }
        timeline.arrows = arrows(&timeline.threads, &timeline.spans);
        timeline
    }
}

fn spans(thread: usize, recording: &Recording) -> Vec<Span<'_>> {
    let on_clock = |ns: u64| i128::from(ns) + i128::from(recording.clock_offset_ns);
    let first = recording.events.iter().map(|e| e.time_ns).min();
    let (first, last) = match (first, recording.events.last()) {
        (Some(first), Some(last)) => (on_clock(first), on_clock(last.recorded_ns())),
        _ => return Vec::new(),
    };
    let span = |event: &Event, start_ns, end_ns, unfinished| Span {
        thread,
        start_ns,
        end_ns,
        event: *event,
        site: (event.site as usize)
            .checked_sub(1)
            .map(|at| &recording.sites[at]),
        unfinished,
    };
    let mut spans: Vec<Span<'_>> = Vec::new();
    let mut open: Vec<&Event> = Vec::new();
    for event in &recording.events {
        match event.phase {
            Phase::Begin => open.push(event),
            Phase::End => match open.pop() {
                Some(begin) => spans.push(span(
                    begin,
                    on_clock(begin.time_ns),
                    on_clock(event.time_ns),
                    false,
                )),
                // Its begin did not fit the ring: it holds all there is.
                None => spans.push(span(event, first, on_clock(event.time_ns), false)),
            },
            Phase::Whole => {
                // Within the innermost call, whatever the file says.
                let least = open.last().map_or(i128::MIN, |b| on_clock(b.time_ns));
                let start = on_clock(event.time_ns).max(least);
                spans.push(span(event, start, on_clock(event.recorded_ns()), false));
            }
        }
    }
    for begin in open {
        spans.push(span(begin, on_clock(begin.time_ns), last, true));
    }
    spans
}

fn arrows(threads: &[Thread], spans: &[Span<'_>]) -> Vec<Arrow> {
    // Communicator, sender, receiver, number.
    type Message = (u64, u32, u32, u64);
    let mut starts: HashMap<Message, usize> = HashMap::new();
    for (at, span) in spans.iter().enumerate() {
        let event = &span.event;
        if event.number != 0 && event.kind.is_start() {
            let rank = threads[span.thread].rank;
            starts.insert((event.context, rank, event.world, event.number), at);
        }
    }
    let mut arrows = Vec::new();
    for (to, span) in spans.iter().enumerate() {
        let event = &span.event;
        if event.number != 0 && event.kind == Kind::Received {
            let rank = threads[span.thread].rank;
            let message = (event.context, event.world, rank, event.number);
            if let Some(from) = starts.remove(&message) {
                arrows.push(Arrow { from, to });
            }
        }
    }
    arrows
}
