//! Plans for ranks of one host: flags in a segment that they share, and data that peers
//! read, or combine, where it lies.
//!
//! ```text
//! one phase     copy in -> raise -> await all -> read and fold out of the peers' slots
//! two phases    copy in -> raise -> await all -> fold an own slice of the vector into the slot
//!               -> raise -> await all -> read the peers' slices
//! direct        raise -> await all -> read and fold the peers' buffers -> raise -> await all
//! in slices     the same of an own slice of the vector -> raise, await -> the peers' slices
//! ```
//!
//! Where contributions differ, a slot has one cell for each rank that reads of it, of a size that
//! the number of ranks decides: so a reader finds its own without knowing those of others. A block
//! that is longer than its cell goes by a message, which the executor adds.
//!
//! In one phase nobody waits for readers: a slot stays as it is for the next call, and the
//! one after that waits for calls before to be over. Of a buffer of the program the last
//! flags say that all have read it. Operands are combined in the balanced association, each
//! rank for itself, so that sums have the same bits everywhere.
//!
//! # Sources
//! One phase: the all-to-all exchange of small reductions, R. Thakur, R. Rabenseifner,
//! W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1),
//! 2005. Flags and slots in shared memory: R. Graham, G. Shipman, "MPI Support for
//! Multi-core Architectures: Optimized Shared Memory Collectives", EuroPVM/MPI 2008. Reads
//! of the peers' buffers: S. Chakraborty, H. Subramoni, D. Panda, "Contention-Aware
//! Kernel-Assisted MPI Collectives for Multi-/Many-core Systems", IEEE Cluster 2017; J. Hashmi
//! et al., "Designing Efficient Shared Address Space Reduction Collectives for
//! Multi-/Many-cores", IPDPS 2018.

pub(super) mod neighbors;

use super::spread;
use crate::balanced::Fold;
use crate::builder::Builder;
use crate::call::Operation;
use crate::plan::{Buffer, Operand, Region};

/// Whether these plans are for a call.
pub(super) fn suits(call: &crate::call::Call) -> bool {
    call.first_side.is_none() && !call.operation.of_neighbors() && call.size > 1
}

/// Ranks among which a slot is divided into one cell per reader, at most: cells do not become so
/// small that all goes by messages.
const MOST_CELLS: u32 = 64;

/// Whether one phase is for a call of contributions that differ. Of a reduce_scatter all ranks know
/// all lengths; of others nobody but the two ranks concerned, so they have cells.
pub(super) fn suits_varying(call: &crate::call::Call) -> bool {
    use Operation as O;
    match call.operation {
        O::ReduceScatter => true,
        O::Gather | O::Scatter | O::Allgather | O::Alltoall => call.size <= MOST_CELLS,
        _ => false,
    }
}

/// The ranks that read a cell of a rank's slot and get what is longer by a message; which of the
/// blocks between the two it is.
pub fn readers_of_cell(call: &crate::call::Call, rank: u32, cell: u32) -> Vec<(u32, u32)> {
    match call.operation {
        Operation::Gather => vec![(call.root, 0)],
        Operation::Scatter | Operation::Alltoall => vec![((cell + rank + 1) % call.size, 0)],
        operation if operation.of_neighbors() => neighbors::readers_of_cell(call, rank, cell),
        // All know all lengths of an allgather.
        _ => Vec::new(),
    }
}

/// Who lets whom go on, in one phase of a call.
pub(super) fn exchange(
    b: &mut Builder,
    to: impl Iterator<Item = u32>,
    from: impl Iterator<Item = u32>,
) {
    b.phase();
    let tag = b.tag(0);
    for peer in to {
        b.raise(peer, tag);
    }
    for peer in from {
        b.wait(peer, tag);
    }
}

/// Other ranks, the next one first, so that not all read the same at a time.
fn others(rank: u32, size: u32) -> impl Iterator<Item = u32> {
    (1..size).map(move |distance| (rank + distance) % size)
}

/// Which piece of a rank's slot is for another: the next rank's comes first, so that in the
/// slots of two ranks each reads what it will write.
fn place(of: u32, reader: u32, size: u32) -> u32 {
    (reader + size - of - 1) % size
}

/// Copies what others get to their places in this rank's slot, in one run or two; each to its
/// cell, where they differ.
fn copy_to_others(b: &mut Builder, input: Buffer, slot: Buffer) {
    let (rank, size) = (b.rank, b.call.size);
    // Of shares in segments, each is one piece of the slot.
    if b.call.varying && (!b.call.operation.reduces() || b.segments() > 1) {
        for reader in others(rank, size) {
            let cell = Region::piece(slot, place(rank, reader, size));
            b.copy(Region::piece(input, reader), cell);
        }
        return;
    }
    for (first, count) in [(rank + 1, size - rank - 1), (0, rank)] {
        let to = place(rank, first % size, size);
        b.copy(
            Region::run(input, first, count),
            Region::run(slot, to, count),
        );
    }
}

/// Combines the operands of ranks 0 to `count - 1` by the balanced tree of `count` leaves into
/// `result`.
fn fold_run(b: &mut Builder, count: u32, operand: &dyn Fn(u32) -> Operand, result: Region) {
    let fold = Fold::of(count);
    let mut rooms = Rooms::new(result);
    // Where it takes the place of an operand, it is written last.
    let of_user = matches!(result.buffer, Buffer::Send | Buffer::Recv);
    rooms.early = !of_user || !b.call.in_place && !b.call.shares_memory();
    let all = rooms.fold(b, fold, (0, fold.leaves), operand, Some(result));
    finish(b, all, result);
}

/// The same of prefixes, whose tree is another.
fn fold_prefix(b: &mut Builder, count: u32, operand: &dyn Fn(u32) -> Operand, result: Region) {
    let mut rooms = Rooms::new(result);
    let mut end = count;
    let mut value: Option<Operand> = None;
    while end > 0 {
        let block = 1 << end.trailing_zeros();
        end -= block;
        let last = (end == 0).then_some(result);
        let within = |i: u32| operand(end + i);
        let alone = last.filter(|_| value.is_none());
        let left = rooms.fold(b, Fold::of(block), (0, block), &within, alone);
        value = Some(match value {
            None => left,
            Some(right) => rooms.combine(b, left, right, last),
        });
    }
    if let Some(all) = value {
        finish(b, all, result);
    }
}

/// What is one operand alone was combined with nothing.
pub(super) fn finish(b: &mut Builder, all: Operand, result: Region) {
    match all.of {
        Some(peer) => {
            b.read_peer(peer, all.data, result);
        }
        None => b.copy(all.data, result),
    }
}

/// Room for what is combined on the way: taken and given back.
pub(super) struct Rooms {
    buffers: Vec<Region>,
    free: Vec<Region>,
    like: Region,
    /// The result is room for what is combined on its left.
    early: bool,
}

impl Rooms {
    pub fn new(like: Region) -> Self {
        Self {
            buffers: Vec::new(),
            free: Vec::new(),
            like,
            early: false,
        }
    }

    fn take(&mut self, b: &mut Builder) -> Region {
        if let Some(room) = self.free.pop() {
            return room;
        }
        let buffer = match b.call.operation {
            // A share of the vector, as long as this rank's own.
            Operation::ReduceScatter => b.scratch_like(1, crate::plan::Lengths::All(b.rank)),
            // A slice is as long as the vector's first, or shorter.
            _ => b.scratch_like(
                self.like.count,
                crate::plan::Lengths::Rotated(self.like.first),
            ),
        };
        let room = Region::run(buffer, 0, self.like.count);
        self.buffers.push(room);
        room
    }

    fn give(&mut self, operand: Operand) {
        if operand.of.is_none() && self.buffers.contains(&operand.data) {
            self.free.push(operand.data);
        }
    }

    fn combine(
        &mut self,
        b: &mut Builder,
        left: Operand,
        right: Operand,
        last: Option<Region>,
    ) -> Operand {
        self.give(left);
        self.give(right);
        let into = match last {
            Some(result) => result,
            None => self.take(b),
        };
        b.fold(left, right, into);
        Operand::own(into)
    }

    /// Leaves `from..to` of a tree, depth first: as many intermediate results as it is deep.
    pub fn fold(
        &mut self,
        b: &mut Builder,
        fold: Fold,
        (from, to): (u32, u32),
        operand: &dyn Fn(u32) -> Operand,
        last: Option<Region>,
    ) -> Operand {
        if to - from == 1 {
            let first = fold.first(from);
            return match fold.partner(first) {
                Some(second) => self.combine(b, operand(first), operand(second), last),
                None => operand(first),
            };
        }
        let middle = from + (to - from) / 2;
        let early = last.filter(|_| self.early);
        let left = self.fold(b, fold, (from, middle), operand, early);
        let right = self.fold(b, fold, (middle, to), operand, None);
        self.combine(b, left, right, last)
    }
}

/// Everybody's data through slots, in one phase.
pub(super) fn one_phase(b: &mut Builder) {
    use Operation as O;
    let (call, rank, size) = (b.call, b.rank, b.call.size);
    let (root, at_root) = (call.root, b.rank == b.call.root);
    b.in_segment();
    let input = call.input(rank);
    let result = b.vector(Buffer::Recv);
    // Ranks whose slots this one reads, and those that read its own.
    let everybody = || others(rank, size);
    let nobody = || others(rank, 1);
    let only_root = || std::iter::once(root).filter(move |_| !at_root);
    match call.operation {
        O::Barrier => exchange(b, everybody(), everybody()),
        O::Scatter if call.varying => {
            let slot = b.slot(size - 1, false);
            if at_root {
                copy_to_others(b, input, slot);
                exchange(b, everybody(), nobody());
                if !call.in_place {
                    b.copy(Region::piece(input, rank), Region::piece(Buffer::Recv, 0));
                }
            } else {
                exchange(b, nobody(), only_root());
                let cell = Region::piece(slot, place(root, rank, size));
                b.read_peer(root, cell, Region::piece(Buffer::Recv, 0));
            }
        }
        O::Bcast | O::Scatter => {
            let pieces = match call.operation {
                O::Scatter => size,
                _ => 1,
            };
            let slot = b.slot(pieces, false);
            if at_root {
                let all = Region::run(slot, 0, pieces);
                b.copy(
                    Region {
                        buffer: input,
                        ..all
                    },
                    all,
                );
                exchange(b, everybody(), nobody());
                if call.operation == O::Scatter && !call.in_place {
                    b.copy(Region::piece(input, rank), Region::piece(Buffer::Recv, 0));
                }
            } else {
                exchange(b, nobody(), only_root());
                let piece = if call.operation == O::Scatter {
                    rank
                } else {
                    0
                };
                b.read_peer(
                    root,
                    Region::piece(slot, piece),
                    Region::piece(Buffer::Recv, 0),
                );
            }
        }
        O::Gather | O::Allgather => {
            let own = call.own(rank);
            let slot = match call.varying {
                true => b.cell(),
                false => b.slot(1, call.operation == O::Allgather),
            };
            let reads = at_root || call.operation == O::Allgather;
            let is_read = !at_root || call.operation == O::Allgather;
            if is_read {
                b.copy(own, Region::piece(slot, 0));
            }
            // While the others copy to their slots.
            if !is_read {
                b.copy(own, Region::piece(Buffer::Recv, rank));
            }
            let tells = |peer: &u32| call.operation == O::Allgather || *peer == root && !at_root;
            exchange(b, everybody().filter(tells), everybody().filter(|_| reads));
            if reads {
                for peer in everybody() {
                    let to = Region::piece(Buffer::Recv, peer);
                    b.read_peer(peer, Region::piece(slot, 0), to);
                }
            }
            if reads && is_read {
                b.copy(own, Region::piece(Buffer::Recv, rank));
            }
        }
        O::Alltoall => {
            // What is too long for its cell leaves after others have come to its place.
            let input = match call.varying {
                true => spread::outgoing(b),
                false => input,
            };
            let slot = b.slot(size - 1, !call.varying);
            copy_to_others(b, input, slot);
            exchange(b, everybody(), everybody());
            for peer in everybody() {
                let to = Region::piece(Buffer::Recv, peer);
                b.read_peer(peer, Region::piece(slot, place(peer, rank, size)), to);
            }
            b.copy(
                Region::piece(call.input(rank), rank),
                Region::piece(Buffer::Recv, rank),
            );
        }
        O::Reduce | O::Allreduce => {
            let to_all = call.operation == O::Allreduce;
            let slot = b.slot(1, to_all);
            if to_all || !at_root {
                b.copy(b.input(), Region::piece(slot, 0));
            }
            let tells = |peer: &u32| to_all || *peer == root && !at_root;
            let reads = to_all || at_root;
            exchange(b, everybody().filter(tells), everybody().filter(|_| reads));
            if reads {
                let own = b.input();
                let operand = |peer: u32| match peer == rank {
                    true => Operand::own(own),
                    false => Operand::of_peer(peer, Region::piece(slot, 0)),
                };
                fold_run(b, size, &operand, result);
            }
        }
        O::ReduceScatter => {
            let slot = b.slot_of_shares();
            copy_to_others(b, input, slot);
            exchange(b, everybody(), everybody());
            let share = Region::piece(input, rank);
            let operand = |peer: u32| match peer == rank {
                true => Operand::own(share),
                false => Operand::of_peer(peer, Region::piece(slot, place(peer, rank, size))),
            };
            let result = Region::piece(Buffer::Recv, 0);
            match call.shares_memory() {
                // What it writes over is read until the end.
                true => {
                    let room = b.scratch_like(1, crate::plan::Lengths::All(rank));
                    fold_run(b, size, &operand, Region::piece(room, 0));
                    b.copy(Region::piece(room, 0), result);
                }
                false => fold_run(b, size, &operand, result),
            }
        }
        O::Scan | O::Exscan => {
            let slot = b.slot(1, false);
            let own = b.input();
            if rank + 1 < size {
                b.copy(own, Region::piece(slot, 0));
            }
            exchange(b, rank + 1..size, 0..rank);
            let operand = |peer: u32| match peer == rank {
                true => Operand::own(own),
                false => Operand::of_peer(peer, Region::piece(slot, 0)),
            };
            let count = rank + u32::from(call.operation == O::Scan);
            fold_prefix(b, count, &operand, result);
        }
        O::NeighborAllgather | O::NeighborAlltoall => neighbors::one_phase(b),
    }
}

/// An allreduce of which each rank combines a slice, through slots: the sum of a slice takes
/// its place in the slot of the rank that has combined it, which nobody else has read.
pub(super) fn two_phases(b: &mut Builder) {
    let (call, rank, size) = (b.call, b.rank, b.call.size);
    b.in_segment();
    let input = call.input(rank);
    let slot = b.slot(size, false);
    let slices = match b.segments() {
        1 => vec![Region::run(slot, 0, size)],
        _ => (0..size).map(|p| Region::piece(slot, p)).collect(),
    };
    for to in slices {
        let buffer = input;
        b.copy(Region { buffer, ..to }, to);
    }
    let everybody = || others(rank, size);
    exchange(b, everybody(), everybody());
    let slice = Region::piece(slot, rank);
    let operand = |peer: u32| match peer == rank {
        true => Operand::own(Region::piece(input, rank)),
        false => Operand::of_peer(peer, slice),
    };
    fold_run(b, size, &operand, slice);
    exchange(b, everybody(), everybody());
    for peer in everybody() {
        let theirs = Region::piece(slot, peer);
        b.read_peer(peer, theirs, Region::piece(Buffer::Recv, peer));
    }
    b.copy(slice, Region::piece(Buffer::Recv, rank));
}

/// From and in the buffers of the program.
pub(super) fn direct(b: &mut Builder) {
    use Operation as O;
    let (call, rank, size) = (b.call, b.rank, b.call.size);
    let (root, at_root) = (call.root, b.rank == b.call.root);
    b.in_segment();
    let input = call.input(rank);
    let result = b.vector(Buffer::Recv);
    let everybody = || others(rank, size);
    let nobody = || others(rank, 1);
    let only_root = || std::iter::once(root);
    let rooted = call.operation.rooted();
    // The root is read by all, or reads all.
    let is_read = match call.operation {
        O::Bcast | O::Scatter => at_root,
        O::Gather | O::Reduce => !at_root,
        _ => true,
    };
    match (rooted, is_read, at_root) {
        (false, ..) => match call.operation {
            O::Scan | O::Exscan => exchange(b, rank + 1..size, 0..rank),
            _ => exchange(b, everybody(), everybody()),
        },
        (true, true, true) => exchange(b, everybody(), nobody()),
        (true, true, false) => exchange(b, only_root(), nobody()),
        (true, false, true) => exchange(b, nobody(), everybody()),
        (true, false, false) => exchange(b, nobody(), only_root()),
    }
    // Where the result takes the place of what peers read, it waits for them.
    let over = call.in_place && input == Buffer::Recv || call.shares_memory();
    let mut late: Option<(Region, Region)> = None;
    match call.operation {
        O::Bcast if !at_root => {
            b.read_peer(root, Region::piece(Buffer::Send, 0), result);
        }
        O::Scatter if !at_root => {
            let share = Region::piece(Buffer::Send, rank);
            b.read_peer(root, share, Region::piece(Buffer::Recv, 0));
        }
        O::Scatter if !call.in_place => {
            b.copy(Region::piece(input, rank), Region::piece(Buffer::Recv, 0));
        }
        O::Gather if !at_root => {}
        O::Gather | O::Allgather => {
            for peer in everybody() {
                let to = Region::piece(Buffer::Recv, peer);
                b.read_peer(peer, Region::piece(Buffer::Send, 0), to);
            }
            b.copy(call.own(rank), Region::piece(Buffer::Recv, rank));
        }
        O::Alltoall => {
            let into = match over {
                true => b.scratch(size),
                false => Buffer::Recv,
            };
            for peer in everybody() {
                let share = Region::piece(Buffer::Send, rank);
                b.read_peer(peer, share, Region::piece(into, peer));
            }
            let own = Region::piece(into, rank);
            b.copy(Region::piece(input, rank), own);
            if over {
                let all = Region::run(into, 0, size);
                late = Some((
                    all,
                    Region {
                        buffer: Buffer::Recv,
                        ..all
                    },
                ));
            }
        }
        O::Reduce if !at_root => {}
        O::Reduce | O::Allreduce | O::ReduceScatter | O::Scan | O::Exscan => {
            let (own, into) = match call.operation {
                O::ReduceScatter => (Region::piece(input, rank), Region::piece(Buffer::Recv, 0)),
                _ => (b.input(), result),
            };
            let theirs = Region {
                buffer: Buffer::Send,
                ..own
            };
            let operand = |peer: u32| match peer == rank {
                true => Operand::own(own),
                false => Operand::of_peer(peer, theirs),
            };
            // Nobody reads the root's.
            let over = over && call.operation != O::Reduce;
            let sum = match over {
                true => {
                    let like = match call.operation {
                        O::ReduceScatter => rank,
                        _ => 0,
                    };
                    let room = b.scratch_like(1, crate::plan::Lengths::All(like));
                    Region::piece(room, 0)
                }
                false => into,
            };
            match call.operation {
                // Its own input is the first rank's result.
                O::Scan if over && rank == 0 => {}
                O::Scan => fold_prefix(b, rank + 1, &operand, sum),
                O::Exscan if rank == 0 => {}
                O::Exscan => fold_prefix(b, rank, &operand, sum),
                _ => fold_run(b, size, &operand, sum),
            }
            let empty = matches!(call.operation, O::Scan | O::Exscan) && rank == 0;
            late = over.then_some((sum, into)).filter(|_| !empty);
        }
        _ => {}
    }
    // All was read.
    match (rooted, is_read, at_root) {
        (false, ..) => match call.operation {
            O::Scan | O::Exscan => exchange(b, 0..rank, rank + 1..size),
            _ => exchange(b, everybody(), everybody()),
        },
        (true, true, true) => exchange(b, nobody(), everybody()),
        (true, true, false) => exchange(b, nobody(), only_root()),
        (true, false, true) => exchange(b, everybody(), nobody()),
        (true, false, false) => exchange(b, only_root(), nobody()),
    }
    if let Some((from, to)) = late {
        b.copy(from, to);
    }
}

/// An allreduce of which each rank combines a slice.
pub(super) fn in_slices(b: &mut Builder) {
    let (call, rank, size) = (b.call, b.rank, b.call.size);
    b.in_segment();
    let input = call.input(rank);
    let everybody = || others(rank, size);
    exchange(b, everybody(), everybody());
    let operand = |peer: u32| match peer == rank {
        true => Operand::own(Region::piece(input, rank)),
        false => Operand::of_peer(peer, Region::piece(Buffer::Send, rank)),
    };
    fold_run(b, size, &operand, Region::piece(Buffer::Recv, rank));
    exchange(b, everybody(), everybody());
    for peer in everybody() {
        let slice = Region::piece(Buffer::Recv, peer);
        b.read_peer(peer, slice, slice);
    }
    exchange(b, everybody(), everybody());
}
