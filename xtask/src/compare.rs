//! `compare`: Osier beside Open MPI, MPICH and Intel MPI in one run.
//!
//! The peers are Python packages in throwaway environments under the target
//! folder; one set of small C programs (`benches/peers`) is built against each.
//! Runs are interleaved, contestant by contestant, so that a slow minute of the
//! machine falls on all of them, and runs that fall into moments in which the cores are
//! far apart are done again (`hop.rs`); each number is the median over the rounds.

mod cases;
mod contestant;
mod datatype;
mod hop;
mod sample;
pub mod table;
mod with;

use crate::steps::{Result, root};
use cases::{CASES, Case};
use contestant::{Contestant, Osier, Peer};
use hop::Hops;
use indicatif::{ProgressBar, ProgressStyle};
use sample::Key;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use table::Row;

/// Columns, in this order everywhere.
pub const NAMES: [&str; 4] = ["osier", "openmpi", "mpich", "intelmpi"];

/// Options of `compare`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask compare
  cargo xtask compare --only latency,pack --rounds 9
  cargo xtask compare --json compare.json --update-docs
  cargo xtask compare --only datatype
  cargo xtask compare --with 2243401 --rounds 9
  cargo xtask compare --only barrier,allreduce,bcast,alltoall,allgather

The peers are installed with pip below the target folder on first use, about
450 MB. Keep the machine quiet meanwhile. Not part of CI.")]
pub struct Args {
    /// Write the rows as JSON, null where a column has none
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// These benchmarks only [possible values: latency, bandwidth, bibandwidth, message-rate,
    /// multi-pair, threads, pack, launch, barrier, allreduce, bcast, alltoall, allgather,
    /// datatype]
    #[arg(long, value_delimiter = ',', value_name = "BENCHES")]
    only: Vec<String>,
    /// Interleaved rounds over which the medians are taken
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One round of short runs: whether all of it works, not figures to quote
    #[arg(long)]
    quick: bool,
    /// Write the table into docs/performance.md between its markers
    #[arg(long)]
    update_docs: bool,
    /// Beside another commit of Osier instead of the peers: both are built and run in turn,
    /// at least 7 rounds; an error if a row is worse
    #[arg(long, value_name = "COMMIT")]
    with: Option<String>,
    /// These columns only [possible values: osier, openmpi, mpich, intelmpi]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    columns: Vec<String>,
}

/// One line for each thing that went wrong; nothing here is fatal.
#[derive(Default)]
struct Troubles(Vec<String>);

impl Troubles {
    fn add(&mut self, bar: Option<&ProgressBar>, line: String) {
        let shown = format!("warning: {line}");
        match bar {
            Some(bar) if !bar.is_hidden() => bar.println(shown),
            _ => eprintln!("{shown}"),
        }
        self.0.push(line);
    }
}

/// `cargo xtask compare`.
pub fn run(args: &Args) -> Result {
    let mut benches: Vec<&str> = CASES.iter().map(|case| case.bench).collect();
    benches.push(datatype::NAME);
    refuse_unknown("--only", &args.only, &benches)?;
    refuse_unknown("--columns", &args.columns, &NAMES)?;
    let cases: Vec<&Case> = CASES
        .iter()
        .filter(|case| args.only.is_empty() || args.only.iter().any(|only| only == case.bench))
        .collect();
    if let Some(commit) = &args.with {
        return with::compare(commit, &args.only, args.rounds as usize, args.quick);
    }
    let rounds = if args.quick { 1 } else { args.rounds };

    let mut troubles = Troubles::default();
    let mut hops = Hops::new();
    let contestants = prepare(&args.columns, &mut hops, &mut troubles);
    if contestants.is_empty() {
        return Err("nothing to compare: no column could be prepared".into());
    }
    let command = command_line(args);
    let docs = root().join("docs/performance.md");
    let mut json = Vec::new();
    let mut lacks_osier = true;

    if !cases.is_empty() {
        let medians = measure(
            &contestants,
            &cases,
            rounds,
            args.quick,
            &mut hops,
            &mut troubles,
        );
        let rows = table::rows(&cases, &medians);
        let text = table::text(&rows);
        println!("\n{text}");
        json.extend(rows.iter().map(Row::json));
        lacks_osier &= rows.iter().all(Row::lacks_osier);
        if args.update_docs {
            let note = table::provenance(&command, rounds, &hops.text());
            table::update_docs(&docs, table::MARKERS, &text, &note, &troubles.0)?;
            crate::docs::draw()?;
        }
    }
    if args.only.is_empty() || args.only.iter().any(|only| only == datatype::NAME) {
        let outcome =
            datatype::measure(&contestants, rounds, args.quick, &mut hops, &mut troubles)?;
        let text = outcome.text();
        println!("\n{text}");
        json.extend(outcome.json());
        lacks_osier &= outcome.lacks_osier();
        if args.update_docs {
            let note = table::provenance(&command, rounds, &hops.text());
            table::update_docs(&docs, datatype::MARKERS, &text, &note, &troubles.0)?;
        }
    }
    for trouble in &troubles.0 {
        println!("missing: {trouble}");
    }
    println!("{}", table::provenance(&command, rounds, &hops.text()));
    if let Some(file) = &args.json {
        table::write_json(file, &json)?;
    }
    let osier_wanted = args.columns.is_empty() || args.columns.iter().any(|c| c == NAMES[0]);
    if osier_wanted && lacks_osier {
        return Err("no benchmark gave a number for Osier".into());
    }
    Ok(())
}

fn refuse_unknown(option: &str, given: &[String], known: &[&str]) -> Result {
    match given.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let mut known = known.to_vec();
            known.dedup();
            Err(format!(
                "{option}: unknown name {name:?} (hint: one of {})",
                known.join(", ")
            ))
        }
    }
}

fn command_line(args: &Args) -> String {
    let mut text = String::from("cargo xtask compare");
    if !args.only.is_empty() {
        text += &format!(" --only {}", args.only.join(","));
    }
    if !args.columns.is_empty() {
        text += &format!(" --columns {}", args.columns.join(","));
    }
    if args.quick {
        text += " --quick";
    } else {
        text += &format!(" --rounds {}", args.rounds);
    }
    text
}

/// Installs and builds; whatever fails loses its column and is named.
fn prepare(
    columns: &[String],
    hops: &mut Hops,
    troubles: &mut Troubles,
) -> Vec<(usize, Box<dyn Contestant>)> {
    let mut ready: Vec<(usize, Box<dyn Contestant>)> = Vec::new();
    for (column, name) in NAMES.into_iter().enumerate() {
        if !columns.is_empty() && !columns.iter().any(|c| c == name) {
            continue;
        }
        let contestant: Result<Box<dyn Contestant>> = if column == 0 {
            Osier::build(hops).map(|osier| Box::new(osier) as _)
        } else {
            Peer::install(name).map(|peer| Box::new(peer) as _)
        };
        match contestant {
            Ok(contestant) => ready.push((column, contestant)),
            Err(e) => troubles.add(None, format!("{name}: {e}")),
        }
    }
    ready
}

/// Medians per case, key and column.
type Medians = BTreeMap<(usize, Key), table::Columns>;

fn measure(
    contestants: &[(usize, Box<dyn Contestant>)],
    cases: &[&Case],
    rounds: u32,
    quick: bool,
    hops: &mut Hops,
    troubles: &mut Troubles,
) -> Medians {
    // One size at a time: a run is short beside how long cores stay where they are.
    let parts: Vec<(usize, &Case, u64)> = cases
        .iter()
        .enumerate()
        .flat_map(|(at, case)| {
            let sizes = if case.sizes.is_empty() {
                &[0]
            } else {
                case.sizes
            };
            sizes.iter().map(move |bytes| (at, *case, *bytes))
        })
        .collect();
    let bar = ProgressBar::new(u64::from(rounds) * (parts.len() * contestants.len()) as u64);
    bar.set_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (left {eta}) {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.enable_steady_tick(Duration::from_millis(500));

    let mut samples: BTreeMap<(usize, Key), sample::Samples> = BTreeMap::new();
    let mut broken: Vec<(usize, usize)> = Vec::new();
    for round in 0..rounds as usize {
        for &(at, case, bytes) in &parts {
            // Each round starts with another column, so that none always runs
            // right after the same neighbor.
            for turn in 0..contestants.len() {
                let (column, contestant) = &contestants[(turn + round) % contestants.len()];
                bar.set_message(format!("{} {}", case.bench, NAMES[*column]));
                if !broken.contains(&(at, *column)) {
                    match hops.near(|| contestant.run(case, bytes, quick)) {
                        Ok(values) => {
                            for value in values {
                                samples
                                    .entry((at, value.key.clone()))
                                    .or_default()
                                    .push(*column, value);
                            }
                        }
                        Err(e) => {
                            broken.push((at, *column));
                            let what = case.title();
                            troubles.add(Some(&bar), format!("{}: {what}: {e}", NAMES[*column]));
                        }
                    }
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    samples
        .into_iter()
        .map(|(key, samples)| (key, samples.medians()))
        .collect()
}
