//! Random type trees and the comparison with the oracle.

#![allow(dead_code, reason = "each test binary uses a part")]

use osier_datatype::{Basic, Layout, Order, Type, Typemap};
use proptest::prelude::*;
use std::ops::Range;

/// Leaves of a few widths and alignments.
pub fn basic() -> impl Strategy<Value = Basic> {
    prop_oneof![
        Just(Basic::U8),
        Just(Basic::I16),
        Just(Basic::F32),
        Just(Basic::F64),
        Just(Basic::C32),
        Just(Basic::C64),
    ]
}

/// Types of depth up to 4, with gaps, negative strides, zero counts and moved
/// bounds; some overlap themselves.
pub fn tree() -> impl Strategy<Value = Type> {
    let leaf = basic().prop_map(Type::basic);
    leaf.prop_recursive(4, 24, 3, |old| {
        let blocks = |at: Range<isize>| prop::collection::vec((0usize..4, at), 0..6);
        prop_oneof![
            (0usize..5, old.clone()).prop_map(|(n, t)| Type::contiguous(n, &t)),
            (0usize..5, 0usize..4, -5isize..6, old.clone())
                .prop_map(|(n, b, s, t)| Type::vector(n, b, s, &t)),
            (0usize..5, 0usize..4, -70isize..71, old.clone())
                .prop_map(|(n, b, s, t)| Type::hvector(n, b, s, &t)),
            (blocks(-9..10), old.clone()).prop_map(|(b, t)| Type::indexed(&b, &t)),
            (blocks(-90..90), old.clone()).prop_map(|(b, t)| Type::hindexed(&b, &t)),
            (
                0usize..4,
                prop::collection::vec(-9isize..10, 0..6),
                old.clone()
            )
                .prop_map(|(n, d, t)| Type::indexed_block(n, &d, &t)),
            (
                0usize..4,
                prop::collection::vec(-90isize..90, 0..6),
                old.clone()
            )
                .prop_map(|(n, d, t)| Type::hindexed_block(n, &d, &t)),
            (subarray(), any::<bool>(), old.clone()).prop_map(|(dims, c, t)| {
                let order = if c { Order::C } else { Order::Fortran };
                let column = |i: usize| dims.iter().map(|d| [d.0, d.1, d.2][i]).collect::<Vec<_>>();
                Type::subarray(&column(0), &column(1), &column(2), order, &t)
            }),
            prop::collection::vec((0usize..3, -60isize..60, old.clone()), 0..4)
                .prop_map(|fields| Type::structure(&fields)),
            (-20isize..20, -40isize..80, old).prop_map(|(lb, e, t)| Type::resized(lb, e, &t)),
        ]
        .prop_map(|ty| ty.expect("small types do not overflow"))
    })
    .prop_filter("oracle too large", |ty| ty.size() < 40_000)
}

fn subarray() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    let dimension = (1usize..4, 0usize..3, 0usize..3)
        .prop_map(|(subsize, before, after)| (before + subsize + after, subsize, before));
    prop::collection::vec(dimension, 1..4)
}

/// Checks all that a layout says and does against the oracle.
pub fn agrees(ty: &Type, count: usize, cuts: &[usize]) {
    let map = ty.typemap();
    facts(ty, &map);
    let layout = ty.commit().unwrap();
    layout_facts(&layout, &map, count);
    let bytes = map.bytes(count);
    let (low, high) = layout.span(count);
    let origin = (-low.min(0)) as usize + 3;
    let memory: Vec<u8> = (0..origin + high.max(0) as usize + 5)
        .map(|i| (i * 7 + i / 251 + 1) as u8)
        .collect();
    let at = |byte: isize| (origin as isize + byte) as usize;
    let expected: Vec<u8> = bytes.iter().map(|&byte| memory[at(byte)]).collect();

    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();

    let mut packed = vec![0xEE; bytes.len()];
    let mut start = 0;
    for &end in &ends {
        layout
            .pack(&memory, origin, count, start..end, &mut packed[start..end])
            .unwrap();
        start = end;
    }
    assert!(
        packed == expected,
        "pack of {ty:?} x {count} cut at {ends:?}"
    );

    let mut poisoned: Vec<u8> = vec![0xA5; memory.len()];
    let mut wanted = poisoned.clone();
    for (&byte, &value) in bytes.iter().zip(&expected) {
        wanted[at(byte)] = value;
    }
    let mut start = 0;
    for &end in &ends {
        layout
            .unpack(
                &mut poisoned,
                origin,
                count,
                start..end,
                &packed[start..end],
            )
            .unwrap();
        start = end;
    }
    // Where a layout overlaps itself all copies of a byte hold one value.
    assert!(
        poisoned == wanted,
        "unpack of {ty:?} x {count} cut at {ends:?}"
    );
}

fn facts(ty: &Type, map: &Typemap) {
    assert_eq!(ty.size(), map.size(), "size of {ty:?}");
    assert_eq!(ty.lb(), map.lb(), "lb of {ty:?}");
    assert_eq!(ty.ub(), map.ub(), "ub of {ty:?}");
    assert_eq!(ty.extent(), map.extent(), "extent of {ty:?}");
    assert_eq!(ty.true_lb(), map.true_lb(), "true lb of {ty:?}");
    assert_eq!(ty.true_extent(), map.true_extent(), "true extent of {ty:?}");
    let mut runs: Vec<(Basic, u64)> = Vec::new();
    for (basic, _) in map.iter() {
        match runs.last_mut() {
            Some((last, n)) if *last == basic => *n += 1,
            _ => runs.push((basic, 1)),
        }
    }
    assert!(
        ty.signature().runs().eq(runs.iter().copied()),
        "signature of {ty:?}"
    );
    let flat: Vec<_> = runs
        .iter()
        .map(|&(basic, n)| (n as usize, 0, Type::basic(basic)))
        .collect();
    let flat = Type::structure(&flat).unwrap();
    assert_eq!(ty.signature(), flat.signature(), "signature hash of {ty:?}");
}

fn layout_facts(layout: &Layout, map: &Typemap, count: usize) {
    let bytes = map.bytes(count);
    let blocks = map.blocks(count);
    assert_eq!(layout.packed_bytes(count), Some(bytes.len()));
    assert_eq!(
        layout.blocks(count).collect::<Vec<_>>(),
        blocks,
        "{layout:?}"
    );
    assert_eq!(layout.block_count(), map.blocks(1).len(), "{layout:?}");
    let contiguous = match blocks[..] {
        [] => Some(0),
        [(at, _)] => Some(at),
        _ => None,
    };
    assert_eq!(layout.contiguous_at(count), contiguous, "{layout:?}");
    let span = (
        bytes.iter().min().copied().unwrap_or(0),
        bytes.iter().max().map_or(0, |b| b + 1),
    );
    assert_eq!(layout.span(count), span, "{layout:?}");
    let mut sorted = bytes.clone();
    sorted.sort_unstable();
    let twice = sorted.windows(2).any(|pair| pair[0] == pair[1]);
    assert_eq!(layout.self_overlaps(count), twice, "{layout:?} x {count}");
    let g = layout.granularity() as isize;
    for (at, length) in blocks {
        assert!(at % g == 0 && length as isize % g == 0, "{layout:?}");
    }
}
