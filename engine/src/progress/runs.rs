//! Runs of programs: a lane begins their steps as operations, hears of their ends, and
//! begins what waited for them.
//!
//! ```text
//! Running -> Over
//!         -> Failing -> Over      a step failed, here or at a peer
//! ```
//!
//! # Invariants
//! 1. An operation of a run names it and the instance; its end is an event of the run,
//!    which [`Lane::progress`] and whoever asks for the run's end handle.
//! 2. A run that fails sends POISON in place of each message that it owes, or a WITHDRAW
//!    that is one in place of the rest, and posts a receive without memory for each that is
//!    owed to it: each receive meets one message or one poison, peers that wait are told,
//!    and nothing of the run is left over for a later one.
//! 3. A run is over when no operation uses its memory, not before.
//!
//! # Sources
//! Failure as a poisoned input that spreads along the graph: M. Bauer, S. Treichler,
//! E. Slaughter, A. Aiken, "Legion", SC 2012, and its runtime Realm.

use super::arrival::Arrival;
use super::lane::Lane;
use super::op::{Outcome, Posted, Protocol};

use super::owed::{Combined, Foreign};
use super::slab::Slab;
use crate::check::Site;
use crate::completion::hold::Hold;
use crate::completion::ready::Ready;
use crate::diagnose::waits::{hear, listens};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::program::{Action, Program, TAG_BITS};
use crate::exec::run::{COPY, HALF, Phase, Run};
use crate::exec::straight::{Begun, Desk};
use crate::matching::{Envelope, INTERNAL_TAG, Pattern};
use crate::view::RawView;
use crate::wire;
use std::any::Any;
use std::sync::Arc;
use std::task::Waker;

/// Of an operation that belongs to no run.
pub(crate) const NO_RUN: u32 = u32::MAX;
/// Nobody knows who is to blame.
pub(crate) const NOBODY: u32 = u32::MAX;
/// Bits of a tag that tell runs apart.
const SEQUENCE_BITS: u32 = 10;
/// Of the tags of persistent calls.
const PERSISTENT: u32 = 1 << (TAG_BITS + SEQUENCE_BITS);
/// Tags of a run's messages to itself, which no program has.
const TO_HOST: u32 = 8;
const TO_DEVICE: u32 = 16;
const WITHIN: u32 = 24;
const COPY_TAGS: u32 = 8;
/// Runs and programs that are kept for another time.
const SPARE_RUNS: usize = 8;
const KEPT_PROGRAMS: usize = 256;

/// An operation of a run is over.
pub(crate) struct StepEnd {
    pub run: u32,
    pub instance: u32,
    pub handle: u32,
    /// The rank of the job that the run fails for.
    pub culprit: u32,
}

/// The runs of a lane.
pub(crate) struct Runs {
    /// Empty while a run is advanced.
    slots: Slab<Option<Box<Run>>>,
    /// Those whose steps a device takes now.
    working: Vec<u32>,
    #[expect(clippy::vec_box, reason = "boxes to be used again")]
    spare: Vec<Box<Run>>,
    programs: Vec<(u64, Arc<Program>)>,
    sequence: u32,
    /// Of persistent calls.
    reserved: u32,
}

impl Default for Runs {
    fn default() -> Self {
        Self {
            slots: Slab::new(),
            working: Vec::new(),
            spare: Vec::new(),
            programs: Vec::new(),
            sequence: 0,
            reserved: 0,
        }
    }
}

impl Runs {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether devices take steps of any.
    #[inline]
    pub fn work(&self) -> bool {
        !self.working.is_empty()
    }

    /// Whether any goes on that nobody waits for.
    pub fn unfinished(&self) -> bool {
        self.slots.len() > 0
            && self.slots.handles().any(|run| {
                let run = self.slots.get(run).and_then(Option::as_ref);
                run.is_some_and(|run| (run.detached || !run.holds.is_empty()) && !run.is_over())
            })
    }
}

/// How a run has ended.
pub struct End {
    pub result: Result<()>,
    /// A panic of the program's operator, which belongs to whoever waits.
    pub panic: Option<Box<dyn Any + Send>>,
}

impl Lane {
    /// Room for a run.
    pub fn spare_run(&mut self) -> Box<Run> {
        self.runs.spare.pop().unwrap_or_default()
    }

    /// A program that was kept.
    #[inline]
    pub fn program(&mut self, key: u64) -> Option<Arc<Program>> {
        let at = self.runs.programs.iter().position(|(k, _)| *k == key)?;
        if at > 2 {
            self.runs.programs.swap(at, at / 2);
            return Some(self.runs.programs[at / 2].1.clone());
        }
        Some(self.runs.programs[at].1.clone())
    }

    /// Where a program that was kept stands, and how many steps it has in a row, if it
    /// has, and its pieces may have so many bytes.
    #[inline]
    pub fn straight(&self, key: u64, bytes: usize) -> Option<(usize, usize)> {
        let at = self.runs.programs.iter().position(|(k, _)| *k == key)?;
        let straight = self.runs.programs[at].1.straight.as_ref()?;
        straight.fits(bytes).then(|| (at, straight.len()))
    }

    /// A step of such a program.
    #[inline]
    pub fn straight_step(&self, program: usize, at: usize) -> Option<Action> {
        let program = &self.runs.programs.get(program)?.1;
        let step = program.straight.as_ref()?.step(at)?;
        Some(program.actions[step as usize])
    }

    /// For a run that takes up such a program after `taken` steps.
    #[cold]
    pub fn begun(&self, program: usize, taken: usize, tags: u32, desk: &Desk) -> Option<Begun> {
        let straight = self.runs.programs.get(program)?.1.straight.as_ref()?;
        Some(straight.begun(taken, tags, desk))
    }

    /// Keeps a program.
    pub fn keep_program(&mut self, key: u64, program: Arc<Program>) {
        if self.runs.programs.len() >= KEPT_PROGRAMS {
            self.runs.programs.truncate(KEPT_PROGRAMS / 2);
        }
        self.runs.programs.push((key, program));
    }

    /// Forgets all programs.
    pub fn forget_programs(&mut self) {
        self.runs.programs.clear();
    }

    /// Upper part of the tags of the next run: all ranks begin their runs in the same
    /// order.
    #[inline]
    pub fn next_tags(&mut self) -> u32 {
        let sequence = self.runs.sequence;
        self.runs.sequence = sequence.wrapping_add(1);
        INTERNAL_TAG | (sequence % (1 << SEQUENCE_BITS)) << TAG_BITS
    }

    /// Upper part of the tags of a persistent call, for all of its runs: all ranks set
    /// them up in the same order, and start them in any.
    pub fn reserve_tags(&mut self) -> u32 {
        let sequence = self.runs.reserved;
        self.runs.reserved = sequence.wrapping_add(1);
        INTERNAL_TAG | PERSISTENT | (sequence % (1 << SEQUENCE_BITS)) << TAG_BITS
    }

    /// Begins a run. Its buffers belong to it until it is over.
    pub fn begin_run(&mut self, mut run: Box<Run>, error: Option<Error>) -> Result<u32> {
        let Some(id) = self.runs.slots.insert(None) else {
            return Err(super::send::too_many());
        };
        run.id = id;
        self.start_run(id, &mut run, error, NOBODY);
        self.put_back(id, run);
        Ok(id)
    }

    fn start_run(&mut self, id: u32, run: &mut Run, error: Option<Error>, culprit: u32) {
        run.schedule.begin(&run.program.graph);
        run.phase = Phase::Running;
        if let Some(e) = error {
            self.fail_run(id, run, e, culprit);
        }
        let before = std::mem::take(&mut run.before);
        self.copy_across(id, run, before, TO_HOST);
        self.go_on(id, run);
    }

    /// A run is over that another follows: it begins, or fails as the one before, or does
    /// not begin on any rank.
    #[cold]
    fn follow_run(&mut self, id: u32, run: &mut Run) {
        let Some(then) = run.then.take() else {
            return;
        };
        let then = *then;
        let failed = run.error.take();
        let verdict = match failed {
            None => (then.judge)(&run.kept),
            Some(_) => None,
        };
        let before = run.become_next(then.run);
        let culprit = before.culprit();
        self.recycle_run(before);
        match verdict {
            Some(e) => {
                run.error = Some(e);
                run.phase = Phase::Over;
            }
            None => self.start_run(id, run, failed.or(then.error), culprit),
        }
    }

    /// Begins to copy between devices and the host, by messages to itself.
    fn copy_across(&mut self, id: u32, run: &mut Run, all: Vec<(RawView, RawView)>, tag: u32) {
        for (at, (from, to)) in all.into_iter().enumerate() {
            if run.phase != Phase::Running {
                return;
            }
            let (own, room) = (self.port.own, to.bytes());
            let tag = run.tags | (tag + at as u32 % COPY_TAGS);
            run.copies += 1;
            match self.irecv_at(to, Pattern::exact(own, tag), run.site()) {
                Ok(Posted::Done(got)) => self.step_received(id, run, COPY, got, room),
                Ok(Posted::Pending(handle)) => self.join(id, run, handle, COPY),
                Err(e) => self.step_failed(id, run, COPY, own, e),
            }
            if run.phase != Phase::Running {
                return;
            }
            run.copies += 1;
            match self.isend_at(from, own, tag, false, run.site()) {
                Ok(Posted::Done(_)) => run.complete(COPY),
                Ok(Posted::Pending(handle)) => self.join(id, run, handle, COPY),
                Err(e) => self.step_failed(id, run, COPY, own, e),
            }
        }
    }

    fn put_back(&mut self, id: u32, mut run: Box<Run>) {
        if run.is_over() {
            self.port.finished = true;
            self.port.owed.wake(run.waker.take());
            run.holds.clear();
            if let Some((ready, token)) = run.notify.take() {
                ready.push(token);
            }
            if run.detached {
                self.runs.slots.discard(id);
                return self.recycle_run(run);
            }
        }
        if let Some(slot) = self.runs.slots.get_mut(id) {
            *slot = Some(run);
        }
    }

    fn recycle_run(&mut self, mut run: Box<Run>) {
        if let Some(then) = run.then.take() {
            self.recycle_run(then.run);
        }
        self.port.owed.drop(run.waker.take().map(Foreign::Waker));
        self.port.owed.drop(run.owner.take().map(Foreign::Value));
        self.port.owed.drop(run.panic.take().map(Foreign::Value));
        if let Some((combiner, _)) = run.combiner.take()
            && combiner.is_foreign()
        {
            self.port.owed.drop(Some(Foreign::Operator(combiner)));
        }
        run.clear();
        if !self.runs.spare.is_empty() {
            run.memory.trim();
        }
        if self.runs.spare.len() < SPARE_RUNS {
            self.runs.spare.push(run);
        }
    }

    /// Begins whatever may begin.
    #[inline]
    fn go_on(&mut self, id: u32, run: &mut Run) {
        if run.copies > 0 && run.phase == Phase::Running {
            return;
        }
        while let Some(instance) = run.schedule.next() {
            self.begin_step(id, run, instance);
        }
        let settled = run.in_flight == 0 && run.deferred.is_empty();
        if settled && !run.is_over() && run.schedule.is_over(&run.program.graph) {
            if run.phase == Phase::Running && !run.after.is_empty() {
                let after = std::mem::take(&mut run.after);
                self.copy_across(id, run, after, TO_DEVICE);
                if run.in_flight > 0 {
                    return;
                }
            }
            if run.phase == Phase::Running
                && let Err(e) = run.deliver()
            {
                run.error = Some(e);
            }
            if run.then.is_some() {
                return self.follow_run(id, run);
            }
            run.phase = Phase::Over;
        }
    }

    fn begin_step(&mut self, id: u32, run: &mut Run, instance: u32) {
        if run.was_done(instance) {
            return run.complete(instance);
        }
        let (action, segment) = run.place(instance);
        let failing = run.phase == Phase::Failing;
        match action {
            Action::Send { to, tag, data } => {
                let tag = run.tag(tag, segment);
                if failing {
                    self.poison(to, tag, run.culprit());
                    return run.complete(instance);
                }
                let view = run.memory.view(data, segment);
                let crossing = run.crosses(instance);
                match self.isend_at(view, to, tag, crossing, run.site()) {
                    Ok(Posted::Done(_)) => run.complete(instance),
                    Ok(Posted::Pending(handle)) => self.join(id, run, handle, instance),
                    Err(e) => self.step_failed(id, run, instance, to, e),
                }
            }
            Action::Receive { .. } if run.defers && !failing => run.deferred.push(instance),
            Action::Receive { from, tag, .. } if failing => {
                self.discard(from, run.tag(tag, segment));
                run.complete(instance);
            }
            Action::Receive { .. } => self.post_receive(id, run, instance),
            Action::Copy { .. } | Action::Combine { .. } if run.on_device.is_some() && !failing => {
                self.begin_work(id, run, instance);
            }
            Action::Combine { .. } if !failing && run.combines_by_foreign_code() => {
                match run.combination(action, segment) {
                    Ok(work) => {
                        // Invariant 2 of `owed`.
                        run.in_flight += 1;
                        self.port.owed.combine(id, instance, work);
                    }
                    Err(e) => {
                        run.complete(instance);
                        self.fail_run(id, run, e, NOBODY);
                    }
                }
            }
            Action::Copy { .. } | Action::Combine { .. } => {
                if !failing && let Err(e) = run.compute(action, segment) {
                    run.complete(instance);
                    return self.fail_run(id, run, e, NOBODY);
                }
                run.complete(instance);
            }
        }
    }

    /// The function of the user that takes a step has returned, or panicked.
    #[cold]
    pub(crate) fn combined(&mut self, id: u32, instance: u32, end: Combined) {
        let Some(mut run) = self.runs.slots.get_mut(id).and_then(Option::take) else {
            debug_assert!(false, "a run outlives its steps");
            return;
        };
        run.in_flight -= 1;
        run.complete(instance);
        let failed = match end {
            Ok(result) => result.err(),
            Err(payload) => {
                self.port
                    .owed
                    .drop(run.panic.replace(payload).map(Foreign::Value));
                Some(Error::new(ErrorKind::User, "the operator panicked"))
            }
        };
        if let Some(e) = failed {
            self.fail_run(id, &mut run, e, NOBODY);
        }
        self.go_on(id, &mut run);
        self.put_back(id, run);
    }

    /// Begins a step that a device takes.
    #[cold]
    fn begin_work(&mut self, id: u32, run: &mut Run, instance: u32) {
        let (action, segment) = run.place(instance);
        if let Some((from, to)) = run.apart(action, segment) {
            return self.copy_within(id, run, instance, from, to);
        }
        match run.begin_work(&self.port.devices, action, segment) {
            Ok(Some(work)) => {
                if matches!(action, Action::Combine { .. }) {
                    self.port.counters.combined += 1;
                }
                run.works.push((instance, work));
                run.in_flight += 1;
                if !self.runs.working.contains(&id) {
                    self.runs.working.push(id);
                }
            }
            Ok(None) => run.complete(instance),
            Err(e) => {
                run.complete(instance);
                self.fail_run(id, run, e, NOBODY);
            }
        }
    }

    /// Begins a copy between memory of the host and of devices, or of two devices, by a
    /// message to itself.
    fn copy_within(&mut self, id: u32, run: &mut Run, instance: u32, from: RawView, to: RawView) {
        if from.as_device().is_none() && to.as_device().is_none() {
            let copied = crate::exec::run::copy(&from, &to);
            run.complete(instance);
            if let Err(e) = copied {
                self.fail_run(id, run, e, NOBODY);
            }
            return;
        }
        let (own, room) = (self.port.own, to.bytes());
        let tag = run.tags | (WITHIN + instance % COPY_TAGS);
        match self.irecv_at(to, Pattern::exact(own, tag), run.site()) {
            Ok(Posted::Done(got)) => self.step_received(id, run, instance, got, room),
            Ok(Posted::Pending(handle)) => self.join(id, run, handle, instance),
            Err(e) => self.step_failed(id, run, instance, own, e),
        }
        if run.phase != Phase::Running {
            return;
        }
        match self.isend_at(from, own, tag, false, run.site()) {
            Ok(Posted::Done(_)) => run.complete(HALF),
            Ok(Posted::Pending(handle)) => self.join(id, run, handle, HALF),
            Err(e) => self.step_failed(id, run, HALF, own, e),
        }
    }

    /// Looks after the steps that devices take. True if any is over.
    #[cold]
    pub(crate) fn advance_works(&mut self) -> bool {
        let (mut any, mut at) = (false, 0);
        while let Some(&id) = self.runs.working.get(at) {
            let Some(mut run) = self.runs.slots.get_mut(id).and_then(Option::take) else {
                self.runs.working.swap_remove(at);
                continue;
            };
            let (mut moved, mut next) = (false, 0);
            while let Some((_, work)) = run.works.get_mut(next) {
                let over = work.is_over();
                if over == Ok(false) {
                    next += 1;
                    continue;
                }
                let (instance, work) = run.works.swap_remove(next);
                drop(work);
                run.in_flight -= 1;
                run.complete(instance);
                if let Err(e) = over {
                    self.fail_run(id, &mut run, e.into(), NOBODY);
                }
                moved = true;
            }
            if moved {
                self.go_on(id, &mut run);
            }
            let idle = run.works.is_empty();
            self.put_back(id, run);
            match idle {
                true => drop(self.runs.working.swap_remove(at)),
                false => at += 1,
            }
            any |= moved;
        }
        any
    }

    fn post_receive(&mut self, id: u32, run: &mut Run, instance: u32) {
        let (Action::Receive { from, tag, data }, segment) = run.place(instance) else {
            return;
        };
        let tag = run.tag(tag, segment);
        let view = run.memory.view(data, segment);
        let room = view.bytes();
        match self.irecv_at(view, Pattern::exact(from, tag), run.site()) {
            Ok(Posted::Done(outcome)) => self.step_received(id, run, instance, outcome, room),
            Ok(Posted::Pending(handle)) => self.join(id, run, handle, instance),
            Err(e) => self.step_failed(id, run, instance, from, e),
        }
    }

    /// An operation is one of a run.
    fn join(&mut self, id: u32, run: &mut Run, handle: u32, instance: u32) {
        if let Some(op) = self.port.ops.get_mut(handle) {
            (op.run, op.instance) = (id, instance);
        }
        run.in_flight += 1;
        // It may have failed at the call.
        if self.port.is_done(handle) {
            self.port.run_event(id, instance, handle);
        }
    }

    fn step_received(&mut self, id: u32, run: &mut Run, instance: u32, got: Outcome, room: usize) {
        run.complete(instance);
        if got.bytes != room {
            let e = Error::new(
                ErrorKind::Argument,
                format!(
                    "collective: rank {} sent {} bytes, rank {} expected {room} (hint: all ranks pass the same count)",
                    got.source, got.bytes, self.port.own
                ),
            );
            self.fail_run(id, run, e, NOBODY);
        }
    }

    fn step_failed(&mut self, id: u32, run: &mut Run, instance: u32, peer: u32, e: Error) {
        let mut culprit = std::mem::replace(&mut self.port.culprit, NOBODY);
        if culprit == NOBODY && matches!(e.kind(), ErrorKind::RankDead | ErrorKind::Closed) {
            culprit = self
                .port
                .members
                .get(peer as usize)
                .copied()
                .unwrap_or(NOBODY);
        }
        run.complete(instance);
        self.fail_run(id, run, e, culprit);
    }

    /// A run fails: its peers are told, and its operations give their memory back.
    #[cold]
    fn fail_run(&mut self, id: u32, run: &mut Run, e: Error, culprit: u32) {
        if run.error.is_none() {
            run.error = Some(e);
        }
        if run.phase != Phase::Running {
            return;
        }
        run.phase = Phase::Failing;
        run.set_culprit(culprit);
        for instance in std::mem::take(&mut run.deferred) {
            if let (Action::Receive { from, tag, .. }, segment) = run.place(instance) {
                self.discard(from, run.tag(tag, segment));
            }
            run.complete(instance);
        }
        let ops: Vec<u32> = self
            .port
            .ops
            .handles()
            .filter(|h| {
                let op = self.port.ops.get(*h);
                op.is_some_and(|op| op.run == id && !op.is_done())
            })
            .collect();
        for handle in ops {
            self.stop(run, handle);
        }
    }

    /// Makes an operation of a failing run stop using its memory. If it cannot at once,
    /// its end will be an event.
    fn stop(&mut self, run: &mut Run, handle: u32) {
        let Some(op) = self.port.ops.get_mut(handle) else {
            return;
        };
        let (instance, peer, tag) = (op.instance, op.peer, op.tag);
        if op.is_posted() {
            let owner = op.forget_memory();
            op.detached = true;
            op.run = NO_RUN;
            self.port.owed.drop(owner);
        } else {
            let queued = matches!(op.protocol, Protocol::Queued(_));
            if op.is_send() && !queued {
                op.rare().blame = Some(run.culprit());
            }
            op.run = NO_RUN;
            if !self.revoke(handle) {
                if let Some(op) = self.port.ops.get_mut(handle) {
                    op.run = run.id;
                }
                return;
            }
            if queued {
                self.poison(peer, tag, run.culprit());
            }
        }
        run.in_flight -= 1;
        run.complete(instance);
    }

    /// Takes a message that a failed run will not.
    fn discard(&mut self, from: u32, tag: u32) {
        if let Ok(Posted::Pending(handle)) = self.irecv(RawView::empty(), Pattern::exact(from, tag))
        {
            self.let_go(handle);
        }
        self.port.culprit = NOBODY;
    }

    /// Says in place of a message that its run has failed.
    fn poison(&mut self, to: u32, tag: u32, culprit: u32) {
        if to == self.port.own {
            return; // a copy of its own, whose other end is given up, too
        }
        self.port
            .control(to, wire::head(wire::POISON, 0, tag, culprit));
    }

    /// A peer's run has failed.
    pub(crate) fn on_poison(&mut self, peer: u32, tag: u32, culprit: u32) -> bool {
        let envelope = Envelope { source: peer, tag };
        if tag & INTERNAL_TAG == 0 {
            return false;
        }
        match self.posted.take(envelope) {
            Some(handle) => {
                if let Some(op) = self.port.ops.get_mut(handle) {
                    op.protocol = Protocol::Posted(None);
                }
                self.finish_poisoned(handle, peer, culprit);
                true
            }
            None => self
                .arrive(envelope, Arrival::Poison { culprit }, None)
                .is_some(),
        }
    }

    /// Ends a receive whose message will not come.
    pub(crate) fn finish_poisoned(&mut self, handle: u32, peer: u32, culprit: u32) {
        let e = self.poisoned(peer, culprit);
        self.port.culprit = culprit;
        self.port.finish(handle, Some(e));
        self.port.culprit = NOBODY;
    }

    /// The error of a receive that meets poison.
    pub(crate) fn poisoned(&mut self, peer: u32, culprit: u32) -> Error {
        let Some(culprit) = (culprit != NOBODY).then_some(culprit) else {
            return Error::new(
                ErrorKind::Cancelled,
                format!("rank {peer} has failed in this collective (hint: its own error says why)"),
            );
        };
        let place = self.port.members.iter().position(|world| *world == culprit);
        let who = match place {
            Some(rank) => format!("rank {rank}"),
            None => format!("rank {culprit} of the job"),
        };
        let state = place.and_then(|rank| self.port.peers.get(rank));
        let kind = match state.is_some_and(|s| s.left.is_some() && !s.has_failed()) {
            true => ErrorKind::Closed,
            false => ErrorKind::RankDead,
        };
        Error::new(
            kind,
            format!("{who} is dead or has left, as rank {peer} has found in this collective"),
        )
    }

    /// As `poisoned`, for a message that had come before its receive.
    pub(crate) fn meets_poison(&mut self, peer: u32, culprit: u32) -> Error {
        self.port.culprit = culprit;
        self.poisoned(peer, culprit)
    }

    /// Handles what has ended. True if anything had.
    #[cold]
    pub(crate) fn advance_runs(&mut self) -> bool {
        let mut any = false;
        while !self.port.ended.is_empty() {
            let mut events = std::mem::take(&mut self.port.ended);
            for event in events.drain(..) {
                self.run_goes_on(event);
                any = true;
            }
            if self.port.ended.is_empty() {
                self.port.ended = events;
            }
        }
        any
    }

    fn run_goes_on(&mut self, event: StepEnd) {
        let Some(op) = self.port.ops.get(event.handle) else {
            return;
        };
        let (receives, peer, room) = (op.is_receive(), op.peer, op.view.bytes());
        let run = self.runs.slots.get_mut(event.run).and_then(Option::take);
        let result = self.take(event.handle);
        let Some(mut run) = run else {
            return;
        };
        let id = event.run;
        run.in_flight -= 1;
        match result {
            Some(Ok(outcome)) if receives => {
                self.step_received(id, &mut run, event.instance, outcome, room);
            }
            Some(Err(e)) => {
                self.port.culprit = event.culprit;
                self.step_failed(id, &mut run, event.instance, peer, e);
            }
            _ => run.complete(event.instance),
        }
        self.go_on(id, &mut run);
        self.put_back(id, run);
    }

    fn run(&self, id: u32) -> Option<&Run> {
        self.runs.slots.get(id)?.as_deref()
    }

    fn run_mut(&mut self, id: u32) -> Option<&mut Run> {
        self.runs.slots.get_mut(id)?.as_deref_mut()
    }

    /// The one receive that a run waits for, if it was deferred and nothing else is
    /// under way.
    #[inline]
    pub fn sole_receive(&self, id: u32) -> Option<(RawView, u32, u32)> {
        let run = self.run(id)?;
        if run.in_flight != 0 || run.phase != Phase::Running {
            return None;
        }
        let [instance] = run.deferred[..] else {
            return None;
        };
        let (Action::Receive { from, tag, data }, segment) = run.place(instance) else {
            return None;
        };
        let tag = run.tag(tag, segment);
        let view = run.memory.view(data, segment);
        // Kernels unpack there; it takes a post.
        view.as_device().is_none().then_some((view, from, tag))
    }

    /// The sole receive has got its message, without a post.
    #[inline]
    pub fn received_directly(&mut self, id: u32, source: u32, bytes: usize, room: usize) {
        let Some(mut run) = self.runs.slots.get_mut(id).and_then(Option::take) else {
            return;
        };
        if let Some(instance) = run.deferred.pop() {
            let outcome = Outcome {
                source,
                tag: 0,
                bytes,
            };
            self.step_received(id, &mut run, instance, outcome, room);
        }
        self.go_on(id, &mut run);
        self.put_back(id, run);
    }

    /// Posts the receives that were deferred.
    pub fn post_deferred(&mut self, id: u32) {
        let Some(mut run) = self.runs.slots.get_mut(id).and_then(Option::take) else {
            return;
        };
        let mut deferred = std::mem::take(&mut run.deferred);
        for instance in deferred.drain(..) {
            if run.phase == Phase::Failing {
                self.begin_step(id, &mut run, instance);
            } else {
                self.post_receive(id, &mut run, instance);
            }
        }
        if run.deferred.is_empty() {
            run.deferred = deferred;
        }
        self.go_on(id, &mut run);
        self.put_back(id, run);
    }

    /// From now on receives are posted as soon as they may be.
    pub fn stop_deferring(&mut self, id: u32) {
        if let Some(run) = self.run_mut(id) {
            run.defers = false;
        }
        self.post_deferred(id);
    }

    /// Whether a run is over.
    #[inline]
    pub fn run_is_over(&mut self, id: u32) -> bool {
        if !self.port.ended.is_empty() {
            self.advance_runs();
        }
        self.run(id).is_none_or(Run::is_over)
    }

    /// How a run has ended, once it has; frees it.
    #[inline]
    pub fn take_run(&mut self, id: u32) -> Option<End> {
        if !self.run_is_over(id) {
            if listens() {
                self.hear_run(id);
            }
            return None;
        }
        let Some(mut run) = self.runs.slots.remove(id).flatten() else {
            let e = Error::new(
                ErrorKind::Argument,
                "a request that was polled after its end",
            );
            return Some(End {
                result: Err(e),
                panic: None,
            });
        };
        let end = End {
            result: run.error.take().map_or(Ok(()), Err),
            panic: run.panic.take(),
        };
        self.recycle_run(run);
        Some(end)
    }

    #[cold]
    fn hear_run(&self, id: u32) {
        self.steps_under_way(id).for_each(|op| hear(self.asked(op)));
    }

    /// Operations of a run that are not over.
    pub(crate) fn steps_under_way(&self, id: u32) -> impl Iterator<Item = u32> {
        self.port.ops.handles().filter(move |h| {
            let op = self.port.ops.get(*h);
            op.is_some_and(|op| op.run == id && !op.is_done())
        })
    }

    /// Lets a stream wait for a run; one that is over lets it go on at once.
    pub fn hold_run(&mut self, id: u32, hold: Hold) {
        if let Some(run) = self.run_mut(id).filter(|run| !run.is_over()) {
            run.holds.push(hold);
        }
    }

    /// Runs that streams wait for.
    pub(crate) fn held_runs(&self) -> impl Iterator<Item = u32> {
        let all = self.runs.slots.handles();
        all.filter(|id| self.run(*id).is_some_and(|run| !run.holds.is_empty()))
    }

    /// Runs that futures wait for.
    pub(crate) fn awaited_runs(&self) -> impl Iterator<Item = u32> {
        let all = self.runs.slots.handles();
        all.filter(|id| self.run(*id).is_some_and(|run| run.waker.is_some()))
    }

    /// Lets the streams go on that wait for a run.
    pub(crate) fn release_run(&mut self, id: u32) {
        if let Some(run) = self.run_mut(id) {
            run.holds.clear();
        }
    }

    /// Ends a run as soon as its memory is free.
    pub fn give_up_run(&mut self, id: u32) {
        let Some(mut run) = self.runs.slots.get_mut(id).and_then(Option::take) else {
            return;
        };
        if run.phase == Phase::Running {
            let e = Error::new(ErrorKind::Cancelled, "the collective was given up");
            self.fail_run(id, &mut run, e, NOBODY);
            self.go_on(id, &mut run);
        }
        self.put_back(id, run);
    }

    /// Has a waker called when a run is over.
    pub fn set_run_waker(&mut self, id: u32, waker: Waker) {
        let unused = match self.run_mut(id) {
            Some(run) => run.waker.replace(waker),
            None => Some(waker),
        };
        self.port.owed.drop(unused.map(Foreign::Waker));
    }

    /// As [`Lane::notify`], for a run.
    pub fn notify_run(&mut self, id: u32, ready: &Arc<Ready>, token: u64) -> bool {
        if self.run_is_over(id) {
            return false;
        }
        if let Some(run) = self.run_mut(id) {
            run.notify = Some((ready.clone(), token));
        }
        if listens() {
            self.hear_run(id);
        }
        true
    }

    /// Nobody waits for a run any more: it goes on with what it must keep alive.
    pub fn let_run_go(&mut self, id: u32, owner: Box<dyn Any + Send>) {
        let Some(mut run) = self.runs.slots.get_mut(id).and_then(Option::take) else {
            return self.port.owed.drop(Some(Foreign::Value(owner)));
        };
        self.port.owed.drop(run.waker.take().map(Foreign::Waker));
        run.notify = None;
        self.port
            .owed
            .drop(run.owner.replace(owner).map(Foreign::Value));
        run.detached = true;
        self.put_back(id, run);
    }

    fn isend_at(
        &mut self,
        view: RawView,
        to: u32,
        tag: u32,
        crossing: bool,
        site: Site,
    ) -> Result<Posted> {
        if self.send_now(&view, to, tag) {
            return Ok(Posted::Done(Outcome {
                source: to,
                tag,
                bytes: view.bytes(),
            }));
        }
        self.act_for(Some(site));
        let mode = super::lane::Mode::Standard;
        let posted = self.isend_from(view, to, tag, mode, crossing, site.line());
        self.act_for(None);
        posted
    }

    fn irecv_at(&mut self, view: RawView, pattern: Pattern, site: Site) -> Result<Posted> {
        self.act_for(Some(site));
        let posted = self.irecv(view, pattern);
        self.act_for(None);
        let posted = posted?;
        if let Posted::Pending(handle) = posted
            && let Some(op) = self.port.ops.get_mut(handle)
        {
            op.site = site.line();
        }
        Ok(posted)
    }
}
