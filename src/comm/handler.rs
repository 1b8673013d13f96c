//! Error handlers: what happens besides returning the error.
//!
//! Every call returns its error as a `Result`, whatever the handler. A handler
//! runs before that, once per error, on the thread that made the call.
//!
//! # Sources
//! MPI 5.0, sections 9.3 and 9.5. The differences and their reasons are in
//! `docs/decisions/0019-error-handlers-run-beside-results.md`.

use super::{Communicator, Session};
use osier_engine::diagnose::tell;
use osier_engine::error::{Error, Result};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Where an error was raised.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Raised<'a> {
    /// On a communicator.
    Communicator(&'a Communicator),
    /// On a session.
    Session(&'a Session),
}

type Function = dyn Fn(Raised<'_>, &Error) + Send + Sync;

/// What happens besides returning an error.
///
/// ```
/// # osier::testing::ranks(1, |comm| {
/// use osier::errors::ErrorHandler;
/// comm.set_error_handler(ErrorHandler::custom(|_, e| eprintln!("osier: {e}")));
/// assert!(comm.send(&[0u8], 99, 0).is_err()); // printed, and returned
/// # Ok::<(), osier::Error>(())
/// # }).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
/// ```
#[derive(Clone, Default)]
pub enum ErrorHandler {
    /// Nothing (MPI's `MPI_ERRORS_RETURN`); the default.
    #[default]
    Return,
    /// The job ends (`MPI_ERRORS_ARE_FATAL`).
    Fatal,
    /// The job ends, too: ending the ranks of one communicator only is not
    /// offered, as the standard permits (`MPI_ERRORS_ABORT`).
    Abort,
    /// A function is called, and the error returned after that.
    Custom(Arc<Function>),
}

impl ErrorHandler {
    /// A function of the user.
    pub fn custom(f: impl Fn(Raised<'_>, &Error) + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(f))
    }

    /// Runs it.
    fn handle(&self, raised: Raised<'_>, e: &Error) {
        match self {
            Self::Return => {}
            Self::Fatal | Self::Abort => {
                let (core, what) = match raised {
                    Raised::Communicator(comm) => (&**comm.core(), comm.title()),
                    Raised::Session(session) => (session.core(), "a session".into()),
                };
                tell(format_args!(
                    "rank {}: fatal error on {what}: {e}",
                    core.rank
                ));
                core.abort(1);
            }
            Self::Custom(function) => function(raised, e),
        }
    }
}

/// Same kind, and the same function.
impl PartialEq for ErrorHandler {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Custom(a), Self::Custom(b)) => Arc::ptr_eq(a, b),
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

impl Eq for ErrorHandler {}

impl fmt::Debug for ErrorHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Return => "Return",
            Self::Fatal => "Fatal",
            Self::Abort => "Abort",
            Self::Custom(_) => "Custom",
        })
    }
}

/// The handler of one object.
#[derive(Default)]
pub(crate) struct HandlerCell(RwLock<ErrorHandler>);

impl HandlerCell {
    pub fn new(handler: ErrorHandler) -> Self {
        Self(RwLock::new(handler))
    }

    pub fn set(&self, handler: ErrorHandler) {
        let mut cell = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *cell, handler);
        drop(cell);
        // What a function of the user has captured is dropped without the lock.
        drop(before);
    }

    pub fn get(&self) -> ErrorHandler {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Runs the handler for an error that none has seen. It may set another.
    #[cold]
    pub fn raise(&self, raised: Raised<'_>, mut e: Error) -> Error {
        if e.mark_raised() {
            self.get().handle(raised, &e);
        }
        e
    }
}

impl Communicator {
    /// What happens besides returning an error of a call on this communicator.
    /// New communicators take over their parent's handler.
    pub fn set_error_handler(&self, handler: ErrorHandler) {
        self.0.handler.set(handler);
    }

    /// The present handler.
    pub fn error_handler(&self) -> ErrorHandler {
        self.0.handler.get()
    }

    /// Runs the handler, and gives the error back
    /// (`MPI_Comm_call_errhandler`). An error passes a handler once.
    #[cold]
    pub fn raise(&self, e: Error) -> Error {
        if self.0.hidden {
            return e; // the communicator that uses it has a handler
        }
        self.0.handler.raise(Raised::Communicator(self), e)
    }

    /// Runs the handler for an error that stays where it is; a copy of it.
    #[cold]
    pub(crate) fn raise_in_place(&self, e: &mut Error) -> Error {
        let raised = self.raise(e.clone());
        *e = raised.clone();
        raised
    }

    /// Runs the handler if it is an error.
    #[inline]
    pub(crate) fn reported<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(e) => Err(self.raise(e)),
        }
    }

    /// Ends the job: all ranks, with this exit code (`MPI_Abort`).
    pub fn abort(&self, code: i32) -> ! {
        self.core().abort(code)
    }
}
