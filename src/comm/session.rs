//! Sessions: a rank's view of its job without a world.
//!
//! # Sources
//! MPI 5.0, section 11.3 (the sessions model).

use super::{
    ErrorCodes, ErrorHandler, Group, HandlerCell, Info, Joined, Member, ProcessSets, Raised,
};
use osier_engine::error::{Error, Result};
use osier_engine::progress::attached::Attached;
use osier_engine::progress::core::Core;
use osier_engine::progress::suspend;
use std::fmt;
use std::sync::Arc;

/// Access to a job for a part of a program that brings its own groups.
///
/// Sessions are values. The first one of a process joins the job
/// ([`Session::init`]); further ones come from it ([`Session::another`]) or
/// from a universe or communicator
/// ([`Communicator::session`](crate::Communicator::session)). Each has
/// an error handler of its own. Dropping one waits until everything sent on its
/// communicators has left this rank; when the last of them is dropped, that is everything,
/// and the rank has left the job for good.
///
/// ```
/// let session = osier::Session::init()?;
/// let group = session.group("mpi://WORLD")?;
/// let comm = session.create_from_group(&group, "org.example.solver")?;
/// comm.barrier()?;
/// # Ok::<(), osier::Error>(())
/// ```
pub struct Session {
    joined: Joined,
    handler: HandlerCell,
    /// The buffer for buffered sends of its communicators.
    attached: Arc<Attached>,
}

impl Session {
    pub(crate) fn of(member: &Arc<Member>) -> Session {
        Session {
            joined: Joined::new(member, false),
            handler: HandlerCell::default(),
            attached: Arc::default(),
        }
    }

    /// Another session of the same rank, with an error handler of its own.
    pub fn another(&self) -> Session {
        Self::of(&self.joined.member)
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.joined.member
    }

    pub(crate) fn attached(&self) -> &Arc<Attached> {
        &self.attached
    }

    pub(crate) fn core(&self) -> &Core {
        &self.joined.member.core
    }

    /// This rank's number in the job.
    pub fn rank(&self) -> usize {
        self.member().rank()
    }

    /// The process sets of the job: their names, groups and info.
    pub fn process_sets(&self) -> &ProcessSets {
        &self.joined.member.psets
    }

    /// The group of a process set.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::Argument`](crate::ErrorKind::Argument), if there is no such set; the
    /// error lists the names.
    pub fn group(&self, process_set: &str) -> Result<Group> {
        self.reported(self.process_sets().group(process_set).cloned())
    }

    /// What holds for the session: `thread_level` and
    /// `mpi_memory_alloc_kinds`.
    pub fn info(&self) -> Info {
        let mut info = Info::new();
        for (key, value) in [
            ("thread_level", "MPI_THREAD_MULTIPLE"),
            ("mpi_memory_alloc_kinds", "mpi,system"),
        ] {
            // Short enough.
            let _ = info.set(key, value);
        }
        info
    }

    /// Error codes that this program has added.
    pub fn error_codes(&self) -> &ErrorCodes {
        &self.joined.member.codes
    }

    /// What happens besides returning an error of a call on this session.
    /// Communicators that it makes begin with its handler.
    pub fn set_error_handler(&self, handler: ErrorHandler) {
        self.handler.set(handler);
    }

    /// The present handler.
    pub fn error_handler(&self) -> ErrorHandler {
        self.handler.get()
    }

    /// Runs the handler, and gives the error back
    /// (`MPI_Session_call_errhandler`). An error passes a handler once.
    pub fn raise(&self, e: Error) -> Error {
        self.handler.raise(Raised::Session(self), e)
    }

    pub(crate) fn reported<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|e| self.raise(e))
    }

    /// Ends the job: all ranks, with this exit code.
    pub fn abort(&self, code: i32) -> ! {
        self.core().abort(code)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !suspend::unwinds() {
            self.core().flush(Some(self.attached.mark()));
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Session {{ rank {} of {} }}",
            self.rank(),
            self.core().ranks
        )
    }
}
