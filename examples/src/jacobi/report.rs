//! What a run found out.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::decomposition::Decomposition;
use super::options::{By, Triple};
use super::unhidden::Unhidden;
use crate::variant::{Workers, shares};

/// Result of a run, the same at all ranks.
#[derive(Clone, Debug)]
pub struct Report {
    /// How the field was swept.
    pub by: By,
    /// Grid, ranks and tasks.
    pub decomposition: Decomposition,
    /// Sweeps.
    pub sweeps: usize,
    /// Time of the sweeps, of the slowest rank.
    pub seconds: f64,
    /// Largest and mean share of the time of a rank in communication, waiting included; in a
    /// graph, of its workers without work.
    pub waiting: (f64, f64),
    /// Of a graph: what its workers did.
    pub workers: Option<Workers>,
    /// What the sweeps take where nothing is hidden, if that was asked for.
    pub unhidden: Option<Unhidden>,
    /// Residual norms: sweeps done, and the norm. The last is that of the end.
    pub norms: Vec<(usize, f64)>,
    /// Largest difference to the exact field.
    pub max_error: f64,
    /// Largest difference that is no mistake.
    pub error_limit: f64,
    /// Largest value of the exact field.
    pub amplitude: f64,
    /// Where the field was: the host, or a device's name.
    pub place: String,
    /// Hash of the field, however it is decomposed.
    pub checksum: u64,
    /// The picture, if one was drawn.
    pub picture: Option<PathBuf>,
}

impl Report {
    /// Whether the field is the exact one.
    pub fn passes(&self) -> bool {
        self.max_error <= self.error_limit
    }

    /// Residual norm at the end.
    pub fn residual(&self) -> f64 {
        self.norms.last().map_or(f64::NAN, |(_, norm)| *norm)
    }

    /// Share of the communication that is hidden ([`osier::task::hidden`]), if it was asked for
    /// and there is any.
    pub fn hidden(&self) -> Option<f64> {
        let unhidden = self.unhidden?;
        let seconds = Duration::from_secs_f64(self.seconds);
        osier::task::hidden(unhidden.synchronous, seconds, unhidden.without)
    }

    /// Points updated per second by all ranks.
    pub fn updates_per_second(&self) -> f64 {
        if self.sweeps == 0 {
            return 0.0;
        }
        self.decomposition.points() as f64 * self.sweeps as f64 / self.seconds
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<16}{value}");
        let d = &self.decomposition;
        let ranks: usize = d.ranks.iter().product();
        line(
            "grid",
            format!(
                "{} = {:.4} M points",
                Triple::from_zyx(d.grid),
                d.points() as f64 / 1e6
            ),
        )?;
        line("ranks", format!("{ranks} = {}", Triple::from_zyx(d.ranks)))?;
        if let Some(workers) = &self.workers {
            let blocks = d.blocks();
            let count: usize = blocks.iter().product();
            let factor: usize = d.factor.iter().product();
            line(
                "tasks",
                format!(
                    "{count} = {}, {factor} for each rank",
                    Triple::from_zyx(blocks)
                ),
            )?;
            line("workers", format!("{} for each rank", workers.per_rank))?;
        }
        line("swept by", self.by.to_string())?;
        line("field on", self.place.clone())?;
        line("sweeps", self.sweeps.to_string())?;
        line("seconds", format!("{:.3}", self.seconds))?;
        if self.sweeps > 0 {
            let sweep = self.seconds / self.sweeps as f64;
            line("time of a sweep", format!("{:.3} ms", 1e3 * sweep))?;
        }
        line(
            "updates/s",
            format!("{:.1} M", self.updates_per_second() / 1e6),
        )?;
        match self.by {
            // Other ranks of the worker sweep meanwhile.
            By::Ranks => {
                let [mean, most] = [self.waiting.1, self.waiting.0].map(|share| 100.0 * share);
                line(
                    "suspended",
                    format!("mean {mean:.1} %, most {most:.1} % of a rank's time"),
                )?;
            }
            By::Sync | By::Overlap | By::Graph => {
                for (name, value) in shares(self.workers.as_ref(), self.waiting) {
                    line(name, value)?;
                }
            }
        }
        if let Some(Unhidden {
            synchronous,
            without,
        }) = self.unhidden
        {
            let sweep = |time: Duration| 1e3 * time.as_secs_f64() / self.sweeps.max(1) as f64;
            let (sync, off) = (sweep(synchronous), sweep(without));
            line(
                "sync sweep",
                format!("{sync:.3} ms, without exchange {off:.3} ms"),
            )?;
            let share = match self.hidden() {
                Some(share) => format!("{:.1} % of communication", 100.0 * share),
                None => "there is no communication".into(),
            };
            line("hidden", share)?;
        }
        line("residual norm", format!("{:.12e}", self.residual()))?;
        line(
            "max error",
            format!(
                "{:.3e} of a field up to {:.3e}: {} (limit {:.1e})",
                self.max_error,
                self.amplitude,
                if self.passes() { "exact" } else { "WRONG" },
                self.error_limit
            ),
        )?;
        line("checksum", format!("{:016x}", self.checksum))?;
        if let Some(path) = &self.picture {
            line("picture", path.display().to_string())?;
        }
        Ok(())
    }
}
