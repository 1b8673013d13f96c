//! A timeline of ranks: calls, protocol phases, messages as arrows.
//!
//! ```text
//! thread -> ring (a file of DIR, mapped) --merge--> DIR/trace.json
//! ```
//!
//! | module | duty |
//! |---|---|
//! | [`event`] | one event, in 64 bytes |
//! | [`family`] | families of tasks, by name and extents |
//! | `ring` | event ring of a thread: no lock, no system call |
//! | [`mod@file`] | the file, and its strict reader |
//! | [`timeline`] | spans and arrows from the recordings of all threads; pure |
//! | [`chrome`] | writes a timeline for Perfetto |
//!
//! Off, it costs a branch per call. On, it costs an event two readings of the
//! clock and a cache line of stores at most.
//!
//! # Invariants
//! 1. A ring belongs to one thread of one rank, or to a track that threads of the rank take
//!    turns in; nobody else writes it.
//! 2. A recorded event is in the file, even if the process is killed.
//! 3. When a ring is full the newest events are kept, and the number of dropped
//!    ones is reported.
//! 4. The n-th start (eager, first, RTS) that a rank posts to a peer on a
//!    communicator is the n-th that the peer handles: so both ends number a
//!    message alike without any exchange.
//!
//! # Sources
//! The format of the result: "Trace Event Format", Google, 2016 (JSON, as
//! Perfetto reads it). Flow events as message arrows: as in Score-P and
//! MPI trace viewers since J. Chassin de Kergommeaux, B. Stein, P. Bernard,
//! "Pajé, an interactive visualization tool", Parallel Computing 26, 2000.

pub mod chrome;
pub mod event;
pub mod family;
pub mod file;
#[allow(unsafe_code, reason = "a thread records into a mapped file")]
mod ring;
pub mod timeline;

use crate::env::{self, bad, parse_bytes};
use crate::error::{Error, ErrorKind, Result};
use event::{Event, Kind, Phase};
use family::Family;
use osier_kernels::files;
use ring::At;
pub use ring::Track;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Events that a thread keeps unless `OSIER_DEBUG=trace-events=N` says otherwise.
pub const DEFAULT_EVENTS: usize = 1 << 16;
/// Most events of a timeline that a thread keeps: 1 GiB of them.
const MOST_EVENTS: usize = 1 << 24;
/// Maximum size of a recording: the events, and the header and sites before them.
const MOST_RECORDING_BYTES: u64 = 2 * (MOST_EVENTS * size_of::<Event>()) as u64;
/// Suffix of the names of recordings.
pub const SUFFIX: &str = "osiertrace";

/// Settings of recording: folder and size of the rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The folder of the recordings.
    pub folder: PathBuf,
    /// Events that a thread keeps; rounded up to a power of two.
    pub events: usize,
}

impl Options {
    /// The settings in the environment, if any.
    pub fn from_env() -> Result<Option<Options>> {
        let folder = env::path("OSIER_TRACE");
        let events = env::debug("trace-events", parse_events)?;
        let events = events.unwrap_or(DEFAULT_EVENTS);
        Ok(folder.map(|folder| Options { folder, events }))
    }
}

/// Parses `trace-events`: events of the timeline that each thread keeps.
///
/// # Errors
/// Of kind [`ErrorKind::Config`].
pub fn parse_events(text: &str) -> Result<usize> {
    let events = parse_bytes(text).ok().and_then(|n| usize::try_from(n).ok());
    events
        .filter(|n| (2..=MOST_EVENTS).contains(n))
        .ok_or_else(|| bad(text, "number of events", "2 to 16M, such as 64K"))
}

/// Records the events of one rank.
pub struct Tracer {
    /// No other tracer of the process has this number.
    id: u64,
    options: Options,
    /// Job, rank and size of the job.
    job: u64,
    rank: u32,
    ranks: u32,
    threads: AtomicU32,
    tracks: ring::Tracks,
    /// Recording failed once and is off.
    broken: AtomicU32,
}

impl Tracer {
    pub fn new(options: Options, job: u64, rank: u32, ranks: u32) -> Result<Arc<Tracer>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let folder = &options.folder;
        std::fs::create_dir_all(folder).map_err(|e| cannot("make the folder", folder, &e))?;
        Ok(Arc::new(Tracer {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            options,
            job,
            rank,
            ranks,
            threads: AtomicU32::new(0),
            tracks: ring::Tracks::default(),
            broken: AtomicU32::new(0),
        }))
    }

    /// The folder of the recordings.
    pub fn folder(&self) -> &Path {
        &self.options.folder
    }

    /// The job's number.
    pub fn job(&self) -> u64 {
        self.job
    }

    /// Records an event of the calling thread.
    #[inline]
    pub fn record(self: &Arc<Self>, event: Event) {
        ring::record(self, &event, At::Nowhere);
    }

    /// As [`Tracer::record`], with the user's line.
    #[inline]
    pub fn record_at(self: &Arc<Self>, event: Event, site: &'static Location<'static>) {
        ring::record(self, &event, At::Line(site));
    }

    /// As [`Tracer::record`], of a task of this family.
    pub fn record_of(self: &Arc<Self>, event: Event, family: &Family) {
        ring::record(self, &event, At::Family(family));
    }

    /// The calling thread records to the track of this name until the guard is dropped;
    /// later threads of the rank go on with it. Nothing, if recording has failed.
    pub fn track(self: &Arc<Self>, name: String) -> Option<Track> {
        ring::track(self, name)
    }

    /// Begins a call; its end is recorded when the span is dropped.
    #[cold]
    pub fn call(self: &Arc<Self>, event: Event, site: &'static Location<'static>) -> Span {
        self.record_at(
            Event {
                time_ns: now_ns(),
                phase: Phase::Begin,
                ..event
            },
            site,
        );
        Span(Some((self.clone(), event.kind)))
    }
}

/// A call under way; empty if recording is off.
pub struct Span(Option<(Arc<Tracer>, Kind)>);

impl Span {
    pub const OFF: Span = Span(None);
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some((tracer, kind)) = &self.0 {
            tracer.record(Event {
                time_ns: now_ns(),
                phase: Phase::End,
                ..Event::of(*kind)
            });
        }
    }
}

/// The clock of all recordings of a machine, in ns.
#[inline]
pub fn now_ns() -> u64 {
    ring::now_ns()
}

/// Result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The file that was written.
    pub file: PathBuf,
    /// Ranks with a recording.
    pub ranks: usize,
    /// Events in it.
    pub events: u64,
    /// Events that did not fit into the rings.
    pub dropped: u64,
    /// Messages with both ends recorded.
    pub arrows: usize,
}

/// Merges the recordings of a folder into one timeline per job and removes
/// them. With one job, or the job asked for, the file is `trace.json`;
/// otherwise it bears the job's number.
///
/// # Errors
/// A folder that cannot be read or written; a recording that no Osier of this
/// version wrote. The recordings then stay.
pub fn merge(folder: &Path, only: Option<u64>) -> Result<Vec<Merged>> {
    let mut jobs: std::collections::BTreeMap<u64, Vec<(PathBuf, file::Recording)>> =
        std::collections::BTreeMap::new();
    let entries = std::fs::read_dir(folder).map_err(|e| cannot("read the folder", folder, &e))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == SUFFIX));
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if only.is_some_and(|job| !name.starts_with(&format!("{job:016x}-"))) {
            continue;
        }
        let bytes =
            files::read(&path, MOST_RECORDING_BYTES).map_err(|e| cannot("read", &path, &e))?;
        if bytes.get(..8).is_some_and(|magic| magic == [0; 8]) {
            // Its thread was killed before it recorded anything.
            std::fs::remove_file(&path).map_err(|e| cannot("remove", &path, &e))?;
            continue;
        }
        let recording = file::decode(&bytes)
            .map_err(|e| e.context(format!("reading the trace {}", path.display())))?;
        drop(bytes);
        jobs.entry(recording.job)
            .or_default()
            .push((path, recording));
    }
    let alone = jobs.len() == 1;
    let mut merged = Vec::new();
    for (job, recordings) in jobs {
        let (paths, recordings): (Vec<PathBuf>, Vec<_>) = recordings.into_iter().unzip();
        let name = if alone {
            "trace.json".into()
        } else {
            format!("trace-{job:016x}.json")
        };
        let file = folder.join(name);
        let timeline = timeline::Timeline::of(&recordings);
        let out = std::fs::File::create(&file).map_err(|e| cannot("make", &file, &e))?;
        let mut out = std::io::BufWriter::new(out);
        chrome::write(&timeline, &mut out)
            .and_then(|()| std::io::Write::flush(&mut out))
            .map_err(|e| cannot("write", &file, &e))?;
        for path in paths {
            std::fs::remove_file(&path).map_err(|e| cannot("remove", &path, &e))?;
        }
        let mut ranks: Vec<u32> = recordings.iter().map(|r| r.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        merged.push(Merged {
            file,
            ranks: ranks.len(),
            events: recordings.iter().map(|r| r.events.len() as u64).sum(),
            dropped: recordings.iter().map(|r| r.dropped).sum(),
            arrows: timeline.arrows.len(),
        });
    }
    Ok(merged)
}

fn cannot(what: &str, path: &Path, e: &std::io::Error) -> Error {
    let mut text = e.to_string();
    if let Some(at) = text.find(" (os error") {
        text.truncate(at);
    }
    let text = text.to_lowercase();
    Error::new(
        ErrorKind::System,
        format!("trace: cannot {what} {}: {text}", path.display()),
    )
}
