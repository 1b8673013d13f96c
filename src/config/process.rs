//! What `osier run` tells a process of the job, in `OSIER_JOB` behind the descriptors.
//!
//! ```text
//! OSIER_JOB=2:3,4,5;ranks=2;cpus=0,4;cpus=1,5;program=1;pset=ocean=0-3,7
//!           |  |    |        |                 |          one set of ranks, --pset
//!           |  |    |        |                 number of the program of several, mpiexec
//!           |  |    |        processors of each rank, where ranks are threads
//!           |  |    ranks of this process, --ranks-per-process
//!           |  descriptors, the transport's
//!           version
//! ```
//!
//! What is as without `osier run` is left out. No value has a semicolon: `--pset` refuses
//! one, and the others are numbers.

use osier_engine::env::bad;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_transports::shm::MAX_RANKS;

/// A process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Ranks that are threads of it, at least one.
    pub ranks: usize,
    /// Processors of each rank; empty where ranks are not bound.
    pub cpus: Vec<Vec<usize>>,
    /// The number of its program, in a job of several.
    pub program: usize,
    /// Sets of ranks, as `NAME=0-3,7`.
    pub sets: Vec<String>,
}

impl Default for Process {
    fn default() -> Process {
        Process {
            ranks: 1,
            cpus: Vec::new(),
            program: 0,
            sets: Vec::new(),
        }
    }
}

impl Process {
    /// What a value of `OSIER_JOB` says.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Config`]: a part makes no sense.
    pub fn of(description: &str) -> Result<Process> {
        let mut process = Process::default();
        for part in description.split(';').skip(1) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let number = |least: usize, most: usize| {
                let number = value.parse().ok();
                let number = number.filter(|n| (least..=most).contains(n));
                number.ok_or_else(|| wrong(part))
            };
            match key {
                "ranks" => process.ranks = number(1, MAX_RANKS)?,
                "program" => process.program = number(0, MAX_RANKS - 1)?,
                "cpus" => process
                    .cpus
                    .push(parse_cpus(value).ok_or_else(|| wrong(part))?),
                "pset" => process.sets.push(value.to_owned()),
                _ => return Err(wrong(part)),
            }
        }
        if !process.cpus.is_empty() && process.cpus.len() != process.ranks {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "processors of {} ranks, and the process has {} (hint: it is set by osier run)",
                    process.cpus.len(),
                    process.ranks
                ),
            ));
        }
        Ok(process)
    }

    /// The same as text, to stand behind the descriptors.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut part = |key: &str, value: &str| text += &format!(";{key}={value}");
        if self.ranks != 1 {
            part("ranks", &self.ranks.to_string());
        }
        for cpus in &self.cpus {
            let numbers: Vec<String> = cpus.iter().map(usize::to_string).collect();
            part("cpus", &numbers.join(","));
        }
        if self.program != 0 {
            part("program", &self.program.to_string());
        }
        for set in &self.sets {
            part("pset", set);
        }
        text
    }
}

fn wrong(part: &str) -> Error {
    bad(
        part,
        "part of a job's description",
        "it is set by osier run",
    )
}

/// Parses processors such as `0,4`; none for a rank that is not bound.
fn parse_cpus(text: &str) -> Option<Vec<usize>> {
    let numbers = text.split(',').filter(|n| !n.is_empty());
    numbers.map(|n| n.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_comes_back() {
        let sets = vec!["ocean=0-3,7".to_owned(), "a=b=1".to_owned()];
        for ranks in [1, 2, 3] {
            for cpus in [Vec::new(), vec![vec![0, 4]; ranks], vec![Vec::new(); ranks]] {
                for program in [0, 5] {
                    for sets in [Vec::new(), sets.clone()] {
                        let process = Process {
                            ranks,
                            cpus: cpus.clone(),
                            program,
                            sets,
                        };
                        let text = format!("2:3,4,5{}", process.text());
                        assert_eq!(Process::of(&text).expect(&text), process, "{text}");
                    }
                }
            }
        }
        assert_eq!(Process::default().text(), "");
    }

    #[test]
    fn parts_that_make_no_sense_are_refused() {
        for part in [
            "ranks=0",
            "ranks=x",
            "ranks=4000000000",
            "ranks",
            "cpus=a",
            "cpus=0,-1",
            "cpus=0;cpus=1",
            "program=-1",
            "other=1",
            "",
        ] {
            let e = Process::of(&format!("2:3,4,5;{part}")).expect_err(part);
            assert!(e.kind() == ErrorKind::Config, "{part}: {e}");
            assert!(e.to_string().contains("hint"), "{part}: {e}");
        }
    }
}
