//! Graphs of which a rank dies: `exercise graph-deaths SEED VICTIM POINT`.
//!
//! A ring of cells, each edge between two ranks, with messages from 8 bytes to 320 KiB. The seed
//! says how many slots ports and how many workers ranks have, and whether a cell fails, or ends
//! early, meanwhile. The victim is killed when its tasks come to this point for the `POINT`-th time:
//! before a call puts anything, or behind a put. The others' runs end with an error that names it,
//! unless they had all they need; and so do their next ones.

use crate::{kill_me, pattern, scribbles, through};
use osier::task::{
    Context, Description, Graph, In, Next, Out, Placement, RunSettings, Task, TaskError,
};
use osier::{Communicator, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens besides the death.
#[derive(Clone, Copy)]
enum Besides {
    Nothing,
    /// A cell returns an error.
    Fails,
    /// A cell ends before its neighbors have had all they need.
    EndsEarly,
}

/// Says that a process has come to a point.
#[derive(Clone)]
struct Points {
    /// How often it comes there before it dies; 0: it lives.
    left: Arc<AtomicU64>,
}

impl Points {
    fn pass(&self) {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            kill_me();
        }
    }
}

/// Elements of the messages of a step, by cell.
const LENGTHS: [usize; 4] = [1, 40, 9_000, 40_000];
const STEPS: usize = 24;

struct Cell {
    number: usize,
    step: usize,
    /// It does this at this step.
    besides: (Besides, usize),
    out: Out<u64>,
    into: In<u64>,
    points: Points,
}

impl Cell {
    fn put(&self, cx: &mut Context<'_>) {
        self.points.pass();
        let message = vec![self.step as u64; LENGTHS[(self.number + self.step) % LENGTHS.len()]];
        match self.step % 2 {
            0 => cx.put(self.out, &message),
            _ => cx.give(self.out, message),
        }
        self.points.pass();
    }
}

impl Task for Cell {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        self.put(cx);
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        for message in cx.each(self.into) {
            let length = LENGTHS[(message.from_number() as usize + self.step) % LENGTHS.len()];
            assert_eq!(message.elements.len(), length);
            assert!(message.elements.iter().all(|e| *e == self.step as u64));
        }
        self.step += 1;
        match self.besides {
            (Besides::Fails, step) if step == self.step => return Err("as asked".into()),
            (Besides::EndsEarly, step) if step == self.step => return Ok(Next::Done),
            _ => {}
        }
        if self.step == STEPS {
            self.points.pass();
            return Ok(Next::Done);
        }
        self.put(cx);
        Ok(Next::Wait)
    }
}

fn ring(comm: &Communicator, seed: u64, besides: Besides, points: &Points) -> Graph {
    let count = 2 * comm.size();
    let mut graph = Description::new();
    let cells = graph.family("cell", &[count], Placement::Cyclic);
    let (out, into) = (graph.output::<u64>(cells, "out"), graph.input(cells, "in"));
    graph.begins(out);
    graph.slots(out, 1 + (seed / 3 % 3) as u32);
    graph.connect(out, into, move |[i]: [usize; 1]| {
        [[(i + 1) % count], [(i + count - 1) % count]]
    });
    let (special, step) = (seed as usize % count, 2 + seed as usize / 5 % (STEPS - 3));
    let points = points.clone();
    graph.tasks(cells, move |[number]: [usize; 1]| Cell {
        number,
        step: 0,
        besides: match number == special {
            true => (besides, step),
            false => (Besides::Nothing, 0),
        },
        out,
        into,
        points: points.clone(),
    });
    Graph::build(comm, graph).expect("a graph")
}

fn settings(seed: u64) -> RunSettings {
    RunSettings {
        workers: 1 + seed as usize / 2 % 2,
        ..RunSettings::default()
    }
}

/// Whether an error says that a rank is dead.
fn names_dead(text: &str, rank: usize) -> bool {
    let how = ["was killed by signal 9", "is dead"];
    how.iter()
        .any(|how| text.contains(&format!("rank {rank} {how}")))
}

pub fn run(comm: &Communicator, seed: u64, victim: usize, point: u64) {
    let (me, n) = (comm.rank(), comm.size());
    let besides = [Besides::Nothing, Besides::Fails, Besides::EndsEarly][seed as usize % 3];
    let left = if me == victim { point } else { 0 };
    let points = Points {
        left: Arc::new(AtomicU64::new(left)),
    };
    let graph = ring(comm, seed, besides, &points);
    comm.barrier().expect("all are here");
    let mut told = false;
    for _ in 0..2 {
        match graph.run_with(&settings(seed)) {
            Ok(_) => assert!(
                !told,
                "a cell needs messages of the dead within a few steps"
            ),
            Err(e) => {
                let text = e.to_string();
                assert_eq!(e.kind(), ErrorKind::Task, "{text}");
                let expected = match besides {
                    Besides::Nothing => false,
                    Besides::Fails => text.contains("as asked"),
                    Besides::EndsEarly => text.contains("can no longer be fired"),
                };
                let dead = names_dead(&text, victim);
                assert!(dead || expected, "{text}");
                told |= dead;
            }
        }
    }
    // What does not need the dead goes on.
    let living: Vec<usize> = (0..n).filter(|rank| *rank != victim).collect();
    if let Some(at) = living.iter().position(|rank| *rank == me) {
        let others = living.len();
        let (right, left) = (
            living[(at + 1) % others],
            living[(at + others - 1) % others],
        );
        let mut got = vec![0; 100_000];
        comm.sendrecv(&pattern(100_000, me), right, 5, &mut got, left, 5)
            .expect("the living");
        assert!(got == pattern(100_000, left));
    }
    through(comm);
}

/// Runs of such a graph until somebody is killed: `exercise graph-traffic SEED`.
pub fn traffic(comm: &Communicator, seed: u64) {
    let points = Points {
        left: Arc::default(),
    };
    let graph = ring(comm, seed, Besides::Nothing, &points);
    comm.barrier().expect("all are here");
    println!("rank {} goes on", comm.rank());
    loop {
        if let Err(e) = graph.run_with(&settings(seed)) {
            let text = e.to_string();
            eprintln!("rank {}: told: {text}", comm.rank());
            // Of a rank that was told before, its end.
            let ends = ["was killed by signal 9", "is dead", "exited with code"];
            let dead = text.contains("rank ") && ends.iter().any(|how| text.contains(how));
            let code = if dead {
                scribbles::TOLD
            } else {
                scribbles::WRONG
            };
            std::process::exit(code);
        }
    }
}
