//! Exchanges with a datatype for each rank (alltoallw, neighbor_alltoallw).

use crate::abi::*;
use crate::buffers::{Address, Memory, MemoryMut, Piece, apart, view, view_mut, view_of};
use crate::call::{On, mpi};
use crate::fail::{Int, Res, array, count};
use crate::neighbor_collectives::neighbors;
use crate::objects::{comm, ctype};
use crate::on_host::{copy, packed_mut};
use crate::p2p::pend;
use crate::work::{Repeated, Sort, Work};
use osier::requests::Watched;
use osier::{Layout, Status};

/// The arrays of one side of a call with a type for each block; displacements in bytes.
struct Typed<N, D> {
    buf: Address,
    counts: *const N,
    at: *const D,
    types: *const Handle,
}

impl<N: Int, D: Int> Typed<N, D> {
    fn each<R>(&self, n: usize, view: impl Fn(Address, N, Handle) -> Res<R>) -> Res<Vec<R>> {
        let (counts, at) = (array(self.counts, n)?, array(self.at, n)?);
        let types = array(self.types, n)?;
        (0..n)
            .map(|i| match counts[i].wide() {
                // Neither place nor type mean anything.
                0 => view(std::ptr::null_mut(), counts[i], MPI_BYTE),
                _ => view(
                    self.buf.wrapping_offset(at[i].wide() as isize),
                    counts[i],
                    types[i],
                ),
            })
            .collect()
    }

    fn views(&self, n: usize) -> Res<Vec<Memory>> {
        self.each(n, view)
    }

    fn views_mut(&self, n: usize) -> Res<Vec<MemoryMut>> {
        self.each(n, view_mut)
    }

    /// That not all of what is sent lies where all of the other is received.
    fn apart(&self, other: &Self, n: usize) -> Res {
        let same = self.counts == other.counts && self.at == other.at && self.types == other.types;
        if same && self.buf == other.buf {
            let most = array(self.counts, n)?.iter().map(|n| n.wide()).max();
            apart(self.buf, most.unwrap_or(0), other.buf)?;
        }
        Ok(())
    }
}

/// The blocks to send. In place they are what lies where others will be received: packed
/// now, so that they are out of the way.
fn pieces<N: Int, D: Int>(send: &Typed<N, D>, recv: &Typed<N, D>, n: usize) -> Res<Vec<Piece>> {
    if send.buf.addr() != MPI_IN_PLACE {
        return Ok(send.views(n)?.into_iter().map(Piece::at).collect());
    }
    let (counts, at) = (array(recv.counts, n)?, array(recv.at, n)?);
    let types = array(recv.types, n)?;
    (0..n)
        .map(|i| {
            let count = count(counts[i])?;
            if count == 0 {
                return Piece::packed(Vec::new());
            }
            let layout = ctype(types[i])?.committed()?;
            let mut bytes = vec![0; layout.pack_size(count)?];
            let from = recv.buf.wrapping_offset(at[i].wide() as isize);
            pack_to(&mut bytes, from, count, layout)?;
            Piece::packed(bytes)
        })
        .collect()
}

/// Packs a block of C's memory, wherever it lies.
fn pack_to(bytes: &mut [u8], from: Address, n: usize, layout: &Layout) -> Res {
    let view = view_of(from, n, layout)?;
    if view.is_on_device() {
        return copy(&view, &mut packed_mut(bytes.as_mut_ptr(), bytes.len())?);
    }
    // SAFETY: C's contract for the buffer.
    unsafe { layout.pack_at_raw(from, n, bytes, &mut 0) }?;
    Ok(())
}

/// A call in place that is started again and again: what it sends lies where it receives,
/// and is packed anew at each start.
struct InPlace {
    set_up: Box<dyn Repeated>,
    blocks: Vec<Block>,
}

/// A block of C's memory, and where the call has it packed: addresses.
struct Block {
    from: usize,
    n: usize,
    layout: Layout,
    to: usize,
    bytes: usize,
}

impl InPlace {
    /// What the blocks of [`pieces`] are packed from, and to.
    fn blocks<N: Int, D: Int>(pieces: &[Piece], recv: &Typed<N, D>) -> Res<Vec<Block>> {
        let n = pieces.len();
        let (counts, at) = (array(recv.counts, n)?, array(recv.at, n)?);
        let types = array(recv.types, n)?;
        let mut blocks = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            let n = count(counts[i])?;
            if n == 0 {
                continue;
            }
            let from = recv.buf.wrapping_offset(at[i].wide() as isize);
            let layout = ctype(types[i])?.committed()?.clone();
            let (to, bytes) = piece.memory();
            blocks.push(Block {
                from: from.expose_provenance(),
                n,
                layout,
                to,
                bytes,
            });
        }
        Ok(blocks)
    }
}

impl Repeated for InPlace {
    fn start(&mut self) -> osier::Result<()> {
        if !self.set_up.is_active() {
            for block in &self.blocks {
                let from = std::ptr::with_exposed_provenance_mut(block.from);
                let to = std::ptr::with_exposed_provenance_mut(block.to);
                // SAFETY: bytes of the call above, which does not use them now.
                let to = unsafe { std::slice::from_raw_parts_mut(to, block.bytes) };
                pack_to(to, from, block.n, &block.layout).map_err(|e| {
                    osier::Error::new(osier::ErrorKind::Buffer, e.message().to_owned())
                })?;
            }
        }
        self.set_up.start()
    }

    fn is_active(&self) -> bool {
        self.set_up.is_active()
    }

    fn test(&mut self) -> bool {
        self.set_up.test()
    }

    fn wait(&mut self) -> osier::Result<()> {
        self.set_up.wait()
    }

    fn status(&mut self) -> Option<osier::Result<Status>> {
        self.set_up.status()
    }

    fn watched(&mut self) -> &mut dyn Watched {
        self.set_up.watched()
    }
}

macro_rules! typed {
    (
        fn $name:ident, $name_c:ident, $begin:ident, $begin_c:ident, $init:ident, $init_c:ident:
        $lib:ident $lib_begin:ident $lib_init:ident $D:ident |$c:ident| $peers:expr;
    ) => {
        mpi! {
            fn $name, $name_c<N>(
                sendbuf: Address, sendcounts: *const N, sendat: *const $D!(N), sendtypes: *const Handle,
                recvbuf: Address, recvcounts: *const N, recvat: *const $D!(N), recvtypes: *const Handle,
                on: Handle
            ) on On::Comm(on); {
                let $c = comm(on)?;
                let (from, to): (usize, usize) = $peers;
                let send = Typed { buf: sendbuf, counts: sendcounts, at: sendat, types: sendtypes };
                let recv = Typed { buf: recvbuf, counts: recvcounts, at: recvat, types: recvtypes };
                send.apart(&recv, to)?;
                $c.comm.$lib(&pieces(&send, &recv, to)?, &mut recv.views_mut(from)?)?;
            }

            fn $begin, $begin_c<N>(
                sendbuf: Address, sendcounts: *const N, sendat: *const $D!(N), sendtypes: *const Handle,
                recvbuf: Address, recvcounts: *const N, recvat: *const $D!(N), recvtypes: *const Handle,
                on: Handle, request: *mut Handle
            ) on On::Comm(on); {
                let $c = comm(on)?;
                let (from, to): (usize, usize) = $peers;
                let send = Typed { buf: sendbuf, counts: sendcounts, at: sendat, types: sendtypes };
                let recv = Typed { buf: recvbuf, counts: recvcounts, at: recvat, types: recvtypes };
                send.apart(&recv, to)?;
                let given = pieces(&send, &recv, to)?;
                let begun = $c.comm.$lib_begin(given, recv.views_mut(from)?)?;
                pend(Work::Once(Box::new(begun), Sort::Collective), on, request)?;
            }

            fn $init, $init_c<N>(
                sendbuf: Address, sendcounts: *const N, sendat: *const $D!(N), sendtypes: *const Handle,
                recvbuf: Address, recvcounts: *const N, recvat: *const $D!(N), recvtypes: *const Handle,
                on: Handle, _info: Handle, request: *mut Handle
            ) on On::Comm(on); {
                let $c = comm(on)?;
                let (from, to): (usize, usize) = $peers;
                let send = Typed { buf: sendbuf, counts: sendcounts, at: sendat, types: sendtypes };
                let recv = Typed { buf: recvbuf, counts: recvcounts, at: recvat, types: recvtypes };
                send.apart(&recv, to)?;
                let work: Box<dyn Repeated> = if send.buf.addr() == MPI_IN_PLACE {
                    let given = pieces(&send, &recv, to)?;
                    let blocks = InPlace::blocks(&given, &recv)?;
                    let set_up = Box::new($c.comm.$lib_init(given, recv.views_mut(from)?)?);
                    Box::new(InPlace { set_up, blocks })
                } else {
                    Box::new($c.comm.$lib_init(send.views(to)?, recv.views_mut(from)?)?)
                };
                pend(Work::PersistentCollective(work), on, request)?;
            }
        }
    };
}

/// Displacements that have the width of counts.
macro_rules! as_counts {
    ($N:ty) => {
        $N
    };
}

/// Displacements that are addresses in both forms.
macro_rules! addresses {
    ($N:ty) => {
        Aint
    };
}

typed! {
    fn MPI_Alltoallw, MPI_Alltoallw_c, MPI_Ialltoallw, MPI_Ialltoallw_c, MPI_Alltoallw_init, MPI_Alltoallw_init_c:
    alltoallw ialltoallw alltoallw_init as_counts |c| (c.peers, c.peers);
}

typed! {
    fn MPI_Neighbor_alltoallw, MPI_Neighbor_alltoallw_c, MPI_Ineighbor_alltoallw, MPI_Ineighbor_alltoallw_c, MPI_Neighbor_alltoallw_init, MPI_Neighbor_alltoallw_init_c:
    neighbor_alltoallw ineighbor_alltoallw neighbor_alltoallw_init addresses |c| neighbors(c)?;
}
