//! Basics of the tool interface: it begins and ends, and has no variables and no events.
//!
//! # Sources
//! MPI 5.0, chapter 15: an implementation may have no variables at all.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::fail::{Fail, Res, put};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

static DEPTH: AtomicI32 = AtomicI32::new(0);

fn begun() -> Res {
    match DEPTH.load(Relaxed) > 0 {
        true => Ok(()),
        false => Err(Fail::new(
            MPI_T_ERR_NOT_INITIALIZED,
            "a call before MPI_T_init_thread",
        )),
    }
}

fn none() -> Fail {
    Fail::new(
        MPI_T_ERR_INVALID_INDEX,
        "there is no variable of this number",
    )
}

macro_rules! counts {
    ($(fn $name:ident;)*) => {
        mpi! {$(
            fn $name(n: *mut c_int) on On::Nobody; {
                begun()?;
                put(n, 0)?;
            }
        )*}
    };
}

counts! {
    fn MPI_T_cvar_get_num;
    fn MPI_T_pvar_get_num;
    fn MPI_T_category_get_num;
    fn MPI_T_event_get_num;
    fn MPI_T_source_get_num;
    fn MPI_T_category_changed;
}

macro_rules! no_such {
    ($(fn $name:ident;)*) => {
        mpi! {$(
            fn $name(_number: c_int) on On::Nobody; {
                begun()?;
                return Err(none());
            }
        )*}
    };
}

// Whatever else they take, there is nothing to be told of.
no_such! {
    fn MPI_T_cvar_get_info;
    fn MPI_T_pvar_get_info;
    fn MPI_T_category_get_info;
    fn MPI_T_event_get_info;
    fn MPI_T_source_get_info;
    fn MPI_T_cvar_handle_alloc;
    fn MPI_T_category_get_cvars;
    fn MPI_T_category_get_pvars;
    fn MPI_T_category_get_events;
    fn MPI_T_category_get_categories;
}

macro_rules! no_name {
    ($(fn $name:ident;)*) => {
        mpi! {$(
            fn $name(_name: *const c_char) on On::Nobody; {
                begun()?;
                return Err(Fail::new(MPI_T_ERR_INVALID_NAME, "there is nothing of this name"));
            }
        )*}
    };
}

no_name! {
    fn MPI_T_cvar_get_index;
    fn MPI_T_pvar_get_index;
    fn MPI_T_category_get_index;
    fn MPI_T_event_get_index;
}

mpi! {
    fn MPI_T_init_thread(_required: c_int, provided: *mut c_int) on On::Nobody; {
        DEPTH.fetch_add(1, Relaxed);
        put(provided, MPI_THREAD_MULTIPLE)?;
    }

    fn MPI_T_finalize() on On::Nobody; {
        begun()?;
        DEPTH.fetch_sub(1, Relaxed);
    }

    fn MPI_T_pvar_session_create(session: *mut usize) on On::Nobody; {
        begun()?;
        // There is nothing that a session could hold.
        put(session, 0x1000)?;
    }

    fn MPI_T_pvar_session_free(session: *mut usize) on On::Nobody; {
        begun()?;
        put(session, MPI_T_PVAR_SESSION_NULL)?;
    }
}
