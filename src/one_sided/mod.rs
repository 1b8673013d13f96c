//! One-sided communication: windows, epochs, updates.
//!
//! | module | duty |
//! |---|---|
//! | `accesses` | accesses to parts: their checks, the short way of one run |
//! | `attached` | memory that is attached to dynamic windows |
//! | `combined` | short writes that are made together |
//! | `check` | conflicting accesses: `OSIER_CHECK=windows` |
//! | `device` | parts and buffers in the memory of devices |
//! | `epochs` | locks, fences, post and start |
//! | `far` | parts on devices that not all ranks reach |
//! | `memory` | memory of a rank's own part |
//! | `offsets` | which bytes of a symmetric heap are free |
//! | `raw` | windows in bytes: made, used and given back |
//! | `record` | what all ranks know of each other's parts |
//! | `ring` | what kernels of a team post for ranks elsewhere |
//! | `streams` | accesses on streams to parts that these do not reach |
//! | `symmetric` | symmetric heaps |
//! | `team` | symmetric heaps as kernels use them |
//! | `window` | windows of elements, and their epochs |
//! | `words` | elements as words of a compare-and-swap |
//!
//! How a part is reached, copied, updated and locked is the engine's
//! ([`osier_engine::rma`]).

mod accesses;
mod attached;
mod check;
mod combined;
mod device;
mod epochs;
mod far;
mod memory;
mod offsets;
mod raw;
mod record;
mod requests;
mod ring;
mod streams;
mod symmetric;
mod team;
mod window;
mod words;

pub use accesses::{ByAddress, target_of};
pub use osier_engine::rma::update::Change;
pub use osier_engine::rma::ways::Way;
pub use raw::{Flavor, RawWindow, Updates};
pub use requests::AccessRequest;
pub use symmetric::{SignalOp, Symmetric, SymmetricHeap};
pub use team::{DeviceTeam, Team};
pub use window::{Epoch, Locked, LockedAll, Posted, Started, Window};
