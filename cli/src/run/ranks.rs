//! Ranks of each process: blocks of consecutive numbers.

use std::ffi::OsString;
use std::fmt;
use std::ops::Range;

use osier::config::Process;
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

    /// Variables by which the process finds its job and its ranks. `program` is the number
    /// of its program, `sets` are those of `--pset`.
    pub fn env(
        &self,
        job: &Job,
        places: &[Option<CpuSet>],
        program: usize,
        sets: &[String],
    ) -> Vec<(String, OsString)> {
        let bound: Option<Vec<Vec<usize>>> = places
            .iter()
            .map(|set| Some(set.as_ref()?.cpus()))
            .collect();
        let process = Process {
            ranks: self.count,
            cpus: bound.filter(|_| self.count > 1).unwrap_or_default(),
            program,
            sets: sets.to_vec(),
        };
        let env = job.env(self.first, &process.text()).into_iter();
        env.map(|(k, v)| (k, v.into())).collect()
    }
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
