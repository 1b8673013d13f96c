//! Status page: written by its rank, read by anyone who has the arena, without disturbing the
//! rank.
//!
//! What the words mean is the writer's business.
//!
//! # Invariants
//! 1. A page has one writer at a time (the rank sees to that). The version is
//!    odd while it writes.
//! 2. A reader that saw the same even version before and after has read words
//!    of one writing.
//!
//! # Sources
//! Sequence locks with atomics: H.-J. Boehm, "Can Seqlocks Get Along with
//! Programming Language Memory Models?", MSPC 2012.

use super::job::Job;
use super::mapping::Mapping;
use super::segment::{JobHeader, RankControl, control_at, header_at, map_head, status_at};
use crate::Death;
use crate::contract::TransportError;
use crate::sync::{AtomicU64, Ordering, fence};
use std::os::fd::OwnedFd;

/// Words on a page.
pub const STATUS_WORDS: usize = 255;
/// Readings of a page that is being written, before the reader gives up: its
/// writer may have been stopped in the middle.
const TRIES: u32 = 1_000;

/// One rank's page.
#[repr(C, align(128))]
pub(crate) struct StatusPage {
    version: AtomicU64,
    words: [AtomicU64; STATUS_WORDS],
}

impl StatusPage {
    pub(crate) fn write(&self, words: &[u64]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1) | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in self.words.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        self.version
            .store((version | 1).wrapping_add(1), Ordering::Release);
    }

    pub(crate) fn read(&self, words: &mut [u64]) -> bool {
        for _ in 0..TRIES {
            let before = self.version.load(Ordering::Acquire);
            for (word, from) in words.iter_mut().zip(&self.words) {
                *word = from.load(Ordering::Relaxed);
            }
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.version.load(Ordering::Relaxed) == before {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}

/// How the ranks of a job are: reads, and changes nothing.
pub struct JobStatus {
    head: Mapping,
    ranks: usize,
}

impl JobStatus {
    /// Of a job that this process has.
    pub fn of(job: &Job) -> Result<JobStatus, TransportError> {
        Self::map(job.segment().arena.file())
    }

    /// Of the job whose arena `path` names, such as `/proc/PID/fd/N`.
    pub fn open(path: &std::path::Path) -> Result<JobStatus, TransportError> {
        let what = || format!("opening {}", path.display());
        let file = std::fs::File::open(path).map_err(|e| TransportError::os(what(), &e))?;
        Self::map(&file.into())
    }

    fn map(arena: &OwnedFd) -> Result<JobStatus, TransportError> {
        let (head, ranks) = map_head(arena, false)?;
        Ok(JobStatus { head, ranks })
    }

    fn header(&self) -> &JobHeader {
        // SAFETY: invariants 3 and 6 of `segment`; the mapping lives as long as `self`.
        unsafe { header_at(self.head.base()) }
    }

    fn control(&self, rank: usize) -> &RankControl {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: invariant 6 of `segment`, by the assertion.
        unsafe { control_at(self.head.base(), rank) }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Number that tells the job from others.
    pub fn id(&self) -> u64 {
        self.header().job_id.load(Ordering::Relaxed)
    }

    /// The process that made the job: its launcher.
    pub fn creator(&self) -> u32 {
        self.header().creator.load(Ordering::Relaxed)
    }

    /// A rank's process; 0 before it joined.
    pub fn pid(&self, rank: usize) -> u32 {
        self.control(rank).pid.load(Ordering::Relaxed)
    }

    /// How a rank ended, if it has.
    pub fn death(&self, rank: usize) -> Option<Death> {
        super::job::death_of_word(self.control(rank).death.load(Ordering::Acquire))
    }

    /// Whether a thread of the rank waits in the library right now.
    pub fn attending(&self, rank: usize) -> bool {
        self.control(rank).attending.load(Ordering::Relaxed) != 0
    }

    /// Reads the first words of a rank's page; false if it was being written
    /// all the time.
    pub fn read(&self, rank: usize, words: &mut [u64]) -> bool {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: invariant 6 of `segment`, by the assertion.
        unsafe { status_at(self.head.base(), self.ranks, rank) }.read(words)
    }
}

/// Nanoseconds of the machine's monotonic clock, which all processes share.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: invariant 4 of `segment`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::JobOptions;

    #[test]
    fn readers_see_whole_writings() {
        let job = Job::create(&JobOptions {
            ranks: 3,
            limit_bytes: None,
        })
        .expect("a job");
        let status = JobStatus::of(&job).expect("its pages");
        assert_eq!((status.ranks(), status.id()), (3, job.id()));
        assert_eq!(status.creator(), std::process::id());
        let page = job.segment().status(2);
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                for n in 0..20_000u64 {
                    page.write(&[n; STATUS_WORDS]);
                }
            });
            let mut words = [0; STATUS_WORDS];
            while !writer.is_finished() {
                if status.read(2, &mut words) {
                    assert!(words.iter().all(|w| *w == words[0]), "{words:?}");
                }
            }
        });
        let mut words = [0; STATUS_WORDS];
        assert!(status.read(2, &mut words));
        assert_eq!(words, [19_999; STATUS_WORDS]);
        assert!(status.read(1, &mut words));
        assert_eq!(words, [0; STATUS_WORDS]);
    }
}
