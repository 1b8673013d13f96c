//! `osier bench rma`: accesses to windows of another rank that waits, beside a bare program that
//! does the same in memory that both map.
//!
//! # Invariants
//! 1. The bare program uses the other rank's part of a window, as long as the window lives, by
//!    the address that this rank has of it; nobody else uses it meanwhile.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

use osier::rma::{Epoch, Window};
use osier::{Communicator, Op};

use super::options::Plan;
use super::timing::median;
use super::{Failure, Result};

const REPETITIONS: u64 = 15;
/// Accesses of a repetition, of eight bytes, and bytes that longer ones move in one.
const SHORT: u64 = 20_000;
const MOVED_BYTES: usize = 64 << 20;
const LONG: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20];
const MOST_BYTES: usize = 4 << 20;
/// Of a system call for each access.
const SLOWER: u64 = 10;
/// What is accessed.
const TARGET: usize = 1;

/// Runs the measurements; rank 0 reports.
pub fn run(plan: &Plan) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure(plan, &comm)))
}

/// One access, its bytes, how it goes on a window, and bare.
#[derive(Clone, Copy)]
struct Access {
    name: &'static str,
    bytes: usize,
    ours: fn(&mut Bench<'_>) -> osier::Result<()>,
    bare: fn(&mut Bench<'_>),
}

/// What an access uses.
struct Bench<'a> {
    epoch: &'a Epoch<'a, u64>,
    window: &'a Window<u64>,
    /// Of the target's part, by which the bare program goes.
    at: *mut u8,
    buffer: Vec<u64>,
    words: usize,
}

impl Bench<'_> {
    fn word(&self) -> &AtomicU64 {
        // SAFETY: invariant 1; parts are aligned to lines.
        unsafe { AtomicU64::from_ptr(self.at.cast()) }
    }
}

const ACCESSES: &[Access] = &[
    Access {
        name: "put + flush",
        bytes: 8,
        ours: |b| {
            b.epoch.put(&b.buffer[0], TARGET, 0)?;
            b.epoch.flush(TARGET)
        },
        bare: |b| {
            b.word().store(b.buffer[0], Ordering::Relaxed);
            fence(Ordering::SeqCst);
        },
    },
    Access {
        name: "get + flush",
        bytes: 8,
        ours: |b| {
            b.epoch.get(&mut b.buffer[0], TARGET, 0)?;
            b.epoch.flush(TARGET)
        },
        bare: |b| b.buffer[0] = b.word().load(Ordering::Relaxed),
    },
    Access {
        name: "fetch_and_op",
        bytes: 8,
        ours: |b| b.epoch.fetch_and_op(1, TARGET, 0, Op::Sum).map(drop),
        bare: |b| {
            black_box(b.word().fetch_add(1, Ordering::AcqRel));
        },
    },
    Access {
        name: "compare_and_swap",
        bytes: 8,
        ours: |b| b.epoch.compare_and_swap(1, 2, TARGET, 0).map(drop),
        bare: |b| {
            let order = (Ordering::AcqRel, Ordering::Acquire);
            let _ = black_box(b.word().compare_exchange(1, 2, order.0, order.1));
        },
    },
    Access {
        name: "lock + unlock",
        bytes: 0,
        ours: |b| b.window.lock(TARGET)?.unlock(),
        bare: |b| {
            let order = (Ordering::AcqRel, Ordering::Acquire);
            let _ = black_box(b.word().compare_exchange(0, 1, order.0, order.1));
            b.word().fetch_sub(1, Ordering::AcqRel);
        },
    },
    Access {
        name: "accumulate x 1000",
        bytes: 8000,
        ours: |b| b.epoch.accumulate(&b.buffer[..1000], TARGET, 0, Op::Sum),
        bare: |b| {
            let at = b.at.cast::<u64>();
            for (i, value) in b.buffer[..1000].iter().enumerate() {
                let at = at.wrapping_add(i);
                // SAFETY: invariant 1: inside the part.
                let there = unsafe { at.read_volatile() };
                // SAFETY: invariant 1: inside the part.
                unsafe { at.write_volatile(there.wrapping_add(*value)) };
            }
        },
    },
];

const PUT: Access = Access {
    name: "put",
    bytes: 0,
    ours: |b| b.epoch.put(&b.buffer[..b.words], TARGET, 0),
    bare: |b| {
        let from = b.buffer.as_ptr().cast();
        // SAFETY: invariant 1: inside the part, and a vector of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, b.at, 8 * b.words) };
    },
};

const GET: Access = Access {
    name: "get",
    bytes: 0,
    ours: |b| b.epoch.get(&mut b.buffer[..b.words], TARGET, 0),
    bare: |b| {
        let to = b.buffer.as_mut_ptr().cast();
        // SAFETY: invariant 1: inside the part, and a vector of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(b.at.cast_const(), to, 8 * b.words) };
    },
};

fn measure(plan: &Plan, comm: &Communicator) -> Result<()> {
    super::options::check_ranks(plan.bench, comm.size())?;
    let first = comm.rank() == 0;
    let mapped = comm.window::<u64>(MOST_BYTES / 8)?;
    let plain = comm.window_of(vec![0u64; MOST_BYTES / 8])?;
    if first {
        let reach = [mapped.reach_of(TARGET)?, plain.reach_of(TARGET)?];
        println!("# osier rma: accesses to a rank that waits, ns; medians of repetitions");
        println!(
            "# window: reached by {}; of a vector: by {}",
            reach[0], reach[1]
        );
        println!(
            "{:<18} {:>8} {:>12} {:>12} {:>7} {:>12}",
            "access", "bytes", "window", "bare", "ratio", "of a vector"
        );
        let long = LONG.map(|bytes| [PUT, GET].map(|access| Access { bytes, ..access }));
        for access in ACCESSES.iter().chain(long.iter().flatten()) {
            let row = row(plan, access, [&mapped, &plain])?;
            println!("{row}");
        }
    }
    comm.barrier()?;
    let (mut fences, mut barriers) = (Vec::new(), Vec::new());
    for _ in 0..plan.effort.repetitions.unwrap_or(REPETITIONS) {
        comm.barrier()?;
        fences.push(each(SHORT, || mapped.fence())?);
        barriers.push(each(SHORT, || comm.barrier())?);
    }
    if first {
        let (fence, barrier) = (median(&mut fences), median(&mut barriers));
        println!("{}", line("fence (barrier)", 0, fence, barrier, None));
    }
    mapped.free()?;
    plain.free()?;
    Ok(())
}

/// ns of one of many calls.
fn each(calls: u64, mut f: impl FnMut() -> osier::Result<()>) -> Result<f64> {
    let since = Instant::now();
    for _ in 0..calls {
        f()?;
    }
    Ok(since.elapsed().as_secs_f64() * 1e9 / calls as f64)
}

fn row(plan: &Plan, access: &Access, [mapped, plain]: [&Window<u64>; 2]) -> Result<String> {
    let long = access.bytes > 8;
    let calls = match long {
        true => (MOVED_BYTES / access.bytes).min(SHORT as usize) as u64,
        false => SHORT,
    };
    let at = mapped.raw().address_of(TARGET)?;
    let at = at.ok_or_else(|| Failure::failed("rma: a window that is not mapped"))?;
    let bench = |window, epoch| Bench {
        epoch,
        window,
        at,
        buffer: vec![1; MOST_BYTES / 8],
        words: access.bytes / 8,
    };
    let (all, of_plain) = (mapped.lock_all(), plain.lock_all());
    // A lock that is taken alone is not beside one on all.
    let locks = access.name.starts_with("lock");
    let (mut of_mapped, mut of_vector) = (bench(mapped, &*all), bench(plain, &*of_plain));
    if !locks {
        (access.ours)(&mut of_mapped)?;
    }
    let (mut ours, mut bare, mut vector) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.effort.repetitions.unwrap_or(REPETITIONS) {
        of_mapped.word().store(0, Ordering::Relaxed);
        ours.push(each(calls, || (access.ours)(&mut of_mapped))?);
        of_mapped.word().store(0, Ordering::Relaxed);
        bare.push(each(calls, || {
            (access.bare)(&mut of_mapped);
            Ok(())
        })?);
        vector.push(each(calls / SLOWER, || (access.ours)(&mut of_vector))?);
    }
    let (ours, bare) = (median(&mut ours), median(&mut bare));
    let vector = median(&mut vector);
    drop((of_mapped, of_vector));
    all.unlock()?;
    of_plain.unlock()?;
    Ok(line(access.name, access.bytes, ours, bare, Some(vector)))
}

fn line(name: &str, bytes: usize, ours: f64, bare: f64, vector: Option<f64>) -> String {
    let vector = vector.map_or_else(|| "-".into(), |ns| format!("{ns:.1}"));
    let ratio = ours / bare;
    format!("{name:<18} {bytes:>8} {ours:>12.1} {bare:>12.1} {ratio:>7.2} {vector:>12}")
}
