//! `osier run`: starts the ranks of a job and stays with them to the end.
//!
//! ```text
//! osier run ── keeper (leads the job's process group; kills it if we die)
//!           ├─ rank 0
//!           └─ rank 1 ...  stdout, stderr -> lines -> ours
//! ```
//!
//! | module | duty |
//! |---|---|
//! | [`program`] | finds the program |
//! | [`section`] | which ranks run which program |
//! | [`keeper`] | leaves no process behind |
//! | [`bind`] | places ranks on cores |
//! | [`delay`] | by how much messages are delayed |
//! | [`gpus`] | finds the emulated CUDA driver |
//! | [`heap`] | finds the library for allocations in the shared heap |
//! | [`ranks`] | which ranks a process holds |
//! | [`spawn`] | starts a process |
//! | [`supervise`] | the only loop: output, signals, deaths, time limit |
//! | [`lines`], [`output`] | keep lines whole, write without waiting |
//! | [`stdin`] | gives standard input to rank 0 |
//! | [`sys`] | system calls |
//!
//! The launcher has one thread.

mod bind;
mod delay;
mod gpus;
mod heap;
mod keeper;
mod lines;
mod output;
mod program;
mod ranks;
mod section;
mod spawn;
mod stdin;
mod supervise;
pub(crate) mod sys;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use osier::model::{Agreed, Part, Places};
use osier_engine::check::Setting;
use osier_kernels::debug;
use osier_transports::delay::Delay;
use osier_transports::shm::{Job, JobOptions, MAX_RANKS, NOTE_BYTES};

use section::Sections;

pub use bind::{Bind, allowed_cpus, bind_to, cores_here as cores, placement};
pub use section::Section;
pub use sys::with_signals_blocked;

/// Exit code when the launcher itself fails.
const FAILED: u8 = 1;
/// The longest time limit: a year.
pub const MOST_SECONDS: f64 = 365.0 * 24.0 * 3600.0;
/// Exit code for bad usage, as clap has it.
const USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  osier run -n 4 -- jacobi3d --grid 128
      four ranks of a program beside osier or on PATH
  osier run -n 2 --bind core ./latency
      each rank on a core of its own
  osier run -n 8 --label --timeout 60 -- ./solver input.dat
      output lines bear the rank; at most a minute
  osier run -n 4 --on-death report ./survivor
      the others go on when a rank dies
  osier run -n 8 --pset ocean=0-3 --pset ice=4-7 ./climate
      sessions of the program find two named sets of ranks
  osier run -n 4 --trace out -- jacobi3d
      a timeline of all ranks, out/trace.json, for ui.perfetto.dev
  osier run -n 4 --check all -- ./solver
      types of messages, buffers in use, and leaks are checked
  osier run -n 8 --ranks-per-process 4 -- jacobi3d
      two processes, four ranks in each as its threads
  osier run -n 2 --delay 20us:100us -- jacobi3d
      each message takes 20 us longer, and 100 us for each MiB
  osier run -n 2 --emulate-gpus 2 ./solver
      two emulated GPUs, on a machine that may have none
  osier run -n 64 --on-hang kill ./solver
      ends as soon as no rank can go on, instead of waiting for nothing

Exit code: 0 if every rank returned 0, else that of the first rank that
failed (128 + S if signal S ended it); 124 after --timeout; 125 after a hang
with --on-hang kill or kill-probable; 126 if the program cannot be executed, 127
if it was not found; 1 if output cannot be written; 2 for bad usage.

Signals INT, TERM, HUP, QUIT, USR1, USR2, TSTP and CONT are passed on to all
ranks; a second INT or TERM kills the job.";

/// Run a program as a job of N ranks on this machine.
///
/// A PROG without '/' is sought beside the osier executable, then on PATH.
/// Standard input goes to rank 0. Lines of output are kept whole. When the
/// job ends, processes that its ranks have started end too.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Number of ranks
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = parse_ranks)]
    ranks: usize,

    /// Ranks of one process, as its threads: ranks 0 to K - 1 in the first,
    /// and so on. For programs that enter through osier::run; others are
    /// refused
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = parse_ranks)]
    ranks_per_process: usize,

    /// Place ranks on cores [default: share, or none for more ranks than
    /// cores]
    #[arg(long, value_enum, value_name = "HOW")]
    bind: Option<Bind>,

    /// End the job after S seconds, with exit code 124
    #[arg(long, value_name = "S", value_parser = parse_timeout)]
    timeout: Option<Duration>,

    /// Prefix each line of output with its rank; with the ranks of its process
    /// where there are several
    #[arg(long)]
    label: bool,

    /// What to do when a rank fails
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnDeath::Kill)]
    on_death: OnDeath,

    /// What to do when all ranks wait and no message is under way; and when threads outside
    /// Osier sleep meanwhile, so that the job probably hangs
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnHang::Report)]
    on_hang: OnHang,

    /// Set an environment variable of all ranks; may be repeated
    #[arg(long, value_name = "K=V", value_parser = parse_variable)]
    env: Vec<(OsString, OsString)>,

    /// Name a set of ranks, such as ocean=0-3,7, which sessions find; may be
    /// repeated
    #[arg(long = "pset", value_name = "NAME=RANKS", value_parser = parse_set)]
    psets: Vec<String>,

    /// Let the ranks see N emulated GPUs: the emulated CUDA driver takes the
    /// place of the real one
    #[arg(long, value_name = "N", value_parser = gpus::parse)]
    emulate_gpus: Option<usize>,

    /// Let allocations of 16 KiB and more of unmodified programs, in C or
    /// Python, lie in the shared heap, where peers read them in place; as
    /// OSIER_HEAP=all
    #[arg(long)]
    shared_heap: bool,

    /// Run the ranks in this folder
    #[arg(long, value_name = "DIR")]
    wdir: Option<PathBuf>,

    /// Record what all ranks do, and write the timeline DIR/trace.json for
    /// ui.perfetto.dev; as OSIER_TRACE=DIR
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,

    /// Check what the program does with messages and windows: signature,
    /// buffers, leaks, ready, collectives, windows or all, separated by commas;
    /// payload, by name, finds what is written over in shared memory; fatal
    /// ends the job at the first finding; as OSIER_CHECK=LIST
    #[arg(long, value_name = "LIST", value_parser = parse_checks)]
    check: Option<Setting>,

    /// Delay messages between processes by TIME, and by TIME more for each MiB
    /// of payload, such as 20us or 20us:100us. Collectives then run by
    /// messages, and nothing is read in place; as OSIER_DELAY=TIME
    #[arg(long, value_name = "TIME[:TIME]", value_parser = delay::parse)]
    delay: Option<Delay>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROG", "ARGS"])]
    command: Vec<OsString>,

    /// The programs of a job that has several, in place of `command`. Only
    /// `mpiexec` has them.
    #[arg(skip)]
    pub sections: Vec<Section>,
}

/// What to do when a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnDeath {
    /// End the job within a second
    Kill,
    /// Tell the other ranks, which go on
    Report,
}

/// What to do when the job hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnHang {
    /// Print what every rank waits for; if that is certain to last, end the job
    Kill,
    /// As kill, also if the job only probably hangs
    KillProbable,
    /// Print what every rank waits for, once
    Report,
}

/// Why the launcher gives up, and its exit code.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
        }
    }

    fn os(what: &str, e: &io::Error) -> Failure {
        Failure::new(FAILED, format!("{what}: {}", cause(e)))
    }
}

/// Runs the job and returns its exit code.
pub fn main(args: &Args) -> ExitCode {
    launch(args, true)
}

/// `measures`: the machine, before the job, if nobody has.
fn launch(args: &Args, measures: bool) -> ExitCode {
    let code = start(args, measures).unwrap_or_else(|failure| {
        eprintln!("osier: {}", failure.message);
        failure.code
    });
    ExitCode::from(code)
}

/// Runs this executable itself as a job, with these arguments.
pub fn again(ranks: usize, bind: Option<Bind>, arguments: Vec<OsString>) -> ExitCode {
    itself(ranks, bind, arguments, true)
}

/// The same for a job that measures the machine itself.
pub fn again_unmeasured(ranks: usize, bind: Option<Bind>, arguments: Vec<OsString>) -> ExitCode {
    itself(ranks, bind, arguments, false)
}

fn itself(ranks: usize, bind: Option<Bind>, arguments: Vec<OsString>, measures: bool) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program.into_os_string(),
        Err(e) => {
            eprintln!("osier: cannot find the osier executable: {e}");
            return ExitCode::from(FAILED);
        }
    };
    let args = Args {
        ranks,
        ranks_per_process: 1,
        bind,
        timeout: None,
        label: false,
        on_death: OnDeath::Kill,
        on_hang: OnHang::Report,
        env: Vec::new(),
        psets: Vec::new(),
        emulate_gpus: None,
        shared_heap: false,
        wdir: None,
        trace: None,
        check: None,
        delay: None,
        command: std::iter::once(program).chain(arguments).collect(),
        sections: Vec::new(),
    };
    launch(&args, measures)
}

/// Whether a job can have so many ranks.
pub fn check_ranks(ranks: usize) -> Result<(), String> {
    parse_ranks(&ranks.to_string()).map(drop)
}

fn start(args: &Args, measures: bool) -> Result<u8, Failure> {
    let usage = |e: osier::Error| Failure::new(USAGE, e.to_string());
    osier::config::check().map_err(usage)?;
    let sections = Sections::find(sections(args))?;
    let psets = args.psets.join(";");
    osier::communicators::ProcessSets::predefined(0, args.ranks as u32)
        .and_then(|mut sets| sets.add(&psets, args.ranks))
        .map_err(|e| usage(e.context("--pset")))?;

    // Before anything is started; the supervisor takes it.
    patience(args).map_err(usage)?;
    let devices = match args.emulate_gpus {
        Some(gpus) => Some(gpus::Devices::find(gpus, &args.env)?),
        None => None,
    };
    let heap = heap::Preloaded::find(args.shared_heap, &args.env)?;

    if measures {
        crate::model::measured_once(args.ranks);
    }
    sys::default_sigchld();
    let keeper =
        keeper::Keeper::start().map_err(|e| Failure::os("cannot start the job's keeper", &e))?;
    // Without it, what leaves the job's process group may outlive the job.
    let _ = sys::become_subreaper();
    // The old limit may suffice; what cannot be opened is reported.
    let _ = sys::raise_open_files_limit();
    check_open_files(args.ranks)?;

    let checks = checks(args).map_err(usage)?;
    // What a job measures that measures the machine is the machine's.
    let delay = match measures {
        true => delay::asked(args.delay, &args.env).map_err(usage)?,
        false => None,
    };
    let options = JobOptions {
        ranks: args.ranks,
        limit_bytes: osier::config::shm_limit().map_err(usage)?,
    };
    let cached = osier::model::cached().map_err(usage)?;
    let job = Job::create(&options).map_err(|e| {
        let ranks = args.ranks;
        Failure::new(FAILED, format!("cannot create a job of {ranks} ranks: {e}"))
    })?;
    job.set_watched();
    job.set_checks(checks.bits());
    job.set_delay(delay);
    // All ranks choose protocols and plans by the same numbers.
    let agreed = Agreed::of(cached, places(args.bind, args.ranks));
    let agreed = agreed.for_emulated(gpus::are_emulated(args.emulate_gpus.is_some()));
    job.set_note(&agreed.note(NOTE_BYTES));
    let trace = trace_folder(args)?;
    let code = supervise::run(
        args,
        &sections,
        &keeper,
        &job,
        trace.as_deref(),
        devices.as_ref(),
        heap.as_ref(),
    )?;
    if let Some(folder) = trace {
        crate::trace::merge_job(&folder, &job);
    }
    Ok(code)
}

/// The programs of the job, in the order of the ranks that run them.
fn sections(args: &Args) -> Vec<Section> {
    if !args.sections.is_empty() {
        return args.sections.clone();
    }
    vec![Section {
        ranks: args.ranks,
        command: args.command.clone(),
        env: Vec::new(),
        wdir: args.wdir.clone(),
    }]
}

/// Where ranks will be, if the launcher places them.
pub fn places(bind: Option<Bind>, ranks: usize) -> Option<Places> {
    let (sets, _) = bind::placement(bind, ranks);
    let bound: Option<Vec<Vec<usize>>> = sets.into_iter().collect();
    Some(Places::of(&Part::processors(), &bound?))
}

/// Time without progress after which the job probably hangs: of `--env`, else of the
/// environment.
fn patience(args: &Args) -> osier::Result<Option<Duration>> {
    match args.env.iter().any(|(key, _)| key == debug::VARIABLE) {
        true => osier::config::patience_in(&debug_text(&args.env)),
        false => osier::config::patience(),
    }
}

/// `OSIER_DEBUG` of ranks that get these variables.
fn debug_text(given: &[(OsString, OsString)]) -> OsString {
    let of_ranks = given.iter().rfind(|(key, _)| key == debug::VARIABLE);
    let text = of_ranks.map(|(_, value)| value.clone());
    text.or_else(|| std::env::var_os(debug::VARIABLE))
        .unwrap_or_default()
}

/// What is checked, whoever asks for it.
fn checks(args: &Args) -> osier::Result<Setting> {
    let of_ranks = args.env.iter().rfind(|(key, _)| key == "OSIER_CHECK");
    match (args.check, of_ranks) {
        (Some(checks), _) => Ok(checks),
        (None, Some((_, value))) => value
            .to_string_lossy()
            .parse()
            .map_err(|e: osier::Error| e.context("OSIER_CHECK")),
        (None, None) => Setting::from_env(),
    }
}

/// Where the timeline goes, whoever asks for it: absolute, so that `--wdir`
/// does not change its meaning.
fn trace_folder(args: &Args) -> Result<Option<PathBuf>, Failure> {
    let of_ranks = args.env.iter().rfind(|(key, _)| key == "OSIER_TRACE");
    let variable = of_ranks
        .map(|(_, value)| value.into())
        .or_else(|| osier::config::path("OSIER_TRACE"));
    let (asked_by, folder) = match &args.trace {
        Some(folder) => ("--trace ", Some(folder.clone())),
        None => ("OSIER_TRACE=", variable),
    };
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    let Some(folder) = folder else {
        return Ok(None);
    };
    let refused = |e: io::Error| {
        let folder = folder.display();
        Failure::new(USAGE, format!("{asked_by}{folder}: {}", cause(&e)))
    };
    std::fs::create_dir_all(&folder).map_err(refused)?;
    std::path::absolute(&folder).map(Some).map_err(refused)
}

/// A doorbell and two pipes per rank, and some for everything else.
fn check_open_files(ranks: usize) -> Result<(), Failure> {
    let needed = 3 * ranks as u64 + 32;
    let limit = sys::open_files_limit().unwrap_or(u64::MAX);
    if needed > limit {
        return Err(Failure::new(
            USAGE,
            format!(
                "{ranks} ranks need {needed} open files and the limit is {limit} \
                 (hint: fewer ranks, or raise the hard limit: ulimit -Hn)"
            ),
        ));
    }
    Ok(())
}

/// The text of a system error in the style of the other messages.
pub fn cause(e: &io::Error) -> String {
    let mut text = e.to_string();
    if let Some(at) = text.find(" (os error") {
        text.truncate(at);
    }
    text.to_lowercase()
}

fn parse_ranks(text: &str) -> Result<usize, String> {
    if text == "p" {
        return Err("write -n N, not -np N".into());
    }
    match text.parse::<usize>() {
        Ok(ranks @ 1..=MAX_RANKS) => Ok(ranks),
        _ => Err(format!("a job has 1 to {MAX_RANKS} ranks")),
    }
}

fn parse_checks(text: &str) -> Result<Setting, String> {
    text.parse().map_err(|e: osier::Error| e.to_string())
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0 && *seconds <= MOST_SECONDS)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected a positive number of seconds, at most a year".into())
}

/// The sets are checked together; between them stands a semicolon.
fn parse_set(text: &str) -> Result<String, String> {
    match text.contains('=') && !text.contains(';') {
        true => Ok(text.into()),
        false => Err("expected NAME=RANKS such as ocean=0-3,7, without ';'".into()),
    }
}

fn parse_variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        assert_eq!(parse_ranks("4"), Ok(4));
        assert!(parse_ranks("0").is_err());
        assert!(parse_ranks("-1").is_err());
        assert!(parse_ranks("99999999999999999999").is_err());
        assert!(parse_ranks("p").unwrap_err().contains("-np"));
        assert_eq!(parse_timeout("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e18", "x", ""] {
            assert!(parse_timeout(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(parse_set("ocean=0-3,7").is_ok());
        assert!(parse_set("ocean").is_err() && parse_set("a=1;b=2").is_err());
        assert!(parse_variable("=b").is_err());
        assert!(parse_variable("A").is_err());
    }
}
