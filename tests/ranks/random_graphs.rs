//! Random graphs of tasks, with collectives as nodes, against the interpreter of the simulation.

#[path = "../../tasks/tests/random/case.rs"]
#[allow(dead_code, reason = "the simulation uses more of it")]
mod case;
#[path = "../../tasks/tests/common/chance.rs"]
mod chance;

use crate::support::on_all;
use case::Case;
use chance::Random;
use osier::Op;
use osier::task::{Description, Graph, Node};

mod api {
    pub use osier::task::{
        Child, Context, Description, Event, In, LocalGraph, Next, Out, Placement, Rule, Task,
        TaskError,
    };
}

/// `OSIER_TEST=rank-graphs=N` says how many.
#[test]
fn graphs_with_collectives_give_the_bits_of_the_interpreter() {
    let graphs = crate::asked::number("rank-graphs").unwrap_or(30);
    for ranks in [1, 2, 3] {
        on_all(ranks, |comm| {
            for seed in (0..graphs).filter(|seed| seed % 3 + 1 == ranks as u64) {
                let mut random = Random(seed);
                let mut case = Case::new(&mut random);
                // Half of the families or more.
                case.meets
                    .iter_mut()
                    .step_by(2)
                    .for_each(|meets| *meets = true);
                case.settle(ranks);
                let (expected, ends) = (case.interpret(), case.ends());
                let add = |graph: &mut Description, node, _, firings| {
                    let begin = |comm: &osier::Communicator, parts: Vec<u64>| {
                        let part = parts.into_iter().fold(0, u64::wrapping_add);
                        let sum = comm.iallreduce(vec![part], vec![0u64], Op::Sum)?;
                        Ok(async { sum.await.map(|(_, sum)| sum) })
                    };
                    let node = Node::new(&format!("node{node}"), firings).add(graph, &comm, begin);
                    let ports = node.expect("a communicator");
                    (ports.input, ports.output)
                };
                let description = case.describe(&ends, &add, ranks);
                let graph = Graph::build(&comm, description).expect("a graph");
                for workers in [1, 2] {
                    *ends.lock().expect("no panic") = case.empty();
                    let ended = graph.run_by(workers);
                    ended.unwrap_or_else(|e| panic!("seed {seed}: {e}, {case:#?}"));
                    let ends = ends.lock().expect("no panic");
                    let mut count = 0;
                    for (ended, expected) in ends.iter().flatten().zip(expected.iter().flatten()) {
                        if ended.is_some() {
                            assert_eq!(ended, expected, "seed {seed}, {case:#?}");
                            count += 1u64;
                        }
                    }
                    let mut all = [0u64];
                    comm.allreduce(&[count], &mut all, Op::Sum).expect("alive");
                    let tasks: usize = case.lens.iter().sum();
                    assert_eq!(all[0], tasks as u64, "seed {seed}");
                }
            }
        });
    }
}
