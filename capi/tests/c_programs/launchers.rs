//! Launchers of others, which speak PMI-1: a small one of our own, and Hydra where it is.

use super::{build, ended, place, run, text};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, Mutex};

/// What the launcher and its threads, one per rank, have in common.
struct Server {
    values: Mutex<HashMap<String, String>>,
    barrier: Barrier,
    /// The code that a rank wants the job to end with.
    aborted: Mutex<Option<String>>,
    /// Says this in place of the answer to such a command; nothing: hangs up.
    fault: Option<(&'static str, &'static str)>,
}

impl Server {
    fn new(ranks: usize, fault: Option<(&'static str, &'static str)>) -> Arc<Self> {
        Arc::new(Server {
            values: Mutex::default(),
            barrier: Barrier::new(ranks),
            aborted: Mutex::default(),
            fault,
        })
    }

    /// Starts a rank, and stays with it until it hangs up. It has its socket as standard
    /// input, which no other process can have got by accident.
    fn start(self: &Arc<Self>, program: &Path, rank: usize, size: usize) -> Child {
        let (ours, its) = UnixStream::pair().expect("sockets");
        let child = Command::new(program)
            .envs([("PMI_FD", 0), ("PMI_RANK", rank), ("PMI_SIZE", size)].map(own))
            .stdin(OwnedFd::from(its))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank");
        let server = self.clone();
        std::thread::spawn(move || server.serve(ours));
        child
    }

    fn serve(&self, socket: UnixStream) {
        let mut write = socket.try_clone().expect("a socket");
        for line in BufReader::new(socket).lines() {
            let Ok(line) = line else { return };
            let words = line.split(' ').filter_map(|word| word.split_once('='));
            let words: HashMap<&str, &str> = words.collect();
            let command = words["cmd"];
            let answer = match self.fault {
                Some((fault, "")) if fault == command => return,
                Some((fault, said)) if fault == command => said.to_owned(),
                _ => self.answer(command, &words),
            };
            if write.write_all(format!("{answer}\n").as_bytes()).is_err() {
                return;
            }
            if command == "finalize" {
                return;
            }
        }
    }

    fn answer(&self, command: &str, words: &HashMap<&str, &str>) -> String {
        let value = |key: &str| words.get(key).copied().unwrap_or_default().to_owned();
        match command {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
            "get_appnum" => "cmd=appnum appnum=0".into(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0".into(),
            "put" => {
                let mut values = self.values.lock().expect("values");
                values.insert(value("key"), value("value"));
                "cmd=put_result rc=0 msg=success".into()
            }
            "barrier_in" => {
                self.barrier.wait();
                "cmd=barrier_out".into()
            }
            "get" => match self.values.lock().expect("values").get(words["key"]) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
            },
            "finalize" => "cmd=finalize_ack".into(),
            "abort" => {
                *self.aborted.lock().expect("code") = Some(value("exitcode"));
                "cmd=none".into()
            }
            other => format!("cmd={other} rc=-1 msg=unknown"),
        }
    }
}

fn own((key, value): (&'static str, usize)) -> (&'static str, String) {
    (key, value.to_string())
}

/// Runs a program on so many ranks: the codes and the texts of all.
fn launched(program: &Path, ranks: usize) -> Vec<(Option<i32>, String, String)> {
    let server = Server::new(ranks, None);
    let start = |rank| server.start(program, rank, ranks);
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let end = |child: Child| ended(&child.wait_with_output().expect("its end"));
    children.into_iter().map(end).collect()
}

#[test]
fn ranks_meet_under_a_launcher_that_speaks_pmi() {
    for (name, sizes) in [("p2p", [2, 3]), ("collectives", [1, 4])] {
        let Some(program) = build(name) else { return };
        for ranks in sizes {
            for (rank, (code, stdout, stderr)) in launched(&program, ranks).iter().enumerate() {
                let wanted = if rank == 0 { "through\n" } else { "" };
                assert_eq!(
                    (*code, stdout.as_str()),
                    (Some(0), wanted),
                    "{name}, rank {rank} of {ranks}: {stderr}"
                );
            }
        }
    }
}

#[test]
fn wrong_words_of_a_launcher_are_errors() {
    let Some(program) = build("groups") else {
        return;
    };
    for (rank, command, said, wanted) in [
        (
            0,
            "init",
            "cmd=response_to_init rc=-1 msg=version",
            "code -1 version",
        ),
        (0, "init", "cmd=maxes rc=0", "not cmd=response_to_init"),
        (0, "init", "nonsense", "it answers \"nonsense\""),
        (0, "init", "", "it has gone"),
        (1, "get_my_kvsname", "", "it has gone"),
        (
            1,
            "put",
            "cmd=put_result rc=-1 msg=duplicate_key",
            "code -1 duplicate_key",
        ),
        (
            1,
            "barrier_in",
            "cmd=barrier_out rc=-1",
            "barrier_in: code -1",
        ),
        (1, "barrier_in", "", "it has gone"),
    ] {
        let server = Server::new(2, Some((command, said)));
        let end = server.start(&program, rank, 2).wait_with_output();
        let (code, stdout, stderr) = ended(&end.expect("its end"));
        assert_eq!(
            (code, stdout.as_str()),
            (Some(16), ""),
            "{command}: {stderr}"
        );
        assert!(
            stderr.contains("the launcher (PMI-1)") && stderr.contains(wanted),
            "{command}: {stderr}"
        );
    }
    // Rank 0 asks for names of sockets.
    for said in [
        "cmd=get_result rc=-1 msg=key_not_found",
        "cmd=get_result rc=0 value=no-name",
        "cmd=get_result rc=0 value=00112233445566778899aabbccddeeff",
    ] {
        let server = Server::new(1, Some(("get", said)));
        let end = server.start(&program, 0, 2).wait_with_output();
        let (code, _, stderr) = ended(&end.expect("its end"));
        assert_eq!(code, Some(16), "{said}: {stderr}");
        assert!(stderr.contains("the launcher (PMI-1)"), "{said}: {stderr}");
    }
    for (variable, value) in [
        ("PMI_FD", "stdin"),
        ("PMI_FD", "1000000"),
        ("PMI_RANK", "2"),
        ("PMI_RANK", "-1"),
        ("PMI_SIZE", "many"),
    ] {
        let mut command = Command::new(&program);
        command.envs([("PMI_FD", "0"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
        let (code, _, stderr) = ended(&run(command.env(variable, value)));
        assert_eq!(code, Some(16), "{variable}={value}: {stderr}");
        assert!(stderr.contains(variable), "{variable}={value}: {stderr}");
    }
}

#[test]
fn an_abort_is_told_to_the_launcher() {
    let Some(program) = build("ends") else {
        return;
    };
    let server = Server::new(1, None);
    let (ours, its) = UnixStream::pair().expect("sockets");
    let mut command = Command::new(&program);
    command.arg("abort").stdin(OwnedFd::from(its));
    command.envs([("PMI_FD", 0), ("PMI_RANK", 0), ("PMI_SIZE", 1)].map(own));
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    drop(command);
    let served = server.clone();
    let thread = std::thread::spawn(move || served.serve(ours));
    let end = child.and_then(Child::wait_with_output).expect("its end");
    assert_eq!(ended(&end).0, Some(5));
    thread.join().expect("the server");
    let code = server.aborted.lock().expect("code").clone();
    assert_eq!(code.as_deref(), Some("5"));
}

/// Launchers of MPICH and Intel MPI: those that `cargo xtask compare` has installed, and on
/// PATH.
fn hydras() -> Vec<PathBuf> {
    let peers = super::target().join("../peers");
    let installed = ["mpich", "intelmpi"].map(|name| peers.join(name).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = installed.into_iter().chain(std::env::split_paths(&path));
    let named = folders.map(|folder| folder.join("mpiexec.hydra"));
    named.filter(|file| file.is_file()).collect()
}

#[test]
fn hydra_starts_ranks() {
    if place().is_none() {
        return;
    }
    let hydras = hydras();
    if hydras.is_empty() {
        eprintln!("skipped: no mpiexec.hydra (hint: cargo xtask compare installs MPICH's)");
    }
    for hydra in &hydras {
        // Intel MPI finds its other programs by this.
        let home = hydra.ancestors().nth(2).expect("a folder");
        let launch = |ranks: &str, program: &Path, arguments: &[&str]| {
            let mut command = Command::new(hydra);
            command.env("I_MPI_ROOT", home).args(["-n", ranks]);
            command.arg(program).args(arguments);
            let (code, stdout, stderr) = ended(&run(&mut command));
            (code, stdout, format!("{}: {stderr}", text(hydra)))
        };
        for (name, sizes) in [("p2p", ["2", "4"]), ("collectives", ["1", "4"])] {
            let Some(program) = build(name) else { return };
            for ranks in sizes {
                let (code, stdout, stderr) = launch(ranks, &program, &[]);
                assert_eq!((code, stdout.as_str()), (Some(0), "through\n"), "{stderr}");
            }
        }
        let Some(program) = build("ends") else { return };
        for how in ["abort", "kill", "exit"] {
            let (code, stdout, stderr) = launch("3", &program, &[how]);
            assert!(
                code != Some(0) && !stdout.contains("through"),
                "{how}: {stderr}"
            );
        }
    }
}
