//! Jobs that somebody attacks: a rank that writes over their memory, and kills.

use super::Outcome;
use crate::cells::Dice;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Ends a job that hangs; some ten times what the longest takes on a busy machine.
const GUARD: Duration = Duration::from_secs(60);
/// What is left of a killed job must be gone by then.
const GONE: Duration = Duration::from_secs(30);
/// Exit code of a rank that got an error (`exercise`).
const TOLD: i32 = 3;
const RANKS: &str = "3";

fn launcher(folder: &Path, options: &[&str], what: &[&str]) -> Command {
    let mut command = Command::new(folder.join("osier"));
    command
        .args(["run", "-n", RANKS])
        .args(options)
        .arg("--")
        .arg(folder.join("exercise"))
        .args(what)
        .env_remove("OSIER_SHM_LIMIT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// All that a job has said, and how it ended; an error if that does not come.
fn finish(child: Child) -> Result<(Option<i32>, String), String> {
    let pid = child.id();
    let (over, ended) = channel();
    std::thread::spawn(move || over.send(child.wait_with_output()));
    match ended.recv_timeout(GUARD) {
        Ok(Ok(output)) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let said = text(&output.stdout) + &text(&output.stderr);
            Ok((output.status.code(), said))
        }
        Ok(Err(e)) => Err(e.to_string()),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            // Its keeper ends the ranks.
            kill_process(pid);
            Err(format!("the job has not ended in {} s", GUARD.as_secs()))
        }
    }
}

/// One rank of a job writes over its shared memory.
pub fn scribble(folder: &Path, seed: u64) -> Outcome {
    let (options, seed_text) = (["--on-hang", "kill"], seed.to_string());
    let child = launcher(folder, &options, &["scribble", &seed_text]).spawn();
    let (code, said) =
        finish(child.map_err(|e| e.to_string())?).map_err(|e| format!("seed {seed}: {e}"))?;
    match code {
        Some(0) => Ok("went on"),
        Some(TOLD) => Ok("ended with an error"),
        _ => Err(format!("seed {seed}: exit code {code:?}\n{said}")),
    }
}

/// A rank or the launcher of a job is killed.
pub fn kill(folder: &Path, seed: u64) -> Outcome {
    let mut dice = Dice::new(seed);
    let report = dice.below(2) == 0;
    let driver = folder.join("libosier_emulated_cuda.so");
    let devices = dice.below(3) == 0 && driver.is_file();
    let of_launcher = dice.below(4) == 0;
    let begun = dice.below(6) > 0;
    let death = if report { "report" } else { "kill" };
    let graphs = !devices && dice.below(3) == 0;
    let mut options = vec!["--on-death", death];
    let what = if graphs { "graph-traffic" } else { "traffic" };
    let what = if devices {
        options.extend(["--emulate-gpus", "1"]);
        format!("device-{what}")
    } else {
        what.to_owned()
    };
    let seed_text = seed.to_string();
    let child = launcher(folder, &options, &[&what, &seed_text])
        .spawn()
        .map_err(|e| e.to_string())?;
    let pid = child.id();
    let failed = |why: String| format!("seed {seed}, {what}, {death}: {why}");
    // After they have met, or at any time before.
    let ranks = ranks_of(pid, begun);
    std::thread::sleep(Duration::from_micros(dice.below(60_000) as u64));
    let all = descendants(pid);
    let victim = match ranks.is_empty() || of_launcher {
        true => pid,
        false => dice.of(&ranks),
    };
    kill_process(victim);
    let (code, said) = finish(child).map_err(&failed)?;
    let left = still_there(&all);
    if !left.is_empty() {
        return Err(failed(format!("left behind: {left:?}\n{said}")));
    }
    if said.contains("panicked") {
        return Err(failed(said));
    }
    if victim == pid {
        return match code {
            None => Ok("of the launcher"),
            code => Err(failed(format!("exit code {code:?}\n{said}"))),
        };
    }
    let named = said.contains(&format!("of {RANKS} (pid {victim},"));
    // 128 + 9. What the others were told first may be what a third one said.
    if !named || code != Some(137) {
        let why = format!("process {victim} was killed; exit code {code:?}\n{said}");
        return Err(failed(why));
    }
    Ok(match (devices, report) {
        (false, false) => "of a rank, which ends the job",
        (false, true) => "of a rank, which the others were told of",
        (true, false) => "of a rank with a device, which ends the job",
        (true, true) => "of a rank with a device, which the others were told of",
    })
}

fn kill_process(pid: u32) {
    // The test's own job; there is no signal in the standard library.
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
}

/// Processes below one, with the time at which each began: numbers come again.
fn descendants(of: u32) -> BTreeSet<(u32, u64)> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in numbers.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()) {
        if let Some((parent, ..)) = stat(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (BTreeSet::new(), vec![of]);
    while let Some(pid) = next.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.extend(stat(child).map(|(_, begun, _)| (child, begun)));
            next.push(child);
        }
    }
    found
}

/// Parent, time at which it began, and state of a process.
fn stat(pid: u32) -> Option<(u32, u64, char)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let state = fields.first()?.chars().next()?;
    Some((
        fields.get(1)?.parse().ok()?,
        fields.get(19)?.parse().ok()?,
        state,
    ))
}

/// The processes of the ranks, once they are there and, if so asked, have begun to wait
/// for each other; those that are there after the guard's time otherwise.
fn ranks_of(launcher: u32, begun: bool) -> Vec<u32> {
    let until = Instant::now() + GUARD / 2;
    loop {
        let all = descendants(launcher);
        let is_rank = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "exercise")
        };
        let ranks: Vec<u32> = all
            .into_iter()
            .map(|(pid, _)| pid)
            .filter(is_rank)
            .collect();
        // A rank that has joined maps the job's memory.
        let joined = |pid: &u32| {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
            maps.is_ok_and(|maps| maps.contains("osier-arena"))
        };
        let there = ranks.len() == 3 && (!begun || ranks.iter().all(joined));
        if there || Instant::now() > until || stat(launcher).is_none_or(|(.., s)| s == 'Z') {
            return ranks;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Of these processes, those that do not end.
fn still_there(all: &BTreeSet<(u32, u64)>) -> Vec<u32> {
    let until = Instant::now() + GONE;
    loop {
        let lives = |(pid, begun): &&(u32, u64)| {
            stat(*pid).is_some_and(|(_, now, state)| now == *begun && state != 'Z')
        };
        let left: Vec<u32> = all.iter().filter(lives).map(|(pid, _)| *pid).collect();
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
