//! `osier bench faults`: how long it takes until a failure is known, and until ranks go on.
//!
//! The last rank of a job is killed, so each repetition is a job of its own: outside of a job they
//! are started one behind the other, for 2, 4, 8, .. ranks.

use std::io::IsTerminal;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use osier::{Communicator, Op};

use super::options::Plan;
use super::progress::Bar;
use super::report::{Record, Records};
use super::timing::median;
use super::{Failure, Result};
use crate::run;
use crate::run::sys;

const JOBS: u64 = 5;
/// Calls of which the median counts; of those that make communicators fewer.
const CALLS: u64 = 200;
const FEWER: u64 = 10;
/// Of messages that say what has happened.
const NOW: u32 = 1;
const TOLD: u32 = 2;

/// What is measured, in the order of the columns, each in us.
const COLUMNS: [&str; 7] = [
    "barrier",
    "agree",
    "shrink",
    "revoke",
    "detection",
    "agree-after",
    "shrink-after",
];

/// Begins the line of a job's times.
const TIMES: &str = "faults:";

/// Starts jobs, and shows a row for each number of ranks.
pub fn run(plan: &Plan) -> Result<()> {
    run::check_ranks(plan.ranks).map_err(Failure::usage)?;
    let exe = std::env::current_exe()
        .map_err(|e| Failure::failed(format!("cannot find the osier executable: {e}")))?;
    let jobs = plan.effort.repetitions.unwrap_or(JOBS);
    let mut sizes: Vec<usize> = (1..)
        .map(|power| 1 << power)
        .take_while(|n| *n < plan.ranks)
        .collect();
    sizes.push(plan.ranks);
    println!("# osier faults: the last rank of each of {jobs} jobs is killed; us, medians");
    println!("{}", heading());
    let mut records = Records::new(plan.json.as_ref());
    let mut bar = Bar::new(sizes.len() * jobs as usize, std::io::stderr().is_terminal());
    for (at, ranks) in sizes.into_iter().enumerate() {
        let mut times: [Vec<f64>; COLUMNS.len()] = Default::default();
        for job in 0..jobs as usize {
            bar.show(at * jobs as usize + job, "jobs");
            let job = of_job(&exe, ranks, plan.effort.iterations)?;
            for (column, time) in times.iter_mut().zip(job) {
                column.push(time);
            }
        }
        let medians = times.each_mut().map(|column| median(column));
        bar.clear();
        println!("{}", row(ranks, &medians));
        for (at, column) in times.iter().enumerate() {
            // In order since their median was taken.
            let spread = column.first().zip(column.last());
            records.push(Record {
                memory: "none".into(),
                transport: "shm".into(),
                ranks,
                unit: "us".into(),
                value: medians[at],
                spread: spread.map(|(least, most)| [*least, *most]),
                ..Record::new(format!("faults-{}", COLUMNS[at]), "-", 0)
            })?;
        }
    }
    records.finish()?;
    if let Some(file) = &plan.json {
        println!("# json: {}", file.display());
    }
    Ok(())
}

/// The times of one job.
fn of_job(exe: &std::path::Path, ranks: usize, calls: Option<u64>) -> Result<[f64; COLUMNS.len()]> {
    let mut job = Command::new(exe);
    job.args([
        "run",
        "--on-death",
        "report",
        "--bind",
        "none",
        "-n",
        &ranks.to_string(),
        "--",
    ]);
    job.arg(exe)
        .args(["bench", "faults", "-n", &ranks.to_string()]);
    if let Some(calls) = calls {
        job.args(["--iterations", &calls.to_string()]);
    }
    let done = job.stdin(Stdio::null()).output();
    let done = done.map_err(|e| Failure::failed(format!("cannot start a job: {e}")))?;
    let told = String::from_utf8_lossy(&done.stdout);
    let line = told.lines().find_map(|line| line.strip_prefix(TIMES));
    let times = line.map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()));
    let times: Option<Vec<f64>> = times.map(Iterator::collect);
    times
        .and_then(|times| times.try_into().ok())
        .ok_or_else(|| {
            let complaint = String::from_utf8_lossy(&done.stderr);
            Failure::failed(format!(
                "a job of {ranks} ranks has told no times:\n{}",
                complaint.trim()
            ))
        })
}

fn heading() -> String {
    format!(
        "{:<5}{:>10}{:>10}{:>10}{:>10}{:>11}{:>10}{:>10}\n{:<5}{:>10}{:>10}{:>10}{:>10}{:>11}{:>10}{:>10}",
        "ranks",
        "barrier",
        "agree",
        "shrink",
        "revoke",
        "detection",
        "agree",
        "shrink",
        "",
        "us",
        "us",
        "us",
        "us",
        "us",
        "after, us",
        "after, us"
    )
}

fn row(ranks: usize, times: &[f64; COLUMNS.len()]) -> String {
    let told = |us: f64| match us {
        us if us >= 1e5 => format!("{us:.0}"),
        us => format!("{us:.1}"),
    };
    let [
        barrier,
        agree,
        shrink,
        revoke,
        detection,
        agree_after,
        shrink_after,
    ] = times.map(told);
    format!(
        "{ranks:<5}{barrier:>10}{agree:>10}{shrink:>10}{revoke:>10}{detection:>11}{agree_after:>10}{shrink_after:>10}"
    )
}

/// In a job: measures, and loses the last rank.
pub fn in_job(plan: &Plan) -> ExitCode {
    osier::run_code(|comm| super::exit_code(measure(plan, &comm)))
}

fn measure(plan: &Plan, comm: &Communicator) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    super::options::check_ranks(plan.bench, size)?;
    let calls = plan.effort.iterations.unwrap_or(CALLS);
    let fewer = (calls / FEWER).max(1);
    let barrier = each(comm, calls, || comm.barrier())?;
    let agree = each(comm, calls, || comm.agree(1).map(drop))?;
    let shrink = each(comm, fewer, || comm.shrink().map(drop))?;
    let mut revokes = Vec::new();
    for _ in 0..fewer {
        revokes.push(revoked(comm)?);
    }
    let victim = size - 1;
    if rank == victim {
        comm.send(&[0u8], 0, NOW)?;
        let _ = sys::kill(std::process::id() as libc::pid_t, libc::SIGKILL);
        std::process::abort();
    }
    // No common clock is needed: rank 0 hears when it happens, and from all when they know.
    let mut since = Instant::now();
    if rank == 0 {
        comm.recv(&mut [0u8], victim, NOW)?;
        since = Instant::now();
    }
    match comm.recv(&mut [0u8], victim, TOLD) {
        Err(e) if e.kind() == osier::ErrorKind::RankDead => {}
        Err(e) => return Err(e.into()),
        Ok(_) => return Err(Failure::failed("a rank that was killed has sent a message")),
    }
    let detection = answered(comm, victim, since)?;
    comm.acknowledge_failures();
    comm.agree(1)?;
    let living = comm.shrink()?;
    let agree_after = each(&living, calls, || comm.agree(1).map(drop))?;
    let shrink_after = each(&living, fewer, || comm.shrink().map(drop))?;
    let revoke = median(&mut revokes);
    let times = [
        barrier,
        agree,
        shrink,
        revoke,
        detection,
        agree_after,
        shrink_after,
    ];
    if rank == 0 {
        println!("{}\n{}", heading(), row(size, &times));
        println!("{TIMES} {}", times.map(|us| us.to_string()).join(" "));
    }
    // A launcher may end the job when the first rank ends.
    Ok(living.barrier()?)
}

/// us of one of many calls, of the slowest rank.
fn each(comm: &Communicator, calls: u64, mut f: impl FnMut() -> osier::Result<()>) -> Result<f64> {
    f()?;
    comm.barrier()?;
    let since = Instant::now();
    for _ in 0..calls {
        f()?;
    }
    let (own, mut all) = ([since.elapsed().as_secs_f64() * 1e6 / calls as f64], [0.0]);
    comm.allreduce(&own, &mut all, Op::Max)?;
    Ok(all[0])
}

/// us from the call of rank 0 until all others, which wait, have answered that they know.
fn revoked(comm: &Communicator) -> Result<f64> {
    let own = comm.dup()?;
    comm.barrier()?;
    let since = Instant::now();
    match own.rank() {
        0 => own.revoke(),
        _ => match own.recv(&mut [0u8], 0, NOW) {
            Err(e) if e.kind() == osier::ErrorKind::Revoked => {}
            Err(e) => return Err(e.into()),
            Ok(_) => return Err(Failure::failed("a message that was not sent")),
        },
    }
    answered(comm, comm.size(), since)
}

/// At rank 0: us until all ranks below this one have answered.
fn answered(comm: &Communicator, end: usize, since: Instant) -> Result<f64> {
    match comm.rank() {
        0 => {
            for rank in 1..end {
                comm.recv(&mut [0u8; 0], rank, TOLD)?;
            }
        }
        _ => comm.send(&[0u8; 0], 0, TOLD)?,
    }
    Ok(since.elapsed().as_secs_f64() * 1e6)
}
