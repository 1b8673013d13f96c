//! How long plans take on a machine that is described by numbers.

mod formulas;
mod machine;
mod simulate;

pub use formulas::{split_binary_ns, tree_ns};
pub use machine::{Link, Machine, Sizes};
pub use simulate::{Model, Time, simulate, simulate_parts};
