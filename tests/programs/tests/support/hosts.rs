//! Hosts for tests: network namespaces joined by a bridge, each with its own host name and mount
//! of shared memory. They need root, and go when they are dropped.

use crate::support::needs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Addresses of the hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    V4,
    V6,
    /// An interface that leads nowhere, and one that does.
    OneDead,
}

/// Hosts on one switch.
pub struct Hosts {
    /// Begin of the names of their namespaces.
    name: String,
    /// A process of each, which keeps its namespaces.
    keepers: Vec<Child>,
}

/// Runs `ip` with these words.
fn ip(words: &str) -> Result<(), String> {
    let done = Command::new("ip").args(words.split(' ')).output();
    let done = done.map_err(|e| format!("ip: {e}"))?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&done.stderr);
            Err(format!("ip {words}: {}", why.trim()))
        }
    }
}

impl Hosts {
    /// Makes this number of hosts; nothing where that is not permitted and the skip was asked
    /// for.
    #[track_caller]
    pub fn new(hosts: usize, addresses: Addresses) -> Option<Hosts> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let mut made = Hosts {
            name: format!("osier-{}-{number}", std::process::id()),
            keepers: Vec::new(),
        };
        match made.build(hosts, addresses) {
            Ok(()) => Some(made),
            Err(why) => {
                needs::missing("hosts", why);
                None
            }
        }
    }

    fn build(&mut self, hosts: usize, addresses: Addresses) -> Result<(), String> {
        let name = &self.name;
        let switch = format!("{name}-s");
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add br0 type bridge"))?;
        ip(&format!("-n {switch} link set br0 up"))?;
        for host in 0..hosts {
            let own = format!("{name}-{host}");
            ip(&format!("netns add {own}"))?;
            ip(&format!("-n {own} link set lo up"))?;
            if addresses == Addresses::OneDead {
                // Up, and its other end is on no switch.
                ip(&format!(
                    "-n {switch} link add d{host} type veth peer name eth9 netns {own}"
                ))?;
                ip(&format!("-n {switch} link set d{host} up"))?;
                ip(&format!(
                    "-n {own} addr add 10.78.0.{}/24 dev eth9",
                    host + 1
                ))?;
                ip(&format!("-n {own} link set eth9 up"))?;
            }
            ip(&format!(
                "-n {switch} link add p{host} type veth peer name eth0 netns {own}"
            ))?;
            ip(&format!("-n {switch} link set p{host} master br0 up"))?;
            let address = match addresses {
                Addresses::V6 => format!("fd77::{}/64 dev eth0 nodad", host + 1),
                _ => format!("10.77.0.{}/24 dev eth0", host + 1),
            };
            ip(&format!("-n {own} addr add {address}"))?;
            ip(&format!("-n {own} link set eth0 up"))?;
            self.keepers.push(keeper(&own, host)?);
        }
        Ok(())
    }

    /// A program on a host.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let keeper = self.keepers[host].id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &keeper, "--net", "--uts", "--mount", "--", program]);
        command
    }

    /// Takes a host's link down, or up again.
    pub fn link(&self, host: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        let done = ip(&format!("-n {}-s link set p{host} {state}", self.name));
        done.expect("a link");
    }
}

/// A process that keeps a host.
fn keeper(namespace: &str, host: usize) -> Result<Child, String> {
    let script = format!(
        "hostname h{host} && mount --make-rprivate / && mount -t tmpfs tmpfs /dev/shm && echo ready && exec cat"
    );
    let mut child = Command::new("nsenter")
        .arg(format!("--net=/run/netns/{namespace}"))
        .args(["unshare", "--uts", "--mount", "sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("nsenter: {e}"))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        // Nothing is there if it has failed.
        let _ = BufReader::new(out).read_line(&mut line);
    }
    match line.trim() {
        "ready" => Ok(child),
        _ => {
            let done = child.wait_with_output().map_err(|e| e.to_string())?;
            let why = String::from_utf8_lossy(&done.stderr);
            Err(format!("namespaces of a host: {}", why.trim()))
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (host, keeper) in self.keepers.iter_mut().enumerate() {
            // It ends when its input does.
            drop(keeper.stdin.take());
            let _ = keeper.wait();
            let _ = ip(&format!("netns del {}-{host}", self.name));
        }
        // Also of one that was not made whole.
        let _ = ip(&format!("netns del {}-{}", self.name, self.keepers.len()));
        let _ = ip(&format!("netns del {}-s", self.name));
    }
}
