//! Where the threads of a step stand that has reached its limit: the answer to "what hangs".
//!
//! Each thread is stopped for a moment, and its stack is read for addresses behind calls. Old
//! ones that lie there by chance are shown, too: this is no unwinder, which would need tables
//! that the programs have not, and that the driver's library never has.
//!
//! # Sources
//! ptrace(2), proc(5): `PTRACE_SEIZE`, `PTRACE_INTERRUPT`; elf(5): symbol tables.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most bytes of a stack that are read.
const STACK_BYTES: usize = 24 << 10;
/// Most addresses that are shown of one.
const MOST_SHOWN: usize = 40;
/// Most threads of a process that are shown.
const MOST_THREADS: usize = 24;
/// How long a thread may take to stop: one that sleeps in the kernel for good does not.
const STOPPING: Duration = Duration::from_millis(200);
/// How long all of it may take.
const MOST_TIME: Duration = Duration::from_secs(3);

/// What the threads of a process, and of all that it has started, do, for people.
pub fn threads(first: i32) -> String {
    let until = Instant::now() + MOST_TIME;
    let mut text = String::new();
    for pid in family(first) {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let _ = writeln!(text, "\nprocess {pid} {}", name.trim());
        let modules = Modules::of(pid);
        let mut tasks = numbers(&format!("/proc/{pid}/task"));
        tasks.truncate(MOST_THREADS);
        for tid in tasks {
            if Instant::now() >= until {
                return text;
            }
            let _ = write!(text, "{}", thread(pid, tid, &modules));
        }
    }
    text
}

/// Numbered entries of a folder, in order.
fn numbers(folder: &str) -> Vec<i32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<i32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    all.sort_unstable();
    all
}

/// A process and all that it has started, whatever group they are of, oldest first.
fn family(first: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = numbers("/proc")
        .into_iter()
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (_, fields) = stat.rsplit_once(')')?;
            Some((pid, fields.split_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut all = vec![first];
    let mut known = 0;
    while known < all.len() {
        let of = all[known];
        known += 1;
        let children = parents.iter().filter(|(_, parent)| *parent == of);
        all.extend(children.map(|(pid, _)| *pid));
    }
    all
}

fn thread(pid: i32, tid: i32, modules: &Modules) -> String {
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{what}"));
    let stat = read("stat").unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .unwrap_or("?");
    let name = read("comm").unwrap_or_default();
    let waits = read("wchan").unwrap_or_default();
    let mut text = format!("  thread {tid} {} {state} {}\n", name.trim(), waits.trim());
    let Some((at, stack)) = registers(tid) else {
        text += "    (cannot be stopped)\n";
        return text;
    };
    let mut shown = vec![modules.name(at)];
    if let Ok(memory) = File::open(format!("/proc/{pid}/mem")) {
        let mut words = vec![0u8; STACK_BYTES];
        // A stack may end before.
        let read = (1..=STACK_BYTES / 4096).rev().find_map(|pages| {
            let part = &mut words[..pages * 4096 - (stack % 4096) as usize];
            memory.read_exact_at(part, stack).ok().map(|()| part.len())
        });
        for word in words[..read.unwrap_or(0)].chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            if modules.is_code(word) && is_behind_call(&memory, word) {
                let name = modules.name(word);
                if shown.last() != Some(&name) && shown.len() < MOST_SHOWN {
                    shown.push(name);
                }
            }
        }
    }
    for name in shown {
        let _ = writeln!(text, "    {name}");
    }
    text
}

/// Whether a call ends at an address: `call rel32`, or one through a register or memory.
fn is_behind_call(memory: &File, at: u64) -> bool {
    let mut before = [0u8; 7];
    if memory.read_exact_at(&mut before, at - 7).is_err() {
        return false;
    }
    let indirect = |bytes: &[u8]| bytes[0] == 0xff && bytes[1] >> 3 & 7 == 2;
    before[2] == 0xe8 || [0, 1, 3, 4, 5].iter().any(|&at| indirect(&before[at..]))
}

/// The instruction and the stack of a thread, which goes on at once.
fn registers(tid: i32) -> Option<(u64, u64)> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: takes no memory; the thread is of a process that this one has started.
    if unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, none, none) } != 0 {
        return None;
    }
    let until = Instant::now() + STOPPING;
    // SAFETY: as above; it was seized.
    let told = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, none, none) } == 0;
    let mut stopped = false;
    while told && !stopped && Instant::now() < until {
        let mut status = 0;
        // SAFETY: a place for the status.
        let of = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
        stopped = of == tid && libc::WIFSTOPPED(status);
        if of < 0 {
            return None;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let mut found = None;
    if stopped {
        // SAFETY: numbers alone, for which zero is one.
        let mut all: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let place = (&raw mut all).cast::<libc::c_void>();
        // SAFETY: a stopped thread, and a place for its registers.
        if unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, none, place) } == 0 {
            found = Some((all.rip, all.rsp));
        }
    }
    // SAFETY: takes no memory. One that has not stopped stays seized, and is about to be killed.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, none, none) };
    found
}

/// Where code lies in a process.
struct Modules {
    code: Vec<Mapping>,
    symbols: HashMap<PathBuf, Vec<Symbol>>,
}

struct Mapping {
    start: u64,
    end: u64,
    /// What its first byte is in the file's numbers.
    offset: u64,
    file: PathBuf,
}

/// Begin, end and name of a function, by its place in the file.
type Symbol = (u64, u64, String);

impl Modules {
    fn of(pid: i32) -> Modules {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let code: Vec<Mapping> = maps.lines().filter_map(mapping).collect();
        let mut symbols = HashMap::new();
        for mapping in &code {
            let file = &mapping.file;
            symbols
                .entry(file.clone())
                .or_insert_with(|| functions(file).unwrap_or_default());
        }
        Modules { code, symbols }
    }

    fn mapping(&self, at: u64) -> Option<&Mapping> {
        self.code.iter().find(|m| (m.start..m.end).contains(&at))
    }

    fn is_code(&self, at: u64) -> bool {
        self.mapping(at).is_some()
    }

    /// The function of an address, else its place in a file.
    fn name(&self, at: u64) -> String {
        let Some(mapping) = self.mapping(at) else {
            return format!("{at:#x}");
        };
        let place = at - mapping.start + mapping.offset;
        let file = mapping.file.file_name().unwrap_or_default();
        let file = file.to_string_lossy();
        let symbols = &self.symbols[&mapping.file];
        let behind = symbols.partition_point(|(start, ..)| *start <= place);
        match symbols[..behind].last() {
            Some((start, end, name)) if place <= *end => {
                format!("{} +{:#x}  [{file}]", readable(name), place - start)
            }
            _ => format!("{place:#x}  [{file}]"),
        }
    }
}

/// A name of the compiler's, shorter: `_ZN5osier3p2p4send17h..E` as `osier::p2p::send`.
fn readable(name: &str) -> String {
    let parts = || {
        let mut rest = name.strip_prefix("_ZN")?;
        let mut parts = Vec::new();
        while !rest.starts_with('E') {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let length: usize = rest.get(..digits)?.parse().ok()?;
            parts.push(rest.get(digits..digits + length)?);
            rest = &rest[digits + length..];
        }
        parts.pop_if(|last| last.len() == 17 && last.starts_with('h'));
        Some(parts.join("::"))
    };
    parts().unwrap_or_else(|| name.to_owned())
}

/// A line of `/proc/PID/maps`, if it is code of a file.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let file = words.nth(2)?;
    if !rights.contains('x') || !file.starts_with('/') {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: number(start)?,
        end: number(end)?,
        offset: number(offset)?,
        file: file.into(),
    })
}

/// The functions of a 64-bit ELF file, by their offset in it.
fn functions(file: &Path) -> Option<Vec<Symbol>> {
    const FUNCTION: u8 = 2;
    const TABLES: [u32; 2] = [2, 11];
    let bytes = fs::read(file).ok()?;
    let number = |at: usize, n: usize| -> Option<u64> {
        let mut all = [0; 8];
        all[..n].copy_from_slice(bytes.get(at..at.checked_add(n)?)?);
        Some(u64::from_le_bytes(all))
    };
    if bytes.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let at = |at: usize, n: usize| number(at, n).map(|n| n as usize);
    // Where segments lie in memory, for addresses of symbols are of there.
    let (headers, size, count) = (at(32, 8)?, at(54, 2)?, at(56, 2)?);
    let mut segments = Vec::new();
    for header in (0..count).map(|i| headers + i * size) {
        if number(header, 4)? == 1 {
            let field = |by: usize| number(header + by, 8);
            segments.push((field(8)?, field(16)?, field(32)?));
        }
    }
    let place = |address: u64| {
        let of = segments.iter();
        let mut of = of.filter(|(_, start, bytes)| (*start..start + bytes).contains(&address));
        of.next().map(|(offset, start, _)| address - start + offset)
    };
    let (headers, size, count) = (at(40, 8)?, at(58, 2)?, at(60, 2)?);
    let mut all = Vec::new();
    for header in (0..count).map(|i| headers + i * size) {
        if !TABLES.contains(&(number(header + 4, 4)? as u32)) {
            continue;
        }
        let (table, length, names) = (
            at(header + 24, 8)?,
            at(header + 32, 8)?,
            at(header + 40, 4)?,
        );
        let names = at(headers + names * size + 24, 8)?;
        for symbol in (0..length / 24).map(|i| table + 24 * i) {
            let (address, bytes_of) = (number(symbol + 8, 8)?, number(symbol + 16, 8)?);
            if bytes.get(symbol + 4)? & 15 != FUNCTION || address == 0 {
                continue;
            }
            let name = bytes.get(names + at(symbol, 4)?..)?;
            let end = name.iter().position(|byte| *byte == 0)?;
            if let Some(start) = place(address) {
                let name = String::from_utf8_lossy(&name[..end]).into_owned();
                all.push((start, start + bytes_of, name));
            }
        }
    }
    all.sort();
    all.dedup_by_key(|(start, ..)| *start);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn names_of_the_compiler_are_readable() {
        let name = "_ZN12osier_engine6device7Devices7prepare17h0123456789abcdefE";
        assert_eq!(readable(name), "osier_engine::device::Devices::prepare");
    }

    /// A program that sleeps is found in the call that has it sleep.
    #[test]
    fn threads_are_found_where_they_sleep() {
        let mut sleeps = Command::new("sleep");
        let mut child = sleeps.arg("60").process_group(0).spawn().unwrap();
        let first = child.id().cast_signed();
        let until = Instant::now() + Duration::from_secs(20);
        // It takes a while to come there, and its libraries may be mapped between the reading of
        // its mappings and that of its stack.
        let told = loop {
            let told = threads(first);
            let found = told.contains("libc") && told.contains("nanosleep");
            if found || Instant::now() >= until {
                break told;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(told.contains("process") && told.contains("libc"), "{told}");
        assert!(told.contains("nanosleep"), "{told}");
    }
}
