//! The entry points, by what they are about.

pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod gdr;
pub mod graph;
pub mod memory;
pub mod module;
pub mod multicast;
pub mod nvml;
pub mod pointer;
pub mod pool;
pub mod share;
pub mod stream;
pub mod virtual_memory;
