//! Example 10: a parallel sort of integers by put and signal, in a symmetric heap.
//!
//! Each rank has random keys, and each is to have those of one range of values in the end. Who
//! sends to a rank fetches a place in its receive buffer from a counter there, writes its keys
//! by one put, and adds one to its signal: no receives, and no exchange of lengths.
//!
//! After the integer sort of U. Hanebutte and J. Hemstad, "ISx: A Scalable Integer Sort for
//! Co-design in the Exascale Era", PGAS 2015.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use osier::rma::SignalOp;
use osier::{Communicator, Op, Result};
use osier_examples::hash::mix;

/// Sort random integers that are spread over the ranks
#[derive(Parser)]
#[command(
    name = "integer_sort",
    after_help = "Examples:
  osier run -n 4 -- integer_sort
  osier run -n 2 -- integer_sort --keys 4000000 --repeat 10"
)]
struct Options {
    /// Keys of each rank
    #[arg(long, value_name = "N", default_value_t = 500_000)]
    keys: usize,

    /// Repetitions, for the time
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: usize,
}

fn main() -> ExitCode {
    osier_examples::cli::run(sort)
}

fn sort(world: &Communicator, options: &Options) -> Result<u8> {
    let (rank, size) = (world.rank(), world.size());
    // Even random keys do not fall into ranges of equal numbers.
    let room = options.keys.saturating_add(options.keys / 4 + 1000);
    let bytes = room.saturating_mul(size_of::<u32>()).saturating_add(4096);
    // First, so that all ranks learn if the keys do not fit into memory.
    let heap = world.symmetric_heap(bytes)?;
    let first = (rank * options.keys) as u64;
    let keys: Vec<u32> = (first..first + options.keys as u64)
        .map(|number| (mix(number) >> 32) as u32)
        .collect();

    let received = heap.alloc::<u32>(room)?;
    let cursor = heap.alloc::<u64>(1)?;
    let arrived = heap.alloc::<u64>(1)?;

    let (mut sorted, mut best) = (Vec::new(), f64::INFINITY);
    for round in 0..options.repeat.max(1) as u64 {
        heap.barrier()?;
        let start = Instant::now();
        let buckets = buckets_of(&keys, size);
        // Each begins with its neighbour, so that not all write to the same rank.
        for target in (1..=size).map(|distance| (rank + distance) % size) {
            let bucket = &buckets[target][..];
            let place = cursor.fetch_and_add(bucket.len() as u64, target, 0)? as usize;
            received.put_signal(bucket, target, place, &arrived, 0, SignalOp::Add(1))?;
        }
        let all = (round + 1) * size as u64;
        arrived.wait_until(0, |signals| signals == all)?;
        let count = cursor.swap(0, rank, 0)? as usize;
        sorted.resize(count, 0);
        received.read(0, &mut sorted)?;
        sorted.sort_unstable();
        best = best.min(start.elapsed().as_secs_f64());
    }

    let right = verify(world, &keys, &sorted)?;
    let mut slowest = [0.0];
    world.allreduce(&[best], &mut slowest, Op::Max)?;
    if rank == 0 {
        let millions = (size * options.keys) as f64 / 1e6;
        println!(
            "{millions:.2} million keys on {size} ranks in {:.2} ms, {:.1} million a second",
            slowest[0] * 1e3,
            millions / slowest[0]
        );
        println!(
            "{}",
            match right {
                true => "every element is in its place",
                false => "WRONG: keys are lost, or not in order",
            }
        );
    }
    Ok(u8::from(!right))
}

/// Which rank has a key in the end: each has a range of equal length.
fn owner_of(key: u32, ranks: usize) -> usize {
    ((u64::from(key) * ranks as u64) >> 32) as usize
}

fn buckets_of(keys: &[u32], ranks: usize) -> Vec<Vec<u32>> {
    let mut buckets = vec![Vec::with_capacity(keys.len() / ranks * 9 / 8); ranks];
    for key in keys {
        buckets[owner_of(*key, ranks)].push(*key);
    }
    buckets
}

/// Whether each rank has its range in order, and all have together what all had before.
fn verify(world: &Communicator, keys: &[u32], sorted: &[u32]) -> Result<bool> {
    let (rank, size) = (world.rank(), world.size());
    let in_order = sorted.is_sorted() && sorted.iter().all(|key| owner_of(*key, size) == rank);
    let sum = |keys: &[u32]| {
        let hashes = keys.iter().map(|key| mix(u64::from(*key)));
        hashes.fold(0u64, u64::wrapping_add)
    };
    let mine = [
        keys.len() as u64,
        sorted.len() as u64,
        sum(keys),
        sum(sorted),
        u64::from(!in_order),
    ];
    let mut all = [0u64; 5];
    world.allreduce(&mine, &mut all, Op::Sum)?;
    Ok(all[0] == all[1] && all[2] == all[3] && all[4] == 0)
}
