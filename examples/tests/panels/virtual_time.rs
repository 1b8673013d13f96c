//! Jobs of many ranks and workers in virtual time, on one thread: the workers of the runtime,
//! messages that take as long as a network says, tasks that take as long as they say.
//!
//! ```text
//! worker: step -> task -> compute(ns) ----> asleep until now + ns -----> its puts
//!              -> nothing to do ---------> asleep until its rank has news
//! put -> the wire of its two ranks, in turn -> after the latency -> news of the other rank
//! ```
//!
//! Each worker is a coroutine that calls [`Worker::step`], so that a task which computes keeps
//! its worker, and others run meanwhile. Equal times are in the order in which they were set:
//! a run is the same each time.
//!
//! # Invariants
//! 1. A yielder is used on its own stack only, whose first frame holds it.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use osier_tasks::describe::Description;
use osier_tasks::failure::Failure;
use osier_tasks::graph::{Graph, Ranks};
use osier_tasks::instance::{Elsewhere, Instance, Outside};
use osier_tasks::worker::{Counts, Crew, Step, Worker};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// What a message between two ranks takes.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub latency_ns: u64,
    pub ns_per_kib: u64,
}

/// What a job did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Until the last task had ended.
    pub took_ns: u64,
    /// Time in tasks, of all workers.
    pub busy_ns: u64,
    pub firings: u64,
    pub stolen: u64,
}

/// Bytes of a worker's stack.
const STACK_BYTES: usize = 256 << 10;
/// Bytes of a message besides its elements.
const HEAD_BYTES: u64 = 16;

enum Pause {
    /// In a task.
    For(u64),
    /// Until its rank has news.
    Idle,
}

thread_local! {
    /// Of the worker that runs.
    static YIELDER: Cell<*const Yielder<(), Pause>> = const { Cell::new(std::ptr::null()) };
}

/// Spends virtual time in a task.
pub fn compute(ns: u64) {
    let own = YIELDER.get();
    assert!(!own.is_null(), "in a task of a job in virtual time");
    // SAFETY: invariant 1: this runs on the stack of the worker that was resumed last.
    let yielder = unsafe { &*own };
    yielder.suspend(Pause::For(ns));
    YIELDER.set(own);
}

enum Letter {
    Put(u32, Vec<u8>),
    Credit(u32, u32),
}

/// What the running worker sends: to which rank.
type Posts = Arc<Mutex<Vec<(u32, Letter)>>>;

struct Sender(Posts);

impl Sender {
    fn post(&self, rank: u32, letter: Letter) {
        self.0.lock().expect("no panic").push((rank, letter));
    }
}

impl Outside for Sender {
    fn put(&self, rank: u32, place: u32, packed: &[u8]) {
        self.post(rank, Letter::Put(place, packed.to_vec()));
    }

    fn credit(&self, rank: u32, place: u32, messages: u32) {
        self.post(rank, Letter::Credit(place, messages));
    }

    fn fail(&self, _: u32, _: u32, cause: &Failure) {
        panic!("a task has failed: {cause}");
    }

    fn ended(&self, _: u32, _: u32) {}

    // Workers without a task look whenever their rank has news.
    fn wake(&self) {}
}

struct Rank {
    instance: Instance,
    crew: Crew,
}

/// The way from one rank to another.
#[derive(Default)]
struct Wire {
    letters: VecDeque<Letter>,
    /// When it has taken what was sent so far.
    free_ns: u64,
}

/// A worker, by its rank and number.
type Place = (usize, usize);
type Stack = Coroutine<(), Pause, Counts, DefaultStack>;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Resume(Place),
    /// The next letter from a rank to another.
    Arrive(usize, usize),
}

struct Job {
    network: Network,
    ranks: Vec<Rc<Rank>>,
    workers: Vec<Vec<Stack>>,
    idle: Vec<Vec<bool>>,
    posts: Posts,
    wires: BTreeMap<(usize, usize), Wire>,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Events so far.
    count: u64,
    played: Played,
}

/// Letters of a rank that builds a graph, to each rank or from each.
type Letters = Vec<Vec<u64>>;

/// A rank that builds a graph on a stack of its own.
struct Builder<'a> {
    rank: usize,
    size: usize,
    yielder: &'a Yielder<Letters, Letters>,
}

impl Ranks for Builder<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&mut self, letters: Letters) -> Letters {
        self.yielder.suspend(letters)
    }
}

/// The graph of each rank.
pub fn build(size: usize, describe: impl Fn() -> Description + 'static) -> Vec<Graph> {
    let describe = Rc::new(describe);
    let ranks = (0..size).map(|rank| {
        let describe = describe.clone();
        let stack = DefaultStack::new(STACK_BYTES).expect("memory for a stack");
        Coroutine::with_stack(
            stack,
            move |yielder: &Yielder<Letters, Letters>, _: Letters| {
                let mut ranks = Builder {
                    rank,
                    size,
                    yielder,
                };
                Graph::build(describe(), &mut ranks).expect("a graph")
            },
        )
    });
    let mut ranks: Vec<_> = ranks.collect();
    let mut into = vec![Letters::new(); size];
    loop {
        let mut graphs = Vec::new();
        let mut from = Vec::new();
        for (rank, letters) in ranks.iter_mut().zip(into) {
            match rank.resume(letters) {
                CoroutineResult::Yield(letters) => from.push(letters),
                CoroutineResult::Return(graph) => graphs.push(graph),
            }
        }
        if from.is_empty() {
            return graphs;
        }
        assert_eq!(from.len(), size, "all ranks exchange letters as often");
        let mut to = vec![Letters::new(); size];
        for letters in from {
            for (to, letter) in to.iter_mut().zip(letters) {
                to.push(letter);
            }
        }
        into = to;
    }
}

/// Runs a graph, as each rank has built it, by this number of workers of each rank.
pub fn play(graphs: &[Graph], workers: usize, network: Network) -> Played {
    let posts = Posts::default();
    let mut job = Job {
        network,
        ranks: Vec::new(),
        workers: Vec::new(),
        idle: vec![vec![false; workers]; graphs.len()],
        posts: posts.clone(),
        wires: BTreeMap::new(),
        now_ns: 0,
        events: BinaryHeap::new(),
        count: 0,
        played: Played::default(),
    };
    for graph in graphs {
        let instance = graph.instance(1, workers, Some(Box::new(Sender(posts.clone()))));
        let (crew, of_rank) = Crew::new(&instance);
        let rank = Rc::new(Rank { instance, crew });
        let stacks = of_rank.into_iter().map(|worker| on_stack(worker, &rank));
        job.workers.push(stacks.collect());
        job.ranks.push(rank);
    }
    job.run()
}

/// A worker that runs tasks until its rank has none left, and returns what it did.
fn on_stack(mut worker: Worker, rank: &Rc<Rank>) -> Stack {
    let rank = rank.clone();
    let stack = DefaultStack::new(STACK_BYTES).expect("memory for a stack");
    Coroutine::with_stack(stack, move |yielder: &Yielder<(), Pause>, ()| {
        loop {
            YIELDER.set(std::ptr::from_ref(yielder));
            if worker.step(&rank.instance, &rank.crew) == Step::Ran {
                continue;
            }
            if rank.instance.has_ended() {
                return worker.counts;
            }
            yielder.suspend(Pause::Idle);
        }
    })
}

impl Job {
    fn run(mut self) -> Played {
        for rank in 0..self.ranks.len() {
            for worker in 0..self.workers[rank].len() {
                self.at(0, Event::Resume((rank, worker)));
            }
        }
        while let Some(Reverse((ns, _, event))) = self.events.pop() {
            self.now_ns = ns;
            let rank = match event {
                Event::Resume(place) => {
                    self.played.took_ns = ns;
                    self.resume(place);
                    place.0
                }
                Event::Arrive(from, to) => {
                    self.arrive(from, to);
                    to
                }
            };
            for worker in 0..self.workers[rank].len() {
                if self.idle[rank][worker] {
                    self.resume((rank, worker));
                }
            }
        }
        let ended = |rank: &Rc<Rank>| rank.instance.has_ended();
        assert!(self.ranks.iter().all(ended), "the job has halted");
        let all = || self.workers.iter().flatten();
        assert!(all().all(Coroutine::done), "a worker waits");
        self.played
    }

    fn at(&mut self, ns: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((ns, self.count, event)));
    }

    /// Lets a worker go on until it computes, or has nothing to do.
    fn resume(&mut self, place: Place) {
        let (rank, worker) = place;
        self.idle[rank][worker] = false;
        match self.workers[rank][worker].resume(()) {
            CoroutineResult::Yield(Pause::For(ns)) => {
                self.played.busy_ns += ns;
                self.at(self.now_ns + ns, Event::Resume(place));
            }
            CoroutineResult::Yield(Pause::Idle) => self.idle[rank][worker] = true,
            CoroutineResult::Return(counts) => {
                self.played.firings += counts.firings;
                self.played.stolen += counts.stolen;
            }
        }
        self.send(rank);
    }

    /// Gives what a rank has posted to the wires.
    fn send(&mut self, from: usize) {
        let posts = std::mem::take(&mut *self.posts.lock().expect("no panic"));
        for (to, letter) in posts {
            let to = to as usize;
            let bytes = match &letter {
                Letter::Put(_, packed) => HEAD_BYTES + packed.len() as u64,
                Letter::Credit(..) => HEAD_BYTES,
            };
            let wire = self.wires.entry((from, to)).or_default();
            wire.letters.push_back(letter);
            let begins = wire.free_ns.max(self.now_ns);
            wire.free_ns = begins + bytes * self.network.ns_per_kib / 1024;
            let arrives = wire.free_ns + self.network.latency_ns;
            self.at(arrives, Event::Arrive(from, to));
        }
    }

    fn arrive(&mut self, from: usize, to: usize) {
        let wire = self.wires.get_mut(&(from, to)).expect("a wire");
        let letter = wire.letters.pop_front().expect("a letter");
        let (instance, rank) = (&self.ranks[to].instance, from as u32);
        let sound = match letter {
            Letter::Put(place, packed) => instance.deliver(rank, place, &packed, &mut Elsewhere),
            Letter::Credit(place, count) => instance.credit(rank, place, count, &mut Elsewhere),
        };
        assert!(sound, "a message that no rank sends");
        // What a handler of messages sends on.
        self.send(to);
    }
}
