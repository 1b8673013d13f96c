//! Reports of runs: what the workers of a rank did, what went between ranks, how long tasks
//! took. Pure.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution",
//! Data-Flow Execution Models for Extreme Scale Computing, 2011, section 3.1: the share of
//! communication that is hidden, by which runs of several variants of a program are compared
//! ([`hidden`]); the formula is inferred from the printed values.

use crate::victims::Distance;
use crate::worker::Counts;
use std::fmt;
use std::time::Duration;

/// What a run did on this rank. Its text is a table within 80 columns.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// This rank.
    pub rank: usize,
    /// Tasks of this rank, all of which have ended.
    pub tasks: usize,
    /// From the call until all tasks of this rank had ended and what they sent had left.
    pub took: Duration,
    /// Whether a thread handled messages beside the workers when the run ended.
    pub progress_thread: bool,
    /// What each worker did.
    pub workers: Vec<Counts>,
    /// By rank: what went there along edges, and came from there. Nothing for this rank.
    pub peers: Vec<PeerCounts>,
    /// Time in the calls of each task of this rank, in ns, in the order of families and
    /// numbers; if it was asked for ([`RunSettings::times`]).
    pub times_ns: Option<Vec<u64>>,
}

/// How a graph is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSettings {
    /// Workers of this rank, of which the calling thread is one; 0 is taken for 1.
    pub workers: usize,
    /// The time of each call of a task is measured, which costs two readings of the clock.
    pub times: bool,
    /// Whether a thread of its own handles messages beside the workers.
    pub progress_thread: ProgressThread,
}

/// Whether a thread handles messages beside the workers of a run: long ones, which take several
/// steps, would wait while all workers are in tasks that run long. The thread sleeps while there
/// are no messages, and needs a processor while there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressThread {
    /// As measured: the run begins without, and gets a thread once most of its time goes to tasks
    /// of 0.1 ms and more, messages of 8 KiB and more go between ranks, and the workers wait for
    /// messages in an eighth of their time, or the job has a core for the thread of each rank.
    /// Later runs of the graph begin with what the last one had. On a simulated network, and in
    /// virtual ranks, as [`ProgressThread::Never`].
    #[default]
    Auto,
    /// From begin to end.
    Always,
    /// Workers handle messages between tasks.
    Never,
}

impl Default for RunSettings {
    /// One worker, no times, a progress thread where measured times speak for it.
    fn default() -> Self {
        Self {
            workers: 1,
            times: false,
            progress_thread: ProgressThread::Auto,
        }
    }
}

/// Messages along edges, and their packed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Messages: one for each `put` and rank, however many consumers are there.
    pub messages: u64,
    /// Bytes of their elements.
    pub bytes: u64,
}

/// What went between this rank and another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// To the other rank.
    pub sent: Volume,
    /// From the other rank.
    pub received: Volume,
}

impl Volume {
    fn and(self, other: Volume) -> Volume {
        Volume {
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Report {
    /// What this rank sent to all others.
    pub fn sent(&self) -> Volume {
        let all = self.peers.iter().map(|peer| peer.sent);
        all.fold(Volume::default(), Volume::and)
    }

    /// What this rank received from all others.
    pub fn received(&self) -> Volume {
        let all = self.peers.iter().map(|peer| peer.received);
        all.fold(Volume::default(), Volume::and)
    }
}

/// The share of communication that a graph hides, by three runs with the same placement: of a
/// synchronous program, of the graph, and of a program whose communication is left out. 1: all
/// of it; below 0: the graph is slower than the synchronous program. `None`: communication took
/// no time.
///
/// One run cannot tell: a worker that waits does not know whether a message is on its way.
///
/// ```
/// use std::time::Duration;
///
/// let (synchronous, graph) = (Duration::from_secs(10), Duration::from_secs(9));
/// let without = Duration::from_secs(8);
/// assert_eq!(osier_tasks::report::hidden(synchronous, graph, without), Some(0.5));
/// ```
pub fn hidden(synchronous: Duration, graph: Duration, without: Duration) -> Option<f64> {
    let communication = synchronous.checked_sub(without)?.as_secs_f64();
    let saved = synchronous.as_secs_f64() - graph.as_secs_f64();
    (communication > 0.0).then_some(saved / communication)
}

/// Ranks whose lines a table has; the others are summed up.
const MOST_PEERS: usize = 16;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thread = match self.progress_thread {
            true => ", with a progress thread",
            false => "",
        };
        writeln!(
            f,
            "rank {}: {} tasks ended in {}{thread}",
            self.rank,
            self.tasks,
            Time(self.took.as_nanos() as u64)
        )?;
        write!(
            f,
            "{:>6} {:>13} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "worker", "firings", "ended", "stolen", "busy", "idle", "awaiting"
        )?;
        let is_timed = self.workers.iter().any(|w| w.in_tasks_ns.is_some());
        match is_timed {
            true => writeln!(f, " {:>9}", "in tasks")?,
            false => writeln!(f)?,
        }
        for (number, worker) in self.workers.iter().enumerate() {
            write!(
                f,
                "{number:>6} {:>13} {:>9} {:>9} {:>9} {:>9} {:>9}",
                worker.firings,
                worker.ended,
                worker.stolen,
                Time(worker.busy_ns()).to_string(),
                Time(worker.idle_ns).to_string(),
                Time(worker.awaiting_ns).to_string(),
            )?;
            match worker.in_tasks_ns {
                Some(ns) => writeln!(f, " {:>9}", Time(ns).to_string())?,
                None => writeln!(f)?,
            }
        }
        let stolen_within = |distance: Distance| -> u64 {
            let counts = self.workers.iter().map(|worker| worker.stolen_within);
            counts.map(|counts| counts[distance as usize]).sum()
        };
        let stolen = Distance::ALL.map(|distance| (distance.name(), stolen_within(distance)));
        if stolen.iter().any(|(_, tasks)| *tasks > 0) {
            writeln!(f, "{:>13} {:>13}", "stolen within", "tasks")?;
        }
        for (name, tasks) in stolen.into_iter().filter(|(_, tasks)| *tasks > 0) {
            writeln!(f, "{name:>13} {tasks:>13}")?;
        }
        let is_used = |peer: &&(usize, &PeerCounts)| *peer.1 != PeerCounts::default();
        let peers: Vec<_> = self.peers.iter().enumerate().collect();
        let peers: Vec<_> = peers.iter().filter(is_used).copied().collect();
        if peers.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "{:>6} {:>13} {:>12} {:>13} {:>12}",
            "peer", "messages to", "bytes to", "messages from", "bytes from"
        )?;
        for (rank, peer) in peers.iter().take(MOST_PEERS) {
            write_peer(f, &rank.to_string(), peer)?;
        }
        if peers.len() > MOST_PEERS {
            let all = PeerCounts {
                sent: self.sent(),
                received: self.received(),
            };
            write_peer(f, "all", &all)?;
        }
        Ok(())
    }
}

fn write_peer(f: &mut fmt::Formatter<'_>, name: &str, peer: &PeerCounts) -> fmt::Result {
    writeln!(
        f,
        "{name:>6} {:>13} {:>12} {:>13} {:>12}",
        peer.sent.messages,
        Bytes(peer.sent.bytes).to_string(),
        peer.received.messages,
        Bytes(peer.received.bytes).to_string(),
    )
}

/// A number of ns with its unit, in at most nine characters below 10^5 s.
pub(crate) struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        // What would be rounded to 1000 has the next unit.
        match self.0 {
            0..1_000 => write!(f, "{} ns", self.0),
            1_000..999_950 => write!(f, "{:.1} us", ns / 1e3),
            999_950..999_995_000 => write!(f, "{:.2} ms", ns / 1e6),
            _ => write!(f, "{:.2} s", ns / 1e9),
        }
    }
}

struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let (mut value, mut unit) = (self.0 as f64 / 1024.0, 0);
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(times: Option<u64>) -> Report {
        let volume = |messages, bytes| Volume { messages, bytes };
        Report {
            rank: 1,
            tasks: 64,
            took: Duration::from_micros(12_340),
            progress_thread: times.is_some(),
            workers: vec![
                Counts {
                    firings: 64_000,
                    stolen: 3,
                    stolen_within: [0; 6],
                    ended: 40,
                    took_ns: 12_300_000,
                    idle_ns: 300_000,
                    awaiting_ns: 900,
                    in_tasks_ns: times,
                },
                Counts {
                    firings: u64::from(u32::MAX),
                    ..Counts::default()
                },
            ],
            peers: vec![
                PeerCounts {
                    sent: volume(1_000, 8_000),
                    received: volume(999, 7_992),
                },
                PeerCounts::default(),
                PeerCounts::default(),
                PeerCounts {
                    sent: volume(1, 3 << 40),
                    received: volume(0, 0),
                },
            ],
            times_ns: None,
        }
    }

    #[test]
    fn table_has_units_and_fits_80_columns() {
        let text = report(None).to_string();
        let expected = "\
rank 1: 64 tasks ended in 12.34 ms
worker       firings     ended    stolen      busy      idle  awaiting
     0         64000        40         3  12.00 ms  300.0 us    900 ns
     1    4294967295         0         0      0 ns      0 ns      0 ns
  peer   messages to     bytes to messages from   bytes from
     0          1000      7.8 KiB           999      7.8 KiB
     3             1      3.0 TiB             0          0 B
";
        assert_eq!(text, expected);
        let text = report(Some(11_000_000)).to_string();
        assert!(
            text.contains("in tasks\n") && text.contains(" 11.00 ms\n"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let head = "rank 1: 64 tasks ended in 12.34 ms, with a progress thread\n";
        assert!(text.starts_with(head), "{text}");
    }

    #[test]
    fn steals_are_summed_up_by_distance() {
        let mut report = report(None);
        report.workers[0].stolen_within = [0, 7, 0, 0, 0, u64::from(u32::MAX)];
        report.workers[1].stolen_within[1] = 5;
        let text = report.to_string();
        let expected = "
stolen within         tasks
     L2 cache            12
      machine    4294967295
  peer ";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn many_peers_are_summed_up() {
        let mut report = report(None);
        report.peers = vec![report.peers[0]; 100];
        let text = report.to_string();
        let last = text.lines().last().expect("a line");
        assert!(last.starts_with("   all        100000"), "{text}");
        assert_eq!(text.lines().count(), 4 + 1 + MOST_PEERS + 1);
    }

    #[test]
    fn numbers_keep_to_their_columns() {
        for ns in [0, 999, 1_000, 999_949, 999_950, 999_994_999, 999_995_000] {
            assert!(Time(ns).to_string().len() <= 9, "{}", Time(ns));
        }
        assert_eq!(Time(999_949).to_string(), "999.9 us");
        assert_eq!(Time(999_950).to_string(), "1.00 ms");
        assert_eq!(Time(1_500_000_000).to_string(), "1.50 s");
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes((1 << 20) - 1).to_string(), "1.0 MiB");
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0 EiB");
    }

    #[test]
    fn hidden_is_a_share_of_the_communication() {
        let of = |s, g, off| {
            hidden(
                Duration::from_secs(s),
                Duration::from_secs(g),
                Duration::from_secs(off),
            )
        };
        assert_eq!(of(10, 6, 6), Some(1.0));
        assert_eq!(of(10, 10, 6), Some(0.0));
        assert_eq!(of(10, 12, 6), Some(-0.5));
        assert_eq!(of(10, 9, 10), None, "no communication");
        assert_eq!(of(10, 9, 11), None, "without it is slower");
    }
}
