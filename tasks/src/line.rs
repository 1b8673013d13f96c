//! Lines: messages of an output port for which there was no room.
//!
//! # Invariants
//! 1. While messages wait, the producer puts none past them; who sends them holds the lock.
//! 2. A message does not stay where there is room: a producer looks for room once more after
//!    it has said that something waits, and who makes room looks whether something waits
//!    afterwards. The word that says so and whatever tells of room are read and written in one
//!    order (SeqCst) by both.

use crate::sync::{AtomicU32, Mutex, Ordering, in_order, lock};
use std::collections::VecDeque;

/// Messages that wait for room, in their order.
#[derive(Debug)]
pub struct Line<M> {
    /// Not 0: messages wait.
    queued: AtomicU32,
    queue: Mutex<Queue<M>>,
}

#[derive(Debug)]
struct Queue<M> {
    messages: VecDeque<M>,
    /// The task waits until they have left.
    waiting: bool,
}

impl<M> Queue<M> {
    const EMPTY: Self = Queue {
        messages: VecDeque::new(),
        waiting: false,
    };
}

impl<M> Default for Line<M> {
    fn default() -> Self {
        Self {
            queued: AtomicU32::new(0),
            queue: Mutex::new(Queue::EMPTY),
        }
    }
}

impl<M> Line<M> {
    /// Whether the next message may leave at once, for its producer.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queued.load(Ordering::Acquire) == 0
    }

    /// Keeps a message of the producer's. `send` sends one that waits, and returns false if
    /// there is no room.
    pub fn push(&self, message: M, send: impl FnMut(&M) -> bool) {
        let mut queue = lock(&self.queue);
        queue.messages.push_back(message);
        self.queued.store(1, Ordering::SeqCst);
        in_order();
        self.drain(&mut queue, send);
    }

    /// Room has been made: sends what waits. True: all has left, and the task waited for it.
    #[inline]
    #[must_use]
    pub fn made_room(&self, send: impl FnMut(&M) -> bool) -> bool {
        in_order();
        if self.queued.load(Ordering::SeqCst) == 0 {
            return false;
        }
        self.drain(&mut lock(&self.queue), send)
    }

    #[cold]
    fn drain(&self, queue: &mut Queue<M>, mut send: impl FnMut(&M) -> bool) -> bool {
        while let Some(message) = queue.messages.front() {
            if !send(message) {
                return false;
            }
            queue.messages.pop_front();
        }
        self.queued.store(0, Ordering::Release);
        std::mem::take(&mut queue.waiting)
    }

    /// The task waits from now on until all have left; false if none is there.
    pub fn wait(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.waiting = !queue.messages.is_empty();
        queue.waiting
    }

    /// Drops what waits: the task has failed.
    pub fn clear(&self) {
        *lock(&self.queue) = Queue::EMPTY;
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    /// A producer of three messages, a slot, a consumer: all come, in their order.
    #[test]
    fn loom_no_message_stays_where_there_is_room() {
        loom::model(|| {
            // The slot's message, 0 where it is free.
            let shared = Arc::new((Line::<u32>::default(), AtomicU32::new(0)));
            let send = |slot: &AtomicU32, message: u32| {
                let free = slot.load(Ordering::SeqCst) == 0;
                if free {
                    slot.store(message, Ordering::SeqCst);
                }
                free
            };
            let producer = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (line, slot) = &*shared;
                    for message in 1..=3 {
                        if !line.is_empty() || !send(slot, message) {
                            line.push(message, |message| send(slot, *message));
                        }
                    }
                })
            };
            let (line, slot) = &*shared;
            let mut read = Vec::new();
            let mut look = || {
                let message = slot.load(Ordering::SeqCst);
                if message != 0 {
                    read.push(message);
                    slot.store(0, Ordering::SeqCst);
                    let _ = line.made_room(|message| send(slot, *message));
                }
            };
            look();
            look();
            producer.join().expect("it ends");
            (0..3).for_each(|_| look());
            assert_eq!(read, [1, 2, 3]);
            assert!(line.is_empty());
        });
    }
}
