//! `osier bench floors`: what two processes could do for a collective without a library.
//!
//! Two processes on cores of their own share an anonymous mapping and exchange nothing but
//! flags and data. Each pattern does for one operation what its ranks must at least do:
//!
//! | pattern | a rank that takes in data |
//! |---|---|
//! | direct | reads what the other has just written; only the reading counts |
//! | slots | reads pieces that the other copies into shared slots |
//! | kernel copy | `process_vm_readv` of the other's memory, into scratch where it sums |
//! | mapped | reads the other's buffer in place |
//!
//! # Invariants
//! 1. A rank writes its part of the mapping only while the other does not read it: after the
//!    other's `done` of all that was published, and before its own next `ready`.
//! 2. A rank reads the other's part only behind an acquiring look at `ready`.
//! 3. Between fork and exit a child allocates nothing and takes no lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use osier_collectives::Operation;

use super::report::{Record, Records, number};
use super::timing::median;
use super::{Args, Failure, Result, options};
use crate::run;

const K: usize = 1 << 10;
const M: usize = 1 << 20;
const SIZES: [usize; 7] = [8, K, 4 * K, 16 * K, 64 * K, M, 4 * M];
const PATTERNS: [&str; 4] = ["direct", "slots", "kernel-copy", "mapped"];
const REPETITIONS: usize = 9;
/// A slot, and slots of a rank.
const SLOT_BYTES: usize = 8 * K;
const SLOTS: u64 = 8;
const PAGE_BYTES: usize = 4096;
/// Looks at a flag before the core is offered to others, and how long the other may be silent.
const PATIENCE: u32 = 1 << 14;
const SILENCE: Duration = Duration::from_secs(30);

/// What a rank tells the other, and the command; each field on lines of its own.
#[repr(C, align(128))]
struct Told {
    ready: Line,
    done: Line,
    pid: AtomicU32,
    /// Seconds of a call by pattern, as bits.
    seconds: [AtomicU64; PATTERNS.len()],
}

#[repr(align(128))]
struct Line(AtomicU64);

/// The shared mapping: what both tell, then data and slots of each.
struct Shared {
    base: *mut u8,
    all_bytes: usize,
    data_bytes: usize,
}

impl Shared {
    fn new(bytes: usize) -> Result<Shared> {
        let data_bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let each = data_bytes + SLOT_BYTES * SLOTS as usize;
        let all_bytes = PAGE_BYTES + 2 * each;
        // SAFETY: a new mapping at a place of the system's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                all_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Failure::failed(format!(
                "floors: no memory for {all_bytes} bytes"
            )));
        }
        Ok(Shared {
            base: base.cast(),
            all_bytes,
            data_bytes,
        })
    }

    fn told(&self, rank: usize) -> &Told {
        const { assert!(2 * size_of::<Told>() <= PAGE_BYTES) };
        let told = self.base.cast::<Told>().wrapping_add(rank);
        // SAFETY: within the first page, aligned, zeroed, and atomics alone.
        unsafe { &*told }
    }

    /// A rank's data, followed by its slots.
    fn data(&self, rank: usize) -> *mut u8 {
        let each = self.data_bytes + SLOT_BYTES * SLOTS as usize;
        // SAFETY: within the mapping.
        unsafe { self.base.add(PAGE_BYTES + rank * each) }
    }

    fn slot(&self, rank: usize, piece: u64) -> *mut u8 {
        let at = self.data_bytes + (piece % SLOTS) as usize * SLOT_BYTES;
        // SAFETY: within the rank's part of the mapping.
        unsafe { self.data(rank).add(at) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing of it is borrowed any more.
        unsafe { libc::munmap(self.base.cast(), self.all_bytes) };
    }
}

/// Measures one operation at all sizes.
pub fn run(args: &Args) -> Result<()> {
    let of = args.of.operation().ok_or_else(|| {
        Failure::usage(format!(
            "floors are of collectives, and {} is none",
            args.of.name()
        ))
    })?;
    if of.of_neighbors() {
        return Err(Failure::usage("floors are not of neighbors"));
    }
    let cpus = run::allowed_cpus().unwrap_or_default();
    let &[first, second, ..] = &cpus[..] else {
        return Err(Failure::failed("floors take two processors"));
    };
    let sizes = match of {
        Operation::Barrier => vec![0],
        _ => options::sizes_or(args, &SIZES)?,
    };
    let repetitions = args
        .repetitions
        .map_or(REPETITIONS, |n| n.min(1000) as usize);
    println!(
        "# osier floors of {}: 2 processes on processors {first} and {second}, us",
        args.of.name()
    );
    let mut line = format!("{:<12}", "# Size");
    for pattern in PATTERNS {
        line += &format!("{pattern:>14}");
    }
    println!("{line}");
    let mut records = Records::new(args.json.as_ref());
    for asked in sizes {
        let bytes = match of.reduces() {
            true => asked.next_multiple_of(8).max(8),
            false => asked,
        };
        let seconds = both([first, second], of, bytes, repetitions)?;
        let mut line = format!("{bytes:<12}");
        for (pattern, seconds) in PATTERNS.iter().zip(seconds) {
            line += &format!("{:>14}", number(1e6 * seconds));
            if seconds.is_finite() && seconds > 0.0 {
                records.push(Record {
                    ranks: 2,
                    unit: "us".into(),
                    value: 1e6 * seconds,
                    ..Record::new(format!("floor-{pattern}"), args.of.name(), bytes)
                })?;
            }
        }
        println!("{line}");
    }
    records.finish()
}

/// Seconds of a call by pattern, the mean of both processes.
fn both(
    cpus: [usize; 2],
    of: Operation,
    bytes: usize,
    repetitions: usize,
) -> Result<[f64; PATTERNS.len()]> {
    let shared = Shared::new(bytes)?;
    // At the same addresses in both children.
    let mut own = Own::new(bytes, repetitions);
    let mut children = Vec::new();
    for (rank, cpu) in cpus.into_iter().enumerate() {
        // SAFETY: this thread is the only one of the process; by invariant 3 the child does
        // nothing that would need another.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut child = Child {
                rank,
                of,
                bytes,
                shared: &shared,
                own: &mut own,
                published: 0,
                taken: 0,
                calls: 0,
            };
            let code = i32::from(run::bind_to(cpu).is_err() || !child.measure());
            // SAFETY: ends the child without what the parent would do at its end.
            unsafe { libc::_exit(code) };
        }
        if pid < 0 {
            let e = std::io::Error::last_os_error();
            end(&children);
            return Err(Failure::failed(format!("floors: cannot fork: {e}")));
        }
        children.push(pid);
    }
    let mut failed = false;
    for pid in &children {
        let mut status = 0;
        // SAFETY: waits for our own child; the status is ours.
        let waited = unsafe { libc::waitpid(*pid, &raw mut status, 0) };
        failed |= waited != *pid || status != 0;
    }
    if failed {
        return Err(Failure::failed("floors: a process failed"));
    }
    Ok(std::array::from_fn(|pattern| {
        let of = |rank| f64::from_bits(shared.told(rank).seconds[pattern].load(Ordering::Relaxed));
        let known = [of(0), of(1)].into_iter().filter(|s: &f64| s.is_finite());
        let (sum, n) = known.fold((0.0, 0), |(sum, n), s| (sum + s, n + 1));
        sum / f64::from(n)
    }))
}

/// Ends those that were started.
fn end(children: &[i32]) {
    for pid in children {
        let mut status = 0;
        // SAFETY: our own child, which is not waited for yet.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
        // SAFETY: the same; the status is ours.
        unsafe { libc::waitpid(*pid, &raw mut status, 0) };
    }
}

/// Memory of a process alone, of whole doubles.
struct Own {
    source: Vec<f64>,
    target: Vec<f64>,
    scratch: Vec<f64>,
    times: Vec<f64>,
}

impl Own {
    fn new(bytes: usize, repetitions: usize) -> Own {
        let doubles = bytes.div_ceil(8);
        Own {
            source: vec![1.0; doubles],
            target: vec![2.0; doubles],
            scratch: vec![3.0; doubles],
            times: vec![0.0; repetitions],
        }
    }
}

struct Child<'a> {
    rank: usize,
    of: Operation,
    bytes: usize,
    shared: &'a Shared,
    own: &'a mut Own,
    /// Numbers of what this rank has published, and taken of the other's.
    published: u64,
    taken: u64,
    calls: u64,
}

impl Child<'_> {
    /// All patterns; false if the other was silent.
    fn measure(&mut self) -> bool {
        let told = self.shared.told(self.rank);
        // SAFETY: a system call on numbers; where it is refused, the default stays.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: the same. Where the system lets only parents read, the other may, too.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
        told.pid.store(std::process::id(), Ordering::Release);
        // SAFETY: our own part of the mapping, which nobody reads yet.
        unsafe { std::ptr::write_bytes(self.shared.data(self.rank), 1, self.shared.data_bytes) };
        let calls = (40 * M / (self.bytes + 2 * K)).clamp(8, 20_000) as u32;
        for pattern in 0..PATTERNS.len() {
            let mut spent = Some(0.0);
            for repetition in 0..=self.own.times.len() {
                let start = Instant::now();
                let mut reading = Duration::ZERO;
                for _ in 0..calls {
                    match self.call(pattern) {
                        Ok(Some(read)) => reading += read,
                        Ok(None) => spent = None,
                        Err(Silent) => return false,
                    }
                }
                let time = match pattern {
                    0 => reading,
                    _ => start.elapsed(),
                };
                // The first one warms up.
                if let Some(at) = repetition.checked_sub(1) {
                    self.own.times[at] = time.as_secs_f64() / f64::from(calls);
                }
            }
            let seconds = match spent {
                Some(_) => median(&mut self.own.times),
                None => f64::NAN,
            };
            // A rank that takes nothing in has no time of reading.
            let seconds = if seconds > 0.0 { seconds } else { f64::NAN };
            told.seconds[pattern].store(seconds.to_bits(), Ordering::Relaxed);
        }
        true
    }

    /// Whether a rank takes data in by the call that is made.
    fn takes(&self, rank: usize) -> bool {
        let root = (self.calls % 2) as usize;
        match self.of {
            Operation::Barrier => false,
            Operation::Bcast | Operation::Scatter => rank != root,
            Operation::Gather | Operation::Reduce => rank == root,
            Operation::Scan | Operation::Exscan => rank == 1,
            _ => true,
        }
    }

    /// One call: how long the reading took, none where the system refuses it.
    fn call(&mut self, pattern: usize) -> std::result::Result<Option<Duration>, Silent> {
        let (mine, gives) = (self.takes(self.rank), self.takes(1 - self.rank));
        self.calls += 1;
        if pattern == 1 && self.bytes > 0 {
            self.in_slots(mine, gives)?;
            return Ok(Some(Duration::ZERO));
        }
        if pattern == 0 && gives {
            // SAFETY: our own memory into our own part, which the other has done with
            // (invariant 1), as many bytes as both have.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.own.source.as_ptr().cast(),
                    self.shared.data(self.rank),
                    self.bytes,
                );
            }
        }
        self.publish(1);
        let other = self.shared.told(1 - self.rank);
        self.taken += 1;
        wait_for(&other.ready, self.taken)?;
        let (mut spent, mut read) = (Duration::ZERO, true);
        if mine {
            let start = Instant::now();
            read = match pattern {
                2 => self.read_by_kernel(),
                _ => {
                    self.take(self.shared.data(1 - self.rank), 0, self.bytes);
                    true
                }
            };
            spent = start.elapsed();
        }
        self.shared
            .told(self.rank)
            .done
            .0
            .store(self.taken, Ordering::Release);
        if gives {
            wait_for(&other.done, self.published)?;
        }
        Ok(read.then_some(spent))
    }

    fn publish(&mut self, pieces: u64) {
        self.published += pieces;
        let told = self.shared.told(self.rank);
        told.ready.0.store(self.published, Ordering::Release);
    }

    /// Pieces in and out, in turn.
    fn in_slots(&mut self, mine: bool, gives: bool) -> std::result::Result<(), Silent> {
        let pieces = self.bytes.div_ceil(SLOT_BYTES) as u64;
        let other = self.shared.told(1 - self.rank);
        for piece in 0..pieces {
            let at = piece as usize * SLOT_BYTES;
            let len = SLOT_BYTES.min(self.bytes - at);
            if gives {
                let least = (self.published + 1).saturating_sub(SLOTS);
                wait_for(&other.done, least)?;
                let source = self.own.source.as_ptr().cast::<u8>().wrapping_add(at);
                // SAFETY: our own memory into a slot of ours that the other has done with
                // (invariant 1); both have `len` bytes there.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        source,
                        self.shared.slot(self.rank, self.published),
                        len,
                    );
                }
            }
            self.publish(1);
            if mine {
                wait_for(&other.ready, self.taken + 1)?;
                self.take(self.shared.slot(1 - self.rank, self.taken), at, len);
            }
            self.taken += 1;
            let told = self.shared.told(self.rank);
            told.done.0.store(self.taken, Ordering::Release);
        }
        Ok(())
    }

    /// Takes in bytes of the other's, or sums them and our own.
    fn take(&mut self, from: *const u8, at: usize, len: usize) {
        let target = self.own.target.as_mut_ptr().cast::<u8>();
        if self.of.reduces() && self.of != Operation::Exscan {
            let doubles = at / 8..(at + len) / 8;
            let source = &self.own.source[doubles.clone()];
            let target = &mut self.own.target[doubles];
            // SAFETY: the other wrote as many doubles there, on a page or a slot, and does not
            // write while we read (invariant 2).
            let theirs = unsafe { std::slice::from_raw_parts(from.cast::<f64>(), len / 8) };
            sum(target, source, theirs);
            return;
        }
        let target = target.wrapping_add(at);
        // SAFETY: as many bytes as the other wrote there (invariant 2), into our own memory.
        unsafe { std::ptr::copy_nonoverlapping(from, target, len) };
        std::hint::black_box(&mut self.own.target);
    }

    /// The other's source, which lies where ours does; false if the system refuses.
    fn read_by_kernel(&mut self) -> bool {
        let sums = self.of.reduces() && self.of != Operation::Exscan;
        let pid = self.shared.told(1 - self.rank).pid.load(Ordering::Acquire);
        let into = match sums {
            true => &mut self.own.scratch,
            false => &mut self.own.target,
        };
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: self.bytes,
        };
        let remote = libc::iovec {
            iov_base: self.own.source.as_mut_ptr().cast(),
            iov_len: self.bytes,
        };
        // SAFETY: writes as many bytes into our own memory as it has room for; the address in
        // the other process is that of the same vector before the fork.
        let got = unsafe {
            libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0)
        };
        if usize::try_from(got) != Ok(self.bytes) {
            return false;
        }
        if sums {
            let n = self.bytes / 8;
            let Own {
                source,
                target,
                scratch,
                ..
            } = &mut *self.own;
            sum(&mut target[..n], &source[..n], &scratch[..n]);
        }
        true
    }
}

/// The other has not answered.
struct Silent;

fn wait_for(line: &Line, least: u64) -> std::result::Result<(), Silent> {
    let mut looks = 0;
    let mut began = None;
    while line.0.load(Ordering::Acquire) < least {
        looks += 1;
        if looks == PATIENCE {
            looks = 0;
            if began.get_or_insert_with(Instant::now).elapsed() > SILENCE {
                return Err(Silent);
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}

fn sum(target: &mut [f64], a: &[f64], b: &[f64]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions.
        unsafe { sum_wide(target, a, b) };
        return;
    }
    sum_each(target, a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_wide(target: &mut [f64], a: &[f64], b: &[f64]) {
    sum_each(target, a, b);
}

#[inline(always)]
fn sum_each(target: &mut [f64], a: &[f64], b: &[f64]) {
    for ((target, a), b) in target.iter_mut().zip(a).zip(b) {
        *target = a + b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let mut target = [0.0; 5];
        sum(&mut target, &[1.0; 5], &[2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(target, [3.0, 4.0, 5.0, 6.0, 7.0]);
    }
}
