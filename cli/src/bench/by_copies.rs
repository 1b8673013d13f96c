//! Messages of a device as programs send them whose library has no kernels for layouts:
//! by one copy a block, or through the host. Models to compare with, made of Osier's own
//! contiguous messages; no measurement of any other library.

use osier::devices::{DeviceSlice, Ordered, Pinned, copy};
use osier::{Communicator, View, ViewMut};
use osier_gpu_report::record::OSIER;
use osier_kernels::baseline::Runs;

use super::gpu::{Gpu, failed};
use super::layout::Shape;
use super::{Memory, Result};

/// Most blocks of a message by copies: they take some 0.1 s.
pub const MOST_BLOCKS: usize = 1 << 16;

/// How bytes with gaps come from a buffer of the device to the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// As Osier sends them
    Osier,
    /// A model: one copy a block into contiguous memory of the GPU, and out of it
    Blocks,
    /// A model: the whole buffer is copied to the host and back, the host packs
    Host,
}

impl By {
    /// As a heading has it.
    pub fn name(self) -> Option<&'static str> {
        match self {
            By::Osier => None,
            By::Blocks => Some("by one copy a block (a model)"),
            By::Host => Some("through the host (a model)"),
        }
    }

    /// Whose figures these are, as records have it.
    pub fn library(self) -> &'static str {
        match self {
            By::Osier => OSIER,
            By::Blocks => "copies model",
            By::Host => "host model",
        }
    }

    /// Whether a message of the shape can go so.
    pub fn can(self, shape: &Shape) -> bool {
        let few = || shape.layout.blocks(1).take(MOST_BLOCKS + 1).count() <= MOST_BLOCKS;
        self != By::Blocks || few()
    }
}

/// A buffer of the device, and the contiguous or host memory beside it.
pub struct End<'a> {
    gpu: &'a Gpu,
    shape: &'a Shape,
    buffer: Ordered<DeviceSlice<u8>>,
    beside: Beside,
}

enum Beside {
    /// Packed bytes, in the device's memory.
    Packed(Box<Runs>, Ordered<DeviceSlice<u8>>),
    /// A whole copy, on the host.
    Whole(Pinned<u8>),
}

impl<'a> End<'a> {
    /// An end whose blocks lie in `buffer`.
    pub fn new(
        gpu: &'a Gpu,
        by: By,
        shape: &'a Shape,
        buffer: &DeviceSlice<u8>,
    ) -> Result<End<'a>> {
        let stream = gpu.stream();
        let beside = match by {
            By::Host => {
                let zeros = vec![0; buffer.len()];
                Beside::Whole(Pinned::from_slice(stream.context(), &zeros).map_err(failed)?)
            }
            _ => {
                let blocks = shape.layout.blocks(1);
                let list = blocks.map(|(at, bytes)| (at as i64, bytes as u64));
                let runs = Runs::new(stream, list.collect()).map_err(failed)?;
                let packed = gpu.allocate(Memory::Device, shape.bytes().max(1))?;
                let packed = packed.slice(..shape.bytes()).map_err(failed)?;
                Beside::Packed(Box::new(runs), packed.after_stream(stream))
            }
        };
        Ok(End {
            gpu,
            shape,
            buffer: buffer.after_stream(stream),
            beside,
        })
    }

    /// Sends the buffer, as `Communicator::send` does.
    pub fn send(&mut self, comm: &Communicator, peer: usize, tag: i32) -> Result<()> {
        let stream = self.gpu.stream();
        match &mut self.beside {
            Beside::Packed(runs, packed) => {
                let count = runs.len();
                runs.copy_each(stream, &self.buffer, 0, packed, count)
                    .map_err(failed)?;
                comm.send(&packed.buffer().after_stream(stream), peer, tag)?;
            }
            Beside::Whole(whole) => {
                copy::copy(stream, &self.buffer, &whole.on_device(stream)).map_err(failed)?;
                let bytes = whole.host().map_err(failed)?;
                comm.send(&View::new(bytes, 0, &self.shape.layout, 1)?, peer, tag)?;
            }
        }
        Ok(())
    }

    /// Receives into the buffer, as `Communicator::recv` does.
    pub fn recv(&mut self, comm: &Communicator, peer: usize, tag: i32) -> Result<()> {
        let stream = self.gpu.stream();
        match &mut self.beside {
            Beside::Packed(runs, packed) => {
                comm.recv(&mut packed.buffer().after_stream(stream), peer, tag)?;
                let count = runs.len();
                runs.copy_back_each(stream, packed, &self.buffer, 0, count)
                    .map_err(failed)?;
            }
            Beside::Whole(whole) => {
                let bytes = whole.host().map_err(failed)?;
                let mut view = ViewMut::new(bytes, 0, &self.shape.layout, 1)?;
                comm.recv(&mut view, peer, tag)?;
                copy::copy(stream, &whole.on_device(stream), &self.buffer).map_err(failed)?;
            }
        }
        stream.synchronize().map_err(failed)
    }
}
