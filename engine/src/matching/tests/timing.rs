//! Nanoseconds per operation; run with
//! `cargo test --release matching -- --ignored --nocapture`.
//!
//! `depth` entries wait all the time; the cost is that of one post and one take
//! (or push and take), oldest first. Each figure is the median of many rounds.

use std::hint::black_box;
use std::time::Instant;

use super::{Envelope, Pattern, PostedQueue, TagPattern, UnexpectedQueue};

/// Short rounds, so that on a shared machine most are not interrupted.
const ROUNDS: usize = 1001;
const OPERATIONS: u32 = 1 << 12;
const DEPTHS: [u32; 4] = [1, 10, 1_000, 100_000];

/// Median over the rounds of the time for one call of `each`.
fn median_ns(mut each: impl FnMut(u32)) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS as u32)
        .map(|round| {
            let start = Instant::now();
            for i in 0..OPERATIONS {
                each(round * OPERATIONS + i);
            }
            start.elapsed().as_nanos() as f64 / f64::from(OPERATIONS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn posted<P: Fn(Envelope) -> Pattern>(depth: u32, layout: impl Layout, pattern: P) -> f64 {
    let mut queue = PostedQueue::new();
    for i in 0..depth - 1 {
        queue.post(pattern(layout(i)), i);
    }
    median_ns(|i| {
        let last = i + depth - 1;
        queue.post(pattern(layout(black_box(last))), last);
        let taken = queue.take(layout(black_box(i)));
        debug_assert_eq!(taken, Some(i));
        black_box(taken);
    })
}

fn unexpected<P: Fn(Envelope) -> Pattern>(depth: u32, layout: impl Layout, pattern: P) -> f64 {
    let mut queue = UnexpectedQueue::new();
    for i in 0..depth - 1 {
        queue.push(layout(i), u64::from(i));
    }
    median_ns(|i| {
        let last = i + depth - 1;
        queue.push(layout(black_box(last)), u64::from(last));
        let taken = queue.take(pattern(layout(black_box(i))));
        debug_assert!(taken.is_some_and(|(_, message)| message == u64::from(i)));
        black_box(taken);
    })
}

/// Posts `depth` receives, then takes all: the two halves apart.
fn halves(depth: u32, layout: impl Layout) -> (f64, f64) {
    let mut queue = PostedQueue::new();
    let repeats = (OPERATIONS / depth).max(1);
    let rounds = (ROUNDS as u32 * OPERATIONS / depth / repeats).clamp(15, ROUNDS as u32);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let (mut post, mut take) = (0, 0);
        for _ in 0..repeats {
            let start = Instant::now();
            for i in 0..depth {
                let envelope = layout(black_box(i));
                queue.post(Pattern::exact(envelope.source, envelope.tag), i);
            }
            let middle = Instant::now();
            for i in 0..depth {
                black_box(queue.take(layout(black_box(i))));
            }
            post += (middle - start).as_nanos();
            take += middle.elapsed().as_nanos();
        }
        let operations = f64::from(repeats * depth);
        times.push((post as f64 / operations, take as f64 / operations));
    }
    let median = |half: fn(&(f64, f64)) -> f64| {
        let mut half: Vec<f64> = times.iter().map(half).collect();
        half.sort_by(f64::total_cmp);
        half[half.len() / 2]
    };
    (median(|both| both.0), median(|both| both.1))
}

fn exact(envelope: Envelope) -> Pattern {
    Pattern::exact(envelope.source, envelope.tag)
}

fn any_tag(envelope: Envelope) -> Pattern {
    Pattern {
        source: Some(envelope.source),
        tag: TagPattern::Any,
    }
}

fn any_source(envelope: Envelope) -> Pattern {
    Pattern {
        source: None,
        tag: TagPattern::Exact(envelope.tag),
    }
}

fn any(_: Envelope) -> Pattern {
    Pattern {
        source: None,
        tag: TagPattern::Any,
    }
}

fn one_key(_: u32) -> Envelope {
    Envelope { source: 1, tag: 2 }
}

fn tags(i: u32) -> Envelope {
    Envelope {
        source: 1,
        tag: i & 0x7FFF_FFFF,
    }
}

/// Neighbors in time are not neighbors in the table.
fn scattered(i: u32) -> Envelope {
    Envelope {
        source: i % 64,
        tag: i.wrapping_mul(0x9E37_79B1) & 0x7FFF_FFFF,
    }
}

/// Where the envelopes lie; a generic parameter, so that the loops inline it.
trait Layout: Fn(u32) -> Envelope + Copy {}
impl<F: Fn(u32) -> Envelope + Copy> Layout for F {}

fn row<P>(name: &str, layout: impl Layout, pattern: P)
where
    P: Fn(Envelope) -> Pattern + Copy,
{
    let line = |run: &dyn Fn(u32) -> f64| {
        let cells = DEPTHS.map(|depth| format!("{:7.1}", run(depth)));
        cells.join(" ")
    };
    let posted = line(&|depth| posted(depth, layout, pattern));
    println!("{name:20} post+take {posted}");
    let unexpected = line(&|depth| unexpected(depth, layout, pattern));
    println!("{name:20} push+take {unexpected}");
}

fn half_rows(name: &str, layout: impl Layout) {
    // At depth 1 the clock would be all there is to see.
    for &depth in &DEPTHS[1..] {
        let (post, take) = halves(depth, layout);
        println!("{name:10} depth {depth:6}: post {post:.1} ns, take {take:.1} ns");
    }
}

#[test]
#[ignore = "a measurement"]
fn nanoseconds_per_operation() {
    println!("ns per pair of operations, by entries waiting {DEPTHS:?}");
    row("exact, one key", one_key, exact);
    row("exact, tags", tags, exact);
    row("exact, scattered", scattered, exact);
    row("any tag", tags, any_tag);
    row("any source", tags, any_source);
    row("any source and tag", tags, any);
    half_rows("tags", tags);
    half_rows("scattered", scattered);
}
