//! Persistent requests; calls on any request but waiting.

use crate::abi::*;
use crate::batch::Entered;
use crate::buffers::{Address, view, view_mut};
use crate::call::{On, mpi};
use crate::complete;
use crate::fail::{Fail, Res, array, bad_request, count, get, put};
use crate::held;
use crate::objects::{REQUESTS, comm, lock};
use crate::p2p::{pend, to_rank, to_selector, to_source};
use crate::status::leave;
use crate::work::{Pending, Work, starts_once};
use osier::requests::{Callbacks, Completer};
use osier::{Error, ErrorKind};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

macro_rules! sends {
    ($(fn $init:ident, $init_c:ident: $send_init:ident;)*) => {$(
        mpi! {
            fn $init, $init_c<N>(
                buf: Address, n: N, ty: Handle, dest: c_int, tag: c_int, on: Handle,
                request: *mut Handle
            ) on On::Comm(on); {
                let comm = comm(on)?;
                let set_up = comm.comm.$send_init(view(buf, n, ty)?, to_rank(dest), tag)?;
                pend(Work::PersistentSend(set_up), on, request)?;
            }
        }
    )*};
}

sends! {
    fn MPI_Send_init, MPI_Send_init_c: send_init;
    fn MPI_Ssend_init, MPI_Ssend_init_c: ssend_init;
    fn MPI_Rsend_init, MPI_Rsend_init_c: rsend_init;
    fn MPI_Bsend_init, MPI_Bsend_init_c: bsend_init;
}

/// The request of a handle.
pub fn request(handle: Handle) -> Res<&'static mut Pending> {
    let pending = in_place(handle)?;
    pending.widen();
    Ok(pending)
}

/// As [`request`], for who asks for nothing but the end.
#[inline]
pub fn in_place(handle: Handle) -> Res<&'static mut Pending> {
    REQUESTS.get_mut(handle).ok_or_else(|| match handle {
        MPI_REQUEST_NULL => bad_request("MPI_REQUEST_NULL in place of a request"),
        _ => bad_request("a handle that is no request (hint: it is over, was freed, or never set)"),
    })
}

fn start(handle: Handle) -> Res {
    if complete::status_of(handle).is_some() {
        return Err(starts_once());
    }
    let pending = request(handle)?;
    if !pending.is_active() {
        held::starts(handle)?;
    }
    pending.start()?;
    held::started(handle);
    Ok(())
}

type Query = unsafe extern "C" fn(usize, *mut CStatus) -> c_int;
type Free = unsafe extern "C" fn(usize) -> c_int;
type Cancel = unsafe extern "C" fn(usize, c_int) -> c_int;

/// Those who end generalised requests, which a thread that waits has taken from its handle.
static COMPLETERS: Mutex<Option<HashMap<Handle, Completer>>> = Mutex::new(None);

fn generalized(
    query: usize,
    free: usize,
    cancel: usize,
    extra: usize,
    told: Arc<AtomicI32>,
) -> Callbacks {
    let tell = move |told: &AtomicI32, code| {
        if code != MPI_SUCCESS {
            told.store(code, Ordering::Relaxed);
        }
    };
    let (by_query, by_free, by_cancel) = (told.clone(), told.clone(), told);
    let query = move || {
        let mut status = crate::status::EMPTY;
        // SAFETY: the program gave this address as that of such a function.
        let function = unsafe { std::mem::transmute::<usize, Query>(query) };
        // SAFETY: as above.
        match unsafe { function(extra, &mut status) } {
            MPI_SUCCESS => Ok(status.to_status()),
            code => {
                tell(&by_query, code);
                Err(Error::new(
                    ErrorKind::User,
                    format!("the query function of a generalised request returned {code}"),
                ))
            }
        }
    };
    let free = move || {
        if free != 0 {
            // SAFETY: as above.
            let function = unsafe { std::mem::transmute::<usize, Free>(free) };
            // SAFETY: as above.
            tell(&by_free, unsafe { function(extra) });
        }
    };
    let cancel = move |complete| {
        if cancel != 0 {
            // SAFETY: as above.
            let function = unsafe { std::mem::transmute::<usize, Cancel>(cancel) };
            // SAFETY: as above.
            tell(&by_cancel, unsafe {
                function(extra, c_int::from(complete))
            });
        }
    };
    Callbacks::new().query(query).free(free).cancel(cancel)
}

mpi! {
    fn MPI_Recv_init, MPI_Recv_init_c<N>(
        buf: Address, n: N, ty: Handle, source: c_int, tag: c_int, on: Handle, request: *mut Handle
    ) on On::Comm(on); {
        let comm = comm(on)?;
        let view = view_mut(buf, n, ty)?;
        let set_up = comm.comm.recv_init(view, to_source(source), to_selector(tag))?;
        pend(Work::PersistentRecv(set_up), on, request)?;
    }

    fn MPI_Start(handle: *mut Handle) on On::Own; {
        start(get(handle)?)?;
    }

    fn MPI_Startall(n: c_int, handles: *mut Handle) on On::Own; {
        let mut entered = Entered::default();
        for handle in array(handles, count(n)?)? {
            if !REQUESTS.get_mut(*handle).is_some_and(|p| entered.start(p)) {
                entered.leave();
                start(*handle)?;
            }
        }
    }

    fn MPI_Request_free(handle: *mut Handle) on On::Own; {
        let taken = get(handle)?;
        if complete::status_of(taken).is_some() {
            return put(handle, MPI_REQUEST_NULL);
        }
        let pending = request(taken)?;
        if pending.is_collective() && pending.is_active() {
            // MPI 5.0, section 6.12: erroneous. Allowed once MPI_Request_get_status has told
            // that it is complete, as in MPICH.
            let e = bad_request(
                "freeing of a nonblocking collective (hint: complete it by a wait or a test)",
            );
            return Err(e.on(pending.on));
        }
        if let Some(pending) = REQUESTS.remove(taken) {
            pending.free();
        }
        put(handle, MPI_REQUEST_NULL)?;
    }

    fn MPI_Cancel(handle: *mut Handle) on On::Own; {
        let handle = get(handle)?;
        if complete::status_of(handle).is_none() {
            request(handle)?.cancel()?;
        }
    }

    fn MPI_Request_get_status(handle: Handle, flag: *mut c_int, status: *mut CStatus) on On::Own; {
        match crate::waits::peek(handle)? {
            Some(over) => {
                put(flag, 1)?;
                leave(status, &over);
            }
            None => put(flag, 0)?,
        }
    }

    fn MPI_Grequest_start(
        query: usize, free: usize, cancel: usize, extra: usize, handle: *mut Handle
    ) on On::Own; {
        let own = comm(MPI_COMM_SELF)?;
        if query == 0 {
            return Err(Fail::new(MPI_ERR_ARG, "a null pointer for a query function"));
        }
        let code = Arc::new(AtomicI32::new(MPI_SUCCESS));
        let callbacks = generalized(query, free, cancel, extra, code.clone());
        let (begun, completer) = own.comm.generalized_request(callbacks);
        pend(Work::Generalized(begun, code), MPI_COMM_SELF, handle)?;
        lock(&COMPLETERS).get_or_insert_default().insert(get(handle)?, completer);
    }

    fn MPI_Grequest_complete(handle: Handle) on On::Own; {
        let completer = lock(&COMPLETERS).as_mut().and_then(|all| all.remove(&handle));
        match completer {
            Some(completer) => completer.complete(),
            None => return Err(bad_request("a handle that is no generalised request under way")),
        }
    }
}
