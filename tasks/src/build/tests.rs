use super::*;
use crate::describe::{In, Out};
use crate::placement::Placement;
use crate::task::{Next, TaskError};

fn idle(_: &mut crate::context::Context<'_>) -> Result<Next, TaskError> {
    Ok(Next::Done)
}

/// A row of tasks, each of which sends to the next.
fn row(len: usize, placement: Placement) -> (Description, Out<f64>, In<f64>) {
    let mut graph = Description::new();
    let cells = graph.family("cell", &[len], placement);
    let (out, into) = (
        graph.output::<f64>(cells, "right"),
        graph.input::<f64>(cells, "left"),
    );
    graph.connect(out, into, move |[i]: [usize; 1]| {
        (i + 1 < len).then_some([i + 1])
    });
    graph.tasks(cells, |[_]: [usize; 1]| idle);
    (graph, out, into)
}

/// The shapes of all ranks.
fn shapes(graph: &Description, ranks: usize) -> Vec<Shape> {
    let outlines: Vec<Outline> = (0..ranks)
        .map(|rank| Outline::new(graph, rank, ranks).expect("an outline"))
        .collect();
    let letters: Vec<Vec<Vec<u64>>> = (0..ranks)
        .map(|to| {
            outlines
                .iter()
                .map(|from| from.letters()[to].clone())
                .collect()
        })
        .collect();
    outlines
        .into_iter()
        .zip(letters)
        .map(|(outline, letters)| outline.assemble(graph, &letters).expect("a shape"))
        .collect()
}

#[test]
fn both_sides_of_a_branch_agree_on_its_number() {
    for ranks in 1..5 {
        let (graph, _, _) = row(11, Placement::Cyclic);
        let shapes = shapes(&graph, ranks);
        let tasks: usize = shapes.iter().map(|shape| shape.tasks.len()).sum();
        assert_eq!(tasks, 11);
        for (rank, shape) in shapes.iter().enumerate() {
            for (number, remote) in shape.remotes.iter().enumerate() {
                let other = &shapes[remote.rank as usize];
                let branch = other.from_ranks[rank].start + remote.place;
                let branch = &other.branches[branch as usize];
                let source = Source::Rank {
                    rank: rank as u32,
                    place: remote.place,
                };
                assert_eq!(branch.source, source);
                let input = other.consumers[branch.consumers.start as usize];
                let task = shape.outputs[remote.output as usize].task;
                let from = shape.tasks[task as usize].number;
                assert_eq!(other.inputs[input as usize].producer, (0, from, 0));
                let place = remote.place as usize;
                assert_eq!(shape.to_ranks[remote.rank as usize][place], number as u32);
            }
        }
    }
}

#[test]
fn edges_into_a_port_are_in_the_order_of_their_producers() {
    let mut graph = Description::new();
    let all = graph.family("all", &[6], Placement::Cyclic);
    let (out, into) = (graph.output::<u8>(all, "out"), graph.input::<u8>(all, "in"));
    graph.connect(out, into, |[_]: [usize; 1]| (0..6).map(|to| [to]));
    graph
        .connect(out, into, |[_]: [usize; 1]| [[0usize]])
        .label(1);
    graph.tasks(all, |[_]: [usize; 1]| idle);
    for shape in shapes(&graph, 4) {
        for task in 0..shape.tasks.len() as u32 {
            let of = |edge: u32| {
                let edge = &shape.inputs[edge as usize];
                (edge.producer.1, edge.label)
            };
            let found: Vec<_> = shape.edges_of(task, 0).map(of).collect();
            let twice = shape.tasks[task as usize].number == 0;
            let labels = if twice { 0..2 } else { 0..1 };
            let expected: Vec<_> = (0..6)
                .flat_map(|from| labels.clone().map(move |label| (from, label)))
                .collect();
            assert_eq!(found, expected);
        }
    }
}

fn refused(graph: &Description) -> String {
    let outline = Outline::new(graph, 0, 2).map(drop);
    outline.expect_err("no graph").to_string()
}

#[test]
fn what_is_no_graph_is_refused_by_name() {
    let (mut graph, _, _) = row(4, Placement::Block);
    let lonely = graph.family("lonely", &[1], Placement::Block);
    assert!(refused(&graph).contains("'lonely' has no tasks"));
    graph.tasks(lonely, |[_]: [usize; 1]| idle);
    graph.input::<u8>(lonely, "news");
    assert!(refused(&graph).contains("'news' of family 'lonely'"));

    let (mut graph, out, into) = row(4, Placement::Block);
    graph.connect(out, into, |[i]: [usize; 1]| (i == 1).then_some([2]));
    let text = refused(&graph);
    assert!(
        text.contains("from cell[1].right to cell[2].left"),
        "{text}"
    );

    let (mut graph, out, into) = row(4, Placement::Block);
    graph.connect(out, into, |[i]: [usize; 1]| [[i + 7]]);
    let text = refused(&graph);
    assert!(text.contains("cell[0].right to [7]"), "{text}");

    let (graph, _, _) = row(4, Placement::Function(std::sync::Arc::new(|_| 3)));
    let text = refused(&graph);
    assert!(text.contains("[0] is placed on rank 3"), "{text}");

    let mut graph = Description::new();
    graph.family("huge", &[usize::MAX, 9], Placement::Block);
    assert!(refused(&graph).contains("'huge'"));

    let (mut graph, _, _) = row(4, Placement::Block);
    let (mut other, out, _) = row(4, Placement::Block);
    let second = other.family("second", &[1], Placement::Block);
    let news = other.input::<u8>(second, "news");
    let _ = out;
    let cells = graph.family("third", &[1], Placement::Block);
    let typed = graph.output::<u8>(cells, "bytes");
    graph.connect(typed, news, |[_]: [usize; 1]| [[0usize]]);
    graph.tasks(cells, |[_]: [usize; 1]| idle);
    let text = refused(&graph);
    assert!(
        text.contains("'bytes' of u8 to a port that is not there"),
        "{text}"
    );

    let (mut graph, _, _) = row(4, Placement::Block);
    let cells = graph.family("ruled", &[1], Placement::Block);
    graph.tasks(cells, |[_]: [usize; 1]| idle);
    graph.rule(cells, Rule::Ports(vec![2]));
    assert!(refused(&graph).contains("Ports([2])"));
}

#[test]
fn letters_are_checked_word_by_word() {
    let (graph, _, _) = row(6, Placement::Cyclic);
    let letters_to = |rank: usize| -> Vec<Vec<u64>> {
        (0..2)
            .map(|from| {
                let outline = Outline::new(&graph, from, 2).expect("an outline");
                outline.letters()[rank].clone()
            })
            .collect()
    };
    let assemble = |letters: &[Vec<u64>]| {
        let outline = Outline::new(&graph, 0, 2).expect("an outline");
        outline.assemble(&graph, letters)
    };
    let sound = letters_to(0);
    assert!(assemble(&sound).is_ok());
    for at in 0..sound[1].len() {
        for value in [9, 1 << 33, u64::MAX] {
            let mut letters = sound.clone();
            letters[1][at] = value;
            let error = assemble(&letters).expect_err("malformed");
            assert!(
                matches!(error, BuildError::Malformed { rank: 1, .. }),
                "{error}"
            );
        }
        let mut letters = sound.clone();
        letters[1].truncate(at);
        // Whole branches less are a letter, too.
        let error = assemble(&letters).err();
        assert_eq!(error.is_none(), at % 6 == 0, "{error:?}");
    }
}
