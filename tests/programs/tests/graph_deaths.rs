//! A rank is killed while a task graph runs, at each step of its edges: the others end with an
//! error that names it, and nothing stays behind.

#[path = "../../asked.rs"]
mod asked;
mod support;

use osier_kernels::debug::Debug as _;
use std::collections::BTreeSet;
use std::process::Command;
use support::{Done, finish, job};

/// Nobody.
const NOBODY: &str = "99";

/// A job whose survivors go on after a death; of each fourth, messages are visible late.
fn graph_job(ranks: usize, seed: u64, victim: &str, point: u64) -> Command {
    let mut options = vec!["--on-death", "report"];
    if seed % 4 == 3 {
        options.extend(["--delay", "20us"]);
    }
    let (seed, point) = (seed.to_string(), point.to_string());
    job(ranks, &options, &["graph-deaths", &seed, victim, &point])
}

/// Files in shared memory that have our name.
fn left_behind() -> BTreeSet<String> {
    let files = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    names.filter(|name| name.contains("osier")).collect()
}

/// Whether the victim was killed; the others must be through in any case.
#[track_caller]
fn killed(done: &Done, ranks: usize, victim: usize) -> bool {
    let living: Vec<usize> = (0..ranks).filter(|rank| *rank != victim).collect();
    if done.code == Some(0) {
        done.through(&(0..ranks).collect::<Vec<_>>());
        return false;
    }
    done.code(137).says(&format!("rank {victim} of {ranks}"));
    // It may have been through, and die while it leaves.
    if !done.stdout.contains(&format!("rank {victim} is through")) {
        done.through(&living);
    }
    true
}

/// `OSIER_TEST=graph-kills=N` says how many.
#[test]
fn a_rank_is_killed_within_calls_of_tasks() {
    let before = left_behind();
    let kills = asked::number("graph-kills").unwrap_or(24);
    let mut dead = 0;
    for seed in 0..kills {
        let ranks = 2 + seed as usize % 3;
        let victim = seed as usize / 3 % ranks;
        // Two runs, of two cells that pass two points in a step.
        let point = 1 + seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 150;
        println!("seed {seed}, rank {victim} of {ranks}, point {point}");
        let done = finish(&mut graph_job(ranks, seed, &victim.to_string(), point));
        dead += u64::from(killed(&done, ranks, victim));
    }
    // Where a cell fails, not all points are passed.
    assert!(2 * dead >= kills, "{dead} of {kills} were killed");
    let behind: Vec<_> = left_behind().difference(&before).cloned().collect();
    assert!(behind.is_empty(), "{behind:?}");
}

/// Nobody dies: runs end as the seed says.
#[test]
fn a_graph_whose_cell_fails_or_ends_early_ends_on_all_ranks() {
    for seed in 0..9 {
        let ranks = 2 + seed as usize % 2;
        let done = finish(&mut graph_job(ranks, seed, NOBODY, 0));
        done.through(&(0..ranks).collect::<Vec<_>>()).code(0);
    }
}

/// The steps of a kind that a rank comes to in a job in which nobody dies, and how many.
fn steps(seed: u64) -> Vec<(String, u64)> {
    let folder = std::env::temp_dir().join(format!("osier-edges-{}-{seed}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = graph_job(2, seed, NOBODY, 0);
    command.debug("steps", folder.join("steps"));
    finish(&mut command).through(&[0, 1]).code(0);
    let mut found = std::collections::BTreeMap::new();
    for file in std::fs::read_dir(&folder).expect("the steps") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        for line in text.lines() {
            *found.entry(line.to_owned()).or_insert(0) += 1;
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    found.into_iter().collect()
}

/// Kinds of messages of edges, and of long ones.
const KINDS: [&str; 9] = [
    "EDGE",
    "EDGE_FIRST",
    "EDGE_PART",
    "EDGE_RUN",
    "EDGE_LONG",
    "EDGE_CREDIT",
    "EDGE_FAILED",
    "EDGE_ENDED",
    "RTS",
];

/// At each kind of step of an edge's messages: before and behind a post, before and behind its
/// handling.
#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "ranks die at steps in builds with debug assertions"
)]
fn a_rank_is_killed_at_each_step_of_an_edge() {
    let before = left_behind();
    let mut seen = BTreeSet::new();
    let (mut dead, mut tried) = (0, 0);
    // A graph that ends, one in which a cell fails, and one in which a cell ends early; and one
    // whose messages are delayed, so that long ones come in parts.
    for seed in [0, 1, 5, 3] {
        for (number, (step, times)) in steps(seed).into_iter().enumerate() {
            let kind = step.rsplit(':').next().expect("PHASE:KIND");
            // Others are those of the collectives around it.
            if !KINDS.contains(&kind) {
                continue;
            }
            seen.insert(step.clone());
            // Of both ranks, so that each comes there so often.
            let most = (times / 2).max(1);
            for at in BTreeSet::from([1, 1 + number as u64 * 7 % most]) {
                let victim = (number + at as usize) % 2;
                let dies = format!("{step}:{at}@{victim}");
                println!("seed {seed}, {dies}");
                let mut command = graph_job(2, seed, &victim.to_string(), 0);
                let done = finish(command.debug("die-at", &dies));
                dead += usize::from(killed(&done, 2, victim));
                tried += 1;
            }
        }
    }
    for kind in KINDS {
        for phase in ["posts", "posted", "handles", "handled"] {
            let step = format!("{phase}:{kind}");
            assert!(seen.contains(&step), "no {step}: {seen:?}");
        }
    }
    // Not in each run does each rank come to each step as often.
    assert!(2 * dead >= tried, "{dead} of {tried} were killed");
    let behind: Vec<_> = left_behind().difference(&before).cloned().collect();
    assert!(behind.is_empty(), "{behind:?}");
}
