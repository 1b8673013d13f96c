//! Plans against the host pack and the typemap, by interpretation.

use super::arguments::{Argument, Divisor, General, Strided, Tables};
use super::parts::{Sink, feed};
use super::period::PeriodArgument;
use super::transfer::{CopyArgument, PlacedPlan, Transfer};
use super::transpose::Transpose;
use super::{Plan, Shape};
use osier_datatype::{Basic, Layout, Type, TypeError};
use osier_datatype_corpus::random::{self, Random};

#[path = "../../../tests/asked.rs"]
mod asked;

/// Sizes of the C structures, which the compiler of the kernels confirms.
#[test]
fn arguments_are_those_of_the_kernels() {
    assert_eq!(size_of::<Divisor>(), 32);
    assert_eq!(size_of::<Strided>(), 40 + 32 + 4 * 40);
    assert_eq!(
        size_of::<General>(),
        40 + 32 + 40 + 16 + 8 * 56 + 8 + 16 * 56
    );
    assert_eq!(size_of::<Transpose>(), 48 + 32 + 64 + 16);
    assert_eq!(
        size_of::<PeriodArgument>(),
        48 + 32 + 5 * 20 + 12 + 128 * 12
    );
    assert_eq!(size_of::<CopyArgument>(), 2 * (8 + 536 + 8 + 16 * 56) + 24);
}

#[test]
fn divides_as_the_processor_does() {
    let mut random = Random::new(5);
    let edges = [
        1,
        2,
        3,
        5,
        7,
        10,
        641,
        65535,
        65536,
        65537,
        (1 << 31) - 1,
        1 << 31,
    ];
    for round in 0..200_000 {
        let by = match round < 2000 {
            true => edges[round % edges.len()],
            false => 1 + (random.next() >> 33 >> random.below(31)),
        };
        let n = [
            random.next() >> 33,
            (1 << 31) - 1,
            by.min((1 << 31) - 1),
            by - 1,
        ];
        let divisor = Divisor::new(by);
        for n in n.map(|n| n & 0x7fff_ffff) {
            assert_eq!(divisor.quotient(n, false), n / by, "{n} / {by}");
            assert_eq!(divisor.quotient(n, true), n / by, "{n} / {by}");
        }
        let wide = 1 + (random.next() >> 1 >> random.below(63));
        let divisor = Divisor::new(wide);
        for n in [
            random.next() >> 1,
            (1 << 63) - 1,
            wide - 1,
            wide & !(1 << 63),
        ] {
            assert_eq!(divisor.quotient(n, true), n / wide, "{n} / {wide}");
        }
    }
}

/// Packs and unpacks a range by interpretation, at some alignment, and compares
/// with the host.
fn agrees(layout: &Layout, count: usize, random: &mut Random) -> Shape {
    let plan = Plan::new(layout, count).unwrap();
    let tables = Tables::new(&plan);
    let aligned: Vec<u64> = tables
        .bytes
        .chunks(8)
        .map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_ne_bytes(word)
        })
        .collect();
    let (low, high) = layout.span(count);
    let total = layout.pack_size(count).unwrap();
    let cut = [
        random.below(total as u64 + 1) as usize,
        random.below(total as u64 + 1) as usize,
    ];
    let whole = random.below(2) == 0;
    let range = if whole {
        0..total
    } else {
        cut[0].min(cut[1])..cut[0].max(cut[1])
    };
    // Misaligned half of the time.
    let shift = |random: &mut Random| match random.below(2) {
        0 => 0,
        _ => random.below(16) as usize,
    };
    let (a, b) = (shift(random), shift(random));
    let room = (high - low) as usize;
    let before = low.rem_euclid(16) as usize;
    let mut memory = vec![0u128; (room + before + a) / 16 + 2];
    let memory_bytes = memory.len() * 16;
    let start = memory.as_mut_ptr().cast::<u8>();
    for i in 0..memory_bytes {
        // SAFETY: inside of the vector.
        unsafe { start.wrapping_add(i).write(random.next() as u8) };
    }
    // The origin keeps the address of the lowest byte, modulo 16, honest.
    let origin = start.wrapping_add(before + a).wrapping_offset(-low);
    let mut expected = vec![0u8; range.len()];
    // SAFETY: the span lies in the memory.
    unsafe { layout.pack_raw(origin, count, range.clone(), expected.as_mut_ptr()) };
    let mut packed = vec![0xA5A5_A5A5u128; (range.len() + b) / 16 + 2];
    let to = packed.as_mut_ptr().cast::<u8>().wrapping_add(b);
    let at = aligned.as_ptr() as u64;
    let fragment = range.start as u64..range.end as u64;
    let launch = plan.launch((&tables, at), origin as u64, to as u64, fragment);
    let Some(launch) = launch else {
        assert!(range.is_empty());
        return plan.shape();
    };
    let layout_at = (origin as u64).wrapping_add_signed(plan.base);
    // SAFETY: span and range lie in the vectors.
    unsafe { launch.interpret(true, layout_at, to as u64) };
    // SAFETY: inside of the vector.
    let found = unsafe { std::slice::from_raw_parts(to, range.len()) };
    assert!(found == expected, "pack of {plan:?}, {range:?}, {launch:?}");
    if layout.self_overlaps(count) {
        return plan.shape();
    }
    // Unpack other bytes: the host's result is the expected one, gaps included.
    let other: Vec<u8> = (0..range.len()).map(|_| random.next() as u8).collect();
    let mut twin = memory.clone();
    let distance = (origin as usize).wrapping_sub(start as usize);
    let twin_origin = twin.as_mut_ptr().cast::<u8>().wrapping_add(distance);
    // SAFETY: as above.
    unsafe { layout.unpack_raw(twin_origin, count, range.clone(), other.as_ptr()) };
    // SAFETY: inside of the vector.
    unsafe { std::ptr::copy_nonoverlapping(other.as_ptr(), to, other.len()) };
    // SAFETY: as above.
    unsafe { launch.interpret(false, layout_at, to as u64) };
    assert!(memory == twin, "unpack of {plan:?}, {range:?}");
    plan.shape()
}

/// 10^4 random trees; `OSIER_TEST=trees=N` says how many.
#[test]
fn random_trees() {
    let trees = asked::number("trees");
    for seed in 0..trees.unwrap_or(10_000) {
        let mut random = Random::new(seed);
        let ty = random::tree(&mut random, 4096);
        let Ok(layout) = ty.commit() else { continue };
        let count = random.below(4) as usize;
        let told = std::panic::catch_unwind(move || agrees(&layout, count, &mut random));
        assert!(told.is_ok(), "seed {seed}, count {count}: {ty:?}");
    }
}

/// Entries of a plan's list of rows; none, if it has no such list.
fn row_list(plan: &Plan) -> Option<usize> {
    let list = plan.list.as_ref().filter(|list| list.blocks.is_some())?;
    Some(list.offsets.len())
}

/// Ragged rows: pack, unpack, copies to and from, and lists in parts.
#[test]
fn ragged_rows() {
    let trees = asked::number("trees");
    let (mut listed, mut in_parts) = (0, 0);
    let rounds = trees.unwrap_or(1500);
    for seed in 0..rounds {
        let mut random = Random::new(seed);
        let ty = random::ragged(&mut random, 8192);
        let layout = ty.commit().unwrap();
        let count = 1 + random.below(3) as usize;
        let rows = row_list(&Plan::new(&layout, count).unwrap());
        listed += usize::from(rows.is_some());
        let run = std::panic::catch_unwind(move || {
            agrees(&layout, count, &mut random);
            let other = random::same_signature(&mut random, &ty).commit().unwrap();
            let others = [&other, &layout];
            for to in others {
                copy_agrees(&layout, to, 1, &mut random);
                copy_agrees(to, &layout, 1, &mut random);
            }
            let part = 1 + random.below(12) as usize;
            parts_agree(&layout, count, part, &mut random)
        });
        assert!(run.is_ok(), "seed {seed}, count {count}");
        in_parts += usize::from(rows.is_some() && run.unwrap_or(0) > 2);
    }
    assert!(listed as u64 > rounds / 3, "{listed} had a list of rows");
    assert!(in_parts > listed / 4, "{in_parts} had several parts");
}

/// The transposed triangle of a matrix of n rows and columns, as rows at a distance.
fn triangle(n: usize) -> Type {
    let rows = (0..n).map(|row| {
        let blocks = Type::vector(n - row, 1, n as isize, &Type::basic(Basic::F64)).unwrap();
        (1, (row * (n + 1) * 8) as isize, blocks)
    });
    Type::structure(&rows.collect::<Vec<_>>()).unwrap()
}

/// A list of rows has an entry for each, not for each of their blocks.
#[test]
fn triangles_list_their_rows() {
    let layout = triangle(600).commit().unwrap();
    assert_eq!(Plan::entries(&layout, 1).unwrap(), 600);
    let plan = Plan::new(&layout, 1).unwrap();
    assert_eq!((row_list(&plan), plan.granularity), (Some(600), 8));
    let tables = Tables::new(&plan);
    assert!(tables.bytes.len() <= 600 * 10, "{}", tables.bytes.len());
    let nest = plan.nest(8, (&tables, 4096));
    assert_eq!((nest.rows, nest.boxes, nest.box_of[0].block), (1, 0, 1));
    let mut random = Random::new(9);
    agrees(&layout, 1, &mut random);
    parts_agree(&layout, 1, 100, &mut random);
}

/// Rows of gigabytes, far apart, without the memory for them.
#[test]
fn long_rows_have_wide_numbers() {
    let rows = [
        (200_000_000, 0),
        (190_000_000, 8),
        (180_000_000, 1 << 41),
        (5, -4096),
    ];
    let fields = rows.map(|(count, at)| {
        let row = Type::hvector(count, 1, 16, &Type::basic(Basic::F64)).unwrap();
        (1, at, row)
    });
    let layout = Type::structure(&fields).unwrap().commit().unwrap();
    let plan = Plan::new(&layout, 1).unwrap();
    assert_eq!(row_list(&plan), Some(4));
    let tables = Tables::new(&plan);
    let nest = plan.nest(8, (&tables, 4096));
    assert_eq!((nest.list.wide_offsets, nest.list.wide_before), (1, 1));
    let mut random = Random::new(13);
    let mut start = 0;
    for (count, at) in rows {
        let bytes = 8 * count as u64;
        let inside = (0..40).map(|_| random.below(bytes));
        for byte in inside.chain([0, bytes - 1]) {
            let place = at as i64 + (byte / 8 * 16 + byte % 8) as i64;
            assert_eq!(
                plan.offset(&tables, start + byte),
                place,
                "{byte} of {count}"
            );
        }
        start += bytes;
    }
    // A row of 2^31 bytes.
    let long = Type::hvector(1 << 28, 1, 16, &Type::basic(Basic::F64)).unwrap();
    let fields = [(1, 0, fields[0].2.clone()), (1, 8, long)];
    let layout = Type::structure(&fields).unwrap().commit().unwrap();
    assert!(Plan::entries(&layout, 1).unwrap() > 1 << 28);
}

/// What is no list of rows: rows at two distances, of two kinds of blocks, of few or long
/// blocks, and steps beyond 32 bits.
#[test]
fn rows_that_are_listed_by_blocks() {
    let byte = Type::basic(Basic::U8);
    let listed = |rows: &dyn Fn(usize) -> (usize, usize, isize)| {
        let fields = (0..40).map(|row| {
            let (count, width, distance) = rows(row);
            let blocks = Type::hvector(count, width, distance, &byte).unwrap();
            (1, (row * 1_000_003) as isize, blocks)
        });
        let ty = Type::structure(&fields.collect::<Vec<_>>()).unwrap();
        let layout = ty.commit().unwrap();
        row_list(&Plan::new(&layout, 1).unwrap()).is_some()
    };
    assert!(listed(&|row| (20 + row, 3, 100)));
    assert!(!listed(&|row| (20 + row, 3, 100 + (row / 39) as isize)));
    assert!(!listed(&|row| (20 + row, 3 + row / 39, 100)));
    assert!(!listed(&|row| (20 + row, 512, 1000)));
    assert!(listed(&|row| (20 + row, 511, 1000)));
    assert!(!listed(&|row| (20 + row, 3, (1 << 31) + 3)));
    assert!(listed(&|row| (20 + row, 3, (1 << 31) + 2)));
    let grids = |blocks: usize| {
        let row = Type::hvector(blocks, 3, 100, &byte).unwrap();
        let fields = (0..40).map(|grid| {
            let rows = Type::hvector(20 + grid, 1, 1009, &row).unwrap();
            (1, (grid * 1_000_003) as isize, rows)
        });
        let ty = Type::structure(&fields.collect::<Vec<_>>()).unwrap();
        row_list(&Plan::new(&ty.commit().unwrap(), 1).unwrap())
    };
    assert_eq!((grids(3), grids(4)), (None, Some(1580)));
}

/// Bytes of a plan's tables, where words of 8 bytes may lie.
fn aligned(tables: &Tables) -> Vec<u64> {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(word)
    };
    tables.bytes.chunks(8).map(word).collect()
}

/// Memory for instances, filled, and the place of their origin in it.
fn memory(layout: &Layout, count: usize, random: &mut Random) -> (Vec<u128>, isize) {
    let (low, high) = layout.span(count);
    let shift = random.below(2) as isize * random.below(16) as isize;
    let before = low.rem_euclid(16) + shift;
    let room = (high - low + before) as usize / 16 + 2;
    let word = |random: &mut Random| u128::from(random.next()) << 64 | u128::from(random.next());
    let memory = (0..room).map(|_| word(random)).collect();
    (memory, before - low)
}

/// From layout to layout, against the host's pack and unpack.
fn copy_agrees(from: &Layout, to: &Layout, count: usize, random: &mut Random) {
    let plans = [
        Plan::new(from, count).unwrap(),
        Plan::new(to, count).unwrap(),
    ];
    let tables = [Tables::new(&plans[0]), Tables::new(&plans[1])];
    let lists = [aligned(&tables[0]), aligned(&tables[1])];
    let (source, from_at) = memory(from, count, random);
    let (mut target, to_at) = memory(to, count, random);
    let total = from.pack_size(count).unwrap() as u64;
    let cut = [random.below(total + 1), random.below(total + 1)];
    let range = match random.below(2) {
        0 => 0..total,
        _ => cut[0].min(cut[1])..cut[0].max(cut[1]),
    };
    let bytes = range.start as usize..range.end as usize;
    let mut expected = target.clone();
    let mut packed = vec![0u8; bytes.len()];
    let origin = source.as_ptr().cast::<u8>().wrapping_offset(from_at);
    // SAFETY: the span lies in the memory.
    unsafe { from.pack_raw(origin, count, bytes.clone(), packed.as_mut_ptr()) };
    let twin = expected.as_mut_ptr().cast::<u8>().wrapping_offset(to_at);
    // SAFETY: as above.
    unsafe { to.unpack_raw(twin, count, bytes, packed.as_ptr()) };
    let place = |side: usize, origin: u64| PlacedPlan {
        plan: &plans[side],
        tables: &tables[side],
        tables_at: lists[side].as_ptr() as u64,
        origin,
    };
    let to_origin = target.as_mut_ptr().cast::<u8>().wrapping_offset(to_at);
    let places = (place(0, origin as u64), place(1, to_origin as u64));
    if let Some(transfer) = Transfer::new(places.0, places.1, range.clone()) {
        // SAFETY: both spans lie in their vectors.
        unsafe { transfer.interpret() };
    }
    assert!(target == expected, "{range:?} of {plans:?}");
}

/// Trees of one signature in two layouts.
#[test]
fn random_copies() {
    let trees = asked::number("trees");
    for seed in 0..trees.unwrap_or(5000) {
        let mut random = Random::new(seed);
        let ty = random::tree(&mut random, 2048);
        let other = random::same_signature(&mut random, &ty);
        let (Ok(from), Ok(to)) = (ty.commit(), other.commit()) else {
            continue;
        };
        let count = random.below(4) as usize;
        if to.self_overlaps(count) {
            continue;
        }
        let run = std::panic::catch_unwind(move || copy_agrees(&from, &to, count, &mut random));
        assert!(
            run.is_ok(),
            "seed {seed}, count {count}: {ty:?} to {other:?}"
        );
    }
}

/// Packs what is ready as soon as it is, from tables that hold noise elsewhere.
struct Eager {
    tables: Vec<u64>,
    origin: u64,
    packed: Vec<u8>,
    done: u64,
    launches: usize,
}

impl Sink for Eager {
    type Error = TypeError;

    fn begin(&mut self, bytes: usize) -> Result<(), TypeError> {
        assert!(self.tables.is_empty(), "told once");
        self.tables = vec![0xEEEE_EEEE_EEEE_EEEE; bytes.div_ceil(8)];
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), TypeError> {
        assert!(at as usize + bytes.len() <= self.tables.len() * 8);
        let to = self.tables.as_mut_ptr().cast::<u8>();
        let to = to.wrapping_add(at as usize);
        // SAFETY: inside of the tables, as asserted.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn ready(&mut self, plan: &Plan, tables: &Tables, bytes: u64) -> Result<(), TypeError> {
        assert!(bytes >= self.done && bytes <= plan.bytes);
        let tables = (tables, self.tables.as_ptr() as u64);
        let to = self.packed.as_mut_ptr() as u64 + self.done;
        let range = self.done..bytes;
        if let Some(launch) = plan.launch(tables, self.origin, to, range) {
            let layout = self.origin.wrapping_add_signed(plan.base);
            // SAFETY: the span and the packed bytes lie in their vectors.
            unsafe { launch.interpret(true, layout, to) };
            self.launches += 1;
        }
        self.done = bytes;
        Ok(())
    }
}

/// Packs in parts of so many entries, against the host.
fn parts_agree(layout: &Layout, count: usize, part: usize, random: &mut Random) -> usize {
    let (memory, at) = memory(layout, count, random);
    let total = layout.pack_size(count).unwrap();
    let mut expected = vec![0u8; total];
    let origin = memory.as_ptr().cast::<u8>().wrapping_offset(at);
    // SAFETY: the span lies in the memory.
    unsafe { layout.pack_raw(origin, count, 0..total, expected.as_mut_ptr()) };
    let mut eager = Eager {
        tables: Vec::new(),
        origin: origin as u64,
        packed: vec![0xA5; total],
        done: 0,
        launches: 0,
    };
    let (plan, _) = feed(layout, count, part, &mut eager).unwrap();
    assert_eq!((plan.bytes, eager.done), (total as u64, total as u64));
    assert!(eager.packed == expected, "parts of {part}: {plan:?}");
    eager.launches
}

/// Lists made part by part, each used as soon as it is there.
#[test]
fn lists_in_parts() {
    let trees = asked::number("trees");
    let mut several = 0;
    for seed in 0..trees.unwrap_or(5000) {
        let mut random = Random::new(seed);
        let ty = random::tree(&mut random, 2048);
        let ty = match random.below(2) {
            0 => random::same_signature(&mut random, &ty),
            _ => ty,
        };
        let Ok(layout) = ty.commit() else { continue };
        let count = random.below(4) as usize;
        let part = 1 + random.below(12) as usize;
        let run = std::panic::catch_unwind(move || parts_agree(&layout, count, part, &mut random));
        assert!(
            run.is_ok(),
            "seed {seed}, count {count}, part {part}: {ty:?}"
        );
        several += usize::from(run.unwrap_or(0) > 2);
    }
    assert!(several > 100, "{several} lists had several parts");
}

/// Long lists of each kind: places, equal runs, unequal runs, and one around
/// another.
#[test]
fn long_lists_in_parts() {
    let mut random = Random::new(3);
    let byte = Type::basic(Basic::Byte);
    let places: Vec<isize> = (0..20_000).map(|i| i * 7919 % 20_011 * 16).collect();
    let blocks: Vec<(usize, isize)> = (0..20_000).map(|i| (i % 7 + 1, i as isize * 9)).collect();
    let list = Type::indexed(&blocks, &byte).unwrap();
    let few: Vec<isize> = (0..6).map(|i| i * i * 200_000).collect();
    for ty in [
        Type::hindexed_block(3, &places, &byte).unwrap(),
        Type::hindexed_block(1, &places, &Type::vector(3, 1, 2, &byte).unwrap()).unwrap(),
        Type::hindexed_block(1, &few, &list).unwrap(),
        Type::hvector(3, 1, 200_000, &list).unwrap(),
        list,
    ] {
        let layout = ty.commit().unwrap();
        for part in [100, 4096, 1 << 20] {
            let launches = parts_agree(&layout, 2, part, &mut random);
            assert_eq!(launches > 2, part < 20_000, "{part}: {launches}");
        }
    }
}

/// The typemap itself, on small trees: no code of the host pack is involved.
#[test]
fn typemaps() {
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let ty = random::tree(&mut random, 512);
        let Ok(layout) = ty.commit() else { continue };
        let plan = Plan::new(&layout, 2).unwrap();
        let tables = Tables::new(&plan);
        let bytes = ty.typemap().bytes(2);
        assert_eq!(bytes.len() as u64, plan.bytes, "seed {seed}");
        for (packed, &offset) in bytes.iter().enumerate() {
            assert_eq!(
                plan.offset(&tables, packed as u64),
                offset as i64,
                "seed {seed}"
            );
        }
    }
}

fn shape(ty: &Type, count: usize) -> Shape {
    let layout = ty.commit().unwrap();
    let mut random = Random::new(1);
    for _ in 0..20 {
        agrees(&layout, count, &mut random);
    }
    agrees(&layout, count, &mut random)
}

#[test]
fn shapes() {
    let double = Type::basic(Basic::F64);
    let contiguous = Type::contiguous(100, &double).unwrap();
    assert_eq!(shape(&contiguous, 3), Shape::Contiguous);
    let column = Type::vector(64, 1, 100, &double).unwrap();
    assert_eq!(shape(&column, 1), Shape::Strided(1));
    // Columns one after the other: a transpose.
    let resized = Type::resized(0, 8, &column).unwrap();
    assert_eq!(shape(&resized, 50), Shape::Transposed { word: 8 });
    let triangle: Vec<_> = (0..70).map(|i| (70 - i, 71 * i as isize)).collect();
    let triangle = Type::indexed(&triangle, &double).unwrap();
    assert_eq!(shape(&triangle, 2), Shape::General);
    let mut nested = Type::vector(3, 1, 2, &double).unwrap();
    for level in 0..4 {
        nested = Type::hvector(3, 1, 101 << (3 * level), &nested).unwrap();
    }
    assert_eq!(shape(&nested, 2), Shape::General);
    assert_eq!(
        shape(&Type::contiguous(0, &double).unwrap(), 2),
        Shape::Contiguous
    );
}

/// Strides alone are taken chunk by chunk where words are narrow and rows long.
#[test]
fn narrow_words_are_taken_in_chunks() {
    let taken = |ty: &Type, origin: u64, packed: u64| {
        let layout = ty.commit().unwrap();
        let plan = Plan::new(&layout, 1).unwrap();
        let tables = Tables::new(&plan);
        let launch = plan.launch((&tables, 4096), origin, packed, 0..plan.bytes);
        matches!(launch.unwrap().argument, Argument::General(_))
    };
    let byte = Type::basic(Basic::Byte);
    let rows = |length: usize, apart: isize| Type::hvector(100, length, apart, &byte).unwrap();
    assert!(taken(&rows(4096, 4099), 0, 0));
    assert!(!taken(&rows(4096, 4104), 0, 0));
    assert!(taken(&rows(4096, 4104), 0, 3));
    assert!(!taken(&rows(4096, 4104), 12, 4));
    assert!(taken(&rows(4096, 4104), 6, 0));
    assert!(!taken(&rows(4, 7), 0, 0));
    let whole = Type::contiguous(100, &byte).unwrap();
    assert!(!taken(&whole, 0, 1));
}

/// A record of a few short runs is written out word by word, once it pays.
#[test]
fn small_cores_have_a_map() {
    let ty = Type::indexed(&[(3, 0), (9, 11), (2, 30)], &Type::basic(Basic::F32)).unwrap();
    let layout = Type::resized(0, 200, &ty).unwrap().commit().unwrap();
    let mapped = |count: usize| {
        let plan = Plan::new(&layout, count).unwrap();
        let tables = Tables::new(&plan);
        let nest = plan.nest(4, (&tables, 4096));
        assert_ne!((nest.list.offsets == 0), (nest.map == 0));
        (nest.map != 0).then_some((nest.core.value, nest.map_shift, nest.dimensions))
    };
    assert_eq!(mapped(2), None);
    // 17 in 14 words: the unit is a word.
    assert_eq!(mapped(1000), Some((14, 0, 1)));
}

/// A regular tree has no list, however many blocks it has.
#[test]
fn regular_trees_have_no_list() {
    let slice = Type::contiguous(64, &Type::basic(Basic::U16)).unwrap();
    let layers = Type::hvector(1000, 1, 1 << 20, &slice).unwrap();
    let all = Type::hvector(8000, 1, 256, &layers)
        .unwrap()
        .commit()
        .unwrap();
    let plan = Plan::new(&all, 1).unwrap();
    assert_eq!(Tables::new(&plan).bytes.len(), 0);
    assert_eq!(plan.shape(), Shape::Strided(2));
}

/// Pages of a regular inner type: the list holds the pages alone.
#[test]
fn pages_are_listed_once() {
    let slice = Type::contiguous(64, &Type::basic(Basic::U16)).unwrap();
    let page = Type::hvector(800, 1, 256, &slice).unwrap();
    let places: Vec<isize> = (0..10_000).map(|i| (i * 7919 % 10_007) * 300_000).collect();
    let pages = Type::hindexed_block(1, &places, &page)
        .unwrap()
        .commit()
        .unwrap();
    let plan = Plan::new(&pages, 1).unwrap();
    assert!(Tables::new(&plan).bytes.len() <= 80_000 + 8);
    assert_eq!(plan.bytes, 10_000 * 800 * 128);
}

/// Word numbers of 64 bits, without the memory for them.
#[test]
fn large_counts_need_wide_numbers() {
    let byte = Type::basic(Basic::Byte);
    let column = Type::hvector(1 << 20, 3, 5, &byte)
        .unwrap()
        .commit()
        .unwrap();
    let plan = Plan::new(&column, 2000).unwrap();
    let end = plan.bytes;
    let launch = plan
        .launch((&Tables::new(&plan), 0), 0, 0, end - 10..end)
        .unwrap();
    let Argument::General(general) = launch.argument else {
        panic!("{launch:?}");
    };
    assert_eq!(general.range.wide, 1);
}
