//! Virtual ranks of real processes: `osier run --ranks-per-process` of a program that enters
//! through `osier::task::run_ranks`.

mod support;

use std::process::{Command, Stdio};
use support::{EXERCISE, finish, job};

/// A process that does not outlive its test.
struct Kept(std::process::Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(ranks: usize, each: usize, workers: usize, what: &[&str]) -> Command {
    let (each, workers) = (each.to_string(), workers.to_string());
    let entered = [&["virtual", &workers], what].concat();
    job(ranks, &["--ranks-per-process", &each], &entered)
}

fn all(ranks: usize) -> Vec<usize> {
    (0..ranks).collect()
}

#[test]
fn every_size_within_and_between_processes() {
    for (ranks, each, workers) in [(2, 2, 1), (4, 2, 1), (6, 3, 2), (3, 2, 2)] {
        finish(&mut run(ranks, each, workers, &["sizes"]))
            .quiet()
            .through(&all(ranks))
            .code(0);
    }
}

#[test]
fn many_ranks_in_few_processes() {
    for workers in [1, 2] {
        finish(&mut run(16, 8, workers, &["crowd"]))
            .quiet()
            .through(&all(16))
            .code(0);
    }
}

#[test]
fn one_rank_of_a_process_needs_no_stack() {
    finish(&mut run(2, 1, 1, &["sizes"]))
        .quiet()
        .through(&[0, 1])
        .code(0);
}

#[test]
fn a_death_takes_the_ranks_of_a_process_and_no_others() {
    finish(&mut run(4, 2, 1, &["half-dies"]))
        .says("ranks 0 to 1 of 4")
        .code(137);
}

#[test]
fn ranks_that_finalize_have_not_failed() {
    for (each, workers) in [(3, 1), (3, 2), (2, 1)] {
        finish(&mut run(3, each, workers, &["leave"]))
            .quiet()
            .through(&[0, 1, 2])
            .code(0);
        finish(&mut run(3, each, workers, &["early"]))
            .through(&[0, 2])
            .code(0);
    }
}

#[test]
fn a_rank_that_fails_takes_its_process_along() {
    for workers in [1, 2] {
        finish(&mut run(3, 2, workers, &["fails"]))
            .says("ranks 0 to 1 of 3 (one process, pid ")
            .says("exited with code 7")
            .code(7);
        finish(&mut run(2, 2, workers, &["panic"]))
            .says("as asked")
            .code(101);
    }
}

/// Each waits for the other: the launcher names both.
#[test]
fn a_hang_names_the_ranks_of_a_worker() {
    for (ranks, each, workers) in [(2, 2, 1), (3, 3, 2), (4, 2, 1)] {
        let each = each.to_string();
        let options = ["--ranks-per-process", &each, "--on-hang", "kill"];
        let entered = ["virtual", &workers.to_string(), "hang", "recv"];
        let done = finish(&mut job(ranks, &options, &entered));
        for rank in 0..ranks {
            let line = format!("  {rank} ");
            let named = done
                .stderr
                .lines()
                .any(|l| l.starts_with(&line) && l.contains("receive"));
            assert!(named, "rank {rank}: {}", done.stderr);
        }
        assert!(done.stderr.contains("the job hangs"), "{}", done.stderr);
    }
}

#[test]
fn a_hang_without_a_launcher_is_reported_too() {
    for (ranks, workers) in [("2", "1"), ("2", "2"), ("5", "2")] {
        let mut child = Kept(
            Command::new(EXERCISE)
                .args(["virtual-job", ranks, workers, "recv"])
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts"),
        );
        let stderr = child.0.stderr.take().expect("piped");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stderr));
        let hangs = lines.find(|l| l.as_ref().is_ok_and(|l| l.contains("the job hangs")));
        drop(child);
        assert!(hangs.is_some());
    }
}
