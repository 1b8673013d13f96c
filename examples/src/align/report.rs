//! What a run found out.

use std::fmt;
use std::path::PathBuf;

use super::alignment::{Alignment, Column};
use super::options::Variant;
use super::scoring::Scoring;

/// Result of a run, the same at all ranks.
#[derive(Clone, Debug)]
pub struct Report {
    /// Names and lengths of the sequences.
    pub sequences: [(String, usize); 2],
    /// Scores.
    pub scoring: Scoring,
    /// How the matrix was filled.
    pub by: Variant,
    /// Ranks, and threads of each.
    pub threads: (usize, usize),
    /// Rows and columns of blocks, and the extent of one.
    pub blocks: ([usize; 2], usize),
    /// Time to build the graph, of the slowest rank; 0 without one.
    pub building: f64,
    /// Time to fill the matrix, of the slowest rank.
    pub filling: f64,
    /// Time to find the alignment, of the slowest rank.
    pub tracing: f64,
    /// Firings of tasks, and those that were stolen by another worker.
    pub firings: [u64; 2],
    /// The score, from the matrix.
    pub score: i64,
    /// The score of the sequential program, if it was asked.
    pub expected: Option<i64>,
    /// The alignment, unless only the score was asked for.
    pub alignment: Option<Aligned>,
    /// Where the alignment was written.
    pub output: Option<PathBuf>,
}

/// An alignment and what its columns say.
#[derive(Clone, Debug)]
pub struct Aligned {
    /// Its columns.
    pub columns: Vec<Column>,
    /// Both sequences with gaps; `None` if the columns do not fit them.
    pub sequences: Option<Alignment>,
    /// The score of its columns.
    pub score: Option<i64>,
}

impl Report {
    /// Whether all scores are the same.
    pub fn passes(&self) -> bool {
        let traced = self.alignment.as_ref();
        self.expected.is_none_or(|expected| expected == self.score)
            && traced.is_none_or(|aligned| aligned.score == Some(self.score))
    }

    /// Cells of the matrix.
    pub fn cells(&self) -> f64 {
        self.sequences[0].1 as f64 * self.sequences[1].1 as f64
    }
}

/// Characters of a name in the report.
const NAME: usize = 40;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<14}{value}");
        for (which, (name, length)) in ["first", "second"].iter().zip(&self.sequences) {
            let name: String = name.chars().take(NAME).collect();
            line(which, format!("{length} letters of {name}"))?;
        }
        line("scores", self.scoring.to_string())?;
        let (ranks, threads) = self.threads;
        line(
            "filled by",
            format!("{}, {ranks} ranks x {threads} workers", self.by),
        )?;
        let ([rows, columns], block) = self.blocks;
        line(
            "blocks",
            format!("{rows} x {columns} of {block} x {block} cells"),
        )?;
        if self.by.is_graph() {
            let [firings, stolen] = self.firings;
            let build = self.building;
            line(
                "tasks",
                format!("{firings} firings, {stolen} stolen; built in {build:.3} s"),
            )?;
        }
        let rate = self.cells() / self.filling.max(1e-9) / 1e9;
        line(
            "matrix",
            format!("{:.3} s, {rate:.2} G cells/s", self.filling),
        )?;
        if self.alignment.is_some() {
            line("alignment", format!("{:.3} s", self.tracing))?;
        }
        line("score", format!("{}{}", self.score, self.verdict()))?;
        if let Some(aligned) = self.alignment.as_ref().and_then(|a| a.sequences.as_ref()) {
            let (matches, columns) = (aligned.matches(), aligned.columns());
            let share = 100.0 * matches as f64 / columns as f64;
            line(
                "identity",
                format!("{share:.2} %: {matches} of {columns} columns"),
            )?;
            line("gaps", aligned.gaps().to_string())?;
        }
        match &self.output {
            Some(path) => line("written to", path.display().to_string()),
            None => Ok(()),
        }
    }
}

impl Report {
    /// What the score was compared with.
    fn verdict(&self) -> String {
        let mut with = Vec::new();
        if self.alignment.is_some() {
            with.push("the alignment's columns");
        }
        if self.expected.is_some() {
            with.push("the sequential program");
        }
        match (with.is_empty(), self.passes()) {
            (true, _) => String::new(),
            (false, true) => format!(", that of {}", with.join(" and ")),
            (false, false) => format!(", NOT that of {}", with.join(" and ")),
        }
    }
}
