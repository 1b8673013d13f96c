//! A progress bar of the blocks of rank 0, on standard error, drawn by whichever thread fills
//! them.
//!
//! | standard error is | what is drawn |
//! |---|---|
//! | a terminal | a live bar |
//! | the launcher's pipe | the same, twice a second: it may end in a terminal |
//! | anything else | a line every 10 % |

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::jacobi::progress::OneLine;

/// Blocks that are filled. A thread does not wait for another that draws.
#[derive(Debug)]
pub struct Progress {
    blocks: usize,
    done: AtomicUsize,
    /// `None`: nothing is drawn.
    drawn: Option<Mutex<Drawn>>,
}

#[derive(Debug)]
enum Drawn {
    Bar {
        bar: ProgressBar,
        /// Time between two drawings, and when the next is due.
        pace: (Duration, Instant),
    },
    Lines {
        /// Tenths that are printed.
        tenths: usize,
    },
}

impl Progress {
    /// Draws nothing.
    pub fn silent() -> Self {
        Self {
            blocks: 0,
            done: AtomicUsize::new(0),
            drawn: None,
        }
    }

    /// Of a number of blocks, none of which are filled.
    pub fn new(blocks: usize) -> Self {
        let bar = if io::stderr().is_terminal() {
            let target = ProgressDrawTarget::stderr();
            Some((target, Duration::from_millis(100)))
        } else if std::env::var_os("OSIER_RANKS").is_some() {
            let target = ProgressDrawTarget::term_like(Box::new(OneLine));
            Some((target, Duration::from_millis(500)))
        } else {
            None
        };
        let drawn = match bar {
            None => Drawn::Lines { tenths: 0 },
            Some((target, pace)) => {
                let bar = ProgressBar::with_draw_target(Some(blocks as u64), target);
                let style = "{bar:24} {percent:>3} % block {pos}/{len} of rank 0 {eta:>4} left";
                if let Ok(style) = ProgressStyle::with_template(style) {
                    bar.set_style(style.progress_chars("=> "));
                }
                let pace = (pace, Instant::now());
                Drawn::Bar { bar, pace }
            }
        };
        Self {
            blocks,
            done: AtomicUsize::new(0),
            drawn: Some(Mutex::new(drawn)),
        }
    }

    /// One more block is filled.
    pub fn advance(&self) {
        let Some(drawn) = &self.drawn else { return };
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let Ok(mut drawn) = drawn.try_lock() else {
            return;
        };
        match &mut *drawn {
            Drawn::Bar {
                bar,
                pace: (pace, due),
            } => {
                let now = Instant::now();
                if now >= *due {
                    *due = now + *pace;
                    bar.set_position(done as u64);
                }
            }
            Drawn::Lines { tenths } => {
                let now = done * 10 / self.blocks.max(1);
                if now > *tenths {
                    *tenths = now;
                    eprintln!("{:>3} % block {done}/{} of rank 0", now * 10, self.blocks);
                }
            }
        }
    }

    /// All is done; the bar stays.
    pub fn finish(&self) {
        let Some(drawn) = &self.drawn else { return };
        if let Ok(mut drawn) = drawn.lock()
            && let Drawn::Bar { bar, .. } = &mut *drawn
        {
            bar.finish();
            eprintln!();
        }
    }
}
