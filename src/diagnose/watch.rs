//! Looks at the pages of a job.

use super::page::{Page, Wait};
use super::report::{self, Line};
use super::verdict::{Standing, hangs};
use osier_transports::shm::{JobStatus, STATUS_WORDS, monotonic_ns};
use std::collections::{HashMap, HashSet};

/// A rank's page, if it could be read.
pub fn page(job: &JobStatus, rank: usize) -> Option<Page> {
    let mut words = [0; STATUS_WORDS];
    job.read(rank, &mut words).then(|| Page::decode(&words))
}

fn standing(job: &JobStatus, rank: usize) -> Standing {
    let mut words = [0; Page::STANDING_WORDS];
    if job.read(rank, &mut words) {
        Page::decode(&words).standing()
    } else {
        Standing::Busy
    }
}

/// Looks out for hangs of a job, and tells of each stuck wait once.
#[derive(Debug, Default)]
pub struct Watcher {
    /// A rank that was busy: the first to be asked next time.
    suspect: usize,
    /// When ranks were first seen dead.
    dead: HashMap<usize, u64>,
    told: HashSet<(usize, u64, String)>,
}

impl Watcher {
    /// The report, if the job hangs and not every wait was told before. Asks
    /// one rank as long as that one is busy.
    pub fn look(&mut self, job: &JobStatus) -> Option<String> {
        // Most of the time it still computes, and nobody else is asked.
        self.suspect = self.suspect.min(job.ranks().checked_sub(1)?);
        if self.standing(job, self.suspect) == Standing::Busy {
            return None;
        }
        let standings: Vec<Standing> = (0..job.ranks()).map(|r| self.standing(job, r)).collect();
        if let Some(busy) = standings.iter().position(|s| *s == Standing::Busy) {
            self.suspect = busy;
            return None;
        }
        if !hangs(standings) {
            return None;
        }
        let pages: Vec<(usize, Page)> = (0..job.ranks())
            .filter(|r| job.death(*r).is_none())
            .filter_map(|r| Some((r, page(job, r)?)))
            .collect();
        self.tell(&pages, job.ranks())
    }

    fn standing(&mut self, job: &JobStatus, rank: usize) -> Standing {
        if job.death(rank).is_some() {
            let since = *self.dead.entry(rank).or_insert_with(monotonic_ns);
            return Standing::Gone { since };
        }
        standing(job, rank)
    }

    /// The report of a job that hangs with these pages.
    pub fn tell(&mut self, pages: &[(usize, Page)], ranks: usize) -> Option<String> {
        let mut lines = Vec::new();
        let mut fresh = false;
        for (rank, page) in pages {
            for wait in &page.waits {
                fresh |= self.told.insert(identity(*rank, wait));
                lines.push(Line {
                    rank: *rank,
                    wait: wait.clone(),
                });
            }
        }
        fresh.then(|| report::hang(&lines, ranks, monotonic_ns()))
    }
}

fn identity(rank: usize, wait: &Wait) -> (usize, u64, String) {
    let what = format!(
        "{:?} {:?} {:?} {} {}",
        wait.operation, wait.peer, wait.tag, wait.context, wait.posted
    );
    (rank, wait.since_ns, what)
}
