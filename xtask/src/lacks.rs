//! What this machine has not, and tests may do without: `cargo xtask test` asks for these
//! skips, and names them in its table.

use crate::setup::on_path;
use crate::steps::{succeeds, target_dir};
use std::process::{Command, Stdio};

/// Keys of `tests/needs.rs`, and why they are asked for.
pub struct Lacks(Vec<(&'static str, &'static str)>);

impl Lacks {
    /// Looks at this machine.
    pub fn here() -> Self {
        let mut all = Vec::new();
        let mut without = |key, there: bool, why| {
            if !there {
                all.push((key, why));
            }
        };
        for (tool, why) in [
            ("valgrind", "not on PATH (hint: apt-get install valgrind)"),
            (
                "pkg-config",
                "not on PATH (hint: apt-get install pkg-config)",
            ),
            ("cmake", "not on PATH (hint: apt-get install cmake)"),
            ("gfortran", "not on PATH (hint: apt-get install gfortran)"),
            ("python3", "not on PATH (hint: apt-get install python3)"),
        ] {
            // The key of `python3` is the language.
            let key = tool.trim_end_matches('3');
            without(key, on_path(tool), why);
        }
        let peers = target_dir().join("peers");
        let installed =
            ["mpich", "intelmpi"].map(|name| peers.join(name).join("bin/mpiexec.hydra"));
        without(
            "hydra",
            on_path("mpiexec.hydra") || installed.iter().any(|file| file.is_file()),
            "no mpiexec.hydra (hint: cargo xtask compare installs MPICH's)",
        );
        without(
            "asan",
            super::test::compilers_library("libasan.so").is_some(),
            "the C++ compiler has no libasan",
        );
        without(
            "attach",
            reads_others(),
            "the system lets no process read another (hint: kernel.yama.ptrace_scope)",
        );
        without(
            "namespaces",
            succeeds(Command::new("unshare").args(["-Urpf", "true"])),
            "unshare -Urpf fails: no namespaces of processes",
        );
        // SAFETY: a system call without arguments.
        let user = unsafe { libc::geteuid() };
        without("root", user == 0, "only root starts processes of others");
        without(
            "hosts",
            makes_hosts(),
            "no network namespaces (hint: as root, apt-get install iproute2)",
        );
        #[cfg(target_arch = "x86_64")]
        without(
            "fma",
            is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2"),
            "this processor has no AVX2 or FMA",
        );
        Self(all)
    }

    /// Key and reason of each.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.0.iter().copied()
    }

    /// `OSIER_TEST` with these skips, and what is set already. Measurements give up beside
    /// other tests, which there are always.
    pub fn asked(&self) -> String {
        let set = std::env::var("OSIER_TEST").unwrap_or_default();
        let mut keys = vec!["quiet"];
        keys.extend(self.iter().map(|(key, _)| key));
        let between = if set.is_empty() { "" } else { "," };
        format!("{set}{between}skip={}", keys.join(",,"))
    }
}

/// Whether hosts can be made of namespaces.
fn makes_hosts() -> bool {
    let name = format!("osier-try-{}", std::process::id());
    let ip = |what: &str| succeeds(Command::new("ip").args(["netns", what, &name]));
    let there = ip("add") && ip("del");
    there && succeeds(Command::new("unshare").args(["--uts", "--mount", "true"]))
}

/// Whether a process may read another of its user: a child, at an address that it has not.
fn reads_others() -> bool {
    let mut sleep = Command::new("sleep");
    let Ok(mut child) = sleep.arg("10").stdin(Stdio::null()).spawn() else {
        return false;
    };
    let mut byte = 0u8;
    let ours = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let theirs = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 1,
    };
    // SAFETY: one byte of ours is writable; the other address is read by the system alone.
    let read = unsafe { libc::process_vm_readv(child.id().cast_signed(), &ours, 1, &theirs, 1, 0) };
    let fault = std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
    let _ = child.kill();
    let _ = child.wait();
    read >= 0 || fault
}
