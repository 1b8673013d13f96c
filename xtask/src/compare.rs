//! `compare`: Osier beside Open MPI, MPICH and Intel MPI in one run.
//!
//! The peers are Python packages in throwaway environments under the target
//! folder; one set of small C programs (`benches/peers`) is built against each.
//! Runs are interleaved, contestant by contestant, so that a slow minute of the
//! machine falls on all of them, and go round by round over all rows until each has its
//! rounds or the time is up. Each run stands between two looks at how far the cores are from
//! each other (`hop.rs`); near and far are rows of their own. A number is the median over the
//! rounds.
//!
//! | module | duty |
//! |---|---|
//! | [`mod@cases`], [`bars`] | what is measured, and what it is held against |
//! | [`contestant`], [`osu`] | how each column is built and run |
//! | [`hop`] | the distance of the cores |
//! | [`store`] | all values, and the file of `--resume` |
//! | [`table`] | rows and verdicts |
//! | [`datatype`], [`with`] | shapes of datatypes; an older commit |
//! | [`tasks`] | METG of patterns of tasks |

mod bars;
mod cases;
mod contestant;
mod datatype;
mod hop;
mod osu;
mod sample;
mod store;
pub mod table;
mod tasks;
mod with;

use crate::steps::{Result, root};
use cases::{Case, ON_REQUEST, cases};
use contestant::{Contestant, Osier, Peer, Way};
use hop::{Distance, Hops};
use indicatif::{ProgressBar, ProgressStyle};
use osu::{Osu, Ranged};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::Store;
use table::Row;

/// Columns, in this order everywhere. The last ones are floors, of collectives between two
/// ranks.
pub const NAMES: [&str; 10] = [
    "osier",
    "openmpi",
    "mpich",
    "intelmpi",
    "osier-heap",
    "osier-threads",
    "direct",
    "slots",
    "kernel-copy",
    "mapped",
];
/// Columns of the peers.
pub const PEERS: Range<usize> = 1..4;
/// Columns of Osier with buffers in the shared heap, and with ranks as threads.
pub const HEAP: usize = 4;
pub const THREADS: usize = 5;
/// The first floor.
const FLOORS: usize = 6;
/// The floor of reading a peer's memory in place.
pub const MAPPED: usize = 9;
/// How often the file of `--resume` is written, besides after each round.
const KEPT_EVERY: Duration = Duration::from_secs(15);
/// Rows with fewer rounds are not judged.
const LEAST_ROUNDS: usize = 5;

/// Options of `compare`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask compare
  cargo xtask compare --only latency,pack --rounds 9
  cargo xtask compare --only allreduce,bcast --ranks 2,4,16
  cargo xtask compare --minutes 60 --resume rounds.json
      as many rounds as an hour has; the same line again adds more to them
  cargo xtask compare --osu ~/src/osu-micro-benchmarks-7.4 --only osu_latency,osu_bcast
      programs of others, on the C library of each
  cargo xtask compare --json compare.json --update-docs
  cargo xtask compare --only datatype
  cargo xtask compare --only tasks --minutes 90 --resume tasks.json
      patterns of tasks: the smallest granularity with half of the peak
  cargo xtask compare --with 2243401 --rounds 9

Rows of collectives between two ranks have columns for buffers in the shared
heap and for ranks as threads, and the floors that osier bench floors tells
beside them (in --json and in the page). Rows with fewer than 5 rounds are not
judged. In the table the best peer has its initial.

The peers are installed with pip below the target folder on first use, about
450 MB. Keep the machine quiet meanwhile. Not part of CI.")]
pub struct Args {
    /// Write the rows as JSON, null where a column has none
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// These benchmarks only: those of osier bench that peers have, collectives with counts,
    /// accesses to windows (rma-put-flush and others) and patterns of tasks among them, and
    /// osu_... with --osu [default: all but those with counts, accesses, and tasks]
    #[arg(long, value_delimiter = ',', value_name = "BENCHES")]
    only: Vec<String>,
    /// Patterns of `tasks`, with their points a core: stencil_1d:8 [default: all]
    #[arg(long, value_delimiter = ',', value_name = "ROWS")]
    patterns: Vec<String>,
    /// Numbers of ranks of collectives; others have those that they need
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NUMBERS",
        default_value = "2,4",
        value_parser = clap::value_parser!(u32).range(2..=1024)
    )]
    ranks: Vec<u32>,
    /// Interleaved rounds, cores near, that each row is to have
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Begin no run later than this; what was measured is kept and shown
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Keep all values of all rounds in this file, and add to those that it has: of the same
    /// machine, commit and peers
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Sources of OSU's micro-benchmarks: their programs are built against each library, and
    /// run, too
    #[arg(long, value_name = "FOLDER")]
    osu: Option<PathBuf>,
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
    /// These columns only [possible values: osier, openmpi, mpich, intelmpi, osier-heap,
    /// osier-threads, floors]
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
    let osu = match &args.osu {
        None => None,
        Some(folder) => {
            let folder = std::path::absolute(folder).map_err(|e| e.to_string())?;
            if !folder.join("configure").is_file() {
                let shown = folder.display();
                return Err(format!("--osu: no sources with a configure in {shown}"));
            }
            Some(folder)
        }
    };
    let all = cases(&args.ranks, osu.is_some());
    let mut benches: Vec<&str> = all.iter().map(|case| case.bench).collect();
    benches.extend([datatype::NAME, tasks::NAME]);
    refuse_unknown("--only", &args.only, &benches)?;
    let task_rows = tasks::rows(&args.patterns)?;
    let mut columns = NAMES[..FLOORS].to_vec();
    columns.push("floors");
    refuse_unknown("--columns", &args.columns, &columns)?;
    let cases: Vec<Case> = all
        .into_iter()
        .filter(|case| match args.only.is_empty() {
            true => !case.is_rma() && !ON_REQUEST.contains(&case.bench),
            false => args.only.iter().any(|only| only == case.bench),
        })
        .collect();
    if let Some(commit) = &args.with {
        return with::compare(commit, &args.only, args.rounds as usize, args.quick);
    }
    let rounds = if args.quick { 1 } else { args.rounds };

    let mut troubles = Troubles::default();
    let mut hops = Hops::new();
    let (contestants, peers) = prepare(
        &args.columns,
        (osu.as_deref(), cases.iter().any(Case::is_rma)),
        args.quick,
        &mut hops,
        &mut troubles,
    );
    if contestants.is_empty() {
        return Err("nothing to compare: no column could be prepared".into());
    }
    let store = Store::new(table::machine(), table::commit(), peers);
    let store = match &args.resume {
        Some(file) => store.resumed(file)?,
        None => store,
    };
    let command = command_line(args);
    let docs = root().join("docs/performance.md");
    let mut json = Vec::new();
    let mut lacks_osier = true;
    let mut note = None;

    let end = Instant::now() + Duration::from_secs(60 * args.minutes);
    let mut store = store;

    if !cases.is_empty() {
        let mut session = Session {
            contestants: &contestants,
            ranged: osu.as_deref().map(Ranged::of).unwrap_or_default(),
            rounds: rounds as usize,
            quick: args.quick,
            end,
            resume: args.resume.as_deref(),
            store,
        };
        let over = session.measure(&cases, &mut hops, &mut troubles)?;
        store = session.store;
        let mut all = Vec::new();
        for distance in [Distance::Near, Distance::Far] {
            let rows = table::rows(&cases, &store, distance);
            if !rows.is_empty() {
                println!("\ncores {}", distance.name());
                print!("{}", table::narrow(&rows, LEAST_ROUNDS));
            }
            all.extend(rows);
        }
        println!("\n{}", table::verdicts(&all, LEAST_ROUNDS));
        if !over {
            println!("{}", over_first(args.minutes));
        }
        json.extend(all.iter().map(Row::json));
        lacks_osier &= all.iter().all(Row::lacks_osier);
        let told = table::provenance(&command, LEAST_ROUNDS, &hops.distances(store.nearest()));
        if args.update_docs {
            let near = table::rows(&cases, &store, Distance::Near);
            let text = table::text(&near, LEAST_ROUNDS);
            table::update_docs(&docs, table::MARKERS, &text, &told, &troubles.0)?;
            crate::docs::draw()?;
        }
        note = Some(told);
    }
    if args.only.is_empty() || args.only.iter().any(|only| only == datatype::NAME) {
        let outcome =
            datatype::measure(&contestants, rounds, args.quick, &mut hops, &mut troubles)?;
        let text = outcome.text();
        println!("\n{text}");
        json.extend(outcome.json());
        lacks_osier &= outcome.lacks_osier();
        let told = table::provenance(&command, rounds as usize, &hops.text());
        if args.update_docs {
            table::update_docs(&docs, datatype::MARKERS, &text, &told, &troubles.0)?;
        }
        note = note.or(Some(told));
    }
    if args.only.iter().any(|only| only == tasks::NAME) {
        let session = tasks::Session {
            contestants: &contestants,
            rows: &task_rows,
            rounds: rounds as usize,
            quick: args.quick,
            end,
            resume: args.resume.as_deref(),
        };
        let over = session.measure(&mut store, &mut hops, &mut troubles)?;
        let outcome = tasks::Outcome::new(&store.sweeps, LEAST_ROUNDS);
        let text = outcome.text();
        println!("\n{text}");
        if !over {
            println!("{}", over_first(args.minutes));
        }
        json.extend(outcome.json());
        lacks_osier &= outcome.lacks_osier();
        let told = tasks::note(&command, &hops.distances(store.nearest()));
        if args.update_docs {
            let text = format!("```\n{}\n```\n", text.trim_end());
            table::update_docs(&docs, tasks::MARKERS, &text, &told, &troubles.0)?;
        }
        note = note.or(Some(told));
    }
    for trouble in &troubles.0 {
        println!("missing: {trouble}");
    }
    println!("{}", note.unwrap_or_default());
    if let Some(file) = &args.json {
        table::write_json(file, &json)?;
    }
    let osier_wanted = args.columns.is_empty() || args.columns.iter().any(|c| c == NAMES[0]);
    if osier_wanted && lacks_osier {
        return Err("no benchmark gave a number for Osier".into());
    }
    Ok(())
}

fn over_first(minutes: u64) -> String {
    format!("the {minutes} minutes were over first (hint: --resume FILE adds rounds, --minutes N)")
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
    if !args.patterns.is_empty() {
        text += &format!(" --patterns {}", args.patterns.join(","));
    }
    if !args.columns.is_empty() {
        text += &format!(" --columns {}", args.columns.join(","));
    }
    if args.ranks != [2, 4] {
        let ranks: Vec<String> = args.ranks.iter().map(u32::to_string).collect();
        text += &format!(" --ranks {}", ranks.join(","));
    }
    if args.osu.is_some() {
        text += " --osu FOLDER";
    }
    if args.quick {
        text += " --quick";
    } else {
        text += &format!(" --rounds {}", args.rounds);
    }
    text
}

/// Columns that are ready, and the peers' versions.
type Ready = (Vec<(usize, Box<dyn Contestant>)>, Vec<String>);

/// Installs and builds; whatever fails loses its column and is named.
fn prepare(
    columns: &[String],
    (osu, rma): (Option<&Path>, bool),
    quick: bool,
    hops: &mut Hops,
    troubles: &mut Troubles,
) -> Ready {
    let mut ready: Vec<(usize, Box<dyn Contestant>)> = Vec::new();
    let mut versions = Vec::new();
    let wanted = |name: &str| columns.is_empty() || columns.iter().any(|c| c == name);
    let ways = [
        (0, NAMES[0], Way::Processes),
        (HEAP, NAMES[HEAP], Way::Heap),
        (THREADS, NAMES[THREADS], Way::Threads),
        (FLOORS, "floors", Way::Floors),
    ];
    if ways.iter().any(|(_, name, _)| wanted(name)) {
        match Osier::build(hops, quick) {
            Ok(osier) => {
                for (column, name, way) in ways {
                    let mut column_of = osier.by(way);
                    if let (true, Way::Processes, Some(source)) = (wanted(name), way, osu) {
                        let built = Osu::of_osier(source);
                        let built = built.map_err(|e| troubles.add(None, format!("{name}: {e}")));
                        column_of = column_of.with_osu(built.ok());
                    }
                    if rma && wanted(name) && way == Way::Processes {
                        match column_of.with_rma() {
                            Ok(with) => column_of = with,
                            Err(e) => {
                                troubles.add(None, format!("{name}: {e}"));
                                continue;
                            }
                        }
                    }
                    if wanted(name) {
                        ready.push((column, Box::new(column_of)));
                    }
                }
            }
            Err(e) => troubles.add(None, format!("{}: {e}", NAMES[0])),
        }
    }
    for column in PEERS.filter(|column| wanted(NAMES[*column])) {
        let name = NAMES[column];
        match Peer::install(name) {
            Ok(mut peer) => {
                if let Some(source) = osu {
                    let (with, built) = peer.with_osu(source);
                    peer = with;
                    if let Err(e) = built {
                        troubles.add(None, format!("{name}: {e}"));
                    }
                }
                versions.push(peer.version());
                ready.push((column, Box::new(peer)));
            }
            Err(e) => troubles.add(None, format!("{name}: {e}")),
        }
    }
    ready.sort_by_key(|(column, _)| *column);
    (ready, versions)
}

/// Rounds over all rows.
struct Session<'a> {
    contestants: &'a [(usize, Box<dyn Contestant>)],
    /// OSU's programs that take one size a run.
    ranged: Ranged,
    rounds: usize,
    quick: bool,
    end: Instant,
    resume: Option<&'a Path>,
    store: Store,
}

impl Session<'_> {
    /// Goes round by round over what lacks rounds with near cores; false if the time was up
    /// before all had theirs.
    fn measure(
        &mut self,
        cases: &[Case],
        hops: &mut Hops,
        troubles: &mut Troubles,
    ) -> Result<bool> {
        // One size at a time: a run is short beside how long cores stay where they are.
        let parts: Vec<(&Case, u64)> = cases
            .iter()
            .flat_map(|case| {
                let sizes = match case.is_osu() && !self.ranged.takes(case) {
                    true => &[0],
                    false => case.runs(),
                };
                sizes.iter().map(move |bytes| (case, *bytes))
            })
            .collect();
        let bar = ProgressBar::new(0);
        bar.set_style(
            ProgressStyle::with_template("{prefix} {bar:20} {pos}/{len} {elapsed} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.enable_steady_tick(Duration::from_millis(500));
        let mut broken: Vec<(&str, u32, usize)> = Vec::new();
        let first = self.store.next_round();
        let mut over = true;
        let mut written = Instant::now();
        for pass in 0.. {
            let lacks = |store: &Store, case: &Case, bytes: u64, column: usize| {
                // Whatever a floor's first column has, the others have.
                store.rounds(case, bytes, column, Distance::Near) < self.rounds
            };
            let todo: Vec<(&Case, u64)> = parts
                .iter()
                .copied()
                .filter(|(case, bytes)| {
                    self.contestants.iter().any(|(column, contestant)| {
                        contestant.takes(case)
                            && !broken.contains(&(case.bench, case.ranks, *column))
                            && lacks(&self.store, case, *bytes, *column)
                    })
                })
                .collect();
            if todo.is_empty() || (self.quick && pass > 0) {
                break;
            }
            let round = first + pass;
            bar.set_prefix(format!("round {}", round + 1));
            if bar.is_hidden() {
                println!("round {}: {} rows", round + 1, todo.len());
            }
            bar.set_position(0);
            bar.set_length(todo.len() as u64);
            for (case, bytes) in todo {
                if Instant::now() >= self.end {
                    over = false;
                    break;
                }
                // Each round starts with another column, so that none always runs right
                // after the same neighbor.
                let n = self.contestants.len();
                for turn in 0..n {
                    let (column, contestant) = &self.contestants[(turn + round as usize) % n];
                    let name = match *column {
                        FLOORS => "floors",
                        column => NAMES[column],
                    };
                    let broke = (case.bench, case.ranks, *column);
                    if !contestant.takes(case) || broken.contains(&broke) {
                        continue;
                    }
                    bar.set_message(format!("{} {name}", case.bench));
                    match hops.between(|| contestant.run(case, bytes, self.quick)) {
                        Ok((values, looks)) => {
                            for value in values {
                                let floor = value.floor_name();
                                let floor = NAMES.iter().position(|name| floor == Some(*name));
                                let column = floor.unwrap_or(*column);
                                self.store.push(case, round, column, value, looks);
                            }
                        }
                        Err(e) => {
                            broken.push(broke);
                            let what = case.title();
                            troubles.add(Some(&bar), format!("{name}: {what}: {e}"));
                        }
                    }
                }
                bar.inc(1);
                if let Some(file) = self.resume
                    && written.elapsed() > KEPT_EVERY
                {
                    self.store.write(file)?;
                    written = Instant::now();
                }
            }
            if let Some(file) = self.resume {
                self.store.write(file)?;
            }
            if !over {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(over)
    }
}
