//! Ranks on every network, under a watchdog.

use osier::testing::{Network, ranks_on};
use osier::{Communicator, Error, ErrorKind};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Ends the program when a test hangs: ten times what the longest may take.
const DEADLINE: Duration = Duration::from_secs(120);

/// While it lives, its test has time until the deadline.
pub struct Watchdog(#[expect(dead_code, reason = "dropping it tells the thread")] Sender<()>);

impl Watchdog {
    /// Starts to watch the test of this thread.
    pub fn start() -> Self {
        let (alive, watch) = channel::<()>();
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        std::thread::spawn(move || {
            if watch.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
                let mut err = std::io::stderr().lock();
                let _ = writeln!(err, "test {test} hangs ({DEADLINE:?}); its threads:");
                for task in std::fs::read_dir("/proc/self/task").into_iter().flatten() {
                    let Ok(task) = task else { continue };
                    let read = |f| std::fs::read_to_string(task.path().join(f));
                    let name = read("comm").unwrap_or_default();
                    let waits = read("wchan").unwrap_or_default();
                    let _ = writeln!(err, "  {}: {waits}", name.trim());
                }
                std::process::abort();
            }
        });
        Watchdog(alive)
    }
}

/// Runs `f` on `n` ranks, on one network after the other, and on two hosts.
pub fn on_all(n: usize, f: impl Fn(Communicator) + Sync) {
    let _watchdog = Watchdog::start();
    let networks = Network::all().into_iter().chain(Network::virtual_ranks());
    for network in networks {
        ranks_on(&network, n, &f);
    }
}

/// The same on one machine.
pub fn on_machine(n: usize, f: impl Fn(Communicator) + Sync) {
    let _watchdog = Watchdog::start();
    let networks = Network::within_host()
        .into_iter()
        .chain(Network::virtual_ranks());
    for network in networks {
        ranks_on(&network, n, &f);
    }
}

/// The same without virtual ranks: for tests whose ranks wait for each other's threads.
pub fn on_threads(n: usize, f: impl Fn(Communicator) + Sync) {
    let _watchdog = Watchdog::start();
    for network in Network::all() {
        ranks_on(&network, n, &f);
    }
}

/// Runs `f` on `n` ranks; those for which it is true fail after it.
pub fn one_fails(network: &Network, n: usize, f: impl Fn(Communicator) -> bool + Sync) {
    struct Thrown;
    // Of a rank that was not to fail: only one panic of all is passed on.
    let failed = Mutex::new(None);
    let result = catch_unwind(AssertUnwindSafe(|| {
        ranks_on(network, n, |comm| {
            match catch_unwind(AssertUnwindSafe(|| f(comm))) {
                Ok(false) => return,
                Ok(true) => {}
                Err(panic) => *failed.lock().expect("a panic") = Some(panic),
            }
            resume_unwind(Box::new(Thrown));
        })
    }));
    if let Some(panic) = failed.into_inner().expect("a panic") {
        resume_unwind(panic);
    }
    let panic = result.expect_err("the panic is passed on");
    if !panic.is::<Thrown>() {
        resume_unwind(panic);
    }
}

/// Runs `f` on `n` ranks over shared memory.
pub fn on_shm(n: usize, f: impl Fn(Communicator) + Sync) {
    let _watchdog = Watchdog::start();
    ranks_on(&Network::Shm, n, &f);
}

/// Whether the ranks talk over the simulated network, which is slow.
pub fn simulated(comm: &Communicator) -> bool {
    comm.transport((comm.rank() + 1) % comm.size())
        .is_ok_and(|t| t == "sim")
}

/// Bytes that differ from those of another seed.
pub fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n)
        .map(|i| (i * 31 + seed * 7 + (i >> 8)) as u8)
        .collect()
}

/// Random numbers that depend on the seed alone (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// The error of a result that must have one of this kind, whose text has all
/// these parts.
#[track_caller]
pub fn fails<T>(result: Result<T, Error>, kind: ErrorKind, parts: &[&str]) -> Error {
    let Err(e) = result else {
        panic!("no error of kind {kind:?}");
    };
    let text = e.to_string();
    assert_eq!(e.kind(), kind, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    e
}
