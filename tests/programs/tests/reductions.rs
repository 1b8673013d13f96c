//! Reductions of device memory between processes, and deaths while kernels combine.

mod support;

use osier_kernels::debug::Debug as _;
use support::{driver_calls, emulated, finish, job, killed_at};

fn reductions(ranks: usize, gpus: &str, what: &str) -> std::process::Command {
    let options = ["--on-death", "report", "--emulate-gpus", gpus];
    let mut command = job(ranks, &options, &[what]);
    command.debug("device-reductions", "device");
    command
}

#[test]
fn kernels_of_several_processes_combine() {
    if emulated() {
        for (ranks, gpus) in [(2, "1"), (3, "2")] {
            let all: Vec<usize> = (0..ranks).collect();
            let done = finish(&mut reductions(ranks, gpus, "device-reductions"));
            done.through(&all).code(0);
        }
    }
}

/// The steps at which a rank that lives launches kernels.
fn launches() -> Vec<usize> {
    let mut job = reductions(2, "1", "device-reductions-deaths");
    let calls = driver_calls(&mut job, &[0, 1]);
    let numbered = calls.iter().zip(1..);
    let launches = numbered.filter(|(call, _)| call.starts_with("cuLaunchKernel"));
    launches.map(|(_, step)| step).collect()
}

#[test]
fn a_rank_is_killed_while_its_kernels_combine() {
    if !emulated() {
        return;
    }
    let launches = launches();
    assert!(launches.len() >= 8, "launches at {launches:?}");
    // At some launches, and right behind them: others in each run.
    let every = launches.len().div_ceil(5);
    let first = std::process::id() as usize % every;
    let mut killed = 0;
    for at in (first..launches.len()).step_by(every) {
        let step = launches[at] + at % 2;
        let mut job = reductions(2, "1", "device-reductions-deaths");
        killed += usize::from(killed_at(step, &mut job));
    }
    assert!(killed > 0, "nobody was killed at any of {launches:?}");
}
