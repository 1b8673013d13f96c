//! Point-to-point: send, receive, probe; requests and what they borrow.
//!
//! | you have | use | the memory |
//! |---|---|---|
//! | time to wait | [`Communicator::send`], [`Communicator::recv`] | is borrowed for the call |
//! | several transfers at a time | [`Communicator::scope`] | is borrowed until the scope ends, which completes or revokes |
//! | a future, or a transfer that outlives the function | [`Communicator::isend`], [`Communicator::irecv`] | belongs to the request |
//! | a stream of a device that is to wait instead of you | [`Communicator::on_stream`] | is a device's, and counted |
//!
//! [`Communicator::send`]: crate::Communicator::send
//! [`Communicator::recv`]: crate::Communicator::recv
//! [`Communicator::scope`]: crate::Communicator::scope
//! [`Communicator::isend`]: crate::Communicator::isend
//! [`Communicator::irecv`]: crate::Communicator::irecv
//! [`Communicator::on_stream`]: crate::Communicator::on_stream

mod batch;
mod blocking;
pub(crate) mod buffered;
mod elements;
pub(crate) mod enqueue;
mod exchange;
mod generalized;
mod heap;
mod message;
pub(crate) mod partitioned;
mod persistent;
mod regions;
mod request;
mod scope;
mod started;
mod status;
mod transfer;
mod waits;
mod waitset;

#[doc(hidden)]
pub use batch::Batch;
pub(crate) use buffered::buffer_calls;
pub use buffered::{BSEND_OVERHEAD, FlushRequest};
#[doc(hidden)]
pub use elements::Elements;
pub use enqueue::{Enqueued, OnStream};
pub use exchange::{SendRecv, SendRecvReplace};
pub use generalized::{Callbacks, Completer, GeneralizedRequest};
pub use heap::HeapBuffer;
pub use message::Message;
pub(crate) use osier_engine::progress::attached::Pool;
pub use partitioned::{
    DevicePartitioned, DevicePartitionedRecv, DevicePartitionedSend, Partitioned, PartitionedRecv,
    PartitionedSend, Partitions, ScopedSlice,
};
pub use persistent::{Persistent, ScopedPersistent, Startable, start_all};
pub use regions::{Region, RegionSet, Regions};
pub use request::Request;
pub(crate) use scope::ScopedRuns;
pub use scope::{Scope, ScopedRequest};
#[doc(hidden)]
pub use started::Begun;
pub use status::Status;
pub(crate) use transfer::is_driven;
pub(crate) use waits::sealed;
pub use waits::{
    Waitable, Watched, first_over, status_all, status_any, status_some, test_all, test_any,
    test_some, wait_all, wait_any, wait_some,
};
pub use waitset::{AnyRequest, Member, WaitSet};
