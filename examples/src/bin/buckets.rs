//! Example 14: keys go into the buckets of ranks inside of one kernel.
//!
//! Ranks have keys on their devices, and a bucket each in a symmetric heap. A kernel reserves places in
//! the buckets by fetch-and-add and puts the keys there, counts their last digits by adding to words of
//! all ranks, and asks for the sizes of all buckets. With `--delay` ranks are elsewhere: the kernel
//! posts, and threads of the ranks serve. All is compared with a sequential program.
//!
//! Buckets: D. Knuth, "The Art of Computer Programming", volume 3, section 5.2.1.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use osier::devices::DeviceSlice;
use osier::rma::{Symmetric, Team};
use osier::{Communicator, Op, Result};
use osier_examples::gpu::Gpu;
use osier_examples::hash::mix;

/// Sort keys into the buckets of ranks inside of one kernel
#[derive(Parser)]
#[command(
    name = "buckets",
    after_help = "Examples:
  osier run -n 2 -- buckets
  osier run -n 2 --ranks-per-process 2 -- buckets --keys 1000000 --blocks 64
  osier run -n 2 --emulate-gpus 1 --delay 10us -- buckets --keys 200"
)]
struct Options {
    /// Keys of each rank
    #[arg(long, value_name = "N", default_value_t = 2000)]
    keys: usize,

    /// Digits that are counted
    #[arg(long, value_name = "N", default_value_t = 10)]
    base: usize,

    /// Thread blocks of the kernel, which all run at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    blocks: u32,
}

fn main() -> ExitCode {
    osier_examples::cli::run(sort)
}

/// Threads of a block.
const THREADS: u32 = 128;
/// Keys are less than that.
const KEYS: u64 = 1 << 40;

/// `example_buckets_plan` of `cuda/buckets.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Plan {
    team: Team,
    keys: u64,
    packed: u64,
    filled: u64,
    places: u64,
    sizes: u64,
    smallest: u64,
    met: u64,
    bucket: u64,
    taken: u64,
    least: u64,
    digits: u64,
    count: u64,
    width: u64,
    base: u64,
}

/// The keys of a rank.
fn keys_of(rank: usize, count: usize) -> Vec<u64> {
    let numbers = (0..count).map(|i| mix((rank * count + i) as u64));
    numbers.map(|number| number % KEYS).collect()
}

/// What a rank has in the end.
#[derive(PartialEq)]
struct Sorted {
    /// Its bucket, in order.
    bucket: Vec<u64>,
    /// Keys of each bucket.
    sizes: Vec<u64>,
    /// The smallest key of each.
    least: Vec<u64>,
    /// How often each of its digits occurs.
    digits: Vec<u64>,
}

/// What a sequential program has.
fn sequential((rank, size): (usize, usize), options: &Options) -> Sorted {
    let all: Vec<u64> = (0..size).flat_map(|r| keys_of(r, options.keys)).collect();
    let width = KEYS.div_ceil(size as u64);
    let mut buckets = vec![Vec::new(); size];
    let mut digits = vec![0; options.base.div_ceil(size)];
    for key in all {
        buckets[(key / width) as usize].push(key);
        let digit = (key % options.base as u64) as usize;
        if digit % size == rank {
            digits[digit / size] += 1;
        }
    }
    let least = |bucket: &Vec<u64>| bucket.iter().copied().min().unwrap_or(u64::MAX);
    let (sizes, least) = (
        buckets.iter().map(|b| b.len() as u64).collect(),
        buckets.iter().map(least).collect(),
    );
    let mut bucket = buckets.swap_remove(rank);
    bucket.sort_unstable();
    Sorted {
        bucket,
        sizes,
        least,
        digits,
    }
}

/// The kernel's: and seconds.
fn by_kernel(world: &Communicator, gpu: &Gpu, options: &Options) -> Result<(Sorted, f64)> {
    let (own, size, count) = (world.rank(), world.size(), options.keys);
    let counted = options.base.div_ceil(size);
    let words = size * count + size + counted + 1;
    let heap = world.symmetric_heap_on(&gpu.context, words * size_of::<u64>() + (64 << 10))?;
    let bucket: Symmetric<u64> = heap.alloc((size * count).max(1))?;
    let taken: Symmetric<u64> = heap.alloc(1)?;
    let least: Symmetric<u64> = heap.alloc(size)?;
    let digits: Symmetric<u64> = heap.alloc(counted)?;
    let team = heap.team()?;
    taken.put(&[0u64][..], own, 0)?;
    digits.put(&vec![0u64; counted][..], own, 0)?;
    let keys = gpu.upload(&keys_of(own, count))?;
    let packed: DeviceSlice<u64> = gpu.upload(&vec![0; size * count])?;
    // Keys for each rank, their places, the sizes of buckets; the smallest, and blocks at a barrier.
    let counts: DeviceSlice<u64> = gpu.upload(&vec![0; 3 * size + 2])?;
    let word = |at: usize| counts.address() + (at * size_of::<u64>()) as u64;
    let plan = Plan {
        team: team.argument(),
        keys: keys.address(),
        packed: packed.address(),
        filled: word(0),
        places: word(size),
        sizes: word(2 * size),
        smallest: word(3 * size),
        met: word(3 * size + 1),
        bucket: team.address_of(&bucket, 0)?,
        taken: team.address_of(&taken, 0)?,
        least: team.address_of(&least, 0)?,
        digits: team.address_of(&digits, 0)?,
        count: count as u64,
        width: KEYS.div_ceil(size as u64),
        base: options.base as u64,
    };
    let kernel = gpu.kernel("example_buckets")?;
    heap.barrier()?;
    let start = Instant::now();
    let touched = [keys.memory(), packed.memory(), counts.memory()];
    let grid = (options.blocks.max(1), THREADS);
    // SAFETY: the kernel of this argument; it touches the heap and these.
    let event = unsafe { team.launch(&kernel, &gpu.stream, grid, &plan, &touched) }?;
    event.synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    team.check()?;
    heap.barrier()?;
    let read = |from: &Symmetric<u64>, words: usize| -> Result<Vec<u64>> {
        let mut to = vec![0; words];
        from.get(&mut to[..], own, 0)?;
        Ok(to)
    };
    let used = read(&taken, 1)?[0] as usize;
    let mut sorted = Sorted {
        bucket: read(&bucket, used)?,
        sizes: vec![0; size],
        least: read(&least, size)?,
        digits: read(&digits, counted)?,
    };
    sorted.bucket.sort_unstable();
    gpu.download(&counts.slice(2 * size..3 * size)?, &mut sorted.sizes)?;
    drop((team, bucket, taken, least, digits));
    heap.free()?;
    Ok((sorted, seconds))
}

fn sort(world: &Communicator, options: &Options) -> Result<u8> {
    let gpu = Gpu::of(world)?;
    let place = (world.rank(), world.size());
    let (sorted, seconds) = by_kernel(world, &gpu, options)?;
    let right = sequential(place, options);
    let wrong = [
        sorted.bucket != right.bucket,
        sorted.sizes != right.sizes,
        sorted.least != right.least,
        sorted.digits != right.digits,
    ];
    let mut all = [0u64; 4];
    world.allreduce(&wrong.map(u64::from), &mut all, Op::Sum)?;
    let mut slowest = [0.0f64];
    world.allreduce(&[seconds], &mut slowest, Op::Max)?;
    let right = all == [0; 4];
    if world.rank() == 0 {
        println!(
            "{} keys of {} ranks, {}",
            options.keys * place.1,
            place.1,
            gpu.shown()
        );
        println!("  one kernel      {:12.1} us", 1e6 * slowest[0]);
        match right {
            true => println!("every element is that of a sequential program"),
            false => println!(
                "WRONG: on {} ranks buckets, on {} sizes, on {} the smallest keys, on {} digits",
                all[0], all[1], all[2], all[3]
            ),
        }
    }
    Ok(u8::from(!right))
}
