//! Operands that are combined as they come, against the same programs without pairs.

use super::*;
use osier_datatype::{Basic, Element, Operator};

const REDUCING: [Operation; 5] = [
    Operation::Reduce,
    Operation::Allreduce,
    Operation::ReduceScatter,
    Operation::Scan,
    Operation::Exscan,
];

/// What does and what does not commute, of elements of 1 to 32 bytes; pairs are cut by every
/// power of two.
fn operators() -> Vec<(Operator, Element)> {
    let pair = |value, index| Element::Pair { value, index };
    vec![
        (Operator::Sum, Element::Basic(Basic::F64)),
        (Operator::Product, Element::Basic(Basic::C64)),
        (Operator::BitXor, Element::Basic(Basic::U8)),
        (Operator::Min, Element::Basic(Basic::F32)),
        (Operator::MaxLoc, pair(Basic::F64, Basic::I32)),
        (Operator::MinLoc, pair(Basic::I16, Basic::I32)),
    ]
}

struct Played {
    results: Vec<Result<Vec<u8>>>,
    left: usize,
    fused: u64,
}

/// Plays a reduction of `elements` elements per piece or vector.
fn play_reduction(
    plan: &Plan,
    (operator, element): (Operator, Element),
    elements: usize,
    (seed, pairs): (u64, bool),
    faults: (Option<usize>, Option<(u32, usize)>),
) -> Played {
    let call = plan.call();
    let (size, unit) = (call.size as usize, element.size());
    let shares = call.operation == Operation::ReduceScatter;
    let each = elements * unit;
    let (sent, received) = match shares {
        true => (each * size, each),
        false => (each, each),
    };
    let mut random = Random(seed ^ 0x55);
    let mut draw = |bytes: usize| -> Vec<u8> {
        // Numbers of all sizes, and those that are none.
        (0..bytes).map(|_| random.below(256) as u8).collect()
    };
    let mut inputs: Vec<Vec<u8>> = (0..size).map(|_| draw(sent)).collect();
    let mut outputs: Vec<Vec<u8>> = match call.in_place {
        true => inputs.clone(),
        false => vec![vec![0; received]; size],
    };
    let view = |bytes: &mut Vec<u8>| RawView::untyped(bytes.as_mut_ptr(), bytes.len());
    let pieces = |bytes: &mut Vec<u8>| match shares {
        true => Pieces::Equal(view(bytes), each),
        false => Pieces::Cut(view(bytes)),
    };
    let buffers = (0u32..).zip(inputs.iter_mut().zip(&mut outputs));
    let buffers = buffers.map(|(rank, (send, recv))| Buffers {
        send: match (call.in_place, shares) {
            (true, true) => Pieces::Equal(view(recv), each),
            (true, false) if call.operation != Operation::Reduce || rank == call.root => {
                Pieces::None
            }
            _ => pieces(send),
        },
        recv: match call.operation == Operation::Reduce && rank != call.root {
            true => Pieces::None,
            false if shares => Pieces::Equal(view(recv).section(0..each), each),
            false => pieces(recv),
        },
        sizes: match shares {
            true => Sizes::Equal(each),
            false => Sizes::Cut(each),
        },
        unit,
    });
    let combiner = || {
        let fit = Fit::of_element(operator, element);
        Some((Combiner::Owned(Arc::new(operator)), fit))
    };
    let program = |rank| {
        let mut program = lower(call, &plan.part(rank)).expect("a program");
        if !pairs {
            program.pairs.clear();
        }
        program
    };
    let cut = if pairs { 50 } else { 0 };
    let (ends, left, fused) = play_programs(
        plan,
        program,
        buffers.collect(),
        combiner,
        (seed, cut),
        faults,
    );
    let receives = |rank: u32| call.operation != Operation::Reduce || rank == call.root;
    let results = ends.into_iter().map(|(rank, end)| {
        let whole = &outputs[rank as usize];
        end.map(|()| match receives(rank) {
            true => whole[..received].to_vec(),
            false => Vec::new(),
        })
    });
    Played {
        results: results.collect(),
        left,
        fused,
    }
}

fn plans() -> impl Iterator<Item = Plan> {
    REDUCING.into_iter().flat_map(|operation| {
        Algorithm::FLAT.into_iter().flat_map(move |algorithm| {
            (2..8).flat_map(move |size| {
                let algorithm = algorithm.clone();
                [(1, false), (1, true), (3, false), (20, true)]
                    .into_iter()
                    .filter_map(move |(segments, in_place)| {
                        let mut call = Call::new(operation, size).root(size / 2);
                        call.required = Association::Any;
                        let call = if in_place { call.in_place() } else { call };
                        Plan::new(call, algorithm.clone(), segments).ok()
                    })
            })
        })
    })
}

/// Whatever comes first, and however it is cut: results have the same bits.
#[test]
fn operands_combined_as_they_come_give_the_bits_of_all_steps() {
    let (mut played, mut fused) = (0, 0);
    for (number, plan) in plans().enumerate() {
        for (at, known) in operators().into_iter().enumerate() {
            let elements = [0, 1, 7, 200][(number + at) % 4];
            let seed = (number * 31 + at) as u64;
            let play =
                |pairs, seed| play_reduction(&plan, known, elements, (seed, pairs), (None, None));
            let told = || {
                let call = plan.call();
                format!(
                    "{:?} of {elements} {:?} by {} of {} ranks, {} segments, in place {}",
                    call.operation,
                    known,
                    plan.algorithm(),
                    call.size,
                    plan.segments(),
                    call.in_place
                )
            };
            let (found, expected) = (play(true, seed), play(false, seed));
            assert_eq!((found.left, expected.left, expected.fused), (0, 0, 0));
            for (found, expected) in found.results.into_iter().zip(expected.results) {
                let found = found.expect("no step fails");
                assert!(found == expected.expect("no step fails"), "{}", told());
            }
            fused += found.fused;
            played += 1;
        }
    }
    assert!(
        played > 1000 && fused > 10_000,
        "{played} played, {fused} fused"
    );
}

/// Whichever post fails: every run ends, and each message meets a receive.
#[test]
fn a_failed_post_ends_runs_that_combine_what_comes() {
    let (mut failed, mut fused) = (0, 0);
    for (number, plan) in plans().enumerate().filter(|(n, _)| n % 3 == 0) {
        let known = operators()[number % 3];
        for at in 0..10 {
            let seed = (number * 31 + at) as u64;
            let played = play_reduction(&plan, known, 40, (seed, true), (Some(at), None));
            failed += usize::from(played.results.iter().any(Result::is_err));
            fused += played.fused;
            assert_eq!(played.left, 0, "post {at} fails, plan {number}");
        }
    }
    assert!(
        failed > 100 && fused > 1000,
        "{failed} failed, {fused} fused"
    );
}
