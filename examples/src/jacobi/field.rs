//! The field of a rank: on the host, or in the memory of a device.
//!
//! Both are swept by the same additions in the same order, so they are equal bit for
//! bit. On a device nothing but the ghosts' layers leaves or enters it, and those go
//! straight between the arrays of two ranks; the host sees the field when it asks.

use std::time::{Duration, Instant};

use osier::devices::{DeviceError, DeviceSlice, DeviceView, Kernel};
use osier::{Communicator, Result};

use super::decomposition::Block;
use super::halo::{Faces, Halo, Neighbors};
use super::kernel::{self, Points};
use super::layers::{face_points, fill_ghosts};
use super::rows::Old;
use crate::gpu::Gpu;
use crate::variant::zeros;

/// A field with the one that is made from it.
#[derive(Debug)]
pub enum Field {
    /// In the process's memory.
    Host(Box<HostField>),
    /// In the memory of a device.
    Device(Box<DeviceField>),
}

/// In the process's memory.
#[derive(Debug)]
pub struct HostField {
    block: Block,
    halo: Halo,
    old: Vec<f64>,
    new: Vec<f64>,
    /// What a sweep still has to do: all, or the layers that waited for ghosts.
    ahead: Ahead,
    /// Where faces arrive while the field is swept.
    arriving: [Vec<f64>; 6],
}

/// Points of a sweep that has begun, or of the next.
#[derive(Debug)]
enum Ahead {
    All,
    Layers(Vec<Points>),
}

/// In the memory of a device.
#[derive(Debug)]
pub struct DeviceField {
    gpu: Gpu,
    block: Block,
    neighbors: Neighbors,
    sweep: Kernel,
    old: Layers,
    new: Layers,
    /// The host's copy, while it is one.
    seen: Option<Vec<f64>>,
}

/// An array on a device with its faces.
#[derive(Debug)]
struct Layers {
    array: DeviceSlice<f64>,
    sends: Vec<DeviceView<f64>>,
    receives: Vec<DeviceView<f64>>,
}

/// The parameter of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sweep {
    from: u64,
    to: u64,
    points: [u64; 3],
}

impl Field {
    /// On the host; none if memory is full.
    ///
    /// # Errors
    /// The communicator has no Cartesian topology.
    pub fn on_host(comm: &Communicator, block: &Block) -> Result<Option<Field>> {
        let halo = Halo::new(comm, block)?;
        let (old, new) = (zeros(block.elements()), zeros(block.elements()));
        Ok(old.zip(new).map(|(old, new)| {
            Field::Host(Box::new(HostField {
                block: *block,
                halo,
                old,
                new,
                ahead: Ahead::All,
                arriving: Default::default(),
            }))
        }))
    }

    /// On a device; none if its memory is full.
    ///
    /// # Errors
    /// The device refuses.
    pub fn on_device(comm: &Communicator, block: &Block, gpu: Gpu) -> Result<Option<Field>> {
        let neighbors = Neighbors::new(comm)?;
        let faces = Faces::new(block)?;
        let sweep = gpu.kernel("example_jacobi_sweep")?;
        let layers = || -> std::result::Result<Layers, DeviceError> {
            let array = gpu.allocate(block.elements())?;
            let view = |layout| DeviceView::new(&array, 0, layout, 1);
            Ok(Layers {
                sends: faces
                    .sends
                    .iter()
                    .map(view)
                    .collect::<std::result::Result<_, _>>()?,
                receives: faces
                    .receives
                    .iter()
                    .map(view)
                    .collect::<std::result::Result<_, _>>()?,
                array,
            })
        };
        let both = layers().and_then(|old| Ok((old, layers()?)));
        let (old, new) = match both {
            Ok(both) => both,
            Err(e) if e.is_out_of_memory() => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        Ok(Some(Field::Device(Box::new(DeviceField {
            gpu,
            block: *block,
            neighbors,
            sweep,
            old,
            new,
            seen: None,
        }))))
    }

    /// Where it is, for the user.
    pub fn place(&self) -> String {
        match self {
            Field::Host(_) => "host".into(),
            Field::Device(field) => field.gpu.shown(),
        }
    }

    /// Fills the points and ghosts of both arrays.
    ///
    /// # Errors
    /// The device refuses.
    pub fn start(&mut self, fill: impl FnOnce(&mut [f64])) -> Result<()> {
        match self {
            Field::Host(field) => fill(&mut field.old),
            Field::Device(field) => {
                let mut values = vec![0.0; field.block.elements()];
                // The boundary of the array that is not swept is zero, too.
                field.put(&values, false)?;
                fill(&mut values);
                field.put(&values, true)?;
            }
        }
        Ok(())
    }

    /// Fills the ghosts from the neighbors.
    ///
    /// # Errors
    /// Communication fails.
    pub fn exchange(&mut self, comm: &Communicator) -> Result<()> {
        match self {
            Field::Host(field) => field.halo.exchange(comm, &mut field.old),
            Field::Device(field) => field.exchange(comm),
        }
    }

    /// Sweeps the points that need no ghosts while the ghosts are on their way; the next
    /// [`Field::sweep`] sweeps the others. Returns the time in communication. On a device it
    /// is [`Field::exchange`].
    ///
    /// # Errors
    /// Communication fails.
    pub fn exchange_and_sweep(&mut self, comm: &Communicator) -> Result<Duration> {
        match self {
            Field::Host(field) => field.exchange_and_sweep(comm),
            Field::Device(field) => {
                let begin = Instant::now();
                field.exchange(comm)?;
                Ok(begin.elapsed())
            }
        }
    }

    /// One sweep, or the rest of one that has begun; on a device it is queued.
    ///
    /// # Errors
    /// The device refuses.
    pub fn sweep(&mut self) -> Result<()> {
        match self {
            Field::Host(field) => {
                field.sweep();
                Ok(())
            }
            Field::Device(field) => Ok(field.sweep()?),
        }
    }

    /// Waits for what is queued.
    ///
    /// # Errors
    /// It has failed.
    pub fn finish(&self) -> Result<()> {
        match self {
            Field::Host(_) => Ok(()),
            Field::Device(field) => Ok(field.gpu.stream.synchronize()?),
        }
    }

    /// The field, ghosts included.
    ///
    /// # Errors
    /// Work on the device has failed.
    pub fn into_values(mut self) -> Result<Vec<f64>> {
        self.values()?;
        Ok(match self {
            Field::Host(field) => field.old,
            Field::Device(field) => field.seen.unwrap_or_default(),
        })
    }

    /// The field as the host sees it, ghosts included.
    ///
    /// # Errors
    /// Work on the device has failed.
    pub fn values(&mut self) -> Result<&[f64]> {
        match self {
            Field::Host(field) => Ok(&field.old),
            Field::Device(field) => field.values(),
        }
    }
}

impl HostField {
    fn exchange_and_sweep(&mut self, comm: &Communicator) -> Result<Duration> {
        let waits = self.halo.neighbors().0.map(|neighbor| neighbor.is_some());
        let (inner, layers) = kernel::split(&self.block, waits);
        for side in (0..6).filter(|side| waits[*side]) {
            self.arriving[side].resize(face_points(&self.block, side), 0.0);
        }
        let (old, new, block) = (&self.old, &mut self.new, &self.block);
        let mut talking = self
            .halo
            .exchange_beside(comm, old, &mut self.arriving, |poll| {
                kernel::sweep(&Old::new(old, block), new, &inner, poll);
            })?;
        let begin = Instant::now();
        for side in (0..6).filter(|side| waits[*side]) {
            fill_ghosts(&mut self.old, &self.block, side, &self.arriving[side])?;
        }
        talking += begin.elapsed();
        self.ahead = Ahead::Layers(layers);
        Ok(talking)
    }

    fn sweep(&mut self) {
        let (old, new) = (Old::new(&self.old, &self.block), &mut self.new);
        match std::mem::replace(&mut self.ahead, Ahead::All) {
            Ahead::All => kernel::sweep(&old, new, &kernel::interior(&self.block), || {}),
            Ahead::Layers(layers) => {
                for points in &layers {
                    kernel::sweep(&old, new, points, || {});
                }
            }
        }
        std::mem::swap(&mut self.old, &mut self.new);
    }
}

impl DeviceField {
    fn put(&mut self, values: &[f64], old: bool) -> Result<()> {
        let to = match old {
            true => &self.old.array,
            false => &self.new.array,
        };
        let stream = &self.gpu.stream;
        let staged = osier::devices::Pinned::from_slice(&self.gpu.context, values)?;
        let (from, to) = (staged.on_device(stream), to.after_stream(stream));
        osier::devices::copy::copy(stream, &from, &to)?;
        self.seen = None;
        Ok(())
    }

    /// Each face is a subarray of the device's array: kernels pack it, and unpack it
    /// into the neighbor's. The sends wait on the device for the last sweep, not here.
    fn exchange(&mut self, comm: &Communicator) -> Result<()> {
        self.seen = None;
        let stream = &self.gpu.stream;
        let ordered = |views: &[DeviceView<f64>]| -> Vec<_> {
            let views = views.iter();
            views.map(|view| view.after_stream(stream)).collect()
        };
        let sends = ordered(&self.old.sends);
        let mut receives = ordered(&self.old.receives);
        comm.scope(|s| {
            for (side, ghost) in receives.iter_mut().enumerate() {
                s.irecv(ghost, self.neighbors.0[side], side ^ 1)?;
            }
            for (side, face) in sends.iter().enumerate() {
                s.isend(face, self.neighbors.0[side], side)?;
            }
            Ok(())
        })
    }

    fn sweep(&mut self) -> std::result::Result<(), DeviceError> {
        self.seen = None;
        let (old, new) = (&self.old.array, &self.new.array);
        let plan = Sweep {
            from: old.address(),
            to: new.address(),
            points: self.block.points.map(|n| n as u64),
        };
        let [nz, ny, nx] = self.block.points;
        let threads = nx.next_multiple_of(32).min(256) as u32;
        let blocks = (nz * ny).min(self.blocks()) as u32;
        let touched = [old.memory(), new.memory()];
        // SAFETY: the parameter of the kernel; both arrays have the block's elements,
        // and were written on this stream or by receives that are over.
        unsafe {
            self.sweep
                .launch(&self.gpu.stream, (blocks, threads), &plan, &touched)
        }?;
        std::mem::swap(&mut self.old, &mut self.new);
        Ok(())
    }

    /// Enough blocks to fill the device, several times over so that they end together.
    fn blocks(&self) -> usize {
        self.gpu.context.multiprocessors() as usize * 32
    }

    fn values(&mut self) -> Result<&[f64]> {
        let values = match self.seen.take() {
            Some(values) => values,
            None => {
                let mut values = vec![0.0; self.block.elements()];
                self.gpu.download(&self.old.array, &mut values)?;
                values
            }
        };
        Ok(self.seen.insert(values))
    }
}
