//! Numbered, runnable examples; `README.md` lists them with their commands.
//!
//! The small ones are single files in `src/bin`. The others are modules here as well, so that
//! tests run them on ranks that are threads.

pub mod align;
pub mod cannon;
pub mod cli;
pub mod exchange;
pub mod gpu;
pub mod halo;
pub mod hash;
pub mod jacobi;
pub mod picture_file;
pub mod progress;
pub mod sparse;
pub mod variant;
