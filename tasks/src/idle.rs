//! Idle time of a worker. Pure: the times come in.
//!
//! A reading of the clock when work has been found would stand between a message and its task,
//! and most waits are as short as a few polls. So the polls that find nothing are counted, and
//! the time that one takes is measured in waits that last, or after the run: idle time of short
//! waits is their polls times that. Time asleep is measured.

/// Polls of a wait before those whose time is measured.
pub(crate) const UNTIMED_POLLS: u32 = 64;
/// Polls of a wait until some of them have been measured.
pub(crate) const MEASURED_POLLS: u32 = 2 * UNTIMED_POLLS;

/// Idle time of a worker in a run.
#[derive(Default)]
pub(crate) struct Idle {
    all: Sum,
    /// Of waits in which a message of another rank came.
    awaiting: Sum,
    /// Polls that found nothing, and how long they took.
    timed_polls: u64,
    timed_ns: u64,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    polls: u64,
    ns: u64,
}

/// A wait: what a worker did without work.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wait {
    /// Polls that found nothing, whose time was not measured.
    pub polls: u32,
    /// Time besides them.
    pub ns: u64,
    /// A message of another rank came meanwhile.
    pub has_message: bool,
}

impl Idle {
    /// A wait has ended.
    #[inline]
    pub fn add(&mut self, wait: Wait) {
        self.all.add(wait);
        if wait.has_message {
            self.awaiting.add(wait);
        }
    }

    /// Polls that found nothing took this time.
    pub fn measured(&mut self, polls: u32, ns: u64) {
        self.timed_polls += u64::from(polls);
        self.timed_ns += ns;
    }

    /// Polls were counted, but none measured.
    pub fn lacks_measure(&self) -> bool {
        self.all.polls > 0 && self.timed_polls == 0
    }

    /// Idle time, and that of waits in which a message of another rank came, in ns.
    pub fn total_ns(&self) -> (u64, u64) {
        let of = |sum: Sum| sum.ns + self.polls_ns(sum.polls);
        (of(self.all), of(self.awaiting))
    }

    /// Time of polls that found nothing, as far as is known.
    pub fn polls_ns(&self, polls: u64) -> u64 {
        let per_poll = self.timed_ns as f64 / self.timed_polls.max(1) as f64;
        (polls as f64 * per_poll) as u64
    }
}

impl Sum {
    #[inline]
    fn add(&mut self, wait: Wait) {
        self.polls += u64::from(wait.polls);
        self.ns += wait.ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_take_the_time_of_measured_polls() {
        let mut idle = Idle::default();
        assert_eq!((idle.total_ns(), idle.lacks_measure()), ((0, 0), false));
        let wait = |polls, ns, has_message| Wait {
            polls,
            ns,
            has_message,
        };
        idle.add(wait(5, 0, true));
        assert!(idle.lacks_measure());
        idle.measured(100, 4_000);
        idle.add(wait(64, 4_000, false));
        assert_eq!(idle.total_ns(), (69 * 40 + 4_000, 5 * 40));
        assert!(!idle.lacks_measure());
    }
}
