//! Starts jobs of `exercise` under the real launcher and looks at their ends.

#![allow(dead_code, reason = "each test uses a part")]

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Ends a test that hangs: ten times what the longest may take.
pub const GUARD: Duration = Duration::from_secs(120);

pub const EXERCISE: &str = env!("CARGO_BIN_EXE_exercise");

/// The launcher, which `cargo test --workspace` puts beside our program.
pub fn launcher() -> PathBuf {
    let path = PathBuf::from(EXERCISE).with_file_name("osier");
    assert!(
        path.exists(),
        "{} is missing (hint: cargo build -p osier-cli, in the same profile)",
        path.display()
    );
    path
}

pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// That exactly these ranks came to the end of what they do.
    #[track_caller]
    pub fn through(&self, ranks: &[usize]) -> &Self {
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
    pub fn code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(
            self.stderr.contains(text),
            "{text:?} is missing: {}",
            self.stderr
        );
        self
    }

    #[track_caller]
    pub fn quiet(&self) -> &Self {
        assert_eq!(self.stderr, "");
        self
    }
}

/// Runs a command to its end; kills it if that does not come.
pub fn finish(command: &mut Command) -> Done {
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
pub fn job(ranks: usize, options: &[&str], what: &[&str]) -> Command {
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

/// `exercise join` without a launcher.
pub fn alone(variables: &[(&str, &str)]) -> Done {
    let mut command = Command::new(EXERCISE);
    for name in ["OSIER_JOB", "OSIER_RANK", "OSIER_RANKS"] {
        command.env_remove(name);
    }
    finish(command.arg("join").envs(variables.iter().copied()))
}
