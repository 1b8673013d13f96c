//! Starts `osier`, watches what it does, finds its processes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Ends a test that would hang. Ten times what the longest step may take.
pub const GUARD: Duration = Duration::from_secs(30);

/// The variable by which the processes of a job are found.
const MARK: &str = "OSIER_TEST_MARK";

/// Waits until `done` is true.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + GUARD;
    while !done() {
        assert!(
            Instant::now() < until,
            "waited {GUARD:?} in vain for: {what}"
        );
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Sends a signal.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: a system call without pointers.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// A live process of a job.
#[derive(Debug)]
pub struct Process {
    pub pid: i32,
    pub name: String,
    pub state: char,
}

/// The live processes that bear a mark.
pub fn processes(mark: &str) -> Vec<Process> {
    let wanted = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        if !environ.split(|b| *b == 0).any(|v| v == wanted.as_bytes()) {
            continue;
        }
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let (head, tail) = stat.rsplit_once(") ").unwrap();
        let state = tail.chars().next().unwrap();
        if !matches!(state, 'Z' | 'X') {
            let name = head.split_once('(').unwrap().1.to_owned();
            found.push(Process { pid, name, state });
        }
    }
    found
}

/// The processors in a status file of `/proc`.
pub fn allowed_cpus(status: &str) -> Vec<usize> {
    let text = fs::read_to_string(status).unwrap();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    parse_cpus(line.unwrap())
}

/// Parses `0-3,8`.
pub fn parse_cpus(list: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().unwrap()..=last.parse().unwrap());
    }
    cpus
}

/// The number of cores that these processors belong to.
pub fn cores(cpus: &[usize]) -> usize {
    let mut cores: Vec<String> = cpus
        .iter()
        .map(|cpu| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            fs::read_to_string(path).unwrap_or_else(|_| cpu.to_string())
        })
        .collect();
    cores.sort();
    cores.dedup();
    cores.len()
}

/// A filter that answers these system calls with "not permitted".
fn filter(refused: &[libc::c_long]) -> Vec<libc::sock_filter> {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k, jt| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = vec![step(load, 0, 0)]; // the number of the call
    for (i, call) in refused.iter().enumerate() {
        let to_refusal = (refused.len() - i) as u8;
        program.push(step(equal, *call as u32, to_refusal));
    }
    program.push(step(answer, libc::SECCOMP_RET_ALLOW, 0));
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    program.push(step(answer, refusal, 0));
    program
}

/// A job to be started.
pub struct Launch {
    args: Vec<OsString>,
    mark: String,
    merge: bool,
    unread: bool,
    terminal: Option<OwnedFd>,
    fifo: Option<Fifo>,
    refused: Vec<libc::c_long>,
}

struct Fifo(std::path::PathBuf);

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Launch {
    /// `osier` with these arguments.
    pub fn raw(args: &[&str]) -> Launch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Launch {
            args: args.iter().map(OsString::from).collect(),
            mark: format!("{}-{number}", std::process::id()),
            merge: false,
            unread: false,
            terminal: None,
            fifo: None,
            refused: Vec::new(),
        }
    }

    /// `osier run -n RANKS`.
    pub fn ranks(ranks: usize) -> Launch {
        Launch::raw(&["run", "-n", &ranks.to_string()])
    }

    pub fn option(mut self, option: &str) -> Launch {
        self.args.push(option.into());
        self
    }

    pub fn shell(self, script: &str) -> Launch {
        self.program("sh", &["-c", script])
    }

    pub fn program(mut self, program: &str, args: &[&str]) -> Launch {
        self.args.extend(["--".into(), program.into()]);
        self.args.extend(args.iter().map(OsString::from));
        self
    }

    /// Makes standard error the same file as standard output.
    pub fn merge_stderr(mut self) -> Launch {
        self.merge = true;
        self
    }

    /// Does not read standard output.
    pub fn unread(mut self) -> Launch {
        self.unread = true;
        self
    }

    /// Runs in the foreground of a terminal.
    pub fn terminal(mut self, pty: &Pty) -> Launch {
        self.terminal = Some(pty.slave.try_clone().unwrap());
        self
    }

    /// Gives the ranks a named pipe as `$FIFO`.
    pub fn fifo(mut self) -> Launch {
        let path = std::env::temp_dir().join(format!("osier-test-{}", self.mark));
        let status = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(status.success());
        self.fifo = Some(Fifo(path));
        self
    }

    /// Has the system refuse these calls to the job, as the filters of
    /// containers do.
    pub fn refuse(mut self, calls: &[libc::c_long]) -> Launch {
        self.refused = calls.to_vec();
        self
    }

    pub fn start(self) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
        command.args(&self.args).env(MARK, &self.mark);
        if let Some(fifo) = &self.fifo {
            command.env("FIFO", &fifo.0);
        }
        // A shell lets its background processes ignore the first two, `nohup` the third.
        let heed_signals = || {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                // SAFETY: `SIG_DFL` is a valid disposition.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: system calls alone, no allocation.
        unsafe { command.pre_exec(heed_signals) };
        if !self.refused.is_empty() {
            let filter = filter(&self.refused);
            let obey = move || {
                // SAFETY: takes numbers.
                if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                let program = libc::sock_fprog {
                    len: filter.len() as u16,
                    filter: filter.as_ptr().cast_mut(),
                };
                let mode = libc::SECCOMP_MODE_FILTER;
                // SAFETY: the program lives until the call returns.
                if unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &program) } != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            };
            // SAFETY: two system calls, no allocation.
            unsafe { command.pre_exec(obey) };
        }
        let mut stdout = None;
        let mut stderr = None;
        if let Some(slave) = &self.terminal {
            command
                .stdin(slave.try_clone().unwrap())
                .stdout(slave.try_clone().unwrap())
                .stderr(slave.try_clone().unwrap());
            let become_leader = || {
                // SAFETY: a system call without pointers.
                if unsafe { libc::setsid() } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // SAFETY: this request takes a number; 0 is the terminal.
                if unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            };
            // SAFETY: two system calls, no allocation.
            unsafe { command.pre_exec(become_leader) };
        } else {
            let (reader, writer) = std::io::pipe().unwrap();
            command.stdin(Stdio::piped());
            if self.merge {
                command.stderr(writer.try_clone().unwrap());
            } else {
                let (reader, writer) = std::io::pipe().unwrap();
                command.stderr(writer);
                stderr = Some(reader);
            }
            command.stdout(writer);
            stdout = Some(reader);
        }
        let mut child = command.spawn().unwrap();
        drop(command); // it holds the writing ends
        let unread = if self.unread { stdout.take() } else { None };
        Running {
            stdin: child.stdin.take(),
            child,
            mark: self.mark,
            stdout: stdout.map(Reader::new),
            stderr: stderr.map(Reader::new),
            unread,
            _fifo: self.fifo,
        }
    }

    /// Starts the job without input and waits for its end.
    pub fn finish(self) -> Done {
        let mut running = self.start();
        drop(running.stdin.take());
        running.finish()
    }
}

/// A job that runs. Dropping it kills it.
pub struct Running {
    pub stdin: Option<ChildStdin>,
    pub mark: String,
    child: Child,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    unread: Option<PipeReader>,
    _fifo: Option<Fifo>,
}

/// A job that has ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    pub fn sorted_lines(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        lines.sort_unstable();
        lines
    }
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    pub fn stdout(&self) -> String {
        self.stdout.as_ref().map_or_else(String::new, Reader::text)
    }

    pub fn wait_stdout(&self, text: &str) {
        wait_for(text, || self.stdout().contains(text));
    }

    pub fn wait_stdout_lines(&self, lines: usize) {
        wait_for("lines", || self.stdout().lines().count() >= lines);
    }

    pub fn wait_stderr(&self, text: &str) {
        let stderr = self.stderr.as_ref().unwrap();
        wait_for(text, || stderr.text().contains(text));
    }

    pub fn drop_unread(&mut self) {
        self.unread = None;
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the end of the job", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub fn finish(mut self) -> Done {
        let code = self.wait().code();
        let text = |reader: Option<Reader>| reader.map_or_else(String::new, Reader::finish);
        Done {
            code,
            stdout: text(self.stdout.take()),
            stderr: text(self.stderr.take()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The launcher's keeper ends the rest.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a file in a thread.
struct Reader {
    text: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn new(mut from: impl Read + Send + 'static) -> Reader {
        let text = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&text);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            // A terminal without processes reads as an error.
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        Reader { text, thread }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// What was read up to the end, which comes only after every process
    /// that could write is gone.
    fn finish(self) -> String {
        wait_for("the end of the output", || self.thread.is_finished());
        self.text()
    }
}

/// A terminal.
pub struct Pty {
    master: File,
    slave: OwnedFd,
    screen: Reader,
}

impl Pty {
    pub fn open() -> Pty {
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: both numbers are writable; null asks for no name, default
        // modes and size.
        let ret = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it is new and nobody else's.
        let master = unsafe { OwnedFd::from_raw_fd(master) };
        // SAFETY: it is new and nobody else's.
        let slave = unsafe { OwnedFd::from_raw_fd(slave) };
        for fd in [&master, &slave] {
            // SAFETY: a system call without pointers.
            let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
            assert_eq!(ret, 0);
        }
        let master = File::from(master);
        let screen = Reader::new(master.try_clone().unwrap());
        Pty {
            master,
            slave,
            screen,
        }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).unwrap();
    }

    /// What was written to it.
    pub fn seen(&self) -> String {
        self.screen.text()
    }
}
