//! Messages on their way to tasks: `put`, lines of those without room, what has been read.

use crate::instance::{DROPPED, Fired, Instance, Waiting};
use crate::memory::Memory;
use crate::shape::Source;
use crate::slot::{Slot, most_short};
use crate::sync::{add, take};
use crate::word::Meaning;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Slots in which memory is looked for that a long message may use.
const MOST_LOOKED_BACK: u32 = 16;

/// Where messages of a line go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To the branch here of an output port.
    Here(u32),
    /// To a branch to another rank.
    Rank(u32),
}

impl Instance {
    /// Puts a message on an output port. By the owner of its task, who learns by `lines`
    /// that one waits for room.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` elements of the port's type.
    #[inline]
    pub(crate) unsafe fn put(
        &self,
        output: u32,
        from: *const u8,
        len: usize,
        lines: &Cell<bool>,
        fired: &mut (impl Fired + ?Sized),
    ) {
        let state = &self.outputs[output as usize];
        self.has_put(output, len * state.bytes);
        if state.remote {
            // SAFETY: invariant 4 of `instance`: the caller's contract.
            unsafe { self.put_outside(output, from, len, lines, fired) };
        }
        if state.branch.is_some() {
            // SAFETY: invariant 4 of `instance`: the caller's contract.
            unsafe { self.put_here(output, from, len, lines, fired) };
        }
    }

    #[inline]
    fn has_put(&self, output: u32, bytes: usize) {
        if let Some(watch) = &self.watch {
            watch.put(&self.shape, output, bytes);
        }
    }

    /// As [`Instance::put`], of elements without gaps that `pack` writes where it is told.
    pub(crate) fn put_packed(
        &self,
        output: u32,
        len: usize,
        pack: &dyn Fn(*mut u8),
        lines: &Cell<bool>,
        fired: &mut (impl Fired + ?Sized),
    ) {
        let state = &self.outputs[output as usize];
        let whole = || Arc::new(Memory::filled(len * state.bytes, pack));
        self.has_put(output, len * state.bytes);
        if state.remote {
            self.put_memory(output, &whole(), lines, fired);
        }
        let Some(branch) = state.branch else {
            return;
        };
        let Some((slot, number)) = self.place_here(output, branch) else {
            return self.enqueue(Destination::Here(output), whole(), lines, fired);
        };
        self.reuse_memory(branch, slot, number, len > state.most_short);
        // SAFETY: the slot is free, and this thread its writer (invariant 2 of `instance`).
        pack(unsafe { slot.room(self.element(branch), len) });
        self.publish(branch, slot, number, state.consumers.clone(), fired);
    }

    /// Puts a message on the branch here of an output port.
    ///
    /// # Safety
    /// As [`Instance::put`].
    #[inline(always)]
    unsafe fn put_here(
        &self,
        output: u32,
        from: *const u8,
        len: usize,
        lines: &Cell<bool>,
        fired: &mut (impl Fired + ?Sized),
    ) {
        let state = &self.outputs[output as usize];
        let Some(branch) = state.branch else {
            return;
        };
        let Some((slot, number)) = self.place_here(output, branch) else {
            // SAFETY: invariant 4 of `instance`: the caller's contract.
            let packed = unsafe { Memory::packed(self.element(branch), from, len) };
            let message = Arc::new(packed);
            return self.enqueue(Destination::Here(output), message, lines, fired);
        };
        // SAFETY: the slot is free, and this thread its writer (invariant 2 of `instance`).
        if let Some(to) = unsafe { slot.short_room(state.most_short, len) } {
            // SAFETY: invariant 4 of `instance`: the caller's contract; there is room for them.
            unsafe { copy_short(from, to, len * state.bytes) };
        } else {
            self.reuse_memory(branch, slot, number, true);
            // SAFETY: the slot is free, and this thread its writer (invariant 2 of `instance`).
            let to = unsafe { slot.room(self.element(branch), len) };
            // SAFETY: invariant 4 of `instance`: the caller's contract; there is room for them.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len * state.bytes) };
        }
        self.publish(branch, slot, number, state.consumers.clone(), fired);
    }

    /// As [`Instance::put`], of a vector whose memory goes with the message, where that is
    /// short of a copy. True: it went.
    ///
    /// # Safety
    /// `from`, `len` and `capacity` are of a vector of the port's type, which the caller
    /// forgets if it went.
    pub(crate) unsafe fn give(
        &self,
        output: u32,
        (from, len, capacity): (*mut u8, usize, usize),
        lines: &Cell<bool>,
        fired: &mut (impl Fired + ?Sized),
    ) -> bool {
        let state = &self.outputs[output as usize];
        let shape = &self.shape.outputs[output as usize];
        let element = &self.shape.elements[shape.element as usize];
        if state.remote {
            if !element.dense || len * state.bytes <= state.most_copied {
                return false;
            }
            self.has_put(output, len * state.bytes);
            if state.branch.is_some() {
                // SAFETY: invariant 4 of `instance`: the caller's contract.
                unsafe { self.put_here(output, from, len, lines, fired) };
            }
            // SAFETY: invariant 4 of `instance`: the caller's contract.
            let given = unsafe { Memory::given(element, from, len, capacity) };
            let memory = Arc::new(given);
            self.put_memory(output, &memory, lines, fired);
            return true;
        }
        let Some(branch) = shape.here else {
            return false;
        };
        let Some((slot, number)) = self.place_here(output, branch) else {
            return false;
        };
        self.has_put(output, len * state.bytes);
        // SAFETY: invariants 2 and 4 of `instance`: the slot is free, this thread its writer.
        unsafe { slot.give(element, from, len, capacity) };
        self.publish(branch, slot, number, state.consumers.clone(), fired);
        true
    }

    /// Puts an empty message on an event port, unless as many as it has slots are unread. By
    /// who holds the signals that were raised, its writer.
    pub(crate) fn put_event(&self, output: u32, fired: &mut (impl Fired + ?Sized)) {
        let state = &self.outputs[output as usize];
        let Some(branch) = state.branch else {
            return;
        };
        if let Some((slot, number)) = self.place_here(output, branch) {
            // SAFETY: the slot is free, and this thread its writer (invariant 2 of `instance`).
            unsafe { slot.short_room(state.most_short, 0) };
            self.has_put(output, 0);
            self.publish(branch, slot, number, state.consumers.clone(), fired);
        }
    }

    /// The slot of the next message of an output port for this rank, if it is free and
    /// nothing waits before it.
    #[inline]
    fn place_here(&self, output: u32, branch: u32) -> Option<(&Slot, u32)> {
        if !self.lines[output as usize].is_empty() {
            return None;
        }
        let number = self.branches[branch as usize].next.load(Ordering::Relaxed);
        let slot = self.slot_here(&self.outputs[output as usize], number);
        slot.is_free().then_some((slot, number))
    }

    /// A message is written: tells its consumers. By the branch's writer.
    #[inline]
    fn publish(
        &self,
        branch: u32,
        slot: &Slot,
        number: u32,
        consumers: Range<u32>,
        fired: &mut (impl Fired + ?Sized),
    ) {
        let next = &self.branches[branch as usize].next;
        next.store(number.wrapping_add(1), Ordering::Release);
        slot.publish(consumers.len() as u32);
        for input in &self.shape.consumers[consumers.start as usize..consumers.end as usize] {
            let edge = &self.edges[*input as usize];
            match edge.word.arrive(self.alone) {
                Meaning::Kept => {}
                Meaning::Refused => self.refused(branch, slot, fired),
                meaning => self.tell(edge.task, meaning, fired),
            }
        }
    }

    /// As [`Instance::publish`], with what the branch says.
    pub(crate) fn publish_branch(
        &self,
        branch: u32,
        number: u32,
        fired: &mut (impl Fired + ?Sized),
    ) {
        let consumers = self.shape.branches[branch as usize].consumers.clone();
        self.publish(branch, self.slot(branch, number), number, consumers, fired);
    }

    /// Tells a task what has come on an edge into it.
    #[inline]
    pub(crate) fn tell(&self, task: u32, meaning: Meaning, fired: &mut (impl Fired + ?Sized)) {
        let fire = match meaning {
            Meaning::Kept | Meaning::Refused => return,
            Meaning::Lacked => self.tasks[task as usize].word.arrive(self.alone),
            Meaning::Asked => self.ask(task),
        };
        if fire {
            fired.fired(self, task);
        }
    }

    /// Something has come that a rule is to be asked about. True: it is met, and the caller
    /// owns the task.
    #[cold]
    fn ask(&self, task: u32) -> bool {
        let state = &self.tasks[task as usize];
        if !state.word.notify() {
            return false;
        }
        // SAFETY: this thread owns the task now (invariant 1 of `instance`).
        let body = unsafe { state.body() };
        self.is_met(task, body)
    }

    /// Puts a message on the branches to other ranks.
    ///
    /// # Safety
    /// As [`Instance::put`].
    unsafe fn put_outside(
        &self,
        output: u32,
        from: *const u8,
        len: usize,
        lines: &Cell<bool>,
        fired: &mut (impl Fired + ?Sized),
    ) {
        let shape = &self.shape.outputs[output as usize];
        let element = &self.shape.elements[shape.element as usize];
        let state = &self.outputs[output as usize];
        if !element.dense || len * state.bytes > state.most_copied {
            // SAFETY: invariant 4 of `instance`: the caller's contract.
            let packed = unsafe { Memory::packed(element, from, len) };
            let memory = Arc::new(packed);
            return self.put_memory(output, &memory, lines, fired);
        }
        // SAFETY: invariant 4 of `instance`: the caller's contract: elements without gaps.
        let bytes = unsafe { std::slice::from_raw_parts(from, len * element.bytes) };
        let weight = shape.window.weight(len > state.most_short);
        for remote in shape.remotes.clone() {
            if self.may_leave(remote, weight) {
                if self.use_credit(remote, weight) {
                    let to = self.shape.remotes[remote as usize];
                    fired.put(self, to.rank, to.place, bytes);
                }
            } else {
                let message = Arc::new(Memory::from(bytes.to_vec()));
                self.enqueue(Destination::Rank(remote), message, lines, fired);
            }
        }
    }

    /// Puts a message on the branches to other ranks, as it lies.
    fn put_memory(
        &self,
        output: u32,
        memory: &Arc<Memory>,
        lines: &Cell<bool>,
        fired: &mut (impl Fired + ?Sized),
    ) {
        let weight = self.weight_of(output, memory);
        for remote in self.shape.outputs[output as usize].remotes.clone() {
            match self.may_leave(remote, weight) {
                true => self.send(remote, memory, weight, fired),
                false => self.enqueue(Destination::Rank(remote), memory.clone(), lines, fired),
            }
        }
    }

    /// As how many slots packed elements count on branches to other ranks.
    fn weight_of(&self, output: u32, memory: &Memory) -> u32 {
        let shape = &self.shape.outputs[output as usize];
        let size = self.shape.elements[shape.element as usize].layout.size();
        let len = memory.bytes().len() / size.max(1);
        shape
            .window
            .weight(len > self.outputs[output as usize].most_short)
    }

    /// Whether the next message of a branch to another rank, of this weight, may leave at once.
    #[inline]
    fn may_leave(&self, remote: u32, weight: u32) -> bool {
        self.remote_lines[remote as usize].is_empty() && self.has_credit(remote, weight)
    }

    #[inline]
    fn has_credit(&self, remote: u32, weight: u32) -> bool {
        self.credits[remote as usize].load(Ordering::SeqCst) >= weight
    }

    /// Sends a message for which there is credit. By the branch's writer.
    fn send(
        &self,
        remote: u32,
        memory: &Arc<Memory>,
        weight: u32,
        fired: &mut (impl Fired + ?Sized),
    ) {
        if self.use_credit(remote, weight) {
            let to = self.shape.remotes[remote as usize];
            fired.put_memory(self, to.rank, to.place, memory);
        }
    }

    /// Uses credit that is there. False: nobody reads there any more.
    #[inline]
    fn use_credit(&self, remote: u32, weight: u32) -> bool {
        let credits = &self.credits[remote as usize];
        let before = add(credits, weight.wrapping_neg(), self.alone, Ordering::SeqCst);
        let wanted = before <= DROPPED / 2;
        if !wanted {
            add(credits, weight, self.alone, Ordering::SeqCst);
        }
        wanted
    }

    // Lines.

    fn line(&self, to: Destination) -> &Waiting {
        match to {
            Destination::Here(output) => &self.lines[output as usize],
            Destination::Rank(remote) => &self.remote_lines[remote as usize],
        }
    }

    /// Keeps a message until there is room for it.
    #[cold]
    fn enqueue(
        &self,
        to: Destination,
        message: Arc<Memory>,
        lines: &Cell<bool>,
        fired: &mut (impl Fired + ?Sized),
    ) {
        lines.set(true);
        self.line(to)
            .push(message, |message| self.send_waiting(to, message, fired));
    }

    /// Room may have been made.
    #[inline]
    pub(crate) fn made_room(&self, to: Destination, fired: &mut (impl Fired + ?Sized)) {
        let line = self.line(to);
        if !line.made_room(|message| self.send_waiting(to, message, fired)) {
            return;
        }
        let output = match to {
            Destination::Here(output) => output,
            Destination::Rank(remote) => self.shape.remotes[remote as usize].output,
        };
        let task = self.shape.outputs[output as usize].task;
        if self.tasks[task as usize].word.arrive(self.alone) {
            fired.fired(self, task);
        }
    }

    /// Sends a message that waits, under the lock of its line. False: there is no room.
    fn send_waiting(
        &self,
        to: Destination,
        message: &Arc<Memory>,
        fired: &mut (impl Fired + ?Sized),
    ) -> bool {
        match to {
            Destination::Here(output) => {
                let Some(branch) = self.shape.outputs[output as usize].here else {
                    return false;
                };
                let number = self.branches[branch as usize].next.load(Ordering::Relaxed);
                if !self.slot(branch, number).is_free() {
                    return false;
                }
                // SAFETY: invariant 2 of `instance`: a free slot of a branch that is ours to write.
                unsafe { self.write_packed(branch, number, message.bytes()) };
                self.publish_branch(branch, number, fired);
            }
            Destination::Rank(remote) => {
                let output = self.shape.remotes[remote as usize].output;
                let weight = self.weight_of(output, message);
                if !self.has_credit(remote, weight) {
                    return false;
                }
                self.send(remote, message, weight, fired);
            }
        }
        true
    }

    /// Lines of a task in which messages wait; it is told when they have left, one by one.
    pub(crate) fn wait_for_lines(&self, task: u32) -> u32 {
        let mut lines = 0;
        self.each_line(task, |line| lines += u32::from(line.wait()));
        lines
    }

    /// The task has failed: what waits in its lines is dropped.
    pub(crate) fn forget_lines(&self, task: u32) {
        self.each_line(task, Waiting::clear);
    }

    fn each_line(&self, task: u32, mut each: impl FnMut(&Waiting)) {
        for output in self.shape.tasks[task as usize].outputs.clone() {
            each(&self.lines[output as usize]);
            for remote in self.shape.outputs[output as usize].remotes.clone() {
                each(&self.remote_lines[remote as usize]);
            }
        }
    }

    /// Writes packed elements to a slot.
    ///
    /// # Safety
    /// The slot is free, and the caller its writer; the bytes are whole elements.
    pub(crate) unsafe fn write_packed(&self, branch: u32, number: u32, packed: &[u8]) {
        let (element, slot) = (self.element(branch), self.slot(branch, number));
        if element.dense && packed.len() == element.bytes {
            // SAFETY: invariant 4 of `instance`: the caller's contract.
            let to = unsafe { slot.room(element, 1) };
            // SAFETY: invariant 4 of `instance`: there is room for one element, which this is.
            unsafe { std::ptr::copy_nonoverlapping(packed.as_ptr(), to, packed.len()) };
            return;
        }
        let len = packed.len() / element.layout.size().max(1);
        self.reuse_memory(branch, slot, number, len > most_short(element));
        // SAFETY: invariant 4 of `instance`: the caller's contract.
        let to = unsafe { slot.room(element, len) };
        if element.dense {
            // SAFETY: invariant 4 of `instance`: there is room for the elements, whose bytes
            // these are.
            unsafe { std::ptr::copy_nonoverlapping(packed.as_ptr(), to, packed.len()) };
            return;
        }
        // SAFETY: invariant 4 of `instance`: there is room for the elements, whose packed bytes
        // these are.
        unsafe {
            let layout = &element.layout;
            layout.unpack_raw(to, len, 0..packed.len(), packed.as_ptr());
        }
    }

    // Reading.

    /// A consumer has read a message of a branch.
    #[inline]
    pub(crate) fn released(&self, branch: u32, slot: &Slot, fired: &mut (impl Fired + ?Sized)) {
        if !slot.release(self.alone) {
            return;
        }
        match self.shape.branches[branch as usize].source {
            Source::Here(output) => self.made_room(Destination::Here(output), fired),
            Source::Rank { rank, place } => self.give_credit(branch, (rank, place), fired),
        }
    }

    /// A message comes to a task that has ended. Its line needs no look: nothing waits there,
    /// or it is locked and being emptied by this thread.
    #[cold]
    fn refused(&self, branch: u32, slot: &Slot, fired: &mut (impl Fired + ?Sized)) {
        if slot.release(self.alone)
            && let Source::Rank { rank, place } = self.shape.branches[branch as usize].source
        {
            self.give_credit(branch, (rank, place), fired);
        }
    }

    /// A slot of a branch from another rank is free. Credit goes back in the order of the
    /// messages (invariant 3 of `instance`).
    fn give_credit(
        &self,
        branch: u32,
        (rank, place): (u32, u32),
        fired: &mut (impl Fired + ?Sized),
    ) {
        let state = &self.branches[branch as usize];
        let read = self.count_read(branch);
        if read == 0 {
            return;
        }
        // One for half of the slots: their writer has the other half meanwhile.
        let half = self.shape.branches[branch as usize]
            .window
            .slots
            .div_ceil(2);
        let owed = add(&state.owed, read, self.alone, Ordering::AcqRel) + read;
        if owed >= half {
            let owed = take(&state.owed, self.alone, Ordering::AcqRel);
            if owed > 0 {
                fired.credit(self, rank, place, owed);
            }
        }
    }

    /// Messages of a branch from another rank that all have read, in their order, and that nobody
    /// has counted, by their weight.
    fn count_read(&self, branch: u32) -> u32 {
        let state = &self.branches[branch as usize];
        let window = self.shape.branches[branch as usize].window;
        let mut read = 0;
        loop {
            let tail = state.tail.load(Ordering::SeqCst);
            let written = state.next.load(Ordering::Acquire);
            if tail == written {
                return read;
            }
            let slot = self.slot(branch, tail);
            if !slot.is_free() {
                return read;
            }
            // Nobody writes there before this message is counted, and credit for it sent.
            let weight = window.weight(slot.was_long());
            let after = tail.wrapping_add(1);
            if self.alone {
                state.tail.store(after, Ordering::Relaxed);
                read += weight;
            } else {
                let (tells, sees) = (Ordering::SeqCst, Ordering::SeqCst);
                let moved = state.tail.compare_exchange(tail, after, tells, sees);
                read += if moved.is_ok() { weight } else { 0 };
            }
        }
    }

    /// A long message is to be written to a free slot: where long messages use few of the slots,
    /// it takes over the memory of the one that was written that many before, which has been read.
    /// So no more slots have memory than may be full of long messages at once.
    #[inline]
    pub(crate) fn reuse_memory(&self, branch: u32, slot: &Slot, number: u32, is_long: bool) {
        let window = self.shape.branches[branch as usize].window;
        // SAFETY: it is free, and this thread its writer (invariant 2 of `instance`).
        if !is_long || window.long == 1 || unsafe { slot.has_memory() } {
            return;
        }
        let least = window.slots / window.long;
        let most = (least + MOST_LOOKED_BACK).min(window.slots - 1);
        let mut before = (least..=most).map(|back| self.slot(branch, number.wrapping_sub(back)));
        // SAFETY: a free slot of the branch that this thread writes (invariant 2 of `instance`).
        let has_memory = |other: &&Slot| other.is_free() && unsafe { other.has_memory() };
        if let Some(other) = before.find(has_memory) {
            // SAFETY: both are free, and this thread their writer (invariant 2 of `instance`).
            unsafe { slot.take_memory(other) };
        }
    }

    /// A task is about to wait for a number of messages, which may be as many as there are
    /// slots: credit that is owed for its edges is given.
    #[cold]
    pub(crate) fn give_owed(&self, task: u32, fired: &mut (impl Fired + ?Sized)) {
        for input in self.shape.tasks[task as usize].inputs.clone() {
            let branch = self.edges[input as usize].branch;
            if let Source::Rank { rank, place } = self.shape.branches[branch as usize].source {
                let state = &self.branches[branch as usize];
                let owed = state.owed.swap(0, Ordering::AcqRel);
                if owed > 0 {
                    fired.credit(self, rank, place, owed);
                }
            }
        }
    }
}

/// Copies a message that lies in a slot: where it is one or two words, without a call.
///
/// # Safety
/// Both are valid for as many bytes, and do not overlap.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, bytes: usize) {
    match bytes {
        // SAFETY: invariant 4 of `instance`: the caller's contract.
        8 => unsafe { std::ptr::copy_nonoverlapping(from, to, 8) },
        // SAFETY: invariant 4 of `instance`: the caller's contract.
        16 => unsafe { std::ptr::copy_nonoverlapping(from, to, 16) },
        // SAFETY: invariant 4 of `instance`: the caller's contract.
        _ => unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) },
    }
}
