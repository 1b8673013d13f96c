//! Example 13: a halo exchange inside of one kernel.
//!
//! Ranks have rows of a field each, in symmetric heaps on their devices. One kernel makes all
//! steps: its blocks compute, one of them puts the outer rows into the neighbors' ghosts and raises
//! their signals, and waits for theirs. Beside it the usual way: a kernel for each step, and messages
//! between them. Both fields are compared with that of a sequential program, bit for bit.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use osier::devices::{DeviceSlice, Kernel};
use osier::rma::{DeviceTeam, Symmetric};
use osier::{Communicator, Op, Result};
use osier_examples::gpu::Gpu;
use osier_examples::halo::Steps;

/// Exchange the halos of a field inside of one kernel
#[derive(Parser)]
#[command(
    name = "persistent_halo",
    after_help = "Examples:
  osier run -n 2 -- persistent_halo
  osier run -n 2 --ranks-per-process 2 -- persistent_halo --rows 512 --columns 4096 --steps 1000
  osier run -n 4 --emulate-gpus 2 -- persistent_halo --rows 8 --columns 100"
)]
struct Options {
    /// Rows of each rank
    #[arg(long, value_name = "N", default_value_t = 32)]
    rows: usize,

    /// Points of a row
    #[arg(long, value_name = "N", default_value_t = 256)]
    columns: usize,

    /// Steps
    #[arg(long, value_name = "N", default_value_t = 20)]
    steps: usize,

    /// Thread blocks of the kernel, which all run at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    blocks: u32,
}

fn main() -> ExitCode {
    osier_examples::cli::run(exchange)
}

/// `example_halo_step_plan`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Step {
    from: u64,
    to: u64,
    rows: u64,
    columns: u64,
}

/// A rank's part of the work.
struct Part<'a> {
    world: &'a Communicator,
    gpu: Gpu,
    options: &'a Options,
    /// Ranks above and below; the own one where the field ends.
    neighbors: [usize; 2],
}

/// A point of the whole field in the beginning, ghosts among them.
fn initial(y: usize, x: usize) -> f64 {
    ((31 * y + 17 * x) % 101) as f64
}

/// The field after a number of steps of a sequential program.
fn sequential(rows: usize, columns: usize, steps: usize) -> Vec<f64> {
    let row = columns + 2;
    let points = (rows + 2) * row;
    let mut from: Vec<f64> = (0..points).map(|i| initial(i / row, i % row)).collect();
    let mut to = from.clone();
    for _ in 0..steps {
        for y in 1..=rows {
            for x in 1..=columns {
                let at = y * row + x;
                let sides = from[at - 1] + from[at + 1];
                to[at] = 0.25 * (sides + (from[at - row] + from[at + row]));
            }
        }
        std::mem::swap(&mut from, &mut to);
    }
    from
}

impl Part<'_> {
    fn row(&self) -> usize {
        self.options.columns + 2
    }

    fn points(&self) -> usize {
        (self.options.rows + 2) * self.row()
    }

    /// This rank's points in the beginning.
    fn begin(&self) -> Vec<f64> {
        let first = self.world.rank() * self.options.rows;
        let row = self.row();
        let points = 0..self.points();
        points.map(|i| initial(first + i / row, i % row)).collect()
    }

    fn shape(&self) -> (u64, u64) {
        (self.options.rows as u64, self.options.columns as u64)
    }

    /// All steps in one kernel: the points, and seconds.
    fn by_kernel(&self) -> Result<(Vec<f64>, f64)> {
        let bytes = 2 * self.points() * size_of::<f64>() + (64 << 10);
        let heap = self.world.symmetric_heap_on(&self.gpu.context, bytes)?;
        let fields: Symmetric<f64> = heap.alloc(2 * self.points())?;
        let arrived: Symmetric<u64> = heap.alloc(2)?;
        let team = heap.team()?;
        let own = self.world.rank();
        for half in 0..2 {
            fields.put(&self.begin()[..], own, half * self.points())?;
        }
        let met = self.gpu.upload(&[0u64])?;
        let kernel = self.gpu.kernel("example_halo_steps")?;
        let plan = self.plan(&team, &fields, &arrived, &met)?;
        heap.barrier()?;
        let start = Instant::now();
        let grid = (self.options.blocks.max(1), 256);
        // SAFETY: the kernel of this argument; it touches the heap and `met`.
        let event =
            unsafe { team.launch(&kernel, &self.gpu.stream, grid, &plan, &[met.memory()]) }?;
        event.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        team.check()?;
        heap.barrier()?;
        let last = self.options.steps % 2 * self.points();
        let mut points = vec![0.0; self.points()];
        fields.get(&mut points[..], own, last)?;
        drop((team, fields, arrived));
        heap.free()?;
        Ok((points, seconds))
    }

    fn plan(
        &self,
        team: &DeviceTeam,
        fields: &Symmetric<f64>,
        arrived: &Symmetric<u64>,
        met: &DeviceSlice<u64>,
    ) -> Result<Steps> {
        let (rows, columns) = self.shape();
        Ok(Steps {
            team: team.argument(),
            fields: [
                team.address_of(fields, 0)?,
                team.address_of(fields, self.points())?,
            ],
            arrived: team.address_of(arrived, 0)?,
            met: met.address(),
            rows,
            columns,
            steps: self.options.steps as u64,
            neighbors: self.neighbors.map(|rank| rank as u32),
        })
    }

    /// A kernel for each step, and messages between: the points, and seconds.
    fn by_messages(&self) -> Result<(Vec<f64>, f64)> {
        let gpu = &self.gpu;
        let kernel: Kernel = gpu.kernel("example_halo_step")?;
        let fields = [gpu.upload(&self.begin())?, gpu.upload(&self.begin())?];
        let (rows, columns) = self.shape();
        let (row, last) = (self.row(), self.options.rows);
        self.world.barrier()?;
        let start = Instant::now();
        for step in 0..self.options.steps {
            let (from, to) = (&fields[step % 2], &fields[(step + 1) % 2]);
            let plan = Step {
                from: from.address(),
                to: to.address(),
                rows,
                columns,
            };
            let grid = (self.options.blocks.max(1), 256);
            let touched = [from.memory(), to.memory()];
            // SAFETY: the kernel of this argument; it touches both fields.
            unsafe { kernel.launch(&gpu.stream, grid, &plan, &touched) }?;
            // To one neighbor, and from the other.
            for (to_rank, sent, from_rank, ghost) in [
                (self.neighbors[0], 1, self.neighbors[1], last + 1),
                (self.neighbors[1], last, self.neighbors[0], 0),
            ] {
                let own = self.world.rank();
                let points = |y: usize| to.slice(y * row + 1..(y + 1) * row - 1);
                let sent = points(sent)?.after_stream(&gpu.stream);
                let mut ghost = points(ghost)?.after_stream(&gpu.stream);
                match (to_rank == own, from_rank == own) {
                    (false, false) => {
                        (self.world).sendrecv(&sent, to_rank, 0, &mut ghost, from_rank, 0)?;
                    }
                    (false, true) => self.world.send(&sent, to_rank, 0)?,
                    (true, false) => drop(self.world.recv(&mut ghost, from_rank, 0)?),
                    (true, true) => {}
                }
            }
        }
        gpu.stream.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        let mut points = vec![0.0; self.points()];
        gpu.download(&fields[self.options.steps % 2], &mut points)?;
        Ok((points, seconds))
    }
}

fn exchange(world: &Communicator, options: &Options) -> Result<u8> {
    let (rank, size) = (world.rank(), world.size());
    let part = Part {
        world,
        gpu: Gpu::of(world)?,
        options,
        neighbors: [rank.saturating_sub(1), (rank + 1).min(size - 1)],
    };
    let (inside, of_kernel) = part.by_kernel()?;
    let (outside, of_messages) = part.by_messages()?;

    let (rows, row) = (options.rows, part.row());
    let whole = sequential(size * rows, options.columns, options.steps);
    let first = rank * rows;
    let wrong = |points: &[f64]| {
        let inner = (1..=rows).flat_map(|y| (1..row - 1).map(move |x| y * row + x));
        inner
            .filter(|at| points[*at] != whole[first * row + at])
            .count() as u64
    };
    let mut all = [0u64];
    world.allreduce(&[wrong(&inside) + wrong(&outside)], &mut all, Op::Sum)?;
    let mut seconds = [0.0f64; 2];
    world.allreduce(&[of_kernel, of_messages], &mut seconds, Op::Max)?;
    let right = all == [0];
    if rank == 0 {
        let steps = options.steps.max(1) as f64;
        let us = seconds.map(|seconds| 1e6 * seconds / steps);
        println!(
            "{} steps of {} x {} points on {size} ranks, {}",
            options.steps,
            size * rows,
            options.columns,
            part.gpu.shown()
        );
        println!(
            "  one kernel that puts its halos      {:10.1} us a step",
            us[0]
        );
        println!(
            "  a kernel a step, and messages       {:10.1} us a step",
            us[1]
        );
        println!(
            "{}",
            match right {
                true => "every element is that of a sequential program".to_owned(),
                false => format!("WRONG: {} elements differ", all[0]),
            }
        );
    }
    Ok(u8::from(!right))
}
