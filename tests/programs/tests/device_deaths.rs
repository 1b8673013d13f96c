//! A rank is killed at each step that its device takes for a message, where the emulated
//! driver ends it, and at each that a lane takes, where the lane does.

#[path = "../../asked.rs"]
mod asked;
mod support;

use osier_kernels::debug::Debug as _;
use support::{driver_calls, emulated, finish, job, killed_at, settings};

/// The steps that rank 1 takes if it lives: its longer list of driver calls.
fn steps() -> usize {
    let options = ["--on-death", "report", "--emulate-gpus", "1"];
    let most = driver_calls(&mut job(2, &options, &["device-steps"]), &[0, 1]).len();
    assert!(most > 60, "only {most} steps");
    most
}

/// Slots on the device, and on the host.
const PIPELINES: [&str; 2] = ["auto", "off"];

/// The first of a sample of every `every`-th step: another one in each run, or that of
/// `OSIER_TEST=first-step=N`, which repeats a run.
fn first_of(every: usize) -> usize {
    let first = asked::number("first-step").map(|first| first as usize);
    let first = first.unwrap_or(std::process::id() as usize % every);
    println!("OSIER_TEST=first-step={first} repeats this sample");
    first
}

/// Whether enough of the `tried` steps killed a rank. Some are not reached in each run: of
/// a sample only some one must be; of all steps, half.
fn check_kills(killed: usize, tried: usize, every: usize) {
    println!("killed at {killed} of {tried} steps");
    let least = if every == 1 { tried / 2 } else { 1 };
    assert!(killed >= least, "only {killed} kills at {tried} steps");
}

/// Kills rank 1 at every `every`-th step, beginning with `first`, with the pipelines by
/// turns, beginning with this one.
fn kill_at(first: usize, every: usize, pipeline: usize) {
    if !emulated() {
        return;
    }
    let steps = steps();
    let mut killed = 0;
    for (turn, step) in (first..=steps).step_by(every).enumerate() {
        let options = ["--on-death", "report", "--emulate-gpus", "1"];
        let mut job = job(2, &options, &["device-steps"]);
        job.debug("pipeline", PIPELINES[(turn + pipeline) % 2]);
        match killed_at(step, &mut job) {
            true => killed += 1,
            false => println!("step {step} of {steps}: nobody was killed"),
        }
    }
    check_kills(killed, (first..=steps).step_by(every).count(), every);
}

#[test]
fn a_rank_is_killed_at_some_steps_of_its_device() {
    let first = first_of(17);
    kill_at(1 + first, 17, first % 2);
}

#[test]
#[ignore = "minutes; every step"]
fn a_rank_is_killed_at_each_step_of_its_device() {
    kill_at(1, 1, 0);
    kill_at(1, 1, 1);
}

/// Variables of a job, and its devices: together their messages are of all kinds.
fn variants() -> Vec<(&'static str, Vec<(&'static str, String)>)> {
    let set = |name, value: &str| (name, value.to_owned());
    let fail = |call: &str| {
        let all: Vec<_> = (1..60).map(|n| format!("{call}:{n}")).collect();
        vec![
            ("OSIER_EMULATED_FAIL", all.join(",")),
            set("OSIER_EMULATED_QUIET", "1"),
        ]
    };
    let mut fragments = fail("cuMemHostRegister");
    fragments.push(set("device-mappings", "0"));
    vec![
        ("1", vec![]),
        ("2", vec![set("device-mappings", "1")]),
        ("1", fragments),
        ("1", fail("cuMemExportToShareableHandle")),
    ]
}

fn job_of(gpus: &str, variables: &[(&'static str, String)]) -> std::process::Command {
    let options = ["--on-death", "report", "--emulate-gpus", gpus];
    let mut command = job(2, &options, &["device-steps"]);
    settings(&mut command, variables);
    command
}

/// Each phase and kind of a message that a rank comes to, and how often.
fn wire_steps(at: usize) -> Vec<(usize, String, usize)> {
    let (gpus, variables) = &variants()[at];
    let folder = std::env::temp_dir().join(format!("osier-wire-{}-{at}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut job = job_of(gpus, variables);
    job.debug("steps", folder.join("steps"));
    finish(&mut job).through(&[0, 1]).code(0);
    let mut found = std::collections::BTreeMap::new();
    for file in std::fs::read_dir(&folder).expect("the steps") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        for line in text.lines() {
            *found.entry(line.to_owned()).or_insert(0) += 1;
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    // Both ranks come to most; who does not lives.
    let both = found.into_iter().flat_map(|(step, n)| {
        let half = usize::max(n / 2, 1);
        [(0, step.clone(), half), (1, step, half)]
    });
    both.collect()
}

/// Kills a rank at every `every`-th step of the wire, in all variants.
fn kill_on_wire(first: usize, every: usize) {
    if !emulated() {
        return;
    }
    let all: Vec<_> = (0..variants().len())
        .flat_map(|at| wire_steps(at).into_iter().map(move |step| (at, step)))
        .collect();
    let kinds = [
        "RTS",
        "SLOT_CTS",
        "SLOT",
        "SLOT_CREDIT",
        "FIN",
        "CTS",
        "FRAGMENT",
    ];
    for kind in [
        &kinds[..],
        &[
            "LAYOUT",
            "FD_REQUEST",
            "FD_REFUSED",
            "CANCEL",
            "ACK",
            "PUT_OFFER",
            "PUT_DONE",
        ],
    ]
    .concat()
    {
        for phase in ["posts", "posted", "handles", "handled"] {
            let step = format!("{phase}:{kind}");
            assert!(all.iter().any(|(_, (_, s, _))| *s == step), "no {step}");
        }
    }
    let killed = std::sync::atomic::AtomicUsize::new(0);
    let chosen: Vec<_> = all.iter().enumerate().skip(first).step_by(every).collect();
    std::thread::scope(|s| {
        for part in 0..2 {
            let (chosen, killed) = (&chosen, &killed);
            s.spawn(move || {
                for (number, (at, (rank, step, times))) in chosen.iter().skip(part).step_by(2) {
                    let (gpus, variables) = &variants()[*at];
                    // Any of them, the same in each run.
                    let n = 1 + number % times;
                    let dies = format!("{step}:{n}@{rank}");
                    let mut job = job_of(gpus, variables);
                    let done = finish(job.debug("die-at", &dies));
                    if done.code != Some(137) {
                        println!("{dies}, variant {at}: nobody was killed");
                        done.through(&[0, 1]).code(0);
                        continue;
                    }
                    killed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let survivor = format!("rank {} is through", 1 - rank);
                    let told = done.stdout.contains(&survivor);
                    assert!(
                        told,
                        "{dies}, variant {at}: {}\n{}",
                        done.stdout, done.stderr
                    );
                }
            });
        }
    });
    check_kills(killed.into_inner(), chosen.len(), every);
}

#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "lanes die in builds with debug assertions"
)]
fn a_rank_is_killed_at_some_steps_of_the_wire() {
    kill_on_wire(first_of(41), 41);
}

#[test]
#[ignore = "minutes; every step"]
fn a_rank_is_killed_at_each_step_of_the_wire() {
    kill_on_wire(0, 1);
}
