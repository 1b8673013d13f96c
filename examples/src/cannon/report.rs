//! What a run found out.

use std::fmt;

use super::check::Checked;
use super::plan::Plan;
use crate::variant::{By, Workers, shares};

/// Result of a run, the same at all ranks.
#[derive(Clone, Debug)]
pub struct Report {
    /// How blocks were shifted and multiplied.
    pub by: By,
    /// Matrix, blocks and layers.
    pub plan: Plan,
    /// Ranks of the job.
    pub ranks: usize,
    /// Seconds of each product, of its slowest rank, in ascending order.
    pub seconds: Vec<f64>,
    /// Largest and mean share of the time of a rank in communication, waiting included; in a
    /// graph, of its workers without a task.
    pub waiting: (f64, f64),
    /// Of a graph: what its workers did.
    pub workers: Option<Workers>,
    /// What the check found, if there was one.
    pub checked: Option<Checked>,
    /// Hash of C, however it is cut.
    pub checksum: u64,
}

impl Report {
    /// Whether C is right, as far as it was checked.
    pub fn passes(&self) -> bool {
        self.checked.is_none_or(|checked| checked.passes())
    }

    /// Median seconds of a product.
    pub fn median(&self) -> f64 {
        self.seconds
            .get(self.seconds.len() / 2)
            .copied()
            .unwrap_or(0.0)
    }

    /// Multiplications and additions per second.
    pub fn flops(&self) -> f64 {
        2.0 * (self.plan.n as f64).powi(3) / self.median()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<16}{value}");
        let Plan { n, blocks, layers } = self.plan;
        line("matrices", format!("{n}x{n}"))?;
        let largest = self.plan.largest();
        let places = format!("{blocks}x{blocks} in {layers} layer{}", plural(layers));
        line("blocks", format!("{places}, up to {largest}x{largest}"))?;
        line("ranks", self.ranks.to_string())?;
        if let Some(workers) = &self.workers {
            line("tasks", self.plan.places().to_string())?;
            line("workers", format!("{} for each rank", workers.per_rank))?;
        }
        line("multiplied by", self.by.to_string())?;
        let spread = match &self.seconds[..] {
            [least, .., most] => format!(", {least:.4} to {most:.4}"),
            _ => String::new(),
        };
        line("seconds", format!("{:.4}{spread}", self.median()))?;
        line("flops", format!("{:.3} G/s", 1e-9 * self.flops()))?;
        for (name, value) in shares(self.workers.as_ref(), self.waiting) {
            line(name, value)?;
        }
        if let Some(checked) = &self.checked {
            let bits = match checked.other_bits {
                0 => "those of the same sums without messages".into(),
                entries => format!("WRONG in {entries} entries"),
            };
            line("bits", bits)?;
            line(
                "triple loop",
                format!(
                    "off by {:.1e} at most; {:.1} % of what rounding can do{}",
                    checked.largest,
                    100.0 * checked.of_limit,
                    if checked.of_limit <= 1.0 {
                        ""
                    } else {
                        ": WRONG"
                    }
                ),
            )?;
        }
        line("checksum", format!("{:016x}", self.checksum))
    }
}

fn plural(n: usize) -> &'static str {
    match n {
        1 => "",
        _ => "s",
    }
}
