//! Collectives as plans: pure planning, checking and prediction.
//!
//! ```text
//! Call x Algorithm -> Plan -> Part of each rank -> (an executor, elsewhere)
//!                      |----> check: is it right?
//!                      '----> cost: how long will it take?
//! ```
//!
//! | file | what |
//! |---|---|
//! | `call.rs` | what is asked, and what its result is |
//! | `neighbors.rs` | who sends to whom, on a neighborhood |
//! | `plan.rs` | steps, dependencies, buffers |
//! | `builder.rs`, `tracks.rs` | dependencies from what steps read and write |
//! | `group.rs`, `balanced.rs` | ranks in an order; the association of sums |
//! | `algorithms/` | one file each, under textbook names |
//! | `check/` | symbolic execution |
//! | `cost/` | plans played in virtual time; closed formulas |
//! | `choose.rs`, `search.rs`, `rehearsal.rs` | the lower envelope of costs; of many ranks by way of few |
//! | `states.rs` | the same of a machine that was seen in several states: least regret |
//! | `device_links.rs` | links between pairs of devices, and orders along them |
//! | `topology.rs`, `picture.rs` | where ranks are; pictures as text and SVG |
//! | `synthesis/` | plans from measured costs between pairs |
//!
//! # Invariants
//! Nothing here knows a transport, a clock, a thread or memory. The same arguments
//! give the same plan on every rank.

#![forbid(unsafe_code)]

mod algorithms;
pub mod balanced;
mod builder;
mod call;
mod check;
mod choose;
mod cost;
mod device_links;
mod group;
mod neighbors;
mod picture;
mod plan;
mod rehearsal;
mod search;
mod states;
mod synthesis;
mod topology;
mod tracks;

pub use algorithms::{
    Across, Algorithm, Family, Hierarchy, Plan, SLOTS, Tree, Unsuitable, readers_of_cell,
};
pub use builder::Builder;
pub use call::{Association, Call, Expected, Operation};
pub use check::{Fault, Report, check, check_parts};
pub use choose::{Candidate, Choice, Envelope, Range, candidates, choose};
pub use cost::{
    Aside, Curve, Executor, Link, Machine, Model, OneKernel, Piecewise, Point, Segment,
    SharedCores, Sizes, Time, simulate, simulate_parts, split_binary_ns, tree_ns,
};
pub use device_links::{DeviceLink, DeviceLinks, Joined};
pub use group::{Group, Permutation};
pub use neighbors::{CellOf, Neighbors, cell_at, occurrence};
pub use picture::{Device, MOST_RANKS, messages, svg};
pub use plan::{Buffer, Dep, Lengths, Operand, Part, Region, Scratch, Step};
pub use states::choose_for_all;
pub use synthesis::{
    Adapted, Cluster, Matrix, Shape, Signal, Stages, adapted_barrier, adapted_tree, cluster,
    clusters, earliest_completion,
};
pub use topology::{Topology, draw_tree, matrix};
