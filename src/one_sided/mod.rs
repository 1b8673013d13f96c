//! One-sided communication: windows, epochs, updates.
//!
//! | module | duty |
//! |---|---|
//! | `accesses` | accesses to parts: their checks, the short way of one run |
//! | `attached` | memory that is attached to dynamic windows |
//! | `epochs` | locks, fences, post and start |
//! | `memory` | memory of a rank's own part |
//! | `raw` | windows in bytes: made, used and given back |
//! | `record` | what all ranks know of each other's parts |
//! | `window` | windows of elements, and their epochs |
//!
//! How a part is reached, copied, updated and locked is the engine's
//! ([`osier_engine::rma`]).

mod accesses;
mod attached;
mod epochs;
mod memory;
mod raw;
mod record;
mod window;

pub use accesses::target_of;
pub use osier_engine::rma::update::Change;
pub use raw::{Flavor, RawWindow, Updates};
pub use window::{Epoch, Locked, LockedAll, Posted, Started, Window};
