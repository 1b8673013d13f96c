//! Many random types against the naive typemap, by seed.
//!
//! A seed makes a tree of any constructors or a nest of loops, checks all that
//! its layout says and does, and sends its payload through another layout of the
//! same signature. A failure prints the seed and the smallest type found that
//! fails still; `OSIER_TEST=seed=N cargo test -p osier-datatype --test trees
//! one_seed` repeats it.
//!
//! `cargo xtask soak datatype` runs the same without end.

#[path = "../../tests/asked.rs"]
mod asked;
mod support;

use osier_datatype::Type;
use osier_datatype_corpus::random::{Random, grid, same_signature, shrink, tree};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::agrees;

/// Trees of the quick tests; `OSIER_TEST=trees=N` overrides it.
const TREES: u64 = 100_000;

/// The type of a seed, a number of instances, and places to cut at.
fn draw(seed: u64) -> (Type, usize, Vec<usize>) {
    let mut random = Random::new(seed);
    let ty = match random.below(4) {
        0 => grid(&mut random, 6000),
        _ => tree(&mut random, 1500),
    };
    let count = match ty.size() {
        // Long rows of small types have kernels of their own.
        1..=40 if random.below(3) == 0 => random.below(120),
        _ => random.below(4),
    };
    let cuts = (0..random.below(6)).map(|_| random.next() as usize);
    let cuts = cuts.collect();
    (ty, count as usize, cuts)
}

/// Panics where a layout and the oracle differ.
fn check(ty: &Type, count: usize, cuts: &[usize], seed: u64) {
    agrees(ty, count, cuts);
    travels(ty, &mut Random::new(!seed));
}

/// Packs with one layout, unpacks with another of the same signature, packs
/// with that.
fn travels(ty: &Type, random: &mut Random) {
    let (from, to) = (ty, same_signature(random, ty));
    assert_eq!(from.signature(), to.signature());
    let (from, to) = (from.commit().unwrap(), to.commit().unwrap());
    let bytes = from.size();
    assert_eq!(bytes, to.size());
    let place = |layout: &osier_datatype::Layout| {
        let (low, high) = layout.span(1);
        let origin = (-low).max(0) as usize;
        (origin, origin + high.max(0) as usize)
    };
    let (origin, room) = place(&from);
    let memory: Vec<u8> = (0..room).map(|i| (i * 31 + i / 200) as u8).collect();
    let mut packed = vec![0; bytes];
    from.pack(&memory, origin, 1, 0..bytes, &mut packed)
        .unwrap();
    let (origin, room) = place(&to);
    let mut memory = vec![0; room];
    let mut again = vec![0; bytes];
    let cut = random.below(bytes as u64 + 1) as usize;
    for part in [cut..bytes, 0..cut] {
        to.unpack(&mut memory, origin, 1, part.clone(), &packed[part])
            .unwrap();
    }
    to.pack(&memory, origin, 1, 0..bytes, &mut again).unwrap();
    assert!(packed == again, "payload of {ty:?} through another layout");
}

/// Runs seeds from `first` on all processors until `enough(seeds done)`; says how
/// many it ran.
fn run(first: u64, enough: impl Fn(u64) -> bool + Sync) -> u64 {
    const BATCH: u64 = 64;
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(BATCH, Ordering::Relaxed);
                    if enough(at) || failed.load(Ordering::Relaxed) {
                        break;
                    }
                    for seed in (first + at..).take(BATCH as usize) {
                        if !holds(seed) {
                            failed.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert!(!failed.into_inner(), "see the seed above");
    next.into_inner()
}

/// Whether a seed passes; if not, says so with the smallest type that fails.
fn holds(seed: u64) -> bool {
    let (ty, count, cuts) = draw(seed);
    let passes =
        |ty: &Type| catch_unwind(AssertUnwindSafe(|| check(ty, count, &cuts, seed))).is_ok();
    if passes(&ty) {
        return true;
    }
    let small = shrink(&ty, |ty| !passes(ty));
    eprintln!("OSIER_TEST=seed={seed} fails: {count} of {small:?}, cut at {cuts:?}");
    false
}

#[test]
fn trees_agree_with_the_typemap() {
    let trees = asked::number("trees").unwrap_or(TREES);
    run(0, |done| done >= trees);
}

#[test]
fn one_seed() {
    assert!(holds(asked::number("seed").unwrap_or(1)));
}

#[test]
#[ignore = "as long as one likes: cargo xtask soak datatype"]
fn soak() {
    let seconds = Duration::from_secs(asked::number("seconds").unwrap_or(10));
    let trees = asked::number("trees").unwrap_or(u64::MAX);
    let first = asked::number("seed").unwrap_or(1) << 32;
    let (start, last) = (Instant::now(), AtomicU64::new(0));
    let done = run(first, |done| {
        let elapsed = start.elapsed();
        let second = elapsed.as_secs();
        if last.fetch_max(second, Ordering::Relaxed) < second {
            bar(done, trees, elapsed, seconds);
        }
        elapsed >= seconds || done >= trees
    });
    println!("\n{done} trees, seeds from {first}");
}

/// A bar of what is nearer its end, time or trees.
fn bar(done: u64, trees: u64, elapsed: Duration, seconds: Duration) {
    const WIDTH: usize = 30;
    let part = (elapsed.as_secs_f64() / seconds.as_secs_f64().max(1.0))
        .max(done as f64 / trees as f64)
        .min(1.0);
    let full = (part * WIDTH as f64) as usize;
    let (full, empty) = ("█".repeat(full), "░".repeat(WIDTH - full));
    let rate = done as f64 / elapsed.as_secs_f64();
    let left = elapsed.as_secs_f64() * (1.0 - part) / part.max(1e-3);
    eprint!("\r{full}{empty} {done} trees, {rate:.0}/s, {left:.0} s left ");
}
