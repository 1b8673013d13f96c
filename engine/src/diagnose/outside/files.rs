//! Wake sources of a process besides its own threads, as far as `/proc` shows them.

use super::{Call, Process, field, sys};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Signals whose handlers are no means of waking: faults, and requests to end. 32 and 33 are
/// the C library's own.
const NO_WAKING: &[i32] = &[
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGPIPE,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    32,
    33,
];

/// Whether threads that sleep in these calls are woken by threads of their process only.
pub fn only_threads_wake(process: Process, calls: impl Iterator<Item = Call>) -> bool {
    let calls: Vec<Call> = calls.collect();
    no_signals(process) == Some(true) && all_sound(process, &calls) == Some(true)
}

/// Whether no timer is armed and no handler waits for a signal that may wake a thread, such
/// as that of an alarm.
fn no_signals(process: Process) -> Option<bool> {
    let timers = process.read("timers")?;
    let status = process.read("status")?;
    let caught = u64::from_str_radix(field(&status, "SigCgt")?, 16).ok()?;
    let harmless = NO_WAKING.iter().fold(0u64, |all, s| all | 1 << (s - 1));
    Some(timers.trim().is_empty() && caught & !harmless == 0)
}

/// `None` where something cannot be read.
fn all_sound(process: Process, calls: &[Call]) -> Option<bool> {
    let files = Files::of(process)?;
    // It wakes futexes and eventfds on its own.
    if files
        .0
        .iter()
        .any(|f| f.1.starts_with("anon_inode:[io_uring]"))
    {
        return Some(false);
    }
    let shared: Vec<u64> = calls
        .iter()
        .filter_map(|call| match call {
            Call::Futex { at, private: false } => Some(*at),
            _ => None,
        })
        .collect();
    let maps = process.read("maps")?;
    if !shared.iter().all(|at| is_private(&maps, *at)) {
        return Some(false);
    }
    let mut epolls = calls.iter().filter_map(|call| match call {
        Call::Epoll { fd } => Some(*fd),
        Call::Futex { .. } => None,
    });
    if calls.iter().any(|c| matches!(c, Call::Epoll { .. })) && maps.contains("/[aio]") {
        return Some(false); // it writes to eventfds
    }
    Some(epolls.all(|fd| files.is_own_epoll(process, fd) == Some(true)))
}

/// Whether no other process has the memory at an address; `maps` as in `/proc/self/maps`.
pub(super) fn is_private(maps: &str, at: u64) -> bool {
    maps.lines().any(|line| {
        let mut words = line.split_whitespace();
        let Some((range, rights)) = words.next().zip(words.next()) else {
            return false;
        };
        let ends = range.split_once('-').and_then(|(from, to)| {
            let parse = |text| u64::from_str_radix(text, 16).ok();
            Some(parse(from)?..parse(to)?)
        });
        ends.is_some_and(|ends| ends.contains(&at)) && rights.ends_with('p')
    })
}

/// The descriptors of a process and what they are.
struct Files(Vec<(u64, String)>);

impl Files {
    fn of(process: Process) -> Option<Files> {
        let mut files = Vec::new();
        for entry in fs::read_dir(process.path("fd")).ok()? {
            let entry = entry.ok()?;
            let number = entry.file_name().to_str()?.parse().ok()?;
            // That of the folder itself is gone.
            if let Ok(link) = fs::read_link(entry.path()) {
                files.push((number, link.to_string_lossy().into_owned()));
            }
        }
        Some(Files(files))
    }

    fn named(&self, fd: u64) -> Option<&str> {
        let found = self.0.iter().find(|f| f.0 == fd);
        found.map(|f| f.1.as_str())
    }

    /// Whether only the process can make an epoll instance ready.
    fn is_own_epoll(&self, process: Process, fd: u64) -> Option<bool> {
        let info = process.read(&format!("fdinfo/{fd}"))?;
        let targets = info.lines().filter_map(|l| l.strip_prefix("tfd:"));
        let mut own = Own::default();
        for target in targets {
            let target: u64 = target.split_whitespace().next()?.parse().ok()?;
            let link = self.named(target)?;
            if link == EVENTFD {
                own.eventfds.insert(eventfd_of(process, target)?);
            } else if let Some(inode) = socket_of(link) {
                own.sockets.insert(inode);
                // The other end must be here, too.
                let peer = sys::unix_peer(inode)?;
                if !self.0.iter().any(|f| socket_of(&f.1) == Some(peer)) {
                    return Some(false);
                }
                own.sockets.insert(peer);
            } else {
                return Some(false);
            }
        }
        Some(own.are_held_by_nobody_else(process))
    }
}

const EVENTFD: &str = "anon_inode:[eventfd]";

/// The inode of a socket, by the link of its descriptor.
fn socket_of(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// The number of an eventfd, unique on the machine.
fn eventfd_of(process: Process, fd: u64) -> Option<u64> {
    let info = process.read(&format!("fdinfo/{fd}"))?;
    field(&info, "eventfd-id")?.parse().ok()
}

/// What threads of a process wait for in epoll.
#[derive(Default)]
struct Own {
    eventfds: BTreeSet<u64>,
    sockets: BTreeSet<u32>,
}

impl Own {
    /// Whether no other process has any of them, as far as its descriptors can be read; of
    /// another user's process they cannot, and it was not given any by inheritance.
    fn are_held_by_nobody_else(&self, process: Process) -> bool {
        if self.eventfds.is_empty() && self.sockets.is_empty() {
            return true;
        }
        let Ok(processes) = fs::read_dir("/proc") else {
            return false;
        };
        let user = |process: Process| fs::metadata(process.path("")).map(|m| m.uid()).ok();
        for entry in processes.flatten() {
            let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
            let Some(other) = pid.map(Process).filter(|p| *p != process) else {
                continue;
            };
            let Some(files) = Files::of(other) else {
                // It has ended, or it is another user's.
                if user(other).is_some_and(|theirs| user(process) == Some(theirs)) {
                    return false;
                }
                continue;
            };
            let shared = files.0.iter().any(|(fd, link)| {
                if link == EVENTFD && !self.eventfds.is_empty() {
                    return eventfd_of(other, *fd).is_none_or(|id| self.eventfds.contains(&id));
                }
                socket_of(link).is_some_and(|inode| self.sockets.contains(&inode))
            });
            if shared {
                return false;
            }
        }
        true
    }
}
