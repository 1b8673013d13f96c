//! Chosen layouts from each to each, on the driver that `support` finds: matrices by rows and
//! by columns, structs of boxes, lists of short runs.

mod support;

use osier_datatype::{Basic, Element, Layout, Operator, Order, Type};
use osier_datatype_corpus::random::Random;
use osier_kernels::plan::{Plan, arguments::Tables};
use osier_kernels::{DeviceView, Packer, Stream};
use support::{context, download, upload};

/// Sizes of a matrix, and of what lies around it.
#[derive(Debug, Clone, Copy)]
struct Matrix {
    word: usize,
    rows: usize,
    columns: usize,
    /// Bytes behind each line in memory.
    gap: isize,
    planes: usize,
}

impl Matrix {
    /// A word for each row, at a distance; for each column and plane the same.
    fn by(&self, row: isize, column: isize, plane: isize) -> Layout {
        let word = Type::contiguous(self.word, &Type::basic(Basic::Byte)).unwrap();
        let rows = Type::hvector(self.rows, 1, row, &word).unwrap();
        let columns = Type::hvector(self.columns, 1, column, &rows).unwrap();
        let planes = Type::hvector(self.planes, 1, plane, &columns).unwrap();
        planes.commit().unwrap()
    }

    /// Adjacent along columns, forth and back, along rows, and without gaps.
    fn layouts(&self) -> Vec<Layout> {
        let word = self.word as isize;
        let across = self.columns as isize * word + self.gap;
        let down = self.rows as isize * word + self.gap;
        let plane = across * self.rows as isize + self.gap;
        let other_plane = down * self.columns as isize + self.gap;
        let packed = self.rows as isize * word;
        vec![
            self.by(across, word, plane),
            self.by(-across, word, plane),
            self.by(across, -word, plane),
            self.by(word, down, other_plane),
            self.by(word, -down, other_plane),
            self.by(word, packed, packed * self.columns as isize),
        ]
    }
}

/// Bytes around a layout, and where its origin is in them.
fn filled(layout: &Layout, shift: usize, random: &mut Random) -> (Vec<u8>, usize) {
    let (low, high) = layout.span(1);
    let low = low.min(0);
    let room = (high - low) as usize + shift;
    let bytes = (0..room).map(|_| random.next() as u8).collect();
    (bytes, (shift as isize - low) as usize)
}

fn agrees(
    (packer, stream): (&Packer, &Stream),
    (from, to): (&Layout, &Layout),
    range: std::ops::Range<usize>,
    shifts: [usize; 2],
    random: &mut Random,
) {
    let (source, from_at) = filled(from, shifts[0], random);
    let (mut target, to_at) = filled(to, shifts[1], random);
    let device = [upload(stream, &source), upload(stream, &target)];
    let mut packed = vec![0; range.len()];
    from.pack(&source, from_at, 1, range.clone(), &mut packed)
        .unwrap();
    to.unpack(&mut target, to_at, 1, range.clone(), &packed)
        .unwrap();
    let reads = DeviceView::new(&device[0], from_at, from, 1).unwrap();
    let writes = DeviceView::new(&device[1], to_at, to, 1).unwrap();
    let (reads, writes) = (reads.after_stream(stream), writes.after_stream(stream));
    packer
        .copy(stream, &reads, &writes, range.clone(), None)
        .unwrap();
    let found = download(stream, &device[1]);
    assert!(found == target, "{range:?} at {shifts:?}");
}

#[test]
fn matrices_by_rows_and_by_columns() {
    let Some(context) = context() else { return };
    let (stream, packer) = (Stream::uncaptured(&context).unwrap(), Packer::new(&context));
    let mut random = Random::new(3);
    for word in [1, 2, 4, 8, 16] {
        for (rows, columns, planes) in [(8, 8, 1), (40, 36, 3), (133, 130, 1), (132, 260, 2)] {
            let matrix = Matrix {
                word,
                rows,
                columns,
                planes,
                gap: (word.max(4) * random.below(2) as usize) as isize,
            };
            let layouts = matrix.layouts();
            let words = rows * columns * planes;
            for from in &layouts {
                for to in &layouts {
                    let cut = |random: &mut Random| {
                        let at = random.below(words as u64 + 1) as usize;
                        at / (1 + 3 * random.below(2) as usize) * word
                    };
                    let (a, b) = (cut(&mut random), cut(&mut random));
                    let all = random.below(2) == 0;
                    let range = if all {
                        0..words * word
                    } else {
                        a.min(b)..a.max(b)
                    };
                    let shifts = match random.below(3) {
                        0 => [word, 16],
                        1 => [3, 0],
                        _ => [0, 0],
                    };
                    let both = (&packer, &stream);
                    let told = std::panic::AssertUnwindSafe(|| {
                        agrees(both, (from, to), range, shifts, &mut random);
                    });
                    let told = std::panic::catch_unwind(told);
                    assert!(told.is_ok(), "{matrix:?}: {from:?} to {to:?}");
                }
            }
        }
    }
}

/// A struct of boxes of doubles in fields that lie one behind the other.
fn boxes(parts: &[[usize; 3]], random: &mut Random) -> Type {
    let double = Type::basic(Basic::F64);
    let sizes = [24, 26, 28];
    let field = |(at, parts): (usize, &[usize; 3])| {
        let starts = std::array::from_fn::<_, 3, _>(|k| {
            random.below((sizes[k] - parts[k] + 1) as u64) as usize
        });
        let ty = Type::subarray(&sizes, parts, &starts, Order::C, &double).unwrap();
        let behind = at * sizes.iter().product::<usize>() * 8;
        (1, behind as isize, ty)
    };
    let fields: Vec<_> = parts.iter().enumerate().map(field).collect();
    Type::structure(&fields).unwrap()
}

/// Structs of up to 16 boxes need no list.
#[test]
fn structs_of_boxes() {
    let Some(context) = context() else { return };
    let (stream, packer) = (Stream::new(&context).unwrap(), Packer::new(&context));
    let mut random = Random::new(5);
    for round in 0..12 {
        let count = 2 + random.below(15) as usize;
        let parts: Vec<[usize; 3]> = (0..count)
            .map(|_| {
                let side = |random: &mut Random, most: u64| 1 + random.below(most) as usize;
                match random.below(4) {
                    0 => [side(&mut random, 24), 26, 6],
                    1 => [24, side(&mut random, 26), 9],
                    2 => [24, 26, side(&mut random, 28)],
                    _ => [20, 20, side(&mut random, 28)],
                }
            })
            .collect();
        let types = [boxes(&parts, &mut random), boxes(&parts, &mut random)];
        let packed = Type::contiguous(types[0].size() / 8, &Type::basic(Basic::F64)).unwrap();
        let gaps = Type::resized(0, packed.extent() + 16, &packed).unwrap();
        let types = [types[0].clone(), types[1].clone(), packed, gaps];
        let types = match round % 3 {
            // In loops.
            0 => types.map(|ty| Type::contiguous(3, &ty).unwrap()),
            _ => types,
        };
        let layouts = types.map(|ty| ty.commit().unwrap());
        for layout in &layouts {
            let plan = Plan::new(layout, 1).unwrap();
            assert!(Tables::new(&plan).bytes.is_empty(), "{parts:?}: {plan:?}");
        }
        all_pairs_agree(
            (&packer, &stream),
            &layouts,
            &format!("{parts:?}"),
            &mut random,
        );
        sums_agree((&packer, &stream), (&layouts[0], &layouts[1]), &mut random);
    }
}

/// Copies from each layout to each, of all bytes or a random range.
fn all_pairs_agree(both: (&Packer, &Stream), layouts: &[Layout], what: &str, random: &mut Random) {
    for from in layouts {
        for to in layouts {
            let total = from.size();
            let cut = |random: &mut Random| random.below(total as u64 + 1) as usize;
            let (a, b) = (cut(random), cut(random));
            let all = random.below(2) == 0;
            let range = if all { 0..total } else { a.min(b)..a.max(b) };
            let shifts = [[0, 0], [8, 4], [0, 8], [3, 0]][random.below(4) as usize];
            let told = std::panic::AssertUnwindSafe(|| {
                agrees(both, (from, to), range, shifts, random);
            });
            let told = std::panic::catch_unwind(told);
            assert!(told.is_ok(), "{what}: {from:?} to {to:?}");
        }
    }
}

/// Blocks of 1 to 6 words with gaps of up to 3 between, and now and then a long one, whose
/// words are `size` together.
fn listed(word: usize, size: usize, random: &mut Random) -> Type {
    let (mut at, mut left) = (0, size);
    let mut blocks = Vec::new();
    while left > 0 {
        let most = [6, 6, 6, 6, 6, 6, 6, 200][random.below(8) as usize];
        let block = left.min(1 + random.below(most) as usize);
        blocks.push((block, at as isize));
        at += block + random.below(4) as usize;
        left -= block;
    }
    if random.below(2) == 0 {
        // The last block first in memory, and so on.
        blocks.reverse();
    }
    let unit = Type::contiguous(word, &Type::basic(Basic::U8)).unwrap();
    Type::indexed(&blocks, &unit).unwrap()
}

/// Lists to lists: long ones, and such that are written out as the cores of many records.
#[test]
fn lists_to_lists() {
    let Some(context) = context() else { return };
    let (stream, packer) = (Stream::new(&context).unwrap(), Packer::new(&context));
    let mut random = Random::new(7);
    for round in 0..24 {
        let word = [1, 2, 4, 8, 16][round % 5];
        let (size, count) = match round % 4 {
            0 => (6000, 1),
            1 => (700, 5),
            2 => (15, 700),
            _ => (37, 300),
        };
        let types = [(); 3].map(|()| listed(word, size, &mut random));
        let types = types.map(|ty| {
            let apart = ty.true_extent() + (word as isize) * random.below(3) as isize;
            let ty = Type::resized(ty.true_lb(), apart, &ty).unwrap();
            Type::contiguous(count, &ty).unwrap()
        });
        let packed = Type::contiguous(size * count * word, &Type::basic(Basic::U8)).unwrap();
        let rows = Type::hvector(
            size * count,
            word,
            2 * word as isize,
            &Type::basic(Basic::U8),
        );
        let mut layouts: Vec<Layout> = types.iter().map(|ty| ty.commit().unwrap()).collect();
        layouts.push(packed.commit().unwrap());
        layouts.push(rows.unwrap().commit().unwrap());
        all_pairs_agree(
            (&packer, &stream),
            &layouts,
            &format!("round {round}"),
            &mut random,
        );
    }
}

/// Rows of given numbers of blocks of `width` doubles, of which every `apart`-th is one of the row.
fn ragged(lengths: &[usize], width: usize, apart: usize) -> Type {
    let field = |(row, &length): (usize, &usize)| {
        let distance = (8 * width * apart) as isize;
        let blocks = Type::hvector(length, width, distance, &Type::basic(Basic::F64)).unwrap();
        (1, (8 * width * row) as isize, blocks)
    };
    let fields: Vec<_> = lengths.iter().enumerate().map(field).collect();
    Type::structure(&fields).unwrap()
}

/// Ragged rows to and from packed bytes, strides, lists, and rows of another order.
#[test]
fn ragged_rows() {
    let Some(context) = context() else { return };
    let (stream, packer) = (Stream::new(&context).unwrap(), Packer::new(&context));
    let mut random = Random::new(11);
    let double = Type::basic(Basic::F64);
    for round in 0..16 {
        // As many rows as are no boxes; every fourth time so long that chunks lie inside.
        let (rows, most) = [(40, 30), (300, 20), (25, 600), (90, 90)][round % 4];
        let mut lengths: Vec<usize> = (0..rows).map(|_| 1 + random.below(most) as usize).collect();
        let width = [1, 2, 3][round % 3];
        let first = ragged(&lengths, width, rows);
        lengths.reverse();
        let second = ragged(&lengths, width, rows + 2);
        let words = first.size() / 8;
        let list = listed(8, words, &mut random);
        let every_second = Type::hvector(words, 1, 16, &double).unwrap();
        let packed = Type::contiguous(words, &double).unwrap();
        let types = [first, second, list, every_second, packed];
        let types = match round % 3 {
            // In loops.
            0 => types.map(|ty| Type::contiguous(2, &ty).unwrap()),
            _ => types,
        };
        let layouts = types.map(|ty| ty.commit().unwrap());
        let plan = Plan::new(&layouts[0], 1).unwrap();
        let rows = plan.list.is_some_and(|list| list.blocks.is_some());
        assert!(rows, "round {round}");
        let both = (&packer, &stream);
        all_pairs_agree(both, &layouts, &format!("round {round}"), &mut random);
        sums_agree(both, (&layouts[0], &layouts[1]), &mut random);
    }
}

/// Sums of doubles, against the host's.
fn sums_agree(
    (packer, stream): (&Packer, &Stream),
    (right, left): (&Layout, &Layout),
    random: &mut Random,
) {
    let numbers = |random: &mut Random, layout: &Layout| -> Vec<u8> {
        let count = layout.span(1).1 as usize / 8;
        let number = |_| random.below(1000) as f64;
        (0..count).map(number).flat_map(f64::to_ne_bytes).collect()
    };
    let (source, mut target) = (numbers(random, right), numbers(random, left));
    let device = [upload(stream, &source), upload(stream, &target)];
    let (mut a, mut b) = (vec![0; right.size()], vec![0; right.size()]);
    right.pack(&source, 0, 1, 0..a.len(), &mut a).unwrap();
    left.pack(&target, 0, 1, 0..b.len(), &mut b).unwrap();
    let element = Element::Basic(Basic::F64);
    Operator::Sum.combine(element, &mut b, &a).unwrap();
    left.unpack(&mut target, 0, 1, 0..b.len(), &b).unwrap();
    let reads = DeviceView::new(&device[0], 0, right, 1).unwrap();
    let writes = DeviceView::new(&device[1], 0, left, 1).unwrap();
    let (reads, writes) = (reads.after_stream(stream), writes.after_stream(stream));
    packer
        .combine(stream, Operator::Sum, &reads, &writes, 0..a.len(), None)
        .unwrap();
    assert!(download(stream, &device[1]) == target, "sum");
}
