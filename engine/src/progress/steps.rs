//! Crash injection: ends this process at a chosen message of a lane, and writes the messages
//! down; for tests of deaths, in builds with debug assertions alone.
//!
//! ```text
//! OSIER_DEBUG=die-at=PHASE:KIND:N[@RANK]   killed at the N-th step of this phase and kind
//! OSIER_DEBUG=steps=PREFIX                 each step is a line of PREFIX.PID
//! ```
//!
//! Phases are `posts`, `posted`, `handles` and `handled`; kinds those of [`wire`], and FLAG:
//! posted when one is raised in a segment, handled when a peer's is seen.
//!
//! # Invariants
//! 1. A system call on numbers touches no memory of the process.

use crate::env;
use crate::error::{Error, ErrorKind, Result};
use crate::wire;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Where a message of a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Posts,
    Posted,
    Handles,
    Handled,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Posts, Phase::Posted, Phase::Handles, Phase::Handled];

    fn name(self) -> &'static str {
        match self {
            Phase::Posts => "posts",
            Phase::Posted => "posted",
            Phase::Handles => "handles",
            Phase::Handled => "handled",
        }
    }
}

/// Where a process is to end, of all ranks or of one.
pub struct End {
    /// Phase and kind.
    step: String,
    /// The how manieth of them it is.
    number: u64,
    rank: Option<usize>,
}

/// In place of a kind of message: a flag in a segment.
pub(crate) const FLAG: u8 = u8::MAX - 1;

/// Name of a kind.
fn name(kind: u8) -> &'static str {
    match kind {
        FLAG => "FLAG",
        kind => wire::name(kind),
    }
}

/// Parses `PHASE:KIND:N[@RANK]`.
pub fn parse(text: &str) -> Result<End> {
    let end = || {
        let (step, rank) = match text.split_once('@') {
            Some((step, rank)) => (step, Some(rank.parse().ok()?)),
            None => (text, None),
        };
        let (step, number) = step.rsplit_once(':')?;
        let (phase, kind) = step.split_once(':')?;
        let number = number.parse().ok().filter(|n| *n > 0)?;
        let known = Phase::ALL.iter().any(|p| p.name() == phase)
            && (0..u8::MAX).any(|k| name(k) == kind && kind != name(u8::MAX));
        known.then(|| End {
            step: step.to_owned(),
            number,
            rank,
        })
    };
    end().ok_or_else(|| {
        Error::new(
            ErrorKind::Config,
            format!(
                "{} is no step (hint: PHASE:KIND:N[@RANK], such as posted:SLOT:2@1)",
                env::shown(text)
            ),
        )
    })
}

struct Steps {
    /// Phase and kind, and how many of them to the end.
    dies: Option<(String, Mutex<u64>)>,
    file: Option<File>,
}

fn steps() -> &'static Steps {
    static STEPS: OnceLock<Steps> = OnceLock::new();
    STEPS.get_or_init(|| {
        let own = env::value("OSIER_RANK").and_then(|rank| rank.parse().ok());
        // Who joins a job has had it checked.
        let end = env::debug("die-at", parse).ok().flatten();
        let ours = end.filter(|end| end.rank.is_none() || end.rank == own);
        let file = env::debug_path("steps").and_then(|prefix| {
            let mut path = prefix.into_os_string();
            path.push(format!(".{}", std::process::id()));
            let made = File::create(&path);
            made.inspect_err(|e| eprintln!("osier: OSIER_DEBUG: steps: {}: {e}", path.display()))
                .ok()
        });
        Steps {
            dies: ours.map(|end| (end.step, Mutex::new(end.number))),
            file,
        }
    })
}

/// A message of a kind is at a phase.
pub(crate) fn at(phase: Phase, kind: u8) {
    let steps = steps();
    if steps.dies.is_none() && steps.file.is_none() {
        return;
    }
    let step = format!("{}:{}", phase.name(), name(kind));
    if let Some(mut file) = steps.file.as_ref() {
        // Who reads the file notices what is missing.
        let _ = writeln!(file, "{step}");
    }
    if let Some((name, left)) = &steps.dies
        && *name == step
    {
        let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(1);
        if *left == 0 {
            // SAFETY: invariant 1: a signal to this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
    }
}
