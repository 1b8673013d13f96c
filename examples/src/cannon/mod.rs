//! Dense matrix product C = A B by Cannon's algorithm, in 2-D and 2.5-D.
//!
//! ```text
//! A, B and C are cut into q x q blocks, over c layers (c = 1: Cannon, 2-D).
//!
//! step s of (i, j, layer):  C_ij += A_ik B_kj,  k = i + j + s mod q
//! layer l does the steps from l q / c to (l + 1) q / c
//!
//! layer 0 -- A, B to where each layer needs them first --> layers 0 .. c
//! each layer:  multiply;  A to (i, j - 1), B to (i - 1, j);  again
//! layers 1 .. c -- C --> layer 0, which adds them in the order of the layers
//! ```
//!
//! Three ways to the same product, which share the multiplication of blocks: shift, then
//! multiply; multiply beside the shift of the next blocks; a graph with a task for each
//! (i, j, layer), which any number of ranks can run.
//!
//! # Invariants
//! 1. C_ij adds its products in an order that blocks, layers and steps alone determine: it
//!    has the same bits for each variant and every number of ranks and workers. The check
//!    does the same additions without messages, and compares all bits.
//! 2. Entries of A and B follow from their indices and a seed; a rank makes its own blocks.
//!
//! # Sources
//! L. E. Cannon, "A cellular computer to implement the Kalman filter algorithm",
//! dissertation, Montana State University, 1969. E. Solomonik, J. Demmel,
//! "Communication-optimal parallel 2.5D matrix multiplication and LU factorization
//! algorithms", Euro-Par 2011, section 3: here layer 0 sends its blocks straight to where the
//! first step of each layer needs them, where the paper broadcasts and then shifts; and
//! the layers need not divide the steps evenly.

mod check;
mod kernel;
mod matrix;
mod messages;
mod options;
mod plan;
mod report;
mod run;
mod tasks;

pub use check::{Checked, product_by_blocks};
pub use matrix::{Factor, entry};
pub use options::Options;
pub use plan::Plan;
pub use report::Report;
pub use run::run;
