//! Output of tools: the macros of the standard library would panic where this ends the tool.
//!
//! `println!` of the standard library panics when nobody reads any more (`osier ... | head -1`)
//! and when the disk is full. These end the process: by SIGPIPE, as tools in C end, and with a
//! message and exit code 1.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// Exit code where output cannot be written.
const FAILED: i32 = 1;

macro_rules! print {
    ($($arg:tt)*) => { $crate::say::out(format_args!($($arg)*), "") };
}

macro_rules! println {
    () => { $crate::say::out(format_args!(""), "\n") };
    ($($arg:tt)*) => { $crate::say::out(format_args!($($arg)*), "\n") };
}

macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::say::err(format_args!($($arg)*)) };
}

/// Writes to standard output.
pub fn out(text: Arguments<'_>, end: &str) {
    let text = format!("{text}{end}");
    if let Err(e) = io::stdout().lock().write_all(text.as_bytes()) {
        cannot_write(&e);
    }
}

/// Writes a line to standard error, in one call.
pub fn err(text: Arguments<'_>) {
    let text = format!("{text}\n");
    // Nobody is there to be told.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Writes what standard output has kept back. Its end at the end of the process tells of no
/// error.
pub fn flush() {
    if let Err(e) = io::stdout().lock().flush() {
        cannot_write(&e);
    }
}

/// Ends the process: its output cannot be written.
pub fn cannot_write(e: &io::Error) -> ! {
    if e.kind() == ErrorKind::BrokenPipe {
        // SAFETY: the default is a valid disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        // SAFETY: a system call without pointers; it ends the process.
        unsafe { libc::raise(libc::SIGPIPE) };
        // Where the signal is blocked.
        std::process::exit(128 + libc::SIGPIPE);
    }
    let cause = crate::run::cause(e);
    err(format_args!(
        "osier: cannot write to standard output: {cause}"
    ));
    std::process::exit(FAILED)
}
