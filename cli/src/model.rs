//! `osier model`: what the machine costs, as plans are chosen by it.
//!
//! ```text
//! osier model measure            (links; then starts a job of itself)
//!   '- run -- osier model measure --begun ...    ranks: measure calls; rank 0 writes a file
//! (looks at the distance of the cores, stores, prints)
//! ```
//!
//! Where the cores were moved to another distance meanwhile, nothing is stored, and all is
//! measured again.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};
use std::{fs, thread};

use osier::config::Costs;
use osier::model::{self, Cached, CallCosts, CostSet, DeviceCalls, Origin};
use osier::{Error, ErrorKind, Result};
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::uses::{self, Use, Uses};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::info::protocols::{self, origin, size};
use crate::info::table::Table;
use crate::run;
use crate::scale;

const FAILED: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  osier model measure
      measure links and collective calls in under a second per class of links, and
      keep the numbers for this user's jobs on this machine: a set for each distance
      of two cores, where its host moves them
  osier model show
      the numbers by which jobs choose, and where they come from
  osier model check
      whether the kept numbers still hold: jobs look at a few of them alone
  osier model show --json
      the same for programs
  osier model scale --plot scale.svg
      what chosen plans would take on up to 65,536 ranks of a described machine
  osier explain allreduce --bytes 1M -n 8
      which plan these numbers choose, and why";

/// What the machine costs: measured, shown, and what follows at scale
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Measure links and collective calls of this machine, and keep them
    Measure(Measure),
    /// Measure calls again and say how far the kept numbers are off
    Check,
    /// Print the costs by which jobs choose protocols and plans, of each distance of two cores
    Show(Json),
    Scale(scale::Args),
}

#[derive(Debug, clap::Args)]
struct Measure {
    #[command(flatten)]
    how: Json,

    /// Of the ranks that measure: what was measured before they started
    #[arg(long, hide = true)]
    begun: Option<String>,
}

/// For the ranks that measure calls.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    links: LinkCosts,
    /// Where rank 0 writes what was measured.
    to: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Json {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Does what is asked and returns the exit code.
pub fn main(args: &Args) -> ExitCode {
    let in_job = osier::config::value("OSIER_JOB").is_some();
    let done = match &args.command {
        Command::Scale(args) => return scale::main(args),
        Command::Show(how) => model::cached().map(|cached| show(&cached, how.json)),
        Command::Check if in_job => {
            return osier::run_code(|comm| match check_as_rank(&comm) {
                Ok(true) => 0,
                Ok(false) => FAILED,
                Err(e) => code(Err(e)),
            });
        }
        Command::Check => return start_ranks(std::env::args_os().skip(1).collect()),
        Command::Measure(args) if in_job => {
            return osier::run_code(|comm| code(measure_as_rank(&comm, args)));
        }
        Command::Measure(args) => match measure(&args.how) {
            Ok(code) => return code,
            Err(e) => Err(e),
        },
    };
    ExitCode::from(code(done))
}

/// A measurement that went wrong is not tried again for so long.
const NOT_AGAIN: Duration = Duration::from_secs(3600);
/// One that takes so long hangs.
const MOST_TIME: Duration = Duration::from_secs(20);

/// Measures this machine where nobody has, before the first job of several ranks, or where
/// what was kept does not hold any more, or is of cores at another distance, and says so. What
/// goes wrong is said once, too, and costs that job nothing but time.
pub fn measured_once(ranks: usize) {
    let unknown = || {
        let cached = model::cached().ok()?;
        let measures = matches!(osier::config::model(), Ok(Costs::Auto))
            && ranks > 1
            && run::cores() > 1
            && osier::config::value("OSIER_JOB").is_none();
        if !measures {
            return None;
        }
        let outdated = cached.outdated();
        let unknown = cached.origin == Origin::Default || outdated.is_some();
        unknown.then_some(())?;
        Some((model::cache_file()?, outdated))
    };
    let Some((file, outdated)) = unknown() else {
        return;
    };
    let path = file.with_extension("measuring");
    let Some(mut mark) = claim(&path) else {
        return; // another launcher does, or it went wrong a while ago
    };
    let begin = Instant::now();
    let told = match by_another_process() {
        Ok(()) => told_of(&file),
        Err(why) => Err(why),
    };
    let took = begin.elapsed().as_secs_f64();
    match told {
        Ok(error) => {
            let _ = fs::remove_file(&path);
            let again = match outdated {
                Some(why) => format!(" ({why})"),
                None => String::new(),
            };
            eprintln!(
                "osier: measured in {took:.1} s what messages and collectives cost here{again}, for later jobs, too; predictions are off by {:.0} % (osier model show; OSIER_MODEL=cached measures nothing)",
                100.0 * error
            );
        }
        Err(why) => {
            let _ = mark.write_all(WENT_WRONG);
            let used = match model::cached().map(|cached| cached.origin) {
                Ok(Origin::Default) | Err(_) => "built-in costs",
                Ok(_) => "the costs that are kept",
            };
            eprintln!(
                "osier: this machine was not measured, and {used} are used: {why} (hint: osier model measure on a quiet machine; OSIER_MODEL=built-in says nothing)"
            );
        }
    }
}

/// What a mark says of a measurement that has failed. An empty one that nobody has locked is of
/// a launcher that was killed meanwhile.
const WENT_WRONG: &[u8] = b"went wrong\n";

/// The mark of a measurement, locked and empty, if nobody measures and none has failed lately.
fn claim(path: &Path) -> Option<fs::File> {
    fs::create_dir_all(path.parent()?).ok()?;
    let mut open = fs::OpenOptions::new();
    let mut mark = open.read(true).append(true).create(true).open(path).ok()?;
    mark.try_lock().ok()?;
    let mut said = Vec::new();
    mark.read_to_end(&mut said).ok()?;
    let age = || mark.metadata().ok()?.modified().ok()?.elapsed().ok();
    if said == WENT_WRONG && age().is_none_or(|age| age <= NOT_AGAIN) {
        return None;
    }
    mark.set_len(0).ok()?;
    Some(mark)
}

/// By how much the table that was kept last is off.
fn told_of(file: &Path) -> std::result::Result<f64, String> {
    let kept = model::load(file).map_err(|e| e.to_string())?;
    let calls = kept.sets.last().and_then(|set| set.calls.as_ref());
    Ok(calls.ok_or("no calls were measured")?.error)
}

/// Runs `osier model measure`, silently.
fn by_another_process() -> std::result::Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = process::Command::new(program);
    command
        .args(["model", "measure"])
        .env("OSIER_MODEL", "cached");
    for variable in ["OSIER_CHECK", "OSIER_TRACE", "OSIER_STALL", "OSIER_DEBUG"] {
        command.env_remove(variable);
    }
    let quiet = process::Stdio::null;
    command.stdin(quiet()).stdout(quiet());
    // A few lines, which its pipe holds until it ends.
    let mut child = command
        .stderr(process::Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(why(child, status)),
            Ok(None) if begin.elapsed() < MOST_TIME => thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("osier model measure took too long".into());
            }
        }
    }
}

/// What it said when it failed, less its own name.
fn why(child: process::Child, status: process::ExitStatus) -> String {
    let said = child.wait_with_output().map(|o| o.stderr);
    let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
    let line = said.lines().find_map(|l| l.strip_prefix("osier: model: "));
    match line {
        Some(line) => line.to_owned(),
        None => format!("osier model measure ended with {status}"),
    }
}

fn code(done: Result<()>) -> u8 {
    match done {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("osier: model: {e}");
            FAILED
        }
    }
}

/// So often all is measured where the cores are moved meanwhile.
const TRIES: usize = 4;

/// Measures links, and starts ranks that measure calls and keep both.
fn measure(how: &Json) -> Result<ExitCode> {
    let Some(file) = model::cache_file() else {
        return Err(Error::new(
            ErrorKind::Config,
            "there is no folder to keep costs in: neither XDG_CACHE_HOME nor HOME is set",
        ));
    };
    if let Some(named) = osier::config::path("OSIER_COSTS") {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "OSIER_COSTS={} is set: jobs go on using that file (hint: unset OSIER_COSTS)",
                named.display()
            ),
        ));
    }
    let nothing_kept = model::cached()?.origin == Origin::Default;
    for last in (1..=TRIES).map(|tries| tries == TRIES) {
        let before = model::line_ns();
        // A GPU's driver starts threads, which would be given signals that a launcher waits for.
        let device = run::with_signals_blocked(protocols::device_costs)
            .map_err(|e| Error::new(ErrorKind::Unavailable, format!("mask of signals: {e}")))?;
        let mut links = osier::measure::measure()?;
        links.device = device;
        let calls = match run::cores() {
            1 => {
                eprintln!(
                    "osier: model: there is one core: calls between ranks are estimated from the link"
                );
                None
            }
            _ => match by_ranks(&file, links)? {
                Ok((with_attach, calls)) => {
                    links = with_attach;
                    Some(calls)
                }
                Err(code) => return Ok(code),
            },
        };
        // Costs of no one state are better than those of another processor.
        if let Some(line_ns) = stayed(before, last && nothing_kept) {
            model::store(&file, CostSet::now(line_ns, links, calls))?;
            show(&model::cached()?, how.json);
            return Ok(ExitCode::SUCCESS);
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!("the cores were moved to another distance, or busy, in each of {TRIES} tries"),
    ))
}

/// What ranks measure, or the code with which they fail.
fn by_ranks(
    file: &Path,
    links: LinkCosts,
) -> Result<std::result::Result<(LinkCosts, CallCosts), ExitCode>> {
    let to = file.with_extension(format!("{}.measured", process::id()));
    if let Some(folder) = to.parent() {
        let _ = fs::create_dir_all(folder);
    }
    let begun = Begun {
        links,
        to: to.clone(),
    };
    let text = serde_json::to_string(&begun).unwrap_or_default();
    let arguments = ["model", "measure", "--begun", &text].map(OsString::from);
    let code = start_ranks(arguments.into());
    let text = fs::read(&to);
    let _ = fs::remove_file(&to);
    if code != ExitCode::SUCCESS {
        return Ok(Err(code));
    }
    let failed = |what: String| Error::new(ErrorKind::System, format!("{}: {what}", to.display()));
    let text = text.map_err(|e| failed(e.to_string()))?;
    let measured = serde_json::from_slice(&text).map_err(|e| failed(e.to_string()))?;
    Ok(Ok(measured))
}

/// The distance of the cores, if it is what it was; where it must be, whatever it is.
fn stayed(before: Option<f64>, whatever: bool) -> Option<Option<f64>> {
    match (before, model::line_ns()) {
        (Some(before), Some(after)) if model::alike(before, after) => {
            Some(Some((10.0 * (before * after).sqrt()).round() / 10.0))
        }
        (None, None) if run::cores() < 2 => Some(None),
        _ => whatever.then_some(None),
    }
}

/// Runs this command as ranks, one on each core.
fn start_ranks(arguments: Vec<OsString>) -> ExitCode {
    let ranks = run::cores().clamp(2, MOST_RANKS);
    run::again_unmeasured(ranks, Some(run::Bind::Core), arguments)
}

/// Kept numbers that are off by more than this, at the median, are to be measured anew.
const OFF: f64 = 0.15;

/// Whether the numbers by which this job chooses are what calls take now.
fn check_as_rank(comm: &osier::Communicator) -> Result<bool> {
    let (kept, fresh) = (comm.call_costs(), comm.measure_call_costs()?);
    let mut worst = 0.0f64;
    for now in &fresh.classes {
        let known = kept.classes.iter().find(|c| c.class == now.class);
        let known = known.unwrap_or(&kept.classes[0]);
        let mut off: Vec<f64> = now
            .messages
            .iter()
            .filter_map(|m| {
                let known = known.messages.iter().find(|k| k.bytes == m.bytes)?;
                Some(known.one_way_ns / m.one_way_ns - 1.0)
            })
            .collect();
        off.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
        let Some(median) = off.get(off.len() / 2) else {
            continue;
        };
        worst = worst.max(median.abs());
        if comm.rank() == 0 {
            println!(
                "within one {}: kept times of messages differ by {:+.0} % at the median, {:+.0} % at most",
                now.class,
                100.0 * median,
                100.0 * off[off.len() - 1]
            );
        }
    }
    if comm.rank() == 0 && worst > OFF {
        println!("more than {:.0} % (hint: osier model measure)", 100.0 * OFF);
    }
    Ok(worst <= OFF)
}

/// Most ranks that are started: each measures with the first, or waits.
const MOST_RANKS: usize = 256;

fn measure_as_rank(comm: &osier::Communicator, args: &Measure) -> Result<()> {
    let text = args.begun.as_deref().unwrap_or_default();
    let begun: Begun = serde_json::from_str(text).map_err(|_| {
        let what = "ranks measure calls for the command that has measured links";
        Error::new(ErrorKind::Argument, what)
    })?;
    let measured = comm.measure_costs(&begun.links)?;
    if comm.rank() > 0 {
        return Ok(());
    }
    let text = serde_json::to_vec(&measured).unwrap_or_default();
    fs::write(&begun.to, text)
        .map_err(|e| Error::new(ErrorKind::System, format!("{}: {e}", begun.to.display())))
}

/// The table of a set, and whether it was measured.
fn table(set: &CostSet) -> (CallCosts, bool) {
    match &set.calls {
        Some(calls) => (calls.clone(), true),
        None => (CallCosts::estimated(&set.costs), false),
    }
}

/// Where the table comes from, in words.
pub fn told(cached: &Cached) -> String {
    match (&cached.set.calls, &cached.refused) {
        (Some(_), _) => format!("measured calls, {}", origin(cached)),
        (None, Some(why)) => format!("estimated from built-in costs; not used: {why}"),
        (None, None) => {
            // What is built in has that hint already.
            let hint = match cached.origin {
                Origin::Default => "",
                _ => " (hint: osier model measure)",
            };
            let origin = origin(cached);
            format!("estimated from costs of links, {origin}{hint}")
        }
    }
}

/// Of which states of the machine the costs are, in words; none if of one whose distance is
/// not known.
pub fn states(lines_ns: &[Option<f64>]) -> Option<String> {
    let told = |line: &Option<f64>| match line {
        Some(ns) => format!("{ns:.0} ns"),
        None => "an unknown time".into(),
    };
    let first = told(lines_ns.first()?);
    let others: Vec<String> = lines_ns[1..].iter().map(told).collect();
    match (lines_ns, &others[..]) {
        ([None], _) => None,
        (_, []) => Some(format!(
            "costs were measured where a line takes {first} from core to core"
        )),
        (_, others) => Some(format!(
            "predicted where a line takes {first} from core to core;\n\
             chosen to lose least there and at {}",
            others.join(" and ")
        )),
    }
}

/// Distances of the sets in use, that of predictions first.
pub fn lines_ns(cached: &Cached) -> Vec<Option<f64>> {
    let sets = std::iter::once(&cached.set).chain(&cached.others);
    sets.map(|set| set.line_ns).collect()
}

fn show_devices(devices: &DeviceCalls) {
    let note = match devices.emulated {
        true => " (emulated: no figure here is one of a GPU)",
        false => "",
    };
    for class in &devices.classes {
        let between = match &class.class[..] {
            "same" => "of two ranks on one device".to_owned(),
            links if links.starts_with("NV") => format!("between devices that {links} joins"),
            part => format!("between devices within one {part}"),
        };
        println!("\nMessages {between}: {}{note}", devices.device);
        let mut rows = Table::new(2).right(&[0, 1, 2, 3]);
        rows.row(["bytes", "one way", "busy", "MB/s"].map(str::to_owned));
        for m in &class.messages {
            rows.row([
                size(m.bytes as usize),
                protocols::time(m.one_way_ns),
                protocols::time(m.busy_ns),
                format!("{:.0}", m.bytes as f64 / m.one_way_ns * 1e3),
            ]);
        }
        rows.print();
    }
    println!("\nWork of a device{note}");
    let mut rows = Table::new(2).right(&[0, 1, 2, 3, 4]);
    rows.row(["bytes", "copy", "sum of doubles", "to the host", "back"].map(str::to_owned));
    let works = [&devices.combine, &devices.to_host, &devices.to_device];
    for (at, copy) in devices.copy.iter().enumerate() {
        let mut row = vec![size(copy.bytes as usize), protocols::time(copy.ns)];
        let others = works.iter().filter_map(|works| works.get(at));
        row.extend(others.map(|work| protocols::time(work.ns)));
        rows.row(row);
    }
    rows.print();
}

fn show(cached: &Cached, as_json: bool) {
    let sets = || std::iter::once(&cached.set).chain(&cached.others);
    let (of_predictions, measured) = table(&cached.set);
    if as_json {
        let set = |set: &CostSet| {
            let (table, measured) = table(set);
            json!({
                "line_ns": set.line_ns,
                "version": format!("{:016x}", table.version()),
                "measured": measured,
                "date": set.date,
                "links": set.costs,
                "calls": table,
            })
        };
        println!(
            "{:#}",
            json!({
                "version": format!("{:016x}", of_predictions.version()),
                "measured": measured,
                "from": told(cached),
                "date": cached.set.date,
                "refused": cached.refused,
                "links": cached.set.costs,
                "calls": of_predictions,
                "sets": sets().map(set).collect::<Vec<_>>(),
            })
        );
        return;
    }
    println!("{}", told(cached));
    if let Some(text) = states(&lines_ns(cached)) {
        println!("{text}");
    }
    for set in sets() {
        if !cached.others.is_empty() {
            let line = match set.line_ns {
                Some(ns) => format!("Where a line takes {ns:.0} ns from core to core"),
                None => "Where nobody knows how far the cores are from each other".into(),
            };
            let date = set.date.as_deref().unwrap_or("on an unknown day");
            println!("\n{line}, measured {date}\n{}", "=".repeat(line.len()));
        }
        show_set(set);
    }
    println!("\nosier info --protocols shows the costs of links and devices.");
}

/// Times of messages of plain memory, by use and way.
fn show_uses(uses: &Uses) {
    println!("\nMessages of plain memory, as they are used");
    let mut rows = Table::new(2).right(&[0, 2, 3, 4]);
    rows.row(["bytes", "receive", "eager", "fragments", "kernel"].map(str::to_owned));
    for (bytes, times) in uses::SIZES.into_iter().zip(&uses.0) {
        for (in_use, ways) in Use::ALL.into_iter().zip(times) {
            let time = |ns: f64| match ns > 0.0 {
                true => protocols::time(ns),
                false => "-".to_owned(),
            };
            let [eager, fragments, kernel] = ways.map(time);
            let bytes = match in_use {
                Use::Posted => size(bytes as usize),
                _ => String::new(),
            };
            rows.row([bytes, in_use.name().to_owned(), eager, fragments, kernel]);
        }
    }
    rows.print();
}

fn show_set(set: &CostSet) {
    let (table, measured) = table(set);
    println!("version {:016x}", table.version());
    if measured {
        println!(
            "predictions were off by {:.0} % at the median",
            100.0 * table.error
        );
    }
    for class in &table.classes {
        println!("\nMessages of collective calls within one {}", class.class);
        let mut rows = Table::new(2).right(&[0, 1, 2, 3, 4, 5]);
        rows.row(["bytes", "one way", "busy", "MB/s", "unchanged", "busy"].map(str::to_owned));
        for m in &class.messages {
            let rate = m.bytes as f64 / m.one_way_ns * 1e3;
            let kept = class.kept.iter().find(|k| k.bytes == m.bytes).unwrap_or(m);
            rows.row([
                size(m.bytes as usize),
                protocols::time(m.one_way_ns),
                protocols::time(m.busy_ns),
                if m.bytes < 1024 {
                    "-".into()
                } else {
                    format!("{rate:.0}")
                },
                protocols::time(kept.one_way_ns),
                protocols::time(kept.busy_ns),
            ]);
        }
        rows.print();
    }
    if let Some(uses) = &set.costs.uses {
        show_uses(uses);
    }
    println!("\nWork of a rank");
    let mut rows = Table::new(2).right(&[0, 1, 2]);
    rows.row(["bytes", "copy", "sum of doubles"].map(str::to_owned));
    for (copy, combine) in table.copy.iter().zip(&table.combine) {
        rows.row([
            size(copy.bytes as usize),
            protocols::time(copy.ns),
            protocols::time(combine.ns),
        ]);
    }
    rows.print();
    if let Some(devices) = &table.devices {
        show_devices(devices);
    }
    println!("\nThe executor, of calls that are not taken step by step");
    let mut rows = Table::new(2).right(&[1]);
    rows.row(["a call".to_owned(), protocols::time(table.run_ns)]);
    rows.row(["one that is".to_owned(), protocols::time(table.row_ns)]);
    rows.row(["a step of it".to_owned(), protocols::time(table.step_ns)]);
    rows.print();
    if let Some(segment) = &table.segment {
        println!("\nFlags and slots that ranks share");
        let mut rows = Table::new(2).right(&[1]);
        rows.row(["a flag".to_owned(), protocols::time(segment.flag_ns)]);
        for (name, works) in [("into", &segment.write), ("out of", &segment.read)] {
            if let Some(last) = works.last() {
                let name = format!("{} {name} a slot", size(last.bytes as usize));
                rows.row([name, protocols::time(last.ns)]);
            }
        }
        for class in &table.classes {
            if let Some(flags) = &class.flags {
                let within = |what: &str| format!("{what}, within one {}", class.class);
                rows.row([within("a flag"), protocols::time(flags.flag_ns)]);
                if let Some(last) = flags.read.last() {
                    let name = within(&format!("{} out of a slot", size(last.bytes as usize)));
                    rows.row([name, protocols::time(last.ns)]);
                }
            }
        }
        rows.print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_killed_launchers_keep_nobody_from_measuring() {
        let folder = std::env::temp_dir().join(format!("osier-mark-{}", process::id()));
        let path = folder.join("costs.measuring");
        let mark = claim(&path).expect("nobody has it");
        assert!(claim(&path).is_none(), "another measures");
        // A launcher that ends in the middle lets go of the lock, and leaves the file.
        drop(mark);
        let mut mark = claim(&path).expect("it was abandoned");
        mark.write_all(WENT_WRONG).expect("written");
        drop(mark);
        assert!(claim(&path).is_none(), "it went wrong a moment ago");
        fs::remove_dir_all(folder).expect("removed");
    }
}
