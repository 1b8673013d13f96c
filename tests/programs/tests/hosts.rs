//! Jobs on several hosts, which the tests make themselves.

#[path = "support/hosts.rs"]
mod hosts;
#[allow(dead_code, reason = "shared with the tests of launchers")]
#[path = "support/pmi.rs"]
mod pmi;
mod support;

use hosts::{Addresses, Hosts};
use pmi::Server;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use support::{EXERCISE, GUARD, emulated};

/// Ranks of a program, host by host.
struct Job {
    ranks: Vec<Option<Child>>,
    /// Lines of their output and errors: a rank, whether it is an error, the line.
    lines: Receiver<(usize, bool, String)>,
    seen: Vec<(usize, bool, String)>,
}

impl Job {
    /// Starts `exercise WHAT` with `per` ranks on each of `number` hosts: rank r on host r / per.
    fn start(hosts: &Hosts, number: usize, per: usize, env: &[(&str, &str)], what: &[&str]) -> Job {
        let ranks = number * per;
        let server = Server::new(ranks, None);
        let (send, lines) = channel();
        let start = |rank: usize| {
            let mut command = hosts.command(rank / per, EXERCISE);
            command.args(what);
            support::settings(&mut command, env);
            let mut child = server.start(&mut command, rank, ranks);
            let out = child
                .stdout
                .take()
                .map(|out| Box::new(out) as Box<dyn Read + Send>);
            let err = child
                .stderr
                .take()
                .map(|err| Box::new(err) as Box<dyn Read + Send>);
            for (is_error, from) in [(false, out), (true, err)] {
                let (send, from) = (send.clone(), from.expect("a pipe"));
                std::thread::spawn(move || {
                    for line in BufReader::new(from).lines().map_while(Result::ok) {
                        // The test may have ended.
                        let _ = send.send((rank, is_error, line));
                    }
                });
            }
            Some(child)
        };
        Job {
            ranks: (0..ranks).map(start).collect(),
            lines,
            seen: Vec::new(),
        }
    }

    fn all(&self) -> String {
        let lines = self.seen.iter().map(|(rank, is_error, line)| {
            format!("rank {rank}{}: {line}\n", if *is_error { "!" } else { "" })
        });
        lines.collect()
    }

    /// Waits until each of these ranks has said something; what.
    #[track_caller]
    fn say(&mut self, ranks: &[usize], what: &str) -> Vec<String> {
        let mut said = Vec::new();
        for rank in ranks {
            let of = |(one, _, line): &&(usize, bool, String)| one == rank && line.contains(what);
            while !self.seen.iter().any(|line| of(&line)) {
                match self.lines.recv_timeout(GUARD) {
                    Ok(line) => self.seen.push(line),
                    Err(e) => panic!("rank {rank} does not say {what:?}: {e}\n{}", self.all()),
                }
            }
            said.extend(self.seen.iter().find(of).map(|line| line.2.clone()));
        }
        said
    }

    fn kill(&mut self, rank: usize) {
        if let Some(mut child) = self.ranks[rank].take() {
            child.kill().expect("it runs");
            child.wait().expect("its end");
        }
    }

    /// Waits for the ends of all that were not killed.
    #[track_caller]
    fn ends(mut self, code: i32) -> Job {
        for child in self.ranks.iter_mut().filter_map(Option::take) {
            let mut child = child;
            let status = child.wait().expect("its end");
            self.seen.extend(self.lines.try_iter());
            assert_eq!(status.code(), Some(code), "{}", self.all());
        }
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(1)) {
            self.seen.push(line);
        }
        self
    }

    /// That all were through, and nobody complained.
    #[track_caller]
    fn through(self) {
        let ranks: Vec<usize> = (0..self.ranks.len()).collect();
        let mut done = self;
        done.say(&ranks, "is through");
        let done = done.ends(0);
        assert!(!done.seen.iter().any(|line| line.1), "{}", done.all());
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for mut child in self.ranks.iter_mut().filter_map(Option::take) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn programs_run_on_several_hosts() {
    let Some(hosts) = Hosts::new(3, Addresses::V4) else {
        return;
    };
    for (number, per) in [(2, 1), (2, 2), (3, 1)] {
        for what in [
            &["far-sizes"][..],
            &["crowd"],
            &["windows", "counters", "20"],
        ] {
            Job::start(&hosts, number, per, &[], what).through();
        }
    }
}

#[test]
fn device_buffers_go_between_hosts() {
    let Some(hosts) = Hosts::new(2, Addresses::V4).filter(|_| emulated()) else {
        return;
    };
    let driver = Path::new(EXERCISE).with_file_name("libosier_emulated_cuda.so");
    let driver = driver.to_str().expect("a name");
    let env = [("OSIER_EMULATED_GPUS", "2"), ("cuda-library", driver)];
    for per in [1, 2] {
        Job::start(&hosts, 2, per, &env, &["devices"]).through();
    }
}

#[test]
fn hosts_have_one_address_of_some_kind_that_works() {
    for addresses in [Addresses::V6, Addresses::OneDead] {
        let Some(hosts) = Hosts::new(2, addresses) else {
            return;
        };
        Job::start(&hosts, 2, 2, &[], &["far-sizes"]).through();
    }
}

/// The processes of a host are killed, and those of the others go on, also the ones that have
/// never talked to them.
#[test]
fn processes_of_a_host_end() {
    let Some(hosts) = Hosts::new(3, Addresses::V4) else {
        return;
    };
    for killed in [&[2, 3][..], &[0, 1], &[5]] {
        let left = (6 - killed.len()).to_string();
        let mut job = Job::start(&hosts, 3, 2, &[], &["survive", &left]);
        job.say(&[0, 1, 2, 3, 4, 5], "goes round");
        killed.iter().for_each(|rank| job.kill(*rank));
        let left: Vec<usize> = (0..6).filter(|rank| !killed.contains(rank)).collect();
        let on = format!("goes on with {}", left.len());
        job.say(&left, &on);
        job.ends(0);
    }
}

/// A host is cut off: the others go on without it, and it does not go on.
#[test]
fn a_host_is_cut_off() {
    let Some(hosts) = Hosts::new(3, Addresses::V4) else {
        return;
    };
    let env = [("OSIER_NETWORK", "gone=3s")];
    for cut in [0, 2] {
        let mut job = Job::start(&hosts, 3, 2, &env, &["survive", "4"]);
        job.say(&[0, 1, 2, 3, 4, 5], "goes round");
        hosts.link(cut, false);
        let off = [2 * cut, 2 * cut + 1];
        let left: Vec<usize> = (0..6).filter(|rank| !off.contains(rank)).collect();
        job.say(&left, "goes on with 4");
        for said in job.say(&left, "was lost") {
            assert!(said.contains(&format!("on host h{cut}")), "{said}");
        }
        job.say(&off, "2 of 6 ranks are on this side");
        hosts.link(cut, true);
        off.iter().for_each(|rank| job.kill(*rank));
        job.ends(0);
    }
}

/// Of two halves neither goes on, unless it is said which.
#[test]
fn a_network_is_cut_in_halves() {
    let Some(hosts) = Hosts::new(2, Addresses::V4) else {
        return;
    };
    for tie in [false, true] {
        let network = if tie { "gone=3s,tie=lowest" } else { "gone=3s" };
        let env = [("OSIER_NETWORK", network)];
        let mut job = Job::start(&hosts, 2, 2, &env, &["survive", "2"]);
        job.say(&[0, 1, 2, 3], "goes round");
        hosts.link(1, false);
        let off = match tie {
            true => &[2, 3][..],
            false => &[0, 1, 2, 3],
        };
        if tie {
            job.say(&[0, 1], "goes on with 2");
        }
        job.say(off, "2 of 4 ranks are on this side");
        off.iter().for_each(|rank| job.kill(*rank));
        hosts.link(1, true);
        job.ends(0);
    }
}
