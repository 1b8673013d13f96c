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
//! | you look for | see |
//! |---|---|
//! | joining a job; ranks as threads | [`init`], [`run`], [`Universe`] |
//! | send, receive, collectives | [`Communicator`], [`Scope`], [`Request`] |
//! | data that is not contiguous | [`Type`], [`View`], [`ViewMut`], [`derive@Datatype`], [`datatype`] |
//! | several requests, sets of them | [`requests`], [`persistent`], [`partitioned`] |
//! | grids and graphs of ranks | [`topology`] |
//! | parts and copies of communicators | [`communicators`], [`Group`], [`Session`] |
//! | memory that requests own | [`buffers`] |
//! | memory that peers read in place | [`Universe::alloc`], [`SharedAlloc`] |
//! | reductions by functions of yours | [`operators`] |
//! | GPUs | [`devices`] |
//! | graphs of tasks | [`task`] |
//! | memory that others read and write | [`rma`] |
//! | errors and their handlers | [`Error`], [`errors`] |
//! | attributes and info | [`attributes`] |
//! | tests of your own | [`testing::ranks`] |
//! | procedures of MPI | [`mpi`] |
//!
//! # Who has the memory
//!
//! | you have | use | the memory |
//! |---|---|---|
//! | time to wait | [`Communicator::send`], [`Communicator::recv`] | is borrowed for the call |
//! | several transfers at a time | [`Communicator::scope`] | is borrowed until the scope ends, which completes or revokes |
//! | a future, or a transfer that outlives the function | [`Communicator::isend`], [`Communicator::irecv`] | belongs to the request |
//! | a stream of a device that is to wait instead of you | [`Communicator::on_stream`] | is a device's, and counted |
//!
//! Memory of a device is sent and received like a slice, with any layout. It is handed over
//! together with the ready event of its bytes: a send packs it behind that event, a receive
//! unpacks into it behind that event and is over when the bytes lie there.
//!
//! ```no_run
//! use osier::Type;
//! use osier::devices::{Context, DeviceSlice, DeviceView, Stream};
//!
//! # fn main() -> osier::Result<()> {
//! let universe = osier::init()?;
//! let (comm, n) = (universe.world(), 1024);
//! let stream = Stream::new(&Context::new(0)?)?;
//! let field = DeviceSlice::<f64>::new(&stream, n * n)?.into_inner();
//! // Kernels of `stream` fill the field; then its first column goes to rank 1.
//! let column = Type::vector(n, 1, n as isize, &Type::of::<f64>())?.commit()?;
//! let column = DeviceView::new(&field, 0, &column, 1)?;
//! match comm.rank() {
//!     0 => comm.send(&column.after_stream(&stream), 1, 0)?,
//!     1 => {
//!         comm.recv(&mut column.after_stream(&stream), 0, 0)?;
//!     }
//!     _ => {}
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is not here
//!
//! Costs, plans, protocols, wire, timelines and pages of running jobs belong to the crates
//! below, which are not published; `osier explain`, `info` and `ps` show them.
//!
//! # Modules of the source
//!
//! From the lowest to the highest; each uses those above it in this table only, and the
//! engine, a crate below this one:
//!
//! | module | duty |
//! |---|---|
//! | `names` | ranks, tags and wildcards as arguments |
//! | `model` | costs of the machine, who lies where |
//! | `choice` | which plan a collective call takes |
//! | `comm` | groups, communicators, topologies, sessions |
//! | `p2p` | send, receive, probe; requests, statuses |
//! | `config` | environment variables |
//! | `coll` | collective calls |
//! | `create` | communicators made from others |
//! | `one_sided` | windows, symmetric heaps |
//! | `tasks` | task graphs on a communicator |
//! | `bootstrap` | how a process becomes a rank |
//! | `measure` | measurements of the machine |
//! | `testing` | ranks as threads of one process |
//! | `internals` | what the test bed reaches into; no API |
//!
//! `docs/architecture.md` tells how they fit together.

#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod bootstrap;
mod choice;
mod coll;
mod comm;
#[doc(hidden)]
pub mod config;
mod create;
#[doc(hidden)]
pub mod internals;
#[doc(hidden)]
pub mod measure;
#[doc(hidden)]
pub mod model;
mod names;
#[allow(unsafe_code, reason = "memory of windows is named by address")]
mod one_sided;
#[allow(unsafe_code, reason = "memory of transfers is named by address")]
mod p2p;
mod tasks;
pub mod testing;

pub use bootstrap::{Universe, init, run, run_code};
pub use coll::IN_PLACE;
pub use comm::{Communicator, Group, Session};
pub use names::{ANY_SOURCE, ANY_TAG, PROC_NULL, ROOT, Rank, Source, Tag, TagSelector};
#[doc(inline)]
pub use osier_datatype::{Datatype, Layout, Operator as Op, Order, Type};
#[doc(inline)]
pub use osier_derive::Datatype;
#[doc(inline)]
pub use osier_engine::error::{Error, ErrorKind, Result};
#[doc(inline)]
pub use osier_engine::view::{Buffer, BufferMut, View, ViewMut};
#[doc(inline)]
pub use osier_transports::shm::SharedAlloc;
#[doc(hidden)]
pub use p2p::Elements;
pub use p2p::{Message, Request, Scope, Status};

/// What most programs import: `use osier::prelude::*;`.
///
/// ```
/// use osier::prelude::*;
///
/// osier::testing::ranks(2, |comm| {
///     let other = 1 - comm.rank();
///     let mut got = [0u32];
///     comm.sendrecv(&[comm.rank() as u32], other, 0, &mut got, ANY_SOURCE, ANY_TAG)?;
///     assert_eq!(got, [other as u32]);
///     Ok::<(), Error>(())
/// });
/// ```
pub mod prelude {
    #[doc(no_inline)]
    pub use crate::{
        ANY_SOURCE, ANY_TAG, Buffer, BufferMut, Communicator, Datatype, Error, ErrorKind, IN_PLACE,
        Layout, Op, Order, PROC_NULL, Rank, Request, Result, Scope, Status, Tag, Type, Universe,
        View, ViewMut,
    };
}

/// Values that programs hang on objects: attributes and info.
pub mod attributes {
    pub use crate::comm::{CommKeyval, Info, PredefinedAttributes};
    #[doc(inline)]
    pub use osier_datatype::{AttributeError, AttributeFailure, Attributes, Keyval};
}

/// Memory in other forms than slices and [`View`]s: memory that requests own,
/// memory that peers read in place, several regions in one message.
pub mod buffers {
    pub use crate::p2p::{HeapBuffer, Region, RegionSet, Regions};
    #[doc(inline)]
    pub use osier_engine::view::{OwnedBuffer, OwnedBufferMut};
}

/// Collective calls in flight, and what their buffers may be. The calls are methods of
/// [`Communicator`].
pub mod collectives {
    pub use crate::coll::{
        Collective, Contribution, Destination, DeviceContribution, InPlace, OwnedContribution,
        OwnedDestination, ScopedCollective,
    };
}

/// How communicators and groups are made from others, compared and looked into.
pub mod communicators {
    pub use crate::comm::{
        Comparison, GroupComparison, GroupError, ProcessSets, Queues, RankRange,
    };
    pub use crate::create::{
        Agreement, PendingAgreement, PendingCommunicator, Resource, SplitType, hardware_info,
    };
}

/// Datatypes in full: predefined ones, constructors and what can be asked of them.
/// [`Type`] builds them, [`Layout`] is their committed form.
pub mod datatype {
    #[doc(hidden)]
    pub use osier_datatype::derive_support;
    #[doc(inline)]
    pub use osier_datatype::{
        Basic, BasicKind, Blocks, Class, Combiner, Constructor, DarrayDimension, Distribution,
        Pair, Signature, SignatureDigest, TypeClass, TypeError, address, bottom,
    };
    #[doc(no_inline)]
    pub use osier_datatype::{Datatype, Layout, Order, Type};
}

/// Memory of GPUs, streams, events, graphs and kernels, and communication on streams.
pub mod devices {
    pub use crate::p2p::{Enqueued, OnStream};
    #[doc(inline)]
    pub use osier_engine::view::on_device::DeviceBuffer;
    #[doc(inline)]
    pub use osier_kernels::{
        After, Callback, Context, DEVICE_HEADER, DeviceError, DeviceId, DeviceInfo, DeviceSlice,
        DeviceView, Event, Graph, Held, Kernel, Kind, Link, Memory, Ordered, Pinned, Space, Stream,
        StreamSemaphore, UserKernel, Valve, copy, devices,
    };
}

/// What happens on errors: handlers of communicators, error codes of a program, and how a
/// job of threads fails.
pub mod errors {
    pub use crate::bootstrap::Failure;
    pub use crate::comm::{ErrorCodes, ErrorHandler, Raised};
    #[doc(inline)]
    pub use osier_engine::error::ErrorCode;
}

/// Operators of reductions beyond the predefined ones of [`Op`].
pub mod operators {
    #[doc(inline)]
    pub use osier_engine::exec::operator::{
        Function, PackedFunction, Reduction, function, packed_function,
    };
    #[doc(inline)]
    pub use osier_engine::exec::reduce_local::reduce_local;
}

/// Partitioned transfers: a message whose parts become ready one by one.
pub mod partitioned {
    pub use crate::p2p::{
        DevicePartitioned, DevicePartitionedRecv, DevicePartitionedSend, Partitioned,
        PartitionedRecv, PartitionedSend, Partitions, ScopedSlice,
    };
}

/// Transfers and collective calls that are described once and started many times.
pub mod persistent {
    pub use crate::coll::{PersistentCollective, ScopedPersistentCollective};
    pub use crate::p2p::{Persistent, ScopedPersistent, Startable, start_all};
}

/// Requests beyond [`Request`]: waiting for several, sets, exchanges,
/// requests of the program's own, buffered sends.
pub mod requests {
    pub use crate::p2p::{
        AnyRequest, BSEND_OVERHEAD, Callbacks, Completer, FlushRequest, GeneralizedRequest, Member,
        ScopedRequest, SendRecv, SendRecvReplace, WaitSet, Waitable, Watched, first_over,
        status_all, status_any, status_some, test_all, test_any, test_some, wait_all, wait_any,
        wait_some,
    };
    #[doc(hidden)]
    pub use crate::p2p::{Batch, Begun};
}

/// Windows: memory of each rank that others read, write and update without its help.
/// [`rma::Window`] has an example.
pub mod rma {
    pub use crate::one_sided::{
        AccessRequest, Change, DeviceTeam, Epoch, Locked, LockedAll, Posted, SignalOp, Started,
        Symmetric, SymmetricHeap, Team, Updates, Way, Window,
    };
    #[doc(hidden)]
    pub use crate::one_sided::{ByAddress, Flavor, RawWindow, target_of};
}

/// Graphs of tasks: families of tasks over index spaces, edges between their ports, firing
/// rules; run by workers on the ranks of a communicator. [`task::Graph`] has an example. And
/// virtual ranks: more ranks than threads ([`task::ranks`]).
pub mod task {
    pub use crate::bootstrap::{give_turn, ranks, ranks_async, run_ranks, run_ranks_code};
    pub use crate::tasks::{Graph, Node, NodePorts, Run, run_together};
    #[doc(inline)]
    pub use osier_tasks::{
        child::{Argument, Child, LocalGraph},
        context::{Context, Received},
        describe::{Description, Edges, Event, Family, In, Out},
        event::Signal,
        layout,
        placement::Placement,
        report::{PeerCounts, ProgressThread, Report, RunSettings, Volume, hidden},
        rule::Rule,
        space::{Space, SpaceError},
        task::{Fire, Next, Task, TaskError},
        victims::Distance,
        worker::Counts,
    };
}

/// Grids and graphs of ranks.
pub mod topology {
    pub use crate::comm::{
        CartError, CartTopology, DistGraphTopology, Edges, GraphTopology, Neighbor, Topology,
        dims_create,
    };
}

pub mod mpi {
    #![doc = include_str!("../docs/mpi-chapters.md")]
    #![allow(unused_imports, reason = "names of links")]
    use crate::attributes::*;
    use crate::buffers::*;
    use crate::collectives::*;
    use crate::communicators::*;
    use crate::datatype::*;
    use crate::devices::*;
    use crate::errors::*;
    use crate::operators::*;
    use crate::partitioned::*;
    use crate::persistent::*;
    use crate::requests::*;
    use crate::rma::*;
    use crate::topology::*;
    use crate::*;
}

/// The programs of the README and of the pages on running, tasks and virtual ranks are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/one-sided.md")]
#[doc = include_str!("../docs/running.md")]
#[doc = include_str!("../docs/tasks.md")]
#[doc = include_str!("../docs/virtual-ranks.md")]
struct Readme;
