//! The lane of a graph, as a run and its lane know each other: what tasks send, and what comes.
//!
//! # Invariants
//! 1. The lane tells of a long message when it has filled the room that the sink gave for it.

use crate::build::MOST_PLACES;
use crate::delivery::Room;
use crate::event::WakeWorkers;
use crate::failure::Failure;
use crate::instance::{Fired, Instance, NO_MORE, Outside};
use crate::memory::Memory;
use crate::orphan::ASKED;
use crate::traffic::EdgeTraffic;
use osier_engine::progress::cell::LaneCell;
use osier_engine::progress::core::Core;
use osier_engine::progress::edges::{self, EdgeMemory, EdgeRun, EdgeSink, Post, What};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

const _: () = assert!(NO_MORE == edges::NO_MORE && ASKED == edges::ASKED);
const _: () = assert!(MOST_PLACES == edges::MOST_PLACES);

impl EdgeMemory for Memory {
    fn bytes(&self) -> &[u8] {
        Memory::bytes(self)
    }
}

/// The other ranks, as a run reaches them.
pub(crate) struct OverLane {
    pub core: Arc<Core>,
    pub lane: Arc<LaneCell>,
    pub run: EdgeRun,
    pub traffic: Arc<EdgeTraffic>,
}

impl Outside for OverLane {
    fn put(&self, rank: u32, place: u32, packed: &[u8]) {
        let run = self.run;
        self.core.with(&self.lane, |lane| {
            self.traffic.send(rank, packed.len());
            lane.post_edge(run, rank, place, packed);
        });
    }

    fn put_memory(&self, rank: u32, place: u32, memory: &Arc<Memory>) {
        let (run, memory): (_, Arc<dyn EdgeMemory>) = (self.run, memory.clone());
        self.core.with(&self.lane, |lane| {
            self.traffic.send(rank, memory.bytes().len());
            lane.post_edge_memory(run, rank, place, &memory);
        });
    }

    fn most_copied(&self, rank: u32) -> usize {
        self.core
            .with(&self.lane, |lane| lane.most_copied_of_edges(rank))
    }

    fn credit(&self, rank: u32, place: u32, messages: u32) {
        let run = self.run;
        self.core.with(&self.lane, |lane| {
            lane.post_edge_credit(run, rank, place, messages);
        });
    }

    fn fail(&self, rank: u32, place: u32, cause: &Failure) {
        let (run, why) = (self.run, cause.to_string());
        self.core.with(&self.lane, |lane| {
            lane.post_edge_failed(run, rank, place, &why);
        });
    }

    fn ended(&self, rank: u32, place: u32) {
        let run = self.run;
        self.core
            .with(&self.lane, |lane| lane.post_edge_ended(run, rank, place));
    }

    fn wake(&self) {
        self.core.wake_waiting();
    }

    fn waker(&self) -> WakeWorkers {
        let core = Arc::downgrade(&self.core);
        Arc::new(move || {
            if let Some(core) = core.upgrade() {
                core.wake_waiting();
            }
        })
    }
}

thread_local! {
    /// The crew whose worker this thread is while it polls a lane, or 0, and the tasks that it
    /// has fired meanwhile, with their run's place in the crew.
    pub(crate) static POLLS: Cell<usize> = const { Cell::new(0) };
    pub(crate) static FIRED: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Which run of which crew this is.
#[derive(Clone, Copy)]
pub(crate) struct Membership {
    pub crew: usize,
    pub at: u32,
}

impl Membership {
    #[inline]
    pub fn is_polled_by_worker(self) -> bool {
        POLLS.get() == self.crew
    }
}

/// A thread that handles messages under the lane's lock: what it is to send waits until the
/// lane can post it.
struct Delivering {
    member: Membership,
    /// A task of the worker that polls was fired.
    fired: bool,
    posts: Vec<Post>,
    traffic: Arc<EdgeTraffic>,
}

impl Fired for Delivering {
    fn fired(&mut self, instance: &Instance, task: u32) {
        match self.member.is_polled_by_worker() {
            true => {
                self.fired = true;
                FIRED.with_borrow_mut(|fired| fired.push((self.member.at, task)));
            }
            false => instance.send_home(task),
        }
    }

    fn put(&mut self, instance: &Instance, rank: u32, place: u32, packed: &[u8]) {
        let memory = Arc::new(Memory::from(packed.to_vec()));
        self.put_memory(instance, rank, place, &memory);
    }

    fn put_memory(&mut self, _: &Instance, rank: u32, place: u32, memory: &Arc<Memory>) {
        self.traffic.send(rank, memory.bytes().len());
        self.post(rank, place, What::Elements(memory.clone()));
    }

    fn credit(&mut self, _: &Instance, rank: u32, place: u32, messages: u32) {
        self.post(rank, place, What::Credit(messages));
    }

    fn fail(&mut self, _: &Instance, rank: u32, place: u32, cause: &Failure) {
        self.post(rank, place, What::Failed(cause.to_string()));
    }

    fn ended(&mut self, _: &Instance, rank: u32, place: u32) {
        self.post(rank, place, What::Ended);
    }
}

impl Delivering {
    fn post(&mut self, peer: u32, place: u32, what: What) {
        self.posts.push(Post { peer, place, what });
    }
}

/// The run as its lane knows it.
pub(crate) struct Sink {
    instance: Arc<Instance>,
    delivering: Delivering,
}

impl Sink {
    /// Of a run that is about to begin.
    pub fn new(instance: Arc<Instance>, member: Membership, traffic: Arc<EdgeTraffic>) -> Sink {
        let delivering = Delivering {
            member,
            fired: false,
            posts: Vec::new(),
            traffic,
        };
        Sink {
            instance,
            delivering,
        }
    }
}

impl EdgeSink for Sink {
    #[inline]
    fn may_touch(&self) -> bool {
        !self.instance.alone || self.delivering.member.is_polled_by_worker()
    }

    fn take_posts(&mut self) -> Vec<Post> {
        std::mem::take(&mut self.delivering.posts)
    }

    fn has_fired(&mut self) -> bool {
        std::mem::take(&mut self.delivering.fired)
    }

    #[inline]
    fn put(&mut self, peer: u32, place: u32, packed: &[u8]) -> bool {
        self.delivering.traffic.receive(peer, packed.len());
        self.instance
            .deliver(peer, place, packed, &mut self.delivering)
    }

    fn room(&mut self, peer: u32, place: u32, bytes: usize) -> Option<*mut u8> {
        match self.instance.begin_delivery(peer, place, bytes) {
            Room::At(room) => {
                self.delivering.traffic.receive(peer, bytes);
                Some(room)
            }
            Room::Malformed => None,
            Room::None => {
                let why = format!("no memory for a message of {bytes} bytes from rank {peer}");
                self.failed(peer, place, &why);
                None
            }
        }
    }

    fn arrived(&mut self, peer: u32, place: u32) {
        // SAFETY: invariant 1: the lane says so of a message that filled its room.
        unsafe {
            self.instance
                .end_delivery(peer, place, &mut self.delivering);
        }
    }

    fn credit(&mut self, peer: u32, place: u32, messages: u32) -> bool {
        self.instance
            .credit(peer, place, messages, &mut self.delivering)
    }

    fn failed(&mut self, peer: u32, place: u32, why: &str) -> bool {
        self.instance
            .fail_from(peer, place, why, &mut self.delivering)
    }

    fn ended(&mut self, peer: u32, place: u32) -> bool {
        self.instance.ended_from(peer, place, &mut self.delivering)
    }

    fn gone(&mut self, peer: u32, how: &str, orderly: bool) {
        self.instance.lose(peer, how, orderly, &mut self.delivering);
    }
}
