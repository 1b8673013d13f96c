//! One-sided communication: windows, epochs, updates.
//!
//! | module | duty |
//! |---|---|
//! | `attached` | memory that is attached to dynamic windows |
//! | `memory` | memory of a rank's own part |
//! | `raw` | windows in bytes |
//! | `window` | windows of elements, and their epochs |
//!
//! How a part is reached, copied, updated and locked is the engine's
//! ([`osier_engine::rma`]).

mod attached;
mod memory;
mod raw;
mod window;

pub use osier_engine::rma::update::Change;
pub use raw::{Brought, RawWindow, Updates, target_of};
pub use window::{Epoch, Locked, LockedAll, Posted, Started, Window};
