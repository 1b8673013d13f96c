//! One phase on a neighborhood: flags and slots of those alone that a rank exchanges data with.
//!
//! ```text
//! copy in, a cell for each edge -> raise -> await the sources -> read their cells
//! ```

use crate::builder::Builder;
use crate::call::{Call, Operation};
use crate::neighbors::occurrence;
use crate::plan::{Buffer, Region};

/// Whether each rank knows in which cells its blocks lie. Lengths are never known.
pub(crate) fn suits(call: &Call) -> bool {
    let knows = |neighbors: &crate::Neighbors| neighbors.knows_cells();
    let neighbors = call.neighbors.as_deref();
    let cells = call.operation == Operation::NeighborAllgather || neighbors.is_some_and(knows);
    call.operation.of_neighbors() && call.varying && cells && call.size > 1
}

/// The rank that reads a cell of a rank's slot, and which edge to it that is. Of a slot that all
/// read, each.
pub(super) fn readers_of_cell(call: &Call, rank: u32, cell: u32) -> Vec<(u32, u32)> {
    let destinations = call.destinations(rank);
    let edges = destinations.iter().enumerate();
    let mut others = edges.filter(|(_, to)| **to != rank);
    let reader = |(at, to): (usize, &u32)| (*to, occurrence(destinations, at));
    match call.operation {
        Operation::NeighborAlltoall => {
            let one = others.nth(cell as usize);
            one.map(reader).into_iter().collect()
        }
        _ => others.map(reader).collect(),
    }
}

/// Ranks of a list, each once and without this one.
fn once(list: &[u32], own: u32) -> impl Iterator<Item = u32> + '_ {
    let all = list.iter().enumerate();
    let first = all.filter(move |(at, rank)| **rank != own && occurrence(list, *at) == 0);
    first.map(|(_, rank)| *rank)
}

/// To all destinations, from all sources, through slots.
pub(super) fn one_phase(b: &mut Builder) {
    let (call, rank) = (b.call, b.rank);
    let (sources, destinations) = (call.sources(rank), call.destinations(rank));
    let slot = b.slot(call.cells(rank), false);
    let piece_of = |at: usize| match call.operation {
        Operation::NeighborAllgather => 0,
        _ => at as u32,
    };
    let edges = || destinations.iter().enumerate();
    let others = edges().filter(|(_, to)| **to != rank);
    for ((at, _), cell) in others.zip(0..call.cells(rank)) {
        let data = Region::piece(Buffer::Send, piece_of(at));
        b.copy(data, Region::piece(slot, cell));
    }
    super::exchange(b, once(destinations, rank), once(sources, rank));
    let mut own = edges().filter(|(_, to)| **to == rank);
    for (at, from) in sources.iter().enumerate() {
        let into = Region::piece(Buffer::Recv, at as u32);
        if *from == rank {
            if let Some((sent, _)) = own.next() {
                b.copy(Region::piece(Buffer::Send, piece_of(sent)), into);
            }
        } else if let Some(place) = call.cell_of(rank, at) {
            b.read_peer(*from, Region::piece(slot, place.cell), into);
        }
    }
}
