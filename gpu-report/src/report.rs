//! What a run writes down: facts of the machine, steps, records, a table.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::record::{self, Record};
use crate::summary;

/// Version of the JSON; a reader takes this one alone.
pub const VERSION: u32 = 1;
/// Longest lines of the text.
const WIDTH: usize = 80;

/// How much a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// At most eight minutes.
    Quick,
    /// As long as it takes.
    Full,
}

/// Whose figures the records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measured {
    /// A GPU's.
    Gpu,
    /// None of a GPU: the driver is emulated on the host.
    Emulated,
    /// Nobody's: there is no device.
    Nothing,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is under way: of a run that was killed, this is where.
    Running,
    /// It ended with 0.
    Passed,
    /// It ended otherwise, which is told.
    Failed(String),
    /// It was ended after its seconds.
    Stopped(u64),
    /// It was not begun, and why.
    Skipped(String),
}

impl Status {
    /// Whether something is wrong.
    pub fn is_failure(&self) -> bool {
        matches!(self, Status::Failed(_) | Status::Stopped(_))
    }

    fn text(&self) -> String {
        match self {
            Status::Running => "under way".into(),
            Status::Passed => "passed".into(),
            Status::Failed(why) => format!("FAILED: {why}"),
            Status::Stopped(seconds) => format!("STOPPED at its limit of {seconds} s"),
            Status::Skipped(why) => format!("skipped: {why}"),
        }
    }
}

/// One step, such as a test or a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What it belongs to, such as `correctness`.
    pub part: String,
    /// Its name within the run.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// What it took.
    pub seconds: f64,
    /// What it was given.
    pub limit_seconds: u64,
    /// Its command line.
    pub command: String,
    /// The end of what it has printed; all of it is in the archive.
    pub output: String,
}

/// A record, and the step that it is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the step.
    pub step: String,
    /// What it has measured.
    #[serde(flatten)]
    pub record: Record,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// Commit of the sources, and whether they differed from it.
    pub commit: String,
    /// When it began, UTC, as in `2026-11-23T21:05:00Z`.
    pub date: String,
    /// Command line of the run.
    pub command: String,
    /// How much it was to take.
    pub mode: Mode,
    /// Whose figures these are.
    pub measured: Measured,
    /// Why nothing was measured, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the first device.
    pub device: String,
    /// What the machine is, by name: driver, clocks, kernel, MPS, ...
    pub facts: BTreeMap<String, String>,
    /// Whether all steps were gone through.
    pub finished: bool,
    /// What the run took so far.
    pub seconds: f64,
    /// All steps so far.
    pub steps: Vec<Step>,
    /// All records so far.
    pub records: Vec<Measurement>,
}

impl Report {
    /// A run that begins.
    pub fn new(commit: impl Into<String>, date: impl Into<String>, mode: Mode) -> Report {
        Report {
            version: VERSION,
            commit: commit.into(),
            date: date.into(),
            command: String::new(),
            mode,
            measured: Measured::Nothing,
            reason: None,
            device: "none".into(),
            facts: BTreeMap::new(),
            finished: false,
            seconds: 0.0,
            steps: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Reads a report.
    ///
    /// # Errors
    /// The file cannot be read, or is no report of this version.
    pub fn read(file: &Path) -> io::Result<Report> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let text = std::fs::read_to_string(file)?;
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| invalid(e.to_string()))?;
        match value["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                return Err(invalid(format!(
                    "a report of version {version}, this reads {VERSION}"
                )));
            }
            None => return Err(invalid("no report of a GPU".into())),
        }
        serde_json::from_value(value).map_err(|e| invalid(e.to_string()))
    }

    /// Writes `report.json` and `report.txt` into a folder, each replaced whole.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        record::replace(&folder.join("report.json"), json.as_bytes())?;
        record::replace(&folder.join("report.txt"), self.text().as_bytes())
    }

    /// Steps that went wrong.
    pub fn failures(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.status.is_failure())
    }

    /// Whose figures these are, in words.
    pub fn source(&self) -> String {
        match self.measured {
            Measured::Gpu => format!("measured on {}", self.device),
            Measured::Emulated => "on the emulated driver: no figure is one of a GPU".into(),
            Measured::Nothing => {
                let why = self.reason.as_deref().unwrap_or("no device was found");
                format!("not measured: {why}")
            }
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            for (at, part) in wrapped(value, WIDTH - 12).into_iter().enumerate() {
                let name = if at == 0 { name } else { "" };
                let _ = writeln!(text, "{name:<12}{part}");
            }
        };
        line("Osier", &self.source());
        line("commit", &self.commit);
        line("date", &self.date);
        line("run", &self.command);
        let state = match (self.finished, self.failures().count()) {
            (false, _) => "not finished; what follows is what there was".into(),
            (true, 0) => format!("finished in {:.0} s, nothing failed", self.seconds),
            (true, n) => format!("finished in {:.0} s, {n} steps failed", self.seconds),
        };
        line("state", &state);
        for (name, value) in &self.facts {
            // Pages of text are in the JSON and the archive.
            if value.lines().count() <= 4 {
                line(name, &value.replace('\n', "; "));
            }
        }
        let table = summary::of(self).text();
        if !table.is_empty() {
            let _ = writeln!(text, "\n{table}");
        }
        let _ = writeln!(text, "\n{:<13}{:<34}{:>7}  state", "part", "step", "s");
        for step in &self.steps {
            let head = format!("{:<13}{:<34}{:>7.1}  ", step.part, step.name, step.seconds);
            let indent = " ".repeat(15);
            let state = step.status.text();
            if head.len() + state.len() <= WIDTH {
                let _ = writeln!(text, "{head}{state}");
                continue;
            }
            let _ = writeln!(text, "{}", head.trim_end());
            for part in wrapped(&state, WIDTH - indent.len()) {
                let _ = writeln!(text, "{indent}{part}");
            }
        }
        for step in self.failures() {
            let _ = writeln!(text, "\n--- {}: {}", step.name, step.command);
            let _ = writeln!(text, "{}", step.output.trim_end());
        }
        text
    }
}

/// Wraps words into lines of at most `width` characters; longer words stay whole.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let taken = lines[last].chars().count();
        if taken > 0 && taken + 1 + word.chars().count() > width {
            lines.push(word.into());
            continue;
        }
        if taken > 0 {
            lines[last].push(' ');
        }
        lines[last].push_str(word);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("0123abc", "2026-11-23T21:05:00Z", Mode::Quick);
        report.facts.insert("driver".into(), "580.0".into());
        report.steps = vec![
            Step {
                part: "pack".into(),
                name: "bench pack".into(),
                status: Status::Failed("exit code 3".into()),
                seconds: 1.5,
                limit_seconds: 20,
                command: "osier bench pack --device".into(),
                output: "no memory\n".into(),
            },
            Step {
                part: "messages".into(),
                name: "latency: processes".into(),
                status: Status::Running,
                seconds: 0.0,
                limit_seconds: 20,
                command: "osier run".into(),
                output: String::new(),
            },
        ];
        report.records.push(Measurement {
            step: "bench pack".into(),
            record: Record {
                value: 2.0,
                ..Record::new("pack-device-pack", "V", 64)
            },
        });
        report
    }

    #[test]
    fn a_report_that_is_not_finished_is_read_as_it_was_written() {
        let folder = std::env::temp_dir().join(format!("osier-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let report = report();
        report.write(&folder).unwrap();
        assert_eq!(Report::read(&folder.join("report.json")).unwrap(), report);
        let text = std::fs::read_to_string(folder.join("report.txt")).unwrap();
        for part in [
            "not finished",
            "not measured: no device was found",
            "FAILED: exit code 3",
            "under way",
            "no memory",
            "580.0",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn other_versions_and_other_files_are_refused() {
        let folder = std::env::temp_dir().join(format!("osier-other-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("report.json");
        for (text, why) in [
            (r#"{"version": 9}"#, "version 9"),
            (r#"{"benchmarks": []}"#, "no report"),
            ("{", "EOF"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Report::read(&file).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
