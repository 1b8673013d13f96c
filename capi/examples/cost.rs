//! What a call of the C interface costs more than the same call in Rust.
//!
//! ```text
//! cargo build --release -p osier-cli -p osier-capi
//! cargo run --release -p osier-capi --example cost
//! ```
//!
//! builds `cost.c` on the library of the same build, and runs it and the same loops in Rust
//! in turn: on two ranks, and on one, which exchanges with itself, so that a call is nothing
//! but instructions. Times are medians over the rounds, each of the median batch. Needs
//! `cc`. For instructions, give both programs `CALLS PART` under `perf stat`, where PART is
//! the first letter of a line, at two numbers of calls, and divide the difference.

use osier::{Communicator, Op};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const BATCHES: usize = 41;
const ROUNDS: usize = 9;
/// Calls in a batch.
const CALLS: usize = 2000;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1) {
        Some(calls) => {
            let part = arguments.get(2).map_or("", |part| part);
            Ok(run(calls.parse()?, part)?)
        }
        None => compare(),
    }
}

/// As `cost.c`.
fn run(calls: usize, part: &str) -> osier::Result<()> {
    let universe = osier::init()?;
    let world = universe.world();
    let (rank, peer) = (world.rank(), world.size() - 1 - world.rank());
    let mine = [1f64];
    let mut other = [0f64];
    let wants = |name: &str| name.starts_with(part);
    if wants("send+recv") {
        measure(world, "send+recv", calls, 2, || {
            if rank == 0 {
                world.send(&mine, peer, 0)?;
                world.recv(&mut other, peer, 0)?;
            } else {
                world.recv(&mut other, peer, 0)?;
                world.send(&mine, peer, 0)?;
            }
            Ok(())
        })?;
    }
    if wants("irecv+isend+2wait") {
        let (mut given, mut wanted) = (vec![1f64], vec![0f64]);
        measure(world, "irecv+isend+2wait", calls, 4, || {
            let recv = world.irecv(std::mem::take(&mut wanted), peer, 0)?;
            let send = world.isend(std::mem::take(&mut given), peer, 0)?;
            (wanted, _) = recv.wait()?;
            (given, _) = send.wait()?;
            Ok(())
        })?;
    }
    if wants("allreduce") {
        measure(world, "allreduce", calls, 1, || {
            world.allreduce(&mine, &mut other, Op::Sum)
        })?;
    }
    if wants("barrier") {
        measure(world, "barrier", calls, 1, || world.barrier())?;
    }
    Ok(())
}

fn measure(
    world: &Communicator,
    name: &str,
    calls: usize,
    calls_each: usize,
    mut body: impl FnMut() -> osier::Result<()>,
) -> osier::Result<()> {
    for _ in 0..calls {
        body()?;
    }
    let mut batches = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        world.barrier()?;
        let start = Instant::now();
        for _ in 0..calls {
            body()?;
        }
        let ns = start.elapsed().as_nanos() as f64;
        batches.push(ns / (calls * calls_each) as f64);
    }
    if world.rank() == 0 {
        println!("{name} {:.2}", median(batches));
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Builds the C program; its path.
fn build(folder: &Path) -> Result<PathBuf, Failure> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["libmpi_abi.so", "deps/libmpi_abi.so"].map(|file| folder.join(file));
    let newest = (files.iter().filter(|file| file.is_file()))
        .max_by_key(|file| file.metadata().and_then(|m| m.modified()).ok());
    let library = newest.ok_or("no library (hint: cargo build --release -p osier-capi)")?;
    let place = folder.join("cost-of-c");
    std::fs::create_dir_all(&place)?;
    let link = place.join("libmpi_abi.so.1");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(library, &link)?;
    let program = place.join("cost");
    let built = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(here.join("examples/cost.c"))
        .arg("-I")
        .arg(here.join("include"))
        .arg(&link)
        .arg(format!("-Wl,-rpath,{}", place.display()))
        .status()?;
    match built.success() {
        true => Ok(program),
        false => Err("cc failed".into()),
    }
}

/// Nanoseconds by name, of one run.
fn times(osier: &Path, ranks: usize, program: &Path) -> Result<Vec<(String, f64)>, Failure> {
    let output = Command::new(osier)
        .args(["run", "--timeout", "60", "-n", &ranks.to_string(), "--"])
        .arg(program)
        .arg(CALLS.to_string())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let line = |line: &str| {
        let (name, ns) = line.split_once(' ')?;
        Some((name.to_owned(), ns.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

fn compare() -> Result<(), Failure> {
    let rust = std::env::current_exe()?;
    let folder = rust.parent().and_then(Path::parent).ok_or("no folder")?;
    let osier = folder.join("osier");
    let c = build(folder)?;
    println!("ranks  calls               Rust ns     C ns   more");
    for ranks in [1, 2] {
        let mut all: Vec<(String, Vec<f64>, Vec<f64>)> = Vec::new();
        for _ in 0..ROUNDS {
            let (of_rust, of_c) = (times(&osier, ranks, &rust)?, times(&osier, ranks, &c)?);
            for (at, ((name, rust), (_, c))) in of_rust.into_iter().zip(of_c).enumerate() {
                if all.len() == at {
                    all.push((name, Vec::new(), Vec::new()));
                }
                all[at].1.push(rust);
                all[at].2.push(c);
            }
        }
        for (name, rust, c) in all {
            let (rust, c) = (median(rust), median(c));
            println!(
                "{ranks:<6} {name:<18} {rust:>8.1} {c:>8.1} {:>6.1}",
                c - rust
            );
        }
    }
    Ok(())
}
