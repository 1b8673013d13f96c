//! A progress bar on standard error, drawn by rank 0.
//!
//! | standard error is | what is drawn |
//! |---|---|
//! | a terminal | a live bar |
//! | the launcher's pipe | the same, twice a second: it may end in a terminal |
//! | anything else | a line every 10 % |

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

/// Progress of the sweeps.
#[derive(Debug)]
pub enum Progress {
    /// Nothing is drawn.
    Silent,
    /// A bar on one line.
    Bar {
        /// The bar.
        bar: ProgressBar,
        /// Time between two drawings, and when the next is due.
        pace: (Duration, Instant),
    },
    /// A line now and then.
    Lines {
        /// All sweeps.
        sweeps: usize,
        /// Last residual norm.
        norm: f64,
        /// Tenths that are printed.
        tenths: usize,
    },
}

impl Progress {
    /// Starts at zero; silent unless `visible`.
    pub fn new(sweeps: usize, visible: bool) -> Self {
        if !visible || sweeps == 0 {
            return Progress::Silent;
        }
        let (target, pace) = if io::stderr().is_terminal() {
            let target = ProgressDrawTarget::stderr();
            (target, Duration::from_millis(100))
        } else if std::env::var_os("OSIER_RANKS").is_some() {
            let target = ProgressDrawTarget::term_like(Box::new(OneLine));
            (target, Duration::from_millis(500))
        } else {
            return Progress::Lines {
                sweeps,
                norm: f64::NAN,
                tenths: 0,
            };
        };
        let bar = ProgressBar::with_draw_target(Some(sweeps as u64), target);
        let style = "{bar:24} {percent:>3} % sweep {pos}/{len} {eta:>4} left {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress::Bar {
            bar,
            pace: (pace, Instant::now()),
        }
    }

    /// A number of sweeps are done.
    pub fn swept(&mut self, done: usize) {
        match self {
            Progress::Silent => {}
            Progress::Bar {
                bar,
                pace: (pace, due),
            } => {
                let now = Instant::now();
                if now >= *due {
                    *due = now + *pace;
                    bar.set_position(done as u64);
                }
            }
            Progress::Lines {
                sweeps,
                norm,
                tenths,
            } => {
                let now = (done as u128 * 10 / *sweeps as u128) as usize;
                if now > *tenths {
                    *tenths = now;
                    eprintln!("{:>3} % sweep {done}/{sweeps} |r| {norm:.3e}", now * 10);
                }
            }
        }
    }

    /// The residual norm, drawn with the next sweep.
    pub fn norm(&mut self, residual: f64) {
        match self {
            Progress::Silent => {}
            Progress::Bar {
                bar,
                pace: (_, due),
            } => {
                if Instant::now() >= *due {
                    bar.set_message(format!("|r| {residual:.3e}"));
                }
            }
            Progress::Lines { norm, .. } => *norm = residual,
        }
    }

    /// All is done; the bar stays.
    pub fn finish(self) {
        if let Progress::Bar { bar, .. } = self {
            bar.finish();
            eprintln!();
        }
    }
}

/// A terminal of which only the carriage return is known.
#[derive(Debug)]
pub(crate) struct OneLine;

impl TermLike for OneLine {
    fn width(&self) -> u16 {
        79
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        writeln!(io::stderr(), "{s}")
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        write!(io::stderr(), "{s}")
    }

    /// What comes next is as wide as what stands there.
    fn clear_line(&self) -> io::Result<()> {
        write!(io::stderr(), "\r")
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().flush()
    }
}
