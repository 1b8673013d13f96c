//! Collective calls on an emulated machine: the engine and the executor as they are, on the
//! simulated network, with what links take by distance. One thread plays all ranks; the clock
//! moves when none of them has anything to do, so the end is one number for a machine and a
//! plan, whatever else runs here.

use std::sync::Arc;

use osier::requests::Waitable;
use osier::{ANY_SOURCE, ANY_TAG, Communicator, Error, ErrorKind, Op, Result, Universe};
use osier_collectives::{Algorithm, Operation};
use osier_engine::check::Setting;
use osier_transports::sim::{SimMachine, SimNet, SimOptions};

/// Nobody has anything left to do if all were asked so often, and nothing moved.
const IDLE_ROUNDS: u32 = 3;

/// A call under way.
type Open = Box<dyn FnMut() -> Option<Result<()>>>;

fn watched<R: Waitable + 'static>(request: R) -> Open {
    let mut request = Some(request);
    Box::new(move || {
        let over = request.as_mut()?.test();
        over.then(|| request.take().map(|request| request.finish().map(drop)))
            .flatten()
    })
}

/// Begins a rank's part. Sums are of integers, which any plan may combine; roots are the first
/// rank.
fn begin(comm: &Communicator, operation: Operation, bytes: usize) -> Result<Open> {
    let n = comm.size();
    let numbers = || vec![1u64; bytes / 8];
    let block = |blocks: usize| vec![7u8; blocks * bytes];
    Ok(match operation {
        Operation::Barrier => watched(comm.ibarrier()?),
        Operation::Bcast => watched(comm.ibcast(block(1), 0)?),
        Operation::Gather => watched(comm.igather(block(1), block(n), 0)?),
        Operation::Scatter => watched(comm.iscatter(block(n), block(1), 0)?),
        Operation::Allgather => watched(comm.iallgather(block(1), block(n))?),
        Operation::Alltoall => watched(comm.ialltoall(block(n), block(n))?),
        Operation::Reduce => watched(comm.ireduce(numbers(), numbers(), 0, Op::Sum)?),
        Operation::Allreduce => watched(comm.iallreduce(numbers(), numbers(), Op::Sum)?),
        other => {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("{} is not played on emulated machines", other.name()),
            ));
        }
    })
}

/// Virtual time, in ns, of one call on all ranks of a machine, by an algorithm and its
/// number of segments.
///
/// # Errors
/// The algorithm is not for the call, or an operation is not played here.
pub fn emulated_ns(
    machine: &Arc<SimMachine>,
    operation: Operation,
    bytes: usize,
    (algorithm, segments): (&Algorithm, u32),
) -> Result<u64> {
    let ranks = machine.places.len();
    let net = SimNet::new(SimOptions {
        ranks: ranks as u32,
        machine: Some(machine.clone()),
        ..SimOptions::default()
    });
    let join = |rank| Universe::simulated_checked(&net, rank, Setting::default());
    let universes: Vec<Universe> = (0..ranks).map(join).collect::<Result<_>>()?;
    let comms: Vec<&Communicator> = universes.iter().map(Universe::world).collect();
    for comm in &comms {
        comm.use_algorithm(Some((algorithm.clone(), segments)));
    }
    let ns = play(&net, &comms, |comm| begin(comm, operation, bytes));
    if ns.is_err() {
        // A rank's end waits for what it has sent, which nobody may receive any more.
        std::mem::forget(universes);
    }
    ns.map_err(|e| e.context(operation.name()))
}

/// Plays a call on all ranks to its end.
fn play(
    net: &SimNet,
    comms: &[&Communicator],
    begin: impl Fn(&Communicator) -> Result<Open>,
) -> Result<u64> {
    let begun = net.now_ns();
    let open = comms.iter().map(|comm| begin(comm));
    let mut open: Vec<Open> = open.collect::<Result<_>>()?;
    loop {
        // Until nobody gets any further. What one look finds may be done in the next.
        let mut idle = 0;
        while idle < IDLE_ROUNDS {
            let before = net.generation();
            let mut any = false;
            for comm in comms {
                // A probe makes progress.
                let moves = comm.queues().moves;
                comm.iprobe(ANY_SOURCE, ANY_TAG)?;
                any |= comm.queues().moves != moves;
            }
            let mut left = Vec::new();
            for mut call in open {
                match call() {
                    Some(ended) => ended?,
                    None => left.push(call),
                }
            }
            open = left;
            idle = match any || net.generation() != before {
                true => 0,
                false => idle + 1,
            };
        }
        if open.is_empty() {
            return Ok(net.now_ns() - begun);
        }
        if !net.advance_to_next_event() {
            return Err(Error::new(
                ErrorKind::System,
                format!("{} calls never end", open.len()),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_collectives::*;
    use osier_transports::sim::SimLink;

    /// Ranks on 4 nodes of 2 packages of 4, by core, by node and at random: the plans that are
    /// chosen for these places take the engine the same virtual time within 2 %.
    #[test]
    fn placement_costs_nothing_on_an_emulated_machine() {
        const GAP_NS: u64 = 200;
        let links = [(160, 0.08), (280, 0.1), (1900, 0.08)];
        let shuffled = |rank: u32| (rank * 13 + 5) % 32;
        let by_node = |rank: u32| rank % 4 * 8 + rank / 4;
        let orders: [&dyn Fn(u32) -> u32; 3] = [&|rank| rank, &by_node, &shuffled];
        let machines = orders.map(|order| {
            let link = |distance: usize| Link {
                latency_ns: f64::from(links[distance].0),
                gap_ns: GAP_NS as f64,
                per_byte_ns: links[distance].1,
                shared_per_byte_ns: if distance > 0 { links[distance].1 } else { 0.0 },
                ..Link::default()
            };
            let mut machine = Machine::regular(&[4, 2, 4], (0..3).map(link).collect(), order);
            machine.eager_bytes = 8192.0;
            machine
        });
        for (operation, bytes) in [
            (Operation::Barrier, 0),
            (Operation::Bcast, 8),
            (Operation::Bcast, 1 << 18),
            (Operation::Reduce, 1 << 18),
            (Operation::Allreduce, 8),
            (Operation::Allreduce, 1 << 18),
        ] {
            let times: Vec<u64> = machines
                .iter()
                .map(|machine| {
                    let call = Call::new(operation, 32).requires(Association::Any);
                    let sizes = Sizes::Equal(bytes as u64);
                    let choice = choose(&call, &sizes, machine, Model::LogGp).expect("a plan");
                    let emulated = SimMachine {
                        places: machine.places.to_vec(),
                        links: links
                            .iter()
                            .map(|&(latency_ns, ns_per_byte)| SimLink {
                                latency_ns: latency_ns as u64,
                                gap_ns: GAP_NS,
                                ns_per_byte,
                            })
                            .collect(),
                    };
                    let chosen = (choice.plan().algorithm(), choice.plan().segments());
                    let ns = emulated_ns(&Arc::new(emulated), operation, bytes, chosen);
                    println!("{operation:?}, {bytes} bytes: {ns:?}, {choice}");
                    ns.expect("an end")
                })
                .collect();
            let least = *times.iter().min().expect("three placements");
            let most = *times.iter().max().expect("three placements");
            assert!(
                most as f64 <= 1.02 * least as f64,
                "{operation:?}, {bytes} bytes: {times:?} ns by core, by node, at random"
            );
        }
    }
}
