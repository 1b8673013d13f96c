//! Random type trees and the comparison with the oracle.

#![allow(dead_code, reason = "each test binary uses a part")]

use osier_datatype::{
    Basic, BasicKind, DarrayDimension, Distribution, Layout, Order, Pair, Type, Typemap,
};
use proptest::prelude::*;
use std::ops::Range;

/// Leaves: mostly of a few widths and alignments, now and then any.
pub fn basic() -> impl Strategy<Value = Basic> {
    prop_oneof![
        Just(Basic::U8),
        Just(Basic::I16),
        Just(Basic::F32),
        Just(Basic::F64),
        Just(Basic::C32),
        Just(Basic::C64),
        prop::sample::select(Basic::ALL),
    ]
}

/// Types without old types.
fn leaf() -> impl Strategy<Value = Type> {
    let number = prop::sample::select(Basic::ALL).prop_filter("no number", |basic| {
        integral(*basic) || basic.kind() == BasicKind::Float
    });
    let integer = prop::sample::select(Basic::ALL).prop_filter("no integer", |b| integral(*b));
    let precision = (prop::option::of(0u32..34), 0u32..400);
    prop_oneof![
        8 => basic().prop_map(Type::basic),
        1 => prop::sample::select(Pair::ALL).prop_map(Type::pair),
        1 => (number, integer).prop_map(|(v, i)| built(Type::value_index(v, i))),
        1 => (0u32..39).prop_map(|range| built(Type::f90_integer(range))),
        1 => precision.clone().prop_map(|(p, r)| built(Type::f90_real(p, Some(r)))),
        1 => precision.prop_map(|(p, r)| built(Type::f90_complex(p, Some(r)))),
    ]
}

fn integral(basic: Basic) -> bool {
    matches!(basic.kind(), BasicKind::Signed | BasicKind::Unsigned)
}

fn built(ty: Result<Type, osier_datatype::TypeError>) -> Type {
    ty.expect("small types do not overflow")
}

/// Types of depth up to 4, with gaps, negative strides, zero counts and moved
/// bounds; some overlap themselves.
pub fn tree() -> impl Strategy<Value = Type> {
    leaf()
        .prop_recursive(4, 24, 3, |old| {
            prop::strategy::Union::new(constructors(&old).into_iter().map(|(_, types)| types))
        })
        .prop_filter("oracle too large", |ty| ty.size() < 40_000)
}

/// Every constructor around types of this kind.
pub fn constructors(old: &BoxedStrategy<Type>) -> Vec<(&'static str, BoxedStrategy<Type>)> {
    let old = || old.clone();
    let blocks = |at: Range<isize>| prop::collection::vec((0usize..4, at), 0..6);
    let places = |at: Range<isize>| (0usize..4, prop::collection::vec(at, 0..6), old());
    vec![
        (
            "contiguous",
            (0usize..5, old())
                .prop_map(|(n, t)| built(Type::contiguous(n, &t)))
                .boxed(),
        ),
        (
            "vector",
            (0usize..5, 0usize..4, -5isize..6, old())
                .prop_map(|(n, b, s, t)| built(Type::vector(n, b, s, &t)))
                .boxed(),
        ),
        (
            "hvector",
            (0usize..5, 0usize..4, -70isize..71, old())
                .prop_map(|(n, b, s, t)| built(Type::hvector(n, b, s, &t)))
                .boxed(),
        ),
        (
            "indexed",
            (blocks(-9..10), old())
                .prop_map(|(b, t)| built(Type::indexed(&b, &t)))
                .boxed(),
        ),
        (
            "hindexed",
            (blocks(-90..90), old())
                .prop_map(|(b, t)| built(Type::hindexed(&b, &t)))
                .boxed(),
        ),
        (
            "indexed_block",
            places(-9..10)
                .prop_map(|(n, d, t)| built(Type::indexed_block(n, &d, &t)))
                .boxed(),
        ),
        (
            "hindexed_block",
            places(-90..90)
                .prop_map(|(n, d, t)| built(Type::hindexed_block(n, &d, &t)))
                .boxed(),
        ),
        (
            "subarray",
            (subarray(), order(), old())
                .prop_map(|(dims, order, t)| {
                    let column =
                        |i: usize| dims.iter().map(|d| [d.0, d.1, d.2][i]).collect::<Vec<_>>();
                    built(Type::subarray(
                        &column(0),
                        &column(1),
                        &column(2),
                        order,
                        &t,
                    ))
                })
                .boxed(),
        ),
        (
            "darray",
            (darray(), any::<prop::sample::Index>(), order(), old())
                .prop_map(|(dims, rank, order, t)| {
                    let ranks = dims.iter().map(|dim| dim.processes).product();
                    built(Type::darray(ranks, rank.index(ranks), &dims, order, &t))
                })
                .boxed(),
        ),
        (
            "struct",
            prop::collection::vec((0usize..3, -60isize..60, old()), 0..4)
                .prop_map(|fields| built(Type::structure(&fields)))
                .boxed(),
        ),
        (
            "resized",
            (-20isize..20, -40isize..80, old())
                .prop_map(|(lb, e, t)| built(Type::resized(lb, e, &t)))
                .boxed(),
        ),
        ("dup", old().prop_map(|t| built(t.dup())).boxed()),
    ]
}

pub fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::C), Just(Order::Fortran)]
}

/// Dimensions of arrays that are dealt out in any way.
pub fn darray() -> impl Strategy<Value = Vec<DarrayDimension>> {
    let dimension = (1usize..8, 0usize..3, prop::option::of(1usize..4), 1usize..4);
    let dimension = dimension.prop_map(|(size, distribution, argument, processes)| {
        let distribution = [
            Distribution::None,
            Distribution::Block,
            Distribution::Cyclic,
        ][distribution];
        let whole = distribution == Distribution::None;
        let processes = if whole { 1 } else { processes };
        // Blocks have to hold the array.
        let least = match distribution {
            Distribution::Block => size.div_ceil(processes),
            _ => 1,
        };
        DarrayDimension {
            size,
            distribution,
            argument: argument.map(|block| block.max(least)),
            processes,
        }
    });
    prop::collection::vec(dimension, 1..4)
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
        let basic = basic.representation();
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
