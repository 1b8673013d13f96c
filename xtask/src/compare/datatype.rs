//! Datatypes: the shapes of `osier bench datatype` through the peers' MPI_Pack,
//! MPI_Unpack, commit and ping-pong.
//!
//! Osier writes the shapes as text and the peers' program builds them from it;
//! a checksum of the packed bytes shows that both mean the same. A round runs
//! every column once over all shapes, each round beginning with another one.

use super::contestant::Contestant;
use super::hop::Hops;
use super::sample::{median, run_limited};
use super::{NAMES, PEERS, Troubles};
use crate::steps::{Result, target_dir};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its name in `--only`.
pub const NAME: &str = "datatype";
/// Shapes of one turn: few enough that a turn takes seconds, so many that launching
/// does not take most of it.
const GROUP: usize = 8;
/// Markers around its section of the documentation.
pub const MARKERS: [&str; 2] = [
    "<!-- compare-datatype:begin -->",
    "<!-- compare-datatype:end -->",
];
const MEASURES: [&str; 4] = ["commit", "pack", "unpack", "pingpong"];
/// Of every measure: ahead of the best peer on every shape, and so many times as
/// fast on the median.
const BAR: f64 = 2.0;

/// A line as both sides print it.
#[derive(Deserialize)]
pub struct Line {
    bench: String,
    layout: String,
    bytes: u64,
    value: f64,
    #[serde(default)]
    floor: Option<f64>,
    #[serde(default)]
    transport: Option<String>,
}

/// Lines of JSON between other output, or an array.
///
/// # Errors
/// Nothing was printed.
pub fn parse(text: &str) -> Result<Vec<Line>> {
    let lines = match serde_json::from_str(text) {
        Ok(lines) => lines,
        Err(_) => text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect::<Vec<Line>>(),
    };
    if lines.is_empty() {
        return Err("printed no number".into());
    }
    Ok(lines)
}

/// One measure of one shape: values of each column over the rounds.
#[derive(Default)]
struct Samples {
    bytes: u64,
    values: [Vec<f64>; NAMES.len()],
    floors: Vec<f64>,
    transport: Option<String>,
}

/// Medians in µs.
struct Cell {
    bytes: u64,
    columns: [Option<f64>; NAMES.len()],
    floor: Option<f64>,
    transport: Option<String>,
}

impl Cell {
    fn best_peer(&self) -> Option<(usize, f64)> {
        PEERS
            .filter_map(|column| Some((column, self.columns[column]?)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// How many times as fast as the best peer.
    fn ahead(&self) -> Option<f64> {
        Some(self.best_peer()?.1 / self.columns[0]?)
    }
}

/// All shapes in the order in which they were measured.
pub struct Outcome {
    shapes: Vec<String>,
    cells: BTreeMap<(usize, usize), Cell>,
}

/// Measures all contestants in turn.
///
/// # Errors
/// Osier cannot say what the shapes are.
pub fn measure(
    contestants: &[(usize, Box<dyn Contestant>)],
    rounds: u32,
    quick: bool,
    hops: &mut Hops,
    troubles: &mut Troubles,
) -> Result<Outcome> {
    let folder = target_dir().join("xtask");
    std::fs::create_dir_all(&folder)
        .map_err(|e| format!("cannot make the folder {}: {e}", folder.display()))?;
    let file: PathBuf = folder.join("shapes.txt");
    run_limited(
        Command::new(crate::demo::build()?)
            .args(["bench", NAME, "--export"])
            .arg(&file),
    )?;
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let described: Vec<&str> = text.lines().collect();
    let mut shapes: Vec<String> = Vec::new();
    let mut samples: BTreeMap<(usize, usize), Samples> = BTreeMap::new();
    let mut broken = Vec::new();
    let part = folder.join("shapes-group.txt");
    let groups = described.len().div_ceil(GROUP);
    for round in 0..rounds as usize {
        for (at, group) in described.chunks(GROUP).enumerate() {
            println!(
                "round {} of {rounds}: group {} of {groups}",
                round + 1,
                at + 1
            );
            std::fs::write(&part, group.join("\n") + "\n")
                .map_err(|e| format!("cannot write {}: {e}", part.display()))?;
            let names: Vec<&str> = group
                .iter()
                .filter_map(|line| line.split(' ').next())
                .collect();
            for turn in 0..contestants.len() {
                let (column, contestant) = &contestants[(turn + round) % contestants.len()];
                if !contestant.has_shapes() || broken.contains(&(at, *column)) {
                    continue;
                }
                match hops.near(|| contestant.shapes(&part, &names, quick)) {
                    Ok(lines) => {
                        for line in lines {
                            add(&mut shapes, &mut samples, *column, line);
                        }
                    }
                    Err(e) => {
                        broken.push((at, *column));
                        let (first, last) = (names[0], names[names.len() - 1]);
                        let what = format!("{NAME}: {first} to {last}: {e}");
                        troubles.add(None, format!("{}: {what}", NAMES[*column]));
                    }
                }
            }
        }
    }
    let cells = samples
        .into_iter()
        .map(|(key, samples)| (key, samples.cell()))
        .collect();
    Ok(Outcome { shapes, cells })
}

fn add(
    shapes: &mut Vec<String>,
    samples: &mut BTreeMap<(usize, usize), Samples>,
    column: usize,
    line: Line,
) {
    let Some(measure) = MEASURES
        .iter()
        .position(|name| line.bench.strip_prefix("datatype-") == Some(name))
    else {
        return;
    };
    let shape = match shapes.iter().position(|name| *name == line.layout) {
        Some(at) => at,
        None => {
            shapes.push(line.layout);
            shapes.len() - 1
        }
    };
    let sample = samples.entry((shape, measure)).or_default();
    sample.bytes = line.bytes;
    sample.values[column].push(line.value);
    sample.floors.extend(line.floor);
    sample.transport = line.transport.or(sample.transport.take());
}

impl Samples {
    fn cell(self) -> Cell {
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            (!values.is_empty()).then(|| median(&values))
        };
        Cell {
            bytes: self.bytes,
            columns: self.values.map(middle),
            floor: middle(self.floors),
            transport: self.transport,
        }
    }
}

impl Outcome {
    fn ratios(&self, measure: usize) -> Vec<(f64, &str)> {
        let mut ratios: Vec<(f64, &str)> = self
            .shapes
            .iter()
            .enumerate()
            .filter_map(|(at, name)| {
                Some((self.cells.get(&(at, measure))?.ahead()?, name.as_str()))
            })
            .collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        ratios
    }

    /// True when no shape has a number of Osier's.
    pub fn lacks_osier(&self) -> bool {
        self.cells.values().all(|cell| cell.columns[0].is_none())
    }

    /// The summary and the table, in Markdown.
    pub fn text(&self) -> String {
        let mut out =
            String::from("| measure | shapes | median | worst | behind a peer on | bar |\n");
        out += "|---|---:|---:|---:|---|---|\n";
        for (measure, name) in MEASURES.iter().enumerate() {
            let ratios = self.ratios(measure);
            let Some(worst) = ratios.first() else {
                continue;
            };
            let values: Vec<f64> = ratios.iter().map(|(ratio, _)| *ratio).collect();
            let middle = median(&values);
            let behind: Vec<String> = ratios
                .iter()
                .filter(|(ratio, _)| *ratio < 1.0)
                .map(|(ratio, name)| format!("{name} {ratio:.2}"))
                .collect();
            let bar = match behind.is_empty() && middle >= BAR {
                true => "ahead on all, median >= 2: met",
                false => "ahead on all, median >= 2: NOT MET",
            };
            let _ = writeln!(
                out,
                "| {name} | {} | {middle:.2} | {:.2} | {}: {} | {bar} |",
                ratios.len(),
                worst.0,
                behind.len(),
                behind.join(", ")
            );
        }
        out += "\n| shape | bytes |";
        for name in MEASURES {
            let _ = write!(out, " {name} | best peer | x |");
        }
        out += " memcpy |\n|---|---:|";
        out += &"---:|---:|---:|".repeat(MEASURES.len());
        out += "---:|\n";
        for (at, shape) in self.shapes.iter().enumerate() {
            let cells: Vec<Option<&Cell>> = (0..MEASURES.len())
                .map(|measure| self.cells.get(&(at, measure)))
                .collect();
            let bytes = cells.iter().flatten().next().map_or(0, |cell| cell.bytes);
            let _ = write!(out, "| {shape} | {bytes} |");
            for cell in &cells {
                let own = cell.and_then(|cell| cell.columns[0]);
                let peer = cell.and_then(|cell| cell.best_peer());
                let ahead = cell.and_then(|cell| cell.ahead());
                let shown = |v: Option<f64>| v.map_or("-".into(), number);
                let peer = peer.map_or("-".into(), |(column, v)| {
                    format!("{} {}", number(v), &NAMES[column][..1])
                });
                let ahead = ahead.map_or("-".into(), |ratio| format!("{ratio:.2}"));
                let _ = write!(out, " {} | {peer} | {ahead} |", shown(own));
            }
            let floor = cells.iter().flatten().find_map(|cell| cell.floor);
            let _ = writeln!(out, " {} |", floor.map_or("-".into(), number));
        }
        out += "\nTimes in us, medians; commit includes building and freeing the type; x is the best \
                peer's time over Osier's; o, m, i: Open MPI, MPICH, Intel MPI; memcpy: of the \
                payload.\n";
        out
    }

    /// Rows as the other benchmarks have them.
    pub fn json(&self) -> Vec<Value> {
        self.cells
            .iter()
            .map(|((shape, measure), cell)| {
                let mut row = json!({
                    "bench": format!("{NAME}-{}", MEASURES[*measure]),
                    "layout": self.shapes[*shape],
                    "memory": "plain",
                    "transport": cell.transport,
                    "threads": 1,
                    "ranks": 2,
                    "bytes": cell.bytes,
                    "unit": "us",
                    "value": cell.columns[0],
                    "floor": cell.floor,
                });
                for column in PEERS {
                    row[NAMES[column]] = json!(cell.columns[column]);
                }
                row
            })
            .collect()
    }
}

fn number(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// What the peers' program is told.
pub fn options(command: &mut Command, file: &Path, quick: bool) {
    command
        .arg("--shapes")
        .arg(file)
        .args(["--repetitions", "5"]);
    if quick {
        command.args(["--seconds", "0.001"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_both_sides_meet() {
        let osier = r#"[{"bench":"datatype-pack","layout":"a","bytes":8,"value":2.0,"floor":1.0},
            {"bench":"datatype-pack","layout":"b","bytes":8,"value":2.0}]"#;
        let peer = "x\n{\"bench\":\"datatype-pack\",\"layout\":\"a\",\"bytes\":8,\"value\":5.0}\n\
                    {\"bench\":\"datatype-pack\",\"layout\":\"b\",\"bytes\":8,\"value\":1.0}\n";
        let (mut shapes, mut samples) = (Vec::new(), BTreeMap::new());
        for (column, text) in [(0, osier), (2, peer)] {
            for line in parse(text).unwrap() {
                add(&mut shapes, &mut samples, column, line);
            }
        }
        let cells = samples.into_iter().map(|(k, s)| (k, s.cell())).collect();
        let outcome = Outcome { shapes, cells };
        assert_eq!(outcome.ratios(1), [(0.5, "b"), (2.5, "a")]);
        assert!(!outcome.lacks_osier());
        let text = outcome.text();
        assert!(
            text.contains("| pack | 2 | 1.50 | 0.50 | 1: b 0.50 |"),
            "{text}"
        );
        assert!(text.contains("| a | 8 |"), "{text}");
        let json = outcome.json();
        assert_eq!(json[0]["mpich"], 5.0);
        assert!(json[0]["intelmpi"].is_null());
        assert!(parse("nothing").is_err());
    }
}
