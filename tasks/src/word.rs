//! The word of a task and the word of an edge into it: who may run the task, and when.
//!
//! ```text
//! task    owned        a worker has it, or a queue: nobody else fires it
//!         lacks n      waits for n edges of its conjunction; the arrival that makes it 0 fires
//!         asking       waits by a rule that is asked; an arrival makes its thread the owner
//!         ended
//! edge    messages, of which the task lacks none or waits for the first (armed), or is asked
//!         at each; closed: the task has ended; failed: its producer has
//! ```
//!
//! While a task is owned its count holds a bias, so that arrivals subtract from it and never
//! reach 0; the owner takes the bias away together with what it found lacking, in one step.
//! A message that comes early, or while the task runs, is only counted on its edge. An asking
//! task keeps the bias. An owner that no longer waits for an edge which it found empty adds
//! what an arrival has subtracted there meanwhile, or is about to.
//!
//! # Invariants
//! 1. A task has one owner at most: the thread whose subtraction made the count of a task
//!    that is not owned 0, or whose exchange made an asking task owned, or whom it was handed
//!    to.
//! 2. For each edge that its owner armed or left armed and found empty, exactly one thread
//!    calls [`TaskWord::arrive`]: the one whose message or failure is the first there.
//! 3. What an arriving thread wrote before it counted its message is visible to the owner of
//!    the firing that the message belongs to.
//!
//! Where one thread delivers messages and runs tasks (`alone`), what happens to each message
//! and firing is loads and stores instead of exchanges.
//!
//! `loom_*` below runs this code under loom.

use crate::sync::{AtomicU32, Ordering, add};

/// Added to the count of what an owned task lacks.
const BIAS: u32 = 1 << 22;
const COUNT: u32 = (1 << 24) - 1;
const OWNED: u32 = 1 << 24;
const NOTIFIED: u32 = 1 << 25;
const ASKING: u32 = 1 << 26;
const ENDED: u32 = 1 << 27;
/// Most edges into a task.
pub const MOST_EDGES: u32 = BIAS - 1;

/// Who may run a task.
#[derive(Debug)]
pub struct TaskWord(AtomicU32);

impl TaskWord {
    /// Of a task that is owned by the thread that begins it.
    pub fn owned() -> Self {
        Self(AtomicU32::new(OWNED | BIAS))
    }

    /// An edge that the task lacked has a message, or will have none. True: it has all, and
    /// the caller owns it.
    #[inline]
    #[must_use]
    pub fn arrive(&self, alone: bool) -> bool {
        let before = add(&self.0, 1u32.wrapping_neg(), alone, Ordering::AcqRel);
        if before & COUNT != 1 {
            return false;
        }
        // Nothing is left that would subtract, so nobody else writes.
        self.0.store(OWNED | BIAS, Ordering::Relaxed);
        true
    }

    /// The owner leaves it to wait for this many edges. True: they have come meanwhile, and
    /// the caller still owns it.
    #[inline]
    #[must_use]
    pub fn wait_for(&self, lacking: u32, alone: bool) -> bool {
        let less = BIAS - lacking + OWNED;
        let before = add(&self.0, less.wrapping_neg(), alone, Ordering::AcqRel);
        if before.wrapping_sub(less) & COUNT != 0 {
            return false;
        }
        self.0.store(OWNED | BIAS, Ordering::Relaxed);
        true
    }

    /// Something has come that a rule is to be asked about. True: the caller owns the task,
    /// and asks.
    #[must_use]
    pub fn notify(&self) -> bool {
        let before = self.0.fetch_or(NOTIFIED, Ordering::AcqRel);
        if before & (ASKING | OWNED | ENDED) != ASKING {
            return false;
        }
        let (notified, mut now) = (NOTIFIED | ASKING, before | NOTIFIED);
        // Others may notify meanwhile, or take it.
        while now & (notified | OWNED) == notified {
            let owned = now - notified + OWNED;
            match self
                .0
                .compare_exchange(now, owned, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// The owner leaves it to wait by a rule that was not met. False: something has come
    /// meanwhile, the caller still owns it and asks again.
    #[must_use]
    pub fn wait_by_rule(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & NOTIFIED == 0 {
            let asking = now - OWNED + ASKING;
            match self
                .0
                .compare_exchange(now, asking, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        // An exchange, so that what the notifying thread wrote is visible.
        self.0.fetch_and(!NOTIFIED, Ordering::AcqRel);
        false
    }

    /// The owner no longer waits for this many edges that it found empty, where a message
    /// has come since.
    pub fn forgive(&self, arrivals: u32) {
        if arrivals > 0 {
            self.0.fetch_add(arrivals, Ordering::AcqRel);
        }
    }

    /// The owner has ended it. What arrives late subtracts from the bias.
    pub fn end(&self) {
        self.0.store(ENDED | BIAS, Ordering::Release);
    }

    /// Whether it has ended, is owned, and how many edges it lacks; for reports.
    pub fn look(&self) -> Standing {
        let word = self.0.load(Ordering::Acquire);
        match word {
            _ if word & ENDED != 0 => Standing::Ended,
            _ if word & OWNED != 0 => Standing::Owned,
            _ if word & ASKING != 0 => Standing::Asking,
            _ => Standing::Lacks(word & COUNT),
        }
    }
}

/// How a task stands, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Owned,
    Lacks(u32),
    Asking,
    Ended,
}

const MESSAGES: u32 = (1 << 24) - 1;
const ARMED: u32 = 1 << 28;
const ASKED: u32 = 1 << 29;
const CLOSED: u32 = 1 << 30;
const FAILED: u32 = 1 << 31;

/// What a message or failure on an edge means for the task behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing yet.
    Kept,
    /// The task lacked it: [`TaskWord::arrive`].
    Lacked,
    /// Its rule is to be asked: [`TaskWord::notify`].
    Asked,
    /// The task has ended, and reads nothing more.
    Refused,
}

/// The messages of an edge that have come and are not read.
#[derive(Debug)]
pub struct EdgeWord(AtomicU32);

impl EdgeWord {
    pub fn empty() -> Self {
        Self(AtomicU32::new(0))
    }

    /// A message has come.
    #[inline]
    #[must_use]
    pub fn arrive(&self, alone: bool) -> Meaning {
        Self::meaning(add(&self.0, 1, alone, Ordering::AcqRel))
    }

    /// No message will come after those that are there: the producer has failed.
    #[must_use]
    pub fn fail(&self) -> Meaning {
        Self::meaning(self.0.fetch_or(FAILED, Ordering::AcqRel))
    }

    #[inline]
    fn meaning(before: u32) -> Meaning {
        match before {
            _ if before & (ARMED | ASKED | CLOSED) == 0 => Meaning::Kept,
            _ if before & CLOSED != 0 => Meaning::Refused,
            _ if before & ASKED != 0 => Meaning::Asked,
            _ if before & (MESSAGES | FAILED) == 0 => Meaning::Lacked,
            _ => Meaning::Kept,
        }
    }

    /// The owner has read messages of an armed edge, which stays armed. True: the task
    /// lacks it now.
    #[inline]
    #[must_use]
    pub fn read(&self, messages: u32, alone: bool) -> bool {
        let before = add(&self.0, messages.wrapping_neg(), alone, Ordering::AcqRel);
        before & (MESSAGES | FAILED) == messages
    }

    /// The owner waits for a message here, as part of a conjunction. True: the task lacks it.
    #[must_use]
    pub fn arm(&self) -> bool {
        let before = self.0.fetch_or(ARMED, Ordering::AcqRel);
        before & (MESSAGES | FAILED) == 0
    }

    /// The owner wants its rule asked at each message.
    pub fn ask(&self) {
        self.0.fetch_or(ASKED, Ordering::AcqRel);
    }

    /// The owner waits for nothing here any more. True: something has come since the edge
    /// was empty, so if the task lacked it, its count is to be forgiven.
    #[must_use]
    pub fn disarm(&self) -> bool {
        let before = self.0.fetch_and(!(ARMED | ASKED), Ordering::AcqRel);
        before & (MESSAGES | FAILED) != 0
    }

    /// The task has ended: how many messages it has not read.
    #[must_use]
    pub fn close(&self) -> u32 {
        self.0.fetch_or(CLOSED, Ordering::AcqRel) & MESSAGES
    }

    /// Messages that are there.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.0.load(Ordering::Acquire) & MESSAGES
    }

    /// Whether the task waits for more messages here, and how many have come: 0 of a
    /// conjunction. For reports.
    pub fn lacks(&self) -> Option<u32> {
        let word = self.0.load(Ordering::Acquire);
        let messages = word & MESSAGES;
        let waits = word & ASKED != 0 || word & ARMED != 0 && messages == 0;
        (waits && word & (FAILED | CLOSED) == 0).then_some(messages)
    }

    /// Whether no messages will come after those that are there.
    pub fn has_failed(&self) -> bool {
        self.0.load(Ordering::Acquire) & FAILED != 0
    }

    /// Whether its producer has failed, and all that it sent before is read.
    pub fn is_failed(&self) -> bool {
        self.0.load(Ordering::Acquire) & (MESSAGES | FAILED) == FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(loom))]
    #[test]
    fn a_conjunction_fires_once_when_the_last_edge_has_a_message() {
        let (task, edges) = (TaskWord::owned(), [EdgeWord::empty(), EdgeWord::empty()]);
        assert_eq!(edges[0].arrive(false), Meaning::Kept, "early");
        let lacking = edges.iter().filter(|edge| edge.arm()).count() as u32;
        assert_eq!(lacking, 1);
        assert!(!task.wait_for(lacking, false));
        assert_eq!(edges[0].arrive(false), Meaning::Kept, "a second one");
        assert_eq!(edges[1].arrive(false), Meaning::Lacked);
        assert!(task.arrive(false));
        assert_eq!(task.look(), Standing::Owned);
        // The next firing has its message on edge 0 only.
        assert!(!edges[0].read(1, false));
        assert!(edges[1].read(1, false));
        assert_eq!(edges[1].arrive(false), Meaning::Lacked, "while it runs");
        assert!(!task.arrive(false));
        assert!(task.wait_for(1, false), "it came meanwhile");
    }

    #[cfg(not(loom))]
    #[test]
    fn a_failed_producer_counts_as_the_message_that_will_not_come() {
        let edge = EdgeWord::empty();
        assert!(edge.arm());
        assert_eq!(edge.lacks(), Some(0));
        assert_eq!(edge.fail(), Meaning::Lacked);
        assert!(edge.is_failed());
        assert_eq!(edge.lacks(), None, "nothing comes");
        let edge = EdgeWord::empty();
        assert_eq!(edge.arrive(false), Meaning::Kept);
        assert_eq!(edge.fail(), Meaning::Kept);
        assert!(!edge.is_failed(), "a message is to be read first");
        assert!(edge.has_failed());
        assert!(!edge.arm());
        assert!(!edge.read(1, false), "nothing to wait for");
        assert!(edge.is_failed());
        assert_eq!(edge.close(), 0);
        assert_eq!(edge.arrive(false), Meaning::Refused);
    }

    /// A task of two edges, fired as often as both have messages, with two producers.
    #[cfg(loom)]
    #[test]
    fn loom_conjunction_of_two_producers() {
        use loom::sync::Arc;
        loom::model(|| {
            let shared = Arc::new((
                TaskWord::owned(),
                [EdgeWord::empty(), EdgeWord::empty()],
                [
                    loom::cell::UnsafeCell::new(0),
                    loom::cell::UnsafeCell::new(0),
                ],
                AtomicU32::new(0),
            ));
            let produce = |which: usize,
                           shared: &Arc<(
                _,
                [EdgeWord; 2],
                [loom::cell::UnsafeCell<i32>; 2],
                AtomicU32,
            )>| {
                let (task, edges, payload, _): &(TaskWord, _, _, _) = shared;
                // SAFETY: invariant 3: written before it is counted, read after it is fired.
                payload[which].with_mut(|p| unsafe { *p = 1 });
                edges[which].arrive(false) == Meaning::Lacked && task.arrive(false)
            };
            let fire = |shared: &(
                TaskWord,
                [EdgeWord; 2],
                [loom::cell::UnsafeCell<i32>; 2],
                AtomicU32,
            )| {
                for payload in &shared.2 {
                    // SAFETY: invariant 3.
                    assert_eq!(payload.with(|p| unsafe { *p }), 1);
                }
                shared.3.fetch_add(1, Ordering::Relaxed);
            };
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    if produce(1, &shared) {
                        fire(&shared);
                    }
                })
            };
            let third = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let lacking = shared.1.iter().filter(|edge| edge.arm()).count() as u32;
                    if shared.0.wait_for(lacking, false) {
                        fire(&shared);
                    }
                })
            };
            if produce(0, &shared) {
                fire(&shared);
            }
            other.join().expect("it ends");
            third.join().expect("it ends");
            assert_eq!(shared.3.load(Ordering::Relaxed), 1);
        });
    }

    /// A rule that is asked: two messages, each read by some owner.
    #[cfg(loom)]
    #[test]
    fn loom_asked_rule_reads_every_message() {
        use loom::sync::Arc;
        loom::model(|| {
            let shared = Arc::new((TaskWord::owned(), EdgeWord::empty(), AtomicU32::new(0)));
            fn serve(shared: &(TaskWord, EdgeWord, AtomicU32)) {
                loop {
                    let messages = shared.1.messages();
                    for _ in 0..messages {
                        let _ = shared.1.read(1, false);
                        shared.2.fetch_add(1, Ordering::Relaxed);
                    }
                    if messages == 0 && shared.0.wait_by_rule() {
                        return;
                    }
                }
            }
            let send = |shared: &(TaskWord, EdgeWord, AtomicU32)| {
                if shared.1.arrive(false) == Meaning::Asked && shared.0.notify() {
                    serve(shared);
                }
            };
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || send(&shared))
            };
            shared.1.ask();
            serve(&shared);
            send(&shared);
            other.join().expect("it ends");
            assert_eq!(shared.2.load(Ordering::Relaxed), 2);
        });
    }
}
