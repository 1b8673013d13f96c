//! What the machine costs, measured.
//!
//! [`measure`] runs real transfers between two ranks (threads, in a job of
//! shared memory of their own) and fits [`LinkCosts`], the six numbers that
//! predict the time of every protocol ([`crate::protocol::cost`]):
//!
//! | number | from | by |
//! |---|---|---|
//! | latency `L` | ping-pong of 8 bytes | half the round trip |
//! | copy `c`, overhead `o` | ping-pong of `n` bytes in fragments of `f` bytes, for several `n` and `f` | least squares of `T - 3 L = (n + f) c + (n / f) o`, residuals relative to `T` |
//! | mapped `m` | ping-pong of `n` bytes of heap memory, for several `n` | least squares of `T = t + n m`, residuals relative to `T` |
//! | attach, call and per byte | copies of `n` bytes by the kernel from a child process | least squares of `T = call + n a`, residuals relative to `T` |
//!
//! What a device costs ([`measure_device`]) is measured by packs and copies of one buffer:
//!
//! | number | from |
//! |---|---|
//! | kernel's launch | packs of 256 bytes with gaps to pinned memory |
//! | copy's start | copies of 64 bytes to pinned memory |
//! | a block's rate | packs of 256 KiB by one block, less the launch |
//! | pack rates | packs of 8 MiB within the device: a run, equal blocks, listed blocks |
//! | link rates | copies of 4 MiB to and from pinned memory |
//!
//! Each `T` is the shortest of many batches: a disturbance only adds, and on a
//! busy machine most batches are disturbed. So predictions lie some 10 % below
//! the medians of a benchmark, for all protocols alike.
//!
//! What the system's copies between processes cost is set once more by messages of two
//! ranks, where there are processes to measure with (`rounds`).
//!
//! [`cached`] gives what was measured before, without measuring: the library never does so
//! on its own, its launcher once, before the first job of a machine.

#[allow(
    unsafe_code,
    reason = "forks a child whose memory the kernel copies from"
)]
mod attach;
pub(crate) mod calls;
#[allow(unsafe_code, reason = "binds threads to processors")]
mod cores;
mod device;
mod devices;
mod fit;
pub(crate) mod hardware;
mod links;
mod machine;
mod map;
pub(crate) mod rounds;
mod store;

pub(crate) use cores::confine;

pub use attach::{NOT_PERMITTED_NS, permitted as attach_permitted};
pub use calls::{Agreed, CallCosts, ClassCosts, MessageCost, Places, WorkCost};
pub use device::{measure as measure_device, measure_with as measure_device_with};
pub use devices::DeviceCalls;
pub use machine::Machine;
pub use map::{Gpu, Part};
pub use store::{Cached, Measured, Origin, cache_file, cached, load, store};

use crate::error::Result;
use crate::protocol::cost::LinkCosts;

/// Measures the costs of links on this machine, in well under a second.
/// Starts two threads and one child process, which end with it.
pub fn measure() -> Result<LinkCosts> {
    let latency_ns = links::latency_ns()?;
    let (copy_ns_per_byte, overhead_ns) = fit::pipeline(latency_ns, &links::fragments()?);
    let (_, mapped_ns_per_byte) = fit::line(&links::mapped()?);
    let (attach_call_ns, attach_ns_per_byte) = match attach::times() {
        Ok(times) => fit::line(&times),
        Err(_) => (NOT_PERMITTED_NS, 1.0),
    };
    Ok(LinkCosts {
        latency_ns,
        overhead_ns,
        copy_ns_per_byte,
        mapped_ns_per_byte,
        attach_call_ns,
        attach_ns_per_byte,
        device: None,
    })
}

/// The shortest of some times.
fn shortest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_usable() {
        let costs = measure().expect("a measurement");
        let all = [
            costs.latency_ns,
            costs.overhead_ns,
            costs.copy_ns_per_byte,
            costs.mapped_ns_per_byte,
            costs.attach_call_ns,
            costs.attach_ns_per_byte,
        ];
        assert!(all.iter().all(|v| v.is_finite() && *v > 0.0), "{costs:?}");
        // It must survive the launcher's note to the ranks.
        let note = serde_json::to_vec(&costs).expect("JSON");
        let back: LinkCosts = serde_json::from_slice(&note).expect("JSON");
        assert_eq!(back, costs);
        crate::protocol::select::Selection::new(costs, crate::protocol::select::AT_ONCE_BYTES);
    }
}
