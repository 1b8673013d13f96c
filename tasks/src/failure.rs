//! Failures: which task could not go on, and why.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Why a task has ended before it was done.
#[derive(Clone, Debug)]
pub enum Cause {
    /// It returned an error.
    Error(Arc<dyn std::error::Error + Send + Sync>),
    /// It panicked with this message.
    Panic(String),
    /// As another rank tells, or as was found out about that rank.
    Told(String),
    /// Its rank has left in good order, and sends no more.
    Left(String),
    /// It is done, and sends no more.
    Ended,
    /// It can no longer be fired: those that were to send to it have ended.
    Orphan(String),
}

impl Cause {
    /// Whether the task, or its rank, came to an end without an error.
    pub fn is_orderly(&self) -> bool {
        matches!(self, Cause::Left(_) | Cause::Ended)
    }
}

/// The end of a task, and of those that needed its messages.
#[derive(Clone, Debug)]
pub struct Failure {
    /// With its coordinates: `cell[3, 1]`.
    pub task: String,
    pub rank: usize,
    pub cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { task, rank, cause } = self;
        match cause {
            Cause::Error(e) => write!(f, "task {task} of rank {rank}: {e}"),
            Cause::Panic(message) => write!(f, "task {task} of rank {rank} panicked: {message}"),
            Cause::Told(text) | Cause::Left(text) => write!(f, "{text}"),
            Cause::Ended => write!(f, "task {task} of rank {rank} has ended"),
            Cause::Orphan(why) => {
                write!(
                    f,
                    "task {task} of rank {rank} can no longer be fired: {why}"
                )
            }
        }
    }
}

impl std::error::Error for Failure {}

/// The message of a panic.
pub fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".into())
}
