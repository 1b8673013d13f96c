//! Collective calls of blocks of any size, and those with neighbors.

use crate::abi::*;
use crate::buffers::{
    Address, Given, Memory, MemoryMut, Piece, Wanted, apart, apart_from_own, given, nothing,
    nothing_to_send, view, view_in_parts, view_mut, view_mut_in_parts, view_mut_of, view_of,
};
use crate::call::{On, mpi};
use crate::collectives::{checked_root, collective, is_other, is_root, to_root, to_root_given};
use crate::fail::{Fail, Int, Res, array, bad_topology, count};
use crate::held;
use crate::objects::{Comm, comm, ctype};
use crate::on_host::{copy, packed_mut};
use crate::p2p::pend;
use crate::work::{Repeated, Sort, Work};
use osier::requests::Watched;
use osier::topology::Topology;
use osier::{Layout, Status};

/// Blocks of one buffer, counted in instances of its type.
struct Blocks {
    counts: Vec<usize>,
    at: Vec<usize>,
    /// Instances that the buffer begins before its address: displacements may be negative.
    before: usize,
    total: usize,
}

fn blocks<N: Int, D: Int>(n: usize, counts: *const N, at: *const D) -> Res<Blocks> {
    let counts: Vec<usize> = array(counts, n)?
        .iter()
        .map(|n| count(*n))
        .collect::<Res<_>>()?;
    let places = array(at, n)?;
    // Where nothing lies, the place means nothing.
    let used = || counts.iter().zip(places).filter(|(n, _)| **n > 0);
    let lowest = used().map(|(_, at)| at.wide()).min().unwrap_or(0).min(0);
    let total = used()
        .map(|(n, at)| (at.wide() - lowest) as usize + n)
        .max();
    let at = counts.iter().zip(places).map(|(n, at)| match n {
        0 => 0,
        _ => (at.wide() - lowest) as usize,
    });
    let at = at.collect();
    Ok(Blocks {
        at,
        counts,
        before: lowest.unsigned_abs() as usize,
        total: total.unwrap_or(0),
    })
}

impl Blocks {
    fn base(&self, at: Address, ty: Handle) -> Res<Address> {
        if self.before == 0 {
            return Ok(at);
        }
        let extent = ctype(ty)?.layout()?.extent();
        Ok(at.wrapping_offset(-(self.before as isize) * extent))
    }

    fn view(&self, at: Address, ty: Handle) -> Res<Memory> {
        let view = view_in_parts(self.base(at, ty)?, self.total as Count, ty)?;
        if held::follows() {
            self.each(at, ty, |at, n, layout| {
                held::reads(&view_of(at, n, layout)?)
            })?;
        }
        Ok(view)
    }

    fn view_mut(&self, at: Address, ty: Handle) -> Res<MemoryMut> {
        let view = view_mut_in_parts(self.base(at, ty)?, self.total as Count, ty)?;
        if held::follows() {
            self.each(at, ty, |at, n, layout| {
                held::writes(&view_mut_of(at, n, layout)?)
            })?;
        }
        Ok(view)
    }

    /// The blocks one by one, where no gaps between them count.
    fn each(&self, at: Address, ty: Handle, f: impl Fn(Address, usize, &Layout) -> Res) -> Res {
        let (base, layout) = (self.base(at, ty)?, ctype(ty)?.layout()?);
        for (n, at) in self.counts.iter().zip(&self.at) {
            if *n > 0 {
                f(
                    base.wrapping_offset(*at as isize * layout.extent()),
                    *n,
                    layout,
                )?;
            }
        }
        Ok(())
    }

    fn pair(&self) -> (&[usize], &[usize]) {
        (&self.counts, &self.at)
    }
}

const NONE: Blocks = Blocks {
    counts: Vec::new(),
    at: Vec::new(),
    before: 0,
    total: 0,
};

/// The blocks at the root; none elsewhere.
fn at_root<N: Int, D: Int>(c: &Comm, root: c_int, counts: *const N, at: *const D) -> Res<Blocks> {
    match is_root(c, root) {
        true => blocks(c.peers, counts, at),
        false => Ok(NONE),
    }
}

/// The blocks to send, unless they lie in place.
fn to_send<N: Int, D: Int>(n: usize, buf: Address, counts: *const N, at: *const D) -> Res<Blocks> {
    match buf.addr() == MPI_IN_PLACE {
        true => Ok(NONE),
        false => blocks(n, counts, at),
    }
}

/// That this rank's block of a buffer of all is not its own buffer, too.
fn apart_from_place<N: Int, D: Int>(
    c: &Comm,
    one: Address,
    n: N,
    all: Address,
    at: *const D,
    ty: Handle,
) -> Res {
    match array(at, c.peers)?.get(c.comm.rank()) {
        Some(at) => apart_from_own(one, n, all, at.wide(), ty),
        None => Ok(()),
    }
}

collective! {
    fn MPI_Gatherv, MPI_Gatherv_c, MPI_Igatherv, MPI_Igatherv_c, MPI_Gatherv_init, MPI_Gatherv_init_c:
    igatherv gatherv_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address,
        recvcounts: *const N, at: *const V<N>, recvtype: Handle, root: c_int
    ) |c, s, r| {
        if !c.inter && is_root(c, root) {
            apart_from_place(c, sendbuf, sendcount, recvbuf, at, recvtype)?;
        }
        let send = to_root_given(c, sendbuf, sendcount, sendtype, root)?;
        match is_root(c, root) {
            true => (send, blocks(c.peers, recvcounts, at)?.view_mut(recvbuf, recvtype)?),
            false => (send, nothing()?),
        }
    }
    wait {
        let b = at_root(c, root, recvcounts, at)?;
        c.comm.gatherv(&s, &mut r, &b.counts, &b.at, to_root(root))
    };
    rest(
        &at_root(c, root, recvcounts, at)?.counts, &at_root(c, root, recvcounts, at)?.at,
        to_root(root)
    ) Fail::from;
}

/// Displacements of the two forms of a call: ints, and addresses, which have the width of
/// counts.
type V<N> = N;

collective! {
    fn MPI_Scatterv, MPI_Scatterv_c, MPI_Iscatterv, MPI_Iscatterv_c, MPI_Scatterv_init, MPI_Scatterv_init_c:
    iscatterv scatterv_init<N>(
        sendbuf: Address, sendcounts: *const N, at: *const V<N>, sendtype: Handle,
        recvbuf: Address, recvcount: N, recvtype: Handle, root: c_int
    ) |c, s, r| {
        if !c.inter && is_root(c, root) {
            apart_from_place(c, recvbuf, recvcount, sendbuf, at, sendtype)?;
        }
        checked_root(c, root)?;
        let send = match is_root(c, root) {
            true => blocks(c.peers, sendcounts, at)?.view(sendbuf, sendtype)?,
            false => nothing_to_send()?,
        };
        let recv = match is_other(c, root) {
            true if recvbuf.addr() == MPI_IN_PLACE => Wanted::InPlace,
            true => Wanted::Memory(view_mut(recvbuf, recvcount, recvtype)?),
            false => Wanted::Memory(nothing()?),
        };
        (send, recv)
    }
    wait {
        let b = at_root(c, root, sendcounts, at)?;
        c.comm.scatterv(&s, &b.counts, &b.at, &mut r, to_root(root))
    };
    rest(
        &at_root(c, root, sendcounts, at)?.counts, &at_root(c, root, sendcounts, at)?.at,
        to_root(root)
    ) Fail::from;
}

collective! {
    fn MPI_Allgatherv, MPI_Allgatherv_c, MPI_Iallgatherv, MPI_Iallgatherv_c, MPI_Allgatherv_init, MPI_Allgatherv_init_c:
    iallgatherv allgatherv_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address,
        recvcounts: *const N, at: *const V<N>, recvtype: Handle
    ) |c, s, r| {
        if !c.inter {
            apart_from_place(c, sendbuf, sendcount, recvbuf, at, recvtype)?;
        }
        let send = given(sendbuf, sendcount, sendtype)?;
        (send, blocks(c.peers, recvcounts, at)?.view_mut(recvbuf, recvtype)?)
    }
    wait {
        let b = blocks(c.peers, recvcounts, at)?;
        c.comm.allgatherv(&s, &mut r, &b.counts, &b.at)
    };
    rest(&blocks(c.peers, recvcounts, at)?.counts, &blocks(c.peers, recvcounts, at)?.at) Fail::from;
}

collective! {
    fn MPI_Alltoallv, MPI_Alltoallv_c, MPI_Ialltoallv, MPI_Ialltoallv_c, MPI_Alltoallv_init, MPI_Alltoallv_init_c:
    ialltoallv alltoallv_init<N>(
        sendbuf: Address, sendcounts: *const N, sendat: *const V<N>, sendtype: Handle,
        recvbuf: Address, recvcounts: *const N, recvat: *const V<N>, recvtype: Handle
    ) |c, s, r| {
        if sendcounts == recvcounts && sendat == recvat && sendtype == recvtype {
            let most = array(sendcounts, c.peers)?.iter().map(|n| n.wide()).max();
            apart(sendbuf, most.unwrap_or(0), recvbuf)?;
        }
        let send = match sendbuf.addr() == MPI_IN_PLACE {
            true => Given::InPlace,
            false => Given::Memory(blocks(c.peers, sendcounts, sendat)?.view(sendbuf, sendtype)?),
        };
        (send, blocks(c.peers, recvcounts, recvat)?.view_mut(recvbuf, recvtype)?)
    }
    wait {
        let to = to_send(c.peers, sendbuf, sendcounts, sendat)?;
        let from = blocks(c.peers, recvcounts, recvat)?;
        c.comm.alltoallv(&s, to.pair(), &mut r, from.pair())
    };
    rest(
        to_send(c.peers, sendbuf, sendcounts, sendat)?.pair(),
        blocks(c.peers, recvcounts, recvat)?.pair()
    ) Fail::from;
}

/// How many neighbors send to this rank, and how many it sends to.
fn neighbors(c: &Comm) -> Res<(usize, usize)> {
    match c.comm.topology() {
        Some(Topology::Cart(cart)) => Ok((2 * cart.dims().len(), 2 * cart.dims().len())),
        Some(Topology::Graph(graph)) => {
            let n = graph.neighbors(c.comm.rank())?.len();
            Ok((n, n))
        }
        Some(Topology::DistGraph(graph)) => Ok((graph.sources().len(), graph.destinations().len())),
        _ => Err(bad_topology(
            "a call with neighbors on a communicator that has no topology",
        )),
    }
}

fn times<N: Int>(n: usize, each: N) -> Res<Count> {
    Ok((count(each)? * n) as Count)
}

collective! {
    fn MPI_Neighbor_allgather, MPI_Neighbor_allgather_c, MPI_Ineighbor_allgather, MPI_Ineighbor_allgather_c, MPI_Neighbor_allgather_init, MPI_Neighbor_allgather_init_c:
    ineighbor_allgather neighbor_allgather_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address, recvcount: N,
        recvtype: Handle
    ) |c, s, r| {
        let (from, _) = neighbors(c)?;
        (view(sendbuf, sendcount, sendtype)?, view_mut(recvbuf, times(from, recvcount)?, recvtype)?)
    }
    wait c.comm.neighbor_allgather(&s, &mut r);
    rest() Fail::from;
}

collective! {
    fn MPI_Neighbor_allgatherv, MPI_Neighbor_allgatherv_c, MPI_Ineighbor_allgatherv, MPI_Ineighbor_allgatherv_c, MPI_Neighbor_allgatherv_init, MPI_Neighbor_allgatherv_init_c:
    ineighbor_allgatherv neighbor_allgatherv_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address,
        recvcounts: *const N, at: *const V<N>, recvtype: Handle
    ) |c, s, r| {
        let (from, _) = neighbors(c)?;
        let send = view(sendbuf, sendcount, sendtype)?;
        (send, blocks(from, recvcounts, at)?.view_mut(recvbuf, recvtype)?)
    }
    wait {
        let b = blocks(neighbors(c)?.0, recvcounts, at)?;
        c.comm.neighbor_allgatherv(&s, &mut r, &b.counts, &b.at)
    };
    rest(
        &blocks(neighbors(c)?.0, recvcounts, at)?.counts,
        &blocks(neighbors(c)?.0, recvcounts, at)?.at
    ) Fail::from;
}

collective! {
    fn MPI_Neighbor_alltoall, MPI_Neighbor_alltoall_c, MPI_Ineighbor_alltoall, MPI_Ineighbor_alltoall_c, MPI_Neighbor_alltoall_init, MPI_Neighbor_alltoall_init_c:
    ineighbor_alltoall neighbor_alltoall_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address, recvcount: N,
        recvtype: Handle
    ) |c, s, r| {
        let (from, to) = neighbors(c)?;
        let send = view(sendbuf, times(to, sendcount)?, sendtype)?;
        (send, view_mut(recvbuf, times(from, recvcount)?, recvtype)?)
    }
    wait c.comm.neighbor_alltoall(&s, &mut r);
    rest() Fail::from;
}

collective! {
    fn MPI_Neighbor_alltoallv, MPI_Neighbor_alltoallv_c, MPI_Ineighbor_alltoallv, MPI_Ineighbor_alltoallv_c, MPI_Neighbor_alltoallv_init, MPI_Neighbor_alltoallv_init_c:
    ineighbor_alltoallv neighbor_alltoallv_init<N>(
        sendbuf: Address, sendcounts: *const N, sendat: *const V<N>, sendtype: Handle,
        recvbuf: Address, recvcounts: *const N, recvat: *const V<N>, recvtype: Handle
    ) |c, s, r| {
        let (from, to) = neighbors(c)?;
        let send = blocks(to, sendcounts, sendat)?.view(sendbuf, sendtype)?;
        (send, blocks(from, recvcounts, recvat)?.view_mut(recvbuf, recvtype)?)
    }
    wait {
        let (from, to) = neighbors(c)?;
        let (to, from) = (blocks(to, sendcounts, sendat)?, blocks(from, recvcounts, recvat)?);
        c.comm.neighbor_alltoallv(&s, to.pair(), &mut r, from.pair())
    };
    rest(
        blocks(neighbors(c)?.1, sendcounts, sendat)?.pair(),
        blocks(neighbors(c)?.0, recvcounts, recvat)?.pair()
    ) Fail::from;
}

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
