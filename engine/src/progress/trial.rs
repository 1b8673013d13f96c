//! Which way of long announced messages is the quicker one, by trial: fragments, or a copy by
//! the kernel.
//!
//! The table predicts both by costs that were measured once. What they take in a job depends on
//! what no measurement before it knows: whether the sender has just written its bytes (then
//! they lie in its caches, from where the kernel's copy takes them several times as slowly),
//! whether both ends send at once (fragments are copied twice, by processors that have no time
//! for it), whether the sender has a core at all, and where the host has moved the cores to. So
//! messages from a peer go the other way now and then, and are timed.
//!
//! Messages of a window overlap, and some end together: no time of a single one says anything.
//! What is timed is a *run*: it begins with a message that is answered while none from the peer
//! is in flight, and ends when none is. A run goes one way; in ns for a byte, the least of some
//! runs counts, for what disturbs only adds:
//!
//! ```text
//! rest            the other way   the present way
//! the quicker     4 messages or   4 messages or
//! way             more, timed     more, timed
//! ```
//!
//! The other way is taken if it saves an eighth in two trials in a row. The less it promises,
//! the rarer it is tried. Messages of another class of sizes spoil a run.

use crate::protocol::select::TRIED_BYTES;
use osier_transports::shm::monotonic_ns;

/// Classes of sizes, by powers of two; the last has no end.
const CLASSES: usize = 6;
/// Messages that are timed each way at least.
const LEAST_MESSAGES: u32 = 4;
/// Messages before the first trial, and after the way has changed.
const BEFORE: u32 = 4;
const CHANGED: u32 = 1024;
/// Messages between two trials, for each that went the other way, at first; twice as many
/// each time where that is behind by more than a quarter.
const REST: u32 = 32;
/// Messages between two trials at most.
const LONGEST_REST: u32 = 8192;
/// Messages of a run that go the other way, at most.
const MOST_TRIED: u32 = 64;

/// The class of a message, if it is long enough to be tried.
fn class_of(bytes: usize) -> Option<usize> {
    let above = (bytes / TRIED_BYTES).checked_ilog2()?;
    Some((above as usize).min(CLASSES - 1))
}

/// Runs that were timed one way.
#[derive(Clone, Copy, Debug)]
struct Times {
    messages: u32,
    /// The least time, in ps for a byte.
    ps_per_byte: u64,
}

impl Times {
    const NONE: Times = Times {
        messages: 0,
        ps_per_byte: u64::MAX,
    };

    fn add(&mut self, messages: u32, ps_per_byte: u64) {
        self.messages += messages;
        self.ps_per_byte = self.ps_per_byte.min(ps_per_byte);
    }

    fn are_enough(&self) -> bool {
        self.messages >= LEAST_MESSAGES
    }
}

/// What was found out about messages of one class.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The quicker way is not that of the table.
    other: bool,
    /// The last trial says that the way which is not taken is quicker.
    promising: bool,
    /// Messages until the next trial.
    rest: u32,
    /// Factor of the rest behind the next trial.
    each: u32,
    present: Times,
    tried: Times,
}

impl Default for Trial {
    fn default() -> Self {
        Self {
            other: false,
            promising: false,
            rest: BEFORE,
            each: REST,
            present: Times::NONE,
            tried: Times::NONE,
        }
    }
}

impl Trial {
    /// Whether the next run tries the way that is not taken.
    fn tries(&self) -> bool {
        self.rest == 0 && !self.tried.are_enough()
    }

    /// A run of this number of messages took this time for a byte; it tried the way that is not taken, or did not.
    fn took(&mut self, tried: bool, messages: u32, ps_per_byte: u64) {
        if self.rest > 0 {
            self.rest = self.rest.saturating_sub(messages);
            return;
        }
        match tried {
            true => self.tried.add(messages, ps_per_byte),
            false => self.present.add(messages, ps_per_byte),
        }
        if self.tried.are_enough() && self.present.are_enough() {
            self.decide();
        }
    }

    /// A run of this number of messages says nothing.
    fn spoiled(&mut self, messages: u32) {
        self.rest = self.rest.saturating_sub(messages);
    }

    fn decide(&mut self) {
        let (tried, present) = (self.tried, self.present.ps_per_byte);
        (self.tried, self.present) = (Times::NONE, Times::NONE);
        let ps_per_byte = tried.ps_per_byte;
        if ps_per_byte.saturating_mul(8) < present.saturating_mul(7) {
            self.each = REST;
            if !self.promising {
                // At once again.
                self.promising = true;
                return;
            }
            self.other = !self.other;
            self.promising = false;
            self.rest = CHANGED;
            return;
        } else if ps_per_byte.saturating_mul(4) > present.saturating_mul(5) {
            self.each = (2 * self.each).min(LONGEST_REST);
        } else {
            self.each = REST;
        }
        self.promising = false;
        self.rest = (self.each * tried.messages).min(LONGEST_REST);
    }
}

/// Messages of which one was answered before the one before it had ended.
#[derive(Clone, Copy, Debug)]
struct Run {
    class: usize,
    /// By the way that is not taken.
    tries: bool,
    messages: u32,
    bytes: u64,
    since_ns: u64,
    spoiled: bool,
}

/// The trials of messages from one peer.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    classes: [Trial; CLASSES],
    /// Receives of announced messages that are in flight.
    in_flight: Vec<u32>,
    run: Option<Run>,
}

impl Trials {
    /// Whether the receive `handle` of an announced message is to go another way than the
    /// table says, which could also carry it. `lives` tells which receives are still in flight:
    /// of those that fail nothing is heard.
    pub(crate) fn next(&mut self, handle: u32, bytes: usize, lives: impl Fn(u32) -> bool) -> bool {
        let Some(class) = class_of(bytes) else {
            return false;
        };
        let known = self.in_flight.len();
        self.in_flight
            .retain(|known| *known != handle && lives(*known));
        if self.in_flight.len() < known
            && let Some(run) = &mut self.run
        {
            run.spoiled = true;
        }
        if self.in_flight.is_empty() {
            self.end_run(0);
            self.run = Some(Run {
                class,
                tries: self.classes[class].tries(),
                messages: 0,
                bytes: 0,
                since_ns: monotonic_ns(),
                spoiled: false,
            });
        }
        self.in_flight.push(handle);
        let taken = self.classes[class].other;
        let Some(run) = &mut self.run else {
            return taken;
        };
        run.spoiled |= run.class != class;
        if run.spoiled {
            return taken;
        }
        run.messages += 1;
        run.bytes += bytes as u64;
        if run.tries && run.messages > MOST_TRIED {
            run.spoiled = true;
            return taken;
        }
        taken != run.tries
    }

    /// A receive from this peer has all of its bytes.
    #[inline]
    pub(crate) fn received(&mut self, handle: u32) {
        if let Some(at) = self.in_flight.iter().position(|known| *known == handle) {
            self.in_flight.swap_remove(at);
            if self.in_flight.is_empty() {
                self.end_run(monotonic_ns());
            }
        }
    }

    /// None from the peer is in flight any more.
    fn end_run(&mut self, now_ns: u64) {
        let Some(run) = self.run.take() else {
            return;
        };
        let trial = &mut self.classes[run.class];
        if run.spoiled || run.bytes == 0 {
            return trial.spoiled(run.messages);
        }
        let took_ps = now_ns.saturating_sub(run.since_ns).saturating_mul(1000);
        trial.took(run.tries, run.messages, took_ps / run.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of `each` messages that take these times for the table's way and the other one, in
    /// ps for a byte, until `messages` have gone: how many went the other way.
    fn played(trial: &mut Trial, each: u32, messages: u32, ps: [u64; 2]) -> u32 {
        let mut other = 0;
        for number in 0..messages / each {
            let tries = trial.tries();
            let way = trial.other != tries;
            other += u32::from(way) * each;
            // Every fifth run is disturbed.
            let disturbed = u64::from(number % 5 == 3) * 1_000_000;
            trial.took(tries, each, ps[usize::from(way)] + disturbed);
        }
        other
    }

    #[test]
    fn the_quicker_way_is_taken_and_the_other_tried() {
        for each in [1, 3, 64] {
            let trials = |n: u32| n * (CHANGED + 40 * LEAST_MESSAGES.max(each));
            let mut trial = Trial::default();
            let some = played(&mut trial, each, trials(20), [100, 95]);
            assert!(some > 0 && some < trials(20) / 12, "{some}");
            assert!(!trial.other, "it saves too little");
            played(&mut trial, each, trials(3), [100, 50]);
            assert!(trial.other);
            let most = played(&mut trial, each, trials(20), [100, 50]);
            assert!(most > trials(20) - trials(20) / 12, "{most}");
            played(&mut trial, each, LONGEST_REST + trials(3), [50, 300]);
            assert!(!trial.other, "the way back");
        }
    }

    /// A way that is slow for a moment does not decide.
    #[test]
    fn one_trial_does_not_decide() {
        let mut trial = Trial::default();
        played(&mut trial, 1, BEFORE + 2 * LEAST_MESSAGES, [5000, 110]);
        assert!(trial.promising && !trial.other);
        played(&mut trial, 1, 2 * LEAST_MESSAGES, [100, 110]);
        assert!(!trial.promising && !trial.other);
    }

    #[test]
    fn what_is_far_behind_is_tried_less_and_less() {
        let mut trial = Trial::default();
        let tried = played(&mut trial, 1, 100_000, [100, 900]);
        assert!((60..80).contains(&tried), "{tried}");
        assert!(trial.each * LEAST_MESSAGES >= LONGEST_REST);
        // It becomes the quicker one.
        let messages = 3 * LONGEST_REST;
        assert!(played(&mut trial, 1, messages, [100, 10]) > messages / 2);
        assert!(trial.other);
    }

    fn all_live(_: u32) -> bool {
        true
    }

    /// Of messages that were answered at once all go one way, and are timed together.
    #[test]
    fn a_run_ends_when_nothing_is_in_flight() {
        let (mut trials, bytes) = (Trials::default(), 2 * TRIED_BYTES);
        let window = |trials: &mut Trials, n: u32| {
            let ways: Vec<bool> = (0..n).map(|h| trials.next(h, bytes, all_live)).collect();
            for handle in (0..n).rev() {
                trials.received(handle);
            }
            assert!(trials.in_flight.is_empty() && trials.run.is_none());
            assert!(ways.iter().all(|way| *way == ways[0]));
            ways[0]
        };
        assert!(!window(&mut trials, BEFORE));
        assert!(window(&mut trials, 3));
        let trial = trials.classes[1];
        assert_eq!((trial.tried.messages, trial.present.messages), (3, 0));
        assert!(window(&mut trials, 3));
        assert!(!window(&mut trials, 3));
        assert_eq!(trials.classes[1].present.messages, 3);
        assert_eq!(trials.classes[0].present.messages, 0);
    }

    /// Messages of two classes, and those of which one has failed, say nothing.
    #[test]
    fn what_is_not_alike_spoils_a_run() {
        let (mut trials, bytes) = (Trials::default(), TRIED_BYTES);
        trials.classes[0].rest = 0;
        assert!(trials.next(1, bytes, all_live));
        assert!(!trials.next(2, 4 * bytes, all_live));
        assert!(!trials.next(3, bytes, all_live), "the run is spoiled");
        for handle in [1, 2, 3] {
            trials.received(handle);
        }
        assert_eq!(trials.classes[0].tried.messages, 0);
        assert!(trials.next(4, bytes, all_live));
        // Message 4 has failed, and its handle is of another receive.
        assert!(trials.next(4, bytes, all_live));
        trials.received(4);
        assert_eq!(trials.classes[0].tried.messages, 1);
        assert!(trials.next(5, bytes, all_live));
        assert!(trials.next(6, bytes, |handle| handle != 5));
        trials.received(6);
        assert_eq!(trials.classes[0].tried.messages, 2);
    }

    /// A run that never ends goes the present way after some messages.
    #[test]
    fn a_trial_ends() {
        let mut trials = Trials::default();
        trials.classes[0].rest = 0;
        for handle in 0..2 * MOST_TRIED {
            let other = trials.next(handle, TRIED_BYTES, all_live);
            assert_eq!(other, handle < MOST_TRIED);
        }
    }

    #[test]
    fn classes_are_powers_of_two() {
        assert_eq!(class_of(TRIED_BYTES - 1), None);
        for class in 0..CLASSES {
            let least = TRIED_BYTES << class;
            assert_eq!(class_of(least), Some(class));
            assert_eq!(class_of(2 * least - 1), Some(class));
        }
        assert_eq!(class_of(usize::MAX), Some(CLASSES - 1));
    }
}
