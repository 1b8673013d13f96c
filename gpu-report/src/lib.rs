//! Tests and benchmarks on a machine with a GPU: what is run, within which time, and
//! what is written down.
//!
//! ```text
//! plan ──> run ──> Report (json, text, archive; rewritten after every step)
//!                    └──> summary ──> table of figures, bars, peers
//! ```
//!
//! | module | duty |
//! |---|---|
//! | [`record`] | one measured value, as every benchmark and peer writes it |
//! | [`report`] | steps, facts and records of a run; its JSON and text |
//! | [`summary`] | figures beside their bars, the best peer and the roofline |
//! | `plan` | the steps of each part, and how long each may take |
//! | `run` | runs them one by one, each within its limit |
//! | `archive` | folders as one compressed file, and back |
//!
//! The last three need the feature `runner`.

#[cfg(feature = "runner")]
pub mod archive;
#[cfg(feature = "runner")]
pub mod plan;
pub mod record;
pub mod report;
#[cfg(feature = "runner")]
pub mod run;
pub mod summary;
