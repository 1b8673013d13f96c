//! Messages of other ranks: to the slots of their branches; credit; ends of producers and ranks.

use crate::failure::{Cause, Failure};
use crate::instance::{DROPPED, Fired, Instance, NO_MORE};
use crate::orphan::ASKED;
use crate::slot::most_short;
use crate::sync::add;
use crate::writing::Destination;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a message on its way is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    At(*mut u8),
    /// There is no memory for it.
    None,
    /// It is malformed.
    Malformed,
}

impl Instance {
    /// A message of another rank has come, for the branch at this place of its letter. False:
    /// it is malformed. By the thread that handles the rank's messages.
    #[must_use]
    pub fn deliver(
        &self,
        rank: u32,
        place: u32,
        packed: &[u8],
        fired: &mut (impl Fired + ?Sized),
    ) -> bool {
        let Some(branch) = self.branch_from(rank, place) else {
            return false;
        };
        let size = self.element(branch).layout.size();
        let whole = match size {
            0 => packed.is_empty(),
            _ => packed.len().is_multiple_of(size),
        };
        if self.is_cut(branch) {
            return true;
        }
        let number = self.branches[branch as usize].next.load(Ordering::Relaxed);
        if !whole || !self.slot(branch, number).is_free() {
            return false;
        }
        // SAFETY: the slot is free, and this thread its writer (invariant 2 of `instance`);
        // whole elements.
        unsafe { self.write_packed(branch, number, packed) };
        self.publish_branch(branch, number, fired);
        true
    }

    /// A message of another rank is on its way, as long as this. By the thread that handles the
    /// rank's messages, which tells when it is there, and nothing of the branch before.
    #[must_use]
    pub fn begin_delivery(&self, rank: u32, place: u32, bytes: usize) -> Room {
        let Some(branch) = self.branch_from(rank, place) else {
            return Room::Malformed;
        };
        let element = self.element(branch);
        let size = element.layout.size();
        let number = self.branches[branch as usize].next.load(Ordering::Relaxed);
        if size == 0 || !bytes.is_multiple_of(size) || !self.slot(branch, number).is_free() {
            return Room::Malformed;
        }
        let state = &self.branches[branch as usize];
        // SAFETY: invariant 2 of `instance`: this thread is the branch's writer.
        let delivery = unsafe { state.delivery() };
        (delivery.bytes, delivery.packed) = (bytes, Vec::new());
        if !element.dense {
            if delivery.packed.try_reserve_exact(bytes).is_err() {
                return Room::None;
            }
            return Room::At(delivery.packed.as_mut_ptr());
        }
        let (slot, len) = (self.slot(branch, number), bytes / size);
        self.reuse_memory(branch, slot, number, len > most_short(element));
        // SAFETY: the slot is free, and this thread its writer (invariant 2 of `instance`).
        match unsafe { slot.try_room(element, len) } {
            Some(room) => Room::At(room),
            None => Room::None,
        }
    }

    /// The message that was on its way is in its room. As [`Instance::begin_delivery`].
    ///
    /// # Safety
    /// All of its bytes have been written.
    pub unsafe fn end_delivery(&self, rank: u32, place: u32, fired: &mut (impl Fired + ?Sized)) {
        let Some(branch) = self.branch_from(rank, place) else {
            return;
        };
        if self.is_cut(branch) {
            return;
        }
        let state = &self.branches[branch as usize];
        let number = state.next.load(Ordering::Relaxed);
        if !self.element(branch).dense {
            // SAFETY: invariant 2 of `instance`: this thread is the branch's writer.
            let delivery = unsafe { state.delivery() };
            let mut packed = std::mem::take(&mut delivery.packed);
            // SAFETY: invariant 4 of `instance`: the caller's contract.
            unsafe { packed.set_len(delivery.bytes) };
            // SAFETY: invariant 2 of `instance`: the slot is free; whole elements.
            unsafe { self.write_packed(branch, number, &packed) };
        }
        self.publish_branch(branch, number, fired);
    }

    /// Whether no more messages of a branch count: one has been lost, or a rank.
    #[inline]
    fn is_cut(&self, branch: u32) -> bool {
        self.failed.load(Ordering::Relaxed) && self.branches[branch as usize].cause.get().is_some()
    }

    pub(crate) fn branch_from(&self, rank: u32, place: u32) -> Option<u32> {
        if rank as usize == self.shape.rank {
            return None;
        }
        let branches = self.shape.from_ranks.get(rank as usize)?;
        let branch = branches.start.checked_add(place)?;
        branches.contains(&branch).then_some(branch)
    }

    /// Messages have been read by another rank, of the branch at this place of the letter to
    /// it. False: it is malformed.
    #[must_use]
    pub fn credit(
        &self,
        rank: u32,
        place: u32,
        messages: u32,
        fired: &mut (impl Fired + ?Sized),
    ) -> bool {
        let to_rank = self.shape.to_ranks.get(rank as usize);
        let Some(remote) = to_rank.and_then(|to| to.get(place as usize)).copied() else {
            return false;
        };
        if messages == ASKED {
            return self.asked(rank, place, fired);
        }
        if messages == NO_MORE {
            self.drop_to(remote, fired);
            return true;
        }
        let output = self.shape.remotes[remote as usize].output;
        let most = self.shape.outputs[output as usize].window.slots;
        let credits = &self.credits[remote as usize];
        if credits.load(Ordering::SeqCst) > DROPPED / 2 {
            return true;
        }
        // Only this thread adds.
        if u64::from(credits.load(Ordering::SeqCst)) + u64::from(messages) > u64::from(most) {
            return false;
        }
        add(credits, messages, self.alone, Ordering::SeqCst);
        self.made_room(Destination::Rank(remote), fired);
        true
    }

    /// Messages for a branch to another rank are dropped from now on.
    fn drop_to(&self, remote: u32, fired: &mut (impl Fired + ?Sized)) {
        self.credits[remote as usize].store(DROPPED, Ordering::SeqCst);
        self.made_room(Destination::Rank(remote), fired);
    }

    /// A rank is gone: nothing more comes from it, and what is for it is dropped. All that it
    /// sent before has been delivered.
    pub fn lose(&self, rank: u32, how: &str, orderly: bool, fired: &mut (impl Fired + ?Sized)) {
        if let Some(remotes) = self.shape.to_ranks.get(rank as usize) {
            for remote in remotes {
                self.drop_to(*remote, fired);
            }
        }
        let branches = self.shape.from_ranks.get(rank as usize).cloned();
        if rank as usize == self.shape.rank {
            return;
        }
        for branch in branches.unwrap_or_default() {
            let inputs = self.shape.branches[branch as usize].consumers.clone();
            let edge = self.shape.consumers[inputs.start as usize];
            let (family, number, _) = self.shape.inputs[edge as usize].producer;
            let task = self.shape.name_of(family, number);
            let why = format!("task {task} of rank {rank} sends no more: rank {rank} {how}");
            let failure = Arc::new(Failure {
                task,
                rank: rank as usize,
                cause: if orderly {
                    Cause::Left(why)
                } else {
                    Cause::Told(why)
                },
            });
            self.fail_branch(branch, &failure, fired);
        }
    }

    /// A branch of another rank will have no more messages. False: it is malformed.
    #[must_use]
    pub fn fail_from(
        &self,
        rank: u32,
        place: u32,
        cause: &str,
        fired: &mut (impl Fired + ?Sized),
    ) -> bool {
        let Some(branch) = self.branch_from(rank, place) else {
            return false;
        };
        let failure = Arc::new(Failure {
            task: String::new(),
            rank: rank as usize,
            cause: Cause::Told(cause.into()),
        });
        self.fail_branch(branch, &failure, fired);
        true
    }

    /// No more messages come on a branch.
    pub(crate) fn fail_branch(
        &self,
        branch: u32,
        cause: &Arc<Failure>,
        fired: &mut (impl Fired + ?Sized),
    ) {
        if self.branches[branch as usize]
            .cause
            .set(cause.clone())
            .is_err()
        {
            return; // the first cause stands
        }
        self.failed.store(true, Ordering::SeqCst);
        for consumer in self.shape.branches[branch as usize].consumers.clone() {
            let input = self.shape.consumers[consumer as usize];
            let edge = &self.edges[input as usize];
            let meaning = edge.word.fail();
            self.tell(edge.task, meaning, fired);
        }
    }
}
