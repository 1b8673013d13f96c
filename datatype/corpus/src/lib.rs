//! Layouts that real programs exchange, as data; random types; their spelling
//! as text. For tests and benchmarks: no library crate depends on it.
//!
//! | module | duty |
//! |---|---|
//! | `entry` | one layout: tree, count, facts to check against |
//! | `generator` | rules for the long lists of the data |
//! | `random` | types drawn from a seed, and smaller types like a given one |
//! | `shapes` | what benchmarks measure: plain, random, the corpus |
//! | `spelling` | a type as text that a C program reads |
//!
//! `data/corpus.json` holds the 90 entries; `data/README.md` says where they
//! come from and what the fields mean.

mod entry;
mod generator;
pub mod random;
pub mod shapes;
pub mod spelling;

pub use entry::{Entry, Facts, entries};
