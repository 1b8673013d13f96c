//! Patterns of tasks: METG(50 %) of Osier's task graphs beside programs of messages.
//!
//! ```text
//! round: row (pattern, points a core): kernel, graph, messages, each MPI program: one sweep each
//! ```
//!
//! A run is a sweep over all sizes of one column, some seconds long; columns follow each other
//! and rounds begin with another one each time, so that a slow minute falls on all of them. The
//! peak is that of kernels alone, of the same row and round. All programs check every input, and
//! tell a number of their graph, which is compared.
//!
//! | module | duty |
//! |---|---|
//! | [`mod@rows`] | rows, columns, sizes |
//! | [`mod@metg`] | from a sweep to METG, and which sweeps are rejected |
//! | [`outcome`] | medians, bars, tables |
//!
//! # Sources
//! E. Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime
//! Performance", SC20. The figures are not results of Task Bench.

mod metg;
mod outcome;
mod rows;

pub use outcome::{MARKERS, Outcome, note};
pub use rows::chosen as rows;

use super::contestant::Contestant;
use super::hop::Hops;
use super::sample::run_limited;
use super::store::Store;
use super::{NAMES, Troubles};
use crate::install;
use crate::steps::{Result, root, target_dir};
use indicatif::{ProgressBar, ProgressStyle};
use metg::Point;
use rows::{COLUMNS, Column, Row};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Its name in `--only`.
pub const NAME: &str = "tasks";
/// The program of the peers, and of `osier bench`.
const PROGRAM: &str = "patterns";
/// Iterations by which the kernel's speed is told before sizes are chosen.
const FIRST_ITERATIONS: u64 = 1 << 15;

/// One sweep, as it is kept.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Sweep {
    pattern: String,
    /// For each core.
    points: u32,
    round: u32,
    column: String,
    /// Granularity in us and flop/s of each size, from large to small.
    sizes: Vec<[f64; 2]>,
    /// As of other runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hops_ns: Option<[f64; 2]>,
}

impl Sweep {
    fn is_of(&self, row: Row, column: Column) -> bool {
        self.pattern == row.pattern && self.points == row.points && self.column == column.name()
    }

    fn points(&self) -> Vec<Point> {
        let point = |[granularity_us, flops_per_s]: &[f64; 2]| Point {
            granularity_us: *granularity_us,
            flops_per_s: *flops_per_s,
        };
        self.sizes.iter().map(point).collect()
    }
}

/// A line as all programs print it.
#[derive(Deserialize)]
struct Line {
    ranks: u64,
    workers: u64,
    iterations: u64,
    tasks: u64,
    graph: String,
    seconds: f64,
    flops_per_s: f64,
}

impl Line {
    fn size(&self) -> [f64; 2] {
        let cores = (self.ranks * self.workers) as f64;
        [
            self.seconds * 1e6 * cores / self.tasks as f64,
            self.flops_per_s,
        ]
    }
}

/// Lines of JSON between other output, or an array.
fn parse(text: &str) -> Result<Vec<Line>> {
    let lines = match serde_json::from_str(text) {
        Ok(lines) => lines,
        Err(_) => text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect::<Vec<Line>>(),
    };
    match lines.is_empty() {
        true => Err("printed no number".into()),
        false => Ok(lines),
    }
}

/// How long and what to measure.
pub struct Session<'a> {
    pub contestants: &'a [(usize, Box<dyn Contestant>)],
    pub rows: &'a [Row],
    /// Accepted sweeps that each column is to have.
    pub rounds: usize,
    pub quick: bool,
    pub end: Instant,
    pub resume: Option<&'a Path>,
}

/// A column that can be run.
struct Runner<'a> {
    column: Column,
    by: &'a dyn Contestant,
    /// Of the column over Osier's C library: the program.
    program: Option<PathBuf>,
}

impl Session<'_> {
    /// Goes round by round over the rows until each column has its sweeps; false if the time was
    /// up before.
    ///
    /// # Errors
    /// Osier is no column, or the file of `--resume` cannot be written.
    pub fn measure(
        &self,
        store: &mut Store,
        hops: &mut Hops,
        troubles: &mut Troubles,
    ) -> Result<bool> {
        let runners = self.runners(troubles);
        let Some(kernel) = runners.iter().find(|r| r.column == Column::Kernel) else {
            return Err("the peak is measured by osier (hint: --columns with osier)".into());
        };
        let kernel_ns = kernel.kernel_ns()?;
        let bar = ProgressBar::new(0);
        bar.set_style(
            ProgressStyle::with_template("{prefix} {bar:20} {pos}/{len} {elapsed} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.enable_steady_tick(Duration::from_millis(500));
        let mut broken: Vec<(Row, Column)> = Vec::new();
        loop {
            let rows = self.rows.iter().copied();
            let todo: Vec<Row> = rows
                .filter(|row| self.lacks(store, &runners, *row, &broken))
                .collect();
            if todo.is_empty() {
                break;
            }
            bar.set_position(0);
            bar.set_length(todo.len() as u64);
            if bar.is_hidden() {
                println!("{} rows of patterns lack sweeps", todo.len());
            }
            for row in todo {
                let round = next_round(&store.sweeps, row);
                bar.set_prefix(format!("round {}", round + 1));
                let mut graphs: Vec<String> = Vec::new();
                // The peak first: without it no sweep of the row says anything.
                for turn in 0..runners.len() {
                    if Instant::now() >= self.end {
                        bar.finish_and_clear();
                        return Ok(false);
                    }
                    let others = runners.len() - 1;
                    let runner = match turn {
                        0 => kernel,
                        _ => &runners[(turn - 1 + round as usize) % others],
                    };
                    let key = (row, runner.column);
                    if !row.is_of(runner.column) || broken.contains(&key) {
                        continue;
                    }
                    let name = runner.column.name();
                    bar.set_message(format!("{row}: {name}"));
                    let ran = hops.once(|| runner.sweep(row, kernel_ns, self.quick));
                    let ran = ran.and_then(|(lines, hops_ns)| {
                        let told: Vec<String> = lines.iter().map(|l| l.graph.clone()).collect();
                        if graphs.is_empty() {
                            graphs.clone_from(&told);
                        }
                        // One core has fewer points.
                        match runner.column.peak() != Column::Kernel || told == graphs {
                            true => Ok((lines, hops_ns)),
                            false => Err(String::from("has another graph than kernel")),
                        }
                    });
                    match ran {
                        Ok((lines, hops_ns)) => store.sweeps.push(Sweep {
                            pattern: row.pattern.into(),
                            points: row.points,
                            round,
                            column: name,
                            sizes: lines.iter().map(Line::size).collect(),
                            hops_ns,
                        }),
                        Err(e) => {
                            broken.push(key);
                            troubles.add(Some(&bar), format!("{name}: {NAME} {row}: {e}"));
                        }
                    }
                }
                bar.inc(1);
                if let Some(file) = self.resume {
                    store.write(file)?;
                }
            }
            if self.quick {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(true)
    }

    /// Whether a column of a row lacks accepted sweeps, and may get them: not so where twice as
    /// many did not do.
    fn lacks(
        &self,
        store: &Store,
        runners: &[Runner<'_>],
        row: Row,
        broken: &[(Row, Column)],
    ) -> bool {
        if next_round(&store.sweeps, row) as usize >= 2 * self.rounds {
            return false;
        }
        runners.iter().any(|runner| {
            row.is_of(runner.column)
                && !broken.contains(&(row, runner.column))
                && outcome::accepted(&store.sweeps, row, runner.column).0.len() < self.rounds
        })
    }

    /// All columns that can be run; the kernel is the last.
    fn runners(&self, troubles: &mut Troubles) -> Vec<Runner<'_>> {
        let mut runners = Vec::new();
        for column in COLUMNS {
            let of = match column {
                Column::Peer { column, .. } => column,
                _ => 0,
            };
            let Some((_, by)) = self.contestants.iter().find(|(column, _)| *column == of) else {
                continue;
            };
            let program = match column {
                Column::OsierC => match osier_c() {
                    Ok(program) => Some(program),
                    Err(e) => {
                        troubles.add(None, format!("{} {}: {e}", NAMES[0], column.name()));
                        continue;
                    }
                },
                _ => None,
            };
            runners.push(Runner {
                column,
                by: by.as_ref(),
                program,
            });
        }
        runners
    }
}

/// The round of a row that comes next.
fn next_round(sweeps: &[Sweep], row: Row) -> u32 {
    let of_row = sweeps.iter().filter(|s| s.is_of(row, Column::Kernel));
    of_row.map(|s| s.round + 1).max().unwrap_or(0)
}

impl Runner<'_> {
    /// ns of an iteration of the kernel, with all cores busy: the least of some, for other work
    /// disturbs.
    fn kernel_ns(&self) -> Result<f64> {
        let kernels = vec![FIRST_ITERATIONS.to_string(); 8].join(",");
        let options = ["--kernel", &kernels, "--steps", "10"];
        let lines = self.lines(options.map(String::from).to_vec())?;
        let ns = lines.iter().map(|line| {
            let [granularity_us, _] = line.size();
            1e3 * granularity_us / line.iterations as f64
        });
        let least = ns.min_by(f64::total_cmp);
        least.ok_or_else(|| "printed no number".into())
    }

    fn sweep(&self, row: Row, kernel_ns: f64, quick: bool) -> Result<Vec<Line>> {
        let sizes = row.iterations(kernel_ns, quick);
        let steps = sizes.iter().map(|n| row.steps(*n, kernel_ns, quick));
        let list = |numbers: &mut dyn Iterator<Item = u64>| {
            numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(",")
        };
        let options = [
            "--pattern",
            row.pattern,
            "--points",
            &row.points.to_string(),
            "--radix",
            &row.radix().to_string(),
            "--kernel",
            &list(&mut sizes.iter().copied()),
            "--steps",
            &list(&mut { steps }),
            "--repetitions",
            if quick { "2" } else { "3" },
        ];
        let mut options = options.map(String::from).to_vec();
        if self.column.is_of_blocks() {
            options.extend(["--block".into(), row.points.to_string()]);
        }
        let lines = self.lines(options)?;
        match lines.len() == sizes.len() {
            true => Ok(lines),
            false => Err(format!("printed {} of {} sizes", lines.len(), sizes.len())),
        }
    }

    fn lines(&self, options: Vec<String>) -> Result<Vec<Line>> {
        let own = || self.by.command().ok_or("no osier bench");
        let file = target_dir().join("xtask/patterns.json");
        let mut command = match (&self.program, self.column) {
            (Some(program), _) => {
                let mut command = Command::new(own()?.get_program());
                command.args(["run", "-n", "2", "--bind", "core", "--"]);
                command.arg(program);
                command
            }
            (None, Column::Peer { .. }) => self.by.program(PROGRAM, 2).ok_or("no program")?,
            (None, _) => {
                // An old file must not pass for the answer of a run that wrote none.
                let _ = std::fs::remove_file(&file);
                let mut command = own()?;
                command.arg(PROGRAM).arg("--json").arg(&file);
                command
            }
        };
        command
            .args(self.column.options())
            .args(options)
            .env("OSIER_MODEL", "cached");
        let (text, _) = run_limited(&mut command)?;
        match (&self.program, self.column) {
            (Some(_), _) | (None, Column::Peer { .. }) => parse(&text),
            (None, _) => {
                let text = std::fs::read_to_string(&file)
                    .map_err(|e| format!("wrote no JSON to {}: {e}", file.display()))?;
                parse(&text)
            }
        }
    }
}

/// Builds the program for MPI against Osier's C library, which is installed for it.
fn osier_c() -> Result<PathBuf> {
    let prefix = target_dir().join("compare/osier-c");
    install::run(&install::Args::release(&prefix))?;
    let program = prefix.join(PROGRAM);
    run_limited(
        Command::new(prefix.join("bin/mpicc"))
            .args(["-O3", "-std=gnu11", "-o"])
            .arg(&program)
            .arg(root().join("benches/peers/patterns.c"))
            .arg("-pthread"),
    )?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_programs_are_read() {
        let line = "{\"bench\":\"patterns\",\"pattern\":\"fft\",\"program\":\"bulk\",\"ranks\":2,\
                    \"workers\":1,\"width\":16,\"steps\":10,\"iterations\":64,\"output_bytes\":16,\
                    \"tasks\":160,\"graph\":\"00ff\",\"seconds\":0.00008,\"flops_per_s\":2e9}";
        for text in [format!("a launcher says\n{line}\n"), format!("[{line}]")] {
            let lines = parse(&text).unwrap_or_default();
            assert_eq!(lines.len(), 1);
            assert_eq!((lines[0].size(), &lines[0].graph[..]), ([1.0, 2e9], "00ff"));
        }
        assert!(parse("nothing").is_err());
    }
}
