//! `osier ps`: the running jobs of this user (of root: of all users), and what their ranks wait for.
//!
//! A job is found by what holds it: every process with the job's memory among
//! its descriptors, as `/proc` shows them. So nothing is registered anywhere,
//! and nothing can stay behind. The memory is mapped for reading only; no rank
//! notices.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

use osier_engine::diagnose::page::{Page, State};
use osier_engine::diagnose::{report, watch};
use osier_transports::shm::{JobStatus, monotonic_ns};
use serde_json::{Value, json};

const FAILED: u8 = 1;
/// What the kernel calls the memory of a job.
const ARENA: &str = "/memfd:osier-arena";

const EXAMPLES: &str = "\
Examples:
  osier ps
      all running jobs of this user; of all users, as root
  osier ps 4711
      the job of the launcher with that process id
  osier ps --json
      the same for programs

A wait is shown once it has lasted for a tenth of a second.";

/// Show running jobs, and what every rank waits for, now
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Process id of the job's launcher [default: all jobs]
    job: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints and returns the exit code.
pub fn main(args: &Args) -> ExitCode {
    let jobs = find();
    let chosen: Vec<&JobStatus> = jobs
        .values()
        .filter(|job| args.job.is_none_or(|pid| job.creator() == pid))
        .collect();
    if args.json {
        let jobs: Vec<Value> = chosen.iter().map(|job| to_json(job)).collect();
        println!("{:#}", json!({ "jobs": jobs }));
    }
    if let (true, Some(pid)) = (chosen.is_empty(), args.job) {
        eprintln!(
            "osier: no job has launcher {pid}, or it is another user's (hint: osier ps lists all)"
        );
        return ExitCode::from(FAILED);
    }
    if !args.json {
        if chosen.is_empty() {
            println!("no job is running");
        }
        for (i, job) in chosen.iter().enumerate() {
            if i > 0 {
                println!();
            }
            print!("{}", to_text(job));
        }
    }
    ExitCode::SUCCESS
}

/// Jobs by the process ids of their makers and their numbers.
fn find() -> BTreeMap<(u32, u64), JobStatus> {
    let mut jobs = BTreeMap::new();
    // SAFETY: a system call without arguments.
    let own = unsafe { libc::geteuid() };
    // Root may read all of them; others would only be refused.
    let mine = |entry: &fs::DirEntry| own == 0 || entry.metadata().is_ok_and(|m| m.uid() == own);
    // A job is one file, whoever holds it.
    let mut seen = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let is_process = name.to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        if !is_process || !mine(&process) {
            continue;
        }
        let fds = fs::read_dir(process.path().join("fd"));
        for fd in fds.into_iter().flatten().flatten() {
            let path: PathBuf = fd.path();
            let arena = fs::read_link(&path).is_ok_and(|l| l.to_string_lossy().starts_with(ARENA));
            let Some(inode) = arena.then(|| fs::metadata(&path).ok()).flatten() else {
                continue;
            };
            // A pipe of another user may bear the name, too, and would be waited for.
            if !inode.is_file() {
                continue;
            }
            if seen.contains(&(inode.dev(), inode.ino())) {
                continue;
            }
            seen.push((inode.dev(), inode.ino()));
            match JobStatus::open(&path) {
                Ok(job) => {
                    jobs.insert((job.creator(), job.id()), job);
                }
                Err(e) => eprintln!("osier: process {}: {e}", name.display()),
            }
        }
    }
    jobs
}

/// How a rank is, in a word.
fn state(job: &JobStatus, rank: usize, page: Option<&Page>) -> String {
    if let Some(death) = job.death(rank) {
        return death.to_string();
    }
    match page {
        None => "unknown".into(),
        Some(page) if !page.waits.is_empty() => "waits".into(),
        Some(page) => match page.state {
            State::Absent => "starting".into(),
            State::Left => "left".into(),
            State::Joined if job.attending(rank) => "waits briefly".into(),
            State::Joined => "runs".into(),
        },
    }
}

fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|b| *b == 0).filter(|w| !w.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let text: String = words.join(" ");
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The user of a launcher, if it is another one than ours.
fn foreign_user(pid: u32) -> String {
    // SAFETY: a system call without arguments.
    let own = unsafe { libc::geteuid() };
    match fs::metadata(format!("/proc/{pid}")) {
        Ok(data) if data.uid() != own => format!(" of user {}", data.uid()),
        _ => String::new(),
    }
}

fn to_text(job: &JobStatus) -> String {
    let now = monotonic_ns();
    let pid = job.creator();
    let mut text = format!(
        "job {pid}{}, {} ranks: {}\n",
        foreign_user(pid),
        job.ranks(),
        command_line(pid)
    );
    let heads = ["rank", "pid", "state"].into_iter().chain(report::HEADS);
    let mut rows: Vec<Vec<String>> = vec![heads.map(str::to_owned).collect()];
    let mut outside = Vec::new();
    for rank in 0..job.ranks() {
        let page = watch::page(job, rank);
        let who = |state: String| {
            let pid = match job.pid(rank) {
                0 => "-".to_owned(),
                pid => pid.to_string(),
            };
            [rank.to_string(), pid, state]
        };
        let state = state(job, rank, page.as_ref());
        let sleepers = page.iter().flat_map(|page| &page.sleepers);
        outside.extend(sleepers.map(|sleeper| (rank, sleeper.clone())));
        let page = page.filter(|p| !p.waits.is_empty());
        let Some(page) = page.filter(|_| job.death(rank).is_none()) else {
            let blank = report::HEADS.map(|_| String::new());
            rows.push(who(state).into_iter().chain(blank).collect());
            continue;
        };
        for wait in &page.waits {
            let cells = report::cells(wait, now);
            rows.push(who(state.clone()).into_iter().chain(cells).collect());
        }
    }
    text += &report::table(&rows);
    for (rank, sleeper) in &outside {
        text += &report::outside(*rank, sleeper);
    }
    text
}

fn to_json(job: &JobStatus) -> Value {
    let now = monotonic_ns();
    let ranks: Vec<Value> = (0..job.ranks())
        .map(|rank| {
            let page = watch::page(job, rank);
            let state = state(job, rank, page.as_ref());
            let (waits, sleepers) = match (job.death(rank), page) {
                (None, Some(page)) => (page.waits, page.sleepers),
                _ => Default::default(),
            };
            let outside: Vec<Value> = sleepers
                .iter()
                .map(|sleeper| {
                    json!({
                        "thread": sleeper.thread,
                        "name": sleeper.name,
                        "sleeps": sleeper.sleep.to_string(),
                    })
                })
                .collect();
            let waits: Vec<Value> = waits
                .iter()
                .map(|wait| {
                    let [operation, _, tag, communicator, ..] = report::cells(wait, now);
                    json!({
                        "operation": operation,
                        "peer": wait.peer,
                        "tag": tag,
                        "communicator": communicator,
                        "bytes": wait.bytes,
                        "seconds": now.saturating_sub(wait.since_ns) as f64 / 1e9,
                        "posted": wait.posted.to_string(),
                        "waits": wait.waits.to_string(),
                        "task": (!wait.what.is_empty()).then_some(&wait.what),
                    })
                })
                .collect();
            json!({
                "rank": rank,
                "pid": job.pid(rank),
                "state": state,
                "waits": waits,
                "outside": outside,
            })
        })
        .collect();
    json!({
        "launcher": job.creator(),
        "command": command_line(job.creator()),
        "ranks": ranks,
    })
}
