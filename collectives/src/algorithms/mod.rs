//! Algorithms by their textbook names, what each is for, and plans made of them.
//!
//! An algorithm is a function that writes one rank's steps with a
//! [`Builder`](crate::Builder). What it says it is for, the checker has tried.

mod between;
mod binomial;
pub(crate) mod blocks;
mod bruck;
mod chain;
mod dissemination;
mod hierarchical;
mod host_leaders;
mod in_segment;
mod k_ary;
mod linear;
mod pairwise;
pub(crate) mod postal;
mod rabenseifner;
mod recursive_doubling;
mod recursive_halving;
mod ring;
mod scatter_allgather;
mod split_binary;
mod spread;
mod staged;
mod tree;

pub use hierarchical::{Across, Hierarchy};
pub use in_segment::readers_of_cell;
pub use tree::{Family, Tree};

use crate::builder::Builder;
use crate::call::{Association, Call, Operation};
use crate::group::{Group, Permutation};
use crate::plan::{Buffer, Part, Region};
use crate::synthesis::{Adapted, Shape};
use spread::Exchange;
use std::fmt;
use std::sync::Arc;

/// An algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// The root, or every pair, directly.
    Linear,
    /// One after the other.
    Chain,
    /// A tree of k children each.
    KAry(u32),
    /// A binomial tree.
    Binomial,
    /// A tree for messages that are under way for as long as their senders need for so many.
    Postal(u32),
    /// Halves of the message down halves of a binary tree.
    SplitBinary,
    /// Rounds of doubling distance, one way.
    Dissemination,
    /// Rounds of doubling distance, both ways.
    RecursiveDoubling,
    /// Rounds of halving distance and data.
    RecursiveHalving,
    /// Neighbors in a ring.
    Ring,
    /// Rounds of doubling distance with rotations.
    Bruck,
    /// Halving, then doubling.
    Rabenseifner,
    /// One partner at a time.
    Pairwise,
    /// All partners at once.
    Spread,
    /// All ranks have all contributions, and combine them: as one kernel on the device of
    /// each, that writes to the others'.
    OneKernel,
    /// A scatter, then a ring.
    ScatterAllgather,
    /// On one host: all tell all, through slots that peers read.
    OnePhase,
    /// The same, of which each rank combines a slice: all tell all once more.
    TwoPhases,
    /// On one host: blocks of ranks within blocks, whose first ranks combine out of slots and
    /// pass on: a bit for each number of leaves of the balanced tree that a block has.
    Blocks(u32),
    /// On one host: peers read, or combine, the buffers of the program where they lie.
    Direct,
    /// The same, of which each rank combines a slice.
    DirectSlices,
    /// Trees within the sides of an intercommunicator, leaders across.
    Between,
    /// Trees per level of the machine.
    Hierarchical(Arc<Hierarchy>),
    /// The same, with copies in the host's memory for what crosses groups from this level
    /// on: for memory of devices.
    HostLeaders(Arc<Hierarchy>, u32),
    /// Trees and stages of signals that are made from costs.
    Adapted(Arc<Adapted>),
    /// A flat algorithm over the ranks in another order, such as that of the machine.
    Permuted(Arc<Permutation>, Box<Self>),
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear => f.write_str("linear"),
            Self::Chain => f.write_str("chain"),
            Self::KAry(2) => f.write_str("binary tree"),
            Self::KAry(k) => write!(f, "{k}-ary tree"),
            Self::Binomial => f.write_str("binomial tree"),
            Self::Postal(reach) => write!(f, "postal tree of {reach}"),
            Self::SplitBinary => f.write_str("split binary tree"),
            Self::Dissemination => f.write_str("dissemination"),
            Self::RecursiveDoubling => f.write_str("recursive doubling"),
            Self::RecursiveHalving => f.write_str("recursive halving"),
            Self::Ring => f.write_str("ring"),
            Self::Bruck => f.write_str("Bruck"),
            Self::Rabenseifner => f.write_str("Rabenseifner"),
            Self::Pairwise => f.write_str("pairwise exchange"),
            Self::Spread => f.write_str("spread"),
            Self::OneKernel => f.write_str("one kernel per rank"),
            Self::ScatterAllgather => f.write_str("scatter and allgather"),
            Self::OnePhase => f.write_str("one phase"),
            Self::TwoPhases => f.write_str("two phases"),
            Self::Blocks(widths) => {
                f.write_str("blocks of")?;
                for (at, width) in blocks::widths(*widths).enumerate() {
                    write!(f, "{}{width}", if at == 0 { " " } else { " in " })?;
                }
                Ok(())
            }
            Self::Direct => f.write_str("direct"),
            Self::DirectSlices => f.write_str("direct in slices"),
            Self::Between => f.write_str("between groups"),
            Self::Permuted(order, flat) => write!(f, "{flat} in {}", order.name()),
            Self::Adapted(adapted) => f.write_str(&adapted.name),
            Self::Hierarchical(levels) => {
                f.write_str(match levels.by_links {
                    true => "NVLink cliques, levels of",
                    false => "levels of",
                })?;
                for (at, tree) in levels.trees.iter().enumerate() {
                    write!(f, "{} {tree:?}", if at == 0 { "" } else { "," })?;
                }
                match levels.across {
                    Across::Tree => Ok(()),
                    Across::Exchange => f.write_str(", exchange across"),
                }
            }
            Self::HostLeaders(levels, from) => {
                write!(f, "{}", Self::Hierarchical(levels.clone()))?;
                write!(f, " with copies on the host from level {from} on")
            }
        }
    }
}

/// Why a plan cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsuitable(pub String);

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsuitable {}

impl Algorithm {
    /// All flat algorithms.
    pub const FLAT: [Self; 15] = [
        Self::Linear,
        Self::Chain,
        Self::KAry(2),
        Self::KAry(4),
        Self::Binomial,
        Self::SplitBinary,
        Self::Dissemination,
        Self::RecursiveDoubling,
        Self::RecursiveHalving,
        Self::Ring,
        Self::Bruck,
        Self::Rabenseifner,
        Self::Pairwise,
        Self::Spread,
        Self::ScatterAllgather,
    ];

    /// All for ranks that share a segment of a host's memory; of blocks, the smallest.
    pub const IN_SEGMENT: [Self; 6] = [
        Self::OnePhase,
        Self::TwoPhases,
        Self::Blocks(0b10),
        Self::Blocks(0b110),
        Self::Direct,
        Self::DirectSlices,
    ];

    /// Whether its flags lie in the ranks' segment.
    pub fn in_segment(&self) -> bool {
        matches!(self, Self::Blocks(_)) || Self::IN_SEGMENT.contains(self)
    }

    /// Whether ranks read plain memory of each other.
    pub fn reads_in_place(&self) -> bool {
        matches!(self, Self::Direct | Self::DirectSlices)
    }

    /// The size of a rank's slot, in vectors (or contributions of a rank), and the number of its
    /// pieces. None for plans without slots.
    pub fn slot(&self, call: &Call) -> Option<(u32, u32)> {
        match self {
            Self::OnePhase => Some((call.slots(), call.slots())),
            Self::TwoPhases => Some((1, call.size)),
            Self::Blocks(_) => Some((1, 1)),
            _ => None,
        }
    }

    /// The association that it keeps for this call; none if it is not for it. For
    /// operations that combine nothing, the strictest.
    pub fn keeps(&self, call: &Call) -> Option<Association> {
        use Association::{Any, Balanced, Ordered};
        use Operation as O;
        let operation = call.operation;
        let between = matches!(self, Self::Between);
        if between != call.first_side.is_some() {
            return None;
        }
        let by = |allowed: &[(O, Association)]| {
            let found = allowed.iter().find(|(o, _)| *o == operation);
            found.map(|(_, keeps)| *keeps)
        };
        let exact = |operations: &[O]| operations.contains(&operation).then_some(Balanced);
        match self {
            Self::Linear => exact(&[
                O::Barrier,
                O::Bcast,
                O::Gather,
                O::Scatter,
                O::Reduce,
                O::NeighborAllgather,
                O::NeighborAlltoall,
            ]),
            // A reduction to rank 0 and an allreduce run from the last rank to the
            // first; to another root the chain is rotated.
            Self::Chain => by(&[
                (O::Bcast, Balanced),
                (O::Reduce, if call.root == 0 { Ordered } else { Any }),
                (O::Allreduce, Ordered),
                (O::Scan, Ordered),
                (O::Exscan, Ordered),
            ]),
            Self::KAry(_) | Self::Postal(_) => by(&[
                (O::Barrier, Balanced),
                (O::Bcast, Balanced),
                (O::Reduce, Any),
                (O::Allreduce, Any),
            ]),
            Self::Binomial if call.varying => None,
            Self::Binomial => exact(&[
                O::Barrier,
                O::Bcast,
                O::Gather,
                O::Scatter,
                O::Reduce,
                O::Allreduce,
            ]),
            Self::SplitBinary => exact(&[O::Bcast]),
            Self::Dissemination => exact(&[O::Barrier]),
            Self::RecursiveDoubling => {
                if operation == O::Allgather && !call.size.is_power_of_two() {
                    return None;
                }
                exact(&[O::Barrier, O::Allreduce, O::Allgather, O::Scan, O::Exscan])
            }
            Self::RecursiveHalving => by(&[(O::ReduceScatter, Any)]),
            Self::Ring => by(&[
                (O::Allgather, Balanced),
                (O::ReduceScatter, Any),
                (O::Allreduce, Any),
            ]),
            Self::Bruck if call.varying && operation == O::Alltoall => None,
            Self::Bruck => exact(&[O::Allgather, O::Alltoall]),
            Self::Rabenseifner => exact(&[O::Reduce, O::Allreduce]),
            Self::Pairwise => exact(&[O::Alltoall, O::ReduceScatter]),
            Self::Spread => exact(&[O::Allgather, O::Alltoall, O::ReduceScatter]),
            Self::OneKernel => exact(&[O::Allreduce]),
            Self::ScatterAllgather => exact(&[O::Bcast]),
            Self::OnePhase if operation.of_neighbors() => {
                in_segment::neighbors::suits(call).then_some(Balanced)
            }
            _ if self.in_segment() && !in_segment::suits(call) => None,
            Self::OnePhase if call.varying && !in_segment::suits_varying(call) => None,
            Self::OnePhase => Some(Balanced),
            Self::Direct | Self::TwoPhases | Self::DirectSlices | Self::Blocks(_)
                if call.varying =>
            {
                None
            }
            Self::Blocks(widths) if !blocks::suits(call, *widths) => None,
            Self::Blocks(_) => exact(&[O::Barrier, O::Bcast, O::Reduce, O::Allreduce]),
            Self::Direct if operation == O::Barrier => None,
            Self::Direct => Some(Balanced),
            Self::TwoPhases | Self::DirectSlices => exact(&[O::Allreduce]),
            Self::Between => exact(&[
                O::Barrier,
                O::Bcast,
                O::Gather,
                O::Scatter,
                O::Allgather,
                O::Alltoall,
                O::Reduce,
                O::Allreduce,
                O::ReduceScatter,
            ]),
            Self::Adapted(adapted) => {
                let (ranks, kept) = match &adapted.shape {
                    Shape::Tree(families) => (
                        families.len(),
                        by(&[
                            (O::Barrier, Balanced),
                            (O::Bcast, Balanced),
                            (O::Reduce, Any),
                            (O::Allreduce, Any),
                        ]),
                    ),
                    Shape::Stages(ranks) => (ranks.len(), exact(&[O::Barrier])),
                };
                let from_root = !operation.rooted() || adapted.root == call.root;
                kept.filter(|_| ranks == call.size as usize && from_root)
            }
            // Operands come in another order, whatever the algorithm does with it.
            Self::Permuted(_, flat) => {
                let gathers = matches!(**flat, Self::Ring) && operation == O::Allgather;
                let suits = matches!(
                    operation,
                    O::Barrier | O::Bcast | O::Reduce | O::Allreduce | O::ReduceScatter
                ) && !matches!(
                    **flat,
                    Self::RecursiveHalving | Self::Pairwise | Self::Spread
                );
                let kept = (suits || gathers).then(|| flat.keeps(call)).flatten()?;
                Some(if operation.reduces() { Any } else { kept })
            }
            Self::Hierarchical(levels) => {
                if operation.rooted() && levels.root() != call.root {
                    return None;
                }
                by(&[
                    (O::Barrier, Balanced),
                    (O::Bcast, Balanced),
                    (O::Reduce, Any),
                    (O::Allreduce, Any),
                ])
            }
            Self::HostLeaders(levels, _) => {
                if operation.rooted() && levels.root() != call.root {
                    return None;
                }
                by(&[(O::Bcast, Balanced), (O::Reduce, Any), (O::Allreduce, Any)])
            }
        }
    }

    /// Pieces into which it cuts a vector.
    fn cut(&self, call: &Call) -> u32 {
        match self {
            Self::Permuted(_, flat) => flat.cut(call),
            Self::SplitBinary => 2,
            Self::ScatterAllgather => call.size,
            Self::Ring if call.operation == Operation::Allreduce => call.size,
            Self::TwoPhases | Self::DirectSlices => call.size,
            Self::Rabenseifner => rabenseifner::cut(call.size),
            Self::Hierarchical(levels) => levels.cut(call.operation),
            _ => 1,
        }
    }

    fn build(&self, b: &mut Builder, all: Group) {
        use Operation as O;
        let call = b.call;
        let rank = b.rank;
        // Both as indices of the group.
        let (root, zero) = (all.index(call.root).unwrap_or(0), 0);
        let family = |tree: Tree, root| tree.of(&all, root, rank);
        let result = b.vector(Buffer::Recv);
        match (self, call.operation) {
            (Self::Permuted(order, flat), _) => flat.build(b, Group::Permuted(order.clone())),
            (Self::Between, _) => between::build(b),
            (Self::OnePhase, _) => in_segment::one_phase(b),
            (Self::TwoPhases, _) => in_segment::two_phases(b),
            (Self::Blocks(widths), _) => blocks::build(b, *widths),
            (Self::Direct, _) => in_segment::direct(b),
            (Self::DirectSlices, _) => in_segment::in_slices(b),
            (Self::Adapted(adapted), _) => match &adapted.shape {
                Shape::Tree(families) => {
                    let top = Group::List([adapted.root].into());
                    hierarchical::over_forest(b, &families[rank as usize], &top);
                }
                Shape::Stages(ranks) => staged::barrier(b, &ranks[rank as usize]),
            },
            (Self::Hierarchical(levels), _) => hierarchical::build(b, levels),
            (Self::HostLeaders(levels, from), _) => {
                host_leaders::build(b, levels, *from as usize);
            }
            (Self::Linear, O::Gather) => linear::gather(b, &all),
            (Self::Linear, O::Scatter) => linear::scatter(b, &all),
            (Self::Linear, O::Reduce) => linear::reduce(b, &all),
            (Self::Linear, O::NeighborAllgather | O::NeighborAlltoall) => linear::neighbors(b),
            (Self::Chain, O::Scan | O::Exscan) => chain::scan(b),
            (Self::Binomial, O::Gather) => {
                binomial::gather(b, &all, root, call.own(rank), Buffer::Recv);
            }
            (Self::Binomial, O::Scatter) => binomial::scatter(b, &all, root),
            (Self::Binomial, O::Reduce) => {
                let place = (rank == call.root).then_some(result);
                let sum = binomial::reduce(b, &all, root, b.input(), place);
                if rank == call.root {
                    b.copy(sum, result);
                }
            }
            (Self::Binomial, O::Allreduce) => {
                let sum = binomial::reduce(b, &all, zero, b.input(), Some(result));
                if rank == all.rank(zero) {
                    b.copy(sum, result);
                }
                tree::bcast(b, &family(Tree::Binomial, zero), result);
            }
            (Self::SplitBinary, _) => split_binary::bcast(b, &all, root),
            (Self::ScatterAllgather, _) => scatter_allgather::bcast(b, &all, root),
            (Self::Dissemination, _) => dissemination::barrier(b, &all),
            (Self::RecursiveDoubling, O::Barrier) => recursive_doubling::barrier(b, &all),
            (Self::RecursiveDoubling, O::Allreduce) => {
                recursive_doubling::allreduce(b, &all, b.input(), result);
            }
            (Self::RecursiveDoubling, O::Allgather) => {
                recursive_doubling::allgather(b, &all, call.own(rank));
            }
            (Self::RecursiveDoubling, _) => recursive_doubling::scan(b),
            (Self::RecursiveHalving, _) => recursive_halving::reduce_scatter(b),
            (Self::Ring, O::Allgather) => ring::allgather(b, &all, call.own(rank)),
            (Self::Ring, O::ReduceScatter) => {
                let input = Region::run(Buffer::Send, 0, call.size);
                let sums = b.scratch(call.size);
                let own = ring::reduce_scatter(b, &all, input, sums);
                b.copy(own, Region::piece(Buffer::Recv, 0));
            }
            (Self::Ring, _) => {
                let own = ring::reduce_scatter(b, &all, b.input(), Buffer::Recv);
                ring::allgather(b, &all, own);
            }
            (Self::Bruck, O::Allgather) => bruck::allgather(b, &all, call.own(rank)),
            (Self::Bruck, _) => bruck::alltoall(b),
            (Self::Rabenseifner, O::Reduce) => {
                rabenseifner::reduce(b, &all, Some(root), call.input(rank));
            }
            (Self::Rabenseifner, _) => rabenseifner::reduce(b, &all, None, call.input(rank)),
            (Self::Pairwise, O::Alltoall) => pairwise::exchange(b, Exchange::Alltoall),
            (Self::Pairwise, _) => pairwise::exchange(b, Exchange::ReduceScatter),
            (Self::OneKernel, _) => spread::allreduce(b),
            (Self::Spread, O::Allgather) => spread::allgather(b, &all, call.own(rank)),
            (Self::Spread, O::Alltoall) => spread::exchange(b, Exchange::Alltoall),
            (Self::Spread, _) => spread::exchange(b, Exchange::ReduceScatter),
            (tree, operation) => {
                let tree = match tree {
                    Self::Chain => Tree::Chain,
                    Self::KAry(k) => Tree::KAry(*k),
                    Self::Binomial => Tree::Binomial,
                    Self::Postal(reach) => Tree::Postal(*reach),
                    _ => Tree::Linear,
                };
                over_tree(b, operation, &family(tree, root), &family(tree, zero));
            }
        }
    }
}

fn over_tree(b: &mut Builder, operation: Operation, rooted: &Family, from_zero: &Family) {
    let result = b.vector(Buffer::Recv);
    match operation {
        Operation::Barrier => tree::barrier(b, from_zero, |_| ()),
        Operation::Bcast => tree::bcast(b, rooted, result),
        Operation::Reduce => {
            let at_root = b.rank == b.call.root;
            let sum = tree::reduce(b, rooted, b.input(), at_root.then_some(result));
            if at_root {
                b.copy(sum, result);
            }
        }
        Operation::Allreduce => {
            let sum = tree::reduce(b, from_zero, b.input(), Some(result));
            if from_zero.parent.is_none() {
                b.copy(sum, result);
            }
            tree::bcast(b, from_zero, result);
        }
        other => unreachable!("{} over a tree", other.name()),
    }
}

/// Segments for which intermediate results have room, if there are more.
pub const SLOTS: u32 = 4;

/// A plan: who does what, made rank by rank.
///
/// ```
/// use osier_collectives::{Algorithm, Call, Operation, Plan, Step, check};
///
/// let call = Call::new(Operation::Bcast, 6).root(2);
/// let plan = Plan::new(call, Algorithm::Binomial, 1)?;
/// assert!(check(&plan).is_ok());
/// let part = plan.part(2); // the root sends to three ranks, the furthest first
/// assert!(matches!(part.steps()[0], Step::Send { to: 0, .. }));
/// # Ok::<(), osier_collectives::Unsuitable>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    call: Call,
    algorithm: Algorithm,
    association: Association,
    segments: u32,
}

impl Plan {
    /// For a call, with this algorithm, in so many segments.
    ///
    /// # Errors
    /// If the algorithm is not for such calls, or does not keep the association
    /// that the call requires.
    pub fn new(call: Call, algorithm: Algorithm, segments: u32) -> Result<Self, Unsuitable> {
        let name = call.operation.name();
        let Some(association) = algorithm.keeps(&call) else {
            return Err(Unsuitable(format!(
                "{algorithm} is no algorithm for this {name}"
            )));
        };
        if call.operation.reduces() && association < call.required {
            return Err(Unsuitable(format!(
                "{name} by {algorithm} keeps association {association:?}, not {:?}",
                call.required
            )));
        }
        if call.operation.of_neighbors() && call.neighbors.is_none() {
            return Err(Unsuitable(format!("{name} without a neighborhood")));
        }
        // A result that shares memory with the input comes when all is read; a
        // barrier has nothing to cut; and where two groups cut a vector differently, it
        // crosses whole.
        let whole = call.shares_memory()
            || matches!(algorithm, Algorithm::Direct | Algorithm::DirectSlices)
            || call.operation == Operation::Barrier
            || algorithm == Algorithm::OnePhase && call.varying && !call.operation.reduces()
            || call.operation == Operation::ReduceScatter && call.first_side.is_some();
        Ok(Self {
            segments: if whole { 1 } else { segments.max(1) },
            call,
            algorithm,
            association,
        })
    }

    /// What is asked.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// By which algorithm.
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The association that it keeps.
    pub fn association(&self) -> Association {
        self.association
    }

    /// Segments per piece.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// One rank's steps: time and memory by their number.
    pub fn part(&self, rank: u32) -> Part {
        let cut = self.algorithm.cut(&self.call);
        let mut b = Builder::new(&self.call, rank, cut, self.segments, SLOTS);
        self.algorithm.build(&mut b, Group::all(self.call.size));
        b.finish()
    }
}
