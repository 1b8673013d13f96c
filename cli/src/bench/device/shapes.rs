//! What is packed on a device: the shapes of Wu and others (HPDC 2016), block widths
//! and strides, structures, listed blocks, slices of paged caches, random types, and
//! the layouts of real programs.

use osier::Type;
use osier::datatype::{Basic, TypeError};
use osier_datatype_corpus::random::{Random, plain_tree};
use osier_datatype_corpus::shapes::Shape;

/// Step of the stair triangle, in elements: what one thread block moves at least.
const STAIR: usize = 256;
/// Blocks of the listed shapes.
const LISTED: [usize; 3] = [100_000, 1_000_000, 10_000_000];

type Result<T> = std::result::Result<T, TypeError>;

fn shape(name: impl Into<String>, family: &str, datatype: Type, count: usize) -> Shape {
    Shape {
        name: name.into(),
        family: family.into(),
        datatype,
        count,
        overlaps: false,
    }
}

/// Shapes of about this payload: regular ones, structures, caches, random types.
pub fn sized(bytes: usize, trees: u64) -> Result<Vec<Shape>> {
    let mut all = matrices(bytes)?;
    all.extend(widths(bytes)?);
    all.extend(structures(bytes)?);
    all.extend(caches(bytes)?);
    for seed in 0..trees {
        all.push(random(seed, bytes)?);
    }
    Ok(all)
}

/// Shapes with a payload of their own: up to so many listed blocks, and the corpus.
pub fn unsized_(most_blocks: usize) -> std::result::Result<Vec<Shape>, String> {
    let mut all = Vec::new();
    for blocks in LISTED.into_iter().filter(|&blocks| blocks <= most_blocks) {
        all.push(listed(blocks).map_err(|e| e.to_string())?);
    }
    for entry in osier_datatype_corpus::entries()? {
        all.push(Shape {
            datatype: entry.datatype()?,
            overlaps: entry.facts.overlaps,
            ..shape(entry.name, "corpus", Type::basic(Basic::U8), entry.count)
        });
    }
    Ok(all)
}

fn root(n: usize) -> usize {
    (n as f64).sqrt().round().max(1.0) as usize
}

fn matrices(bytes: usize) -> Result<Vec<Shape>> {
    let f64 = Type::basic(Basic::F64);
    let (n, side) = (root(bytes / 8), root(bytes / 4));
    let column = Type::vector(n, 1, n as isize, &f64)?;
    let lower = |side: usize, step: usize| -> Vec<(usize, isize)> {
        let columns = (0..side).map(|column| (column, column / step * step));
        columns
            .map(|(column, top)| (side - top, (column * side + top) as isize))
            .collect()
    };
    // What the steps add to the triangle is taken from its side.
    let step = STAIR.min(side / 4).max(1);
    let stair = (side as f64 / (1.0 + step as f64 / side as f64).sqrt()) as usize;
    Ok(vec![
        shape(
            "contiguous",
            "matrix",
            Type::contiguous(bytes / 8, &f64)?,
            1,
        ),
        shape("V", "matrix", Type::vector(n, n, 2 * n as isize, &f64)?, 1),
        shape("T", "matrix", Type::indexed(&lower(side, 1), &f64)?, 1),
        shape(
            "stair",
            "matrix",
            Type::indexed(&lower(stair, step), &f64)?,
            1,
        ),
        shape("transpose", "matrix", Type::resized(0, 8, &column)?, n),
    ])
}

/// Blocks of 4 bytes to 4 KiB: twice and four times as far apart, and one element.
fn widths(bytes: usize) -> Result<Vec<Shape>> {
    let f32 = Type::basic(Basic::F32);
    let mut all = Vec::new();
    for width in (0..11).map(|k| 4usize << k) {
        for stride in [2 * width, 4 * width, width + 4] {
            let count = (bytes / width).max(1);
            let ty = Type::vector(count, width / 4, (stride / 4) as isize, &f32)?;
            let name = format!("block-{width}-{stride}");
            // The narrowest block's last stride is its first.
            if all.iter().all(|known: &Shape| known.name != name) {
                all.push(shape(name, "width", ty, 1));
            }
        }
    }
    Ok(all)
}

fn structures(bytes: usize) -> Result<Vec<Shape>> {
    let basic = |basic| Type::basic(basic);
    let record = Type::structure(&[
        (1, 0, basic(Basic::I32)),
        (1, 8, basic(Basic::F64)),
        (3, 20, basic(Basic::U8)),
    ])?;
    let record = Type::resized(0, 24, &record)?;
    let member = Type::resized(0, 32, &basic(Basic::F32))?;
    let n = (bytes / 20).max(1);
    let apart = |k: usize| (10 * n * k) as isize;
    let arrays = Type::structure(&[
        (n, 0, basic(Basic::F64)),
        (n, apart(1), basic(Basic::F64)),
        (n, apart(2), basic(Basic::F32)),
    ])?;
    Ok(vec![
        shape("aos-15-of-24", "structure", record, (bytes / 15).max(1)),
        shape("aos-4-of-32", "structure", member, (bytes / 4).max(1)),
        shape("soa-8-8-4", "structure", arrays, 1),
    ])
}

/// One head of a paged cache: pages of 4 layers, keys and values, 16 tokens, 8 heads of
/// 128 numbers of 2 bytes. Half of the pages, in any order; or all as nested strides.
fn caches(bytes: usize) -> Result<Vec<Shape>> {
    const HEADS: usize = 8;
    const ROWS: usize = 4 * 2 * 16;
    let head = 256usize;
    let page_bytes = ROWS * HEADS * head;
    let slices = Type::hvector(
        ROWS,
        1,
        (HEADS * head) as isize,
        &Type::contiguous(head / 2, &Type::basic(Basic::F16))?,
    )?;
    let pages = (bytes / (ROWS * head)).max(1);
    let mut places: Vec<isize> = (0..2 * pages)
        .map(|page| (page * page_bytes) as isize)
        .collect();
    let mut random = Random::new(1);
    for i in (1..places.len()).rev() {
        places.swap(i, random.below(i as u64 + 1) as usize);
    }
    places.truncate(pages);
    Ok(vec![
        shape(
            "kv-pages",
            "cache",
            Type::hindexed_block(1, &places, &slices)?,
            1,
        ),
        shape(
            "kv-strided",
            "cache",
            Type::hvector(pages, 1, page_bytes as isize, &slices)?,
            1,
        ),
    ])
}

/// Blocks of 1 to 4 doubles with gaps of 1 to 4.
fn listed(blocks: usize) -> Result<Shape> {
    let mut random = Random::new(1);
    let mut at = 0;
    let list: Vec<(usize, isize)> = (0..blocks)
        .map(|_| {
            let block = (random.between(1, 4) as usize, at);
            at += block.0 as isize + random.between(1, 4) as isize;
            block
        })
        .collect();
    let ty = Type::indexed(&list, &Type::basic(Basic::F64))?;
    Ok(shape(format!("indexed-{blocks}"), "indexed", ty, 1))
}

fn random(seed: u64, bytes: usize) -> Result<Shape> {
    let mut draws = Random::new(seed);
    let ty = loop {
        let ty = plain_tree(&mut draws, 4096);
        // One block is no layout, and a tree of few bytes is a block.
        if ty.size() >= 16 && ty.commit()?.block_count() > 1 {
            break ty;
        }
    };
    let count = (bytes / ty.size()).max(1);
    // Instances must not run into each other.
    let apart = Type::resized(ty.true_lb(), ty.true_extent(), &ty)?;
    Ok(shape(format!("random-{seed}"), "random", apart, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier::Order;

    #[test]
    fn shapes_have_the_payload_that_was_asked_for() {
        for bytes in [64 << 10, 1 << 20] {
            let all = sized(bytes, 4).unwrap();
            for shape in &all {
                let layout = shape.datatype.commit().unwrap();
                let found = layout.packed_bytes(shape.count).unwrap();
                let near = (bytes - bytes / 8..=bytes + bytes / 8).contains(&found);
                assert!(near, "{}: {found} of {bytes}", shape.name);
                assert!(!layout.self_overlaps(shape.count), "{}", shape.name);
            }
            let mut names: Vec<_> = all.iter().map(|shape| &shape.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all.len());
        }
    }

    #[test]
    fn v_is_a_submatrix() {
        let v = &matrices(8 * 64 * 64).unwrap()[1];
        let f64 = Type::basic(Basic::F64);
        let face = Type::subarray(&[64, 128], &[64, 64], &[0, 0], Order::C, &f64).unwrap();
        let (one, other) = (v.datatype.commit().unwrap(), face.commit().unwrap());
        assert!(one.same_bytes(&other));
    }
}
