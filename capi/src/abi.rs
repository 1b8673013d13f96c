//! The types of the interface, and its constants from the table.
#![allow(
    missing_docs,
    dead_code,
    reason = "names of the standard, from a table"
)]

pub use std::ffi::{c_char, c_int};

/// A handle: a small number if it is predefined, else one of [`crate::table`].
pub type Handle = usize;
pub type Aint = isize;
pub type Count = i64;

/// `MPI_Status`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CStatus {
    pub source: c_int,
    pub tag: c_int,
    pub error: c_int,
    /// Bytes in two halves, whether it was cancelled, and two that are free.
    pub own: [c_int; 5],
}

include!(concat!(env!("OUT_DIR"), "/constants.rs"));
