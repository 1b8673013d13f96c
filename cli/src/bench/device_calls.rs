//! Collective calls of buffers in a GPU's memory: as Osier makes them, and as programs do
//! whose library takes no such buffers, by a copy to the host before and one back behind. The
//! latter is a model to compare with; its collective is Osier's own on memory of the host.

use osier::datatype::Basic;
use osier::devices::{DeviceSlice, DeviceView, Ordered, Pinned, copy};
use osier::{Buffer, BufferMut, Communicator, Layout, Op, Type, View, ViewMut};

use super::gpu::{Gpu, failed};
use super::{Bench, Memory, Result};

/// A contribution and a result on a device.
pub struct OnDevice {
    gpu: Gpu,
    send: End,
    recv: End,
    blocks: Blocks,
}

/// Equal blocks one behind the other, for calls with counts.
pub struct Blocks {
    counts: Vec<usize>,
    places: Vec<usize>,
}

impl Blocks {
    /// So many, each of so many elements.
    pub fn new(blocks: usize, each: usize) -> Blocks {
        Blocks {
            counts: vec![each; blocks],
            places: (0..blocks).map(|at| at * each).collect(),
        }
    }
}

struct End {
    /// Bytes, or doubles for sums.
    element: Layout,
    place: Ordered<DeviceSlice<u8>>,
    view: Ordered<DeviceView<u8>>,
    /// A copy on the host, if calls go through it.
    host: Option<Pinned<u8>>,
}

impl End {
    fn new(gpu: &Gpu, through_host: bool, doubles: bool, bytes: &[u8]) -> Result<End> {
        let basic = if doubles { Basic::F64 } else { Basic::U8 };
        let element = Type::basic(basic).commit().map_err(osier::Error::from)?;
        let (stream, length) = (gpu.stream(), bytes.len());
        let place = gpu.allocate(Memory::Device, length.max(8))?;
        let place = place.slice(..length).map_err(failed)?;
        let mut host = None;
        if length > 0 {
            let mut staged = Pinned::from_slice(stream.context(), bytes).map_err(failed)?;
            let to = place.after_stream(stream);
            copy::copy(stream, &staged.on_device(stream), &to).map_err(failed)?;
            staged.host().map_err(failed)?;
            host = through_host.then_some(staged);
        }
        let view = DeviceView::new(&place, 0, &element, length / element.size());
        Ok(End {
            view: view.map_err(failed)?.after_stream(stream),
            place: place.after_stream(stream),
            element,
            host,
        })
    }

    fn down(&self, gpu: &Gpu) -> osier::Result<()> {
        if let Some(host) = &self.host {
            let stream = gpu.stream();
            copy::copy(stream, &self.place, &host.on_device(stream))?;
        }
        Ok(())
    }

    fn up(&self, gpu: &Gpu) -> osier::Result<()> {
        if let Some(host) = &self.host {
            let stream = gpu.stream();
            copy::copy(stream, &host.on_device(stream), &self.place)?;
            stream.synchronize()?;
        }
        Ok(())
    }
}

impl OnDevice {
    /// Whether a benchmark's calls are made here: with one buffer at each end.
    pub fn can(bench: Bench) -> bool {
        let buffers = !matches!(
            bench,
            Bench::Barrier | Bench::Alltoallw | Bench::NeighborAlltoallw
        );
        buffers && bench.operation().is_some()
    }

    /// With these contents, of doubles or bytes.
    pub fn new(
        gpu: &Gpu,
        through_host: bool,
        doubles: bool,
        blocks: Blocks,
        [sent, got]: [&[u8]; 2],
    ) -> Result<OnDevice> {
        Ok(OnDevice {
            blocks,
            gpu: gpu.clone(),
            send: End::new(gpu, through_host, doubles, sent)?,
            recv: End::new(gpu, through_host, doubles, got)?,
        })
    }

    /// A call that waits.
    pub fn call(&mut self, bench: Bench, comm: &Communicator, root: usize) -> osier::Result<()> {
        let OnDevice {
            gpu,
            send,
            recv,
            blocks,
        } = self;
        if send.host.is_none() && recv.host.is_none() {
            return make(bench, comm, root, blocks, &send.view, &mut recv.view);
        }
        let is_root = comm.rank() == root;
        let (gives, gets) = match bench {
            Bench::Bcast => (false, !is_root),
            Bench::Scatter | Bench::Scatterv => (is_root, true),
            Bench::Gather | Bench::Gatherv | Bench::Reduce => (true, is_root),
            _ => (true, true),
        };
        match bench {
            Bench::Bcast if is_root => recv.down(gpu)?,
            _ if gives => send.down(gpu)?,
            _ => {}
        }
        let mut none = [[0u8; 0]; 2];
        let [no_send, no_recv] = &mut none;
        let from = match &mut send.host {
            Some(host) => host.host()?,
            None => no_send,
        };
        let to = match &mut recv.host {
            Some(host) => host.host()?,
            None => no_recv,
        };
        let count = |bytes: usize, element: &Layout| bytes / element.size();
        let from = View::new(from, 0, &send.element, count(from.len(), &send.element))?;
        let elements = count(to.len(), &recv.element);
        let mut to = ViewMut::new(to, 0, &recv.element, elements)?;
        make(bench, comm, root, blocks, &from, &mut to)?;
        if gets { recv.up(gpu) } else { Ok(()) }
    }

    /// The result's bytes.
    pub fn got(&self) -> Result<Vec<u8>> {
        let stream = self.gpu.stream();
        let zeros = vec![0; self.recv.place.buffer().len()];
        if zeros.is_empty() {
            return Ok(zeros);
        }
        let mut staged = Pinned::from_slice(stream.context(), &zeros).map_err(failed)?;
        copy::copy(stream, &self.recv.place, &staged.on_device(stream)).map_err(failed)?;
        Ok(staged.host().map_err(failed)?.to_vec())
    }
}

fn make<S: Buffer, R: BufferMut>(
    bench: Bench,
    comm: &Communicator,
    root: usize,
    Blocks { counts, places }: &Blocks,
    send: &S,
    recv: &mut R,
) -> osier::Result<()> {
    let both = (&counts[..], &places[..]);
    match bench {
        Bench::Bcast => comm.bcast(recv, root),
        Bench::Gather => comm.gather(send, recv, root),
        Bench::Gatherv => comm.gatherv(send, recv, counts, places, root),
        Bench::Scatter => comm.scatter(send, recv, root),
        Bench::Scatterv => comm.scatterv(send, counts, places, recv, root),
        Bench::Allgather => comm.allgather(send, recv),
        Bench::Allgatherv => comm.allgatherv(send, recv, counts, places),
        Bench::Alltoall => comm.alltoall(send, recv),
        Bench::Alltoallv => comm.alltoallv(send, both, recv, both),
        Bench::Reduce => comm.reduce(send, recv, root, Op::Sum),
        Bench::Allreduce => comm.allreduce(send, recv, Op::Sum),
        Bench::ReduceScatterBlock => comm.reduce_scatter_block(send, recv, Op::Sum),
        Bench::ReduceScatter => comm.reduce_scatter(send, recv, counts, Op::Sum),
        Bench::NeighborAllgather => comm.neighbor_allgather(send, recv),
        Bench::NeighborAllgatherv => comm.neighbor_allgatherv(send, recv, counts, places),
        Bench::NeighborAlltoall => comm.neighbor_alltoall(send, recv),
        Bench::NeighborAlltoallv => comm.neighbor_alltoallv(send, both, recv, both),
        Bench::Scan => comm.scan(send, recv, Op::Sum),
        Bench::Exscan => comm.exscan(send, recv, Op::Sum),
        _ => Ok(()),
    }
}
