//! 7-point Jacobi for Poisson's equation on a block-decomposed 3-D grid.
//!
//! ```text
//! options -> decomposition -> field --+-> halo: six faces, straight from the array,
//!                     (host, device)  |         of the host or of a device
//!                  or tasks: blocks --+-> kernel: one sweep, or the residual
//!            report <- checks <-------+-> picture of a slice
//! ```
//!
//! Four ways to the same field, which share the kernel and its tiles: exchange, then sweep;
//! the same on virtual ranks; sweep what needs no ghosts beside the exchange, then the rest; a
//! graph of tasks.
//!
//! The right-hand side is zero and the field starts as a discrete eigenmode, a
//! product of three sines. A sweep then multiplies every point by the same
//! `lambda`, so the field after any number of sweeps is known and compared at
//! every point.
//!
//! # Invariants
//! 1. A point's update adds the same numbers in the same order whatever the
//!    decomposition, and starts from its global indices alone. The field is
//!    therefore equal to that of one rank, bit for bit.
//! 2. No rank ever holds more of the field than its own points, twice, and their faces.

mod decomposition;
mod field;
mod font;
mod halo;
mod kernel;
mod layers;
mod mode;
mod options;
mod picture;
mod report;
mod rows;
mod run;
mod sweeps;
mod tasks;
mod unhidden;

pub use decomposition::{Block, Decomposition};
pub use kernel::checksum;
pub use mode::Mode;
pub use options::{By, Factor, Options, Triple};
pub use report::Report;
pub use run::run;
pub use unhidden::Unhidden;

pub use crate::cli::Failure;
