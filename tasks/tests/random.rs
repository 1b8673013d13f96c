//! Random graphs against a naive interpreter: the same bits for any number of ranks and
//! workers, and any order of events; where a task or a rank fails, of all that does not need its
//! messages.
//!
//! Collectives are nodes with a task on each rank that waits for an event, as those of the layer
//! above are; the engine's part is a [`meeting`] of the ranks.

#[path = "../../tests/asked.rs"]
mod asked;
#[path = "random/case.rs"]
mod case;
mod common;
#[path = "random/meeting.rs"]
mod meeting;

use case::Case;
use common::chance::{self, Random};
use common::{Job, build, on_threads};
use meeting::Meeting;
use osier_tasks::describe::Description;
use osier_tasks::graph::{Graph, OneRank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

mod api {
    pub use osier_tasks::child::{Child, LocalGraph};
    pub use osier_tasks::context::Context;
    pub use osier_tasks::describe::{Description, Event, In, Out};
    pub use osier_tasks::placement::Placement;
    pub use osier_tasks::rule::Rule;
    pub use osier_tasks::task::{Next, Task, TaskError};
}

/// Plays the case of a seed twice over, on some ranks and workers, in an order that the seed
/// decides; then with a task that fails, and with a rank that does.
fn play(seed: u64) {
    let mut random = Random(seed);
    let mut case = Case::new(&mut random);
    let ranks = 1 + random.below(4) as usize;
    let workers = 1 + random.below(3) as usize;
    case.settle(ranks);
    let expected = case.interpret();
    let (ends, meeting) = (case.ends(), Arc::new(Meeting::default()));
    let named = |case: &Case| format!("seed {seed}, {ranks} ranks of {workers} workers, {case:#?}");
    let built = |case: &Case| -> Vec<Graph> {
        let add = |graph: &mut Description, node, ranks, firings| {
            meeting.add(graph, node, ranks, firings)
        };
        let graphs = build(ranks, || case.describe(&ends, &add, ranks));
        let graphs: Result<Vec<Graph>, _> = graphs.into_iter().collect();
        graphs.unwrap_or_else(|e| panic!("{e}: {}", named(case)))
    };
    let graphs = built(&case);
    let mut run = |case: &Case, graphs: &[Graph], dead: Option<usize>| {
        *ends.lock().expect("no panic") = case.empty();
        meeting.begin();
        let mut job = Job::new(graphs, workers);
        if let Some(rank) = dead {
            job.some(random.below(400), &mut random);
            job.fail(rank);
            meeting.fail();
        }
        let ended = job.run(&mut random);
        assert!(ended, "halts: {:#?}, {}", job.standing(), named(case));
        (job.failures(), ends.lock().expect("no panic").clone())
    };
    for _again in 0..2 {
        let (failures, ended) = run(&case, &graphs, None);
        assert_eq!(failures, Vec::<String>::new());
        assert_eq!(ended, expected, "{}", named(&case));
    }
    match seed % 4 {
        0 => {
            let family = seed as usize / 4 % case.lens.len();
            let task = seed as usize / 8 % case.lens[family];
            case.fails = Some((family, task, seed / 16 % case.firings));
            let (failures, ended) = run(&case, &built(&case), None);
            assert_eq!(ended, case.interpret(), "{}", named(&case));
            let name = format!("task family{family}[{task}] of rank");
            let told = |text: &String| {
                text.contains(&name) && text.contains("it was asked to")
                    || text.contains(meeting::FAILED)
            };
            assert!(
                !failures.is_empty() && failures.iter().all(told),
                "{failures:?}"
            );
        }
        1 if ranks > 1 => {
            let dead = seed as usize / 4 % ranks;
            let (_, ended) = run(&case, &graphs, Some(dead));
            let lost = |family: usize, number: usize| {
                let shape = graphs[dead].shape();
                let mut tasks = shape.tasks.iter();
                tasks.any(|t| t.family as usize == family && t.number == number as u64)
            };
            let needs = case.needs();
            for (family, ended) in ended.iter().enumerate() {
                for (task, ended) in ended.iter().enumerate() {
                    let name = || format!("family{family}[{task}], {dead} fails, {}", named(&case));
                    if ended.is_some() {
                        assert_eq!(*ended, expected[family][task], "{}", name());
                        continue;
                    }
                    let of_lost = needs[family][task].iter().enumerate();
                    let mut needed = of_lost.flat_map(|(family, tasks)| {
                        let tasks = tasks.iter().enumerate();
                        tasks.map(move |(task, needs)| (family, task, *needs))
                    });
                    let excused = needed.any(|(family, task, needs)| needs && lost(family, task));
                    assert!(excused, "{}", name());
                }
            }
        }
        _ => {}
    }
}

/// `OSIER_TEST=graphs=N` says how many.
#[test]
fn any_ranks_workers_and_order_give_the_bits_of_the_interpreter() {
    let graphs = asked::number("graphs").unwrap_or(10_000);
    (0..graphs).for_each(play);
}

/// `cargo xtask soak tasks`.
#[test]
#[ignore = "runs as long as OSIER_TEST says"]
fn soak() {
    let seed = asked::number("seed").unwrap_or(0);
    let runs = asked::number("runs");
    let seconds = asked::number("seconds").unwrap_or(60);
    let end = Instant::now() + Duration::from_secs(seconds);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let more = match runs {
                        Some(runs) => number < runs,
                        None => Instant::now() < end,
                    };
                    if !more {
                        return;
                    }
                    play(seed.wrapping_add(number));
                }
            });
        }
    });
    let played = next.into_inner().min(runs.unwrap_or(u64::MAX));
    println!("{played} graphs, seeds from {seed}");
}

#[test]
fn threads_give_the_bits_of_the_interpreter() {
    let mut random = Random(11);
    for number in 0..300 {
        let mut case = Case::new(&mut random);
        case.settle(1);
        case.firings *= 20;
        let expected = case.interpret();
        let (ends, meeting) = (case.ends(), Arc::new(Meeting::default()));
        let add = |graph: &mut Description, node, ranks, firings| {
            meeting.add(graph, node, ranks, firings)
        };
        let graph = Graph::build(case.describe(&ends, &add, 1), &mut OneRank)
            .unwrap_or_else(|e| panic!("case {number}: {e}"));
        let ended: u64 = on_threads(&graph, 3)
            .iter()
            .map(|worker| worker.ended)
            .sum();
        let nodes = case.meets.iter().filter(|meets| **meets).count();
        assert_eq!(ended as usize, case.lens.iter().sum::<usize>() + nodes);
        let ends = ends.lock().expect("no panic");
        assert_eq!(*ends, expected, "case {number}: {case:#?}");
    }
}
