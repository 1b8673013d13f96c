//! Running one program under a time limit, and what it printed.

use crate::steps::{Result, line};
use serde::{Deserialize, Serialize};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Well above the slowest run seen; a peer that hangs must not hang us.
const LIMIT: Duration = Duration::from_secs(180);

/// A line as both sides print it; fields of one side only are optional.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    bench: Option<String>,
    bytes: u64,
    unit: String,
    value: f64,
    #[serde(default)]
    floor: Option<f64>,
    #[serde(default)]
    transport: Option<String>,
    #[serde(default)]
    threads: Option<u64>,
}

/// What tells the rows of one case apart.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Size of one message.
    pub bytes: u64,
    /// Threads of each rank.
    pub threads: u64,
    /// The unit that the table uses.
    pub unit: Unit,
}

/// Units of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Milliseconds, for launches.
    #[serde(rename = "ms")]
    Millis,
    /// 10^6 bytes per second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// Messages per second.
    #[serde(rename = "msg/s")]
    MessagesPerSecond,
}

impl Unit {
    /// As printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Micros => "us",
            Self::Millis => "ms",
            Self::MegabytesPerSecond => "MB/s",
            Self::MessagesPerSecond => "msg/s",
        }
    }

    /// True when less is better.
    pub const fn is_time(self) -> bool {
        matches!(self, Self::Micros | Self::Millis)
    }
}

/// One number of one run.
#[derive(Debug)]
pub struct Value {
    /// Its row.
    pub key: Key,
    value: f64,
    floor: Option<f64>,
    transport: Option<String>,
    /// Of floors beside a row: the column that the number belongs to.
    bench: Option<String>,
}

impl Value {
    /// A launch, timed by us.
    pub fn launch(millis: f64) -> Self {
        Self {
            key: Key {
                bytes: 0,
                threads: 1,
                unit: Unit::Millis,
            },
            value: millis,
            floor: None,
            transport: None,
            bench: None,
        }
    }

    /// In the unit of its row.
    pub const fn number(&self) -> f64 {
        self.value
    }

    /// A number of another program's table.
    pub fn told(bytes: u64, unit: Unit, value: f64) -> Self {
        Self {
            key: Key {
                bytes,
                threads: 1,
                unit,
            },
            value,
            floor: None,
            transport: None,
            bench: None,
        }
    }

    /// In the unit of its row.
    pub const fn floor(&self) -> Option<f64> {
        self.floor
    }

    /// As Osier says.
    pub fn transport(&self) -> Option<String> {
        self.transport.clone()
    }

    /// What a floor is called.
    pub fn floor_name(&self) -> Option<&str> {
        self.bench.as_deref()?.strip_prefix("floor-")
    }

    fn from_line(bench: &str, line: Line) -> Result<Self> {
        let (unit, scale) = match line.unit.as_str() {
            "ns" => (Unit::Micros, 1e-3),
            "us" | "µs" => (Unit::Micros, 1.0),
            "ms" => (Unit::Micros, 1e3),
            "s" => (Unit::Micros, 1e6),
            "B/s" => (Unit::MegabytesPerSecond, 1e-6),
            "MB/s" => (Unit::MegabytesPerSecond, 1.0),
            "GB/s" => (Unit::MegabytesPerSecond, 1e3),
            "MiB/s" => (Unit::MegabytesPerSecond, 1.048_576),
            "GiB/s" => (Unit::MegabytesPerSecond, 1_073.741_824),
            "msg/s" | "messages/s" | "1/s" => (Unit::MessagesPerSecond, 1.0),
            "Mmsg/s" => (Unit::MessagesPerSecond, 1e6),
            other => return Err(format!("unknown unit {other:?}")),
        };
        let (unit, scale) = match (bench, unit) {
            ("launch", Unit::Micros) => (Unit::Millis, scale * 1e-3),
            _ => (unit, scale),
        };
        let mut value = Self {
            key: Key {
                bytes: line.bytes,
                threads: line.threads.unwrap_or(1),
                unit,
            },
            value: line.value * scale,
            floor: line.floor.map(|floor| floor * scale),
            transport: line.transport,
            bench: line.bench,
        };
        // A pack may be told as a time; the table has its rate.
        if bench == "pack" && unit == Unit::Micros {
            let rate = |micros: f64| line.bytes as f64 / micros;
            value.key.unit = Unit::MegabytesPerSecond;
            value.value = rate(value.value);
            value.floor = value.floor.map(rate);
        }
        Ok(value)
    }
}

/// Values from lines of JSON; a launcher may print lines of its own between.
pub fn parse_lines(bench: &str, text: &str) -> Result<Vec<Value>> {
    let values: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Line>(line).ok())
        .map(|line| Value::from_line(bench, line))
        .collect::<Result<_>>()?;
    if values.is_empty() {
        return Err("printed no number".into());
    }
    Ok(values)
}

/// Values from an array of JSON.
pub fn parse_array(bench: &str, text: &str) -> Result<Vec<Value>> {
    let lines: Vec<Line> =
        serde_json::from_str(text).map_err(|e| format!("its JSON is not as agreed: {e}"))?;
    lines
        .into_iter()
        // What a collective should take is no time that it took.
        .filter(|line| {
            !line
                .bench
                .as_ref()
                .is_some_and(|b| b.ends_with("-predicted"))
        })
        .map(|line| Value::from_line(bench, line))
        .collect()
}

/// Runs a command in a process group of its own, which is killed at the limit.
/// Gives its output and the time from start to end.
pub fn run_limited(command: &mut Command) -> Result<(String, Duration)> {
    let shown = line(command);
    let start = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("cannot start {shown}: {e}"))?;
    let group = child.id();
    let (ended, end) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let timed_out = end.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout);
        if timed_out {
            let _ = Command::new("kill")
                .args(["-KILL", "--", &format!("-{group}")])
                .status();
        }
        timed_out
    });
    let output = child.wait_with_output();
    let took = start.elapsed();
    drop(ended);
    let timed_out = watchdog.join().unwrap_or(false);
    let output = output.map_err(|e| format!("cannot wait for {shown}: {e}"))?;
    if timed_out {
        return Err(format!("not done after {} s: {shown}", LIMIT.as_secs()));
    }
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let said = errors.lines().find(|l| l.chars().any(char::is_alphabetic));
        return Err(format!(
            "{shown} ended with {}: {}",
            output.status,
            said.unwrap_or("(said nothing)").trim()
        ));
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), took))
}

/// Median of sorted values.
pub fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 {
        sorted[n / 2]
    } else {
        f64::midpoint(sorted[n / 2 - 1], sorted[n / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_between_other_output() {
        let text = "hello\n{\"bench\":\"latency\",\"layout\":\"contiguous\",\"memory\":\"plain\",\
                    \"ranks\":2,\"bytes\":8,\"unit\":\"ns\",\"value\":240.0}\n";
        let values = parse_lines("latency", text).unwrap();
        assert_eq!(values.len(), 1);
        assert_eq!(values[0].value, 0.24);
        assert!(values[0].key.unit == Unit::Micros);
    }

    #[test]
    fn pack_time_becomes_rate_and_launch_is_in_ms() {
        let text = r#"[{"bytes":1000,"unit":"us","value":2.0,"floor":1.0}]"#;
        let pack = parse_array("pack", text).unwrap();
        assert_eq!((pack[0].value, pack[0].floor), (500.0, Some(1000.0)));
        let launch = parse_array("launch", text).unwrap();
        assert_eq!(launch[0].value, 0.002);
        assert!(launch[0].key.unit == Unit::Millis);
    }

    #[test]
    fn nothing_printed_is_an_error() {
        assert!(parse_lines("latency", "no JSON here").is_err());
        assert!(parse_array("latency", "{}").is_err());
    }

    #[test]
    fn failure_tells_what_was_said() {
        let e = run_limited(Command::new("sh").args(["-c", "echo oh no >&2; exit 3"])).unwrap_err();
        assert!(e.contains("oh no") && e.contains('3'), "{e}");
    }
}
