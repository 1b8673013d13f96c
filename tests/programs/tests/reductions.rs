//! Reductions of device memory between processes, and deaths while kernels combine.

mod support;

use support::{EXERCISE, finish, job};

/// Whether the emulated driver was built beside the launcher; it needs a C++ compiler.
fn emulated() -> bool {
    let beside = std::path::Path::new(EXERCISE).with_file_name("libosier_emulated_cuda.so");
    let there = beside.is_file();
    if !there {
        eprintln!("SKIPPED: {} was not built", beside.display());
    }
    there
}

fn reductions(ranks: usize, gpus: &str, what: &str) -> std::process::Command {
    let options = ["--on-death", "report", "--emulate-gpus", gpus];
    let mut command = job(ranks, &options, &[what]);
    command.env("OSIER_DEVICE_REDUCTIONS", "device");
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

/// The steps at which a rank that lives launches kernels: those of its longer list of calls.
fn launches() -> Vec<usize> {
    let folder = std::env::temp_dir().join(format!("osier-combines-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut job = reductions(2, "1", "device-reductions-deaths");
    finish(job.env("OSIER_EMULATED_TRACE", folder.join("calls")))
        .through(&[0, 1])
        .code(0);
    let passive = |call: &&str| {
        let asks = ["cuCtx", "cuDevice", "cuPointer", "cuInit", "cuDriver"];
        !call.contains("Query")
            && !call.contains("Get")
            && !asks.iter().any(|a| call.starts_with(a))
    };
    let mut longest = Vec::new();
    for file in std::fs::read_dir(&folder).expect("the calls") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        let steps: Vec<String> = text.lines().filter(passive).map(str::to_owned).collect();
        if steps.len() > longest.len() {
            longest = steps;
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    let numbered = longest.iter().zip(1..);
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
        let done = finish(job.env("OSIER_EMULATED_DIE", format!("{step}@1")));
        match done.code {
            Some(137) => {
                killed += 1;
                let survivor = done.stdout.contains("rank 0 is through");
                assert!(survivor, "step {step}: {}\n{}", done.stdout, done.stderr);
            }
            // Calls are not the same in each run: it may live.
            _ => {
                done.through(&[0, 1]).code(0);
            }
        }
    }
    assert!(killed > 0, "nobody was killed at any of {launches:?}");
}
