//! Collective calls with a count for each rank (gatherv, scatterv, allgatherv, alltoallv).

use crate::abi::*;
use crate::buffers::{
    Address, Given, Memory, MemoryMut, Wanted, apart, apart_from_own, given, nothing,
    nothing_to_send, view_in_parts, view_mut, view_mut_in_parts, view_mut_of, view_of,
};
use crate::call::{On, mpi};
use crate::collectives::{checked_root, collective, is_other, is_root, to_root, to_root_given};
use crate::fail::{Fail, Int, Res, array, count};
use crate::held;
use crate::objects::{Comm, comm, ctype};
use crate::p2p::pend;
use crate::work::{Sort, Work};
use osier::Layout;

/// Blocks of one buffer, counted in instances of its type.
pub(crate) struct Blocks {
    pub counts: Vec<usize>,
    pub at: Vec<usize>,
    /// Instances that the buffer begins before its address: displacements may be negative.
    before: usize,
    total: usize,
}

pub(crate) fn blocks<N: Int, D: Int>(n: usize, counts: *const N, at: *const D) -> Res<Blocks> {
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

    pub fn view(&self, at: Address, ty: Handle) -> Res<Memory> {
        let view = view_in_parts(self.base(at, ty)?, self.total as Count, ty)?;
        if held::follows() {
            self.each(at, ty, |at, n, layout| {
                held::reads(&view_of(at, n, layout)?)
            })?;
        }
        Ok(view)
    }

    pub fn view_mut(&self, at: Address, ty: Handle) -> Res<MemoryMut> {
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

    pub fn pair(&self) -> (&[usize], &[usize]) {
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
pub(crate) type V<N> = N;

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
