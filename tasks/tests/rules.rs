//! Rules that are asked, failures, priorities, what is refused.

mod common;

use common::chance::Random;
use common::{Job, build, on_threads};
use osier_tasks::child::{Child, LocalGraph};
use osier_tasks::context::Context;
use osier_tasks::delivery::Room;
use osier_tasks::describe::{Description, Event, Family, In, Out};
use osier_tasks::failure::Failure;
use osier_tasks::graph::{Graph, OneRank};
use osier_tasks::instance::{Elsewhere, NO_MORE, Outside};
use osier_tasks::layout;
use osier_tasks::placement::Placement;
use osier_tasks::rule::Rule;
use osier_tasks::space::Space;
use osier_tasks::task::{Fire, Next, Task, TaskError};
use osier_tasks::worker::{Crew, Step};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A producer that puts 1, 2, ... up to a number, one per firing.
fn counting(port: Out<u64>, until: u64) -> impl Task {
    let mut next = 1;
    move |cx: &mut Context<'_>| {
        cx.put(port, &[next]);
        next += 1;
        Ok(if next > until { Next::Done } else { Next::Wait })
    }
}

/// Producers, and one task that reads what they put by a rule.
fn funnel(
    producers: usize,
    messages: u64,
    slots: u32,
    rule: Rule,
    read: impl Fn() -> Box<dyn FnMut(&mut Context<'_>, &[u64]) -> Next + Send> + Send + Sync + 'static,
) -> Description {
    let mut graph = Description::new();
    let from = graph.family("producer", &[producers], Placement::Cyclic);
    let to = graph.family("sink", &[1], Placement::Block);
    let (out, into) = (
        graph.output::<u64>(from, "out"),
        graph.input::<u64>(to, "in"),
    );
    graph.slots(out, slots);
    graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
    graph.tasks(from, move |[_]: [usize; 1]| counting(out, messages));
    graph.rule(to, rule);
    graph.tasks(to, move |[_]: [usize; 1]| {
        let mut read = read();
        move |cx: &mut Context<'_>| {
            let all: Vec<u64> = cx.each(into).flat_map(|m| m.elements.to_vec()).collect();
            Ok(read(cx, &all))
        }
    });
    graph
}

fn run_everywhere(describe: impl Fn() -> Description + Sync, check: impl Fn()) {
    let mut random = Random(3);
    for ranks in 1..4 {
        let graphs: Vec<Graph> = build(ranks, &describe)
            .into_iter()
            .map(|graph| graph.expect("a graph"))
            .collect();
        for workers in 1..3 {
            for _again in 0..20 {
                let mut job = Job::new(&graphs, workers);
                assert!(job.run(&mut random), "it halts: {:#?}", job.standing());
                assert_eq!(job.failures(), Vec::<String>::new());
                check();
            }
        }
    }
    let graph = Graph::build(describe(), &mut OneRank).expect("a graph");
    for _ in 0..50 {
        on_threads(&graph, 2);
        check();
    }
}

#[test]
fn any_reads_every_message_once() {
    let sum = Arc::new(AtomicU64::new(0));
    let (producers, messages) = (5u64, 7u64);
    let all = producers * messages;
    let summing = sum.clone();
    let describe = move || {
        let sum = summing.clone();
        funnel(5, 7, 2, Rule::Any, move || {
            let (sum, mut seen) = (sum.clone(), 0);
            Box::new(move |_, values| {
                assert!(!values.is_empty());
                seen += values.len() as u64;
                sum.fetch_add(values.iter().sum::<u64>(), Ordering::Relaxed);
                if seen == all { Next::Done } else { Next::Wait }
            })
        })
    };
    run_everywhere(describe, || {
        assert_eq!(
            sum.swap(0, Ordering::Relaxed),
            producers * messages * (messages + 1) / 2
        );
    });
}

/// A rule that counts more messages than the slots of one edge hold waits for ever, once only
/// that edge has any: the task and its full port show it.
#[test]
fn a_count_beyond_the_slots_halts_and_shows_where() {
    let rule = Rule::Count {
        port: 0,
        messages: 4,
    };
    let describe = || funnel(1, 6, 2, rule.clone(), || Box::new(|_, _| Next::Done));
    let graphs = build(1, describe)
        .into_iter()
        .collect::<Result<Vec<_>, _>>();
    let mut job = Job::new(&graphs.expect("a graph"), 1);
    assert!(!job.run(&mut Random(1)), "it ends");
    let standing = job.standing().join("; ");
    assert!(
        standing.contains("producer[0] of rank 0: Lacks(1)"),
        "{standing}"
    );
    assert!(standing.contains("sink[0] of rank 0: Asking"), "{standing}");
}

/// A sink that waits on when all of its producers are done is an orphan by every rule, and
/// named, in whatever order messages, ends, questions and answers come.
#[test]
fn a_sink_that_all_producers_have_left_is_named() {
    let counted = Rule::Count {
        port: 0,
        messages: 2,
    };
    for (rule, says) in [
        (Rule::All, "no message comes on 'in' (from producer["),
        (
            Rule::Any,
            "no message comes, the last edge being 'in' (from producer[2].out)",
        ),
        (counted, "1 of 2 messages have come"),
        (Rule::Own, "no message comes, the last edge being"),
    ] {
        let describe = || funnel(3, 3, 2, rule.clone(), || Box::new(|_, _| Next::Wait));
        for ranks in 1..4 {
            let graphs: Vec<Graph> = build(ranks, describe)
                .into_iter()
                .collect::<Result<_, _>>()
                .expect("a graph");
            for (workers, seed) in (1..3).flat_map(|w| (0..40).map(move |s| (w, s))) {
                let mut job = Job::new(&graphs, workers);
                assert!(
                    job.run(&mut Random(seed)),
                    "it halts: {:#?}",
                    job.standing()
                );
                let failures = job.failures();
                assert_eq!(failures.len(), 1, "{failures:?}");
                let begin = "task sink[0] of rank 0 can no longer be fired: ";
                assert!(failures[0].starts_with(begin), "{failures:?}");
                assert!(failures[0].contains(says), "{failures:?}");
                assert!(failures[0].ends_with(" has ended"), "{failures:?}");
            }
        }
    }
}

/// A producer on rank 1 and a sink on rank 0, which have no tasks yet.
fn from_rank_to_rank() -> (Description, [Family; 2], Out<u64>, In<u64>) {
    let mut graph = Description::new();
    let from = graph.family("producer", &[1], Placement::Function(Arc::new(|_| 1)));
    let to = graph.family("sink", &[1], Placement::Block);
    let (out, into) = (
        graph.output::<u64>(from, "out"),
        graph.input::<u64>(to, "in"),
    );
    graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
    (graph, [from, to], out, into)
}

/// As many messages as there are slots may be waited for, also where credit for a few that
/// were read before is still owed.
#[test]
fn a_count_of_all_slots_gets_the_credit_that_is_owed() {
    let describe = || {
        let (mut graph, [from, to], out, into) = from_rank_to_rank();
        graph.slots(out, 8);
        graph.tasks(from, move |[_]: [usize; 1]| counting(out, 11));
        graph.tasks(to, move |[_]: [usize; 1]| {
            let mut read = 0;
            move |cx: &mut Context<'_>| {
                let messages = cx.each(into).count();
                assert_eq!(messages, if read < 3 { 1 } else { 8 });
                read += messages;
                let port = into.number();
                Ok(match read {
                    3 => Next::When(Rule::Count { port, messages: 8 }),
                    11 => Next::Done,
                    _ => Next::Wait,
                })
            }
        });
        graph
    };
    let graphs = build(2, describe)
        .into_iter()
        .collect::<Result<Vec<_>, _>>();
    let mut job = Job::new(&graphs.expect("a graph"), 1);
    assert!(job.run(&mut Random(2)), "it halts: {:#?}", job.standing());
    assert_eq!(job.failures(), Vec::<String>::new());
}

/// Messages from one rank to another, of some lengths in turn, on a port with the usual slots.
fn lengths(until: usize, of: fn(usize) -> usize) -> Description {
    let (mut graph, [from, to], out, into) = from_rank_to_rank();
    let after = move |firing: usize| match firing + 1 == until {
        true => Next::Done,
        false => Next::Wait,
    };
    graph.tasks(from, move |[_]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            let firing = cx.firing() as usize;
            cx.put(out, &vec![firing as u64; of(firing)]);
            Ok(after(firing))
        }
    });
    graph.tasks(to, move |[_]: [usize; 1]| {
        move |cx: &mut Context<'_>| {
            let firing = cx.firing() as usize;
            let message = match firing % 3 {
                0 => cx.take(into),
                _ => cx.get(into).map(<[u64]>::to_vec),
            };
            assert_eq!(message, Some(vec![firing as u64; of(firing)]));
            Ok(after(firing))
        }
    });
    graph
}

/// Of messages that lie in their slots many may be unread at another rank, of longer ones few;
/// those that are read, or whose memory is taken, give back what they used.
#[test]
fn long_messages_count_as_several_between_ranks() {
    struct Counting(Arc<AtomicU64>);
    impl Outside for Counting {
        fn put(&self, _: u32, _: u32, _: &[u8]) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn credit(&self, _: u32, _: u32, _: u32) {}
        fn fail(&self, _: u32, _: u32, _: &Failure) {}
        fn ended(&self, _: u32, _: u32) {}
        fn wake(&self) {}
    }
    let mixed: fn(usize) -> usize = |firing| [1, 5, 4, 2, 40, 4, 4, 300][firing * firing % 8];
    for (of, expected) in [(|_| 4, 64), (|_| 5, 8), (mixed, 0)] as [(fn(usize) -> usize, _); 3] {
        let graphs: Vec<Graph> = build(2, || lengths(500, of))
            .into_iter()
            .map(|graph| graph.expect("a graph"))
            .collect();
        let sent = Arc::new(AtomicU64::new(0));
        let outside = Counting(sent.clone());
        let instance = graphs[1].instance(1, 1, Some(Box::new(outside)));
        let (crew, mut workers) = Crew::new(&instance);
        while workers[0].step(&instance, &crew) == Step::Ran {}
        let sent = sent.load(Ordering::Relaxed);
        assert!(expected == 0 || sent == expected, "{sent} of {expected}");
        for (seed, workers) in [(1, 1), (2, 2), (3, 1), (4, 2)] {
            let mut job = Job::new(&graphs, workers);
            assert!(
                job.run(&mut Random(seed)),
                "it halts: {:#?}",
                job.standing()
            );
            assert_eq!(job.failures(), Vec::<String>::new());
        }
    }
}

#[test]
fn count_reads_as_many_as_it_counts() {
    let sum = Arc::new(AtomicU64::new(0));
    let summing = sum.clone();
    let describe = move || {
        let sum = summing.clone();
        let rule = Rule::Count {
            port: 0,
            messages: 4,
        };
        funnel(4, 6, 4, rule, move || {
            let (sum, mut firings) = (sum.clone(), 0);
            Box::new(move |_, values| {
                assert_eq!(values.len(), 4);
                firings += 1;
                sum.fetch_add(values.iter().sum::<u64>(), Ordering::Relaxed);
                if firings == 6 { Next::Done } else { Next::Wait }
            })
        })
    };
    run_everywhere(describe, || {
        assert_eq!(sum.swap(0, Ordering::Relaxed), 4 * 21)
    });
}

struct Collects {
    into: osier_tasks::describe::In<u64>,
    seen: Vec<u64>,
    fired: u64,
    sum: Arc<AtomicU64>,
}

impl Task for Collects {
    fn inject(&mut self, cx: &mut Context<'_>) -> Result<Fire, TaskError> {
        for message in cx.each(self.into) {
            self.seen.extend(message.elements);
        }
        let due = self.seen.len() as u64 >= (self.fired + 1) * 3;
        Ok(if due { Fire::Ready } else { Fire::Hold })
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        assert_eq!(cx.each(self.into).count(), 0, "inject has read them");
        self.fired = self.seen.len() as u64 / 3;
        if self.seen.len() < 12 {
            return Ok(Next::Wait);
        }
        self.sum
            .fetch_add(self.seen.iter().sum(), Ordering::Relaxed);
        Ok(Next::Done)
    }
}

#[test]
fn own_rules_see_every_message_once() {
    let sum = Arc::new(AtomicU64::new(0));
    let summing = sum.clone();
    let describe = move || {
        let mut graph = Description::new();
        let from = graph.family("producer", &[3], Placement::Cyclic);
        let to = graph.family("sink", &[1], Placement::Block);
        let (out, into) = (
            graph.output::<u64>(from, "out"),
            graph.input::<u64>(to, "in"),
        );
        graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
        graph.tasks(from, move |[_]: [usize; 1]| counting(out, 4));
        graph.rule(to, Rule::Own);
        let sum = summing.clone();
        graph.tasks(to, move |[_]: [usize; 1]| Collects {
            into,
            seen: Vec::new(),
            fired: 0,
            sum: sum.clone(),
        });
        graph
    };
    run_everywhere(describe, || {
        assert_eq!(sum.swap(0, Ordering::Relaxed), 3 * 10)
    });
}

/// Rules that change from firing to firing: a message on port 0 and on port 1 in turn, then
/// a firing without any.
#[test]
fn rules_change_from_firing_to_firing() {
    let sum = Arc::new(AtomicU64::new(0));
    let summing = sum.clone();
    let describe = move || {
        let mut graph = Description::new();
        let from = graph.family("producer", &[2], Placement::Cyclic);
        let to = graph.family("sink", &[1], Placement::Block);
        let out = graph.output::<u64>(from, "out");
        let into = [graph.input::<u64>(to, "a"), graph.input::<u64>(to, "b")];
        graph.connect(out, into[0], |[i]: [usize; 1]| (i == 0).then_some([0usize]));
        graph.connect(out, into[1], |[i]: [usize; 1]| (i == 1).then_some([0usize]));
        graph.tasks(from, move |[_]: [usize; 1]| counting(out, 5));
        graph.rule(to, Rule::Ports(vec![0]));
        let sum = summing.clone();
        graph.tasks(to, move |[_]: [usize; 1]| {
            let (sum, mut phase) = (sum.clone(), 0u64);
            move |cx: &mut Context<'_>| {
                let got = |port: usize| cx.get(into[port]).map(|m| m[0]);
                let turn = phase;
                phase += 1;
                let value = turn / 3 + 1;
                Ok(match turn % 3 {
                    0 => {
                        assert_eq!((got(0), got(1)), (Some(value), None));
                        Next::When(Rule::Ports(vec![1]))
                    }
                    1 => {
                        assert_eq!((got(0), got(1)), (None, Some(value)));
                        sum.fetch_add(value, Ordering::Relaxed);
                        if value == 5 {
                            Next::Done
                        } else {
                            Next::When(Rule::Ports(vec![]))
                        }
                    }
                    _ => {
                        assert_eq!((got(0), got(1)), (None, None));
                        Next::When(Rule::Ports(vec![0]))
                    }
                })
            }
        });
        graph
    };
    run_everywhere(describe, || assert_eq!(sum.swap(0, Ordering::Relaxed), 15));
}

/// A row of tasks, of which one fails: those behind it end with its cause, those before it
/// and those of another row run.
#[test]
fn a_failure_ends_what_depends_on_it_and_nothing_else() {
    for panics in [false, true] {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let ending = ended.clone();
        let describe = move || {
            let mut graph = Description::new();
            let cells = graph.family("cell", &[2, 6], Placement::Cyclic);
            let (out, into) = (
                graph.output::<u64>(cells, "right"),
                graph.input::<u64>(cells, "left"),
            );
            graph.connect(out, into, |[row, i]: [usize; 2]| {
                (i < 5).then_some([row, i + 1])
            });
            let ended = ending.clone();
            graph.tasks(cells, move |at: [usize; 2]| {
                let ended = ended.clone();
                move |cx: &mut Context<'_>| {
                    if at == [1, 2] {
                        if panics {
                            panic!("no more cells");
                        }
                        return Err("no more cells".into());
                    }
                    cx.put(out, &[1]);
                    ended.lock().expect("no panic").push(at);
                    Ok(Next::Done)
                }
            });
            graph
        };
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let mut random = Random(5);
        for ranks in 1..4 {
            let graphs: Vec<Graph> = build(ranks, &describe)
                .into_iter()
                .map(|graph| graph.expect("a graph"))
                .collect();
            for _again in 0..10 {
                let mut job = Job::new(&graphs, 2);
                assert!(job.run(&mut random), "it halts");
                let failures = job.failures();
                assert!(!failures.is_empty());
                for failure in failures {
                    assert!(failure.contains("task cell[1, 2] of rank"), "{failure}");
                    assert!(failure.contains("no more cells"), "{failure}");
                }
                let mut ran = std::mem::take(&mut *ended.lock().expect("no panic"));
                ran.sort_unstable();
                let others = (0..6).map(|i| [0, i]).chain([[1, 0], [1, 1]]);
                assert_eq!(ran, others.collect::<Vec<_>>());
            }
        }
        std::panic::set_hook(hook);
    }
}

#[test]
fn higher_priorities_run_first_and_negative_ones_last() {
    for (exact, expected) in [(false, [2, 5, 0, 3, 1, 4]), (true, [5, 2, 0, 3, 4, 1])] {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut graph = Description::new();
        if exact {
            graph.exact_priorities();
        }
        let tasks = graph.family("task", &[6], Placement::Block);
        graph.priority(tasks, |[i]: [usize; 1]| [0, -2, 5, 0, -1, 7][i]);
        let ordered = order.clone();
        graph.tasks(tasks, move |[i]: [usize; 1]| {
            let order = ordered.clone();
            move |_: &mut Context<'_>| {
                order.lock().expect("no panic").push(i);
                Ok(Next::Done)
            }
        });
        let graph = Graph::build(graph, &mut OneRank).expect("a graph");
        on_threads(&graph, 1);
        assert_eq!(*order.lock().expect("no panic"), expected);
    }
}

#[test]
fn a_vector_moves_to_its_only_consumer() {
    let mut graph = Description::new();
    let from = graph.family("producer", &[1], Placement::Block);
    let to = graph.family("consumer", &[1], Placement::Block);
    let (out, into) = (
        graph.output::<u64>(from, "out"),
        graph.input::<u64>(to, "in"),
    );
    graph.connect(out, into, |[_]: [usize; 1]| [[0usize]]);
    let address = Arc::new(AtomicU64::new(0));
    let sent = address.clone();
    graph.tasks(from, move |[_]: [usize; 1]| {
        let sent = sent.clone();
        move |cx: &mut Context<'_>| {
            let values: Vec<u64> = (0..1000).collect();
            sent.store(values.as_ptr() as u64, Ordering::Relaxed);
            cx.give(out, values);
            Ok(Next::Done)
        }
    });
    let received = address.clone();
    graph.tasks(to, move |[_]: [usize; 1]| {
        let received = received.clone();
        move |cx: &mut Context<'_>| {
            let values = cx.take(into).ok_or("no message")?;
            assert_eq!(values.as_ptr() as u64, received.load(Ordering::Relaxed));
            assert_eq!(values, (0..1000).collect::<Vec<_>>());
            assert_eq!(cx.get(into), Some(&[][..]));
            Ok(Next::Done)
        }
    });
    let graph = Graph::build(graph, &mut OneRank).expect("a graph");
    for _ in 0..3 {
        on_threads(&graph, 1);
    }
}

/// Rings that nothing begins are refused on all ranks, by the name of a task; with a message
/// to begin with they run.
#[test]
fn a_ring_that_nothing_begins_is_refused() {
    let describe = |begins: bool| {
        move || {
            let mut graph = Description::new();
            let ring = graph.family("ring", &[5], Placement::Cyclic);
            let (out, into) = (
                graph.output::<u64>(ring, "out"),
                graph.input::<u64>(ring, "in"),
            );
            let space = Space::new(&[5]).expect("a space");
            graph.connect_by(out, into, layout::offsets(&space, vec![vec![1]], true));
            if begins {
                graph.begins(out);
            }
            graph.tasks(ring, move |[i]: [usize; 1]| RingTask {
                first: i == 0,
                out,
                into,
            });
            graph
        }
    };
    let mut random = Random(9);
    for ranks in 1..5 {
        for refused in build(ranks, describe(false)) {
            let text = refused.err().expect("no graph").to_string();
            assert!(
                text.contains("nothing can fire ring[0] of rank 0"),
                "{text}"
            );
            assert!(text.contains("'in' (from ring[4].out)"), "{text}");
        }
        let graphs: Vec<Graph> = build(ranks, describe(true))
            .into_iter()
            .map(|graph| graph.expect("a graph"))
            .collect();
        let mut job = Job::new(&graphs, 1);
        assert!(job.run(&mut random), "it halts: {:#?}", job.standing());
        assert_eq!(job.failures(), Vec::<String>::new());
    }
}

struct RingTask {
    first: bool,
    out: Out<u64>,
    into: osier_tasks::describe::In<u64>,
}

impl Task for RingTask {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        if self.first {
            cx.put(self.out, &[0]);
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        let value = cx.get(self.into).ok_or("no message")?[0];
        if value < 23 {
            cx.put(self.out, &[value + 1]);
        }
        // The value comes round with 5 more, and nobody passes on more than 23.
        Ok(if value + 5 > 23 {
            Next::Done
        } else {
            Next::Wait
        })
    }
}

/// Descriptions that differ from rank to rank are found by all.
#[test]
fn ranks_that_describe_another_graph_are_named() {
    let made = AtomicU64::new(0);
    let graphs = build(3, || {
        let len = 4 + (made.fetch_add(1, Ordering::SeqCst) / 2) as usize;
        let mut graph = Description::new();
        let tasks = graph.family("task", &[len], Placement::Block);
        graph.tasks(tasks, |[_]: [usize; 1]| {
            |_: &mut Context<'_>| Ok(Next::Done)
        });
        graph
    });
    for graph in graphs {
        let text = graph.err().expect("no graph").to_string();
        assert!(text.contains("describes another graph"), "{text}");
    }
}

/// What no correct rank sends is refused, and changes nothing.
#[test]
fn malformed_messages_are_refused() {
    struct Silent;
    impl Outside for Silent {
        fn put(&self, _: u32, _: u32, _: &[u8]) {}
        fn credit(&self, _: u32, _: u32, _: u32) {}
        fn fail(&self, _: u32, _: u32, _: &Failure) {}
        fn ended(&self, _: u32, _: u32) {}
        fn wake(&self) {}
    }
    let describe = || funnel(2, 6, 2, Rule::Any, || Box::new(|_, _| Next::Done));
    let graphs = build(2, describe)
        .into_iter()
        .collect::<Result<Vec<_>, _>>();
    let graphs = graphs.expect("a graph");
    // Rank 0 has producer 0 and the sink, rank 1 producer 1.
    let instance = graphs[0].instance(1, 1, Some(Box::new(Silent)));
    let deliver = |rank, place, bytes: &[u8]| instance.deliver(rank, place, bytes, &mut Elsewhere);
    for (rank, place, bytes) in [(1, 1, 8), (1, u32::MAX, 8), (0, 0, 8), (7, 0, 8), (1, 0, 7)] {
        assert!(!deliver(rank, place, &[0; 20][..bytes]), "{rank} {place}");
    }
    let begin = |rank, place, bytes| instance.begin_delivery(rank, place, bytes);
    for (rank, place, bytes) in [(1, 1, 8), (0, 0, 8), (7, 0, 8), (1, 0, 7)] {
        assert_eq!(begin(rank, place, bytes), Room::Malformed, "{rank} {place}");
    }
    assert_eq!(begin(1, 0, usize::MAX / 16 * 8), Room::None);
    assert!(deliver(1, 0, &[0; 16]) && deliver(1, 0, &[]));
    assert_eq!(begin(1, 0, 8), Room::Malformed, "beyond the slots");
    assert!(!deliver(1, 0, &[0; 8]), "beyond the slots");
    assert!(
        !instance.credit(1, 0, 1, &mut Elsewhere),
        "nothing leads there"
    );
    assert!(!instance.fail_from(1, 9, "why", &mut Elsewhere));
    let producer = graphs[1].instance(1, 1, Some(Box::new(Silent)));
    assert!(
        !producer.credit(0, 0, 1, &mut Elsewhere),
        "all credit is there"
    );
    assert!(!producer.credit(0, 1, 1, &mut Elsewhere));
    assert!(producer.credit(0, 0, NO_MORE, &mut Elsewhere));
}

/// A tree of child graphs: each task begins a graph of tasks that do the same, down to the leaves.
struct Branching {
    depth: u32,
    leaves: Arc<AtomicU64>,
    ended: Event,
    children: Vec<Child>,
}

impl Task for Branching {
    fn init(&mut self, cx: &mut Context<'_>) -> Result<Next, TaskError> {
        if self.depth == 0 {
            self.leaves.fetch_add(1, Ordering::Relaxed);
            let fails = cx.argument::<bool>() == Some(&true);
            return match fails {
                true => Err("a leaf".into()),
                false => Ok(Next::Done),
            };
        }
        let graph = LocalGraph::build(branching(2, self.depth - 1, &self.leaves))?;
        for child in 0..2 {
            let fails = self.depth == 1 && child == 1;
            let begun = cx.begin(&graph, Arc::new(fails), self.ended);
            self.children.push(begun);
        }
        Ok(Next::Wait)
    }

    fn execute(&mut self, _: &mut Context<'_>) -> Result<Next, TaskError> {
        if !self.children.iter().all(Child::has_ended) {
            return Ok(Next::Wait);
        }
        let failed = self
            .children
            .iter()
            .filter(|child| child.failure().is_some());
        // Those with a leaf that fails do not fail themselves.
        assert_eq!(failed.count(), usize::from(self.depth == 1));
        Ok(Next::Done)
    }
}

fn branching(tasks: usize, depth: u32, leaves: &Arc<AtomicU64>) -> Description {
    let mut graph = Description::new();
    let family = graph.family("branching", &[tasks], Placement::Block);
    let (ended, leaves) = (graph.event(family, "ended"), leaves.clone());
    graph.tasks(family, move |[_]: [usize; 1]| Branching {
        depth,
        leaves: leaves.clone(),
        ended,
        children: Vec::new(),
    });
    graph
}

#[test]
fn child_graphs_end_and_tell_the_tasks_that_began_them() {
    for workers in 1..=3 {
        for seed in 0..20 {
            let leaves = Arc::default();
            let graphs: Vec<Graph> = build(2, || branching(3, 3, &leaves))
                .into_iter()
                .map(|graph| graph.expect("a graph"))
                .collect();
            let mut job = Job::new(&graphs, workers);
            assert!(job.run(&mut Random(seed)), "{:?}", job.standing());
            // Each task begins two graphs of two tasks.
            assert_eq!(leaves.load(Ordering::Relaxed), 3 * 4 * 4 * 4);
        }
        let leaves = Arc::default();
        let graph = Graph::build(branching(3, 3, &leaves), &mut OneRank).expect("a graph");
        on_threads(&graph, workers);
        assert_eq!(leaves.load(Ordering::Relaxed), 3 * 4 * 4 * 4);
    }
}
