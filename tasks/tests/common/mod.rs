//! Jobs of several ranks and workers on one thread, whose order a seed decides.

#![allow(dead_code, reason = "each test file uses some of it")]

pub mod chance;

use chance::Random;
use osier_tasks::build::BuildError;
use osier_tasks::delivery::Room;
use osier_tasks::describe::Description;
use osier_tasks::failure::Failure;
use osier_tasks::graph::{Graph, Ranks};
use osier_tasks::instance::{Elsewhere, Instance, Outside};
use osier_tasks::memory::Memory;
use osier_tasks::worker::{Counts, Crew, Step, Worker};
use std::collections::VecDeque;
use std::sync::{Arc, Barrier, Mutex};

type Board = Mutex<Vec<Vec<Vec<u64>>>>;

struct OnThread<'a> {
    rank: usize,
    board: &'a Board,
    barrier: &'a Barrier,
}

impl Ranks for OnThread<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.board.lock().expect("no panic").len()
    }

    fn exchange(&mut self, letters: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
        self.board.lock().expect("no panic")[self.rank] = letters;
        self.barrier.wait();
        let all = self.board.lock().expect("no panic").clone();
        self.barrier.wait();
        all.iter()
            .map(|letters| letters[self.rank].clone())
            .collect()
    }
}

/// The graph of each rank, or the error of each.
pub fn build(
    ranks: usize,
    describe: impl Fn() -> Description + Sync,
) -> Vec<Result<Graph, BuildError>> {
    let board = Mutex::new(vec![Vec::new(); ranks]);
    let barrier = Barrier::new(ranks);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (board, barrier, describe) = (&board, &barrier, &describe);
                scope.spawn(move || {
                    let mut ranks = OnThread {
                        rank,
                        board,
                        barrier,
                    };
                    Graph::build(describe(), &mut ranks)
                })
            })
            .collect();
        let graphs = threads.into_iter().map(|t| t.join().expect("it builds"));
        graphs.collect()
    })
}

enum Letter {
    Put(u32, Vec<u8>),
    /// A long message, and whether its delivery has begun.
    Long(u32, Arc<Memory>, bool),
    Credit(u32, u32),
    Fail(u32, String),
    Ended(u32),
}

/// By sender and receiver.
type Wires = Arc<Vec<Vec<Mutex<VecDeque<Letter>>>>>;

struct Net {
    rank: usize,
    wires: Wires,
}

impl Net {
    fn post(&self, to: u32, letter: Letter) {
        let wire = &self.wires[self.rank][to as usize];
        wire.lock().expect("no panic").push_back(letter);
    }
}

/// Most bytes of a message that is copied to another rank.
const MOST_COPIED: usize = 16;

impl Outside for Net {
    fn put_memory(&self, rank: u32, place: u32, memory: &Arc<Memory>) {
        match memory.bytes().len() {
            ..=MOST_COPIED => self.put(rank, place, memory.bytes()),
            _ => self.post(rank, Letter::Long(place, memory.clone(), false)),
        }
    }

    fn most_copied(&self, _: u32) -> usize {
        MOST_COPIED
    }

    fn put(&self, rank: u32, place: u32, packed: &[u8]) {
        self.post(rank, Letter::Put(place, packed.to_vec()));
    }

    fn credit(&self, rank: u32, place: u32, messages: u32) {
        self.post(rank, Letter::Credit(place, messages));
    }

    fn fail(&self, rank: u32, place: u32, cause: &Failure) {
        self.post(rank, Letter::Fail(place, cause.to_string()));
    }

    fn ended(&self, rank: u32, place: u32) {
        self.post(rank, Letter::Ended(place));
    }

    fn wake(&self) {}
}

/// A run on all ranks.
pub struct Job {
    instances: Vec<Instance>,
    crews: Vec<(Crew, Vec<Worker>)>,
    wires: Wires,
    /// The rank that has failed, and who knows.
    dead: Option<usize>,
    told: Vec<bool>,
}

impl Job {
    pub fn new(graphs: &[Graph], workers: usize) -> Job {
        let ranks = graphs.len();
        let wires: Wires = Arc::new(
            (0..ranks)
                .map(|_| (0..ranks).map(|_| Mutex::default()).collect())
                .collect(),
        );
        let instances: Vec<Instance> = graphs
            .iter()
            .enumerate()
            .map(|(rank, graph)| {
                let wires = wires.clone();
                graph.instance(1, workers, Some(Box::new(Net { rank, wires })))
            })
            .collect();
        let crews = instances.iter().map(Crew::new).collect();
        Job {
            instances,
            crews,
            wires,
            dead: None,
            told: vec![false; ranks],
        }
    }

    /// A rank fails: what it has sent still arrives.
    pub fn fail(&mut self, rank: usize) {
        self.dead = Some(rank);
    }

    /// One worker's step, or one message, as chance decides. False: nothing happened there.
    fn step(&mut self, random: &mut Random) -> bool {
        let ranks = self.instances.len();
        let rank = random.below(ranks as u64) as usize;
        if ranks > 1 && random.below(2) == 0 {
            let from = random.below(ranks as u64) as usize;
            return self.deliver(from, rank);
        }
        if self.dead == Some(rank) {
            return false;
        }
        let (crew, workers) = &mut self.crews[rank];
        let worker = random.below(workers.len() as u64) as usize;
        if random.below(32) == 0 {
            // A worker may look for orphans at any time.
            workers[worker].look_for_ended(&self.instances[rank], crew);
        }
        workers[worker].step(&self.instances[rank], crew) == Step::Ran
    }

    fn deliver(&mut self, from: usize, to: usize) -> bool {
        if self.dead == Some(to) {
            return false;
        }
        let letter = self.wires[from][to].lock().expect("no panic").pop_front();
        if letter.is_none() && self.dead == Some(from) && !self.told[to] {
            self.told[to] = true;
            let rank = from as u32;
            self.instances[to].lose(rank, "has failed", false, &mut Elsewhere);
            return true;
        }
        let (instance, from) = (&self.instances[to], from as u32);
        let sound = match letter {
            None => return false,
            Some(Letter::Put(place, packed)) => {
                instance.deliver(from, place, &packed, &mut Elsewhere)
            }
            Some(Letter::Long(place, memory, begun)) => {
                if !begun {
                    self.begin(to, (from, place), &memory);
                    let letter = Letter::Long(place, memory, true);
                    let wire = &self.wires[from as usize][to];
                    wire.lock().expect("no panic").push_front(letter);
                } else {
                    // SAFETY: `begin` has written all of it.
                    unsafe { instance.end_delivery(from, place, &mut Elsewhere) };
                }
                true
            }
            Some(Letter::Credit(place, messages)) => {
                instance.credit(from, place, messages, &mut Elsewhere)
            }
            Some(Letter::Fail(place, text)) => {
                instance.fail_from(from, place, &text, &mut Elsewhere)
            }
            Some(Letter::Ended(place)) => instance.ended_from(from, place, &mut Elsewhere),
        };
        assert!(sound, "a message that no rank sends");
        true
    }

    /// Writes a long message to its room.
    fn begin(&self, to: usize, (from, place): (u32, u32), memory: &Memory) {
        let bytes = memory.bytes();
        match self.instances[to].begin_delivery(from, place, bytes.len()) {
            // SAFETY: the room is for all of the message.
            Room::At(room) => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len());
            },
            other => panic!("{other:?} for {} bytes", bytes.len()),
        }
    }

    /// Some events, as chance decides.
    pub fn some(&mut self, steps: u64, random: &mut Random) {
        for _ in 0..steps {
            self.step(random);
        }
    }

    /// Runs until all ranks have ended. False: nothing can move any more.
    pub fn run(&mut self, random: &mut Random) -> bool {
        loop {
            self.some(64, random);
            let mut alive = self.instances.iter().enumerate();
            if alive.all(|(rank, instance)| self.dead == Some(rank) || instance.has_ended()) {
                return true;
            }
            if !self.sweep() && !self.look() {
                return false;
            }
        }
    }

    /// Every worker looks for orphans: whether anything moved then.
    fn look(&mut self) -> bool {
        for (instance, (crew, workers)) in self.instances.iter().zip(&mut self.crews) {
            for worker in workers {
                worker.look_for_ended(instance, crew);
            }
        }
        self.sweep()
    }

    /// Every worker and every wire once: whether anything moved.
    fn sweep(&mut self) -> bool {
        let ranks = self.instances.len();
        let mut any = false;
        for to in 0..ranks {
            for from in 0..ranks {
                any |= self.deliver(from, to);
            }
            if self.dead == Some(to) {
                continue;
            }
            let (crew, workers) = &mut self.crews[to];
            for worker in workers {
                any |= worker.step(&self.instances[to], crew) == Step::Ran;
            }
        }
        any
    }

    /// How the tasks of all ranks stand, for a test that fails.
    pub fn standing(&self) -> Vec<String> {
        let of = |instance: &Instance| {
            let count = instance.shape().tasks.len() as u32;
            let tasks = (0..count).map(|task| instance.describe(task));
            tasks.collect::<Vec<_>>()
        };
        self.instances.iter().flat_map(of).collect()
    }

    pub fn failures(&self) -> Vec<String> {
        let all = self.instances.iter().flat_map(Instance::failures);
        all.map(|failure| failure.to_string()).collect()
    }
}

/// Runs a graph of one rank by workers of their own threads; what each did.
pub fn on_threads(graph: &Graph, workers: usize) -> Vec<Counts> {
    let instance = graph.instance(1, workers, None);
    let (crew, mut workers) = Crew::new(&instance);
    std::thread::scope(|scope| {
        for worker in &mut workers {
            let (instance, crew) = (&instance, &crew);
            scope.spawn(move || {
                while !instance.has_ended() {
                    if worker.step(instance, crew) == Step::Idle {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert!(instance.failures().is_empty());
    workers.iter().map(|worker| worker.counts).collect()
}
