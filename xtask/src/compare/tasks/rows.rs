//! Rows and columns of the patterns of tasks: what is run, with which options. Pure.

use crate::steps::Result;
use std::fmt;

/// Columns, in this order everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// A task graph on two ranks of a worker.
    Ranks,
    /// A task graph on one rank of two workers.
    Workers,
    /// The same with a task for all points of a core.
    RanksOfBlocks,
    WorkersOfBlocks,
    /// The non-blocking program over Osier's communicator.
    Messages,
    /// The program for MPI over Osier's C library.
    OsierC,
    /// The programs for MPI over a peer, a column of [`super::super::NAMES`]; in bulk steps.
    Peer {
        column: usize,
        bulk: bool,
    },
    /// The bare loop of one thread.
    Bare,
    /// Kernels alone on one core: the peak of the bare loop.
    KernelOfOne,
    /// Kernels alone: the peak of all others.
    Kernel,
}

/// All columns.
pub const COLUMNS: [Column; 15] = [
    Column::Ranks,
    Column::Workers,
    Column::RanksOfBlocks,
    Column::WorkersOfBlocks,
    Column::Messages,
    Column::OsierC,
    peer(1, false),
    peer(2, false),
    peer(3, false),
    peer(1, true),
    peer(2, true),
    peer(3, true),
    Column::Bare,
    Column::KernelOfOne,
    Column::Kernel,
];

const fn peer(column: usize, bulk: bool) -> Column {
    Column::Peer { column, bulk }
}

impl Column {
    /// As in the file and in JSON.
    pub fn name(self) -> String {
        match self {
            Column::Ranks => "graph-2-ranks".into(),
            Column::Workers => "graph-2-workers".into(),
            Column::RanksOfBlocks => "blocks-2-ranks".into(),
            Column::WorkersOfBlocks => "blocks-2-workers".into(),
            Column::Messages => "messages".into(),
            Column::OsierC => "osier-c".into(),
            Column::Peer { column, bulk } => {
                let name = super::super::NAMES[column];
                format!("{name}{}", if bulk { "-bulk" } else { "" })
            }
            Column::Bare => "bare".into(),
            Column::KernelOfOne => "kernel-1-core".into(),
            Column::Kernel => "kernel".into(),
        }
    }

    /// The column that tells its peak, on as many cores.
    pub fn peak(self) -> Column {
        match self {
            Column::Bare | Column::KernelOfOne => Column::KernelOfOne,
            _ => Column::Kernel,
        }
    }

    /// Whether it is a task graph with a task for all points of a core.
    pub fn is_of_blocks(self) -> bool {
        matches!(self, Column::RanksOfBlocks | Column::WorkersOfBlocks)
    }

    /// Whether it is a task graph.
    pub fn is_graph(self) -> bool {
        self.is_of_blocks() || matches!(self, Column::Ranks | Column::Workers)
    }

    /// Whether it tells a peak.
    pub fn is_peak(self) -> bool {
        self.peak() == self
    }

    /// Options of `osier bench patterns`, or of the program for MPI.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Column::Ranks | Column::RanksOfBlocks => &["--program", "graph", "-n", "2"],
            Column::Workers | Column::WorkersOfBlocks => {
                &["--program", "graph", "-n", "1", "--workers", "2"]
            }
            Column::Messages => &["--program", "messages", "-n", "2"],
            Column::Bare => &["--program", "bare", "-n", "1"],
            Column::KernelOfOne => &["--program", "kernel", "-n", "1"],
            Column::Kernel => &["--program", "kernel", "-n", "2"],
            Column::OsierC | Column::Peer { bulk: false, .. } => &["--program", "nonblocking"],
            Column::Peer { bulk: true, .. } => &["--program", "bulk"],
        }
    }
}

/// A pattern with a number of points for each core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub pattern: &'static str,
    pub points: u32,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.points == 1 { "" } else { "s" };
        write!(f, "{}, {} point{s} a core", self.pattern, self.points)
    }
}

const PATTERNS: [&str; 11] = [
    "trivial",
    "no_comm",
    "stencil_1d",
    "stencil_1d_periodic",
    "dom",
    "tree",
    "fft",
    "all_to_all",
    "nearest",
    "spread",
    "random_nearest",
];
/// Those that two points cannot have.
const NOT_OF_TWO: [&str; 2] = ["stencil_1d_periodic", "spread"];

/// All rows.
pub fn rows() -> Vec<Row> {
    let of = |points: u32| {
        let there = move |pattern: &&str| points > 1 || !NOT_OF_TWO.contains(pattern);
        let row = move |pattern| Row { pattern, points };
        PATTERNS.into_iter().filter(there).map(row)
    };
    of(8).chain(of(1)).collect()
}

/// Those that were asked for, as `fft:8`, or `fft` for each number of points.
///
/// # Errors
/// There is no such row.
pub fn chosen(names: &[String]) -> Result<Vec<Row>> {
    let is_asked = |row: &Row, name: &str| match name.split_once(':') {
        Some((pattern, points)) => pattern == row.pattern && points == row.points.to_string(),
        None => name == row.pattern,
    };
    let all = rows();
    let unknown = |name: &&String| !all.iter().any(|row| is_asked(row, name));
    if let Some(name) = names.iter().find(unknown) {
        return Err(format!(
            "--patterns: no row {name:?} (hint: {}; 8 points a core, or 1 where there is one)",
            PATTERNS.join(", ")
        ));
    }
    let is_chosen = |row: &Row| names.is_empty() || names.iter().any(|name| is_asked(row, name));
    Ok(all.iter().copied().filter(is_chosen).collect())
}

impl Row {
    /// Whether tasks of one core need those of another.
    pub fn communicates(self) -> bool {
        !matches!(self.pattern, "trivial" | "no_comm")
    }

    /// Whether a column has it.
    pub fn is_of(self, column: Column) -> bool {
        match column {
            Column::RanksOfBlocks | Column::WorkersOfBlocks => self.points > 1,
            _ => column.peak() == Column::Kernel || !self.communicates(),
        }
    }

    /// 5 as in the published sweeps; of two points the pattern of chance has no edge between
    /// them by that.
    pub fn radix(self) -> u32 {
        match (self.pattern, self.points) {
            ("random_nearest", 1) => 3,
            _ => 5,
        }
    }

    /// Iterations of the kernel, from large to small.
    pub fn iterations(self, kernel_ns: f64, quick: bool) -> Vec<u64> {
        let most_us = if quick { 250.0 } else { 1000.0 };
        // As short as half of the peak asks for where a task costs some ns besides its kernel.
        let least = if self.communicates() { 4 } else { 1 };
        let most = (most_us * 1e3 / kernel_ns).log2().round().clamp(10.0, 30.0);
        let halves = std::iter::successors(Some(1u64 << most as u32), |n| Some(n / 2));
        halves.take_while(|n| *n >= least).collect()
    }

    /// Steps by which a repetition takes some tens of milliseconds where a task costs a
    /// microsecond besides its kernel; the same for all columns.
    pub fn steps(self, iterations: u64, kernel_ns: f64, quick: bool) -> u64 {
        let repetition_us = if quick { 20e3 } else { 30e3 };
        let task_us = iterations as f64 * kernel_ns * 1e-3 + 1.0;
        let steps = repetition_us / (f64::from(self.points) * task_us);
        // A sweep has to fill and to drain: it is full in three of four steps.
        let least = match self.pattern {
            "dom" => 8 * u64::from(self.points),
            _ => 10,
        };
        (steps as u64).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_patterns_that_exist_have_rows() {
        let rows = rows();
        assert_eq!(rows.len(), 20);
        assert_eq!(rows.iter().filter(|row| row.points == 1).count(), 9);
        assert_eq!(rows.iter().filter(|row| row.communicates()).count(), 16);
    }

    #[test]
    fn rows_are_chosen_by_name() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).into()).collect();
            chosen(&names).map(|rows| rows.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]).map(|rows| rows.len()), Ok(20));
        let fft = ["fft, 8 points a core", "fft, 1 point a core"].map(String::from);
        assert_eq!(of(&["fft"]), Ok(fft.to_vec()));
        assert_eq!(of(&["fft:1"]), Ok(fft[1..].to_vec()));
        assert!(of(&["spread:1"]).is_err_and(|e| e.contains("no row \"spread:1\"")));
    }

    #[test]
    fn sizes_go_down_by_halves_from_a_millisecond() {
        let row = rows()[2];
        let sizes = row.iterations(2.0, false);
        assert_eq!((sizes[0], sizes.last()), (1 << 19, Some(&4)));
        assert!(sizes.windows(2).all(|pair| pair[0] == 2 * pair[1]));
        assert_eq!(rows()[0].iterations(2.0, true).last(), Some(&1));
        assert_eq!(row.steps(1 << 19, 2.0, false), 10);
        assert_eq!(row.steps(0, 2.0, false), 3750);
        let dom = rows()[4];
        assert_eq!((dom.pattern, dom.steps(1 << 19, 2.0, false)), ("dom", 64));
    }

    #[test]
    fn names_of_columns_differ() {
        let mut names: Vec<String> = COLUMNS.iter().map(|column| column.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), COLUMNS.len());
    }
}
