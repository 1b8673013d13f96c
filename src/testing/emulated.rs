//! Collective calls on an emulated machine: the engine and the executor as they are, on the
//! simulated network, with what links take by distance. One thread plays all ranks; the clock
//! moves when none of them has anything to do, so the end is one number for a machine and a
//! plan, whatever else runs here.

use crate::comm::{Communicator, Member, ProcessSets};
use crate::model::calls::Agreed;
use crate::p2p::Waitable;
use osier_collectives::{Algorithm, Operation};
use osier_datatype::Operator;
use osier_engine::check::Setting;
use osier_engine::error::{Error, ErrorKind, Result};
use osier_engine::progress::core::{Core, Place};
use osier_engine::protocol::cost::LinkCosts;
use osier_engine::protocol::select::Selection;
use osier_transports::sim::{SimNet, SimOptions};
use std::sync::Arc;

pub use osier_transports::sim::{SimLink, SimMachine};

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
        Operation::Reduce => watched(comm.ireduce(numbers(), numbers(), 0, Operator::Sum)?),
        Operation::Allreduce => watched(comm.iallreduce(numbers(), numbers(), Operator::Sum)?),
        other => {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("{} is not played on emulated machines", other.name()),
            ));
        }
    })
}

/// Virtual time, in ns, of one call on all ranks of a machine, by an algorithm in so many
/// segments.
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
    let selection = Arc::new(Selection::new(
        LinkCosts::default(),
        net.options().inline_bytes,
    ));
    let all: Vec<usize> = (0..ranks).collect();
    let comms = all.iter().map(|&rank| {
        let core = Core::new(
            Place::Sim(net.clone(), rank as u32),
            rank as u32,
            ranks as u32,
            selection.clone(),
            true,
            None,
            Setting::default(),
        );
        let sets = ProcessSets::predefined(rank, ranks as u32)?;
        let member = Member::new(core, sets, Agreed::default());
        let comm = Communicator::agreed(&member, &all, 1)?;
        comm.runs_on()
            .use_algorithm(Some((algorithm.clone(), segments)));
        Ok(comm)
    });
    let comms: Vec<Communicator> = comms.collect::<Result<_>>()?;
    let begun = net.now_ns();
    let open = comms.iter().map(|comm| begin(comm, operation, bytes));
    let mut open: Vec<Open> = open.collect::<Result<_>>()?;
    loop {
        // Until nobody gets any further. What one look finds may be done in the next.
        let mut idle = 0;
        while idle < IDLE_ROUNDS {
            let before = net.generation();
            let mut any = false;
            for comm in &comms {
                any |= comm.runs_on().lane().lock().progress();
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
                format!("{} calls of {} never end", open.len(), operation.name()),
            ));
        }
    }
}
