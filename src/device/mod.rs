//! Memory of devices in messages: what a transfer holds of it, and what a rank keeps
//! to move it.
//!
//! The engine moves bytes of the host. So a message in device memory goes through host
//! memory that kernels reach ([`pool`]): they pack into it and unpack from it, piece by
//! piece, while other pieces are on their way ([`stage`]). Between processes that share
//! memory a piece is packed by the one and unpacked by the other where it lies.
//!
//! # Invariants
//! 1. Nothing here waits on the host, but for what is named "blocking" and for
//!    transfers that are given up in the middle.
//! 2. A kernel of a transfer runs behind the moment from which the user's buffer is
//!    valid, and on a stream that no other transfer uses meanwhile: one that waits for
//!    its producer holds up nobody else.
//!
//! # Sources
//! The copy-in/out protocol of W. Wu, G. Bosilca, R. vandeVaart, S. Jeaugey,
//! J. Dongarra, "GPU-Aware Non-contiguous Data Movement In Open MPI", HPDC 2016.

pub(crate) mod pool;
pub(crate) mod stage;

use crate::config;
use osier_datatype::{Datatype, Layout};
use osier_kernels::{Context, DeviceError, DeviceView, Event, Ordered, Packer, Stream};
use osier_transports::shm::ShmRank;
use pool::Pool;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a view of a device's memory is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To look at its description.
    Look,
    /// To send it.
    Read,
    /// To receive into it.
    Write,
}

/// What a transfer holds of a device's memory: the allocation lives as long.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    /// What could not be handed over is told by the transfer.
    view: Result<Ordered<DeviceView<u8>>, DeviceError>,
    layout: Layout,
    count: usize,
}

/// Views of it move between threads, and another rank of the process reads it.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<DeviceMemory>();
};

impl DeviceMemory {
    /// A view, valid from a moment on that is fixed now, or that is left open because
    /// nothing will be moved.
    pub fn new<T: Datatype>(view: Ordered<DeviceView<T>>, use_: Use) -> DeviceMemory {
        let (layout, count) = (view.buffer().layout().clone(), view.buffer().count());
        let view = view.map(DeviceView::erased);
        DeviceMemory {
            view: match use_ {
                Use::Look => Ok(view),
                Use::Write if layout.self_overlaps(count) => Err(DeviceError::Overlap { count }),
                Use::Read | Use::Write => view.settled(),
            },
            layout,
            count,
        }
    }

    /// What cannot be handed over.
    pub fn failed(error: DeviceError, layout: Layout) -> DeviceMemory {
        DeviceMemory {
            view: Err(error),
            layout,
            count: 0,
        }
    }

    /// Instances of a layout.
    pub fn instances(&self) -> (&Layout, usize) {
        (&self.layout, self.count)
    }

    /// Whether it can be used.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.view().map(drop)
    }

    fn view(&self) -> Result<&Ordered<DeviceView<u8>>, DeviceError> {
        self.view.as_ref().map_err(Clone::clone)
    }
}

/// What a rank keeps of the devices that its messages have touched.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    known: Mutex<Vec<Arc<Device>>>,
    /// Host memory that kernels reach.
    pool: Arc<Pool>,
    /// Transfers with work on a device of which nobody knows yet that it is over.
    under_way: AtomicUsize,
}

impl Devices {
    /// Of a rank whose peers share memory with it, or not. A limit that makes no sense
    /// is told where a rank joins its job.
    pub fn new(rank: Option<ShmRank>) -> Devices {
        let limit = config::pinned_limit().unwrap_or(config::PINNED_LIMIT_BYTES);
        Devices {
            pool: Arc::new(Pool::new(rank, limit)),
            ..Devices::default()
        }
    }

    /// Host memory that kernels reach.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Whether a device works on a message: nobody rings when it is done.
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) != 0
    }

    fn of(&self, context: &Context) -> Arc<Device> {
        let mut known = lock(&self.known);
        if let Some(device) = known.iter().find(|d| &d.context == context) {
            return device.clone();
        }
        let device = Arc::new(Device {
            context: context.clone(),
            packer: Packer::new(context),
            streams: Mutex::default(),
        });
        known.push(device.clone());
        device
    }
}

/// One device: its packer; streams that no transfer uses now.
struct Device {
    context: Context,
    packer: Packer,
    streams: Mutex<Vec<Stream>>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Device {
    fn stream(&self) -> Result<Stream, DeviceError> {
        let kept = lock(&self.streams).pop();
        kept.map_or_else(|| Stream::new(&self.context), Ok)
    }
}

/// Counts a transfer that has work on a device.
#[derive(Debug)]
struct UnderWay(Arc<Devices>);

impl UnderWay {
    fn new(devices: &Arc<Devices>) -> UnderWay {
        devices.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(devices.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether an event has passed; one that has is forgotten.
fn passed(event: &mut Option<Event>) -> Result<bool, DeviceError> {
    if let Some(pending) = event {
        if !pending.is_passed()? {
            return Ok(false);
        }
        *event = None;
    }
    Ok(true)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
