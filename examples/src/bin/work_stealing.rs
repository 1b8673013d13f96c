//! Example 12: work that ranks steal from each other by a counter in a symmetric heap.
//!
//! Each rank has tasks of its own, some many more than others, and a counter of those that were
//! taken. A task is taken by adding one to the counter: the owner does so, and a rank that has
//! no more tasks does so at another's. Nobody answers requests for work, so a rank that
//! computes delays no thief.
//!
//! After J. Dinan, D. Larkins, P. Sadayappan, S. Krishnamoorthy, J. Nieplocha, "Scalable Work
//! Stealing", SC 2009: queues in memory that thieves reach; here the tasks are numbers, so that
//! a counter is the queue.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use osier::{Communicator, Op, Result};

/// Share uneven work by counters that ranks take tasks from
#[derive(Parser)]
#[command(
    name = "work_stealing",
    after_help = "Examples:
  osier run -n 4 -- work_stealing
  osier run -n 2 -- work_stealing --tasks 20000 --alone"
)]
struct Options {
    /// Tasks of the last rank; the others have fewer, rank 0 hardly any
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    tasks: u64,

    /// Numbers whose sequences one task looks at
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    numbers: u64,

    /// Take tasks of the own rank only, for comparison
    #[arg(long)]
    alone: bool,
}

fn main() -> ExitCode {
    osier_examples::cli::run(share)
}

/// Tasks of a rank.
fn tasks_of(rank: usize, size: usize, most: u64) -> u64 {
    let (rank, size) = (rank as u64 + 1, size as u64);
    most * rank * rank / (size * size)
}

/// Steps of the sequences 3n+1 of some numbers, until they are 1.
fn steps(numbers: std::ops::Range<u64>) -> u64 {
    let of = |mut n: u64| {
        let mut steps = 0;
        while n > 1 {
            n = if n.is_multiple_of(2) {
                n / 2
            } else {
                3 * n + 1
            };
            steps += 1;
        }
        steps
    };
    numbers.map(of).sum()
}

fn share(world: &Communicator, options: &Options) -> Result<u8> {
    let (rank, size) = (world.rank(), world.size());
    let heap = world.symmetric_heap(4096)?;
    let taken = heap.alloc::<u64>(1)?;
    let numbers_of = |owner: usize, task: u64| {
        let before: u64 = (0..owner).map(|r| tasks_of(r, size, options.tasks)).sum();
        let first = 1 + (before + task) * options.numbers;
        first..first + options.numbers
    };

    world.barrier()?;
    let start = Instant::now();
    // Tasks, those of others among them, and steps.
    let mut mine = [0u64; 3];
    let victims = if options.alone { 1 } else { size };
    for victim in (0..victims).map(|distance| (rank + distance) % size) {
        let tasks = tasks_of(victim, size, options.tasks);
        loop {
            let task = taken.fetch_and_add(1, victim, 0)?;
            if task >= tasks {
                break;
            }
            mine[0] += 1;
            mine[1] += u64::from(victim != rank);
            mine[2] += steps(numbers_of(victim, task));
        }
    }
    let busy = start.elapsed().as_secs_f64();
    heap.barrier()?;
    let whole = start.elapsed().as_secs_f64();

    let (mut all, mut longest) = ([0u64; 3], [0.0]);
    world.allreduce(&mine, &mut all, Op::Sum)?;
    world.allreduce(&[busy], &mut longest, Op::Max)?;
    let tasks: u64 = (0..size).map(|r| tasks_of(r, size, options.tasks)).sum();
    let mut right = all[0] == tasks;
    if rank == 0 {
        right &= all[2] == steps(1..1 + tasks * options.numbers);
        println!(
            "{tasks} tasks on {size} ranks in {:.1} ms, {} of them stolen; the last rank ended \
             {:.1} ms after rank 0",
            whole * 1e3,
            all[1],
            (longest[0] - busy) * 1e3
        );
        println!(
            "{}",
            match right {
                true => "every element was done once",
                false => "WRONG: tasks are missing, or were done twice",
            }
        );
    }
    Ok(u8::from(!right))
}
