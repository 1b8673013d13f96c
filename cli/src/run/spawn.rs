//! Starts one process: a rank, or several as its threads.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use libc::{c_int, pid_t};

use super::bind::CpuSet;
use super::sys::SignalMask;

/// What a process is made of.
pub struct Plan<'a> {
    /// The executable.
    pub program: &'a Path,
    /// The program as the user wrote it, and its arguments.
    pub command: &'a [OsString],
    /// Variables that the user wants set.
    pub variables: &'a [(OsString, OsString)],
    /// Variables by which it finds its job and its ranks.
    pub job: Vec<(String, OsString)>,
    /// Its folder.
    pub folder: Option<&'a Path>,
    /// Its processors.
    pub cpus: Option<CpuSet>,
    /// The job's process group.
    pub group: pid_t,
    /// Whether it writes to the terminal itself.
    pub owns_terminal: bool,
    /// The signals that it blocks.
    pub mask: SignalMask,
    /// Descriptors 0, 1 and 2.
    pub stdio: [Stdio; 3],
}

/// Starts the process and returns its number.
pub fn spawn(plan: Plan<'_>) -> io::Result<pid_t> {
    let [stdin, stdout, stderr] = plan.stdio;
    let mut command = Command::new(plan.program);
    command
        .arg0(&plan.command[0])
        .args(&plan.command[1..])
        .envs(plan.variables.iter().map(|(k, v)| (k, v)))
        .envs(plan.job)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr);
    if let Some(folder) = plan.folder {
        command.current_dir(folder);
    }
    let launcher = std::process::id();
    let (group, cpus, mask) = (plan.group, plan.cpus, plan.mask);
    let owns_terminal = plan.owns_terminal;
    let prepare = move || {
        // SAFETY: a system call without pointers.
        cvt(unsafe { libc::setpgid(0, group) })?;
        // SAFETY: this option takes a number.
        cvt(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // A launcher that died before the line above sends no signal.
        if std::os::unix::process::parent_id() != launcher {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if owns_terminal {
            // The group is in the background, where a terminal may stop
            // processes that write to it or set its mode.
            // SAFETY: `SIG_IGN` is a valid disposition.
            unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
        }
        if let Some(cpus) = &cpus {
            cpus.apply()?;
        }
        mask.apply()
    };
    // SAFETY: between fork and exec `prepare` makes system calls only and
    // allocates nothing.
    unsafe { command.pre_exec(prepare) };
    // The child is reaped with all others, not through `Child`.
    let child = command.spawn()?;
    Ok(child.id().cast_signed())
}

fn cvt(ret: c_int) -> io::Result<()> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
