//! Point-to-point: send, receive, probe; requests and what they borrow.
//!
//! | you have | use | the memory |
//! |---|---|---|
//! | time to wait | [`Communicator::send`], [`Communicator::recv`] | is borrowed for the call |
//! | several transfers at a time | [`Communicator::scope`] | is borrowed until the scope ends, which completes or revokes |
//! | a future, or a transfer that outlives the function | [`Communicator::isend`], [`Communicator::irecv`] | belongs to the request |
//!
//! [`Communicator::send`]: crate::Communicator::send
//! [`Communicator::recv`]: crate::Communicator::recv
//! [`Communicator::scope`]: crate::Communicator::scope
//! [`Communicator::isend`]: crate::Communicator::isend
//! [`Communicator::irecv`]: crate::Communicator::irecv

mod blocking;
pub(crate) mod buffered;
mod device;
mod exchange;
mod generalized;
mod heap;
mod message;
mod names;
pub(crate) mod partitioned;
mod persistent;
mod regions;
mod request;
mod scope;
mod status;
mod transfer;
pub(crate) mod view;
mod waits;
mod waitset;

pub use buffered::{BSEND_OVERHEAD, FlushRequest};
pub use device::DeviceBuffer;
pub use exchange::{SendRecv, SendRecvReplace};
pub use generalized::{Callbacks, Completer, GeneralizedRequest};
pub use heap::HeapBuffer;
pub use message::Message;
pub use names::{ANY_SOURCE, ANY_TAG, PROC_NULL, ROOT, Rank, Source, Tag, TagSelector};
pub use partitioned::{Partitioned, PartitionedRecv, PartitionedSend, Partitions, ScopedSlice};
pub use persistent::{Persistent, ScopedPersistent, Startable, start_all};
pub use regions::{Region, RegionSet, Regions};
pub use request::Request;
pub use scope::{Scope, ScopedRequest};
pub use status::Status;
pub use view::{Buffer, BufferMut, OwnedBuffer, OwnedBufferMut, View, ViewMut};
pub(crate) use waits::sealed;
pub use waits::{
    Waitable, status_all, status_any, status_some, test_all, test_any, test_some, wait_all,
    wait_any, wait_some,
};
pub use waitset::{AnyRequest, Member, WaitSet};
