//! Ranks as threads of real processes: `osier run --ranks-per-process`.

mod support;

use support::{finish, job};

fn run(ranks: usize, each: usize, options: &[&str], what: &[&str]) -> std::process::Command {
    let each = each.to_string();
    let options = [&["--ranks-per-process", &each], options].concat();
    job(ranks, &options, &[&["run"], what].concat())
}

fn all(ranks: usize) -> Vec<usize> {
    (0..ranks).collect()
}

#[test]
fn every_size_within_and_between_processes() {
    for (ranks, each) in [(2, 2), (4, 2), (3, 2), (3, 1), (2, 5)] {
        finish(&mut run(ranks, each, &[], &["sizes"]))
            .quiet()
            .through(&all(ranks))
            .code(0);
    }
}

#[test]
fn many_threads_on_few_cores() {
    finish(&mut run(16, 4, &[], &["crowd"]))
        .quiet()
        .through(&all(16))
        .code(0);
}

#[test]
fn ranks_are_numbered_by_blocks_and_bound_one_by_one() {
    let done = finish(&mut run(4, 3, &["--bind", "core"], &["where"]));
    done.code(0);
    let mut lines: Vec<Vec<&str>> = done
        .stdout
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    lines.sort();
    assert_eq!(lines.len(), 4, "{}", done.stdout);
    let pid = |rank: usize| lines[rank][3];
    assert_eq!((pid(0), pid(1)), (pid(1), pid(2)));
    assert_ne!(pid(0), pid(3));
    for line in &lines {
        line[5].parse::<usize>().expect("one processor");
    }
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    if cores > 1 {
        assert_ne!(lines[0][5], lines[1][5], "threads on cores of their own");
    }
}

#[test]
fn labels_name_the_ranks_of_a_process() {
    let done = finish(&mut run(5, 2, &["--label"], &["where"]));
    done.code(0);
    let mut labels: Vec<&str> = done.stdout.lines().filter_map(|l| l.get(..6)).collect();
    labels.sort_unstable();
    assert_eq!(
        labels,
        ["[  4] ", "[0-1] ", "[0-1] ", "[2-3] ", "[2-3] "],
        "{}",
        done.stdout
    );
}

#[test]
fn a_death_takes_the_ranks_of_a_process_and_no_others() {
    finish(&mut run(4, 2, &["--on-death", "report"], &["half-dies"]))
        .says("ranks 0 to 1 of 4 (one process, pid ")
        .says("died of signal 9")
        .through(&[2, 3])
        .code(137);
    finish(&mut run(4, 2, &[], &["wait"]))
        .says("ranks 0 to 1 of 4")
        .through(&[])
        .code(137);
}

#[test]
fn a_rank_that_leaves_is_missed_by_its_own_process_too() {
    finish(&mut run(3, 3, &[], &["early"]))
        .through(&[0, 2])
        .code(0);
    finish(&mut run(3, 2, &[], &["early"]))
        .through(&[0, 2])
        .code(0);
}

#[test]
fn ranks_that_finalize_have_not_failed() {
    for each in [3, 2] {
        finish(&mut run(3, each, &[], &["leave"]))
            .quiet()
            .through(&[0, 1, 2])
            .code(0);
    }
}

#[test]
fn a_rank_that_fails_takes_its_process_along() {
    finish(&mut run(2, 2, &[], &["fails"])).code(7);
    finish(&mut run(3, 2, &[], &["fails"]))
        .says("ranks 0 to 1 of 3 (one process, pid ")
        .says("exited with code 7")
        .code(7);
    finish(&mut run(2, 2, &[], &["panic"]))
        .says("thread 'rank 1'")
        .says("as asked")
        .code(101);
}

#[test]
fn a_program_that_makes_one_rank_is_refused_with_a_hint() {
    let each = ["--ranks-per-process", "2"];
    for way_in in ["join", "session"] {
        finish(&mut job(4, &each, &[way_in]))
            .says("osier::run(|comm| ...)")
            .says("--ranks-per-process")
            .says("[Config]")
            .code(9);
        finish(&mut job(2, &[], &[way_in])).quiet().code(0);
    }
}

#[test]
fn without_the_option_each_rank_is_a_process() {
    finish(&mut job(2, &[], &["run", "sizes"]))
        .quiet()
        .through(&[0, 1])
        .code(0);
}
