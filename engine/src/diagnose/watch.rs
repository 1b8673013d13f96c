//! Watcher: reads the status pages of a job.

use super::outside::{Outside, Process, Sleeper};
use super::page::{Page, State, Wait};
use super::report::{self, Line};
use super::verdict::{Drowse, Standing, hangs, probably_hangs};
use osier_transports::Death;
use osier_transports::shm::{JobStatus, STATUS_WORDS, monotonic_ns};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

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

/// Watches a job for hangs, and reports each stuck wait once.
#[derive(Debug, Default)]
pub struct Watcher {
    /// A rank that was busy: the first to be asked next time.
    suspect: usize,
    /// When ranks were first seen dead.
    dead: HashMap<usize, u64>,
    reported: HashSet<(bool, usize, u64, String)>,
    /// Ranks of which no thread waits inside, so that they cannot say how they are.
    silent: HashMap<usize, Silent>,
}

/// A rank of which no thread waits inside.
#[derive(Debug)]
struct Silent {
    threads: Outside,
    process: Process,
    drowse: Drowse,
    sleepers: Vec<Sleeper>,
    looked_ns: u64,
}

/// A job that hangs.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whether that is certain.
    pub certain: bool,
    /// What its ranks wait for.
    pub text: String,
}

/// Whether a job hangs, and for certain; `patience` is how long it stands still before it
/// probably does.
pub fn verdict(
    ranks: impl IntoIterator<Item = Standing> + Clone,
    patience: Option<Duration>,
) -> Option<bool> {
    if hangs(ranks.clone()) {
        return Some(true);
    }
    let patience = u64::try_from(patience?.as_nanos()).ok()?;
    probably_hangs(ranks, patience).then_some(false)
}

impl Watcher {
    /// The report, if the job hangs and not every wait was reported before. Asks
    /// one rank as long as that one is busy.
    pub fn observe(&mut self, job: &JobStatus, patience: Option<Duration>) -> Option<Report> {
        // Most of the time it still computes, and no other is asked.
        self.suspect = self.suspect.min(job.ranks().checked_sub(1)?);
        if self.standing(job, self.suspect, patience) == Standing::Busy {
            return None;
        }
        let ranks = 0..job.ranks();
        let standings = ranks.map(|r| self.standing(job, r, patience));
        let standings: Vec<Standing> = standings.collect();
        if let Some(busy) = standings.iter().position(|s| *s == Standing::Busy) {
            self.suspect = busy;
            return None;
        }
        let certain = verdict(standings, patience)?;
        let (mut pages, mut failed) = (Vec::new(), Vec::new());
        for rank in 0..job.ranks() {
            let mut page = page(job, rank);
            if let (Some(page), Some(silent)) = (&mut page, self.silent.get(&rank)) {
                page.sleepers.clone_from(&silent.sleepers);
            }
            match job.death(rank) {
                None => pages.extend(page.map(|page| (rank, page))),
                Some(death) if death.is_failure() => failed.push((rank, death)),
                Some(_) => {}
            }
        }
        self.tell(certain, &pages, &failed, job.ranks())
    }

    fn standing(&mut self, job: &JobStatus, rank: usize, patience: Option<Duration>) -> Standing {
        if job.death(rank).is_some() {
            let since = *self.dead.entry(rank).or_insert_with(monotonic_ns);
            return Standing::Gone { since };
        }
        match (standing(job, rank), patience) {
            (Standing::Busy, Some(patience)) => self.silent(job, rank, patience),
            (known, _) => {
                self.silent.remove(&rank);
                known
            }
        }
    }

    /// Looks at the process of a rank that does not say how it is, ten times while it is
    /// given time.
    fn silent(&mut self, job: &JobStatus, rank: usize, patience: Duration) -> Standing {
        let process = Process(job.pid(rank));
        let waits = page(job, rank).is_none_or(|p| p.state != State::Joined || p.total > 0);
        // This process has a thread that is awake: this one.
        if waits || process.0 == 0 || process == Process::own() {
            self.silent.remove(&rank);
            return Standing::Busy;
        }
        let fresh = || Silent {
            threads: Outside::new(process),
            process,
            drowse: Drowse::default(),
            sleepers: Vec::new(),
            looked_ns: 0,
        };
        let silent = self.silent.entry(rank).or_insert_with(fresh);
        let began = monotonic_ns();
        if u128::from(began - silent.looked_ns) * 10 >= patience.as_nanos() {
            silent.looked_ns = began;
            silent.observe(began);
        }
        silent.drowse.standing()
    }

    /// The report of a job that hangs with these pages and failed ranks.
    pub fn tell(
        &mut self,
        certain: bool,
        pages: &[(usize, Page)],
        failed: &[(usize, Death)],
        ranks: usize,
    ) -> Option<Report> {
        let mut lines = Vec::new();
        let mut fresh = false;
        for (rank, page) in pages {
            for sleeper in page.sleepers.iter().filter(|_| !certain) {
                let what = (certain, *rank, u64::from(sleeper.thread), String::new());
                fresh |= page.waits.is_empty() && self.reported.insert(what);
            }
            for wait in &page.waits {
                let (rank, since, what) = identity(*rank, wait);
                fresh |= self.reported.insert((certain, rank, since, what));
                lines.push(Line {
                    rank,
                    wait: wait.clone(),
                });
            }
        }
        let outside = pages.iter().flat_map(|(rank, page)| {
            let sleepers = page.sleepers.iter();
            sleepers.map(move |sleeper| (*rank, sleeper.clone()))
        });
        let hang = report::Hang {
            certain,
            ranks,
            waits: lines,
            outside: outside.filter(|_| !certain).collect(),
            failed: failed.to_vec(),
        };
        fresh.then(|| Report {
            certain,
            text: hang.text(monotonic_ns()),
        })
    }
}

impl Silent {
    fn observe(&mut self, began: u64) {
        let threads = self.process.threads().unwrap_or_default();
        let asleep = match threads.is_empty() {
            true => None,
            false => self.threads.observe(&threads),
        };
        let print = asleep.as_ref().map_or(0, |asleep| asleep.print);
        let times = (began, monotonic_ns());
        // It receives nothing that any thread waits for.
        let calm = asleep.is_some();
        self.drowse.observe(calm, print, 0, u64::MAX, times);
        self.sleepers = asleep.map(|a| a.sleepers).unwrap_or_default();
    }
}

fn identity(rank: usize, wait: &Wait) -> (usize, u64, String) {
    let what = format!(
        "{:?} {:?} {:?} {} {}",
        wait.operation, wait.peer, wait.tag, wait.context, wait.posted
    );
    (rank, wait.since_ns, what)
}
