//! Needleman-Wunsch: the best global alignment of two sequences, with the matrix filled by
//! blocks in four ways.
//!
//! ```text
//! fasta, mutation -> input -> matrix <-- kernel <- scoring
//!                               ^ |
//!   ring: synchronous, overlapped | traceback -> alignment -> report
//!   block_graph, panel_graph -----+
//! ```
//!
//! The first sequence runs down the rows, the second along the columns. A block needs the
//! borders of the blocks at its left and above; the matrix itself is nowhere.
//!
//! # Invariants
//! 1. A cell's value depends on the sequences and scores alone, and ties of the alignment are
//!    broken by a fixed order. Score and alignment are therefore those of
//!    [`reference`](mod@reference) for any block, variant, number of ranks and of workers.
//! 2. Memory of all ranks: two bytes for each row or column of each block (none with
//!    `--score-only`), the sequences at each rank, and one block while the alignment is found.
//!
//! # Sources
//! P. Cicotti, S. Baden, "Latency hiding and performance tuning with graph-based execution",
//! 2011, section 3.2: the four variants and the priorities.

pub mod alignment;
mod block_graph;
pub mod fasta;
mod input;
pub mod kernel;
mod matrix;
pub mod mutation;
mod options;
mod overlapped;
pub mod panel_graph;
mod progress;
pub mod reference;
mod report;
mod ring;
mod run;
pub mod scoring;
mod synchronous;
mod tiling;
mod traceback;

pub use alignment::Alignment;
pub use matrix::Matrix;
pub use options::{Options, Variant};
pub use progress::Progress;
pub use report::Report;
pub use run::{Failure, run};
pub use scoring::Scoring;
pub use tiling::{Deal, Tiling};
