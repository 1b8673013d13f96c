//! Hangs of real jobs explain themselves; what only takes long is none.

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Done, EXERCISE, GUARD, alone, finish, job, launcher};

/// A process that does not outlive its test.
struct Kept(std::process::Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ranks of a job that hangs, reported once and ended.
fn hang(ranks: usize, how: &str) -> Done {
    hang_of(ranks, &["hang", how])
}

fn hang_of(ranks: usize, what: &[&str]) -> Done {
    let done = finish(&mut job(ranks, &["--on-hang", "kill"], what));
    done.code(125).through(&[]);
    let reports = done.stderr.matches("the job hangs").count();
    assert_eq!(reports, 1, "{}", done.stderr);
    done
}

/// The line of the report that begins so, columns apart by one space.
fn line_of(done: &Done, start: &str) -> String {
    let squeeze = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = done.stderr.lines().map(squeeze).collect();
    let found = lines.iter().find(|l| l.starts_with(start));
    found
        .unwrap_or_else(|| panic!("{start:?} is missing: {lines:#?}"))
        .clone()
}

/// Ten times what it takes at most to name a hang.
const NAMED: Duration = Duration::from_secs(10);

const AT: &str = "tests/programs/src/main.rs:";

#[test]
fn a_hang_names_every_wait_and_the_cycle() {
    let done = hang(2, "recv");
    done.says("cycle: 0 -> 1 -> 0");
    assert!(line_of(&done, "0 receive 1 7 world 8").contains(AT));
    assert!(line_of(&done, "1 receive 0 7 world 8").contains(AT));
    let done = hang(3, "recv");
    done.says("cycle: 0 -> 2 -> 1 -> 0");
    let done = hang(2, "ssend");
    done.says("cycle: 0 -> 1 -> 0");
    line_of(&done, "1 synchronous send 0 8 world 8");
    line_of(&hang(3, "large"), "2 send 0 8 world 8388608");
    let done = hang(2, "any");
    line_of(&done, "0 receive any any world 8");
    assert!(!done.stderr.contains("cycle"), "{}", done.stderr);
    line_of(&hang(2, "probe"), "0 probe 1 9 world");
    line_of(&hang(3, "barrier"), "2 receive 0 collective world");
}

#[test]
fn a_hang_names_what_scopes_and_requests_wait_for() {
    for how in ["scope", "request", "set"] {
        let line = line_of(&hang(2, how), "0 receive 1 4 world");
        assert_eq!(line.matches(AT).count(), 2, "posted and waits: {line}");
    }
}

#[test]
fn a_hang_of_several_threads_is_one() {
    let done = hang(3, "two-threads");
    let waits = done.stderr.lines().filter(|l| l.contains(AT)).count();
    assert_eq!(waits, 6, "{}", done.stderr);
    line_of(&done, "2 receive 0 2 world 8");
}

#[test]
fn a_hang_without_a_launcher_is_reported_too() {
    for how in ["recv", "two-threads"] {
        let mut child = Kept(
            Command::new(EXERCISE)
                .args(["threads", how])
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts"),
        );
        let stderr = child.0.stderr.take().expect("piped");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stderr));
        let cycle = lines.find(|l| l.as_ref().is_ok_and(|l| l.contains("cycle: 0 -> 1 -> 0")));
        drop(child);
        assert!(cycle.is_some());
    }
}

const GRAPHS: &str = "tests/programs/src/halts.rs:";

/// A graph that comes to a halt is named with tasks, rules, edges, peers and credit.
#[test]
fn a_graph_that_halts_names_its_tasks() {
    let start = Instant::now();
    let done = hang_of(2, &["halts", "cycle"]);
    assert!(start.elapsed() < NAMED, "{:?}", start.elapsed());
    done.says("cycle: 0 -> 1 -> 0")
        .says("2 of 2 tasks of the rank have not ended")
        .says("cell[0], rule all: no message on 'in' (from cell[3].out) of rank 1")
        .says("cell[1], rule all: no message on 'in' (from cell[0].out) of rank 0")
        .says("cell[2], rule all: no message on 'in' (from cell[1].out) of rank 0");
    assert!(line_of(&done, "0 task 1 - ").contains(GRAPHS));
    let done = hang_of(3, &["halts", "credit"]);
    done.says("source[0], rule all: no credit of rank 2 for 'out'")
        .says("sink[0], rule count 4 on 'in': 2 come on 'in' (from source[0].out) of rank 0")
        .says("cycle: 0 -> 2 -> 0");
    line_of(&done, "1 receive 0 collective");
    let done = hang_of(2, &["halts", "missing"]);
    done.says("client[0], rule all: no message on 'back' (from server[0].answer) of rank 1")
        .says("server[0], rule all: no message on 'in' (from client[0].question) of rank 0");
    let done = hang_of(2, &["halts", "local-cycle"]);
    let cycle = "cycle: cell[0] -> cell[3] -> cell[2] -> cell[1] -> cell[0]";
    done.says("4 of 4 tasks of the rank have not ended")
        .says(cycle);
    assert!(!done.stderr.contains("cycle: 0"), "{}", done.stderr);
    let done = hang_of(1, &["halts", "credit"]);
    done.says("cycle: source[0] -> sink[0] -> source[0]")
        .says("no slot free for 'out', sink[0] has not read");
}

/// A child graph that comes to a halt is named by the task that began it, with its tasks.
#[test]
fn a_child_graph_that_halts_is_named() {
    for (ranks, how) in [(1, "child"), (2, "child"), (2, "child-two")] {
        let start = Instant::now();
        let done = hang_of(ranks, &["halts", how]);
        assert!(start.elapsed() < NAMED, "{:?}", start.elapsed());
        let last = ranks - 1;
        done.says(&format!("outer[{last}], rule all: waits for event 'ended', the end of its child"))
            .says(&format!(
                "child of outer[{last}]: inner[1], rule all: no message on 'in' (from inner[0].out) of rank {last}"
            ));
        if how == "child" {
            done.says("child of outer[0]: 2 of 2 tasks have not ended; cycle: inner[0] -> inner[1] -> inner[0]");
        }
    }
    let done = hang_of(1, &["halts", "grandchild"]);
    done.says(
        "child of outer[0]: middle[0], rule all: waits for event 'ended', the end of its child",
    )
    .says("child of outer[0]: child of middle[0]: inner[0], rule all: no message on 'in'");
}

/// An event of which no signal is left never happens.
#[test]
fn a_task_that_no_signal_can_fire_is_named() {
    hang_of(2, &["halts", "event-lost"])
        .says("deaf[1], rule all: waits for event 'tick', of which no signal is left");
}

/// A collective that one rank never begins is named on the ranks that wait in it, with the ranks
/// that they wait for, and on the one that has not begun it.
#[test]
fn a_collective_that_a_rank_never_begins_is_named() {
    for ranks in [2, 3, 4] {
        let done = hang_of(ranks, &["halts", "collective"]);
        let last = ranks - 1;
        done.says("waits for event 'ended'; call 1, allreduce, waits for rank")
            .says(&format!(
                "total[{last}], rule ports: no message on 'input' (from cell[{last}].out) of rank {last}; call 1 has not begun here"
            ));
        // Some rank waits for the one that has not begun it.
        let waits = |line: &&str| {
            line.contains("call 1, allreduce, waits for rank") && {
                let (_, of) = line.rsplit_once("waits for rank").expect("just seen");
                of.trim_start_matches('s')
                    .split(',')
                    .any(|r| r.trim() == last.to_string())
            }
        };
        assert!(
            done.stderr.lines().any(|line| waits(&line)),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn a_graph_that_halts_without_a_launcher_is_named_too() {
    let alone: &[&str] = &["halts", "cycle"];
    for (what, says) in [
        (alone, "cycle: cell[0] -> cell[1] -> cell[0]"),
        (&["threads", "halts", "2", "cycle"], "cycle: 0 -> 1 -> 0"),
    ] {
        let mut command = Command::new(EXERCISE);
        command.args(what);
        let start = Instant::now();
        let mut child = Kept(command.stderr(Stdio::piped()).spawn().expect("it starts"));
        let stderr = child.0.stderr.take().expect("piped");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stderr));
        let said = lines.find(|l| l.as_ref().is_ok_and(|l| l.contains(says)));
        drop(child);
        assert!(said.is_some(), "{what:?}");
        assert!(start.elapsed() < NAMED, "{:?}", start.elapsed());
    }
}

#[test]
fn ps_shows_what_tasks_wait_for() {
    let child = Kept(
        job(2, &[], &["halts", "credit"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let pid = child.0.id().to_string();
    let ps = |args: &[&str]| finish(Command::new(launcher()).arg("ps").arg(&pid).args(args)).stdout;
    let start = Instant::now();
    let says = [
        "source[0], rule all: no credit of rank 1 for 'out'",
        "sink[0], rule count 4 on 'in': 2 come on 'in' (from source[0].out) of rank 0",
    ];
    let mut text = ps(&[]);
    while !says.iter().all(|part| text.contains(part)) {
        assert!(start.elapsed() < GUARD, "{text}");
        text = ps(&[]);
    }
    let json = ps(&["--json"]);
    for part in [
        "\"operation\": \"task\"",
        "\"task\": \"sink[0], rule count 4",
    ] {
        assert!(json.contains(part), "{part} is missing: {json}");
    }
}

#[test]
fn ps_shows_that_a_task_waits_for_an_event() {
    let child = Kept(
        job(2, &[], &["halts", "event-never"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let pid = child.0.id().to_string();
    let start = Instant::now();
    loop {
        let text = finish(Command::new(launcher()).arg("ps").arg(&pid)).stdout;
        if text.contains("listener[0], rule all: waits for event 'tick'") {
            break;
        }
        assert!(start.elapsed() < GUARD, "{text}");
    }
}

/// Workers without work wait for tasks that run for long, for ranks that begin later, and for
/// events, which anything may raise.
#[test]
fn a_graph_that_takes_long_is_not_reported() {
    for how in ["busy", "late", "event", "child-busy", "collective-late"] {
        finish(&mut job(3, &["--on-hang", "kill"], &["halts", how]))
            .quiet()
            .through(&[0, 1, 2])
            .code(0);
    }
}

#[test]
fn slow_program_is_not_reported_as_hang() {
    for how in ["compute", "sleep", "thread", "stop"] {
        finish(&mut job(3, &["--on-hang", "kill"], &["slow", how]))
            .quiet()
            .through(&[0, 1, 2])
            .code(0);
    }
}

/// A future may wait for anything, and a rank that sleeps may wake up.
#[test]
fn an_uncertain_hang_is_a_stall() {
    for (how, waits) in [("future", 2), ("one-left", 1)] {
        let mut command = job(2, &[], &["hang", how]);
        let mut child = Kept(
            command
                .env("OSIER_STALL", "300ms")
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts"),
        );
        let stderr = child.0.stderr.take().expect("piped");
        let lines = std::io::BufRead::lines(std::io::BufReader::new(stderr));
        let mut ranks: Vec<String> = Vec::new();
        for line in lines.map_while(Result::ok) {
            let (who, _) = line.split_once(" has waited for ").expect(&line);
            assert!(line.contains(AT), "{line}");
            assert!(!ranks.iter().any(|r| r == who), "each once: {line}");
            ranks.push(who.to_owned());
            if ranks.len() == waits {
                break;
            }
        }
        assert_eq!(ranks.len(), waits, "{how}: {ranks:?}");
        drop(child);
    }
    alone(&[("OSIER_STALL", "60")])
        .says("OSIER_STALL")
        .says("hint")
        .code(9);
}

#[test]
fn ps_shows_what_ranks_wait_for() {
    let ps = |args: &[&str]| finish(Command::new(launcher()).arg("ps").args(args));
    let mut child = Kept(
        job(3, &[], &["hang", "one-left"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let pid = child.0.id().to_string();
    let start = Instant::now();
    let text = loop {
        let done = ps(&[&pid]);
        if done.stdout.matches("receive").count() == 2 {
            break done.stdout;
        }
        assert!(start.elapsed() < GUARD, "{}{}", done.stdout, done.stderr);
    };
    assert!(text.starts_with(&format!("job {pid}, 3 ranks: ")), "{text}");
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    let row = rows.iter().find(|r| r.first() == Some(&"1"));
    let row = row.unwrap_or_else(|| panic!("no rank 1: {text}"));
    let expected = ["waits", "receive", "0", "7", "world", "8"];
    assert_eq!(row[2..8], expected, "{text}");
    assert!(row.last().is_some_and(|at| at.starts_with(AT)), "{text}");
    assert!(text.lines().any(|l| l.ends_with("runs")), "rank 0: {text}");
    let json = ps(&[&pid, "--json"]).stdout;
    for part in [
        "\"operation\": \"receive\"",
        "\"peer\": 0",
        "\"posted\": \"tests/",
    ] {
        assert!(json.contains(part), "{part} is missing: {json}");
    }
    child.0.kill().expect("ours");
    child.0.wait().expect("its end");
    while ps(&[&pid]).code != Some(1) {
        assert!(start.elapsed() < GUARD, "something stays behind");
    }
    ps(&[&pid]).says("no job").says("hint").code(1);
}

#[test]
fn a_hang_of_ranks_that_share_processes_is_certain_too() {
    let options = ["--on-hang", "kill", "--ranks-per-process", "2"];
    let done = finish(&mut job(3, &options, &["run", "hang", "recv"]));
    done.code(125).through(&[]).says("cycle: 0 -> 2 -> 1 -> 0");
}
