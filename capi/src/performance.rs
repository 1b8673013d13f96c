//! Performance variables of the tool interface: what communicators hold of messages.
//!
//! # Invariants
//! 1. Handles belong to their session, and end with it.
//! 2. All variables are counted all the time and cannot be written, so that sessions have
//!    nothing to keep apart.
//!
//! # Sources
//! MPI 5.0, section 15.3.7.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, get, put, put_if, text};
use crate::objects::comm;
use crate::table::Table;
use crate::tool::{begun, index, no_name, put_string};
use osier::communicators::Queues;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A number of a communicator's.
pub struct Variable {
    name: &'static str,
    description: &'static str,
    class: c_int,
    of: fn(&Queues) -> u64,
}

pub const VARIABLES: [Variable; 4] = [
    Variable {
        name: "osier_operations",
        description: "transfers of the communicator that are not over",
        class: MPI_T_PVAR_CLASS_LEVEL,
        of: |queues| queues.operations as u64,
    },
    Variable {
        name: "osier_posted_receives",
        description: "receives that no message has met",
        class: MPI_T_PVAR_CLASS_LEVEL,
        of: |queues| queues.posted_receives as u64,
    },
    Variable {
        name: "osier_unexpected_messages",
        description: "messages that no receive has asked for",
        class: MPI_T_PVAR_CLASS_LEVEL,
        of: |queues| queues.unexpected_messages as u64,
    },
    Variable {
        name: "osier_moves",
        description: "how often progress has moved something",
        class: MPI_T_PVAR_CLASS_COUNTER,
        of: |queues| queues.moves,
    },
];

/// Handles that a session has.
static SESSIONS: Table<AtomicUsize> = Table::new(10);
static HANDLES: Table<Bound> = Table::new(11);

/// A variable of a communicator, in a session.
#[derive(Clone, Copy)]
struct Bound {
    session: Handle,
    variable: usize,
    comm: Handle,
}

fn session(handle: Handle) -> Res<&'static AtomicUsize> {
    SESSIONS.get(handle).ok_or_else(|| {
        Fail::new(
            MPI_T_ERR_INVALID_SESSION,
            "a handle that is no session of performance variables",
        )
    })
}

fn bound(of: Handle, handle: Handle) -> Res<Bound> {
    session(of)?;
    let found = HANDLES.get(handle).filter(|bound| bound.session == of);
    found.copied().ok_or_else(|| {
        Fail::new(
            MPI_T_ERR_INVALID_HANDLE,
            "a handle that is no performance variable's of this session",
        )
    })
}

/// Of variables that are counted all the time.
fn start_or_stop(of: Handle, handle: Handle) -> Res {
    if handle == MPI_T_PVAR_ALL_HANDLES {
        return session(of).map(drop);
    }
    bound(of, handle)?;
    Err(Fail::new(
        MPI_T_ERR_PVAR_NO_STARTSTOP,
        "a variable that is counted all the time",
    ))
}

/// Of variables that are the library's own.
fn write(of: Handle, handle: Handle) -> Res {
    if handle == MPI_T_PVAR_ALL_HANDLES {
        return session(of).map(drop);
    }
    bound(of, handle)?;
    Err(Fail::new(
        MPI_T_ERR_PVAR_NO_WRITE,
        "a variable that is read only",
    ))
}

mpi! {
    fn MPI_T_pvar_get_num(n: *mut c_int) on On::Nobody; {
        begun()?;
        put(n, VARIABLES.len() as c_int)?;
    }

    fn MPI_T_pvar_get_info(
        at: c_int, name: *mut c_char, name_len: *mut c_int, verbosity: *mut c_int,
        class: *mut c_int, ty: *mut Handle, enumeration: *mut usize, desc: *mut c_char,
        desc_len: *mut c_int, bind: *mut c_int, readonly: *mut c_int, continuous: *mut c_int,
        atomic: *mut c_int
    ) on On::Nobody; {
        begun()?;
        let variable = &VARIABLES[index(at, VARIABLES.len())?];
        put_string(name, name_len, variable.name)?;
        put_string(desc, desc_len, variable.description)?;
        put_if(verbosity, MPI_T_VERBOSITY_USER_DETAIL);
        put_if(class, variable.class);
        put_if(ty, MPI_UNSIGNED_LONG);
        put_if(enumeration, MPI_T_ENUM_NULL);
        put_if(bind, MPI_T_BIND_MPI_COMM);
        put_if(readonly, 1);
        put_if(continuous, 1);
        put_if(atomic, 0);
    }

    fn MPI_T_pvar_get_index(name: *const c_char, class: c_int, to: *mut c_int) on On::Nobody; {
        begun()?;
        let name = text(name)?;
        let found = VARIABLES.iter().position(|v| v.name == name && v.class == class);
        put(to, found.ok_or_else(no_name)? as c_int)?;
    }

    fn MPI_T_pvar_session_create(to: *mut Handle) on On::Nobody; {
        begun()?;
        put(to, SESSIONS.insert(AtomicUsize::new(0)))?;
    }

    fn MPI_T_pvar_session_free(at: *mut Handle) on On::Nobody; {
        begun()?;
        let of = get(at)?;
        if session(of)?.load(Relaxed) > 0 {
            for handle in HANDLES.handles() {
                if HANDLES.get(handle).is_some_and(|bound| bound.session == of) {
                    HANDLES.remove(handle);
                }
            }
        }
        SESSIONS.remove(of);
        put(at, MPI_T_PVAR_SESSION_NULL)?;
    }

    fn MPI_T_pvar_handle_alloc(
        of: Handle, at: c_int, object: *const Handle, handle: *mut Handle, n: *mut c_int
    ) on On::Nobody; {
        begun()?;
        let variable = index(at, VARIABLES.len())?;
        let handles = session(of)?;
        let on = get(object)?;
        comm(on).map_err(|e| Fail::new(MPI_T_ERR_INVALID, e.message().to_owned()))?;
        put(n, 1)?;
        put(handle, HANDLES.insert(Bound { session: of, variable, comm: on }))?;
        handles.fetch_add(1, Relaxed);
    }

    fn MPI_T_pvar_handle_free(of: Handle, handle: *mut Handle) on On::Nobody; {
        begun()?;
        let had = get(handle)?;
        bound(of, had)?;
        HANDLES.remove(had);
        session(of)?.fetch_sub(1, Relaxed);
        put(handle, MPI_T_PVAR_HANDLE_NULL)?;
    }

    fn MPI_T_pvar_read(of: Handle, handle: Handle, to: *mut u64) on On::Nobody; {
        begun()?;
        let bound = bound(of, handle)?;
        let queues = comm(bound.comm)
            .map_err(|e| Fail::new(MPI_T_ERR_NOT_ACCESSIBLE, e.message().to_owned()))?
            .comm
            .queues();
        put(to, (VARIABLES[bound.variable].of)(&queues))?;
    }

    fn MPI_T_pvar_write(of: Handle, handle: Handle, _from: *const u8) on On::Nobody; {
        begun()?;
        write(of, handle)?;
    }

    fn MPI_T_pvar_reset(of: Handle, handle: Handle) on On::Nobody; {
        begun()?;
        write(of, handle)?;
    }

    fn MPI_T_pvar_readreset(of: Handle, handle: Handle, _to: *mut u8) on On::Nobody; {
        begun()?;
        bound(of, handle)?;
        write(of, handle)?;
    }

    fn MPI_T_pvar_start(of: Handle, handle: Handle) on On::Nobody; {
        begun()?;
        start_or_stop(of, handle)?;
    }

    fn MPI_T_pvar_stop(of: Handle, handle: Handle) on On::Nobody; {
        begun()?;
        start_or_stop(of, handle)?;
    }
}
