//! Neighborhoods: who sends to whom, and in which cell of a slot a block lies.
//!
//! The k-th edge from a rank to another is met by the k-th edge there. A slot has one cell for each
//! edge to another rank, in the order of the writer's list, so who reads needs to know that list, or
//! the place in it of each edge that ends here.

/// Who sends to whom, by rank. Entry k of rank r's list of destinations is its
/// piece k in a neighborhood alltoall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbors {
    /// Per rank: where from.
    pub sources: Vec<Vec<u32>>,
    /// Per rank: where to.
    pub destinations: Vec<Vec<u32>>,
    /// The lists are those of this rank alone, which knows no others,
    pub only: Option<u32>,
    /// and the cells of its sources, where it knows them.
    pub cells: Option<Vec<CellOf>>,
}

/// A cell, and the number of cells of its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellOf {
    /// Which.
    pub cell: u32,
    /// Cells of the slot.
    pub of: u32,
}

impl Neighbors {
    /// What one rank knows of a neighborhood.
    pub fn of_one(rank: u32, sources: Vec<u32>, destinations: Vec<u32>) -> Self {
        Self {
            sources: vec![sources],
            destinations: vec![destinations],
            only: Some(rank),
            cells: None,
        }
    }

    pub(crate) fn of<'a>(&self, lists: &'a [Vec<u32>], rank: u32) -> &'a [u32] {
        match self.only {
            None => &lists[rank as usize],
            Some(only) if only == rank => &lists[0],
            Some(_) => &[],
        }
    }

    /// Whether each rank knows the cells of its sources.
    pub fn knows_cells(&self) -> bool {
        self.only.is_none() || self.cells.is_some()
    }

    /// The cell of a rank's source `at`, which is another rank.
    pub(crate) fn cell_of(&self, rank: u32, at: usize) -> Option<CellOf> {
        if self.only.is_some() {
            return self.cells.as_ref()?.get(at).copied();
        }
        let sources = self.of(&self.sources, rank);
        let from = *sources.get(at)?;
        cell_at(
            from,
            self.of(&self.destinations, from),
            rank,
            occurrence(sources, at),
        )
    }
}

/// Which cell of a rank's slot, with these destinations, is that of the `nth` edge to another.
pub fn cell_at(of: u32, destinations: &[u32], to: u32, nth: u32) -> Option<CellOf> {
    let others = || destinations.iter().filter(|other| **other != of);
    let mut cells = others().zip(0..).filter(|(other, _)| **other == to);
    let (_, cell) = cells.nth(nth as usize)?;
    let of = others().count() as u32;
    Some(CellOf { cell, of })
}

/// How many entries before `at` equal it.
pub fn occurrence(list: &[u32], at: usize) -> u32 {
    list[..at].iter().filter(|r| **r == list[at]).count() as u32
}
