//! `libmpi_abi.so.1`: the standard C interface of MPI 5.0 on Osier.
//!
//! A thin layer: each function turns handles into objects of the library, calls it, and
//! turns its result into a code. No semantics live here.
//!
//! ```text
//! C program -> MPI_X or PMPI_X      `mpi!` makes both of one body
//!              call                 an error goes to its handler; a panic is caught, or ends
//!                                   the process (in the few functions that are `hot`)
//!              handles -> objects   table.rs: index and generation, or a small number;
//!                                   complete.rs: requests that are complete, without objects
//!              osier
//! ```
//!
//! # Invariants
//! 1. All state of the process lives here (`state.rs`); the library has none.
//! 2. No panic crosses into C.
//! 3. A handle is checked before its object is used: null, freed and foreign ones give an
//!    error class. As MPI demands, no thread frees an object that another one uses.
//! 4. Functions of ours call each other by paths of Rust, never by exported names, which
//!    tools may interpose.
//!
//! # Sources
//! MPI 5.0; chapter 20 for the binary interface. `abi/` holds its facts as tables.

#![recursion_limit = "512"]

mod abi;
mod alltoallw;
mod attributes;
mod batch;
mod buffers;
mod call;
mod callers;
mod collectives;
mod comms;
mod complete;
mod control;
mod environment;
mod epochs;
mod errors;
mod fail;
mod faults;
mod groups;
mod held;
mod info;
mod integers;
mod intercomms;
mod leaks;
mod mapped;
mod memory;
mod messages;
mod missing;
mod neighbor_collectives;
mod objects;
mod on_host;
mod one_sided;
mod ops;
mod p2p;
mod pack;
mod partitioned;
mod performance;
mod persistent;
mod sessions;
mod state;
mod status;
mod table;
mod threads;
mod tool;
mod topologies;
mod type_contents;
mod type_queries;
mod types;
mod vector_collectives;
mod waits;
mod windows;
mod work;
