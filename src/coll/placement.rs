//! What of a call's memory stays on devices, and what goes through the host.
//!
//! A run may have pieces of the host's memory and of devices', of one or several: messages
//! join any two of them, copies between two that no kernel reaches are messages of the rank
//! to itself. So a rank decides for itself, whatever the plan is and wherever its peers'
//! memory lies, but where all have agreed on a place (`spaces`).
//!
//! | call | stays on devices |
//! |---|---|
//! | reductions | if all memory lies on one device, in whole elements without gaps, and a kernel knows the operator |
//! | others | pieces that are runs of bytes; with gaps, whole instances that the plan does not cut |

use super::ask::Ask;
use crate::comm::Communicator;
use osier_collectives::{Buffer, Operation};
use osier_datatype::{Basic, Layout, Type};
use osier_engine::device::DeviceMemory;
use osier_engine::exec::memory::Pieces;
use osier_engine::exec::on_device::Combining;
use osier_engine::exec::program::{Program, RunsOn};
use osier_engine::protocol::device::Reductions;
use osier_engine::view::RawView;

/// Which memory a run on the host needs copied before, and behind.
#[derive(Clone, Copy)]
pub(crate) struct Crossings {
    pub reads: bool,
    pub writes: bool,
}

impl Ask {
    /// What happens to the buffers of `Send` and `Recv` at a rank.
    pub(crate) fn crossings(&self, rank: usize) -> [Crossings; 2] {
        let call = &self.call;
        let sends = call.operation == Operation::Bcast && rank == call.root as usize;
        // What a rank 0 of an exclusive prefix has in place of a result; what lies
        // between the ranges of a buffer.
        let ranges = matches!(self.buffers.recv, Pieces::Ranges(..));
        let keeps = call.operation == Operation::Exscan || ranges;
        let shares = call.shares_memory();
        [
            Crossings {
                reads: true,
                writes: shares,
            },
            Crossings {
                reads: sends || keeps || call.in_place,
                writes: !sends && !shares,
            },
        ]
    }

    /// How a run works on memory of devices, if that is to stay there: all ranks have agreed
    /// on it, or it is predicted to take less time here. The buffers then have the form that
    /// the run needs.
    pub(crate) fn stays(&mut self, comm: &Communicator, program: &Program) -> Option<Combining> {
        let devices = &comm.core().devices;
        let reduces = self.call.operation.reduces();
        let by_cost = match devices.reductions() {
            // Flags in a segment go with memory of the host.
            _ if program.runs_on == RunsOn::Host || program.in_segment => return None,
            Reductions::Host if reduces => return None,
            _ if program.runs_on == RunsOn::Device => false,
            Reductions::Device if reduces => false,
            _ => true,
        };
        let first = self.memory().find_map(RawView::as_device)?;
        let on = match &self.combiner {
            None if reduces => return None,
            None => Combining {
                context: first.view().ok()?.buffer().memory().context().clone(),
                by: None,
                element: bytes()?,
                commutes: false,
            },
            Some((combiner, fit)) => Combining::of(combiner.get(), fit, first)?,
        };
        let rank = comm.rank();
        let cut = program.cut.max(1);
        let of = |buffer| self.call.pieces(rank as u32, buffer, cut);
        if !program.lies_in_runs(self.call.has_places(), of) {
            return None;
        }
        if by_cost && !self.pays(comm, program) {
            return None;
        }
        let uncut = cut == 1 && program.graph.segments() == 1;
        let fits = |pieces: &Pieces| match reduces {
            true => elements(&on, pieces),
            false => places(pieces, uncut),
        };
        let send = fits(&self.buffers.send)?;
        // In place of a result that lies at the front of what goes in, there is nothing yet.
        if !self.call.shares_memory() {
            self.buffers.recv = fits(&self.buffers.recv)?;
        }
        self.buffers.send = send;
        Some(on)
    }

    /// All memory with any bytes.
    fn memory(&self) -> impl Iterator<Item = &RawView> {
        let send = self.buffers.send.memory();
        let recv = match self.call.shares_memory() {
            true => &[],
            false => self.buffers.recv.memory(),
        };
        send.iter().chain(recv).filter(|view| view.bytes() > 0)
    }

    /// Whether the steps of this rank are expected to take less time where its memory lies.
    fn pays(&self, comm: &Communicator, program: &Program) -> bool {
        let [send, recv] = [&self.buffers.send, &self.buffers.recv];
        let piece = |buffer| match buffer {
            Buffer::Send => send.mean_bytes(program.cut),
            Buffer::Recv => recv.mean_bytes(program.cut),
            Buffer::Scratch(_) => send
                .mean_bytes(program.cut)
                .max(recv.mean_bytes(program.cut)),
        };
        let mut work = program.work(piece);
        for (pieces, crossing) in [send, recv].into_iter().zip(self.crossings(comm.rank())) {
            let there = pieces.memory().iter().filter(|v| v.as_device().is_some());
            let bytes: usize = there.map(RawView::bytes).sum();
            work.before += bytes * usize::from(crossing.reads);
            work.after += bytes * usize::from(crossing.writes);
        }
        let devices = &comm.core().devices;
        let link = devices.model();
        let (latency, copy) = (link.link.latency_ns, link.link.copy_ns_per_byte);
        // Operands meet where they lie; other peers may be reached through the host alone.
        let reached = self.call.operation.reduces();
        work.pays(&link.device, latency, copy, reached)
    }
}

fn bytes() -> Option<Layout> {
    Type::basic(Basic::U8).commit().ok()
}

/// Pieces in whole elements of one device.
fn elements(on: &Combining, pieces: &Pieces) -> Option<Pieces> {
    pieces.mapped(|view| match view.bytes() {
        0 => Some(view.clone()),
        _ => on.elements(view.as_device()?),
    })
}

/// Pieces as messages and copies take them, those of devices as runs of bytes if they are.
fn places(pieces: &Pieces, uncut: bool) -> Option<Pieces> {
    let bytes = bytes()?;
    let run = |memory: &DeviceMemory| {
        let all = 0..memory.view().ok()?.buffer().packed_bytes();
        memory.run(all, &bytes).map(RawView::of_device)
    };
    pieces.mapped(|view| match view.as_device() {
        Some(memory) if view.bytes() > 0 => run(memory).or_else(|| {
            let instance = memory.instances().0.size();
            let whole = uncut && pieces.are_multiples(instance);
            whole.then(|| view.clone())
        }),
        _ => Some(view.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_engine::exec::on_device::Work;

    #[test]
    fn pieces_with_gaps_are_whole_instances() {
        let view = RawView::untyped(std::ptr::null_mut(), 48);
        let ranges = |list: &[std::ops::Range<usize>]| Pieces::Ranges(view.clone(), list.into());
        assert!(Pieces::Equal(view.clone(), 24).are_multiples(12));
        assert!(!Pieces::Equal(view.clone(), 16).are_multiples(12));
        assert!(ranges(&[0..12, 12..12, 36..48]).are_multiples(12));
        assert!(!ranges(&[0..12, 20..32]).are_multiples(12));
        assert!(Pieces::Cut(view.clone()).are_multiples(32));
        assert!(Pieces::Listed([view].into()).are_multiples(32));
    }

    #[test]
    fn what_a_work_is_holds_both_ways() {
        let work = Work {
            messages: 4,
            message_bytes: 64,
            before: 64,
            ..Work::default()
        };
        let device = osier_engine::protocol::device::DeviceCosts::default();
        // Four short messages cost more than one copy and four of the host's.
        assert!(!work.pays(&device, 250.0, 0.124, false));
        let long = Work {
            message_bytes: 64 << 20,
            before: 64 << 20,
            ..work
        };
        assert!(long.pays(&device, 250.0, 0.124, false));
    }
}
