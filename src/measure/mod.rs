//! Measurements of the machine: transfers, copies and collective calls, timed.
//!
//! [`measure`] runs real transfers between two ranks (threads, in a job of
//! shared memory of their own) and fits [`LinkCosts`], the numbers that
//! predict the time of every protocol ([`osier_engine::protocol::cost`]):
//!
//! | number | from | by |
//! |---|---|---|
//! | latency `L` | ping-pong of 8 bytes | half the round trip |
//! | copy `c`, overhead `o` | ping-pong of `n` bytes in fragments of `f` bytes, for several `n` and `f` | least squares of `T - 3 L = (n + f) c + (n / f) o`, residuals relative to `T` |
//! | whether lines are left | streams of messages in fragments, whose reader takes their lines or leaves them | the shorter time |
//! | mapped `m` | ping-pong of `n` bytes of heap memory, for several `n` | least squares of `T = t + n m`, residuals relative to `T` |
//! | attach, call and per byte | copies of `n` bytes by the kernel from a child process | least squares of `T = call + n a`, residuals relative to `T` |
//!
//! Costs of a device (`device`) are measured by packs and copies of one buffer:
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
//! the medians of a benchmark, for all protocols alike. A shortest time counts if
//! others come near it; until then bursts of batches follow each other, a few. Times
//! on which no batches agree, and implausible ones (`plausible`), are refused.
//!
//! Costs of the system's copies between processes are measured again by messages of two
//! ranks, if there are processes to measure with (`rounds`).

#[allow(
    unsafe_code,
    reason = "forks a child whose memory the kernel copies from"
)]
mod attach;
mod device;
mod devices;
mod fit;
mod links;
mod rounds;
mod segment;
mod uses;

pub use attach::permitted as attach_permitted;
pub use device::{measure as device, measure_with as device_with};

use crate::model::{Apart, NOT_PERMITTED_NS, disturbed, plausible};
use osier_engine::error::Result;
use osier_engine::protocol::cost::LinkCosts;

/// Measures the costs of links on this machine, in well under a second.
/// Starts two threads and one child process, which end before it returns.
///
/// # Errors
/// If other work disturbs it, so that times differ widely or are implausible.
pub fn measure() -> Result<LinkCosts> {
    let latency_ns = links::latency_ns()?;
    let leaves_lines = links::leaving_lines_is_faster()?;
    let fragments = links::fragments(leaves_lines)?;
    let (copy_ns_per_byte, overhead_ns) = fit::pipeline(latency_ns, &fragments);
    let (_, mapped_ns_per_byte) = fit::line(&links::mapped()?);
    let (attach_call_ns, attach_ns_per_byte) = match attach::times() {
        Ok(times) => fit::line(&times?),
        Err(_) => (NOT_PERMITTED_NS, 1.0),
    };
    let costs = LinkCosts {
        latency_ns,
        overhead_ns,
        copy_ns_per_byte,
        mapped_ns_per_byte,
        attach_call_ns,
        attach_ns_per_byte,
        leaves_lines,
        uses: None,
        device: None,
    };
    match plausible::absurd(&costs, None) {
        Some(how) => Err(disturbed(&how)),
        None => Ok(costs),
    }
}

/// Maximum number of bursts of batches.
const BURSTS: usize = 6;
/// Number of times that must come near the shortest,
const AGREE: usize = 3;
/// and the tolerance.
const NEAR: f64 = 1.25;

/// The shortest of times measured in bursts, until a few agree.
fn shortest(what: &str, mut burst: impl FnMut() -> Result<Vec<f64>>) -> Result<f64> {
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..BURSTS {
        times.extend(burst()?);
        times.sort_by(f64::total_cmp);
        if times.len() >= AGREE && times[AGREE - 1] <= NEAR * times[0] {
            return Ok(times[0]);
        }
    }
    Err(disturbed(&format!(
        "{what} took {:.0} ns at least, and then {:.0} ns",
        times.first().unwrap_or(&0.0),
        times.get(AGREE - 1).unwrap_or(&0.0)
    )))
}

#[cfg(test)]
#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

#[cfg(test)]
mod tests {
    use super::*;

    /// Bursts go on until times agree, and stop at the limit if they never do.
    #[test]
    fn shortest_times_are_those_that_others_come_near() {
        let taken = |bursts: &[&[f64]]| {
            let mut bursts = bursts.iter();
            shortest("it", || {
                Ok(bursts.next().map_or(Vec::new(), |b| b.to_vec()))
            })
        };
        assert_eq!(taken(&[&[9.0, 11.0, 10.0, 80.0]]).unwrap(), 9.0);
        assert_eq!(taken(&[&[90.0, 700.0], &[100.0, 95.0]]).unwrap(), 90.0);
        let why = taken(&[&[90.0, 700.0, 748_000.0]]).unwrap_err().to_string();
        assert!(
            why.contains("other work") && why.contains("748000"),
            "{why}"
        );
    }

    /// Ranks of two caches: the first rank measures both kinds of links, each with another rank,
    /// which has measured nothing before.
    #[test]
    fn all_classes_of_links_are_measured() {
        use crate::bootstrap::Universe;
        use crate::model::{Agreed, Places};
        use osier_transports::shm::{Job, JobOptions, NOTE_BYTES};
        let job = Job::create(&JobOptions {
            ranks: 3,
            limit_bytes: None,
        });
        let job = job.expect("a job");
        let part = |cache| vec![Some(0), Some(cache)];
        let agreed = Agreed {
            places: Some(Places {
                levels: vec!["package".into(), "l3cache".into()],
                ranks: vec![part(0), part(0), part(1)],
            }),
            ..Agreed::default()
        };
        job.set_note(&agreed.note(NOTE_BYTES));
        let measured = std::thread::scope(|s| {
            let rank = |rank| {
                let job = &job;
                s.spawn(move || {
                    let universe = Universe::join(job, rank).expect("it joins");
                    let world = universe.world();
                    world.measure_costs(&LinkCosts::default()).expect("costs")
                })
            };
            [0, 1, 2].map(rank).map(|t| t.join().expect("no panic"))
        });
        for (links, calls) in &measured {
            assert_eq!((links, calls), (&measured[0].0, &measured[0].1));
            assert!(links.uses.is_some());
            let names: Vec<&str> = calls.classes.iter().map(|c| &*c.class).collect();
            assert_eq!(names, ["l3cache", "package"]);
            assert!(calls.segment.is_some() && calls.classes[0].flags.is_none());
            let flags = calls.classes[1].flags.as_ref().expect("of the other links");
            assert!(flags.flag_ns > 0.0 && flags.read.len() > 2);
        }
    }

    #[test]
    fn what_is_measured_is_usable() {
        let costs = match measure() {
            Ok(costs) => costs,
            // Of the other tests.
            Err(e) if e.to_string().contains("other work") => return needs::missing("quiet", e),
            Err(e) => panic!("{e}"),
        };
        let all = [
            costs.latency_ns,
            costs.overhead_ns,
            costs.copy_ns_per_byte,
            costs.mapped_ns_per_byte,
            costs.attach_call_ns,
            costs.attach_ns_per_byte,
        ];
        assert!(all.iter().all(|v| v.is_finite() && *v > 0.0), "{costs:?}");
        // The launcher's note to the ranks must preserve it.
        let note = serde_json::to_vec(&costs).expect("JSON");
        let back: LinkCosts = serde_json::from_slice(&note).expect("JSON");
        assert_eq!(back, costs);
        osier_engine::protocol::select::Selection::new(
            costs,
            osier_engine::protocol::select::AT_ONCE_BYTES,
        );
    }
}
