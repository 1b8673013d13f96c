//! Check that stored costs still hold: a few times are measured again, in less than a
//! millisecond and by this process alone.
//!
//! Messages need a peer, so only work of one rank is measured: copies and sums. Of many
//! tries the shortest counts, which other work hardly disturbs; it is stored beside the
//! costs, of which those of messages are medians, so that both sides are shortest times.

use super::Apart;
use osier_datatype::Operator;
use osier_engine::exec::reduce_local::reduce_local;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

/// Sizes, and number of tries of each.
const LOGS: [u32; 3] = [12, 15, 18];
const TRIES: usize = 16;
/// Tolerated deviation of times.
const FACTOR: f64 = 2.0;

/// The shortest time of some work of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// A sum of doubles, not a copy.
    pub sum: bool,
    /// Of the result.
    pub bytes: u64,
    /// Its duration, in ns.
    pub ns: f64,
}

impl Probe {
    /// Measures all of them, now.
    pub(super) fn take() -> Vec<Probe> {
        let most = 1usize << LOGS[LOGS.len() - 1];
        let mut memory = Apart::of(most / 8);
        let (from, to) = memory.both();
        let mut all = Vec::new();
        for bytes in LOGS.map(|log| 1u64 << log) {
            let n = bytes as usize / 8;
            for sum in [false, true] {
                let mut ns = f64::INFINITY;
                for _ in 0..TRIES {
                    let begin = Instant::now();
                    let from = black_box(&from[..n]);
                    if sum {
                        let done = reduce_local(from, &mut to[..n], Operator::Sum);
                        black_box(done).unwrap_or_default();
                    } else {
                        black_box(&mut to[..n]).copy_from_slice(from);
                    }
                    ns = ns.min(begin.elapsed().as_secs_f64() * 1e9);
                }
                all.push(Probe { sum, bytes, ns });
            }
        }
        all
    }
}

/// Reason against costs measured together with `then`; `None`: they hold.
pub(super) fn outdated(then: &[Probe], now: &[Probe]) -> Option<String> {
    let all: Vec<(&Probe, f64)> = now
        .iter()
        .filter_map(|now| {
            let same = |then: &&Probe| (then.sum, then.bytes) == (now.sum, now.bytes);
            Some((now, then.iter().find(same)?.ns))
        })
        .collect();
    let mostly = |off: &dyn Fn(&(&Probe, f64)) -> bool| {
        let found: Vec<&(&Probe, f64)> = all.iter().filter(|pair| off(pair)).collect();
        let last = found.last().filter(|_| 2 * found.len() > all.len())?;
        Some(**last)
    };
    let (now, then) = mostly(&|(now, then)| now.ns > FACTOR * then)
        .or_else(|| mostly(&|(now, then)| *then > FACTOR * now.ns))?;
    Some(format!(
        "{} of {} KiB takes {:.1} us instead of {:.1}",
        if now.sum { "a sum" } else { "a copy" },
        now.bytes >> 10,
        now.ns / 1e3,
        then / 1e3
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(factor: f64) -> Vec<Probe> {
        let probe = |at: u64| Probe {
            sum: at % 2 == 1,
            bytes: 4096 << (at / 2 * 3),
            ns: 100.0 * factor * (at + 1) as f64,
        };
        (0..6).map(probe).collect()
    }

    #[test]
    fn other_machines_are_found() {
        for (factor, holds) in [
            (1.0, true),
            (1.9, true),
            (0.55, true),
            (2.1, false),
            (0.4, false),
        ] {
            let found = outdated(&probes(1.0), &probes(factor));
            assert_eq!(found.is_none(), holds, "{factor}: {found:?}");
        }
        let why = outdated(&probes(1.0), &probes(3.0)).unwrap();
        assert_eq!(why, "a sum of 256 KiB takes 1.8 us instead of 0.6");
        // There is nothing to compare with.
        assert_eq!(outdated(&[], &probes(1.0)), None);
    }

    #[test]
    fn some_sizes_that_are_off_are_no_reason() {
        let mut now = probes(1.0);
        for probe in &mut now[..3] {
            probe.ns *= 10.0;
        }
        assert_eq!(outdated(&probes(1.0), &now), None);
    }

    #[test]
    fn probes_are_times_of_all_sizes() {
        let taken = Probe::take();
        assert_eq!(taken.len(), 6);
        assert!(taken.iter().all(|p| p.ns.is_finite() && p.ns > 0.0));
    }
}
