//! Numbered, runnable examples; `README.md` lists them with their commands.
//!
//! The three small ones are single files in `src/bin`. The main one,
//! `jacobi3d`, is a library as well, so that tests run it on ranks that are
//! threads.

pub mod align;
pub mod cli;
pub mod exchange;
pub mod gpu;
pub mod jacobi;
