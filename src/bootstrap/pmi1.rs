//! The start under launchers that speak PMI-1, such as the Hydra of MPICH and Intel MPI.
//!
//! ```text
//! rank r > 0   put r: machine, socket   barrier   get 0, compare machines
//!                                                 ... descriptors of the job, attach
//! rank 0       put 0: machine           barrier   get r, send it the job's descriptors
//! ```
//!
//! The launcher only introduces the ranks to each other; the job is Osier's own, made by
//! rank 0, without a hang watchdog.
//!
//! # Sources
//! The simple wire protocol of PMI-1: lines of `key=value` words, `cmd` first.

use super::descriptor;
use crate::config;
use osier_engine::check::Setting;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::Launcher;
use osier_transports::cuda_ipc::{Name, Socket, send};
use osier_transports::shm::{self, Job, JobOptions};
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long ranks wait for the message of rank 0 right after a barrier.
const PATIENCE: Duration = Duration::from_secs(60);

/// The connection to a launcher that knows that this rank has joined.
pub(crate) struct Connected {
    connection: Mutex<Option<Connection>>,
    application: usize,
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

    fn put(&mut self, space: &str, rank: usize, card: &Card) -> Result<()> {
        let value = card.to_text();
        let line = format!("cmd=put kvsname={space} key=osier-{rank} value={value}");
        self.ask(&line, "put_result").map(drop)
    }

    fn get(&mut self, space: &str, rank: usize) -> Result<Card> {
        let line = format!("cmd=get kvsname={space} key=osier-{rank}");
        let answer = self.ask(&line, "get_result")?;
        let card = answer.get("value").and_then(|value| Card::of_text(value));
        card.ok_or_else(|| {
            let why = "cannot parse the value of rank";
            failed(
                &line,
                format!("{why} {rank} (hint: do all ranks run the same version?)"),
            )
        })
    }

    fn barrier(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }
}

/// Identity of a rank's machine, for shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Machine {
    /// Differs between machines and between their boots; `-` if unknown.
    boot: String,
    /// Network namespace, within which sockets find each other.
    network: u64,
    /// For error messages.
    host: String,
}

impl Machine {
    fn own() -> Machine {
        // Words of the protocol have neither spaces nor more than one equals sign.
        let word = |path: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let text: String = text
                .trim()
                .chars()
                .filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c))
                .take(64)
                .collect();
            match text.is_empty() {
                true => "-".into(),
                false => text,
            }
        };
        Machine {
            boot: word("/proc/sys/kernel/random/boot_id"),
            network: std::fs::metadata("/proc/self/ns/net").map_or(0, |data| data.ino()),
            host: word("/proc/sys/kernel/hostname"),
        }
    }

    /// Checks that two ranks are on one machine.
    fn meets(&self, own: usize, other: &Machine, rank: usize) -> Result<()> {
        if (&self.boot, self.network) == (&other.boot, other.network) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the launcher (PMI-1) started rank {own} on {} and rank {rank} on {}, and the ranks of a job run on one machine so far, within one network namespace (hint: ask the launcher for one host)",
                self.host, other.host
            ),
        ))
    }
}

/// A rank's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    machine: Machine,
    /// Socket on which it waits for the job; none for rank 0.
    socket: Option<Name>,
}

impl Card {
    fn to_text(&self) -> String {
        let Machine {
            boot,
            network,
            host,
        } = &self.machine;
        let socket = self.socket.map_or("-".into(), |name| to_hex(&name));
        format!("1/{socket}/{boot}/{network}/{host}")
    }

    fn of_text(text: &str) -> Option<Card> {
        let words: Vec<&str> = text.split('/').collect();
        let ["1", socket, boot, network, host] = words[..] else {
            return None;
        };
        Some(Card {
            machine: Machine {
                boot: boot.to_owned(),
                network: network.parse().ok()?,
                host: host.to_owned(),
            },
            socket: match socket {
                "-" => None,
                name => Some(of_hex(name)?),
            },
        })
    }
}

fn to_hex(name: &Name) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> Option<Name> {
    let mut name = Name::default();
    if text.len() != 2 * name.len() {
        return None;
    }
    for (at, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(name)
}

impl Connected {
    /// Joins as a rank; without a job if it is the only one.
    pub fn join(number: RawFd, rank: usize, ranks: usize) -> Result<(Connected, Option<Job>)> {
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
        let job = match (rank, ranks) {
            (0, 1) => None,
            (0, _) => Some(lead(&mut connection, &space, ranks)?),
            _ => Some(follow(&mut connection, &space, rank)?),
        };
        let launcher = Connected {
            connection: Mutex::new(Some(connection)),
            application: application.unwrap_or(0),
        };
        Ok((launcher, job))
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

/// As rank 0: makes the job, and hands it out.
fn lead(connection: &mut Connection, space: &str, ranks: usize) -> Result<Job> {
    let made = Job::create(&JobOptions {
        ranks,
        limit_bytes: config::shm_limit()?,
    });
    let job = made.map_err(|e| failed("making a job", e))?;
    job.set_checks(Setting::from_env()?.bits());
    job.set_delay(config::delay()?);
    let machine = Machine::own();
    let card = Card {
        machine: machine.clone(),
        socket: None,
    };
    connection.put(space, 0, &card)?;
    connection.barrier()?;
    let copy = |fd: std::os::fd::BorrowedFd<'_>| {
        let fd = fd.try_clone_to_owned();
        fd.map(|fd| (0, fd)).map_err(|e| failed("a descriptor", e))
    };
    let pieces: Vec<(u64, OwnedFd)> = job.descriptors().map(copy).collect::<Result<_>>()?;
    for rank in 1..ranks {
        let card = connection.get(space, rank)?;
        machine.meets(0, &card.machine, rank)?;
        let name = card
            .socket
            .ok_or_else(|| failed("sending the job", format!("rank {rank} has no socket")))?;
        send(&name, rank as u64, &pieces)
            .map_err(|e| failed("sending the job", format!("to rank {rank}: {e}")))?;
    }
    Ok(job)
}

fn follow(connection: &mut Connection, space: &str, rank: usize) -> Result<Job> {
    let socket = Socket::bind().map_err(|e| failed("a socket", e))?;
    let machine = Machine::own();
    let card = Card {
        machine: machine.clone(),
        socket: Some(socket.name()),
    };
    connection.put(space, rank, &card)?;
    connection.barrier()?;
    machine.meets(rank, &connection.get(space, 0)?.machine, 0)?;
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
    // It duplicates the descriptors that it gets.
    let numbers: Vec<String> = fds.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let job = Job::attach(&shm::describe(&numbers.join(",")));
    job.map_err(|e| failed("joining the job", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_survive_the_way() {
        let machine = Machine::own();
        for socket in [None, Some([7; 16])] {
            let card = Card {
                machine: machine.clone(),
                socket,
            };
            let text = card.to_text();
            assert!(text.len() < 256 && !text.contains([' ', '=']), "{text}");
            assert_eq!(Card::of_text(&text), Some(card));
        }
        for bad in [
            "",
            "1",
            "2/-/b/1/h",
            "1/00/b/1/h",
            "1/-/b/x/h",
            "1/-/b/1/h/more",
        ] {
            assert_eq!(Card::of_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranks_on_two_machines_name_them() {
        let machine = |boot: &str, network, host: &str| Machine {
            boot: boot.into(),
            network,
            host: host.into(),
        };
        let own = machine("a", 1, "h0");
        assert!(own.meets(0, &machine("a", 1, "other-name"), 1).is_ok());
        for other in [machine("b", 1, "h1"), machine("a", 2, "h1")] {
            let e = own.meets(0, &other, 1).expect_err("another machine");
            let text = e.to_string();
            assert!(
                text.contains("rank 0 on h0") && text.contains("rank 1 on h1"),
                "{text}"
            );
        }
    }
}
