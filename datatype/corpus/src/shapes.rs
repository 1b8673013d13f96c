//! What `osier bench datatype` and the peers measure: plain shapes, random
//! types, and the corpus.

use crate::entry::entries;
use crate::random::{Random, plain_tree};
use crate::spelling::spell;
use osier_datatype::{Basic, Constructor, Layout, Order, Type, TypeError};

/// A message of instances of one type.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Unique, without blanks.
    pub name: String,
    /// Kind of shape, or of program.
    pub family: String,
    /// The type.
    pub datatype: Type,
    /// Instances.
    pub count: usize,
    /// Touches a byte twice: for sending only.
    pub overlaps: bool,
}

const MIB: usize = 1 << 20;
/// Seeds of the random types that are measured.
const SEEDS: std::ops::Range<u64> = 0..8;
/// Payload of the random types, by repetition.
const RANDOM_BYTES: usize = 256 << 10;

/// All shapes, the corpus last.
///
/// # Errors
/// Says what is wrong with the data of the corpus.
pub fn all() -> Result<Vec<Shape>, String> {
    let mut shapes = plain().map_err(|e| e.to_string())?;
    shapes.extend(SEEDS.map(random));
    for entry in entries()? {
        shapes.push(Shape {
            datatype: entry.datatype()?,
            name: entry.name,
            family: entry.family,
            count: entry.count,
            overlaps: entry.facts.overlaps,
        });
    }
    Ok(shapes)
}

fn plain() -> Result<Vec<Shape>, TypeError> {
    let (u8, f32, f64) = (
        Type::basic(Basic::U8),
        Type::basic(Basic::F32),
        Type::basic(Basic::F64),
    );
    let n = MIB / 8;
    let face = |sub: [usize; 3]| Type::subarray(&[130; 3], &sub, &[1; 3], Order::C, &f64);
    let record = Type::structure(&[
        (1, 0, Type::basic(Basic::I32)),
        (1, 8, f64.clone()),
        (3, 20, u8.clone()),
    ])?;
    let record = Type::resized(0, 24, &record)?;
    let one = |name: &str, family: &str, datatype: Type| Shape {
        name: name.into(),
        family: family.into(),
        datatype,
        count: 1,
        overlaps: false,
    };
    let places = |list: Vec<(usize, isize)>| list.into_iter().map(|(_, at)| at).collect::<Vec<_>>();
    Ok(vec![
        one("contiguous-1m", "contiguous", Type::contiguous(n, &f64)?),
        one("vector-1-2", "vector", Type::vector(MIB, 1, 2, &u8)?),
        one("vector-4-8", "vector", Type::vector(MIB / 4, 1, 2, &f32)?),
        one("vector-4-12", "vector", Type::vector(MIB / 4, 1, 3, &f32)?),
        one("vector-8-16", "vector", Type::vector(n, 1, 2, &f64)?),
        one(
            "vector-8-16-64k",
            "vector",
            Type::vector(n / 16, 1, 2, &f64)?,
        ),
        one(
            "vector-8-16-8k",
            "vector",
            Type::vector(n / 128, 1, 2, &f64)?,
        ),
        one("vector-8-64", "vector", Type::vector(n, 1, 8, &f64)?),
        one("vector-8-512", "vector", Type::vector(n, 1, 64, &f64)?),
        one(
            "vector-8-128-2m",
            "vector",
            Type::vector(2 * n, 1, 16, &f64)?,
        ),
        one(
            "reversed-4-2m",
            "vector",
            Type::vector(MIB / 2, 1, -1, &f32)?,
        ),
        one("reversed-8-2m", "vector", Type::vector(2 * n, 1, -1, &f64)?),
        one("vector-16-32", "vector", Type::vector(n / 2, 2, 4, &f64)?),
        one("vector-24-40", "vector", Type::vector(n / 3, 3, 5, &f64)?),
        one(
            "vector-512-800",
            "vector",
            Type::vector(n / 64, 64, 100, &f64)?,
        ),
        one(
            "indexed-1to4",
            "indexed",
            Type::indexed(&runs(n, 1, 4), &f64)?,
        ),
        one(
            "indexed-1to40",
            "indexed",
            Type::indexed(&runs(n, 1, 40), &f64)?,
        ),
        one(
            "indexed-block-1",
            "indexed",
            Type::indexed_block(1, &places(runs(n, 1, 1)), &f64)?,
        ),
        one(
            "indexed-block-2",
            "indexed",
            Type::indexed_block(2, &places(runs(n, 2, 2)), &f64)?,
        ),
        one(
            "indexed-block-4",
            "indexed",
            Type::indexed_block(4, &places(runs(n, 4, 4)), &f64)?,
        ),
        one("subarray-face-i", "subarray", face([1, 128, 128])?),
        one("subarray-face-j", "subarray", face([128, 1, 128])?),
        one("subarray-face-k", "subarray", face([128, 128, 1])?),
        Shape {
            count: MIB / 15,
            ..one("struct-15-of-24", "struct", record)
        },
    ])
}

/// Blocks of `low..=high` elements with gaps of 1 to 4, together `elements`.
fn runs(elements: usize, low: i64, high: i64) -> Vec<(usize, isize)> {
    let mut random = Random::new(1);
    let (mut at, mut left) = (0, elements);
    let mut list = Vec::new();
    while left > 0 {
        let n = (random.between(low, high) as usize).min(left);
        list.push((n, at));
        at += n as isize + random.between(1, 4) as isize;
        left -= n;
    }
    list
}

fn random(seed: u64) -> Shape {
    let mut draws = Random::new(seed);
    let datatype = loop {
        let ty = plain_tree(&mut draws, 4096);
        let blocks = ty.commit().map_or(0, |layout| layout.block_count());
        // The programs of the peers have to build it too.
        if blocks >= 4 && spell(&ty).is_ok() {
            break ty;
        }
    };
    // Instances must not run into each other either.
    let bytes = datatype.true_extent();
    let count = (RANDOM_BYTES / datatype.size()).max(2);
    let datatype = Type::resized(datatype.true_lb(), bytes, &datatype).unwrap_or(datatype);
    Shape {
        name: format!("random-{seed}"),
        family: "random".into(),
        datatype,
        count,
        overlaps: false,
    }
}

/// The byte that tests and benchmarks put at a distance from the lowest byte.
pub fn pattern(at: usize) -> u8 {
    ((at as u32).wrapping_mul(0x9E37_79B1) >> 24) as u8
}

/// A number that tells packed streams apart.
pub fn checksum(packed: &[u8]) -> u64 {
    packed.iter().fold(0u64, |sum, &b| {
        sum.wrapping_mul(31).wrapping_add(u64::from(b))
    })
}

impl Shape {
    /// The line that tells the programs of the peers what to build: name, count,
    /// `both` or, for sending only, `send`, packed bytes, lowest and one past the highest byte touched, checksum of
    /// the packed [`pattern`], type.
    ///
    /// # Errors
    /// Names a constructor that has no spelling, or what cannot be packed.
    pub fn line(&self, layout: &Layout) -> Result<String, String> {
        let (low, high) = layout.span(self.count);
        let memory: Vec<u8> = (0..low.abs_diff(high)).map(pattern).collect();
        let bytes = layout
            .packed_bytes(self.count)
            .ok_or("more bytes than memory")?;
        let mut packed = vec![0; bytes];
        let direction = if self.overlaps { "send" } else { "both" };
        // The origin may lie outside of what is touched: pack block by block.
        let mut at = 0;
        for (offset, length) in layout.blocks(self.count) {
            let from = low.abs_diff(offset);
            packed[at..at + length].copy_from_slice(&memory[from..from + length]);
            at += length;
        }
        Ok(format!(
            "{} {} {direction} {bytes} {low} {high} {} {}",
            self.name,
            self.count,
            checksum(&packed),
            spell(&self.datatype)?
        ))
    }
}

/// The same type built once more by the same calls, for timing them.
///
/// # Errors
/// As those calls; and for a constructor that is not known here.
pub fn rebuild(ty: &Type) -> Result<Type, TypeError> {
    match ty.constructor() {
        Constructor::Contiguous { count, old } => Type::contiguous(*count, &rebuild(old)?),
        Constructor::Vector {
            count,
            blocklength,
            stride,
            old,
        } => Type::vector(*count, *blocklength, *stride, &rebuild(old)?),
        Constructor::Hvector {
            count,
            blocklength,
            stride_bytes,
            old,
        } => Type::hvector(*count, *blocklength, *stride_bytes, &rebuild(old)?),
        Constructor::Indexed { blocks, old } => Type::indexed(blocks, &rebuild(old)?),
        Constructor::Hindexed { blocks, old } => Type::hindexed(blocks, &rebuild(old)?),
        Constructor::IndexedBlock {
            blocklength,
            displacements,
            old,
        } => Type::indexed_block(*blocklength, displacements, &rebuild(old)?),
        Constructor::HindexedBlock {
            blocklength,
            displacements,
            old,
        } => Type::hindexed_block(*blocklength, displacements, &rebuild(old)?),
        Constructor::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            old,
        } => Type::subarray(sizes, subsizes, starts, *order, &rebuild(old)?),
        Constructor::Structure { fields } => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(n, at, old)| Ok((*n, *at, rebuild(old)?)))
                .collect::<Result<_, TypeError>>()?;
            Type::structure(&fields)
        }
        Constructor::Resized { lb, extent, old } => Type::resized(*lb, *extent, &rebuild(old)?),
        // Predefined types are there already, as in MPI.
        _ => Ok(ty.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn shapes_are_built_again_and_spelled() {
        let shapes = all().unwrap();
        let names: HashSet<&str> = shapes.iter().map(|shape| shape.name.as_str()).collect();
        assert_eq!(names.len(), shapes.len());
        for shape in &shapes {
            let again = rebuild(&shape.datatype).unwrap();
            let (a, b) = (shape.datatype.commit().unwrap(), again.commit().unwrap());
            assert!(a == b, "{}", shape.name);
            assert_eq!(
                a.self_overlaps(shape.count),
                shape.overlaps,
                "{}",
                shape.name
            );
            assert!(spell(&shape.datatype).is_ok(), "{}", shape.name);
            let (low, high) = a.span(shape.count);
            if high - low < MIB as isize {
                let line = shape.line(&a).unwrap();
                assert!(line.starts_with(&format!("{} {} ", shape.name, shape.count)));
            }
        }
    }
}
