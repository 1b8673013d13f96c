//! Sparse LU factorization with static pivots over supernodes.
//!
//! ```text
//! options -> load -> read (Harwell-Boeing, Matrix Market), or grid
//!                      |
//!                   analysis: matching, ordering, symbolic
//!                      |
//!                   factor: sequential, synchronous, overlapped, graph, with one kernel
//!                      |
//!            report <- solve, refinement
//! ```
//!
//! # Invariants
//! 1. Factors have the same bits however they are computed, on any number of ranks and
//!    workers.
//!
//! # Sources
//! X. Li, J. Demmel, "SuperLU_DIST: A Scalable Distributed-Memory Sparse Direct Solver for
//! Unsymmetric Linear Systems", ACM TOMS 29(2), 2003. Here columns are dealt to ranks, not
//! blocks, and the pattern is made symmetric.

pub mod analysis;
pub mod factor;
pub mod grid;
mod load;
pub mod matrix;
pub mod meter;
mod options;
mod picture;
pub mod read;
mod report;
mod run;
pub mod solve;

pub use crate::cli::Failure;
pub use options::{By, Options, Order};
pub use report::Report;
pub use run::run;
