//! Sends and receives; attached buffers.

use crate::abi::*;
use crate::buffers::{Address, elements, view, view_mut};
use crate::call::{On, mpi};
use crate::complete;
use crate::fail::{Int, Res, number, put};
use crate::held;
use crate::leaks;
use crate::objects::{COMMS, Comm, REQUESTS, SESSIONS, comm, lock, session};
use crate::state;
use crate::status::leave_received;
use crate::work::{Pending, Sort, Work};
use osier::requests::{Begun, FlushRequest};
use osier::{ANY_SOURCE, ANY_TAG, PROC_NULL, Rank, Source, TagSelector};
use osier_engine::check::Site;
use std::panic::Location;
use std::sync::Mutex;

#[inline]
pub fn to_rank(rank: c_int) -> Rank {
    match rank {
        MPI_PROC_NULL => PROC_NULL,
        rank => rank.into(),
    }
}

#[inline]
pub fn to_source(rank: c_int) -> Source {
    match rank {
        MPI_ANY_SOURCE => ANY_SOURCE,
        MPI_PROC_NULL => PROC_NULL.into(),
        rank => rank.into(),
    }
}

#[inline]
pub fn to_selector(tag: c_int) -> TagSelector {
    match tag {
        MPI_ANY_TAG => ANY_TAG,
        tag => tag.into(),
    }
}

/// Hands out a request.
#[inline(always)]
pub fn pend(work: Work, on: Handle, request: *mut Handle) -> Res {
    let on = On::Comm(on);
    let handle = REQUESTS.insert_with(|| Pending { work, on });
    if held::follows() {
        attach_held(handle);
    }
    put(request, handle)
}

#[cold]
fn attach_held(handle: Handle) {
    let persists = REQUESTS.get(handle).is_some_and(Pending::is_persistent);
    held::attach(handle, persists);
}

/// Hands out a request that is no more than a few words, and has nothing to attach.
#[inline(always)]
fn pend_words(work: impl FnOnce() -> Work, on: Handle, request: *mut Handle) -> Res {
    let handle = REQUESTS.insert_with(|| Pending {
        work: work(),
        on: On::Comm(on),
    });
    put(request, handle)
}

/// Begins a receive that has a request: apart, as its registers would be saved in each call.
#[inline(never)]
#[track_caller]
fn request_of_receive<N: Int>(
    buf: Address,
    n: N,
    ty: Handle,
    (source, tag): (c_int, c_int),
    (comm, on): (&Comm, Handle),
    request: *mut Handle,
) -> Res {
    let view = view_mut(buf, n, ty)?;
    let begun = comm.comm.irecv(view, to_source(source), to_selector(tag))?;
    pend(Work::Recv(begun), on, request)
}

macro_rules! sends {
    ($(fn $block:ident, $block_c:ident, $begin:ident, $begin_c:ident: $send:ident $isend:ident $($once:ident)?;)*) => {$(
        mpi! {
            hot fn $block, $block_c<N>(
                buf: Address, n: N, ty: Handle, dest: c_int, tag: c_int, on: Handle
            ) on On::Comm(on); {
                let comm = comm(on)?;
                comm.comm.$send(&view(buf, n, ty)?, to_rank(dest), tag)?;
            }

            hot fn $begin, $begin_c<N>(
                buf: Address, n: N, ty: Handle, dest: c_int, tag: c_int, on: Handle,
                request: *mut Handle
            ) on On::Comm(on); {
                let comm = comm(on)?;
                $(
                    // What has left needs no object.
                    if let Some(memory) = elements(buf, n, ty)
                        && comm.comm.$once(&memory, to_rank(dest), tag)
                    {
                        return match complete::sent() {
                            Some(handle) => put(request, handle),
                            None => pend_words(|| Work::Sent, on, request),
                        };
                    }
                )?
                let begun = comm.comm.$isend(view(buf, n, ty)?, to_rank(dest), tag)?;
                pend(Work::Send(begun), on, request)?;
            }
        }
    )*};
}

sends! {
    fn MPI_Send, MPI_Send_c, MPI_Isend, MPI_Isend_c: send isend send_at_once;
    fn MPI_Ssend, MPI_Ssend_c, MPI_Issend, MPI_Issend_c: ssend issend;
    fn MPI_Rsend, MPI_Rsend_c, MPI_Irsend, MPI_Irsend_c: rsend irsend;
    fn MPI_Bsend, MPI_Bsend_c, MPI_Ibsend, MPI_Ibsend_c: bsend ibsend;
}

mpi! {
    hot fn MPI_Recv, MPI_Recv_c<N>(
        buf: Address, n: N, ty: Handle, source: c_int, tag: c_int, on: Handle, status: *mut CStatus
    ) on On::Comm(on); {
        let comm = comm(on)?;
        let mut view = view_mut(buf, n, ty)?;
        let received = comm.comm.recv(&mut view, to_source(source), to_selector(tag))?;
        leave_received(status, &received);
    }

    hot fn MPI_Irecv, MPI_Irecv_c<N>(
        buf: Address, n: N, ty: Handle, source: c_int, tag: c_int, on: Handle, request: *mut Handle
    ) on On::Comm(on); {
        let comm = comm(on)?;
        // Nothing but a handle: a request would hold the communicator, which costs each
        // message two exchanges. Where threads free communicators, it must.
        if let Some(mut memory) = elements(buf, n, ty)
            && !state::has_threads()
        {
            let (from, with) = (to_source(source), to_selector(tag));
            // SAFETY: C's contract: the memory belongs to the receive until its request completes.
            match unsafe { comm.comm.begin_receive(&mut memory, from, with) } {
                Some(Begun::Received(bytes)) => {
                    let (source, tag) = (source as u32, tag as u32);
                    let work = || Work::Received { source, tag, bytes };
                    return match complete::received(source, tag, bytes) {
                        Some(handle) => put(request, handle),
                        None => pend_words(work, on, request),
                    };
                }
                Some(Begun::Posted(handle)) => {
                    return pend_words(|| Work::Posted(handle), on, request);
                }
                None => {}
            }
        }
        request_of_receive(buf, n, ty, (source, tag), (comm, on), request)?;
    }

    fn MPI_Sendrecv, MPI_Sendrecv_c<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, dest: c_int, sendtag: c_int,
        recvbuf: Address, recvcount: N, recvtype: Handle, source: c_int, recvtag: c_int,
        on: Handle, status: *mut CStatus
    ) on On::Comm(on); {
        let comm = comm(on)?;
        let send = view(sendbuf, sendcount, sendtype)?;
        let mut recv = view_mut(recvbuf, recvcount, recvtype)?;
        let received = comm.comm.sendrecv(
            &send, to_rank(dest), sendtag, &mut recv, to_source(source), to_selector(recvtag),
        )?;
        leave_received(status, &received);
    }

    fn MPI_Sendrecv_replace, MPI_Sendrecv_replace_c<N>(
        buf: Address, n: N, ty: Handle, dest: c_int, sendtag: c_int, source: c_int,
        recvtag: c_int, on: Handle, status: *mut CStatus
    ) on On::Comm(on); {
        let comm = comm(on)?;
        let mut view = view_mut(buf, n, ty)?;
        let received = comm.comm.sendrecv_replace(
            &mut view, to_rank(dest), sendtag, to_source(source), to_selector(recvtag),
        )?;
        leave_received(status, &received);
    }

    fn MPI_Isendrecv, MPI_Isendrecv_c<N>(
        sendbuf: Address, sendcount: N, sendtype: Handle, dest: c_int, sendtag: c_int,
        recvbuf: Address, recvcount: N, recvtype: Handle, source: c_int, recvtag: c_int,
        on: Handle, request: *mut Handle
    ) on On::Comm(on); {
        let comm = comm(on)?;
        let send = view(sendbuf, sendcount, sendtype)?;
        let recv = view_mut(recvbuf, recvcount, recvtype)?;
        let begun = comm.comm.isendrecv(
            send, to_rank(dest), sendtag, recv, to_source(source), to_selector(recvtag),
        )?;
        pend(Work::Once(Box::new(begun), Sort::Receives), on, request)?;
    }

    fn MPI_Isendrecv_replace, MPI_Isendrecv_replace_c<N>(
        buf: Address, n: N, ty: Handle, dest: c_int, sendtag: c_int, source: c_int,
        recvtag: c_int, on: Handle, request: *mut Handle
    ) on On::Comm(on); {
        let comm = comm(on)?;
        let begun = comm.comm.isendrecv_replace(
            view_mut(buf, n, ty)?, to_rank(dest), sendtag, to_source(source), to_selector(recvtag),
        )?;
        pend(Work::Once(Box::new(begun), Sort::Receives), on, request)?;
    }
}

/// What the program has attached. The library has memory of its own of the same size: it
/// keeps what it is given, and C takes its memory back by address.
#[derive(Clone, Copy)]
pub struct AttachedMemory {
    address: usize,
    /// The call that attached it, if leaks are looked for.
    site: Option<Site>,
    bytes: usize,
}

static ATTACHED: Mutex<Option<AttachedMemory>> = Mutex::new(None);

/// Buffers that nobody has detached: whose, and who attached them.
pub fn attached() -> Vec<(&'static str, Option<Site>)> {
    let mut all = Vec::new();
    let mut look = |whose, buffer: &Mutex<Option<AttachedMemory>>| {
        if let Some(memory) = &*lock(buffer) {
            all.push((whose, memory.site));
        }
    };
    look("of the process", &ATTACHED);
    for own in [true, false] {
        if let Some(comm) = state::predefined(own) {
            look("of a communicator", &comm.buffer);
        }
    }
    for comm in COMMS.handles().into_iter().filter_map(|h| COMMS.get(h)) {
        look("of a communicator", &comm.buffer);
    }
    for handle in SESSIONS.handles() {
        if let Ok(session) = session(handle) {
            look("of a session", &session.buffer);
        }
    }
    all
}

/// Attaches; `attach` takes `None` for memory that is allocated as it is needed.
fn attach<N: Int>(
    address: usize,
    bytes: N,
    kept: &Mutex<Option<AttachedMemory>>,
    attach: impl FnOnce(Option<Vec<u8>>) -> osier::Result<()>,
) -> Res {
    let bytes = number(bytes)?;
    let automatic = address == MPI_BUFFER_AUTOMATIC;
    let memory = (!automatic).then(|| vec![0; bytes]);
    attach(memory)?;
    *lock(kept) = Some(AttachedMemory {
        address,
        site: leaks::checks().map(|checks| checks.site(Location::caller())),
        bytes: if automatic { 0 } else { bytes },
    });
    Ok(())
}

/// What was attached; nothing is an empty buffer at no address.
fn detach<N: Int>(address: *mut usize, bytes: *mut N, kept: &Mutex<Option<AttachedMemory>>) -> Res {
    let had = lock(kept).take();
    let had = had.unwrap_or(AttachedMemory {
        address: 0,
        site: None,
        bytes: 0,
    });
    put(address, had.address)?;
    put(bytes, N::narrow(had.bytes as i64))
}

fn flushing(flush: FlushRequest, on: On, request: *mut Handle) -> Res {
    let pending = Pending {
        work: Work::Once(Box::new(flush), Sort::Flush),
        on,
    };
    put(request, REQUESTS.insert(pending))
}

macro_rules! give {
    ($to:expr, $memory:expr) => {
        match $memory {
            Some(memory) => $to.attach_buffer(memory),
            None => $to.attach_automatic(),
        }
    };
}

mpi! {
    fn MPI_Buffer_attach, MPI_Buffer_attach_c<N>(buffer: usize, size: N) on On::Own; {
        attach(buffer, size, &ATTACHED, |memory| match state::with(|u| give!(u, memory)) {
            Ok(attached) => attached,
            Err(e) => Err(osier::Error::new(osier::ErrorKind::Buffer, e.message().to_owned())),
        })?;
    }

    fn MPI_Buffer_detach, MPI_Buffer_detach_c<N>(buffer: *mut usize, size: *mut N) on On::Own; {
        state::with(|u| drop(u.detach_buffer()))?;
        detach(buffer, size, &ATTACHED)?;
    }

    fn MPI_Buffer_flush() on On::Own; {
        state::with(|u| u.flush_buffer())?;
    }

    fn MPI_Buffer_iflush(request: *mut Handle) on On::Own; {
        let flush = state::with(|u| u.iflush_buffer())?;
        flushing(flush, On::Own, request)?;
    }

    fn MPI_Comm_attach_buffer, MPI_Comm_attach_buffer_c<N>(on: Handle, buffer: usize, size: N) on On::Comm(on); {
        let comm = comm(on)?;
        attach(buffer, size, &comm.buffer, |memory| give!(comm.comm, memory))?;
    }

    fn MPI_Comm_detach_buffer, MPI_Comm_detach_buffer_c<N>(on: Handle, buffer: *mut usize, size: *mut N) on On::Comm(on); {
        let comm = comm(on)?;
        drop(comm.comm.detach_buffer());
        detach(buffer, size, &comm.buffer)?;
    }

    fn MPI_Comm_flush_buffer(on: Handle) on On::Comm(on); {
        comm(on)?.comm.flush_buffer();
    }

    fn MPI_Comm_iflush_buffer(on: Handle, request: *mut Handle) on On::Comm(on); {
        flushing(comm(on)?.comm.iflush_buffer(), On::Comm(on), request)?;
    }

    fn MPI_Session_attach_buffer, MPI_Session_attach_buffer_c<N>(on: Handle, buffer: usize, size: N) on On::Session(on); {
        let session = session(on)?;
        attach(buffer, size, &session.buffer, |memory| give!(session.session, memory))?;
    }

    fn MPI_Session_detach_buffer, MPI_Session_detach_buffer_c<N>(on: Handle, buffer: *mut usize, size: *mut N) on On::Session(on); {
        let session = session(on)?;
        drop(session.session.detach_buffer());
        detach(buffer, size, &session.buffer)?;
    }

    fn MPI_Session_flush_buffer(on: Handle) on On::Session(on); {
        session(on)?.session.flush_buffer();
    }

    fn MPI_Session_iflush_buffer(on: Handle, request: *mut Handle) on On::Session(on); {
        flushing(session(on)?.session.iflush_buffer(), On::Session(on), request)?;
    }
}
