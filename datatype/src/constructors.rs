//! MPI's type constructors.
//!
//! # Sources
//! MPI: A Message-Passing Interface Standard, version 4.1, section 5.1. Strides
//! and displacements "in elements" count extents of the old type. A zero count
//! gives the empty type, which has no bounds markers either.

use crate::bounds::{Copies, Facts, narrow, overflow};
use crate::tree::{MAX_DEPTH, Node};
use crate::{Basic, Constructor, Order, Type, TypeError, wide};
use std::sync::{Arc, OnceLock};

impl Type {
    /// A predefined type.
    pub fn basic(basic: Basic) -> Type {
        Type(Arc::new(Node {
            facts: Facts::basic(basic),
            constructor: Constructor::Basic(basic),
            depth: 0,
            meaning: None,
            labels: OnceLock::new(),
        }))
    }

    /// A new type with the same typemap and bounds, without a name, and with
    /// the attributes that their copy functions hand on.
    ///
    /// # Errors
    /// A copy function failed, or the tree is too deep.
    pub fn dup(&self) -> Result<Type, TypeError> {
        let old = self.clone();
        let twin = Type::meaning("dup", self.clone(), Constructor::Dup { old })?;
        twin.inherit_attributes(self)?;
        Ok(twin)
    }

    /// `count` elements, each an extent after the last.
    ///
    /// ```
    /// use osier_datatype::{Order, Type};
    /// let three = Type::contiguous(3, &Type::of::<f64>())?;
    /// assert_eq!((three.size(), three.extent()), (24, 24));
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn contiguous(count: usize, old: &Type) -> Result<Type, TypeError> {
        const NAME: &str = "contiguous";
        let copies = grid(NAME, &[(count, old.extent())])?;
        let facts = old.0.facts.copies(NAME, &copies)?;
        let old = old.clone();
        Type::derived(NAME, facts, Constructor::Contiguous { count, old })
    }

    /// `count` blocks of `blocklength` elements, `stride` extents apart.
    ///
    /// A column of a matrix of rows is such a type.
    ///
    /// ```
    /// use osier_datatype::{Order, Type};
    /// // The first column of a matrix of 4 rows of 6.
    /// let column = Type::vector(4, 1, 6, &Type::of::<f64>())?.commit()?;
    /// assert_eq!(column.size(), 4 * 8);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn vector(
        count: usize,
        blocklength: usize,
        stride: isize,
        old: &Type,
    ) -> Result<Type, TypeError> {
        const NAME: &str = "vector";
        let stride_bytes = scale(NAME, stride, old.extent())?;
        let copies = grid(NAME, &[(count, stride_bytes), (blocklength, old.extent())])?;
        let facts = old.0.facts.copies(NAME, &copies)?;
        let constructor = Constructor::Vector {
            count,
            blocklength,
            stride,
            old: old.clone(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// `count` blocks of `blocklength` elements, `stride_bytes` apart.
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn hvector(
        count: usize,
        blocklength: usize,
        stride_bytes: isize,
        old: &Type,
    ) -> Result<Type, TypeError> {
        const NAME: &str = "hvector";
        let copies = grid(NAME, &[(count, stride_bytes), (blocklength, old.extent())])?;
        let facts = old.0.facts.copies(NAME, &copies)?;
        let constructor = Constructor::Hvector {
            count,
            blocklength,
            stride_bytes,
            old: old.clone(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// Blocks of (elements, displacement in extents).
    ///
    /// ```
    /// use osier_datatype::{Order, Type};
    /// let parts = Type::indexed(&[(2, 0), (1, 5)], &Type::of::<i32>())?.commit()?;
    /// assert_eq!(parts.blocks(1).collect::<Vec<_>>(), [(0, 8), (20, 4)]);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn indexed(blocks: &[(usize, isize)], old: &Type) -> Result<Type, TypeError> {
        const NAME: &str = "indexed";
        let facts = list(NAME, blocks.iter().copied(), old.extent(), old)?;
        let constructor = Constructor::Indexed {
            blocks: blocks.into(),
            old: old.clone(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// Blocks of (elements, displacement in bytes).
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn hindexed(blocks: &[(usize, isize)], old: &Type) -> Result<Type, TypeError> {
        const NAME: &str = "hindexed";
        let facts = list(NAME, blocks.iter().copied(), 1, old)?;
        let constructor = Constructor::Hindexed {
            blocks: blocks.into(),
            old: old.clone(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// Blocks of `blocklength` elements at displacements in extents.
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn indexed_block(
        blocklength: usize,
        displacements: &[isize],
        old: &Type,
    ) -> Result<Type, TypeError> {
        const NAME: &str = "indexed_block";
        let blocks = displacements.iter().map(|&d| (blocklength, d));
        let facts = list(NAME, blocks, old.extent(), old)?;
        let constructor = Constructor::IndexedBlock {
            blocklength,
            displacements: displacements.into(),
            old: old.clone(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// Blocks of `blocklength` elements at displacements in bytes.
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn hindexed_block(
        blocklength: usize,
        displacements: &[isize],
        old: &Type,
    ) -> Result<Type, TypeError> {
        const NAME: &str = "hindexed_block";
        let blocks = displacements.iter().map(|&d| (blocklength, d));
        let facts = list(NAME, blocks, 1, old)?;
        let constructor = Constructor::HindexedBlock {
            blocklength,
            displacements: displacements.into(),
            old: old.clone(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// A box of `subsizes` elements from `starts` on in an array of `sizes`.
    /// Its extent is that of the whole array.
    ///
    /// So instances of it lie in arrays one after the other.
    ///
    /// ```
    /// use osier_datatype::{Order, Type};
    /// // The right half of a 2 x 4 matrix in C's order.
    /// let half = Type::subarray(&[2, 4], &[2, 2], &[0, 2], Order::C, &Type::of::<u8>())?.commit()?;
    /// assert_eq!(half.blocks(1).collect::<Vec<_>>(), [(2, 2), (6, 2)]);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    ///
    /// # Errors
    /// [`TypeError::Dimensions`], if the lists differ in length or are empty;
    /// [`TypeError::Subarray`], if the box is empty or reaches out of the array; else as
    /// [`Type::vector`].
    pub fn subarray(
        sizes: &[usize],
        subsizes: &[usize],
        starts: &[usize],
        order: Order,
        old: &Type,
    ) -> Result<Type, TypeError> {
        const NAME: &str = "subarray";
        if sizes.is_empty() || subsizes.len() != sizes.len() || starts.len() != sizes.len() {
            return Err(TypeError::Dimensions {
                sizes: sizes.len(),
                subsizes: subsizes.len(),
                starts: starts.len(),
            });
        }
        for (dimension, &size) in sizes.iter().enumerate() {
            let (subsize, start) = (subsizes[dimension], starts[dimension]);
            if subsize == 0 || start.checked_add(subsize).is_none_or(|end| end > size) {
                return Err(TypeError::Subarray {
                    dimension,
                    size,
                    subsize,
                    start,
                });
            }
        }
        let dimensions = fastest_first(sizes, subsizes, starts, order);
        let mut stride = old.extent();
        let mut first = 0;
        let mut levels = Vec::with_capacity(sizes.len());
        for &(size, subsize, start) in &dimensions {
            first += start as i128 * stride as i128;
            levels.push((subsize, stride));
            stride = narrow(NAME, size as i128 * stride as i128)?;
        }
        let mut copies = grid(NAME, &levels)?;
        copies.low += first;
        copies.high += first;
        let facts = old.0.facts.copies(NAME, &copies)?;
        let facts = facts.marked(NAME, 0, stride as i128)?;
        let constructor = Constructor::Subarray {
            sizes: sizes.into(),
            subsizes: subsizes.into(),
            starts: starts.into(),
            order,
            old: old.clone(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// Fields of (elements, displacement in bytes, type).
    ///
    /// For Rust's types `#[derive(Datatype)]` writes it.
    ///
    /// ```
    /// use osier_datatype::{Order, Type};
    /// let pair = Type::structure(&[(1, 0, Type::of::<u32>()), (2, 8, Type::of::<f64>())])?;
    /// assert_eq!((pair.size(), pair.extent()), (20, 24));
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn structure(fields: &[(usize, isize, Type)]) -> Result<Type, TypeError> {
        const NAME: &str = "struct";
        let mut parts = Vec::with_capacity(fields.len());
        for (blocklength, displacement, old) in fields {
            let mut copies = grid(NAME, &[(*blocklength, old.extent())])?;
            copies.low += *displacement as i128;
            copies.high += *displacement as i128;
            parts.push(old.0.facts.copies(NAME, &copies)?);
        }
        let facts = Facts::sequence(NAME, parts)?;
        let constructor = Constructor::Structure {
            fields: fields.into(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// The same typemap with lower bound and extent set.
    ///
    /// The extent says how far apart instances lie.
    ///
    /// ```
    /// use osier_datatype::{Order, Type};
    /// // Every fourth byte, as often as a count says.
    /// let fourth = Type::resized(0, 4, &Type::of::<u8>())?.commit()?;
    /// assert_eq!(fourth.blocks(2).collect::<Vec<_>>(), [(0, 1), (4, 1)]);
    /// # Ok::<(), osier_datatype::TypeError>(())
    /// ```
    ///
    /// # Errors
    /// [`TypeError::Overflow`], if a size, bound or displacement exceeds 64 bits;
    /// [`TypeError::Depth`], if the tree is too deep.
    pub fn resized(lb: isize, extent: isize, old: &Type) -> Result<Type, TypeError> {
        const NAME: &str = "resized";
        let facts = old.0.facts.clone().marked(NAME, lb, extent as i128)?;
        let constructor = Constructor::Resized {
            lb,
            extent,
            old: old.clone(),
        };
        Type::derived(NAME, facts, constructor)
    }

    /// A type that stands for a simpler one.
    pub(crate) fn meaning(
        name: &'static str,
        meaning: Type,
        constructor: Constructor,
    ) -> Result<Type, TypeError> {
        let depth = deeper(name, meaning.0.depth)?;
        Ok(Type(Arc::new(Node {
            constructor,
            facts: meaning.0.facts.clone(),
            depth,
            meaning: Some(meaning),
            labels: OnceLock::new(),
        })))
    }

    fn derived(
        name: &'static str,
        facts: Facts,
        constructor: Constructor,
    ) -> Result<Type, TypeError> {
        let old = constructor.types();
        let depth = deeper(name, old.map(|old| old.0.depth).max().unwrap_or(0))?;
        Ok(Type(Arc::new(Node {
            constructor,
            facts,
            depth,
            meaning: None,
            labels: OnceLock::new(),
        })))
    }
}

/// Depth around an old type.
fn deeper(constructor: &'static str, depth: u32) -> Result<u32, TypeError> {
    if depth >= MAX_DEPTH {
        return Err(TypeError::Depth {
            constructor,
            limit: MAX_DEPTH,
        });
    }
    Ok(depth + 1)
}

/// (size, subsize, start) of each dimension, the fastest varying one first.
pub(crate) fn fastest_first(
    sizes: &[usize],
    subsizes: &[usize],
    starts: &[usize],
    order: Order,
) -> Vec<(usize, usize, usize)> {
    let mut dimensions: Vec<_> = sizes
        .iter()
        .zip(subsizes)
        .zip(starts)
        .map(|((&size, &subsize), &start)| (size, subsize, start))
        .collect();
    if order == Order::C {
        dimensions.reverse();
    }
    dimensions
}

/// Copies at all combinations of (count, stride in bytes).
fn grid(name: &'static str, levels: &[(usize, isize)]) -> Result<Copies, TypeError> {
    let mut copies = Copies {
        count: 1,
        low: 0,
        high: 0,
    };
    for &(count, stride) in levels {
        copies.count = copies
            .count
            .checked_mul(count as u128)
            .ok_or(overflow(name, "size"))?;
        let reach = (count as i128 - 1).max(0) * stride as i128;
        // A sum of at most 2^6 terms below 2^127 may leave the range: stay in 64 bits.
        copies.low += narrow(name, reach.min(0))? as i128;
        copies.high += narrow(name, reach.max(0))? as i128;
    }
    Ok(copies)
}

/// Facts of listed blocks with displacements counted in `unit` bytes.
fn list(
    name: &'static str,
    blocks: impl ExactSizeIterator<Item = (usize, isize)> + Clone,
    unit: isize,
    old: &Type,
) -> Result<Facts, TypeError> {
    if unit == old.extent()
        && let Some((count, first, last)) = elements(blocks.clone())
    {
        // Both ends stay ends, or change places.
        let (a, b) = (first as i128 * unit as i128, last as i128 * unit as i128);
        let copies = Copies {
            count: count as u128,
            low: narrow(name, a.min(b))? as i128,
            high: narrow(name, a.max(b))? as i128,
        };
        return old.0.facts.copies(name, &copies);
    }
    let extent = old.extent();
    let mut copies = Copies {
        count: 0,
        low: i128::MAX,
        high: i128::MIN,
    };
    let mut count = 0usize;
    let (mut low, mut high) = (isize::MAX, isize::MIN);
    for (blocklength, displacement) in blocks {
        if blocklength == 0 {
            continue;
        }
        let first = displacement
            .checked_mul(unit)
            .ok_or(overflow(name, "displacement"))?;
        let last = isize::try_from(blocklength - 1)
            .ok()
            .and_then(|n| n.checked_mul(extent))
            .and_then(|reach| first.checked_add(reach))
            .ok_or(overflow(name, "displacement"))?;
        count = count
            .checked_add(blocklength)
            .ok_or(overflow(name, "size"))?;
        low = low.min(first.min(last));
        high = high.max(first.max(last));
    }
    if count > 0 {
        copies = Copies {
            count: count as u128,
            low: low as i128,
            high: high as i128,
        };
    }
    old.0.facts.copies(name, &copies)
}

/// Number, first and last of listed elements; none if there is no element, or a
/// number so large that sums may overflow.
fn elements(
    blocks: impl ExactSizeIterator<Item = (usize, isize)>,
) -> Option<(usize, isize, isize)> {
    const LARGE: u32 = 31;
    if blocks.len() >> LARGE != 0 {
        return None;
    }
    let (count, bits, first, last) = wide::run(|| {
        let (mut count, mut bits) = (0usize, 0usize);
        let (mut first, mut last) = (isize::MAX, isize::MIN);
        for (length, at) in blocks {
            bits |= length | (at ^ (at >> (isize::BITS - 1))).cast_unsigned();
            count = count.wrapping_add(length);
            let end = at.wrapping_add_unsigned(length).wrapping_sub(1);
            first = first.min(if length == 0 { isize::MAX } else { at });
            last = last.max(if length == 0 { isize::MIN } else { end });
        }
        (count, bits, first, last)
    });
    (bits >> LARGE == 0 && count > 0).then_some((count, first, last))
}

fn scale(name: &'static str, stride: isize, extent: isize) -> Result<isize, TypeError> {
    stride
        .checked_mul(extent)
        .ok_or(overflow(name, "displacement"))
}
