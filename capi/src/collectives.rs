//! Collective calls of equal shares, and reductions; in their three forms.
//!
//! What is not significant at a rank is not looked at: MPI says so of most arguments at
//! other ranks than the root.

use crate::abi::*;
use crate::buffers::{
    Address, Given, MemoryMut, Wanted, apart, apart_from_own, elements, given, nothing,
    nothing_to_send, view, view_mut, view_mut_read,
};
use crate::call::{On, mpi};
use crate::fail::{Fail, Int, Res, array, bad_count, count};
use crate::objects::{Comm, comm};
use crate::ops::{known, operand, reduction};
use crate::p2p::pend;
use crate::work::{Sort, Work};
use osier::{PROC_NULL, ROOT, Rank};

pub fn to_root(root: c_int) -> Rank {
    match root {
        MPI_ROOT => ROOT,
        MPI_PROC_NULL => PROC_NULL,
        root => root.into(),
    }
}

/// Checks a root, with the class of its own that MPI has for it.
pub fn checked_root(comm: &Comm, root: c_int) -> Res {
    let special = comm.inter && matches!(root, MPI_ROOT | MPI_PROC_NULL);
    if special || usize::try_from(root).is_ok_and(|root| root < comm.peers) {
        return Ok(());
    }
    let message = format!("root {root} in a communicator of {}", comm.peers);
    Err(Fail::new(MPI_ERR_ROOT, message))
}

/// Whether this rank is the root.
pub fn is_root(comm: &Comm, root: c_int) -> bool {
    match comm.inter {
        true => root == MPI_ROOT,
        false => root == comm.comm.rank() as c_int,
    }
}

/// Whether this rank gives to, or gets from, the root.
pub fn is_other(comm: &Comm, root: c_int) -> bool {
    !comm.inter || root >= 0
}

/// The elements of all peers.
pub fn all<N: Int>(comm: &Comm, each: N) -> Res<Count> {
    let n = count(each)? as Count;
    n.checked_mul(comm.peers as Count)
        .ok_or_else(|| bad_count("a count that overflows"))
}

/// What a rank puts in where a root gathers.
pub fn to_root_given<N: Int>(
    comm: &Comm,
    at: Address,
    n: N,
    ty: Handle,
    root: c_int,
) -> Res<Given> {
    checked_root(comm, root)?;
    match is_other(comm, root) {
        true => given(at, n, ty),
        false => Ok(Given::Memory(nothing_to_send()?)),
    }
}

/// An operator that does not fit its data is an error of the operator.
pub fn of_op(e: osier::Error) -> Fail {
    Fail::from(e).class(MPI_ERR_TYPE, MPI_ERR_OP)
}

/// The three forms of a call over two buffers, in both widths: its name in the library as
/// it waits, begins and is set up.
macro_rules! collective {
    (
        @wait [] $name:ident $name_c:ident <$N:ident>($($arg:ident: $t:ty),*)
        |$c:ident, $s:ident, $r:ident| $prepare:block $wait:expr; $fail:path
    ) => {
        mpi! {
            fn $name, $name_c<$N>($($arg: $t,)* on: Handle) on On::Comm(on); {
                let $c = comm(on)?;
                #[allow(unused_mut)]
                let ($s, mut $r) = $prepare;
                let waited = $wait;
                waited.map_err($fail)?;
            }
        }
    };
    (
        @wait [$quick:block] $name:ident $name_c:ident <$N:ident>($($arg:ident: $t:ty),*)
        |$c:ident, $s:ident, $r:ident| $prepare:block $wait:expr; $fail:path
    ) => {
        mpi! {
            hot fn $name, $name_c<$N>($($arg: $t,)* on: Handle) on On::Comm(on); {
                let $c = comm(on)?;
                $quick
                #[allow(unused_mut)]
                let ($s, mut $r) = $prepare;
                let waited = $wait;
                waited.map_err($fail)?;
            }
        }
    };
    (
        fn $name:ident, $name_c:ident, $begin:ident, $begin_c:ident, $init:ident, $init_c:ident:
        $lib_begin:ident $lib_init:ident <$N:ident>($($arg:ident: $t:ty),* $(,)?)
        |$c:ident, $s:ident, $r:ident| $prepare:block
        $(quick $quick:block)?
        wait $wait:expr;
        rest($($rest:expr),*) $fail:path;
    ) => {
        collective! {
            @wait [$($quick)?] $name $name_c <$N>($($arg: $t),*) |$c, $s, $r| $prepare
            $wait; $fail
        }
        mpi! {
            fn $begin, $begin_c<$N>($($arg: $t,)* on: Handle, request: *mut Handle) on On::Comm(on); {
                let $c = comm(on)?;
                let ($s, $r) = $prepare;
                let begun = $c.comm.$lib_begin($s, $r, $($rest),*).map_err($fail)?;
                pend(Work::Once(Box::new(begun), Sort::Collective), on, request)?;
            }

            fn $init, $init_c<$N>(
                $($arg: $t,)* on: Handle, _info: Handle, request: *mut Handle
            ) on On::Comm(on); {
                let $c = comm(on)?;
                let ($s, $r) = $prepare;
                let set_up = $c.comm.$lib_init($s, $r, $($rest),*).map_err($fail)?;
                pend(Work::PersistentCollective(Box::new(set_up)), on, request)?;
            }
        }
    };
}
pub(crate) use collective;

mpi! {
    hot fn MPI_Barrier(on: Handle) on On::Comm(on); {
        comm(on)?.comm.barrier()?;
    }

    fn MPI_Ibarrier(on: Handle, request: *mut Handle) on On::Comm(on); {
        let begun = comm(on)?.comm.ibarrier()?;
        pend(Work::Once(Box::new(begun), Sort::Collective), on, request)?;
    }

    fn MPI_Barrier_init(on: Handle, _info: Handle, request: *mut Handle) on On::Comm(on); {
        let set_up = comm(on)?.comm.barrier_init()?;
        pend(Work::PersistentCollective(Box::new(set_up)), on, request)?;
    }

    hot fn MPI_Bcast, MPI_Bcast_c<N>(buf: Address, n: N, ty: Handle, root: c_int, on: Handle) on On::Comm(on); {
        let c = comm(on)?;
        checked_root(c, root)?;
        c.comm.bcast(&mut bcast_view(c, buf, n, ty, root)?, to_root(root))?;
    }

    fn MPI_Ibcast, MPI_Ibcast_c<N>(buf: Address, n: N, ty: Handle, root: c_int, on: Handle, request: *mut Handle) on On::Comm(on); {
        let c = comm(on)?;
        checked_root(c, root)?;
        let begun = c.comm.ibcast(bcast_view(c, buf, n, ty, root)?, to_root(root))?;
        pend(Work::Once(Box::new(begun), Sort::Collective), on, request)?;
    }

    fn MPI_Bcast_init, MPI_Bcast_init_c<N>(
        buf: Address, n: N, ty: Handle, root: c_int, on: Handle, _info: Handle,
        request: *mut Handle
    ) on On::Comm(on); {
        let c = comm(on)?;
        checked_root(c, root)?;
        let set_up = c.comm.bcast_init(bcast_view(c, buf, n, ty, root)?, to_root(root))?;
        pend(Work::PersistentCollective(Box::new(set_up)), on, request)?;
    }
}

fn bcast_view<N: Int>(c: &Comm, buf: Address, n: N, ty: Handle, root: c_int) -> Res<MemoryMut> {
    match (is_root(c, root), is_other(c, root)) {
        // Who gives out what all receive.
        (true, _) => view_mut_read(buf, n, ty),
        (false, true) => view_mut(buf, n, ty),
        (false, false) => nothing(),
    }
}

collective! {
    fn MPI_Gather, MPI_Gather_c, MPI_Igather, MPI_Igather_c, MPI_Gather_init, MPI_Gather_init_c:
    igather gather_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address, recvcount: N,
        recvtype: Handle, root: c_int
    ) |c, s, r| {
        if !c.inter && is_root(c, root) {
            apart_from_own(sendbuf, sendcount, recvbuf, own(c, recvcount), recvtype)?;
        }
        let send = to_root_given(c, sendbuf, sendcount, sendtype, root)?;
        match is_root(c, root) {
            true => (send, view_mut(recvbuf, all(c, recvcount)?, recvtype)?),
            false => (send, nothing()?),
        }
    }
    wait c.comm.gather(&s, &mut r, to_root(root));
    rest(to_root(root)) Fail::from;
}

collective! {
    fn MPI_Scatter, MPI_Scatter_c, MPI_Iscatter, MPI_Iscatter_c, MPI_Scatter_init, MPI_Scatter_init_c:
    iscatter scatter_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address, recvcount: N,
        recvtype: Handle, root: c_int
    ) |c, s, r| {
        if !c.inter && is_root(c, root) {
            apart_from_own(recvbuf, recvcount, sendbuf, own(c, sendcount), sendtype)?;
        }
        checked_root(c, root)?;
        let send = match is_root(c, root) {
            true => view(sendbuf, all(c, sendcount)?, sendtype)?,
            false => nothing_to_send()?,
        };
        let recv = match is_other(c, root) {
            true if recvbuf.addr() == MPI_IN_PLACE => Wanted::InPlace,
            true => Wanted::Memory(view_mut(recvbuf, recvcount, recvtype)?),
            false => Wanted::Memory(nothing()?),
        };
        (send, recv)
    }
    wait c.comm.scatter(&s, &mut r, to_root(root));
    rest(to_root(root)) Fail::from;
}

collective! {
    fn MPI_Allgather, MPI_Allgather_c, MPI_Iallgather, MPI_Iallgather_c, MPI_Allgather_init, MPI_Allgather_init_c:
    iallgather allgather_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address, recvcount: N,
        recvtype: Handle
    ) |c, s, r| {
        apart(sendbuf, sendcount, recvbuf)?;
        if !c.inter {
            apart_from_own(sendbuf, sendcount, recvbuf, own(c, recvcount), recvtype)?;
        }
        (given(sendbuf, sendcount, sendtype)?, view_mut(recvbuf, all(c, recvcount)?, recvtype)?)
    }
    wait c.comm.allgather(&s, &mut r);
    rest() Fail::from;
}

collective! {
    fn MPI_Alltoall, MPI_Alltoall_c, MPI_Ialltoall, MPI_Ialltoall_c, MPI_Alltoall_init, MPI_Alltoall_init_c:
    ialltoall alltoall_init<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, recvbuf: Address, recvcount: N,
        recvtype: Handle
    ) |c, s, r| {
        apart(sendbuf, sendcount, recvbuf)?;
        let send = match sendbuf.addr() == MPI_IN_PLACE {
            true => Given::InPlace,
            false => Given::Memory(view(sendbuf, all(c, sendcount)?, sendtype)?),
        };
        (send, view_mut(recvbuf, all(c, recvcount)?, recvtype)?)
    }
    wait c.comm.alltoall(&s, &mut r);
    rest() Fail::from;
}

collective! {
    fn MPI_Reduce, MPI_Reduce_c, MPI_Ireduce, MPI_Ireduce_c, MPI_Reduce_init, MPI_Reduce_init_c:
    ireduce reduce_init<N>(
        sendbuf: Address, recvbuf: Address, n: N, ty: Handle, op: Handle, root: c_int
    ) |c, s, r| {
        if !c.inter && is_root(c, root) {
            apart(sendbuf, n, recvbuf)?;
        }
        let ty = operand(ty, op);
        let send = to_root_given(c, sendbuf, n, ty, root)?;
        match is_root(c, root) {
            true => (send, view_mut(recvbuf, n, ty)?),
            false => (send, nothing()?),
        }
    }
    wait c.comm.reduce(&s, &mut r, to_root(root), &reduction(op, ty)?);
    rest(to_root(root), reduction(op, ty)?) of_op;
}

collective! {
    fn MPI_Allreduce, MPI_Allreduce_c, MPI_Iallreduce, MPI_Iallreduce_c, MPI_Allreduce_init, MPI_Allreduce_init_c:
    iallreduce allreduce_init<N>(sendbuf: Address, recvbuf: Address, n: N, ty: Handle, op: Handle)
    |c, s, r| {
        apart(sendbuf, n, recvbuf)?;
        let ty = operand(ty, op);
        (given(sendbuf, n, ty)?, view_mut(recvbuf, n, ty)?)
    }
    quick {
        let ty = operand(ty, op);
        if sendbuf != recvbuf
            && let (Some(s), Some(mut r)) = (elements(sendbuf, n, ty), elements(recvbuf, n, ty))
            && let Some(op) = known(op)
        {
            return c.comm.allreduce(&s, &mut r, op).map_err(of_op);
        }
    }
    wait c.comm.allreduce(&s, &mut r, &reduction(op, ty)?);
    rest(reduction(op, ty)?) of_op;
}

collective! {
    fn MPI_Scan, MPI_Scan_c, MPI_Iscan, MPI_Iscan_c, MPI_Scan_init, MPI_Scan_init_c:
    iscan scan_init<N>(sendbuf: Address, recvbuf: Address, n: N, ty: Handle, op: Handle)
    |c, s, r| {
        apart(sendbuf, n, recvbuf)?;
        let ty = operand(ty, op);
        (given(sendbuf, n, ty)?, view_mut(recvbuf, n, ty)?)
    }
    wait c.comm.scan(&s, &mut r, &reduction(op, ty)?);
    rest(reduction(op, ty)?) of_op;
}

collective! {
    fn MPI_Exscan, MPI_Exscan_c, MPI_Iexscan, MPI_Iexscan_c, MPI_Exscan_init, MPI_Exscan_init_c:
    iexscan exscan_init<N>(sendbuf: Address, recvbuf: Address, n: N, ty: Handle, op: Handle)
    |c, s, r| {
        apart(sendbuf, n, recvbuf)?;
        let ty = operand(ty, op);
        (given(sendbuf, n, ty)?, view_mut(recvbuf, n, ty)?)
    }
    wait c.comm.exscan(&s, &mut r, &reduction(op, ty)?);
    rest(reduction(op, ty)?) of_op;
}

/// Where this rank's block begins, in instances.
fn own<N: Int>(c: &Comm, n: N) -> Count {
    n.wide().wrapping_mul(c.comm.rank() as Count)
}

/// Both buffers of a call that scatters what it combines: `total` elements in all, `mine`
/// of which are this rank's.
fn scattering(
    sendbuf: Address,
    recvbuf: Address,
    total: Count,
    mine: Count,
    ty: Handle,
) -> Res<(Given, MemoryMut)> {
    match sendbuf.addr() == MPI_IN_PLACE {
        // The input lies there, too.
        true => Ok((Given::InPlace, view_mut(recvbuf, total, ty)?)),
        false => Ok((
            Given::Memory(view(sendbuf, total, ty)?),
            view_mut(recvbuf, mine, ty)?,
        )),
    }
}

collective! {
    fn MPI_Reduce_scatter_block, MPI_Reduce_scatter_block_c, MPI_Ireduce_scatter_block, MPI_Ireduce_scatter_block_c, MPI_Reduce_scatter_block_init, MPI_Reduce_scatter_block_init_c:
    ireduce_scatter_block reduce_scatter_block_init<N>(
        sendbuf: Address, recvbuf: Address, n: N, ty: Handle, op: Handle
    ) |c, s, r| {
        apart(sendbuf, n, recvbuf)?;
        let ty = operand(ty, op);
        let total = count(n)? * c.comm.size();
        scattering(sendbuf, recvbuf, total as Count, n.wide(), ty)?
    }
    wait c.comm.reduce_scatter_block(&s, &mut r, &reduction(op, ty)?);
    rest(reduction(op, ty)?) of_op;
}

/// Counts that are kept in the call, where there are few.
const FEW_SHARES: usize = 32;

/// The count of each rank.
#[expect(
    clippy::large_enum_variant,
    reason = "it lies on the stack, and is not moved"
)]
enum Shares {
    Few([usize; FEW_SHARES], usize),
    Many(Vec<usize>),
}

impl std::ops::Deref for Shares {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        match self {
            Shares::Few(all, ranks) => &all[..*ranks],
            Shares::Many(all) => all,
        }
    }
}

fn shares<N: Int>(c: &Comm, counts: *const N) -> Res<Shares> {
    let counts = array(counts, c.comm.size())?;
    if counts.len() > FEW_SHARES {
        let all: Res<Vec<usize>> = counts.iter().map(|n| count(*n)).collect();
        return all.map(Shares::Many);
    }
    let mut all = [0; FEW_SHARES];
    for (to, n) in all.iter_mut().zip(counts) {
        *to = count(*n)?;
    }
    Ok(Shares::Few(all, counts.len()))
}

collective! {
    fn MPI_Reduce_scatter, MPI_Reduce_scatter_c, MPI_Ireduce_scatter, MPI_Ireduce_scatter_c, MPI_Reduce_scatter_init, MPI_Reduce_scatter_init_c:
    ireduce_scatter reduce_scatter_init<N>(
        sendbuf: Address, recvbuf: Address, counts: *const N, ty: Handle, op: Handle
    ) |c, s, r| {
        let ty = operand(ty, op);
        let shares = shares(c, counts)?;
        let total: usize = shares.iter().sum();
        let mine = shares[c.comm.rank()];
        apart(sendbuf, total as Count, recvbuf)?;
        scattering(sendbuf, recvbuf, total as Count, mine as Count, ty)?
    }
    wait c.comm.reduce_scatter(&s, &mut r, &shares(c, counts)?, &reduction(op, ty)?);
    rest(&shares(c, counts)?, reduction(op, ty)?) of_op;
}
