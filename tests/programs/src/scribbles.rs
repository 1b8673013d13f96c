//! A rank that writes where it must not: `exercise scribble SEED`.
//!
//! All ranks draw the same messages from the seed, of all protocols, and check source, tag
//! and length of each against what was drawn. One of them writes words, lines or pages over
//! the job's shared memory meanwhile, from a thread of its own. Each rank comes to its end,
//! or gets an error and exits with [`TOLD`].
//!
//! Bytes of a payload may be those that were written over it: they are counted, not judged.

use crate::devices;
use crate::matrix::cells::Dice;
use osier::devices::DeviceView;
use osier::{
    ANY_SOURCE, ANY_TAG, Communicator, ErrorKind, Op, Result, Status, Type, View, ViewMut,
};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Exit code of a rank that got an error.
pub const TOLD: i32 = 3;
/// Of one that was told a wrong source, tag or length.
pub const WRONG: i32 = 7;
const ROUNDS: usize = 60;
/// The first word of a block, without its version.
const BLOCK: u64 = 0x4f53_4945_5252;
const SIZES: [usize; 12] = [
    0, 4, 8, 16, 49, 120, 600, 3_000, 20_000, 33_000, 100_000, 700_000,
];

/// The memory that peers write over, as this process maps it.
struct Target {
    base: *mut u8,
    /// What is used of it.
    ranges: Vec<(usize, usize)>,
}

// SAFETY: an address range that stays mapped, and is written by atomic bytes only.
unsafe impl Send for Target {}

/// A second mapping of a file of the job, by its name.
fn map(name: &str) -> Option<Target> {
    let file = std::fs::read_dir("/proc/self/fd").ok()?.find_map(|entry| {
        let path = entry.ok()?.path();
        let is = std::fs::read_link(&path).ok()?.to_str()?.contains(name);
        is.then(|| {
            std::fs::File::options()
                .read(true)
                .write(true)
                .open(&path)
                .ok()
        })?
    })?;
    let fd = file.as_raw_fd();
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        // SAFETY: system calls without pointers.
        let start = unsafe { libc::lseek(fd, at, libc::SEEK_DATA) };
        if start < 0 {
            break;
        }
        // SAFETY: as before, without pointers.
        at = unsafe { libc::lseek(fd, start, libc::SEEK_HOLE) };
        ranges.push((start as usize, at as usize));
    }
    let bytes = ranges.last()?.1;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping, which stays.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
    (base != libc::MAP_FAILED).then(|| Target {
        base: base.cast(),
        ranges,
    })
}

impl Target {
    /// Where rings and mailboxes begin.
    fn blocks(&self) -> Vec<usize> {
        let pages = self.ranges.iter().flat_map(|(a, b)| (*a..*b).step_by(4096));
        let is_block = |at: &usize| {
            // SAFETY: inside the mapping, aligned, an atomic.
            let word = unsafe { &*self.base.wrapping_add(*at).cast::<AtomicU64>() };
            word.load(Ordering::Relaxed) >> 16 == BLOCK
        };
        pages.filter(is_block).collect()
    }

    /// Writes over some of it.
    fn scribble(&self, dice: &mut Dice) -> String {
        let bytes = dice.of(&[4usize, 8, 8, 16, 64, 64, 512, 4096]);
        let (start, end) = match (dice.below(8), self.blocks()) {
            (0, _) => dice.of(&self.ranges),
            // Header, control blocks and status pages.
            (1 | 2, _) => (0, 64 << 10),
            (3, blocks) if !blocks.is_empty() => {
                let block = dice.of(&blocks);
                (block, block + (20 << 10))
            }
            // Where the words of a ring lie, and the cells that are in use.
            (_, blocks) if !blocks.is_empty() => {
                let block = dice.of(&blocks);
                (block, block + 1280)
            }
            _ => dice.of(&self.ranges),
        };
        let last = self.ranges.last().map_or(0, |(_, end)| *end);
        let at = start + dice.below((end - start).div_ceil(bytes)) * bytes;
        let at = at.min(last - bytes);
        let value = dice.below(4);
        for i in 0..bytes {
            let byte = match value {
                0 => 0,
                1 => 0xff,
                _ => dice.draw() as u8,
            };
            // SAFETY: inside the mapping; atomics, as all that ranks share.
            unsafe { &*self.base.wrapping_add(at + i).cast::<AtomicU8>() }
                .store(byte, Ordering::Relaxed);
        }
        format!(
            "{bytes} bytes of {} at {at:#x}",
            ["0", "ff", "chance", "chance"][value]
        )
    }
}

/// What this rank has seen.
struct Seen<'a> {
    comm: &'a Communicator,
    round: usize,
    /// Messages with bytes that nobody sent.
    changed: AtomicUsize,
}

impl Seen<'_> {
    /// Checks what a receive, or a probe, says.
    fn check(&self, status: Status, source: usize, tag: u32, bytes: usize) {
        let got = (status.source(), status.tag(), status.bytes());
        if got != (Some(source), Some(tag), bytes) {
            eprintln!(
                "rank {}, round {}: WRONG: {got:?} instead of {source}, {tag}, {bytes}",
                self.comm.rank(),
                self.round
            );
            std::process::exit(WRONG);
        }
    }

    fn look(&self, got: &[u8], source: usize, tag: u32) {
        if got.iter().any(|b| *b != byte(source, tag)) {
            self.changed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn byte(source: usize, tag: u32) -> u8 {
    (source as u32 * 41 + tag * 7 + 1) as u8
}

/// What is drawn alike for the message of a round from one rank to another.
fn message(seed: u64, round: usize, from: usize, to: usize) -> (u32, usize) {
    let key = seed ^ (round as u64) << 32 ^ (from as u64) << 16 ^ to as u64;
    let mut dice = Dice::new(key);
    (dice.below(1 << 20) as u32, dice.of(&SIZES))
}

/// One round, which all ranks make.
fn round(seen: &Seen<'_>, seed: u64) -> Result<()> {
    let (comm, round) = (seen.comm, seen.round);
    let (me, n) = (comm.rank(), comm.size());
    let mut dice = Dice::new(seed.wrapping_mul(31) + round as u64);
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    let kind = dice.below(8);
    let a = dice.below(n);
    let b = (a + 1 + dice.below(n - 1)) % n;
    let count = 1 + dice.below(60);
    let ((tag, bytes), (left_tag, left_bytes)) = (
        message(seed, round, me, right),
        message(seed, round, left, me),
    );
    let mine = vec![byte(me, tag); bytes];
    let mut got = vec![0; left_bytes];
    match kind {
        0 => {
            let status = comm.sendrecv(&mine, right, tag, &mut got, left, ANY_TAG)?;
            seen.check(status, left, left_tag, left_bytes);
            seen.look(&got, left, left_tag);
        }
        1 => {
            let mut heap = comm.alloc::<u8>(bytes)?;
            heap.copy_from_slice(&mine);
            let mut into = comm.alloc::<u8>(left_bytes)?;
            let status = comm.sendrecv(&heap, right, tag, &mut into, left, ANY_TAG)?;
            seen.check(status, left, left_tag, left_bytes);
            seen.look(&into, left, left_tag);
        }
        2 => {
            let (bytes, left_bytes) = (bytes.max(1), left_bytes.max(1));
            let gaps = |bytes| Type::vector(bytes, 1, 2, &Type::of::<u8>())?.commit();
            let wide = vec![byte(me, tag); 2 * bytes];
            let view = View::new(&wide, 0, &gaps(bytes)?, 1)?;
            let mut sparse = vec![0; 2 * left_bytes];
            let mut into = ViewMut::new(&mut sparse, 0, &gaps(left_bytes)?, 1)?;
            let status = comm.sendrecv(&view, right, tag, &mut into, left, ANY_TAG)?;
            seen.check(status, left, left_tag, left_bytes);
        }
        // All to all, at the same time.
        3 => {
            let outs: Vec<(u32, Vec<u8>)> = (0..n)
                .map(|to| message(seed, round, me, to))
                .map(|(tag, bytes)| (tag, vec![byte(me, tag); bytes]))
                .collect();
            let mut ins: Vec<Vec<u8>> = (0..n)
                .map(|from| vec![0; message(seed, round, from, me).1])
                .collect();
            comm.scope(|s| {
                for (from, into) in ins.iter_mut().enumerate() {
                    s.irecv(&mut into[..], from, message(seed, round, from, me).0)?;
                }
                for (to, (tag, out)) in outs.iter().enumerate() {
                    match to % 2 {
                        0 => s.isend(&out[..], to, *tag)?,
                        _ => s.issend(&out[..], to, *tag)?,
                    };
                }
                Ok(())
            })?;
            for (from, got) in ins.iter().enumerate() {
                seen.look(got, from, message(seed, round, from, me).0);
            }
        }
        // One receives from all, in the order in which they come.
        4 if me == a => {
            let mut left: Vec<usize> = (0..n).filter(|r| *r != a).collect();
            let mut room = vec![0; SIZES[SIZES.len() - 1]];
            while !left.is_empty() {
                let status = comm.recv(&mut room, ANY_SOURCE, ANY_TAG)?;
                let from = status.source().unwrap_or(n);
                let (tag, bytes) = message(seed, round, from, a);
                match left.iter().position(|r| *r == from) {
                    Some(at) => drop(left.remove(at)),
                    None => seen.check(status, left[0], tag, bytes),
                }
                seen.check(status, from, tag, bytes);
                seen.look(&room[..bytes], from, tag);
            }
        }
        4 => {
            let (tag, bytes) = message(seed, round, me, a);
            comm.send(&vec![byte(me, tag); bytes], a, tag)?;
        }
        5 => {
            let mut sum = [0u64];
            comm.allreduce(&[me as u64], &mut sum, Op::Sum)?;
            comm.barrier()?;
            let mut all = vec![0; message(seed, round, 0, 0).1];
            comm.bcast(&mut all, a)?;
        }
        // A stream of short ones, and a probe for each long one.
        6 if me == a => {
            for i in 0..count as u32 {
                let (_, bytes) = message(seed, round * 1000 + i as usize, a, b);
                comm.send(&vec![byte(a, i); bytes.min(4_000)], b, i)?;
            }
        }
        6 if me == b => {
            for i in 0..count as u32 {
                let (_, bytes) = message(seed, round * 1000 + i as usize, a, b);
                let bytes = bytes.min(4_000);
                let mut room = vec![0; 4_000];
                if i % 3 == 0 {
                    seen.check(comm.probe(a, ANY_TAG)?, a, i, bytes);
                }
                seen.check(comm.recv(&mut room, a, ANY_TAG)?, a, i, bytes);
                seen.look(&room[..bytes], a, i);
            }
        }
        6 => {}
        // To and fro.
        _ => {
            let other = if me == a { b } else { a };
            if me == a || me == b {
                for i in 0..count as u32 {
                    let (bytes, mut room) = ([8, 40, 300][i as usize % 3], [0; 300]);
                    let mine = [byte(me, i); 300];
                    let status =
                        comm.sendrecv(&mine[..bytes], other, i, &mut room, other, ANY_TAG)?;
                    seen.check(status, other, i, bytes);
                    seen.look(&room[..bytes], other, i);
                }
            }
        }
    }
    match kind {
        // What comes later is not for the receives from any source.
        4 => comm.barrier(),
        _ => Ok(()),
    }
}

pub fn run(comm: &Communicator, seed: u64) {
    let n = comm.size();
    let mut dice = Dice::new(seed);
    let (writer, at) = (dice.below(n), 2 + dice.below(ROUNDS - 4));
    let mut seen = Seen {
        comm,
        round: 0,
        changed: AtomicUsize::new(0),
    };
    let go = AtomicBool::new(false);
    let done = std::thread::scope(|s| {
        let go = &go;
        if comm.rank() == writer {
            s.spawn(move || {
                while !go.load(Ordering::Acquire) {
                    std::thread::park_timeout(Duration::from_micros(200));
                }
                let heap = dice.below(8) == 0;
                let name = if heap { "osier-heap" } else { "osier-arena" };
                let (name, Some(target)) = (match map(name) {
                    Some(target) => (name, Some(target)),
                    None => ("osier-arena", map("osier-arena")),
                }) else {
                    return eprintln!("no {name}");
                };
                for _ in 0..1 + dice.below(8) {
                    // Another moment of the exchange; nobody waits for it.
                    std::thread::park_timeout(Duration::from_micros(dice.below(500) as u64));
                    let what = target.scribble(&mut dice);
                    eprintln!("rank {writer} writes {what} of {name}");
                }
            });
        }
        let mut result = Ok(());
        for round_at in 0..ROUNDS {
            if round_at == at {
                go.store(true, Ordering::Release);
            }
            seen.round = round_at;
            result = round(&seen, seed);
            if result.is_err() {
                break;
            }
        }
        go.store(true, Ordering::Release);
        result
    });
    match done.and_then(|()| comm.barrier()) {
        Ok(()) => {
            let changed = seen.changed.load(Ordering::Relaxed);
            println!("rank {} is through, {changed} changed", comm.rank());
        }
        Err(e) => {
            eprintln!("rank {}, round {}: told: {e}", comm.rank(), seen.round);
            std::process::exit(TOLD);
        }
    }
}

/// Rounds of messages until somebody is killed: `exercise traffic SEED`.
pub fn traffic(comm: &Communicator, seed: u64) {
    let mut seen = Seen {
        comm,
        round: 0,
        changed: AtomicUsize::new(0),
    };
    until_told(comm, || {
        seen.round += 1;
        round(&seen, seed)?;
        // Messages take from where they are: nothing may be changed without a writer.
        assert_eq!(seen.changed.load(Ordering::Relaxed), 0);
        Ok(())
    });
}

/// The same between devices: `exercise device-traffic SEED`.
pub fn device_traffic(comm: &Communicator, seed: u64) {
    let (_context, stream) = devices::device(comm);
    let (me, n) = (comm.rank(), comm.size());
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    let mut dice = Dice::new(seed);
    until_told(comm, || {
        let bytes = dice.of(&[500usize, 70_000, 1 << 20]);
        let from = devices::upload(&stream, &vec![me as u8; 2 * bytes]);
        let into = devices::upload(&stream, &vec![0; 2 * bytes]);
        let every = [1, 2][dice.below(2)];
        let layout = Type::vector(bytes / 4, 4, 4 * every, &Type::of::<u8>())?.commit()?;
        let from = DeviceView::new(&from, 0, &layout, 1)?;
        let to = DeviceView::new(&into, 0, &layout, 1)?;
        let mut to = to.after_stream(&stream);
        comm.sendrecv(&from.after_stream(&stream), right, 1, &mut to, left, 1)?;
        assert_eq!(devices::download(&stream, &into)[0], left as u8);
        Ok(())
    });
}

/// Until an error that names a rank that is dead.
fn until_told(comm: &Communicator, mut each: impl FnMut() -> Result<()>) {
    comm.barrier().expect("all are here");
    println!("rank {} goes on", comm.rank());
    loop {
        if let Err(e) = each() {
            eprintln!("rank {}: told: {e}", comm.rank());
            let dead = e.kind() == ErrorKind::RankDead && e.to_string().contains("rank ");
            std::process::exit(if dead { TOLD } else { WRONG });
        }
    }
}
