//! Forwarding of standard input to rank 0.
//!
//! A file or pipe is given to rank 0 as it is. A terminal cannot be: ranks
//! are in a process group of their own, in the background, and a read would
//! stop them. So the launcher reads the terminal while it is in the
//! foreground and passes lines and the end on through a pipe.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use super::sys;

/// How often a launcher in the background looks whether it is in front.
const BACKGROUND: Duration = Duration::from_millis(250);

/// The way from the terminal to rank 0.
pub struct Forward {
    terminal: File,
    rank: PipeWriter,
    held: Vec<u8>,
}

/// Standard input of rank 0, and what the launcher forwards to it.
pub fn for_rank_zero() -> io::Result<(Stdio, Option<Forward>)> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok((Stdio::inherit(), None));
    }
    let Ok(terminal) = sys::reopen_nonblocking(stdin.as_fd(), false) else {
        // Not ours to open, as after `su`: no input rather than a launcher
        // that stands still in a read.
        return Ok((Stdio::null(), None));
    };
    let (reader, writer) = io::pipe()?;
    sys::set_nonblocking(writer.as_fd())?;
    let forward = Forward {
        terminal,
        rank: writer,
        held: Vec::new(),
    };
    Ok((reader.into(), Some(forward)))
}

impl Forward {
    /// Entries for poll (the terminal, then the pipe), and the time after
    /// which to ask again.
    pub fn interest(&self) -> ([libc::pollfd; 2], Option<Duration>) {
        let front = sys::foreground_group(self.terminal.as_fd())
            .is_ok_and(|group| group == sys::own_group());
        let read = front && self.held.is_empty();
        let mut terminal = sys::interest(self.terminal.as_fd(), libc::POLLIN);
        if !read {
            terminal.fd = -1;
        }
        let events = if self.held.is_empty() {
            0
        } else {
            libc::POLLOUT
        };
        let rank = sys::interest(self.rank.as_fd(), events);
        ([terminal, rank], (!front).then_some(BACKGROUND))
    }

    /// Moves bytes as poll said; false when there is nothing more to forward.
    pub fn advance(&mut self, ready: &[libc::pollfd]) -> bool {
        let [terminal, rank] = ready else {
            return true;
        };
        if rank.revents & libc::POLLERR != 0 {
            return false; // rank 0 has closed its standard input
        }
        if terminal.revents != 0 {
            let mut buffer = [0; 4096];
            match self.terminal.read(&mut buffer) {
                Ok(0) => return false,
                Ok(n) => self.held.extend_from_slice(&buffer[..n]),
                Err(e) if is_passing(&e) => {}
                Err(_) => return false, // the terminal is gone
            }
        }
        if !self.held.is_empty() {
            match self.rank.write(&self.held) {
                Ok(n) => drop(self.held.drain(..n)),
                Err(e) if is_passing(&e) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
