//! Equal layouts, built in different ways, meet in one canonical form.

use osier_datatype::{Basic, Class, Layout, Level, Order, Type};

fn f64() -> Type {
    Type::basic(Basic::F64)
}

fn meet(types: &[Type]) -> Layout {
    let first = types[0].commit().unwrap();
    for ty in &types[1..] {
        let other = ty.commit().unwrap();
        assert!(first.same_form(&other), "{first:?}\n{other:?}\n{ty:?}");
        assert!(first.same_bytes(&other));
    }
    first
}

#[test]
fn dense_layouts() {
    let plain = Type::contiguous(24, &f64()).unwrap();
    let bytes = Type::contiguous(192, &Type::basic(Basic::Byte)).unwrap();
    let nested = Type::contiguous(4, &Type::contiguous(6, &f64()).unwrap()).unwrap();
    let vector = Type::vector(4, 6, 6, &f64()).unwrap();
    let indexed = Type::indexed(&[(5, 0), (0, 99), (7, 5), (12, 12)], &f64()).unwrap();
    let whole = Type::subarray(&[4, 6], &[4, 6], &[0, 0], Order::C, &f64()).unwrap();
    let fields = Type::structure(&[(12, 0, f64()), (12, 96, f64())]).unwrap();
    let layout = meet(&[plain, bytes, nested, vector, indexed, whole, fields]);
    assert_eq!(layout.class(), Class::Contiguous);
}

#[test]
fn one_stride() {
    let n = 1000;
    let vector = Type::vector(n, 1, 2, &f64()).unwrap();
    let hvector = Type::hvector(n, 1, 16, &f64()).unwrap();
    let wide = Type::hvector(n, 8, 16, &Type::basic(Basic::Byte)).unwrap();
    let displacements: Vec<isize> = (0..n as isize).map(|i| 2 * i).collect();
    let listed = Type::indexed_block(1, &displacements, &f64()).unwrap();
    let resized = Type::contiguous(n, &Type::resized(0, 16, &f64()).unwrap()).unwrap();
    let column = Type::subarray(&[n, 2], &[n, 1], &[0, 0], Order::C, &f64()).unwrap();
    let fortran = Type::subarray(&[2, n], &[1, n], &[0, 0], Order::Fortran, &f64()).unwrap();
    let fields: Vec<_> = (0..n as isize).map(|i| (1, 16 * i, f64())).collect();
    let fields = Type::structure(&fields).unwrap();
    let halves: Vec<_> = (0..2 * n as isize)
        .map(|i| 16 * (i / 2) + 4 * (i % 2))
        .collect();
    let halves = Type::hindexed_block(1, &halves, &Type::basic(Basic::F32)).unwrap();
    let nested = Type::hvector(10, 1, 1600, &Type::vector(100, 1, 2, &f64()).unwrap()).unwrap();
    let layout = meet(&[
        vector, hvector, wide, listed, resized, column, fortran, fields, halves, nested,
    ]);
    assert_eq!(
        layout.class(),
        Class::Strided {
            levels: &[Level {
                count: n,
                stride: 16
            }],
            block_bytes: 8
        }
    );
    assert_eq!(layout.block_count(), n);
}

#[test]
fn faces_of_a_box() {
    let sizes = [8, 9, 10];
    let subarray = Type::subarray(&sizes, &[6, 7, 1], &[1, 1, 3], Order::C, &f64()).unwrap();
    let mut at = Vec::new();
    for i in 1..7 {
        for j in 1..8 {
            at.push((i * 9 + j) * 10 + 3);
        }
    }
    let listed = Type::indexed_block(1, &at, &f64()).unwrap();
    let blocks: Vec<_> = at.iter().map(|&at| (1, at)).collect();
    let indexed = Type::indexed(&blocks, &f64()).unwrap();
    let line = Type::vector(7, 1, 10, &f64()).unwrap();
    let plane = Type::hvector(6, 1, 720, &line).unwrap();
    let moved = Type::structure(&[(1, at[0] * 8, plane)]).unwrap();
    let layout = meet(&[subarray, listed, indexed, moved]);
    assert!(matches!(
        layout.class(),
        Class::Strided {
            levels: [_, _],
            block_bytes: 8
        }
    ));

    let whole_rows = Type::subarray(&sizes, &[6, 1, 10], &[1, 2, 0], Order::C, &f64()).unwrap();
    let vector = Type::hvector(6, 10, 720, &f64()).unwrap();
    let at = (9 + 2) * 10 * 8;
    meet(&[whole_rows, Type::hindexed(&[(1, at)], &vector).unwrap()]);
}

#[test]
fn three_levels() {
    let line = Type::vector(5, 2, 3, &f64()).unwrap();
    let plane = Type::hvector(4, 1, 200, &line).unwrap();
    let cube = Type::hvector(3, 1, 1000, &plane).unwrap();
    let mut at = Vec::new();
    for k in 0..3 {
        for j in 0..4 {
            for i in 0..5 {
                at.push(k * 1000 + j * 200 + i * 24);
            }
        }
    }
    let listed = Type::hindexed_block(2, &at, &f64()).unwrap();
    let layout = meet(&[cube, listed]);
    assert!(matches!(
        layout.class(),
        Class::Strided {
            levels: [_, _, _],
            ..
        }
    ));
    // A negative stride runs backwards and stays so.
    at.reverse();
    let reversed = Type::hindexed_block(2, &at, &f64())
        .unwrap()
        .commit()
        .unwrap();
    assert!(!reversed.same_bytes(&layout));
    assert_eq!(reversed.class_depth(), 3);
}

trait Depth {
    fn class_depth(&self) -> usize;
}

impl Depth for Layout {
    fn class_depth(&self) -> usize {
        match self.class() {
            Class::Strided { levels, .. } | Class::Indexed { levels, .. } => levels.len(),
            _ => 0,
        }
    }
}

#[test]
fn repeated_lists() {
    let record = Type::structure(&[
        (1, 0, Type::basic(Basic::I32)),
        (1, 8, f64()),
        (3, 20, Type::basic(Basic::U8)),
    ])
    .unwrap();
    let record = Type::resized(0, 24, &record).unwrap();
    let array = Type::contiguous(50, &record).unwrap();
    let flat: Vec<_> = (0..50isize)
        .flat_map(|i| [(4, 24 * i), (8, 24 * i + 8), (3, 24 * i + 20)])
        .collect();
    let flat = Type::hindexed(&flat, &Type::basic(Basic::Byte)).unwrap();
    let nested = Type::hvector(5, 10, 240, &record).unwrap();
    let layout = meet(&[array, flat, nested]);
    assert!(matches!(
        layout.class(),
        Class::Indexed {
            levels: [Level {
                count: 50,
                stride: 24
            }],
            blocks: 3
        }
    ));
}

/// Touching iterations keep their nest; equality still holds by blocks.
#[test]
fn touching_iterations() {
    let vector = Type::vector(2, 1, 2, &f64()).unwrap();
    let many = Type::contiguous(100, &vector).unwrap();
    let mut blocks = vec![(1, 0)];
    blocks.extend((0..99).map(|i| (2, 2 + 3 * i)));
    blocks.push((1, 299));
    let listed = Type::indexed(&blocks, &f64()).unwrap();
    assert_eq!(many.signature(), listed.signature());
    let (many, listed) = (many.commit().unwrap(), listed.commit().unwrap());
    assert!(many.same_bytes(&listed));
    assert_eq!(many, listed);
    assert_eq!(many.block_count(), 101);
}

#[test]
fn equality_looks_at_bounds_and_signature() {
    let a = f64().commit().unwrap();
    let b = Type::basic(Basic::I64).commit().unwrap();
    assert!(a.same_form(&b));
    assert_ne!(a, b);
    let c = Type::resized(0, 16, &f64()).unwrap().commit().unwrap();
    assert!(a.same_form(&c));
    assert_ne!(a, c);
    assert_eq!(a, Type::contiguous(1, &f64()).unwrap().commit().unwrap());
}

/// Millions of blocks stay a few numbers.
#[test]
fn large_regular_types_stay_small() {
    let line = Type::vector(10_000, 1, 2, &f64()).unwrap();
    let line = Type::resized(0, 1 << 20, &line).unwrap();
    let plane = Type::contiguous(10_000, &line).unwrap();
    let layout = Type::hvector(10_000, 1, 1 << 40, &plane)
        .unwrap()
        .commit()
        .unwrap();
    assert_eq!(layout.block_count(), 1_000_000_000_000);
    assert_eq!(layout.size(), 8_000_000_000_000);
    assert!(!layout.self_overlaps(1));
    assert!(layout.overlaps(1, &layout, 1, 7));
    assert!(!layout.overlaps(1, &layout, 1, 8));
    assert!(layout.overlaps(1, &layout, 1, (1 << 40) + 16));
    assert!(!layout.overlaps(1, &layout, 1, (1 << 40) + 8));
}

/// A million blocks written out as a list, as an array's planes in a struct, and
/// as a list of lists come back as the loops they are.
#[test]
fn a_million_listed_blocks_become_loops() {
    let (planes, rows, columns) = (50isize, 100isize, 200isize);
    let place = |k: isize, j: isize, i: isize| k * 100_000 + j * 700 + i * 3;
    let mut at = Vec::new();
    for k in 0..planes {
        for j in 0..rows {
            at.extend((0..columns).map(|i| place(k, j, i)));
        }
    }
    let listed = Type::indexed_block(1, &at, &f64()).unwrap();
    let line = Type::vector(columns as usize, 1, 3, &f64()).unwrap();
    let plane = Type::hvector(rows as usize, 1, 5600, &line).unwrap();
    let nested = Type::hvector(planes as usize, 1, 800_000, &plane).unwrap();
    let fields: Vec<_> = (0..planes)
        .map(|k| (1, k * 800_000, plane.clone()))
        .collect();
    let fields = Type::structure(&fields).unwrap();
    let starts: Vec<isize> = (0..planes).map(|k| k * 800_000).collect();
    let list = Type::hindexed_block(1, &starts, &plane).unwrap();
    let layout = meet(&[listed, nested, fields, list]);
    assert!(matches!(
        layout.class(),
        Class::Strided {
            levels: [_, _, _],
            block_bytes: 8
        }
    ));
    assert_eq!(layout.block_count(), 1_000_000);
}

/// Like nests at irregular places: by a list, by fields, block by block.
#[test]
fn nests_at_irregular_places() {
    let nest = Type::vector(4, 1, 2, &f64()).unwrap();
    let starts: Vec<isize> = (0..60isize).map(|i| i * 100 + i * i).collect();
    let list = Type::hindexed_block(1, &starts, &nest).unwrap();
    let fields: Vec<_> = starts.iter().map(|&at| (1, at, nest.clone())).collect();
    let fields = Type::structure(&fields).unwrap();
    let blocks: Vec<isize> = starts
        .iter()
        .flat_map(|&at| (0..4).map(move |i| at + 16 * i))
        .collect();
    let blocks = Type::hindexed_block(8, &blocks, &Type::basic(Basic::Byte)).unwrap();
    let layout = meet(&[list, fields, blocks]);
    assert!(matches!(layout.class(), Class::Indexed { blocks: 240, .. }));
}

/// Empty blocks and lengths beyond 32 bits change nothing about the rules.
#[test]
fn empty_and_huge_blocks() {
    let byte = Type::basic(Basic::Byte);
    let holes = Type::hindexed(
        &[(0, -7), (3, 10), (0, 99), (4, 13), (0, 0), (2, 40)],
        &byte,
    );
    let plain = Type::hindexed(&[(7, 10), (2, 40)], &byte);
    meet(&[holes.unwrap(), plain.unwrap()]);
    let far = 5usize << 32;
    let wide = Type::hindexed(&[(far, 0), (1, far as isize), (8, 7 << 40)], &byte).unwrap();
    let same = Type::hindexed(&[(far + 1, 0), (8, 7 << 40)], &byte).unwrap();
    let layout = meet(&[wide, same]);
    assert_eq!(
        layout.blocks(1).collect::<Vec<_>>(),
        [(0, far + 1), (7 << 40, 8)]
    );
    let early = Type::hindexed(&[(1, 1 << 40), (1, 0), (2, 5)], &byte).unwrap();
    let early = early.commit().unwrap();
    assert_eq!(
        early.blocks(1).collect::<Vec<_>>(),
        [(1 << 40, 1), (0, 1), (5, 2)]
    );
}
