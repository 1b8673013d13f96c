//! Random type trees against the naive typemap.

mod support;

use osier_datatype::Type;
use proptest::prelude::*;
use proptest::test_runner::{Config as ProptestConfig, TestRunner};
use std::collections::HashSet;
use support::{agrees, constructors, tree};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn trees_agree_with_the_typemap(
        ty in tree(),
        count in 0usize..4,
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        agrees(&ty, count, &cuts);
    }

    #[test]
    fn overlaps_are_exact(
        a in tree(),
        b in tree(),
        counts in (0usize..4, 0usize..4),
        offset in -300isize..300,
    ) {
        let touched = |ty: &Type, count, shift| -> HashSet<isize> {
            ty.typemap().bytes(count).into_iter().map(|b| b + shift).collect()
        };
        let expected = !touched(&a, counts.0, 0).is_disjoint(&touched(&b, counts.1, offset));
        let (a, b) = (a.commit().unwrap(), b.commit().unwrap());
        prop_assert_eq!(a.overlaps(counts.0, &b, counts.1, offset), expected);
        prop_assert_eq!(b.overlaps(counts.1, &a, counts.0, -offset), expected);
    }

    /// One signature, many layouts: what one packs, the other unpacks.
    #[test]
    fn equal_payload_travels_between_layouts(a in tree(), cut in any::<usize>()) {
        let flat: Vec<_> = {
            let mut at = 0;
            a.signature().exact_runs().map(|(basic, n)| {
                let field = (n as usize, at, Type::basic(basic));
                at += (n as usize * basic.size()) as isize;
                field
            }).collect()
        };
        let flat = Type::structure(&flat).unwrap();
        prop_assert_eq!(flat.signature(), a.signature());
        let (layout, dense) = (a.commit().unwrap(), flat.commit().unwrap());
        prop_assert_eq!(dense.contiguous_at(1), Some(0));
        let (low, high) = layout.span(1);
        let origin = (-low).max(0) as usize;
        let memory: Vec<u8> = (0..origin + high.max(0) as usize).map(|i| i as u8 ^ 0x5A).collect();
        let n = layout.size();
        let mut packed = vec![0; n];
        layout.pack(&memory, origin, 1, 0..n, &mut packed).unwrap();
        let mut array = vec![0; n];
        let cut = cut % (n + 1);
        dense.unpack(&mut array, 0, 1, 0..cut, &packed[..cut]).unwrap();
        dense.unpack(&mut array, 0, 1, cut..n, &packed[cut..]).unwrap();
        prop_assert_eq!(array, packed);
    }
}

/// Every constructor on its own, around random types.
#[test]
fn every_constructor_agrees_with_the_typemap() {
    for (name, types) in constructors(&tree().boxed()) {
        let config = ProptestConfig {
            cases: 200,
            ..ProptestConfig::default()
        };
        let types = types.prop_filter("oracle too large", |ty| ty.size() < 40_000);
        TestRunner::new(config)
            .run(&(types, 0usize..3, any::<usize>()), |(ty, count, cut)| {
                agrees(&ty, count, &[cut]);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Sizes at which kernels, tiles and samples change over.
#[test]
fn widths_and_counts_of_kernels() {
    use osier_datatype::Basic;
    let byte = Type::basic(Basic::Byte);
    for width in (1..=34).chain([40, 47, 48, 63, 64, 65, 92, 96, 127, 128, 129, 200, 256, 300]) {
        for gap in [1, width] {
            for count in [2, 7, 8, 33, 100] {
                let stride = (width + gap) as isize;
                let vector = Type::hvector(count, width, stride, &byte).unwrap();
                agrees(&vector, 1, &[5, width * 3 + 1]);
                let nest = Type::hvector(3, 1, stride * count as isize + 7, &vector).unwrap();
                agrees(&nest, 1, &[width * count + 2]);
            }
        }
        let stride = 2 * width as isize;
        let negative = Type::hvector(9, width, -stride, &byte).unwrap();
        agrees(&negative, 2, &[1, 2, 3]);
        let short = Type::hvector(3, width, stride, &byte).unwrap();
        let long = Type::hvector(70, 1, stride * 5, &short).unwrap();
        agrees(&long, 2, &[width * 100 + 1]);
    }
}

/// Lists of equal, small and mixed blocks, with and without levels.
#[test]
fn lists_of_all_lengths() {
    use osier_datatype::Basic;
    let mut state = 1u64;
    let mut next = move |n: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    for (unit, longest, blocks) in [
        (1, 1, 100),
        (1, 8, 300),
        (1, 40, 200),
        (1, 64, 100),
        (1, 65, 100),
        (1, 300, 60),
        (2, 5, 100),
        (4, 1, 100),
        (4, 8, 99),
        (8, 1, 500),
        (8, 4, 500),
        (8, 4, 3),
        (8, 8, 257),
        (8, 9, 64),
        (16, 1, 33),
        (16, 4, 40),
        (24, 1, 50),
        (32, 1, 65),
        (92, 1, 40),
        (12, 3, 77),
    ] {
        let element = Type::contiguous(unit, &Type::basic(Basic::Byte)).unwrap();
        for repetition in 0..4 {
            let mut at = if repetition == 1 { 500 } else { 0 };
            let list: Vec<_> = (0..blocks)
                .map(|_| {
                    let n = 1 + next(longest) as usize;
                    at += 1 + next(5) as isize;
                    let block = (n, at);
                    at += n as isize;
                    block
                })
                .collect();
            let mut list = list;
            if repetition == 2 {
                list.reverse();
            }
            let ty = Type::indexed(&list, &element).unwrap();
            agrees(&ty, 1, &[next(10_000) as usize, next(10_000) as usize]);
            agrees(&ty, 3, &[next(10_000) as usize]);
            let few = Type::indexed(&list[..3], &element).unwrap();
            let gap = few.extent().abs() + 16;
            let many = Type::hvector(40, 1, gap, &few).unwrap();
            agrees(&many, 2, &[next(10_000) as usize, next(10_000) as usize]);
        }
    }
}
