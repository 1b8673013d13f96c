//! A rank is killed at each step that its device takes for a message: the emulated
//! driver ends it there.

mod support;

use support::{EXERCISE, finish, job};

/// The steps that rank 1 takes if it lives: its longer list of driver calls.
fn steps() -> usize {
    let folder = std::env::temp_dir().join(format!("osier-steps-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let options = ["--on-death", "report", "--emulate-gpus", "1"];
    finish(job(2, &options, &["device-steps"]).env("OSIER_EMULATED_TRACE", folder.join("calls")))
        .through(&[0, 1])
        .code(0);
    let passive = |call: &&str| {
        let asks = ["cuCtx", "cuDevice", "cuPointer", "cuInit", "cuDriver"];
        !call.contains("Query")
            && !call.contains("Get")
            && !asks.iter().any(|a| call.starts_with(a))
    };
    let mut most = 0;
    for file in std::fs::read_dir(&folder).expect("the calls") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        most = most.max(text.lines().filter(passive).count());
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(most > 60, "only {most} steps");
    most
}

/// Chunks on the device, and on the host.
const PIPELINES: [&str; 2] = ["auto", "off"];

/// Kills rank 1 at every `every`-th step, beginning with `first`, with the pipelines by
/// turns, beginning with this one.
fn kill_at(first: usize, every: usize, pipeline: usize) {
    if !std::path::Path::new(EXERCISE)
        .with_file_name("libosier_emulated_cuda.so")
        .is_file()
    {
        return eprintln!("SKIPPED: the emulated driver was not built");
    }
    let steps = steps();
    let mut killed = 0;
    for (turn, step) in (first..=steps).step_by(every).enumerate() {
        let options = ["--on-death", "report", "--emulate-gpus", "1"];
        let mut job = job(2, &options, &["device-steps"]);
        job.env("OSIER_PIPELINE", PIPELINES[(turn + pipeline) % 2]);
        let done = finish(job.env("OSIER_EMULATED_DIE", format!("{step}@1")));
        // The last steps are not the same in each run: it may live.
        match done.code {
            Some(137) => {
                killed += 1;
                // Rank 1 may have been through, and die while it frees its memory.
                let survivor = done.stdout.contains("rank 0 is through");
                assert!(survivor, "step {step}: {}\n{}", done.stdout, done.stderr);
            }
            _ => {
                println!("step {step} of {steps}: nobody was killed");
                done.through(&[0, 1]).code(0);
            }
        }
    }
    println!("killed at {killed} steps of {steps}");
    assert!(killed * every * 2 > steps, "only {killed} kills");
}

#[test]
fn a_rank_is_killed_at_some_steps_of_its_device() {
    let spread = std::process::id() as usize % 17;
    kill_at(1 + spread, 17, spread % 2);
}

#[test]
#[ignore = "minutes; every step"]
fn a_rank_is_killed_at_each_step_of_its_device() {
    kill_at(1, 1, 0);
    kill_at(1, 1, 1);
}
