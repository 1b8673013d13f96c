//! Plans in levels, for ranks of one host: blocks of ranks that share a cache or a package, in
//! which one rank combines what the others have put into their slots, and passes on what comes
//! back.
//!
//! ```text
//! up      members of a block: copy in -> raise      first rank: await all -> fold into its slot
//!         first ranks, as members of the next block: raise ...
//! down    first rank: raise                          members: await -> read its slot
//! ```
//!
//! In one phase each of n ranks awaits n - 1 flags and reads as many slots, from all over the
//! machine; here a block's first rank alone reads what lies outside of it, and each rank but
//! the first ones reads one slot. Each level costs a phase more each way.
//!
//! Blocks are of leaves of the balanced tree: what is combined in a block is a subtree, so sums
//! have the same bits as by all other plans. The root of a call stands in for the first rank of
//! its blocks. A slot is used twice: for what goes up, and, when its reader has passed that on,
//! for what comes down.
//!
//! # Sources
//! R. Graham, G. Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory
//! Collectives", EuroPVM/MPI 2008; levels of the machine: N. Karonis et al., "Exploiting
//! Hierarchy in Parallel Computer Networks to Optimize Collective Operation Performance", IPDPS
//! 2000.

use super::in_segment::{Rooms, exchange, finish};
use crate::balanced::Fold;
use crate::builder::Builder;
use crate::call::{Call, Operation};
use crate::plan::{Buffer, Operand, Region};

/// Leaves that blocks have, the smallest first.
pub(crate) fn widths(bits: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS)
        .map(|bit| 1 << bit)
        .filter(move |width| bits & width != 0)
}

/// Whether there are such blocks, of no more than all ranks.
pub(super) fn suits(call: &Call, bits: u32) -> bool {
    let largest = bits.checked_ilog2();
    let fits = largest.is_some_and(|log| 1 << log <= Fold::of(call.size).leaves);
    fits && bits & 1 == 0
}

/// Blocks of levels that are the machine's: its parts, if each holds ranks in a row that are a
/// block, and for many ranks of one part some sizes and one block of all: its first rank alone reads
/// what the others have, which read its result.
pub(crate) fn of_places(size: u32, places: &[Vec<u32>]) -> Vec<u32> {
    let fold = Fold::of(size);
    let depth = places.first().map_or(0, Vec::len);
    let is_level = |width: &u32, part: usize| {
        let first = |block: u32| fold.first(block * width) as usize;
        let blocks = fold.leaves / width;
        (0..blocks).all(|block| {
            let of = |rank: usize| &places[rank][..part];
            let ranks = first(block)..first(block + 1);
            let apart = block == 0 || of(ranks.start) != of(ranks.start - 1);
            apart && ranks.clone().all(|rank| of(rank) == of(ranks.start))
        })
    };
    let all = (1..31).map(|log| 1u32 << log);
    let all: Vec<u32> = all.take_while(|width| *width < fold.leaves).collect();
    let parts = (1..=depth).flat_map(|part| {
        let mut widths = all.iter().copied();
        widths.find(|width| places.len() == size as usize && is_level(width, part))
    });
    let parts: Vec<u32> = parts.collect();
    let mut found = vec![parts.iter().fold(0, |bits, width| bits | width)];
    found.extend(parts);
    if size >= MANY {
        found.extend(
            all.iter()
                .copied()
                .filter(|width| width * width <= 4 * fold.leaves),
        );
        found.push(fold.leaves);
    }
    found.retain(|bits| *bits != 0);
    found.sort_unstable();
    found.dedup();
    found
}

/// Number of ranks from which on blocks may pay within one part of the machine, too.
const MANY: u32 = 16;

/// The blocks around a rank.
struct Levels {
    fold: Fold,
    /// Leaves of the blocks of each level; those of the last are all.
    widths: Vec<u32>,
    /// Who stands in for the first rank of its blocks.
    anchor: u32,
}

impl Levels {
    fn of(call: &Call, bits: u32) -> Levels {
        let fold = Fold::of(call.size);
        Levels {
            fold,
            widths: widths(bits & (fold.leaves - 1))
                .chain([fold.leaves])
                .collect(),
            anchor: if call.operation.rooted() {
                call.root
            } else {
                0
            },
        }
    }

    /// The first rank of the block of a leaf, by the block's leaves.
    fn first(&self, leaf: u32, width: u32) -> u32 {
        let start = leaf / width * width;
        let ranks = self.fold.first(start)..self.fold.first(start + width);
        match ranks.contains(&self.anchor) {
            true => self.anchor,
            false => ranks.start,
        }
    }

    /// The first rank of a rank's block of a level.
    fn head(&self, rank: u32, level: usize) -> u32 {
        self.first(self.fold.leaf(rank), self.widths[level])
    }

    /// Whether a rank has a part in a level: all in the first, then the heads of the one below.
    fn takes_part(&self, rank: u32, level: usize) -> bool {
        level == 0 || self.head(rank, level - 1) == rank
    }

    /// Others that have a part in a level within the block of a rank.
    fn members(&self, rank: u32, level: usize) -> Vec<u32> {
        let width = self.widths[level];
        let start = self.fold.leaf(rank) / width * width;
        let ranks = self.fold.first(start)..self.fold.first(start + width);
        let others = ranks.filter(|other| *other != rank);
        others
            .filter(|other| self.takes_part(*other, level))
            .collect()
    }
}

pub(super) fn build(b: &mut Builder, bits: u32) {
    use Operation as O;
    let (call, rank) = (b.call, b.rank);
    b.in_segment();
    let levels = Levels::of(call, bits);
    let count = levels.widths.len();
    let slot = match call.operation {
        O::Barrier => None,
        _ => Some(Region::piece(b.slot(1, false), 0)),
    };
    if call.operation != O::Bcast {
        for level in 0..count {
            up(b, &levels, level, slot);
        }
    }
    if call.operation == O::Reduce {
        return;
    }
    let result = b.vector(Buffer::Recv);
    if let (Some(slot), true) = (slot, levels.head(rank, count - 1) == rank) {
        match call.operation {
            O::Bcast => {
                let buffer = call.input(rank);
                b.copy(Region { buffer, ..slot }, slot);
            }
            _ => b.copy(slot, result),
        }
    }
    for level in (0..count).rev() {
        down(b, &levels, level, slot.map(|slot| (slot, result)));
    }
}

/// What the ranks of a block have goes to its head, which combines it.
fn up(b: &mut Builder, levels: &Levels, level: usize, slot: Option<Region>) {
    let (rank, last) = (b.rank, level + 1 == levels.widths.len());
    let head = levels.head(rank, level);
    let nobody = std::iter::empty();
    if !levels.takes_part(rank, level) {
        return exchange(b, nobody.clone(), nobody);
    }
    if head != rank {
        if let (Some(slot), 0) = (slot, level) {
            b.copy(b.input(), slot);
        }
        return exchange(b, std::iter::once(head), nobody);
    }
    let members = levels.members(rank, level);
    exchange(b, nobody, members.into_iter());
    let Some(slot) = slot else {
        return;
    };
    let into = match b.call.operation {
        Operation::Reduce if last => b.vector(Buffer::Recv),
        _ => slot,
    };
    let own = if level == 0 { b.input() } else { slot };
    let operand = |peer: u32| match peer == rank {
        true => Operand::own(own),
        false => Operand::of_peer(peer, slot),
    };
    let leaf = levels.fold.leaf(rank);
    let (fold, width) = (levels.fold, levels.widths[level]);
    let start = leaf / width * width;
    let mut rooms = Rooms::new(into);
    let all = match level {
        0 => rooms.fold(b, fold, (start, start + width), &operand, Some(into)),
        _ => {
            let below = levels.widths[level - 1];
            let blocks = Fold::of(width / below);
            let of_block = |block: u32| operand(levels.first(start + block * below, below));
            rooms.fold(b, blocks, (0, blocks.leaves), &of_block, Some(into))
        }
    };
    finish(b, all, into);
}

/// What the head of a block has goes to its ranks.
fn down(b: &mut Builder, levels: &Levels, level: usize, memory: Option<(Region, Region)>) {
    let rank = b.rank;
    let head = levels.head(rank, level);
    let nobody = std::iter::empty();
    if !levels.takes_part(rank, level) {
        return exchange(b, nobody.clone(), nobody);
    }
    if head == rank {
        let members = levels.members(rank, level);
        return exchange(b, members.into_iter(), nobody);
    }
    exchange(b, nobody, std::iter::once(head));
    if let Some((slot, result)) = memory {
        b.read_peer(head, slot, result);
        // For those below.
        if level > 0 {
            b.copy(result, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_parts_of_the_machine() {
        // Two packages of two caches of four ranks.
        let places: Vec<Vec<u32>> = (0..16).map(|r| vec![r / 8, r / 4, r]).collect();
        assert_eq!(
            of_places(16, &places),
            [0b10, 0b100, 0b1000, 0b1100, 0b10000]
        );
        // Of eight ranks in one cache there is nothing to gain.
        let places: Vec<Vec<u32>> = (0..8).map(|r| vec![0, 0, r]).collect();
        assert_eq!(of_places(8, &places), []);
        // Parts that take turns have no ranks in a row.
        let places: Vec<Vec<u32>> = (0..8).map(|r| vec![r % 2, r]).collect();
        assert_eq!(of_places(8, &places), []);
        let places: Vec<Vec<u32>> = (0..8).map(|r| vec![r / 4, r]).collect();
        assert_eq!(of_places(8, &places), [0b100]);
    }

    #[test]
    fn one_block_of_all_has_one_level() {
        let call = Call::new(Operation::Allreduce, 23);
        assert!(suits(&call, 0b10000) && !suits(&call, 0b100000));
        let levels = Levels::of(&call, 0b10000);
        assert_eq!(levels.widths, [16]);
        assert_eq!(levels.members(0, 0), (1..23).collect::<Vec<u32>>());
    }

    #[test]
    fn each_rank_has_one_head_and_reads_little() {
        let call = Call::new(Operation::Allreduce, 23);
        let levels = Levels::of(&call, 0b110);
        for level in 0..3 {
            for rank in (0..23).filter(|rank| levels.takes_part(*rank, level)) {
                let head = levels.head(rank, level);
                assert!(levels.takes_part(head, level));
                assert_eq!(levels.head(head, level), head);
                assert!(head == rank || levels.members(head, level).contains(&rank));
            }
        }
        assert_eq!(levels.members(0, 2), [8, 15, 19]);
    }
}
