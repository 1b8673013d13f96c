//! What a run found out.

use std::fmt;

use super::options::By;

/// Result of a run, the same at all ranks.
#[derive(Clone, Debug)]
pub struct Report {
    /// File or grid.
    pub name: String,
    /// What the file says about itself.
    pub title: String,
    /// Rows and entries.
    pub size: (usize, usize),
    /// How ranks worked together.
    pub by: By,
    /// Ranks, and workers of each.
    pub ranks: (usize, usize),
    /// Supernodes, and blocks above the diagonal.
    pub supernodes: (usize, usize),
    /// Values of the factors, zeros among them.
    pub stored: u64,
    /// Floating-point operations of the factorization.
    pub flops: f64,
    /// Seconds of analysis, building the graph, factorization and solve, of the slowest rank.
    pub seconds: [f64; 4],
    /// Pivots that were replaced.
    pub replaced: u64,
    /// Largest value of the upper factor over that of the scaled matrix.
    pub growth: f64,
    /// `max |b - A x| / (|A| max |x| + max |b|)` before refinement, and after each step.
    pub residuals: Vec<f64>,
    /// Largest residual that rounding explains.
    pub residual_limit: f64,
    /// Largest error of the solution over its largest value.
    pub error: f64,
    /// Hash of the factors.
    pub checksum: u64,
}

impl Report {
    /// The residual at the end: the smallest.
    pub fn residual(&self) -> f64 {
        self.residuals.iter().copied().fold(f64::NAN, f64::min)
    }

    /// Whether the residual is what rounding explains.
    pub fn passes(&self) -> bool {
        self.residual() <= self.residual_limit
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| {
            // As wide as a terminal is at least.
            let value: String = value.chars().take(80 - 14).collect();
            writeln!(f, "{name:<14}{value}")
        };
        let (rows, entries) = self.size;
        // The end of a path says more than its beginning.
        let long = self.name.chars().count().saturating_sub(80 - 14);
        line("matrix", self.name.chars().skip(long).collect())?;
        line("title", self.title.clone())?;
        line(
            "size",
            format!("{rows} rows, {entries} entries that are not zero"),
        )?;
        let how = match self.by {
            By::Sync => "blocking calls",
            By::Overlap => "look-ahead",
            By::Graph => "a task graph",
        };
        let (ranks, workers) = self.ranks;
        line(
            "ranks",
            format!("{ranks}, workers of each {workers}, by {how}"),
        )?;
        let (supernodes, blocks) = self.supernodes;
        line(
            "supernodes",
            format!("{supernodes}, blocks above the diagonal {blocks}"),
        )?;
        let fill = self.stored as f64 / entries as f64;
        line(
            "fill",
            format!("{fill:.2} = {} values stored / entries", self.stored),
        )?;
        let [analysis, build, factor, solve] = self.seconds;
        line("analysis", format!("{analysis:.4} s"))?;
        if self.by == By::Graph {
            line("build", format!("{build:.4} s"))?;
        }
        line(
            "factorization",
            format!(
                "{factor:.4} s, {:.4} Gflop, {:.3} Gflop/s",
                self.flops / 1e9,
                self.flops / factor / 1e9
            ),
        )?;
        line(
            "solve",
            format!("{solve:.4} s with {} steps of refinement", self.steps()),
        )?;
        line(
            "pivots",
            format!("{} replaced, growth {:.3e}", self.replaced, self.growth),
        )?;
        let first = self.residuals.first().copied().unwrap_or(f64::NAN);
        line(
            "residual",
            format!(
                "{:.3e} (limit {:.1e}, without refinement {first:.1e}): {}",
                self.residual(),
                self.residual_limit,
                if self.passes() { "right" } else { "WRONG" }
            ),
        )?;
        line("error", format!("{:.3e} of the largest value", self.error))?;
        line("checksum", format!("{:016x}", self.checksum))
    }
}

impl Report {
    fn steps(&self) -> usize {
        self.residuals.len().saturating_sub(1)
    }
}
