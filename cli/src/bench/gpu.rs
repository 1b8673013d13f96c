//! Buffers that a GPU reaches: in its memory or pinned, the floor between them, and
//! other work on the GPU meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use osier::devices::{
    Context, DeviceError, DeviceSlice, DeviceView, Memory as DeviceMemory, Ordered, Pinned, Stream,
    copy, devices,
};
use osier::{Buffer, BufferMut, Communicator, View, ViewMut};
use osier_kernels::baseline;

use super::layout::Shape;
use super::{Failure, Memory, Result};

/// Rotation walks this much: more than the second-level cache of any GPU known to us.
const ROTATED_BYTES: usize = 128 << 20;
/// A copy is timed so often in a row.
const COPIES: u32 = 20;

/// What the driver says, as an error of the benchmark.
pub fn failed(error: DeviceError) -> Failure {
    Failure::failed(error.to_string())
}

/// A rank's GPU.
#[derive(Clone)]
pub struct Gpu {
    stream: Stream,
    /// As it is to be told.
    pub name: String,
    emulated: bool,
}

impl Gpu {
    /// The GPU of a rank: ranks go round those that there are.
    pub fn of(comm: &Communicator) -> Result<Gpu> {
        let all = devices().map_err(|why| {
            Failure::failed(format!(
                "no GPU for buffers: {why} (hint: osier run --emulate-gpus 1 has an emulated one)"
            ))
        })?;
        let info = &all[comm.rank() % all.len()];
        let context = Context::new(info.ordinal).map_err(failed)?;
        let emulated = info.name.starts_with("Osier emulated GPU");
        Ok(Gpu {
            stream: Stream::new(&context).map_err(failed)?,
            name: match emulated {
                true => format!("{} (emulated: no figure here is one of a GPU)", info.name),
                false => info.name.clone(),
            },
            emulated,
        })
    }

    /// What the rank queues its work on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Memory of a kind that a GPU reaches.
    pub fn allocate(&self, memory: Memory, bytes: usize) -> Result<DeviceSlice<u8>> {
        match memory {
            // By itself, as simulations allocate: other processes may open it.
            Memory::Device => {
                let kind = osier::devices::Kind::Plain;
                DeviceSlice::with_kind(&self.stream, kind, bytes).map(Ordered::into_inner)
            }
            Memory::Pool => DeviceSlice::new(&self.stream, bytes).map(Ordered::into_inner),
            _ => DeviceMemory::pinned(self.stream.context(), bytes).and_then(DeviceSlice::of),
        }
        .map_err(failed)
    }

    /// Seconds of a copy of contiguous bytes between two kinds of memory, of many in a
    /// row. Pageable memory counts as pinned: no copy is quicker.
    pub fn copy_seconds(&self, from: Memory, to: Memory, bytes: usize) -> Result<f64> {
        let bytes = bytes.max(1);
        let (from, to) = (self.allocate(from, bytes)?, self.allocate(to, bytes)?);
        let stream = &self.stream;
        let mut times = Vec::new();
        for _ in 0..4 {
            let begin = std::time::Instant::now();
            for _ in 0..COPIES {
                let (from, to) = (from.after_stream(stream), to.after_stream(stream));
                copy::copy(stream, &from, &to).map_err(failed)?;
            }
            stream.synchronize().map_err(failed)?;
            times.push(begin.elapsed().as_secs_f64() / f64::from(COPIES));
        }
        // The first is slow.
        Ok(super::timing::median(&mut times[1..]))
    }
}

/// Equal slots in memory that a GPU reaches.
pub struct DevicePool {
    gpu: Gpu,
    memory: DeviceSlice<u8>,
    slot_bytes: usize,
    slots: usize,
}

impl DevicePool {
    /// As [`super::buffers::Pool::new`].
    pub fn new(
        gpu: &Gpu,
        memory: Memory,
        span: usize,
        rotate: bool,
        reused: usize,
        fill: u8,
    ) -> Result<DevicePool> {
        let slot_bytes = span.max(1).next_multiple_of(256);
        let slots = match rotate {
            true => reused.max(ROTATED_BYTES / slot_bytes),
            false => reused,
        };
        let memory = gpu.allocate(memory, slot_bytes * slots)?;
        copy::fill(&gpu.stream, &memory.after_stream(&gpu.stream), fill).map_err(failed)?;
        gpu.stream.synchronize().map_err(failed)?;
        Ok(DevicePool {
            gpu: gpu.clone(),
            memory,
            slot_bytes,
            slots,
        })
    }

    /// One slot.
    pub fn slot(&self, at: usize) -> Result<DeviceSlice<u8>> {
        let start = at * self.slot_bytes;
        self.memory
            .slice(start..start + self.slot_bytes)
            .map_err(failed)
    }

    /// A view of the shape in each slot, behind what the stream has now: nothing.
    pub fn views(&self, shape: &Shape) -> Result<Vec<Ordered<DeviceView<u8>>>> {
        (0..self.slots)
            .map(|at| {
                let view = DeviceView::new(&self.slot(at)?, 0, &shape.layout, 1);
                Ok(view.map_err(failed)?.after_stream(&self.gpu.stream))
            })
            .collect()
    }

    /// The bytes of the first slot.
    pub fn first(&self) -> Result<Vec<u8>> {
        let stream = &self.gpu.stream;
        let zeros = vec![0u8; self.slot_bytes];
        let mut staged = Pinned::from_slice(stream.context(), &zeros).map_err(failed)?;
        let from = self.slot(0)?.after_stream(stream);
        copy::copy(stream, &from, &staged.on_device(stream)).map_err(failed)?;
        Ok(staged.host().map_err(failed)?.to_vec())
    }
}

/// A buffer to send, of the host or of a device.
pub enum Outgoing<'a> {
    Host(View<'a>),
    Device(Ordered<DeviceView<u8>>),
}

impl Buffer for Outgoing<'_> {
    fn view(&self) -> View<'_> {
        match self {
            Outgoing::Host(view) => view.view(),
            Outgoing::Device(view) => view.view(),
        }
    }
}

/// A buffer to receive into, of the host or of a device.
pub enum Incoming<'a> {
    Host(ViewMut<'a>),
    Device(Ordered<DeviceView<u8>>),
}

impl BufferMut for Incoming<'_> {
    fn view_mut(&mut self) -> ViewMut<'_> {
        match self {
            Incoming::Host(view) => view.view_mut(),
            Incoming::Device(view) => view.view_mut(),
        }
    }
}

/// A share of a GPU's threads, kept busy until this is dropped.
pub struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    /// Begins to keep a GPU busy.
    pub fn new(gpu: &Gpu, share: f64) -> Result<Busy> {
        let stream = Stream::new(gpu.stream.context()).map_err(failed)?;
        // About a millisecond of a GPU; an emulated one takes each step by itself.
        let rounds = if gpu.emulated { 4 } else { 400_000 };
        baseline::busy(&stream, share, rounds).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            // One runs while the next is queued, so that the share is never free.
            let mut running = None;
            while !told.load(Ordering::Relaxed) {
                let Ok(next) = baseline::busy(&stream, share, rounds) else {
                    return;
                };
                if let Some(event) = running.replace(next) {
                    while !told.load(Ordering::Relaxed) && event.is_passed().is_ok_and(|p| !p) {
                        std::thread::sleep(std::time::Duration::from_micros(50));
                    }
                }
            }
        });
        Ok(Busy {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
