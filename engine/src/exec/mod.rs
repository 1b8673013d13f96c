//! The executor: steps with dependencies, run as operations of a lane.
//!
//! ```text
//! Graph, Actions  -> Program      what happens, shared and kept
//! Program, memory -> Run          one time that it happens
//! Schedule                        which step may begin: counts and a queue
//! lane                            begins steps, hears of their ends, begins others
//! Straight                        a short program in one row, which a call runs itself
//! ```
//!
//! Nothing here waits. A run belongs to the lane that its messages go through, and is
//! advanced there by whoever polls ([`crate::progress`]); so runs go on whatever call
//! the program is in. Nothing here knows what a collective is, but for [`lower`],
//! which makes programs of plans.
//!
//! # Invariants
//! 1. A step begins once, after all that it waits for, and ends once.
//! 2. A run ends: when all its steps have ended, or, if one fails, when none of its
//!    operations uses memory any more. Then every rank that waits for a message of it
//!    has been told.
//! 3. Starting a run of a program that was run before allocates nothing, unless its
//!    messages have gaps or lie in several pieces.

pub mod graph;
pub mod lower;
pub mod memory;
pub mod on_device;
pub mod operator;
pub mod program;
pub mod reduce_local;
pub mod run;
pub mod straight;
