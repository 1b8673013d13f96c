//! Levels: any tree per level, glued at the leaders into one tree.
//!
//! ```text
//! level 1    0           4           8           12      nodes
//! level 0    0 1 2 3     4 5 6 7     8 9 10 11   12 ...  ranks of a node
//! ```
//!
//! A leader is a member of the next level. No level waits for another's message to
//! be whole: a segment that has come goes to all children at every level, outer
//! levels first, because they are further.
//!
//! # Invariants
//! 1. The root leads all its groups; else the lowest rank does, or the first in an order
//!    along links.
//! 2. Every rank is in a group of level 0; a leader of a group of level l, and nobody
//!    else, is in one of level l + 1. The last level has one group.
//!
//! # Sources
//! W. Wu, "Programming Models' Support for Heterogeneous Architecture", PhD thesis,
//! University of Tennessee, 2017, chapter 5.

use super::tree::{self, Family, Tree};
use super::{dissemination, rabenseifner, recursive_doubling, scatter_allgather};
use crate::builder::Builder;
use crate::call::Operation;
use crate::group::{Group, Permutation};
use crate::plan::Buffer;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What the leaders of the outermost level do among themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Across {
    /// Its tree; in an allreduce recursive doubling.
    #[default]
    Tree,
    /// All send and receive at a time: dissemination in a barrier, scatter and allgather in
    /// a broadcast, Rabenseifner's algorithm in reductions.
    Exchange,
}

/// Groups of ranks by level, each with a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// By level, innermost first: the shape of each group's tree.
    pub trees: Vec<Tree>,
    /// And across the outermost one.
    pub across: Across,
    /// Levels are those of NVLink cliques, and members come in an order along links.
    pub by_links: bool,
    /// By level: groups, the leader first.
    groups: Vec<Vec<Arc<[u32]>>>,
    /// By level and rank: its group, if it is in one.
    memberships: Vec<BTreeMap<u32, u32>>,
}

impl Hierarchy {
    /// From each rank's place: its path from the outermost part of the machine
    /// inward (node, package, core complex...). Ranks whose paths are equal form a
    /// group of level 0; leaders whose paths agree but for their last entry one of
    /// level 1; and so on. Levels at which every group has one member are left out.
    /// `trees` gives the shape by level before that, innermost first; the last one
    /// holds for all further levels.
    pub fn new(places: &[Vec<u32>], root: u32, trees: &[Tree]) -> Self {
        let depth = places.first().map_or(0, Vec::len);
        Self::of(places, depth, root, trees, None)
    }

    /// Of NVLink cliques: `places` end with the NVLink clique, and the `merged` innermost levels
    /// are one. Members of all groups come in this order, that of the root first; who is
    /// first leads.
    pub fn by_links(
        places: &[Vec<u32>],
        merged: usize,
        order: &Permutation,
        trees: &[Tree],
    ) -> Self {
        let depth = places.first().map_or(0, Vec::len).saturating_sub(merged);
        let root = order.order()[0];
        Self::of(places, depth, root, trees, Some(order))
    }

    /// The same without the `merged` innermost levels: what lies in one part of the next
    /// level is one group, in which members come in the order of what was merged, those
    /// near to the leader first. So a chain of devices goes through one PCIe switch after
    /// the other, and crosses from each to the next once.
    ///
    /// # Sources
    /// W. Wu's thesis (above), section 5.2.5 and figure 5.3.
    pub fn merged(places: &[Vec<u32>], merged: usize, root: u32, trees: &[Tree]) -> Self {
        let depth = places.first().map_or(0, Vec::len);
        Self::of(places, depth.saturating_sub(merged), root, trees, None)
    }

    /// Of the outermost `depth` levels.
    fn of(
        places: &[Vec<u32>],
        depth: usize,
        root: u32,
        trees: &[Tree],
        order: Option<&Permutation>,
    ) -> Self {
        let mut hierarchy = Self {
            trees: Vec::new(),
            across: Across::Tree,
            by_links: order.is_some(),
            groups: Vec::new(),
            memberships: Vec::new(),
        };
        let mut members: Vec<u32> = (0..places.len() as u32).collect();
        for level in 0..=depth {
            let mut groups: BTreeMap<&[u32], Vec<u32>> = BTreeMap::new();
            for rank in members {
                let prefix = &places[rank as usize][..depth - level];
                groups.entry(prefix).or_default().push(rank);
            }
            for group in groups.values_mut() {
                if let Some(order) = order {
                    group.sort_by_key(|rank| order.index(*rank));
                    continue;
                }
                if let Some(at) = group.iter().position(|r| *r == root) {
                    group[..=at].rotate_right(1);
                }
                if level == 0 {
                    let home = &places[group[0] as usize];
                    // Stable: equal places stay in the order of ranks.
                    group[1..].sort_by_key(|rank| {
                        let place = &places[*rank as usize];
                        let common = place.iter().zip(home).take_while(|(a, b)| a == b);
                        (place.len() - common.count(), place)
                    });
                }
            }
            members = groups.values().map(|g| g[0]).collect();
            if groups.values().all(|g| g.len() == 1) && level < depth {
                continue;
            }
            members.sort_unstable();
            let mut membership = BTreeMap::new();
            let groups: Vec<Arc<[u32]>> = groups.into_values().map(Arc::from).collect();
            for (number, group) in groups.iter().enumerate() {
                membership.extend(group.iter().map(|rank| (*rank, number as u32)));
            }
            let shape = trees.get(level).or(trees.last()).copied();
            hierarchy.trees.push(shape.unwrap_or(Tree::Binomial));
            hierarchy.groups.push(groups);
            hierarchy.memberships.push(membership);
        }
        hierarchy
    }

    /// The same with another way across the outermost level.
    pub fn with_across(mut self, across: Across) -> Self {
        self.across = across;
        self
    }

    /// Pieces into which a vector is cut.
    pub(super) fn cut(&self, operation: Operation) -> u32 {
        let leaders = self.widest(self.levels() - 1);
        match (self.across, operation) {
            (Across::Exchange, Operation::Bcast) => leaders,
            (Across::Exchange, Operation::Reduce | Operation::Allreduce) => {
                rabenseifner::cut(leaders)
            }
            _ => 1,
        }
    }

    /// Number of levels.
    pub fn levels(&self) -> usize {
        self.groups.len()
    }

    /// The members of a rank's group at a level, the leader first.
    pub fn group(&self, level: usize, rank: u32) -> Option<&Arc<[u32]>> {
        let number = self.memberships[level].get(&rank)?;
        Some(&self.groups[level][*number as usize])
    }

    /// Members of the largest group of a level.
    pub fn widest(&self, level: usize) -> u32 {
        let sizes = self.groups[level].iter().map(|g| g.len());
        sizes.max().unwrap_or(0) as u32
    }

    /// The leader of all.
    pub fn root(&self) -> u32 {
        self.groups.last().map_or(0, |top| top[0][0])
    }

    /// A rank's parent and children in the glued tree of the lowest `levels` levels.
    pub fn family(&self, rank: u32, levels: usize) -> Family {
        self.family_within(rank, 0..levels)
    }

    /// The same of some levels next to each other.
    pub fn family_within(&self, rank: u32, levels: Range<usize>) -> Family {
        let mut family = Family::default();
        for level in levels.rev() {
            let Some(members) = self.group(level, rank) else {
                continue;
            };
            let own = self.trees[level].of(&Group::List(members.clone()), 0, rank);
            family.parent = family.parent.or(own.parent);
            family.children.extend(own.children);
        }
        family
    }
}

/// The plan of the call's operation over the levels.
pub(super) fn build(b: &mut Builder, levels: &Hierarchy) {
    let (rank, operation) = (b.rank, b.call.operation);
    let all = levels.levels();
    let exchanges = levels.across == Across::Exchange;
    if operation != Operation::Allreduce && !exchanges {
        let top = Group::List([levels.root()].into());
        return over_forest(b, &levels.family(rank, all), &top);
    }
    // Up to the outermost level, across it, and down.
    let members = levels.group(all - 1, rank);
    let mut members = members.map(|m| m.to_vec()).unwrap_or_default();
    members.sort_unstable();
    let top = Group::List(members.into());
    let family = levels.family(rank, all - 1);
    let result = b.vector(Buffer::Recv);
    let root = top.index(levels.root()).unwrap_or(0);
    match operation {
        Operation::Bcast => {
            scatter_allgather::bcast(b, &top, root);
            tree::bcast(b, &family, result);
        }
        Operation::Reduce => {
            let place = (rank == b.call.root).then_some(result);
            let sum = tree::reduce(b, &family, b.input(), place);
            rabenseifner::reduce(b, &top, Some(root), sum.buffer);
        }
        Operation::Allreduce if exchanges => {
            let sum = tree::reduce(b, &family, b.input(), Some(result));
            rabenseifner::reduce(b, &top, None, sum.buffer);
            tree::bcast(b, &family, result);
        }
        _ => over_forest(b, &family, &top),
    }
}

/// Up a forest, across its roots, and down. Rooted operations have one root. Who is
/// no root may pass an empty `top`.
pub(super) fn over_forest(b: &mut Builder, family: &Family, top: &Group) {
    let result = b.vector(Buffer::Recv);
    match b.call.operation {
        Operation::Bcast => tree::bcast(b, family, result),
        Operation::Reduce => {
            let at_root = b.rank == b.call.root;
            let sum = tree::reduce(b, family, b.input(), at_root.then_some(result));
            if at_root {
                b.copy(sum, result);
            }
        }
        Operation::Barrier => tree::barrier(b, family, |b| dissemination::barrier(b, top)),
        Operation::Allreduce => {
            let sum = tree::reduce(b, family, b.input(), Some(result));
            recursive_doubling::allreduce(b, top, sum, result);
            tree::bcast(b, family, result);
        }
        other => unreachable!("{} has no plan over a forest", other.name()),
    }
}
