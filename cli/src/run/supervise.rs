//! The life of a job, in one loop over pipes and signals.
//!
//! A process holds one rank, or a block of them as threads; it is what starts,
//! writes and dies.
//!
//! ```text
//! running --(a process fails, time limit, second SIGINT)--> ending
//! running, ending --(last process reaped)--> sweep --> flush --> exit code
//! ```
//!
//! # Invariants
//! 1. Every process that was started is reaped before the loop ends.
//! 2. Each death is written to the job before anything else follows from it,
//!    so that a peer that waits for the rank gets an error.
//! 3. A signal goes to the group only while a member of it is not reaped:
//!    after that its number may be another's.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, PipeReader, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};
use osier_engine::check::Setting;
use osier_engine::diagnose::LONG;
use osier_engine::diagnose::watch::Watcher;
use osier_transports::Death;
use osier_transports::shm::{Job, JobStatus};

use super::gpus::Devices;
use super::heap::Preloaded;
use super::keeper::Keeper;
use super::lines::Lines;
use super::output::Sinks;
use super::ranks::{self, Ranks};
use super::section::Sections;
use super::spawn::{self, Plan};
use super::stdin::{self, Forward};
use super::sys::{self, End, Reaped, SignalFd, signal_name};
use super::{Args, Failure, OnDeath, OnHang, bind, delay, program};

/// Hardware queues that a process has of each device.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// Where the user says nothing: as many as there are.
const MOST_CONNECTIONS: &str = "32";
/// From SIGTERM to SIGKILL when a job is ended.
const GRACE: Duration = Duration::from_millis(300);
/// How long a killed process may take to disappear.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a job that was ended waits for a reader that stands still.
const STALLED: Duration = Duration::from_secs(1);
/// Most bytes in a pipe (see /proc/sys/fs/pipe-max-size).
const PIPE_MOST_BYTES: usize = 1 << 20;
/// Exit code after a hang that ended the job.
const HUNG: u8 = 125;
/// Exit code after the time limit.
const TIMED_OUT: u8 = 124;

const FORWARDED: [c_int; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGCONT,
];

/// Runs the job and returns its exit code.
pub fn run(
    args: &Args,
    sections: &Sections,
    keeper: &Keeper,
    job: &Job,
    trace: Option<&Path>,
    devices: Option<&Devices>,
    heap: Option<&Preloaded>,
) -> Result<u8, Failure> {
    // Before the first rank, so that none of its signals is lost.
    let signals: Vec<c_int> = FORWARDED.into_iter().chain([libc::SIGCHLD]).collect();
    let signals =
        SignalFd::new(&signals).map_err(|e| Failure::os("cannot wait for signals", &e))?;
    let blocks = ranks::blocks(args.ranks, args.ranks_per_process);
    let label_width = args.label.then(|| ranks::label_width(&blocks));
    let mut supervisor = Supervisor {
        args,
        sections,
        trace,
        devices,
        heap,
        job,
        group: keeper.group(),
        keeper_lives: true,
        signals,
        sinks: Sinks::new(label_width),
        processes: Vec::with_capacity(blocks.len()),
        living: 0,
        pipes: Vec::new(),
        next_read: 0,
        forward: None,
        deadline: args.timeout.map(|t| Instant::now() + t),
        hangs: JobStatus::of(job).ok().map(|status| Hangs {
            status,
            watcher: Watcher::default(),
            patience: super::patience(args).unwrap_or_default(),
            look_at: Instant::now() + LONG,
        }),
        ending: None,
        code: None,
        received: Vec::new(),
    };
    let started = supervisor.start(&blocks);
    if let Err(failure) = &started {
        supervisor.code = Some(failure.code);
        supervisor.sinks.note(&failure.message);
        supervisor.kill();
    }
    supervisor.watch();
    supervisor.sweep();
    supervisor.flush();
    Ok(supervisor.code.unwrap_or(0))
}

struct Supervisor<'a> {
    args: &'a Args,
    sections: &'a Sections,
    /// The emulated GPUs.
    devices: Option<&'a Devices>,
    heap: Option<&'a Preloaded>,
    /// Where ranks record what they do.
    trace: Option<&'a Path>,
    job: &'a Job,
    group: pid_t,
    keeper_lives: bool,
    signals: SignalFd,
    sinks: Sinks,
    processes: Vec<Process>,
    living: usize,
    pipes: Vec<Pipe>,
    /// The pipe that is read first in the next round.
    next_read: usize,
    forward: Option<Forward>,
    deadline: Option<Instant>,
    /// Looks out for hangs.
    hangs: Option<Hangs>,
    ending: Option<Ending>,
    /// The exit code, once a failure has set it.
    code: Option<u8>,
    /// Signals that were passed on.
    received: Vec<c_int>,
}

struct Process {
    pid: pid_t,
    ranks: Ranks,
    lives: bool,
}

/// What looks out for hangs, and when it does next.
struct Hangs {
    status: JobStatus,
    watcher: Watcher,
    /// How long the job stands still before it probably hangs.
    patience: Option<Duration>,
    look_at: Instant,
}

/// The job is being ended.
struct Ending {
    /// When to send SIGKILL; none after that.
    kill_at: Option<Instant>,
}

/// What a process writes.
struct Pipe {
    reader: PipeReader,
    /// Its place among the processes.
    process: usize,
    sink: usize,
    stream: usize,
    /// Whether poll has found it readable.
    ready: bool,
}

impl Supervisor<'_> {
    fn start(&mut self, blocks: &[Ranks]) -> Result<(), Failure> {
        for fd in self.job.inherited_fds() {
            // The launcher executes nothing but ranks.
            sys::set_inherited(fd).map_err(|e| Failure::os("cannot share the job's memory", &e))?;
        }
        let (places, warning) = bind::plan(self.args.bind, self.args.ranks);
        if let Some(warning) = warning {
            self.sinks.note(&warning);
        }
        if let Some(delay) = self.job.delay() {
            self.sinks.note(&delay::note(delay, blocks.len()));
        }
        for ranks in blocks {
            self.start_process(*ranks, &places[ranks.range()], blocks.len())?;
        }
        Ok(())
    }

    fn start_process(
        &mut self,
        ranks: Ranks,
        places: &[Option<bind::CpuSet>],
        processes: usize,
    ) -> Result<(), Failure> {
        let all = self.args.ranks;
        let (number, section, program) = self.sections.of(ranks.first);
        let no_pipe = |e: io::Error| Failure::os(&format!("cannot make a pipe for {ranks}"), &e);
        let stdin = if ranks.first == 0 {
            let (stdin, forward) = stdin::for_rank_zero().map_err(no_pipe)?;
            self.forward = forward;
            stdin
        } else {
            Stdio::null()
        };
        // A single process mixes with nobody.
        let direct = processes == 1 && !self.args.label;
        let (stdout, stderr) = if direct {
            (Stdio::inherit(), Stdio::inherit())
        } else {
            let stdout = self.pipe(ranks, 0).map_err(no_pipe)?;
            let stderr = self.pipe(ranks, self.sinks.stderr).map_err(no_pipe)?;
            (stdout, stderr)
        };
        let mut job = ranks.env(self.job, places, number, &self.args.psets);
        let checks = Setting::from_bits(self.job.checks());
        job.push(("OSIER_CHECK".into(), checks.to_string().into()));
        if let Some(folder) = self.trace {
            job.push(("OSIER_TRACE".into(), folder.into()));
        }
        // It was not meant for them.
        job.push(("OSIER_ALONE".into(), OsString::new()));
        let variables = [&self.args.env[..], &section.env].concat();
        // Streams that wait share a queue of the device with fewer others.
        let set = |(name, _): &(OsString, OsString)| name == CONNECTIONS;
        if !variables.iter().any(set) && std::env::var_os(CONNECTIONS).is_none() {
            job.push((CONNECTIONS.into(), MOST_CONNECTIONS.into()));
        }
        if let Some(devices) = self.devices {
            job.extend(devices.variables(&variables));
        }
        if let Some(heap) = self.heap {
            job.extend(heap.variables(&variables));
        }
        let plan = Plan {
            program,
            command: &section.command,
            variables: &variables,
            job,
            folder: section.wdir.as_deref(),
            // Threads of a process go to their places themselves.
            cpus: (places.iter().all(Option::is_some))
                .then(|| bind::CpuSet::union(places.iter().flatten())),
            group: self.group,
            owns_terminal: direct,
            mask: self.signals.mask_before(),
            stdio: [stdin, stdout, stderr],
        };
        match spawn::spawn(plan) {
            Ok(pid) => {
                self.processes.push(Process {
                    pid,
                    ranks,
                    lives: true,
                });
                self.living += 1;
                Ok(())
            }
            Err(e) => {
                let hint = match e.raw_os_error() {
                    Some(libc::EAGAIN) => " (hint: too many processes? see ulimit -u)",
                    Some(libc::ENOMEM) => " (hint: out of memory?)",
                    Some(libc::ENOEXEC) => " (hint: is it built for this machine?)",
                    Some(libc::E2BIG) => " (hint: arguments and environment are too long)",
                    Some(libc::ENOENT) => " (hint: is the interpreter that it names there?)",
                    _ => "",
                };
                let code = match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOMEM) => super::FAILED,
                    _ => program::NOT_EXECUTABLE,
                };
                Err(Failure::new(
                    code,
                    format!(
                        "cannot start {ranks} of {all} ({}): {}{hint}",
                        program.display(),
                        super::cause(&e)
                    ),
                ))
            }
        }
    }

    /// A pipe from the next process to a sink.
    fn pipe(&mut self, ranks: Ranks, sink: usize) -> io::Result<Stdio> {
        let (reader, writer) = io::pipe()?;
        sys::set_nonblocking(reader.as_fd())?;
        let stream = self.sinks.all[sink].lines.add(ranks.label());
        self.pipes.push(Pipe {
            reader,
            process: self.processes.len(),
            sink,
            stream,
            ready: false,
        });
        Ok(writer.into())
    }

    /// Stays with the ranks until all are reaped.
    fn watch(&mut self) {
        let mut buffer = vec![0; 64 * 1024];
        while self.living > 0 {
            self.flush_some();
            self.wait(None);
            self.read(&mut buffer);
            self.end_without_output();
            self.handle_signals(&mut buffer);
            self.handle_time();
            self.look_out();
        }
        self.forward = None;
        self.hangs = None;
    }

    /// Waits until there is something to do, and forwards standard input.
    fn wait(&mut self, at_most: Option<Duration>) {
        let mut fds = Vec::with_capacity(self.pipes.len() + 6);
        fds.push(self.signals.interest());
        let mut again = at_most;
        if let Some(forward) = &self.forward {
            let (interest, after) = forward.interest();
            fds.extend(interest);
            again = again.into_iter().chain(after).min();
        }
        let forwarded = fds.len();
        fds.extend(self.sinks.all.iter().filter_map(|sink| sink.interest()));
        let first_pipe = fds.len();
        for pipe in &self.pipes {
            let mut entry = sys::interest(pipe.reader.as_fd(), libc::POLLIN);
            if !self.sinks.all[pipe.sink].lines.has_room(pipe.stream) {
                entry.fd = -1; // not asked for
            }
            fds.push(entry);
        }
        let now = Instant::now();
        let timeout = self
            .sinks
            .all
            .iter()
            .filter_map(|sink| sink.lines.deadline())
            .chain(self.deadline)
            .chain(self.hangs.as_ref().map(|hangs| hangs.look_at))
            .chain(self.ending.as_ref().and_then(|ending| ending.kill_at))
            .map(|at| at.saturating_duration_since(now))
            .chain(again)
            .min();
        if sys::poll(&mut fds, timeout).is_err() {
            // Only a lack of kernel memory comes here: ask again, not at once.
            std::thread::sleep(Duration::from_millis(10));
        }
        for (pipe, entry) in self.pipes.iter_mut().zip(&fds[first_pipe..]) {
            pipe.ready = entry.revents != 0;
        }
        if let Some(forward) = &mut self.forward
            && !forward.advance(&fds[1..forwarded])
        {
            self.forward = None;
        }
    }

    /// Reads the pipes that are ready once.
    fn read(&mut self, buffer: &mut [u8]) {
        let now = Instant::now();
        let pipes = self.pipes.len();
        let mut ended = Vec::new();
        let mut passed_over = None;
        for i in 0..pipes {
            let at = (self.next_read + i) % pipes;
            let pipe = &mut self.pipes[at];
            if !pipe.ready {
                continue;
            }
            let sink = &mut self.sinks.all[pipe.sink];
            if !sink.lines.has_room(pipe.stream) {
                passed_over.get_or_insert(at);
                continue;
            }
            if pipe.read(&mut sink.lines, buffer, now) == Some(0) {
                ended.push(at);
            }
            sink.flush(now);
        }
        // A rank whose reader has gone learns it like any writer of a pipe.
        let sinks = &self.sinks.all;
        let mut at = 0;
        self.pipes.retain(|pipe| {
            at += 1;
            !ended.contains(&(at - 1)) && !sinks[pipe.sink].is_broken()
        });
        let next = passed_over.unwrap_or(0);
        self.next_read = if next < self.pipes.len() { next } else { 0 };
    }

    fn flush_some(&mut self) {
        let now = Instant::now();
        for sink in &mut self.sinks.all {
            sink.flush(now);
        }
    }

    /// Ends the job when output cannot be written, before ranks die of it one by one. A reader
    /// that has gone is no failure: ranks learn it from their pipes.
    fn end_without_output(&mut self) {
        for complaint in self.sinks.complaints() {
            self.sinks.note(&complaint);
            self.code.get_or_insert(super::FAILED);
            if self.ending.is_none() {
                self.end();
            }
        }
    }

    fn handle_signals(&mut self, buffer: &mut [u8]) {
        while let Some(signal) = self.signals.next() {
            if signal == libc::SIGCHLD {
                self.reap(buffer);
                continue;
            }
            let again = self.received.contains(&signal);
            self.received.push(signal);
            if again && matches!(signal, libc::SIGINT | libc::SIGTERM) {
                let name = signal_name(signal);
                self.sinks.note(&format!("second {name}: killing the job"));
                self.code.get_or_insert(code_of_signal(signal));
                self.kill();
                continue;
            }
            self.send(signal);
            if signal == libc::SIGTSTP {
                // SIGCONT wakes this process and is passed on in its turn.
                let _ = sys::kill(std::process::id().cast_signed(), libc::SIGSTOP);
            }
        }
    }

    fn reap(&mut self, buffer: &mut [u8]) {
        while let Ok(Reaped::Child(pid, end)) = sys::reap() {
            if pid == self.group {
                self.keeper_lives = false;
                if self.living > 0 && self.ending.is_none() {
                    self.sinks
                        .note("the job's keeper was killed: ending the job");
                    self.code.get_or_insert(super::FAILED);
                    self.kill();
                }
                continue;
            }
            // Others are orphans of ranks, of which nobody asks the end.
            let of_pid = |process: &Process| process.pid == pid && process.lives;
            if let Some(process) = self.processes.iter().position(of_pid) {
                self.handle_end(process, end, buffer);
            }
        }
    }

    fn handle_end(&mut self, process: usize, end: End, buffer: &mut [u8]) {
        self.processes[process].lives = false;
        let ranks = self.processes[process].ranks;
        self.living -= 1;
        let (death, code) = match end {
            End::Exited(code) => (Death::Exited(code), code as u8),
            End::Signaled { signal, .. } => (Death::Signaled(signal), code_of_signal(signal)),
        };
        // Who ends first may not be who has asked for the end. What others ask for because of
        // this end comes later, as they do not know of it yet.
        let asked = self.job.aborted();
        for rank in ranks.range() {
            self.job.mark_dead(rank, death);
        }
        if ranks.first == 0 {
            self.forward = None;
        }
        // What it wrote comes before what is said of it.
        let now = Instant::now();
        for pipe in self.pipes.iter_mut().filter(|pipe| pipe.process == process) {
            let lines = &mut self.sinks.all[pipe.sink].lines;
            pipe.drain(lines, buffer, now);
            lines.pump(now);
        }
        let aborted = asked.is_some();
        if code == 0 && !aborted {
            return;
        }
        self.code.get_or_insert(asked.unwrap_or(code));
        let first = self.ending.is_none();
        if first && code != 0 && !self.is_expected(end) {
            let message = self.obituary(process, end);
            self.sinks.note(&message);
        }
        if first && (aborted || self.args.on_death == OnDeath::Kill) {
            self.end();
        }
    }

    /// Whether the user knows: they have sent the signal, or the reader of
    /// the output has gone.
    fn is_expected(&self, end: End) -> bool {
        let End::Signaled { signal, .. } = end else {
            return false;
        };
        self.received.contains(&signal)
            || (signal == libc::SIGPIPE && self.sinks.all.iter().any(|s| s.is_broken()))
    }

    fn obituary(&self, process: usize, end: End) -> String {
        let Process { pid, ranks, .. } = self.processes[process];
        let who = format!(
            "{ranks} of {} ({}pid {pid}, {})",
            self.args.ranks,
            if ranks.count > 1 { "one process, " } else { "" },
            self.sections.of(ranks.first).1.command[0].display()
        );
        match end {
            End::Exited(code) => format!("{who} exited with code {code}"),
            End::Signaled { signal, core } => {
                let name = signal_name(signal);
                let core = if core { ", core dumped" } else { "" };
                let hint = match signal {
                    libc::SIGSEGV => " (hint: an invalid address; a debugger shows where)",
                    libc::SIGBUS => {
                        " (hint: is shared memory full? see the memory limit of this machine \
                         or container)"
                    }
                    libc::SIGKILL => {
                        " (hint: out of memory? see the system log, and the memory limit of \
                         this machine or container)"
                    }
                    libc::SIGILL => " (hint: built for another processor?)",
                    libc::SIGXCPU => " (hint: the limit on processor time, ulimit -t)",
                    libc::SIGXFSZ => " (hint: the limit on file sizes, ulimit -f)",
                    _ => "",
                };
                format!("{who} died of signal {signal} ({name}{core}){hint}")
            }
        }
    }

    fn handle_time(&mut self) {
        let now = Instant::now();
        let killing = self.ending.as_ref().and_then(|ending| ending.kill_at);
        if killing.is_some_and(|at| now >= at) {
            self.kill();
        }
        if self.deadline.is_some_and(|at| now >= at) {
            self.deadline = None;
            if self.living > 0 && self.ending.is_none() {
                let seconds = self.args.timeout.unwrap_or_default().as_secs_f64();
                self.sinks.note(&format!(
                    "the job has not ended in {seconds} s (--timeout): ending it"
                ));
                self.code = Some(TIMED_OUT);
                self.end();
            }
        }
    }

    /// Reports a hang of the job.
    fn look_out(&mut self) {
        let now = Instant::now();
        let Some(hangs) = self.hangs.as_mut().filter(|h| now >= h.look_at) else {
            return;
        };
        hangs.look_at = now + LONG;
        if self.ending.is_some() {
            return;
        }
        let Some(report) = hangs.watcher.observe(&hangs.status, hangs.patience) else {
            return;
        };
        self.sinks.note(&report.text);
        let option = match self.args.on_hang {
            OnHang::Report => None,
            OnHang::Kill => report.certain.then_some("kill"),
            OnHang::KillProbable => Some("kill-probable"),
        };
        if let Some(option) = option {
            let note = format!("ending the job (--on-hang {option})");
            self.sinks.note(&note);
            self.code.get_or_insert(HUNG);
            self.end();
        }
    }

    /// Asks the job to end, and kills what is left of it after [`GRACE`].
    fn end(&mut self) {
        self.ending = Some(Ending {
            kill_at: Some(Instant::now() + GRACE),
        });
        self.send(libc::SIGTERM);
        self.send(libc::SIGCONT);
    }

    fn kill(&mut self) {
        self.ending = Some(Ending { kill_at: None });
        self.send(libc::SIGKILL);
    }

    /// Sends a signal to the job's process group, and to ranks that have
    /// left it.
    fn send(&self, signal: c_int) {
        // Invariant 3. Errors: a process that is gone needs no signal.
        if self.keeper_lives || self.living > 0 {
            let _ = sys::kill(-self.group, signal);
        }
        for process in self.processes.iter().filter(|process| process.lives) {
            if sys::group_of(process.pid).is_ok_and(|group| group != self.group) {
                let _ = sys::kill(process.pid, signal);
            }
        }
    }

    /// Kills what the ranks have left behind, and the keeper.
    fn sweep(&mut self) {
        if self.keeper_lives {
            let _ = sys::kill(-self.group, libc::SIGKILL);
        }
        let until = Instant::now() + SWEEP;
        loop {
            match sys::reap() {
                Ok(Reaped::Child(..)) => {}
                Ok(Reaped::NoneYet) if Instant::now() < until => {
                    // Descendants that have left the group are our children
                    // once their parents are gone.
                    for pid in children() {
                        let _ = sys::kill(pid, libc::SIGKILL);
                    }
                    let mut fds = [self.signals.interest()];
                    let _ = sys::poll(&mut fds, Some(Duration::from_millis(10)));
                    while self.signals.next().is_some() {}
                }
                _ => break,
            }
        }
        let now = Instant::now();
        let mut buffer = vec![0; 64 * 1024];
        for mut pipe in self.pipes.drain(..) {
            pipe.drain(&mut self.sinks.all[pipe.sink].lines, &mut buffer, now);
        }
    }

    /// Writes what is left. After a failure a reader that stands still is
    /// not waited for for long; a signal ends the wait always.
    fn flush(&mut self) {
        let failed = self.ending.take().is_some();
        self.deadline = None;
        let start = Instant::now();
        loop {
            self.flush_some();
            if self.sinks.is_empty() {
                break;
            }
            let idle = self
                .sinks
                .progress()
                .map_or(start, |at| at.max(start))
                .elapsed();
            if failed && idle >= STALLED {
                break;
            }
            self.wait(failed.then_some(STALLED - idle.min(STALLED)));
            if let Some(signal) = self.signals.next()
                && matches!(
                    signal,
                    libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT
                )
            {
                self.code.get_or_insert(code_of_signal(signal));
                return;
            }
        }
        for complaint in self.sinks.complaints() {
            self.code.get_or_insert(super::FAILED);
            self.sinks.note(&complaint);
        }
        self.flush_some();
    }
}

impl Pipe {
    /// Reads once: the number of bytes, 0 at the end, nothing if there is
    /// nothing now.
    fn read(&mut self, lines: &mut Lines, buffer: &mut [u8], now: Instant) -> Option<usize> {
        loop {
            match self.reader.read(buffer) {
                Ok(n) => {
                    lines.feed(self.stream, &buffer[..n], now);
                    if n == 0 {
                        lines.finish(self.stream);
                    }
                    return Some(n);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// Reads what its dead rank has left in it. Processes that it started
    /// may go on writing, hence the limit, which is that of a pipe.
    fn drain(&mut self, lines: &mut Lines, buffer: &mut [u8], now: Instant) {
        let mut left = PIPE_MOST_BYTES;
        while left > 0 {
            match self.read(lines, buffer, now) {
                Some(n @ 1..) => left = left.saturating_sub(n),
                _ => break,
            }
        }
        lines.finish(self.stream);
    }
}

/// The children of this process.
fn children() -> Vec<pid_t> {
    let own = std::process::id();
    let list = fs::read_to_string(format!("/proc/self/task/{own}/children"));
    list.map_or_else(
        |_| Vec::new(),
        |list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect()
        },
    )
}

fn code_of_signal(signal: c_int) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
