//! Pack and unpack beside a hand-written loop and memcpy; commit.
//!
//! Payload of 1 MiB unless the name says otherwise. `hand` is the loop that a
//! user would write, `memcpy` a copy of as many contiguous bytes.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use osier_datatype::{Basic, Layout, Order, Type};
use std::hint::black_box;
use std::time::Duration;

const PAYLOAD: usize = 1 << 20;

fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}

/// Blocks of `low..=high` elements with gaps of 1 to 4, together `elements`.
fn blocks(low: usize, high: usize, elements: usize) -> Vec<(usize, isize)> {
    let mut state = 7;
    let (mut at, mut sum) = (0, 0);
    let mut list = Vec::new();
    while sum < elements {
        let n = low + next(&mut state) as usize % (high - low + 1);
        let n = n.min(elements - sum);
        list.push((n, at));
        at += n as isize + 1 + (next(&mut state) % 4) as isize;
        sum += n;
    }
    list
}

/// What a user would write for this layout, if it is one of the usual ones.
type Hand = Box<dyn Fn(&[f64], &mut [f64])>;

fn shapes() -> Vec<(&'static str, Layout, usize, Option<Hand>)> {
    let f64 = Type::basic(Basic::F64);
    let f32 = Type::basic(Basic::F32);
    let elements = PAYLOAD / 8;
    let commit = |ty: Result<Type, _>| Result::and_then(ty, |ty: Type| ty.commit()).unwrap();
    let strided = |block: usize, stride: usize| -> (Layout, Hand) {
        let count = elements / block;
        let layout = commit(Type::vector(count, block, stride as isize, &f64));
        let hand: Hand = Box::new(move |memory, packed| {
            for (i, out) in packed.chunks_exact_mut(block).enumerate() {
                out.copy_from_slice(&memory[i * stride..i * stride + block]);
            }
        });
        (layout, hand)
    };
    let listed = |low: usize, high: usize| -> (Layout, Hand) {
        let list = blocks(low, high, elements);
        let layout = commit(Type::indexed(&list, &f64));
        let hand: Hand = Box::new(move |memory, packed| {
            let mut at = 0;
            for &(n, from) in &list {
                let from = from as usize;
                packed[at..at + n].copy_from_slice(&memory[from..from + n]);
                at += n;
            }
        });
        (layout, hand)
    };
    let one: Hand = Box::new(|memory, packed| {
        for (i, out) in packed.iter_mut().enumerate() {
            *out = memory[2 * i];
        }
    });
    let gather = {
        let list: Vec<usize> = blocks(1, 1, elements)
            .iter()
            .map(|b| b.1 as usize)
            .collect();
        let at: Vec<isize> = list.iter().map(|&at| at as isize).collect();
        let layout = commit(Type::indexed_block(1, &at, &f64));
        let hand: Hand = Box::new(move |memory, packed| {
            for (out, &at) in packed.iter_mut().zip(&list) {
                *out = memory[at];
            }
        });
        (layout, hand)
    };
    let face = |n: usize, sub: [usize; 3]| {
        commit(Type::subarray(&[n; 3], &sub, &[1, 1, 1], Order::C, &f64))
    };
    let record = Type::structure(&[
        (1, 0, Type::basic(Basic::I32)),
        (1, 8, f64.clone()),
        (3, 20, Type::basic(Basic::U8)),
    ])
    .and_then(|ty| Type::resized(0, 24, &ty));
    let (two_four, hand_two_four) = strided(2, 4);
    let (four_eight, hand_four_eight) = strided(4, 8);
    let (eight_wide, hand_eight_wide) = strided(1, 64);
    let (three_five, hand_three_five) = strided(3, 5);
    let (row, hand_row) = strided(64, 100);
    let (mixed, hand_mixed) = listed(1, 4);
    let (pairs, hand_pairs) = listed(2, 2);
    let (long, hand_long) = listed(1, 40);
    vec![
        ("8B_stride16", strided(1, 2).0, 1, Some(one)),
        ("8B_stride512", eight_wide, 1, Some(hand_eight_wide)),
        ("16B_stride32", two_four, 1, Some(hand_two_four)),
        ("24B_stride40", three_five, 1, Some(hand_three_five)),
        ("32B_stride64", four_eight, 1, Some(hand_four_eight)),
        ("512B_stride800", row, 1, Some(hand_row)),
        (
            "4B_stride8",
            commit(Type::vector(PAYLOAD / 4, 1, 2, &f32)),
            1,
            None,
        ),
        (
            "4B_stride12",
            commit(Type::vector(PAYLOAD / 4, 1, 3, &f32)),
            1,
            None,
        ),
        (
            "1B_stride2",
            commit(Type::vector(PAYLOAD, 1, 2, &Type::basic(Basic::U8))),
            1,
            None,
        ),
        (
            "92B_stride128",
            commit(Type::vector(PAYLOAD / 92, 23, 32, &f32)),
            1,
            None,
        ),
        ("indexed_1to4_f64", mixed, 1, Some(hand_mixed)),
        ("indexed_1_f64", gather.0, 1, Some(gather.1)),
        ("indexed_2_f64", pairs, 1, Some(hand_pairs)),
        ("indexed_1to40_f64", long, 1, Some(hand_long)),
        ("face_k_128KiB", face(130, [128, 128, 1]), 1, None),
        ("face_j_128KiB", face(130, [128, 1, 128]), 1, None),
        ("box_3_deep", face(60, [50, 50, 50]), 1, None),
        ("struct_15of24", commit(record), PAYLOAD / 15, None),
    ]
}

fn pack(c: &mut Criterion) {
    let mut group = c.benchmark_group("pack");
    for (name, layout, count, hand) in shapes() {
        let bytes = layout.packed_bytes(count).unwrap();
        let (_, high) = layout.span(count);
        let memory: Vec<f64> = (0..high as usize / 8 + 1).map(|i| i as f64).collect();
        let mut packed = vec![0f64; bytes / 8 + 1];
        let origin = memory.as_ptr().cast::<u8>();
        let dst = packed.as_mut_ptr().cast::<u8>();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("osier", name), |b| {
            b.iter(|| {
                // SAFETY: `memory` holds the span, `packed` the payload.
                unsafe { layout.pack_raw(black_box(origin), count, 0..bytes, black_box(dst)) }
            });
        });
        if let Some(hand) = hand {
            group.bench_function(BenchmarkId::new("hand", name), |b| {
                b.iter(|| hand(black_box(&memory), black_box(&mut packed[..bytes / 8])));
            });
        }
    }
    let memory = vec![1u8; PAYLOAD];
    let mut packed = vec![0u8; PAYLOAD];
    group.throughput(Throughput::Bytes(PAYLOAD as u64));
    group.bench_function(BenchmarkId::new("memcpy", PAYLOAD), |b| {
        b.iter(|| black_box(&mut packed).copy_from_slice(black_box(&memory)));
    });
    group.finish();
}

fn unpack(c: &mut Criterion) {
    let mut group = c.benchmark_group("unpack");
    for (name, layout, count, _) in shapes() {
        let bytes = layout.packed_bytes(count).unwrap();
        let (_, high) = layout.span(count);
        let mut memory = vec![0f64; high as usize / 8 + 1];
        let packed = vec![0u8; bytes];
        let origin = memory.as_mut_ptr().cast::<u8>();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("osier", name), |b| {
            b.iter(|| {
                let src = black_box(packed.as_ptr());
                // SAFETY: `memory` holds the span, `packed` the payload.
                unsafe { layout.unpack_raw(black_box(origin), count, 0..bytes, src) }
            });
        });
    }
    group.finish();
}

fn commit(c: &mut Criterion) {
    let mut group = c.benchmark_group("commit");
    let f64 = Type::basic(Basic::F64);
    group.bench_function("vector, build and commit", |b| {
        b.iter(|| {
            Type::vector(black_box(100_000), 1, 2, &f64)
                .unwrap()
                .commit()
        });
    });
    group.bench_function("subarray 3-D, build and commit", |b| {
        b.iter(|| {
            let sizes = black_box([130, 130, 130]);
            Type::subarray(&sizes, &[128, 128, 1], &[1, 1, 1], Order::C, &f64)
                .unwrap()
                .commit()
        });
    });
    for (name, n) in [("10^3", 2_500), ("10^5", 250_000), ("10^6", 2_500_000)] {
        let list = blocks(1, 4, n);
        let ty = Type::indexed(&list, &f64).unwrap();
        group.throughput(Throughput::Elements(list.len() as u64));
        group.bench_function(BenchmarkId::new("indexed, about", name), |b| {
            b.iter(|| ty.commit())
        });
        group.bench_function(BenchmarkId::new("indexed with build, about", name), |b| {
            b.iter(|| Type::indexed(&list, &f64).unwrap().commit());
        });
        let at: Vec<isize> = (0..n as isize).map(|i| 3 * i + i / 1000).collect();
        let ty = Type::indexed_block(1, &at, &f64).unwrap();
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(BenchmarkId::new("strides in disguise", n), |b| {
            b.iter(|| ty.commit());
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(700));
    targets = pack, unpack, commit
}
criterion_main!(benches);
