//! Sessions and process sets.

use crate::abi::*;
use crate::call::{On, mpi};
use crate::errors::Handler;
use crate::fail::{Fail, argument, get, put, text};
use crate::info::new_info;
use crate::objects::{CSession, SESSIONS, session};
use crate::state;
use std::sync::{Arc, Mutex};

mpi! {
    fn MPI_Session_init(
        hints: Handle, errhandler: Handle, to: *mut Handle
    ) on On::Given(errhandler, MPI_SESSION_NULL); {
        let handler = Handler::of(errhandler)?;
        put(to, MPI_SESSION_NULL)?;
        // A session may be one thread's, and another's another's: the highest level is given
        // whatever is asked for, but it has to be a level.
        let levels = ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"];
        if let Some(level) = crate::info::info(hints)?.get("thread_level")
            && !level.strip_prefix("MPI_THREAD_").is_some_and(|l| levels.contains(&l))
        {
            return Err(argument(format!("{level} is no level of threads")));
        }
        state::expect_threads();
        let made = CSession {
            session: state::session()?,
            handler: Mutex::new(handler),
            buffer: Mutex::new(None),
        };
        put(to, SESSIONS.insert(Arc::new(made)))?;
    }

    fn MPI_Session_finalize(on: *mut Handle) on On::Own; {
        let handle = get(on)?;
        session(handle)?;
        drop(SESSIONS.remove(handle));
        state::session_ended();
        put(on, MPI_SESSION_NULL)?;
    }

    fn MPI_Session_get_info(on: Handle, to: *mut Handle) on On::Session(on); {
        put(to, new_info(session(on)?.session.info()))?;
    }

    fn MPI_Session_get_num_psets(on: Handle, _hints: Handle, n: *mut c_int) on On::Session(on); {
        put(n, session(on)?.session.process_sets().names().len() as c_int)?;
    }

    fn MPI_Session_get_nth_pset(
        on: Handle, _hints: Handle, n: c_int, length: *mut c_int, to: *mut c_char
    ) on On::Session(on); {
        let sets = session(on)?.session.process_sets();
        let found = usize::try_from(n).ok().and_then(|n| sets.names().nth(n));
        let name = found.ok_or_else(|| Fail::new(MPI_ERR_ARG, format!("no process set number {n}")))?;
        let room = get(length)?;
        if room > 0 {
            crate::fail::put_text(to, room as usize, name, std::ptr::null_mut())?;
        }
        put(length, name.len() as c_int + 1)?;
    }

    fn MPI_Session_get_pset_info(on: Handle, name: *const c_char, to: *mut Handle) on On::Session(on); {
        let name = text(name)?;
        let info = session(on)?.session.process_sets().info(&name)?;
        put(to, new_info(info))?;
    }
}
