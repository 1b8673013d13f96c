//! Rows: from medians to text, JSON and the documentation.

use super::cases::{Bar, Case, Memory, bars};
use super::sample::Unit;
use super::{Medians, NAMES};
use crate::steps::{Result, root};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Markers around the section of everything but datatypes.
pub const MARKERS: [&str; 2] = ["<!-- compare:begin -->", "<!-- compare:end -->"];

/// Median of one column, and (max - min) / median over the rounds.
#[derive(Clone)]
pub struct Cell {
    /// In the unit of the row.
    pub median: f64,
    /// A ratio.
    pub spread: f64,
}

/// All columns of one row.
pub struct Columns {
    /// In the order of [`NAMES`].
    pub cells: [Option<Cell>; NAMES.len()],
    /// The machine's floor, measured by Osier in the same run.
    pub floor: Option<f64>,
    /// As Osier says.
    pub transport: Option<String>,
}

/// One row.
pub struct Row {
    bench: &'static str,
    layout: &'static str,
    memory: Memory,
    ranks: u32,
    bytes: u64,
    /// Threads of each rank.
    threads: u64,
    unit: Unit,
    columns: Columns,
    bars: &'static [Bar],
}

impl Row {
    /// True when only peers have a number.
    pub fn lacks_osier(&self) -> bool {
        self.columns.cells[0].is_none()
    }

    fn value(&self, column: usize) -> Option<f64> {
        self.columns.cells[column].as_ref().map(|cell| cell.median)
    }

    fn best_peer(&self) -> Option<f64> {
        let peers = (1..NAMES.len()).filter_map(|column| self.value(column));
        if self.unit.is_time() {
            peers.min_by(f64::total_cmp)
        } else {
            peers.max_by(f64::total_cmp)
        }
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.value(0)? / self.best_peer()?)
    }

    /// The bar in words, and whether it is met; None where a number is missing.
    fn judge(&self, bar: Bar) -> (String, Option<bool>) {
        let against = |reference: Option<f64>| Some(self.value(0)? / reference?);
        match bar {
            Bar::TimeOfBest(limit) => (
                format!("<= {limit} best"),
                self.ratio().map(|ratio| ratio <= limit),
            ),
            Bar::RateOfBest(limit) => (
                format!(">= {limit} best"),
                self.ratio().map(|ratio| ratio >= limit),
            ),
            Bar::OfPeer(column, limit) if self.unit.is_time() => (
                format!("<= {limit} {}", NAMES[column]),
                against(self.value(column)).map(|ratio| ratio <= limit),
            ),
            Bar::OfPeer(column, limit) => (
                format!(">= {} {}", 1.0 / limit, NAMES[column]),
                against(self.value(column)).map(|ratio| ratio >= 1.0 / limit),
            ),
            Bar::TimeOfFloor(limit) => (
                format!("<= {limit} floor"),
                against(self.columns.floor).map(|ratio| ratio <= limit),
            ),
        }
    }

    fn bar_text(&self) -> String {
        let judged = self.bars.iter().map(|bar| {
            let (text, met) = self.judge(*bar);
            let verdict = match met {
                Some(true) => "met",
                Some(false) => "NOT MET",
                None => "unknown",
            };
            format!("{text}: {verdict}")
        });
        judged.collect::<Vec<_>>().join("; ")
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let mut row = json!({
            "bench": self.bench,
            "layout": self.layout,
            "memory": self.memory.name(),
            "transport": self.columns.transport,
            "threads": self.threads,
            "ranks": self.ranks,
            "bytes": self.bytes,
            "unit": self.unit.name(),
            "value": self.value(0),
            "floor": self.columns.floor,
        });
        for column in 1..NAMES.len() {
            row[NAMES[column]] = json!(self.value(column));
        }
        row
    }
}

/// Rows in the order of the cases, then of sizes.
pub fn rows(cases: &[&Case], medians: &Medians) -> Vec<Row> {
    medians
        .iter()
        .map(|((at, key), columns)| {
            let case = cases[*at];
            Row {
                bench: case.bench,
                layout: case.layout,
                memory: case.memory,
                ranks: case.ranks,
                bytes: key.bytes,
                threads: key.threads,
                unit: key.unit,
                columns: Columns {
                    cells: columns.cells.clone(),
                    floor: columns.floor,
                    transport: columns.transport.clone(),
                },
                bars: bars(case, key.bytes),
            }
        })
        .collect()
}

/// The table in Markdown, aligned so that it reads as plain text too.
pub fn text(rows: &[Row]) -> String {
    let mut lines: Vec<Vec<String>> = vec![
        ["bench", "layout", "memory", "ranks", "bytes", "unit"]
            .into_iter()
            .chain(NAMES)
            .chain(["floor", "spread", "ratio", "bar"])
            .map(String::from)
            .collect(),
    ];
    let or_dash = |v: Option<f64>| v.map_or_else(|| "-".into(), number);
    for row in rows {
        let mut line = vec![
            row.bench.into(),
            row.layout.into(),
            row.memory.name().into(),
            match row.bench {
                "threads" => format!("{} x {}", row.ranks, row.threads),
                _ => row.ranks.to_string(),
            },
            row.bytes.to_string(),
            row.unit.name().into(),
        ];
        line.extend((0..NAMES.len()).map(|column| or_dash(row.value(column))));
        line.push(or_dash(row.columns.floor));
        let cells = row.columns.cells.iter().flatten();
        let spread = cells.map(|cell| cell.spread).max_by(f64::total_cmp);
        line.push(spread.map_or_else(|| "-".into(), |s| format!("{:.0} %", s * 100.0)));
        line.push(
            row.ratio()
                .map_or_else(|| "-".into(), |r| format!("{r:.2}")),
        );
        line.push(row.bar_text());
        lines.push(line);
    }
    let columns = lines[0].len();
    let width: Vec<usize> = (0..columns)
        .map(|at| lines.iter().map(|l| l[at].chars().count()).max())
        .map(|width| width.unwrap_or(0).max(3))
        .collect();
    let left = |at: usize| at < 3 || at == 5 || at == columns - 1;
    let mut out = String::new();
    for (n, line) in lines.iter().enumerate() {
        for (at, cell) in line.iter().enumerate() {
            let w = width[at];
            let _ = if left(at) {
                write!(out, "| {cell:w$} ")
            } else {
                write!(out, "| {cell:>w$} ")
            };
        }
        out.push_str("|\n");
        if n == 0 {
            for (at, w) in width.iter().enumerate() {
                let dashes = "-".repeat(w + 1);
                let _ = if left(at) {
                    write!(out, "|{dashes}-")
                } else {
                    write!(out, "|{dashes}:")
                };
            }
            out.push_str("|\n");
        }
    }
    out
}

/// Three figures are what the spread allows; large numbers stay whole.
fn number(v: f64) -> String {
    match v.abs() {
        a if a >= 1e6 => format!("{:.2}e6", v / 1e6),
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.3}"),
    }
}

/// How the numbers were taken, and [`origin`].
pub fn provenance(command: &str, rounds: u32, hops: &str) -> String {
    format!(
        "Medians over {rounds} interleaved rounds; spread is (max - min) / median of the least \
         steady column; ratio is Osier to the best peer. {hops} {}",
        origin(command)
    )
}

/// Machine, commit, command and date.
pub fn origin(command: &str) -> String {
    let said = |program: &str, args: &[&str]| {
        let out = Command::new(program)
            .args(args)
            .current_dir(root())
            .output();
        let text = out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
        text.ok()
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| "?".into())
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':'))
        .map_or("?", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "Machine: {cpu}, {cores} cores. Commit: {}. Command: `{command}`. Date: {}.",
        said("git", &["describe", "--always", "--dirty"]),
        said("date", &["-u", "+%Y-%m-%d"]),
    )
}

/// Writes the array of rows.
pub fn write_json(file: &Path, rows: &[Value]) -> Result {
    let text = serde_json::to_string_pretty(rows).map_err(|e| e.to_string())?;
    std::fs::write(file, text + "\n").map_err(|e| format!("cannot write {}: {e}", file.display()))
}

/// Replaces what stands between the markers.
pub fn update_docs(
    file: &Path,
    markers: [&str; 2],
    table: &str,
    note: &str,
    missing: &[String],
) -> Result {
    let old = std::fs::read_to_string(file)
        .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let mut between = format!("{table}\n{note}\n");
    for line in missing {
        let _ = writeln!(between, "\nMissing: {line}");
    }
    let [begin, end] = markers;
    let new = replace_between(&old, markers, &between)
        .ok_or_else(|| format!("{} lacks the lines {begin} and {end}", file.display()))?;
    std::fs::write(file, new).map_err(|e| format!("cannot write {}: {e}", file.display()))
}

/// A page with another text between two lines of it.
pub fn replace_between(text: &str, [begin, end]: [&str; 2], between: &str) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n\n{between}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(unit: Unit, values: [Option<f64>; 4], bars: &'static [Bar]) -> Row {
        Row {
            bench: "latency",
            layout: "contiguous",
            memory: Memory::Plain,
            ranks: 2,
            threads: 1,
            bytes: 8,
            unit,
            columns: Columns {
                cells: values.map(|v| {
                    v.map(|median| Cell {
                        median,
                        spread: 0.0,
                    })
                }),
                floor: Some(0.1),
                transport: None,
            },
            bars,
        }
    }

    #[test]
    fn best_peer_follows_the_unit() {
        let values = [Some(1.0), Some(2.0), None, Some(4.0)];
        assert_eq!(row(Unit::Micros, values, &[]).ratio(), Some(0.5));
        assert_eq!(
            row(Unit::MegabytesPerSecond, values, &[]).ratio(),
            Some(0.25)
        );
    }

    #[test]
    fn bars_are_judged() {
        const BARS: &[Bar] = &[
            Bar::TimeOfBest(0.5),
            Bar::TimeOfFloor(1.4),
            Bar::OfPeer(2, 0.2),
        ];
        let r = row(Unit::Micros, [Some(0.2), Some(0.4), None, Some(0.9)], BARS);
        assert_eq!(
            r.bar_text(),
            "<= 0.5 best: met; <= 1.4 floor: NOT MET; <= 0.2 mpich: unknown"
        );
        let r = row(
            Unit::MessagesPerSecond,
            [Some(2.0), None, None, Some(1.0)],
            &[Bar::OfPeer(3, 1.0), Bar::RateOfBest(2.0)],
        );
        assert_eq!(r.bar_text(), ">= 1 intelmpi: met; >= 2 best: met");
    }

    #[test]
    fn missing_columns_are_null() {
        let r = row(Unit::Micros, [Some(0.2), None, Some(0.4), None], &[]);
        let json = r.json();
        assert_eq!(json["value"], 0.2);
        assert!(json["openmpi"].is_null() && json["intelmpi"].is_null());
        assert_eq!(json["mpich"], 0.4);
    }

    #[test]
    fn docs_keep_what_is_outside_the_markers() {
        let [begin, end] = MARKERS;
        let old = format!("top\n{begin}\nold\n{end}\nend\n");
        let new = replace_between(&old, MARKERS, "new\n").unwrap();
        assert_eq!(new, format!("top\n{begin}\n\nnew\n\n{end}\nend\n"));
        assert!(replace_between("no markers", MARKERS, "new").is_none());
    }
}
