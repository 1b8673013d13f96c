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

/// Progress of a number of steps.
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
        /// What a step is called.
        step: &'static str,
        /// All steps.
        steps: usize,
        /// Last message.
        message: String,
        /// Tenths that are printed.
        tenths: usize,
    },
}

impl Progress {
    /// Starts at zero of a number of steps, which are called so; silent unless `visible`.
    pub fn new(step: &'static str, steps: usize, visible: bool) -> Self {
        if !visible || steps == 0 {
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
                step,
                steps,
                message: String::new(),
                tenths: 0,
            };
        };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let style =
            format!("{{bar:24}} {{percent:>3}} % {step} {{pos}}/{{len}} {{eta:>4}} left {{msg}}");
        if let Ok(style) = ProgressStyle::with_template(&style) {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress::Bar {
            bar,
            pace: (pace, Instant::now()),
        }
    }

    /// A number of steps are done.
    pub fn advance(&mut self, done: usize) {
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
                step,
                steps,
                message,
                tenths,
            } => {
                let now = (done as u128 * 10 / *steps as u128) as usize;
                if now > *tenths {
                    *tenths = now;
                    let line = format!("{:>3} % {step} {done}/{steps} {message}", now * 10);
                    eprintln!("{}", line.trim_end());
                }
            }
        }
    }

    /// A message, drawn with the next step.
    pub fn say(&mut self, what: impl FnOnce() -> String) {
        match self {
            Progress::Silent => {}
            Progress::Bar {
                bar,
                pace: (_, due),
            } => {
                if Instant::now() >= *due {
                    bar.set_message(what());
                }
            }
            Progress::Lines { message, .. } => *message = what(),
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
struct OneLine;

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
