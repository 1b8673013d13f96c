//! Runs the steps one by one, each within its limit, and writes the report after each.
//!
//! # Invariants
//! 1. Whenever this process is killed, the report that lies in the folder is valid and has
//!    all steps that had ended; the one under way is named.
//! 2. Nothing that a step has started is left when the next begins.

mod facts;
mod stuck;

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::archive::{self, Effort};
use crate::plan::{self, Machine, Part, Task};
use crate::record;
use crate::report::{Measured, Measurement, Mode, Report, Status, Step};

/// Exit code where there is nothing to measure on: test drivers take it for "skipped".
pub const NOT_MEASURED: u8 = 77;
/// Exit code of a run that a signal has ended.
const INTERRUPTED: u8 = 130;
/// The programs of the bundle, packed.
pub const PROGRAMS: &str = "programs.tar.xz";
/// What a run leaves in its folder.
pub const FILES: [&str; 3] = ["report.json", "report.txt", "report.tar.xz"];
/// What a report keeps of a step's output.
const TAIL_BYTES: usize = 6000;
/// How long a step has from being told to end until it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// How long a killed step may take to be gone. Work that hangs in the driver cannot be ended.
const DYING: Duration = Duration::from_secs(10);
/// How often a step is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Most tests of a program that are left out because they hang.
const MOST_HUNG: usize = 2;
/// Less than this is not worth beginning a step.
const LEAST: Duration = Duration::from_secs(3);

/// What is to be run, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the bundle.
    pub bundle: PathBuf,
    /// Folder of the report.
    pub folder: PathBuf,
    /// How much it may take.
    pub mode: Mode,
    /// What is run.
    pub parts: Vec<Part>,
    /// The command line, for the report.
    pub command: String,
}

static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: libc::c_int) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Has SIGINT and SIGTERM end the step under way, and orphans become this process's.
fn prepare() {
    // A code address, which is what the C interface takes as a number.
    let handler = stop as extern "C" fn(libc::c_int) as *const () as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores into an atomic, which is permitted in one.
        unsafe { libc::signal(signal, handler) };
    }
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what runs have left that were killed.
fn remove_abandoned() {
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix("osier-gpu-run-"));
        let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs everything; the exit code.
///
/// # Errors
/// The folder of the report cannot be written, or the bundle is damaged.
pub fn run(options: &Options) -> io::Result<u8> {
    let began = Instant::now();
    prepare();
    fs::create_dir_all(&options.folder)?;
    for file in FILES {
        let _ = fs::remove_file(options.folder.join(file));
    }
    let work = std::env::temp_dir().join(format!("osier-gpu-run-{}", std::process::id()));
    let work = Folder(work);
    remove_abandoned();
    let (bin, out) = (work.0.join("bin"), work.0.join("out"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(out.join("logs"))?;
    let commit = fs::read_to_string(options.bundle.join("commit")).unwrap_or_default();
    let mut report = Report::new(commit.trim(), facts::now(), options.mode);
    report.command = options.command.clone();
    let mut run = Run {
        began,
        folder: options.folder.clone(),
        bin: bin.clone(),
        out: out.clone(),
        report,
        told: Vec::new(),
    };
    run.write()?;
    run.report.facts = facts::facts();
    let programs = options.bundle.join(PROGRAMS);
    archive::unpack(&programs, &bin)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", programs.display())))?;
    let mut machine = facts::machine(&bin, &out);
    if let Err(why) = run.probe(&mut machine) {
        println!("not measured: {why}");
        run.report.reason = Some(why);
        run.finish()?;
        return Ok(NOT_MEASURED);
    }
    println!("{}\n", run.report.source());
    let deadlines = plan::deadlines(&options.parts);
    for task in plan::tasks(&machine, options.mode, &options.parts) {
        if STOPPED.load(Ordering::Relaxed) {
            break;
        }
        let part = options.parts.iter().position(|part| *part == task.part);
        let until = match (options.mode, part) {
            (Mode::Quick, Some(part)) => Some(began + Duration::from_secs(deadlines[part])),
            _ => None,
        };
        let hung = run.step(task.clone(), until)?;
        // What comes behind a test that hangs is worth a try.
        let mut without = task;
        let mut hung = hung.and_then(|output| hung_test(&output));
        for _ in 0..MOST_HUNG {
            let Some(test) = hung.take() else { break };
            without.name += &format!(", not {test}");
            without.command.extend(["--skip".into(), test]);
            hung = run
                .step(without.clone(), until)?
                .and_then(|output| hung_test(&output));
        }
    }
    if STOPPED.load(Ordering::Relaxed) {
        run.write()?;
        return Ok(INTERRUPTED);
    }
    run.finish()?;
    let failures = run.report.failures().count();
    println!("\n{}", crate::summary::of(&run.report).text());
    let files = FILES.map(|file| options.folder.join(file).display().to_string());
    println!(
        "{} steps, {failures} failed, {:.0} s: {}",
        run.report.steps.len(),
        run.report.seconds,
        files.join(", ")
    );
    Ok(u8::from(failures > 0))
}

struct Run {
    began: Instant,
    folder: PathBuf,
    bin: PathBuf,
    out: PathBuf,
    report: Report,
    /// What was told of the archive.
    told: Vec<String>,
}

/// How a program ended.
enum End {
    Exited(ExitStatus),
    AtLimit,
}

impl Run {
    /// Writes all files as they are now. Without its archive a report is still one, so that
    /// what fails there is told and ends nothing.
    fn write(&mut self) -> io::Result<()> {
        self.report.seconds = self.began.elapsed().as_secs_f64();
        self.report.write(&self.folder)?;
        self.report.write(&self.out)?;
        let beside = self.folder.join(".report.tar.xz.new");
        let packed = archive::pack(&self.out, &beside, Effort::Fast).and_then(|left_out| {
            fs::rename(&beside, self.folder.join(FILES[2]))?;
            Ok(left_out)
        });
        let told = match packed {
            Ok(left_out) => left_out,
            Err(e) => vec![format!("{}: {e}", FILES[2])],
        };
        for what in told {
            if !self.told.contains(&what) {
                println!("not in the archive: {what}");
                self.told.push(what);
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.report.finished = true;
        self.write()
    }

    /// Runs a program of the bundle with the run's variables; its output goes to a log.
    fn spawn(&self, command: &[String], env: &[(String, String)], log: &Path) -> io::Result<Child> {
        // Variables before the program, as `env` takes them.
        let is_setting = |word: &&String| word.starts_with("OSIER_") && word.contains('=');
        let settings = command.iter().take_while(is_setting).count();
        let inline = command[..settings].iter().filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        let program = command.get(settings).map_or("", String::as_str);
        let mut child = Command::new(program);
        child
            .args(&command[(settings + 1).min(command.len())..])
            .env("OSIER_CUBINS", self.bin.join("cubins"))
            // A step of its own measures the machine; no other is to take the time for it.
            .env("OSIER_MODEL", "cached")
            .env(
                "OSIER_DEBUG",
                debug(std::env::var("OSIER_DEBUG").ok(), None),
            );
        // As the launcher has it for ranks; tests whose ranks are threads have no launcher.
        if std::env::var_os("CUDA_DEVICE_MAX_CONNECTIONS").is_none() {
            child.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
        }
        for (name, value) in env.iter().cloned().chain(inline) {
            let value = match name.as_str() {
                "OSIER_DEBUG" => debug(std::env::var("OSIER_DEBUG").ok(), Some(&value)),
                _ => value,
            };
            child.env(name, value);
        }
        let log = File::create(log)?;
        let own = std::process::id();
        let end_with_this = move || {
            // SAFETY: takes no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            match std::os::unix::process::parent_id() == own {
                true => Ok(()),
                // It has died before the line above.
                false => Err(io::Error::from(io::ErrorKind::Interrupted)),
            }
        };
        // SAFETY: two system calls, which is what a forked child may make.
        unsafe { child.pre_exec(end_with_this) };
        child
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir(&self.out)
            .process_group(0)
            .spawn()
    }

    /// Waits for a program until a moment, and ends it and all that it has started then.
    fn wait(&self, child: &mut Child, until: Instant, log: &Path) -> io::Result<End> {
        let group = -child.id().cast_signed();
        let mut told = None;
        let end = loop {
            if let Some(status) = child.try_wait()? {
                break match told {
                    None => End::Exited(status),
                    Some(_) => End::AtLimit,
                };
            }
            let late = Instant::now() >= until || STOPPED.load(Ordering::Relaxed);
            match told {
                None if late => {
                    if !STOPPED.load(Ordering::Relaxed) {
                        self.tell_threads(-group, log);
                    }
                    // SAFETY: takes no pointers; the group is that of a child which was
                    // not waited for.
                    unsafe { libc::kill(group, libc::SIGTERM) };
                    told = Some(Instant::now());
                }
                // The run goes on without it.
                Some(at) if at.elapsed() >= GRACE + DYING => break End::AtLimit,
                Some(at) if at.elapsed() >= GRACE => {
                    // SAFETY: takes no pointers; the group is still the child's.
                    unsafe { libc::kill(group, libc::SIGKILL) };
                }
                _ => {}
            }
            std::thread::sleep(LOOK);
        };
        // SAFETY: takes no pointers; at worst there is no such group any more.
        unsafe { libc::kill(group, libc::SIGKILL) };
        end_orphans();
        Ok(end)
    }

    /// Appends to a step's log where its threads stand.
    fn tell_threads(&self, step: i32, log: &Path) {
        let threads = stuck::threads(step);
        let file = fs::OpenOptions::new().append(true).open(log);
        // What is told of the step is lost with it.
        let _ = file.and_then(|mut file| {
            io::Write::write_all(&mut file, b"\n--- at its limit, threads stand here:\n")?;
            io::Write::write_all(&mut file, threads.as_bytes())
        });
    }

    /// Whether the programs start here, and what the device is.
    fn probe(&mut self, machine: &mut Machine) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(60);
        let log = self.out.join("logs/00-probe.log");
        let osier = self.bin.join("osier").display().to_string();
        let ask = |line: &str| -> Result<String, String> {
            let mut command = vec![osier.clone()];
            command.extend(line.split_whitespace().map(str::to_owned));
            let told = |e: io::Error| format!("the programs do not start here: {e}");
            let mut child = self.spawn(&command, &[], &log).map_err(told)?;
            let end = self.wait(&mut child, until, &log).map_err(told)?;
            let text = fs::read_to_string(&log).unwrap_or_default();
            match end {
                End::Exited(status) if status.success() => Ok(text),
                End::AtLimit => Err(format!("osier {line} did not end in 60 s")),
                End::Exited(_) => {
                    let why = text.lines().find(|line| !line.starts_with('#'));
                    Err(why.unwrap_or("osier does not start here").to_owned())
                }
            }
        };
        ask("--version")?;
        let text = ask("bench pack --device --shapes contiguous --sizes 64K -i 1 -r 1")?;
        let device = text
            .lines()
            .find_map(|line| line.strip_prefix("# osier pack on a device: "));
        self.report.device = device.unwrap_or("unknown").to_owned();
        machine.emulated = self.report.device.contains("emulated");
        self.report.measured = match machine.emulated {
            true => Measured::Emulated,
            false => Measured::Gpu,
        };
        let exercise = self.bin.join("exercise").display().to_string();
        let jobs =
            facts::output(&exercise, &["matrix-jobs", &osier, &exercise]).unwrap_or_default();
        machine.matrix = jobs.lines().filter_map(job).collect();
        Ok(())
    }

    /// Runs a step, at most until a moment; the output of one that was stopped at its limit.
    fn step(&mut self, task: Task, until: Option<Instant>) -> io::Result<Option<String>> {
        let number = self.report.steps.len() + 1;
        let began = Instant::now();
        let left = until.map(|until| until.saturating_duration_since(began));
        let limit = Duration::from_secs(task.limit).min(left.unwrap_or(Duration::MAX));
        let skip = task.skip.clone().or_else(|| {
            (limit < LEAST).then(|| {
                let part = task.part.name();
                format!("no time is left for this part (hint: ./run --only {part})")
            })
        });
        self.report.steps.push(Step {
            part: task.part.name().into(),
            name: task.name.clone(),
            status: skip.map_or(Status::Running, Status::Skipped),
            seconds: 0.0,
            limit_seconds: limit.as_secs(),
            command: task.command.join(" "),
            output: String::new(),
        });
        let mut stopped = None;
        if self.report.steps[number - 1].status == Status::Running {
            self.report.write(&self.folder)?;
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
            let name: String = task.name.chars().map(plain).collect();
            let log = self.out.join(format!("logs/{number:02}-{name}.log"));
            let status = match self.spawn(&task.command, &task.env, &log) {
                Err(e) => Status::Failed(format!("cannot be started: {e}")),
                Ok(mut child) => match self.wait(&mut child, began + limit, &log)? {
                    End::AtLimit if STOPPED.load(Ordering::Relaxed) => {
                        Status::Failed("the run was interrupted".into())
                    }
                    End::AtLimit => Status::Stopped(limit.as_secs()),
                    End::Exited(status) => ended(status),
                },
            };
            let written = fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&written);
            let status = match (status, only_skips(&text)) {
                (Status::Passed, Some(why)) => Status::Skipped(why),
                (status, _) => status,
            };
            let step = &mut self.report.steps[number - 1];
            step.output = tail(&text).to_owned();
            if let Status::Stopped(_) = status {
                stopped = Some(text.clone().into_owned());
            }
            step.seconds = began.elapsed().as_secs_f64();
            step.status = status;
            if task.is_fact && step.status == Status::Passed {
                let fact = text.trim().to_owned();
                self.report.facts.insert(task.name.clone(), fact);
            }
            self.records(number - 1, &task);
        }
        let step = &self.report.steps[number - 1];
        let state = match &step.status {
            Status::Passed => "passed".to_owned(),
            Status::Skipped(why) => format!("skipped: {why}"),
            Status::Failed(why) => format!("FAILED: {why}"),
            Status::Stopped(seconds) => format!("STOPPED after {seconds} s"),
            Status::Running => "under way".to_owned(),
        };
        println!(
            "{:<12} {:<34} {:>6.1} s  {state}",
            step.part, step.name, step.seconds
        );
        self.write()?;
        Ok(stopped)
    }

    /// Takes the records of a step, also of one that did not end well.
    fn records(&mut self, step: usize, task: &Task) {
        let Some(file) = &task.records else {
            return;
        };
        match record::read(file) {
            Ok(records) => {
                let name = &task.name;
                self.report
                    .records
                    .extend(records.into_iter().map(|record| Measurement {
                        step: name.clone(),
                        record,
                    }));
            }
            Err(e) if self.report.steps[step].status == Status::Passed => {
                let status = match e.kind() {
                    // Whoever cannot measure says why and writes nothing.
                    io::ErrorKind::NotFound => {
                        let output = &self.report.steps[step].output;
                        let why = output.lines().last().unwrap_or("it has measured nothing");
                        Status::Skipped(why.to_owned())
                    }
                    _ => Status::Failed(format!("{}: {e}", file.display())),
                };
                self.report.steps[step].status = status;
            }
            Err(_) => {}
        }
    }
}

/// The value of `OSIER_DEBUG`: the user's, the step's, and the name of the driver, so that
/// programs fail rather than skip where it does not work.
fn debug(users: Option<String>, steps: Option<&str>) -> String {
    let mut all: Vec<String> = users.into_iter().filter(|text| !text.is_empty()).collect();
    if !all.iter().any(|text| text.contains("cuda-library=")) {
        all.push("cuda-library=libcuda.so.1".into());
    }
    all.extend(steps.map(str::to_owned));
    all.join(",")
}

/// The test that was under way when a program of tests, which runs them one by one, was
/// stopped.
fn hung_test(output: &str) -> Option<String> {
    let mut begun = output.lines().filter_map(|line| {
        let (name, state) = line.strip_prefix("test ")?.split_once(" ... ")?;
        Some((name, state))
    });
    let ends = ["ok", "FAILED", "ignored", "SKIPPED"];
    let (name, state) = begun.next_back()?;
    let ended = ends.iter().any(|end| state.starts_with(end));
    (!ended).then(|| name.to_owned())
}

/// Why none of a program's tests has tested anything, if so.
fn only_skips(output: &str) -> Option<String> {
    let mut tests: Vec<&str> = output
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "))
        .filter(|(_, state)| !state.starts_with("ignored"))
        .map(|(name, _)| name)
        .collect();
    let mut lacked = None;
    // The first word of a skip stands behind the name of its test.
    for (_, skip) in output
        .lines()
        .filter_map(|line| line.split_once("SKIPPED "))
    {
        let (name, why) = skip.split_once(", as OSIER_TEST asks: without ")?;
        tests.retain(|test| *test != name);
        lacked.get_or_insert(why);
    }
    if !tests.is_empty() || !output.contains("test result: ") {
        return None;
    }
    let Some(why) = lacked else {
        return Some("none of its tests is for this machine".into());
    };
    let (thing, _) = why.split_once(": ").unwrap_or((why, ""));
    Some(format!("all of its tests need {thing}"))
}

/// A line of `exercise matrix-jobs`: name, GPUs, words.
fn job(line: &str) -> Option<(String, usize, Vec<String>)> {
    let mut words = line.split_whitespace().map(str::to_owned);
    let (name, gpus) = (words.next()?, words.next()?.parse().ok()?);
    Some((name, gpus, words.collect()))
}

fn ended(status: ExitStatus) -> Status {
    match (status.code(), status.signal()) {
        (Some(0), _) => Status::Passed,
        (Some(code), _) => Status::Failed(format!("exit code {code}")),
        (None, Some(signal)) => Status::Failed(format!("signal {signal}")),
        (None, None) => Status::Failed("unknown end".into()),
    }
}

/// The end of a text, from the begin of a line on.
fn tail(text: &str) -> &str {
    let Some(mut at) = text.len().checked_sub(TAIL_BYTES) else {
        return text;
    };
    while !text.is_char_boundary(at) {
        at += 1;
    }
    let rest = &text[at..];
    rest.find('\n').map_or(rest, |line| &rest[line + 1..])
}

/// Kills and waits for what became a child of this process because its own has ended; for a
/// second at most, as what hangs in the driver does not end.
fn end_orphans() {
    let own = std::process::id();
    for _ in 0..50 {
        let mut found = false;
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|n| n.parse::<i32>().ok())
            else {
                continue;
            };
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // The name, which may hold anything, ends with the last parenthesis.
            let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let parent = fields.split_whitespace().nth(1);
            if parent.and_then(|p| p.parse().ok()) != Some(own) {
                continue;
            }
            found = true;
            // SAFETY: takes no pointers; the process is a child that was not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // SAFETY: a null pointer asks for no status.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
        }
        if !found {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    fn run(top: &Path) -> Run {
        fs::create_dir_all(top.join("out/logs")).unwrap();
        Run {
            began: Instant::now(),
            folder: top.into(),
            bin: top.join("bin"),
            out: top.join("out"),
            report: Report::new("c", "d", Mode::Quick),
            told: Vec::new(),
        }
    }

    fn task(name: &str, line: &str, limit: u64) -> Task {
        Task {
            part: Part::Pack,
            name: name.into(),
            command: vec!["sh".into(), "-c".into(), line.into()],
            env: Vec::new(),
            limit,
            records: None,
            skip: None,
            is_fact: false,
        }
    }

    /// One run at a time: its children are the process's.
    static RUNS: Mutex<()> = Mutex::new(());

    fn folder(name: &str) -> (Folder, MutexGuard<'static, ()>) {
        prepare();
        let name = format!("osier-run-{name}-{}", std::process::id());
        let one = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        (Folder(std::env::temp_dir().join(name)), one)
    }

    #[test]
    fn a_program_whose_tests_all_skip_has_not_passed() {
        let skip = |name: &str| {
            format!("SKIPPED {name}, as OSIER_TEST asks: without the emulated driver: not built\n")
        };
        let begin = "running 3 tests\ntest child ... ignored, run by others\n";
        let end = "test result: ok. 2 passed; 0 failed; 1 ignored";
        let one = format!("test one ... {}{}ok\n", skip("one"), skip("one"));
        let other = format!("test two ... {}ok\n", skip("two"));
        let why = Some("all of its tests need the emulated driver".to_owned());
        assert_eq!(only_skips(&format!("{begin}{one}{other}{end}")), why);
        let passed = format!("{begin}{one}test two ... ok\n{end}");
        assert_eq!(only_skips(&passed), None);
        let none = Some("none of its tests is for this machine".to_owned());
        assert_eq!(only_skips(&format!("{begin}{end}")), none);
        assert_eq!(only_skips("a benchmark's table"), None);
    }

    #[test]
    fn a_report_is_there_after_every_step() {
        let (top, _one) = folder("steps");
        let mut run = run(&top.0);
        let records = top.0.join("out/records.json");
        let written = r#"[{"bench":"b","layout":"V","memory":"m","transport":"t","threads":1,
            "ranks":1,"bytes":8,"unit":"us","value":1.5,"floor":null}]"#;
        let mut good = task(
            "good",
            &format!("echo '{written}' > {}", records.display()),
            20,
        );
        good.records = Some(records);
        run.step(good, None).unwrap();
        run.step(task("bad", "echo what went wrong; exit 3", 20), None)
            .unwrap();
        // Its records of before it was stopped are kept, and nothing of it lives on.
        let mark = top.0.join("alive");
        let line = format!("(setsid sleep 60; touch {}) & sleep 60", mark.display());
        run.step(task("slow", &line, LEAST.as_secs()), None)
            .unwrap();
        let past = Some(Instant::now());
        run.step(task("late", "true", 20), past).unwrap();
        let report = Report::read(&top.0.join("report.json")).unwrap();
        let states: Vec<Status> = report
            .steps
            .iter()
            .map(|step| step.status.clone())
            .collect();
        assert_eq!(states[0], Status::Passed);
        assert_eq!(states[1], Status::Failed("exit code 3".into()));
        assert_eq!(states[2], Status::Stopped(LEAST.as_secs()));
        assert!(matches!(&states[3], Status::Skipped(why) if why.contains("--only pack")));
        assert_eq!(report.records[0].record.value, 1.5);
        assert!(report.steps[1].output.contains("what went wrong"));
        assert!(!report.finished && !mark.exists());
        let unpacked = top.0.join("unpacked");
        archive::unpack(&top.0.join(FILES[2]), &unpacked).unwrap();
        assert!(unpacked.join("logs/02-bad.log").is_file());
        assert_eq!(Report::read(&unpacked.join("report.json")).unwrap(), report);
    }

    /// What lies in the folder of a step may be no file: the run goes on, and so does the archive.
    #[test]
    fn sockets_of_a_step_end_nothing() {
        let (top, _one) = folder("sockets");
        let mut run = run(&top.0);
        fs::create_dir_all(top.0.join("out/mps")).unwrap();
        let socket = top.0.join("out/mps/control");
        let _socket = std::os::unix::net::UnixListener::bind(socket).unwrap();
        run.step(task("one", "echo one", 20), None).unwrap();
        run.step(task("two", "echo two", 20), None).unwrap();
        assert_eq!(run.told.len(), 1, "{:?}", run.told);
        let unpacked = top.0.join("unpacked");
        archive::unpack(&top.0.join(FILES[2]), &unpacked).unwrap();
        assert!(unpacked.join("logs/02-two.log").is_file());
    }

    #[test]
    fn a_peer_that_cannot_measure_is_skipped_with_its_last_line() {
        let (top, _one) = folder("absent");
        let mut run = run(&top.0);
        let mut absent = task("absent", "echo; echo torch is not installed", 20);
        absent.records = Some(top.0.join("nothing.json"));
        run.step(absent, None).unwrap();
        assert_eq!(
            run.report.steps[0].status,
            Status::Skipped("torch is not installed".into())
        );
    }

    #[test]
    fn tests_that_hang_are_known_by_their_line() {
        let output = "running 3 tests\ntest a ... ok\ntest b::c ... osier: what it says\n";
        assert_eq!(hung_test(output), Some("b::c".into()));
        assert_eq!(hung_test("test a ... ok\ntest b ... "), Some("b".into()));
        assert_eq!(hung_test("test a ... ok\n\ntest result: ok.\n"), None);
        assert_eq!(hung_test("no tests\n"), None);
    }

    #[test]
    fn variables_of_the_user_the_step_and_the_run_are_joined() {
        assert_eq!(debug(None, None), "cuda-library=libcuda.so.1");
        assert_eq!(
            debug(Some("cuda-library=/x.so".into()), Some("pipeline=on")),
            "cuda-library=/x.so,pipeline=on"
        );
        let line = "tight 1 OSIER_PINNED_LIMIT=256K /bin/osier run";
        let (name, gpus, words) = job(line).unwrap();
        assert_eq!((name.as_str(), gpus, words.len()), ("tight", 1, 3));
    }

    #[test]
    fn variables_before_a_program_reach_it() {
        let (top, _one) = folder("variables");
        let mut run = run(&top.0);
        let mut shown = task("shown", "echo $OSIER_PINNED_LIMIT $OSIER_DEBUG", 20);
        shown.command.insert(0, "OSIER_PINNED_LIMIT=256K".into());
        shown.command.insert(1, "OSIER_DEBUG=pipeline=on".into());
        run.step(shown, None).unwrap();
        let output = &run.report.steps[0].output;
        assert!(output.starts_with("256K "), "{output}");
        assert!(
            output.contains("pipeline=on") && output.contains("cuda-library="),
            "{output}"
        );
    }
}
