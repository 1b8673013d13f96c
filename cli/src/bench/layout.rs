//! Datatypes by name, with loops written by hand beside them.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use osier::{Layout, Order, Type};

/// A layout as the user wrote it; [`Pattern::shape`] gives it a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Contiguous,
    Vector {
        block: usize,
        stride: usize,
    },
    Indexed {
        seed: u32,
    },
    /// Without a number: as large as the payload asks.
    Triangle {
        n: Option<usize>,
    },
    Matrix {
        n: Option<usize>,
    },
    Transpose {
        n: Option<usize>,
    },
    Face {
        n: usize,
        axis: usize,
    },
}

/// A layout of one size.
#[derive(Clone, Debug)]
pub struct Shape {
    pub layout: Layout,
    /// Blocks as a list, for the loop written by hand.
    pub blocks: Blocks,
}

/// What a loop written by hand needs to know.
#[derive(Clone, Debug)]
pub enum Blocks {
    /// Equal blocks at equal distances.
    Strided {
        count: usize,
        block: usize,
        stride: usize,
    },
    /// (offset, length) in bytes; both multiples of 8.
    List(Vec<(usize, usize)>),
}

impl Shape {
    /// Payload.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Bytes from the origin to the end.
    pub fn span(&self) -> usize {
        self.layout.span(1).1.max(0).cast_unsigned()
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let numbers: Vec<usize> = parts
            .map(super::options::parse_size)
            .collect::<Result<_, _>>()?;
        match (name, &numbers[..]) {
            ("contiguous", []) => Ok(Pattern::Contiguous),
            ("vector", &[block, stride]) if block > 0 && stride >= block => {
                Ok(Pattern::Vector { block, stride })
            }
            ("vector", [_, _]) => Err("blocks of at least 1 byte, the stride no less".into()),
            ("indexed", []) => Ok(Pattern::Indexed { seed: 1 }),
            ("indexed", &[seed]) => Ok(Pattern::Indexed {
                seed: u32::try_from(seed).map_err(|_| "a seed has 32 bits")?,
            }),
            ("triangle", n) if square(n, 15) => Ok(Pattern::Triangle {
                n: n.first().copied(),
            }),
            ("matrix", n) if square(n, 15) => Ok(Pattern::Matrix {
                n: n.first().copied(),
            }),
            ("transpose", n) if square(n, 13) => Ok(Pattern::Transpose {
                n: n.first().copied(),
            }),
            ("face", &[n, axis]) if (1..=1 << 11).contains(&n) && axis < 3 => {
                Ok(Pattern::Face { n, axis })
            }
            ("triangle" | "matrix" | "transpose" | "face", _) => Err(
                "write triangle[:N] or matrix[:N] (N up to 32K), transpose[:N] (up to 8K) \
                 or face:N:AXIS (N up to 2K, axis 0, 1 or 2)"
                    .into(),
            ),
            _ => Err(
                "expected contiguous, vector:BLOCK:STRIDE, indexed[:SEED], triangle[:N], \
                 matrix[:N], transpose[:N] or face:N:AXIS"
                    .into(),
            ),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Contiguous => f.write_str("contiguous"),
            Pattern::Vector { block, stride } => write!(f, "vector:{block}:{stride}"),
            Pattern::Indexed { seed: 1 } => f.write_str("indexed"),
            Pattern::Indexed { seed } => write!(f, "indexed:{seed}"),
            Pattern::Triangle { n: Some(n) } => write!(f, "triangle:{n}"),
            Pattern::Triangle { n: None } => f.write_str("triangle"),
            Pattern::Matrix { n: Some(n) } => write!(f, "matrix:{n}"),
            Pattern::Matrix { n: None } => f.write_str("matrix"),
            Pattern::Transpose { n: Some(n) } => write!(f, "transpose:{n}"),
            Pattern::Transpose { n: None } => f.write_str("transpose"),
            Pattern::Face { n, axis } => write!(f, "face:{n}:{axis}"),
        }
    }
}

impl Pattern {
    /// The layout with this payload, or the next that it can have.
    pub fn shape(&self, bytes: usize) -> Result<Shape, osier::datatype::TypeError> {
        let byte = Type::of::<u8>();
        let double = Type::of::<f64>();
        let (tree, blocks) = match *self {
            Pattern::Contiguous => {
                let blocks = Blocks::Strided {
                    count: 1,
                    block: bytes,
                    stride: bytes,
                };
                (Type::contiguous(bytes, &byte)?, blocks)
            }
            Pattern::Vector { block, stride } => {
                let count = bytes.div_ceil(block).max(1);
                let tree = if block % 8 == 0 && stride % 8 == 0 {
                    Type::vector(count, block / 8, (stride / 8).cast_signed(), &double)?
                } else {
                    Type::vector(count, block, stride.cast_signed(), &byte)?
                };
                let blocks = Blocks::Strided {
                    count,
                    block,
                    stride,
                };
                (tree, blocks)
            }
            Pattern::Indexed { seed } => {
                let list = indexed(bytes.div_ceil(8).max(1), seed);
                (Type::indexed(&list, &double)?, in_bytes(&list))
            }
            Pattern::Triangle { n } => {
                let doubles = bytes.div_ceil(8).max(1);
                let n = n.unwrap_or_else(|| least(|n| n * (n + 1) / 2 >= doubles));
                let list: Vec<_> = (0..n)
                    .map(|row| (row + 1, (row * n).cast_signed()))
                    .collect();
                (Type::indexed(&list, &double)?, in_bytes(&list))
            }
            Pattern::Matrix { n } => {
                let doubles = bytes.div_ceil(8).max(1);
                let n = n.unwrap_or_else(|| least(|n| n * n >= doubles));
                let tree = Type::vector(n, n, 2 * n.cast_signed(), &double)?;
                let blocks = Blocks::Strided {
                    count: n,
                    block: 8 * n,
                    stride: 16 * n,
                };
                (tree, blocks)
            }
            Pattern::Transpose { n } => {
                let doubles = bytes.div_ceil(8).max(1);
                let n = n.unwrap_or_else(|| least(|n| n * n >= doubles));
                let row = Type::vector(n, 1, n.cast_signed(), &double)?;
                let tree = Type::contiguous(n, &Type::resized(0, 8, &row)?)?;
                let list = (0..n * n).map(|i| (8 * (i % n * n + i / n), 8)).collect();
                (tree, Blocks::List(list))
            }
            Pattern::Face { n, axis } => {
                let mut face = [n; 3];
                face[axis] = 1;
                let tree = Type::subarray(&[n; 3], &face, &[0; 3], Order::C, &double)?;
                let list: Vec<_> = match axis {
                    0 => vec![(n * n, 0)],
                    1 => (0..n).map(|i| (n, (i * n * n).cast_signed())).collect(),
                    _ => (0..n * n).map(|i| (1, (i * n).cast_signed())).collect(),
                };
                (tree, in_bytes(&list))
            }
        };
        Ok(Shape {
            layout: tree.commit()?,
            blocks,
        })
    }
}

/// No number, or one from 1 to 2^`bits`.
fn square(numbers: &[usize], bits: u32) -> bool {
    match numbers {
        [] => true,
        [n] => (1..=1 << bits).contains(n),
        _ => false,
    }
}

/// The least number above 0 that is enough.
fn least(enough: impl Fn(usize) -> bool) -> usize {
    let mut above = 1;
    while !enough(above) {
        above *= 2;
    }
    // Enough at `above`, and not at `below`.
    let mut below = above / 2;
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        match enough(middle) {
            true => above = middle,
            false => below = middle,
        }
    }
    above
}

/// Blocks of 1 to 4 doubles with holes of 1 to 4 doubles, drawn from the
/// sequence that the programs for the peers use.
fn indexed(doubles: usize, seed: u32) -> Vec<(usize, isize)> {
    let mut x = seed;
    let mut at = 0isize;
    let mut left = doubles;
    let mut blocks = Vec::new();
    while left > 0 {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = (1 + (x >> 16) as usize % 4).min(left);
        let hole = 1 + (x >> 24) as isize % 4;
        blocks.push((length, at));
        at += length.cast_signed() + hole;
        left -= length;
    }
    blocks
}

fn in_bytes(blocks: &[(usize, isize)]) -> Blocks {
    let bytes = |(length, at): &(usize, isize)| (at.cast_unsigned() * 8, length * 8);
    Blocks::List(blocks.iter().map(bytes).collect())
}

impl Blocks {
    /// Copies the blocks one after another: what a user would write for this
    /// layout, on slices, without the library.
    pub fn pack_by_hand(&self, from: &[u8], to: &mut [u8]) {
        match *self {
            Blocks::Strided {
                count: 1, block, ..
            } => {
                to[..block].copy_from_slice(&from[..block]);
            }
            Blocks::Strided {
                block: 8, stride, ..
            } => {
                for (from, to) in from.chunks(stride).zip(to.chunks_exact_mut(8)) {
                    to.copy_from_slice(&from[..8]);
                }
            }
            Blocks::Strided { block, stride, .. } => {
                for (from, to) in from.chunks(stride).zip(to.chunks_exact_mut(block)) {
                    to.copy_from_slice(&from[..block]);
                }
            }
            Blocks::List(ref list) => {
                let mut at = 0;
                for (offset, length) in list {
                    let piece: Range<usize> = *offset..offset + length;
                    for (to, from) in to[at..at + length]
                        .chunks_exact_mut(8)
                        .zip(from[piece].chunks_exact(8))
                    {
                        to.copy_from_slice(from);
                    }
                    at += length;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for name in [
            "contiguous",
            "vector:8:16",
            "indexed",
            "indexed:7",
            "triangle:100",
            "triangle",
            "matrix:3",
            "matrix",
            "transpose",
            "face:64:2",
        ] {
            assert_eq!(name.parse::<Pattern>().unwrap().to_string(), name);
        }
        assert_eq!(
            "vector:1K:4K".parse::<Pattern>().unwrap(),
            Pattern::Vector {
                block: 1024,
                stride: 4096
            }
        );
        for bad in [
            "",
            "vector",
            "vector:0:8",
            "vector:16:8",
            "face:8:3",
            "triangle:0",
            "indexed:1:2",
            "vector:a:b",
            "square:3",
        ] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn squares_hold_what_is_asked_and_no_row_more() {
        for bytes in [1, 8, 9, 1000, 8192, 1 << 20] {
            for (name, of) in [
                ("matrix", (|n| n * n) as fn(usize) -> usize),
                ("transpose", |n| n * n),
                ("triangle", |n| n * (n + 1) / 2),
            ] {
                let shape = name.parse::<Pattern>().unwrap().shape(bytes).unwrap();
                let n = (1..).find(|n| 8 * of(*n) >= bytes).unwrap();
                assert_eq!(shape.bytes(), 8 * of(n), "{name} {bytes}");
            }
        }
    }

    #[test]
    fn loops_by_hand_agree_with_the_library() {
        for name in [
            "contiguous",
            "vector:8:16",
            "vector:3:7",
            "vector:24:40",
            "indexed",
            "triangle:9",
            "triangle",
            "matrix",
            "matrix:5",
            "transpose:6",
            "face:7:0",
            "face:7:1",
            "face:7:2",
        ] {
            let shape = name.parse::<Pattern>().unwrap().shape(1000).unwrap();
            let from: Vec<u8> = (0..shape.span()).map(|i| (i * 7 % 251) as u8).collect();
            let bytes = shape.bytes();
            let (mut one, mut two) = (vec![0; bytes], vec![0; bytes]);
            shape.layout.pack(&from, 0, 1, 0..bytes, &mut one).unwrap();
            shape.blocks.pack_by_hand(&from, &mut two);
            assert_eq!(one, two, "{name}");
        }
    }
}
