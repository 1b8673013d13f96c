//! Graphs of tasks that come to a halt, and graphs that only take long.

use osier::Communicator;
use osier::task::{
    Child, Context, Description, Event, Graph, In, LocalGraph, Next, Node, Out, Placement, Rule,
    Task, TaskError,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than it takes to find a hang.
const LONG: Duration = Duration::from_millis(1_500);

fn compute() {
    let start = Instant::now();
    while start.elapsed() < LONG {
        std::hint::spin_loop();
    }
}

pub fn run(comm: &Communicator, how: &str) {
    let graph = match how {
        "cycle" => ring(comm, Placement::Block),
        "local-cycle" => ring(comm, Placement::Function(Arc::new(|_| 0))),
        "credit" => credit(comm),
        "missing" => missing(comm),
        "event" | "event-never" => event(comm, how == "event"),
        "event-lost" => event_lost(comm),
        "child" | "child-two" | "child-busy" | "grandchild" => child(comm, how),
        "collective" | "collective-late" => collective(comm, how == "collective"),
        "busy" | "late" => row(comm, how == "busy"),
        _ => panic!("halts {how:?}?"),
    };
    if how == "late" && comm.rank() == 0 {
        compute();
    }
    let two = how.ends_with("busy") || how.ends_with("two");
    let workers = if two { 2 } else { 1 };
    graph.run_by(workers).expect("no task fails");
    comm.barrier().expect("alive");
    super::through(comm);
}

/// Two cells for each rank, in a ring, whose `init` forgets the message that breaks the cycle.
fn ring(comm: &Communicator, placement: Placement) -> Graph {
    let count = 2 * comm.size();
    let mut graph = Description::new();
    let cells = graph.family("cell", &[count], placement);
    let (out, into) = (graph.output::<u64>(cells, "out"), graph.input(cells, "in"));
    graph.begins(out);
    graph.connect(out, into, move |[i]: [usize; 1]| [[(i + 1) % count]]);
    graph.tasks(cells, move |[_]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            cx.put(out, &[1]);
            Ok(Next::Done)
        }
    });
    Graph::build(comm, graph).expect("a graph")
}

/// The last rank counts more messages than there are slots.
fn credit(comm: &Communicator) -> Graph {
    let last = comm.size() - 1;
    let mut graph = Description::new();
    let from = graph.family("source", &[1], Placement::Block);
    let to = graph.family("sink", &[1], Placement::Function(Arc::new(move |_| last)));
    let (out, into) = (graph.output::<u64>(from, "out"), graph.input(to, "in"));
    graph.slots(out, 2);
    graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
    graph.rule(
        to,
        Rule::Count {
            port: 0,
            messages: 4,
        },
    );
    graph.tasks(from, move |[_]: [usize; 1]| {
        let mut sent = 0;
        move |cx: &mut Context<'_>| {
            cx.put(out, &[sent]);
            sent += 1;
            Ok(if sent == 4 { Next::Done } else { Next::Wait })
        }
    });
    graph.tasks(to, move |[_]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            assert_eq!(cx.each(into).count(), 4);
            Ok(Next::Done)
        }
    });
    Graph::build(comm, graph).expect("a graph")
}

/// A task that begins with one message and waits for an answer.
struct Asks {
    out: Out<u64>,
}

impl Task for Asks {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        cx.put(self.out, &[1]);
        Ok(Next::Wait)
    }

    fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
        Ok(Next::Done)
    }
}

/// The answer needs a second message.
fn missing(comm: &Communicator) -> Graph {
    let last = comm.size() - 1;
    let mut graph = Description::new();
    let asks = graph.family("client", &[1], Placement::Block);
    let answers = graph.family("server", &[1], Placement::Function(Arc::new(move |_| last)));
    let (out, into): (_, In<u64>) = (graph.output(asks, "question"), graph.input(answers, "in"));
    let (back, answer) = (
        graph.output::<u64>(answers, "answer"),
        graph.input(asks, "back"),
    );
    graph.begins(out);
    graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
    graph.connect(back, answer, |[_]: [usize; 1]| [[0usize]]);
    graph.tasks(asks, move |[_]: [usize; 1]| Asks { out });
    graph.tasks(answers, move |[_]: [usize; 1]| {
        let mut seen = 0;
        move |cx: &mut Context<'_>| {
            seen += 1;
            if seen < 2 {
                return Ok(Next::Wait);
            }
            cx.put(back, &[seen]);
            Ok(Next::Done)
        }
    });
    Graph::build(comm, graph).expect("a graph")
}

/// A task that waits for an event, which a thread raises after a time in which nobody may call
/// that a hang.
struct Listens {
    event: Event,
    comes: bool,
    out: Out<u64>,
}

impl Task for Listens {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        let signal = cx.signal(self.event);
        if self.comes {
            std::thread::spawn(move || {
                std::thread::sleep(LONG);
                signal.raise();
            });
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        cx.put(self.out, &[1]);
        Ok(Next::Done)
    }
}

/// The last rank waits for what comes after an event on the first one.
fn event(comm: &Communicator, comes: bool) -> Graph {
    let last = comm.size() - 1;
    let mut graph = Description::new();
    let listener = graph.family("listener", &[1], Placement::Block);
    let after = graph.family("after", &[1], Placement::Function(Arc::new(move |_| last)));
    let (out, into) = (
        graph.output(listener, "out"),
        graph.input::<u64>(after, "in"),
    );
    let event = graph.event(listener, "tick");
    graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
    graph.tasks(listener, move |[_]: [usize; 1]| Listens {
        event,
        comes,
        out,
    });
    graph.tasks(after, |[_]: [usize; 1]| {
        |_: &mut Context<'_>| Ok(Next::Done)
    });
    Graph::build(comm, graph).expect("a graph")
}

/// A task that waits for an event of which it has kept no signal.
fn event_lost(comm: &Communicator) -> Graph {
    let mut graph = Description::new();
    let tasks = graph.family("deaf", &[comm.size()], Placement::Block);
    let event = graph.event(tasks, "tick");
    struct Deaf(Event);
    impl Task for Deaf {
        fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
            drop(cx.signal(self.0));
            Ok(Next::Wait)
        }

        fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
            Ok(Next::Done)
        }
    }
    graph.tasks(tasks, move |[_]: [usize; 1]| Deaf(event));
    Graph::build(comm, graph).expect("a graph")
}

/// Begins a child graph, and is done when that has ended.
struct Parent {
    graph: LocalGraph,
    ended: Event,
    child: Option<Child>,
}

impl Task for Parent {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        self.child = Some(cx.begin(&self.graph, Arc::new(()), self.ended));
        Ok(Next::Wait)
    }

    fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
        let child = self.child.as_ref().ok_or("no child")?;
        assert!(child.has_ended() && child.failure().is_none());
        Ok(Next::Done)
    }
}

fn parents(graph: &mut Description, name: &str, count: usize, child: &LocalGraph) {
    let parents = graph.family(name, &[count], Placement::Block);
    let ended = graph.event(parents, "ended");
    let child = child.clone();
    graph.tasks(parents, move |[_]: [usize; 1]| Parent {
        graph: child.clone(),
        ended,
        child: None,
    });
}

/// A task on each rank begins a child graph: a ring that no message breaks, or one whose task
/// computes for long; or one whose task begins such a ring.
fn child(comm: &Communicator, how: &str) -> Graph {
    let mut inner = Description::new();
    let cells = inner.family("inner", &[2], Placement::Block);
    let (out, into) = (inner.output::<u64>(cells, "out"), inner.input(cells, "in"));
    let busy = how == "child-busy";
    if !busy {
        inner.begins(out);
    }
    inner.connect(out, into, move |[i]: [usize; 1]| {
        (!busy || i == 0).then_some([(i + 1) % 2])
    });
    inner.tasks(cells, move |[i]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            if i == 0 {
                compute();
            }
            cx.put(out, &[1]);
            Ok(Next::Done)
        }
    });
    let mut inner = LocalGraph::build(inner).expect("a graph");
    if how == "grandchild" {
        let mut middle = Description::new();
        parents(&mut middle, "middle", 1, &inner);
        inner = LocalGraph::build(middle).expect("a graph");
    }
    let mut graph = Description::new();
    parents(&mut graph, "outer", comm.size(), &inner);
    Graph::build(comm, graph).expect("a graph")
}

/// A cell on each rank gives a node its number; that of the last rank waits for itself before
/// that, or computes for long.
fn collective(comm: &Communicator, halts: bool) -> Graph {
    let last = comm.size() - 1;
    let mut graph = Description::new();
    let cells = graph.family("cell", &[comm.size()], Placement::Block);
    let (out, own) = (graph.output::<u64>(cells, "out"), graph.input(cells, "own"));
    let (again, sum) = (
        graph.output::<u64>(cells, "again"),
        graph.input(cells, "sum"),
    );
    graph.begins(out);
    graph.begins(again);
    let node = Node::new("total", 1).add(&mut graph, comm, |comm, own: Vec<u64>| {
        let request = comm.iallreduce(own, vec![0u64], osier::Op::Sum)?;
        Ok(async { request.await.map(|(_, sum)| sum) })
    });
    let node = node.expect("a communicator");
    graph.connect_here(out, node.input);
    graph.connect_here(node.output, sum);
    graph.connect_here(again, own);
    struct Cell {
        halts: bool,
        late: bool,
        out: Out<u64>,
        again: Out<u64>,
    }
    impl Task for Cell {
        fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
            if self.late {
                compute();
            }
            if !self.halts {
                cx.put(self.out, &[cx.number()]);
                cx.put(self.again, &[0]);
            }
            Ok(Next::Wait)
        }

        fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
            Ok(Next::Done)
        }
    }
    graph.tasks(cells, move |[i]: [usize; 1]| Cell {
        halts: halts && i == last,
        late: !halts && i == last,
        out,
        again,
    });
    Graph::build(comm, graph).expect("a graph")
}

/// A row of cells, of which the first may compute for long.
fn row(comm: &Communicator, busy: bool) -> Graph {
    let count = 2 * comm.size();
    let mut graph = Description::new();
    let cells = graph.family("cell", &[count], Placement::Block);
    let (out, into) = (graph.output::<u64>(cells, "out"), graph.input(cells, "in"));
    graph.connect(out, into, move |[i]: [usize; 1]| {
        (i + 1 < count).then_some([i + 1])
    });
    graph.tasks(cells, move |[i]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            if busy && i == 0 {
                compute();
            }
            let value = cx.get(into).map_or(0, |message| message[0]);
            cx.put(out, &[value + 1]);
            Ok(Next::Done)
        }
    });
    Graph::build(comm, graph).expect("a graph")
}
