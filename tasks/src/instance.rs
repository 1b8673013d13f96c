//! A run of a graph on one rank: what changes while it runs.
//!
//! ```text
//! put, or a message from another rank          (writing)
//!    slot <- elements
//!    edge word += 1          for each consumer
//!    task word -= 1          if the task lacked it; fired at 0
//!    -> the worker that is at it, or the inbox of the task's home
//! worker: execute                              (running)
//!    slots released, edges read, task word: what the next firing lacks
//! ```
//!
//! # Invariants
//! 1. `body` of a task, and what of its edges is the reader's, is touched by the task's owner
//!    only ([`crate::word`], invariant 1).
//! 2. A branch has one writer at a time: of a branch from here the owner of the producing
//!    task, or who sends what waits in its line, which is locked then; of one from another
//!    rank the thread that handles that rank's messages.
//! 3. The slot of a message is free before the message that many slots later is written.
//! 4. Callers of unsafe functions keep what these ask of them.

use crate::child::{Argument, Children};
use crate::describe::{Description, Element};
use crate::event::{Events, WakeWorkers};
use crate::failure::Failure;
use crate::inbox::{Inbox, Link};
use crate::line::Line;
use crate::memory::Memory;
use crate::orphan::Asks;
use crate::places::Places;
use crate::residual::ToldRule;
use crate::rule::Rule;
use crate::shape::{Shape, TaskShape};
use crate::slot::{Slot, most_short};
use crate::sync::AtomicU32;
use crate::task::Task;
use crate::watch::Watch;
use crate::word::{EdgeWord, Standing, TaskWord};
use osier_transports::full_fence;
use std::any::TypeId;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What the owner of a task has besides its word. Cells, so that nothing that was written is
/// put off past the moment at which the owner gives the task away.
pub(crate) struct Body {
    pub task: Cell<Option<Box<dyn Task>>>,
    rule: UnsafeCell<Rule>,
    pub firing: Cell<u64>,
    /// Messages may wait in lines of its output ports.
    pub lines: Cell<bool>,
    /// It was left to wait for those lines alone.
    pub blocked: Cell<bool>,
    /// It ends once they are empty.
    pub ending: Cell<bool>,
    /// Its edges are armed, or asked, as the rule says.
    pub armed: Cell<bool>,
    /// Edges that it lacks since they were read.
    pub lacking: Cell<u32>,
}

impl Body {
    /// The rule that it waits by. To be used by the owner only, as the body is.
    #[inline]
    pub fn rule(&self) -> &Rule {
        // SAFETY: invariant 1: the owner alone is here, and replaces it only in `set_rule`.
        unsafe { &*self.rule.get() }
    }

    /// Waits by another rule from now on.
    ///
    /// # Safety
    /// What [`Body::rule`] returned is not used any more.
    pub unsafe fn set_rule(&self, rule: Rule) {
        // SAFETY: invariants 1 and 4: the owner alone is here, and the old one is not used.
        unsafe { *self.rule.get() = rule };
    }
}

pub(crate) struct TaskState {
    pub word: TaskWord,
    pub home: u32,
    pub priority: AtomicI32,
    body: Body,
}

// SAFETY: invariant 1: one thread at a time reaches the body, which is `Send`.
unsafe impl Sync for TaskState {}

impl TaskState {
    /// What the owner has.
    ///
    /// # Safety
    /// The caller owns the task (invariant 1), and uses this only until it gives it away.
    pub unsafe fn body(&self) -> &Body {
        &self.body
    }
}

/// What the reader of an edge keeps.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reader {
    /// The number of the first message that it has not read.
    pub next: u32,
    /// Messages that belong to the firing of the task.
    pub offered: u32,
    /// The task lacks it: it was empty when it was last looked at.
    pub lacks: bool,
}

/// An edge into a task.
pub(crate) struct EdgeState {
    pub word: EdgeWord,
    pub task: u32,
    pub branch: u32,
    /// Of its branch: the first slot, and their number less one, a power of two.
    slots: u32,
    mask: u32,
    reader: UnsafeCell<Reader>,
}

// SAFETY: invariant 1: the reader's part is the task owner's: numbers.
unsafe impl Sync for EdgeState {}

impl EdgeState {
    /// What its reader keeps.
    ///
    /// # Safety
    /// The caller owns the task that reads it (invariant 1), and has no other reference.
    #[expect(clippy::mut_from_ref, reason = "the caller owns the task")]
    #[inline]
    pub unsafe fn reader(&self) -> &mut Reader {
        // SAFETY: invariant 4: the caller's contract.
        unsafe { &mut *self.reader.get() }
    }
}

/// An output port, as a task that puts a message there needs it.
pub(crate) struct OutputState {
    pub id: TypeId,
    pub bytes: usize,
    /// Most elements of a message that lies in a slot.
    pub most_short: usize,
    /// The branch here, with its first slot, their number less one, and its consumers.
    pub branch: Option<u32>,
    pub slots: u32,
    pub mask: u32,
    pub consumers: Range<u32>,
    /// Branches lead to other ranks, too; messages of more bytes go there as they lie.
    pub remote: bool,
    pub most_copied: usize,
}

pub(crate) struct BranchState {
    /// The first slot, and their number less one: a power of two.
    slots: u32,
    mask: u32,
    /// Number of the next message; only its writer stores (invariant 2).
    pub next: AtomicU32,
    /// Of a branch from another rank: the first message that not all have read.
    pub tail: AtomicU32,
    /// Messages read by all, for which no credit has been sent.
    pub owed: AtomicU32,
    /// Consumers that have not ended.
    pub readers: AtomicU32,
    /// Why no more messages come.
    pub cause: OnceLock<Arc<Failure>>,
    delivery: UnsafeCell<Delivery>,
}

/// A long message on its way from another rank.
#[derive(Default)]
pub(crate) struct Delivery {
    pub bytes: usize,
    /// Room for its packed form, where that is not the elements.
    pub packed: Vec<u8>,
}

// SAFETY: invariant 2: `delivery` is the writer's.
unsafe impl Sync for BranchState {}

impl BranchState {
    /// What its writer keeps.
    ///
    /// # Safety
    /// The caller is the branch's writer (invariant 2), and has no other reference.
    #[expect(clippy::mut_from_ref, reason = "the caller is the branch's writer")]
    pub unsafe fn delivery(&self) -> &mut Delivery {
        // SAFETY: invariant 4: the caller's contract.
        unsafe { &mut *self.delivery.get() }
    }
}

/// Messages that wait, as packed elements.
pub(crate) type Waiting = Line<Arc<Memory>>;

/// How the messages of a graph reach other ranks.
pub trait Outside: Send + Sync {
    /// A message for a branch, by its place in the letter to the rank. The bytes are the
    /// packed elements.
    fn put(&self, rank: u32, place: u32, packed: &[u8]);
    /// The same of packed elements that stay where they are.
    fn put_memory(&self, rank: u32, place: u32, memory: &Arc<Memory>) {
        self.put(rank, place, memory.bytes());
    }
    /// Most bytes of a message to a rank that is better copied.
    fn most_copied(&self, rank: u32) -> usize {
        let _ = rank;
        usize::MAX
    }
    /// Messages of a branch from that rank have been read.
    /// The number [`NO_MORE`] says that all consumers have ended, and
    /// [`ASKED`](crate::orphan::ASKED) asks whether the producer has.
    fn credit(&self, rank: u32, place: u32, messages: u32);
    /// No more messages will come on a branch.
    fn fail(&self, rank: u32, place: u32, cause: &Failure);
    /// The producer of a branch has ended, as the rank has asked to be told.
    fn ended(&self, rank: u32, place: u32);
    /// There is a task that no worker may have seen: wakes those that sleep.
    fn wake(&self);
    /// The same at a time when this may not be there any more.
    fn waker(&self) -> WakeWorkers {
        Arc::new(|| {})
    }
}

/// Credit of a branch that nobody reads any more.
pub const NO_MORE: u32 = u32::MAX;
/// Credit of one to a rank that wants no more, so that its messages are dropped.
pub(crate) const DROPPED: u32 = 1 << 30;

/// Of a graph on one rank: it has no branch that leads outside.
struct Alone;

impl Outside for Alone {
    fn put(&self, _: u32, _: u32, _: &[u8]) {}
    fn credit(&self, _: u32, _: u32, _: u32) {}
    fn fail(&self, _: u32, _: u32, _: &Failure) {}
    fn ended(&self, _: u32, _: u32) {}
    fn wake(&self) {}
}

/// What the workers of a rank share of one of them.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct WorkerState {
    pub inbox: Inbox,
    /// Tasks that it has ended.
    pub retired: AtomicU32,
}

/// A run of a graph on one rank.
pub struct Instance {
    pub(crate) graph: Arc<Description>,
    pub(crate) shape: Arc<Shape>,
    pub(crate) tasks: Box<[TaskState]>,
    links: Box<[Link]>,
    pub(crate) edges: Box<[EdgeState]>,
    pub(crate) outputs: Box<[OutputState]>,
    pub(crate) branches: Box<[BranchState]>,
    slots: Box<[Slot]>,
    /// By output port: of the branch here.
    pub(crate) lines: Box<[Waiting]>,
    /// By branch to another rank, and the messages that may be sent there.
    pub(crate) remote_lines: Box<[Waiting]>,
    pub(crate) credits: Box<[AtomicU32]>,
    pub(crate) workers: Box<[WorkerState]>,
    pub(crate) failed: AtomicBool,
    failures: Mutex<Vec<Arc<Failure>>>,
    pub(crate) asks: Asks,
    /// By task: its rule.
    pub(crate) told_rules: Box<[ToldRule]>,
    outside: Box<dyn Outside>,
    pub(crate) events: Arc<Events>,
    pub(crate) children: Children,
    /// Its rank in messages; of a child that of the run which began it.
    pub(crate) rank: usize,
    /// Counted from 1, the same on all ranks; of a child that of the run which began it.
    pub(crate) run: u32,
    /// What its tasks may ask for.
    pub(crate) argument: Option<Argument>,
    /// What is seen of calls, if it was asked for.
    pub(crate) watch: Option<Box<Watch>>,
    /// Where its workers run, if anybody looks.
    pub(crate) places: Option<Arc<Places>>,
    /// One thread runs the tasks and delivers the messages.
    pub(crate) alone: bool,
}

/// What a thread does with the tasks that it has fired, and with messages for other ranks.
pub trait Fired {
    /// The task is the callee's to run or to hand on.
    fn fired(&mut self, instance: &Instance, task: u32);

    /// As [`Outside::put`].
    fn put(&mut self, instance: &Instance, rank: u32, place: u32, packed: &[u8]) {
        instance.outside.put(rank, place, packed);
    }

    /// As [`Outside::put_memory`].
    fn put_memory(&mut self, instance: &Instance, rank: u32, place: u32, memory: &Arc<Memory>) {
        instance.outside.put_memory(rank, place, memory);
    }

    /// As [`Outside::credit`].
    fn credit(&mut self, instance: &Instance, rank: u32, place: u32, messages: u32) {
        instance.outside.credit(rank, place, messages);
    }

    /// As [`Outside::fail`].
    fn fail(&mut self, instance: &Instance, rank: u32, place: u32, cause: &Failure) {
        instance.outside.fail(rank, place, cause);
    }

    /// As [`Outside::ended`].
    fn ended(&mut self, instance: &Instance, rank: u32, place: u32) {
        instance.outside.ended(rank, place);
    }
}

/// Of a thread that is no worker of the instance: tasks go to their homes.
pub struct Elsewhere;

impl Fired for Elsewhere {
    fn fired(&mut self, instance: &Instance, task: u32) {
        instance.send_home(task);
    }
}

impl Instance {
    /// A run, by its number, of a number of workers, before it begins.
    pub fn new(
        graph: &Arc<Description>,
        shape: &Arc<Shape>,
        (run, workers): (u32, usize),
        outside: Option<Box<dyn Outside>>,
    ) -> Instance {
        let mut slots = 0u32;
        let branches = shape.branches.iter().map(|branch| {
            let first = slots;
            slots += branch.window.slots;
            BranchState {
                slots: first,
                mask: branch.window.slots - 1,
                next: AtomicU32::new(0),
                tail: AtomicU32::new(0),
                owed: AtomicU32::new(0),
                readers: AtomicU32::new(branch.consumers.len() as u32),
                cause: OnceLock::new(),
                delivery: UnsafeCell::default(),
            }
        });
        let branches: Box<[_]> = branches.collect();
        let count = shape.tasks.len();
        let tasks = shape.tasks.iter().enumerate().map(|(number, task)| {
            let family = &graph.families[task.family as usize];
            let priority = family.priority.as_ref();
            TaskState {
                word: TaskWord::owned(),
                home: (number * workers / count) as u32,
                priority: AtomicI32::new(priority.map_or(0, |of| of(&shape.at(number as u32)))),
                body: Body {
                    task: Cell::new(None),
                    rule: UnsafeCell::new(family.rule.clone()),
                    firing: Cell::new(0),
                    lines: Cell::new(false),
                    blocked: Cell::new(false),
                    ending: Cell::new(false),
                    armed: Cell::new(false),
                    lacking: Cell::new(0),
                },
            }
        });
        let edges = shape.inputs.iter().map(|input| {
            let branch: &BranchState = &branches[input.branch as usize];
            EdgeState {
                word: EdgeWord::empty(),
                task: input.task,
                branch: input.branch,
                slots: branch.slots,
                mask: branch.mask,
                reader: UnsafeCell::default(),
            }
        });
        let outside = outside.unwrap_or_else(|| Box::new(Alone));
        let outputs = shape.outputs.iter().map(|output| {
            let remotes = output.remotes.start as usize..output.remotes.end as usize;
            let copied = shape.remotes[remotes].iter();
            let copied = copied.map(|to| outside.most_copied(to.rank)).min();
            let element = &shape.elements[output.element as usize];
            let of = |branch: u32| &branches[branch as usize];
            let consumers = |branch: u32| shape.branches[branch as usize].consumers.clone();
            OutputState {
                id: element.id,
                bytes: element.bytes,
                most_short: most_short(element),
                branch: output.here,
                slots: output.here.map_or(0, |branch| of(branch).slots),
                mask: output.here.map_or(0, |branch| of(branch).mask),
                consumers: output.here.map_or(0..0, consumers),
                remote: !output.remotes.is_empty(),
                most_copied: copied.unwrap_or(usize::MAX),
            }
        });
        let of_output = |output: u32| shape.outputs[output as usize].window.slots;
        let credits = shape
            .remotes
            .iter()
            .map(|to| AtomicU32::new(of_output(to.output)));
        let has_events = shape.has_events();
        let rule = |task: &TaskShape| &graph.families[task.family as usize].rule;
        let told_rules = shape.tasks.iter().map(|task| ToldRule::new(rule(task)));
        Instance {
            asks: Asks::new(branches.len(), shape.remotes.len()),
            told_rules: told_rules.collect(),
            tasks: tasks.collect(),
            outputs: outputs.collect(),
            links: (0..count).map(|_| Link::new()).collect(),
            edges: edges.collect(),
            branches,
            slots: (0..slots).map(|_| Slot::free()).collect(),
            lines: shape.outputs.iter().map(|_| Waiting::default()).collect(),
            remote_lines: shape.remotes.iter().map(|_| Waiting::default()).collect(),
            credits: credits.collect(),
            workers: (0..workers).map(|_| WorkerState::default()).collect(),
            failed: AtomicBool::new(false),
            failures: Mutex::default(),
            alone: workers == 1,
            events: Events::new(
                outside.waker(),
                if has_events { shape.outputs.len() } else { 0 },
            ),
            rank: shape.rank,
            children: Children::default(),
            run,
            argument: None,
            watch: None,
            places: None,
            outside,
            shape: shape.clone(),
            graph: graph.clone(),
        }
    }

    /// Whether its tasks run in the exact order of their priorities.
    pub(crate) fn is_exact(&self) -> bool {
        self.graph.exact
    }

    /// Whether a task began it.
    pub(crate) fn is_child(&self) -> bool {
        self.argument.is_some()
    }

    /// Tasks whose home a worker is.
    pub(crate) fn at_home(&self, worker: u32) -> Range<u32> {
        let first = |worker: u32| self.tasks.partition_point(|task| task.home < worker) as u32;
        first(worker)..first(worker + 1)
    }

    /// Whether all tasks of the rank have ended.
    pub fn has_ended(&self) -> bool {
        // Of two workers that end the last tasks, one at least sees both.
        full_fence();
        self.retired() == self.tasks.len() && self.children.have_ended()
    }

    /// Tasks of the rank that have ended.
    pub(crate) fn retired(&self) -> usize {
        let retired = |state: &WorkerState| state.retired.load(Ordering::SeqCst) as usize;
        self.workers.iter().map(retired).sum()
    }

    /// Tells it from other runs as long as it is there.
    pub(crate) fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Failures so far, the first one first.
    pub fn failures(&self) -> Vec<Arc<Failure>> {
        self.all_failures().clone()
    }

    pub(crate) fn all_failures(&self) -> MutexGuard<'_, Vec<Arc<Failure>>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tasks of the rank and their edges.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How a task stands, for reports.
    pub fn standing(&self, task: u32) -> Standing {
        self.tasks[task as usize].word.look()
    }

    /// A task, how it stands, the edges without messages, and the ports whose messages wait for
    /// room, for reports.
    pub fn describe(&self, task: u32) -> String {
        let shape = &self.shape.tasks[task as usize];
        let edge = |input: u32| &self.edges[input as usize].word;
        let empty = shape
            .inputs
            .clone()
            .filter(|input| edge(*input).messages() == 0);
        let empty = empty.map(|input| {
            let ended = match edge(input).is_failed() {
                true => ", which has failed",
                false => "",
            };
            format!("{}{ended}", self.shape.name_of_input(input))
        });
        let empty: Vec<String> = empty.collect();
        let here = |output: &u32| !self.lines[*output as usize].is_empty();
        let outputs = &self.shape.families[shape.family as usize].outputs;
        let name = |output: u32| &outputs[(output - shape.outputs.start) as usize];
        let mut waits: Vec<String> = Vec::new();
        for output in shape.outputs.clone() {
            if here(&output) {
                waits.push(format!("'{}' for tasks here", name(output)));
            }
            for remote in self.shape.outputs[output as usize].remotes.clone() {
                if !self.remote_lines[remote as usize].is_empty() {
                    let rank = self.shape.remotes[remote as usize].rank;
                    waits.push(format!("'{}' for rank {rank}", name(output)));
                }
            }
        }
        let waits = match waits.is_empty() {
            true => String::new(),
            false => format!(", messages wait on {}", waits.join(", ")),
        };
        format!(
            "{} of rank {}: {:?}, no message on {}{waits}",
            self.shape.name(task),
            self.shape.rank,
            self.standing(task),
            empty.join(", ")
        )
    }

    /// Puts a task into the inbox of the worker that is its home.
    pub fn send_home(&self, task: u32) {
        let state = &self.workers[self.tasks[task as usize].home as usize];
        if state.inbox.put(task, &self.links) {
            self.outside.wake();
        }
    }

    /// Wakes workers that sleep.
    #[cold]
    pub(crate) fn wake(&self) {
        self.outside.wake();
    }

    /// The same at a time when the run may have ended.
    pub(crate) fn waker(&self) -> WakeWorkers {
        self.outside.waker()
    }

    pub(crate) fn empty_inbox(&self, worker: u32, each: impl FnMut(u32)) {
        self.workers[worker as usize].inbox.take(&self.links, each);
    }

    #[inline]
    pub(crate) fn element(&self, branch: u32) -> &Element {
        &self.shape.elements[self.shape.branches[branch as usize].element as usize]
    }

    /// The slot of a message on an edge.
    #[inline]
    pub(crate) fn slot_of(&self, edge: &EdgeState, number: u32) -> &Slot {
        &self.slots[(edge.slots + (number & edge.mask)) as usize]
    }

    /// The slot of a message of an output port for this rank.
    #[inline]
    pub(crate) fn slot_here(&self, output: &OutputState, number: u32) -> &Slot {
        &self.slots[(output.slots + (number & output.mask)) as usize]
    }

    #[inline]
    pub(crate) fn slot(&self, branch: u32, number: u32) -> &Slot {
        let state = &self.branches[branch as usize];
        &self.slots[(state.slots + (number & state.mask)) as usize]
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        for branch in 0..self.branches.len() as u32 {
            for number in 0..=self.branches[branch as usize].mask {
                // SAFETY: invariant 4: nobody else has the instance; the branch's element.
                unsafe { self.slot(branch, number).clear(self.element(branch)) };
            }
        }
    }
}
