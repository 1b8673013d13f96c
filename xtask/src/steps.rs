//! Running commands: where things lie, a named step, and the table of steps.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
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

/// Runs tests as [`run`] runs a command. What failed is said once more in the error,
/// with the first lines of each failure, as the rest may be far above by then.
pub fn run_tests(command: &mut Command) -> Result {
    println!("$ {}", line(command));
    run_tests_to(command, std::io::stdout(), std::io::stderr())
}

fn run_tests_to(command: &mut Command, to: impl Write, errors_to: impl Write + Send) -> Result {
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child =
        started.map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut failures = Failures::default();
    // Cargo's own words; it lists the targets that failed last.
    let errors = std::thread::scope(|scope| {
        let errors = scope.spawn(|| {
            let mut last = Vec::new();
            each_line(err, errors_to, |text| match text.starts_with("error:") {
                true => last = vec![text.to_owned()],
                false if text.starts_with("    `") => last.push(text.to_owned()),
                false => (),
            });
            last
        });
        each_line(out, to, |text| failures.line(text));
        errors.join().unwrap_or_default()
    });
    let status = child.wait().map_err(|e| e.to_string())?;
    if status.success() {
        return Ok(());
    }
    let mut said = format!("{} ended with {status}", line(command));
    for text in failures.said.iter().chain(&errors) {
        let _ = write!(said, "\n    {text}");
    }
    Err(said)
}

/// Hands each line on, and shows it to `look`; bytes that are no text are hidden from it.
fn each_line(from: Option<impl Read>, mut to: impl Write, mut look: impl FnMut(&str)) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while from.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
        let _ = to.write_all(&bytes);
        look(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
}

/// Failures in the output of Rust's test runner.
#[derive(Default)]
struct Failures {
    /// The heads of failures, each with the lines that follow.
    said: Vec<String>,
    /// Lines of the current one that are still to be kept.
    left: usize,
}

impl Failures {
    /// Lines that are kept of each failure.
    const LINES: usize = 12;

    fn line(&mut self, text: &str) {
        let head = text.starts_with("---- ") && text.ends_with(" ----");
        if head || (text.starts_with("test ") && text.ends_with("... FAILED")) {
            self.left = if head { Failures::LINES } else { 0 };
        } else if text == "failures:" || self.left == 0 {
            self.left = 0;
            return;
        } else {
            self.left -= 1;
        }
        if !text.is_empty() {
            self.said.push(text.chars().take(300).collect());
        }
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
        let mut more = String::new();
        for (name, outcome, took) in &self.done {
            let (status, note) = match outcome {
                Outcome::Ok => ("ok", ""),
                Outcome::Skipped(why) => ("skipped", why.as_str()),
                Outcome::Failed(why) => {
                    failed.push(name.as_str());
                    // A table has one line for each step.
                    let (first, rest) = why.split_once('\n').unwrap_or((why, ""));
                    if !rest.is_empty() {
                        let _ = write!(more, "\n{name}:\n{rest}\n");
                    }
                    ("FAILED", first)
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
        print!("{more}");
        if failed.is_empty() {
            Ok(())
        } else {
            Err(format!("failed: {}", failed.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints what a test runner prints, and ends as one that found a failure.
    fn runner(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn failures_are_said_again() {
        let out = "
running 2 tests
test sums ... ok
test waits ... FAILED

failures:

---- waits stdout ----
thread 'waits' panicked at src/lib.rs:3:5:
left: 1, right: 2

failures:
    waits

test result: FAILED. 1 passed; 1 failed
";
        let script = format!(
            "printf '%s' \"{out}\"; printf 'error: 1 target failed:\n    `-p a --lib`\n' >&2; exit 101"
        );
        let run =
            |script: &str| run_tests_to(&mut runner(script), std::io::sink(), std::io::sink());
        let said = run(&script).unwrap_err();
        let lines: Vec<&str> = said
            .lines()
            .skip_while(|l| !l.starts_with("    test"))
            .collect();
        let expected = [
            "    test waits ... FAILED",
            "    ---- waits stdout ----",
            "    thread 'waits' panicked at src/lib.rs:3:5:",
            "    left: 1, right: 2",
            "    error: 1 target failed:",
            "        `-p a --lib`",
        ];
        assert_eq!(lines, expected);
        assert_eq!(run("echo 'test sums ... ok'"), Ok(()));
    }

    #[test]
    fn a_long_failure_is_cut() {
        let mut failures = Failures::default();
        failures.line("---- long stdout ----");
        for _ in 0..100 {
            failures.line("more");
        }
        assert_eq!(failures.said.len(), 1 + Failures::LINES);
    }
}
