//! Ways of an access to a part of a window: which there are, and what they are expected to take.
//!
//! | way | memory | by |
//! |---|---|---|
//! | address | mapped here, or of this process | a copy, atomics |
//! | owner | plain memory of another process | its owner, while that waits |
//! | system | plain memory of another process | a system call for 1,024 runs |
//! | messages | of a rank that shares no memory | messages of many runs, which its owner serves |
//! | kernel | of a device | a kernel of the origin |
//!
//! Times are those of a link's costs: `L` the latency of a message, `m` and `a` the times per byte
//! of mapped memory and of a copy by the system, `c` of a copy into shared memory.
//!
//! | way | put, get | update |
//! |---|---|---|
//! | address | `n m` | the same |
//! | owner | `2 L + (n + 16 runs) c`, for each 4 KiB | twice that |
//! | system | `call + n a`, and a third of a call for each more run | twice that |
//! | messages | `2 L + 2 n c` | twice that |
//!
//! Reads of runs that lie close to each other take less: the system reads what lies between, too.

use crate::progress::served;
use crate::protocol::cost::LinkCosts;
use std::fmt;

/// How an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Address,
    Owner,
    System,
    Transport,
    Messages,
    Kernel,
}

/// Number of ways.
pub const WAYS: usize = Way::Kernel as usize + 1;

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Address => "address",
            Way::Owner => "its owner",
            Way::System => "cross-memory attach",
            Way::Transport => "transport",
            Way::Messages => "messages",
            Way::Kernel => "kernels",
        })
    }
}

/// Where a part lies for an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Mapped here, or of this process.
    Mapped,
    /// Plain memory of another process of this machine.
    Private,
    /// Of a rank with which no memory is shared.
    Apart,
    /// Of a device.
    Device,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub bytes: usize,
    /// Runs of the target.
    pub runs: usize,
    /// It reads, and writes nothing.
    pub reads: bool,
    /// An accumulate, or one of its relatives.
    pub updates: bool,
    /// A thread of the owner waits in a call.
    pub owner_waits: bool,
}

/// A way, whether it is open, and what it is expected to take in ns, where that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub way: Way,
    pub able: Result<(), &'static str>,
    pub ns: Option<f64>,
}

/// Runs of a list that the system takes as long for as for a call: 330 ns and 1.06 us on a Xeon of
/// 2.5 GHz.
const RUNS_A_CALL: f64 = 3.0;

/// All ways, those that are open first, the quickest of them at the front.
pub fn candidates(memory: Memory, access: &Access, costs: &LinkCosts) -> Vec<Candidate> {
    let n = access.bytes as f64;
    // An update reads what it writes.
    let times = if access.updates { 2.0 } else { 1.0 };
    let asks = 2.0 * costs.latency_ns;
    let only = |wanted: Memory, why| match memory == wanted {
        true => Ok(()),
        false => Err(why),
    };
    let named = named_bytes(access.bytes, access.runs);
    let requests = (named as f64 / served::AREA_BYTES as f64).ceil();
    let owner = || {
        only(Memory::Private, "only for plain memory of another process")?;
        match access {
            // The system reads what lies between runs, too, and takes less than many requests.
            Access { reads: true, .. } if requests > 1.0 => Err("several requests"),
            Access {
                owner_waits: false, ..
            } => Err("its owner does not wait"),
            _ => Ok(()),
        }
    };
    let address = match memory {
        Memory::Mapped => Ok(()),
        Memory::Private => Err("it is private to its process"),
        Memory::Apart => Err("the ranks share no memory"),
        Memory::Device => Err("it is a device's"),
    };
    let candidate = |way, able, ns| Candidate { way, able, ns };
    let mut all = vec![
        candidate(Way::Address, address, Some(n * costs.mapped_ns_per_byte)),
        candidate(
            Way::Owner,
            owner(),
            Some(times * (requests * asks + named as f64 * costs.copy_ns_per_byte)),
        ),
        candidate(
            Way::System,
            only(Memory::Private, "only for plain memory of another process"),
            Some(times * system_ns(access.bytes, access.runs, costs)),
        ),
        candidate(
            Way::Messages,
            only(Memory::Apart, "only where nothing else reaches it"),
            Some(times * (asks + 2.0 * n * costs.copy_ns_per_byte)),
        ),
        candidate(
            Way::Kernel,
            only(Memory::Device, "only for memory of a device"),
            None,
        ),
    ];
    all.sort_by(|one, other| {
        let key = |c: &Candidate| (c.able.is_err(), c.ns.unwrap_or(f64::INFINITY));
        key(one)
            .partial_cmp(&key(other))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    all
}

/// Bytes of a request with the names of its runs.
fn named_bytes(bytes: usize, runs: usize) -> usize {
    match runs {
        0 | 1 => bytes,
        _ => bytes.saturating_add(runs.saturating_mul(served::NAME_BYTES)),
    }
}

/// What the system takes to read or write runs of plain memory.
pub fn system_ns(bytes: usize, runs: usize, costs: &LinkCosts) -> f64 {
    let calls = 1.0 + (runs.max(1) as f64 - 1.0) / RUNS_A_CALL;
    calls * costs.attach_call_ns + bytes as f64 * costs.attach_ns_per_byte
}

/// Whether an owner that waits is asked for an access to plain memory, by a link's costs.
pub fn asks_owner(bytes: usize, runs: usize, reads: bool, costs: &LinkCosts) -> bool {
    let access = Access {
        bytes,
        runs,
        reads,
        updates: false,
        owner_waits: true,
    };
    candidates(Memory::Private, &access, costs)[0].way == Way::Owner
}

/// Most bytes of one run of plain memory that an owner is asked for by one request.
pub fn served_bytes(costs: &LinkCosts) -> usize {
    // The times are lines over the bytes: once the system is quicker, it stays so.
    let (mut asked, mut not) = (0, served::AREA_BYTES + 1);
    while not - asked > 1 {
        let bytes = asked.midpoint(not);
        match asks_owner(bytes, 1, true, costs) {
            true => asked = bytes,
            false => not = bytes,
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(memory: Memory, bytes: usize, runs: usize, updates: bool, owner_waits: bool) -> Way {
        let access = Access {
            bytes,
            runs,
            reads: false,
            updates,
            owner_waits,
        };
        let all = candidates(memory, &access, &LinkCosts::default());
        assert!(all[0].able.is_ok());
        assert_eq!(all.len(), 5);
        all[0].way
    }

    #[test]
    fn the_quickest_way_that_is_open_comes_first() {
        assert_eq!(first(Memory::Mapped, 8, 1, true, true), Way::Address);
        assert_eq!(first(Memory::Private, 8, 1, false, true), Way::Owner);
        assert_eq!(first(Memory::Private, 8, 1, false, false), Way::System);
        assert_eq!(first(Memory::Private, 8, 1, true, true), Way::Owner);
        assert_eq!(first(Memory::Private, 8, 1, true, false), Way::System);
        assert_eq!(first(Memory::Private, 64, 2, false, true), Way::Owner);
        assert_eq!(first(Memory::Private, 64, 2, false, false), Way::System);
        assert_eq!(
            first(Memory::Private, 1 << 16, 1024, false, true),
            Way::Owner
        );
        assert_eq!(first(Memory::Private, 1 << 16, 1, false, true), Way::System);
        assert_eq!(first(Memory::Apart, 4096, 3, true, false), Way::Messages);
        assert_eq!(first(Memory::Device, 4096, 3, false, true), Way::Kernel);
    }

    #[test]
    fn owners_are_asked_where_that_is_quicker() {
        let most = served_bytes(&LinkCosts::default());
        assert!((128..=served::AREA_BYTES).contains(&most), "{most}");
        for (bytes, asks) in [(1, true), (most, true), (most + 1, false)] {
            assert_eq!(asks_owner(bytes, 1, true, &LinkCosts::default()), asks);
        }
        let slow = LinkCosts {
            latency_ns: 2000.0,
            ..LinkCosts::default()
        };
        assert_eq!(served_bytes(&slow), 0);
    }
}
