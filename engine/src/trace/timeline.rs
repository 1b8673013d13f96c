//! Spans and arrows from the recordings of all threads. Pure.
//!
//! # Invariants
//! 1. Spans of a thread nest: of two, one encloses the other or they are disjoint.
//! 2. A message has one arrow if both its ends were recorded, else none; one along an edge has
//!    an arrow to each task that reads it.
//! 3. No span ends before it begins.

use super::event::{Event, Kind, Phase};
use super::file::{Recording, Site};
use std::collections::HashMap;

/// A span of a thread, on the job's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Span<'a> {
    /// Index among the threads of the timeline.
    pub thread: usize,
    /// When it began and ended, in ns.
    pub start_ns: i128,
    /// When it ended.
    pub end_ns: i128,
    /// The event that began it.
    pub event: Event,
    /// The user's line.
    pub site: Option<&'a Site>,
    /// Its end was not recorded: the rank was killed in it, or it is still open.
    pub unfinished: bool,
}

/// A message from its start to the receive that has all of it, or from its put to the call of
/// the task that reads it: indices of spans.
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
    /// Its number within the rank.
    pub thread: u32,
    /// Its process.
    pub pid: u32,
    /// Its name; may be empty.
    pub name: String,
    /// Its events that did not fit.
    pub dropped: u64,
    /// Offset added to its times, in ns.
    pub clock_offset_ns: i64,
}

/// Timeline of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline<'a> {
    /// Threads by rank and number.
    pub threads: Vec<Thread>,
    /// Spans by thread, and by begin within a thread; a span before those that
    /// it encloses.
    pub spans: Vec<Span<'a>>,
    /// Messages.
    pub arrows: Vec<Arrow>,
}

impl<'a> Timeline<'a> {
    /// Merges recordings.
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
                // Its begin did not fit into the ring: it encloses all earlier spans.
                None => spans.push(span(event, first, on_clock(event.time_ns), false)),
            },
            Phase::Whole => {
                // Within the innermost call, even if the file says otherwise.
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
    arrows.extend(edges(threads, spans));
    arrows
}

/// Arrows along edges of task graphs.
fn edges(threads: &[Thread], spans: &[Span<'_>]) -> Vec<Arrow> {
    // Communicator, run, producer's rank, consumer's rank, number.
    type Message = (u64, u32, u32, u32, u64);
    let of_kind = |kind: Kind| {
        let spans = spans.iter().enumerate();
        spans.filter(move |(_, span)| span.event.kind == kind)
    };
    let mut puts: HashMap<Message, usize> = HashMap::new();
    for (from, Span { event, thread, .. }) in of_kind(Kind::TaskPut) {
        let rank = threads[*thread].rank;
        puts.insert(
            (event.context, event.tag, rank, event.world, event.number),
            from,
        );
    }
    let arrow = |(to, span): (usize, &Span<'_>)| {
        let (event, rank) = (&span.event, threads[span.thread].rank);
        let message = (event.context, event.tag, event.world, rank, event.number);
        let from = *puts.get(&message)?;
        Some(Arrow { from, to })
    };
    of_kind(Kind::TaskRead).filter_map(arrow).collect()
}
