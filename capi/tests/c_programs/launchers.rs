//! Launchers of others: a small one of our own that speaks PMI-1, Hydra where it is, and those
//! whose jobs cannot be joined.

use super::{GUARD, build, ended, needs, place, run, text};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

#[allow(dead_code, reason = "shared with the tests of Rust programs")]
#[path = "../../../tests/programs/tests/support/pmi.rs"]
mod pmi;

use pmi::Server;

/// Runs a program on so many ranks: the codes and the texts of all.
fn launched(
    program: &Path,
    ranks: usize,
    arguments: &[&str],
) -> Vec<(Option<i32>, String, String)> {
    let server = Server::new(ranks, None);
    let start = |rank| server.start(Command::new(program).args(arguments), rank, ranks);
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let _guard = HangGuard::of(children.iter().map(Child::id).collect());
    let end = |child: Child| ended(&child.wait_with_output().expect("its end"));
    children.into_iter().map(end).collect()
}

/// Kills processes that are still there after ten times what any takes, until it is dropped.
struct HangGuard(#[allow(dead_code, reason = "dropping it tells the thread")] Sender<()>);

impl HangGuard {
    fn of(processes: Vec<u32>) -> HangGuard {
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let limit = Duration::from_secs(GUARD.parse().expect("seconds"));
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                for process in processes {
                    // SAFETY: a signal to a child that nobody has waited for, but for those
                    // that ended while others hang.
                    unsafe { libc::kill(process as libc::pid_t, libc::SIGKILL) };
                }
            }
        });
        HangGuard(sender)
    }
}

#[test]
fn ranks_meet_under_a_launcher_that_speaks_pmi() {
    for (name, sizes) in [("p2p", [2, 3]), ("collectives", [1, 4])] {
        let Some(program) = build(name) else { return };
        for ranks in sizes {
            for (rank, (code, stdout, stderr)) in launched(&program, ranks, &[]).iter().enumerate()
            {
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

/// A launcher may do nothing when a rank's process ends: the others find out.
#[test]
fn ends_are_seen_where_the_launcher_does_nothing() {
    let Some(program) = build("ends") else {
        return;
    };
    for how in ["kill", "exit"] {
        let all = launched(&program, 3, &[how]);
        for (rank, (code, stdout, stderr)) in all.iter().enumerate().take(2) {
            assert!(
                !matches!(code, Some(0) | None) && !stdout.contains("through"),
                "{how}, rank {rank}: {code:?} {stderr}"
            );
            assert!(stderr.contains("rank 2"), "{how}, rank {rank}: {stderr}");
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
            0,
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
        let end = server
            .start(&mut Command::new(&program), rank, 2)
            .wait_with_output();
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
    // A rank that finds no other on its machine asks for the job.
    for said in [
        "cmd=get_result rc=-1 msg=key_not_found",
        "cmd=get_result rc=0 value=no-name",
        "cmd=get_result rc=0 value=00112233445566778899aabbccddeeff",
    ] {
        let server = Server::new(1, Some(("get", said)));
        let end = server
            .start(&mut Command::new(&program), 0, 2)
            .wait_with_output();
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
    let child = server.start(Command::new(&program).arg("abort"), 0, 1);
    let end = child.wait_with_output().expect("its end");
    assert_eq!(ended(&end).0, Some(5));
    // Its thread reads what the socket still holds.
    let start = Instant::now();
    while server.aborted().is_none() && start.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    assert_eq!(server.aborted().as_deref(), Some("5"));
}

/// A process that another launcher started as one of several ends; queries are answered.
#[test]
fn jobs_that_cannot_be_joined_are_refused() {
    let Some(program) = build("foreign") else {
        return;
    };
    for (environment, says) in [
        (
            &[("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_RANK", "1")][..],
            "Open MPI's mpirun started this process as one of 2",
        ),
        (
            &[("SLURM_STEP_NUM_TASKS", "4"), ("PMIX_RANK", "3")],
            "srun --mpi=pmix started this process as one of 4",
        ),
        (&[("PMIX_RANK", "0")], "a launcher that speaks PMIx"),
    ] {
        let start = |alone: &str| {
            let mut command = Command::new(&program);
            command.envs(environment.iter().copied());
            ended(&run(command.env("OSIER_ALONE", alone)))
        };
        let (code, stdout, stderr) = start("0");
        assert!(code.is_some_and(|code| code != 0), "{stderr}");
        assert_eq!(stdout, "asked\n");
        for part in [says, "osier run", "OSIER_ALONE=1"] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        let (code, stdout, stderr) = start("1");
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(stdout, "asked\nrank 0 of 1\nthrough\n");
    }
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
        needs::missing("hydra", "neither below the target folder nor on PATH");
    }
    for hydra in &hydras {
        // Intel MPI finds its other programs by this.
        let home = hydra.ancestors().nth(2).expect("a folder");
        let launch = |ranks: &str, program: &Path, arguments: &[&str]| {
            let mut command = Command::new(hydra);
            command.env("I_MPI_ROOT", home).args(["-n", ranks]);
            command.env("MPIEXEC_TIMEOUT", GUARD);
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
                code != Some(0) && !stdout.contains("through") && !stderr.contains("TIMED OUT"),
                "{how}: {stderr}"
            );
        }
    }
}

/// A rank that is killed while it writes leaves no half of a line: each goes out in one piece.
#[test]
fn what_is_said_at_the_end_is_one_piece() {
    let Some(program) = build("ends") else {
        return;
    };
    let (ours, its) = UnixDatagram::pair().expect("sockets");
    let guard = Some(Duration::from_secs(60));
    ours.set_read_timeout(guard).expect("a time limit");
    let mut command = Command::new(&program);
    command.arg("abort").stderr(OwnedFd::from(its));
    let code = command.status().expect("its end").code();
    // Each write is a datagram.
    let mut bytes = [0; 1000];
    let length = ours.recv(&mut bytes).expect("something is said");
    assert_eq!(code, Some(5));
    assert_eq!(
        String::from_utf8_lossy(&bytes[..length]),
        "osier: rank 0: MPI_Abort with code 5\n"
    );
}
