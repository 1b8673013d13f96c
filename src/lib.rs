//! Osier: message passing for ranks whose data is rarely contiguous.
//!
//! A program joins its job, and its ranks exchange messages:
//!
//! ```
//! let universe = osier::init()?;
//! let world = universe.world();
//! println!("rank {} of {}", world.rank(), world.size());
//! # Ok::<(), osier::Error>(())
//! ```
//!
//! Start it with `osier run -n 4 -- program`; without the launcher it is a job
//! of one rank.
//!
//! Modules, from the lowest to the highest; each uses those above it in this table only,
//! and the engine, a crate below this one:
//!
//! | module | duty |
//! |---|---|
//! | `names` | ranks, tags and wildcards as arguments |
//! | [`model`] | costs of the machine, who lies where |
//! | `choice` | which plan a collective call takes |
//! | [`comm`] | groups, communicators, topologies, sessions |
//! | [`p2p`] | send, receive, probe; requests, statuses |
//! | [`config`] | environment variables |
//! | `coll` | collective calls |
//! | `create` | communicators made from others |
//! | [`bootstrap`] | how a process becomes a rank |
//! | [`measure`] | measurements of the machine |
//! | [`testing`] | ranks as threads of one process |
//! | `internals` | what the test bed reaches into; no API |
//!
//! Of the engine: [`protocol`] (eager and rendezvous as pure decisions; costs and choice),
//! [`check`] (types, buffers and leaks, where enabled), [`diagnose`] (what ranks wait for;
//! hangs), [`trace`] (a timeline of what ranks do). [`datatype`] has type trees, layouts,
//! pack and unpack.
//!
//! `docs/architecture.md` tells how they fit together.

#![deny(unsafe_code)]

pub mod bootstrap;
mod choice;
mod coll;
pub mod comm;
pub mod config;
mod create;
#[doc(hidden)]
pub mod internals;
pub mod measure;
pub mod model;
mod names;
#[allow(unsafe_code, reason = "memory of transfers is named by address")]
pub mod p2p;
pub mod testing;

pub use bootstrap::{Universe, init, run, run_code};
pub use coll::{
    Collective, Contribution, Destination, DeviceContribution, IN_PLACE, InPlace,
    OwnedContribution, OwnedDestination, PersistentCollective, ScopedCollective,
    ScopedPersistentCollective,
};
pub use comm::{
    CartTopology, CommKeyval, Communicator, Comparison, DistGraphTopology, Edges, ErrorCode,
    ErrorCodes, ErrorHandler, GraphTopology, Group, GroupComparison, Info, Neighbor,
    PredefinedAttributes, ProcessSets, Queues, Raised, RankRange, Session, Topology, dims_create,
};
pub use create::{PendingCommunicator, Resource, SplitType, hardware_info};
/// Plans of collectives, and predictions of their time.
pub use osier_collectives as plans;
pub use osier_datatype as datatype;
pub use osier_datatype::Operator as Op;
pub use osier_datatype::{
    AttributeError, AttributeFailure, Attributes, Basic, Combiner, Constructor, DarrayDimension,
    Datatype, Distribution, Keyval, Layout, Order, Pair, Type, TypeClass,
};
pub use osier_derive::Datatype;
pub use osier_engine::error::{Error, ErrorKind, Result};
pub use osier_engine::exec::operator::{
    Function, PackedFunction, Reduction, function, packed_function,
};
pub use osier_engine::exec::reduce_local::reduce_local;
/// What is checked, what ranks wait for, which protocol moves a message, timelines.
pub use osier_engine::{check, diagnose, protocol, trace};
/// Devices: memory, streams, events, copies, kernels.
pub use osier_kernels as devices;
/// What ranks talk over; for tools and tests.
pub use osier_transports as transports;
#[doc(hidden)]
pub use p2p::Elements;
pub use p2p::{
    ANY_SOURCE, ANY_TAG, AnyRequest, BSEND_OVERHEAD, Buffer, BufferMut, Callbacks, Completer,
    DeviceBuffer, DevicePartitioned, DevicePartitionedRecv, DevicePartitionedSend, Enqueued,
    FlushRequest, GeneralizedRequest, HeapBuffer, Member, Message, OnStream, OwnedBuffer,
    OwnedBufferMut, PROC_NULL, Partitioned, PartitionedRecv, PartitionedSend, Partitions,
    Persistent, ROOT, Rank, Region, Regions, Request, Scope, ScopedPersistent, ScopedRequest,
    ScopedSlice, SendRecv, SendRecvReplace, Source, Startable, Status, Tag, TagSelector, View,
    ViewMut, WaitSet, Waitable, Watched, first_over, start_all, status_all, status_any,
    status_some, test_all, test_any, test_some, wait_all, wait_any, wait_some,
};

#[doc = include_str!("../docs/mpi-chapters.md")]
pub mod mpi {}

/// The programs of the README and of the page on running are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/running.md")]
struct Readme;
