//! Collective calls with counts, of neighbors and between groups, of buffers on devices:
//! beside the same calls of the host, in drawn layouts, places and plans; and what of them
//! goes through the host.

mod agreed;
mod counts;
#[path = "../../kernels/tests/support/mod.rs"]
mod driver;
mod groups;
mod linked;
mod memory;
mod neighbors;
mod segment;
#[path = "../ranks/support.rs"]
#[allow(dead_code)]
mod support;
