//! Starts jobs of `exercise` under the real launcher and looks at their ends.

#![allow(dead_code, reason = "each test uses a part")]

use osier_kernels::debug::Debug as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

#[path = "../../../needs.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
pub mod needs;

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

/// The same with one device for each rank to see, as batch systems set it up.
pub fn hidden_job(ranks: usize, gpus: usize, what: &[&str]) -> Command {
    let own = r#"CUDA_VISIBLE_DEVICES=$OSIER_RANK exec "$0" "$@""#;
    shell_job(ranks, &["--emulate-gpus", &gpus.to_string()], own, what)
}

/// The same through a shell's line at each rank, which has the program as `"$0" "$@"`.
pub fn shell_job(ranks: usize, options: &[&str], line: &str, what: &[&str]) -> Command {
    let mut command = Command::new(launcher());
    command
        .args(["run", "-n", &ranks.to_string()])
        .args(options)
        .args(["--", "sh", "-c", line, EXERCISE])
        .args(what)
        .env_remove("OSIER_SHM_LIMIT");
    command
}

/// Sets variables, and keys of `OSIER_DEBUG`, whose names are in lower case.
pub fn settings<'a, V: AsRef<str> + 'a>(
    command: &mut Command,
    settings: impl IntoIterator<Item = &'a (&'a str, V)>,
) {
    for (name, value) in settings {
        match name.starts_with("OSIER_") {
            true => command.env(name, value.as_ref()),
            false => command.debug(name, value.as_ref()),
        };
    }
}

/// Whether the emulated driver was built beside the launcher; false only where the skip was
/// asked for.
#[track_caller]
pub fn emulated() -> bool {
    let beside = Path::new(EXERCISE).with_file_name("libosier_emulated_cuda.so");
    let there = beside.is_file();
    if !there {
        needs::missing("driver", beside.display());
    }
    there
}

/// The calls of the emulated driver at which `OSIER_EMULATED_DIE` counts, of the rank of a
/// job that makes most, if all live.
#[track_caller]
pub fn driver_calls(job: &mut Command, ranks: &[usize]) -> Vec<String> {
    static TRACES: AtomicUsize = AtomicUsize::new(0);
    let number = TRACES.fetch_add(1, Ordering::Relaxed);
    let name = format!("osier-calls-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    finish(job.env("OSIER_EMULATED_TRACE", folder.join("calls")))
        .through(ranks)
        .code(0);
    let passive = |call: &&str| {
        let asks = [
            "cuCtx",
            "cuDevice",
            "cuPointer",
            "cuThread",
            "cuInit",
            "cuDriver",
        ];
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
    longest
}

/// Runs a job of two whose rank 1 dies at this step of its device, if it comes there. Rank 0
/// must be through in any case; whether rank 1 was killed.
#[track_caller]
pub fn killed_at(step: usize, job: &mut Command) -> bool {
    let done = finish(job.env("OSIER_EMULATED_DIE", format!("{step}@1")));
    // The calls are not the same in each run: it may live.
    if done.code != Some(137) {
        done.through(&[0, 1]).code(0);
        return false;
    }
    // Rank 1 may have been through, and die while it frees its memory.
    let survivor = done.stdout.contains("rank 0 is through");
    assert!(survivor, "step {step}: {}\n{}", done.stdout, done.stderr);
    true
}

/// `exercise join` without a launcher.
pub fn alone(variables: &[(&str, &str)]) -> Done {
    let mut command = Command::new(EXERCISE);
    for name in ["OSIER_JOB", "OSIER_RANK", "OSIER_RANKS"] {
        command.env_remove(name);
    }
    finish(command.arg("join").envs(variables.iter().copied()))
}
