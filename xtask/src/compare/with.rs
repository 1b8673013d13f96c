//! `compare --with COMMIT`: this tree beside an older commit, built alike and run in turn.
//!
//! Each round runs the older build, this one, and the older one again. The two runs of the
//! older build say by how much one binary differs from itself on this machine; a row is
//! worse only if it is slower by more than 5 % and by more than twice that. No run is done
//! again because the host had moved the cores apart: the three follow each other within a
//! second or two, and the medians are over rounds.

use super::cases::{Case, cases};
use super::contestant::{Contestant, Osier};
use super::hop::Hops;
use super::sample::{Key, median};
use super::table;
use crate::steps::{Result, cargo, root, run, target_dir};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A slower row is worse beyond this, and beyond twice the spread.
const WORSE: f64 = 0.05;
/// Fewer rounds say nothing.
const LEAST_ROUNDS: usize = 7;

/// Times, or inverse rates, of one row: older, this, older again, by round.
#[derive(Default)]
struct Row {
    values: [Vec<f64>; 3],
}

/// What a row says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Verdict {
    older: f64,
    now: f64,
    /// How much more this build takes than the older one: median over the rounds.
    slower: f64,
    /// By how much the older build differs from itself: median over the rounds.
    spread: f64,
}

impl Verdict {
    fn is_worse(&self) -> bool {
        self.slower > WORSE && self.slower > 2.0 * self.spread
    }
}

impl Row {
    /// The medians; none where a run is missing. `is_time`: less is better.
    fn verdict(&self, is_time: bool) -> Option<Verdict> {
        let [first, now, second] = &self.values;
        let rounds = first.len().min(now.len()).min(second.len());
        if rounds == 0 {
            return None;
        }
        let cost = |value: f64| if is_time { value } else { 1.0 / value };
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            median(&values)
        };
        let each = |of: &dyn Fn(usize) -> f64| middle((0..rounds).map(of).collect());
        let older = |round: usize| f64::midpoint(first[round], second[round]);
        Some(Verdict {
            older: each(&|round| older(round)),
            now: each(&|round| now[round]),
            slower: each(&|round| cost(now[round]) / cost(older(round)) - 1.0),
            spread: each(&|round| (cost(first[round]) / cost(second[round]) - 1.0).abs()),
        })
    }
}

/// Builds both, runs them in turn, prints a table.
///
/// # Errors
/// A build fails, no row has numbers, or a row is worse.
pub fn compare(commit: &str, only: &[String], rounds: usize, quick: bool) -> Result {
    let rounds = if quick { 1 } else { rounds.max(LEAST_ROUNDS) };
    let mut hops = Hops::new();
    let now = Osier::build(&mut hops, quick)?;
    let older = Osier::at(build_older(commit)?)?;
    let all = cases(&[2, 4], false);
    let cases = all.iter().filter(|case| match only.is_empty() {
        true => matches!(
            case.bench,
            "latency" | "message-rate" | "barrier" | "allreduce" | "launch"
        ),
        false => only.iter().any(|only| only == case.bench),
    });
    let parts: Vec<(&Case, u64)> = cases
        .flat_map(|case| case.runs().iter().map(move |bytes| (case, *bytes)))
        .collect();
    let bar = ProgressBar::new((rounds * parts.len() * 3) as u64);
    bar.set_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (left {eta}) {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.enable_steady_tick(Duration::from_millis(500));
    let mut rows: BTreeMap<(usize, Key), Row> = BTreeMap::new();
    for round in 1..=rounds {
        if bar.is_hidden() {
            println!("round {round} of {rounds}");
        }
        for (at, (case, bytes)) in parts.iter().enumerate() {
            for (column, build) in [&older, &now, &older].into_iter().enumerate() {
                bar.set_message(case.title());
                for value in build.run(case, *bytes, quick)? {
                    let row = rows.entry((at, value.key.clone())).or_default();
                    row.values[column].push(value.number());
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    println!(
        "\n{:<30} {:>9} {:>10} {:>10} {:>8} {:>7}",
        "bench",
        "bytes",
        commit.get(..10).unwrap_or(commit),
        "now",
        "slower",
        "spread"
    );
    let (mut worse, mut judged) = (Vec::new(), 0);
    for ((at, key), row) in &rows {
        let Some(verdict) = row.verdict(key.unit.is_time()) else {
            continue;
        };
        judged += 1;
        let (case, _) = parts[*at];
        let title = format!("{} {} {}", case.bench, case.memory.name(), key.unit.name());
        let mark = if verdict.is_worse() { " WORSE" } else { "" };
        println!(
            "{title:<30} {:>9} {:>10.3} {:>10.3} {:>+7.1}% {:>6.1}%{mark}",
            key.bytes,
            verdict.older,
            verdict.now,
            100.0 * verdict.slower,
            100.0 * verdict.spread
        );
        if verdict.is_worse() {
            worse.push(format!("{title}, {} bytes", key.bytes));
        }
    }
    let mut line = format!("cargo xtask compare --with {commit} --rounds {rounds}");
    if !only.is_empty() {
        line += &format!(" --only {}", only.join(","));
    }
    println!(
        "\nMedians over {rounds} rounds of older, now, older; slower: now to the older; spread: \
         the older to itself. {}",
        table::origin(&line)
    );
    match (judged, worse.is_empty()) {
        (0, _) => Err("no benchmark gave a number for both builds".into()),
        (_, true) => Ok(()),
        (_, false) => Err(format!("worse than {commit}: {}", worse.join("; "))),
    }
}

/// The command of another commit, built in release in a tree of its own.
fn build_older(commit: &str) -> Result<PathBuf> {
    let folder = target_dir().join("compare");
    let tree = folder.join("tree");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    if tree.exists() {
        std::fs::remove_dir_all(&tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    }
    // A clone, not a worktree: the repository keeps no trace of it.
    run(Command::new("git")
        .args(["clone", "--quiet", "--shared", "--no-checkout"])
        .arg(root())
        .arg(&tree))?;
    run(Command::new("git")
        .current_dir(&tree)
        .args(["checkout", "--quiet", "--detach", commit]))?;
    let built = folder.join("build");
    run(cargo()
        .current_dir(&tree)
        .env("CARGO_TARGET_DIR", &built)
        .args(["build", "--release", "-p", "osier-cli"]))?;
    Ok(built.join("release/osier"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: [[f64; 3]; 3]) -> Row {
        let [a, b, c] = values;
        Row {
            values: [a.into(), b.into(), c.into()],
        }
    }

    #[test]
    fn slower_than_noise_is_worse() {
        let steady = row([[1.0; 3], [1.1; 3], [1.0; 3]]);
        assert!(steady.verdict(true).is_some_and(|v| v.is_worse()));
        // A rate that is higher is better.
        assert!(steady.verdict(false).is_some_and(|v| !v.is_worse()));
        let noisy = row([[1.0, 1.0, 1.2], [1.1; 3], [1.1, 0.9, 1.0]]);
        assert!(noisy.verdict(true).is_some_and(|v| !v.is_worse()));
        let little = row([[1.0; 3], [1.04; 3], [1.0; 3]]);
        assert!(little.verdict(true).is_some_and(|v| !v.is_worse()));
        assert_eq!(
            row([[1.0; 3]; 3]).verdict(true).map(|v| v.slower),
            Some(0.0)
        );
        assert!(Row::default().verdict(true).is_none());
    }
}
