//! The start under launchers that speak PMI-1, such as the Hydra of MPICH and Intel MPI.
//!
//! ```text
//! rank 0       put: the job's number and key                           barrier
//! each rank    takes its place in the job's folder on its machine      barrier
//! lowest of a machine   makes the segment, hands it to the others there
//! ```
//!
//! The folder is named by the key: launchers give equal names to jobs in different containers.
//!
//! That is all where these are all ranks. Else each rank listens to the network, and
//!
//! ```text
//! each rank    put: the lowest rank of its machine, where it is called     barrier
//!              get: those of all, or of a large job what rank 0 makes of them
//! ```
//!
//! A machine is what its ranks can share a segment on: those that find each other's sockets in a
//! folder on the mount of shared memory. Rank 0 makes the job's number and key, and puts them
//! where the launcher's ranks alone can get them. There is no hang watchdog.
//!
//! # Sources
//! The simple wire protocol of PMI-1: lines of `key=value` words, `cmd` first.

use super::descriptor;
use crate::config;
use osier_engine::check::Setting;
use osier_engine::diagnose::tell;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::Launcher;
use osier_transports::net::{Card, Directory, HostMap, JobKey, NetOptions, NetRank};
use osier_transports::shm::{self, Job, JobOptions, Meeting, meeting_place};
use osier_transports::{TransportError, TransportErrorKind};
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long ranks wait for the lowest of their machine right after a barrier.
const PATIENCE: Duration = Duration::from_secs(60);
/// Jobs up to this number of ranks look up all of them at the start; in larger ones rank 0 does,
/// and says where all are.
const ALL_LOOK_UP: usize = 64;
/// Longest value that is put: launchers take 1024 bytes and more.
const VALUE_BYTES: usize = 900;

/// The connection to a launcher that knows that this rank has joined.
#[derive(Clone)]
pub(crate) struct Connected {
    connection: Arc<Mutex<Option<Connection>>>,
    application: usize,
    space: Arc<str>,
}

/// What a rank says of itself.
struct Found {
    /// The lowest rank of its machine, and the cores there.
    lowest: u32,
    cores: u32,
    card: Card,
}

/// What holds for the hosts of a job.
struct Hosts {
    /// The lowest rank of each rank's machine.
    lowest: Vec<u32>,
    /// Ranks that share a core, and cores of each rank: see [`HostMap::with_cores`].
    crowd: (u32, u32),
    names: Vec<String>,
}

/// How a rank has joined.
pub(crate) struct Way {
    /// The segment of its host, and its place there.
    pub job: Job,
    pub place: usize,
    /// How it reaches the other hosts, if there are any.
    pub others: Option<(NetRank, HostMap, u64)>,
}

struct Connection {
    write: File,
    read: BufReader<File>,
}

fn failed(what: &str, e: impl Display) -> Error {
    Error::new(
        ErrorKind::System,
        format!("the launcher (PMI-1): {what}: {e}"),
    )
}

impl Connection {
    fn open(number: RawFd) -> std::io::Result<Connection> {
        let file = File::from(descriptor::take(number)?);
        Ok(Connection {
            write: file.try_clone()?,
            read: BufReader::new(file),
        })
    }

    fn say(&mut self, line: &str) -> std::io::Result<()> {
        self.write.write_all(format!("{line}\n").as_bytes())
    }

    /// Sends a line, and reads the answer, which must be of the kind `answers`.
    fn ask(&mut self, line: &str, answers: &str) -> Result<HashMap<String, String>> {
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

    fn put(&mut self, space: &str, key: &str, value: &str) -> Result<()> {
        let line = format!("cmd=put kvsname={space} key={key} value={value}");
        self.ask(&line, "put_result").map(drop)
    }

    fn get(&mut self, space: &str, key: &str) -> Result<String> {
        let line = format!("cmd=get kvsname={space} key={key}");
        let answer = self.ask(&line, "get_result")?;
        let value = answer.get("value").cloned();
        value.ok_or_else(|| failed(&line, "it answers without a value"))
    }

    fn barrier(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }
}

impl Connected {
    /// Joins as a rank; without a job if it is the only one.
    pub fn join(number: RawFd, rank: usize, ranks: usize) -> Result<(Connected, Option<Way>)> {
        let mut connection = Connection::open(number).map_err(|e| failed("PMI_FD", e))?;
        connection.ask(
            "cmd=init pmi_version=1 pmi_subversion=1",
            "response_to_init",
        )?;
        connection.ask("cmd=get_maxes", "maxes")?;
        let answer = connection.ask("cmd=get_appnum", "appnum")?;
        let application = answer.get("appnum").and_then(|text| text.parse().ok());
        let answer = connection.ask("cmd=get_my_kvsname", "my_kvsname")?;
        let space = answer.get("kvsname").cloned().unwrap_or_default();
        let launcher = Connected {
            connection: Arc::new(Mutex::new(Some(connection))),
            application: application.unwrap_or(0),
            space: space.into(),
        };
        let way = match ranks {
            1 => None,
            _ => Some(launcher.meet(rank as u32, ranks)?),
        };
        Ok((launcher, way))
    }

    /// Talks to the launcher.
    fn with<R>(&self, f: impl FnOnce(&mut Connection, &str) -> Result<R>) -> Result<R> {
        match self.connection().as_mut() {
            Some(connection) => f(connection, &self.space),
            None => Err(failed("a question", "this rank has said good-bye to it")),
        }
    }

    fn meet(&self, rank: u32, ranks: usize) -> Result<Way> {
        if rank == 0 {
            let key = JobKey::random().map_err(|e| failed("the job's key", e))?;
            let number = u64::from(std::process::id()) << 40 ^ osier_engine::trace::now_ns();
            let value = format!("{number:016x}|{}", key.to_text());
            self.with(|c, space| c.put(space, "osier-job", &value))?;
        }
        self.with(|c, _| c.barrier())?;
        let text = self.with(|c, space| c.get(space, "osier-job"))?;
        let (number, key) = of_job(&text).ok_or_else(|| bad_value("osier-job"))?;
        let meeting = Meeting::open(&meeting_place(), &text, rank);
        let meeting = meeting.inspect_err(|e| apart(rank, e)).ok();
        self.with(|c, _| c.barrier())?;
        let (job, here) = match &meeting {
            Some(meeting) => share(meeting, rank, ranks)?,
            None => (make(1)?, vec![rank]),
        };
        drop(meeting);
        let place = here.iter().position(|one| *one == rank);
        let place = place.ok_or_else(|| failed("joining the job", "it is another rank's"))?;
        let others = match here.len() == ranks {
            true => None,
            false => {
                let cores = job.cores() as u32;
                Some(self.look_out(rank, ranks, &here, cores, number, key)?)
            }
        };
        Ok(Way { job, place, others })
    }

    /// Says where this rank is called, and learns where the others are.
    fn look_out(
        &self,
        rank: u32,
        ranks: usize,
        here: &[u32],
        cores: u32,
        number: u64,
        key: JobKey,
    ) -> Result<(NetRank, HostMap, u64)> {
        let options = NetOptions {
            setting: config::network()?,
            ..NetOptions::new(rank, number, key)
        };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let net = NetRank::listen(options, &word(&host))?;
        let own = format!("{}|{cores}|{}", here[0], net.card().to_text());
        self.with(|c, space| c.put(space, &key_of(rank), &own))?;
        self.with(|c, _| c.barrier())?;
        let map = |lowest: &[u32]| {
            let map = HostMap::new(rank, lowest).filter(|_| lowest.len() == ranks);
            map.ok_or_else(|| failed("the hosts of the job", "a rank is missing"))
        };
        let mut hosts = None;
        if ranks <= ALL_LOOK_UP || rank == 0 {
            let all: Result<Vec<Found>> = (0..ranks as u32).map(|r| self.look_up(r)).collect();
            let all = all?;
            let lowest: Vec<u32> = all.iter().map(|found| found.lowest).collect();
            let cores: Vec<u32> = all.iter().map(|found| found.cores).collect();
            let names: Vec<String> = all.into_iter().map(|found| found.card.host).collect();
            let map = map(&lowest)?;
            hosts = Some(Hosts {
                lowest,
                crowd: map.crowd(&cores),
                names: map.of_hosts(&names),
            });
        }
        if ranks > ALL_LOOK_UP {
            hosts = Some(self.share_hosts(hosts)?);
        }
        let missing = || failed("the hosts of the job", "nobody has said where they are");
        let hosts = hosts.ok_or_else(missing)?;
        let (ranks_per_core, cores_per_rank) = hosts.crowd;
        let map = map(&hosts.lowest)?.with_cores(ranks_per_core, cores_per_rank);
        let map = map.with_names(hosts.names);
        if map.here() != here {
            let what = format!("{:?} say that they are here, and {here:?} are", map.here());
            return Err(failed("the hosts of the job", what));
        }
        net.look_up_in(Arc::new(self.clone()));
        Ok((net, map, number))
    }

    /// What a rank has said of itself.
    fn look_up(&self, rank: u32) -> Result<Found> {
        let key = key_of(rank);
        let text = self.with(|c, space| c.get(space, &key))?;
        let parsed = || {
            let mut words = text.splitn(3, '|');
            Some(Found {
                lowest: words.next()?.parse().ok()?,
                cores: words.next()?.parse().ok()?,
                card: Card::of_text(words.next()?)?,
            })
        };
        parsed().ok_or_else(|| bad_value(&key))
    }

    /// What rank 0 has looked up of all; `hosts` is that, of rank 0.
    fn share_hosts(&self, hosts: Option<Hosts>) -> Result<Hosts> {
        if let Some(hosts) = &hosts {
            let (ranks_per_core, cores_per_rank) = hosts.crowd;
            let text = format!("{ranks_per_core}|{cores_per_rank}");
            self.with(|c, space| c.put(space, "osier-cores", &text))?;
            let runs = hosts.lowest.chunk_by(|a, b| a == b);
            self.put_all("map", runs.map(|run| format!("{}x{},", run[0], run.len())))?;
            self.put_all("hosts", hosts.names.iter().map(|name| format!("{name},")))?;
        }
        self.with(|c, _| c.barrier())?;
        if let Some(hosts) = hosts {
            return Ok(hosts);
        }
        let text = self.with(|c, space| c.get(space, "osier-cores"))?;
        let crowd = text
            .split_once('|')
            .and_then(|(ranks, cores)| Some((ranks.parse().ok()?, cores.parse().ok()?)));
        let mut lowest = Vec::new();
        for part in self.get_all("map")? {
            of_runs(&part, &mut lowest).ok_or_else(|| bad_value("osier-map"))?;
        }
        let names = self.get_all("hosts")?;
        let names = names.iter().flat_map(|part| part.split_terminator(','));
        Ok(Hosts {
            lowest,
            crowd: crowd.ok_or_else(|| bad_value("osier-cores"))?,
            names: names.map(String::from).collect(),
        })
    }

    /// Puts a text of any length, in parts that are short enough.
    fn put_all(&self, name: &str, words: impl Iterator<Item = String>) -> Result<()> {
        let parts = to_parts(words);
        for (at, part) in parts.iter().enumerate() {
            let more = if at + 1 < parts.len() { "+" } else { "" };
            let value = format!("{part}{more}");
            self.with(|c, space| c.put(space, &format!("osier-{name}-{at}"), &value))?;
        }
        Ok(())
    }

    /// Gets the parts of [`Connected::put_all`].
    fn get_all(&self, name: &str) -> Result<Vec<String>> {
        let mut parts = Vec::new();
        for at in 0.. {
            let key = format!("osier-{name}-{at}");
            let text = self.with(|c, space| c.get(space, &key))?;
            match text.strip_suffix('+') {
                Some(part) => parts.push(part.to_owned()),
                None => {
                    parts.push(text);
                    break;
                }
            }
        }
        Ok(parts)
    }

    fn connection(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Launcher for Connected {
    fn application(&self) -> usize {
        self.application
    }

    fn finish(&self) {
        if let Some(mut connection) = self.connection().take() {
            // The launcher may have gone.
            let _ = connection.ask("cmd=finalize", "finalize_ack");
        }
    }

    fn abort(&self, code: i32) {
        if let Some(connection) = self.connection().as_mut() {
            // The launcher may have gone.
            let _ = connection.say(&format!("cmd=abort exitcode={code}"));
        }
    }
}

/// Where ranks are called.
impl Directory for Connected {
    fn card(&self, rank: u32) -> std::result::Result<Card, String> {
        let found = self.look_up(rank).map_err(|e| e.to_string())?;
        Ok(found.card)
    }
}

fn key_of(rank: u32) -> String {
    format!("osier-{rank}")
}

/// The job's number and key.
fn of_job(text: &str) -> Option<(u64, JobKey)> {
    let (number, key) = text.split_once('|')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    Some((number, JobKey::of_text(key)?))
}

fn bad_value(key: &str) -> Error {
    let why = "cannot parse its value (hint: do all ranks run the same version?)";
    failed(key, why)
}

/// A name as a word of the protocol: without spaces and signs.
fn word(name: &str) -> String {
    let letters = name.trim().chars();
    let letters = letters.filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c));
    let name: String = letters.take(64).collect();
    match name.is_empty() {
        true => "-".into(),
        false => name,
    }
}

/// Words one behind the other, in parts that are short enough.
fn to_parts(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut parts = vec![String::new()];
    for word in words {
        match parts.last_mut() {
            Some(last) if last.len() + word.len() <= VALUE_BYTES => last.push_str(&word),
            _ => parts.push(word),
        }
    }
    parts
}

/// Reads runs of equal numbers, `NUMBERxTIMES` with commas between.
fn of_runs(text: &str, to: &mut Vec<u32>) -> Option<()> {
    /// Most ranks of a job that anybody has.
    const MOST: usize = 1 << 24;
    for run in text.split_terminator(',') {
        let (number, times) = run.split_once('x')?;
        let (number, times): (u32, usize) = (number.parse().ok()?, times.parse().ok()?);
        if times > MOST - to.len() {
            return None;
        }
        to.extend(std::iter::repeat_n(number, times));
    }
    Some(())
}

/// A segment for ranks of this machine.
fn make(ranks: usize) -> Result<Job> {
    let made = Job::create(&JobOptions {
        ranks,
        limit_bytes: config::shm_limit()?,
    });
    let job = made.map_err(|e| failed("making a job", e))?;
    job.set_checks(Setting::from_env()?.bits());
    job.set_delay(config::delay()?);
    Ok(job)
}

fn apart(rank: u32, why: &dyn Display) {
    tell(format_args!(
        "rank {rank} shares no memory with others of its machine, and reaches them over the network: {why}"
    ));
}

/// The segment of this machine, and its ranks: the lowest makes it.
fn share(meeting: &Meeting, rank: u32, ranks: usize) -> Result<(Job, Vec<u32>)> {
    let mut present = meeting.present()?;
    present.retain(|one| (*one as usize) < ranks);
    if present.first() == Some(&rank) {
        let called = meeting.call(&present[1..]);
        let mut here = vec![rank];
        here.extend(called.iter().map(|(rank, _)| *rank));
        let job = make(here.len())?;
        let note: Vec<u8> = here.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        let sent = |rank, result: std::result::Result<(), TransportError>| {
            result.map_err(|e| failed("sending the job", format!("to rank {rank}: {e}")))
        };
        for (rank, socket) in &called {
            sent(rank, meeting.hand_out(socket, &note, job.descriptors()))?;
        }
        for (rank, socket) in &called {
            sent(rank, meeting.await_taken(socket))?;
        }
        return Ok((job, here));
    }
    let (note, fds) = match meeting.receive(PATIENCE) {
        // The lowest could not call.
        Err(e) if e.kind() == TransportErrorKind::Unavailable => {
            apart(rank, &e);
            return Ok((make(1)?, vec![rank]));
        }
        received => received.map_err(|e| failed("joining the job", e))?,
    };
    let here = note.chunks_exact(4);
    let here = here
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    // It duplicates the descriptors that it gets.
    let numbers: Vec<String> = fds.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let job = Job::attach(&shm::describe(&numbers.join(",")));
    Ok((job.map_err(|e| failed("joining the job", e))?, here))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_survive_the_way() {
        for lowest in [
            vec![],
            vec![0; 5],
            (0..3000).collect(),
            (0..70_000).map(|r| r / 64).collect(),
        ] {
            let runs = lowest.chunk_by(|a, b| a == b);
            let parts = to_parts(runs.map(|run| format!("{}x{},", run[0], run.len())));
            assert!(parts.iter().all(|part| part.len() <= VALUE_BYTES));
            let mut back = Vec::new();
            for part in &parts {
                of_runs(part, &mut back).expect("a part");
            }
            assert_eq!(back, lowest);
        }
        for bad in ["1", "1x", "x1,", "1x99999999,", "1x1,,"] {
            assert!(of_runs(bad, &mut Vec::new()).is_none(), "{bad}");
        }
    }

    #[test]
    fn names_are_words() {
        assert_eq!(word("node-7.site\n"), "node-7.site");
        assert_eq!((word("a b=c|d").as_str(), word("")), ("abcd", "-".into()));
    }
}
