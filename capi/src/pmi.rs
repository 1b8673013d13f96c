//! The start under launchers that speak PMI-1, such as the Hydra of MPICH and Intel MPI.
//!
//! ```text
//! rank r > 0   put r: its socket      barrier   ... descriptors of the job, attach
//! rank 0                              barrier   get r, send it the job's descriptors
//! ```
//!
//! The launcher only introduces the ranks to each other; the job is Osier's own, made by
//! rank 0, without anybody who looks out for hangs.
//!
//! # Sources
//! The simple wire protocol of PMI-1: lines of `key=value` words, `cmd` first.

use crate::fail::{Res, other};
use osier::Universe;
use osier::transports::cuda_ipc::{Name, Socket, send};
use osier::transports::shm::{Job, JobOptions};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// How long ranks wait for what rank 0 sends right after a barrier.
const PATIENCE: Duration = Duration::from_secs(60);

struct Launcher {
    write: File,
    read: BufReader<File>,
}

/// The launcher that we have told that we are there.
static LAUNCHER: Mutex<Option<Launcher>> = Mutex::new(None);

/// The number of our program in a job of several.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// That number, if such a launcher has started us.
pub fn program() -> Option<i32> {
    let launched = crate::objects::lock(&LAUNCHER).is_some();
    launched.then(|| PROGRAM.load(Ordering::Relaxed))
}

fn failed(what: &str, e: impl std::fmt::Display) -> crate::fail::Fail {
    other(format!("the launcher (PMI-1): {what}: {e}"))
}

impl Launcher {
    fn open(fd: i32) -> std::io::Result<Launcher> {
        // SAFETY: the launcher has opened it for us; it stays open, for it is only lent.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let file = File::from(fd.try_clone_to_owned()?);
        Ok(Launcher {
            write: file.try_clone()?,
            read: BufReader::new(file),
        })
    }

    fn say(&mut self, line: &str) -> std::io::Result<()> {
        self.write.write_all(format!("{line}\n").as_bytes())
    }

    /// Sends a line, and reads the answer, which must be of the kind `answers`.
    fn ask(&mut self, line: &str, answers: &str) -> Res<HashMap<String, String>> {
        self.say(line).map_err(|e| failed(line, e))?;
        let mut answer = String::new();
        let got = self
            .read
            .read_line(&mut answer)
            .map_err(|e| failed(line, e))?;
        if got == 0 {
            return Err(failed(line, "it has gone"));
        }
        let words = answer.split_whitespace();
        let pairs = words.filter_map(|word| word.split_once('='));
        let pairs: HashMap<String, String> = pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        if pairs.get("cmd").map(String::as_str) != Some(answers) {
            let said = answer.trim_end();
            return Err(failed(
                line,
                format!("it answers {said:?}, not cmd={answers}"),
            ));
        }
        match pairs.get("rc").map(String::as_str) {
            None | Some("0") => Ok(pairs),
            Some(code) => {
                let why = pairs.get("msg").map_or("", String::as_str);
                Err(failed(line, format!("code {code} {why}").trim_end()))
            }
        }
    }
}

/// A variable of the launcher's; `None` if it is not set.
fn number(variable: &str) -> Res<Option<usize>> {
    let Some(text) = std::env::var_os(variable) else {
        return Ok(None);
    };
    let number = text.to_str().and_then(|text| text.parse().ok());
    let no_number = || failed(variable, format!("{} is no number", text.display()));
    number.map(Some).ok_or_else(no_number)
}

fn to_hex(name: &Name) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Name> {
    let mut name = Name::default();
    if text.len() != 2 * name.len() {
        return None;
    }
    for (at, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(name)
}

/// Joins the job of a launcher that speaks PMI-1; `None` if there is none, or only one rank.
pub fn join() -> Res<Option<Universe>> {
    if std::env::var_os("OSIER_JOB").is_some() {
        return Ok(None);
    }
    let Some(fd) = number("PMI_FD")? else {
        return Ok(None);
    };
    let (Some(rank), Some(size)) = (number("PMI_RANK")?, number("PMI_SIZE")?) else {
        return Err(failed("PMI_FD", "it comes without PMI_RANK and PMI_SIZE"));
    };
    if rank >= size {
        return Err(failed("PMI_RANK", format!("rank {rank} of {size}")));
    }
    let mut launcher = i32::try_from(fd)
        .map_err(std::io::Error::other)
        .and_then(Launcher::open)
        .map_err(|e| failed("PMI_FD", e))?;
    launcher.ask(
        "cmd=init pmi_version=1 pmi_subversion=1",
        "response_to_init",
    )?;
    launcher.ask("cmd=get_maxes", "maxes")?;
    let answer = launcher.ask("cmd=get_appnum", "appnum")?;
    let program = answer.get("appnum").and_then(|text| text.parse().ok());
    PROGRAM.store(program.unwrap_or(0), Ordering::Relaxed);
    let answer = launcher.ask("cmd=get_my_kvsname", "my_kvsname")?;
    let space = answer.get("kvsname").cloned().unwrap_or_default();
    let universe = match (rank, size) {
        (0, 1) => None,
        (0, _) => Some(lead(&mut launcher, &space, size)?),
        _ => Some(follow(&mut launcher, &space, rank)?),
    };
    *crate::objects::lock(&LAUNCHER) = Some(launcher);
    Ok(universe)
}

/// As rank 0: makes the job, and hands it out.
fn lead(launcher: &mut Launcher, space: &str, size: usize) -> Res<Universe> {
    let made = Job::create(&JobOptions {
        ranks: size,
        limit_bytes: None,
    });
    let job = made.map_err(|e| failed("making a job", e))?;
    launcher.ask("cmd=barrier_in", "barrier_out")?;
    let pieces: Vec<(u64, OwnedFd)> = job
        .inherited_fds()
        .into_iter()
        .map(|fd| {
            // SAFETY: the job holds it open.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            Ok((
                0,
                fd.try_clone_to_owned()
                    .map_err(|e| failed("a descriptor", e))?,
            ))
        })
        .collect::<Res<_>>()?;
    for rank in 1..size {
        let question = format!("cmd=get kvsname={space} key=osier-{rank}");
        let answer = launcher.ask(&question, "get_result")?;
        let name = answer.get("value").and_then(|value| from_hex(value));
        let name = name.ok_or_else(|| failed("the socket of a rank", "no such name"))?;
        send(&name, rank as u64, &pieces).map_err(|e| failed("sending the job", e))?;
    }
    Ok(Universe::join(&job, 0)?)
}

fn follow(launcher: &mut Launcher, space: &str, rank: usize) -> Res<Universe> {
    let socket = Socket::bind().map_err(|e| failed("a socket", e))?;
    let name = to_hex(&socket.name());
    let line = format!("cmd=put kvsname={space} key=osier-{rank} value={name}");
    launcher.ask(&line, "put_result")?;
    launcher.ask("cmd=barrier_in", "barrier_out")?;
    let mut fds: Vec<OwnedFd> = Vec::new();
    loop {
        match socket.receive() {
            Some(some) if some.number == rank as u64 => {
                fds.extend(some.pieces.into_iter().map(|(_, fd)| fd));
                if some.left == 0 {
                    break;
                }
            }
            Some(_) => {}
            None => {
                let came = socket.wait(PATIENCE).map_err(|e| failed("a socket", e))?;
                if !came {
                    return Err(failed("waiting for the job of rank 0", "nothing has come"));
                }
            }
        }
    }
    // Which duplicates what it is told of.
    let numbers: Vec<String> = fds.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let job = Job::attach(&format!("1:{}", numbers.join(",")));
    let job = job.map_err(|e| failed("joining the job", e))?;
    Ok(Universe::join(&job, rank)?)
}

/// Says good-bye, so that our end is not taken for a failure.
pub fn finish() {
    if let Some(mut launcher) = crate::objects::lock(&LAUNCHER).take() {
        // The launcher may have gone.
        let _ = launcher.ask("cmd=finalize", "finalize_ack");
    }
}

/// Has the launcher end the job with this code.
pub fn abort(code: i32) {
    if let Some(launcher) = crate::objects::lock(&LAUNCHER).as_mut() {
        let _ = launcher.say(&format!("cmd=abort exitcode={code}"));
    }
}
