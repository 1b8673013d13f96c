//! Cost model: predicted time of plans on a described machine.

mod combining;
mod curve;
mod footprint;
mod formulas;
mod machine;
mod simulate;
mod ways;

pub use curve::{Curve, Piecewise, Point};
pub use formulas::{split_binary_ns, tree_ns};
pub use machine::{Aside, Executor, Link, Machine, OneKernel, Segment, SharedCores, Sizes};
pub(crate) use simulate::play_ahead;
pub use simulate::{Model, Time, simulate, simulate_parts};
