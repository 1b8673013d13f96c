//! Rows: from medians to text, JSON and the documentation.

use super::bars::{Bar, Numbers, bars};
use super::cases::{Case, Memory};
use super::hop::Distance;
use super::sample::Unit;
use super::store::Store;
use super::{HEAP, NAMES, PEERS, THREADS};
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
    /// Values that it is of.
    pub rounds: usize,
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
    distance: Distance,
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
        let peers = PEERS.filter_map(|column| self.value(column));
        if self.unit.is_time() {
            peers.min_by(f64::total_cmp)
        } else {
            peers.max_by(f64::total_cmp)
        }
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.value(0)? / self.best_peer()?)
    }

    /// Its bars in words, and whether they are met; `None` where a number is missing.
    fn judged(&self) -> Vec<(String, Option<bool>)> {
        let numbers = Numbers {
            value: &|column| self.value(column),
            best_peer: self.best_peer(),
            floor: self.columns.floor,
            unit: self.unit,
        };
        let all = self.bars.iter();
        all.filter_map(|bar| bar.judge(&numbers)).collect()
    }

    /// Why it is not judged, if it has a bar: a column has too few rounds.
    fn unjudged(&self, least: usize) -> Option<String> {
        if self.bars.is_empty() {
            return None;
        }
        let shared = [HEAP, THREADS];
        let judged = PEERS.chain([0]).chain(shared);
        let cells = judged.filter_map(|column| self.columns.cells[column].as_ref());
        let rounds = cells.map(|cell| cell.rounds).min().unwrap_or(0);
        let distance = self.distance.name();
        if self.lacks_osier() || self.best_peer().is_none() {
            return Some(format!("{distance}: a column is missing"));
        }
        (rounds < least).then(|| format!("{distance}: rounds {rounds} of {least}"))
    }

    fn bar_text(&self, least: usize) -> String {
        let unjudged = self.unjudged(least).is_some();
        let judged = self.judged();
        let judged = judged.iter().map(|(text, met)| {
            let verdict = match met {
                _ if unjudged => "not judged",
                Some(true) => "met",
                Some(false) => "NOT MET",
                None => "unknown",
            };
            format!("{text}: {verdict}")
        });
        judged.collect::<Vec<_>>().join("; ")
    }

    /// Bench, layout and memory where they are not the usual ones.
    fn title(&self) -> String {
        let mut title = self.bench.to_owned();
        if self.layout != "contiguous" {
            title += &format!(" {}", self.layout);
        }
        title += match self.memory {
            Memory::Plain => "",
            Memory::PlainRotated => " rotated",
            Memory::Heap => " heap",
        };
        match self.bench {
            "threads" => format!("{title} x {}", self.threads),
            _ => title,
        }
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
            "cores": self.distance.name(),
            "bytes": self.bytes,
            "unit": self.unit.name(),
            "value": self.value(0),
            "floor": self.columns.floor,
        });
        for column in 1..NAMES.len() {
            row[NAMES[column]] = json!(self.value(column));
        }
        row["bars"] = self
            .judged()
            .into_iter()
            .map(|(text, met)| json!({ "bar": text, "met": met }))
            .collect();
        row
    }
}

/// Rows of one distance in the order of the cases, then of sizes.
pub fn rows(cases: &[Case], store: &Store, distance: Distance) -> Vec<Row> {
    let of = |case: &Case| {
        let case = *case;
        let medians = store.medians(&case, distance).into_iter();
        medians.map(move |(key, columns)| Row {
            bench: case.bench,
            layout: case.layout,
            memory: case.memory,
            ranks: case.ranks,
            distance,
            bytes: key.bytes,
            threads: key.threads,
            unit: key.unit,
            columns,
            bars: bars(&case, key.bytes, distance),
        })
    };
    cases.iter().flat_map(of).collect()
}

/// A table of at most 80 columns for terminals; the best peer has its initial.
pub fn narrow(rows: &[Row], least: usize) -> String {
    let mut out = format!(
        "{:<20} {:>2} {:>5} {:>5} {:>7} {:>6} {:>6} {:>9} {:>5} {}\n",
        "bench", "n", "bytes", "unit", "osier", "heap", "thread", "best", "ratio", "bar"
    );
    let or_dash = |v: Option<f64>| v.map_or_else(|| "-".into(), number);
    for row in rows {
        let best = row.best_peer().and_then(|best| {
            let column = PEERS
                .clone()
                .find(|column| row.value(*column) == Some(best))?;
            Some(format!("{} {}", number(best), &NAMES[column][..1]))
        });
        let met = row.judged();
        let bar = match row.unjudged(least) {
            _ if met.is_empty() => "",
            Some(_) => "?",
            None if met.iter().any(|(_, met)| *met == Some(false)) => "NOT",
            None if met.iter().any(|(_, met)| met.is_none()) => "?",
            None => "met",
        };
        let line = format!(
            "{:<20} {:>2} {:>5} {:>5} {:>7} {:>6} {:>6} {:>9} {:>5} {bar}",
            row.title(),
            row.ranks,
            size(row.bytes),
            row.unit.name(),
            or_dash(row.value(0)),
            or_dash(row.value(HEAP)),
            or_dash(row.value(THREADS)),
            best.unwrap_or_else(|| "-".into()),
            row.ratio()
                .map_or_else(|| "-".into(), |r| format!("{r:.2}")),
        );
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// 65536 as 64K.
fn size(bytes: u64) -> String {
    match bytes {
        0 => "-".into(),
        b if b.is_multiple_of(1 << 20) => format!("{}M", b >> 20),
        b if b.is_multiple_of(1 << 10) => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}

/// A line for each row whose bar is not met, and for each that is not judged.
pub fn verdicts(rows: &[Row], least: usize) -> String {
    let mut out = String::new();
    let (mut met, mut judged) = (0, 0);
    let mut unjudged: Vec<(String, Vec<String>)> = Vec::new();
    for row in rows.iter().filter(|row| !row.judged().is_empty()) {
        let name = format!("{}, {} ranks", row.title(), row.ranks);
        if let Some(why) = row.unjudged(least) {
            let head = format!("{name}, {why}");
            match unjudged.iter_mut().find(|(known, _)| *known == head) {
                Some((_, sizes)) => sizes.push(size(row.bytes)),
                None => unjudged.push((head, vec![size(row.bytes)])),
            }
            continue;
        }
        judged += 1;
        let missed: Vec<String> = row
            .judged()
            .into_iter()
            .filter(|(_, met)| *met != Some(true))
            .map(|(text, _)| text)
            .collect();
        if missed.is_empty() {
            met += 1;
            continue;
        }
        let ratio = row
            .ratio()
            .map_or_else(|| "-".into(), |r| format!("{r:.2}"));
        let _ = writeln!(
            out,
            "not met: {name}, {}, {}: {ratio}, {}",
            size(row.bytes),
            row.distance.name(),
            missed.join("; ")
        );
    }
    for (head, sizes) in unjudged {
        let _ = writeln!(out, "not judged: {head}: {}", sizes.join(" "));
    }
    let _ = writeln!(out, "bars: {met} of {judged} judged rows meet all");
    out
}

/// The table in Markdown, aligned so that it reads as plain text too.
pub fn text(rows: &[Row], least: usize) -> String {
    let shown =
        |column: &usize| *column <= 3 || rows.iter().any(|row| row.value(*column).is_some());
    let shown: Vec<usize> = (0..NAMES.len()).filter(shown).collect();
    let mut lines: Vec<Vec<String>> = vec![
        ["bench", "layout", "memory", "ranks", "bytes", "unit"]
            .into_iter()
            .chain(shown.iter().map(|column| NAMES[*column]))
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
        line.extend(shown.iter().map(|column| or_dash(row.value(*column))));
        line.push(or_dash(row.columns.floor));
        let cells = row.columns.cells[..=3].iter().flatten();
        let spread = cells.map(|cell| cell.spread).max_by(f64::total_cmp);
        line.push(spread.map_or_else(|| "-".into(), |s| format!("{:.0} %", s * 100.0)));
        line.push(
            row.ratio()
                .map_or_else(|| "-".into(), |r| format!("{r:.2}")),
        );
        line.push(row.bar_text(least));
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
pub fn provenance(command: &str, rounds: usize, hops: &str) -> String {
    format!(
        "Medians over at least {rounds} interleaved rounds of each judged row, cores near; spread is (max - min) / median of the least \
         steady column; ratio is Osier to the best peer. {hops} {}",
        origin(command)
    )
}

/// Machine, commit, command and date.
pub fn origin(command: &str) -> String {
    format!(
        "Machine: {}. Commit: {}. Command: `{command}`. Date: {}.",
        machine(),
        commit(),
        said("date", &["-u", "+%Y-%m-%d"]),
    )
}

fn said(program: &str, args: &[&str]) -> String {
    let out = Command::new(program)
        .args(args)
        .current_dir(root())
        .output();
    let text = out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    text.ok()
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "?".into())
}

/// The commit of this tree; a changed one says so.
pub fn commit() -> String {
    said("git", &["describe", "--always", "--dirty"])
}

/// The processor and its cores.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':'))
        .map_or("?", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cpu}, {cores} cores")
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

    fn row(unit: Unit, values: [Option<f64>; 5], bars: &'static [Bar]) -> Row {
        let mut all = values.to_vec();
        all.resize(NAMES.len(), None);
        let cells = std::array::from_fn(|column| {
            all[column].map(|median| Cell {
                median,
                spread: 0.0,
                rounds: 5,
            })
        });
        Row {
            bench: "bcast",
            layout: "contiguous",
            memory: Memory::Plain,
            ranks: 2,
            distance: Distance::Near,
            threads: 1,
            bytes: 65536,
            unit,
            columns: Columns {
                cells,
                floor: Some(0.1),
                transport: None,
            },
            bars,
        }
    }

    #[test]
    fn best_peer_follows_the_unit() {
        let values = [Some(1.0), Some(2.0), None, Some(4.0), Some(0.1)];
        assert_eq!(row(Unit::Micros, values, &[]).ratio(), Some(0.5));
        assert_eq!(
            row(Unit::MegabytesPerSecond, values, &[]).ratio(),
            Some(0.25)
        );
    }

    #[test]
    fn rows_with_few_rounds_are_not_judged() {
        const BARS: &[Bar] = &[Bar::CostOfBest(0.5), Bar::HeapOfBest(0.5)];
        let values = [Some(0.2), Some(0.4), None, Some(0.9), Some(0.3)];
        let mut r = row(Unit::Micros, values, BARS);
        assert_eq!(r.bar_text(5), "<= 0.5 best: met; heap <= 0.5 best: NOT MET");
        let rows = [r];
        assert!(narrow(&rows, 5).contains("64K") && narrow(&rows, 5).ends_with("0.50 NOT\n"));
        assert!(narrow(&rows, 5).lines().all(|line| line.len() <= 80));
        assert_eq!(
            verdicts(&rows, 5),
            "not met: bcast, 2 ranks, 64K, near: 0.50, heap <= 0.5 best\n\
             bars: 0 of 1 judged rows meet all\n"
        );
        [r] = rows;
        if let Some(cell) = &mut r.columns.cells[3] {
            cell.rounds = 4;
        }
        assert_eq!(
            r.bar_text(5),
            "<= 0.5 best: not judged; heap <= 0.5 best: not judged"
        );
        assert_eq!(
            verdicts(&[r], 5),
            "not judged: bcast, 2 ranks, near: rounds 4 of 5: 64K\n\
             bars: 0 of 0 judged rows meet all\n"
        );
    }

    #[test]
    fn missing_columns_are_null() {
        let values = [Some(0.2), None, Some(0.4), None, None];
        let json = row(Unit::Micros, values, &[]).json();
        assert_eq!(json["value"], 0.2);
        assert!(json["openmpi"].is_null() && json["intelmpi"].is_null());
        assert_eq!(
            (&json["mpich"], &json["cores"]),
            (&json!(0.4), &json!("near"))
        );
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
