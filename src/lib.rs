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
//! | room | duty |
//! |---|---|
//! | [`comm`] | ranks, groups, communicators, topologies |
//! | [`p2p`] | send, receive, probe; requests, statuses, views |
//! | [`protocol`] | eager and rendezvous as pure decisions; costs and choice |
//! | [`bootstrap`] | how a process becomes a rank |
//! | [`model`] | what the machine costs, measured |
//! | [`check`] | types, buffers and leaks, where asked for |
//! | [`diagnose`] | what ranks wait for; hangs |
//! | [`config`] | environment variables |
//! | [`trace`] | a timeline of what ranks do |
//! | [`testing`] | ranks as threads of one process |
//! | [`datatype`] | type trees, layouts, pack and unpack (a crate of its own) |
//!
//! `docs/architecture.md` tells how they fit together.

#![deny(unsafe_code)]

pub mod bootstrap;
pub mod comm;
pub mod config;
pub mod measure;
pub mod model;
mod names;
#[allow(unsafe_code, reason = "memory of transfers is named by address")]
pub mod p2p;
pub mod testing;

pub use bootstrap::{Universe, init, run, run_code};
pub use comm::{
    CartTopology, Collective, CommKeyval, Communicator, Comparison, Contribution, Destination,
    DeviceContribution, DistGraphTopology, Edges, ErrorCode, ErrorCodes, ErrorHandler,
    GraphTopology, Group, GroupComparison, IN_PLACE, InPlace, Info, Neighbour, OwnedContribution,
    OwnedDestination, PendingCommunicator, PersistentCollective, PredefinedAttributes, ProcessSets,
    Queues, Raised, RankRange, Resource, ScopedCollective, ScopedPersistentCollective, Session,
    SplitType, Topology, dims_create, hardware_info,
};
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

/// The program of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
