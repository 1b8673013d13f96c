//! Probes, and messages that a probe has taken out of the queue.

use crate::abi::*;
use crate::buffers::{Address, view_mut};
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, get, put};
use crate::objects::{MESSAGES, comm};
use crate::p2p::{pend, to_selector, to_source};
use crate::status::leave;
use crate::work::{Sort, Work};
use osier::{Message, Status};

/// Hands out a message and its status.
fn matched(
    found: Message,
    source: c_int,
    on: Handle,
    message: *mut Handle,
    status: *mut CStatus,
) -> Res {
    leave(status, &CStatus::received(&found.status()));
    if source == MPI_PROC_NULL {
        return put(message, MPI_MESSAGE_NO_PROC);
    }
    put(message, MESSAGES.insert((found, on)))
}

/// Takes a message from its handle; `None`: the one from nobody.
fn take(message: *mut Handle) -> Res<Option<(Message, Handle)>> {
    let handle = get(message)?;
    if handle == MPI_MESSAGE_NO_PROC {
        put(message, MPI_MESSAGE_NULL)?;
        return Ok(None);
    }
    let taken = MESSAGES.remove(handle).ok_or_else(|| {
        Fail::new(
            MPI_ERR_REQUEST,
            "a handle that is no message (hint: it was received, or never set)",
        )
    })?;
    put(message, MPI_MESSAGE_NULL)?;
    Ok(Some(taken))
}

/// A request that is over, of a message from nobody.
fn from_nobody() -> Res<Work> {
    let own = crate::state::predefined(true).ok_or_else(crate::state::not_initialised)?;
    let (request, completer) = own
        .comm
        .generalized_request(osier::requests::Callbacks::new());
    completer.complete();
    Ok(Work::Once(Box::new(request), Sort::Receives))
}

mpi! {
    fn MPI_Probe(source: c_int, tag: c_int, on: Handle, status: *mut CStatus) on On::Comm(on); {
        let found = comm(on)?.comm.probe(to_source(source), to_selector(tag))?;
        leave(status, &CStatus::received(&found));
    }

    fn MPI_Iprobe(source: c_int, tag: c_int, on: Handle, flag: *mut c_int, status: *mut CStatus) on On::Comm(on); {
        let found = comm(on)?.comm.iprobe(to_source(source), to_selector(tag))?;
        put(flag, c_int::from(found.is_some()))?;
        if let Some(found) = found {
            leave(status, &CStatus::received(&found));
        }
    }

    fn MPI_Mprobe(source: c_int, tag: c_int, on: Handle, message: *mut Handle, status: *mut CStatus) on On::Comm(on); {
        let found = comm(on)?.comm.mprobe(to_source(source), to_selector(tag))?;
        matched(found, source, on, message, status)?;
    }

    fn MPI_Improbe(
        source: c_int, tag: c_int, on: Handle, flag: *mut c_int, message: *mut Handle,
        status: *mut CStatus
    ) on On::Comm(on); {
        let found = comm(on)?.comm.improbe(to_source(source), to_selector(tag))?;
        put(flag, c_int::from(found.is_some()))?;
        match found {
            Some(found) => matched(found, source, on, message, status)?,
            None => put(message, MPI_MESSAGE_NULL)?,
        }
    }

    fn MPI_Mrecv, MPI_Mrecv_c<N>(
        buf: Address, n: N, ty: Handle, message: *mut Handle, status: *mut CStatus
    ) on On::Own; {
        let mut view = view_mut(buf, n, ty)?;
        let received = match take(message)? {
            Some((message, on)) => message
                .recv(&mut view)
                .map_err(|e| Fail::from(e).on(On::Comm(on)))?,
            None => Status::empty(),
        };
        leave(status, &CStatus::received(&received));
    }

    fn MPI_Imrecv, MPI_Imrecv_c<N>(
        buf: Address, n: N, ty: Handle, message: *mut Handle, request: *mut Handle
    ) on On::Own; {
        let view = view_mut(buf, n, ty)?;
        match take(message)? {
            Some((message, on)) => {
                let begun = message.irecv(view).map_err(|e| Fail::from(e).on(On::Comm(on)))?;
                pend(Work::Recv(begun), on, request)?;
            }
            None => pend(from_nobody()?, MPI_COMM_SELF, request)?,
        }
    }
}
