//! Layouts of so many bytes.

use super::cells::{Dice, Shape};
use osier::datatype::Basic;
use osier::{Layout, Type};

/// A layout, and the bytes that one instance of it touches.
pub struct Shaped {
    pub layout: Layout,
    /// Of the layout, from the first byte that it touches.
    pub origin: usize,
    pub room: usize,
}

/// A layout of so many bytes.
pub fn shaped(shape: Shape, bytes: usize, seed: u64) -> Shaped {
    let byte = Type::basic(Basic::U8);
    let run = |bytes: usize| Type::contiguous(bytes, &byte).expect("a type");
    let ty = match shape {
        _ if bytes == 0 => run(0),
        Shape::Run => run(bytes),
        Shape::Vector => vector(bytes),
        Shape::Triangle => triangle(bytes),
        Shape::Irregular => irregular(bytes, &mut Dice::new(seed)),
    };
    let layout = ty.commit().expect("a layout");
    assert_eq!(layout.size(), bytes);
    let (low, high) = layout.span(1);
    Shaped {
        layout,
        origin: usize::try_from(-low).unwrap_or(0),
        room: usize::try_from(high - low.min(0)).unwrap_or(0),
    }
}

/// Equal blocks, and what is left behind them.
fn vector(bytes: usize) -> Type {
    let byte = Type::basic(Basic::U8);
    // Single bytes take the emulated device long.
    let block = [4096, 1000, 48, 5, 1]
        .into_iter()
        .find(|block| bytes / block > 12 || *block == 1)
        .unwrap_or(1);
    let (count, rest) = (bytes / block, bytes % block);
    let stride = (2 * block + 3) as isize;
    let rows = Type::vector(count, block, stride, &byte).expect("a type");
    if rest == 0 {
        return rows;
    }
    let rest = Type::contiguous(rest, &byte).expect("a type");
    let behind = count as isize * stride;
    Type::structure(&[(1, 0, rows), (1, behind, rest)]).expect("a type")
}

/// The rows of a lower triangle, of some 40 rows.
fn triangle(bytes: usize) -> Type {
    let unit = bytes.div_ceil(800);
    let (mut rows, mut left) = (Vec::new(), bytes);
    while left > 0 {
        let row = rows.len();
        let length = left.min((row + 1) * unit);
        rows.push((length, (row * 48 * unit) as isize));
        left -= length;
    }
    Type::indexed(&rows, &Type::basic(Basic::U8)).expect("a type")
}

/// Blocks of any length at any distance, some before the origin, between them a vector.
fn irregular(bytes: usize, dice: &mut Dice) -> Type {
    let byte = Type::basic(Basic::U8);
    let mut fields = Vec::new();
    let (mut left, mut at) = (bytes, -(dice.below(500) as isize));
    let most = (bytes / 40).max(2);
    while left > 0 {
        let length = left.min(1 + dice.below(2 * most));
        let gap = 1 + dice.below(70) as isize;
        let (count, block) = (1 + dice.below(20), 1 + length / 40);
        if dice.below(4) == 0 && count * block <= left {
            let stride = (block + 1 + dice.below(9)) as isize;
            let rows = Type::vector(count, block, stride, &byte).expect("a type");
            fields.push((1, at, rows));
            at += count as isize * stride + gap;
            left -= count * block;
            continue;
        }
        let run = Type::contiguous(length, &byte).expect("a type");
        fields.push((1, at, run));
        at += length as isize + gap;
        left -= length;
    }
    // Out of order in memory.
    let middle = fields.len() / 2;
    fields.rotate_left(middle);
    Type::structure(&fields).expect("a type")
}
