//! Task graphs between ranks.

use crate::support::{fails, on_all, on_shm, on_threads, one_fails};
use osier::task::run_together;
use osier::task::{Context, Description, Graph, In, Next, Out, Placement, Task, TaskError, layout};
use osier::task::{Event, Node, ProgressThread, Rule, RunSettings, Signal, Space, Volume};
use osier::testing::Network;
use osier::{Communicator, ErrorKind, Type, View, ViewMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A cell of a ring that averages with its neighbors; a message is as long as is asked.
struct Cell {
    value: f64,
    elements: usize,
    left: u64,
    out: Out<f64>,
    into: In<f64>,
    results: Arc<Mutex<Vec<f64>>>,
}

impl Task for Cell {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        cx.put(self.out, &vec![self.value; self.elements]);
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        let mut sum = self.value;
        for message in cx.each(self.into) {
            assert_eq!(message.elements.len(), self.elements);
            assert!(message.elements.iter().all(|e| *e == message.elements[0]));
            sum += message.elements[0];
        }
        self.value = sum / 3.0;
        self.left -= 1;
        if self.left > 0 {
            cx.give(self.out, vec![self.value; self.elements]);
            return Ok(Next::Wait);
        }
        let number = cx.number() as usize;
        self.results.lock().expect("no panic")[number] = self.value;
        Ok(Next::Done)
    }
}

const CELLS: usize = 12;

fn ring(
    elements: usize,
    steps: u64,
    placement: Placement,
    results: &Arc<Mutex<Vec<f64>>>,
) -> Description {
    let mut graph = Description::new();
    let cells = graph.family("cell", &[CELLS], placement);
    let (out, into) = (graph.output(cells, "out"), graph.input(cells, "in"));
    let space = Space::new(&[CELLS]).expect("a space");
    graph.begins(out);
    graph.connect_by(out, into, layout::neighbors(&space, true));
    let results = results.clone();
    graph.tasks(cells, move |[i]: [usize; 1]| Cell {
        value: (i * i) as f64,
        elements,
        left: steps,
        out,
        into,
        results: results.clone(),
    });
    graph
}

/// What a ring ends with, without tasks. Neighbors in the order of their numbers.
fn expected(steps: u64) -> Vec<f64> {
    let mut values: Vec<f64> = (0..CELLS).map(|i| (i * i) as f64).collect();
    for _ in 0..steps {
        let next = (0..CELLS).map(|i| {
            let (a, b) = ((i + CELLS - 1) % CELLS, (i + 1) % CELLS);
            (values[i] + values[a.min(b)] + values[a.max(b)]) / 3.0
        });
        values = next.collect();
    }
    values
}

/// The values of the cells of this rank are those of the loop, with the same bits.
fn check(results: &Mutex<Vec<f64>>, steps: u64, own: usize) {
    let mut results = results.lock().expect("no panic");
    let mut found = 0;
    for (result, expected) in results.iter_mut().zip(expected(steps)) {
        if !result.is_nan() {
            assert_eq!(*result, expected);
            found += 1;
        }
        *result = f64::NAN;
    }
    assert_eq!(found, own);
}

fn results() -> Arc<Mutex<Vec<f64>>> {
    Arc::new(Mutex::new(vec![f64::NAN; CELLS]))
}

#[test]
fn rings_end_with_the_bits_of_a_loop() {
    on_all(3, |comm| {
        let steps = 9;
        for elements in [1, 4, 5, 300] {
            for placement in [Placement::Block, Placement::Cyclic] {
                let results = results();
                let description = ring(elements, steps, placement, &results);
                let graph = Graph::build(&comm, description).expect("a graph");
                for workers in [1, 2, 1] {
                    let report = graph.run_by(workers).expect("no failure");
                    assert_eq!(report.tasks, 4);
                    check(&results, steps, 4);
                }
            }
        }
    });
}

/// Messages that no ring of the transport holds whole, and runs that follow each other
/// without a barrier.
#[test]
fn long_messages_and_runs_in_a_row() {
    on_shm(2, |comm| {
        for (elements, runs) in [(400_000, 2), (20_000, 20), (1, 200)] {
            let results = results();
            let description = ring(elements, 5, Placement::Cyclic, &results);
            let graph = Graph::build(&comm, description).expect("a graph");
            for _ in 0..runs {
                graph.run().expect("no failure");
                check(&results, 5, 6);
            }
        }
    });
}

fn by(workers: usize) -> RunSettings {
    RunSettings {
        workers,
        ..RunSettings::default()
    }
}

/// Several runs at once: each rank takes its share of them in an order of its own, one by one,
/// together, or on threads.
#[test]
fn runs_of_a_graph_at_once_do_not_meet() {
    on_threads(3, |comm| {
        let steps = 6;
        for elements in [1, 9, 20_000] {
            let results = results();
            let description = ring(elements, steps, Placement::Block, &results);
            let graph = Graph::build(&comm, description).expect("a graph");
            for round in 0..4 {
                let mut runs: Vec<_> = (0..5).map(|_| graph.open().expect("a run")).collect();
                // Their tasks share the results: what the last one leaves is looked at.
                if comm.rank() == round % 3 {
                    runs.reverse();
                }
                let together = runs.split_off(if round == 3 { 0 } else { 3 });
                std::thread::scope(|scope| {
                    for run in runs {
                        scope.spawn(move || run.run_by(1 + round % 2).expect("no failure"));
                    }
                    for report in run_together(together, &by(1 + round % 2)) {
                        assert_eq!(report.expect("no failure").tasks, 4);
                    }
                });
                check(&results, steps, 4);
            }
        }
    });
}

/// A run that a rank drops ends the tasks elsewhere that need its messages.
#[test]
fn a_run_that_is_dropped_ends_the_tasks_that_need_it() {
    on_all(3, |comm| {
        let graph = row(&comm, false);
        let dropped = graph.open().expect("a run");
        let other = graph.open().expect("a run");
        if comm.rank() == 1 {
            drop(dropped);
        } else {
            let ended = dropped.run_by(1);
            if comm.rank() == 2 {
                let parts = ["cell[3] of rank 1 sends no more", "takes no part"];
                fails(ended, ErrorKind::Task, &parts);
            }
        }
        other.run_by(1).expect("no failure");
    });
}

#[test]
fn more_runs_than_a_graph_has_at_once_are_refused() {
    on_shm(1, |comm| {
        let graph = row(&comm, false);
        let runs: Vec<_> = (0..32).map(|_| graph.open().expect("a run")).collect();
        fails(graph.open(), ErrorKind::Argument, &["32 are open"]);
        drop(runs);
        graph.run().expect("no failure");
    });
}

/// Long messages whose consumer has ended, or whose rank comes to the run late.
#[test]
fn long_messages_that_nobody_wants_leave_nothing_behind() {
    on_threads(2, |comm| {
        for (taken, late) in [(0u64, false), (1, false), (3, false), (4, false), (4, true)] {
            let mut graph = Description::new();
            let ends = graph.family("end", &[2], Placement::Block);
            let (out, into) = (graph.output::<u32>(ends, "out"), graph.input(ends, "in"));
            graph.slots(out, 2);
            graph.connect(out, into, |[i]: [usize; 1]| (i == 0).then_some([1]));
            graph.tasks(ends, move |[i]: [usize; 1]| {
                move |cx: &mut Context<'_>| {
                    let step = cx.firing();
                    if i == 0 {
                        let long = vec![step as u32; 50_000];
                        // Short ones do not overtake them.
                        cx.give(out, long);
                        cx.put(out, &[step as u32]);
                        return Ok(if step == 3 { Next::Done } else { Next::Again });
                    }
                    if step == 2 * taken {
                        return Ok(Next::Done);
                    }
                    let message = cx.get(into).ok_or("no message")?;
                    let len = [50_000, 1][step as usize % 2];
                    assert_eq!(message.len(), len);
                    assert!(message.iter().all(|e| u64::from(*e) == step / 2));
                    Ok(match step + 1 == 2 * taken {
                        true => Next::Done,
                        false => Next::Wait,
                    })
                }
            });
            let graph = Graph::build(&comm, graph).expect("a graph");
            for _ in 0..3 {
                let run = graph.open().expect("a run");
                if late && comm.rank() == 1 {
                    // Rank 0 has begun, and has sent what it has credit for.
                    comm.recv(&mut [0u8], 0, 0).expect("a message");
                }
                if late && comm.rank() == 0 {
                    std::thread::scope(|scope| {
                        scope.spawn(|| run.run_by(1).expect("no failure"));
                        comm.send(&[0u8], 1, 0).expect("sent");
                    });
                } else {
                    run.run_by(1).expect("no failure");
                }
            }
        }
    });
}

/// Nodes that ranks begin in any order: two sums in a row over steps, and several runs at once.
#[test]
fn collectives_are_nodes_that_ranks_begin_in_any_order() {
    on_all(3, |comm| {
        const NODES: usize = 3;
        let (steps, size) = (5u64, comm.size() as u64);
        let mut graph = Description::new();
        let cells = graph.family("cell", &[2 * comm.size(), NODES], Placement::Cyclic);
        let (out, into): (Vec<Out<u64>>, Vec<In<u64>>) = (0..NODES)
            .map(|node| {
                let out = graph.output(cells, &format!("to {node}"));
                let into = graph.input(cells, &format!("from {node}"));
                graph.begins(out);
                let ports = Node::new(&format!("sum {node}"), steps).at_once(2).add(
                    &mut graph,
                    &comm,
                    move |comm, own: Vec<u64>| {
                        let own = vec![own.iter().sum::<u64>(), node as u64];
                        let request = comm.iallreduce(own, vec![0; 2], osier::Op::Sum)?;
                        Ok(async { request.await.map(|(_, sum)| sum) })
                    },
                );
                let ports = ports.expect("a communicator");
                // Tasks of the other nodes tell it nothing, and hear nothing.
                graph.connect_here(out, ports.input);
                graph.connect_here(ports.output, into);
                (out, into)
            })
            .unzip();
        struct Cell {
            at: [usize; 2],
            left: u64,
            size: u64,
            out: Vec<Out<u64>>,
            into: Vec<In<u64>>,
        }
        impl Cell {
            fn tell(&self, cx: &Context<'_>) {
                // In an order of its own.
                for step in 0..NODES {
                    let node = (self.at[0] + step) % NODES;
                    let value = [self.left * (1 + self.at[1] as u64)];
                    let mine = node == self.at[1];
                    cx.put(self.out[node], if mine { &value } else { &[] });
                }
            }
        }
        impl Task for Cell {
            fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
                self.tell(cx);
                Ok(Next::Wait)
            }

            fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
                for (node, into) in self.into.iter().enumerate() {
                    let sum = self.left * (1 + node as u64) * 2 * self.size;
                    assert_eq!(cx.get(*into), Some(&[sum, node as u64 * self.size][..]));
                }
                self.left -= 1;
                if self.left == 0 {
                    return Ok(Next::Done);
                }
                self.tell(cx);
                Ok(Next::Wait)
            }
        }
        graph.tasks(cells, move |at: [usize; 2]| Cell {
            at,
            left: steps,
            size,
            out: out.clone(),
            into: into.clone(),
        });
        let graph = Graph::build(&comm, graph).expect("a graph");
        for workers in [1, 2] {
            let runs: Vec<_> = (0..2).map(|_| graph.open().expect("a run")).collect();
            fails(
                graph.open(),
                ErrorKind::Argument,
                &["2 are open", "Node::at_once"],
            );
            for report in run_together(runs, &by(workers)) {
                report.expect("no failure");
            }
            graph.run_by(workers).expect("no failure");
        }
    });
}

/// Events that a thread outside raises, often and late.
#[test]
fn signals_fire_tasks_that_wait_for_events() {
    on_shm(2, |comm| {
        type Tick = (Signal, Arc<AtomicU64>);
        let (signals, raised) = channel::<Tick>();
        let mut graph = Description::new();
        let waiters = graph.family("waiter", &[6], Placement::Block);
        let event = graph.event(waiters, "tick");
        let signals = Arc::new(Mutex::new(signals));
        graph.tasks(waiters, move |[_]: [usize; 1]| Waiter {
            event,
            signals: signals.clone(),
            ticks: Arc::default(),
        });
        struct Waiter {
            event: Event,
            signals: Arc<Mutex<Sender<Tick>>>,
            ticks: Arc<AtomicU64>,
        }
        const TICKS: u64 = 1000;
        impl Task for Waiter {
            fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
                let signal = cx.signal(self.event);
                let signals = self.signals.lock().expect("no panic");
                signals.send((signal, self.ticks.clone()))?;
                Ok(Next::Wait)
            }

            fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
                Ok(match self.ticks.load(Ordering::Acquire) {
                    TICKS => Next::Done,
                    _ => Next::Wait,
                })
            }
        }
        let graph = Graph::build(&comm, graph).expect("a graph");
        for workers in [1, 2] {
            std::thread::scope(|scope| {
                let raised = &raised;
                let run = graph.open().expect("a run");
                let ended = scope.spawn(move || run.run_by(workers));
                let mut signals: Vec<_> =
                    (0..3).map(|_| raised.recv().expect("a signal")).collect();
                for tick in 1..=TICKS {
                    for (signal, ticks) in &mut signals {
                        ticks.store(tick, Ordering::Release);
                        signal.raise();
                    }
                }
                ended.join().expect("no panic").expect("no failure");
            });
        }
    });
}

/// Two graphs at a time, each of its own thread of a rank.
#[test]
fn graphs_of_two_threads_do_not_meet() {
    on_shm(2, |comm| {
        let graphs: Vec<_> = [3, 7]
            .map(|elements| {
                let results = results();
                let description = ring(elements, 20, Placement::Block, &results);
                (Graph::build(&comm, description).expect("a graph"), results)
            })
            .into();
        std::thread::scope(|scope| {
            for (graph, results) in &graphs {
                scope.spawn(move || {
                    for _ in 0..20 {
                        graph.run().expect("no failure");
                        check(results, 20, 6);
                    }
                });
            }
        });
    });
}

/// Elements with gaps, by rules that are asked, from all ranks to one.
#[test]
fn many_to_one_by_a_rule_that_is_asked() {
    #[derive(Clone, Copy, osier::Datatype)]
    #[repr(C)]
    struct Sample {
        rank: u8,
        value: u64,
    }
    on_all(3, |comm| {
        let (size, rounds) = (comm.size() as u64, 25u64);
        let mut graph = Description::new();
        let from = graph.family("source", &[comm.size()], Placement::Block);
        let to = graph.family("sink", &[1], Placement::Block);
        let (out, into) = (graph.output::<Sample>(from, "out"), graph.input(to, "in"));
        graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
        graph.tasks(from, move |[i]: [usize; 1]| {
            let mut value = 0;
            move |cx: &mut Context<'_>| {
                value += 1;
                let rank = i as u8;
                cx.put(out, &[Sample { rank, value }; 2]);
                Ok(if value == rounds {
                    Next::Done
                } else {
                    Next::Wait
                })
            }
        });
        graph.rule(to, Rule::Any);
        let sum = Arc::new(AtomicU64::new(0));
        let summed = sum.clone();
        graph.tasks(to, move |[_]: [usize; 1]| {
            let (sum, mut seen) = (summed.clone(), 0);
            move |cx: &mut Context<'_>| {
                for message in cx.each(into) {
                    let [a, b] = message.elements else {
                        return Err("two samples".into());
                    };
                    assert_eq!(u64::from(a.rank), message.from_number());
                    sum.fetch_add(a.value + b.value, Ordering::Relaxed);
                    seen += 1;
                }
                Ok(if seen == size * rounds {
                    Next::Done
                } else {
                    Next::Wait
                })
            }
        });
        let graph = Graph::build(&comm, graph).expect("a graph");
        for _ in 0..3 {
            graph.run().expect("no failure");
            let all = if comm.rank() == 0 {
                size * rounds * (rounds + 1)
            } else {
                0
            };
            assert_eq!(sum.swap(0, Ordering::Relaxed), all);
        }
    });
}

/// Columns of a matrix go to rows of another, here and on other ranks, short and long.
#[test]
fn views_are_put_and_got() {
    on_all(3, |comm| {
        for side in [1usize, 3, 200] {
            let mut graph = Description::new();
            let from = graph.family("matrix", &[1], Placement::Block);
            let to = graph.family("transposed", &[3], Placement::Block);
            let (out, into) = (
                graph.output::<f64>(from, "columns"),
                graph.input(to, "rows"),
            );
            graph.slots(out, 2);
            graph.connect(out, into, |[_]: [usize; 1]| (0..3usize).map(|to| [to]));
            let value = |row: usize, column: usize| (row * 1000 + column) as f64;
            graph.tasks(from, move |[_]: [usize; 1]| {
                move |cx: &mut Context<'_>| {
                    let cells = (0..side * side).map(|i| value(i / side, i % side));
                    let cells: Vec<f64> = cells.collect();
                    let column = Type::vector(side, 1, side as isize, &Type::of::<f64>())?;
                    let column = column.commit()?;
                    for at in 0..side {
                        cx.put_view(out, &View::new(&cells, at, &column, 1)?)?;
                    }
                    // Two columns beside each other, one cell of each row after the other.
                    let pairs = Type::vector(side, 1, side as isize, &Type::of::<f32>())?;
                    let other = vec![0f32; side * side];
                    let refused = cx.put_view(out, &View::new(&other, 0, &pairs.commit()?, 1)?);
                    assert!(refused.is_err());
                    Ok(Next::Done)
                }
            });
            graph.tasks(to, move |[_]: [usize; 1]| {
                let mut cells = vec![0.0; side * side];
                move |cx: &mut Context<'_>| {
                    let at = cx.firing() as usize;
                    let row = Type::contiguous(side, &Type::of::<f64>())?.commit()?;
                    let short = Type::contiguous(side + 1, &Type::of::<f64>())?.commit()?;
                    let mut room = vec![0.0; side + 1];
                    assert!(
                        cx.get_into(into, ViewMut::new(&mut room, 0, &short, 1)?)
                            .is_err()
                    );
                    let row = ViewMut::new(&mut cells, at * side, &row, 1)?;
                    assert!(cx.get_into(into, row)?);
                    if at + 1 < side {
                        return Ok(Next::Wait);
                    }
                    for (i, cell) in cells.iter().enumerate() {
                        assert_eq!(*cell, value(i % side, i / side));
                    }
                    Ok(Next::Done)
                }
            });
            let graph = Graph::build(&comm, graph).expect("a graph");
            graph.run().expect("no failure");
        }
    });
}

/// A row over the ranks, whose task 2 fails if asked: the tasks behind it end with its cause
/// on their ranks, too.
fn row(comm: &Communicator, fails: bool) -> Graph {
    let mut graph = Description::new();
    let cells = graph.family("cell", &[6], Placement::Block);
    let (out, into) = (
        graph.output::<u64>(cells, "right"),
        graph.input(cells, "left"),
    );
    graph.connect(out, into, |[i]: [usize; 1]| (i < 5).then_some([i + 1]));
    graph.tasks(cells, move |[i]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            if fails && i == 2 {
                return Err("no more cells".into());
            }
            let value = cx.get(into).map_or(0, |message| message[0]);
            assert_eq!(value, i as u64);
            cx.put(out, &[value + 1]);
            Ok(Next::Done)
        }
    });
    Graph::build(comm, graph).expect("a graph")
}

#[test]
fn a_failure_reaches_the_ranks_that_need_its_messages() {
    on_all(3, |comm| {
        let ended = row(&comm, true).run();
        if comm.rank() == 0 {
            assert_eq!(ended.expect("no failure here").tasks, 2);
        } else {
            fails(
                ended,
                ErrorKind::Task,
                &["cell[2] of rank 1", "no more cells"],
            );
        }
        row(&comm, false).run().expect("no failure");
    });
}

#[test]
fn a_rank_that_fails_ends_the_tasks_that_need_it() {
    for network in Network::all() {
        one_fails(&network, 3, |comm| {
            let graph = row(&comm, false);
            if comm.rank() == 1 {
                return true;
            }
            let ended = graph.run();
            if comm.rank() == 2 {
                fails(ended, ErrorKind::Task, &["cell[3] of rank 1 sends no more"]);
            }
            false
        });
    }
}

#[test]
fn what_is_no_graph_is_refused_on_all_ranks_alike() {
    on_all(3, |comm| {
        let mut graph = Description::new();
        let cells = graph.family("cell", &[6], Placement::Cyclic);
        let (out, into) = (graph.output::<u64>(cells, "out"), graph.input(cells, "in"));
        graph.connect(out, into, |[i]: [usize; 1]| [[(i + 1) % 6]]);
        graph.tasks(cells, |[_]: [usize; 1]| {
            |_: &mut Context<'_>| Ok(Next::Done)
        });
        let built = Graph::build(&comm, graph);
        let parts = [
            "nothing can fire cell[0] of rank 0",
            "'in' (from cell[5].out)",
        ];
        fails(built, ErrorKind::Argument, &parts);
    });
}

#[test]
fn reports_count_what_workers_did_and_what_went_between_ranks() {
    on_all(3, |comm| {
        let (elements, steps) = (300, 9);
        let results = results();
        let description = ring(elements, steps, Placement::Block, &results);
        let graph = Graph::build(&comm, description).expect("a graph");
        for workers in [1, 2, 3] {
            for times in [false, true] {
                let settings = RunSettings {
                    workers,
                    times,
                    progress_thread: match times {
                        true => ProgressThread::Always,
                        false => ProgressThread::Never,
                    },
                };
                let report = graph.run_with(&settings).expect("no failure");
                check(&results, steps, 4);
                assert_eq!((report.rank, report.workers.len()), (comm.rank(), workers));
                assert_eq!(report.progress_thread, times);
                let sum = |of: fn(&osier::task::Counts) -> u64| -> u64 {
                    report.workers.iter().map(of).sum()
                };
                assert_eq!((sum(|w| w.firings), sum(|w| w.ended)), (4 * steps, 4));
                // A message to each neighbor: of `init`, and of each firing but the last.
                let each = Volume {
                    messages: steps,
                    bytes: steps * elements as u64 * 8,
                };
                for (rank, peer) in report.peers.iter().enumerate() {
                    let other = rank != comm.rank();
                    let expected = if other { each } else { Volume::default() };
                    assert_eq!((peer.sent, peer.received), (expected, expected));
                }
                assert_eq!(report.sent().messages, 2 * steps);
                for worker in &report.workers {
                    assert!(worker.awaiting_ns <= worker.idle_ns);
                    assert_eq!(worker.in_tasks_ns.is_some(), times);
                    let known: u64 = worker.stolen_within.iter().sum();
                    assert!(known <= worker.stolen && (known == 0 || workers > 2));
                }
                let in_tasks = sum(|w| w.in_tasks_ns.unwrap_or(0));
                match &report.times_ns {
                    None => assert!(!times),
                    Some(of) => {
                        assert!(times && of.len() == 4 && of.iter().all(|ns| *ns > 0));
                        assert_eq!(of.iter().sum::<u64>(), in_tasks);
                    }
                }
                let text = report.to_string();
                assert!(text.lines().all(|line| line.len() <= 80), "{text}");
            }
        }
    });
}

/// A task that works for a while, and passes its message on.
struct Player {
    works: Duration,
    elements: usize,
    left: u32,
    out: Out<f64>,
    into: In<f64>,
}

impl Task for Player {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        if cx.number() == 0 {
            cx.put(self.out, &vec![1.0; self.elements]);
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        let began = Instant::now();
        let message = cx.take(self.into).expect("a message");
        assert_eq!(message.len(), self.elements);
        while began.elapsed() < self.works {
            std::hint::spin_loop();
        }
        self.left -= 1;
        // What the last one would send nobody waits for.
        if self.left > 0 || cx.number() == 1 {
            cx.give(self.out, message);
        }
        Ok(if self.left > 0 {
            Next::Wait
        } else {
            Next::Done
        })
    }
}

/// Two tasks on two ranks play with a message.
fn game(works: Duration, elements: usize, times: u32) -> Description {
    let mut graph = Description::new();
    let players = graph.family("player", &[2], Placement::Block);
    let (out, into) = (graph.output(players, "out"), graph.input(players, "in"));
    graph.begins(out);
    graph.connect(out, into, |[i]: [usize; 1]| [[1 - i]]);
    graph.tasks(players, move |_: [usize; 1]| Player {
        works,
        elements,
        left: times,
        out,
        into,
    });
    graph
}

#[test]
fn long_tasks_that_wait_for_long_messages_get_a_progress_thread() {
    on_shm(2, |comm| {
        let works = Duration::from_micros(200);
        for (elements, expected) in [(20_000, true), (1, false)] {
            let graph = Graph::build(&comm, game(works, elements, 400)).expect("a graph");
            let with_thread = |progress_thread| {
                let settings = RunSettings {
                    progress_thread,
                    ..RunSettings::default()
                };
                graph
                    .run_with(&settings)
                    .expect("no failure")
                    .progress_thread
            };
            let chosen = [(); 2].map(|()| with_thread(ProgressThread::Auto));
            assert_eq!(chosen, [expected; 2], "{elements} elements");
            assert!(with_thread(ProgressThread::Always));
            assert!(!with_thread(ProgressThread::Never));
        }
    });
}

/// Edges of a picture, by their class.
fn drawn(svg: &str, what: &str) -> usize {
    svg.matches(&format!("class=\"{what}\"")).count()
}

#[test]
fn pictures_are_alike_on_all_ranks() {
    let all = Mutex::new(Vec::new());
    on_shm(3, |comm| {
        // A row, whose tasks lie on the ranks in turn.
        let mut row = Description::new();
        let cells = row.family("cell", &[5], Placement::Cyclic);
        let (right, left) = (row.output::<u64>(cells, "right"), row.input(cells, "left"));
        row.connect(right, left, |[i]: [usize; 1]| (i < 4).then_some([i + 1]));
        row.tasks(cells, move |_: [usize; 1]| {
            move |cx: &mut Context<'_>| {
                cx.put(right, &[cx.number()]);
                Ok(Next::Done)
            }
        });
        let graph = Graph::build(&comm, row).expect("a graph");
        let plain = graph.picture().expect("a picture");
        assert!(plain.contains(">critical path: 5 of 5 tasks<"), "{plain}");
        assert_eq!(drawn(&plain, "task critical"), 5);
        assert_eq!(drawn(&plain, "edge critical"), 4);
        for text in [
            ">cell[0]<",
            ">cell[4]<",
            ">rank 2<",
            "cell[0].right -&gt; left of cell[1]",
        ] {
            assert!(plain.contains(text), "{text}: {plain}");
        }
        let settings = RunSettings {
            workers: 1,
            times: true,
            ..RunSettings::default()
        };
        let report = graph.run_with(&settings).expect("a run");
        let timed = graph.picture_of(&report).expect("a picture");
        assert!(timed.contains(" in calls, 5 tasks<"), "{timed}");
        // One rank's report has no times: an error on all.
        let report = graph.run_with(&RunSettings {
            workers: 1,
            times: comm.rank() != 1,
            ..RunSettings::default()
        });
        let refused = graph
            .picture_of(&report.expect("a run"))
            .expect_err("no times");
        assert_eq!(refused.kind(), ErrorKind::Argument);
        let text = refused.to_string();
        assert!(
            text.contains("report that has none") && text.contains("by rank 1"),
            "{text}"
        );
        // Many tasks are folded.
        let mut many = Description::new();
        let cells = many.family("cell", &[65], Placement::Block);
        let (out, into) = (many.output::<f64>(cells, "out"), many.input(cells, "in"));
        let space = Space::new(&[65]).expect("a space");
        many.begins(out);
        many.connect_by(out, into, layout::neighbors(&space, false))
            .label(7);
        many.tasks(cells, |_: [usize; 1]| |_: &mut Context<'_>| Ok(Next::Done));
        let graph = Graph::build(&comm, many).expect("a graph");
        let folded = graph.picture().expect("a picture");
        assert_eq!(drawn(&folded, "family"), 1);
        for text in [">cell [65]<", ">placement: Block<", ">label 7: 128 edges<"] {
            assert!(folded.contains(text), "{text}: {folded}");
        }
        let mut all = all.lock().expect("no panic");
        all.push((plain, timed, folded));
    });
    let all = all.into_inner().expect("no panic");
    assert!(all.len() == 3 && all.windows(2).all(|two| two[0] == two[1]));
}
