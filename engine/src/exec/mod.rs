//! The executor: plans as steps with dependencies.
//!
//! ```text
//! Graph, Actions  -> Program      one rank's part of a plan, shared and kept
//! Program, memory -> Run          state of one collective in flight
//! Schedule                        which step may begin: counts and a queue
//! step                            rules of a step, for the executor and inline schedules
//! fused                           receives that combine
//! executor                        runs in flight: steps become operations of a lane
//! in_segment                      steps of ranks that share a segment: flags and peers' memory
//! cells           contributions of different lengths there
//! inline                          short plans, run within a blocking call
//! inbox                           where ranks write for reductions in one kernel each
//! one_kernel                      reductions that are one kernel of each rank
//! ```
//!
//! Nothing here waits. The executor is a field of the lane that its messages go through,
//! which it sees as a narrow driver ([`executor::Driver`]), and is advanced by every thread
//! that polls ([`crate::progress`]); so any call of the program advances runs. Nothing
//! here knows collectives, but for [`lower`], which makes programs of plans.
//!
//! # Invariants
//! 1. A step begins once, after all that it waits for, and ends once.
//! 2. A run ends: when all its steps have ended, or, if one fails, when none of its
//!    operations uses memory any more. Then every rank that waits for a message of it
//!    has got an error.
//! 3. Starting a run of a program that was run before allocates nothing, unless its
//!    messages have gaps or lie in several pieces.

pub mod cells;
pub mod executor;
pub mod foreign;
pub mod fused;
pub mod graph;
pub mod in_segment;
pub mod inbox;
pub mod inline;
pub mod lower;
pub mod memory;
pub mod on_device;
pub mod one_kernel;
pub mod operator;
pub mod program;
pub mod reduce_local;
pub mod run;
pub mod short;
pub mod step;
