//! Lines: messages of an output port for which there was no room.
//!
//! # Invariants
//! 1. While messages wait, the producer puts none past them; who sends them holds the lock.
//! 2. A message does not stay where there is room: a producer looks for room once more after
//!    it has said that something waits, and who makes room looks whether something waits
//!    afterwards. The word that says so and whatever tells of room are read and written in one
//!    order (SeqCst) by both.
//! 3. Who makes room does not wait for who sends: it may hold what that one waits for, as the lock
//!    of a lane. It asks for another look (`again`), and the sender looks once more after it has
//!    said that it sends no longer, or who makes room finds that said, and waits for the lock,
//!    which is then held for a few instructions.

use crate::sync::{AtomicU32, Mutex, Ordering, in_order, lock, spin, try_lock};
use std::collections::VecDeque;

/// Messages that wait for room, in their order.
#[derive(Debug)]
pub struct Line<M> {
    /// Not 0: messages wait.
    queued: AtomicU32,
    /// Not 0: who holds the lock sends.
    sends: AtomicU32,
    /// Not 0: room was made meanwhile.
    again: AtomicU32,
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
            sends: AtomicU32::new(0),
            again: AtomicU32::new(0),
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

    /// Room has been made: sends the messages that wait, or tells the thread that is sending them
    /// to look once more. True: all have been sent, and the task waited for that.
    #[inline]
    #[must_use]
    pub fn made_room(&self, send: impl FnMut(&M) -> bool) -> bool {
        in_order();
        if self.queued.load(Ordering::SeqCst) == 0 {
            return false;
        }
        self.send_or_ask(send)
    }

    #[cold]
    fn send_or_ask(&self, send: impl FnMut(&M) -> bool) -> bool {
        loop {
            if let Some(mut queue) = try_lock(&self.queue) {
                return self.drain(&mut queue, send);
            }
            // Invariant 3.
            self.again.store(1, Ordering::SeqCst);
            in_order();
            if self.sends.load(Ordering::SeqCst) != 0 {
                return false;
            }
            spin();
        }
    }

    #[cold]
    fn drain(&self, queue: &mut Queue<M>, mut send: impl FnMut(&M) -> bool) -> bool {
        loop {
            self.sends.store(1, Ordering::SeqCst);
            self.again.store(0, Ordering::SeqCst);
            in_order();
            while let Some(message) = queue.messages.front()
                && send(message)
            {
                queue.messages.pop_front();
            }
            if queue.messages.is_empty() {
                self.queued.store(0, Ordering::Release);
            }
            self.sends.store(0, Ordering::SeqCst);
            if queue.messages.is_empty() {
                return std::mem::take(&mut queue.waiting);
            }
            in_order();
            if self.again.load(Ordering::SeqCst) == 0 {
                return false;
            }
        }
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

    /// As below, where both hold a lock while they put, and while they make room: nobody waits for
    /// the other for ever.
    #[test]
    fn loom_who_makes_room_does_not_wait_for_who_sends() {
        loom::model(|| {
            let shared = Arc::new((
                Line::<u32>::default(),
                AtomicU32::new(0),
                loom::sync::Mutex::new(()),
            ));
            let send =
                |lane: &loom::sync::Mutex<()>, slot: &AtomicU32, message: u32, held: bool| {
                    let _lane = (!held).then(|| lane.lock());
                    let free = slot.load(Ordering::SeqCst) == 0;
                    if free {
                        slot.store(message, Ordering::SeqCst);
                    }
                    free
                };
            let producer = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (line, slot, lane) = &*shared;
                    for message in 1..=2 {
                        if !line.is_empty() || !send(lane, slot, message, false) {
                            line.push(message, |message| send(lane, slot, *message, false));
                        }
                    }
                })
            };
            let (line, slot, lane) = &*shared;
            let mut read = Vec::new();
            let mut look = || {
                let _lane = lane.lock();
                let message = slot.load(Ordering::SeqCst);
                if message != 0 {
                    read.push(message);
                    slot.store(0, Ordering::SeqCst);
                    let _ = line.made_room(|message| send(lane, slot, *message, true));
                }
            };
            look();
            producer.join().expect("it ends");
            (0..2).for_each(|_| look());
            assert_eq!(read, [1, 2]);
            assert!(line.is_empty());
        });
    }

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
