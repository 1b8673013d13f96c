//! Standard output and standard error of the launcher.
//!
//! Writing never waits, so that a reader that stands still keeps neither
//! signals nor the time limit from being heard. Where both descriptors are
//! one file, they are one [`Sink`], or lines of the two could mix.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Instant;

use super::lines::Lines;
use super::sys;

/// The bytes that a pipe takes without waiting once poll says that it is
/// writable.
const PIPE_BUF: usize = 4096;

/// One file that the launcher writes to.
pub struct Sink {
    /// What waits to be written.
    pub lines: Lines,
    name: &'static str,
    file: ManuallyDrop<File>,
    /// Whether a write that cannot go on returns.
    nonblocking: bool,
    /// Whether the last write could not go on.
    stalled: bool,
    /// When bytes were last taken.
    progress: Instant,
    failure: Option<io::Error>,
    /// Whether the user has been told of it.
    told: bool,
}

/// Standard output and standard error, which may be one sink.
pub struct Sinks {
    /// One or two sinks.
    pub all: Vec<Sink>,
    /// The sink of standard error.
    pub stderr: usize,
}

impl Sinks {
    /// Looks at descriptors 1 and 2.
    pub fn new(label_width: Option<usize>) -> Sinks {
        let mut all = vec![Sink::new("standard output", 1, label_width)];
        if !same_file(&io::stdout(), &io::stderr()) {
            all.push(Sink::new("standard error", 2, label_width));
        }
        let stderr = all.len() - 1;
        Sinks { all, stderr }
    }

    /// Writes a line of the launcher's own to standard error.
    pub fn note(&mut self, text: &str) {
        self.all[self.stderr].lines.note(&format!("osier: {text}"));
    }

    /// When a sink that has something to write last got rid of a part.
    pub fn progress(&self) -> Option<Instant> {
        let busy = self.all.iter().filter(|sink| !sink.lines.out().is_empty());
        busy.map(|sink| sink.progress).max()
    }

    /// What to tell of failed writes, once.
    pub fn complaints(&mut self) -> Vec<String> {
        self.all.iter_mut().filter_map(Sink::complaint).collect()
    }

    /// Whether nothing is left to write.
    pub fn is_empty(&self) -> bool {
        self.all.iter().all(|sink| sink.lines.out().is_empty())
    }
}

impl Sink {
    fn new(name: &'static str, fd: i32, label_width: Option<usize>) -> Sink {
        // SAFETY: the standard descriptors are open (std sees to it before
        // `main`), stay open, and are not closed by a `ManuallyDrop`.
        let own = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let terminal = own.is_terminal();
        let waits = own.metadata().is_ok_and(|m| {
            let kind = m.file_type();
            kind.is_fifo() || kind.is_char_device() || kind.is_socket()
        });
        // A second open file, since the mode of the first is shared with
        // processes that expect it to wait.
        let (file, nonblocking) = match waits.then(|| sys::reopen_nonblocking(own.as_fd(), true)) {
            None => (own, true),
            Some(Ok(file)) => (ManuallyDrop::new(file), true),
            Some(Err(_)) => (own, false),
        };
        Sink {
            lines: Lines::new(terminal, label_width),
            name,
            file,
            nonblocking,
            stalled: false,
            progress: Instant::now(),
            failure: None,
            told: false,
        }
    }

    /// Writes what it can now.
    pub fn flush(&mut self, now: Instant) {
        self.lines.pump(now);
        if self.lines.out().is_empty() {
            self.progress = now;
        }
        while !self.lines.out().is_empty() {
            if self.failure.is_some() {
                self.lines.written(self.lines.out().len());
                break;
            }
            let out = self.lines.out();
            let out = if self.nonblocking {
                out
            } else if self.writable_now() {
                &out[..out.len().min(PIPE_BUF)]
            } else {
                self.stalled = true;
                return;
            };
            match self.file.write(out) {
                Ok(n) if n > 0 => {
                    self.lines.written(n);
                    self.progress = now;
                }
                Ok(_) => self.failure = Some(ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.stalled = true;
                    return;
                }
                Err(e) => self.failure = Some(e),
            }
        }
        self.stalled = false;
    }

    fn writable_now(&self) -> bool {
        let mut fd = [sys::interest(self.file.as_fd(), libc::POLLOUT)];
        sys::poll(&mut fd, Some(std::time::Duration::ZERO)).is_ok() && fd[0].revents != 0
    }

    /// An entry for poll, if there is something to wait for.
    pub fn interest(&self) -> Option<libc::pollfd> {
        self.stalled
            .then(|| sys::interest(self.file.as_fd(), libc::POLLOUT))
    }

    /// Whether nobody takes the bytes any more.
    pub fn is_broken(&self) -> bool {
        self.failure.is_some()
    }

    /// What to tell the user of a failed write, once. That a reader has gone is
    /// nothing to tell.
    fn complaint(&mut self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        if failure.kind() == ErrorKind::BrokenPipe || self.told {
            return None;
        }
        self.told = true;
        Some(format!(
            "cannot write to {}: {}",
            self.name,
            super::cause(failure)
        ))
    }
}

fn same_file(a: &impl AsFd, b: &impl AsFd) -> bool {
    let identity = |fd: BorrowedFd<'_>| {
        let file = File::from(fd.try_clone_to_owned().ok()?);
        file.metadata().ok().map(|m| (m.dev(), m.ino()))
    };
    let a = identity(a.as_fd());
    a.is_some() && a == identity(b.as_fd())
}
