//! Devices: memory, streams, events, copies and kernels. The only room that
//! knows CUDA.
//!
//! One binary runs with and without a GPU: the driver is loaded at first use,
//! and what is missing is an error with its reason.
//!
//! ```
//! match osier_kernels::devices() {
//!     Ok(devices) => devices.iter().for_each(|device| println!("{}", device.name)),
//!     Err(why) => println!("no GPU: {why}"),
//! }
//! ```
//!
//! # Map
//!
//! | module | duty |
//! |---|---|
//! | `driver` | the table of driver functions; loads the library |
//! | `device` | what devices there are; primary contexts |
//! | `device_link` | how devices are joined: reach, NVLinks |
//! | `stream` | streams, pooled events |
//! | `memory` | allocations: plain, pool, mapped, pinned, managed |
//! | [`handle`] | memory and events for other processes, as data |
//! | [`classify`] | where a pointer points |
//! | `slice` | [`DeviceSlice`], [`Pinned`], and handing over in order |
//! | [`copy`] | runs, boxes, batches |
//! | [`launch`] | modules, kernels |
//! | `kept` | plain and pinned memory that nobody has, kept |
//! | `prepare` | first uses, done before streams are held |
//! | `pack` | [`Packer`]: pack, unpack and copies of [`DeviceView`]s |
//! | `reduce` | reductions of views by predefined operators and kernels of the user |
//! | `update` | updates of elements by atomics |
//! | [`exchange`] | reductions to all ranks, one kernel each |
//! | `multicast` | [`MulticastGroup`]: one address for memory of several devices |
//! | `user` | [`Kernel`]: kernels of the user |
//! | `graph` | [`Graph`]: captured work |
//! | `completion`, `ending` | words that kernels and streams raise when work of messages is done; who does |
//! | `callback`, `stream_semaphore` | [`Callback`], [`StreamSemaphore`], [`Valve`]: streams tell the host, and wait for it |
//! | [`baseline`] | what pack is measured against |
//! | [`debug`] | `OSIER_DEBUG`: settings for developers |
//! | [`files`] | files of the user that are read whole |
//! | `cache` | plans and their lists on a device, kept |
//! | [`plan`] | pack plans from committed layouts: pure |
//!
//! This room knows no rank.

pub mod bar1;
pub mod baseline;
mod cache;
mod callback;
pub mod classify;
mod completion;
pub mod copy;
pub mod debug;
mod device;
mod device_link;
mod driver;
mod ending;
mod error;
pub mod exchange;
pub mod files;
mod graph;
pub mod handle;
mod kept;
pub mod launch;
mod memory;
mod multicast;
mod pack;
pub mod plan;
mod prepare;
mod ptx;
mod reach;
mod reduce;
mod slice;
mod stream;
mod stream_semaphore;
mod update;
mod user;

/// The header for kernels of the program that use memory of other ranks: `osier_device.cuh`.
pub const DEVICE_HEADER: &str = include_str!("../include/osier_device.cuh");

pub use callback::Callback;
pub use device::{Context, DeviceId, DeviceInfo, Held, Link, device_count, devices};
pub use device_link::{DeviceLink, DeviceLinks, NvLinks, device_links, nvlinks_to};
pub use driver::{Driver, ENTRY_POINTS, own_thread};
pub use error::{DeviceError, Result};
pub use graph::{Graph, reap_graphs};
pub use memory::{Kind, Memory, Space, reap};
pub use multicast::{MulticastGroup, MulticastWindow};
pub use pack::{DeviceView, Engine, Packer};
pub use reduce::UserKernel;
pub use slice::{After, DeviceSlice, Ordered, Pinned};
pub use stream::{Event, Stream};
pub use stream_semaphore::{StreamSemaphore, Valve};
pub use user::Kernel;
