//! The engine below Osier's API: moves messages and runs plans on one rank.
//!
//! Unpublished: programs use the crate `osier`, which names what is public. Each module
//! uses those above it in this table only.
//!
//! | module | duty |
//! |---|---|
//! | [`error`], [`mod@env`], [`site`], [`slab`] | the one error; environment variables; call sites; values by handle |
//! | [`wire`] | active messages of lanes, as bytes |
//! | [`matching`] | posted and unexpected queues |
//! | [`agree`], [`flood`] | agreement about failures; a fact that all learn; pure |
//! | [`protocol`] | eager and rendezvous as pure decisions; costs and choice |
//! | [`diagnose`] | what ranks wait for; hangs |
//! | [`device`] | device memory in messages |
//! | [`view`] | memory and datatype of a transfer |
//! | [`check`] | types, buffers and leaks, where enabled |
//! | [`trace`] | timeline of what a rank does |
//! | [`completion`] | how the end of an operation reaches its waiters |
//! | [`exec`] | collectives in flight: steps, memory, operators |
//! | [`progress`] | lanes, their lock, the only loop that polls |
//! | [`rma`] | parts of windows as a rank reaches them; locks and updates of them |

#![deny(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links, reason = "read with the sources")]
#![allow(
    missing_docs,
    reason = "not published: `pub` is what the crates above need"
)]

pub mod agree;
pub mod check;
pub mod completion;
#[allow(
    unsafe_code,
    reason = "copies to memory that kernels reach, which the driver registers"
)]
pub mod device;
pub mod diagnose;
pub mod env;
pub mod error;
#[allow(unsafe_code, reason = "steps copy and combine between addresses")]
pub mod exec;
pub mod flood;
pub mod matching;
#[allow(
    unsafe_code,
    reason = "a lane copies between addresses and lives behind a lock"
)]
pub mod progress;
pub mod protocol;
#[allow(unsafe_code, reason = "memory of other ranks is used by address")]
pub mod rma;
pub mod site;
pub mod slab;
pub mod trace;
#[allow(unsafe_code, reason = "memory of transfers is named by address")]
pub mod view;
pub mod wire;
