//! What the kernels are counted on: 256 MiB each.

use osier_datatype::{Basic, Element, Layout, Order, Type};
use osier_datatype_corpus::random::{Random, plain_tree};

const BYTES: usize = 256 << 20;

#[derive(Clone, Copy, PartialEq)]
pub enum What {
    Pack,
    Unpack,
    /// From layout to layout.
    Copy,
    /// Sum of layouts.
    Reduce,
}

pub struct Layouts {
    pub layout: Layout,
    pub count: usize,
    /// Of the other side; the same if none.
    pub other: Option<Layout>,
}

pub struct Row {
    pub name: String,
    pub what: What,
    pub layouts: Layouts,
    /// Bytes by which the second address is off.
    pub odd: u64,
    basic: Basic,
}

impl Row {
    pub fn element(&self) -> Element {
        Element::Basic(self.basic)
    }
}

fn triangle(basic: Basic) -> Type {
    let size = basic.size();
    let side = ((2 * BYTES / size) as f64).sqrt() as usize;
    let columns: Vec<_> = (0..side)
        .map(|c| (side - c, (c * side + c) as isize))
        .collect();
    Type::indexed(&columns, &Type::basic(basic)).unwrap()
}

/// The same triangle out of storage by rows: rows of elements at one distance.
fn transposed_triangle() -> Type {
    let side = ((2 * BYTES / 8) as f64).sqrt() as usize;
    let rows = (0..side).map(|row| {
        let elements = Type::vector(side - row, 1, side as isize, &Type::basic(Basic::F64));
        (1, (row * (side + 1) * 8) as isize, elements.unwrap())
    });
    Type::structure(&rows.collect::<Vec<_>>()).unwrap()
}

/// A box in the middle of an array of so many elements in each direction.
fn cube(dimensions: usize, inner: usize, basic: Basic) -> Type {
    let sizes = vec![inner + 8; dimensions];
    let parts = vec![inner; dimensions];
    let starts = vec![4; dimensions];
    Type::subarray(&sizes, &parts, &starts, Order::C, &Type::basic(basic)).unwrap()
}

/// Blocks of 1 to 4 doubles with gaps of 1 to 4; fewer of them than elsewhere, for their list
/// is as long as they are.
fn indexed() -> Type {
    let mut random = Random::new(1);
    let mut at = 0;
    let list: Vec<(usize, isize)> = (0..1_000_000)
        .map(|_| {
            let block = (random.between(1, 4) as usize, at);
            at += block.0 as isize + random.between(1, 4) as isize;
            block
        })
        .collect();
    Type::indexed(&list, &Type::basic(Basic::F64)).unwrap()
}

/// Pages of 128 rows of 256 bytes, at any place.
fn pages() -> Type {
    let head = Type::contiguous(128, &Type::basic(Basic::F16)).unwrap();
    let rows = Type::hvector(128, 1, 2048, &head).unwrap();
    let pages = BYTES / (128 * 256);
    let places: Vec<isize> = (0..pages)
        .map(|i| (i * 7919 % (2 * pages)) as isize * 262_144)
        .collect();
    Type::hindexed_block(1, &places, &rows).unwrap()
}

/// Faces of a box as one struct: 4 of 2 directions and 2 of rows.
fn faces() -> Type {
    let f64 = Type::basic(Basic::F64);
    let part = |parts: [usize; 3], starts: [usize; 3]| {
        Type::subarray(&[64, 64, 64], &parts, &starts, Order::C, &f64).unwrap()
    };
    let all = [
        part([62, 62, 1], [1, 1, 0]),
        part([62, 62, 1], [1, 1, 63]),
        part([62, 1, 62], [1, 0, 1]),
        part([62, 1, 62], [1, 63, 1]),
        part([1, 62, 62], [0, 1, 1]),
        part([1, 62, 62], [63, 1, 1]),
    ];
    let fields: Vec<_> = all.into_iter().map(|ty| (1, 0, ty)).collect();
    Type::structure(&fields).unwrap()
}

/// A halo of five fields of a weather code as one struct: 3 of 3 columns along one side, each
/// of 38 layers and 50 rows, and 2 of one layer.
fn fields() -> Type {
    let f32 = Type::basic(Basic::F32);
    let sizes = [50, 38, 64];
    let field = |at: usize, parts: [usize; 3]| {
        let ty = Type::subarray(&sizes, &parts, &[0, 0, 3], Order::C, &f32).unwrap();
        (1, (at * sizes.iter().product::<usize>() * 4) as isize, ty)
    };
    let columns = [50, 38, 3];
    let layer = [50, 1, 3];
    let all = [columns, columns, columns, layer, layer];
    let all: Vec<_> = (0..).zip(all).map(|(at, parts)| field(at, parts)).collect();
    Type::structure(&all).unwrap()
}

fn record() -> Type {
    let record = Type::structure(&[
        (1, 0, Type::basic(Basic::I32)),
        (1, 8, Type::basic(Basic::F64)),
        (3, 20, Type::basic(Basic::U8)),
    ]);
    Type::resized(0, 24, &record.unwrap()).unwrap()
}

fn transpose(basic: Basic) -> (Type, usize) {
    let n = ((BYTES / basic.size()) as f64).sqrt() as usize;
    (matrix(n, basic), n)
}

/// A column of a matrix of n rows and columns, behind which the next one follows.
fn matrix(n: usize, basic: Basic) -> Type {
    let column = Type::vector(n, 1, n as isize, &Type::basic(basic)).unwrap();
    Type::resized(0, basic.size() as isize, &column).unwrap()
}

fn row(name: &str, what: What, ty: &Type, count: usize, odd: u64) -> Row {
    Row {
        name: name.to_owned(),
        what,
        layouts: Layouts {
            layout: ty.commit().unwrap(),
            count,
            other: None,
        },
        odd,
        basic: Basic::F64,
    }
}

/// From one layout to another.
fn pair(name: &str, from: &Type, count: usize, to: &Type) -> Row {
    let mut row = row(name, What::Copy, from, count, 0);
    row.layouts.other = Some(to.commit().unwrap());
    row
}

/// A sum of two such layouts.
fn sum(name: &str, ty: &Type, odd: u64, basic: Basic) -> Row {
    let row = row(name, What::Reduce, ty, 1, odd);
    Row { basic, ..row }
}

/// One element of two.
fn strided(basic: Basic) -> Type {
    Type::vector(BYTES / basic.size(), 1, 2, &Type::basic(basic)).unwrap()
}

/// The rows of the table.
pub fn rows() -> Vec<Row> {
    use What::{Copy, Pack, Unpack};
    let run = |basic: Basic| Type::contiguous(BYTES / basic.size(), &Type::basic(basic)).unwrap();
    let f64 = Type::basic(Basic::F64);
    let byte = Type::basic(Basic::U8);
    let n = ((BYTES / 8) as f64).sqrt() as usize;
    let v = Type::vector(n, n, 2 * n as isize, &f64).unwrap();
    let (t, t4) = (triangle(Basic::F64), triangle(Basic::F32));
    let transposed = transposed_triangle();
    let (box3, box3f) = (cube(3, 320, Basic::F64), cube(3, 400, Basic::F32));
    let box6 = cube(6, 16, Basic::F64);
    let odd_rows =
        |length: usize, apart: isize| Type::hvector(BYTES / length, length, apart, &byte).unwrap();
    let shorts = Type::indexed(&[(3, 0), (9, 11), (2, 30), (14, 33)], &byte).unwrap();
    let shorts = Type::resized(0, 53, &shorts).unwrap();
    let (t8, n8) = transpose(Basic::F64);
    let (t4x, n4) = transpose(Basic::F32);
    // Groups of 4 bytes suit the first of the two, not the second.
    let (t2x, n2) = (matrix(11_584, Basic::F16), 11_584);
    let (t2y, odd2) = (matrix(11_585, Basic::F16), 11_585);
    let (t1x, n1) = transpose(Basic::U8);
    // A row of n8 doubles in a matrix of twice as many columns.
    let row8 = Type::contiguous(n8, &f64).unwrap();
    let rows8 = Type::resized(0, 16 * n8 as isize, &row8).unwrap();
    let list = indexed();
    let records = BYTES / 15;
    let faces = Type::resized(0, 64 * 64 * 64 * 8, &faces()).unwrap();
    let many = BYTES / faces.size();
    let fields = Type::resized(0, 5 * 50 * 38 * 64 * 4, &fields()).unwrap();
    let many_fields = BYTES / fields.size();
    vec![
        row("V", Pack, &v, 1, 0),
        row("V", Unpack, &v, 1, 0),
        row("V, odd", Pack, &v, 1, 1),
        row("V, odd", Unpack, &v, 1, 1),
        row("T", Pack, &t, 1, 0),
        row("T", Unpack, &t, 1, 0),
        row("T f32", Pack, &t4, 1, 0),
        row("T f32", Unpack, &t4, 1, 0),
        row("T, 2 bytes off", Pack, &t, 1, 2),
        row("T, odd", Pack, &t, 1, 1),
        row("T, odd", Unpack, &t, 1, 1),
        row("T transposed", Pack, &transposed, 1, 0),
        row("T transposed", Unpack, &transposed, 1, 0),
        row("box 3-D", Pack, &box3, 1, 0),
        row("box 6-D", Pack, &box6, 1, 0),
        row("pages of rows", Pack, &pages(), 1, 0),
        row("indexed 1 to 4", Pack, &list, 1, 0),
        row("indexed 1 to 4", Unpack, &list, 1, 0),
        row("records 15 of 24", Pack, &record(), records, 0),
        row("records 15 of 24", Unpack, &record(), records, 0),
        row("runs 2 to 14 bytes", Pack, &shorts, BYTES / 28, 0),
        row("runs 2 to 14 bytes", Unpack, &shorts, BYTES / 28, 0),
        row("rows of 17 bytes", Pack, &odd_rows(17, 23), 1, 0),
        row("rows of 100 bytes", Pack, &odd_rows(100, 111), 1, 0),
        row("rows of 4095 bytes", Pack, &odd_rows(4095, 4099), 1, 0),
        row("six faces", Pack, &faces, many, 0),
        row("six faces", Unpack, &faces, many, 0),
        row("five fields f32", Pack, &fields, many_fields, 0),
        row("five fields f32", Unpack, &fields, many_fields, 0),
        row("transpose f64", Pack, &t8, n8, 0),
        row("transpose f64", Unpack, &t8, n8, 0),
        row("transpose f32", Pack, &t4x, n4, 0),
        row("transpose f32", Unpack, &t4x, n4, 0),
        row("transpose u16", Pack, &t2x, n2, 0),
        row("transpose u16", Unpack, &t2x, n2, 0),
        row("transpose u16, odd", Pack, &t2y, odd2, 0),
        row("transpose u8", Pack, &t1x, n1, 0),
        row("transpose u8", Unpack, &t1x, n1, 0),
        row("transpose u8, odd", Pack, &t1x, n1, 1),
        row("T to T", Copy, &t, 1, 0),
        row("T to T, odd", Copy, &t, 1, 1),
        pair("T to T transposed", &t, 1, &transposed),
        row("box to box 3-D", Copy, &box3, 1, 0),
        row("box to box 3-D f32", Copy, &box3f, 1, 0),
        row("box to box 6-D", Copy, &box6, 1, 0),
        pair("columns to rows f64", &t8, n8, &rows8),
        pair("rows to columns f64", &rows8, n8, &t8),
        row("columns to columns", Copy, &t8, n8, 0),
        row("faces to faces", Copy, &faces, many, 0),
        row("records to records", Copy, &record(), records, 0),
        row("indexed to indexed", Copy, &list, 1, 0),
        sum("run f64 sum", &run(Basic::F64), 0, Basic::F64),
        sum("run f32 sum", &run(Basic::F32), 0, Basic::F32),
        sum("run f32 sum, 4 off", &run(Basic::F32), 4, Basic::F32),
        sum("run bf16 sum", &run(Basic::BF16), 0, Basic::BF16),
        sum("run bf16 sum, 2 off", &run(Basic::BF16), 2, Basic::BF16),
        sum("run i8 sum", &run(Basic::I8), 0, Basic::I8),
        sum("T f64 sum", &t, 0, Basic::F64),
        sum("T f32 sum", &t4, 0, Basic::F32),
        sum("V f64 sum", &v, 0, Basic::F64),
        sum("strided f64 sum", &strided(Basic::F64), 0, Basic::F64),
        sum("strided f32 sum", &strided(Basic::F32), 0, Basic::F32),
        sum("strided bf16 sum", &strided(Basic::BF16), 0, Basic::BF16),
        sum("strided i8 sum", &strided(Basic::I8), 0, Basic::I8),
    ]
}

/// A random type of `osier bench pack`: the same draws.
pub fn random(seed: u64) -> Row {
    let mut draws = Random::new(seed);
    let ty = loop {
        let ty = plain_tree(&mut draws, 4096);
        if ty.size() >= 16 && ty.commit().unwrap().block_count() > 1 {
            break ty;
        }
    };
    let count = (BYTES / ty.size()).max(1);
    let apart = Type::resized(ty.true_lb(), ty.true_extent(), &ty).unwrap();
    row(&format!("random-{seed}"), What::Pack, &apart, count, 0)
}
