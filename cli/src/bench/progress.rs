//! Progress bar on standard error, on terminals.
//!
//! Drawn by hand because a rank writes into the launcher's pipe, which bar
//! libraries take for no terminal; the launcher passes it on and wipes it
//! when a line of the table comes.

use std::io::Write;

const WIDTH: usize = 24;

/// The bar.
pub struct Bar {
    all: usize,
    enabled: bool,
    shown: bool,
}

impl Bar {
    pub fn new(all: usize, enabled: bool) -> Bar {
        Bar {
            all: all.max(1),
            enabled,
            shown: false,
        }
    }

    /// Draws it.
    pub fn show(&mut self, done: usize, what: &str) {
        if !self.enabled {
            return;
        }
        let full = (WIDTH * done / self.all).min(WIDTH);
        let bar = "█".repeat(full) + &"░".repeat(WIDTH - full);
        let mut stderr = std::io::stderr().lock();
        let _ = write!(stderr, "\r\x1b[K{bar} {done}/{} {what}", self.all);
        let _ = stderr.flush();
        self.shown = true;
    }

    /// Wipes it.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K");
            let _ = stderr.flush();
        }
    }
}
