//! Point-to-point: send, receive, probe; requests and what they borrow.
//!
//! | you have | use | the memory |
//! |---|---|---|
//! | time to wait | [`Communicator::send`], [`Communicator::recv`] | is borrowed for the call |
//! | several transfers at a time | [`Communicator::scope`] | is borrowed until the scope ends, which completes or revokes |
//! | a future, or a transfer that outlives the function | [`Communicator::isend`], [`Communicator::irecv`] | belongs to the request |
//! | a stream of a device that is to wait instead of you | [`Communicator::on_stream`] | is a device's, and counted |
//!
//! Memory of a device is sent and received like a slice, with any layout. It is handed
//! over together with the ready event of its bytes: a send packs it behind
//! that ready event, a receive unpacks into it behind that ready event and is over when the bytes
//! lie there.
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
//! [`Communicator::send`]: crate::Communicator::send
//! [`Communicator::recv`]: crate::Communicator::recv
//! [`Communicator::scope`]: crate::Communicator::scope
//! [`Communicator::isend`]: crate::Communicator::isend
//! [`Communicator::irecv`]: crate::Communicator::irecv
//! [`Communicator::on_stream`]: crate::Communicator::on_stream

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
mod status;
mod transfer;
mod waits;
mod waitset;

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
pub use status::Status;
pub(crate) use transfer::is_driven;
pub(crate) use waits::sealed;
pub use waits::{
    Waitable, Watched, first_over, status_all, status_any, status_some, test_all, test_any,
    test_some, wait_all, wait_any, wait_some,
};
pub use waitset::{AnyRequest, Member, WaitSet};
