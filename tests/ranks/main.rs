//! The library as its users see it, over every transport, ranks as threads.
//!
//! Nothing here measures time or sleeps to be in time; a watchdog ends a test
//! that hangs (see [`support::on_all`]).

mod agreements;
#[path = "../asked.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod asked;
mod bad_input;
mod blocks;
mod checks;
mod closing;
mod collective_forms;
mod collectives;
mod communicators;
mod costs;
mod datatypes;
mod deaths;
mod foreign_code;
mod futures;
mod handlers;
mod hosts;
mod inline_schedules;
mod intercommunicators;
mod large;
mod leaving;
mod matching;
mod modes;
mod neighborhood_waits;
mod neighborhoods;
mod objects;
mod one_sided;
mod operands;
mod partitioned;
mod persistent;
mod probe;
mod random_graphs;
mod requests;
mod revocation;
mod scopes;
mod sessions;
mod shares;
mod sizes;
mod support;
mod symmetric;
mod task_ends;
mod tasks;
mod threads;
mod topologies;
mod trace;
mod trees;
mod waitsets;
mod window_checks;
mod window_programs;
mod window_schedules;
mod windows;
