//! Symbolic factorization: where the factors of a symmetric pattern have entries.
//!
//! Columns with the same entries below the diagonal are factored together, as a supernode;
//! with few zeros stored, also columns with nearly the same.
//!
//! ```text
//!            J                    the column of supernode J, stored by columns:
//!      +---+---+---+---+          the panel: diagonal block, then the rows below it, as
//!    K | K |K,J|   |   |          high as these together; then block (K, J) for each
//!      +---+---+---+---+          source K, with the rows of K and those columns of J
//!    J | L | J |   |   |          that are rows of K's panel
//!      +---+---+---+---+
//!      | L | L |                  a panel updates each column J that its rows meet: its
//!      +---+---+                  target
//! ```
//!
//! # Invariants
//! 1. `rows[k]` ascend, lie behind supernode `k`, and meet its parent first.
//! 2. Where `rows[k]` meet supernode `j`, those behind `j` are among `rows[j]`: an update
//!    finds a place for each of its rows.
//! 3. `blocks` are sorted by target, then source.
//!
//! # Sources
//! J. Liu, "The Role of Elimination Trees in Sparse Factorization", SIAM J. Matrix Anal.
//! Appl. 11(1), 1990; C. Ashcraft, R. Grimes, "The Influence of Relaxed Supernode Partitions
//! on the Multifrontal Method", ACM TOMS 15(4), 1989. The limits on stored zeros by width
//! are own ones.

use super::pattern::Pattern;
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// A block above the diagonal: an update of a column by a panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The supernode whose panel updates.
    pub source: u32,
    /// The supernode whose column is updated.
    pub target: u32,
    /// Rows of the source's panel that lie in the target: positions in `rows`.
    pub meets: Range<u32>,
    /// Where the block begins in the target's column.
    pub offset: usize,
}

/// Supernodes, and the blocks of the factors.
#[derive(Clone, Debug)]
pub struct Symbolic {
    /// First column of each supernode, and the number of columns.
    first: Vec<u32>,
    /// Supernode of each column.
    supernode_of: Vec<u32>,
    rows: Vec<Vec<u32>>,
    blocks: Vec<Block>,
    /// Of each supernode: its blocks as a target.
    into: Vec<Range<usize>>,
    /// Of each supernode: its blocks as a source, by ascending targets.
    from: Vec<Vec<u32>>,
    /// Values of each column.
    lengths: Vec<usize>,
}

/// How supernodes are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    /// Most columns of a supernode.
    pub most: usize,
    /// Whether supernodes may store zeros.
    pub relaxed: bool,
}

/// The order in which each vertex comes behind its children in the elimination tree, and
/// subtrees stay together: positions in the pattern.
pub fn postorder(pattern: &Pattern) -> Vec<u32> {
    let parent = elimination_tree(pattern);
    let n = parent.len();
    // Children as linked lists, in ascending order.
    let (mut child, mut next) = (vec![NONE; n + 1], vec![NONE; n]);
    for i in (0..n).rev() {
        let up = if parent[i] == NONE {
            n
        } else {
            parent[i] as usize
        };
        next[i] = std::mem::replace(&mut child[up], i as u32);
    }
    let mut order = Vec::with_capacity(n);
    let mut path: Vec<u32> = Vec::new();
    loop {
        // Down to the first leaf below the last vertex of the path.
        let mut down = child[path.last().map_or(n, |i| *i as usize)];
        while down != NONE {
            path.push(down);
            down = child[down as usize];
        }
        let Some(done) = path.pop() else {
            return order;
        };
        order.push(done);
        let up = path.last().map_or(n, |i| *i as usize);
        child[up] = next[done as usize];
    }
}

/// The parent of each vertex: the first later vertex that its elimination joins to it.
fn elimination_tree(pattern: &Pattern) -> Vec<u32> {
    let n = pattern.vertices();
    let (mut parent, mut ancestor) = (vec![NONE; n], vec![NONE; n]);
    for i in 0..n {
        for k in pattern
            .neighbors(i)
            .iter()
            .take_while(|k| (**k as usize) < i)
        {
            // To the root of what is joined so far; paths are shortened.
            let mut k = *k as usize;
            while ancestor[k] != NONE && ancestor[k] as usize != i {
                k = std::mem::replace(&mut ancestor[k], i as u32) as usize;
            }
            if ancestor[k] == NONE {
                (ancestor[k], parent[k]) = (i as u32, i as u32);
            }
        }
    }
    parent
}

/// Entries of each column of the factor, the diagonal included.
fn column_counts(pattern: &Pattern, parent: &[u32]) -> Vec<u32> {
    let n = parent.len();
    let (mut counts, mut mark) = (vec![1u32; n], vec![NONE; n]);
    for i in 0..n {
        mark[i] = i as u32;
        for k in pattern
            .neighbors(i)
            .iter()
            .take_while(|k| (**k as usize) < i)
        {
            // Row i has an entry in each column up to the subtree that is known.
            let mut k = *k as usize;
            while mark[k] != i as u32 {
                mark[k] = i as u32;
                counts[k] += 1;
                k = parent[k] as usize;
            }
        }
    }
    counts
}

/// Columns that are factored together, before they are cut to the largest width.
struct Group {
    first: u32,
    width: u32,
    /// Rows, those of the diagonal block included.
    height: u32,
    /// Entries that are not stored zeros.
    entries: u64,
}

impl Group {
    /// Values stored on and below the diagonal.
    fn stored(&self) -> u64 {
        let (width, height) = (u64::from(self.width), u64::from(self.height));
        width * height - width * (width - 1) / 2
    }

    /// The groups as one.
    fn joined(&self, behind: &Group) -> Group {
        Group {
            first: self.first,
            width: self.width + behind.width,
            height: self.width + behind.height,
            entries: self.entries + behind.entries,
        }
    }

    fn has_no_zeros(&self) -> bool {
        self.stored() == self.entries
    }

    /// Whether few zeros are stored for its width, which is at most this.
    fn has_few_zeros(&self, most: usize) -> bool {
        let share = match self.width {
            0..=4 => 1.0,
            5..=16 => 0.4,
            17..=48 => 0.1,
            _ => 0.05,
        };
        let zeros = (self.stored() - self.entries) as f64;
        self.width as usize <= most && zeros <= share * self.stored() as f64
    }
}

/// Joins each group with children whose columns end where its own begin, where `accepts`
/// the result.
fn join(groups: Vec<Group>, parent: &[u32], accepts: impl Fn(&Group) -> bool) -> Vec<Group> {
    let mut joined: Vec<Group> = Vec::with_capacity(groups.len());
    for mut group in groups {
        while let Some(child) = joined.last() {
            let up = parent[group.first as usize - 1];
            let both = child.joined(&group);
            if !(group.first..group.first + group.width).contains(&up) || !accepts(&both) {
                break;
            }
            joined.pop();
            group = both;
        }
        joined.push(group);
    }
    joined
}

/// First column of each supernode, and the number of columns. The pattern is in postorder.
fn supernodes(pattern: &Pattern, widths: Widths) -> Vec<u32> {
    let parent = elimination_tree(pattern);
    let counts = column_counts(pattern, &parent);
    let single = |(column, count): (usize, &u32)| Group {
        first: column as u32,
        width: 1,
        height: *count,
        entries: u64::from(*count),
    };
    let columns = counts.iter().enumerate().map(single).collect();
    let mut groups = join(columns, &parent, Group::has_no_zeros);
    if widths.relaxed {
        groups = join(groups, &parent, |group| group.has_few_zeros(widths.most));
    }
    let mut first = Vec::new();
    for group in groups {
        let parts = group.width.div_ceil(widths.most as u32);
        let begin = |part: u32| u64::from(group.width) * u64::from(part) / u64::from(parts);
        first.extend((0..parts).map(|part| group.first + begin(part) as u32));
    }
    first.push(pattern.vertices() as u32);
    first
}

impl Symbolic {
    /// Of a pattern in postorder.
    pub fn new(pattern: &Pattern, widths: Widths) -> Self {
        let first = supernodes(pattern, widths);
        let mut supernode_of = vec![0; pattern.vertices()];
        for (k, columns) in first.windows(2).enumerate() {
            supernode_of[columns[0] as usize..columns[1] as usize].fill(k as u32);
        }
        let rows = rows(pattern, &first, &supernode_of);
        let mut symbolic = Symbolic {
            from: vec![Vec::new(); rows.len()],
            first,
            supernode_of,
            rows,
            blocks: Vec::new(),
            into: Vec::new(),
            lengths: Vec::new(),
        };
        symbolic.find_blocks();
        symbolic
    }

    fn find_blocks(&mut self) {
        let mut blocks = Vec::new();
        for (source, rows) in self.rows.iter().enumerate() {
            let mut begin = 0u32;
            let of = |row: &u32| self.supernode_of[*row as usize];
            for same in rows.chunk_by(|a, b| of(a) == of(b)) {
                let end = begin + same.len() as u32;
                blocks.push(Block {
                    source: source as u32,
                    target: of(&same[0]),
                    meets: begin..end,
                    offset: 0,
                });
                begin = end;
            }
        }
        blocks.sort_by_key(|block| (block.target, block.source));
        let mut at = 0;
        for target in 0..self.supernodes() {
            let mut length = self.width(target) * self.height(target);
            let begin = at;
            while let Some(block) = blocks.get_mut(at).filter(|b| b.target == target as u32) {
                block.offset = length;
                length += self.width(block.source as usize) * block.meets.len();
                self.from[block.source as usize].push(at as u32);
                at += 1;
            }
            self.into.push(begin..at);
            self.lengths.push(length);
        }
        self.blocks = blocks;
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.supernode_of.len()
    }

    /// Number of supernodes.
    pub fn supernodes(&self) -> usize {
        self.rows.len()
    }

    /// Columns of a supernode.
    pub fn columns_of(&self, k: usize) -> Range<usize> {
        self.first[k] as usize..self.first[k + 1] as usize
    }

    /// Number of columns of a supernode.
    pub fn width(&self, k: usize) -> usize {
        self.columns_of(k).len()
    }

    /// Rows of a supernode's panel, those of the diagonal block included.
    pub fn height(&self, k: usize) -> usize {
        self.width(k) + self.rows[k].len()
    }

    /// Rows of a supernode's panel below the diagonal block.
    pub fn rows(&self, k: usize) -> &[u32] {
        &self.rows[k]
    }

    /// The supernode of a column.
    pub fn supernode_of(&self, column: usize) -> usize {
        self.supernode_of[column] as usize
    }

    /// The supernode that the rows of this one meet first; `None`: it has none.
    pub fn parent(&self, k: usize) -> Option<usize> {
        let row = self.rows[k].first()?;
        Some(self.supernode_of(*row as usize))
    }

    /// All blocks above the diagonal, by target, then source.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The blocks of a target, by source: positions in `blocks`.
    pub fn updates_of(&self, target: usize) -> Range<usize> {
        self.into[target].clone()
    }

    /// The blocks of a source, by target: positions in `blocks`.
    pub fn updates_by(&self, source: usize) -> &[u32] {
        &self.from[source]
    }

    /// The block of a source and a target.
    pub fn block(&self, source: usize, target: usize) -> Option<&Block> {
        let blocks = &self.blocks[self.updates_of(target)];
        let at = blocks.binary_search_by_key(&(source as u32), |block| block.source);
        at.ok().map(|at| &blocks[at])
    }

    /// Values of a supernode's panel.
    pub fn panel_length(&self, k: usize) -> usize {
        self.width(k) * self.height(k)
    }

    /// Values of a supernode's column: its panel and the blocks above it.
    pub fn length(&self, k: usize) -> usize {
        self.lengths[k]
    }

    /// Floating-point operations of factoring a panel.
    pub fn factor_flops(&self, k: usize) -> f64 {
        let (width, height) = (self.width(k) as f64, self.height(k) as f64);
        // Of step i: a division of each row below, and an update of what is right of it.
        let pairs = width * (width - 1.0) / 2.0;
        let squares = (width - 1.0) * width * (2.0 * width - 1.0) / 6.0;
        let divisions = width * height - width - pairs;
        let below = height - width;
        divisions + 2.0 * (below * pairs + squares)
    }

    /// Floating-point operations of an update: the triangular solve and the product.
    pub fn update_flops(&self, block: &Block) -> f64 {
        let source = block.source as usize;
        let width = self.width(source) as f64;
        let columns = block.meets.len() as f64;
        let rows = self.rows[source].len() as f64;
        columns * width * (width - 1.0) + 2.0 * rows * columns * width
    }
}

/// Rows of each panel below its diagonal block.
fn rows(pattern: &Pattern, first: &[u32], supernode_of: &[u32]) -> Vec<Vec<u32>> {
    let count = first.len() - 1;
    let mut rows: Vec<Vec<u32>> = vec![Vec::new(); count];
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); count];
    let mut mark = vec![NONE; pattern.vertices()];
    for k in 0..count {
        let end = first[k + 1];
        let mut found = Vec::new();
        let mut add = |row: u32| {
            if row >= end && std::mem::replace(&mut mark[row as usize], k as u32) != k as u32 {
                found.push(row);
            }
        };
        for column in first[k]..end {
            pattern
                .neighbors(column as usize)
                .iter()
                .copied()
                .for_each(&mut add);
        }
        for child in &children[k] {
            rows[*child as usize].iter().copied().for_each(&mut add);
        }
        found.sort_unstable();
        if let Some(row) = found.first() {
            children[supernode_of[*row as usize] as usize].push(k as u32);
        }
        rows[k] = found;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::super::grid::convection_diffusion;
    use super::super::ordering::minimum_degree;
    use super::*;

    /// Rows of each column of the factor, by elimination on sets.
    fn naive(pattern: &Pattern) -> Vec<Vec<u32>> {
        let n = pattern.vertices();
        let mut rows: Vec<Vec<u32>> = (0..n)
            .map(|j| {
                let below = pattern.neighbors(j).iter().copied();
                below.filter(|i| *i as usize > j).collect()
            })
            .collect();
        for j in 0..n {
            let own = rows[j].clone();
            for i in &own {
                let into = &mut rows[*i as usize];
                into.extend(own.iter().filter(|k| *k > i));
                into.sort_unstable();
                into.dedup();
            }
        }
        rows
    }

    fn grid(points: usize) -> Pattern {
        let matrix = convection_diffusion(points, 1.0, 0);
        let own: Vec<u32> = (0..matrix.columns() as u32).collect();
        let pattern = Pattern::symmetrized(&matrix, &own);
        let pattern = pattern.permuted(&minimum_degree(&pattern));
        pattern.permuted(&postorder(&pattern))
    }

    #[test]
    fn exact_supernodes_have_the_rows_of_elimination() {
        for points in 1..6 {
            let pattern = grid(points);
            let naive = naive(&pattern);
            let counts = column_counts(&pattern, &elimination_tree(&pattern));
            let lengths: Vec<u32> = naive.iter().map(|rows| rows.len() as u32 + 1).collect();
            assert_eq!(counts, lengths);
            for most in [1, 3, 100] {
                let widths = Widths {
                    most,
                    relaxed: false,
                };
                let symbolic = Symbolic::new(&pattern, widths);
                for (j, expected) in naive.iter().enumerate() {
                    let k = symbolic.supernode_of(j);
                    let own = symbolic.columns_of(k);
                    assert!(own.len() <= most && own.contains(&j));
                    let mut rows: Vec<u32> = (j as u32 + 1..own.end as u32).collect();
                    rows.extend(symbolic.rows(k));
                    assert_eq!(rows, *expected);
                }
            }
        }
    }

    #[test]
    fn relaxed_supernodes_hold_the_rows_of_elimination_and_few_zeros() {
        let pattern = grid(7);
        let naive = naive(&pattern);
        let widths = |relaxed| Widths { most: 20, relaxed };
        let relaxed = Symbolic::new(&pattern, widths(true));
        let exact = Symbolic::new(&pattern, widths(false));
        assert!(relaxed.supernodes() < exact.supernodes());
        let mut stored = 0;
        for k in 0..relaxed.supernodes() {
            stored += relaxed.panel_length(k);
            for j in relaxed.columns_of(k) {
                let behind = naive[j]
                    .iter()
                    .filter(|i| **i as usize >= relaxed.columns_of(k).end);
                for i in behind {
                    assert!(relaxed.rows(k).contains(i));
                }
            }
        }
        let entries: usize = naive.iter().map(|rows| rows.len() + 1).sum();
        assert!(stored < 3 * entries, "{stored} {entries}");
    }

    #[test]
    fn updates_find_a_place_for_each_row() {
        let symbolic = Symbolic::new(
            &grid(6),
            Widths {
                most: 8,
                relaxed: true,
            },
        );
        for k in 0..symbolic.supernodes() {
            assert_eq!(
                symbolic.parent(k),
                symbolic
                    .updates_by(k)
                    .first()
                    .map(|b| symbolic.blocks()[*b as usize].target as usize)
            );
            for block in symbolic
                .updates_by(k)
                .iter()
                .map(|b| &symbolic.blocks()[*b as usize])
            {
                let target = block.target as usize;
                assert_eq!(symbolic.block(k, target), Some(block));
                for row in &symbolic.rows(k)[block.meets.end as usize..] {
                    assert!(symbolic.rows(target).contains(row));
                }
                for row in &symbolic.rows(k)[..block.meets.start as usize] {
                    let between = symbolic.supernode_of(*row as usize);
                    assert!(symbolic.block(between, target).is_some());
                }
            }
        }
    }

    #[test]
    fn flops_are_those_of_the_loops() {
        let symbolic = Symbolic::new(
            &grid(4),
            Widths {
                most: 8,
                relaxed: true,
            },
        );
        for k in 0..symbolic.supernodes() {
            let (width, height) = (symbolic.width(k), symbolic.height(k));
            let step = |i: usize| (height - i - 1) * (1 + 2 * (width - i - 1));
            let flops: usize = (0..width).map(step).sum();
            assert_eq!(symbolic.factor_flops(k), flops as f64);
        }
    }
}
