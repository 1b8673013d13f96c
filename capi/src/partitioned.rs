//! Transfers in partitions.

use crate::abi::*;
use crate::buffers::{Address, view_of};
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, array, bad_request, count, number, put};
use crate::objects::{Comm, REQUESTS, comm, ctype};
use crate::p2p::{pend, to_rank};
use crate::work::{Pending, Work};
use osier::{Buffer, BufferMut, Layout, OwnedBuffer, OwnedBufferMut, Partitions, View, ViewMut};
use std::ops::{Deref, DerefMut};

/// All bytes of C's that the partitions lie in.
pub struct Bytes {
    at: Address,
    len: usize,
}

// SAFETY: an address; the memory is the request's until it is over, as C promises.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: C's contract for the memory of a partitioned request.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Buffer for Bytes {
    fn view(&self) -> View<'_> {
        Buffer::view(&**self)
    }
}

impl BufferMut for Bytes {
    fn view_mut(&mut self) -> ViewMut<'_> {
        BufferMut::view_mut(&mut **self)
    }
}

// SAFETY: C's memory does not move.
unsafe impl OwnedBuffer for Bytes {}
// SAFETY: as above; nobody else uses it while the request is active.
unsafe impl OwnedBufferMut for Bytes {}

/// The memory and its partitions.
fn shape(at: Address, partitions: usize, n: usize, layout: &Layout) -> Res<(Bytes, Partitions)> {
    let all = partitions
        .checked_mul(n)
        .ok_or_else(|| Fail::new(MPI_ERR_COUNT, "more instances than fit in memory"))?;
    view_of(at, all, layout)?; // which checks the address
    let (start, end) = layout.span(all);
    let (at, len) = match end > start {
        true => (at.wrapping_offset(start), (end - start) as usize),
        false => (std::ptr::NonNull::dangling().as_ptr(), 0),
    };
    let partitions = Partitions::of(partitions, layout, n).at(start.unsigned_abs());
    Ok((Bytes { at, len }, partitions))
}

struct Set {
    comm: &'static Comm,
    bytes: Bytes,
    partitions: Partitions,
}

fn set_up(at: Address, partitions: c_int, n: Count, ty: Handle, on: Handle) -> Res<Set> {
    let comm = comm(on)?;
    let partitions = number(partitions)?;
    let layout = ctype(ty)?.committed()?;
    let (bytes, partitions) = shape(at, partitions, count(n)?, layout)?;
    Ok(Set {
        comm,
        bytes,
        partitions,
    })
}

fn sending<R>(
    handle: Handle,
    f: impl FnOnce(&osier::PartitionedSend<u8, Bytes>) -> osier::Result<R>,
) -> Res<R> {
    match REQUESTS.get(handle) {
        Some(Pending {
            work: Work::PartitionedSend(send),
            on,
        }) => f(send).map_err(|e| Fail::from(e).on(*on)),
        _ => Err(bad_request("a handle that is no send in partitions")),
    }
}

macro_rules! both {
    ($(fn $init:ident, $init_c:ident: $make:ident $work:ident;)*) => {$(
        mpi! {
            // Both count in MPI_Count.
            fn $init(
                buf: Address, partitions: c_int, n: Count, ty: Handle, peer: c_int, tag: c_int,
                on: Handle, _info: Handle, request: *mut Handle
            ) on On::Comm(on); {
                let set = set_up(buf, partitions, n, ty, on)?;
                let made = set.comm.comm.$make(set.bytes, set.partitions, to_rank(peer), tag)?;
                pend(Work::$work(Box::new(made)), on, request)?;
            }

            fn $init_c(
                buf: Address, partitions: c_int, n: Count, ty: Handle, peer: c_int, tag: c_int,
                on: Handle, _info: Handle, request: *mut Handle
            ) on On::Comm(on); {
                let set = set_up(buf, partitions, n, ty, on)?;
                let made = set.comm.comm.$make(set.bytes, set.partitions, to_rank(peer), tag)?;
                pend(Work::$work(Box::new(made)), on, request)?;
            }
        }
    )*};
}

both! {
    fn MPI_Psend_init, MPI_Psend_init_c: psend_init PartitionedSend;
    fn MPI_Precv_init, MPI_Precv_init_c: precv_init PartitionedRecv;
}

mpi! {
    fn MPI_Pready(partition: c_int, request: Handle) on On::Own; {
        let partition = number(partition)?;
        sending(request, |send| send.pready(partition))?;
    }

    fn MPI_Pready_range(low: c_int, high: c_int, request: Handle) on On::Own; {
        let (low, high) = (number(low)?, number(high)?);
        sending(request, |send| send.pready_range(low..=high))?;
    }

    fn MPI_Pready_list(n: c_int, partitions: *const c_int, request: Handle) on On::Own; {
        let list: Vec<usize> = array(partitions, number(n)?)?
            .iter()
            .map(|p| number(*p))
            .collect::<Res<_>>()?;
        sending(request, |send| send.pready_list(&list))?;
    }

    fn MPI_Parrived(request: Handle, partition: c_int, flag: *mut c_int) on On::Own; {
        let partition = number(partition)?;
        let arrived = match REQUESTS.get(request) {
            Some(Pending { work: Work::PartitionedRecv(recv), on }) if recv.is_active() => {
                recv.parrived(partition).map_err(|e| Fail::from(e).on(*on))?
            }
            // As for any test, what is null or inactive is over.
            Some(Pending { work: Work::PartitionedRecv(_), .. }) => true,
            None if request == MPI_REQUEST_NULL => true,
            _ => return Err(bad_request("a handle that is no receive in partitions")),
        };
        put(flag, c_int::from(arrived))?;
    }
}
