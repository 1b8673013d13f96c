//! Firings: what belongs to one, the calls of the user's code, what the next one waits for.

use crate::context::Context;
use crate::failure::{Cause, Failure, message_of};
use crate::instance::{Body, Fired, Instance, NO_MORE};
use crate::rule::{Arrived, Rule};
use crate::shape::Source;
use crate::task::{Fire, Next, Task, TaskError};
use crate::watch::{Call, Code};
use osier_engine::progress::no_wait;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A worker, as a firing needs it.
pub(crate) trait Runs: Fired {
    /// Its number.
    fn index(&self) -> u32;

    /// A task has ended.
    fn retired(&mut self, instance: &Instance);
}

/// Messages on the edges of a task.
struct On<'a>(&'a Instance, u32);

impl Arrived for On<'_> {
    fn on_port(&self, port: u32) -> u64 {
        let edges = self.0.shape.edges_of(self.1, port);
        edges
            .map(|e| u64::from(self.0.edges[e as usize].word.messages()))
            .sum()
    }

    fn on_all(&self) -> u64 {
        let edges = self.0.shape.tasks[self.1 as usize].inputs.clone();
        edges
            .map(|e| u64::from(self.0.edges[e as usize].word.messages()))
            .sum()
    }
}

impl Instance {
    // What a firing reads.

    /// The messages on an edge that belong to the firing of its task: number of the first,
    /// and how many. By the owner.
    #[inline]
    pub(crate) fn offered(&self, input: u32) -> (u32, u32) {
        // SAFETY: the caller owns the task (invariant 1 of `instance`).
        let reader = unsafe { self.edges[input as usize].reader() };
        (reader.next, reader.offered)
    }

    /// A message of an edge, by the owner that has not read it.
    ///
    /// # Safety
    /// The number is of a message that belongs to the firing ([`Instance::offered`]).
    #[inline]
    pub(crate) unsafe fn message(&self, input: u32, number: u32) -> (*const u8, usize) {
        let edge = &self.edges[input as usize];
        // SAFETY: invariant 4 of `instance`: the caller's contract.
        unsafe { self.slot_of(edge, number).message() }
    }

    /// Takes the memory of a message out, if it has any and this is its only consumer here.
    ///
    /// # Safety
    /// As [`Instance::message`], and nobody holds what that returned.
    pub(crate) unsafe fn take(&self, input: u32, number: u32) -> Option<(*mut u8, usize, usize)> {
        let branch = self.shape.inputs[input as usize].branch;
        if self.shape.branches[branch as usize].consumers.len() != 1 {
            return None;
        }
        // SAFETY: invariant 4 of `instance`: the caller's contract.
        unsafe { self.slot(branch, number).take() }
    }

    /// Decides which messages belong to the firing, where the rule is none that is counted.
    #[cold]
    fn offer(&self, task: u32, body: &Body) {
        let mut left = match *body.rule() {
            Rule::Count { messages, .. } if body.armed.get() => messages,
            _ => u32::MAX,
        };
        for input in self.shape.tasks[task as usize].inputs.clone() {
            let edge = &self.edges[input as usize];
            let named = body.rule().names(self.shape.inputs[input as usize].port);
            let most = match body.rule() {
                Rule::Own => u32::MAX,
                Rule::Count { .. } if named && body.armed.get() => left,
                Rule::Count { .. } if body.armed.get() => 0,
                _ => 1,
            };
            // SAFETY: the caller owns the task (invariant 1 of `instance`).
            let reader = unsafe { edge.reader() };
            reader.offered = edge.word.messages().min(most);
            left -= reader.offered.min(left);
        }
    }

    /// The messages of the firing are read.
    #[inline]
    fn consume(&self, task: u32, body: &Body, worker: &mut impl Runs) {
        let counted = body.armed.get() && body.rule().is_conjunction();
        let mut lacking = body.lacking.get();
        for input in self.shape.tasks[task as usize].inputs.clone() {
            let edge = &self.edges[input as usize];
            // SAFETY: the caller owns the task (invariant 1 of `instance`).
            let reader = unsafe { edge.reader() };
            if reader.offered == 0 {
                continue;
            }
            for message in 0..reader.offered {
                let slot = self.slot_of(edge, reader.next.wrapping_add(message));
                self.released(edge.branch, slot, worker);
            }
            reader.next = reader.next.wrapping_add(reader.offered);
            let empty = edge.word.read(reader.offered, self.alone);
            if counted {
                reader.lacks = empty;
                lacking += u32::from(empty);
            }
        }
        body.lacking.set(lacking);
    }

    // What the next firing waits for.

    /// By the owner, who gives the task away, or has it queued.
    fn settle(&self, task: u32, body: &Body, next: Next, worker: &mut impl Runs) {
        match next {
            Next::Wait => {}
            Next::When(rule) => {
                self.disarm(task, body);
                self.told_rules[task as usize].set(&rule);
                // SAFETY: invariant 4 of `instance`: nothing of the old rule is in use.
                unsafe { body.set_rule(rule) };
            }
            Next::Again => {
                self.disarm(task, body);
                return worker.fired(self, task);
            }
            Next::Done => body.ending.set(true),
        }
        self.wait(task, body, worker);
    }

    /// Leaves a task to wait for what it lacks. By the owner.
    #[inline]
    fn wait(&self, task: u32, body: &Body, worker: &mut impl Runs) {
        let mut lines = 0;
        if body.lines.get() {
            lines = self.wait_for_lines(task);
            body.lines.set(lines > 0);
        }
        let word = &self.tasks[task as usize].word;
        if body.ending.get() || !body.rule().is_conjunction() {
            if lines > 0 {
                if body.ending.get() {
                    // It waits for room alone: what comes for it is not counted any more.
                    self.disarm(task, body);
                }
                body.blocked.set(true);
                if word.wait_for(lines, self.alone) {
                    worker.fired(self, task);
                }
                return;
            }
            if body.ending.get() {
                return self.end(task, body, worker);
            }
            if !body.armed.get() {
                self.arm_to_ask(task, body);
            }
            if matches!(body.rule(), Rule::Count { .. }) {
                self.give_owed(task, worker);
            }
            if self.is_met(task, body) {
                worker.fired(self, task);
            }
            return;
        }
        if !body.armed.get() {
            self.arm(task, body);
        }
        // Not touched any more once the task is given away.
        let lacking = body.lacking.take() + lines;
        if word.wait_for(lacking, self.alone) {
            worker.fired(self, task);
        }
    }

    #[cold]
    fn arm(&self, task: u32, body: &Body) {
        body.armed.set(true);
        for input in self.shape.tasks[task as usize].inputs.clone() {
            let edge = &self.edges[input as usize];
            let named = body.rule().names(self.shape.inputs[input as usize].port);
            // SAFETY: the caller owns the task (invariant 1 of `instance`).
            let reader = unsafe { edge.reader() };
            reader.offered = u32::from(named);
            reader.lacks = named && edge.word.arm();
            body.lacking
                .set(body.lacking.get() + u32::from(reader.lacks));
        }
    }

    #[cold]
    fn arm_to_ask(&self, task: u32, body: &Body) {
        body.armed.set(true);
        for input in self.shape.tasks[task as usize].inputs.clone() {
            if body.rule().names(self.shape.inputs[input as usize].port) {
                self.edges[input as usize].word.ask();
            }
        }
    }

    #[cold]
    fn disarm(&self, task: u32, body: &Body) {
        if !body.armed.take() {
            return;
        }
        let mut arrivals = 0;
        for input in self.shape.tasks[task as usize].inputs.clone() {
            let edge = &self.edges[input as usize];
            let came = edge.word.disarm();
            // SAFETY: the caller owns the task (invariant 1 of `instance`).
            let reader = unsafe { edge.reader() };
            arrivals += u32::from(came && reader.lacks);
            reader.lacks = false;
        }
        body.lacking.set(0);
        self.tasks[task as usize].word.forgive(arrivals);
    }

    /// Asks a rule until it is met, or leaves the task to wait. True: it is met, and the
    /// caller still owns the task.
    pub(crate) fn is_met(&self, task: u32, body: &Body) -> bool {
        loop {
            if self.is_met_now(task, body.rule()) || self.failed_edge(task, body.rule()).is_some() {
                return true;
            }
            if self.tasks[task as usize].word.wait_by_rule() {
                return false;
            }
        }
    }

    /// An edge without which the rule cannot be met: one of a conjunction that will have no
    /// more messages. Of a rule that is asked, one whose producer has failed, or the last one, if
    /// none will have more.
    #[inline]
    fn failed_edge(&self, task: u32, rule: &Rule) -> Option<u32> {
        match self.failed.load(Ordering::Acquire) {
            true => self.find_failed_edge(task, rule),
            false => None,
        }
    }

    #[cold]
    fn find_failed_edge(&self, task: u32, rule: &Rule) -> Option<u32> {
        let inputs = self.shape.tasks[task as usize].inputs.clone();
        let named = |e: &u32| rule.names(self.shape.inputs[*e as usize].port);
        let is_failed = |e: &u32| self.edges[*e as usize].word.is_failed();
        let mut failed = inputs.clone().filter(named).filter(is_failed);
        if rule.is_conjunction() {
            return failed.next();
        }
        let is_orderly = |e: u32| {
            let branch = &self.branches[self.edges[e as usize].branch as usize];
            let cause = branch.cause.get();
            cause.is_some_and(|failure| failure.cause.is_orderly())
        };
        if let Some(failed) = failed.find(|e| !is_orderly(*e)) {
            return Some(failed);
        }
        let has_failed = |e: u32| self.edges[e as usize].word.has_failed();
        let more_come = inputs.clone().filter(named).any(|e| !has_failed(e));
        let last = inputs.filter(named).last();
        last.filter(|_| !more_come && !self.is_met_now(task, rule))
    }

    /// Whether what has come meets a rule that is asked. An own rule is the user's code, which a
    /// worker asks.
    fn is_met_now(&self, task: u32, rule: &Rule) -> bool {
        let on = On(self, task);
        match rule {
            Rule::Own => on.on_all() > 0,
            rule => rule.is_met(&on),
        }
    }

    // Calls of the user's code.

    /// Makes a task and begins it. By its owner, once.
    pub(crate) fn begin(&self, task: u32, worker: &mut impl Runs) {
        let shape = &self.shape.tasks[task as usize];
        // SAFETY: nobody has been handed the task before (invariant 1 of `instance`).
        let body = unsafe { self.tasks[task as usize].body() };
        let family = &self.graph.families[shape.family as usize];
        let make = || family.make.as_ref().map(|make| make(&self.shape.at(task)));
        no_wait::enter(task, self.key());
        let made = catch_unwind(AssertUnwindSafe(make));
        no_wait::leave();
        match made {
            Ok(made) => body.task.set(made),
            Err(panic) => {
                let cause = Cause::Panic(message_of(&*panic));
                return self.fail(task, body, cause, worker);
            }
        }
        if let Some(next) = self.call(task, body, worker, Code::Init, |task, cx| task.init(cx)) {
            self.settle(task, body, next, worker);
        }
    }

    /// Runs a task that was fired. By its owner.
    pub(crate) fn run(&self, task: u32, worker: &mut impl Runs) {
        // SAFETY: the caller was handed the task (invariant 1 of `instance`).
        let body = unsafe { self.tasks[task as usize].body() };
        if body.blocked.take() {
            return self.wait(task, body, worker);
        }
        if let Some(input) = self.failed_edge(task, body.rule()) {
            let branch = self.shape.inputs[input as usize].branch;
            if let Some(cause) = self.branches[branch as usize].cause.get() {
                if matches!(cause.cause, Cause::Ended) {
                    let cause = self.orphaned(task, body.rule(), input, cause);
                    return self.fail(task, body, cause, worker);
                }
                let mut failures = self.all_failures();
                if !failures.iter().any(|known| Arc::ptr_eq(known, cause)) {
                    failures.push(cause.clone());
                }
                drop(failures);
                return self.fail_with(task, body, &cause.clone(), worker);
            }
        }
        if matches!(body.rule(), Rule::Own) {
            match self.inject(task, body, worker) {
                Some(Fire::Ready) => {}
                Some(Fire::Hold) | None => return,
            }
        } else if !body.armed.get() || !body.rule().is_conjunction() {
            self.offer(task, body);
        }
        let called = self.call(task, body, worker, Code::Execute, |task, cx| {
            task.execute(cx)
        });
        body.firing.set(body.firing.get() + 1);
        if let Some(next) = called {
            self.consume(task, body, worker);
            self.settle(task, body, next, worker);
        }
    }

    /// Asks an own rule. Held or `None`: the task is given away, or has failed.
    fn inject(&self, task: u32, body: &Body, worker: &mut impl Runs) -> Option<Fire> {
        loop {
            self.offer(task, body);
            let fire = self.call(task, body, worker, Code::Inject, |task, cx| task.inject(cx))?;
            self.consume(task, body, worker);
            for input in self.shape.tasks[task as usize].inputs.clone() {
                // SAFETY: this thread owns the task (invariant 1 of `instance`).
                unsafe { self.edges[input as usize].reader() }.offered = 0;
            }
            if fire == Fire::Ready {
                return Some(fire);
            }
            if !self.is_met(task, body) {
                return Some(Fire::Hold);
            }
            if self.failed_edge(task, body.rule()).is_some() {
                worker.fired(self, task);
                return Some(Fire::Hold);
            }
        }
    }

    /// Calls the user's code. `None`: it failed, which is settled.
    #[inline]
    fn call<R>(
        &self,
        task: u32,
        body: &Body,
        worker: &mut impl Runs,
        which: Code,
        code: impl FnOnce(&mut dyn Task, &mut Context<'_>) -> Result<R, TaskError>,
    ) -> Option<R> {
        let mut user = body.task.take()?;
        let seen = self.watch.is_some().then(|| Call {
            task,
            code: which,
            firing: body.firing.get(),
            worker: worker.index(),
        });
        let mut cx = Context::new(self, task, body.firing.get(), worker);
        let since_ns = seen.map(|call| self.see_begin(call));
        no_wait::enter(task, self.key());
        let ended = catch_unwind(AssertUnwindSafe(|| code(&mut *user, &mut cx)));
        no_wait::leave();
        if let Some((call, since_ns)) = seen.zip(since_ns) {
            self.see_end(call, since_ns);
        }
        body.lines.set(body.lines.get() | cx.has_lines());
        body.task.set(Some(user));
        let cause = match ended {
            Ok(Ok(result)) => return Some(result),
            Ok(Err(e)) => Cause::Error(e.into()),
            Err(panic) => Cause::Panic(message_of(&*panic)),
        };
        self.fail(task, body, cause, worker);
        None
    }

    /// Sees that a call begins: when, in ns.
    #[cold]
    fn see_begin(&self, call: Call) -> u64 {
        let watch = self.watch.as_ref();
        watch.map_or(0, |watch| {
            watch.begin(&self.shape, |input| self.offered(input), call)
        })
    }

    #[cold]
    fn see_end(&self, call: Call, since_ns: u64) {
        if let Some(watch) = &self.watch {
            watch.end(call, since_ns);
        }
    }

    // Ends.

    #[cold]
    fn fail(&self, task: u32, body: &Body, cause: Cause, worker: &mut impl Runs) {
        let failure = Arc::new(Failure {
            task: self.shape.name(task),
            rank: self.rank,
            cause,
        });
        self.all_failures().push(failure.clone());
        self.fail_with(task, body, &failure, worker);
    }

    /// Ends a task, and all that needs its messages, with this cause.
    #[cold]
    fn fail_with(&self, task: u32, body: &Body, failure: &Arc<Failure>, worker: &mut impl Runs) {
        for output in self.shape.tasks[task as usize].outputs.clone() {
            let output = &self.shape.outputs[output as usize];
            if let Some(branch) = output.here {
                self.fail_branch(branch, failure, worker);
            }
            for remote in output.remotes.clone() {
                let to = self.shape.remotes[remote as usize];
                worker.fail(self, to.rank, to.place, failure);
            }
        }
        self.forget_lines(task);
        self.end(task, body, worker);
    }

    /// A task has ended: what comes for it is dropped.
    fn end(&self, task: u32, body: &Body, worker: &mut impl Runs) {
        for input in self.shape.tasks[task as usize].inputs.clone() {
            let edge = &self.edges[input as usize];
            let unread = edge.word.close();
            // SAFETY: the caller owns the task (invariant 1 of `instance`).
            let next = unsafe { edge.reader() }.next;
            let branch = self.shape.inputs[input as usize].branch;
            for message in 0..unread {
                let slot = self.slot(branch, next.wrapping_add(message));
                self.released(branch, slot, worker);
            }
            let readers = &self.branches[branch as usize].readers;
            if readers.fetch_sub(1, Ordering::AcqRel) == 1
                && let Source::Rank { rank, place } = self.shape.branches[branch as usize].source
            {
                worker.credit(self, rank, place, NO_MORE);
            }
        }
        let user = body.task.take();
        self.tasks[task as usize].word.end();
        self.answer_for(task, worker);
        // The user's `Drop`: a panic there ends there, the hook has reported it.
        no_wait::enter(task, self.key());
        let _ = catch_unwind(AssertUnwindSafe(|| drop(user)));
        no_wait::leave();
        worker.retired(self);
    }
}
