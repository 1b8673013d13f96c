//! Ranks as real processes, started by the real launcher.

#[path = "../../asked.rs"]
mod asked;
mod support;

use osier_kernels::debug::Debug;
use support::{alone, finish, job};

const REPORT: &[&str] = &["--on-death", "report"];

#[test]
fn message_of_every_size_arrives_by_every_protocol() {
    for ranks in [2, 3, 4] {
        let ranks_through: Vec<usize> = (0..ranks).collect();
        finish(&mut job(ranks, &[], &["sizes"]))
            .quiet()
            .through(&ranks_through)
            .code(0);
    }
}

#[test]
fn many_ranks_on_few_cores() {
    let all: Vec<usize> = (0..16).collect();
    finish(&mut job(16, &[], &["crowd"]))
        .quiet()
        .through(&all)
        .code(0);
}

#[test]
fn panic_hooks_may_communicate() {
    finish(&mut job(2, &[], &["panic-hook"]))
        .says("hooked on rank")
        .through(&[0, 1])
        .code(0);
}

#[test]
fn survivors_get_error_that_names_the_killed_rank() {
    for how in ["recv", "send", "probe", "barrier", "future"] {
        finish(&mut job(3, REPORT, &["die", how]))
            .says("rank 1 of 3")
            .through(&[0, 2])
            .code(137);
    }
}

#[test]
fn a_rank_is_killed_in_the_middle_of_a_transfer() {
    for how in ["sender", "receiver"] {
        for way in ["plain", "heap", "gaps"] {
            finish(&mut job(2, REPORT, &["stream", how, way]))
                .says("rank 1 of 2")
                .through(&[0])
                .code(137);
        }
    }
}

#[test]
fn a_death_ends_the_job() {
    finish(&mut job(4, &["--on-death", "kill"], &["wait"]))
        .says("rank 1 of 4")
        .through(&[])
        .code(137);
}

#[test]
fn rank_that_leaves_early_is_reported_to_its_peers() {
    finish(&mut job(3, &[], &["early", "0"]))
        .through(&[0, 2])
        .code(0);
    finish(&mut job(3, REPORT, &["early", "5"]))
        .says("exited with code 5")
        .through(&[0, 2])
        .code(5);
}

#[test]
fn master_continues_after_a_worker_was_killed() {
    finish(&mut job(4, REPORT, &["workers"]))
        .says("rank 1 of 4")
        .through(&[0, 2, 3])
        .code(137);
}

#[test]
fn ranks_that_finalize_have_not_failed() {
    finish(&mut job(3, &[], &["leave", "well"]))
        .quiet()
        .through(&[0, 1, 2])
        .code(0);
}

/// Whatever its exit code.
#[test]
fn a_process_that_does_not_finalize_has_failed() {
    finish(&mut job(3, &[], &["leave", "failing"]))
        .through(&[0, 2])
        .code(0);
}

#[test]
fn what_a_rank_sent_before_it_left_is_received() {
    finish(&mut job(2, &[], &["parted"])).through(&[0]).code(0);
}

#[test]
fn full_memory_is_an_error_that_one_survives() {
    finish(job(2, &[], &["full"]).env("OSIER_SHM_LIMIT", "20M"))
        .quiet()
        .through(&[0, 1])
        .code(0);
}

#[test]
fn two_programs_cannot_be_one_rank() {
    finish(&mut job(2, &[], &["twice"]))
        .through(&[0, 1])
        .code(0);
}

#[test]
fn a_program_without_a_launcher_is_alone() {
    let done = alone(&[]);
    done.quiet().code(0);
    assert_eq!(done.stdout, "rank 0 of 1\n");
    // Set to nothing is not set.
    alone(&[("OSIER_JOB", "")]).code(0);
}

#[test]
fn a_job_that_makes_no_sense_is_refused() {
    for job in [
        "garbage",
        "2:",
        "2:a,b,c",
        "2:0,1",
        "2:0,1,2",
        "7:3,4,5",
        "1:3,4,5",
        "2:3,4,5;ranks=0",
        "2:3,4,5;other=1",
        "2:900,901,902",
    ] {
        alone(&[("OSIER_JOB", job), ("OSIER_RANK", "0")])
            .says("hint")
            .says("job")
            .code(9);
    }
    alone(&[("OSIER_JOB", "2:3,4,5")])
        .says("OSIER_RANK is not")
        .says("hint")
        .code(9);
    for rank in ["x", "-1", "1.5", "99999999999999999999"] {
        alone(&[("OSIER_JOB", "2:3,4,5"), ("OSIER_RANK", rank)])
            .says("OSIER_RANK")
            .says("hint")
            .code(9);
    }
}

#[test]
fn process_sets_come_from_the_launcher() {
    let sets = ["--pset", "ocean=0-1,4", "--pset", "ice=3,2"];
    // ocean comes before ice in the merged communicator.
    finish(&mut job(5, &sets, &["sets"]))
        .quiet()
        .through(&[0, 1, 2, 3, 4])
        .code(0);
    for (set, text) in [
        ("sea=0-9", "rank 9 in a job of 5"),
        ("mpi://x=0", "reserved"),
        ("ocean=1", "taken"),
    ] {
        finish(&mut job(
            5,
            &["--pset", "ocean=0", "--pset", set],
            &["sets"],
        ))
        .says(text)
        .code(2);
    }
}

#[test]
fn abort_ends_the_job_with_its_code() {
    finish(&mut job(3, &[], &["abort", "7"])).code(7);
    // Even if the ranks would go on after a death, and with code 0.
    finish(&mut job(3, REPORT, &["abort", "7"])).code(7);
    finish(&mut job(3, REPORT, &["abort", "0"])).code(0);
}

#[test]
fn a_fatal_error_ends_the_job() {
    finish(&mut job(3, REPORT, &["fatal"]))
        .says("rank 1: fatal error on strict: rank 99 in a communicator of 3")
        .code(1);
}

/// Seeds for which a job makes collective calls of all kinds; `OSIER_TEST=collective-seeds=N`
/// sets their number.
fn seeds() -> u64 {
    asked::number("collective-seeds").unwrap_or(6)
}

#[test]
fn a_rank_is_killed_within_collectives_of_all_kinds() {
    for seed in 0..seeds() {
        let ranks = 3 + seed as usize % 2;
        let victim = seed as usize % ranks;
        let text = [seed, 30, victim as u64, 3 + seed * 5 % 20].map(|n| n.to_string());
        println!("seed {seed}");
        let what: Vec<&str> = ["collectives"]
            .into_iter()
            .chain(text.iter().map(|t| &t[..]))
            .collect();
        let living: Vec<usize> = (0..ranks).filter(|r| *r != victim).collect();
        finish(&mut job(ranks, REPORT, &what))
            .says(&format!("rank {victim} of {ranks}"))
            .through(&living)
            .code(137);
    }
}

/// Of plans in a segment: killed before and behind flags, wherever in a call they are.
#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "ranks die at steps in builds with debug assertions"
)]
fn a_rank_is_killed_at_flags() {
    let mut killed = 0;
    for seed in 0..seeds() {
        let ranks = 2 + seed as usize % 3;
        let victim = (seed / 3) as usize % ranks;
        let phase = ["posts", "posted", "handled"][seed as usize % 3];
        // The first flags are those of the communicator, which is made before.
        let number = 20 + seed * 7 % 61;
        let dies = format!("{phase}:FLAG:{number}@{victim}");
        let (text, own) = ((5000 + seed).to_string(), victim.to_string());
        println!("seed {seed}: {dies}");
        let what = ["collectives", &text, "120", &own, "120"];
        let living: Vec<usize> = (0..ranks).filter(|r| *r != victim).collect();
        let done = finish(job(ranks, REPORT, &what).debug("die-at", &dies));
        done.through(&living);
        killed += u64::from(done.code == Some(137));
    }
    // Of the calls that are drawn, not all have so many flags.
    assert!(4 * killed >= seeds(), "{killed} were killed");
}

/// Nobody dies, and all checks leave the calls in peace.
#[test]
fn collectives_of_all_kinds_are_left_in_peace() {
    for seed in 0..seeds().div_ceil(3) {
        let seed = (1000 + seed).to_string();
        let what = ["collectives", &seed, "60", "99", "99"];
        finish(&mut job(3, &["--check", "all"], &what))
            .quiet()
            .through(&[0, 1, 2])
            .code(0);
    }
}
