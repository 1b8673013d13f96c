//! A launcher that speaks PMI-1: a small one, whose answers can be wrong.
//!
//! Shared by tests of Rust programs and of C programs.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};

/// What the launcher and its threads, one per rank, have in common.
pub struct Server {
    values: Mutex<HashMap<String, String>>,
    ranks: usize,
    barrier: Mutex<Barrier>,
    moved: Condvar,
    /// The code that a rank wants the job to end with.
    aborted: Mutex<Option<String>>,
    finished: Mutex<usize>,
    /// Says this in place of the answer to such a command; nothing: hangs up.
    fault: Option<(&'static str, &'static str)>,
}

#[derive(Default)]
struct Barrier {
    inside: usize,
    rounds: usize,
    /// A rank has gone without a good-bye: nobody gets through any more.
    broken: bool,
}

impl Server {
    pub fn new(ranks: usize, fault: Option<(&'static str, &'static str)>) -> Arc<Self> {
        Arc::new(Server {
            values: Mutex::default(),
            ranks,
            barrier: Mutex::default(),
            moved: Condvar::new(),
            aborted: Mutex::default(),
            finished: Mutex::default(),
            fault,
        })
    }

    /// Starts a rank, and stays with it until it hangs up. It has its socket as standard
    /// input, which no other process can have got by accident.
    pub fn start(self: &Arc<Self>, command: &mut Command, rank: usize, ranks: usize) -> Child {
        let (ours, its) = UnixStream::pair().expect("sockets");
        let numbers = [("PMI_FD", 0), ("PMI_RANK", rank), ("PMI_SIZE", ranks)];
        let child = command
            .envs(numbers.map(|(key, value)| (key, value.to_string())))
            .stdin(OwnedFd::from(its))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank");
        // The command keeps the socket, and a rank's end would not be seen.
        command.stdin(Stdio::null());
        let server = self.clone();
        std::thread::spawn(move || {
            if !server.serve(ours) {
                server.barrier.lock().expect("a barrier").broken = true;
                server.moved.notify_all();
            }
        });
        child
    }

    /// The code that a rank has asked the job's end with, once all ranks have ended.
    pub fn aborted(&self) -> Option<String> {
        self.aborted.lock().expect("code").clone()
    }

    /// Ranks that have said good-bye.
    pub fn finished(&self) -> usize {
        *self.finished.lock().expect("a number")
    }

    /// Answers a rank until it says good-bye, or has gone: then it returns false.
    fn serve(&self, socket: UnixStream) -> bool {
        let mut write = socket.try_clone().expect("a socket");
        for line in BufReader::new(socket).lines() {
            let Ok(line) = line else { return false };
            let words = line.split(' ').filter_map(|word| word.split_once('='));
            let words: HashMap<&str, &str> = words.collect();
            let command = words["cmd"];
            let answer = match self.fault {
                Some((fault, "")) if fault == command => return false,
                Some((fault, said)) if fault == command => said.to_owned(),
                _ => match self.answer(command, &words) {
                    Some(answer) => answer,
                    None => return false,
                },
            };
            if write.write_all(format!("{answer}\n").as_bytes()).is_err() {
                return false;
            }
            if command == "finalize" {
                return true;
            }
        }
        false
    }

    /// Waits until all ranks have come; false if one of them cannot come any more.
    fn pass(&self) -> bool {
        let mut barrier = self.barrier.lock().expect("a barrier");
        let round = barrier.rounds;
        barrier.inside += 1;
        if barrier.inside == self.ranks {
            (barrier.inside, barrier.rounds) = (0, round + 1);
            self.moved.notify_all();
        }
        let waits = |barrier: &mut Barrier| barrier.rounds == round && !barrier.broken;
        let barrier = self.moved.wait_while(barrier, waits).expect("a barrier");
        barrier.rounds != round
    }

    /// The answer to a command; nothing, to hang up.
    fn answer(&self, command: &str, words: &HashMap<&str, &str>) -> Option<String> {
        let value = |key: &str| words.get(key).copied().unwrap_or_default().to_owned();
        Some(match command {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
            "get_appnum" => "cmd=appnum appnum=0".into(),
            // That of every job: jobs must not need different ones.
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0".into(),
            "put" => {
                let mut values = self.values.lock().expect("values");
                values.insert(value("key"), value("value"));
                "cmd=put_result rc=0 msg=success".into()
            }
            "barrier_in" => {
                if !self.pass() {
                    return None;
                }
                "cmd=barrier_out".into()
            }
            "get" => match self.values.lock().expect("values").get(words["key"]) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
            },
            "finalize" => {
                *self.finished.lock().expect("a number") += 1;
                "cmd=finalize_ack".into()
            }
            "abort" => {
                *self.aborted.lock().expect("code") = Some(value("exitcode"));
                "cmd=none".into()
            }
            other => format!("cmd={other} rc=-1 msg=unknown"),
        })
    }
}
