//! Transports: how active messages and bytes cross from one rank to another.
//!
//! | module | reaches |
//! |---|---|
//! | [`loopback`] | the rank itself (called `self` in tables) |
//! | [`shm`] | ranks on the same machine, through one nameless shared segment |
//! | [`net`] | ranks on other hosts, over TCP |
//! | [`sim`] | ranks in one process on a simulated network with a virtual clock |
//!
//! [`delay`] makes what comes through one of them visible later.
//! [`cuda_ipc`] passes descriptors of device memory between processes.
//! [`contract`] says what each of them promises.
//! [`by_rank`] holds what is kept of few of many ranks.

pub mod by_rank;
pub mod contract;
pub mod cuda_ipc;
mod death;
pub mod delay;
mod fence;
pub mod loopback;
pub mod net;
pub mod shm;
pub mod sim;
mod spans;
mod sync;

#[cfg(test)]
#[path = "../../tests/needs.rs"]
#[allow(dead_code)]
mod needs;

pub use contract::{
    AmHead, AtomicOp, Capabilities, Endpoint, ForeignBytes, Incoming, OneSided, Peer, PeerMemory,
    PostError, RegionKey, RegionKind, Sharing, TransportError, TransportErrorKind, WIRE_VERSION,
};
pub use death::Death;
pub use fence::full_fence;
