//! Transfers in partitions.

use crate::abi::*;
use crate::buffers::{Address, view_of};
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, array, bad_request, count, number, put};
use crate::objects::{Comm, REQUESTS, comm, ctype};
use crate::p2p::{pend, to_rank};
use crate::work::{Pending, Work};
use osier::buffers::{OwnedBuffer, OwnedBufferMut};
use osier::devices::{After, Context, DeviceError, DeviceSlice, Memory};
use osier::partitioned::{DevicePartitionedSend, PartitionedSend, Partitions};
use osier::{Buffer, BufferMut, Communicator, Layout, View, ViewMut};
use osier_kernels::classify;
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

/// Where the partitions lie.
enum PartitionMemory {
    Host(Bytes),
    /// Partitions are ready when the program says so, as everywhere in C.
    Device(DeviceSlice<u8>),
}

/// The device's memory from a byte on.
fn on_device(first: *const u8, bytes: usize) -> osier::Result<DeviceSlice<u8>> {
    let at = first.addr() as u64;
    let unknown = || DeviceError::Unavailable(format!("the driver knows no memory at {at:#x}"));
    let place = classify::find(at)?.ok_or_else(unknown)?;
    let context = Context::new(place.home)?;
    // SAFETY: C's contract: the memory stays until the request is freed.
    let memory = unsafe { Memory::found(&context, at, bytes) }?;
    Ok(DeviceSlice::of(memory)?)
}

/// The memory and its partitions.
fn shape(
    at: Address,
    partitions: usize,
    n: usize,
    layout: &Layout,
) -> Res<(PartitionMemory, Partitions)> {
    let all = partitions
        .checked_mul(n)
        .ok_or_else(|| Fail::new(MPI_ERR_COUNT, "more instances than fit in memory"))?;
    let (start, end) = layout.span(all);
    let (first, len) = match end > start {
        true => (at.wrapping_offset(start), (end - start) as usize),
        false => (std::ptr::NonNull::dangling().as_ptr(), 0),
    };
    let place = match view_of(at, all, layout)?.is_on_device() {
        true => PartitionMemory::Device(on_device(first, len)?),
        false => PartitionMemory::Host(Bytes { at: first, len }),
    };
    // The first byte is the buffer's, wherever the type has its origin.
    let partitions = Partitions::of(partitions, &layout.seen_from(start), n);
    Ok((place, partitions))
}

struct Set {
    comm: &'static Comm,
    place: PartitionMemory,
    partitions: Partitions,
}

fn set_up(at: Address, partitions: c_int, n: Count, ty: Handle, on: Handle) -> Res<Set> {
    let comm = comm(on)?;
    let partitions = number(partitions)?;
    let layout = ctype(ty)?.committed()?;
    let (place, partitions) = shape(at, partitions, count(n)?, layout)?;
    Ok(Set {
        comm,
        place,
        partitions,
    })
}

/// Tells a send, of the host's memory or of a device's, which partitions are ready now.
fn ready(
    handle: Handle,
    of_host: impl FnOnce(&PartitionedSend<u8, Bytes>) -> osier::Result<()>,
    of_device: impl FnOnce(&DevicePartitionedSend<u8>) -> osier::Result<()>,
) -> Res {
    let Some(Pending { work, on }) = REQUESTS.get(handle) else {
        return Err(no_send());
    };
    let (active, told) = match work {
        Work::PartitionedSend(send) => (send.is_active(), of_host(send)),
        Work::DeviceSend(send) => (send.is_active(), of_device(send)),
        _ => return Err(no_send()),
    };
    told.map_err(|e| {
        let e = Fail::from(e).on(*on);
        // Then the request is wrong, and no argument.
        if active {
            e
        } else {
            e.class(MPI_ERR_ARG, MPI_ERR_REQUEST)
        }
    })
}

fn no_send() -> Fail {
    bad_request("a handle that is no send in partitions")
}

/// A request of either side.
fn init(
    set: Set,
    of_host: impl FnOnce(&Communicator, Bytes, Partitions) -> osier::Result<Work>,
    of_device: impl FnOnce(&Communicator, &mut DeviceSlice<u8>, Partitions) -> osier::Result<Work>,
    on: Handle,
    request: *mut Handle,
) -> Res {
    let comm = &set.comm.comm;
    let work = match set.place {
        PartitionMemory::Host(bytes) => of_host(comm, bytes, set.partitions)?,
        PartitionMemory::Device(mut slice) => of_device(comm, &mut slice, set.partitions)?,
    };
    pend(work, on, request)
}

macro_rules! both {
    ($(fn $init:ident: $make:ident $work:ident, $on_device:ident $device:ident;)*) => {$(
        mpi! {
            fn $init(
                buf: Address, partitions: c_int, n: Count, ty: Handle, peer: c_int, tag: c_int,
                on: Handle, _info: Handle, request: *mut Handle
            ) on On::Comm(on); {
                let set = set_up(buf, partitions, n, ty, on)?;
                let peer = to_rank(peer);
                init(
                    set,
                    |comm, bytes, parts| {
                        Ok(Work::$work(Box::new(comm.$make(bytes, parts, peer, tag)?)))
                    },
                    |comm, slice, parts| {
                        Ok(Work::$device(Box::new(comm.$on_device(slice, parts, peer, tag)?)))
                    },
                    on,
                    request,
                )?;
            }
        }
    )*};
}

// All count in MPI_Count.
both! {
    fn MPI_Psend_init: psend_init PartitionedSend, psend_init_device DeviceSend;
    fn MPI_Psend_init_c: psend_init PartitionedSend, psend_init_device DeviceSend;
    fn MPI_Precv_init: precv_init PartitionedRecv, precv_init_device DeviceRecv;
    fn MPI_Precv_init_c: precv_init PartitionedRecv, precv_init_device DeviceRecv;
}

mpi! {
    fn MPI_Pready(partition: c_int, request: Handle) on On::Own; {
        let at = number(partition)?;
        ready(request, |send| send.pready(at), |send| send.pready(at, After::Now))?;
    }

    fn MPI_Pready_range(low: c_int, high: c_int, request: Handle) on On::Own; {
        let (low, high) = (number(low)?, number(high)?);
        ready(
            request,
            |send| send.pready_range(low..=high),
            |send| send.pready_range(low..=high, After::Now),
        )?;
    }

    fn MPI_Pready_list(n: c_int, partitions: *const c_int, request: Handle) on On::Own; {
        let list: Vec<usize> = array(partitions, number(n)?)?
            .iter()
            .map(|p| number(*p))
            .collect::<Res<_>>()?;
        ready(
            request,
            |send| send.pready_list(&list),
            |send| send.pready_list(&list, After::Now),
        )?;
    }

    fn MPI_Parrived(request: Handle, partition: c_int, flag: *mut c_int) on On::Own; {
        let partition = number(partition)?;
        let arrived = match REQUESTS.get(request) {
            Some(Pending { work: Work::PartitionedRecv(recv), on }) if recv.is_active() => {
                recv.parrived(partition).map_err(|e| Fail::from(e).on(*on))?
            }
            Some(Pending { work: Work::DeviceRecv(recv), on }) if recv.is_active() => {
                recv.parrived(partition).map_err(|e| Fail::from(e).on(*on))?
            }
            // As for any test, what is null or inactive is over.
            Some(Pending { work: Work::PartitionedRecv(_) | Work::DeviceRecv(_), .. }) => true,
            None if request == MPI_REQUEST_NULL => true,
            _ => return Err(bad_request("a handle that is no receive in partitions")),
        };
        put(flag, c_int::from(arrived))?;
    }
}
