//! Running commands: where things lie, a named step, and the table of steps.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a command of this crate ends with; the message is for the user.
pub type Result<T = ()> = std::result::Result<T, String>;

/// Root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Cargo's target folder, wherever the user has put it.
pub fn target_dir() -> PathBuf {
    let from_cargo = || {
        let out = cargo()
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
        Some(PathBuf::from(metadata["target_directory"].as_str()?))
    };
    from_cargo().unwrap_or_else(|| root().join("target"))
}

/// The cargo that started us, run in the workspace.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The command line as one would type it.
pub fn line(command: &Command) -> String {
    let mut text = String::new();
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            let _ = write!(text, "{}={:?} ", key.display(), value.display().to_string());
        }
    }
    let program = Path::new(command.get_program());
    let _ = write!(
        text,
        "{}",
        program
            .file_name()
            .unwrap_or(command.get_program())
            .display()
    );
    for arg in command.get_args() {
        let _ = write!(text, " {}", arg.display());
    }
    text
}

/// Runs the command with our own output; stdin is closed, so nothing can ask.
pub fn run(command: &mut Command) -> Result {
    println!("$ {}", line(command));
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} ended with {status}", line(command)))
    }
}

/// True when the command can be started and succeeds; its output is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

enum Outcome {
    Ok,
    Skipped(String),
    Failed(String),
}

/// Named steps with their times; a failure does not hide the steps after it.
#[derive(Default)]
pub struct Steps {
    done: Vec<(String, Outcome, Duration)>,
}

impl Steps {
    /// Runs one step.
    pub fn step(&mut self, name: &str, body: impl FnOnce() -> Result) {
        println!("\n==> {name}");
        let start = Instant::now();
        let outcome = match body() {
            Ok(()) => Outcome::Ok,
            Err(message) => {
                println!("==> {name} FAILED: {message}");
                Outcome::Failed(message)
            }
        };
        self.done.push((name.into(), outcome, start.elapsed()));
    }

    /// Leaves a step out, out loud.
    pub fn skip(&mut self, name: &str, reason: &str) {
        println!("\n==> {name} SKIPPED: {reason}");
        self.done
            .push((name.into(), Outcome::Skipped(reason.into()), Duration::ZERO));
    }

    /// Prints the table; the first failure is the answer.
    pub fn finish(self) -> Result {
        let width = self.done.iter().map(|(name, ..)| name.len()).max();
        let width = width.unwrap_or(4).max(4);
        println!("\n{:width$}  {:7}  {:>7}", "step", "status", "seconds");
        let mut failed = Vec::new();
        for (name, outcome, took) in &self.done {
            let (status, note) = match outcome {
                Outcome::Ok => ("ok", ""),
                Outcome::Skipped(why) => ("skipped", why.as_str()),
                Outcome::Failed(why) => {
                    failed.push(name.as_str());
                    ("FAILED", why.as_str())
                }
            };
            let row = format!(
                "{name:width$}  {status:7}  {:7.1}  {note}",
                took.as_secs_f64()
            );
            println!("{}", row.trim_end());
        }
        let total: Duration = self.done.iter().map(|(_, _, took)| *took).sum();
        println!("{:width$}  {:7}  {:7.1}", "total", "", total.as_secs_f64());
        if failed.is_empty() {
            Ok(())
        } else {
            Err(format!("failed: {}", failed.join(", ")))
        }
    }
}
