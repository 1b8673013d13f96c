//! A machine of levels under the simulated network: what messages take by how far apart
//! their ranks are.
//!
//! A message leaves its rank by the rank's own way, and each part of the machine in which its
//! receiver is not by that part's way out, which all its ranks share. It occupies all of them
//! for its bytes, from the time when the last of them is free, and arrives a latency and its
//! bytes' time over the slowest of them later. One way is used by one message after the
//! other, in the order of posts. So runs on it need no seed.

/// What links of one distance are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimLink {
    /// Until the first byte is there.
    pub latency_ns: u64,
    /// The least time from one message of a rank to its next.
    pub gap_ns: u64,
    /// What each byte adds.
    pub ns_per_byte: f64,
}

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct SimMachine {
    /// By rank: its path from the outermost part inward; all as long.
    pub places: Vec<Vec<u32>>,
    /// By distance, within the innermost parts first: one more than paths have entries.
    pub links: Vec<SimLink>,
}

impl SimMachine {
    fn distance(&self, from: u32, to: u32) -> usize {
        let (a, b) = (&self.places[from as usize], &self.places[to as usize]);
        a.len() - a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }
}

/// When ways are free.
#[derive(Debug)]
pub(super) struct Ways {
    machine: SimMachine,
    /// By rank: its own, and those of the parts around it, innermost first.
    of: Vec<Vec<usize>>,
    free_ns: Vec<u64>,
}

impl Ways {
    pub fn new(machine: SimMachine) -> Ways {
        let ranks = machine.places.len();
        let mut parts: Vec<&[u32]> = Vec::new();
        let of = machine.places.iter().enumerate();
        let of = of.map(|(rank, place)| {
            let around = (1..=place.len()).rev().map(|depth| {
                let part = &place[..depth];
                let known = parts.iter().position(|p| *p == part);
                let at = known.unwrap_or_else(|| {
                    parts.push(part);
                    parts.len() - 1
                });
                ranks + at
            });
            [rank].into_iter().chain(around).collect()
        });
        let of: Vec<Vec<usize>> = of.collect();
        let ways = ranks + parts.len();
        Ways {
            of,
            free_ns: vec![0; ways],
            machine,
        }
    }

    /// When all of a message is there that is posted now.
    pub fn arrival_ns(&mut self, now_ns: u64, from: u32, to: u32, bytes: usize) -> u64 {
        let distance = self.machine.distance(from, to);
        let used = &self.of[from as usize][..=distance];
        let busy_ns = |level: usize| {
            let each = self.machine.links[level].ns_per_byte;
            (bytes as f64 * each).round() as u64
        };
        let free = used.iter().map(|way| self.free_ns[*way]);
        let start = free.fold(now_ns, u64::max);
        let mut slowest = 0;
        for (level, way) in used.iter().enumerate() {
            // The rank's own is as wide as the link.
            let (busy, gap) = match level {
                0 => (busy_ns(distance), self.machine.links[distance].gap_ns),
                _ => (busy_ns(level), 0),
            };
            self.free_ns[*way] = start + busy.max(gap);
            slowest = slowest.max(busy);
        }
        start + self.machine.links[distance].latency_ns + slowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(latency_ns: u64, ns_per_byte: f64) -> SimLink {
        SimLink {
            latency_ns,
            gap_ns: 5,
            ns_per_byte,
        }
    }

    /// Two nodes of two ranks.
    fn ways() -> Ways {
        Ways::new(SimMachine {
            places: vec![vec![0], vec![0], vec![1], vec![1]],
            links: vec![link(100, 1.0), link(1000, 2.0)],
        })
    }

    #[test]
    fn a_rank_sends_one_message_after_the_other() {
        let mut ways = ways();
        assert_eq!(ways.arrival_ns(0, 0, 1, 10), 110);
        assert_eq!(ways.arrival_ns(0, 0, 1, 10), 120);
        assert_eq!(ways.arrival_ns(500, 0, 1, 0), 600);
        assert_eq!(ways.arrival_ns(500, 0, 1, 0), 605);
        assert_eq!(ways.arrival_ns(0, 1, 0, 10), 110);
    }

    #[test]
    fn ranks_of_a_node_share_its_way_out() {
        let mut ways = ways();
        assert_eq!(ways.arrival_ns(0, 0, 2, 10), 1020);
        assert_eq!(ways.arrival_ns(0, 1, 3, 10), 1040);
        // Not the other node's, and not what stays inside.
        assert_eq!(ways.arrival_ns(0, 2, 0, 10), 1020);
        assert_eq!(ways.arrival_ns(30, 1, 0, 10), 150);
    }
}
