//! Example 15: signals between kernels.
//!
//! Pairs of ranks send a signal back and forth, each in one kernel, by the calls of a team; beside them
//! kernels that do it by plain stores and loads, the floor. Where two processes share a device without MPS,
//! their kernels run in turn, and a round trip takes two time slices.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use osier::devices::Kernel;
use osier::rma::{DeviceTeam, Symmetric, Team};
use osier::{Communicator, Op, Result};
use osier_examples::cli::say_once;
use osier_examples::gpu::Gpu;

/// Time signals between the kernels of two ranks
#[derive(Parser)]
#[command(
    name = "signals",
    after_help = "Examples:
  osier run -n 2 --ranks-per-process 2 -- signals
  osier run -n 2 -- signals --rounds 20000
  osier run -n 2 --emulate-gpus 1 --delay 10us -- signals --rounds 20"
)]
struct Options {
    /// Rounds of a kernel [default: as many as 50 ms have, 10000 at most]
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,

    /// Kernels of each kind; the median is told
    #[arg(long, value_name = "N", default_value_t = 7)]
    kernels: usize,
}

fn main() -> ExitCode {
    osier_examples::cli::run(time)
}

/// Rounds of the first kernels, and most of a kernel.
const FIRST: u64 = 10;
const MOST: u64 = 10_000;
const KERNEL_SECONDS: f64 = 0.05;

/// `example_signals_plan` of `cuda/signals.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Plan {
    team: Team,
    word: u64,
    rounds: u64,
    base: u64,
    peer: u32,
    begins: u32,
}

/// The kernels of one kind. Rounds are numbered from kernel to kernel.
struct Pair<'a> {
    world: &'a Communicator,
    gpu: &'a Gpu,
    team: &'a DeviceTeam,
    kernel: Kernel,
    word: Symmetric<u64>,
    rounds: u64,
}

impl Pair<'_> {
    fn peer(&self) -> usize {
        match self.world.rank() ^ 1 {
            peer if peer < self.world.size() => peer,
            _ => self.world.rank(),
        }
    }

    /// Runs a kernel of `rounds` rounds: seconds of a round, of the slowest rank.
    fn run(&mut self, rounds: u64) -> Result<f64> {
        let plan = Plan {
            team: self.team.argument(),
            word: self.team.address_of(&self.word, 0)?,
            rounds,
            base: self.rounds,
            peer: self.peer() as u32,
            begins: u32::from(self.world.rank().is_multiple_of(2)),
        };
        self.world.barrier()?;
        let start = Instant::now();
        let (stream, grid) = (&self.gpu.stream, (1, 1));
        // SAFETY: the kernel of this argument; it touches the heap alone.
        let event = unsafe { self.team.launch(&self.kernel, stream, grid, &plan, &[]) }?;
        event.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        self.team.check()?;
        self.rounds += rounds;
        let mut slowest = [0.0];
        self.world.allreduce(&[seconds], &mut slowest, Op::Max)?;
        Ok(slowest[0] / rounds as f64)
    }

    /// Whether the signals of all rounds have come, on all ranks.
    fn is_right(&self) -> Result<bool> {
        let own = self.world.rank();
        let mut last = [0u64];
        self.word.get(&mut last[..], own, 0)?;
        let right = self.peer() == own || last == [self.rounds];
        let mut wrong = [0u64];
        self.world
            .allreduce(&[u64::from(!right)], &mut wrong, Op::Sum)?;
        Ok(wrong == [0])
    }
}

fn time(world: &Communicator, options: &Options) -> Result<u8> {
    if world.size() == 1 {
        say_once(world, || {
            eprintln!("signals: one rank has nobody to signal (hint: osier run -n 2 -- signals)");
        });
        return Ok(2);
    }
    let gpu = Gpu::of(world)?;
    let heap = world.symmetric_heap_on(&gpu.context, 64 << 10)?;
    let team = heap.team()?;
    let mut kinds = Vec::new();
    // Plain stores reach no rank elsewhere.
    let bare = (0..world.size()).all(|rank| team.reaches(rank));
    let mut reached = [0u32];
    world.allreduce(&[u32::from(bare)], &mut reached, Op::Min)?;
    for (name, entry) in [
        ("signals of a team", "example_signals_team"),
        ("plain stores, loads", "example_signals_bare"),
    ] {
        if entry == "example_signals_bare" && reached == [0] {
            continue;
        }
        let word: Symmetric<u64> = heap.alloc(1)?;
        word.put(&[0u64][..], world.rank(), 0)?;
        let pair = Pair {
            world,
            gpu: &gpu,
            team: &team,
            kernel: gpu.kernel(entry)?,
            word,
            rounds: 0,
        };
        kinds.push((name, pair, Vec::new()));
    }
    heap.barrier()?;
    for (_, pair, _) in &mut kinds {
        pair.run(FIRST)?;
    }
    let first = kinds[0].1.run(FIRST)?;
    let as_many = (KERNEL_SECONDS / first.max(1e-9)) as u64;
    let rounds = options.rounds.unwrap_or(as_many.clamp(FIRST, MOST)).max(1);
    for _ in 0..options.kernels.max(1) {
        for (_, pair, times) in &mut kinds {
            times.push(pair.run(rounds)?);
        }
    }
    let mut right = true;
    for (_, pair, _) in &kinds {
        right &= pair.is_right()?;
    }
    if world.rank() == 0 {
        println!(
            "{rounds} rounds a kernel, {} kernels of each kind, {} ranks, {}",
            options.kernels.max(1),
            world.size(),
            gpu.shown()
        );
        let mut medians = Vec::new();
        for (name, _, times) in &mut kinds {
            times.sort_by(f64::total_cmp);
            let (least, most) = (times[0], times[times.len() - 1]);
            let median = times[times.len() / 2];
            let us = [median, least, most].map(|seconds| 1e6 * seconds);
            println!(
                "  {name:<22} {:10.2} us a round trip ({:.2} to {:.2})",
                us[0], us[1], us[2]
            );
            medians.push(median);
        }
        match medians[..] {
            [team, bare] => println!("  ratio                  {:10.2}", team / bare),
            _ => println!("  no floor: ranks are elsewhere, and no kernel reaches their words"),
        }
        println!(
            "{}",
            match right {
                true => "every signal has come",
                false => "WRONG: a signal has not come",
            }
        );
    }
    drop(kinds);
    drop(team);
    heap.free()?;
    Ok(u8::from(!right))
}
