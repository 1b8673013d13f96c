//! Tasks: what a user writes.

use crate::context::Context;
use crate::rule::Rule;

/// Why a task cannot go on: any error.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// What a task does after a call.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Next {
    /// Waits by the rule that it has.
    #[default]
    Wait,
    /// Waits by this rule from now on.
    When(Rule),
    /// Is called again, whatever has come; behind tasks of its priority that are ready.
    Again,
    /// Has ended. Messages that still come are dropped.
    Done,
}

/// What a task's own rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fire {
    /// Not yet.
    Hold,
    /// [`Task::execute`] is called.
    Ready,
}

/// A task: state, and what it does with messages.
///
/// Only the runtime calls it, one call at a time. Calls never wait for a message: what is
/// missing comes with a later firing.
pub trait Task: Send + 'static {
    /// Called once, before any other.
    ///
    /// # Errors
    /// The task ends; tasks that need its messages end with this cause.
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        let _ = cx;
        Ok(Next::Wait)
    }

    /// Of [`Rule::Own`]: called when messages have come, never beside another call. All that
    /// have come are this call's, and dropped when it returns; `execute` gets none.
    ///
    /// # Errors
    /// As [`Task::init`].
    fn inject(&mut self, cx: &mut Context<'_>) -> Result<Fire, TaskError> {
        let _ = cx;
        Ok(Fire::Ready)
    }

    /// Called each time the firing rule is met. The messages that met it are this call's:
    /// the first on each edge that the rule names, and of [`Rule::Count`] as many as it
    /// counts. They are dropped when it returns.
    ///
    /// # Errors
    /// As [`Task::init`].
    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError>;
}

impl<F> Task for F
where
    F: FnMut(&mut Context<'_>) -> Result<Next, TaskError> + Send + 'static,
{
    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        self(cx)
    }
}
