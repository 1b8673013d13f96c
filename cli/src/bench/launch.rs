//! Launch time of an empty program.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::options::Plan;
use super::report::{Report, Row};
use super::timing::median;
use super::{Failure, Result};
use crate::run;

const LAUNCHES: u64 = 20;
const WARMUP: u64 = 2;

/// Measures launches and, between them, processes without a job.
pub fn run(plan: &Plan) -> Result<()> {
    run::check_ranks(plan.ranks).map_err(Failure::usage)?;
    let exe = std::env::current_exe()
        .map_err(|e| Failure::failed(format!("cannot find the osier executable: {e}")))?;
    let mut report = Report::new(plan, plan.ranks, "shm");
    let empty = ["bench", "launch", "--empty"];
    let ranks = plan.ranks.to_string();
    let (mut jobs, mut processes) = (Vec::new(), Vec::new());
    let warmup = plan.effort.warmup.unwrap_or(WARMUP);
    // --iterations means launches here too: there is nothing else to repeat.
    let launches = plan.effort.repetitions.or(plan.effort.iterations);
    let launches = launches.unwrap_or(LAUNCHES);
    report.begin(&plan.curves[0]);
    for launch in 0..warmup + launches {
        let mut job = Command::new(&exe);
        job.args(["run", "-n", &ranks, "--"]).arg(&exe).args(empty);
        let job = timed(&mut job, 1)?;
        let bare = timed(Command::new(&exe).args(empty), plan.ranks)?;
        if launch >= warmup {
            jobs.push(job);
            processes.push(bare);
        }
    }
    let middle = median(&mut jobs);
    report.row(&Row {
        threads: 1,
        bytes: 0,
        unit: "ms",
        value: 1e3 * middle,
        best: 1e3 * jobs[0],
        p99: 1e3 * jobs[(jobs.len() - 1) * 99 / 100],
        spread: Some([1e3 * jobs[0], 1e3 * jobs[jobs.len() - 1]]),
        floor: Some(1e3 * median(&mut processes)),
        by_hand: None,
    })?;
    report.finish()
}

/// Seconds from the start of so many processes to the end of the last.
fn timed(command: &mut Command, processes: usize) -> Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let children = (0..processes).map(|_| command.spawn());
    let children: Vec<_> = children.collect();
    let mut failure = None;
    for child in children {
        match child.and_then(|mut child: Child| child.wait()) {
            Ok(status) if status.success() => {}
            Ok(status) => failure = Some(format!("an empty program failed: {status}")),
            Err(e) => failure = Some(format!("cannot start an empty program: {e}")),
        }
    }
    match failure {
        None => Ok(start.elapsed().as_secs_f64()),
        Some(message) => Err(Failure::failed(message)),
    }
}
