//! Which ranks a process holds: blocks of consecutive numbers.

use std::ffi::OsString;
use std::fmt;
use std::ops::Range;

use osier_transports::shm::Job;

use super::bind::CpuSet;

/// The ranks of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    pub first: usize,
    /// At least one.
    pub count: usize,
}

/// `ranks` ranks in blocks of `each`, the last one perhaps smaller.
pub fn blocks(ranks: usize, each: usize) -> Vec<Ranks> {
    let block = |first| Ranks {
        first,
        count: each.min(ranks - first),
    };
    (0..ranks).step_by(each).map(block).collect()
}

/// The length of the longest label.
pub fn label_width(blocks: &[Ranks]) -> usize {
    let lengths = blocks.iter().map(|ranks| ranks.label().len());
    lengths.max().unwrap_or(0)
}

impl Ranks {
    /// Their numbers.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// What stands before lines of the process: the rank, or the first and
    /// the last, since a line does not say which thread has written it.
    pub fn label(&self) -> String {
        match self.count {
            1 => self.first.to_string(),
            n => format!("{}-{}", self.first, self.first + n - 1),
        }
    }

    /// Variables by which the process finds its job and its ranks.
    pub fn env(&self, job: &Job, places: &[Option<CpuSet>]) -> Vec<(String, OsString)> {
        let env = job.env(self.first).into_iter();
        let mut env: Vec<(String, OsString)> = env.map(|(k, v)| (k, v.into())).collect();
        env.push(("OSIER_RANKS_HERE".into(), self.count.to_string().into()));
        let bound: Option<Vec<String>> = places
            .iter()
            .map(|set| Some(list(&set.as_ref()?.cpus())))
            .collect();
        // Set to nothing is not set; but one that we inherited must not hold.
        let bound = bound.filter(|_| self.count > 1).unwrap_or_default();
        env.push(("OSIER_CPUS".into(), bound.join(";").into()));
        env
    }
}

fn list(cpus: &[usize]) -> String {
    let numbers: Vec<String> = cpus.iter().map(usize::to_string).collect();
    numbers.join(",")
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "rank {}", self.first),
            n => write!(f, "ranks {} to {}", self.first, self.first + n - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_every_rank_once() {
        for ranks in 1..40 {
            for each in 1..45 {
                let blocks = blocks(ranks, each);
                let held: Vec<usize> = blocks.iter().flat_map(Ranks::range).collect();
                assert_eq!(held, (0..ranks).collect::<Vec<_>>());
                assert!(blocks.iter().all(|b| (1..=each).contains(&b.count)));
            }
        }
    }

    #[test]
    fn a_label_names_the_first_and_the_last() {
        let blocks = blocks(11, 4);
        let labels: Vec<String> = blocks.iter().map(Ranks::label).collect();
        assert_eq!(labels, ["0-3", "4-7", "8-10"]);
        assert_eq!(label_width(&blocks), 4);
        assert_eq!(blocks[2].to_string(), "ranks 8 to 10");
        assert_eq!(Ranks { first: 3, count: 1 }.to_string(), "rank 3");
    }
}
