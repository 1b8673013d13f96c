//! Verdict on hangs: certain and probable.
//!
//! Each rank publishes two times of one clock: the start of its quiet time, in
//! which all its threads wait and nothing comes (`since`), and the start of its
//! last poll of all queues that found nothing (`polled`). The job hangs for certain if
//!
//! ```text
//! greatest since  <  least polled
//! ```
//!
//! for between these two times every rank was quiet at once, so no rank
//! sent anything; and every rank has polled its queues after the time at
//! which the last one became quiet, so nothing sent before was still in flight.
//! Only a message could end a wait: none exists, and no rank is left to send
//! one. This stays so; it does not matter how old the two times are when
//! they are read.
//!
//! A poll covers all messages in flight to a rank. In shared memory that is so
//! because a message lies in a queue of its receiver as soon as it is posted;
//! a transport that delays messages must say when it does, and such a poll
//! counts as one that has found something.
//!
//! No message is counted for this. A rank that computes, that was stopped, or
//! that has not woken yet since the last message has no `polled` after the
//! others' `since`, so nothing is said as long as anything is unknown.
//!
//! Threads outside Osier that sleep until another thread wakes them do nothing either. A rank
//! that has such threads is [`Standing::Asleep`], with the same two times, between which none
//! of them has run. The argument above holds for it as far as the kernel shows what may wake a
//! thread; it does not show everything (memory that a device writes, a debugger). So a job of
//! which ranks are asleep *probably* hangs, and only once the two times lie so far apart that
//! whatever was about to come would have come.
//!
//! # Sources
//! The condition is that of E. W. Dijkstra, W. Feijen, A. van Gasteren,
//! "Derivation of a Termination Detection Algorithm for Distributed
//! Computations", IPL 16, 1983, and of F. Mattern, "Algorithms for Distributed
//! Termination Detection", Distributed Computing 2, 1987. There, two waves or
//! four counters show that nothing is under way; here, a second look at queues
//! that all lie in memory, ordered by a common clock (section 5, "the time
//! algorithm", has a logical one).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How a rank stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It will never send again.
    Gone {
        /// Since when, or since when that is known: messages that it sent before
        /// may be in flight.
        since: u64,
    },
    /// It may send, or nothing is known of it.
    Busy,
    /// All of its threads wait.
    Quiet {
        /// Since when.
        since: u64,
        /// When its last poll of its queues, after `since`, began; the poll found nothing.
        polled: u64,
    },
    /// All of its threads wait, or sleep outside Osier until another one wakes them.
    Asleep {
        /// Since when.
        since: u64,
        /// When its last poll of its queues and threads, after `since`, began; it found nothing.
        polled: u64,
    },
}

/// Whether the job hangs for certain: see the module's head. A job without
/// ranks does not hang.
pub fn hangs(ranks: impl IntoIterator<Item = Standing>) -> bool {
    still_for(ranks, false) > 0
}

/// Whether the job hangs, or probably does: it has stood still for `patience`, on the clock
/// of the standings.
pub fn probably_hangs(ranks: impl IntoIterator<Item = Standing>, patience: u64) -> bool {
    still_for(ranks, true) >= patience.max(1)
}

/// How long all ranks were still at once, by their own words; 0: never. `asleep`: whether
/// ranks that are asleep count as still.
fn still_for(ranks: impl IntoIterator<Item = Standing>, asleep: bool) -> u64 {
    let (mut since, mut polled, mut any) = (0, u64::MAX, false);
    for rank in ranks {
        let (s, p) = match rank {
            Standing::Gone { since: s } => {
                since = since.max(s);
                continue;
            }
            Standing::Quiet { since, polled } => (since, polled),
            Standing::Asleep { since, polled } if asleep => (since, polled),
            Standing::Busy | Standing::Asleep { .. } => return 0,
        };
        any = true;
        since = since.max(s);
        polled = polled.min(p);
    }
    match any {
        true => polled.saturating_sub(since),
        false => 0,
    }
}

/// A rank's quiet time, from polls of its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quiet {
    since: u64,
    polled: u64,
    moved: u64,
}

impl Quiet {
    /// Takes a poll of all queues that began and ended at these times.
    /// `calm`: all threads wait, only messages can end their waits, and the
    /// poll found nothing. `moved`: number of messages that this rank has
    /// received or posted so far. `checked`: the oldest, of all threads, of
    /// their last checks that found their wait not ended; a thread whose
    /// wait another has ended may not have noticed yet.
    pub fn observe(&mut self, calm: bool, moved: u64, checked: u64, (began, ended): (u64, u64)) {
        if !calm || moved != self.moved || self.since == 0 {
            *self = Quiet {
                since: if calm { ended.max(1) } else { 0 },
                polled: 0,
                moved,
            };
        } else if checked >= self.since {
            self.polled = began;
        }
    }

    /// A thread has left its wait.
    pub fn stir(&mut self) {
        self.since = 0;
        self.polled = 0;
    }

    /// (since, polled), 0 where there is none.
    pub fn times(&self) -> (u64, u64) {
        (self.since, self.polled)
    }

    /// As others see it.
    pub fn standing(&self) -> Standing {
        match self.times() {
            (0, _) | (_, 0) => Standing::Busy,
            (since, polled) => Standing::Quiet { since, polled },
        }
    }
}

/// As [`Quiet`], of a rank with threads outside Osier that sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drowse {
    quiet: Quiet,
    print: u64,
}

impl Drowse {
    /// As [`Quiet::observe`]. `calm`: the threads outside are asleep, too. `print` changes when
    /// one of them has run, or there are others.
    pub fn observe(&mut self, calm: bool, print: u64, moved: u64, checked: u64, times: (u64, u64)) {
        if print != self.print {
            self.stir();
            self.print = print;
        }
        self.quiet.observe(calm, moved, checked, times);
    }

    /// A thread has left its wait.
    pub fn stir(&mut self) {
        self.quiet.stir();
    }

    /// (since, polled), 0 where there is none.
    pub fn times(&self) -> (u64, u64) {
        self.quiet.times()
    }

    /// As others see it.
    pub fn standing(&self) -> Standing {
        match self.quiet.standing() {
            Standing::Quiet { since, polled } => Standing::Asleep { since, polled },
            other => other,
        }
    }
}

/// Cycles of "waits for", each once, from its lowest rank; a shortest one
/// through every rank that lies on any, as far as it is not on one already.
pub fn cycles(edges: impl IntoIterator<Item = (u32, u32)>) -> Vec<Vec<u32>> {
    let mut next: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().insert(to);
    }
    let mut found: Vec<Vec<u32>> = Vec::new();
    let mut covered = BTreeSet::new();
    for &start in next.keys() {
        if covered.contains(&start) {
            continue;
        }
        if let Some(mut cycle) = shortest_cycle(&next, start) {
            covered.extend(cycle.iter().copied());
            let lowest = (0..cycle.len()).min_by_key(|i| cycle[*i]).unwrap_or(0);
            cycle.rotate_left(lowest);
            found.push(cycle);
        }
    }
    found
}

/// Breadth first from `start` back to it.
fn shortest_cycle(next: &BTreeMap<u32, BTreeSet<u32>>, start: u32) -> Option<Vec<u32>> {
    let mut before: BTreeMap<u32, u32> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for &to in next.get(&at).into_iter().flatten() {
            if to == start {
                let mut cycle = vec![at];
                while let Some(&b) = before.get(cycle.last()?) {
                    cycle.push(b);
                }
                cycle.reverse();
                return Some(cycle);
            }
            if to != start && !before.contains_key(&to) {
                before.insert(to, at);
                queue.push_back(to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
