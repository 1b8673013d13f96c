//! `osier model`: what the machine costs, as plans are chosen by it.
//!
//! ```text
//! osier model measure            (links; then starts a job of itself)
//!   '- run -- osier model measure    ranks: measure calls; rank 0 stores and prints
//! ```

use std::ffi::OsString;
use std::path::Path;
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};
use std::{fs, thread};

use osier::config::Costs;
use osier::model::{self, Cached, CallCosts, DeviceCalls, Origin};
use osier::{Error, ErrorKind, Result};
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
      keep the numbers for this user's jobs on this machine
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
    Measure(Json),
    /// Measure calls again and say how far the kept numbers are off
    Check,
    /// Print the costs by which jobs choose protocols and plans
    Show(Json),
    Scale(scale::Args),
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
        Command::Check => return start_ranks(),
        Command::Measure(how) if in_job => {
            return osier::run_code(|comm| code(measure_as_rank(&comm, how.json)));
        }
        Command::Measure(_) => match measure() {
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
/// what was kept does not hold any more, and says so. What goes wrong is said once, too, and
/// costs that job nothing but time.
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
    let mark = file.with_extension("measuring");
    if !claim(&mark) {
        return; // another launcher does, or it went wrong a while ago
    }
    let begin = Instant::now();
    let told = match by_another_process() {
        Ok(()) => told_of(&file),
        Err(why) => Err(why),
    };
    let took = begin.elapsed().as_secs_f64();
    match told {
        Ok(error) => {
            let _ = fs::remove_file(&mark);
            let again = match outdated {
                Some(why) => format!(" again, for {why}"),
                None => String::new(),
            };
            eprintln!(
                "osier: measured{again} in {took:.1} s what messages and collectives cost here, for later jobs, too; predictions are off by {:.0} % (osier model show; OSIER_MODEL=cached measures nothing)",
                100.0 * error
            );
        }
        Err(why) => {
            // Links alone may be there.
            let _ = fs::remove_file(&file);
            eprintln!(
                "osier: built-in costs, for this machine was not measured: {why} (hint: osier model measure on a quiet machine; OSIER_MODEL=built-in says nothing)"
            );
        }
    }
}

/// Whether nobody has this mark, or only an old one.
fn claim(mark: &Path) -> bool {
    if let Some(folder) = mark.parent()
        && fs::create_dir_all(folder).is_err()
    {
        return false;
    }
    let age = || fs::metadata(mark).ok()?.modified().ok()?.elapsed().ok();
    if age().is_some_and(|age| age > NOT_AGAIN) {
        let _ = fs::remove_file(mark);
    }
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(mark)
        .is_ok()
}

/// By how much the table that is kept now is off.
fn told_of(file: &Path) -> std::result::Result<f64, String> {
    let kept = model::load(file).map_err(|e| e.to_string())?;
    let calls = kept.calls.ok_or("no calls were measured")?;
    Ok(calls.error)
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

/// Measures links, keeps them, and starts ranks that measure calls.
fn measure() -> Result<ExitCode> {
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
    let mut costs = osier::measure::measure()?;
    costs.device = protocols::device_costs();
    model::store(&file, costs, None)?;
    if run::cores() < 2 {
        eprintln!(
            "osier: model: there is one core: calls between ranks are estimated from the link"
        );
        show(&model::cached()?, false);
        return Ok(ExitCode::SUCCESS);
    }
    Ok(start_ranks())
}

/// Runs this command as ranks, one on each core.
fn start_ranks() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let ranks = run::cores().clamp(2, MOST_RANKS);
    run::again(ranks, Some(run::Bind::Core), arguments)
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

fn measure_as_rank(comm: &osier::Communicator, as_json: bool) -> Result<()> {
    let (links, calls) = comm.measure_costs()?;
    if comm.rank() > 0 {
        return Ok(());
    }
    if let Some(file) = model::cache_file() {
        model::store(&file, links, Some(calls))?;
    }
    show(&model::cached()?, as_json);
    Ok(())
}

/// The table by which jobs choose, and whether it was measured.
fn table(cached: &Cached) -> (CallCosts, bool) {
    match &cached.calls {
        Some(calls) => (calls.clone(), true),
        None => (CallCosts::estimated(&cached.costs), false),
    }
}

/// Where the table comes from, in words.
pub fn told(cached: &Cached) -> String {
    match (&cached.calls, &cached.refused) {
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
    let (table, measured) = table(cached);
    if as_json {
        println!(
            "{:#}",
            json!({
                "version": format!("{:016x}", table.version()),
                "measured": measured,
                "from": told(cached),
                "date": cached.date,
                "refused": cached.refused,
                "links": cached.costs,
                "calls": table,
            })
        );
        return;
    }
    println!("{}", told(cached));
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
    println!("\nosier info --protocols shows the costs of links and devices.");
}
