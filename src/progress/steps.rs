//! Ends this process at a step of what lanes say to each other, and writes the steps
//! down: for tests of deaths, in builds with debug assertions alone.
//!
//! ```text
//! OSIER_DIE_AT=PHASE:KIND:N[@RANK]   killed at the N-th step of this phase and kind
//! OSIER_STEPS=PREFIX                 each step is a line of PREFIX.PID
//! ```
//!
//! Phases are `posts`, `posted`, `handles` and `handled`; kinds those of [`wire`].

use crate::config;
use crate::wire;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Where a message of a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Posts,
    Posted,
    Handles,
    Handled,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Posts => "posts",
            Phase::Posted => "posted",
            Phase::Handles => "handles",
            Phase::Handled => "handled",
        }
    }
}

struct Steps {
    /// Phase and kind, and how many of them to the end.
    dies: Option<(String, Mutex<u64>)>,
    file: Option<File>,
}

fn steps() -> &'static Steps {
    static STEPS: OnceLock<Steps> = OnceLock::new();
    STEPS.get_or_init(|| {
        let own = config::value("OSIER_RANK").unwrap_or_default();
        let parse = |text: String| {
            let (step, rank) = text.split_once('@').unwrap_or((&text, &own));
            let (name, number) = step.rsplit_once(':')?;
            let number = number.parse().ok()?;
            (rank == own).then(|| (name.to_owned(), Mutex::new(number)))
        };
        let path = config::value("OSIER_STEPS");
        let path = path.map(|prefix| format!("{prefix}.{}", std::process::id()));
        Steps {
            dies: config::value("OSIER_DIE_AT").and_then(parse),
            file: path.and_then(|path| File::create(path).ok()),
        }
    })
}

/// A message of a kind is at a phase.
pub(super) fn at(phase: Phase, kind: u8) {
    let steps = steps();
    if steps.dies.is_none() && steps.file.is_none() {
        return;
    }
    let step = format!("{}:{}", phase.name(), wire::name(kind));
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
            // SAFETY: a signal to this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
    }
}
