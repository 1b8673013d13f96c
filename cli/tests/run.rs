//! `osier run` from outside: the real binary with programs of the shell.
//!
//! Processes of a test are found by a variable in their environment, which
//! their children inherit. Nothing here sleeps to be in time: tests wait for
//! what they want to see, and `support::GUARD` ends those that would hang.

mod support;

use std::io::Write;
use std::time::Duration;

use support::{Launch, Pty, wait_for};

#[test]
fn success_is_zero() {
    let done = Launch::ranks(3).shell("true").finish();
    assert_eq!(done.code, Some(0));
    assert_eq!(done.stdout, "");
    assert_eq!(done.stderr, "");
}

#[test]
fn ranks_know_who_they_are() {
    let done = Launch::ranks(3)
        .shell("echo $OSIER_RANK of $OSIER_RANKS")
        .finish();
    assert_eq!(done.sorted_lines(), ["0 of 3", "1 of 3", "2 of 3"]);
}

/// The library may be absent here; what is asked for is told or refused.
#[test]
fn emulated_gpus_are_told_to_the_ranks_or_refused() {
    let done = Launch::ranks(2)
        .option("--emulate-gpus=2")
        .shell("echo $OSIER_EMULATED_GPUS $OSIER_DEBUG")
        .finish();
    if done.code == Some(0) {
        for line in done.sorted_lines() {
            assert!(line.starts_with("2 cuda-library=/"), "{line}");
            assert!(line.ends_with("/libosier_emulated_cuda.so"), "{line}");
        }
    } else {
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(
            done.stderr.contains("cargo build -p osier-emulated-cuda"),
            "{}",
            done.stderr
        );
    }
    let done = Launch::ranks(1)
        .option("--emulate-gpus=1")
        .option("--env=OSIER_DEBUG=cuda-library=/nowhere/libcuda.so.1")
        .shell("true")
        .finish();
    assert_eq!(done.code, Some(2));
    assert!(
        done.stderr.contains("/nowhere/libcuda.so.1"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_failing_rank_is_named_and_its_code_returned() {
    let done = Launch::ranks(8)
        .shell("if [ $OSIER_RANK = 3 ]; then exit 3; fi; exec sleep 1000")
        .finish();
    assert_eq!(done.code, Some(3));
    assert!(
        done.stderr.starts_with("osier: rank 3 of 8 (pid "),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.ends_with(", sh) exited with code 3\n"),
        "{}",
        done.stderr
    );
}

#[test]
fn the_first_failure_in_time_counts() {
    let mut job = Launch::ranks(2)
        .option("--on-death=report")
        .shell("if [ $OSIER_RANK = 0 ]; then read line; exit 4; fi; exit 5")
        .start();
    job.wait_stderr("rank 1 of 2");
    drop(job.stdin.take());
    let done = job.finish();
    assert_eq!(done.code, Some(5));
    assert!(done.stderr.contains("rank 0 of 2"), "{}", done.stderr);
    assert!(
        done.stderr.contains("exited with code 4"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_signal_is_named_and_returned_as_128_plus_its_number() {
    for (signal, name) in [
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
    ] {
        let done = Launch::ranks(2)
            .shell(&format!(
                "ulimit -c 0; if [ $OSIER_RANK = 1 ]; then kill -{signal} $$; fi; exec sleep 1000"
            ))
            .finish();
        assert_eq!(done.code, Some(128 + signal));
        let expected = format!("died of signal {signal} ({name})");
        assert!(
            done.stderr.starts_with("osier: rank 1 of 2 (pid "),
            "{}",
            done.stderr
        );
        assert!(done.stderr.contains(&expected), "{}", done.stderr);
        assert_eq!(done.stderr.contains("out of memory?"), signal == 9);
        assert_eq!(done.stderr.contains("shared memory full?"), signal == 7);
    }
}

#[test]
fn a_rank_killed_from_outside_ends_the_job() {
    let job = Launch::ranks(4)
        .option("--label")
        .shell("echo $$; exec sleep 1000")
        .start();
    job.wait_stdout_lines(4);
    let pid = job
        .stdout()
        .lines()
        .find_map(|l| l.strip_prefix("[2] ").map(str::to_owned));
    support::kill(pid.unwrap().parse().unwrap(), libc::SIGKILL);
    let done = job.finish();
    assert_eq!(done.code, Some(137));
    assert!(done.stderr.contains("rank 2 of 4"), "{}", done.stderr);
}

#[test]
fn ranks_that_ignore_sigterm_are_killed() {
    let done = Launch::ranks(3)
        .shell("trap '' TERM; if [ $OSIER_RANK = 1 ]; then exit 1; fi; sleep 1000")
        .finish();
    assert_eq!(done.code, Some(1));
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
}

#[test]
fn ranks_may_clean_up_on_sigterm() {
    let done = Launch::ranks(2)
        .shell(
            "if [ $OSIER_RANK = 1 ]; then read x < $FIFO; exit 7; fi
             trap 'echo cleaned; exit 0' TERM; sleep 1000 & echo > $FIFO; wait",
        )
        .fifo()
        .finish();
    assert_eq!(done.code, Some(7));
    assert_eq!(done.stdout, "cleaned\n");
}

#[test]
fn under_report_the_others_go_on() {
    let mut job = Launch::ranks(3)
        .option("--on-death")
        .option("report")
        .shell(
            "if [ $OSIER_RANK = 1 ]; then kill -9 $$; fi; [ $OSIER_RANK = 0 ] && read x; echo done",
        )
        .start();
    job.wait_stderr("rank 1 of 3");
    job.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let done = job.finish();
    assert_eq!(done.stdout, "done\ndone\n");
    assert_eq!(done.code, Some(137));
}

#[test]
fn labels_are_aligned() {
    let done = Launch::ranks(11)
        .option("--label")
        .shell("echo hello")
        .finish();
    let lines = done.sorted_lines();
    assert_eq!(lines[0], "[ 0] hello");
    assert_eq!(lines[10], "[10] hello");
}

#[test]
fn lines_of_eight_ranks_stay_whole() {
    // Each line is written in three system calls.
    let script = "i=0; while [ $i -lt 400 ]; do
        printf '<%s:' $OSIER_RANK; printf '%0200d' $i; echo ':end>'; echo '<err>' >&2
        i=$((i+1)); done";
    let done = Launch::ranks(8).shell(script).finish();
    assert_eq!(done.code, Some(0));
    let mut next = [0; 8];
    for line in done.stdout.lines() {
        let inner = line.strip_prefix('<').and_then(|l| l.strip_suffix(":end>"));
        let (rank, i) = inner
            .and_then(|l| l.split_once(':'))
            .unwrap_or_else(|| panic!("{line}"));
        let rank: usize = rank.parse().unwrap();
        assert_eq!(i.len(), 200);
        assert_eq!(i.parse::<usize>().unwrap(), next[rank]);
        next[rank] += 1;
    }
    assert_eq!(next, [400; 8]);
    assert_eq!(done.stderr, "<err>\n".repeat(8 * 400));
}

#[test]
fn standard_output_and_error_in_one_file_do_not_mix() {
    let script = "i=0; while [ $i -lt 300 ]; do
        printf '<%0100d' $i; echo '>'; printf '<%0100d' $i >&2; echo '>' >&2
        i=$((i+1)); done";
    let done = Launch::ranks(4).merge_stderr().shell(script).finish();
    assert_eq!(done.stdout.lines().count(), 2 * 4 * 300);
    for line in done.stdout.lines() {
        assert!(
            line.starts_with('<') && line.ends_with('>') && line.len() == 102,
            "{line}"
        );
    }
}

#[test]
fn a_long_line_passes_unchanged() {
    let done = Launch::ranks(2)
        .shell("if [ $OSIER_RANK = 1 ]; then head -c 3000000 /dev/zero | tr '\\0' x; echo; fi")
        .finish();
    assert_eq!(done.stdout.len(), 3_000_001);
    assert!(done.stdout.trim_end().bytes().all(|b| b == b'x'));
}

#[test]
fn a_last_line_without_newline_is_kept() {
    for ranks in [1, 2] {
        let done = Launch::ranks(ranks)
            .shell("[ $OSIER_RANK = 0 ] && printf 'no newline'; exit 0")
            .finish();
        assert_eq!(done.stdout, "no newline");
    }
}

#[test]
fn a_progress_bar_is_seen_while_it_runs() {
    let mut job = Launch::ranks(2)
        .shell("[ $OSIER_RANK = 0 ] || exit 0; printf '\\r10 %%'; read x; printf '\\r20 %%'; read x; echo")
        .start();
    job.wait_stdout("\r10 %");
    job.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    job.wait_stdout("\r10 %\r20 %");
    drop(job.stdin.take());
    assert_eq!(job.finish().stdout, "\r10 %\r20 %\n");
}

#[test]
fn standard_input_goes_to_rank_zero() {
    let mut job = Launch::ranks(3)
        .option("--label")
        .shell("cat; echo end")
        .start();
    job.stdin.as_mut().unwrap().write_all(b"a line\n").unwrap();
    drop(job.stdin.take());
    let done = job.finish();
    assert_eq!(
        done.sorted_lines(),
        ["[0] a line", "[0] end", "[1] end", "[2] end"]
    );
}

#[test]
fn a_time_limit_ends_the_job() {
    for script in ["exec sleep 1000", "trap '' TERM; sleep 1000"] {
        let done = Launch::ranks(2)
            .option("--timeout=0.2")
            .shell(script)
            .finish();
        assert_eq!(done.code, Some(124));
        assert!(done.stderr.contains("0.2 s (--timeout)"), "{}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    let done = Launch::ranks(2)
        .option("--timeout=1000")
        .shell("true")
        .finish();
    assert_eq!(done.code, Some(0));
}

#[test]
fn the_time_limit_holds_while_nobody_reads_the_output() {
    let mut job = Launch::ranks(2)
        .unread()
        .option("--timeout=0.3")
        .shell("exec yes")
        .start();
    assert_eq!(job.wait().code(), Some(124));
}

#[test]
fn a_child_that_goes_on_writing_does_not_keep_a_dead_rank_alive() {
    let done = Launch::ranks(2)
        .shell("[ $OSIER_RANK = 0 ] && yes & exit 0")
        .finish();
    assert_eq!(done.code, Some(0));
    assert!(
        done.stdout
            .lines()
            .all(|line| line == "y" || line.is_empty())
    );
}

#[test]
fn a_reader_that_leaves_ends_the_writers() {
    let mut job = Launch::ranks(2).unread().shell("exec yes").start();
    job.drop_unread();
    assert_eq!(job.wait().code(), Some(128 + libc::SIGPIPE));
}

#[test]
fn missing_programs_and_folders() {
    let done = Launch::ranks(2).program("no-such-program", &[]).finish();
    assert_eq!(done.code, Some(127));
    assert!(
        done.stderr
            .contains("cannot find program 'no-such-program'")
    );
    assert!(done.stderr.contains("beside osier in "));
    assert!(done.stderr.contains("on PATH"));

    let done = Launch::ranks(2).program("/no/such/program", &[]).finish();
    assert_eq!(done.code, Some(127));
    let done = Launch::ranks(2).program("/etc/passwd", &[]).finish();
    assert_eq!(done.code, Some(126));
    let done = Launch::ranks(2).program("/tmp", &[]).finish();
    assert_eq!(done.code, Some(126));
    let done = Launch::ranks(2)
        .option("--wdir=/no/such")
        .shell("true")
        .finish();
    assert_eq!(done.code, Some(2));
}

#[test]
fn programs_are_sought_beside_osier_first() {
    // `osier` itself stands there.
    let done = Launch::ranks(1).program("osier", &["--version"]).finish();
    assert_eq!(
        done.stdout,
        format!("osier {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn bad_usage_is_two() {
    for args in [
        &["run", "true"][..],
        &["run", "-n", "0", "true"],
        &["run", "-n", "-3", "true"],
        &["run", "-n", "4097", "true"],
        &["run", "-n", "x", "true"],
        &["run", "-np", "2", "true"],
        &["run", "-n", "2"],
        &["run", "-n", "2", "--bogus", "true"],
        &["run", "-n", "2", "--bind", "socket", "true"],
        &["run", "-n", "2", "--timeout", "0", "true"],
        &["run", "-n", "2", "--env", "x", "true"],
        &["bogus"],
        &[],
    ] {
        let done = Launch::raw(args).finish();
        assert_eq!(done.code, Some(2), "{args:?}");
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn help_and_version() {
    let help = Launch::raw(&["run", "--help"]).finish();
    assert_eq!(help.code, Some(0));
    for part in [
        "Examples:",
        "--on-death",
        "--timeout",
        "--label",
        "--bind",
        "124",
    ] {
        assert!(help.stdout.contains(part), "{part}");
    }
    let version = Launch::raw(&["--version"]).finish();
    assert_eq!(version.code, Some(0));
}

#[test]
fn options_after_the_program_are_its_own() {
    let done = Launch::raw(&[
        "run",
        "-n",
        "1",
        "sh",
        "-c",
        "echo $0 $*",
        "--label",
        "-n",
        "--",
        "-x",
    ])
    .finish();
    assert_eq!(done.stdout, "--label -n -- -x\n");
}

#[test]
fn variables_and_folder() {
    let done = Launch::ranks(2)
        .option("--env=A=1")
        .option("--env=B=x y=z")
        .option("--wdir=/usr")
        .shell("echo \"$A,$B,$(pwd)\"")
        .finish();
    assert_eq!(done.stdout, "1,x y=z,/usr\n".repeat(2));
}

#[test]
fn ranks_are_bound_as_asked() {
    let mine = support::allowed_cpus("/proc/self/status");
    let script = "echo $OSIER_RANK; grep Cpus_allowed_list /proc/self/status";
    let places = |bind: &str| -> Vec<Vec<usize>> {
        let done = Launch::ranks(2)
            .option(bind)
            .option("--label")
            .shell(script)
            .finish();
        assert_eq!(done.code, Some(0));
        let of_rank = |rank| {
            let prefix = format!("[{rank}] Cpus_allowed_list:");
            let line = done.stdout.lines().find_map(|l| l.strip_prefix(&prefix));
            support::parse_cpus(line.unwrap())
        };
        vec![of_rank(0), of_rank(1)]
    };
    assert_eq!(places("--bind=none"), [mine.clone(), mine.clone()]);
    let bound = places("--bind=core");
    assert!(
        bound.iter().all(|b| b.len() == 1 && mine.contains(&b[0])),
        "{bound:?}"
    );
    assert_eq!(bound[0][0], mine[0]);
    let shares = places("--bind=share");
    if support::cores(&mine) >= 2 {
        assert_ne!(bound[0], bound[1]);
        assert!(
            shares[0].iter().all(|cpu| !shares[1].contains(cpu)),
            "{shares:?}"
        );
    }
}

#[test]
fn signals_reach_all_ranks() {
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGINT, "INT"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
    ] {
        let script =
            format!("trap 'echo got {name}; exit 0' {name}; sleep 1000 & echo ready; wait");
        let job = Launch::ranks(3).shell(&script).start();
        job.wait_stdout_lines(3);
        job.signal(signal);
        let done = job.finish();
        assert_eq!(done.code, Some(0));
        assert_eq!(
            done.stdout,
            "ready\n".repeat(3) + &format!("got {name}\n").repeat(3)
        );
    }
}

#[test]
fn a_signal_that_ends_the_ranks_is_returned_quietly() {
    let job = Launch::ranks(2)
        .shell("echo ready; exec sleep 1000")
        .start();
    job.wait_stdout_lines(2);
    job.signal(libc::SIGTERM);
    let done = job.finish();
    assert_eq!(done.code, Some(143));
    assert_eq!(done.stderr, "");
}

#[test]
fn a_second_sigint_kills() {
    let job = Launch::ranks(2)
        .shell("trap '' INT; sleep 1000 & trap 'echo once' INT; echo ready; while :; do wait; done")
        .start();
    job.wait_stdout_lines(2);
    job.signal(libc::SIGINT);
    job.wait_stdout_lines(4);
    job.signal(libc::SIGINT);
    let done = job.finish();
    assert_eq!(done.code, Some(130));
    assert!(done.stderr.contains("second SIGINT"), "{}", done.stderr);
}

#[test]
fn a_stopped_job_stops_and_continues() {
    let mut job = Launch::ranks(2).shell("echo $$; read x; echo on").start();
    job.wait_stdout_lines(1); // rank 1 has no input and ends with "on"
    wait_for("both lines", || job.stdout().lines().count() >= 3);
    let launcher = job.pid();
    let stopped = || {
        support::processes(&job.mark)
            .iter()
            .filter(|p| p.name != "osier-keeper")
            .all(|p| p.state == 'T')
    };
    job.signal(libc::SIGTSTP);
    wait_for("all stopped", stopped);
    assert!(
        support::processes(&job.mark)
            .iter()
            .any(|p| p.pid == launcher)
    );
    job.signal(libc::SIGCONT);
    job.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
    let done = job.finish();
    assert_eq!(done.code, Some(0));
    assert_eq!(done.stdout.lines().filter(|l| *l == "on").count(), 2);
}

#[test]
fn nothing_outlives_a_job_that_ends() {
    let job = Launch::ranks(2)
        .shell("sleep 1000 & setsid sleep 1000 & (sleep 1000 &) ; exit 0")
        .start();
    let mark = job.mark.clone();
    let done = job.finish();
    assert_eq!(done.code, Some(0));
    assert_eq!(support::processes(&mark).len(), 0);
}

#[test]
fn nothing_outlives_a_killed_launcher() {
    for ranks in [1, 3] {
        let job = Launch::ranks(ranks)
            .shell("sleep 1000 & echo ready; sleep 1000")
            .start();
        job.wait_stdout_lines(ranks);
        wait_for("ranks, their children, the keeper and the launcher", || {
            support::processes(&job.mark).len() == 3 * ranks + 2
        });
        job.signal(libc::SIGKILL);
        wait_for("no process of the job", || {
            support::processes(&job.mark).is_empty()
        });
    }
}

#[test]
fn nothing_outlives_a_launcher_killed_while_it_starts() {
    // Each time it is killed a little later.
    for step in 0..40 {
        let mut job = Launch::ranks(4).shell("sleep 1000 & sleep 1000").start();
        let until = std::time::Instant::now() + Duration::from_micros(250 * step);
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        job.signal(libc::SIGKILL);
        job.wait();
        wait_for("no process of the job", || {
            support::processes(&job.mark).is_empty()
        });
    }
}

#[test]
fn a_killed_keeper_ends_the_job() {
    let job = Launch::ranks(2).shell("echo ready; sleep 1000").start();
    job.wait_stdout_lines(2);
    let processes = support::processes(&job.mark);
    let keeper = processes.iter().find(|p| p.name == "osier-keeper").unwrap();
    support::kill(keeper.pid, libc::SIGKILL);
    let mark = job.mark.clone();
    let done = job.finish();
    assert_eq!(done.code, Some(1));
    assert_eq!(support::processes(&mark).len(), 0);
}

#[test]
fn more_ranks_than_cores() {
    let done = Launch::ranks(64).shell("echo $OSIER_RANK").finish();
    assert_eq!(done.code, Some(0));
    assert_eq!(done.stdout.lines().count(), 64);
}

#[test]
fn a_terminal_is_forwarded_to_rank_zero() {
    let mut pty = Pty::open();
    let mut job = Launch::ranks(2)
        .terminal(&pty)
        .shell("cat; echo end")
        .start();
    wait_for("rank 1 has read its empty input", || {
        pty.seen().contains("end")
    });
    pty.write(b"hello\n");
    wait_for("the echo and the line itself", || {
        pty.seen().matches("hello").count() == 2
    });
    pty.write(b"\x04");
    assert_eq!(job.wait().code(), Some(0));
    wait_for("both ends", || pty.seen().matches("end").count() == 2);
}

#[test]
fn control_c_ends_a_job_on_a_terminal() {
    for ranks in [1, 2] {
        let mut pty = Pty::open();
        let mut job = Launch::ranks(ranks)
            .terminal(&pty)
            .shell("echo ready; exec sleep 1000")
            .start();
        wait_for("ready", || pty.seen().matches("ready").count() == ranks);
        pty.write(b"\x03");
        let code = job.wait().code();
        assert_eq!(code, Some(130), "{}", pty.seen());
    }
}

#[test]
fn a_single_rank_keeps_the_terminal() {
    let pty = Pty::open();
    let mut job = Launch::ranks(1)
        .terminal(&pty)
        .shell("stty tostop < /dev/tty; [ -t 1 ] && echo a terminal")
        .start();
    assert_eq!(job.wait().code(), Some(0));
    wait_for("its answer", || pty.seen().contains("a terminal"));
}

#[test]
fn a_job_within_a_job_ends_with_it() {
    let job = Launch::ranks(2)
        .program(
            "osier",
            &["run", "-n", "2", "sh", "-c", "echo ready; exec sleep 1000"],
        )
        .start();
    job.wait_stdout_lines(4);
    job.signal(libc::SIGKILL);
    wait_for("no process of the jobs", || {
        support::processes(&job.mark).is_empty()
    });
}

#[test]
fn shared_memory_that_the_system_refuses_is_an_error() {
    let done = Launch::ranks(2)
        .refuse(&[libc::SYS_memfd_create])
        .shell("echo never")
        .finish();
    assert_eq!(done.stdout, "");
    assert_ne!(done.code, Some(0));
    for word in ["shared memory", "not permitted", "hint", "memfd_create"] {
        assert!(done.stderr.contains(word), "{word}: {}", done.stderr);
    }
}

/// Containers often refuse to let a process read another's memory, and old
/// kernels know no `membarrier`: there are other ways.
#[test]
fn messages_pass_where_the_system_refuses_its_help() {
    let refused = [
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_membarrier,
    ];
    for memory in ["plain", "heap"] {
        let args = [
            "bench", "latency", "--sizes", "8,4K,1M", "--memory", memory, "-i", "6", "-x", "1",
        ];
        let done = Launch::raw(&args).refuse(&refused).finish();
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert_eq!(done.stderr, "");
    }
}
