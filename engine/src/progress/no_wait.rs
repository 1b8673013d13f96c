//! Code that must not wait: tasks of graphs.
//!
//! A thread that runs tasks has others to run; one that waited inside a task would keep them
//! from the very messages that it waits for. So a call that waits is an error there. A thread
//! says which task it is in by two stores for each call of one; calls ask only on ranks where
//! a graph runs ([`Core::must_not_wait`]).

use super::core::Core;
use crate::error::{Error, ErrorKind};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

/// The number of no task.
const NONE: u32 = u32::MAX;

/// The name of a task, by its number and its run's key; `None` if the run is not known.
type Names = Box<dyn Fn(u32, usize) -> Option<String>>;

thread_local! {
    static TASK: Cell<(u32, usize)> = const { Cell::new((NONE, 0)) };
    static NAMES: RefCell<Option<Names>> = const { RefCell::new(None) };
}

/// This thread runs code of a task, of the run with this key.
#[inline]
pub fn enter(task: u32, run: usize) {
    TASK.set((task, run));
}

/// It does no longer.
#[inline]
pub fn leave() {
    TASK.set((NONE, 0));
}

/// While it lives, graphs run on a rank.
pub struct GraphRuns<'a>(&'a Core);

impl<'a> GraphRuns<'a> {
    pub fn begin(core: &'a Core) -> Self {
        core.graphs.fetch_add(1, Ordering::Relaxed);
        Self(core)
    }
}

impl Drop for GraphRuns<'_> {
    fn drop(&mut self) {
        self.0.graphs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While it lives, this thread runs tasks with these names.
pub struct Named(());

impl Named {
    pub fn by(names: impl Fn(u32, usize) -> Option<String> + 'static) -> Self {
        NAMES.set(Some(Box::new(names)));
        Self(())
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        NAMES.set(None);
    }
}

/// What a thread has said of its task, while it runs a virtual rank that is not in it.
pub(super) struct TaskAside {
    task: (u32, usize),
    names: Option<Names>,
}

impl TaskAside {
    pub fn put() -> TaskAside {
        TaskAside {
            task: TASK.replace((NONE, 0)),
            names: NAMES.take(),
        }
    }

    pub fn bring_back(self) {
        TASK.set(self.task);
        NAMES.set(self.names);
    }
}

impl Core {
    /// Whether this thread is in a task, where calls that wait are errors.
    #[inline]
    pub fn must_not_wait(&self) -> bool {
        self.graphs.load(Ordering::Relaxed) > 0 && TASK.get().0 != NONE
    }

    /// Whether short calls leave their own code to that which records, checks and refuses.
    #[inline]
    pub fn records_or_refuses(&self) -> bool {
        self.trace.is_some() || self.must_not_wait()
    }
}

/// The error of a call that waits, in a task.
#[cold]
pub fn refused(call: &str) -> Error {
    let (task, run) = TASK.get();
    let task = NAMES.with_borrow(|names| names.as_ref().and_then(|names| names(task, run)));
    let task = task.map_or_else(|| "a task".into(), |name| format!("task {name}"));
    let text = format!(
        "{call} in {task}: a task does not wait (hint: let the message come on an edge, or test a request in a later firing)"
    );
    Error::new(ErrorKind::Task, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_call_and_task() {
        let text = |call| refused(call).to_string();
        assert!(text("recv").starts_with("recv in a task: "));
        let named = Named::by(|task, run| (run == 7).then(|| format!("cell[{task}]")));
        enter(3, 8);
        assert!(text("recv").starts_with("recv in a task: "));
        enter(3, 7);
        let aside = TaskAside::put();
        assert_eq!(TASK.get().0, NONE, "another virtual rank");
        aside.bring_back();
        let e = text("recv");
        leave();
        drop(named);
        assert!(
            e.starts_with("recv in task cell[3]: a task does not wait"),
            "{e}"
        );
        assert!(text("recv").starts_with("recv in a task: "));
    }
}
