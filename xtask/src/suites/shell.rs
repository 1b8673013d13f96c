//! Lines for the shell, in the folder of a suite and with Osier in front of PATH.

use super::Site;
use crate::steps::Result;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Characters of a failure's output that are shown.
const SHOWN: usize = 600;

fn shell(site: &Site<'_>, line: &str) -> Command {
    let mut command = Command::new("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .args(["-o", "pipefail", "-c", line])
        .current_dir(&site.folder)
        .env(
            "PATH",
            format!("{}:{path}", site.prefix.join("bin").display()),
        )
        .env("PREFIX", site.prefix)
        .stdin(Stdio::null());
    command
}

/// What a line prints; it must succeed.
pub fn must(site: &Site<'_>, line: &str) -> Result<String> {
    let done = shell(site, line)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("bash: {e}"))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    match done.status.success() {
        true => Ok(text),
        false => Err(format!(
            "{}\n{line}\nended with {}",
            tail(&text),
            done.status
        )),
    }
}

fn tail(text: &str) -> String {
    let from = text.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
    text[from..].trim().replace('\n', " | ")
}

/// Ends all processes of a group when it is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            // SAFETY: a system call without pointers; the group is led by our child, whose
            // number nobody else has before it is waited for.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
        let _ = self.0.wait();
    }
}

/// Runs a line to its end, or to the limit; how it failed, if it did.
pub fn timed(site: &Site<'_>, line: &str, limit: Duration) -> Result<Option<String>> {
    let mut command = shell(site, line);
    command
        // The launcher ends its ranks before we end it.
        .env("MPIEXEC_TIMEOUT", limit.as_secs().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().map_err(|e| format!("bash: {e}"))?;
    let (said, hears) = channel();
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|p| Box::new(p) as Box<_>),
        child.stderr.take().map(|p| Box::new(p) as Box<_>),
    ];
    for mut pipe in pipes.into_iter().flatten() {
        let said = said.clone();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // What cannot be read is as good as not said.
            let _ = pipe.read_to_end(&mut text);
            let _ = said.send(text);
        });
    }
    drop(said);
    let mut group = Group(child);
    let mut text = String::new();
    let grace = Duration::from_secs(10);
    loop {
        match hears.recv_timeout(limit + grace) {
            Ok(bytes) => text += &String::from_utf8_lossy(&bytes),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                return Ok(Some(format!("no end within {limit:?}")));
            }
        }
    }
    let status = group.0.wait().map_err(|e| e.to_string())?;
    Ok((!status.success()).then(|| format!("{status}: {}", tail(&text))))
}
