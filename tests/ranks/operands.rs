//! Operands that are combined as they come, against a function of the user that does the same:
//! it gets a copy of the whole operand.

use crate::support::{Random, on_all, on_shm, simulated};
use osier::datatype::{Basic, Pair};
use osier::internals::{lane, runs_on};
use osier::operators::packed_function;
use osier::{Communicator, Layout, Op, Type, View, ViewMut};
use osier_collectives::{Algorithm, Call, Operation};

/// Elements of a message: short, in parts, in fragments, announced.
const COUNTS: [usize; 6] = [1, 65, 1000, 6000, 13_001, 60_000];

/// Combinations of this rank that took no step of their own.
fn fused(comm: &Communicator) -> u64 {
    lane(runs_on(comm)).lock().executor.fused
}

/// Runs a check by every algorithm of messages that is for the operation.
fn by_messages(comm: &Communicator, operation: Operation, mut check: impl FnMut(&str)) {
    let call = Call::new(operation, comm.size() as u32);
    for algorithm in Algorithm::FLAT {
        if algorithm.keeps(&call).is_none() {
            continue;
        }
        for segments in [1, 4] {
            comm.use_algorithm(Some((algorithm.clone(), segments)));
            check(&format!("{algorithm} in {segments}"));
        }
    }
    comm.use_algorithm(None);
}

/// An operator on a type, and contents of which no element is no number.
struct Case {
    op: Op,
    layout: Layout,
    contents: fn(&mut Random) -> Vec<u8>,
}

impl Case {
    fn of(op: Op, ty: &Type, contents: fn(&mut Random) -> Vec<u8>) -> Self {
        let layout = ty.commit().expect("a layout");
        Self {
            op,
            layout,
            contents,
        }
    }
}

fn real(random: &mut Random) -> f64 {
    let exponent = random.below(40) as i32 - 20;
    (random.below(1000) as f64 - 500.0) * 2f64.powi(exponent)
}

fn cases() -> Vec<Case> {
    let real = |random: &mut Random| real(random).to_le_bytes().to_vec();
    let complex = |random: &mut Random| {
        let real = |random: &mut Random| (random.below(7) as f64 - 3.0) / 4.0;
        let parts = [real(random), real(random)];
        parts.iter().flat_map(|part| part.to_le_bytes()).collect()
    };
    // With 4 bytes that are no part of it.
    let pair = |random: &mut Random| {
        let mut bytes = ((random.below(9)) as f64).to_le_bytes().to_vec();
        bytes.extend((random.below(9) as i32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes
    };
    let pair_of_ints = |random: &mut Random| {
        let parts = [random.below(9) as i32, random.below(9) as i32];
        parts.iter().flat_map(|part| part.to_le_bytes()).collect()
    };
    let short = |random: &mut Random| (random.below(1 << 16) as u16).to_le_bytes().to_vec();
    vec![
        Case::of(Op::Sum, &Type::of::<f64>(), real),
        Case::of(Op::Product, &Type::basic(Basic::C64), complex),
        Case::of(Op::MinLoc, &Type::pair(Pair::DoubleInt), pair),
        Case::of(Op::MaxLoc, &Type::pair(Pair::TwoInt), pair_of_ints),
        Case::of(Op::BitXor, &Type::of::<u16>(), short),
    ]
}

#[test]
fn operands_combined_as_they_come_give_what_copies_do() {
    for size in [2, 3, 4, 5] {
        on_all(size, |comm| {
            let before = fused(&comm);
            for (at, case) in cases().into_iter().enumerate() {
                let extent = case.layout.extent() as usize;
                for (n, count) in COUNTS.into_iter().enumerate() {
                    // The simulated network is slow.
                    if (simulated(&comm) && count > 13_001) || (n + at + size) % 3 == 0 {
                        continue;
                    }
                    let mut random = Random::new((comm.rank() * 100 + n) as u64);
                    let mine: Vec<u8> = (0..count)
                        .flat_map(|_| (case.contents)(&mut random))
                        .collect();
                    assert_eq!(mine.len(), count * extent);
                    let view = || View::new(&mine, 0, &case.layout, count).expect("a view");
                    let copies = packed_function(&case.layout, false, |left, right| {
                        let signature = case.layout.signature();
                        let element = case.op.element_of(signature).expect("defined");
                        case.op.combine(element, left, right).expect("defined");
                    });
                    let told = |how: &str| format!("{} by {how}, {count} elements", case.op);
                    for operation in [Operation::Allreduce, Operation::Reduce, Operation::Scan] {
                        let root = (n + at) % size;
                        by_messages(&comm, operation, |how| {
                            let mut found = vec![0u8; mine.len()];
                            let mut expected = found.clone();
                            for (result, naive) in [(&mut found, false), (&mut expected, true)] {
                                let to = ViewMut::new(result, 0, &case.layout, count);
                                let mut to = to.expect("a view");
                                let (from, to) = (view(), &mut to);
                                let done = match (operation, naive) {
                                    (Operation::Allreduce, false) => {
                                        comm.allreduce(&from, to, case.op)
                                    }
                                    (Operation::Allreduce, true) => {
                                        comm.allreduce(&from, to, &copies)
                                    }
                                    (Operation::Reduce, false) => {
                                        comm.reduce(&from, to, root, case.op)
                                    }
                                    (Operation::Reduce, true) => {
                                        comm.reduce(&from, to, root, &copies)
                                    }
                                    (_, false) => comm.scan(&from, to, case.op),
                                    (_, true) => comm.scan(&from, to, &copies),
                                };
                                done.unwrap_or_else(|e| panic!("{}: {e}", told(how)));
                            }
                            assert!(found == expected, "{operation:?}: {}", told(how));
                        });
                    }
                }
            }
            assert!(fused(&comm) > before, "rank {}", comm.rank());
        });
    }
}

/// Calls in flight beside each other, whose messages come while others are sent; and operands that
/// a peer reads in place.
#[test]
fn calls_in_flight_and_shared_memory_combine_what_comes() {
    for size in [2, 4] {
        on_shm(size, |comm| {
            let before = fused(&comm);
            by_messages(&comm, Operation::Allreduce, |how| {
                let mut random = Random::new(comm.rank() as u64);
                let counts = [1usize, 900, 7000, 40_000];
                let begun = counts.map(|count| {
                    let mine: Vec<f64> = (0..count).map(|_| real(&mut random)).collect();
                    let call = comm.iallreduce(mine.clone(), vec![0.0; count], Op::Sum);
                    (mine, call.expect("begun"))
                });
                for (mine, call) in begun {
                    let (_, sums) = call.wait().expect("sums");
                    let mut expected = vec![0.0; mine.len()];
                    let plus = osier::operators::function(|a: f64, b: f64| a + b);
                    comm.allreduce(&mine, &mut expected, plus).expect("sums");
                    let bits = |v: &[f64]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert!(bits(&sums) == bits(&expected), "{how}, {}", mine.len());
                    let (mut shared, mut into) = (
                        comm.alloc::<f64>(mine.len()).expect("memory"),
                        comm.alloc::<f64>(mine.len()).expect("memory"),
                    );
                    shared.copy_from_slice(&mine);
                    comm.allreduce(&shared[..], &mut into[..], Op::Sum)
                        .expect("sums");
                    assert!(bits(&into) == bits(&expected), "{how}, {}", mine.len());
                }
            });
            assert!(fused(&comm) > before, "rank {}", comm.rank());
        });
    }
}

/// Ranks that pass different numbers of elements get an error, whichever of them is longer.
#[test]
fn operands_of_other_lengths_are_errors() {
    for (own, other) in [
        (5usize, 6usize),
        (6000, 6001),
        (40_000, 30_000),
        (1, 20_000),
    ] {
        on_all(2, |comm| {
            for algorithm in [Algorithm::RecursiveDoubling, Algorithm::Binomial] {
                comm.use_algorithm(Some((algorithm, 1)));
                for turned in [false, true] {
                    let count = match (comm.rank() == 0) == turned {
                        true => own,
                        false => other,
                    };
                    let mine = vec![1u64; count];
                    let mut sums = vec![0u64; count];
                    let refused = comm.allreduce(&mine, &mut sums, Op::Sum);
                    assert!(refused.is_err(), "{own} and {other} elements");
                    let mut sum = [0u64];
                    comm.allreduce(&[2u64], &mut sum, Op::Sum).expect("goes on");
                    assert_eq!(sum, [4]);
                }
            }
        });
    }
}
