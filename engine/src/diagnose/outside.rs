//! Detection of threads outside Osier that sleep until another thread of their process wakes
//! them.
//!
//! A thread in a private futex without a time-out is woken by threads of its own process
//! only. If all threads outside Osier sleep so, and all others wait inside, then a message is
//! all that can move the process. The kernel shows both: the system call of a sleeping thread
//! with its arguments (`/proc/self/task/T/syscall`), and how often it was switched
//! (`.../status`). A thread whose number of switches has not changed has not run meanwhile.
//!
//! | a thread in | is woken by | counts as asleep |
//! |---|---|---|
//! | futex, private, no time-out | threads of this process | yes |
//! | futex, shared, in memory that no other process maps | threads of this process | yes |
//! | epoll without a time-out, of own eventfds and socket pairs | threads of this process | yes |
//! | futex or epoll with a time-out, in shared memory, of other files | time, processes, devices | no |
//! | any other system call, or none | anything | no |
//!
//! A signal could interrupt all of these, and its handler wake a thread. So a process with
//! an armed timer, or with a handler that programs use as a means of waking, has no verdict;
//! neither has one that is traced, or that uses io_uring, which wakes by itself.
//!
//! A rank inspects its own process while a thread of it waits inside. A process without such
//! a thread is inspected by the watcher of the job ([`super::watch`]). Sleeps
//! inside Osier have time-outs, so a process that is asleep as a whole has no thread inside.
//!
//! # Invariants
//! 1. A thread that cannot be read counts as not asleep.
//! 2. Two inspections with the same print found the same threads asleep, and none ran between
//!    the end of the first and the start of the second.

mod files;
#[allow(unsafe_code, reason = "system calls")]
mod sys;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// What a thread sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sleep {
    /// A futex at this address.
    Futex(u64),
    /// An epoll instance with this descriptor.
    Epoll(u64),
}

impl std::fmt::Display for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Sleep::Futex(at) => write!(f, "futex {at:#x}"),
            Sleep::Epoll(fd) => write!(f, "epoll of descriptor {fd}"),
        }
    }
}

/// A thread outside Osier that is asleep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sleeper {
    /// The kernel's number.
    pub thread: u32,
    /// As the kernel has it, at most 15 bytes.
    pub name: String,
    /// Where it sleeps.
    pub sleep: Sleep,
}

/// A system call that a thread is in, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Futex { at: u64, private: bool },
    Epoll { fd: u64 },
}

/// A process, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub u32);

impl Process {
    /// This one.
    pub fn own() -> Process {
        Process(std::process::id())
    }

    fn path(self, what: &str) -> String {
        format!("/proc/{}/{what}", self.0)
    }

    fn read(self, what: &str) -> Option<String> {
        std::fs::read_to_string(self.path(what)).ok()
    }

    /// Its threads.
    pub fn threads(self) -> Option<Vec<u32>> {
        let numbers = std::fs::read_dir(self.path("task")).ok()?.map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.parse().ok()
        });
        numbers.collect()
    }
}

/// Looks at threads of a process.
#[derive(Debug)]
pub struct Outside {
    process: Process,
    /// A thread that was awake: the first to be asked next time.
    suspect: u32,
    /// The last print of an inspection by which nothing else can wake the process.
    sound: Option<u64>,
}

/// Result of an inspection: all threads outside are asleep.
#[derive(Debug)]
pub struct Asleep {
    /// They.
    pub sleepers: Vec<Sleeper>,
    /// Changes if any of them has run; see invariant 2.
    pub print: u64,
}

impl Outside {
    /// Of this process.
    pub fn new(process: Process) -> Outside {
        Outside {
            process,
            suspect: 0,
            sound: None,
        }
    }

    /// The threads outside, if all of them sleep and only threads of the process can wake
    /// them.
    pub fn observe(&mut self, threads: &[u32]) -> Option<Asleep> {
        let process = self.process;
        if threads.contains(&self.suspect) && Seen::of(process, self.suspect).is_none() {
            return None;
        }
        let mut seen = Vec::with_capacity(threads.len());
        for &thread in threads {
            match Seen::of(process, thread) {
                Some(one) => seen.push(one),
                None => {
                    self.suspect = thread;
                    return None;
                }
            }
        }
        let mut hasher = DefaultHasher::new();
        for one in &seen {
            (one.sleeper.thread, one.sleeper.sleep, one.switches).hash(&mut hasher);
        }
        let print = hasher.finish();
        // Nothing has run since the last inspection with the same print.
        if self.sound != Some(print) {
            self.sound = None;
            if !files::only_threads_wake(process, seen.iter().map(|one| one.call)) {
                return None;
            }
            self.sound = Some(print);
        }
        let sleepers = seen.into_iter().map(|one| one.sleeper).collect();
        Some(Asleep { sleepers, print })
    }
}

/// A thread that is asleep.
struct Seen {
    sleeper: Sleeper,
    call: Call,
    switches: u64,
}

impl Seen {
    /// `None`: it is not asleep, or that cannot be read.
    fn of(process: Process, thread: u32) -> Option<Seen> {
        let read = |what: &str| process.read(&format!("task/{thread}/{what}"));
        let status = read("status")?;
        if !field(&status, "State")?.starts_with('S') || field(&status, "TracerPid")? != "0" {
            return None;
        }
        let count = |name| field(&status, name)?.parse::<u64>().ok();
        let switches =
            count("voluntary_ctxt_switches")?.wrapping_add(count("nonvoluntary_ctxt_switches")?);
        let call = parse_call(&read("syscall")?)?;
        let sleep = match call {
            Call::Futex { at, .. } => Sleep::Futex(at),
            Call::Epoll { fd } => Sleep::Epoll(fd),
        };
        let name = read("comm")?.trim_end().to_owned();
        Some(Seen {
            sleeper: Sleeper {
                thread,
                name,
                sleep,
            },
            call,
            switches,
        })
    }
}

/// A field of a file of lines `Name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// A sleep without a time-out that may be among those of the table above. The kernel writes
/// the number of the call and six arguments, or `running`, or -1 for none.
fn parse_call(text: &str) -> Option<Call> {
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut arguments = [0u64; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    let [first, second, _, fourth, ..] = arguments;
    if number == libc::SYS_futex {
        // The kernel has the operation as an int.
        let operation = second as u32 as i32;
        let waits = [
            libc::FUTEX_WAIT,
            libc::FUTEX_WAIT_BITSET,
            libc::FUTEX_LOCK_PI,
            libc::FUTEX_LOCK_PI2,
            libc::FUTEX_WAIT_REQUEUE_PI,
        ];
        let plain = operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
        return (waits.contains(&plain) && fourth == 0).then_some(Call::Futex {
            at: first,
            private: operation & libc::FUTEX_PRIVATE_FLAG != 0,
        });
    }
    let endless = match number {
        // A time in milliseconds as an int; a pointer to one.
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => (fourth as u32 as i32) < 0,
        libc::SYS_epoll_pwait => (fourth as u32 as i32) < 0,
        libc::SYS_epoll_pwait2 => fourth == 0,
        _ => return None,
    };
    endless.then_some(Call::Epoll {
        fd: u64::from(first as u32),
    })
}

#[cfg(test)]
#[allow(unsafe_code, reason = "system calls")]
mod tests;
