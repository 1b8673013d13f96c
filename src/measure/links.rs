//! Times of real transfers between two ranks of one process.

use super::fit::Piped;
use super::shortest;
use crate::bootstrap::Universe;
use crate::comm::Communicator;
use crate::model::Agreed;
use crate::model::cores;
use osier_datatype::{Layout, Type};
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::view::{View, ViewMut};
use osier_transports::Death;
use osier_transports::shm::{Job, JobOptions, NOTE_BYTES};
use std::time::{Duration, Instant};

/// Time limit for one kind of transfer, on a busy machine.
const BUDGET: Duration = Duration::from_millis(40);
const LEAST_BATCHES: usize = 4;
const LATENCY_BATCHES: usize = 1000;
const LATENCY_TRIPS: usize = 8;
/// Larger than any eager message.
const SIZES: [usize; 3] = [384 << 10, 1 << 20, 4 << 20];
const FRAGMENTS: [usize; 3] = [4 << 10, 8 << 10, 16 << 10];
const FRAGMENT_TRIPS: usize = 24;
/// Streams of each kind, messages of one, and their bytes.
const STREAMS: usize = 4;
const STREAMED_MESSAGES: usize = 8;
const STREAMED_BYTES: usize = 384 << 10;
/// Gaps between blocks of this size exclude the kernel's copy and the heap at hardly
/// any cost of packing.
const BLOCK_BYTES: usize = 64 << 10;
const GAP_BYTES: usize = 64;

/// One-way time of the smallest message.
pub(super) fn latency_ns() -> Result<f64> {
    let burst = |comm: &Communicator| {
        let mut data = [0u64];
        trips(comm, LATENCY_BATCHES, LATENCY_TRIPS, |first| {
            if first {
                comm.send(&data, 1, 0)?;
                comm.recv(&mut data, 1, 0).map(drop)
            } else {
                comm.recv(&mut data, 0, 0)?;
                comm.send(&data, 0, 0)
            }
        })
    };
    shortest("a message of 8 bytes", || pair(LinkCosts::default(), burst))
}

/// Whether streams are faster whose reader leaves the lines of long payloads to their writer.
pub(super) fn leaving_lines_is_faster() -> Result<bool> {
    let stream = |leaves_lines| {
        let costs = LinkCosts {
            leaves_lines,
            ..forcing(STREAMED_BYTES, FRAGMENTS[2])
        };
        let burst = |comm: &Communicator| piped(comm, STREAMED_BYTES, STREAMED_MESSAGES);
        shortest("a stream of fragments", || pair(costs, burst))
    };
    // In turn, since the cores may be moved meanwhile.
    let (mut left, mut taken) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..STREAMS {
        left = left.min(stream(true)?);
        taken = taken.min(stream(false)?);
    }
    Ok(left < taken)
}

/// One-way times of messages that travel in fragments.
pub(super) fn fragments(leaves_lines: bool) -> Result<Vec<Piped>> {
    let mut all = Vec::new();
    for bytes in SIZES {
        for fragment in FRAGMENTS {
            let ns = shortest(&format!("{bytes} bytes in fragments"), || {
                let costs = LinkCosts {
                    leaves_lines,
                    ..forcing(bytes, fragment)
                };
                pair(costs, |comm| piped(comm, bytes, 1))
            })?;
            all.push(Piped {
                bytes: bytes as f64,
                fragment: fragment as f64,
                ns,
            });
        }
    }
    Ok(all)
}

/// One-way times of this number of messages, which are answered by as many.
fn piped(comm: &Communicator, bytes: usize, messages: usize) -> Result<Vec<f64>> {
    let blocks = bytes / BLOCK_BYTES;
    let stride = BLOCK_BYTES + GAP_BYTES;
    let tree = Type::hvector(blocks, BLOCK_BYTES, stride as isize, &Type::of::<u8>())?;
    let layout: Layout = tree.commit()?;
    let from = vec![1u8; blocks * stride];
    let mut to = vec![0u8; blocks * stride];
    let send = View::new(&from, 0, &layout, 1)?;
    let mut recv = ViewMut::new(&mut to, 0, &layout, 1)?;
    trips(comm, FRAGMENT_TRIPS, 1, |first| {
        let other = usize::from(first);
        for turn in 0..2 * messages {
            match first == (turn < messages) {
                true => comm.send(&send, other, 0)?,
                false => comm.recv(&mut recv, other, 0).map(drop)?,
            }
        }
        Ok(())
    })
}

/// (bytes, ns) of messages that the receiver reads from the sender's heap.
pub(super) fn mapped() -> Result<Vec<(f64, f64)>> {
    // A call so expensive that the sender never copies a part.
    let costs = LinkCosts {
        attach_call_ns: super::NOT_PERMITTED_NS,
        ..LinkCosts::default()
    };
    let mut all = Vec::new();
    for bytes in [64 << 10, 256 << 10, 1 << 20] {
        let burst = |comm: &Communicator| {
            let from = comm.alloc::<u8>(bytes)?;
            let mut to = comm.alloc::<u8>(bytes)?;
            trips(comm, FRAGMENT_TRIPS, 1, |first| {
                if first {
                    comm.send(&from, 1, 0)?;
                    comm.recv(&mut to, 1, 0).map(drop)
                } else {
                    comm.recv(&mut to, 0, 0)?;
                    comm.send(&from, 0, 0)
                }
            })
        };
        let ns = shortest(&format!("{bytes} bytes of a heap"), || pair(costs, burst))?;
        all.push((bytes as f64, ns));
    }
    Ok(all)
}

/// Costs for which fragments of this size are the cheapest.
fn forcing(bytes: usize, fragment: usize) -> LinkCosts {
    let base = LinkCosts::default();
    // A little less than the power of two, to which it is rounded up.
    let wanted = 0.9 * fragment as f64;
    LinkCosts {
        overhead_ns: wanted * wanted * base.copy_ns_per_byte / bytes as f64,
        ..base
    }
}

/// Half round trips in ns, of a batch each; only on rank 0.
fn trips(
    comm: &Communicator,
    batches: usize,
    each: usize,
    mut trip: impl FnMut(bool) -> Result<()>,
) -> Result<Vec<f64>> {
    let first = comm.rank() == 0;
    comm.barrier()?;
    let mut times = Vec::with_capacity(batches);
    let begin = Instant::now();
    loop {
        // Both must agree on the end.
        let in_time = times.len() < LEAST_BATCHES || begin.elapsed() < BUDGET;
        let mut goes_on = [u8::from(times.len() < batches && in_time)];
        comm.bcast(&mut goes_on, 0)?;
        if goes_on[0] == 0 {
            return Ok(times);
        }
        let start = Instant::now();
        for _ in 0..each {
            trip(first)?;
        }
        times.push(start.elapsed().as_nanos() as f64 / (2 * each) as f64);
    }
}

/// Runs `f` on two ranks that choose protocols by these costs, and returns
/// the result of rank 0.
fn pair<R: Send>(costs: LinkCosts, f: impl Fn(&Communicator) -> Result<R> + Sync) -> Result<R> {
    let job = Job::create(&JobOptions {
        ranks: 2,
        limit_bytes: None,
    })?;
    let agreed = Agreed {
        links: costs,
        ..Agreed::default()
    };
    job.set_note(&agreed.note(NOTE_BYTES));
    let (job, f) = (&job, &f);
    let rank = |rank: usize| {
        move || {
            cores::bind(rank);
            // The other must not wait for a failed rank.
            let _ends = Ends(job, rank);
            f(Universe::join(job, rank)?.world())
        }
    };
    std::thread::scope(|s| {
        let second = s.spawn(rank(1));
        let first = s.spawn(rank(0));
        let first = first.join();
        let second = second.join();
        let panicked = || Error::new(ErrorKind::System, "a measuring thread panicked");
        second.map_err(|_| panicked())??;
        first.map_err(|_| panicked())?
    })
}

struct Ends<'a>(&'a Job, usize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.mark_dead(self.1, Death::Exited(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_engine::progress::lane::Lane;

    #[test]
    fn forcing_gives_the_fragment() {
        for bytes in SIZES {
            for fragment in FRAGMENTS {
                assert_eq!(forcing(bytes, fragment).fragment_bytes(bytes), fragment);
            }
        }
    }

    /// Messages that the table has the receiver copy are announced, not sent in parts, by which
    /// costs of the kernel's copy would be those of something else.
    #[test]
    fn what_the_receiver_is_to_copy_does_not_leave_in_parts() {
        for (attach_call_ns, attach_ns_per_byte, expected) in
            [(1.0, 1e-6, 2), (crate::measure::NOT_PERMITTED_NS, 1.0, 0)]
        {
            let costs = LinkCosts {
                attach_call_ns,
                attach_ns_per_byte,
                ..LinkCosts::default()
            };
            let announced = pair(costs, |comm| {
                for bytes in [32 << 10, 64 << 10] {
                    let mut data = vec![comm.rank() as u8; bytes];
                    match comm.rank() {
                        0 => comm.send(&data, 1, 0)?,
                        _ => comm.recv(&mut data, 0, 0).map(drop)?,
                    }
                    assert!(data.iter().all(|byte| *byte == 0));
                }
                let counters = |lane: &mut Lane| lane.counters();
                Ok(comm.core().with(comm.lane(), counters).announced)
            });
            // Of rank 0, which sends.
            assert_eq!(announced.expect("no errors"), expected);
        }
    }
}
