//! Ends of task graphs that nothing failed for: tasks that are left behind, calls that wait.

use crate::support::{fails, on_all, on_shm};
use osier::requests::{WaitSet, wait_all, wait_any, wait_some};
use osier::task::{
    Child, Context, Description, Event, Graph, LocalGraph, Next, Node, Placement, Rule, Task,
    TaskError,
};
use osier::{Communicator, ErrorKind, Op};
use std::sync::{Arc, Mutex};

/// A source on the first rank sends a number of messages and is done; a sink on the last rank waits
/// by a rule; what comes behind it, on the first rank, waits for the sink.
fn left_behind(comm: &Communicator, messages: u64, rule: Rule) -> Graph {
    let last = comm.size() - 1;
    let mut graph = Description::new();
    let from = graph.family("source", &[1], Placement::Block);
    let to = graph.family("sink", &[1], Placement::Function(Arc::new(move |_| last)));
    let behind = graph.family("behind", &[1], Placement::Block);
    let (out, into) = (graph.output::<u64>(from, "out"), graph.input(to, "in"));
    let (end, ended) = (graph.output::<u64>(to, "end"), graph.input(behind, "end"));
    graph.slots(out, 4);
    graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
    graph.connect(end, ended, |[_]: [usize; 1]| [[0usize]]);
    graph.rule(to, rule);
    graph.tasks(from, move |[_]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            for message in 0..messages {
                cx.put(out, &[message]);
            }
            Ok(Next::Done)
        }
    });
    graph.tasks(to, move |[_]: [usize; 1]| {
        // One message more than comes.
        let mut seen = 0;
        move |cx: &mut Context<'_>| {
            seen += cx.each(into).count() as u64;
            if seen <= messages {
                return Ok(Next::Wait);
            }
            cx.put(end, &[seen]);
            Ok(Next::Done)
        }
    });
    graph.tasks(behind, move |[_]: [usize; 1]| {
        |_: &mut Context<'_>| Ok(Next::Done)
    });
    Graph::build(comm, graph).expect("a graph")
}

/// All that were to send to it have ended: the task ends with an error that names it, the edge
/// and the producer, and so does what needs it. The source's run goes on meanwhile.
#[test]
fn a_task_that_can_no_longer_be_fired_is_an_error() {
    let counted = Rule::Count {
        port: 0,
        messages: 3,
    };
    let cases = [
        (
            0,
            Rule::All,
            "no message comes on 'in' (from source[0].out)",
        ),
        (
            2,
            Rule::All,
            "no message comes on 'in' (from source[0].out)",
        ),
        (2, Rule::Any, "no message comes, the last edge being 'in'"),
        (2, counted, "2 of 3 messages have come, the last edge being"),
    ];
    for ranks in [1, 2] {
        on_all(ranks, |comm| {
            for (messages, rule, says) in cases.clone() {
                for workers in [1, 2] {
                    let graph = left_behind(&comm, messages, rule.clone());
                    let sink = format!("task sink[0] of rank {} can no longer be fired", ranks - 1);
                    let parts = [&sink, says, "task source[0] of rank 0 has ended"];
                    fails(graph.run_by(workers), ErrorKind::Task, &parts);
                }
            }
        });
    }
}

/// The source's run has ended before the sink's rank asks.
#[test]
fn a_run_that_has_ended_answers_too() {
    on_all(2, |comm| {
        let mut graph = Description::new();
        let cells = graph.family("cell", &[2], Placement::Block);
        let (out, into) = (graph.output::<u64>(cells, "out"), graph.input(cells, "in"));
        graph.connect(out, into, |[i]: [usize; 1]| (i == 0).then_some([1usize]));
        graph.tasks(cells, |[_]: [usize; 1]| {
            |_: &mut Context<'_>| Ok(Next::Done)
        });
        let graph = Graph::build(&comm, graph).expect("a graph");
        for _ in 0..2 {
            let ended = graph.run();
            if comm.rank() == 0 {
                assert_eq!(ended.expect("it needs nothing").tasks, 1);
            } else {
                let parts = [
                    "cell[1] of rank 1 can no longer",
                    "cell[0] of rank 0 has ended",
                ];
                fails(ended, ErrorKind::Task, &parts);
            }
        }
        comm.barrier().expect("alive");
    });
}

/// The producer of a child graph's task ends without a message: the child ends, and the task that
/// began it learns why.
#[test]
fn a_child_graph_with_a_task_left_behind_ends() {
    struct Parent(LocalGraph, Event, Option<Child>);
    impl Task for Parent {
        fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
            self.2 = Some(cx.begin(&self.0, Arc::new(()), self.1));
            Ok(Next::Wait)
        }

        fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
            let failure = self.2.as_ref().and_then(Child::failure);
            Err(failure.ok_or("it has not failed")?.to_string().into())
        }
    }
    on_all(2, |comm| {
        let mut inner = Description::new();
        let cells = inner.family("inner", &[2], Placement::Block);
        let (out, into) = (inner.output::<u64>(cells, "out"), inner.input(cells, "in"));
        inner.connect(out, into, |[i]: [usize; 1]| (i == 0).then_some([1usize]));
        inner.tasks(cells, |[_]: [usize; 1]| {
            |_: &mut Context<'_>| Ok(Next::Done)
        });
        let inner = LocalGraph::build(inner).expect("a graph");
        let mut graph = Description::new();
        let outer = graph.family("outer", &[2], Placement::Block);
        let ended = graph.event(outer, "ended");
        graph.tasks(outer, move |[_]: [usize; 1]| {
            Parent(inner.clone(), ended, None)
        });
        let graph = Graph::build(&comm, graph).expect("a graph");
        let rank = comm.rank();
        for workers in [1, 2] {
            let inner = format!("task inner[1] of rank {rank} can no longer be fired");
            let parts = [&inner, "'in' (from inner[0].out)"];
            fails(graph.run_by(workers), ErrorKind::Task, &parts);
        }
    });
}

/// A rank opens a run and takes no part in it: the collectives of the others fail.
#[test]
fn a_run_that_is_given_up_ends_its_nodes_on_the_others() {
    on_all(3, |comm| {
        let mut graph = Description::new();
        let cells = graph.family("cell", &[comm.size()], Placement::Block);
        let (out, sum) = (graph.output(cells, "out"), graph.input::<u64>(cells, "sum"));
        let node = Node::new("total", 1).add(&mut graph, &comm, |comm, own: Vec<u64>| {
            let request = comm.iallreduce(own, vec![0u64], Op::Sum)?;
            Ok(async { request.await.map(|(_, sum)| sum) })
        });
        let node = node.expect("a communicator");
        graph.begins(out);
        graph.connect_here(out, node.input);
        graph.connect_here(node.output, sum);
        struct Cell(osier::task::Out<u64>);
        impl Task for Cell {
            fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
                cx.put(self.0, &[1]);
                Ok(Next::Wait)
            }

            fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
                Err("a sum of all".into())
            }
        }
        graph.tasks(cells, move |[_]: [usize; 1]| Cell(out));
        let graph = Graph::build(&comm, graph).expect("a graph");
        match comm.rank() {
            1 => drop(graph.open().expect("a run")),
            _ => {
                fails(graph.run().map(drop), ErrorKind::Task, &["task total["]);
            }
        }
    });
}

/// A cell of one rank fails before its node has begun a call: the calls of the other ranks fail,
/// and do so at once in later runs.
#[test]
fn a_node_that_a_rank_does_not_begin_fails_on_the_others() {
    for ranks in [2, 3] {
        on_all(ranks, |comm| {
            let last = comm.size() - 1;
            let mut graph = Description::new();
            let cells = graph.family("cell", &[comm.size()], Placement::Block);
            let (out, sum) = (graph.output(cells, "out"), graph.input::<u64>(cells, "sum"));
            graph.begins(out);
            let node = Node::new("total", 3).add(&mut graph, &comm, |comm, own: Vec<u64>| {
                let request = comm.iallreduce(own, vec![0u64], Op::Sum)?;
                Ok(async { request.await.map(|(_, sum)| sum) })
            });
            let node = node.expect("a communicator");
            graph.connect_here(out, node.input);
            graph.connect_here(node.output, sum);
            struct Cell {
                fails: bool,
                left: u64,
                out: osier::task::Out<u64>,
            }
            impl Task for Cell {
                fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
                    cx.put(self.out, &[1]);
                    Ok(Next::Wait)
                }

                fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
                    self.left -= 1;
                    if self.left == 0 {
                        return Ok(Next::Done);
                    }
                    if self.fails {
                        return Err("as asked".into());
                    }
                    cx.put(self.out, &[1]);
                    Ok(Next::Wait)
                }
            }
            graph.tasks(cells, move |[i]: [usize; 1]| Cell {
                fails: i == last,
                left: 3,
                out,
            });
            let graph = Graph::build(&comm, graph).expect("a graph");
            for run in 0..2 {
                let ended = graph.run();
                let parts: &[&str] = match (comm.rank() == last, run) {
                    (true, 0) => &["as asked"],
                    _ => &["task total["],
                };
                fails(ended, ErrorKind::Task, parts);
            }
            comm.barrier().expect("alive");
        });
    }
}

/// The sink's rank asks while the source computes, so that the answer follows the source's
/// long message at once; it counts after it nevertheless.
#[test]
fn an_end_does_not_overtake_a_long_message() {
    const ELEMENTS: usize = 1 << 20;
    on_all(2, |comm| {
        let mut graph = Description::new();
        let from = graph.family("source", &[1], Placement::Block);
        let to = graph.family("sink", &[1], Placement::Function(Arc::new(|_| 1)));
        let (out, into) = (graph.output::<u64>(from, "out"), graph.input(to, "in"));
        graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
        graph.tasks(from, move |[_]: [usize; 1]| {
            move |cx: &mut Context<'_>| {
                let start = std::time::Instant::now();
                while start.elapsed().as_millis() < 500 {
                    std::hint::spin_loop();
                }
                cx.give(out, vec![7; ELEMENTS]);
                Ok(Next::Done)
            }
        });
        let seen = Arc::new(Mutex::new(0));
        let sees = seen.clone();
        graph.tasks(to, move |[_]: [usize; 1]| {
            let sees = sees.clone();
            move |cx: &mut Context<'_>| {
                let message = cx.get(into).expect("it is fired by a message");
                assert!(message.iter().all(|element| *element == 7));
                *sees.lock().expect("no panic") += message.len();
                Ok(Next::Wait)
            }
        });
        let graph = Graph::build(&comm, graph).expect("a graph");
        for workers in [1, 2] {
            let ended = graph.run_by(workers);
            if comm.rank() == 0 {
                ended.expect("it needs nothing");
            } else {
                let parts = [
                    "task sink[0] of rank 1 can no longer",
                    "source[0] of rank 0 has ended",
                ];
                fails(ended, ErrorKind::Task, &parts);
                assert_eq!(*seen.lock().expect("no panic"), workers * ELEMENTS);
            }
        }
    });
}

/// Runs of two graphs by the same threads: calls that wait name the task of the right one, and
/// what is left behind in one keeps nobody.
#[test]
fn runs_together_have_their_own_tasks_and_ends() {
    on_shm(2, |comm| {
        let behind = left_behind(&comm, 2, Rule::All);
        let mut other = Description::new();
        let tasks = other.family("other", &[2], Placement::Block);
        let own = comm.clone();
        other.tasks(tasks, move |[at]: [usize; 1]| {
            let own = own.clone();
            move |_: &mut Context<'_>| {
                let task = format!("barrier in task other[{at}] of rank {at}");
                fails(own.barrier(), ErrorKind::Task, &[&task]);
                Ok(Next::Done)
            }
        });
        let other = Graph::build(&comm, other).expect("a graph");
        let runs = [&behind, &other].map(|graph| graph.open().expect("a run"));
        let settings = osier::task::RunSettings {
            workers: 2,
            ..Default::default()
        };
        let mut ended = osier::task::run_together(runs.into(), &settings);
        ended.pop().expect("two").expect("no failure");
        let parts = ["sink[0] of rank 1 can no longer be fired"];
        fails(ended.pop().expect("two"), ErrorKind::Task, &parts);
    });
}

/// Runs one task on each rank, and nothing else.
fn alone(comm: &Communicator, code: impl Fn(&mut Context<'_>) + Clone + Send + Sync + 'static) {
    let mut graph = Description::new();
    let tasks = graph.family("cell", &[comm.size()], Placement::Block);
    graph.tasks(tasks, move |[_]: [usize; 1]| {
        let code = code.clone();
        move |cx: &mut Context<'_>| {
            code(cx);
            Ok(Next::Done)
        }
    });
    let graph = Graph::build(comm, graph).expect("a graph");
    graph.run().expect("no failure");
}

#[track_caller]
fn refused<T>(ended: osier::Result<T>, call: &str) {
    let parts = [call, "in task cell[", "a task does not wait", "hint"];
    fails(ended, ErrorKind::Task, &parts);
}

#[test]
fn calls_that_wait_are_errors_in_a_task() {
    on_shm(2, |comm| {
        let own = comm.clone();
        let inner = Arc::new(left_behind(&comm, 0, Rule::All));
        alone(&comm, move |_| {
            let comm = &own;
            let (peer, mut word) = (1 - comm.rank(), [0u64]);
            refused(comm.send(&word, peer, 0), "send");
            refused(comm.ssend(&word, peer, 0), "send");
            refused(comm.recv(&mut word, peer, 0), "recv");
            refused(comm.recv(&mut word, osier::ANY_SOURCE, 0), "recv");
            refused(comm.recv_vec::<u64>(peer, 0), "mprobe");
            refused(comm.probe(peer, 0), "probe");
            let (give, from) = ([1u64], peer);
            refused(
                comm.sendrecv(&give, peer, 0, &mut word, from, 0),
                "sendrecv",
            );
            refused(comm.barrier(), "barrier");
            refused(comm.bcast(&mut word, 0), "bcast");
            refused(comm.allreduce(&give, &mut word, Op::Sum), "allreduce");
            refused(comm.dup(), "in task");
            refused(comm.scope(|_| Ok(())), "scope");
            refused(inner.run(), "run");
            let receive = || comm.irecv(vec![0u64], peer, 1).expect("posted");
            refused(receive().wait(), "wait");
            refused(wait_all([receive(), receive()]), "wait");
            let (_, ended) = wait_any(&mut vec![receive()]).expect("one");
            refused(ended, "wait");
            let mut some = wait_some(&mut vec![receive(), receive()]);
            assert_eq!(some.len(), 1);
            refused(some.remove(0).1, "wait");
            let mut set = WaitSet::new();
            set.add(7, receive()).expect("of one rank");
            let (key, ended) = set.wait().expect("one");
            assert_eq!(key, 7);
            refused(ended, "wait");
        });
        // Where no task runs they are calls like any other.
        let mut sum = [0u64];
        comm.allreduce(&[1u64], &mut sum, Op::Sum).expect("alive");
        assert_eq!(sum, [2]);
    });
}

/// Calls that do not wait are allowed, and so is waiting for what is complete.
#[test]
fn calls_that_do_not_wait_work_in_a_task() {
    on_shm(2, |comm| {
        let own = comm.clone();
        let got = Arc::new(Mutex::new(Vec::new()));
        let into = got.clone();
        alone(&comm, move |_| {
            let peer = 1 - own.rank();
            let send = own.isend(vec![own.rank() as u64], peer, 3).expect("posted");
            let mut receive = own.irecv(vec![9u64], peer, 3).expect("posted");
            while !receive.test() {
                std::hint::spin_loop();
            }
            let (word, _) = receive.wait().expect("complete");
            into.lock().expect("no panic").extend(word);
            drop(send);
        });
        assert_eq!(*got.lock().expect("no panic"), [1 - comm.rank() as u64]);
    });
}

/// A task that waits by a future fails; what is dropped with it may not wait either.
#[test]
fn a_future_that_is_not_ready_fails_its_task() {
    struct Waits(Communicator, Arc<Mutex<Vec<String>>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            let e = self.0.barrier().expect_err("a task does not wait");
            self.1.lock().expect("no panic").push(e.to_string());
        }
    }
    on_shm(2, |comm| {
        let mut graph = Description::new();
        let tasks = graph.family("cell", &[2], Placement::Block);
        let said = Arc::new(Mutex::new(Vec::new()));
        let (own, says) = (comm.clone(), said.clone());
        graph.tasks(tasks, move |[_]: [usize; 1]| {
            let dropped = Waits(own.clone(), says.clone());
            let comm = own.clone();
            move |_: &mut Context<'_>| {
                let _with_it = &dropped;
                comm.block_on(std::future::ready(()));
                comm.block_on(std::future::pending::<()>());
                Ok(Next::Done)
            }
        });
        let graph = Graph::build(&comm, graph).expect("a graph");
        let rank = comm.rank();
        let task = format!("cell[{rank}] of rank {rank}");
        fails(
            graph.run(),
            ErrorKind::Task,
            &[&task, "block_on in task", "does not wait"],
        );
        let said = said.lock().expect("no panic");
        assert_eq!(said.len(), 1);
        assert!(said[0].contains(&task), "{said:?}");
    });
}
