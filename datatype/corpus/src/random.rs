//! Types drawn from a seed, and smaller ones for a type that fails a test.
//!
//! A seed names one type for ever: tests print it, and the same number brings
//! the type back. Trees have gaps, negative strides, zero counts and moved
//! bounds, and some touch a byte twice.

use osier_datatype::{
    Basic, Constructor, DarrayDimension, Distribution, Order, Pair, Type, TypeError,
};

/// splitmix64: one word of state, every seed as good as another.
///
/// Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number
/// Generators", OOPSLA 2014.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    #[allow(
        clippy::should_implement_trait,
        reason = "not an iterator: it never ends"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n > 0`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1).cast_unsigned()).cast_signed()
    }

    fn small(&mut self, n: u64) -> usize {
        self.below(n) as usize
    }

    fn offset(&mut self, reach: i64) -> isize {
        self.between(-reach, reach) as isize
    }
}

/// Deepest nesting of constructors over a leaf.
const DEPTH: u32 = 4;

/// A type of at most `max_bytes` bytes of payload; any if its seed gives small
/// ones only.
pub fn tree(random: &mut Random, max_bytes: usize) -> Type {
    loop {
        // Small constructors cannot overflow; a draw that does is drawn again.
        if let Ok(ty) = node(random, DEPTH)
            && ty.size() <= max_bytes
        {
            return ty;
        }
    }
}

/// A type that no byte belongs to twice and that has payload, as receives and
/// benchmarks want it.
pub fn plain_tree(random: &mut Random, max_bytes: usize) -> Type {
    loop {
        let ty = tree(random, max_bytes);
        if ty.size() > 0 && ty.commit().is_ok_and(|layout| !layout.self_overlaps(1)) {
            return ty;
        }
    }
}

/// Nested loops over blocks that no byte belongs to twice: an array of up to five
/// dimensions whose elements are packed in any order, some backwards, with
/// padding; at times at listed places or with fields of its own.
pub fn grid(random: &mut Random, max_bytes: usize) -> Type {
    const COUNTS: [usize; 9] = [2, 3, 4, 7, 8, 16, 17, 33, 70];
    loop {
        let widest = if random.below(4) == 0 { 300 } else { 33 };
        let width = 1 + random.small(widest);
        let dimensions = 1 + random.small(4);
        let counts: Vec<usize> = (0..dimensions).map(|_| COUNTS[random.small(9)]).collect();
        if counts.iter().product::<usize>() * width > max_bytes {
            continue;
        }
        // In memory the dimensions are nested in an order of their own.
        let mut order: Vec<usize> = (0..dimensions).collect();
        for i in (1..dimensions).rev() {
            order.swap(i, random.small(i as u64 + 1));
        }
        let mut strides = vec![0; dimensions];
        let mut reach = width + random.small(3) * width;
        for d in order {
            strides[d] = reach as isize;
            if random.below(6) == 0 {
                strides[d] = -strides[d];
            }
            reach = reach * counts[d] + random.small(40);
        }
        let mut ty = Type::contiguous(width, &Type::basic(Basic::U8));
        for d in (0..dimensions).rev() {
            ty = ty.and_then(|ty| Type::hvector(counts[d], 1, strides[d], &ty));
        }
        if random.below(4) == 0 {
            let step = 2 * reach as i64;
            let at: Vec<isize> = (0..1 + random.below(5) as i64)
                .map(|i| (i * step + random.between(0, reach as i64)) as isize)
                .collect();
            ty = ty.and_then(|ty| Type::hindexed_block(1, &at, &ty));
        }
        match ty {
            Ok(ty) if ty.size() <= max_bytes => return ty,
            _ => {}
        }
    }
}

/// Rows of equal blocks at one distance, each with a number of blocks of its own, as those of
/// triangles and bands: one inside of another or one behind the other, some backwards. No byte
/// belongs to two of them.
pub fn ragged(random: &mut Random, max_bytes: usize) -> Type {
    const WIDTHS: [usize; 8] = [1, 2, 3, 4, 8, 8, 16, 24];
    let width = WIDTHS[random.small(8)];
    let rows = 2 + random.small(40);
    let most = (max_bytes / width / rows).max(1);
    let shape = random.below(4);
    let counts: Vec<usize> = (0..rows)
        .map(|row| match shape {
            0 => 1 + (most - 1) * row / rows,
            1 => most - (most - 1) * row / rows,
            2 => most - random.small(most.min(3) as u64),
            _ => 1 + random.small(most as u64),
        })
        .collect();
    let gap = match random.below(2) {
        0 => width * (1 + random.small(3)),
        _ => 1 + random.small(9),
    };
    let slot = (width + gap) as isize;
    let interleaved = random.below(3) > 0;
    let distance = match interleaved {
        true => slot * rows as isize,
        false => slot,
    };
    let backwards = random.below(6) == 0;
    let mut behind = 0;
    let fields = (0..).zip(counts).map(|(row, count)| {
        let reach = count as isize * distance;
        let at = match interleaved {
            // A slot of each row in each distance; each row begins anywhere.
            true => row * slot + distance * random.between(-3, 3) as isize,
            false => {
                behind += reach + random.small(20) as isize;
                behind - reach
            }
        };
        let (at, step) = match backwards {
            true => (at + reach - distance, -distance),
            false => (at, distance),
        };
        Type::hvector(count, width, step, &Type::basic(Basic::U8)).map(|row| (1, at, row))
    });
    let ty = (fields.collect::<Result<Vec<_>, _>>()).and_then(|fields| Type::structure(&fields));
    ty.unwrap_or_else(|_| Type::basic(Basic::U8))
}

/// Another layout with the signature of `ty`: its runs cut into pieces that lie
/// in any order with gaps between. No byte belongs to two of them.
pub fn same_signature(random: &mut Random, ty: &Type) -> Type {
    let mut pieces = Vec::new();
    for (basic, count) in ty.signature().runs() {
        let mut left = count as usize;
        while left > 0 {
            let n = (1 + random.small(12)).min(left);
            pieces.push((n, basic));
            left -= n;
        }
    }
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    if random.below(2) == 0 {
        for i in (1..order.len()).rev() {
            order.swap(i, random.small(i as u64 + 1));
        }
    }
    let mut at = random.between(-100, 100) as isize;
    let mut places = vec![0; pieces.len()];
    for i in order {
        at += random.small(9) as isize;
        places[i] = at;
        at += (pieces[i].0 * pieces[i].1.size()) as isize;
    }
    let fields: Vec<_> = pieces
        .into_iter()
        .zip(places)
        .map(|((n, basic), at)| (n, at, Type::basic(basic)))
        .collect();
    Type::structure(&fields).unwrap_or_else(|_| ty.clone())
}

fn leaf(random: &mut Random) -> Type {
    const LEAVES: [Basic; 6] = [
        Basic::U8,
        Basic::I16,
        Basic::F32,
        Basic::F64,
        Basic::C32,
        Basic::C64,
    ];
    match random.below(10) {
        0 => Type::pair(Pair::ALL[random.small(Pair::ALL.len() as u64)]),
        1 | 2 => Type::basic(Basic::ALL[random.small(Basic::ALL.len() as u64)]),
        _ => Type::basic(LEAVES[random.small(LEAVES.len() as u64)]),
    }
}

/// One dimension of a darray, dealt out in any way.
fn dimension(random: &mut Random) -> DarrayDimension {
    let (size, processes) = (1 + random.small(7), 1 + random.small(3));
    match random.below(4) {
        0 => DarrayDimension::whole(size),
        1 => DarrayDimension::block(size, processes),
        2 => DarrayDimension::cyclic(size, 1 + random.small(3), processes),
        _ => DarrayDimension {
            size,
            distribution: Distribution::Block,
            argument: Some(size.div_ceil(processes) + random.small(2)),
            processes,
        },
    }
}

fn order(random: &mut Random) -> Order {
    match random.below(2) {
        0 => Order::C,
        _ => Order::Fortran,
    }
}

fn node(random: &mut Random, depth: u32) -> Result<Type, TypeError> {
    if depth == 0 || random.below(5) == 0 {
        return Ok(leaf(random));
    }
    let kind = random.below(12);
    if kind == 8 {
        let fields: Vec<_> = (0..random.below(4))
            .map(|_| {
                let old = node(random, depth - 1)?;
                Ok((random.small(3), random.offset(60), old))
            })
            .collect::<Result<_, TypeError>>()?;
        return Type::structure(&fields);
    }
    let old = node(random, depth - 1)?;
    let mut list = |reach: i64| -> Vec<(usize, isize)> {
        (0..random.below(6))
            .map(|_| (random.small(4), random.offset(reach)))
            .collect()
    };
    match kind {
        0 => Type::contiguous(random.small(5), &old),
        1 => {
            let (n, block, stride) = (random.small(5), random.small(4), random.offset(5));
            Type::vector(n, block, stride, &old)
        }
        2 => {
            let (n, block, stride) = (random.small(5), random.small(4), random.offset(70));
            Type::hvector(n, block, stride, &old)
        }
        3 => Type::indexed(&list(9), &old),
        4 => Type::hindexed(&list(90), &old),
        5 | 6 => {
            let reach = if kind == 5 { 9 } else { 90 };
            let at: Vec<isize> = list(reach).into_iter().map(|(_, at)| at).collect();
            let block = random.small(4);
            match kind {
                5 => Type::indexed_block(block, &at, &old),
                _ => Type::hindexed_block(block, &at, &old),
            }
        }
        7 => {
            let (mut sizes, mut subsizes, mut starts) = (vec![], vec![], vec![]);
            for _ in 0..1 + random.below(3) {
                let (subsize, before) = (1 + random.small(3), random.small(3));
                sizes.push(before + subsize + random.small(3));
                subsizes.push(subsize);
                starts.push(before);
            }
            Type::subarray(&sizes, &subsizes, &starts, order(random), &old)
        }
        9 => {
            let dimensions: Vec<_> = (0..1 + random.below(3))
                .map(|_| dimension(random))
                .collect();
            let ranks = dimensions.iter().map(|d| d.processes).product();
            let rank = random.small(ranks as u64);
            Type::darray(ranks, rank, &dimensions, order(random), &old)
        }
        10 => old.dup(),
        _ => Type::resized(random.offset(20), random.between(-40, 80) as isize, &old),
    }
}

/// The smallest type found that still fails, by taking parts of it away.
pub fn shrink(ty: &Type, fails: impl Fn(&Type) -> bool) -> Type {
    let mut kept = ty.clone();
    while let Some(next) = smaller(&kept).into_iter().find(|ty| fails(ty)) {
        kept = next;
    }
    kept
}

/// Types with a part less than this one, the smallest first.
fn smaller(ty: &Type) -> Vec<Type> {
    let mut out = Vec::new();
    let mut keep = |ty: Result<Type, TypeError>| out.extend(ty.ok());
    match ty.constructor() {
        Constructor::Contiguous { count, old } => {
            keep(Ok(old.clone()));
            for n in fewer(*count) {
                keep(Type::contiguous(n, old));
            }
            for old in smaller(old) {
                keep(Type::contiguous(*count, &old));
            }
        }
        Constructor::Vector {
            count,
            blocklength,
            stride,
            old,
        } => {
            let (n, b, s) = (*count, *blocklength, *stride);
            keep(Ok(old.clone()));
            fewer(n).for_each(|n| keep(Type::vector(n, b, s, old)));
            fewer(b).for_each(|b| keep(Type::vector(n, b, s, old)));
            nearer(s).for_each(|s| keep(Type::vector(n, b, s, old)));
            for old in smaller(old) {
                keep(Type::vector(n, b, s, &old));
            }
        }
        Constructor::Hvector {
            count,
            blocklength,
            stride_bytes,
            old,
        } => {
            let (n, b, s) = (*count, *blocklength, *stride_bytes);
            keep(Ok(old.clone()));
            fewer(n).for_each(|n| keep(Type::hvector(n, b, s, old)));
            fewer(b).for_each(|b| keep(Type::hvector(n, b, s, old)));
            nearer(s).for_each(|s| keep(Type::hvector(n, b, s, old)));
            for old in smaller(old) {
                keep(Type::hvector(n, b, s, &old));
            }
        }
        Constructor::Indexed { blocks, old } => {
            keep(Ok(old.clone()));
            less(blocks).for_each(|blocks| keep(Type::indexed(&blocks, old)));
            for old in smaller(old) {
                keep(Type::indexed(blocks, &old));
            }
        }
        Constructor::Hindexed { blocks, old } => {
            keep(Ok(old.clone()));
            less(blocks).for_each(|blocks| keep(Type::hindexed(&blocks, old)));
            for old in smaller(old) {
                keep(Type::hindexed(blocks, &old));
            }
        }
        Constructor::IndexedBlock {
            blocklength,
            displacements: at,
            old,
        } => {
            keep(Ok(old.clone()));
            fewer(*blocklength).for_each(|b| keep(Type::indexed_block(b, at, old)));
            less(at).for_each(|at| keep(Type::indexed_block(*blocklength, &at, old)));
            for old in smaller(old) {
                keep(Type::indexed_block(*blocklength, at, &old));
            }
        }
        Constructor::HindexedBlock {
            blocklength,
            displacements: at,
            old,
        } => {
            keep(Ok(old.clone()));
            fewer(*blocklength).for_each(|b| keep(Type::hindexed_block(b, at, old)));
            less(at).for_each(|at| keep(Type::hindexed_block(*blocklength, &at, old)));
            for old in smaller(old) {
                keep(Type::hindexed_block(*blocklength, at, &old));
            }
        }
        Constructor::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            old,
        } => {
            keep(Ok(old.clone()));
            for old in smaller(old) {
                keep(Type::subarray(sizes, subsizes, starts, *order, &old));
            }
        }
        Constructor::Structure { fields } => {
            fields.iter().for_each(|field| keep(Ok(field.2.clone())));
            less(fields).for_each(|fields| keep(Type::structure(&fields)));
            for (i, (n, at, old)) in fields.iter().enumerate() {
                let mut with = |n: usize, at: isize, old: Type| {
                    let mut fields = fields.to_vec();
                    fields[i] = (n, at, old);
                    keep(Type::structure(&fields));
                };
                fewer(*n).for_each(|n| with(n, *at, old.clone()));
                smaller(old).into_iter().for_each(|old| with(*n, *at, old));
            }
        }
        Constructor::Resized { lb, extent, old } => {
            keep(Ok(old.clone()));
            for old in smaller(old) {
                keep(Type::resized(*lb, *extent, &old));
            }
        }
        // What the others are made of is smaller.
        other => out.extend(other.types().cloned()),
    }
    out
}

fn fewer(n: usize) -> impl Iterator<Item = usize> {
    [n / 2, n.saturating_sub(1)]
        .into_iter()
        .filter(move |&m| m < n)
}

fn nearer(s: isize) -> impl Iterator<Item = isize> {
    let half = s / 2;
    (half != s).then_some(half).into_iter()
}

/// The list without its first half, its second half, or one entry.
fn less<T: Clone>(list: &[T]) -> impl Iterator<Item = Vec<T>> {
    let n = list.len();
    let halves = [n / 2..n, 0..n / 2]
        .into_iter()
        .filter(move |r| r.len() < n);
    let ones = (0..n).map(|i| [&list[..i], &list[i + 1..]].concat());
    halves.map(|range| list[range].to_vec()).chain(ones)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_a_type() {
        let draw = |seed| format!("{:?}", tree(&mut Random::new(seed), 1000));
        assert_eq!(draw(7), draw(7));
        let different: std::collections::HashSet<String> = (0..100).map(draw).collect();
        assert!(different.len() > 60);
    }

    #[test]
    fn shrinking_keeps_the_failure() {
        for seed in 0..200 {
            let ty = tree(&mut Random::new(seed), 4000);
            let negative = |ty: &Type| ty.true_lb() < 0;
            if negative(&ty) {
                let small = shrink(&ty, negative);
                assert!(negative(&small));
                assert!(small.size() <= ty.size());
                assert!(smaller(&small).iter().all(|ty| !negative(ty)));
            }
        }
    }
}
