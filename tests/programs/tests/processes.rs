//! Ranks as real processes, started by the real launcher.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Ends a test that hangs: ten times what the longest may take.
const GUARD: Duration = Duration::from_secs(120);

const EXERCISE: &str = env!("CARGO_BIN_EXE_exercise");

/// The launcher, which `cargo test --workspace` puts beside our program.
fn launcher() -> PathBuf {
    let path = PathBuf::from(EXERCISE).with_file_name("osier");
    assert!(
        path.exists(),
        "{} is missing (hint: cargo build -p osier-cli, in the same profile)",
        path.display()
    );
    path
}

struct Done {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Done {
    /// That exactly these ranks came to the end of what they do.
    #[track_caller]
    fn through(&self, ranks: &[usize]) -> &Self {
        let mut lines: Vec<&str> = self
            .stdout
            .lines()
            .filter(|l| l.ends_with("is through"))
            .collect();
        lines.sort_unstable();
        let mut expected: Vec<String> = ranks
            .iter()
            .map(|r| format!("rank {r} is through"))
            .collect();
        expected.sort_unstable();
        assert_eq!(lines, expected, "{}\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    fn code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    fn says(&self, text: &str) -> &Self {
        assert!(
            self.stderr.contains(text),
            "{text:?} is missing: {}",
            self.stderr
        );
        self
    }

    #[track_caller]
    fn quiet(&self) -> &Self {
        assert_eq!(self.stderr, "");
        self
    }
}

/// Runs a command to its end; kills it if that does not come.
fn finish(command: &mut Command) -> Done {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdout = child.stdout.take().expect("piped");
    let mut stderr = child.stderr.take().expect("piped");
    let (over, watch) = channel::<()>();
    let pid = child.id().cast_signed();
    let watchdog = std::thread::spawn(move || {
        let hangs = watch.recv_timeout(GUARD) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if hangs {
            // SAFETY: a system call without pointers; our child, not waited
            // for yet. Its keeper ends the ranks.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        hangs
    });
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut text = String::new();
    stdout.read_to_string(&mut text).expect("its output");
    let stderr = errors.join().expect("no panic").expect("its errors");
    drop(over);
    let hangs = watchdog.join().expect("no panic");
    let code = child.wait().expect("its end").code();
    assert!(!hangs, "{command:?} hangs ({GUARD:?}):\n{text}\n{stderr}");
    Done {
        code,
        stdout: text,
        stderr,
    }
}

/// `osier run -n RANKS OPTIONS -- exercise WHAT`.
fn job(ranks: usize, options: &[&str], what: &[&str]) -> Command {
    let mut command = Command::new(launcher());
    command
        .args(["run", "-n", &ranks.to_string()])
        .args(options)
        .arg("--")
        .arg(EXERCISE)
        .args(what)
        .env_remove("OSIER_SHM_LIMIT");
    command
}

const REPORT: &[&str] = &["--on-death", "report"];

#[test]
fn every_size_on_every_way() {
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
fn survivors_learn_who_was_killed() {
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
fn a_rank_that_leaves_early_is_missed() {
    finish(&mut job(3, &[], &["early", "0"]))
        .through(&[0, 2])
        .code(0);
    finish(&mut job(3, REPORT, &["early", "5"]))
        .says("exited with code 5")
        .through(&[0, 2])
        .code(5);
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

fn alone(variables: &[(&str, &str)]) -> Done {
    let mut command = Command::new(EXERCISE);
    for name in ["OSIER_JOB", "OSIER_RANK", "OSIER_RANKS"] {
        command.env_remove(name);
    }
    finish(command.arg("join").envs(variables.iter().copied()))
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
        "1:",
        "1:a,b,c",
        "1:0,1",
        "1:0,1,2",
        "7:3,4,5",
        "1:900,901,902",
    ] {
        alone(&[("OSIER_JOB", job), ("OSIER_RANK", "0")])
            .says("hint")
            .says("job")
            .code(9);
    }
    alone(&[("OSIER_JOB", "1:3,4,5")])
        .says("OSIER_RANK is not")
        .says("hint")
        .code(9);
    for rank in ["x", "-1", "1.5", "99999999999999999999"] {
        alone(&[("OSIER_JOB", "1:3,4,5"), ("OSIER_RANK", rank)])
            .says("OSIER_RANK")
            .says("hint")
            .code(9);
    }
}
