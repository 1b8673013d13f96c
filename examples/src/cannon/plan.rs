//! Which blocks there are, who has them, and in which order they are multiplied. Pure.

use std::ops::Range;

use osier::{Error, ErrorKind, Result};

use super::options::Options;
use crate::variant::By;

/// Blocks along rows and columns in a graph, unless told otherwise.
const USUAL_BLOCKS: usize = 8;

/// Blocks and layers of a product. Places are (i, j, layer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Rows and columns of the matrices.
    pub n: usize,
    /// Blocks along rows and along columns.
    pub blocks: usize,
    /// Layers.
    pub layers: usize,
}

impl Plan {
    /// The plan that options ask for, over a number of ranks.
    ///
    /// # Errors
    /// Blocks, layers or ranks do not fit each other; the message names what would fit.
    pub fn new(ranks: usize, options: &Options) -> Result<Plan> {
        let (n, layers) = (options.n, options.layers);
        let bytes = n
            .checked_mul(n)
            .and_then(|e| e.checked_mul(size_of::<f64>()));
        if n == 0 || bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return argument(format!(
                "--n {n}: no matrix has this size (hint: from 1 to {})",
                (isize::MAX as usize / size_of::<f64>()).isqrt()
            ));
        }
        if layers == 0 || layers > n {
            return argument(format!(
                "--layers {layers} of --n {n}: from 1 to {n} layers fit"
            ));
        }
        let blocks = match options.by {
            By::Graph => options.blocks.unwrap_or(USUAL_BLOCKS.max(layers).min(n)),
            By::Sync | By::Overlap => blocks_of_ranks(ranks, options)?,
        };
        if blocks == 0 || blocks > n {
            return argument(format!(
                "{blocks}x{blocks} blocks of --n {n}: each needs an entry (hint: at most {n}x{n} blocks)"
            ));
        }
        if layers > blocks {
            return argument(format!(
                "--layers {layers} over {blocks}x{blocks} blocks: each layer needs a step of {blocks} (hint: at most {blocks} layers)"
            ));
        }
        let places = blocks
            .checked_mul(blocks)
            .and_then(|p| p.checked_mul(layers));
        if places.is_none_or(|places| places > u32::MAX as usize) {
            return argument(format!(
                "{blocks}x{blocks} blocks in {layers} layers: more than 2^32 tasks"
            ));
        }
        Ok(Plan { n, blocks, layers })
    }

    /// Rows, or columns, of a block.
    pub fn range(&self, block: usize) -> Range<usize> {
        let first = |at: usize| (self.n as u128 * at as u128 / self.blocks as u128) as usize;
        first(block)..first(block + 1)
    }

    /// Rows or columns of the largest block.
    pub fn largest(&self) -> usize {
        self.n.div_ceil(self.blocks)
    }

    /// The steps of a layer.
    pub fn steps(&self, layer: usize) -> Range<usize> {
        let first = |at: usize| self.blocks * at / self.layers;
        first(layer)..first(layer + 1)
    }

    /// The column of blocks of A, and row of B, that step `step` at (i, j) multiplies.
    pub fn inner(&self, i: usize, j: usize, step: usize) -> usize {
        (i + j + step) % self.blocks
    }

    /// Where the first step of a layer needs A_ik: the column j; or B_ki: the row.
    pub fn first_place(&self, i: usize, k: usize, layer: usize) -> usize {
        let q = self.blocks;
        (k + 2 * q - i - self.steps(layer).start) % q
    }

    /// Number of places.
    pub fn places(&self) -> usize {
        self.blocks * self.blocks * self.layers
    }

    /// The number of a place: layers one behind the other, each by rows.
    pub fn number(&self, [i, j, layer]: [usize; 3]) -> usize {
        (layer * self.blocks + i) * self.blocks + j
    }

    /// The place with this number.
    pub fn place(&self, number: usize) -> [usize; 3] {
        let q = self.blocks;
        [number / q % q, number % q, number / (q * q)]
    }

    /// The rank of a place in a graph over a number of ranks: runs of places by their numbers,
    /// whose lengths differ by at most one.
    pub fn rank(&self, place: [usize; 3], ranks: usize) -> usize {
        (self.number(place) as u128 * ranks as u128 / self.places() as u128) as usize
    }
}

fn argument<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::Argument, text))
}

/// Blocks where each rank has one of a layer.
fn blocks_of_ranks(ranks: usize, options: &Options) -> Result<usize> {
    let layers = options.layers;
    let (by, blocks) = (options.by, (ranks / layers).isqrt());
    let needed = |blocks: usize| {
        let ranks = blocks
            .checked_mul(blocks)
            .and_then(|b| b.checked_mul(layers));
        ranks.map_or_else(|| "too many".into(), |ranks| ranks.to_string())
    };
    if let Some(wanted) = options.blocks {
        if needed(wanted) != ranks.to_string() {
            return argument(format!(
                "--blocks {wanted} --layers {layers} over {ranks} rank{} by {by}: it needs {} (hint: --by graph runs over any number)",
                if ranks == 1 { "" } else { "s" },
                needed(wanted)
            ));
        }
        return Ok(wanted);
    }
    if blocks < layers || blocks * blocks * layers != ranks {
        let below = blocks.max(layers);
        return argument(format!(
            "{ranks} rank{} in {layers} layer{} by {by}: each layer needs a square of ranks, at least {layers}x{layers} (hint: {} or {} ranks fit, or --by graph)",
            if ranks == 1 { "" } else { "s" },
            if layers == 1 { "" } else { "s" },
            needed(below),
            needed(below + 1),
        ));
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn plan(ranks: usize, line: &str) -> Result<Plan> {
        let words = std::iter::once("cannon").chain(line.split_whitespace());
        Plan::new(ranks, &Options::try_parse_from(words).expect("options"))
    }

    #[test]
    fn each_place_multiplies_each_inner_block_once() {
        for (blocks, layers) in [(1, 1), (2, 1), (4, 2), (5, 3), (3, 3), (7, 2)] {
            let plan = Plan {
                n: 31,
                blocks,
                layers,
            };
            let mut owners = [0; 5];
            for number in 0..plan.places() {
                let place = plan.place(number);
                assert_eq!(plan.number(place), number);
                owners[plan.rank(place, 5)] += 1;
            }
            let (least, most) = (owners.iter().min(), owners.iter().max());
            assert!(most.expect("ranks") - least.expect("ranks") <= 1);
            let rows: usize = (0..blocks).map(|b| plan.range(b).len()).sum();
            assert_eq!(rows, 31);
            for i in 0..blocks {
                for j in 0..blocks {
                    let mut seen = vec![0; blocks];
                    for layer in 0..layers {
                        let steps = plan.steps(layer);
                        assert!(!steps.is_empty());
                        let k = plan.inner(i, j, steps.start);
                        assert_eq!(plan.first_place(i, k, layer), j);
                        assert_eq!(plan.first_place(j, k, layer), i);
                        for step in steps {
                            seen[plan.inner(i, j, step)] += 1;
                        }
                    }
                    assert!(seen.iter().all(|times| *times == 1));
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_does() {
        for (ranks, line, part) in [
            (3, "", "1 or 4 ranks fit"),
            (6, "--layers 2", "8 or 18 ranks fit"),
            (4, "--layers 4", "64 or 100 ranks fit"),
            (4, "--blocks 3", "needs 9"),
            (4, "--n 1", "at most 1x1"),
            (1, "--n 0", "from 1 to"),
            (1, "--n 4000000000", "from 1 to"),
            (1, "--layers 0", "layers fit"),
            (2, "--by graph --blocks 9 --n 8", "at most 8x8"),
            (2, "--by graph --blocks 0", "at most"),
            (2, "--by graph --blocks 3 --layers 4", "at most 3 layers"),
            (2, "--by graph --n 900000000 --blocks 70000", "2^32"),
        ] {
            let e = plan(ranks, line).expect_err(line);
            assert_eq!(e.kind(), ErrorKind::Argument);
            assert!(e.to_string().contains(part), "{line}: {e}");
        }
        let fits = |ranks, line: &str| plan(ranks, line).map(|p| p.blocks).expect(line);
        assert_eq!(fits(4, ""), 2);
        assert_eq!(fits(18, "--layers 2 --by overlap"), 3);
        assert_eq!(fits(5, "--by graph"), 8);
        assert_eq!(fits(5, "--by graph --n 3"), 3);
        assert_eq!(fits(2, "--by graph --layers 9"), 9);
    }
}
